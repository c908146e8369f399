//! Events about sub-agents.

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
}
