//! [`PersistentSessionService`]: the service of stored sessions, in a build with `session-store`.

use crate::{SessionError, runtime::sessions::Sessions};

/// Stored sessions. They outlive the process, and leave memory after some time without a request.
pub struct PersistentSessionService(Sessions);

impl PersistentSessionService {
    /// Makes the service of sessions whose stores outlive the process.
    #[expect(clippy::unnecessary_wraps, reason = "its twin refuses")]
    pub(super) const fn new(sessions: Sessions) -> Result<Self, SessionError> {
        Ok(Self(sessions))
    }
}

impl AsRef<Sessions> for PersistentSessionService {
    fn as_ref(&self) -> &Sessions {
        &self.0
    }
}
