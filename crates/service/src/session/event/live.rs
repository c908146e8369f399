//! The payloads of live events: what is shown in passing.
//!
//! None of them changes a session, and none stands in a journal.

use meerkat_errors::ErrorBody;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::Seq;

/// More of the model's text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TextDelta {
    /// The step within the turn.
    pub step: u32,
    /// The block within the step.
    pub block: u32,
    /// Where in the block's text this piece begins, in bytes.
    pub offset: u64,
    /// The piece.
    pub text: String,
}

/// More of the model's reasoning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReasoningDelta {
    /// The step within the turn.
    pub step: u32,
    /// The block within the step.
    pub block: u32,
    /// Where in the block's text this piece begins, in bytes.
    pub offset: u64,
    /// The piece.
    pub text: String,
}

/// A tool says how far it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ToolProgress {
    /// The call.
    pub call_id: String,
    /// What it says.
    pub text: String,
}

/// A model call failed and will be tried again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Retrying {
    /// The step within the turn.
    pub step: u32,
    /// The calls made so far.
    pub attempt: u32,
    /// How long it waits first.
    pub wait_ms: u64,
    /// Why it failed.
    pub error: ErrorBody,
}

/// Events that are gone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pruned {
    /// The first one.
    pub from: Seq,
    /// The last one.
    pub to: Seq,
}

/// The session is deleted; nothing follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionDeleted {}
