//! What the events of a compaction say.

use meerkat_errors::ErrorCode;
use meerkat_words::answers::CompactionReceipt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{cost::Cost, ids::Seq, model::Usage, session::message::Body};

/// A compaction began. Its sizes are those of the live context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CompactionStarted {
    /// Input tokens of the last model call.
    pub input_tokens: u64,
    /// Estimated tokens of the live context.
    pub estimated_history_tokens: u64,
    /// Messages of the live context.
    pub message_count: u64,
}

/// The live context was rebuilt; retained messages are referenced. The events of the others stay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ContextRebuilt {
    /// Seq of the `compaction_completed`, which follows in the same batch.
    pub compaction: Seq,
    /// Summary of everything that left the context; `null` if the former summary stays.
    pub summary: Option<Body>,
    /// The messages that stay, as ranges of the events that brought them: first and last of each, in order.
    pub retained: Vec<(Seq, Seq)>,
    /// The messages of results that stay as references, by the events that brought them, in order.
    pub masked: Vec<Seq>,
    /// Counts and cost of the compaction.
    pub receipt: CompactionReceipt,
}

/// A compaction is whole. Its messages are those of the live context.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CompactionCompleted {
    /// Tokens of the summary.
    pub summary_tokens: u64,
    /// Messages of the live context before it.
    pub messages_before: u64,
    /// Messages of the live context after it.
    pub messages_after: u64,
}

/// A summary was paid for and not used, because its compaction failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SummaryUnused {
    /// Tokens of the summary.
    pub usage: Usage,
    /// Cost of the summary; absent if the price of a part is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
}

/// A compaction failed. The live context is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CompactionFailed {
    /// Code of the failure.
    pub code: ErrorCode,
    /// Message of the failure.
    pub message: String,
}

/// A compaction was undone: the discarded messages are in the live context again, before all later ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CompactionUndone {
    /// The compaction: the seq of its `compaction_completed`.
    pub compaction: Seq,
}

/// Counters for the next compaction. They belong to the session and are durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CompactionCounters {
    /// Turns that have started.
    pub started_turns: u32,
    /// Input tokens of the last model call; 0 since a compaction.
    pub last_input_tokens: u64,
    /// The last compaction that was tried, or undone.
    pub last_attempt: Option<CompactionAttempt>,
}

/// Attempt or undo of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CompactionAttempt {
    /// The newest turn that had started, counted in turns that have started, from 0.
    pub turn: u32,
    /// Steps of that turn, if it was open.
    pub step: u32,
}

impl CompactionCounters {
    /// The newest turn that has started.
    pub(in crate::session) const fn current_turn(&self) -> u32 {
        self.started_turns.saturating_sub(1)
    }

    /// Returns true if no attempt is numbered after the newest turn.
    pub(crate) fn is_possible(&self) -> bool {
        self.last_attempt.is_none_or(|attempt| attempt.turn <= self.current_turn())
    }
}
