//! meerkat over HTTP: each operation has a route, a turn can be followed as it runs, and every failure has one body.
//!
//! In reading order: `routes` is the table, [`router`] is made of it, `handlers` performs a row of it, `wire` makes parameters and answers,
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
    middleware::map_response,
    routing::{get, on},
};
use meerkat_service::{SessionService, options::Limits, wire::Answers};
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

/// The service over HTTP: `/v1/…`, `/openapi.json`, `/healthz`, `/readyz` and `/metrics`.
///
/// Axum makes an answer to `HEAD` of the one to `GET`, and says in `Allow` which methods a path has.
pub fn router(service: Arc<dyn SessionService>, options: RestOptions) -> Router {
    let beside = Router::new()
        .route("/healthz", get(handlers::health))
        .route("/readyz", get(handlers::readiness))
        .route("/metrics", get(handlers::metrics))
        .route("/openapi.json", get(handlers::description));
    let operations = table().iter().filter(|route| route.is_first());
    operations
        .fold(beside, |router, route| {
            let operate = move |State(app): State<Arc<App>>, request: Request| handlers::operate(app, route, request);
            router.route(&route.full_path(), on(route.method_filter(), operate))
        })
        .fallback(handlers::unknown)
        .method_not_allowed_fallback(handlers::other_method)
        .layer(map_response(wire::seal))
        .with_state(Arc::new(App { service, options, metrics: Metrics::new() }))
}
