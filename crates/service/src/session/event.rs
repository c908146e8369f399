//! Event kinds: one row per kind, one payload each.
//!
//! A durable event changes a session when it is applied, and is stored in the journal; a live event is only shown. Each
//! body of text is in exactly one event; others refer to it. `wire` turns events into bytes.

mod agents;
mod calls;
mod compaction;
mod files;
mod finished;
mod given;
mod imported;
mod live;
mod lost;
mod turns;

use std::{collections::BTreeMap, sync::Arc};

pub use agents::{Agent, DelegateStarted};
pub use calls::{CallAnswered, CallRequested, ClientToolsChanged};
pub use compaction::{
    CompactionAttempt, CompactionCompleted, CompactionCounters, CompactionFailed, CompactionStarted, CompactionUndone,
    ContextRebuilt, SummaryUnused,
};
use meerkat_errors::ErrorBody;
use meerkat_words::agents::{Delegated, Descent};
pub use meerkat_words::requests::{Decision, MemoryScope, Scope, SessionMemory};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    message::{Block, Body, Image, Message, RawJson},
    reminder::SystemReminderType,
};
use crate::{
    clock::Timestamp,
    compaction::CompactionConfig,
    cost::Cost,
    ids::{Seq, SessionId, TurnNumber},
    model::{StopReason, Usage},
    options::{Amount, Budget, Budgets, ModelOptions},
    tool::{Effect, Form},
};
pub use files::{ChangedFile, FileBefore};
pub use given::HistoryGiven;
pub(crate) use given::is_given;
pub use imported::SessionImported;
pub use live::{Pruned, PrunedReason, ReasoningDelta, Retrying, SessionDeleted, TextDelta, ToolProgress};
pub use lost::{LogTailRepaired, LostKey, RecordsLost};
pub use meerkat_words::overview::ContextTokens;
pub use turns::{OutputRefused, SteeringEntered, TurnEdited, TurnQueued, TurnStarted, TurnSteered};

/// Stored event with its place in the journal.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Session of the event.
    pub session_id: SessionId,
    /// Position in the journal.
    pub seq: Seq,
    /// The turn it belongs to.
    pub turn: Option<TurnNumber>,
    /// Time of recording.
    pub time: Timestamp,
    /// The event.
    pub event: Event,
}

/// Live event with the durable event before it.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveRecord {
    /// Session of the event.
    pub session_id: SessionId,
    /// The seq of the durable event that it follows.
    pub after: Seq,
    /// The turn it belongs to.
    pub turn: Option<TurnNumber>,
    /// Time of showing.
    pub time: Timestamp,
    /// The event.
    pub event: LiveEvent,
}

