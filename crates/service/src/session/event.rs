//! The kinds of events: one row per kind, one payload each.
//!
//! A durable event changes a session when it is applied and stands in the journal; a live event is
//! shown in passing and promises nothing. Each body of text stands in exactly one event; others
//! refer to it. How an event becomes bytes is not known here: see `wire`.

mod compaction;
mod live;

use std::{collections::BTreeMap, sync::Arc};

pub use compaction::{
    CompactionAttempt, CompactionCompleted, CompactionCounters, CompactionFailed, CompactionStarted, CompactionUndone,
    ContextRebuilt, SummaryUnused,
};
use meerkat_errors::ErrorBody;
pub use meerkat_words::requests::Decision;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    message::{Block, Body, Message, RawJson, ToolResult},
    reminder::SystemReminderType,
};
use crate::{
    clock::Timestamp,
    compaction::CompactionConfig,
    ids::{Seq, SessionId, TurnNumber},
    model::{StopReason, Usage},
    options::{Budget, Budgets, Policy},
    tool::Effect,
};

pub use live::{Pruned, ReasoningDelta, Retrying, SessionDeleted, TextDelta, ToolProgress};

/// A stored event: what happened, where, when, and its place in the journal.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The session where it happened.
    pub session_id: SessionId,
    /// Its place in the journal.
    pub seq: Seq,
    /// The turn it belongs to.
    pub turn: Option<TurnNumber>,
    /// When it was recorded.
    pub time: Timestamp,
    /// What happened.
    pub event: Event,
}

/// A live event: what is shown, where, when, and the durable event that it follows.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveRecord {
    /// The session where it happens.
    pub session_id: SessionId,
    /// The seq of the durable event that it follows.
    pub after: Seq,
    /// The turn it belongs to.
    pub turn: Option<TurnNumber>,
    /// When it was shown.
    pub time: Timestamp,
    /// What is shown.
    pub event: LiveEvent,
}

