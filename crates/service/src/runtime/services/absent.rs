//! Stored sessions in a build without `session-store`: there is no service of them.

use std::sync::Arc;

use crate::{Absence, SessionError, runtime::sessions::Sessions, service::SessionService};

/// Makes the service of stored sessions.
///
/// # Errors
/// `SESSION_PERSISTENCE_DISABLED`.
pub(crate) fn persistent(_: Sessions) -> Result<Arc<dyn SessionService>, SessionError> {
    Err(SessionError::PersistenceDisabled { absence: Absence::NotBuilt })
}
