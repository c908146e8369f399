//! Where a refusal of the listener becomes an HTTP status: read from the table.

use http::StatusCode;
use meerkat_service::ErrorCode;

/// The status of a code.
pub(super) fn status(code: ErrorCode) -> StatusCode {
    StatusCode::from_u16(code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}