macro_rules! event_kinds {
    (
        durable { $( $(#[$doc:meta])* $variant:ident = $name:literal; )* }
        live { $( $(#[$live_doc:meta])* $live:ident = $live_name:literal; )* }
    ) => {
        /// What a durable event says.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Event {
            $( $(#[$doc])* $variant($variant), )*
            /// A kind that this version does not know. It is kept and passed on to the letter.
            Unknown(UnknownEvent),
        }

        /// What a live event says.
        #[derive(Clone, Debug, PartialEq)]
        pub enum LiveEvent { $( $(#[$live_doc])* $live($live), )* }

        /// The name of each kind that this version knows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum EventKind {
            $( $(#[$doc])* $variant, )*
            $( $(#[$live_doc])* $live, )*
        }

        impl EventKind {
            /// Every kind: the durable ones, then the live ones.
            pub const ALL: &'static [Self] = &[$( Self::$variant, )* $( Self::$live, )*];

            /// The `type` on the wire.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $( Self::$variant => $name, )* $( Self::$live => $live_name, )* }
            }

            /// Whether it stands in the journal.
            #[must_use]
            pub const fn is_durable(self) -> bool {
                match self { $( Self::$variant => true, )* $( Self::$live => false, )* }
            }

            /// Its page: when it happens and what its fields say.
            #[must_use]
            pub const fn page(self) -> &'static str {
                match self {
                    $( Self::$variant => include_str!(concat!("events/", $name, ".md")), )*
                    $( Self::$live => include_str!(concat!("events/", $live_name, ".md")), )*
                }
            }

            /// The schema of its payload, as it is written.
            #[must_use]
            pub fn payload_schema(self) -> schemars::Schema {
                let settings = schemars::generate::SchemaSettings::default().for_serialize();
                match self {
                    $( Self::$variant => settings.into_generator().into_root_schema_for::<$variant>(), )*
                    $( Self::$live => settings.into_generator().into_root_schema_for::<$live>(), )*
                }
            }
        }

        impl Event {
            /// The `type` on the wire.
            #[must_use]
            pub fn type_name(&self) -> &str {
                match self {
                    $( Self::$variant(_) => $name, )*
                    Self::Unknown(unknown) => &unknown.type_name,
                }
            }

            /// Reads the payload of a line whose `type` is `type_name`.
            ///
            /// # Errors
            /// What the decoder found.
            pub fn decode(type_name: &str, line: &str) -> Result<Self, serde_json::Error> {
                match type_name {
                    $( $name => serde_json::from_str(line).map(Self::$variant), )*
                    other => RawJson::stored(line).map(|line| Self::Unknown(UnknownEvent { type_name: other.to_owned(), line })),
                }
            }

            /// Writes the payload as a JSON object; an unknown event has none of its own.
            ///
            /// # Errors
            /// What the encoder found.
            pub fn encode_payload(&self, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
                match self {
                    $( Self::$variant(payload) => serde_json::to_writer(out, payload), )*
                    Self::Unknown(_) => Ok(()),
                }
            }
        }

        impl LiveEvent {
            /// The `type` on the wire.
            #[must_use]
            pub const fn type_name(&self) -> &'static str {
                match self { $( Self::$live(_) => $live_name, )* }
            }

            /// Reads the payload of a live line whose `type` is `type_name`; `None` for a kind that this version does not know.
            ///
            /// # Errors
            /// What the decoder found.
            pub fn decode(type_name: &str, line: &str) -> Result<Option<Self>, serde_json::Error> {
                match type_name {
                    $( $live_name => serde_json::from_str(line).map(|payload| Some(Self::$live(payload))), )*
                    _ => Ok(None),
                }
            }

            /// Writes the payload as a JSON object.
            ///
            /// # Errors
            /// What the encoder found.
            pub fn encode_payload(&self, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
                match self { $( Self::$live(payload) => serde_json::to_writer(out, payload), )* }
            }
        }
    };
}

event_kinds! {
    durable {
        /// A session was made.
        SessionCreated = "session_created";
        /// The session began as a copy of another's beginning.
        SessionForked = "session_forked";
        /// The session has another title or other labels.
        SessionUpdated = "session_updated";
        /// The session was put away.
        SessionArchived = "session_archived";
        /// The session was taken out again.
        SessionUnarchived = "session_unarchived";
        /// A turn was accepted and waits.
        TurnQueued = "turn_queued";
        /// A waiting turn left the queue without starting.
        TurnDequeued = "turn_dequeued";
        /// A turn started.
        TurnStarted = "turn_started";
        /// The model answered a step.
        AssistantMessage = "assistant_message";
        /// A tool is about to run.
        ToolStarted = "tool_started";
        /// A call has its result.
        ToolFinished = "tool_finished";
        /// A call waits for a decision.
        ApprovalRequested = "approval_requested";
        /// A call was decided.
        ApprovalDecided = "approval_decided";
        /// A system reminder was set.
        ReminderSet = "reminder_set";
        /// A system reminder was removed.
        ReminderCleared = "reminder_cleared";
        /// A fact was pinned.
        Pinned = "pinned";
        /// A pin was removed.
        Unpinned = "unpinned";
        /// A budget of the turn is nearly used up.
        BudgetWarning = "budget_warning";
        /// The model's answer was cut; this is what had come.
        PartialText = "partial_text";
        /// The turn did what it was meant to.
        TurnCompleted = "turn_completed";
        /// The turn failed.
        TurnFailed = "turn_failed";
        /// The turn was interrupted.
        TurnInterrupted = "turn_interrupted";
        /// The end of the journal was cut off: it had not been written whole.
        LogTailRepaired = "log_tail_repaired";
        /// What older events would have given, because they are about to go.
        HistorySnapshot = "history_snapshot";
        /// A compaction began.
        CompactionStarted = "compaction_started";
        /// The live context was rebuilt.
        ContextRebuilt = "context_rebuilt";
        /// A compaction is whole.
        CompactionCompleted = "compaction_completed";
        /// A summary was paid for and is not used.
        SummaryUnused = "summary_unused";
        /// A compaction did not come about; nothing has changed.
        CompactionFailed = "compaction_failed";
        /// A compaction was taken back.
        CompactionUndone = "compaction_undone";
    }
    live {
        /// More of the model's text.
        TextDelta = "text_delta";
        /// More of the model's reasoning.
        ReasoningDelta = "reasoning_delta";
        /// A tool says how far it is.
        ToolProgress = "tool_progress";
        /// A model call failed and will be tried again.
        Retrying = "retrying";
        /// Events that are gone.
        Pruned = "pruned";
        /// The session is deleted.
        SessionDeleted = "session_deleted";
    }
}

/// An event of a kind that this version does not know.
#[derive(Clone, Debug, PartialEq)]
pub struct UnknownEvent {
    /// Its `type`.
    pub type_name: String,
    /// The whole line.
    pub line: RawJson,
}

/// A session was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionCreated {
    /// The title, if it was made with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The model that answers where a turn names none.
    pub model: String,
    /// The system prompt.
    pub system_prompt: Option<Body>,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The tools that the session may use; all where `null`.
    pub tools: Option<Vec<String>>,
    /// The budgets of each turn that sets none.
    pub budgets: Budgets,
    /// How the session compacts, where it says so itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compaction: Option<CompactionConfig>,
    /// The idempotency key, with the hash of the request.
    pub key: Option<Key>,
}

/// The session began as a copy of another's beginning. What stands before it happened to that session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionForked {
    /// The session that was copied.
    pub parent: SessionId,
    /// The last event that was copied; no turn is open after it.
    pub at: Seq,
    /// The idempotency key of the fork; those of the parent stay with it.
    pub key: Option<Key>,
}

/// The session has another title or other labels. Both stand here whole, also where only one has changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionUpdated {
    /// The title; none where `null`.
    pub title: Option<String>,
    /// All labels.
    pub labels: BTreeMap<String, String>,
}

/// The session was put away: it can be read, and takes no turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionArchived {}

/// The session was taken out again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionUnarchived {}

/// An idempotency key and the request that it stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Key {
    /// The key.
    pub key: String,
    /// SHA-256 of the decoded request without key and delivery options, in hexadecimal digits.
    pub request: String,
}

/// A turn was accepted and waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TurnQueued {
    /// What the user said.
    pub prompt: Body,
    /// The model, where the turn names one.
    pub model: Option<String>,
    /// The budgets.
    pub budgets: Budgets,
    /// How the turn compacts, where it says so itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compaction: Option<CompactionConfig>,
    /// How it was accepted: `interrupt` goes to the head.
    pub policy: Policy,
    /// The idempotency key.
    pub key: Option<Key>,
}

/// A waiting turn left the queue without starting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TurnDequeued {
    /// Why: `cancelled`, or `shutting_down`.
    pub reason: String,
}

/// A turn started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TurnStarted {
    /// What the user said; `null` where the turn was queued (see `queued`) or goes on with another (see `continues`).
    pub prompt: Option<Body>,
    /// The model that answers.
    pub model: String,
    /// The budgets.
    pub budgets: Budgets,
    /// The seq of the `turn_queued` that holds the prompt.
    pub queued: Option<Seq>,
    /// The interrupted turn that this one takes over.
    pub continues: Option<TurnNumber>,
    /// How the turn compacts, where it says so itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compaction: Option<CompactionConfig>,
    /// The idempotency key.
    pub key: Option<Key>,
}

/// The model answered a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AssistantMessage {
    /// The step within the turn, from 0.
    pub step: u32,
    /// The model that answered.
    pub model: String,
    /// What it said.
    pub blocks: Vec<Block>,
    /// Why it stopped.
    pub stop_reason: StopReason,
    /// What the call cost.
    pub usage: Usage,
}

impl AssistantMessage {
    /// It as a message of the context.
    #[must_use]
    pub fn message(&self) -> Message {
        Message::BlockAssistant { model: self.model.clone(), blocks: self.blocks.clone() }
    }

    /// What the model said in it.
    #[must_use]
    pub fn text(&self) -> Arc<[Body]> {
        let text = |block: &Block| match block {
            Block::Text { text } => Some(text.clone()),
            Block::Reasoning { .. } | Block::ToolCall(_) => None,
        };
        self.blocks.iter().filter_map(text).collect()
    }
}

/// A tool is about to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ToolStarted {
    /// The call.
    pub call_id: String,
    /// The tool.
    pub name: String,
    /// What running it twice would do.
    pub effect: Effect,
}

/// A call has its result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ToolFinished {
    /// The call.
    pub call_id: String,
    /// The tool.
    pub name: String,
    /// How it ended.
    pub outcome: ToolOutcome,
    /// What the model is told.
    pub output: Body,
    /// The failure, where there was one.
    pub error: Option<ErrorBody>,
    /// How long it ran.
    pub duration_ms: u64,
}

