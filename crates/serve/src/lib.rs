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
//! In reading order: `front` is what a request meets, `guard` who may come in, `names` and `token` what the guard knows,
//! `listen` the accept loop with `socket` and `streams`, [`owner`] the socket of a data directory's owner, [`stdio`] the
//! two surfaces without a listener. This is the only place that composes surfaces; it decides nothing about sessions, reads
//! no configuration and prints nothing.

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
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use meerkat_service::{SessionService, wire::Answers};
use meerkat_surface_mcp::{HttpOptions, McpHttpService};
use meerkat_surface_rest::{RestOptions, router};
use meerkat_surface_rpc::RpcOptions;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio_util::{
    sync::CancellationToken,
    task::{AbortOnDropHandle, TaskTracker},
};

use self::{
    front::{Front, Surfaces},
    guard::Guard,
    listen::{ListenOptions, base_url, listen},
    names::{Public, hosts, origins, public_url},
    streams::Streams,
};

pub use guard::Token;
pub use meerkat_surface_mcp::tools::{Offer, Toolset};
pub use token::random_digits;

/// Descriptors that the store and the rest of a server have for themselves, at least; else a quarter of all.
const OTHER_DESCRIPTORS: u64 = 128;

/// Connections that a server takes however few descriptors it has.
const CONNECTIONS_MIN: u64 = 16;

/// How long open answers are waited for at the end.
const LINGER: Duration = Duration::from_secs(5);

/// Bounds of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at one time, if the limit on open files leaves as many.
    pub connections: usize,
    /// Event streams at one time.
    pub streams: usize,
    /// How long the head of a request may take, and its body may pause.
    pub header_timeout: Duration,
    /// Bytes of a body or a message.
    pub body_bytes: u64,
    /// Bytes of a bundle.
    pub bundle_bytes: u64,
    /// Milliseconds that a subscriber may take nothing of what is there for it.
    pub stall_ms: u64,
    /// Milliseconds that running turns get to end when the server ends.
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

/// Why a server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// No surface was chosen.
    #[error("say what to serve: any of REST, JSON-RPC and MCP")]
    Nothing,
    /// Neither a token nor its absence was chosen.
    #[error("give a token, or say that there is none")]
    NoToken,
    /// There is no token, and others can reach the address.
    #[error("without authentication only a loopback address may be listened on")]
    Open,
    /// The address cannot be listened on.
    #[error("{address} cannot be listened on: {source}; choose another port, or 0")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// It is no name of a host.
    #[error("each is a name or an address, perhaps with :port")]
    AllowedHost(String),
    /// It is no origin.
    #[error("each is one origin, such as https://desk.example")]
    AllowedOrigin(String),
    /// It is no address of a proxy.
    #[error("it must be the address of a proxy, such as https://desk.example/meerkat")]
    PublicUrl(String),
}

