//! meerkat over the Agent Client Protocol (ACP), version 1: editors as its clients, over lines or any other stream of
//! messages.
//!
//! In reading order: `agent` has the methods, `prompt` reads a prompt's blocks, `stream` carries a turn to its end,
//! `updates` makes what a client is shown of our events, `permissions` asks its user about calls, `settings` has the
//! options of a session, `wire` has the requests both ways, `error` is the one place where a code becomes an error of the
//! protocol.
//!
//! | method | operations |
//! |---|---|
//! | `initialize` | `capabilities` |
//! | `session/new` | `create_session`; `cwd` is the workspace |
//! | `session/load`, `session/resume` | `read`, `follow_events` to the last event, shown or not; then an open turn |
//! | `session/list`, `session/delete` | `list`, and `read` for each folder; `delete` |
//! | `session/close` | `interrupt` of this client's turns |
//! | `session/prompt` | `begin_turn`, attended, and `follow` from its acceptance on; `compact` for `/compact` |
//! | `session/cancel` | `interrupt`, or `cancel_queued` |
//! | `session/set_mode`, `session/set_config_option` | none: they go with this client's next turns |
//! | `session/request_permission`, `elicitation/create`, to the client | the answer is a `decide_approval` |
//!
//! | event | update |
//! |---|---|
//! | `turn_started`, `steering_entered`, `history_given` | `user_message_chunk`, unless it is the client's own prompt |
//! | `text_delta`, `assistant_message`, `partial_text` | `agent_message_chunk`: each byte once |
//! | `reasoning_delta`, the reasoning of `assistant_message` | `agent_thought_chunk` |
//! | the calls of `assistant_message` | `tool_call` with the place and the change it would make |
//! | `tool_started`, `tool_progress`, `tool_finished` | `tool_call_update` |
//! | `approval_requested` | a question to the client, withdrawn by `$/cancel_request` if it is decided elsewhere |
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

pub use wire::serve;

use std::{io, path::Path, sync::Arc};

use futures::{Sink, Stream, sink, stream::try_unfold};
use meerkat_service::{
    SessionError,
    tool::Access,
    wire::{Line, read_line},
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};

/// Returns the workspace of a session whose client works in a folder; `None` if sessions have none here.
pub type Workspaces = Arc<dyn Fn(&Path) -> Result<Option<String>, SessionError> + Send + Sync>;

/// Options of the surface.
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
    /// Models that a client may choose, the one of new sessions first; if there are none, it has no choice.
    pub models: Vec<String>,
    /// Folders in which the commands of turns look for programs, as in `PATH`.
    pub search_path: Option<String>,
}

/// Makes the messages of a client that writes and reads lines, each of which is one.
pub fn lines(
    reader: impl AsyncRead + Unpin,
    writer: impl AsyncWrite + Send + Unpin + 'static,
    message_bytes: usize,
) -> (impl Stream<Item = io::Result<Line>>, impl Sink<Option<String>, Error = io::Error> + Send + 'static) {
    let messages = try_unfold(BufReader::new(reader), move |mut reader| async move {
        Ok(read_line(&mut reader, message_bytes).await?.map(|line| (line, reader)))
    });
    let sink = sink::unfold(writer, |mut writer, message: Option<String>| async move {
        match message {
            Some(message) => writer.write_all(format!("{message}\n").as_bytes()).await?,
            None => writer.shutdown().await?,
        }
        writer.flush().await.map(|()| writer)
    });
    (messages, sink)
}
