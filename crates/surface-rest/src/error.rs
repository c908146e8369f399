//! Where a failure becomes an HTTP status: the one of its code's row. A status without a code is only in `handlers.rs`.

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use meerkat_errors::ErrorBody;
use meerkat_service::SessionError;

/// The status if a session was created.
pub(crate) const CREATED: StatusCode = StatusCode::CREATED;
/// The status if a turn was accepted and runs.
pub(crate) const ACCEPTED: StatusCode = StatusCode::ACCEPTED;
/// The status of an answer with headers only.
pub(crate) const NO_CONTENT: StatusCode = StatusCode::NO_CONTENT;

/// The response to a request that was refused or failed.
pub(crate) fn response(error: &SessionError) -> Response {
    refusal(&error.body())
}

/// Makes the response that has an error's body and its status. Whatever answers in front of the routes sends the same.
#[must_use]
pub fn refusal(body: &ErrorBody) -> Response {
    let status = StatusCode::from_u16(body.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, Json(body)).into_response()
}

/// A body's JSON.
pub(crate) fn encode(body: &ErrorBody) -> Vec<u8> {
    // A body is text and a map with text keys: it can always be written.
    serde_json::to_vec(body).unwrap_or_default()
}
