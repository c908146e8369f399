//! HTTP statuses of the listener's refusals, from the table of codes.

use http::StatusCode;
use meerkat_service::ErrorCode;

/// Returns the status of a code.
pub(super) fn status(code: ErrorCode) -> StatusCode {
    StatusCode::from_u16(code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}
