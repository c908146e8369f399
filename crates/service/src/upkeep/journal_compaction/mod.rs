//! Journal compaction: dropping records of a journal that every reader is done with and that nothing depends on.
//!
//! A pure function of records, policy and watermark decides (`plan`); `run` reads before and drops after it; `schedule`
//! starts compactions by configuration. A record above the watermark is never touched, no seq is ever shifted, and the
//! journal folds to the same session.

mod plan;
mod run;
mod schedule;

#[cfg(test)]
mod tests;

pub(crate) use plan::History;
pub(crate) use run::{reach, survey, unnamed_blobs};
pub(crate) use schedule::{Due, Schedule};

use crate::options::JournalOptions;

/// Records to keep although nothing depends on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompactionPolicy {
    /// Least age of a dropped record, in milliseconds.
    pub(crate) min_record_age_ms: u64,
    /// Newest replies outside the live context to keep if history is dropped.
    pub(crate) keep_last_replies: usize,
    /// Milliseconds to keep a request that has its result.
    pub(crate) keep_answered_request_ttl_ms: u64,
    /// True if parts of the journal stay unchanged that are still written, or of which little would be dropped.
    pub(crate) is_sparing: bool,
}

impl CompactionPolicy {
    /// Returns the policy of a compaction on request.
    pub(crate) const fn asked(options: &JournalOptions) -> Self {
        Self {
            min_record_age_ms: options.min_record_age_ms,
            keep_last_replies: options.keep_last_replies,
            keep_answered_request_ttl_ms: options.keep_answered_request_ttl_ms,
            is_sparing: false,
        }
    }

    /// Returns the policy of a compaction while a session goes on.
    pub(crate) const fn rolling(options: &JournalOptions) -> Self {
        Self { is_sparing: true, ..Self::asked(options) }
    }

    /// Returns the policy of a compaction after the end of a turn.
    pub(crate) const fn end_of_run(options: &JournalOptions) -> Self {
        Self {
            min_record_age_ms: options.end_min_record_age_ms,
            keep_last_replies: options.end_keep_last_replies,
            keep_answered_request_ttl_ms: options.end_keep_answered_request_ttl_ms,
            is_sparing: true,
        }
    }
}
