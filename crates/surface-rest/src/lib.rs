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
mod openapi;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Request, State},
    routing::{MethodFilter, get, on},
};
use meerkat_service::{SessionService, options::Limits};
use tokio_util::sync::CancellationToken;

use metrics::Metrics;
pub use routes::{Route, table};

/// What the routes can be told.
#[derive(Clone, Debug)]
pub struct RestOptions {
    /// Bytes that a request's body may have.
    pub body_bytes_max: u64,
    /// Bytes that a bundle may have that is sent in. It is never held whole.
    pub bundle_bytes_max: u64,
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

/// The routes of the service: `/v1/…`, `/openapi.json`, `/healthz`, `/readyz` and `/metrics`.
#[expect(clippy::expect_used, reason = "every test makes a router, and the table has no method that axum lacks")]
pub fn router(service: Arc<dyn SessionService>, options: RestOptions) -> Router {
    let app = Arc::new(App { service, options, metrics: Metrics::new() });
    let mut router = Router::new()
        .route("/healthz", get(handlers::healthz))
        .route("/readyz", get(handlers::readyz))
        .route("/metrics", get(handlers::metrics))
        .route("/openapi.json", get(handlers::openapi));
    for route in table().iter().filter(|route| route.is_first()) {
        let answer = move |State(app): State<Arc<App>>, path: handlers::PathParams, request: Request| {
            handlers::answer(app, route, path, request)
        };
        let method = MethodFilter::try_from(route.method.clone()).expect("a method of HTTP");
        router = router.route(&route.full_path(), on(method, answer));
    }
    router.method_not_allowed_fallback(handlers::other_method).fallback(handlers::unknown).with_state(app)
}
