//! Examination in a build without a data directory: it is refused with the code of what is missing.

use super::{Diagnosis, Examination, Progress};
use crate::{Absence, SessionError};

/// Examines a data directory, which this build cannot.
///
/// # Errors
/// `SESSION_PERSISTENCE_DISABLED`.
#[expect(clippy::unused_async, reason = "where there is a data directory, it waits for the index")]
pub async fn examine(_: Examination, _: Progress<'_>) -> Result<Diagnosis, SessionError> {
    Err(SessionError::PersistenceDisabled { absence: Absence::NotBuilt })
}
