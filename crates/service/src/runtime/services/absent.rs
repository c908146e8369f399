//! Stored sessions in a build without `session-store`: there is no service of them.

use crate::{Absence, SessionError, runtime::sessions::Sessions};

/// There is none.
pub(crate) enum PersistentSessionService {}

impl PersistentSessionService {
    pub(super) fn new(_: Sessions) -> Result<Self, SessionError> {
        Err(SessionError::PersistenceDisabled { absence: Absence::NotBuilt })
    }
}

impl AsRef<Sessions> for PersistentSessionService {
    fn as_ref(&self) -> &Sessions {
        match *self {}
    }
}