macro_rules! event_kinds {
    (session { $( $(#[$doc:meta])* $variant:ident = $name:literal; )* } durable { $( $durable:tt )* } live $live:tt) => {
        event_kinds! { durable { $( $(#[$doc])* $variant = $name; )* $( $durable )* } live $live }

        /// Pattern of the kinds that concern the session as a whole: they may come at any time, and stay in the journal.
        macro_rules! of_session {
            () => { $( $crate::session::event::Event::$variant(_) )|* };
        }
        pub(crate) use of_session;
    };
    (
        durable { $( $(#[$doc:meta])* $variant:ident = $name:literal; )* }
        live { $( $(#[$live_doc:meta])* $live:ident = $live_name:literal; )* }
    ) => {
        /// Durable event.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Event {
            $( $(#[$doc])* $variant($variant), )*
            /// A kind that this version does not know. It is kept and passed on to the letter.
            Unknown(UnknownEvent),
        }

        /// Live event.
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

            /// Returns true if it is stored in the journal.
            #[must_use]
            pub const fn is_durable(self) -> bool {
                match self { $( Self::$variant => true, )* $( Self::$live => false, )* }
            }

            /// Returns its page: when it happens, and its fields.
            #[must_use]
            pub const fn page(self) -> &'static str {
                match self {
                    $( Self::$variant => include_str!(concat!("events/", $name, ".md")), )*
                    $( Self::$live => include_str!(concat!("events/", $live_name, ".md")), )*
                }
            }

            /// Returns the schema of its payload.
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
            /// If the payload cannot be decoded.
            pub fn decode(type_name: &str, line: &str) -> Result<Self, serde_json::Error> {
                match type_name {
                    $( $name => serde_json::from_str(line).map(Self::$variant), )*
                    other => RawJson::stored(line).map(|line| Self::Unknown(UnknownEvent { type_name: other.to_owned(), line })),
                }
            }

            /// Writes the payload as a JSON object; an unknown event has none of its own.
            ///
            /// # Errors
            /// If the payload cannot be encoded.
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

            /// Reads the payload of a live line whose `type` is `type_name`; `None` for a kind that this version does
            /// not know.
            ///
            /// # Errors
            /// If the payload cannot be decoded.
            pub fn decode(type_name: &str, line: &str) -> Result<Option<Self>, serde_json::Error> {
                match type_name {
                    $( $live_name => serde_json::from_str(line).map(|payload| Some(Self::$live(payload))), )*
                    _ => Ok(None),
                }
            }

            /// Writes the payload as a JSON object.
            ///
            /// # Errors
            /// If the payload cannot be encoded.
            pub fn encode_payload(&self, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
                match self { $( Self::$live(payload) => serde_json::to_writer(out, payload), )* }
            }
        }
    };
}

event_kinds! {
    session {
        /// A session was made.
        SessionCreated = "session_created";
        /// The session began as a copy of another's beginning.
        SessionForked = "session_forked";
        /// The session came here in a bundle.
        SessionImported = "session_imported";
        /// The session has another title or other labels.
        SessionUpdated = "session_updated";
        /// The session was put away.
        SessionArchived = "session_archived";
        /// The session was taken out again.
        SessionUnarchived = "session_unarchived";
        /// The session has other tools that its caller runs.
        ClientToolsChanged = "client_tools_changed";
    }
    durable {
        /// The session was given a message from elsewhere, from before its first turn.
        HistoryGiven = "history_given";
        /// A turn was accepted and waits.
        TurnQueued = "turn_queued";
        /// A waiting turn has another prompt or another place.
        TurnEdited = "turn_edited";
        /// A waiting turn left the queue without starting.
        TurnDequeued = "turn_dequeued";
        /// A turn started.
        TurnStarted = "turn_started";
        /// The running turn got another text of the user, which waits for its place.
        TurnSteered = "turn_steered";
        /// A steered text is in the context.
        SteeringEntered = "steering_entered";
        /// The model answered a step.
        AssistantMessage = "assistant_message";
        /// The answer does not fit the turn's schema, and goes back to the model.
        OutputRefused = "output_refused";
        /// A tool is about to run.
        ToolStarted = "tool_started";
        /// A call has its result.
        ToolFinished = "tool_finished";
        /// A call waits for a decision.
        ApprovalRequested = "approval_requested";
        /// A call was decided.
        ApprovalDecided = "approval_decided";
        /// A call waits for its caller.
        CallRequested = "call_requested";
        /// A caller answered a call.
        CallAnswered = "call_answered";
        /// A call starts a sub-agent.
        DelegateStarted = "delegate_started";
        /// A rule allows calls of the session.
        ToolAllowed = "tool_allowed";
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
        /// The model's answer was cut off; this is the part that arrived.
        PartialText = "partial_text";
        /// The turn completed.
        TurnCompleted = "turn_completed";
        /// The turn failed.
        TurnFailed = "turn_failed";
        /// The turn was interrupted.
        TurnInterrupted = "turn_interrupted";
        /// The end of the journal was cut off: it had not been written whole.
        LogTailRepaired = "log_tail_repaired";
        /// Events were lost to damage.
        RecordsLost = "records_lost";
        /// Facts from older events that are about to be dropped.
        HistorySnapshot = "history_snapshot";
        /// A compaction began.
        CompactionStarted = "compaction_started";
        /// The live context was rebuilt.
        ContextRebuilt = "context_rebuilt";
        /// A compaction is whole.
        CompactionCompleted = "compaction_completed";
        /// A summary was paid for and is not used.
        SummaryUnused = "summary_unused";
        /// A compaction failed; nothing has changed.
        CompactionFailed = "compaction_failed";
        /// A compaction was undone.
        CompactionUndone = "compaction_undone";
    }
    live {
        /// More of the model's text.
        TextDelta = "text_delta";
        /// More of the model's reasoning.
        ReasoningDelta = "reasoning_delta";
        /// A tool reports progress.
        ToolProgress = "tool_progress";
        /// A model call failed and will be tried again.
        Retrying = "retrying";
        /// Events were dropped, or cannot be read.
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionCreated {
    /// The title, if it was made with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Model of turns that name none.
    pub model: String,
    /// The system prompt.
    pub system_prompt: Option<Body>,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The tools that the session may use; `null` for all.
    pub tools: Option<Vec<String>>,
    /// Budgets of turns that set none.
    pub budgets: Budgets,
    /// Path of the folder that the session's tools work in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// The session's own compaction config.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compaction: Option<CompactionConfig>,
    /// How its model is asked in turns that do not say.
    #[serde(default, skip_serializing_if = "ModelOptions::is_default")]
    pub options: ModelOptions,
    /// Its part in the project's memory.
    #[serde(default, skip_serializing_if = "SessionMemory::is_default")]
    pub memory: SessionMemory,
    /// The call that started it, if it is a sub-agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub descent: Option<Descent>,
    /// The idempotency key, with the hash of the request.
    pub key: Option<Key>,
}

/// The session began as a copy of another's beginning. Everything before happened to that session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionForked {
    /// The session that was copied.
    pub parent: SessionId,
    /// The last event that was copied; no turn is open after it.
    pub at: Seq,
    /// The idempotency key of the fork; those of the parent stay with it.
    pub key: Option<Key>,
}

/// The session has another title or other labels. Both are complete, even if only one has changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionUpdated {
    /// The title; `null` for none.
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

/// An idempotency key and the hash of its request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Key {
    /// The key.
    pub key: String,
    /// SHA-256 of the decoded request without key and delivery options, in hexadecimal digits.
    pub request: String,
}

/// A waiting turn left the queue without starting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TurnDequeued {
    /// Reason: `cancelled`, or `shutting_down`.
    pub reason: String,
}

/// The model answered a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AssistantMessage {
    /// The step within the turn, from 0.
    pub step: u32,
    /// The model that answered.
    pub model: String,
    /// The answer's parts.
    pub blocks: Vec<Block>,
    /// Reason why the model stopped.
    pub stop_reason: StopReason,
    /// Tokens of the call.
    pub usage: Usage,
    /// Cost of the call by the prices of its day; absent if one is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// Hash of the tools that the step was offered, if a source's tools were among them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<String>,
    /// Where the request's tokens went; journals of older versions do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<ContextTokens>,
}

impl AssistantMessage {
    /// Returns it as a message of the context.
    #[must_use]
    pub fn message(&self) -> Message {
        Message::BlockAssistant { model: self.model.clone(), blocks: self.blocks.clone() }
    }

    /// Returns its texts.
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
    /// Effect of running it twice.
    pub effect: Effect,
    /// Files that the call is about to change. If no result names them because the process was killed, their content
    /// shows if they were changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<ChangedFile>,
}

/// A call has its result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ToolFinished {
    /// The call.
    pub call_id: String,
    /// The tool.
    pub name: String,
    /// Outcome.
    pub outcome: ToolOutcome,
    /// Output for the model.
    pub output: Body,
    /// The failure, if there was one.
    pub error: Option<ErrorBody>,
    /// Duration in milliseconds.
    pub duration_ms: u64,
    /// Files that the call changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<ChangedFile>,
    /// Confinement that held while it ran, such as `landlock, seccomp, namespaces`, or `none`; only commands have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confinement: Option<String>,
    /// Images of the output.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<Image>,
    /// What the sub-agent used that the call started; if it is not known, all that was kept for it counts as used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delegated: Option<Delegated>,
}

/// Outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolOutcome {
    /// It succeeded.
    Succeeded,
    /// It failed, or its arguments were wrong.
    Failed,
    /// It did not run.
    NotRun,
    /// Its effect may have happened or not.
    Unknown,
}

/// A call waits for a decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ApprovalRequested {
    /// The call.
    pub call_id: String,
    /// The tool.
    pub name: String,
    /// Its arguments as text; the beginning, the end and the size of long ones. Empty in events of former versions.
    #[serde(default)]
    pub arguments: String,
    /// Text for the person who decides: a diff, or a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<String>,
    /// Rule that allows further calls like this one; without one the call can be allowed once only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Question of a server while its call runs. `call_id` is then the question's own id, and an approval answers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<Form>,
}

/// A call was decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ApprovalDecided {
    /// The call.
    pub call_id: String,
    /// The decision.
    pub decision: Decision,
    /// Extent of an approval, if it is more than this call.
    #[serde(default, skip_serializing_if = "Scope::is_once")]
    pub scope: Scope,
    /// Reason, for the model to read.
    pub reason: Option<String>,
    /// Answer to a server's question.
    #[serde(default, deserialize_with = "RawJson::given", skip_serializing_if = "Option::is_none")]
    pub answer: Option<RawJson>,
}

/// A rule allows calls of the session from here on. It stays when the turn ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ToolAllowed {
    /// The rule.
    pub rule: String,
    /// The call whose approval allowed it.
    pub call_id: String,
}

/// A system reminder was set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReminderSet {
    /// Type; a session has one of each.
    pub kind: SystemReminderType,
    /// Text.
    pub text: String,
    /// True if it tells of the workspace and is renewed with each turn; a reminder that a person set is not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub automatic: bool,
}

/// A system reminder was removed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReminderCleared {
    /// Type.
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
    /// Used amount.
    pub used: Amount,
    /// Limit.
    pub limit: Amount,
}

/// Part of an answer that was cut off. With the end of its turn it becomes a message that ends with `[cut off]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PartialText {
    /// The step within the turn.
    pub step: u32,
    /// The text.
    pub text: Body,
}

/// Counts and cost of a turn, in each event that ends one.
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
    /// Cost; absent if that of a part is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// What sub-agents used beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delegated: Option<Delegated>,
}

impl TurnTotals {
    /// Returns those of a turn in which nothing has cost anything yet.
    pub(crate) fn begun() -> Self {
        Self { cost: Some(Cost::default()), ..Self::default() }
    }
}

/// The turn completed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TurnCompleted {
    /// Reason why the model stopped.
    pub stop_reason: StopReason,
    /// Counts and cost of the turn.
    pub totals: TurnTotals,
}

