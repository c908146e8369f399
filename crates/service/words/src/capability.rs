//! The optional parts of the service. Which of them a build has, the engine says.

/// An optional part of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Capability {
    /// Sessions outlive their process.
    SessionStore,
    /// What was said can be searched.
    MemoryStore,
    /// Long contexts are compacted.
    SessionCompaction,
}
