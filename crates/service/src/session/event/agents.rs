//! Events about sub-agents.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ids::SessionId, options::Budgets};

/// A call starts a sub-agent. It is recorded before anything of the sub-agent is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DelegateStarted {
    /// The call.
    pub call_id: String,
    /// The sub-agent's session.
    pub child: SessionId,
    /// What is kept for the sub-agent out of the turn's budgets; its result brings back the rest.
    pub reserved: Budgets,
    /// The agent that it is, as its file said when the call started; absent if the call names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Arc<Agent>>,
}

/// Agent that a person described in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Agent {
    /// Its name.
    pub name: String,
    /// Tools that it may use; if absent, all that the session may use that calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Its model; if absent, that of the turn that calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Its system prompt.
    pub prompt: String,
}
