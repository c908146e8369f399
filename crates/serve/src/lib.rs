//! meerkat's listener, for programs in Rust: REST, JSON-RPC and the Model Context Protocol on one address, over any
//! [`SessionService`], behind one guard.
//!
//! ```no_run
//! use meerkat_serve::{Offer, ServeOptions, Server, Token, Toolset};
//! use meerkat_service::AgentBuildConfig;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let agent = AgentBuildConfig::new().build()?;
//! let options = ServeOptions {
//!     has_rest: true,
//!     has_rpc: true,
//!     mcp: Some(Offer { set: Toolset::Core, approve: false }),
//!     ..ServeOptions::new("127.0.0.1:7670".parse()?, Some(Token::random()?))
//! };
//! let server = Server::listen(agent.service().clone(), options).await?;
//! server.serve_until(async { drop(tokio::signal::ctrl_c().await) }).await;
//! # Ok(())
//! # }
//! ```
//!
//! In reading order: `front` answers a request, `guard` refuses callers by their `names` and `token`, `console` has the
//! page for people, `listen` is the accept loop with `socket` and `streams`, [`owner`] the socket of a data directory's
//! owner, [`stdio`] the two surfaces without a listener. This is the only place that composes surfaces; it decides
//! nothing about sessions, reads no configuration and prints nothing.

mod acp;
mod console;
mod front;
mod guard;
mod names;
mod token;

mod listen;
mod openai;
mod socket;
mod streams;

pub mod owner;
pub mod stdio;

use std::{
    fmt, io,
    net::SocketAddr,
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
    acp::Acp,
    console::Console,
    front::{Front, Surfaces},
    guard::{Guard, Page},
    listen::{Bound, ListenOptions, listen},
    names::{hosts, origins, public_url},
    streams::Streams,
};

pub use acp::AcpOptions;
pub use guard::Token;
pub use meerkat_console::{code as console_code, question as console_question, reply as console_reply};
pub use meerkat_surface_mcp::tools::{Offer, Toolset};
pub use openai::OpenAi;
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
    /// Longest time for the head of a request, and longest wait for each 16 KiB of its body.
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
            body_bytes: 32 * 1024 * 1024,
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
    #[error("say what to serve: any of REST, JSON-RPC, MCP, OpenAI's protocols and ACP")]
    Nothing,
    /// There is no token, and other machines can reach the address.
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

/// Surfaces to serve, at which address, and to whom.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Address to listen at; port 0 is any free port.
    pub address: SocketAddr,
    /// Token that every client must show. `None` asks for no token, which only a loopback address allows.
    pub token: Option<Token>,
    /// Serves REST below `/v1`, and the console at `/`.
    pub has_rest: bool,
    /// Serves JSON-RPC, at `/rpc`.
    pub has_rpc: bool,
    /// Serves the Model Context Protocol with these tools, at `/mcp`.
    pub mcp: Option<Offer>,
    /// Serves OpenAI's protocols, at `/v1/responses`, `/v1/chat/completions` and `/v1/models`.
    pub openai: Option<OpenAi>,
    /// Serves the Agent Client Protocol, at `/acp`.
    pub acp: Option<AcpOptions>,
    /// Accepted Hosts, each `name[:port]`, besides the address itself and loopback's names.
    pub allowed_hosts: Vec<String>,
    /// Origins whose web pages may send requests.
    pub allowed_origins: Vec<String>,
    /// Address of a proxy through which clients reach the server.
    pub public_url: Option<String>,
    /// Limits.
    pub limits: Limits,
}

impl ServeOptions {
    /// Makes options without a surface.
    #[must_use]
    pub fn new(address: SocketAddr, token: Option<Token>) -> Self {
        Self {
            address,
            token,
            has_rest: false,
            has_rpc: false,
            mcp: None,
            openai: None,
            acp: None,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            public_url: None,
            limits: Limits::default(),
        }
    }

