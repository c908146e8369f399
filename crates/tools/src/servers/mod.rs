//! Servers of the Model Context Protocol: one pool of connections for all sessions.
//!
//! A server is configured, listed, started and called, each only when it is needed; none survives this program. What a
//! server says is hostile: it is bounded, and never believed further than the configuration does. The library of the
//! protocol stays in `link.rs`, `http.rs`, `transport.rs` and `answer.rs`.

mod answer;
mod auth;
mod cache;
mod config;
mod former;
mod given;
mod http;
mod link;
mod listing;
mod names;
mod process;
mod questions;
mod server;
mod shared;
mod supervise;
mod tool;
mod transport;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use meerkat_service::{
    SessionError,
    clock::{Clock, SystemClock},
    redact::Secrets,
    tool::{LeftOut, Tool, ToolScope, ToolServerState, ToolServerView, ToolSet, ToolSource},
};
use secrecy::SecretString;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

pub use auth::{Login, LoginOptions};
pub use config::{Scope, ServerApproval, ServerConfig, expand};
pub(crate) use supervise::supervise;

use cache::Cache;
use server::Server;
use shared::Pool;
use tool::ServerTool;

/// Longest wait for servers to end.
const SHUT_DOWN: Duration = Duration::from_secs(8);

/// Options of a pool.
pub struct ServersOptions {
    /// Servers by name.
    pub servers: BTreeMap<String, ServerConfig>,
    /// Folder that keeps lists of tools; without one each server is started to list them.
    pub cache_dir: Option<PathBuf>,
    /// Folder that keeps the logins at remote servers; without one there are none. It is as secret as a password.
    pub logins_dir: Option<PathBuf>,
    /// Folders that models change. A server that starts elsewhere finds no program there by `PATH`.
    pub workspaces: Vec<PathBuf>,
    /// Environment of which servers get a few variables, and whose values `${VAR}` stands for.
    pub environment: BTreeMap<String, String>,
    /// Source of time.
    pub clock: Arc<dyn Clock>,
    /// Shows a line to the person who waits for a first list.
    pub tell: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Default for ServersOptions {
    /// Takes the environment of this process and the system's clock; it shows nothing.
    fn default() -> Self {
        Self {
            servers: BTreeMap::new(),
            cache_dir: None,
            logins_dir: None,
            workspaces: Vec::new(),
            environment: std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
                .collect(),
            clock: Arc::new(SystemClock::new()),
            tell: Arc::new(|_| ()),
        }
    }
}

/// State of a server, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerStatus {
    /// Its name.
    pub name: String,
    /// How it is reached: `command` or `url`.
    pub kind: &'static str,
    /// How far it is.
    pub state: ToolServerState,
    /// Open connections.
    pub connections: usize,
    /// Its tools, without those that the configuration leaves out.
    pub tools: Vec<ToolStatus>,
    /// Tokens that its tools cost in each request, roughly.
    pub tokens: u64,
    /// Failure of the last start, or mistake in the configuration.
    pub last_error: Option<String>,
}

impl ServerStatus {
    /// Returns it as lists of servers show it.
    #[must_use]
    pub fn view(&self) -> ToolServerView {
        ToolServerView {
            name: self.name.clone(),
            kind: self.kind.to_owned(),
            state: self.state,
            tools: self.tools.len() as u64,
            tokens: self.tokens,
            error: self.last_error.clone(),
        }
    }
}

/// State of a tool of a server, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolStatus {
    /// Its name for the model.
    pub name: String,
    /// Its name at the server.
    pub remote: String,
    /// Its description.
    pub description: String,
    /// Tokens that it costs in each request, roughly.
    pub tokens: u64,
    /// Reason that the model is not shown it.
    pub quarantined: Option<String>,
}

/// Pool of servers.
pub struct Servers {
    servers: BTreeMap<String, Arc<Server>>,
    secrets: Vec<SecretString>,
    pool: Arc<Pool>,
    /// The newest set of tools, and its version.
    set: Mutex<(u64, ToolSet)>,
    _end: DropGuard,
}

