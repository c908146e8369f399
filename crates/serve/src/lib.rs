//! meerkat's listener, for programs in Rust: REST, JSON-RPC and the Model Context Protocol on one address, over any
//! [`SessionService`], behind one guard.
//!
//! ```no_run
//! use meerkat_serve::{Offer, Server, Token, Toolset};
//! use meerkat_service::AgentBuildConfig;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let agent = AgentBuildConfig::new().build()?;
//! let server = Server::builder(agent.service().clone())
//!     .rest()
//!     .rpc()
//!     .mcp(Offer { set: Toolset::Core, approve: false })
//!     .token(Token::random()?)
//!     .listen("127.0.0.1:7670".parse()?)
//!     .await?;
//! server.serve_until(async { drop(tokio::signal::ctrl_c().await) }).await;
//! # Ok(())
//! # }
//! ```
//!
//! In reading order: `front` answers a request, `guard` refuses callers by their `names` and `token`, `console` has the
//! page for people, `listen` is the accept loop with `socket` and `streams`, [`owner`] the socket of a data directory's
//! owner, [`stdio`] the two surfaces without a listener. This is the only place that composes surfaces; it decides
//! nothing about sessions, reads no configuration and prints nothing.

mod console;
mod front;
mod guard;
mod names;
mod token;

mod listen;
mod socket;
mod streams;

mod error;

pub mod owner;
pub mod stdio;

use std::{
    fmt, io,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use meerkat_service::{SessionService, wire::Answers};
use meerkat_surface_mcp::{HttpOptions, McpHttpService, StateKey};
use meerkat_surface_rest::{RestOptions, router};
use meerkat_surface_rpc::{RpcOptions, RpcService};
use rustix::process::{Resource, getrlimit};
use tokio_util::{
    sync::CancellationToken,
    task::{AbortOnDropHandle, TaskTracker},
};

use self::{
    console::Console,
    front::{Front, Surfaces},
    guard::{Guard, Page},
    listen::{Bound, ListenOptions, listen},
    names::{Public, hosts, origins, public_url},
    streams::Streams,
};

pub use guard::Token;
pub use meerkat_console::{code as console_code, question as console_question, reply as console_reply};
pub use meerkat_surface_mcp::tools::{Offer, Toolset};
pub use token::random_digits;

/// Least descriptors that stay for the store and the rest of the process; otherwise a quarter of all.
const OTHER_DESCRIPTORS: u64 = 128;

/// Connections that a server accepts however few descriptors it has.
const CONNECTIONS_MIN: u64 = 16;

/// Longest wait for open answers and WebSockets at the end.
const LINGER: Duration = Duration::from_secs(5);

/// Limits of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at one time. Fewer if the process may open too few files; raising that limit is the program's choice.
    pub connections: usize,
    /// Event streams at one time.
    pub streams: usize,
    /// Longest time for the head of a request, and longest pause of its body.
    pub header_timeout: Duration,
    /// Bytes of a body or a message.
    pub body_bytes: u64,
    /// Bytes of a bundle.
    pub bundle_bytes: u64,
    /// Milliseconds after which a subscriber is closed that reads nothing while data is waiting.
    pub stall_ms: u64,
    /// Milliseconds that running turns have when the server ends.
    pub drain_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            streams: 512,
            header_timeout: Duration::from_secs(10),
            body_bytes: 16 * 1024 * 1024,
            bundle_bytes: meerkat_service::options::Limits::default().bundle_bytes,
            stall_ms: 30_000,
            drain_ms: 10_000,
        }
    }
}

/// Reason why a server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// No surface was chosen.
    #[error("say what to serve: any of REST, JSON-RPC and MCP")]
    Nothing,
    /// Neither a token nor its absence was chosen.
    #[error("set a token, or call `without_token()`")]
    NoToken,
    /// There is no token, and others can reach the address.
    #[error("without authentication only a loopback address may be listened on")]
    Open,
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; choose another port, or 0 for any free one")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The text is not a host.
    #[error("each is a name or an address, perhaps with :port")]
    AllowedHost(String),
    /// The text is not an origin.
    #[error("each is one origin, such as https://desk.example")]
    AllowedOrigin(String),
    /// The text is not the address of a proxy.
    #[error("it must be the address of a proxy, such as https://desk.example/meerkat")]
    PublicUrl(String),
}

