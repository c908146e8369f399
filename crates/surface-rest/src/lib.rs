//! meerkat over HTTP: each operation has a route, a turn can be followed as it runs, and every failure has one body.
//!
//! In reading order: `routes` is the table, [`router`] is made of it, `handlers` performs a row of it, `wire` makes
//! parameters and answers, `stream` sends events, `bundle` sends and takes bundles, `error` turns a failure into a
//! response, `openapi` describes it all.
//!
//! It never checks who is calling: the listener checks Host, Origin and token first, and has the time limits.

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

pub use error::refusal;
use metrics::Metrics;
pub use routes::{Route, stream_bytes_max, table};

/// Options of the routes.
#[derive(Clone, Debug)]
pub struct RestOptions {
    /// Bytes of a request's body.
    pub body_bytes_max: u64,
    /// Bytes of a bundle that is sent in. It is never held whole.
    pub bundle_bytes_max: u64,
    /// Room for answers, shared with the other surfaces.
    pub answers: Answers,
    /// URL that clients use, without a slash at the end. If there is none, `Location` headers have paths alone.
    pub public_url: Option<String>,
    /// Silence after which an event stream sends a comment.
    pub keep_alive: Duration,
    /// How long a subscriber may read nothing while data is waiting, before its stream is closed.
    pub stall_limit: Duration,
    /// Cancelled when the service begins to shut down: from then on `/readyz` refuses.
    pub draining: CancellationToken,
    /// Cancelled when the last turn has ended: then event streams are closed.
    pub closing: CancellationToken,
}

impl Default for RestOptions {
    fn default() -> Self {
        Self {
            body_bytes_max: 32 * 1024 * 1024,
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

/// State that all requests share.
pub(crate) struct App {
    pub(crate) service: Arc<dyn SessionService>,
    pub(crate) options: RestOptions,
    pub(crate) metrics: Metrics,
}

/// The service over HTTP: `/v1/…`, `/openapi.json`, `/healthz`, `/readyz` and `/metrics`.
///
/// Axum answers `HEAD` from `GET`, and lists a path's methods in `Allow`.
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
        .with_state(Arc::new(App { metrics: Metrics::new(service.node()), service, options }))
}
