//! Build without `acp`: says so.

use std::sync::Arc;

use meerkat_service::{SessionError, SessionService};
use tokio_util::sync::CancellationToken;

use super::AcpOptions;

/// Refuses, because this build has no Agent Client Protocol.
///
/// # Errors
/// Always.
#[expect(clippy::unused_async, reason = "with `acp` it serves")]
pub async fn acp(_: Arc<dyn SessionService>, _: AcpOptions, _: CancellationToken) -> Result<(), SessionError> {
    let message = "this build does not speak the Agent Client Protocol; use one with the feature `acp`";
    Err(SessionError::invalid("acp", message))
}
