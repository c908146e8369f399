//! What the events of a compaction say.

use meerkat_errors::ErrorCode;
use meerkat_words::answers::CompactionReceipt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ids::Seq, model::Usage, session::message::Body};

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

/// The live context was rebuilt: what stays of it, by reference. Nothing is lost, the events that hold the rest stay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ContextRebuilt {
    /// The compaction: the seq of its `compaction_completed`, which follows in the same batch.
    pub compaction: Seq,
    /// What stands for all that left the context; `null` where nothing new does, and the summary before it stays.
    pub summary: Option<Body>,
    /// The messages that stay, as ranges of the events that brought them: first and last of each, in order.
    pub retained: Vec<(Seq, Seq)>,
    /// The messages of results that stay as references, by the events that brought them, in order.
    pub masked: Vec<Seq>,
    /// What was kept and dropped, and what it cost.
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

/// A summary was paid for and is not used: the compaction that wanted it did not come about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SummaryUnused {
    /// What it cost.
    pub usage: Usage,
}

/// A compaction did not come about. The live context is what it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CompactionFailed {
    /// Why.
    pub code: ErrorCode,
    /// What happened.
    pub message: String,
}

/// A compaction was taken back: what it had discarded stands in the live context again, before all that came since.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CompactionUndone {
    /// The compaction: the seq of its `compaction_completed`.
    pub compaction: Seq,
}

/// What is counted for the next compaction. It is the session's, and durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CompactionCounters {
    /// Turns that have started.
    pub started_turns: u32,
    /// Input tokens of the last model call; 0 since a compaction.
    pub last_input_tokens: u64,
    /// The last compaction that was tried, or undone.
    pub last_attempt: Option<CompactionAttempt>,
}

/// When a compaction was tried or undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CompactionAttempt {
    /// The newest turn that had started, counted in turns that have started, from 0.
    pub turn: u32,
    /// Steps that it had taken, where it was open.
    pub step: u32,
}

impl CompactionCounters {
    /// The newest turn that has started.
    pub(in crate::session) const fn current_turn(&self) -> u32 {
        self.started_turns.saturating_sub(1)
    }

    /// Whether they can be: no compaction was tried in a turn that has not started.
    pub(crate) fn is_possible(&self) -> bool {
        self.last_attempt.is_none_or(|attempt| attempt.turn <= self.current_turn())
    }
}
