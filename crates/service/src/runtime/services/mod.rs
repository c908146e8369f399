//! The two services. Both have every operation, over one engine: what an operation needs, the engine's capabilities say.

#[cfg(not(feature = "session-store"))]
mod absent;
#[cfg(feature = "session-store")]
mod stored;

#[cfg(not(feature = "session-store"))]
pub(crate) use absent::persistent;
#[cfg(feature = "session-store")]
pub use stored::PersistentSessionService;
#[cfg(feature = "session-store")]
pub(crate) use stored::persistent;

use std::ops::Deref;

use super::sessions::Sessions;

/// Sessions in memory. They end with the process, or after some time without a request.
pub struct EphemeralSessionService(Sessions);

impl EphemeralSessionService {
    /// Makes the service of sessions whose stores are in memory.
    pub(crate) const fn new(sessions: Sessions) -> Self {
        Self(sessions)
    }
}

impl Deref for EphemeralSessionService {
    type Target = Sessions;

    fn deref(&self) -> &Sessions {
        &self.0
    }
}
