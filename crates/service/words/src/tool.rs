//! Properties of a tool in events and in the configuration.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::message::RawJson;

/// Question of a tool server to a person, asked while its call runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Form {
    /// The call during which it is asked.
    pub call_id: String,
    /// Server that asks.
    pub server: String,
    /// Its question. It is the server's text, and may be untrue.
    pub message: String,
    /// JSON Schema of the answer: an object of texts, numbers, booleans and choices.
    pub schema: RawJson,
}

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

/// What the tools of a workspace may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Nothing: there are no such tools.
    Off,
    /// Read files.
    Read,
    /// Read and change files, and run commands.
    #[default]
    Write,
}

/// Calls of a workspace's tools that need a decision, if no rule says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// All calls.
    Always,
    /// Calls that change a file or run a command.
    #[default]
    Changes,
    /// Calls that change a file, and commands that are not confined fully or want the network or the repository.
    Escapes,
    /// None, but for a command that nothing confines.
    Never,
}

/// What the calls of one turn may do, if that is less than the configuration allows. The least comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TurnAccess {
    /// They change nothing: any other call is refused.
    Read,
    /// A call that may change something needs a decision, unless a rule allows it.
    Ask,
}

/// Use of the machine's network by a workspace's commands. That of their session they always have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// No command may use it.
    Deny,
    /// A command that asks for it needs a decision.
    #[default]
    Ask,
    /// Every command may use it.
    Allow,
}

/// Longest name of a tool that every vendor takes.
pub const NAME_BYTES_MAX: usize = 64;

/// Checks if every vendor takes the character in a tool's name.
#[must_use]
pub const fn is_name_char(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_' || character == '-'
}
