//! Where a failure becomes OpenAI's error: the status and the code are those of its row in the table.

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use meerkat_errors::ErrorBody;
use serde_json::{Value, json};

/// Makes the response that has an error's body and its status. The guard in front of the routes sends it too.
#[must_use]
pub fn refusal(body: &ErrorBody) -> Response {
    let status = StatusCode::from_u16(body.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, Json(json!({ "error": error(body) }))).into_response()
}

/// An error in OpenAI's shape. `code` is ours; what theirs has no place for stays beside it.
pub(crate) fn error(body: &ErrorBody) -> Value {
    let kind = match body.code.http_status() {
        401 => "authentication_error",
        403 => "permission_error",
        429 => "rate_limit_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    };
    json!({
        "message": body.message,
        "type": kind,
        "param": body.details.get("field"),
        "code": body.code,
        "retryable": body.retryable,
        "details": body.details,
    })
}
