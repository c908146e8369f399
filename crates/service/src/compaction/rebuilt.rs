//! From a compactor's messages to the event that says by reference what stays, and the checks that stand before it.

use meerkat_errors::ErrorBody;

use super::Compactor;
use crate::{
    service::{CompactionMode, CompactionReceipt},
    session::{
        Session,
        event::{CompactionCompleted, ContextRebuilt},
    },
};

/// A context that may be put in the place of the live one.
#[derive(Clone, Debug)]
pub(crate) struct Rebuilt {
    /// By reference; its `compaction`, and the usage of its receipt, are the engine's to fill in.
    pub(crate) event: ContextRebuilt,
    /// What follows it in the same batch.
    pub(crate) completed: CompactionCompleted,
    /// Bytes of the live context after it, as JSON.
    pub(crate) context_bytes: u64,
}

/// The context that the compactor makes of the session's and a summary.
///
/// # Errors
/// `COMPACTION_PIN_LOST` where a reminder or a pin is missing, `COMPACTION_NO_PROGRESS` where it is not smaller, or no
/// partition of what was there.
pub(crate) fn rebuild(
    session: &Session,
    compactor: &dyn Compactor,
    summary: &str,
    mode: CompactionMode,
) -> Result<Rebuilt, ErrorBody> {
    let _ = (session, compactor, summary, mode);
    Err(ErrorBody::new(meerkat_errors::ErrorCode::CompactionNoProgress))
}

/// The context with its stale tool results masked; `None` where there are none.
pub(crate) fn mask(session: &Session) -> Option<Rebuilt> {
    let _ = session;
    None
}

/// What a compaction would do, with a summary as long as it may be.
pub(crate) fn preview(session: &Session, compactor: &dyn Compactor) -> Result<CompactionReceipt, ErrorBody> {
    let summary = String::new();
    Ok(rebuild(session, compactor, &summary, CompactionMode::Summary)?.event.receipt)
}

/// A summary without a model: the beginnings of what leaves the context, in at most `max_tokens`.
pub(crate) fn mechanical_summary(session: &Session, compactor: &dyn Compactor) -> String {
    let _ = (session, compactor);
    String::new()
}