/// What is to be served, and to whom.
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
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Builder {
    /// Serves REST, below `/v1`.
    #[must_use]
    pub fn rest(mut self) -> Self {
        self.has_rest = true;
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

    /// Asks for no token. Only loopback can be listened on then.
    #[must_use]
    pub fn without_token(mut self) -> Self {
        self.token = Some(None);
        self
    }

    /// Lets in requests whose Host is one of these, each `name[:port]`, besides the address itself and loopback's names.
    #[must_use]
    pub fn allowed_hosts(mut self, hosts: &[String]) -> Self {
        self.allowed_hosts = hosts.to_vec();
        self
    }

    /// Lets in web pages of these origins; by default there are none.
    #[must_use]
    pub fn allowed_origins(mut self, origins: &[String]) -> Self {
        self.allowed_origins = origins.to_vec();
        self
    }

    /// Says where clients reach the server if that is a proxy.
    #[must_use]
    pub fn public_url(mut self, url: Option<&str>) -> Self {
        self.public_url = url.map(str::to_owned);
        self
    }

    /// Sets the bounds.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Begins to listen. Connections wait until [`Server::serve_until`].
    ///
    /// # Errors
    /// If something is missing or not allowed, or the address is taken.
    pub async fn listen(self, address: SocketAddr) -> Result<Server, ServeError> {
        if !self.has_rest && !self.has_rpc && self.mcp.is_none() {
            return Err(ServeError::Nothing);
        }
        let Some(token) = self.token else { return Err(ServeError::NoToken) };
        if token.is_none() && !address.ip().is_loopback() {
            return Err(ServeError::Open);
        }
        let (limits, failed) = (self.limits, |source| ServeError::Listen { address, source });
        let public = self.public_url.as_deref().map(public_url).transpose()?;
        let listed = origins(&self.allowed_origins)?;
        let connections_max = connections(limits.connections);
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let (port, url) = (listener.local_addr().map_err(failed)?.port(), base_url(&listener).map_err(failed)?);
        let guard = Guard {
            hosts: hosts(address, port, &self.allowed_hosts, public.as_ref())?,
            origins: listed.iter().cloned().chain(public.iter().map(|public| public.origin.clone())).collect(),
            token,
            body_bytes_max: limits.body_bytes,
            bundle_bytes_max: limits.bundle_bytes,
        };
        let ending = Ending::default();
        let chosen = Chosen { has_rest: self.has_rest, has_rpc: self.has_rpc, mcp: self.mcp };
        let front = Front {
            guard,
            streams: Streams::new(limits.streams),
            cors: front::cors(&listed),
            calls: TaskTracker::new(),
            surfaces: surfaces(&self.service, chosen, &limits, &ending, public),
            body_pause: limits.header_timeout,
            requests: AtomicU64::new(0),
        };
        let options = ListenOptions {
            connections_max,
            header_timeout: limits.header_timeout,
            // A surface ends its own stalled streams first, with a word; this closes what no longer listens to one.
            stall_limit: Duration::from_millis(limits.stall_ms.saturating_mul(2)),
            linger: LINGER,
        };
        let (service, drain_ms) = (self.service, limits.drain_ms);
        Ok(Server { service, listener, url, options, front: Arc::new(front), ending, drain_ms })
    }
}

/// A server that listens.
pub struct Server {
    service: Arc<dyn SessionService>,
    listener: TcpListener,
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
    /// Begins to say what is served.
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
        }
    }

    /// The address that is listened on, such as `http://127.0.0.1:7670`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Serves until `stop` ends; then the service ends: running turns get the drain limit, and every client hears of it.
    /// Dropping this future ends the listener and what it has accepted at once.
    pub async fn serve_until(self, stop: impl Future<Output = ()>) {
        let Self { service, listener, options, front, ending, drain_ms, .. } = self;
        let stopped = CancellationToken::new();
        let ends = [&ending.draining, &ending.closing, &ending.answered, &stopped];
        let _ends = ends.map(|end| end.clone().drop_guard());
        let answer = {
            let front = front.clone();
            move |request| front::answer(front.clone(), request)
        };
        let listening = AbortOnDropHandle::new(tokio::spawn(listen(listener, options, answer, stopped.clone())));
        stop.await;
        ending.draining.cancel();
        service.shut_down(drain_ms).await;
        ending.closing.cancel();
        if let Some(rpc) = &front.surfaces.rpc {
            rpc.stop().await;
        }
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

/// The steps in which a server ends.
#[derive(Default)]
struct Ending {
    /// Nothing new is taken in.
    draining: CancellationToken,
    /// The last turn has ended, so that nothing more is to be followed.
    closing: CancellationToken,
    /// The calls over MCP have their answers. Its surface drops those that have none when it is told to end.
    answered: CancellationToken,
}

/// The surfaces that were chosen.
#[derive(Clone, Copy)]
struct Chosen {
    has_rest: bool,
    has_rpc: bool,
    mcp: Option<Offer>,
}

fn surfaces(
    service: &Arc<dyn SessionService>,
    chosen: Chosen,
    limits: &Limits,
    ending: &Ending,
    public: Option<Public>,
) -> Surfaces {
    let bytes = usize::try_from(limits.body_bytes).unwrap_or(usize::MAX);
    let answers = Answers::default();
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
    let rpc = RpcOptions {
        message_bytes: bytes,
        stall_ms: limits.stall_ms,
        answers: answers.clone(),
        ..RpcOptions::default()
    };
    let mcp = |offer| HttpOptions {
        offer,
        max_message_bytes: bytes,
        answers,
        shutdown: ending.answered.clone(),
        ..HttpOptions::default()
    };
    Surfaces {
        rest: router(service.clone(), rest),
        has_rest: chosen.has_rest,
        rpc: chosen.has_rpc.then(|| meerkat_surface_rpc::service(service.clone(), rpc)),
        mcp: chosen.mcp.map(|offer| McpHttpService::new(service.clone(), mcp(offer))),
    }
}

/// Raises the limit on descriptors as far as it goes, because a process often has fewer than it may have; then the
/// connections that leave enough of them to the store.
fn connections(wanted: usize) -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit on open files could not be raised");
    }
    let granted = if raised.is_ok() { maximum } else { current };
    let Some(granted) = granted else { return wanted };
    let free = granted.saturating_sub(OTHER_DESCRIPTORS.max(granted / 4)).max(CONNECTIONS_MIN);
    let taken = usize::try_from(free).unwrap_or(usize::MAX).min(wanted);
    if taken < wanted {
        tracing::warn!(granted, taken, wanted, "fewer files may be open than serve.max_connections needs");
    }
    taken
}
