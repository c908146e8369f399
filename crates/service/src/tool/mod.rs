//! Tools that the model may run: effect class, approval rule, bounded output.
//!
//! A prompt reaches a file or a process only through a tool that is registered here.

mod keeper;
mod output;
mod plan;
mod registry;
pub mod test_tools;

use std::path::PathBuf;

use async_trait::async_trait;
pub use meerkat_words::tool::{Approval, Effect};
use tokio_util::sync::CancellationToken;

pub use keeper::RuleKeeper;
pub use output::{OutputLimits, OutputSink};
pub(crate) use output::{prefix, suffix};
pub use plan::Plan;
pub use registry::ToolRegistry;

use crate::{
    ids::{SessionId, TurnNumber},
    model::ToolSpec,
    session::message::RawJson,
};

/// Name of the tool by which a model searches memory. Memory takes in neither its calls nor its results.
pub const RECALL_TOOL: &str = "search_project_history";
/// Name of the tool by which a model reads a blob. It is offered only if the context names one.
pub(crate) const READ_BLOB: &str = "read_blob";

/// Tool that a model may call.
#[async_trait]
pub trait Tool: Send + Sync {
    /// Returns name, description and argument schema.
    fn spec(&self) -> &ToolSpec;

    /// Returns the effect of running it twice.
    fn effect(&self) -> Effect;

    /// Returns its approval rule. The configuration may override it.
    fn approval(&self) -> Approval {
        Approval::Allow
    }

    /// Returns what a call would do. The arguments fit the schema. It changes nothing, and may be asked again.
    ///
    /// # Errors
    /// Returns the cause if the call cannot run, for the model to read; nobody is asked, and it does not run.
    async fn plan(&self, _invocation: &Invocation) -> Result<Plan, ToolError> {
        Ok(Plan::new(self.effect(), self.approval()))
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
}
