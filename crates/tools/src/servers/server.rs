//! One server of the pool: its list, its connections, its failures.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::OsString,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use globset::GlobSet;
use meerkat_service::{SessionError, SessionId, redact::Secrets};
use secrecy::SecretString;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{
    auth::Account,
    cache::{Accepted, Kept},
    config::{Scope, ServerConfig, check_url, expand, glob_set},
    given::{Given, clean},
    link::{Link, Target, Use},
    listing::{self, Definition, TOOLS_MAX},
    process::{Program, check_supervisor, scrub},
    shared::Pool,
};

/// Connections to one server of the scope `session`.
const LINKS_MAX: usize = 256;
/// Wait after the first failed start; doubled for each further one.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// Longest wait after a failed start.
const RETRY_MAX: Duration = Duration::from_secs(60);
/// Bytes of an error; a library's may quote whatever a server has sent.
const ERROR_BYTES_MAX: usize = 2 * 1024;
/// Wait between two lists that a server asks for by saying that it has changed.
const LIST_PAUSE: Duration = Duration::from_millis(100);

/// Place of a connection: one for all sessions, or one for each.
type Slot = Arc<tokio::sync::Mutex<Option<Arc<Link>>>>;

/// Server of the pool.
pub(super) struct Server {
    pub(super) name: String,
    pub(super) config: ServerConfig,
    /// Hash of what decides which program or address answers.
    pub(super) definition: String,
    /// The way to it, or why there is none: a variable that is not set.
    target: Result<Target, String>,
    /// All that it is given, for what it says of itself.
    secrets: Secrets,
    /// That of it which is a secret in every session.
    everywhere: Secrets,
    only: Option<GlobSet>,
    without: Option<GlobSet>,
    pool: Arc<Pool>,
    state: Mutex<State>,
    /// Held while the list is written to disk.
    writing: Mutex<()>,
    slots: Mutex<BTreeMap<Option<SessionId>, Slot>>,
    /// Fires when the first try to list its tools has ended.
    tried: CancellationToken,
    /// True while a list is made because a step asked for it.
    is_listing: AtomicBool,
}

#[derive(Default)]
struct State {
    /// All tools of the last list, and those of them that the configuration does not leave out.
    listed: Vec<Arc<Definition>>,
    accepted: Accepted,
    definitions: Arc<[Arc<Definition>]>,
    /// True if a list is known, from the disk or the server.
    is_listed: bool,
    last_error: Option<String>,
    failures: u32,
    /// Time of the clock before which no start is tried.
    retry_at: Option<Duration>,
}

/// What a person sees of a server's state.
pub(super) struct Seen {
    pub(super) definitions: Arc<[Arc<Definition>]>,
    pub(super) is_listed: bool,
    pub(super) last_error: Option<String>,
    pub(super) links: usize,
}

impl Server {
    /// Makes a server from its checked configuration, with its list from the disk. It starts nothing.
    pub(super) fn new(
        name: &str,
        config: &ServerConfig,
        environment: &BTreeMap<String, String>,
        pool: Arc<Pool>,
    ) -> Result<(Self, Vec<SecretString>), SessionError> {
        let globs = |key: &str, globs: &[String]| {
            glob_set(globs).map_err(|error| SessionError::ConfigInvalid {
                key: format!("servers.{name}.{key}"),
                message: format!("This is not a glob: {error}."),
            })
        };
        let (only, without) = (globs("only", &config.only)?, globs("without", &config.without)?);
        let mut given = Given::default();
        let target = target(name, config, environment, &pool, &mut given);
        let definition = config.definition(&|name| environment.get(name).cloned());
        let secrets = Secrets::new(given.everywhere.iter().chain(&given.here).cloned());
        let everywhere = Secrets::new(given.everywhere.iter().cloned());
        if let Ok(Target::Address(_, _, Some(account))) = &target {
            account.redact_with(&secrets);
            account.redact_with(&everywhere);
        }
        let server = Self {
            name: name.to_owned(),
            config: config.clone(),
            target,
            secrets,
            everywhere,
            only,
            without,
            state: Mutex::default(),
            writing: Mutex::default(),
            slots: Mutex::default(),
            tried: CancellationToken::new(),
            is_listing: AtomicBool::new(false),
            definition,
            pool,
        };
        if let Some(kept) = server.pool.cache.read(&server.definition) {
            let mut state = server.state();
            state.is_listed = kept.cleaned.is_some();
            let tools = kept.cleaned.into_iter().flatten();
            state.listed = tools.map(|tool| Arc::new(Definition::of(name, tool, &kept.accepted))).collect();
            state.definitions = server.shown(&state.listed);
            state.accepted = kept.accepted;
            drop(state);
        }
        if let Err(why) = &server.target {
            server.state().last_error = Some(why.clone());
        }
        Ok((server, given.everywhere))
    }

