//! [`PersistentSessionService`]: the service of stored sessions, in a build with `session-store`.

use std::{ops::Deref, sync::Arc};

use crate::{SessionError, runtime::sessions::Sessions, service::SessionService};

/// Stored sessions. They outlive the process, and leave memory after some time without a request.
pub struct PersistentSessionService(Sessions);

impl Deref for PersistentSessionService {
    type Target = Sessions;

    fn deref(&self) -> &Sessions {
        &self.0
    }
}

/// Makes the service of sessions whose stores outlive the process.
pub(crate) fn persistent(sessions: Sessions) -> Result<Arc<dyn SessionService>, SessionError> {
    Ok(Arc::new(PersistentSessionService(sessions)))
}

#[cfg(test)]
mod tests {
    use std::any::TypeId;

    use super::*;
    use crate::runtime::EphemeralSessionService;

    #[test]
    fn sessions_in_memory_and_stored_ones_have_services_of_two_types() {
        const fn serves<S: SessionService + 'static>() -> TypeId {
            TypeId::of::<S>()
        }
        assert_ne!(serves::<EphemeralSessionService>(), serves::<PersistentSessionService>());
    }
}
