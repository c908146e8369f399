//! The one place where a failure becomes an error of the protocol: the number of its code, and the body as data.

use agent_client_protocol_schema::v1::Error;
use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_service::SessionError;
use serde_json::json;

/// Makes the error of a body.
pub(crate) fn of_body(body: &ErrorBody) -> Error {
    Error::new(body.code.rpc_code(), body.message.clone()).data(json!(body))
}

/// Makes the error of a message that is none, by JSON-RPC's own number.
fn numbered(number: i32, why: impl Into<String>) -> Error {
    let body = SessionError::invalid("message", why).body();
    Error::new(number, body.message.clone()).data(json!(body))
}

/// The message is no JSON.
pub(crate) fn not_json(why: impl Into<String>) -> Error {
    numbered(-32700, why)
}

/// The message is JSON, but no request, notification or answer.
pub(crate) fn no_request(why: impl Into<String>) -> Error {
    numbered(-32600, why)
}

/// The client has too many requests under way, or they have too many bytes.
pub(crate) fn too_many() -> Error {
    let message = "Too many requests are under way, or too many bytes of them; wait for answers.";
    of_body(&ErrorBody::with_message(ErrorCode::TooManyConnections, message).detail("what", "requests"))
}

/// The message is longer than the limit.
pub(crate) fn too_long(limit: usize) -> Error {
    let message = format!("The message has more than {limit} bytes.");
    of_body(&ErrorBody::with_message(ErrorCode::PayloadTooLarge, message).detail("limit", limit))
}
