//! What is said of a tool in events and in the configuration.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

/// The longest name of a tool, which is what every vendor takes.
pub const NAME_BYTES_MAX: usize = 64;

/// Whether a tool's name may hold it: every vendor takes it.
#[must_use]
pub const fn is_of_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_' || character == '-'
}
