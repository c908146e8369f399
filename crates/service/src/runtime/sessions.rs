//! The service: checks requests, finds their session, and hands them to its actor. It is the same for stored sessions
//! and for those in memory.
//!
//! Reads use the view that an actor published, or fold the journal if there is no actor; they never load a session.

use std::{
    collections::{BTreeSet, HashMap},
    iter,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::FutureExt as _;
use meerkat_words::agents::Descent;
use tokio::sync::{Mutex, OnceCell, RwLock, Semaphore, mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use super::{creations::Creations, given, nodes::Others, validate};
use crate::{
    SessionError,
    agent::{
        actor::Actor,
        command::{Change, Command, Reply},
        record::externalise,
        registry::{Found, Live, MAILBOX_MAX, Passage, Registry},
        render::{check_options, window_tokens},
        shared::Shared,
        supervise::supervise,
    },
    capability::Capability,
    cost::Cost,
    engine::Engine,
    follow::turn,
    ids::{Seq, SessionId},
    prompt,
    service::{
        Changed, ClientTool, CreateSession, SessionCreated, SessionQuery, SessionSummary, StartTurn, TurnHandle,
    },
    session::{
        ApplyError, Session, View,
        event::{ClientToolsChanged, Event, Key, Record, SessionCreated as Created},
        message::Body,
    },
    store::{Creation, IndexedKey, Lease, StoreError},
    tool::ClientTools,
    upkeep::bundle::{Exports, Uploads},
};

/// Number of locks that the journals share.
const JOURNAL_LOCKS: usize = 64;
/// Most bodies that are being stored as uploads of sessions at one time.
pub(super) const BODIES_MAX: usize = 16;

/// How often a command is sent to a session that changes hands.
const SENT_MAX: u32 = 10;
/// Shortest and longest time within which it is sent again.
const SENT_AGAIN_MIN: Duration = Duration::from_millis(5);
const SENT_AGAIN_MAX: Duration = Duration::from_millis(500);

/// Sessions over one engine: what both services are made of.
#[derive(Clone)]
pub struct Sessions {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) engine: Arc<Engine>,
    pub(super) registry: Arc<Registry>,
    pub(super) creations: Arc<Creations>,
    /// Sub-agents at work; they end with the service.
    pub(super) children: std::sync::Mutex<HashMap<SessionId, AbortOnDropHandle<()>>>,
    pub(super) exports: Exports,
    pub(super) uploads: Uploads,
    /// Room for bodies that are being stored as uploads of sessions.
    pub(super) bodies: Semaphore,
    journals: [RwLock<u64>; JOURNAL_LOCKS],
    /// Set when the sessions that a former process left open are settled.
    pub(super) is_ready: OnceCell<()>,
    /// Task that compacts journals on schedule; it ends with the service.
    pub(super) schedule: std::sync::OnceLock<AbortOnDropHandle<()>>,
    /// Task that reads what is stored now and then; it ends with the service.
    pub(super) scrub: std::sync::OnceLock<AbortOnDropHandle<()>>,
    /// Tasks for a store that several nodes share; they end with the service.
    pub(super) with_others: std::sync::OnceLock<[AbortOnDropHandle<()>; 3]>,
    /// What is known here of the other nodes of the store.
    pub(super) others: Others,
    /// Held while the index is rebuilt.
    pub(super) completing: Mutex<()>,
    /// Time at which the list was last updated for followers that wait.
    pub(super) published: std::sync::Mutex<Option<Duration>>,
    /// Loss of the index since which every session was put into it, perhaps not yet durably.
    pub(super) index_filled_at: AtomicU64,
    /// Model that answered an earlier session if the default is a stand-in; looked up once.
    earlier_model: OnceCell<Option<String>>,
}

impl Sessions {
    /// Makes a service over an engine.
    pub(crate) fn new(engine: Engine) -> Self {
        let inner = Inner {
            engine: Arc::new(engine),
            registry: Arc::default(),
            creations: Arc::default(),
            children: std::sync::Mutex::default(),
            exports: Exports::default(),
            uploads: Uploads::default(),
            bodies: Semaphore::new(BODIES_MAX),
            journals: std::array::from_fn(|_| RwLock::default()),
            is_ready: OnceCell::new(),
            schedule: std::sync::OnceLock::new(),
            scrub: std::sync::OnceLock::new(),
            with_others: std::sync::OnceLock::new(),
            others: Others::default(),
            completing: Mutex::default(),
            published: std::sync::Mutex::default(),
            index_filled_at: AtomicU64::new(0),
            earlier_model: OnceCell::new(),
        };
        let sessions = Self::of(Arc::new(inner));
        sessions.serve_children();
        sessions
    }

    /// Makes another handle of a service.
    pub(super) const fn of(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    /// Returns true if its sessions outlive the process.
    pub(super) fn is_stored(&self) -> bool {
        self.engine().is_stored()
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    /// Returns the lock of a session's journal: write-locked while records are dropped, read-locked by callers that
    /// combine several reads of it. It counts the write locks.
    pub(super) fn journal(&self, id: SessionId) -> &RwLock<u64> {
        &self.inner.journals[id.as_uuid().as_bytes()[15] as usize % JOURNAL_LOCKS]
    }
}

impl Sessions {
    /// Refuses a request for compaction in a build without it, and settings for a compactor that takes none.
    fn check_compaction(&self, is_asked: bool) -> Result<(), SessionError> {
        if is_asked || self.engine().is_compaction_configured() {
            self.engine().capabilities.require(Capability::SessionCompaction)?;
        }
        self.engine().check_settings(is_asked)
    }

    /// Returns the way to a session's actor; loads it if the session is stored.
    pub(super) async fn live(&self, session_id: SessionId) -> Result<Live, SessionError> {
        loop {
            match self.inner.registry.find(session_id) {
                Found::Live(live) => {
                    if self.engine().events.holds(session_id).await? {
                        return Ok(live);
                    }
                    // Its state is that of the past.
                    let (reply, gone) = oneshot::channel();
                    drop(live.mailbox.send(Command::GiveWay { reply }).await);
                    drop((live, gone.await));
                }
                // Nothing is ever sent: the channel closes when the actor has arrived or left.
                Found::Passing(mut over) => drop(over.changed().await),
                Found::Absent(arrival) => {
                    // A task of its own: the caller may leave, and the actor still has to be registered.
                    let service = self.clone();
                    let brought = tokio::spawn(async move { service.bring_in(session_id, arrival).await });
                    let brought = brought.await;
                    let lost = |_| Err(SessionError::Internal("a session could not be loaded".to_owned()));
                    if let Some(live) = brought.unwrap_or_else(lost)? {
                        return Ok(live);
                    }
                }
            }
        }
    }

    /// Loads a stored session, and settles the turn that a former process left open. `None` if another owner has had it
    /// meanwhile.
    async fn bring_in(&self, session_id: SessionId, arrival: Passage) -> Result<Option<Live>, SessionError> {
        let engine = &self.inner.engine;
        if engine.events.tail(session_id).await?.is_none() {
            return Err(SessionError::NotFound(session_id));
        }
        if engine.is_shutting_down.load(Ordering::Acquire) {
            return Err(SessionError::ShuttingDown);
        }
        let lease = engine.events.lease(session_id).await?;
        let session = match engine.restore(session_id).await {
            Ok(Some(session)) if session.last_seq <= lease.tail => session,
            restored => {
                engine.events.give_up(lease).await;
                return restored?.map(|_| None).ok_or(SessionError::NotFound(session_id));
            }
        };
        let (live, mut actor) = self.actor(session, lease);
        let (settled, is_settled) = oneshot::channel();
        actor.on_settled(settled);
        self.spawn(actor);
        // If the store fails it, its mailbox is closed, and the next caller loads it again.
        is_settled.await.unwrap_or(Err(SessionError::StoreFailed))?;
        let shared = live.shared.clone();
        match (arrival.arrive(&self.inner.registry, live), shared.failure.get()) {
            // The actor has left before its caller came. Loaded again at once, it might leave again, without end.
            (None, Some(error)) => Err(error.clone()),
            (arrived, _) => Ok(arrived),
        }
    }

    /// Makes the actor of a session whose records are all applied.
    fn actor(&self, session: Session, lease: Lease) -> (Live, Actor) {
        let registry = &self.inner.registry;
        let shared = Shared::new(&session, registry.hub(session.id));
        let (mailbox, commands) = mpsc::channel(MAILBOX_MAX);
        let (ports, registry) = (self.inner.engine.ports.clone(), Arc::downgrade(registry));
        let actor = Actor::new(session, lease, ports, shared.clone(), registry, commands);
        (Live { mailbox, shared }, actor)
    }

    fn spawn(&self, actor: Actor) {
        tokio::spawn(supervise(Box::new(actor)));
    }

    /// Returns the public view of a session: no less than its durable events show.
    pub(super) async fn look(&self, session_id: SessionId) -> Result<View, SessionError> {
        let engine = self.engine();
        if let Some(shared) = self.inner.registry.shared(session_id) {
            let durable = match engine.events.tail(session_id).await? {
                // Another node may have deleted it.
                None if engine.is_stored() => return Err(SessionError::NotFound(session_id)),
                durable => durable.unwrap_or(0),
            };
            if self.is_own(&shared, durable).await?
                // An older one is of before another node took the session.
                && let Some(view) = shared.view(durable).filter(|view| view.summary.last_seq >= durable)
            {
                return Ok(view);
            }
        }
        // A session that is not stored and has no actor is leaving for good.
        let restored = if engine.is_stored() { engine.restore(session_id).await? } else { None };
        Ok(View::of(&restored.ok_or(SessionError::NotFound(session_id))?))
    }

    /// Returns true if a session's durable records are those of its actor here. Records that nobody was shown yet may have
    /// gone lost, and another node's may be in their place.
    pub(super) async fn is_own(&self, shared: &Shared, durable: Seq) -> Result<bool, StoreError> {
        Ok(shared.shown_seq() == durable || self.engine().events.holds(shared.session_id).await?)
    }

    /// Checks that no other node has the session.
    pub(super) async fn check_here(&self, session_id: SessionId) -> Result<(), SessionError> {
        match self.engine().events.holder(session_id).await? {
            Some(holder) => Err(SessionError::HeldBy { session_id, holder }),
            None => Ok(()),
        }
    }

    /// Checks that a session exists.
    pub(super) async fn check_exists(&self, session_id: SessionId) -> Result<(), SessionError> {
        match self.engine().events.tail(session_id).await? {
            Some(_) => Ok(()),
            None => Err(SessionError::NotFound(session_id)),
        }
    }

    /// Sends a command to a session's actor and waits for its answer. If the actor has left before it did anything for it,
    /// or another node took the session over before anything was stored, sends it again.
    pub(super) async fn ask<T>(
        &self,
        session_id: SessionId,
        command: impl Fn(Reply<T>) -> Command,
    ) -> Result<T, SessionError> {
        let world = &self.engine().world;
        for attempt in 1..SENT_MAX {
            let since = world.clock.elapsed();
            let answer = self.ask_once(session_id, &command).await;
            if !matches!(answer, Err(SessionError::TakenOver(_))) {
                return answer;
            }
            // Two nodes that take the session from each other must not go on in step: one waits for as long as the
            // other may need.
            let took = world.clock.elapsed().saturating_sub(since) + SENT_AGAIN_MIN;
            let longest = took.saturating_mul(attempt.pow(2)).min(SENT_AGAIN_MAX);
            let pause = world.ids.jitter(u64::try_from(longest.as_millis()).unwrap_or(u64::MAX));
            world.clock.sleep(Duration::from_millis(pause)).await;
        }
        self.ask_once(session_id, &command).await
    }

    async fn ask_once<T>(
        &self,
        session_id: SessionId,
        command: impl Fn(Reply<T>) -> Command,
    ) -> Result<T, SessionError> {
        let live = self.live(session_id).await?;
        let (reply, answer) = oneshot::channel();
        let asked = live.mailbox.send(command(reply)).await;
        if asked.is_ok()
            && let Ok(answer) = answer.await
        {
            return answer;
        }
        if live.shared.is_deleted.load(Ordering::Acquire) {
            return Err(SessionError::NotFound(session_id));
        }
        if self.engine().is_shutting_down.load(Ordering::Acquire) {
            return Err(SessionError::ShuttingDown);
        }
        match asked {
            Ok(()) => Err(SessionError::Internal("the session's actor was lost before it answered".to_owned())),
            // It left before it had the command, so nothing was done: another node has the session, or the store failed
            // it here.
            Err(_) => Err(SessionError::TakenOver(session_id)),
        }
    }

    /// Runs work to its end in a task of its own: the caller may leave meanwhile.
    pub(super) async fn to_the_end<T: Send + 'static, Work>(
        &self,
        work: impl FnOnce(Self) -> Work,
    ) -> Result<T, SessionError>
    where
        Work: Future<Output = Result<T, SessionError>> + Send + 'static,
    {
        let done = tokio::spawn(work(self.clone())).await;
        done.unwrap_or_else(|_| Err(SessionError::Internal("an operation ended too early".to_owned())))
    }

    pub(super) async fn record(&self, session_id: SessionId, change: Change) -> Result<Changed, SessionError> {
        self.ask(session_id, |reply| Command::Record { change: Box::new(change.clone()), reply }).await
    }

    /// Checks a turn's request against the configuration.
    fn check_turn(&self, request: &StartTurn, is_continuation: bool) -> Result<(), SessionError> {
        self.check_compaction(request.compaction.is_some())?;
        let limits = &self.engine().options.limits;
        if !is_continuation {
            prompt::check(&request.prompt, limits)?;
        }
        validate::idempotency_key(request.idempotency_key.as_deref(), limits)?;
        validate::compaction(request.compaction)?;
        request.budgets.check()?;
        request.options.check()?;
        validate::output(request.output.as_ref())?;
        validate::model(request.model.as_deref())?;
        validate::allow(&request.allow, &self.engine().tools)?;
        let Some(model) = &request.model else { return Ok(()) };
        prompt::check_model(&request.prompt, &self.engine().models.resolve(model)?)
    }

    /// Checks the tools that a caller runs.
    async fn check_client_tools(&self, tools: Option<&[ClientTool]>) -> Result<(), SessionError> {
        let Some(tools) = tools else { return Ok(()) };
        let (service, tools) = (self.clone(), tools.to_vec());
        let checked = tokio::task::spawn_blocking(move || validate::client_tools(&tools, &service.engine().tools));
        checked.await.unwrap_or_else(|_| Err(SessionError::Internal("a check of tools panicked".to_owned())))
    }

    /// Accepts a turn, or the continuation of an interrupted one, which has no prompt.
    pub(super) async fn accept(&self, request: StartTurn, is_continuation: bool) -> Result<TurnHandle, SessionError> {
        let refusal = match self.check_turn(&request, is_continuation) {
            Ok(()) => self.check_client_tools(request.client_tools.as_deref()).await.err(),
            refused => refused.err(),
        };
        if let (Some(refusal), None) = (&refusal, &request.idempotency_key) {
            return Err(refusal.clone());
        }
        // A session that does not exist is refused as that, also while the service ends. Options that the model does not
        // take are refused before that, but not with a key: the turn may have run already.
        let session_id = request.session_id;
        match (self.check_exists(session_id).await, &request.model) {
            (Err(error @ SessionError::NotFound(_)), Some(model)) if request.idempotency_key.is_none() => {
                // A session that exists may have other options beside these.
                let options = self.engine().options.turn.capped(request.options.clone());
                check_options(&options, &self.engine().models.resolve(model)?)?;
                return Err(error);
            }
            (exists, _) => exists?,
        }
        let hash = request
            .idempotency_key
            .as_ref()
            .map_or(Ok(String::new()), |_| validate::turn_hash(&request, is_continuation))?;
        let request = Arc::new(request);
        let command = |reply| {
            let (request, hash, refusal) = (request.clone(), hash.clone(), refusal.clone());
            Command::StartTurn { request, hash, is_continuation, refusal, reply }
        };
        Ok(self.followed(self.ask(session_id, command).await?))
    }

    /// Makes the handle of a turn that another owner may end meanwhile: then its events say how.
    pub(super) fn followed(&self, TurnHandle { accepted, wait, result }: TurnHandle) -> TurnHandle {
        let (inner, taken_over) = (Arc::downgrade(&self.inner), accepted.clone());
        let result = async move {
            match (result.await, inner.upgrade()) {
                (Err(SessionError::TakenOver(_)), Some(inner)) => {
                    turn::result_or_calls(&Self::of(inner), taken_over, wait).await
                }
                (ended, _) => ended,
            }
        };
        TurnHandle { accepted, wait, result: result.boxed() }
    }

    /// Checks that another session may be created, besides those in flight.
    fn check_new(&self, in_flight: usize) -> Result<(), SessionError> {
        let engine = self.engine();
        if engine.is_shutting_down.load(Ordering::Acquire) {
            return Err(SessionError::ShuttingDown);
        }
        let limit = engine.options.ephemeral.max_sessions;
        if !engine.is_stored() && self.inner.registry.len() + in_flight >= limit {
            return Err(SessionError::Limit { what: "sessions", limit: limit as u64 });
        }
        engine.held.check_room()
    }

    /// Returns the model of a session that names none: the default, unless that is a stand-in for one that answered
    /// before. If the index fails, it is the default.
    async fn default_model(&self) -> String {
        let models = &self.engine().models;
        let earlier = match models.is_stand_in() && self.engine().is_stored() {
            true => self.inner.earlier_model.get_or_try_init(|| self.earlier_model()).await.ok().cloned().flatten(),
            false => None,
        };
        earlier.unwrap_or_else(|| models.default_model().to_owned())
    }

    /// Finds the model that answered in an earlier session, on the first page of the list, however many sessions there
    /// are.
    async fn earlier_model(&self) -> Result<Option<String>, SessionError> {
        let limit = Some(self.engine().options.limits.page_items);
        let page = self.list_page(SessionQuery { limit, ..SessionQuery::default() }).await?;
        // A name that was misspelt once must not stay. The cost of an answer without a bill is not known, and never 0.
        let is_answered = |session: &SessionSummary| {
            session.usage.total() > 0 || session.cost.is_none_or(|cost| cost > Cost::default())
        };
        let mut models = page.items.into_iter().filter(is_answered).map(|session| session.model);
        Ok(models.find(|model| model != self.engine().models.default_model()))
    }

    fn check_create(&self, request: &CreateSession, default_model: &str) -> Result<String, SessionError> {
        self.check_compaction(request.compaction.is_some())?;
        request.budgets.check()?;
        request.options.check()?;
        let limits = &self.engine().options.limits;
        request.title.as_deref().map_or(Ok(()), |title| validate::title(title, limits))?;
        validate::labels(&request.labels, limits)?;
        validate::idempotency_key(request.idempotency_key.as_deref(), limits)?;
        if let Some(system_prompt) = &request.system_prompt {
            validate::size("system prompt", system_prompt, limits.system_prompt_bytes)?;
        }
        validate::model(request.model.as_deref())?;
        let model = self.engine().models.resolve(request.model.as_deref().unwrap_or(default_model))?;
        let options = self.engine().options.turn.capped(request.options.clone());
        check_options(&options, &model)?;
        if request.budgets.cost.is_some() {
            model.check_priced(options.cache, self.engine().world.clock.now())?;
        }
        if let Some(config) = &request.compaction {
            config.check(window_tokens(&model, &options, &self.engine().options))?;
        }
        given::check(&request.history)?;
        let names: BTreeSet<&String> = request.tools.iter().flatten().collect();
        if names.len() < request.tools.as_ref().map_or(0, Vec::len) {
            return Err(SessionError::invalid("tools", "a tool is named twice"));
        }
        let is_known = |name: &str| {
            self.engine().tools.knows(name) || request.client_tools.iter().flatten().any(|tool| tool.name == name)
        };
        if let Some(unknown) = request.tools.iter().flatten().find(|name| !is_known(name)) {
            return Err(SessionError::ToolNotFound(unknown.clone()));
        }
        Ok(model.name)
    }

    /// Creates a session, or finds the one that was created with its key.
    pub(super) async fn create(&self, request: CreateSession) -> Result<SessionCreated, SessionError> {
        self.create_as(request, None).await
    }

    /// Creates a session; one that a call of another starts has its id before.
    pub(super) async fn create_as(
        &self,
        request: CreateSession,
        born: Option<(SessionId, Descent)>,
    ) -> Result<SessionCreated, SessionError> {
        let default_model = match request.model {
            Some(_) => String::new(),
            None => self.default_model().await,
        };
        let checked = match self.check_create(&request, &default_model) {
            Ok(model) => self.check_client_tools(request.client_tools.as_deref()).await.map(|()| model),
            refused => refused,
        };
        // A key with a control character was never taken, and no store is asked for one.
        let may_be_known = request.idempotency_key.as_ref().is_some_and(|key| !key.contains(char::is_control));
        if let (Err(refusal), false) = (&checked, may_be_known) {
            return Err(refusal.clone());
        }
        let key = request.idempotency_key.as_ref().map(|key| {
            let has_json = request.client_tools.is_some() || !request.history.is_empty();
            let unkeyed = CreateSession { idempotency_key: None, ..request.clone() };
            let request = validate::request_hash(&unkeyed, has_json)?;
            Ok::<_, SessionError>(Key { key: self.engine().secrets.replace(key).into_owned(), request })
        });
        let key = key.transpose()?;
        let (service, recorded) = (self.clone(), key.clone());
        let creation = self.inner.creations.find_or_make(
            key,
            self.engine().world.clock.elapsed(),
            |in_flight| self.check_new(in_flight),
            || async move {
                // A repeat asks for nothing new: the configuration judges a request only if its key is not known.
                let done = match (service.created_before(recorded.as_ref()).await, checked) {
                    (Ok(None), Ok(model)) => service.make((request, model), recorded.clone(), born).await,
                    (Ok(Some(created)), _) => Ok(created),
                    (Ok(None), Err(refusal)) | (Err(refusal), _) => Err(refusal),
                };
                let is_known = match (&recorded, &done) {
                    // The row of this key may still name an older session.
                    (Some(key), Ok(created)) => {
                        let row = service.store_key(&key.key).await;
                        matches!(row, Ok(Some(row)) if row.session_id == created.session_id)
                    }
                    _ => false,
                };
                (done, is_known)
            },
        )?;
        creation.await
    }

    /// Finds the session that a former process created with this key.
    async fn created_before(&self, key: Option<&Key>) -> Result<Option<SessionCreated>, SessionError> {
        let Some(key) = key else { return Ok(None) };
        let Some(known) = self.store_key(&key.key).await? else { return Ok(None) };
        // The index says how long a key is kept; a clock that is wrong for a moment does not.
        if self.engine().events.tail(known.session_id).await?.is_none() {
            return Ok(None);
        }
        answer_of(&known, Some(key)).map(Some)
    }

    /// Finds the folder of a session: a path, or one of the configured folders by its name.
    async fn workspace(&self, asked: &str) -> Result<String, SessionError> {
        let folders = &self.engine().options.tools.folders;
        let path = match Path::new(asked) {
            path if path.is_absolute() => path,
            _ => folders.get(asked).map(PathBuf::as_path).ok_or_else(|| {
                let names: Vec<&str> = folders.keys().map(String::as_str).collect();
                let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                SessionError::invalid(
                    "workspace",
                    format!("there is no folder {asked:?} in tools.folders; the names are: {known}"),
                )
            })?,
        };
        let refused = |why: String| SessionError::invalid("workspace", format!("{}: {why}", path.display()));
        let folder = tokio::fs::canonicalize(path).await.map_err(|error| refused(error.to_string()))?;
        if !tokio::fs::metadata(&folder).await.is_ok_and(|it| it.is_dir()) {
            return Err(refused("it is not a folder".to_owned()));
        }
        folder.into_os_string().into_string().map_err(|_| refused("its path is not valid UTF-8".to_owned()))
    }

    async fn make(
        &self,
        (request, model): (CreateSession, String),
        key: Option<Key>,
        born: Option<(SessionId, Descent)>,
    ) -> Result<SessionCreated, SessionError> {
        let workspace = match &request.workspace {
            Some(asked) => Some(self.workspace(asked).await?),
            None => None,
        };
        let engine = &self.inner.engine;
        engine.events.room().await?;
        let now = engine.world.clock.now();
        let (session_id, descent) = match born {
            Some((child, descent)) => (child, Some(descent)),
            None => (engine.world.ids.next_session_id(now), None),
        };
        let clean = |text: &str| engine.secrets.replace(text).into_owned();
        let notes = engine.notes.as_ref().filter(|_| workspace.is_some());
        let default_prompt = notes.and_then(|notes| notes.system_prompt()).map(str::to_owned);
        let created = Created {
            title: request.title.as_deref().filter(|title| !title.is_empty()).map(clean),
            model,
            system_prompt: request.system_prompt.or(default_prompt).map(|text| Body::Inline(clean(&text))),
            labels: request.labels.iter().map(|(name, value)| (clean(name), clean(value))).collect(),
            tools: request.tools,
            workspace,
            budgets: request.budgets,
            options: request.options.with_texts(|text| clean(text)),
            compaction: request.compaction,
            memory: request.memory,
            descent,
            key,
        };
        let failed = |error: StoreError| {
            tracing::error!(%error, "a session could not be made");
            SessionError::from(error)
        };
        let given = given::events(request.history, &engine.secrets).map(Event::HistoryGiven);
        let tools = request.client_tools.filter(|tools| !tools.is_empty()).map(|tools| {
            let tools = ClientTools::clean(&tools, &engine.secrets);
            let (hash, tools, defined, queued) = (ClientTools::hash_of(&tools), Some(tools), None, false);
            Event::ClientToolsChanged(ClientToolsChanged { hash, tools, defined, queued })
        });
        let mut records: Vec<Record> = Vec::with_capacity(2 + given.len());
        for mut event in iter::once(Event::SessionCreated(created)).chain(given).chain(tools) {
            if let Err(error) = externalise(engine.blobs.as_ref(), session_id, &mut event).await {
                engine.blobs.forget(session_id).await;
                return Err(failed(error));
            }
            records.push(Record { session_id, seq: records.len() as Seq + 1, turn: None, time: now, event });
        }
        let session = fold(&records).map_err(|error| SessionError::Internal(error.to_string()))?;
        let (row, key) = (session.summary(), IndexedKey::of(&session));
        // All of them at once: nobody ever sees a part of a history.
        let made = engine.events.create(&records, &row, key.as_ref()).await;
        let lease = match made {
            Ok(Creation::Made(lease)) => lease,
            Err(error) => {
                // It may have been made if the store failed.
                if !matches!(error, StoreError::Failed(_)) {
                    engine.blobs.forget(session_id).await;
                }
                return Err(failed(error));
            }
            Ok(Creation::Exists(known)) => {
                // Its blobs have no session.
                engine.blobs.forget(session_id).await;
                return answer_of(&known, session.created_key.as_ref());
            }
        };
        let (indexed, (live, actor)) = (session.clone(), self.actor(session, lease));
        self.inner.registry.insert(live);
        self.spawn(actor);
        self.index(&indexed, true).await;
        Ok(SessionCreated { session_id, seq: 1, created_at: now })
    }

    /// Puts a session's row and key into the index: the session has changed, or was found. They are copies: after a
    /// failure the next start puts them again.
    pub(super) async fn index(&self, session: &Session, has_changed: bool) {
        let (derived, is_stored) = (&self.engine().derived, self.engine().is_stored());
        // Keys of sessions in memory are kept by `creations` alone.
        let key = IndexedKey::of(session).filter(|_| is_stored);
        let mut done = derived.publish(Arc::new(session.summary()), has_changed).await;
        if let (Ok(()), Some(key)) = (&done, &key) {
            done = derived.index.put_key(key).await;
        }
        if let Err(error) = done {
            tracing::error!(session_id = %session.id, %error, "could not update the session index; the next start will");
        }
    }
}

/// Makes the session of its first records.
fn fold(records: &[Record]) -> Result<Session, ApplyError> {
    let mut session = Session::begin(&records[0])?;
    records[1..].iter().try_for_each(|record| session.apply(record)).map(|()| session)
}

/// Answers a create with the session that has its key, unless that was another request.
fn answer_of(known: &IndexedKey, key: Option<&Key>) -> Result<SessionCreated, SessionError> {
    if key.is_none_or(|key| key.request != known.key.request) {
        return Err(SessionError::IdempotencyConflict { what: "idempotency_key" });
    }
    Ok(SessionCreated { session_id: known.session_id, seq: 1, created_at: known.time })
}
