//! One handler for every operation: take the request apart, call the service once, send its answer.
//!
//! What stands beside the operations is here too: health, readiness, metrics, the description, and what is not there.

use std::{panic::AssertUnwindSafe, sync::Arc};

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderValue, Method, StatusCode, header, request},
    response::Response,
};
use futures::FutureExt as _;
use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_service::{Operation, SessionError, wire as service_wire};

use crate::{
    App, bundle, error, openapi,
    routes::{Beside, Place, Route, find},
    stream, wire,
};

/// Characters of an unknown path that its refusal repeats.
const UNKNOWN_PATH_CHARACTERS: usize = 200;

/// Answers a request.
pub(crate) async fn answer(app: Arc<App>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Some(found) = find(parts.uri.path()) else { return unknown(parts.uri.path()) };
    let method = if parts.method == Method::HEAD { &Method::GET } else { &parts.method };
    let response = match found.value {
        Place::Beside(beside) if method == Method::GET => show(&app, *beside).await,
        Place::Beside(_) => other_method(method, found.value),
        Place::Operations(routes) => match routes.iter().find(|route| route.method == *method) {
            Some(route) => operate(&app, route, found.params, &parts, body).await,
            None => other_method(method, found.value),
        },
    };
    if parts.method == Method::HEAD { headed(response) } else { response }
}

/// What a `HEAD` is answered with: everything but the body.
fn headed(response: Response) -> Response {
    let (mut parts, body) = response.into_parts();
    if let Some(bytes) = http_body::Body::size_hint(&body).exact() {
        parts.headers.insert(header::CONTENT_LENGTH, bytes.into());
    }
    Response::from_parts(parts, Body::empty())
}

/// Performs the operation of a route.
async fn operate(
    app: &Arc<App>,
    route: &'static Route,
    path: matchit::Params<'_, '_>,
    parts: &request::Parts,
    body: Body,
) -> Response {
    let performed = AssertUnwindSafe(perform(app, route, path, parts, body)).catch_unwind().await;
    let answer = performed.unwrap_or_else(|_| Err(SessionError::Internal("the request's handler panicked".to_owned())));
    app.metrics.count(wire::asked(route, parts.uri.query()).operation, answer.as_ref().err().map(SessionError::code));
    answer.unwrap_or_else(|error| {
        if error.code() == ErrorCode::Internal {
            tracing::error!(operation = route.operation.name(), %error, "a request failed");
        }
        error::response(&error)
    })
}

async fn perform(
    app: &Arc<App>,
    route: &'static Route,
    path: matchit::Params<'_, '_>,
    parts: &request::Parts,
    body: Body,
) -> Result<Response, SessionError> {
    let (body, upload) = match route.takes_bundle() {
        true => (Vec::new(), bundle::announced(body, app.options.bundle_bytes_max)?),
        false => (wire::read_body(body, app.options.body_bytes_max).await?, Body::empty()),
    };
    let path = wire::path(path.iter())?;
    let query = wire::query(parts.uri.query())?;
    let route = match route.switch {
        Some((name, _)) => route.switched(wire::switch(&query, name)?),
        None => route,
    };
    let request = wire::Parts { path, query, headers: &parts.headers, body: &body };
    let params = wire::params(route, &request)?;
    let work = dispatch(app, route.operation, &parts.headers, &params, upload);
    let answer = service_wire::in_span("rest", route.operation, &params, work).await;
    answer.map_err(|error| wire::of_body(error, route, &request.path))
}

async fn dispatch(
    app: &Arc<App>,
    operation: Operation,
    headers: &HeaderMap,
    params: &str,
    upload: Body,
) -> Result<Response, SessionError> {
    let (service, is_stream) = (app.service.as_ref(), wire::wants_stream(headers));
    match operation {
        Operation::Events if is_stream => stream::events(app, params).await,
        Operation::StartTurn | Operation::Resume => {
            let begun = match operation {
                Operation::Resume => service_wire::begin_resume(service, params).await?,
                _ => service_wire::begin_turn(service, params).await?,
            };
            match (begun.wait, is_stream) {
                (false, _) => wire::accepted(app, begun.answer().await?),
                (true, true) => stream::turn(app, begun).await,
                (true, false) => begun.answer().await.map(wire::json),
            }
        }
        Operation::ExportSession => bundle::export(app, params).await,
        Operation::ImportBundle => bundle::import(app, params, upload).await,
        Operation::CreateSession => wire::created(app, service_wire::call(service, operation, params).await?),
        Operation::Blob => wire::blob(app.options.answers.call(service, operation, params).await?),
        _ => Ok(wire::json(app.options.answers.call(service, operation, params).await?.into_bytes())),
    }
}

/// Shows what stands beside the operations.
async fn show(app: &App, beside: Beside) -> Response {
    match beside {
        // Whether the process answers, and nothing else: it is open to everyone.
        Beside::Health => wire::json(r#"{"state":"ok"}"#),
        Beside::Readiness => readiness(app).await,
        Beside::Metrics => match app.metrics.text() {
            Ok(text) => wire::typed(HeaderValue::from_static(crate::metrics::CONTENT_TYPE), text),
            Err(cause) => error::response(&SessionError::Internal(cause.to_string())),
        },
        Beside::Description => wire::json(openapi::text()),
    }
}

/// Whether new work is taken.
async fn readiness(app: &App) -> Response {
    // It is open to everyone, so a failure is its code and nothing more.
    let refused = |code| error::refusal(&ErrorBody::new(code));
    if app.options.draining.is_cancelled() {
        return refused(ErrorCode::ShuttingDown);
    }
    match app.service.check_ready().await {
        Ok(true) => wire::json(r#"{"state":"ready"}"#),
        Ok(false) => {
            let mut response = wire::json(r#"{"state":"settling"}"#);
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            response
        }
        Err(error) => refused(error.code()),
    }
}

/// A place that is there, for another method. `Allow` says which; no other origin is allowed anything by it.
fn other_method(method: &Method, place: &Place) -> Response {
    let mut response = match *method {
        Method::OPTIONS => {
            let mut response = wire::sealed(Body::empty());
            *response.status_mut() = error::NO_CONTENT;
            response
        }
        _ => error::refusal(&ErrorBody::new(ErrorCode::MethodNotAllowed)),
    };
    if let Ok(methods) = place.methods().try_into() {
        response.headers_mut().insert(header::ALLOW, methods);
    }
    response
}

/// No route.
fn unknown(path: &str) -> Response {
    error::response(&if path.len() > 1 && path.split('/').skip(1).any(str::is_empty) {
        SessionError::invalid("path", "a part of it is empty")
    } else {
        let name = path.strip_prefix("/v1/").unwrap_or(path);
        SessionError::UnknownOperation(name.chars().take(UNKNOWN_PATH_CHARACTERS).collect())
    })
}
