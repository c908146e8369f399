//! The way of every request: through the guard to the surface that its path names.
//!
//! It routes by the first part of the path and decides nothing about sessions: what a request means is the surface's
//! business, and what it may do the service's.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Body};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use meerkat_service::{ErrorBody, ErrorCode};
use meerkat_surface_mcp::McpHttpService;
use meerkat_surface_rpc::RpcService;
use tokio_util::task::TaskTracker;
use tower::{Layer as _, Service, ServiceExt as _, service_fn};
use tower_http::cors::{AllowHeaders, CorsLayer};
use tracing::Instrument as _;

use crate::{
    acp::{self, Acp},
    console::Console,
    guard::Guard,
    listen::{challenged, refusal},
    openai,
    socket::Received,
    streams::{self, Streams},
};

/// Seconds that a client should wait after a refusal that passes.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// Headers of an answer that scripts of listed origins may read.
const EXPOSED: [&str; 7] = [
    "location",
    "mcp-session-id",
    "next-offset",
    "preference-applied",
    "retry-after",
    "www-authenticate",
    "x-request-id",
];

/// Surfaces that are served.
pub(crate) struct Surfaces {
    pub(crate) rest: Router,
    pub(crate) has_rest: bool,
    pub(crate) rpc: Option<RpcService>,
    pub(crate) mcp: Option<McpHttpService>,
    pub(crate) openai: Option<Router>,
    pub(crate) acp: Option<Acp>,
}

/// Shared state of all requests.
pub(crate) struct Front {
    pub(crate) guard: Guard,
    /// The console, where REST is served.
    pub(crate) console: Option<Arc<Console>>,
    pub(crate) streams: Streams,
    /// Layer for web pages of listed origins.
    pub(crate) cors: CorsLayer,
    /// Calls over MCP.
    pub(crate) calls: TaskTracker,
    pub(crate) surfaces: Surfaces,
    pub(crate) requests: AtomicU64,
}

/// Makes the layer for web pages of these origins.
pub(crate) fn cors(origins: &[String]) -> CorsLayer {
    let origins: Vec<HeaderValue> = origins.iter().filter_map(|origin| origin.parse().ok()).collect();
    let methods = [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
    let cors = CorsLayer::new().allow_origin(origins).allow_methods(methods);
    let cors = cors.allow_headers(AllowHeaders::mirror_request()).expose_headers(EXPOSED.map(HeaderName::from_static));
    cors.max_age(Duration::from_secs(600))
}

/// Answers one request; the browser of a listed origin learns that it may ask, before it shows the token.
pub(crate) async fn answer(front: Arc<Front>, request: Request<Received>) -> Response<Body> {
    let is_listed = front.guard.is_listed(request.uri(), request.headers());
    let cors = is_listed.then(|| front.cors.clone());
    let mut response = match cors {
        None => let_in(front, request).await,
        Some(cors) => {
            let inner = service_fn(|request| async { Ok::<_, Infallible>(let_in(front.clone(), request).await) });
            let Ok(response) = cors.layer(inner).oneshot(request).await;
            response
        }
    };
    if matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        response.headers_mut().entry(header::RETRY_AFTER).or_insert(RETRY_AFTER);
    }
    response
}

/// Answers one request: the guard first, then the surface that its path names.
async fn let_in(front: Arc<Front>, request: Request<Received>) -> Response<Body> {
    let request_id = format!("req-{}", front.requests.fetch_add(1, Ordering::Relaxed));
    let (method, path) = (request.method(), request.uri().path());
    let span = tracing::info_span!("http", request_id, %method, path, status = tracing::field::Empty);
    let is_theirs = front.surfaces.openai.is_some() && openai::owns(path);
    // Over OpenAI's protocols, a body or a query asks for a stream, and the surface takes its place.
    let take = || if is_theirs { Ok(None) } else { front.streams.take(&request) };
    let checked = front.guard.check(request.uri(), request.headers()).and_then(|()| take());
    let mut response = match checked {
        Err(body) if is_theirs => theirs(&body),
        Err(body) => refusal(&body),
        Ok(place) => {
            let console = front.console.as_ref().filter(|_| front.guard.is_page(request.uri()));
            let signed_in = front.guard.is_signed_in(request.uri(), request.headers());
            let signed_in = signed_in.then(|| (request.uri().clone(), request.headers().clone()));
            let call = streams::is_call(&request).then(|| front.calls.token());
            let response = match console {
                Some(console) => console.answer(request).instrument(span.clone()).await,
                None => route(&front.surfaces, request).instrument(span.clone()).await,
            };
            let response = streams::hold(response, (place, call));
            match signed_in {
                Some((uri, headers)) => streams::keep_while(response, move || front.guard.is_signed_in(&uri, &headers)),
                None => response,
            }
        }
    };
    if let Ok(value) = HeaderValue::try_from(request_id) {
        response.headers_mut().insert(HeaderName::from_static("x-request-id"), value);
    }
    span.record("status", response.status().as_u16());
    span.in_scope(|| tracing::info!("answered"));
    response
}

/// Makes the answer to a refused request over OpenAI's protocols, in their shape.
fn theirs(body: &ErrorBody) -> Response<Body> {
    challenged(openai::refusal(body), body)
}

async fn route(surfaces: &Surfaces, request: Request<Received>) -> Response<Body> {
    let path = request.uri().path();
    let is_system = matches!(path, "/healthz" | "/readyz" | "/metrics");
    let openai = surfaces.openai.as_ref().filter(|_| openai::owns(path));
    match (path, &surfaces.rpc, &surfaces.mcp, &surfaces.acp) {
        ("/rpc", Some(rpc), ..) => hand_over(rpc.clone(), request).await,
        ("/mcp", _, Some(mcp), _) => hand_over(mcp.clone(), request).await,
        ("/acp", .., Some(acp)) => acp::upgrade(acp, request),
        _ if surfaces.has_rest || is_system || openai.is_some() => {
            hand_over(openai.unwrap_or(&surfaces.rest).clone(), request.map(whole)).await
        }
        _ => refusal(&ErrorBody::with_message(ErrorCode::UnknownOperation, format!("Nothing is served at {path}."))),
    }
}

/// Converts a body for REST. Most requests have none, and need not wait for one.
fn whole(body: Received) -> Body {
    if http_body::Body::is_end_stream(&body) { Body::empty() } else { Body::new(body) }
}

async fn hand_over<S, B, R>(surface: S, request: Request<B>) -> Response<Body>
where
    S: Service<Request<B>, Response = Response<R>, Error = Infallible>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<axum::BoxError>,
{
    match surface.oneshot(request).await {
        Ok(response) => response.map(Body::new),
        Err(never) => match never {},
    }
}
