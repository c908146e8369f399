//! Build without `acp`: says so.

use std::sync::Arc;

use axum::body::Body;
use http::{Request, Response};
use meerkat_service::{SessionError, SessionService};
use tokio_util::sync::CancellationToken;

use super::{Acp, AcpOptions};

/// True if the protocol is built in.
pub(crate) const IS_BUILT: bool = false;

fn absent() -> SessionError {
    let message = "this build does not speak the Agent Client Protocol; use one with the feature `acp`";
    SessionError::invalid("acp", message)
}

/// Refuses, because this build has no Agent Client Protocol.
///
/// # Errors
/// Always.
#[expect(clippy::unused_async, reason = "with `acp` it serves")]
pub async fn acp(_: Arc<dyn SessionService>, _: AcpOptions, _: CancellationToken) -> Result<(), SessionError> {
    Err(absent())
}

/// Refuses a WebSocket.
pub(crate) fn upgrade<B>(_: &Acp, _: Request<B>) -> Response<Body> {
    crate::listen::refusal(&absent().body())
}
