//! Tools that the model may run: effect class, approval rule, bounded output.
//!
//! A prompt reaches a file or a process only through a tool that is registered here.

mod changes;
mod client;
mod delegate;
mod form;
mod image;
mod keeper;
mod list;
mod notes;
mod offer;
mod output;
mod plan;
mod registry;
mod rules;
mod schema;
mod search;
mod source;
pub mod test_tools;
mod text;
mod toolbox;
mod work;

use std::path::PathBuf;

use async_trait::async_trait;
use meerkat_errors::{ErrorBody, ErrorCode};
pub use meerkat_words::operators::{ToolServerState, ToolServerView};
pub use meerkat_words::tool::{Access, Approval, Ask, Effect, Form, NAME_BYTES_MAX, Network, TurnAccess, is_name_char};
use tokio_util::sync::CancellationToken;

pub(crate) use changes::is_copy;
pub use changes::{ChangeLog, change_of, content_of_copy};
pub use client::ClientTools;
pub(crate) use delegate::{Delegate, Wanted};
pub use form::{Answer, Asking, Question, complete};
pub use image::{IMAGE_BYTES_MAX, Picture};
pub use keeper::RuleKeeper;
pub(crate) use list::{ENGINE, ListedSession};
pub use notes::WorkspaceNotes;
pub(crate) use offer::Offer;
pub(crate) use output::IMAGES_MAX;
pub use output::{OutputLimits, OutputSink};
pub use plan::Plan;
pub use registry::ToolRegistry;
pub use rules::{ApprovalRules, Rule, shell_commands};
pub use schema::check_schema;
pub(crate) use schema::{check_answer, check_answer_schema, patterns_of};
pub(crate) use search::{SEARCH_TOOLS, SearchTools, is_of_server, names_in};
pub(crate) use source::check_name;
pub use source::{LeftOut, ToolScope, ToolSet, ToolSource};
pub use text::{fenced, is_obeyed, is_unseen, visible};
pub(crate) use text::{prefix, suffix};
pub(crate) use toolbox::Toolbox;

use crate::{
    ids::{SessionId, TurnNumber},
    model::ToolSpec,
    session::message::RawJson,
};

/// Name of the tool by which a model searches memory. Memory takes in neither its calls nor its results.
pub const RECALL_TOOL: &str = "search_project_history";
/// Name of the tool by which a model reads a blob. It is offered only if the context names one.
pub(crate) const READ_BLOB: &str = "read_blob";
/// Name of the tool by which a model pins a fact.
pub(crate) const PIN_FACT: &str = "pin_fact";
/// Name of the tool by which a model starts a sub-agent.
pub(crate) const DELEGATE: &str = "delegate";
/// Bytes of a failure's message; more is cut.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1024;
/// Reason in the error of a call that a tool refused although its arguments are well-formed.
pub(crate) const REFUSED: &str = "refused";

/// Tool that a model may call.
#[async_trait]
pub trait Tool: Send + Sync {
    /// Returns name, description and argument schema.
    fn spec(&self) -> &ToolSpec;

    /// Returns true if [`check_schema`] has accepted its schema, perhaps in a former process: then only a call of it pays for
    /// compiling the schema.
    fn has_checked_schema(&self) -> bool {
        false
    }

    /// Returns what a call does as a rule, for lists of tools; `None` if that depends on its arguments.
    fn usual_plan(&self) -> Option<Plan> {
        None
    }

    /// Plans a call: its effect, and if a person decides on it. The arguments fit the schema. Planning changes nothing;
    /// it may be dropped when the turn is interrupted, and asked for again. An approved call is planned once more before
    /// it runs. By default each call has the usual plan; without that it has an effect, and asks.
    ///
    /// # Errors
    /// Returns the cause if the call cannot run, for the model to read; nobody is asked, and it does not run.
    async fn plan(&self, _invocation: &Invocation) -> Result<Plan, ToolError> {
        Ok(self.usual_plan().unwrap_or_else(|| Plan::once().ask()))
    }

    /// Runs it. Output goes to `output` as it comes; long work watches `invocation.cancel`.
    ///
    /// # Errors
    /// Returns the cause, for the model to read; the turn goes on.
    async fn call(&self, invocation: Invocation, output: &OutputSink) -> Result<(), ToolError>;
}

/// Call of a tool.
#[derive(Clone, Debug)]
pub struct Invocation {
    /// Session of the call.
    pub session_id: SessionId,
    /// Turn of the call.
    pub turn: TurnNumber,
    /// Id of the call.
    pub call_id: String,
    /// Its arguments: a JSON object that the tool decodes.
    pub arguments: RawJson,
    /// Folder that the session works in, if it has one.
    pub workspace: Option<PathBuf>,
    /// True if a person approved the call. It runs only if its plan has the preview that this person was shown.
    pub is_approved: bool,
    /// Folders in which its commands look for programs, as in `PATH`, if the turn has its own.
    pub search_path: Option<String>,
    /// Fires when the call should stop.
    pub cancel: CancellationToken,
}

/// Failure of a call.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ToolError {
    /// Its arguments do not match the schema, which the model is shown.
    #[error("{0}")]
    Arguments(String),
    /// It did not run, and nothing has changed.
    #[error("{0}")]
    Refused(String),
    /// It failed.
    #[error("{0}")]
    Failed(String),
    /// Nobody can tell if it ran: the connection to it was lost. It is never repeated silently.
    #[error("{0}")]
    Unknown(String),
    /// It stopped on request.
    #[error("stopped on request")]
    Cancelled,
    /// Its output passed the hard cap.
    #[error("the output passed {limit} bytes")]
    OutputTooLarge {
        /// The cap in bytes.
        limit: u64,
    },
}

impl ToolError {
    /// Reads a call's arguments into a type.
    ///
    /// # Errors
    /// [`ToolError::Arguments`] with the decoder's error.
    pub fn decode<T: serde::de::DeserializeOwned>(arguments: &RawJson) -> Result<T, Self> {
        arguments.decode().map_err(|error| Self::Arguments(error.to_string()))
    }

    /// Returns the model's text of a call that did not run; with the schema if its arguments do not fit.
    pub(crate) fn why_not_run(&self, schema: &str) -> String {
        match self {
            Self::Arguments(why) => {
                format!("The arguments do not fit, so the tool did not run: {why}. Its schema is: {schema}")
            }
            Self::Refused(_) | Self::Failed(_) | Self::Unknown(_) | Self::Cancelled | Self::OutputTooLarge { .. } => {
                self.to_string()
            }
        }
    }

    /// Returns the error of a call that did not run, whose text is `text`.
    pub(crate) fn not_run_body(&self, text: &str) -> ErrorBody {
        let body = ErrorBody::with_message(ErrorCode::ToolFailed, prefix(text, MESSAGE_BYTES_MAX));
        match self {
            Self::Arguments(_) => body,
            // It counts as no malformed call.
            Self::Refused(_) | Self::Failed(_) | Self::Unknown(_) | Self::Cancelled | Self::OutputTooLarge { .. } => {
                body.detail("reason", REFUSED)
            }
        }
    }
}
