//! Decisions of a person on a call, and how far they go.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Decision on a call that needs approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// The call may run.
    Approve,
    /// The call may not run.
    Deny,
}

/// Extent of an approval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// This call.
    #[default]
    Once,
    /// This call, and every later call in the session that the call's rule matches.
    Session,
    /// As `session`, and kept in the configuration for all sessions.
    Always,
}

impl Scope {
    /// Returns true if it is one call.
    #[must_use]
    pub const fn is_once(&self) -> bool {
        matches!(self, Self::Once)
    }

    /// Its name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Session => "session",
            Self::Always => "always",
        }
    }
}
