//! The one place where a failure becomes an error of the protocol: the number of its code, and the body as data.

use agent_client_protocol_schema::v1::Error;
use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_service::SessionError;
use serde_json::{Value, json};

/// The message is no JSON.
const PARSE: i32 = -32700;

/// The message is JSON, but no request.
const NO_REQUEST: i32 = -32600;

/// Makes the error of a body.
pub(crate) fn of_body(body: &ErrorBody) -> Error {
    Error::new(body.code.rpc_code(), body.message.clone()).data(json!(body))
}

/// Makes the error of a failure.
pub(crate) fn of(error: &SessionError) -> Error {
    of_body(&error.body())
}

/// Makes the error of a message that is none, by JSON-RPC's own number.
fn numbered(number: i32, why: impl Into<String>) -> Error {
    let body = SessionError::invalid("message", why).body();
    Error::new(number, body.message.clone()).data(json!(body))
}

/// The message is no JSON.
pub(crate) fn not_json(why: impl Into<String>) -> Error {
    numbered(PARSE, why)
}

/// The message is JSON, but no request, notification or answer.
pub(crate) fn no_request(why: impl Into<String>) -> Error {
    numbered(NO_REQUEST, why)
}

/// The error of an answer has not the shape of JSON-RPC.
pub(crate) fn unreadable(error: &Value) -> Error {
    no_request(format!("its error cannot be read: {error}"))
}

/// There is no such method.
pub(crate) fn unknown(method: &str) -> Error {
    let message = format!("meerkat has no method {method:?} of the Agent Client Protocol.");
    of_body(&ErrorBody::with_message(ErrorCode::UnknownOperation, message).detail("operation", method))
}

/// The message is longer than the limit.
pub(crate) fn too_long(limit: usize) -> Error {
    let message = format!("The message has more than {limit} bytes.");
    of_body(&ErrorBody::with_message(ErrorCode::PayloadTooLarge, message).detail("limit", limit))
}
