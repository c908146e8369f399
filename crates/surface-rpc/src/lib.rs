//! meerkat over JSON-RPC 2.0: HTTP and WebSocket by [`service()`], newline-delimited stdio by [`RpcService::serve_stdio`].
//!
//! In reading order: `methods` is the table of spellings, `wire` reads messages and writes answers, `handlers` performs
//! requests, `stream` has the subscriptions, `connection` what WebSocket and stdio share, `http` and `stdio` the rest of
//! each, `discovery` the answer of `rpc.discover`, [`owner`] the socket of a data directory's owner.
//!
//! All transports share the framing, so a message gets the same answer on each of them. Nothing here decides about a
//! session, a capability or a build.

mod methods;

mod error;
mod wire;

mod handlers;
mod stream;

mod connection;
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
use futures::future::BoxFuture;
use http_body_util::Full;
use meerkat_service::{SessionService, wire::Answers};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::handlers::Rpc;

pub use discovery::document;
pub use methods::{Method, methods};

/// Options of the surface.
#[derive(Clone, Debug)]
pub struct RpcOptions {
    /// Bytes of one message: a body over HTTP, a message on a WebSocket, a line on stdio.
    pub message_bytes: usize,
    /// Requests of one batch.
    pub batch_requests: usize,
    /// Messages of one connection that are answered at the same time; further ones wait unread.
    pub concurrent_messages: usize,
    /// Subscriptions of one connection.
    pub subscriptions: usize,
    /// Milliseconds without a byte written to a client, after which a subscription ends with `SUBSCRIBER_LAGGED`; after
    /// twice as long the connection is closed.
    pub stall_ms: u64,
    /// Milliseconds of silence after which a WebSocket client is pinged; after as long again it is disconnected.
    pub ping_ms: u64,
    /// Room for answers, shared with the other surfaces. A listener may give a request its connection's, as an
    /// extension.
    pub answers: Answers,
    /// Whether the clients are commands that attach to this process. They wait for turns as if they ran them, by
    /// parameters that are not public.
    pub is_for_commands: bool,
}

impl Default for RpcOptions {
    fn default() -> Self {
        Self {
            message_bytes: 16 * 1024 * 1024,
            batch_requests: 100,
            concurrent_messages: 256,
            subscriptions: 64,
            stall_ms: 30_000,
            ping_ms: 30_000,
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
    RpcService { rpc: Arc::new(Rpc::new(service, options)) }
}

/// JSON-RPC over a service. Clones share it.
#[derive(Clone)]
pub struct RpcService {
    rpc: Arc<Rpc>,
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
        stdio::serve(self.rpc.clone(), reader, writer, None).await
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
        stdio::serve(self.rpc.clone(), reader, writer, search_path).await
    }

    /// Ends every WebSocket and stdio connection: nothing more is read, running requests are answered, subscriptions end
    /// with `SHUTTING_DOWN`. Returns when the WebSockets are closed. Plain HTTP ends with its listener.
    pub async fn stop(&self) {
        self.rpc.stop.cancel();
        self.rpc.websockets.close();
        self.rpc.websockets.wait().await;
    }
}

impl fmt::Debug for RpcService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RpcService").field("options", &self.rpc.options).finish_non_exhaustive()
    }
}

impl<B> tower::Service<Request<B>> for RpcService
where
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<tower::BoxError>,
{
    type Response = Response<Full<bytes::Bytes>>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let rpc = self.rpc.clone();
        Box::pin(async move { Ok(http::handle(rpc, request).await) })
    }
}
