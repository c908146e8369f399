//! The Agent Client Protocol: on standard input and output for the editor that started the process, and on the listener
//! as WebSockets.

#[cfg(not(feature = "acp"))]
mod disabled;
#[cfg(feature = "acp")]
mod enabled;
#[cfg(feature = "acp")]
mod websocket;

use std::{fmt, path::Path, sync::Arc, time::Duration};

use meerkat_service::{SessionError, SessionService, tool::Access};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

#[cfg(not(feature = "acp"))]
pub use self::disabled::acp;
#[cfg(not(feature = "acp"))]
pub(crate) use self::disabled::{IS_BUILT, upgrade};
#[cfg(feature = "acp")]
pub use self::enabled::acp;
#[cfg(feature = "acp")]
pub(crate) use self::enabled::{IS_BUILT, upgrade};

/// Returns the workspace of a session whose client works in a folder; `None` if sessions have none here.
pub(crate) type Workspaces = Arc<dyn Fn(&Path) -> Result<Option<String>, SessionError> + Send + Sync>;

/// Options of the Agent Client Protocol.
#[derive(Clone)]
pub struct AcpOptions {
    /// Bytes of one message.
    pub message_bytes: usize,
    /// Decides which folder may be a workspace.
    pub workspaces: Workspaces,
    /// What the tools of a workspace may do: no mode of a session allows more.
    pub access: Access,
    /// Whether there is the mode that asks only as configured.
    pub has_full: bool,
    /// Models that a client may choose, the one of new sessions first.
    pub models: Vec<String>,
    /// Folders in which the commands of turns look for programs, as in `PATH`.
    pub search_path: Option<String>,
}

impl AcpOptions {
    /// True if this build has the protocol.
    pub const IS_BUILT: bool = IS_BUILT;
}

impl fmt::Debug for AcpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcpOptions").field("access", &self.access).field("models", &self.models).finish_non_exhaustive()
    }
}

/// The protocol on a listener.
pub(crate) struct Acp {
    pub(crate) service: Arc<dyn SessionService>,
    pub(crate) options: AcpOptions,
    /// After this time without a byte, the client of a WebSocket is asked if it is there.
    pub(crate) silence: Duration,
    /// Ends the WebSockets, when running turns have ended.
    pub(crate) stop: CancellationToken,
    pub(crate) websockets: TaskTracker,
}
