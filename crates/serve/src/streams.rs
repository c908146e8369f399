//! The limit on event streams, which is one for the listener, because it has one token.
//!
//! A place is taken first, so a refused stream has begun no turn. WebSockets are not counted here: each is a connection,
//! with its own limit on subscriptions.

use std::sync::Arc;

use axum::body::Body;
use http::{Method, Request, Response, header};
use http_body_util::BodyExt as _;
use meerkat_service::{ErrorBody, ErrorCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const EVENT_STREAM: &[u8] = b"text/event-stream";

/// Places for event streams.
pub(super) struct Streams {
    room: Arc<Semaphore>,
    max: usize,
}

impl Streams {
    pub(super) fn new(max: usize) -> Self {
        Self { room: Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS))), max }
    }

    /// Takes a place for the stream that a request asks for; `None` if it asks for none.
    pub(super) fn take<B>(&self, request: &Request<B>) -> Result<Option<OwnedSemaphorePermit>, ErrorBody> {
        let mut accepted = request.headers().get_all(header::ACCEPT).iter();
        let names =
            |value: &[u8]| value.windows(EVENT_STREAM.len()).any(|part| part.eq_ignore_ascii_case(EVENT_STREAM));
        if is_call(request) || !accepted.any(|value| names(value.as_bytes())) {
            return Ok(None);
        }
        let refused = |_| {
            let message = format!("At most {} event streams may be open.", self.max);
            let body = ErrorBody::with_message(ErrorCode::TooManyConnections, message).detail("what", "streams");
            body.detail("limit", self.max)
        };
        self.room.clone().try_acquire_owned().map(Some).map_err(refused)
    }
}

/// Returns true for a call over MCP: each asks for a stream, which ends with its answer.
pub(super) fn is_call<B>(request: &Request<B>) -> bool {
    request.method() == Method::POST && request.uri().path() == "/mcp"
}

/// Attaches `held` to the body of a stream, until that is dropped; other answers drop it at once.
pub(super) fn hold<T: Send + 'static>(response: Response<Body>, held: T) -> Response<Body> {
    let is_stream =
        response.headers().get(header::CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(EVENT_STREAM));
    if !is_stream {
        return response;
    }
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _held = &held;
            frame
        }))
    })
}
