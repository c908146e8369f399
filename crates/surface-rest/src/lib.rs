//! meerkat over HTTP: each operation has a route, a turn can be followed as it runs, and every failure has one body.
//!
//! In reading order: `routes` is the table, `handlers` performs a row of it, `wire` makes parameters and answers,
//! `stream` sends events, `bundle` sends and takes bundles, `error` turns a failure into a response, `openapi` describes
//! it all.
//!
//! It never asks who is calling: Host, Origin and token are checked before a request comes here. The accept loop and
//! its timeouts are not here either.

mod routes;

mod bundle;
mod error;
mod handlers;
mod stream;
mod wire;

mod metrics;
mod names;
mod openapi;

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{extract::Request, response::Response};
use futures::future::{BoxFuture, FutureExt as _};
use meerkat_service::{SessionService, options::Limits, wire::Answers};
use tokio_util::sync::CancellationToken;
use tower::Service;

use metrics::Metrics;
pub use routes::{Route, table};

/// What the routes can be told.
#[derive(Clone, Debug)]
pub struct RestOptions {
    /// Bytes that a request's body may have.
    pub body_bytes_max: u64,
    /// Bytes that a bundle may have that is sent in. It is never held whole.
    pub bundle_bytes_max: u64,
    /// The room that answers take, which surfaces share.
    pub answers: Answers,
    /// Where the service is reached, without a slash at the end; without it answers point to paths alone.
    pub public_url: Option<String>,
    /// How long an event stream is silent before a comment shows that it is alive.
    pub keep_alive: Duration,
    /// How long a subscriber may take nothing of what is there for it, before its stream is ended.
    pub stall_limit: Duration,
    /// Cancelled when the service begins to end: from then on `/readyz` refuses.
    pub draining: CancellationToken,
    /// Cancelled when the last turn has ended: open event streams then end.
    pub closing: CancellationToken,
}

impl Default for RestOptions {
    fn default() -> Self {
        Self {
            body_bytes_max: 16 * 1024 * 1024,
            bundle_bytes_max: Limits::default().bundle_bytes,
            answers: Answers::default(),
            public_url: None,
            keep_alive: Duration::from_secs(15),
            stall_limit: Duration::from_secs(30),
            draining: CancellationToken::new(),
            closing: CancellationToken::new(),
        }
    }
}

/// What all requests share.
pub(crate) struct App {
    pub(crate) service: Arc<dyn SessionService>,
    pub(crate) options: RestOptions,
    pub(crate) metrics: Metrics,
}

/// The service over HTTP: `/v1/…`, `/openapi.json`, `/healthz`, `/readyz` and `/metrics`. A clone is the same service.
#[derive(Clone)]
pub struct RestService(Arc<App>);

impl RestService {
    /// Serves sessions.
    #[must_use]
    pub fn new(service: Arc<dyn SessionService>, options: RestOptions) -> Self {
        Self(Arc::new(App { service, options, metrics: Metrics::new() }))
    }
}

impl Service<Request> for RestService {
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        handlers::answer(self.0.clone(), request).map(Ok).boxed()
    }
}
