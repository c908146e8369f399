//! Capabilities of this build and configuration, and the one function that reports a missing one.
//!
//! No other file turns an absent capability into an error.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use meerkat_words::Capability;

use crate::{SessionError, operation::Operation};

/// Presence of a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The service has it.
    Present,
    /// The build has it; the configuration switched it off.
    SwitchedOff,
    /// The build lacks it.
    NotBuilt,
}

/// Capabilities of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    session_store: Presence,
    memory_store: Presence,
    session_compaction: Presence,
    keeps_rules: bool,
}

impl Capabilities {
    /// Returns the capabilities of this build.
    #[must_use]
    pub const fn compiled() -> Self {
        Self {
            session_store: if cfg!(feature = "session-store") { Presence::Present } else { Presence::NotBuilt },
            memory_store: if cfg!(feature = "memory-store") { Presence::Present } else { Presence::NotBuilt },
            session_compaction: if cfg!(feature = "session-compaction") {
                Presence::Present
            } else {
                Presence::NotBuilt
            },
            keeps_rules: false,
        }
    }

    /// Switches persistence off, if it is present.
    #[must_use]
    pub const fn without_store(mut self) -> Self {
        if matches!(self.session_store, Presence::Present) {
            self.session_store = Presence::SwitchedOff;
        }
        self
    }

    /// Switches memory off, if it is present.
    #[must_use]
    pub const fn without_memory(mut self) -> Self {
        if matches!(self.memory_store, Presence::Present) {
            self.memory_store = Presence::SwitchedOff;
        }
        self
    }

    /// Says whether a decision on any surface may keep its rule for always.
    #[must_use]
    pub const fn with_kept_rules(mut self, keeps_rules: bool) -> Self {
        self.keeps_rules = keeps_rules;
        self
    }

    /// Returns a capability's presence.
    #[must_use]
    pub const fn presence(&self, capability: Capability) -> Presence {
        match capability {
            Capability::SessionStore => self.session_store,
            Capability::MemoryStore => self.memory_store,
            Capability::SessionCompaction => self.session_compaction,
        }
    }

    /// Restores the capabilities of another process from its view.
    #[must_use]
    pub fn of_view(view: &CapabilitiesView) -> Self {
        let presence = |is_there, builds: &[&str]| match (is_there, builds.contains(&view.build.as_str())) {
            (true, _) => Presence::Present,
            (false, true) => Presence::SwitchedOff,
            (false, false) => Presence::NotBuilt,
        };
        Self {
            session_store: presence(view.session_store, &["B", "E", "F", "BD"]),
            memory_store: presence(view.memory_store, &["C", "E", "F", "CD"]),
            session_compaction: presence(view.session_compaction, &["D", "F", "BD", "CD"]),
            keeps_rules: view.keeps_rules,
        }
    }

    /// Checks that a capability is present.
    ///
    /// # Errors
    /// The capability's code if it is not.
    pub const fn require(&self, capability: Capability) -> Result<(), SessionError> {
        let configured = match self.presence(capability) {
            Presence::Present => return Ok(()),
            Presence::SwitchedOff => true,
            Presence::NotBuilt => false,
        };
        Err(match capability {
            Capability::SessionStore => SessionError::PersistenceDisabled { configured },
            Capability::MemoryStore => SessionError::MemoryDisabled { configured },
            Capability::SessionCompaction => SessionError::CompactionDisabled,
        })
    }

    /// Checks that the capability is present that an operation needs. Every surface asks this before it looks at anything
    /// else of a request.
    ///
    /// # Errors
    /// The capability's code if it is not.
    pub fn admit(&self, operation: Operation) -> Result<(), SessionError> {
        operation.needs().map_or(Ok(()), |needed| self.require(needed))
    }

    /// Returns the answer of `capabilities`. A capability that is switched off counts as absent, but not for the
    /// build's name.
    #[must_use]
    pub fn view(&self) -> CapabilitiesView {
        let has = |capability| self.presence(capability) == Presence::Present;
        let built = |capability| self.presence(capability) != Presence::NotBuilt;
        let build = match (
            built(Capability::SessionStore),
            built(Capability::MemoryStore),
            built(Capability::SessionCompaction),
        ) {
            (false, false, false) => "A",
            (true, false, false) => "B",
            (false, true, false) => "C",
            (false, false, true) => "D",
            (true, true, false) => "E",
            (true, true, true) => "F",
            (true, false, true) => "BD",
            (false, true, true) => "CD",
        };
        CapabilitiesView {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            build: build.to_owned(),
            session_store: has(Capability::SessionStore),
            memory_store: has(Capability::MemoryStore),
            session_compaction: has(Capability::SessionCompaction),
            keeps_rules: self.keeps_rules,
        }
    }
}

/// The answer of `capabilities`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CapabilitiesView {
    /// The version of meerkat.
    pub version: String,
    /// The build: one of A to F, BD, CD.
    pub build: String,
    /// Whether sessions outlive their process.
    pub session_store: bool,
    /// Whether what was said can be searched.
    pub memory_store: bool,
    /// Whether long contexts are compacted.
    pub session_compaction: bool,
    /// Whether an approval with the scope `always` is accepted (`tools.remember`).
    #[serde(default)]
    pub keeps_rules: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_says_all_of_it() {
        let all = Capabilities::compiled();
        let views = [all, all.without_store(), all.without_memory(), all.without_store().without_memory()];
        for own in views.into_iter().chain([all.with_kept_rules(true)]) {
            assert_eq!(Capabilities::of_view(&own.view()), own);
        }
    }
}
