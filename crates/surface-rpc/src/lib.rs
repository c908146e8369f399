//! meerkat over JSON-RPC 2.0: HTTP and WebSocket by [`service()`], newline-delimited stdio by [`RpcService::serve_stdio`].
//!
//! jsonrpsee speaks the protocol. In reading order: `table` has the methods, `module` fills its module from them, `handlers`
//! performs requests, `stream` has the subscriptions, `http` puts jsonrpsee's server behind checks of ours, `stdio` hands
//! lines to its module, `wire` has the shapes of parameters, `discovery` the answer of `rpc.discover`, [`owner`] the
//! socket of a data directory's owner.
//!
//! Nothing here decides about a session, a capability or a build.

mod module;
mod table;

mod error;
mod wire;

mod handlers;
mod stream;

mod http;
mod stdio;

mod discovery;

pub mod owner;

use std::{
    convert::Infallible,
    fmt, io,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use ::http::{Request, Response};
use bytes::Bytes;
use futures::future::BoxFuture;
use jsonrpsee::server::{HttpBody, Methods, ServerHandle, StopHandle, stop_channel};
use meerkat_service::{SessionService, wire::Answers};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};
use tokio_util::task::TaskTracker;

use crate::{handlers::Rpc, http::Transports};

pub use discovery::document;
pub use http::OVERSIZE_READ;
pub use table::{Method, methods};

/// Longest wait for subscriptions to say why they end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Options of the surface.
#[derive(Clone, Debug)]
pub struct RpcOptions {
    /// Bytes of one message: a body over HTTP, a request on a WebSocket, a line on stdio.
    pub message_bytes: usize,
    /// Requests of one connection that are under way at the same time. On a WebSocket further ones are refused, on stdio
    /// they wait unread. Together they have four times the bytes of one message; further ones are refused.
    pub concurrent_requests: usize,
    /// Subscriptions of one connection.
    pub subscriptions: usize,
    /// Milliseconds that a subscription waits for its client to take an event before it ends with `SUBSCRIBER_LAGGED`;
    /// after twice as long, stdio is closed.
    pub stall_ms: u64,
    /// Room for the answers to reads over HTTP. A WebSocket and stdio have few reads at a time instead.
    pub answers: Answers,
    /// Whether the clients are commands that attach to this process. They wait for turns as if they ran them, by
    /// parameters that are not public.
    pub is_for_commands: bool,
}

impl Default for RpcOptions {
    fn default() -> Self {
        Self {
            message_bytes: 32 * 1024 * 1024,
            concurrent_requests: 1024,
            subscriptions: 64,
            stall_ms: 30_000,
            answers: Answers::default(),
            is_for_commands: false,
        }
    }
}

impl RpcOptions {
    const fn stall(&self) -> Duration {
        Duration::from_millis(self.stall_ms)
    }
}

/// The surface over a service: a tower service for HTTP POST and WebSocket upgrades, whatever the path.
#[must_use]
pub fn service(service: Arc<dyn SessionService>, options: RpcOptions) -> RpcService {
    let rpc = Arc::new(Rpc::new(service, options));
    let methods = module::module(&rpc);
    let transports = Transports::new(&methods, &rpc.options);
    let (stopped, stop) = stop_channel();
    let inner = Inner { rpc, methods, transports, stopped, stop, websockets: TaskTracker::new() };
    RpcService { inner: Arc::new(inner) }
}

/// JSON-RPC over a service. Clones share it.
#[derive(Clone)]
pub struct RpcService {
    inner: Arc<Inner>,
}

struct Inner {
    rpc: Arc<Rpc>,
    methods: Methods,
    transports: Transports,
    /// Ends the WebSockets when `stop` says so.
    stopped: StopHandle,
    stop: ServerHandle,
    websockets: TaskTracker,
}

impl RpcService {
    /// Answers newline-delimited messages until `reader` ends, and returns when the last one is answered. Nothing but the
    /// protocol is written.
    ///
    /// # Errors
    /// If reading or writing fails.
    pub async fn serve_stdio(
        &self,
        reader: impl AsyncRead + Send + Unpin,
        writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> io::Result<()> {
        stdio::serve(&self.inner.rpc, self.inner.methods.clone(), reader, writer, None).await
    }

    /// Like [`Self::serve_stdio`], for a command whose turns look for programs in `search_path`.
    ///
    /// # Errors
    /// If reading or writing fails.
    pub async fn serve_command(
        &self,
        reader: impl AsyncRead + Send + Unpin,
        writer: impl AsyncWrite + Send + Unpin + 'static,
        search_path: Option<String>,
    ) -> io::Result<()> {
        stdio::serve(&self.inner.rpc, self.inner.methods.clone(), reader, writer, search_path).await
    }

    /// Ends every WebSocket and stdio connection: subscriptions end with `SHUTTING_DOWN`, nothing more is read, running
    /// requests are answered. Returns when the WebSockets are closed. Plain HTTP ends with its listener.
    pub async fn stop(&self) {
        let Inner { rpc, stop, websockets, .. } = &*self.inner;
        rpc.stop.cancel();
        rpc.following.close();
        // A client that reads nothing does not hear why its subscription ends.
        timeout(LAST_WORDS, rpc.following.wait()).await.ok();
        // It may have been called before.
        stop.stop().ok();
        websockets.close();
        websockets.wait().await;
    }
}

impl fmt::Debug for RpcService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RpcService").field("options", &self.inner.rpc.options).finish_non_exhaustive()
    }
}

impl<B> tower::Service<Request<B>> for RpcService
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<tower::BoxError>,
{
    type Response = Response<HttpBody>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let inner = self.inner.clone();
        Box::pin(async move { Ok(http::handle(&inner, request).await) })
    }
}
