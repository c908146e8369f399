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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ::http::StatusCode;
    use meerkat_testkit::in_time;
    use rmcp::model::ServerJsonRpcMessage;
    use tokio::sync::Notify;

    use super::*;
    use crate::error;

    fn refusal() -> HttpAnswer {
        let message: ServerJsonRpcMessage =
            serde_json::from_str(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}"#).unwrap();
        error::over_http(StatusCode::NOT_FOUND, &message)
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_comes_in_time_is_as_it_is_and_a_late_one_is_an_event() {
        let in_time = soon(async { refusal() }).await;
        assert_eq!(in_time.status(), StatusCode::NOT_FOUND);
        let message = in_time.into_body().collect().await.unwrap().to_bytes();
        let late = soon(async {
            tokio::time::sleep(HEAD_MAX * 2).await;
            refusal()
        });
        let late = late.await;
        assert_eq!((late.status(), &late.headers()[header::CONTENT_TYPE]), (StatusCode::OK, &STREAM));
        let body = late.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, [b":\n\ndata: ", message.as_ref(), b"\n\n"].concat());
    }

    /// Its drop is how the library learns that the client has left.
    #[tokio::test(start_paused = true)]
    async fn a_stream_that_is_dropped_drops_the_answer_that_has_not_come() {
        struct Dropped(Arc<Notify>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                self.0.notify_one();
            }
        }
        let gone = Arc::new(Notify::new());
        let held = Dropped(gone.clone());
        let answer = soon(async move {
            let _held = held;
            std::future::pending().await
        });
        drop(answer.await);
        in_time("the answer is dropped", gone.notified()).await;
    }
}
