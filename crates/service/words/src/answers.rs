//! What each operation answers, the same on every surface and in every build.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures::future::BoxFuture;
use meerkat_errors::{ErrorBody, ErrorCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::reminder::{Pin, Reminder};
use crate::{
    SessionError,
    clock::Timestamp,
    ids::{Seq, SessionId, TurnNumber},
    message::{Body, Message},
    model::{StopReason, Usage},
    reply::encode,
};

/// The answer of `create_session`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionCreated {
    /// The session.
    pub session_id: SessionId,
    /// The event that recorded it.
    pub seq: Seq,
    /// When it was made.
    pub created_at: Timestamp,
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TurnStatus {
    /// It did what it was meant to.
    Completed,
    /// It was interrupted.
    Interrupted,
    /// It failed.
    Failed,
}

/// The answer of a turn that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TurnResult {
    /// The session.
    pub session_id: SessionId,
    /// The turn.
    pub turn: TurnNumber,
    /// The event that ended it.
    pub seq: Seq,
    /// How it ended.
    pub status: TurnStatus,
    /// The model that answered.
    pub model: String,
    /// What the model said last; empty where it said nothing.
    pub text: String,
    /// Why the model stopped.
    pub stop_reason: Option<StopReason>,
    /// What it cost.
    pub usage: Usage,
    /// Model calls that answered.
    pub steps: u32,
    /// Tool calls.
    pub tool_calls: u32,
    /// Compactions.
    pub compactions: u32,
    /// Why it did not complete.
    pub error: Option<ErrorBody>,
}

/// The answer of a turn that is not waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TurnAccepted {
    /// The session.
    pub session_id: SessionId,
    /// The turn.
    pub turn: TurnNumber,
    /// The event that accepted it.
    pub seq: Seq,
}

/// A turn that was accepted. Dropping it interrupts nothing.
pub struct TurnHandle {
    /// Where it was accepted.
    pub accepted: TurnAccepted,
    /// The caller waits for the result, and not just for the turn's acceptance.
    pub wait: bool,
    /// Its result, once it has ended.
    pub result: BoxFuture<'static, Result<TurnResult, SessionError>>,
}

impl TurnHandle {
    /// The answer's JSON.
    ///
    /// # Errors
    /// Where the turn left the queue unstarted.
    pub async fn answer(self) -> Result<Vec<u8>, SessionError> {
        if self.wait { encode(&self.result.await?) } else { encode(&self.accepted) }
    }
}

/// The answer of every other change: the event that recorded it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Changed {
    /// The session.
    pub session_id: SessionId,
    /// The event.
    pub seq: Seq,
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// Where the next page begins; `null` at the end.
    pub next_cursor: Option<String>,
}

impl<T> Page<T> {
    /// A list that fits one page.
    #[must_use]
    pub const fn whole(items: Vec<T>) -> Self {
        Self { items, next_cursor: None }
    }
}

/// A page of events, each as its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventPage {
    /// The lines, in order.
    pub items: Vec<Bytes>,
    /// The cursor after this page.
    pub next_seq: Seq,
}

/// A turn that waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueItem {
    /// The turn.
    pub turn: TurnNumber,
    /// The event that queued it.
    pub seq: Seq,
    /// What the user said.
    pub prompt: Body,
    /// When it was queued.
    pub queued_at: Timestamp,
}

/// What a session is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// Nothing.
    Idle,
    /// A turn or a compaction runs.
    Running,
    /// Turns wait, and none runs.
    Queued,
    /// The running turn waits for an approval.
    Waiting,
}

/// The size of a session's live context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ContextView {
    /// Messages.
    pub messages: u64,
    /// Estimated tokens.
    pub estimated_tokens: u64,
    /// The window of the session's model.
    pub window_tokens: u64,
}

/// A call that waits for a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PendingApproval {
    /// The call.
    pub call_id: String,
    /// The tool.
    pub name: String,
    /// What it is called with, as text; of long arguments the beginning, the end and the size.
    pub arguments: String,
    /// The turn.
    pub turn: TurnNumber,
    /// The event that asked.
    pub seq: Seq,
}

/// The answer of `read`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionView {
    /// The session.
    pub session_id: SessionId,
    /// Its title; while none is set, the first line of its first prompt.
    pub title: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its model.
    pub model: String,
    /// What it is doing.
    pub state: SessionState,
    /// Whether it is archived.
    pub archived: bool,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// Turns that were accepted.
    pub turn_count: u64,
    /// Messages that were ever said.
    pub message_count: u64,
    /// Its last event.
    pub last_seq: Seq,
    /// Its live context.
    pub context: ContextView,
    /// What it has cost.
    pub usage: Usage,
    /// Its reminders.
    pub reminders: Vec<Reminder>,
    /// Its pins.
    pub pins: Vec<Pin>,
    /// The turns that wait.
    pub queue: Vec<QueueItem>,
    /// The calls that wait for a decision.
    pub pending_approvals: Vec<PendingApproval>,
    /// The session it was forked from.
    pub forked_from: Option<SessionId>,
}

