//! The two services. Both have every operation, over one engine: what an operation needs, the engine's capabilities say.

#[cfg(not(feature = "session-store"))]
mod absent;
#[cfg(feature = "session-store")]
mod stored;

#[cfg(not(feature = "session-store"))]
pub(crate) use absent::PersistentSessionService;
#[cfg(feature = "session-store")]
pub use stored::PersistentSessionService;

use std::sync::Arc;

use super::sessions::Sessions;
use crate::{SessionError, service::SessionService};

/// Sessions in memory. They end with the process, or after some time without a request.
pub struct EphemeralSessionService(Sessions);

impl AsRef<Sessions> for EphemeralSessionService {
    fn as_ref(&self) -> &Sessions {
        &self.0
    }
}

/// The service that serves an engine.
pub(crate) enum Serving {
    Ephemeral(EphemeralSessionService),
    Persistent(PersistentSessionService),
}

impl Serving {
    /// Chooses the service: that of stored sessions if the engine stores them.
    ///
    /// # Errors
    /// `SESSION_PERSISTENCE_DISABLED` if it stores them in a build that cannot.
    pub(crate) fn of(sessions: Sessions) -> Result<Self, SessionError> {
        Ok(match sessions.is_stored() {
            true => Self::Persistent(PersistentSessionService::new(sessions)?),
            false => Self::Ephemeral(EphemeralSessionService(sessions)),
        })
    }

    pub(crate) fn into_service(self) -> Arc<dyn SessionService> {
        match self {
            Self::Ephemeral(service) => Arc::new(service),
            Self::Persistent(service) => Arc::new(service),
        }
    }
}
