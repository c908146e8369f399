//! Where a request's tokens went.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Estimated tokens of a request, by what they are for. Together with `free` they are the model's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ContextTokens {
    /// The system prompt.
    pub system: u64,
    /// The definitions of the tools.
    pub tools: u64,
    /// The reminders.
    pub reminders: u64,
    /// The pins.
    pub pins: u64,
    /// The summary and the messages, without results of tools.
    pub history: u64,
    /// The results of tools.
    pub tool_results: u64,
    /// The rest of the window, which the answer comes out of; `null` if the window is not known.
    pub free: Option<u64>,
}

impl ContextTokens {
    /// Sets `free` to the rest of a window; a window of 0 is not known.
    pub(crate) fn within(self, window_tokens: u64) -> Self {
        let Self { system, tools, reminders, pins, history, tool_results, .. } = self;
        let used = system + tools + reminders + pins + history + tool_results;
        Self { free: (window_tokens > 0).then(|| window_tokens.saturating_sub(used)), ..self }
    }
}
