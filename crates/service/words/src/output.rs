//! Answers by a schema: what a turn asks for, and what was wrong with an answer.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    SessionError,
    message::RawJson,
    tool::{NAME_BYTES_MAX, is_name_char},
};

/// Name of the tool by whose call a model answers that has no mode for a schema, and of an answer without a name of its
/// own. No other tool may have it.
pub const ANSWER_TOOL: &str = "answer";
/// Description of that tool.
pub const ANSWER_TOOL_DESCRIPTION: &str = "Gives your final answer and ends the turn. Call it alone and once, when nothing \
                                           else is left to do; its arguments are the answer.";

/// Schema that a turn's answer must fit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputSpec {
    /// JSON Schema of an object, at most 64 KiB.
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    pub schema: RawJson,
    /// Name of the answer for the model's vendor; `answer` if `null`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9_-]{1,64}$"))]
    pub name: Option<String>,
    /// How often an answer that does not fit goes back to the model; then the turn fails.
    #[serde(default = "default_repairs")]
    #[schemars(range(max = 5))]
    pub repairs: u8,
}

const fn default_repairs() -> u8 {
    2
}

impl OutputSpec {
    /// Most times that an answer may go back to the model.
    const REPAIRS_MAX: u8 = 5;

    /// Asks for an answer by a schema, with the other settings at their defaults.
    #[must_use]
    pub const fn new(schema: RawJson) -> Self {
        Self { schema, name: None, repairs: default_repairs() }
    }

    /// Returns its name for the model's vendor.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(ANSWER_TOOL)
    }

    /// Checks all but the schema itself, which the engine compiles.
    ///
    /// # Errors
    /// `INVALID_REQUEST` with the field that is not allowed.
    pub fn check(&self) -> Result<(), SessionError> {
        let is_name = |name: &str| (1..=NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(is_name_char);
        if !self.name.as_deref().is_none_or(is_name) {
            let message = format!("a name has 1 to {NAME_BYTES_MAX} letters, digits, '_' or '-'");
            return Err(SessionError::invalid("output.name", message));
        }
        if self.repairs > Self::REPAIRS_MAX {
            let message = format!("an answer goes back to the model at most {} times", Self::REPAIRS_MAX);
            return Err(SessionError::invalid("output.repairs", message));
        }
        Ok(())
    }
}

/// Error in an answer, at one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputError {
    /// The place, as a JSON Pointer; empty for the whole answer.
    pub path: String,
    /// What does not fit, without the values.
    pub message: String,
}

impl fmt::Display for OutputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, message } = self;
        if path.is_empty() { f.write_str(message) } else { write!(f, "{path}: {message}") }
    }
}
