//! Tools: what the model may run, with its effect class, approval rule and bounded output.
//!
//! Nothing that a prompt says reaches a file or a process except through a tool that is registered here.

mod output;
mod registry;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

pub use output::{OutputLimits, OutputSink};
pub(crate) use output::{prefix, suffix};
pub use registry::ToolRegistry;
pub(crate) use registry::{NAME_BYTES_MAX, is_of_name};

use crate::{
    ids::{SessionId, TurnNumber},
    model::ToolSpec,
    session::message::RawJson,
};

/// A tool that a model may call.
#[async_trait]
pub trait Tool: Send + Sync {
    /// Name, description and argument schema.
    fn spec(&self) -> &ToolSpec;

    /// What running it twice would do.
    fn effect(&self) -> Effect;

    /// Whether a person is asked first. The configuration may override it.
    fn approval(&self) -> Approval {
        Approval::Allow
    }

    /// Runs it. Output goes to `output` as it comes; long work watches `invocation.cancel`.
    ///
    /// # Errors
    /// What went wrong, for the model to read; the turn goes on.
    async fn call(&self, invocation: Invocation, output: &OutputSink) -> Result<(), ToolError>;
}

/// One call of a tool.
#[derive(Clone, Debug)]
pub struct Invocation {
    /// The session it runs for.
    pub session_id: SessionId,
    /// The turn it runs in.
    pub turn: TurnNumber,
    /// The call's name.
    pub call_id: String,
    /// Its arguments: a JSON object that the tool decodes.
    pub arguments: RawJson,
    /// Fires when the call should stop.
    pub cancel: CancellationToken,
}

/// What running a call again would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// It changes nothing.
    ReadOnly,
    /// Twice is the same as once.
    Idempotent,
    /// It must not happen twice: its intent is durable before it runs, and it runs alone.
    Once,
}

/// Whether a call needs a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Approval {
    /// It runs.
    Allow,
    /// It waits for a decision.
    Ask,
    /// It does not run.
    Deny,
}

/// Why a call did not do what it was meant to.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ToolError {
    /// Its arguments are not what the schema says; the model is shown the schema.
    #[error("{0}")]
    Arguments(String),
    /// It failed.
    #[error("{0}")]
    Failed(String),
    /// It stopped because it was asked to.
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
    /// [`ToolError::Arguments`] with what the decoder found.
    pub fn decode<T: serde::de::DeserializeOwned>(arguments: &RawJson) -> Result<T, Self> {
        arguments.decode().map_err(|error| Self::Arguments(error.to_string()))
    }
}
