//! The Agent Client Protocol on standard input and output, for the editor that started the process.

#[cfg(not(feature = "acp"))]
mod disabled;
#[cfg(feature = "acp")]
mod enabled;

use std::{path::Path, sync::Arc};

use meerkat_service::SessionError;

#[cfg(not(feature = "acp"))]
pub use self::disabled::acp;
#[cfg(feature = "acp")]
pub use self::enabled::acp;

/// Returns the workspace of a session whose client works in a folder; `None` if sessions have none here.
pub(crate) type Workspaces = Arc<dyn Fn(&Path) -> Result<Option<String>, SessionError> + Send + Sync>;

/// Options of the Agent Client Protocol.
pub struct AcpOptions {
    /// Bytes of one message.
    pub message_bytes: usize,
    /// Decides which folder may be a workspace.
    pub workspaces: Workspaces,
    /// Folders in which the commands of turns look for programs, as in `PATH`.
    pub search_path: Option<String>,
}
