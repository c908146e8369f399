//! Where a failure becomes OpenAI's error: the status and the code are those of its row in the table.

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use meerkat_errors::ErrorBody;
use meerkat_service::SessionError;
use serde_json::{Value, json};

/// Makes the response that has an error's body and its status. The guard in front of the routes sends it too.
#[must_use]
pub fn refusal(body: &ErrorBody) -> Response {
    let status = StatusCode::from_u16(body.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, Json(json!({ "error": error(body) }))).into_response()
}

/// Names the field that the service refuses as the client knows it; `said` is where that sends what is said.
pub(crate) fn theirs(error: SessionError, said: &str) -> SessionError {
    let SessionError::InvalidRequest { field, message } = error else { return error };
    let is_chat = said == "messages";
    let name = match field.split(['.', '[']).next().unwrap_or_default() {
        "prompt" | "history" => said,
        "labels" => "metadata",
        "client_tools" => "tools",
        "system_prompt" => "instructions",
        "idempotency_key" => "Idempotency-Key",
        "output" => ["text.format", "response_format"][usize::from(is_chat)],
        "options" if is_chat && field.ends_with("max_output_tokens") => "max_completion_tokens",
        "options" => field.trim_start_matches("options."),
        _ => &field,
    };
    SessionError::invalid(name, message)
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
