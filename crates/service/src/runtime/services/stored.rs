//! [`PersistentSessionService`]: the service of stored sessions, in a build with `session-store`.

use crate::runtime::sessions::Sessions;

/// Stored sessions. They outlive the process, and leave memory after some time without a request.
pub struct PersistentSessionService(Sessions);

impl PersistentSessionService {
    /// Makes the service of sessions whose stores outlive the process.
    pub(super) const fn new(sessions: Sessions) -> Self {
        Self(sessions)
    }
}

impl AsRef<Sessions> for PersistentSessionService {
    fn as_ref(&self) -> &Sessions {
        &self.0
    }
}
