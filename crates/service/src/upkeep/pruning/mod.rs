//! Journal compaction: dropping records of a journal that every reader is done with and that nothing depends on.
//!
//! What may go is decided by a pure function of records, policy and watermark (`plan`); what is found out before and
//! done after stands in `run`, and when it happens by itself in `schedule`. A record above the watermark is never
//! touched, no seq is ever shifted, and what the journal folds to stays the same.

mod plan;
mod run;
mod schedule;

#[cfg(test)]
mod tests;

pub(crate) use plan::History;
pub(crate) use run::{reach, survey, unnamed_blobs};
pub(crate) use schedule::{Due, Schedule};

use crate::options::JournalOptions;

/// What is kept though nothing depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompactionPolicy {
    /// Milliseconds that every record is kept at least.
    pub(crate) min_record_age_ms: u64,
    /// The newest replies outside the live context that are kept where history is dropped.
    pub(crate) keep_last_replies: usize,
    /// Milliseconds that a request is kept which has its result.
    pub(crate) keep_answered_request_ttl_ms: u64,
    /// Whether parts of the journal stay as they are that are still written to, or of which little would go.
    pub(crate) is_sparing: bool,
}

impl CompactionPolicy {
    /// For a run that was asked for.
    pub(crate) const fn asked(options: &JournalOptions) -> Self {
        Self {
            min_record_age_ms: options.min_record_age_ms,
            keep_last_replies: options.keep_last_replies,
            keep_answered_request_ttl_ms: options.keep_answered_request_ttl_ms,
            is_sparing: false,
        }
    }

    /// For a run while a session goes on.
    pub(crate) const fn rolling(options: &JournalOptions) -> Self {
        Self { is_sparing: true, ..Self::asked(options) }
    }

    /// For a run when a turn has ended.
    pub(crate) const fn end_of_run(options: &JournalOptions) -> Self {
        Self {
            min_record_age_ms: options.end_min_record_age_ms,
            keep_last_replies: options.end_keep_last_replies,
            keep_answered_request_ttl_ms: options.end_keep_answered_request_ttl_ms,
            is_sparing: true,
        }
    }
}
