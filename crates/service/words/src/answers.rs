//! Answers of the operations, identical on every surface and in every build.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures::future::BoxFuture;
use meerkat_errors::{ErrorBody, ErrorCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    SessionError,
    clock::Timestamp,
    cost::Cost,
    ids::{Seq, SessionId, TurnNumber},
    message::{Attached, Body, Message, RawJson},
    model::{StopReason, Usage},
    object::written,
    options::ModelOptions,
    requests::SessionMemory,
    tool::{Approval, Effect, Form},
};
pub use crate::{
    agents::{Delegated, Parent},
    calls::{AnsweredCall, OpenCall},
    reminder::{Pin, Reminder},
};

/// Answer of `create_session`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionCreated {
    /// The session.
    pub session_id: SessionId,
    /// The event that recorded it.
    pub seq: Seq,
    /// Time of creation.
    pub created_at: Timestamp,
}

/// Outcome of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TurnStatus {
    /// It finished.
    Completed,
    /// It was interrupted.
    Interrupted,
    /// It failed.
    Failed,
    /// It has not ended: it waits until its caller answers `calls`.
    Waiting,
}

/// Answer of a turn that has ended, or that waits for its caller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TurnResult {
    /// The session.
    pub session_id: SessionId,
    /// The turn.
    pub turn: TurnNumber,
    /// The event that ended it; the newest request, if it waits for its caller.
    pub seq: Seq,
    /// Outcome of the turn.
    pub status: TurnStatus,
    /// The model that answered.
    pub model: String,
    /// Last text of the model; empty if there was none.
    pub text: String,
    /// JSON of an answer by a schema, as the model wrote it; `null` without a schema, and if the turn did not complete.
    pub output: Option<RawJson>,
    /// Reason that the model stopped.
    pub stop_reason: Option<StopReason>,
    /// Tokens used.
    pub usage: Usage,
    /// Cost; `null` if the price of a part is unknown.
    pub cost: Option<Cost>,
    /// Model calls that answered.
    pub steps: u32,
    /// Tool calls.
    pub tool_calls: u32,
    /// Compactions.
    pub compactions: u32,
    /// Error, if the turn did not complete.
    pub error: Option<ErrorBody>,
    /// What its sub-agents used beside it; left out if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delegated: Option<Delegated>,
    /// The calls that wait for an answer; left out if the turn has ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<OpenCall>,
}

/// Answer of a turn that is not waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TurnAccepted {
    /// The session.
    pub session_id: SessionId,
    /// The turn.
    pub turn: TurnNumber,
    /// The event that accepted it.
    pub seq: Seq,
}

/// Accepted turn. Dropping it interrupts nothing.
pub struct TurnHandle {
    /// Acceptance.
    pub accepted: TurnAccepted,
    /// True if the caller waits for the result, and not only for the acceptance.
    pub wait: bool,
    /// Its result, once it has ended; if the caller waits, also once the turn waits for its caller.
    pub result: BoxFuture<'static, Result<TurnResult, SessionError>>,
}

/// Answer of every other change: the event that recorded it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Changed {
    /// The session.
    pub session_id: SessionId,
    /// The event.
    pub seq: Seq,
}

/// Page of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// Cursor of the next page; `null` at the end.
    pub next_cursor: Option<String>,
}

impl<T> Page<T> {
    /// Makes a list that fits one page.
    #[must_use]
    pub const fn whole(items: Vec<T>) -> Self {
        Self { items, next_cursor: None }
    }
}

/// Page of events, each as its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventPage {
    /// Lines, in order.
    pub items: Vec<Bytes>,
    /// Cursor after this page.
    pub next_seq: Seq,
}

/// Turn in the queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueItem {
    /// The turn.
    pub turn: TurnNumber,
    /// The event that queued it.
    pub seq: Seq,
    /// The user's prompt.
    pub prompt: Body,
    /// Its images and files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<Attached>,
    /// Time at which it was queued.
    pub queued_at: Timestamp,
}

/// Activity of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// Nothing runs or waits.
    Idle,
    /// A turn or a compaction runs.
    Running,
    /// Turns wait, but none runs.
    Queued,
    /// The running turn waits for an approval, for its caller to answer a call, or for sub-agents.
    Waiting,
}

/// Size of a session's live context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ContextView {
    /// Messages.
    pub messages: u64,
    /// Estimated tokens.
    pub estimated_tokens: u64,
    /// Window of the session's model.
    pub window_tokens: u64,
}

/// Call that waits for a decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PendingApproval {
    /// The call.
    pub call_id: String,
    /// The tool.
    pub name: String,
    /// Its arguments as text; of long ones the beginning, the end and the size.
    pub arguments: String,
    /// The turn.
    pub turn: TurnNumber,
    /// The event that asked.
    pub seq: Seq,
    /// Text for the person who decides: a diff, or a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<String>,
    /// Rule that an approval for the session or for always allows; without one the call can be allowed once only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Question of a server. An approval answers it, and `call_id` is the question's own id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<Form>,
}