/// Surfaces to serve, and to whom.
pub struct Builder {
    service: Arc<dyn SessionService>,
    has_rest: bool,
    has_rpc: bool,
    mcp: Option<Offer>,
    /// `Some(None)` if there is no token by choice.
    token: Option<Option<Token>>,
    allowed_hosts: Vec<String>,
    allowed_origins: Vec<String>,
    public_url: Option<String>,
    limits: Limits,
    sign_ins: Option<PathBuf>,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Builder {
    /// Serves REST, below `/v1`, and the console at `/`.
    #[must_use]
    pub fn rest(mut self) -> Self {
        self.has_rest = true;
        self
    }

    /// Keeps the browsers that have signed in to the console in this file, beyond the end of the process. It should be
    /// in a folder that nobody else can read; without one they are kept in memory.
    #[must_use]
    pub fn sign_ins(mut self, file: Option<PathBuf>) -> Self {
        self.sign_ins = file;
        self
    }

    /// Serves JSON-RPC, at `/rpc`.
    #[must_use]
    pub fn rpc(mut self) -> Self {
        self.has_rpc = true;
        self
    }

    /// Serves the Model Context Protocol with these tools, at `/mcp`.
    #[must_use]
    pub fn mcp(mut self, offer: Offer) -> Self {
        self.mcp = Some(offer);
        self
    }

    /// Asks every client for this token.
    #[must_use]
    pub fn token(mut self, token: Token) -> Self {
        self.token = Some(Some(token));
        self
    }

    /// Asks for no token, which only a loopback address allows.
    #[must_use]
    pub fn without_token(mut self) -> Self {
        self.token = Some(None);
        self
    }

    /// Accepts requests whose Host is one of these, each `name[:port]`, besides the address itself and loopback's names.
    #[must_use]
    pub fn allowed_hosts(mut self, hosts: &[String]) -> Self {
        self.allowed_hosts = hosts.to_vec();
        self
    }

    /// Accepts requests of web pages of these origins; none by default.
    #[must_use]
    pub fn allowed_origins(mut self, origins: &[String]) -> Self {
        self.allowed_origins = origins.to_vec();
        self
    }

    /// Sets the address of a proxy through which clients reach the server.
    #[must_use]
    pub fn public_url(mut self, url: Option<&str>) -> Self {
        self.public_url = url.map(str::to_owned);
        self
    }

    /// Sets the limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Begins to listen. Connections wait until [`Server::serve_until`].
    ///
    /// # Errors
    /// If something is missing or not allowed, or the address is taken.
    pub async fn listen(mut self, address: SocketAddr) -> Result<Server, ServeError> {
        if !self.has_rest && !self.has_rpc && self.mcp.is_none() {
            return Err(ServeError::Nothing);
        }
        let Some(token) = self.token.take() else { return Err(ServeError::NoToken) };
        if token.is_none() && !address.ip().is_loopback() {
            return Err(ServeError::Open);
        }
        let (limits, failed) = (&self.limits, |source| ServeError::Listen { address, source });
        let public = self.public_url.as_deref().map(public_url).transpose()?;
        let listed = origins(&self.allowed_origins)?;
        let connections_max = connections(limits.connections);
        let listener = Bound::at(address).await.map_err(failed)?;
        let local = listener.local;
        if !listener.has_localhost {
            tracing::warn!(%local, "another program has this port at the other loopback address, so localhost is refused");
        }
        let console = self.has_rest.then(|| Arc::new(Console::new(token.as_ref(), self.sign_ins.take(), local.port())));
        let guard = Guard {
            hosts: hosts(local, listener.has_localhost, &self.allowed_hosts, public.as_ref())?,
            origins: listed.iter().cloned().chain(public.iter().map(|public| public.origin.clone())).collect(),
            token,
            page: console.clone().map(|console| console as Arc<dyn Page>),
            body_bytes_max: limits.body_bytes,
            bundle_bytes_max: limits.bundle_bytes,
        };
        let (ending, answers) = (Ending::default(), Answers::default());
        // Whoever has the token may do what a state lets a client do; servers behind one address have one token.
        let state_key = guard.token.as_ref().map_or_else(StateKey::default, |token| StateKey::of(token.text()));
        let front = Front {
            guard,
            console,
            streams: Streams::new(limits.streams),
            cors: front::cors(&listed),
            calls: TaskTracker::new(),
            surfaces: self.surfaces(&ending, public, &answers, state_key),
            body_pause: limits.header_timeout,
            requests: AtomicU64::new(0),
        };
        let options = ListenOptions {
            connections_max,
            header_timeout: limits.header_timeout,
            // A surface ends its own stalled streams first and says why; this closes those that read nothing any more.
            stall_limit: Duration::from_millis(limits.stall_ms.saturating_mul(2)),
            linger: LINGER,
            answers,
        };
        let (url, drain_ms) = (format!("http://{local}"), limits.drain_ms);
        Ok(Server { service: self.service, listener, url, options, front: Arc::new(front), ending, drain_ms })
    }

    /// Makes the chosen surfaces.
    fn surfaces(&self, ending: &Ending, public: Option<Public>, answers: &Answers, state_key: StateKey) -> Surfaces {
        let (service, limits) = (&self.service, &self.limits);
        let bytes = usize::try_from(limits.body_bytes).unwrap_or(usize::MAX);
        let rest = RestOptions {
            body_bytes_max: limits.body_bytes,
            bundle_bytes_max: limits.bundle_bytes,
            answers: answers.clone(),
            public_url: public.map(|public| public.url),
            stall_limit: Duration::from_millis(limits.stall_ms),
            draining: ending.draining.clone(),
            closing: ending.closing.clone(),
            ..RestOptions::default()
        };
        let rpc = RpcOptions { message_bytes: bytes, stall_ms: limits.stall_ms, ..RpcOptions::default() };
        let mcp = |offer| HttpOptions {
            offer,
            max_message_bytes: bytes,
            answers: answers.clone(),
            shutdown: ending.answered.clone(),
            state_key: state_key.clone(),
            ..HttpOptions::default()
        };
        Surfaces {
            rest: router(service.clone(), rest),
            has_rest: self.has_rest,
            rpc: self.has_rpc.then(|| meerkat_surface_rpc::service(service.clone(), rpc)),
            mcp: self.mcp.map(|offer| McpHttpService::new(service.clone(), mcp(offer))),
        }
    }
}

/// A server that listens.
pub struct Server {
    service: Arc<dyn SessionService>,
    listener: Bound,
    url: String,
    options: ListenOptions,
    front: Arc<Front>,
    ending: Ending,
    drain_ms: u64,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Server {
    /// Makes a server of this service; its surfaces are still to be chosen.
    #[must_use]
    pub fn builder(service: Arc<dyn SessionService>) -> Builder {
        Builder {
            service,
            has_rest: false,
            has_rpc: false,
            mcp: None,
            token: None,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            public_url: None,
            limits: Limits::default(),
            sign_ins: None,
        }
    }

    /// Returns the address of the listener, such as `http://127.0.0.1:7670`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Serves until `stop` ends; then the service ends: running turns get the drain limit, and every client is notified.
    /// Dropping this future ends the listener and its connections at once; a WebSocket when the requests that it has sent
    /// are answered.
    pub async fn serve_until(self, stop: impl Future<Output = ()>) {
        let Self { service, listener, options, front, ending, drain_ms, .. } = self;
        let stopped = CancellationToken::new();
        let ends = [&ending.draining, &ending.closing, &ending.answered, &stopped];
        let _ends = ends.map(|end| end.clone().drop_guard());
        let rpc = WebSockets(front.surfaces.rpc.clone());
        let answer = {
            let front = front.clone();
            move |request| front::answer(front.clone(), request)
        };
        let listening = AbortOnDropHandle::new(tokio::spawn(listen(listener, options, answer, stopped.clone())));
        stop.await;
        ending.draining.cancel();
        service.shut_down(drain_ms).await;
        ending.closing.cancel();
        rpc.stop().await;
        front.calls.close();
        if tokio::time::timeout(LINGER, front.calls.wait()).await.is_err() {
            tracing::warn!("calls over MCP were not answered at the end");
        }
        ending.answered.cancel();
        stopped.cancel();
        if let Err(error) = listening.await {
            tracing::error!(%error, "the listener ended badly");
        }
    }
}

/// Steps in which a server ends.
#[derive(Default)]
struct Ending {
    /// No new work is accepted.
    draining: CancellationToken,
    /// The last turn has ended, so there is nothing more to follow.
    closing: CancellationToken,
    /// The calls over MCP are answered; its surface drops the others when this is cancelled.
    answered: CancellationToken,
}

/// WebSockets, which outlive the listener's connections that they were. They end with this.
struct WebSockets(Option<RpcService>);

impl WebSockets {
    /// Ends them, and waits a while until they have ended.
    async fn stop(mut self) {
        let Some(rpc) = self.0.take() else { return };
        if tokio::time::timeout(LINGER, rpc.stop()).await.is_err() {
            tracing::warn!("WebSockets were still open at the end");
        }
    }
}

impl Drop for WebSockets {
    fn drop(&mut self) {
        if let (Some(rpc), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(async move { rpc.stop().await });
        }
    }
}

/// Returns the connections that the limit on open files leaves beside the store.
fn connections(wanted: usize) -> usize {
    let Some(granted) = getrlimit(Resource::Nofile).current else { return wanted };
    let free = granted.saturating_sub(OTHER_DESCRIPTORS.max(granted / 4)).max(CONNECTIONS_MIN);
    let accepted = usize::try_from(free).unwrap_or(usize::MAX).min(wanted);
    if accepted < wanted {
        tracing::warn!(granted, accepted, wanted, "fewer files may be open than serve.max_connections needs");
    }
    accepted
}
