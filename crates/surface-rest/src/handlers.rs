//! One handler for every operation: take the request apart, call the service once, send its answer. And the handlers of the
//! other paths: health, readiness, metrics, the description, and unknown ones.

use std::{future::ready, panic::AssertUnwindSafe, sync::Arc};

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, Method, StatusCode, Uri},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_service::{
    Operation, SessionError,
    service::{OneSession, ReadBlob, ResumeParams, ResumeTurn, StartTurn},
    wire::{create_session, decode_params, decode_turn, encode, in_span, span_of, within},
};

use crate::{
    App, bundle, error, metrics, openapi,
    routes::Route,
    stream,
    wire::{self, RequestHead},
};

/// Characters of an unknown path that its refusal repeats.
const UNKNOWN_PATH_CHARACTERS: usize = 200;

/// Bytes of a body without a prompt: images and files make others longer.
const OTHER_BODY_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Performs the operation of a route.
pub(crate) async fn operate(app: Arc<App>, route: &'static Route, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let asked = RequestHead::read(parts).await;
    let route = asked.as_ref().map_or(route, |asked| route.asked(&asked.query));
    let performed = AssertUnwindSafe(perform(&app, route, asked, body)).catch_unwind().await;
    let answer = performed.unwrap_or_else(|_| Err(SessionError::Internal("the request's handler panicked".to_owned())));
    app.metrics.count(route.operation, answer.as_ref().err().map(SessionError::code));
    answer.unwrap_or_else(|error| {
        if error.code() == ErrorCode::Internal {
            tracing::error!(operation = route.operation.name(), %error, "a request failed");
        }
        error::response(&error)
    })
}

async fn perform(
    app: &Arc<App>,
    route: &Route,
    asked: Result<RequestHead, SessionError>,
    body: Body,
) -> Result<Response, SessionError> {
    if let Err(absent) = app.service.capabilities().admit(route.operation) {
        return in_span("rest", route.operation, "{}", ready(Err(absent))).await;
    }
    let (body, upload) = if let Some(limit) = route.stream_bytes_max(app.options.bundle_bytes_max) {
        wire::check_announced(&body, limit)?;
        (Bytes::new(), body)
    } else {
        let limit = app.options.body_bytes_max;
        (
            wire::read_body(body, if route.takes_content() { limit } else { limit.min(OTHER_BODY_BYTES_MAX) }).await?,
            Body::empty(),
        )
    };
    let asked = asked?;
    let params = wire::params(route, &asked, &body)?;
    // A prompt's images are in both; a turn may take hours.
    drop(body);
    let span = span_of("rest", route.operation, &params);
    let answer = within(span, dispatch(app, route.operation, &asked, params, upload)).await;
    answer.map_err(|error| wire::of_body(error, route))
}

async fn dispatch(
    app: &Arc<App>,
    operation: Operation,
    asked: &RequestHead,
    params: String,
    upload: Body,
) -> Result<Response, SessionError> {
    let (service, answers, text) = (app.service.as_ref(), &app.options.answers, params.as_str());
    let is_stream = wire::wants_stream(&asked.headers);
    match operation {
        Operation::Events if is_stream => stream::events(app, text).await,
        Operation::List | Operation::Changes if is_stream => stream::changes(app, operation, text).await,
        Operation::StartTurn | Operation::Resume => {
            // A stream has its turn's end, and none before that: it does not end when the turn waits for its caller.
            let (waits, begun) = match operation {
                Operation::Resume => {
                    let (session_id, request) = decode_params::<ResumeParams>(text)?.request();
                    let (waits, wait) = (request.wait, request.wait && !is_stream);
                    (waits, service.begin_resume(&session_id, ResumeTurn { wait, ..request }).await?)
                }
                _ => {
                    let request = decode_turn(text)?;
                    let (waits, wait) = (request.wait, request.wait && !is_stream);
                    (waits, service.begin_turn(StartTurn { wait, ..request }).await?)
                }
            };
            drop(params);
            match (waits, is_stream) {
                (false, _) => wire::accepted(app, &begun.accepted),
                (true, true) => stream::turn(app, begun).await,
                (true, false) => begun.answer().await.map(wire::json),
            }
        }
        Operation::ExportSession => bundle::export(app, text).await,
        Operation::ImportBundle => bundle::import(app, text, upload).await,
        Operation::PutBlob => {
            let OneSession { session_id } = decode_params(text)?;
            let length = wire::length(&upload);
            let pieces = upload.into_data_stream().map_err(|_| wire::broken_off()).boxed();
            encode(&app.service.put_blob_from(session_id, length, pieces).await?).map(wire::json)
        }
        Operation::CreateSession => wire::created(app, &create_session(service, text).await?),
        Operation::Blob => {
            let request: ReadBlob = decode_params(text)?;
            let room = answers.room(operation).await?;
            let is_begin = request.offset == 0;
            wire::blob(&service.blob(request).await?, is_begin, room)
        }
        _ => Ok(wire::json(answers.call(service, operation, text).await?.into_bytes())),
    }
}

/// Answers that the process runs, and nothing else: this path is open to everyone.
pub(crate) async fn health() -> Response {
    wire::json(r#"{"state":"ok"}"#)
}

/// Answers if new work is taken. This path is open to everyone, so a failure is its code and nothing more.
pub(crate) async fn readiness(State(app): State<Arc<App>>) -> Response {
    let refused = |code| error::refusal(&ErrorBody::new(code));
    if app.options.draining.is_cancelled() {
        return refused(ErrorCode::ShuttingDown);
    }
    match app.service.check_ready().await {
        Ok(true) => wire::json(r#"{"state":"ready"}"#),
        Ok(false) => (StatusCode::SERVICE_UNAVAILABLE, wire::json(r#"{"state":"settling"}"#)).into_response(),
        Err(error) => refused(error.code()),
    }
}

/// Shows the counts.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    match app.metrics.text() {
        Ok(text) => wire::typed(HeaderValue::from_static(metrics::CONTENT_TYPE), text),
        Err(cause) => error::response(&SessionError::Internal(cause.to_string())),
    }
}

/// Shows the description.
pub(crate) async fn description() -> Response {
    wire::json(openapi::text())
}

/// Answers for a method that a path does not have. `OPTIONS` allows other origins nothing.
pub(crate) async fn other_method(method: Method) -> Response {
    match method {
        Method::OPTIONS => error::NO_CONTENT.into_response(),
        _ => error::refusal(&ErrorBody::new(ErrorCode::MethodNotAllowed)),
    }
}

/// Answers for an unknown path.
pub(crate) async fn unknown(uri: Uri) -> Response {
    let path = uri.path();
    error::response(&if path.len() > 1 && path.split('/').skip(1).any(str::is_empty) {
        SessionError::invalid("path", "a part of it is empty")
    } else {
        let name = path.strip_prefix("/v1/").unwrap_or(path);
        SessionError::UnknownOperation(name.chars().take(UNKNOWN_PATH_CHARACTERS).collect())
    })
}