/// Makes a pool. It starts nothing and waits for nothing.
///
/// # Errors
/// `CONFIG_INVALID` that names the key at fault. A variable that is not set is an error of its server alone, in its
/// status.
pub fn servers(options: ServersOptions) -> Result<Arc<Servers>, SessionError> {
    let closed = CancellationToken::new();
    let pool = Arc::new(Pool {
        clock: options.clock,
        cache: Cache(options.cache_dir),
        logins_dir: options.logins_dir,
        workspaces: options.workspaces,
        tell: options.tell,
        version: AtomicU64::new(1),
        tasks: TaskTracker::new(),
        closed: closed.clone(),
        former: Arc::default(),
    });
    let (mut servers, mut secrets) = (BTreeMap::new(), Vec::new());
    for (name, config) in &options.servers {
        config.check(name)?;
        let (server, values) = Server::new(name, config, &options.environment, pool.clone())?;
        secrets.extend(values);
        servers.insert(name.clone(), Arc::new(server));
    }
    Ok(Arc::new(Servers { servers, secrets, pool, set: Mutex::default(), _end: closed.drop_guard() }))
}

impl Servers {
    /// Returns true if none is configured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    /// Has each server that is started from here on hold `lock`, a file of the data directory that this process owns now.
    /// Before the first one, and before a turn begins, those that a former owner started must have ended; that is waited
    /// for, at most ten seconds.
    pub fn own(&self, lock: PathBuf) {
        // A pool is of one directory.
        self.pool.former.lock.set(lock).ok();
    }

    /// Waits for each server whose tools were never listed, at most for its `start_timeout_ms`.
    pub async fn ready(&self) {
        futures::future::join_all(self.servers.values().map(Server::ready)).await;
    }

    /// Returns the tools that are offered now, by name, and the version of the set.
    #[must_use]
    pub fn offered(&self) -> (u64, Vec<Arc<dyn Tool>>) {
        // A change after this is taken for a new version, never missed.
        let version = self.pool.version.load(Ordering::SeqCst);
        let mut tools: Vec<Arc<dyn Tool>> = Vec::new();
        for server in self.servers.values() {
            for definition in server.definitions().iter().filter(|tool| tool.quarantined.is_none()) {
                tools.push(Arc::new(ServerTool { server: server.clone(), definition: definition.clone() }));
            }
        }
        tools.sort_by(|a, b| a.spec().name.cmp(&b.spec().name));
        (version, tools)
    }

    /// Returns the set of the tools that are offered now: a clone of the last one, if nothing has changed.
    fn set(&self) -> ToolSet {
        let mut set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        if set.0 != self.pool.version.load(Ordering::SeqCst) {
            let (version, tools) = self.offered();
            let left_out = |tool: &Arc<listing::Definition>| {
                Some(LeftOut { name: tool.spec.name.clone(), reason: tool.quarantined.clone()? })
            };
            let definitions = self.servers.values().map(|server| server.definitions());
            let left_out = definitions.flat_map(|it| it.iter().filter_map(left_out).collect::<Vec<_>>()).collect();
            *set = (version, ToolSet::new(tools).leaving_out(left_out));
        }
        set.1.clone()
    }

    /// Returns the values that servers are given and no session may have: those of variables that the configuration
    /// names, and those in it that no ordinary text holds.
    #[must_use]
    pub fn secrets(&self) -> Vec<SecretString> {
        self.secrets.clone()
    }

    /// Lists the servers by name, with their state.
    #[must_use]
    pub fn status(&self) -> Vec<ServerStatus> {
        let set = self.set();
        self.servers.values().map(|server| status(server, set.left_out())).collect()
    }

    /// Starts a server, lists its tools and returns its state.
    ///
    /// # Errors
    /// `INVALID_REQUEST` if there is no such server. A failed start is in the state.
    pub async fn check(&self, name: &str) -> Result<ServerStatus, SessionError> {
        let server = self.find(name)?;
        // The state has the failure.
        drop(server.open(None).await);
        Ok(status(server, self.set().left_out()))
    }

    /// Accepts the tools of a server as they are listed now, so that changed ones are offered again.
    ///
    /// # Errors
    /// `INVALID_REQUEST` if there is no such server.
    pub fn accept(&self, name: &str) -> Result<ServerStatus, SessionError> {
        let server = self.find(name)?;
        server.accept();
        Ok(status(server, self.set().left_out()))
    }

    /// Begins a login at a server: finds its issuer, and registers this program with it.
    ///
    /// # Errors
    /// `INVALID_REQUEST` that says why there can be no login.
    pub async fn login(&self, name: &str, options: LoginOptions) -> Result<Login, SessionError> {
        let account = self.find(name)?.account()?;
        // Boxed, as it is large and rare.
        Box::pin(Login::begin(account.clone(), options)).await.map_err(|why| no_login(name, &why))
    }

    /// Waits until the browser comes back from a login's page, and keeps the tokens.
    ///
    /// # Errors
    /// `INVALID_REQUEST` that says why there are none.
    pub async fn await_login(&self, name: &str, login: Login) -> Result<(), SessionError> {
        Box::pin(login.wait()).await.map_err(|why| no_login(name, &why))?;
        self.find(name)?.forget_failures();
        Ok(())
    }

