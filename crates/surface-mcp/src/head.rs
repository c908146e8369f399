//! The head of an answer whose rest takes long. The library sends it with the first message, which for a turn without
//! progress is the last one too; a proxy or a client would not wait so long.
//!
//! The head waits a moment, since an error has a status of its own. It must never say more than that the rest will come.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use ::http::{HeaderValue, Response, header};
use bytes::Bytes;
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use tokio::time::{Interval, interval, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

use crate::error::HttpAnswer;

/// Longest time without a head.
const HEAD_MAX: Duration = Duration::from_secs(1);
/// Time between two comments, as in the library's own streams.
const COMMENTS: Duration = Duration::from_secs(15);
/// A comment, which says nothing and keeps a connection from being idle.
const COMMENT: Bytes = Bytes::from_static(b":\n\n");

const STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");

/// The answer, or after a moment a head with a stream that has it when it comes. A stream that is dropped drops it.
pub(crate) async fn soon(answer: impl Future<Output = HttpAnswer> + Send + 'static) -> HttpAnswer {
    let mut answer = Box::pin(answer);
    if let Ok(answer) = timeout(HEAD_MAX, &mut answer).await {
        return answer;
    }
    let coming = tokio::spawn(async { as_stream(answer.await).await }.in_current_span());
    let stream = Stream::Coming { rest: AbortOnDropHandle::new(coming), comments: interval(COMMENTS) };
    let mut response = Response::new(stream.boxed());
    // As in the library's own streams.
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, STREAM);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// The body of an answer as a stream: one message becomes one event.
async fn as_stream(answer: HttpAnswer) -> BoxBody<Bytes, Infallible> {
    if answer.headers().get(header::CONTENT_TYPE) == Some(&STREAM) {
        return answer.into_body();
    }
    let Ok(message) = answer.into_body().collect().await;
    Full::from([b"data: ", message.to_bytes().as_ref(), b"\n\n"].concat()).boxed()
}

enum Stream {
    Coming { rest: AbortOnDropHandle<BoxBody<Bytes, Infallible>>, comments: Interval },
    Here(BoxBody<Bytes, Infallible>),
}

impl Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            match &mut *self {
                Self::Here(body) => return Pin::new(body).poll_frame(cx),
                Self::Coming { rest, comments } => match Pin::new(rest).poll(cx) {
                    Poll::Ready(Ok(body)) => *self = Self::Here(body),
                    Poll::Ready(Err(error)) => {
                        tracing::error!(%error, "an answer broke");
                        return Poll::Ready(None);
                    }
                    Poll::Pending => return comments.poll_tick(cx).map(|_| Some(Ok(Frame::data(COMMENT)))),
                },
            }
        }
    }
}
