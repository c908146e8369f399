//! Sub-agents: which call a session comes from, and what such sessions used.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    cost::Cost,
    ids::{SessionId, TurnNumber},
};

/// Call of another session by which a session was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Parent {
    /// The session that called.
    pub session_id: SessionId,
    /// Its turn.
    pub turn: TurnNumber,
    /// The call.
    pub call_id: String,
}

/// Place of a session in a tree of sessions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Descent {
    /// The call that started it.
    pub parent: Parent,
    /// The session at the top of the tree.
    pub root: SessionId,
    /// Its distance from the top.
    pub depth: u64,
}

/// What sub-agents used, together with theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Delegated {
    /// Sub-agents.
    pub agents: u64,
    /// Model calls that answered.
    pub steps: u64,
    /// Tool calls.
    pub tool_calls: u64,
    /// Tokens.
    pub tokens: u64,
    /// Cost; absent if that of a part is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
}

impl Delegated {
    /// Nothing was used.
    pub const NOTHING: Self = Self { agents: 0, steps: 0, tool_calls: 0, tokens: 0, cost: Some(Cost::from_micros(0)) };

    /// Adds up.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            agents: self.agents.saturating_add(other.agents),
            steps: self.steps.saturating_add(other.steps),
            tool_calls: self.tool_calls.saturating_add(other.tool_calls),
            tokens: self.tokens.saturating_add(other.tokens),
            cost: Cost::sum(self.cost, other.cost),
        }
    }
}
