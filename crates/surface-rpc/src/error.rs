//! The one place where a failure becomes a JSON-RPC error object, or the status of an HTTP response.

use ::http::StatusCode;
use jsonrpsee::types::{
    ErrorObjectOwned,
    error::{INVALID_REQUEST_CODE, PARSE_ERROR_CODE},
};
use meerkat_service::{ErrorBody, ErrorCode, SessionError};

/// A failure with its number.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    number: i32,
    body: Box<ErrorBody>,
}

impl Failure {
    /// The message is no JSON.
    pub(crate) fn not_json(message: impl Into<String>) -> Self {
        Self { number: PARSE_ERROR_CODE, ..SessionError::invalid("message", message).into() }
    }

    /// The message is JSON, but no request.
    pub(crate) fn no_request(message: impl Into<String>) -> Self {
        Self { number: INVALID_REQUEST_CODE, ..SessionError::invalid("message", message).into() }
    }
}

impl From<ErrorBody> for Failure {
    fn from(body: ErrorBody) -> Self {
        Self { number: body.code.rpc_code(), body: Box::new(body) }
    }
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Self {
        error.body().into()
    }
}

/// The error object: number, message, and the body as its data.
impl From<Failure> for ErrorObjectOwned {
    fn from(Failure { number, body }: Failure) -> Self {
        Self::owned(number, body.message.clone(), Some(body))
    }
}

/// The status of a response if the request fails before JSON-RPC.
pub(crate) fn status(body: &ErrorBody) -> StatusCode {
    StatusCode::from_u16(body.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// A message is too long. By how much is unknown, because it is not read to its end.
pub(crate) fn too_large(limit: usize) -> ErrorBody {
    let message = format!("The message has more than {limit} bytes.");
    ErrorBody::with_message(ErrorCode::PayloadTooLarge, message).detail("what", "message").detail("limit", limit)
}

/// The answers to a batch are too long.
pub(crate) fn batch_too_large(limit: usize) -> ErrorBody {
    let message = format!("The answers to the batch have more than {limit} bytes; send fewer requests.");
    ErrorBody::with_message(ErrorCode::PayloadTooLarge, message).detail("what", "batch").detail("limit", limit)
}

/// The HTTP method is not POST.
pub(crate) fn not_a_post() -> ErrorBody {
    let message = "Send a request by POST, or upgrade to a WebSocket.";
    ErrorBody::with_message(ErrorCode::MethodNotAllowed, message)
}

/// A subscription over HTTP.
pub(crate) fn no_subscriptions() -> SessionError {
    let message = "subscriptions need a WebSocket or stdio; over HTTP read session/events, with wait_ms to wait";
    SessionError::invalid("method", message)
}

/// The connection cannot have another subscription.
pub(crate) fn too_many_subscriptions(limit: usize) -> ErrorBody {
    let message = format!("The connection has {limit} subscriptions already; end one, or open another connection.");
    ErrorBody::with_message(ErrorCode::TooManyConnections, message)
        .detail("what", "subscriptions")
        .detail("limit", limit)
}

/// The connection cannot have another request.
pub(crate) fn too_many_requests(limit: usize) -> ErrorBody {
    let message =
        format!("The connection has {limit} requests under way; wait for answers, or open another connection.");
    ErrorBody::with_message(ErrorCode::TooManyConnections, message).detail("what", "requests").detail("limit", limit)
}

/// The connection's requests have too many bytes.
pub(crate) fn too_many_bytes(limit: usize) -> ErrorBody {
    let message = format!(
        "The requests under way on the connection have more than {limit} bytes; wait for answers, or open another \
         connection."
    );
    ErrorBody::with_message(ErrorCode::TooManyConnections, message)
        .detail("what", "request_bytes")
        .detail("limit", limit)
}

/// The subscriber read nothing for too long.
pub(crate) fn lagged(since_seq: Option<u64>) -> ErrorBody {
    let Some(since_seq) = since_seq else {
        let message = "The subscriber fell behind and was closed; subscribe again with the cursor of the last page.";
        return ErrorBody::with_message(ErrorCode::SubscriberLagged, message);
    };
    let message = format!("The subscriber fell behind and was closed; subscribe again with since_seq {since_seq}.");
    ErrorBody::with_message(ErrorCode::SubscriberLagged, message).detail("since_seq", since_seq)
}
