//! The two services. Both have every operation, over one engine: what an operation needs, the engine's capabilities say.

#[cfg(feature = "session-store")]
mod stored;

#[cfg(feature = "session-store")]
pub use stored::PersistentSessionService;

use std::sync::Arc;

use super::sessions::Sessions;
use crate::service::SessionService;

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
    #[cfg(feature = "session-store")]
    Persistent(PersistentSessionService),
}

impl Serving {
    /// Chooses the service: that of stored sessions if the engine stores them. No build without `session-store` has such
    /// an engine.
    pub(crate) fn of(sessions: Sessions) -> Self {
        #[cfg(feature = "session-store")]
        if sessions.is_stored() {
            return Self::Persistent(PersistentSessionService::new(sessions));
        }
        Self::Ephemeral(EphemeralSessionService(sessions))
    }

    pub(crate) fn into_service(self) -> Arc<dyn SessionService> {
        match self {
            Self::Ephemeral(service) => Arc::new(service),
            #[cfg(feature = "session-store")]
            Self::Persistent(service) => Arc::new(service),
        }
    }
}