/// The turn failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TurnFailed {
    /// The failure.
    pub error: ErrorBody,
    /// Counts and cost of the turn.
    pub totals: TurnTotals,
}

/// The turn was interrupted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TurnInterrupted {
    /// Reason: `requested`, `replaced`, `shutting_down`, `process_ended`, or `deleted`.
    pub reason: String,
    /// Counts and cost of the turn.
    pub totals: TurnTotals,
}

/// Facts from older events that journal compaction is about to drop, for readers of the journal from its beginning. A
/// session that has applied them all learns nothing new.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HistorySnapshot {
    /// Last event that may be dropped with its messages. No message after it is missing.
    pub pruned_to: Seq,
    /// Idempotency keys that were used up to this time are forgotten.
    pub keys_up_to: Timestamp,
    /// Messages in the full history.
    pub message_count: u64,
    /// Tokens of the session so far.
    pub usage: Usage,
    /// Cost of the session so far; absent if that of a part is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// The number of the next turn.
    pub next_turn: TurnNumber,
    /// Runs of the live context: the event of each run's first message, and that message's position in the full
    /// history.
    pub context: Vec<(Seq, u64)>,
    /// Counters for the next compaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<CompactionCounters>,
    /// Compactions whose `context_rebuilt` is not behind this event cannot be undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoable_after: Option<Seq>,
    /// Tools of servers that the model found or called, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub found_tools: Vec<String>,
    /// The first line of the first prompt, by which the session is listed while it has no title.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_line: Option<String>,
}