impl ToolFinished {
    /// What stands in the context.
    #[must_use]
    pub fn result(&self) -> ToolResult {
        let Self { call_id, name, outcome, output, .. } = self.clone();
        ToolResult { call_id, name, is_error: outcome != ToolOutcome::Succeeded, content: output }
    }
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolOutcome {
    /// It did what it was meant to.
    Succeeded,
    /// It failed, or its arguments were wrong.
    Failed,
    /// It did not run.
    NotRun,
    /// Whether it had its effect is unknown.
    Unknown,
}

/// A call waits for a decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ApprovalRequested {
    /// The call.
    pub call_id: String,
    /// The tool.
    pub name: String,
    /// What it is called with, as text; of long arguments the beginning, the end and the size. Empty in events of
    /// former versions.
    #[serde(default)]
    pub arguments: String,
}

/// A call was decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ApprovalDecided {
    /// The call.
    pub call_id: String,
    /// What was decided.
    pub decision: Decision,
    /// Why, for the model to read.
    pub reason: Option<String>,
}

/// A system reminder was set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReminderSet {
    /// Its type; a session has one of each.
    pub kind: SystemReminderType,
    /// Its text.
    pub text: String,
}

/// A system reminder was removed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReminderCleared {
    /// Its type.
    pub kind: SystemReminderType,
}