    /// Takes the URL to which a browser was sent from a login's page, for one on another machine; keeps the tokens.
    ///
    /// # Errors
    /// `INVALID_REQUEST` that says why there are none.
    pub async fn paste_login(&self, name: &str, login: Login, url: &str) -> Result<(), SessionError> {
        Box::pin(login.paste(url)).await.map_err(|why| no_login(name, &why))?;
        self.find(name)?.forget_failures();
        Ok(())
    }

    /// Deletes the login at a server; its issuer may accept the tokens until they expire. Returns true if there was one.
    ///
    /// # Errors
    /// `INVALID_REQUEST` if there is no such server, or the login could not be deleted.
    pub async fn log_out(&self, name: &str) -> Result<bool, SessionError> {
        self.find(name)?.account()?.log_out().await.map_err(|why| {
            SessionError::invalid("server", format!("The login at the server {name} was not ended: {why}."))
        })
    }

    fn find(&self, name: &str) -> Result<&Arc<Server>, SessionError> {
        let unknown = || {
            let names: Vec<&str> = self.servers.keys().map(String::as_str).collect();
            let message = format!("There is no server {name:?}; there are: {}.", names.join(", "));
            SessionError::invalid("server", message)
        };
        self.servers.get(name).ok_or_else(unknown)
    }
}

#[async_trait]
impl ToolSource for Servers {
    fn tools(&self, _: &ToolScope<'_>) -> ToolSet {
        self.servers.values().for_each(Server::list_if_due);
        self.set()
    }

    async fn ready(&self, _: &ToolScope<'_>) {
        self.pool.former_ended().await;
        Self::ready(self).await;
    }

    fn may_offer(&self, name: &str) -> bool {
        let server_of = |name: &str| name.strip_prefix("mcp__")?.split_once("__").map(|(server, _)| server.to_owned());
        server_of(name).is_some_and(|server| self.servers.contains_key(&server))
    }

    fn origin(&self, name: &str) -> String {
        let server =
            self.servers.values().find(|server| server.definitions().iter().any(|tool| tool.spec.name == name));
        server.map_or_else(|| "server".to_owned(), |server| format!("server:{}", server.name))
    }

    fn servers(&self) -> Vec<ToolServerView> {
        self.status().iter().map(ServerStatus::view).collect()
    }

    fn redact_with(&self, secrets: &Secrets) {
        for account in self.servers.values().filter_map(|server| server.account().ok()) {
            account.redact_with(secrets);
        }
    }

    /// Ends all servers and waits until nothing of them is left.
    async fn shut_down(&self) {
        self.pool.closed.cancel();
        self.pool.tasks.close();
        tokio::select! {
            () = self.pool.tasks.wait() => {}
            () = self.pool.clock.sleep(SHUT_DOWN) => tracing::warn!(target: "servers", "some servers have not ended"),
        }
    }
}

fn no_login(name: &str, why: &str) -> SessionError {
    SessionError::invalid("server", format!("There is no login at the server {name}: {why}."))
}

fn status(server: &Server, left_out: &[LeftOut]) -> ServerStatus {
    let seen = server.seen();
    let unusable = |name: &str| left_out.iter().find(|tool| tool.name == name).map(|tool| tool.reason.clone());
    let tool = |tool: &Arc<listing::Definition>| ToolStatus {
        name: tool.spec.name.clone(),
        remote: tool.remote.clone(),
        description: tool.spec.description.clone(),
        tokens: tool.tokens(),
        quarantined: tool.quarantined.clone().or_else(|| unusable(&tool.spec.name)),
    };
    let tools: Vec<ToolStatus> = seen.definitions.iter().map(tool).collect();
    let wanted = server.wanted_login();
    let state = match (seen.links, &seen.last_error, seen.is_listed) {
        (1.., ..) => ToolServerState::Running,
        (0, ..) if wanted.is_some() => ToolServerState::LoginNeeded,
        (0, Some(_), _) => ToolServerState::Failed,
        (0, None, true) => ToolServerState::Listed,
        (0, None, false) => ToolServerState::Configured,
    };
    ServerStatus {
        name: server.name.clone(),
        kind: if server.config.url.is_some() { "url" } else { "command" },
        state,
        connections: seen.links,
        tokens: tools.iter().filter(|tool| tool.quarantined.is_none()).map(|tool| tool.tokens).sum(),
        tools,
        last_error: seen.last_error.or(wanted),
    }
}
