//! HTTP: a POST is one message, an upgrade to a WebSocket is a connection.
//!
//! A mistake in the HTTP is answered with a status and the error's body, like by the guard; a mistake in the message with
//! a JSON-RPC answer.

use std::{future::ready, io, pin::pin, sync::Arc, time::Duration};

use ::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use bytes::{Buf, Bytes};
use futures::{SinkExt as _, StreamExt as _, stream};
use http_body::Body;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper_util::rt::TokioIo;
use meerkat_service::{ErrorBody, SessionError, wire::encode};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        self, Message,
        handshake::derive_accept_key,
        protocol::{Role, WebSocketConfig},
    },
};
use tower::BoxError;

use crate::{
    connection::{self, Inward, Transport},
    error::{Failure, not_a_post, status, too_large},
    handlers::{From, Reply, Rpc},
    wire::Outward,
};

/// Bytes of a WebSocket's buffer in each direction, unless a message is larger.
const BUFFER_BYTES: usize = 4 * 1024;
/// A body or message that is too long is read and dropped up to this many times the limit, because a client hears the
/// refusal only when it has sent everything. After a longer one the connection is closed.
const OVERSIZE_READ: usize = 2;

/// How long the end of a WebSocket waits for the client's.
const LINGER: Duration = Duration::from_secs(2);

type Answer = Response<Full<Bytes>>;

/// Answers an HTTP request.
pub(crate) async fn handle<B>(rpc: Arc<Rpc>, request: Request<B>) -> Answer
where
    B: Body + Send + 'static,
    B::Error: Into<BoxError>,
{
    if names(request.headers(), &header::CONNECTION, "upgrade")
        && names(request.headers(), &header::UPGRADE, "websocket")
    {
        return upgrade(rpc, request);
    }
    if request.method() != Method::POST {
        let mut answer = refused(&not_a_post());
        answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        return answer;
    }
    if !is_json(request.headers()) {
        let error = SessionError::invalid("Content-Type", "send application/json");
        return refused(&error.body());
    }
    let max = rpc.options.message_bytes;
    let answers = request.extensions().get().unwrap_or(&rpc.options.answers).clone();
    let mut body = pin!(request.into_body());
    let message = match Limited::new(body.as_mut(), max).collect().await {
        Ok(message) => message.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            let mut read = max;
            while read < max.saturating_mul(OVERSIZE_READ)
                && let Some(Ok(frame)) = body.frame().await
            {
                read = read.saturating_add(frame.data_ref().map_or(0, Buf::remaining));
            }
            return refused(&too_large(max));
        }
        Err(error) => {
            let message = format!("it could not be read to its end: {error}");
            return refused(&SessionError::invalid("body", message).body());
        }
    };
    let from = From { peer: None, answers, place: None };
    match rpc.reply(message, from).await {
        Reply { answer: Some(answer), .. } => with_json(StatusCode::OK, answer),
        Reply { answer: None, .. } => empty(StatusCode::NO_CONTENT),
    }
}

/// Whether a header's list holds a word.
fn names(headers: &HeaderMap, name: &header::HeaderName, word: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|value| value.trim().eq_ignore_ascii_case(word))
}

/// A web page cannot send these types to another site without asking first, so no others are accepted.
fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = value.split(';').next().unwrap_or_default().trim();
    ["application/json", "application/json-rpc"].iter().any(|json| essence.eq_ignore_ascii_case(json))
}

fn empty(status: StatusCode) -> Answer {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = status;
    answer
}

fn with_json(status: StatusCode, json: Bytes) -> Answer {
    let mut answer = empty(status);
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    *answer.body_mut() = Full::new(json);
    answer
}

fn refused(body: &ErrorBody) -> Answer {
    match encode(body) {
        Ok(json) => with_json(status(body), json.into()),
        Err(error) => {
            tracing::error!(%error, "an error could not be encoded");
            empty(StatusCode::INTERNAL_SERVER_ERROR)
        }
    }
}

/// Answers the handshake; a task of its own serves the connection.
fn upgrade<B>(rpc: Arc<Rpc>, mut request: Request<B>) -> Answer {
    if rpc.stop.is_cancelled() {
        return refused(&SessionError::ShuttingDown.body());
    }
    let headers = request.headers();
    let accept = headers.get(header::SEC_WEBSOCKET_KEY).map(|key| derive_accept_key(key.as_bytes()).try_into());
    let version = headers.get(header::SEC_WEBSOCKET_VERSION).map(HeaderValue::as_bytes);
    let (Some(Ok(accept)), &Method::GET, Some(b"13")) = (accept, request.method(), version) else {
        let message = "a WebSocket is opened by GET, with Sec-WebSocket-Key and Sec-WebSocket-Version 13";
        return refused(&SessionError::invalid("Upgrade", message).body());
    };
    let upgraded = hyper::upgrade::on(&mut request);
    let websockets = rpc.websockets.clone();
    websockets.spawn(async move {
        let ended = match upgraded.await {
            Ok(io) => serve(rpc, TokioIo::new(io)).await,
            Err(error) => Err(io::Error::other(error)),
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a WebSocket ended");
        }
    });
    let mut answer = empty(StatusCode::SWITCHING_PROTOCOLS);
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    answer.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    answer.headers_mut().insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    answer
}

/// Serves a WebSocket whose handshake is done.
async fn serve(rpc: Arc<Rpc>, io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> io::Result<()> {
    let max = rpc.options.message_bytes;
    let written = Arc::default();
    let io = connection::counted(io, &written);
    let config = WebSocketConfig::default()
        .read_buffer_size(BUFFER_BYTES)
        .write_buffer_size(BUFFER_BYTES)
        .max_message_size(Some(max.saturating_mul(OVERSIZE_READ)))
        .max_frame_size(Some(max.saturating_mul(OVERSIZE_READ)));
    let (outlet, inlet) = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await.split();
    let mut inlet = inlet.map(move |message| read(message, max)).chain(stream::once(ready(Ok(Inward::Gone))));
    let outlet = outlet.sink_map_err(io::Error::other).with(|message: Outward| ready(write(message)));
    let silence = Duration::from_millis(rpc.options.ping_ms);
    connection::serve(rpc, Transport { inlet: &mut inlet, outlet, written, silence, search_path: None }).await?;
    // Closing a socket with unread data would drop what the client has not read yet.
    timeout(LINGER, inlet.for_each(|_| ready(()))).await.ok();
    Ok(())
}

fn read(message: Result<Message, tungstenite::Error>, max: usize) -> io::Result<Inward> {
    let message = match message {
        Ok(Message::Text(text)) => Bytes::from(text),
        Ok(Message::Binary(bytes)) => bytes,
        Ok(_) => return Ok(Inward::Alive),
        Err(tungstenite::Error::Capacity(_)) => return Ok(Inward::Unreadable(too_large(max).into())),
        Err(tungstenite::Error::Utf8(error)) => {
            return Ok(Inward::Unreadable(Failure::not_json(format!("invalid UTF-8: {error}"))));
        }
        Err(error) => return Err(io::Error::other(error)),
    };
    if message.len() > max { Ok(Inward::Refused(too_large(max).into())) } else { Ok(Inward::Message(message)) }
}

fn write(message: Outward) -> io::Result<Message> {
    match message {
        Outward::Ping => Ok(Message::Ping(Bytes::new())),
        text => Ok(Message::Text(text.into_bytes().try_into().map_err(io::Error::other)?)),
    }
}