/// A fact was pinned. The pin is named by the seq of this event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pinned {
    /// The fact.
    pub text: String,
}

/// A pin was removed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Unpinned {
    /// The seq of the event that pinned it.
    pub pin: Seq,
}

/// A budget of the turn is nearly used up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BudgetWarning {
    /// The budget.
    pub budget: Budget,
    /// What is used.
    pub used: u64,
    /// What there is.
    pub limit: u64,
}

/// What had come of an answer that was cut. It is not part of the context.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PartialText {
    /// The step within the turn.
    pub step: u32,
    /// The text.
    pub text: Body,
}

/// What a turn did and cost, in each of the events that end one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TurnTotals {
    /// Model calls that answered.
    pub steps: u32,
    /// Tool calls.
    pub tool_calls: u32,
    /// Compactions.
    pub compactions: u32,
    /// Tokens.
    pub usage: Usage,
}

/// The turn did what it was meant to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TurnCompleted {
    /// Why the model stopped.
    pub stop_reason: StopReason,
    /// What the turn did and cost.
    pub totals: TurnTotals,
}

/// The turn failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TurnFailed {
    /// Why.
    pub error: ErrorBody,
    /// What the turn did and cost.
    pub totals: TurnTotals,
}

/// The turn was interrupted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TurnInterrupted {
    /// Why: `requested`, `replaced`, `shutting_down`, `process_ended`, or `deleted`.
    pub reason: String,
    /// What the turn did and cost.
    pub totals: TurnTotals,
}

/// The end of the journal was cut off: it had not been written whole when the process ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogTailRepaired {
    /// How many bytes were cut off. No event among them was ever acknowledged.
    pub bytes: u64,
    /// The file beneath the data directory that keeps them.
    pub quarantine: String,
}

/// Journal compaction is about to drop what was said in older events: what they would have given to whoever reads the
/// journal from its beginning. To a session that has seen them all it says nothing new.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HistorySnapshot {
    /// The last event that may be gone with what was said in it. Behind it nothing is missing that was said.
    pub pruned_to: Seq,
    /// Idempotency keys that were used up to this time are forgotten.
    pub keys_up_to: Timestamp,
    /// Messages that were ever said.
    pub message_count: u64,
    /// What the session has cost.
    pub usage: Usage,
    /// The number of the next turn.
    pub next_turn: TurnNumber,
    /// The runs of the live context: the event of the first message of each, and how many messages were said before it.
    pub context: Vec<(Seq, u64)>,
    /// What is counted for the next compaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<CompactionCounters>,
    /// Compactions whose `context_rebuilt` is not behind this event cannot be undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoable_after: Option<Seq>,
    /// The first line of the first prompt, by which the session is listed while it has no title.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_line: Option<String>,
}
