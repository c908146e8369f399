//! meerkat over the Agent Client Protocol (ACP), version 1: editors as its clients, over newline-delimited stdio.
//!
//! In reading order: `agent` has the methods, `prompt` reads a prompt's blocks, `stream` carries a turn to its end,
//! `updates` makes what a client is shown of our events, `permissions` asks its user about calls, `settings` has the
//! option of a session, `wire` is the framing, `error` the one place where a code becomes an error of the protocol.
//!
//! | method | operations |
//! |---|---|
//! | `initialize` | `capabilities` |
//! | `session/new` | `create_session`; `cwd` is the workspace |
//! | `session/load` | `read`, `follow_events` from the first event to the last, shown as updates; then an open turn |
//! | `session/resume` | the same without what was said |
//! | `session/list` | `list`, and `read` for each folder |
//! | `session/delete` | `delete` |
//! | `session/close` | `interrupt` of this client's turns |
//! | `session/prompt` | `begin_turn`, attended, and `follow` from its acceptance on |
//! | `session/cancel` | `interrupt`, or `cancel_queued` |
//! | `session/set_config_option` | none: how long the model thinks goes with this client's next turns |
//! | `session/request_permission`, to the client | its answer is a `decide_approval` |
//!
//! | event | update |
//! |---|---|
//! | `turn_started`, `steering_entered`, `history_given` | `user_message_chunk`, unless it is the client's own prompt |
//! | `text_delta`, `assistant_message`, `partial_text` | `agent_message_chunk`: each byte once |
//! | `reasoning_delta`, the reasoning of `assistant_message` | `agent_thought_chunk` |
//! | the calls of `assistant_message` | `tool_call` with the place and the change it would make |
//! | `tool_started`, `tool_progress`, `tool_finished` | `tool_call_update` |
//! | `approval_requested` | `session/request_permission`, withdrawn by `$/cancel_request` if it is decided elsewhere |
//! | the context of `assistant_message` | `usage_update` |
//! | `session_updated` | `session_info_update` |
//! | `compaction_started`, `_completed`, `_failed` | `compaction_update`, for clients that show them |
//! | `pruned`, `turn_failed`, `budget_warning`, `retrying` | `notice`, for clients that show them |
//!
//! It must never decide what the service decides, read or write a file, or ask the client to: the tools of a workspace
//! are ours, with their confinement. Nothing but the protocol is written to the output.

mod agent;
mod error;
mod permissions;
mod prompt;
mod settings;
mod stream;
mod updates;
mod wire;

use std::{io, path::Path, sync::Arc};

use meerkat_service::{SessionError, SessionService};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

/// Returns the workspace of a session whose client works in a folder; `None` if sessions have none here.
pub type Workspaces = Arc<dyn Fn(&Path) -> Result<Option<String>, SessionError> + Send + Sync>;

/// Options of the surface.
#[derive(Clone)]
pub struct AcpOptions {
    /// Bytes of one message.
    pub message_bytes: usize,
    /// Decides which folder may be a workspace.
    pub workspaces: Workspaces,
    /// Folders in which the commands of turns look for programs, as in `PATH`.
    pub search_path: Option<String>,
}

/// Serves one client until its input ends, which interrupts no turn, or until `stop` is cancelled, when running turns
/// have ended.
///
/// # Errors
/// If reading or writing fails.
pub async fn serve_io(
    service: Arc<dyn SessionService>,
    options: AcpOptions,
    (reader, writer): (impl AsyncRead + Send + Unpin, impl AsyncWrite + Send + Unpin + 'static),
    stop: CancellationToken,
) -> io::Result<()> {
    wire::serve(agent::Agent::new(service, options), reader, writer, stop).await
}