    /// Makes the chosen surfaces.
    fn surfaces(&self, service: &Arc<dyn SessionService>, ending: &Ending, streams: &Streams) -> Surfaces {
        let (limits, answers) = (&self.limits, Answers::default());
        let bytes = usize::try_from(limits.body_bytes).unwrap_or(usize::MAX);
        let rest = RestOptions {
            body_bytes_max: limits.body_bytes,
            bundle_bytes_max: limits.bundle_bytes,
            answers: answers.clone(),
            public_url: self.public_url.as_deref().map(|url| url.trim_end_matches('/').to_owned()),
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
        // The token's holder may do all that such a state allows; servers behind one address have one token.
        let state_key = self.token.as_ref().map_or_else(StateKey::default, |token| StateKey::of(token.text()));
        let mcp = |offer| HttpOptions {
            offer,
            max_message_bytes: bytes,
            answers: answers.clone(),
            shutdown: ending.answered.clone(),
            state_key,
        };
        Surfaces {
            rest: router(service.clone(), rest),
            has_rest: self.has_rest,
            rpc: self.has_rpc.then(|| meerkat_surface_rpc::service(service.clone(), rpc)),
            mcp: self.mcp.map(|offer| McpHttpService::new(service.clone(), mcp(offer))),
            openai: self
                .openai
                .clone()
                .and_then(|openai| openai::router(service.clone(), openai, (limits.body_bytes, streams.places()))),
            acp: self.acp.clone().map(|options| Acp {
                service: service.clone(),
                options,
                silence: Duration::from_millis(limits.stall_ms),
                stop: ending.closing.clone(),
                websockets: TaskTracker::new(),
            }),
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
    /// Begins to listen for requests to this service. Connections wait until [`Self::serve_until`].
    ///
    /// # Errors
    /// If something is missing or not allowed, or the address is taken.
    pub async fn listen(service: Arc<dyn SessionService>, options: ServeOptions) -> Result<Self, ServeError> {
        let is_nothing = !options.has_rest && !options.has_rpc && options.mcp.is_none();
        if is_nothing && options.openai.is_none() && options.acp.is_none() {
            return Err(ServeError::Nothing);
        }
        let address = options.address;
        if options.token.is_none() && !address.ip().is_loopback() {
            return Err(ServeError::Open);
        }
        let limits = &options.limits;
        let public = options.public_url.as_deref().map(public_url).transpose()?;
        let listed = origins(&options.allowed_origins)?;
        let connections_max = connections(limits.connections);
        let listener = Bound::at(address).await.map_err(|source| ServeError::Listen { address, source })?;
        let local = listener.local;
        if !listener.has_localhost {
            tracing::warn!(%local, "another program has this port at the other loopback address, so localhost is refused");
        }
        let ending = Ending::default();
        let console = options.has_rest.then(|| Arc::new(Console::new(options.token.as_ref(), local.port())));
        let bundle_bytes = limits.bundle_bytes;
        let streams = Streams::new(limits.streams);
        let guard = Guard {
            hosts: hosts(local, listener.has_localhost, &options.allowed_hosts, public.as_ref())?,
            origins: listed.iter().cloned().chain(public.map(|public| public.origin)).collect(),
            token: options.token.clone(),
            page: console.clone().map(|console| console as Arc<dyn Page>),
            body_bytes_max: limits.body_bytes,
            streamed_bytes_max: Box::new(move |path| meerkat_surface_rest::stream_bytes_max(path, bundle_bytes)),
        };
        let front = Front {
            guard,
            console,
            cors: front::cors(&listed),
            calls: TaskTracker::new(),
            surfaces: options.surfaces(&service, &ending, &streams),
            streams,
            requests: AtomicU64::new(0),
        };
        let listening = ListenOptions {
            connections_max,
            header_timeout: limits.header_timeout,
            // A surface ends its own stalled streams first and says why; this closes those that read nothing any more.
            stall_limit: Duration::from_millis(limits.stall_ms.saturating_mul(2)),
            linger: LINGER,
        };
        let (url, drain_ms) = (format!("http://{local}"), limits.drain_ms);
        Ok(Self { service, listener, url, options: listening, front: Arc::new(front), ending, drain_ms })
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
        let acp = front.surfaces.acp.as_ref().map(|acp| &acp.websockets);
        for (open, what) in
            acp.map(|acp| (acp, "connections of ACP")).into_iter().chain([(&front.calls, "calls over MCP")])
        {
            open.close();
            if tokio::time::timeout(LINGER, open.wait()).await.is_err() {
                tracing::warn!("{what} were not answered at the end");
            }
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
