//! Build with `acp`.

use std::sync::Arc;

use meerkat_service::{SessionError, SessionService};
use tokio_util::sync::CancellationToken;

use super::AcpOptions;

/// Speaks the Agent Client Protocol until the input ends or `stop` is cancelled.
///
/// # Errors
/// If reading or writing fails.
pub async fn acp(
    service: Arc<dyn SessionService>,
    options: AcpOptions,
    stop: CancellationToken,
) -> Result<(), SessionError> {
    let AcpOptions { message_bytes, workspaces, search_path } = options;
    let options = meerkat_surface_acp::AcpOptions { message_bytes, workspaces, search_path };
    let served = meerkat_surface_acp::serve_io(service, options, (tokio::io::stdin(), tokio::io::stdout()), stop);
    served.await.map_err(|error| SessionError::Internal(format!("standard input or output failed: {error}")))
}
