//! Plan of a call: its effect and approval, known before it runs.

use std::time::Duration;

use super::{Approval, Effect};
use crate::session::event::ChangedFile;

/// What a call with certain arguments would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Effect of running the call twice.
    pub effect: Effect,
    /// The tool's own approval rule for the call. Rules of the configuration and of the session come first.
    pub approval: Approval,
    /// True if no rule allows the call: a person decides each time.
    pub always_asks: bool,
    /// Text for the person who is asked: a diff, or a command. An approved call runs only while its preview is the same,
    /// so it says what the call would do, and nothing that changes by itself.
    pub preview: Option<String>,
    /// Texts that a rule `name: pattern` is matched with: the words of each command, separated by single spaces. A call
    /// without one matches no such rule.
    pub subjects: Vec<String>,
    /// Rule that allows further calls like this one: `shell: cargo test *`. Without one the call can be allowed once
    /// only.
    pub rule: Option<String>,
    /// Time that the call may take, if it is not that of `tools.timeout_ms`.
    pub timeout: Option<Duration>,
    /// Files that the call would change. They are recorded before it starts, so that they can be put back even if the
    /// process is killed meanwhile.
    pub files: Vec<ChangedFile>,
}

impl Plan {
    /// Makes a plan of a call that has nothing special.
    #[must_use]
    pub const fn new(effect: Effect, approval: Approval) -> Self {
        Self {
            effect,
            approval,
            always_asks: false,
            preview: None,
            subjects: Vec::new(),
            rule: None,
            timeout: None,
            files: Vec::new(),
        }
    }

    /// Plans a call that changes nothing and needs no approval.
    #[must_use]
    pub const fn read_only() -> Self {
        Self::new(Effect::ReadOnly, Approval::Allow)
    }

    /// Plans a call that changes no more if it happens twice, and needs no approval.
    #[must_use]
    pub const fn idempotent() -> Self {
        Self::new(Effect::Idempotent, Approval::Allow)
    }

    /// Plans a call that must not happen twice, and needs no approval.
    #[must_use]
    pub const fn once() -> Self {
        Self::new(Effect::Once, Approval::Allow)
    }

    /// Makes the call wait for a decision.
    #[must_use]
    pub fn ask(self) -> Self {
        Self { approval: Approval::Ask, ..self }
    }

    /// Denies the call unless the configuration allows it.
    #[must_use]
    pub fn deny(self) -> Self {
        Self { approval: Approval::Deny, ..self }
    }
}