    /// Returns the login at a remote server.
    ///
    /// # Errors
    /// `INVALID_REQUEST` if there is none for it.
    pub(super) fn account(&self) -> Result<&Arc<Account>, SessionError> {
        let name = &self.name;
        let why = match &self.target {
            Ok(Target::Address(_, _, Some(account))) => return Ok(account),
            Ok(Target::Address(_, headers, None)) if headers.contains_key(&http::header::AUTHORIZATION) => {
                format!("servers.{name}.headers has its own Authorization; remove that to log in")
            }
            Ok(Target::Address(..)) => "there is no folder to keep it in".to_owned(),
            Ok(Target::Program(_)) => "it is a command; only a url has a login".to_owned(),
            Err(why) => why.trim_end_matches('.').to_owned(),
        };
        Err(SessionError::invalid("server", format!("There is no login at the server {name}: {why}.")))
    }

    /// Returns how to log in, if it has refused the last request for want of that.
    pub(super) fn wanted_login(&self) -> Option<String> {
        self.account().ok().and_then(|account| account.refused())
    }

    /// Lets the next call start it at once.
    pub(super) fn forget_failures(&self) {
        let mut state = self.state();
        (state.failures, state.retry_at, state.last_error) = (0, None, None);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slots(&self) -> MutexGuard<'_, BTreeMap<Option<SessionId>, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns tools without those that the configuration leaves out.
    fn shown(&self, listed: &[Arc<Definition>]) -> Arc<[Arc<Definition>]> {
        let is_in = |set: &Option<GlobSet>, name: &str| set.as_ref().is_none_or(|set| set.is_match(name));
        let is_shown = |tool: &&Arc<Definition>| is_in(&self.only, &tool.remote) && !is_in(&self.without, &tool.remote);
        listed.iter().filter(is_shown).cloned().collect()
    }

    /// Takes a list from the server.
    fn take_list(self: &Arc<Self>, tools: &[Value]) {
        let mut state = self.state();
        let mut accepted = state.accepted.clone();
        let clean = |tool: &Value| clean(tool, &self.secrets, &self.everywhere);
        let tools: Vec<Value> = tools.iter().take(TOOLS_MAX).map(clean).collect();
        let listed = listing::read(&self.name, &tools, &state.listed, &mut accepted);
        let listed: Vec<_> = listed.into_iter().map(Arc::new).collect();
        let definitions = self.shown(&listed);
        let is_new = state.listed != listed || state.accepted != accepted || !state.is_listed;
        let has_changed = *state.definitions != *definitions;
        (state.is_listed, state.listed, state.accepted, state.definitions) = (true, listed, accepted, definitions);
        if has_changed {
            // Under the lock, so that the tools are never seen without their version.
            self.pool.changed();
        }
        drop(state);
        if is_new {
            self.keep();
        }
    }

    /// Keeps the list on disk. The newest is written last, whichever of two writes comes first.
    fn keep(self: &Arc<Self>) {
        let server = self.clone();
        self.pool.tasks.spawn_blocking(move || {
            let _turn = server.writing.lock().unwrap_or_else(PoisonError::into_inner);
            let state = server.state();
            let cleaned = state.is_listed.then(|| state.listed.iter().map(|tool| tool.kept()).collect());
            let kept = Kept { cleaned, accepted: state.accepted.clone() };
            drop(state);
            server.pool.cache.write(&server.definition, &kept);
        });
    }

    /// Accepts all tools as they are listed now.
    pub(super) fn accept(self: &Arc<Self>) {
        let mut guard = self.state();
        let state = &mut *guard;
        state.listed.iter_mut().for_each(|tool| Arc::make_mut(tool).accept(&self.name, &mut state.accepted));
        state.definitions = self.shown(&state.listed);
        self.pool.changed();
        drop(guard);
        self.keep();
    }

    /// Returns the tools of the last list.
    pub(super) fn definitions(&self) -> Arc<[Arc<Definition>]> {
        self.state().definitions.clone()
    }

    /// Returns the state for people.
    pub(super) fn seen(&self) -> Seen {
        let is_open =
            |slot: &&Slot| slot.try_lock().is_ok_and(|link| link.as_ref().is_some_and(|link| !link.is_closed()));
        let links = self.slots().values().filter(is_open).count();
        let state = self.state();
        Seen {
            definitions: state.definitions.clone(),
            is_listed: state.is_listed,
            last_error: state.last_error.clone(),
            links,
        }
    }

    /// Checks that a tool is still the one that the model was shown.
    ///
    /// # Errors
    /// Returns the cause, for the model.
    pub(super) fn check(&self, tool: &Definition) -> Result<(), String> {
        let definitions = self.definitions();
        match definitions.iter().find(|now| now.remote == tool.remote) {
            None => Err(format!("The server {} no longer has the tool {}.", self.name, tool.remote)),
            Some(now) if now.hash == tool.hash && now.quarantined.is_none() => Ok(()),
            Some(now) => {
                let why = now.quarantined.as_deref().unwrap_or("its description or schema has just changed");
                Err(format!("The tool {} of the server {} did not run: {why}.", tool.remote, self.name))
            }
        }
    }

    /// Begins to list the tools, if they are not known and no wait after a failure is left.
    pub(super) fn list_if_due(self: &Arc<Self>) {
        let is_due = {
            let state = self.state();
            !state.is_listed && state.retry_at.is_none_or(|at| self.pool.clock.elapsed() >= at)
        };
        let is_over = self.target.is_err() || self.pool.closed.is_cancelled();
        if !is_due || is_over || self.is_listing.swap(true, Ordering::SeqCst) {
            return;
        }
        if !self.tried.is_cancelled() {
            (self.pool.tell)(&format!("Listing the tools of the server {}.", self.name));
        }
        let server = self.clone();
        self.pool.tasks.spawn(async move {
            let opened = server.open(None).await;
            if let (Ok(used), Scope::Session) = (opened, server.config.scope) {
                // It served the list alone.
                used.0.close();
            }
            server.is_listing.store(false, Ordering::SeqCst);
            server.tried.cancel();
        });
    }

    /// Waits until the tools are listed or the first try has failed; it waits for no later one.
    pub(super) async fn ready(self: &Arc<Self>) {
        self.list_if_due();
        if !self.state().is_listed && self.target.is_ok() {
            self.tried.cancelled().await;
        }
    }

    /// Returns the connection of a session, and starts one if there is none.
    ///
    /// # Errors
    /// Returns the cause with the time of the next try, for the model.
    pub(super) async fn open(self: &Arc<Self>, session: Option<SessionId>) -> Result<Use, String> {
        let slot = {
            let mut slots = self.slots();
            if !slots.contains_key(&session) && slots.len() >= LINKS_MAX {
                return Err(format!("The server {} has {LINKS_MAX} connections, which is the limit.", self.name));
            }
            slots.entry(session).or_default().clone()
        };
        if let Ok(link) = slot.try_lock()
            && let Some(link) = link.as_ref().filter(|link| !link.is_closed())
        {
            return Ok(link.begin());
        }
        // A caller that gives up must not end the start that others wait for.
        let server = self.clone();
        let opened = self.pool.tasks.spawn(async move { server.open_slot(session, slot).await });
        opened.await.unwrap_or_else(|error| Err(format!("The start of the server {} failed: {error}.", self.name)))
    }

    async fn open_slot(self: Arc<Self>, session: Option<SessionId>, slot: Slot) -> Result<Use, String> {
        let opened = self.use_slot(session, &slot).await;
        if opened.is_err() {
            let mut slots = self.slots();
            // Beside the list's, the only handle is this one: no other call waits for it.
            if Arc::strong_count(&slot) == 2 && slots.get(&session).is_some_and(|now| Arc::ptr_eq(now, &slot)) {
                slots.remove(&session);
            }
        }
        opened
    }

    async fn use_slot(self: &Arc<Self>, session: Option<SessionId>, slot: &Slot) -> Result<Use, String> {
        let mut place = slot.lock().await;
        if let Some(link) = place.as_ref().filter(|link| !link.is_closed()) {
            return Ok(link.begin());
        }
        *place = None;
        if self.pool.closed.is_cancelled() {
            return Err(format!("The server {} is not started, as this program ends.", self.name));
        }
        let now = self.pool.clock.elapsed();
        let waits = {
            let state = self.state();
            let wait = state.retry_at.and_then(|at| at.checked_sub(now)).filter(|wait| !wait.is_zero());
            wait.map(|wait| (wait, state.last_error.clone().unwrap_or_default()))
        };
        if let Some((wait, why)) = waits {
            return Err(self.not_started(&why, wait));
        }
        match self.start().await {
            Ok(link) => {
                let mut state = self.state();
                (state.failures, state.retry_at, state.last_error) = (0, None, None);
                drop(state);
                let used = link.begin();
                *place = Some(link.clone());
                self.pool.tasks.spawn(self.clone().watch(session, slot.clone(), link));
                Ok(used)
            }
            Err(why) => {
                let why = self.redact(&why);
                tracing::warn!(target: "servers", server = self.name, why, "not started");
                let mut state = self.state();
                let wait = RETRY_MIN.saturating_mul(2_u32.saturating_pow(state.failures)).min(RETRY_MAX);
                state.failures += 1;
                state.retry_at = Some(self.pool.clock.elapsed() + wait);
                state.last_error = Some(why.clone());
                drop(state);
                Err(self.not_started(&why, wait))
            }
        }
    }

    /// Cuts a long error, and removes secrets: values of variables, and the query of an address, which errors name whole.
    pub(super) fn redact(&self, why: &str) -> String {
        let why = self.secrets.redact(why);
        let why = &why[..why.floor_char_boundary(ERROR_BYTES_MAX)];
        let mut parts = why.split('?');
        let first = parts.next().unwrap_or_default().to_owned();
        match self.config.url.as_deref().is_some_and(|url| url.contains('?')) {
            true => parts.fold(first, |text, part| {
                let rest = part.trim_start_matches(|character: char| !character.is_whitespace() && character != ')');
                format!("{text}?[redacted]{rest}")
            }),
            false => why.to_owned(),
        }
    }

    fn not_started(&self, why: &str, wait: Duration) -> String {
        let seconds = wait.as_millis().div_ceil(1000);
        format!("The server {} could not be started: {why}. Next attempt in {seconds} s.", self.name)
    }

    /// Connects, and compares the tools with those that were accepted before the first call.
    async fn start(self: &Arc<Self>) -> Result<Arc<Link>, String> {
        let target = self.target.as_ref().map_err(Clone::clone)?;
        let pool = &self.pool;
        pool.former_ended().await;
        let connect = async {
            let wants_session = matches!(self.config.scope, Scope::Session);
            let (clock, secrets) = (pool.clock.clone(), self.secrets.clone());
            let link = Link::open(&self.name, target, wants_session, clock, secrets, &pool.tasks).await?;
            self.list(&link).await?;
            Ok(Arc::new(link))
        };
        // Boxed, as it is large and rare.
        self.in_time(Box::pin(connect)).await
    }

    /// Lists the tools over a connection.
    async fn list(self: &Arc<Self>, link: &Link) -> Result<(), String> {
        let (tools, server) = (link.list().await?, self.clone());
        // A schema may take long to check.
        tokio::task::spawn_blocking(move || server.take_list(&tools)).await.map_err(|error| error.to_string())
    }

    /// Waits for a start or a list, at most for the time of a start and as long as this program goes on.
    async fn in_time<T>(&self, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        tokio::select! {
            done = work => done,
            () = self.pool.closed.cancelled() => Err("this program ends".to_owned()),
            () = self.pool.clock.sleep(Duration::from_millis(self.config.start_timeout_ms)) => {
                Err(format!("it was not ready after {} ms (start_timeout_ms)", self.config.start_timeout_ms))
            }
        }
    }

    /// Watches a connection to its end: lists again what has changed, and ends it when nothing has used it for long.
    async fn watch(self: Arc<Self>, session: Option<SessionId>, slot: Slot, link: Arc<Link>) {
        let limit = Duration::from_millis(self.config.idle_ms);
        loop {
            let rest = limit.saturating_sub(link.idle());
            tokio::select! {
                () = link.ended() => break,
                () = self.pool.closed.cancelled() => break link.close(),
                () = link.list_changed() => {
                    let listed = {
                        let _used = link.begin();
                        self.in_time(self.list(&link)).await
                    };
                    if let Err(why) = listed {
                        tracing::warn!(target: "servers", server = self.name, why = self.redact(&why), "not listed");
                    }
                    self.pool.clock.sleep(LIST_PAUSE).await;
                }
                () = self.pool.clock.sleep(rest), if !limit.is_zero() => {
                    // Under the lock no use begins.
                    let mut place = slot.lock().await;
                    if link.idle() >= limit {
                        *place = None;
                        break link.close();
                    }
                }
            }
        }
        link.ended().await;
        let mut slots = self.slots();
        let is_unused = slot.try_lock().is_ok_and(|link| link.as_ref().is_none_or(|link| link.is_closed()));
        if is_unused && slots.get(&session).is_some_and(|now| Arc::ptr_eq(now, &slot)) {
            slots.remove(&session);
        }
    }
}

/// Replaces the variables of a configuration. Their values, and those of the environment and the headers, go to `given`.
fn target(
    name: &str,
    config: &ServerConfig,
    environment: &BTreeMap<String, String>,
    pool: &Pool,
    given: &mut Given,
) -> Result<Target, String> {
    let given = std::cell::RefCell::new(given);
    let replace = |text: &String| {
        expand(text, &|name| {
            let value = environment.get(name).cloned()?;
            given.borrow_mut().everywhere.push(value.clone().into());
            Some(value)
        })
    };
    let give = |text: &String| {
        let known = given.borrow().everywhere.len();
        let value = replace(text)?;
        // Of a text that names a variable, its value is the secret.
        if given.borrow().everywhere.len() == known {
            given.borrow_mut().add(&value);
        }
        Ok::<_, String>(value)
    };
    if let Some(url) = &config.url {
        let url = replace(url)?;
        check_url(&url).map_err(|why| format!("its url cannot be used: {why}"))?;
        let mut headers = HashMap::new();
        for (name, value) in &config.headers {
            let bad = |what: &str| format!("The header {name} is not a {what}; correct it");
            let header = name.parse::<http::HeaderName>().map_err(|_| bad("name of a header"))?;
            let mut value = http::HeaderValue::try_from(give(value)?).map_err(|_| bad("valid header"))?;
            value.set_sensitive(true);
            headers.insert(header, value);
        }
        // With a configured header there is no login.
        let folder = pool.logins_dir.clone().filter(|_| !headers.contains_key(&http::header::AUTHORIZATION));
        let account = folder.map(|folder| {
            let (clock, tasks) = (pool.clock.clone(), pool.tasks.clone());
            Arc::new(Account::new(name, &url, headers.clone(), folder, clock, tasks))
        });
        return Ok(Target::Address(url, headers, account));
    }
    check_supervisor()?;
    let mut command: Vec<OsString> = vec![replace(config.command.as_ref().unwrap_or(&String::new()))?.into()];
    for argument in &config.args {
        command.push(replace(argument)?.into());
    }
    let mut passed = scrub(environment);
    let is_changed = |folder: &Path| pool.workspaces.iter().any(|workspace| folder.starts_with(workspace));
    if !config.folder.as_deref().is_some_and(is_changed) {
        let path = passed.get("PATH").cloned().unwrap_or_default();
        let kept = outside(&path, is_changed);
        if let Some(found) = found(&command, &path).filter(|_| found(&command, &kept).is_none()) {
            let found = found.display();
            return Err(format!(
                "its program is {found}, which models may change; write this path to run it all the same"
            ));
        }
        passed.insert("PATH".to_owned(), kept);
    }
    for (name, value) in &config.env {
        passed.insert(name.clone(), give(value)?);
    }
    let (folder, former) = (config.folder.clone(), pool.former.clone());
    Ok(Target::Program(Program { command, environment: passed, folder, former }))
}

/// Finds the program of a command by a `PATH`.
fn found(command: &[OsString], path: &str) -> Option<PathBuf> {
    let name = command.first().filter(|name| !name.as_encoded_bytes().contains(&b'/'))?;
    std::env::split_paths(path).map(|folder| folder.join(name)).find(|program| program.is_file())
}

/// Returns a `PATH` without the folders that models change: a program there may be theirs.
fn outside(path: &str, is_changed: impl Fn(&Path) -> bool) -> String {
    let is_kept = |folder: &PathBuf| {
        let is_in = folder.canonicalize().is_ok_and(|folder| is_changed(&folder));
        folder.is_absolute() && !is_changed(folder) && !is_in
    };
    let kept = std::env::join_paths(std::env::split_paths(path).filter(is_kept));
    kept.ok().and_then(|path| path.into_string().ok()).unwrap_or_default()
}
