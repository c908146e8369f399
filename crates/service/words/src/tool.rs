//! Properties of a tool in events and in the configuration.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Effect of running a call again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// It changes nothing.
    ReadOnly,
    /// Twice changes no more than once.
    Idempotent,
    /// It must not happen twice: its intent is durable before it runs, and it runs alone.
    Once,
}

/// Need of a decision before a call runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Approval {
    /// The call runs.
    Allow,
    /// The call waits for a decision.
    Ask,
    /// The call does not run.
    Deny,
}

/// Longest name of a tool that every vendor takes.
pub const NAME_BYTES_MAX: usize = 64;

/// Checks if every vendor takes the character in a tool's name.
#[must_use]
pub const fn is_name_char(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_' || character == '-'
}
