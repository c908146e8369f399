//! The limit on event streams, which is one for the listener, because it has one token.
//!
//! A place is taken first, so a refused stream has begun no turn. WebSockets are not counted here: each is a connection,
//! with its own limit on subscriptions.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::body::{Body, Bytes};
use http::{Method, Request, Response, header};
use http_body::Frame;
use http_body_util::BodyExt as _;
use meerkat_service::{ErrorBody, ErrorCode};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep},
};

const EVENT_STREAM: &[u8] = b"text/event-stream";

/// Longest time for which a browser that was signed out still reads a stream.
const CHECK_ALLOWED: Duration = Duration::from_secs(2);

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
        place(&self.room, self.max).map(Some)
    }

    /// Makes the way to a place for surfaces whose requests say in their body that they ask for a stream.
    pub(super) fn places(&self) -> crate::openai::Places {
        let (room, max) = (self.room.clone(), self.max);
        Arc::new(move || place(&room, max).map(|place| Some(Box::new(place) as Box<dyn Send>)))
    }
}

fn place(room: &Arc<Semaphore>, max: usize) -> Result<OwnedSemaphorePermit, ErrorBody> {
    let refused = |_| {
        let message = format!("At most {max} event streams may be open.");
        ErrorBody::with_message(ErrorCode::TooManyConnections, message).detail("what", "streams").detail("limit", max)
    };
    room.clone().try_acquire_owned().map_err(refused)
}

/// Returns true for a call over MCP: each asks for a stream, which ends with its answer.
pub(super) fn is_call<B>(request: &Request<B>) -> bool {
    request.method() == Method::POST && request.uri().path() == "/mcp"
}

/// Ends the body of a stream soon after `is_allowed` says no; other answers stay as they are.
pub(super) fn keep_while(
    response: Response<Body>,
    is_allowed: impl Fn() -> bool + Send + Sync + Unpin + 'static,
) -> Response<Body> {
    if !is_stream(&response) {
        return response;
    }
    response.map(|body| Body::new(Allowed { body, is_allowed, check: Box::pin(sleep(CHECK_ALLOWED)) }))
}

/// Body of a stream that its reader may lose the right to read.
struct Allowed<F> {
    body: Body,
    is_allowed: F,
    check: Pin<Box<Sleep>>,
}

impl<F: Fn() -> bool + Unpin> http_body::Body for Allowed<F> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        while self.check.as_mut().poll(context).is_ready() {
            if !(self.is_allowed)() {
                return Poll::Ready(None);
            }
            self.check.as_mut().reset(Instant::now() + CHECK_ALLOWED);
        }
        Pin::new(&mut self.body).poll_frame(context)
    }
}

/// Attaches `held` to the body of a stream, until that is dropped; other answers drop it at once.
pub(super) fn hold<T: Send + 'static>(response: Response<Body>, held: T) -> Response<Body> {
    if !is_stream(&response) {
        return response;
    }
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _held = &held;
            frame
        }))
    })
}

fn is_stream(response: &Response<Body>) -> bool {
    response.headers().get(header::CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(EVENT_STREAM))
}
