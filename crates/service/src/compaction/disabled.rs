//! Compaction in a build without `session-compaction`: every request for it is refused with its code.

use super::{CompactionConfig, SharedCompactor};
use crate::SessionError;

/// The default compactor for a model with this window.
///
/// # Errors
/// `SESSION_COMPACTION_DISABLED`.
pub fn default_compactor(_: CompactionConfig, _window_tokens: u64) -> Result<SharedCompactor, SessionError> {
    Err(SessionError::CompactionDisabled)
}
