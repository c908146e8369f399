//! Optional parts of the service. The engine knows which of them the build has.

/// Optional part of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Capability {
    /// Stores sessions beyond their process.
    SessionStore,
    /// Searches the texts of sessions.
    MemoryStore,
    /// Compacts long contexts.
    SessionCompaction,
}

impl Capability {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::SessionStore, Self::MemoryStore, Self::SessionCompaction];
}
