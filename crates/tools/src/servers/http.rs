//! Requests to a server over HTTP. Each answer is bounded; the library's own client does not bound one in JSON.

use std::{
    collections::HashMap,
    future::ready,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt as _, TryStreamExt as _, stream::BoxStream};
use http::{
    HeaderName, HeaderValue, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, WWW_AUTHENTICATE},
};
use meerkat_service::clock::Clock;
use reqwest::Response;
use rmcp::{
    ErrorData,
    model::{ClientJsonRpcMessage, ErrorCode, JsonRpcMessage, RequestId, ServerJsonRpcMessage},
    transport::{
        auth::{AuthError, WWWAuthenticateParams},
        common::http_header::{EVENT_STREAM_MIME_TYPE, HEADER_LAST_EVENT_ID, HEADER_SESSION_ID, JSON_MIME_TYPE},
        streamable_http_client::{
            AuthRequiredError, InsufficientScopeError, SseError, StreamableHttpClient, StreamableHttpError,
            StreamableHttpPostResponse,
        },
    },
};
use sse_stream::{Sse, SseStream};

use super::transport::MESSAGE_BYTES_MAX;

/// Bytes of the answer to a request that failed.
const FAILURE_BYTES_MAX: usize = 64 * 1024;
/// Bytes of such an answer that an error quotes.
const QUOTED_BYTES_MAX: usize = 256;
/// Bytes of the header by which a server says what it wants; what an error shows of it is shorter.
const CHALLENGE_BYTES_MAX: usize = 8 * 1024;
/// Headers that the library sets itself.
const RESERVED: [&str; 3] = ["accept", HEADER_SESSION_ID, HEADER_LAST_EVENT_ID];

/// Streams of events that a connection may open one after the other without a pause.
const STREAMS_AT_ONCE: u32 = 5;
/// Pause between any further ones.
const STREAM_PAUSE: Duration = Duration::from_secs(2);

type Failure = StreamableHttpError<reqwest::Error>;
type Headers = HashMap<HeaderName, HeaderValue>;

/// Client whose answers are bounded in bytes, and whose streams are opened at a bounded pace.
#[derive(Clone)]
pub(super) struct Bounded {
    http: reqwest::Client,
    pace: Arc<Pace>,
}

impl Bounded {
    pub(super) fn new(http: reqwest::Client, clock: Arc<dyn Clock>) -> Self {
        Self { http, pace: Arc::new(Pace { clock, rested: Mutex::default() }) }
    }
}

/// Pace at which a connection opens streams of events. The library opens one again as soon as the server ends it.
struct Pace {
    clock: Arc<dyn Clock>,
    /// Time of the clock at which there is no more to wait for, if none is opened until then.
    rested: Mutex<Duration>,
}

impl Pace {
    /// Waits until a stream may be opened: [`STREAMS_AT_ONCE`] may be, and then one in each [`STREAM_PAUSE`].
    async fn wait(&self) {
        let now = self.clock.elapsed();
        let wait = {
            let mut rested = self.rested.lock().unwrap_or_else(PoisonError::into_inner);
            *rested = (*rested).max(now) + STREAM_PAUSE;
            (*rested - now).saturating_sub(STREAM_PAUSE * STREAMS_AT_ONCE)
        };
        if !wait.is_zero() {
            self.clock.sleep(wait).await;
        }
    }
}

