//! Capabilities of this build and configuration, and the one function that reports a missing one.
//!
//! No other file turns an absent capability into an error.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use meerkat_words::{Absence, Capability};

use crate::{SessionError, operation::Operation};

/// Presence of a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The service has it.
    Present,
    /// The service lacks it.
    Absent(Absence),
}

impl Presence {
    const fn of_build(is_built: bool) -> Self {
        if is_built { Self::Present } else { Self::Absent(Absence::NotBuilt) }
    }

    /// What the build has is absent for this reason.
    const fn without(self, absence: Absence) -> Self {
        if matches!(self, Self::Present) { Self::Absent(absence) } else { self }
    }
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
            session_store: Presence::of_build(cfg!(feature = "session-store")),
            memory_store: Presence::of_build(cfg!(feature = "memory-store")),
            session_compaction: Presence::of_build(cfg!(feature = "session-compaction")),
            keeps_rules: false,
        }
    }

    /// Takes persistence away for this reason, if it is present.
    #[must_use]
    pub const fn without_store(mut self, absence: Absence) -> Self {
        self.session_store = self.session_store.without(absence);
        self
    }

    /// Takes memory away for this reason, if it is present.
    #[must_use]
    pub const fn without_memory(mut self, absence: Absence) -> Self {
        self.memory_store = self.memory_store.without(absence);
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
        let presence = |is_there, capability, builds: &[&str]| {
            if is_there {
                return Presence::Present;
            }
            Presence::Absent(if !builds.contains(&view.build.as_str()) {
                Absence::NotBuilt
            } else if view.not_set.iter().any(|name| name == name_of(capability)) {
                Absence::NotSet
            } else {
                Absence::SwitchedOff
            })
        };
        Self {
            session_store: presence(view.session_store, Capability::SessionStore, &["B", "E", "F", "BD"]),
            memory_store: presence(view.memory_store, Capability::MemoryStore, &["C", "E", "F", "CD"]),
            session_compaction: presence(
                view.session_compaction,
                Capability::SessionCompaction,
                &["D", "F", "BD", "CD"],
            ),
            keeps_rules: view.keeps_rules,
        }
    }

    /// Checks that a capability is present.
    ///
    /// # Errors
    /// The capability's code if it is not.
    pub const fn require(&self, capability: Capability) -> Result<(), SessionError> {
        let Presence::Absent(absence) = self.presence(capability) else { return Ok(()) };
        Err(match capability {
            Capability::SessionStore => SessionError::PersistenceDisabled { absence },
            Capability::MemoryStore => SessionError::MemoryDisabled { absence },
            Capability::SessionCompaction => SessionError::CompactionDisabled,
        })
    }

    /// Checks that the capability is present that an operation needs. Every surface asks this before it looks at anything
    /// else of a request. A compaction that a request asks for is another matter: it is checked when the request is
    /// decoded.
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
        let built = |capability| self.presence(capability) != Presence::Absent(Absence::NotBuilt);
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
            not_set: Capability::ALL
                .into_iter()
                .filter(|capability| self.presence(*capability) == Presence::Absent(Absence::NotSet))
                .map(|capability| name_of(capability).to_owned())
                .collect(),
        }
    }
}

/// The field of a capability in the answer of `capabilities`.
const fn name_of(capability: Capability) -> &'static str {
    match capability {
        Capability::SessionStore => "session_store",
        Capability::MemoryStore => "memory_store",
        Capability::SessionCompaction => "session_compaction",
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
    /// Of the absent ones, those that the build has and a Rust program has set none of: `session_store`, `memory_store`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_set: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each begins as the specification's text does, and says what to do.
    #[tokio::test]
    async fn a_program_that_sets_no_store_and_no_memory_reads_what_to_set() {
        let agent = crate::AgentBuildConfig::new().build().unwrap();
        let mut unremembered = crate::options::EngineOptions::default();
        unremembered.memory.enabled = false;
        let off = crate::AgentBuildConfig::new().options(unremembered).ephemeral().build().unwrap();
        let texts = |agent: &crate::Agent| {
            [Capability::SessionStore, Capability::MemoryStore].map(|capability| {
                let error = agent.service().capabilities().require(capability).unwrap_err();
                (error.to_string(), error.body().details["reason"].as_str().unwrap().to_owned())
            })
        };
        let due = |text: &str, reason: &str| (text.to_owned(), reason.to_owned());
        assert_eq!(
            texts(&agent),
            [
                due(
                    "Session persistence is disabled (AgentBuildConfig has no store; set one with `.store(…)`).",
                    "not_set"
                ),
                due(
                    "Semantic memory is disabled (AgentBuildConfig has no memory; set one with `.memory(…)`).",
                    "not_set"
                ),
            ]
        );
        assert_eq!(
            texts(&off),
            [
                due("Session persistence is disabled (store.enabled = false).", "configured"),
                due("Semantic memory is disabled (memory.enabled = false).", "configured"),
            ]
        );
    }

    /// In every build there may be, whatever is switched off or not set in it.
    #[test]
    fn a_view_says_all_of_it() {
        let (off, not_set) = (Presence::Absent(Absence::SwitchedOff), Presence::Absent(Absence::NotSet));
        let any = [Presence::Present, Presence::Absent(Absence::NotBuilt), off, not_set];
        let mut builds = std::collections::BTreeSet::new();
        for session_store in any {
            for memory_store in any {
                for session_compaction in any.into_iter().take(2) {
                    for keeps_rules in [false, true] {
                        let own = Capabilities { session_store, memory_store, session_compaction, keeps_rules };
                        let view = own.view();
                        assert_eq!(Capabilities::of_view(&view), own, "{view:?}");
                        builds.insert(view.build);
                    }
                }
            }
        }
        assert_eq!(builds.into_iter().collect::<Vec<_>>(), ["A", "B", "BD", "C", "CD", "D", "E", "F"]);
    }
}
