//! The one place where a code becomes an error of this protocol.
//!
//! The refusal of an operation is an error of the tool, which clients show; a request that no tool can answer is an
//! error of the protocol. Both carry the one body.

use std::convert::Infallible;

use ::http::{HeaderValue, Response, StatusCode, header::CONTENT_TYPE};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_service::SessionError;
use rmcp::model::{CallToolResult, ErrorCode as RpcCode, ErrorData, ServerJsonRpcMessage};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

/// An answer over HTTP.
pub(crate) type HttpAnswer = Response<BoxBody<Bytes, Infallible>>;

/// The media type of a message.
pub(crate) const JSON: &str = "application/json";

/// An error of a tool.
pub(crate) fn refused(error: &SessionError) -> CallToolResult {
    CallToolResult::structured_error(json!(error.body()))
}

/// A protocol error for a tool that does not exist.
pub(crate) fn unknown_tool(name: &str) -> ErrorData {
    protocol(RpcCode::INVALID_PARAMS, &SessionError::UnknownOperation(name.to_owned()).body())
}

/// A protocol error for a call that is sent again without a state, or with the state of another call.
pub(crate) fn unknown_state() -> ErrorData {
    let message = "this server gave no such state for this call, or not since it was started: a repeated call has the \
                   arguments of the first one and the state of its latest answer. The turn of the first call may still \
                   go on: read it with `session_events` or `session_history`";
    protocol(RpcCode::INVALID_PARAMS, &SessionError::invalid("requestState", message).body())
}

/// A protocol error for a method that does not exist, or whose parameters are not those of the protocol.
pub(crate) fn unknown_method(method: &str, is_known: bool) -> ErrorData {
    let error = match is_known {
        true => SessionError::invalid("params", format!("the parameters of {method:?} are not as the protocol says")),
        false => SessionError::UnknownOperation(method.to_owned()),
    };
    protocol(RpcCode(error.code().rpc_code()), &error.body())
}

/// A protocol error for resources that cannot be listed or read.
pub(crate) fn resource(error: &SessionError) -> ErrorData {
    let code = match error.code() {
        ErrorCode::SessionNotFound => RpcCode::RESOURCE_NOT_FOUND,
        code => RpcCode(code.rpc_code()),
    };
    protocol(code, &error.body())
}

/// A protocol error for a resource that cannot be read, with its URI, as the protocol wants it.
pub(crate) fn unread(error: &SessionError, uri: &str) -> ErrorData {
    let mut error = resource(error);
    if let Some(Value::Object(data)) = &mut error.data {
        data.insert("uri".to_owned(), json!(uri));
    }
    error
}

fn protocol(code: RpcCode, body: &ErrorBody) -> ErrorData {
    ErrorData::new(code, body.message.clone(), Some(json!(body)))
}

/// The answer to a message of more than `limit` bytes.
pub(crate) fn oversized(limit: usize) -> ServerJsonRpcMessage {
    let text = format!("A message may have at most {limit} bytes.");
    let body = ErrorBody::with_message(ErrorCode::PayloadTooLarge, text).detail("what", "message");
    unanswerable(RpcCode(body.code.rpc_code()), &body.detail("limit", limit as u64))
}

/// The answer to bytes that are no message.
pub(crate) fn unreadable(message: &[u8]) -> ServerJsonRpcMessage {
    let (number, what) = match serde_json::from_slice::<IgnoredAny>(message) {
        Ok(_) => (RpcCode::INVALID_REQUEST, "not one message of the protocol, or it nests too deep"),
        Err(_) => (RpcCode::PARSE_ERROR, "not valid JSON"),
    };
    unanswerable(number, &SessionError::invalid("message", what).body())
}

/// An error without the id of a request, because it is not known.
fn unanswerable(number: RpcCode, body: &ErrorBody) -> ServerJsonRpcMessage {
    ServerJsonRpcMessage::error(protocol(number, body), None)
}

/// A refusal over HTTP.
pub(crate) fn over_http(status: StatusCode, message: &ServerJsonRpcMessage) -> HttpAnswer {
    let mut response = Response::new(Full::from(json!(message).to_string()).boxed());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    response
}

/// Replaces the plain text of a refusal of the transport by the one body. Clients go by the status, so it stays.
pub(crate) async fn with_body(response: HttpAnswer, is_json: bool, message: &[u8]) -> HttpAnswer {
    let has_body =
        response.headers().get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(JSON.as_bytes()));
    if has_body || response.status().is_success() {
        return response;
    }
    let (mut parts, text) = response.into_parts();
    // The library calls a message that it cannot read a wrong media type.
    if is_json && parts.status == StatusCode::UNSUPPORTED_MEDIA_TYPE {
        return over_http(StatusCode::BAD_REQUEST, &unreadable(message));
    }
    let Ok(text) = text.collect().await;
    let (number, code) = match parts.status {
        StatusCode::METHOD_NOT_ALLOWED => {
            (RpcCode(ErrorCode::MethodNotAllowed.rpc_code()), ErrorCode::MethodNotAllowed)
        }
        status if status.is_server_error() => (RpcCode::INTERNAL_ERROR, ErrorCode::Internal),
        _ => (RpcCode::INVALID_REQUEST, ErrorCode::InvalidRequest),
    };
    let body = ErrorBody::with_message(code, String::from_utf8_lossy(&text.to_bytes()));
    let answer = over_http(parts.status, &unanswerable(number, &body));
    parts.headers.extend(answer.headers().clone());
    Response::from_parts(parts, answer.into_body())
}