impl StreamableHttpClient for Bounded {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let most = MESSAGE_BYTES_MAX;
        let accepted = format!("{EVENT_STREAM_MIME_TYPE}, {JSON_MIME_TYPE}");
        let mut request = self.http.post(uri.as_ref()).header(ACCEPT, accepted);
        for (name, value) in headers {
            if RESERVED.iter().any(|reserved| name.as_str().eq_ignore_ascii_case(reserved)) {
                return Err(StreamableHttpError::ReservedHeaderConflict(name.to_string()));
            }
            request = request.header(name, value);
        }
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        if let Some(session) = &session {
            request = request.header(HEADER_SESSION_ID, session.as_ref());
        }
        let response = request.json(&message).send().await?;
        let status = response.status();
        check_access(&response)?;
        match status {
            StatusCode::ACCEPTED | StatusCode::NO_CONTENT => return Ok(StreamableHttpPostResponse::Accepted),
            StatusCode::NOT_FOUND if session.is_some() => return Err(StreamableHttpError::SessionExpired),
            _ => {}
        }
        let text = |name: &str| Some(String::from_utf8_lossy(response.headers().get(name)?.as_bytes()).into_owned());
        let (kind, session) = (text(CONTENT_TYPE.as_str()), text(HEADER_SESSION_ID));
        let is = |expected: &str| kind.as_deref().is_some_and(|kind| kind.starts_with(expected));
        let is_answered = matches!(message, JsonRpcMessage::Request(_));
        if !status.is_success() {
            let body = read(response, FAILURE_BYTES_MAX).await.unwrap_or_default();
            let is_refused = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
            if let Ok(error @ JsonRpcMessage::Error(_)) = serde_json::from_slice::<ServerJsonRpcMessage>(&body)
                && !is_refused
                && is(JSON_MIME_TYPE)
            {
                return Ok(StreamableHttpPostResponse::Json(error, session));
            }
            let why = format!("HTTP {status}: {}", quoted(&body));
            // What is forbidden has not run.
            return Err(match status {
                StatusCode::FORBIDDEN => StreamableHttpError::Auth(AuthError::AuthorizationFailed(why)),
                _ => unexpected(why),
            });
        }
        if is(EVENT_STREAM_MIME_TYPE) {
            return Ok(StreamableHttpPostResponse::Sse(events(response, most), session));
        }
        if !is_answered {
            // Some servers answer what needs no answer, often with nothing.
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if !is(JSON_MIME_TYPE) {
            return Err(StreamableHttpError::UnexpectedContentType(kind));
        }
        let body = read(response, most).await?;
        match serde_json::from_slice(&body) {
            Ok(message) => Ok(StreamableHttpPostResponse::Json(message, session)),
            Err(error) => Err(unexpected(format!("no message, {error}: {}", quoted(&body)))),
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<(), Failure> {
        self.http.delete_session(uri, session, token, headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last: Option<String>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failure> {
        self.pace.wait().await;
        let most = MESSAGE_BYTES_MAX;
        self.http.get_stream_with_max_sse_event_size(uri, session, last, token, headers, most).await
    }
}

/// Has the library begin as older servers want it. They refuse the first request of the newest revision in any form; the
/// library takes for that only an error with the request's id.
pub(super) fn refused_probe(
    id: RequestId,
    posted: Result<StreamableHttpPostResponse, Failure>,
) -> Result<StreamableHttpPostResponse, Failure> {
    use StreamableHttpPostResponse::{Accepted, Json};
    let error = match posted {
        Ok(Json(JsonRpcMessage::Error(error), _)) => error.error,
        Ok(Accepted) => ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "it did not answer", None),
        Err(
            error @ (StreamableHttpError::UnexpectedServerResponse(_) | StreamableHttpError::UnexpectedContentType(_)),
        ) => ErrorData::new(ErrorCode::METHOD_NOT_FOUND, error.to_string(), None),
        posted => return posted,
    };
    Ok(Json(JsonRpcMessage::error(error, Some(id)), None))
}

/// Returns the error of a server that wants another authorization.
fn check_access(response: &Response) -> Result<(), Failure> {
    let wanted = response.headers().get(WWW_AUTHENTICATE).map(HeaderValue::as_bytes);
    match (response.status(), wanted) {
        // Some servers do not say what they want.
        (StatusCode::UNAUTHORIZED, wanted) => {
            let wanted = quoted(wanted.unwrap_or_default());
            Err(StreamableHttpError::AuthRequired(AuthRequiredError::new(wanted)))
        }
        (StatusCode::FORBIDDEN, Some(wanted)) => {
            let read = String::from_utf8_lossy(&wanted[..wanted.len().min(CHALLENGE_BYTES_MAX)]);
            let scope = WWWAuthenticateParams::parse(&read, response.url()).scope;
            let error = InsufficientScopeError::new(quoted(wanted), scope);
            Err(StreamableHttpError::InsufficientScope(error))
        }
        _ => Ok(()),
    }
}

/// Reads a body that has at most so many bytes.
async fn read(mut response: Response, most: usize) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await? {
        if body.len() + piece.len() > most {
            return Err(unexpected(too_long(most)));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

/// Reads events. None may have more bytes than `most`, with the comments before it.
fn events(response: Response, most: usize) -> BoxStream<'static, Result<Sse, SseError>> {
    let since_event = Arc::new(AtomicUsize::new(0));
    let counted = since_event.clone();
    let bytes = response.bytes_stream().map_err(std::io::Error::other).and_then(move |piece| {
        let bytes = counted.fetch_add(piece.len(), Ordering::Relaxed) + piece.len();
        ready(if bytes > most { Err(std::io::Error::other(too_long(most))) } else { Ok(piece) })
    });
    SseStream::from_bytes_stream(bytes).inspect(move |_| since_event.store(0, Ordering::Relaxed)).boxed()
}

fn too_long(most: usize) -> String {
    format!("its answer has more than {most} bytes")
}

fn unexpected(why: String) -> Failure {
    StreamableHttpError::UnexpectedServerResponse(why.into())
}

fn quoted(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(QUOTED_BYTES_MAX)]).into_owned()
}