/// Declares the answers that describe a session. They share these fields, so a new one is written once: those before
/// `;` come first, the others after what only `read` answers.
macro_rules! session_answers {
    ($( $( #[$attribute:meta] )+ $field:ident: $type:ty, )+; $( $( #[$later_attribute:meta] )+ $later:ident: $later_type:ty, )+) => {
        /// Answer of `read`.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        pub struct SessionView {
            $( $( #[$attribute] )+ pub $field: $type, )+
            /// Its live context.
            pub context: ContextView,
            /// Tokens used.
            pub usage: Usage,
            /// Cost; `null` if the price of a part is unknown.
            pub cost: Option<Cost>,
            /// Its reminders.
            pub reminders: Vec<Reminder>,
            /// Its pins.
            pub pins: Vec<Pin>,
            /// The turns that wait.
            pub queue: Vec<QueueItem>,
            /// The calls that wait for a decision.
            pub pending_approvals: Vec<PendingApproval>,
            /// Rules by which the session's calls run without a question.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            pub allowed_rules: Vec<String>,
            $( $( #[$later_attribute] )+ pub $later: $later_type, )+
            /// Folder that its tools work in; left out if there is none.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub workspace: Option<String>,
            /// Its part in the project's memory; left out if it is the default.
            #[serde(default, skip_serializing_if = "SessionMemory::is_default")]
            pub memory: SessionMemory,
            /// How its turns ask the model, unless they say it themselves; left out if nothing is said.
            #[serde(default, skip_serializing_if = "ModelOptions::is_default")]
            #[schemars(schema_with = "written::<ModelOptions>")]
            pub options: ModelOptions,
        }

        /// Session in a list.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        pub struct SessionSummary {
            $( $( #[$attribute] )+ pub $field: $type, )+
            /// Tokens used.
            pub usage: Usage,
            /// Cost; `null` if the price of a part is unknown.
            pub cost: Option<Cost>,
            $( $( #[$later_attribute] )+ pub $later: $later_type, )+
        }

        impl SessionSummary {
            /// Makes the answer of `read`, without what no list says of a session.
            #[must_use]
            pub fn view(self, context: ContextView) -> SessionView {
                let Self { $( $field, )+ usage, cost, $( $later, )+ } = self;
                let (reminders, pins, queue, pending_approvals) = Default::default();
                let (allowed_rules, workspace, memory, options) = Default::default();
                SessionView {
                    $( $field, )+ context, usage, cost, reminders, pins, queue, pending_approvals, allowed_rules,
                    $( $later, )+ workspace, memory, options,
                }
            }
        }
    };
}

session_answers! {
    /// The session.
    session_id: SessionId,
    /// Its title; if none is set, the first line of its first prompt.
    title: Option<String>,
    /// Its labels.
    labels: BTreeMap<String, String>,
    /// Its model.
    model: String,
    /// Its activity.
    state: SessionState,
    /// True if it is archived.
    archived: bool,
    /// Time of creation.
    created_at: Timestamp,
    /// Time of the last change.
    updated_at: Timestamp,
    /// Turns that were accepted.
    turn_count: u64,
    /// Messages in its full history.
    message_count: u64,
    /// Its last event.
    last_seq: Seq,
    ;
    /// The session it was forked from.
    forked_from: Option<SessionId>,
    /// Code of its last turn's failure; left out if the turn did not fail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_error: Option<ErrorCode>,
    /// The call of another session that started it as a sub-agent; left out if it is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parent: Option<Parent>,
}

/// Message of a session's history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryItem {
    /// The event that holds it.
    pub seq: Seq,
    /// The turn.
    pub turn: Option<TurnNumber>,
    /// Role: `user`, `assistant` or `tool_results`; `pruned` if the content was pruned, `damaged` if it cannot be read.
    pub role: String,
    /// The message.
    pub message: Message,
}

impl HistoryItem {
    /// Makes an item for events whose content was pruned.
    #[must_use]
    pub fn pruned(from: Seq, to: Seq) -> Self {
        let message = Message::System { content: format!("Events {from} to {to} were pruned.").into() };
        Self { seq: to, turn: None, role: "pruned".to_owned(), message }
    }

    /// Makes an item for events that cannot be read.
    #[must_use]
    pub fn damaged(from: Seq, to: Seq) -> Self {
        let message = Message::System { content: format!("Events {from} to {to} are damaged.").into() };
        Self { seq: to, turn: None, role: "damaged".to_owned(), message }
    }
}

/// Piece of a blob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BlobPage {
    /// The bytes in base64.
    pub data: String,
    /// Offset of the next piece; `null` at the end.
    pub next_offset: Option<u64>,
}

impl BlobPage {
    /// Decodes the bytes; `None` if they are not base64.
    #[must_use]
    pub fn bytes(&self) -> Option<Vec<u8>> {
        BASE64_STANDARD.decode(&self.data).ok()
    }
}

/// Answer of `put_blob`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoredBlob {
    /// The hash, by which a prompt names it.
    pub blob: String,
    /// Its length in bytes.
    pub bytes: u64,
}

/// Way in which a compaction made its summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CompactionMode {
    /// A model wrote the summary.
    Summary,
    /// The summary was assembled without a model.
    Mechanical,
    /// No summary: stale tool results were masked.
    Mask,
}

/// Report of a compaction: kept, discarded, cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CompactionReceipt {
    /// The event that completed it; `null` for a preview.
    pub compaction: Option<Seq>,
    /// Way in which the summary was made.
    pub mode: CompactionMode,
    /// Messages that remain.
    pub retained: u64,
    /// Tool results that were masked.
    pub masked: u64,
    /// Messages that left the live context.
    pub discarded: u64,
    /// Reminders that were carried over.
    pub reminders: u64,
    /// Pins that were carried over.
    pub pins: u64,
    /// The turn that the cut moved back to.
    pub anchor: Option<TurnNumber>,
    /// Estimated tokens before.
    pub tokens_before: u64,
    /// Estimated tokens after.
    pub tokens_after: u64,
    /// Tokens used for the summary.
    pub usage: Usage,
    /// Cost of the summary; absent if that of a part is unknown, for a mask, which needs no model, and for a preview.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// Model calls for the summary; more than one if the discarded messages did not fit one request.
    #[serde(default, skip_serializing_if = "is_one_round")]
    pub rounds: u32,
    /// Messages that the model did not read, because each is too long for it or there were too many; the summary has
    /// excerpts of them, as a mechanical one has.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unread: u64,
}

const fn is_one_round(rounds: &u32) -> bool {
    *rounds <= 1
}

const fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Indexed piece of text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SearchHit {
    /// The session.
    pub session_id: SessionId,
    /// First event of the piece.
    pub from_seq: Seq,
    /// Last event of the piece.
    pub to_seq: Seq,
    /// Role: `user`, `assistant` or `tool_results`; `pruned` if the content was pruned.
    pub role: String,
    /// Time of the text.
    pub time: Timestamp,
    /// The text.
    pub text: String,
    /// Rank score; higher fits better.
    pub score: f64,
    /// Score from each lane of the search.
    pub lanes: BTreeMap<String, f64>,
}

/// Answer of `forget_memory`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Forgotten {
    /// Pieces that were forgotten: no search finds them.
    pub forgotten: u64,
    /// True if they have left every file, which the request waited for. They leave them without that, too.
    pub erased: bool,
}

/// Answer of `reindex_memory`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reindexed {
    /// Pieces that were indexed.
    pub indexed: u64,
}

/// Tool that a model is offered, or that is left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ToolView {
    /// Its name for the model.
    pub name: String,
    /// Its description; left out if it has no definition that can be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Where it comes from: `engine`, `workspace`, `server:NAME`, `client` (its caller runs it) or `program`.
    pub source: String,
    /// Tokens that it costs in each request that offers it, roughly.
    pub tokens: u64,
    /// Effect of running a call twice; left out if it depends on the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
    /// What the rules say of its calls; left out if that depends on the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
    /// Reason that the model is not offered it; left out if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
}

/// Row of the error table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ErrorRow {
    /// The code.
    pub code: ErrorCode,
    /// The HTTP status.
    pub http_status: u16,
    /// The JSON-RPC number.
    pub rpc_code: i32,
    /// The exit code.
    pub exit_code: u8,
    /// True if the same request can succeed later.
    pub retryable: bool,
    /// The default message.
    pub message: &'static str,
    /// Its page in Markdown: what happened, and what to do. Only if the request names the code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page: Option<&'static str>,
}

/// Answer of `errors`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ErrorList {
    /// Every code in the order of the table, or the one that was asked for.
    pub items: Vec<ErrorRow>,
}

impl ErrorList {
    /// Returns the row of a code with its page, or the whole table.
    #[must_use]
    pub fn of(code: Option<ErrorCode>) -> Self {
        let row = |asked: &ErrorCode| ErrorRow {
            code: *asked,
            http_status: asked.http_status(),
            rpc_code: asked.rpc_code(),
            exit_code: asked.exit_code(),
            retryable: asked.retry().is_retryable(),
            message: asked.message(),
            page: code.map(ErrorCode::page),
        };
        Self { items: code.as_ref().map_or(ErrorCode::ALL, std::slice::from_ref).iter().map(row).collect() }
    }
}