/// A session in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionSummary {
    /// The session.
    pub session_id: SessionId,
    /// Its title; while none is set, the first line of its first prompt.
    pub title: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its model.
    pub model: String,
    /// What it is doing.
    pub state: SessionState,
    /// Whether it is archived.
    pub archived: bool,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// Turns that were accepted.
    pub turn_count: u64,
    /// Messages that were ever said.
    pub message_count: u64,
    /// Its last event.
    pub last_seq: Seq,
    /// What it has cost.
    pub usage: Usage,
    /// The session it was forked from.
    pub forked_from: Option<SessionId>,
}

/// One message of a session's history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryItem {
    /// The event that holds it.
    pub seq: Seq,
    /// The turn.
    pub turn: Option<TurnNumber>,
    /// Who said it: `user`, `assistant` or `tool_results`; `pruned` where what was said is gone.
    pub role: String,
    /// What was said.
    pub message: Message,
}

impl HistoryItem {
    /// Says that what was said in some events is gone.
    #[must_use]
    pub fn pruned(from: Seq, to: Seq) -> Self {
        let message = Message::System { content: format!("What was said in events {from} to {to} is gone.").into() };
        Self { seq: to, turn: None, role: "pruned".to_owned(), message }
    }
}

/// A piece of a blob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BlobPage {
    /// The bytes in base64.
    pub data: String,
    /// Where the next piece begins; `null` at the end.
    pub next_offset: Option<u64>,
}

impl BlobPage {
    /// The bytes themselves; `None` where they are no base64.
    #[must_use]
    pub fn bytes(&self) -> Option<Vec<u8>> {
        BASE64_STANDARD.decode(&self.data).ok()
    }
}

/// How a compaction made its summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CompactionMode {
    /// A model wrote it.
    Summary,
    /// It was put together without a model.
    Mechanical,
    /// There is none; stale tool results were masked.
    Mask,
}

/// What a compaction kept, dropped and cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CompactionReceipt {
    /// The event that completed it; `null` for a preview.
    pub compaction: Option<Seq>,
    /// How its summary was made.
    pub mode: CompactionMode,
    /// Messages that stay.
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
    /// What the summary cost.
    pub usage: Usage,
    /// Calls of the model that the summary took, where one was not enough to read all that left.
    #[serde(default, skip_serializing_if = "is_one_round")]
    pub rounds: u32,
    /// Messages that the model was not shown, because each is too long for it or there were too many: of them the
    /// summary has parts, as a mechanical one has.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unread: u64,
}

const fn is_one_round(rounds: &u32) -> bool {
    *rounds <= 1
}

const fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A piece of what was said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SearchHit {
    /// The session.
    pub session_id: SessionId,
    /// The first event it comes from.
    pub from_seq: Seq,
    /// The last event it comes from.
    pub to_seq: Seq,
    /// Who said it: `user`, `assistant` or `tool_results`; `pruned` where what was said is gone.
    pub role: String,
    /// When.
    pub time: Timestamp,
    /// What was said.
    pub text: String,
    /// How well it fits.
    pub score: f64,
    /// What each lane of the search gave it.
    pub lanes: BTreeMap<String, f64>,
}

/// The answer of `forget_memory`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Forgotten {
    /// Pieces that were forgotten.
    pub forgotten: u64,
}

/// The answer of `reindex_memory`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reindexed {
    /// Pieces that were indexed.
    pub indexed: u64,
}

/// A row of the error table.
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
    /// Whether the same request can succeed later.
    pub retryable: bool,
    /// The message where nothing more is known.
    pub message: &'static str,
}

/// The answer of `errors`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ErrorList {
    /// Every code, in the order of the table.
    pub items: Vec<ErrorRow>,
}

impl ErrorList {
    /// The whole table.
    #[must_use]
    pub fn all() -> Self {
        let row = |&code: &ErrorCode| ErrorRow {
            code,
            http_status: code.http_status(),
            rpc_code: code.rpc_code(),
            exit_code: code.exit_code(),
            retryable: code.retry().is_retryable(),
            message: code.message(),
        };
        Self { items: ErrorCode::ALL.iter().map(row).collect() }
    }
}
