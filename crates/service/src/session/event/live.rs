//! Payloads of live events, which are shown and not stored. None of them changes a session.

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
    /// Position of this piece in the block's text, in bytes.
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
    /// Position of this piece in the block's text, in bytes.
    pub offset: u64,
    /// The piece.
    pub text: String,
}

/// A tool reports progress.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ToolProgress {
    /// The call.
    pub call_id: String,
    /// The report.
    pub text: String,
}

/// A model call failed and will be tried again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Retrying {
    /// The step within the turn.
    pub step: u32,
    /// Calls so far.
    pub attempt: u32,
    /// Wait before the next call, in milliseconds.
    pub wait_ms: u64,
    /// The failure.
    pub error: ErrorBody,
}

/// Events were dropped, or cannot be read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pruned {
    /// The first one.
    pub from: Seq,
    /// The last one.
    pub to: Seq,
    /// Why they are missing, if they were not dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<PrunedReason>,
}

/// Reason why events are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PrunedReason {
    /// The journal is damaged there, and the caller passes over damage.
    Damage,
}

/// The session is deleted; nothing follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionDeleted {}
