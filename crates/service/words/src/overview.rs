//! What people look at over many sessions or a whole session: changes of the list, calls that wait, steps and turns.

use meerkat_errors::ErrorBody;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    answers::{CompactionReceipt, PendingApproval, SessionSummary, TurnStatus},
    clock::Timestamp,
    cost::Cost,
    ids::{Seq, SessionId, TurnNumber},
    model::Usage,
    object::written,
    options::{Budgets, ModelOptions},
    output::OutputSpec,
};

/// Request of `changes`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FollowSessions {
    /// Cursor from the previous page; `null` begins with the whole list.
    pub cursor: Option<String>,
    /// Most changes to return.
    pub limit: Option<usize>,
    /// Milliseconds to wait for the first change. The answer may come earlier and be empty; ask again with its cursor.
    pub wait_ms: u64,
}

/// Changes of the list of sessions, the oldest first. A change may be returned more than once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ChangePage {
    /// True if the whole list begins here, because there was no cursor, or one of another process or of too long ago:
    /// forget the list so far.
    pub restarts: bool,
    /// The changes.
    pub items: Vec<SessionChange>,
    /// True if nothing else had changed.
    pub is_current: bool,
    /// Cursor of the next page.
    pub next_cursor: String,
}

/// Session that has changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionChange {
    /// The session.
    pub session_id: SessionId,
    /// The session as it is now; `null` if it was deleted.
    pub session: Option<SessionSummary>,
}

/// Request of `approvals`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ListApprovals {
    /// Cursor from the previous page.
    pub cursor: Option<String>,
    /// Most calls to return. Those of one session always come together, even if they are more.
    pub limit: Option<usize>,
}

/// What a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OpenKind {
    /// A decision.
    Approval,
    /// An answer to a server's question.
    Question,
    /// Its caller's answer (`answer_call`).
    Call,
}

/// Call that waits for a person or for its caller, with its session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OpenApproval {
    /// The session.
    pub session_id: SessionId,
    /// The session's title; if none is set, the first line of its first prompt.
    pub title: Option<String>,
    /// Folder that the session's tools work in; left out if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// The session at the top of its tree, where a person looks; left out if it is no sub-agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<SessionId>,
    /// What it waits for.
    pub kind: OpenKind,
    /// Time at which the call asked.
    pub waits_since: Timestamp,
    /// The call.
    pub approval: PendingApproval,
}

/// Estimated tokens of a request, by what they are for. Together with `free` they are the model's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ContextTokens {
    /// The system prompt.
    pub system: u64,
    /// The definitions of the tools.
    pub tools: u64,
    /// The reminders.
    pub reminders: u64,
    /// The pins.
    pub pins: u64,
    /// The summary and the messages, without results of tools.
    pub history: u64,
    /// The results of tools.
    pub tool_results: u64,
    /// The rest of the window, which the answer comes out of; `null` if the window is not known.
    pub free: Option<u64>,
}

impl ContextTokens {
    /// Sets `free` to the rest of a window; a window of 0 is not known.
    #[must_use]
    pub fn within(self, window_tokens: u64) -> Self {
        Self { free: (window_tokens > 0).then(|| window_tokens.saturating_sub(self.used())), ..self }
    }

    /// Returns the sum of all parts but the free one.
    #[must_use]
    pub const fn used(&self) -> u64 {
        let Self { system, tools, reminders, pins, history, tool_results, .. } = *self;
        system + tools + reminders + pins + history + tool_results
    }
}

/// What changed a session's context, or shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    /// A model answered.
    ModelCall,
    /// The context was compacted.
    Compaction,
    /// A compaction failed.
    CompactionFailed,
    /// A compaction was undone.
    CompactionUndone,
}

/// Model call with the window that it saw, or a compaction between two of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepView {
    /// The event.
    pub seq: Seq,
    /// Its time.
    pub time: Timestamp,
    /// The turn.
    pub turn: Option<TurnNumber>,
    /// What it was.
    pub kind: StepKind,
    /// Number of a model call in its turn, from 0.
    pub step: Option<u32>,
    /// Tokens that a model call or the summary of a compaction used.
    pub usage: Option<Usage>,
    /// Cost of a model call or of the summary of a compaction; `null` if it is unknown, and for the other kinds.
    pub cost: Option<Cost>,
    /// Window of a model call; `null` in journals of older versions.
    pub context: Option<ContextTokens>,
    /// The compaction: the seq of the event that completed it.
    pub compaction: Option<Seq>,
    /// Report of a compaction.
    pub receipt: Option<CompactionReceipt>,
    /// Error of a compaction that failed.
    pub error: Option<ErrorBody>,
}

/// Turn with its cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TurnView {
    /// The turn.
    pub turn: TurnNumber,
    /// The event that started it.
    pub seq: Seq,
    /// Time of that event.
    pub started_at: Timestamp,
    /// Time of its end; `null` if it has not ended.
    pub ended_at: Option<Timestamp>,
    /// Outcome; `null` if it has not ended.
    pub status: Option<TurnStatus>,
    /// Its model.
    pub model: String,
    /// Tokens used.
    pub usage: Usage,
    /// Cost so far; `null` if the price of a part is unknown.
    pub cost: Option<Cost>,
    /// Model calls that answered.
    pub steps: u32,
    /// Tool calls; of a turn that has not ended those that have a result.
    pub tool_calls: u32,
    /// Its budgets.
    #[schemars(schema_with = "written::<Budgets>")]
    pub budgets: Budgets,
    /// How its model was asked.
    #[serde(default, skip_serializing_if = "ModelOptions::is_default")]
    #[schemars(schema_with = "written::<ModelOptions>")]
    pub options: ModelOptions,
    /// What its answer has to fit; left out if that was not asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "written::<OutputSpec>")]
    pub output: Option<OutputSpec>,
}
