//! Journal compaction: dropping records of a journal that every reader is done with and that nothing depends on.
//!
//! A pure function of records, policy and watermark decides (`plan`); `run` reads before and drops after it; `schedule`
//! says when the configuration starts one. A record above the watermark is never touched, no seq is ever shifted, and
//! the journal folds to the same session.

mod plan;
mod run;
mod schedule;

#[cfg(test)]
mod tests;

pub(crate) use plan::History;
pub(crate) use run::JournalCompactor;
pub(crate) use schedule::{Due, Schedule};

use crate::{
    options::JournalOptions,
    service::{CompactJournal, CompactionPolicy},
};

/// What starts a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Trigger {
    /// A request: whatever may go goes.
    Request,
    /// The timer: what is sealed is rewritten where that is worth it.
    Rolling,
    /// The end of a turn: so is the part that is still written.
    EndOfRun,
}

/// One compaction: its policy, and what starts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pass {
    pub(crate) policy: CompactionPolicy,
    pub(crate) trigger: Trigger,
}

impl Pass {
    /// Returns the one that is asked for.
    pub(crate) fn asked(request: &CompactJournal, options: &JournalOptions) -> Self {
        Self { policy: request.policy(options), trigger: Trigger::Request }
    }

    /// Returns the one while a session goes on.
    pub(crate) fn rolling(options: &JournalOptions) -> Self {
        let policy = CompactionPolicy {
            min_record_age_ms: options.min_record_age_ms,
            keep_last_replies: options.drop_history.then_some(options.keep_last_replies),
            keep_answered_request_ttl_ms: options.keep_answered_request_ttl_ms,
        };
        Self { policy, trigger: Trigger::Rolling }
    }

    /// Returns the one after the end of a turn.
    pub(crate) fn end_of_run(options: &JournalOptions) -> Self {
        let policy = CompactionPolicy {
            min_record_age_ms: options.end_min_record_age_ms,
            keep_last_replies: options.drop_history.then_some(options.end_keep_last_replies),
            keep_answered_request_ttl_ms: options.end_keep_answered_request_ttl_ms,
        };
        Self { policy, trigger: Trigger::EndOfRun }
    }
}
