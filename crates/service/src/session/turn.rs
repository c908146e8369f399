//! Where a turn stands: its open calls, its totals, and how it ended.

use std::sync::Arc;

use meerkat_errors::ErrorBody;
use serde::{Deserialize, Serialize};

use meerkat_words::answers::{QueueItem, TurnResult, TurnStatus};

use super::{
    event::{Decision, Event, Key, Record, TurnQueued, TurnTotals},
    message::{Body, ToolCall, ToolResult},
};
use crate::{
    SessionError,
    clock::Timestamp,
    compaction::CompactionConfig,
    ids::{Seq, SessionId, TurnNumber},
    model::StopReason,
    options::{Budget, Budgets, Policy},
};

/// A turn that was accepted and waits.
#[derive(Clone, Debug, PartialEq)]
pub struct QueuedTurn {
    /// Its number.
    pub turn: TurnNumber,
    /// The event that queued it.
    pub seq: Seq,
    /// When.
    pub time: Timestamp,
    /// What the user said.
    pub prompt: Body,
    /// The model it names.
    pub model: Option<String>,
    /// Its budgets.
    pub budgets: Budgets,
    /// How it compacts, where it says so itself.
    pub compaction: Option<CompactionConfig>,
    /// How it was accepted.
    pub policy: Policy,
    /// Its idempotency key.
    pub key: Option<Key>,
}

impl QueuedTurn {
    /// The turn that a `turn_queued` makes wait.
    pub(super) fn of(record: &Record, queued: &TurnQueued) -> Self {
        let TurnQueued { prompt, model, budgets, compaction, policy, key } = queued.clone();
        let turn = record.turn.unwrap_or(0);
        Self { turn, seq: record.seq, time: record.time, prompt, model, budgets, compaction, policy, key }
    }

    /// How it is listed.
    #[must_use]
    pub fn item(&self) -> QueueItem {
        QueueItem { turn: self.turn, seq: self.seq, prompt: self.prompt.clone(), queued_at: self.time }
    }
}

/// The turn that runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenTurn {
    /// Its number.
    pub turn: TurnNumber,
    /// The model that answers.
    pub model: String,
    /// Its budgets.
    pub budgets: Budgets,
    /// How it compacts, where it says so itself.
    pub compaction: Option<CompactionConfig>,
    /// Its idempotency key.
    pub key: Option<Key>,
    /// What it did and cost so far.
    pub totals: TurnTotals,
    /// The calls of the last answer, in call order; empty once their results stand in the context, and in a snapshot.
    #[serde(skip)]
    pub calls: Vec<CallState>,
    /// Whether the model has answered since the last prompt or results.
    pub is_answered: bool,
    /// Why the model stopped last.
    pub stop_reason: Option<StopReason>,
    /// What the model said last; empty in a snapshot.
    #[serde(skip)]
    pub text: Arc<[Body]>,
    /// The event that holds it.
    pub text_seq: Option<Seq>,
    /// Budgets that were warned of.
    pub warned: Vec<Budget>,
    /// Hashes of the newest steps, each its calls with their results, the newest last. Another version may hash otherwise; a turn that
    /// is loaded never runs on, so nothing is compared with those of a snapshot.
    pub signatures: Vec<u64>,
    /// The tool of the newest call.
    pub last_tool: String,
    /// Calls of the last answer that had malformed arguments.
    pub malformed_calls: usize,
    /// Steps in a row whose calls all had malformed arguments.
    pub malformed_steps: u32,
}

/// A call of the last answer.
#[derive(Clone, Debug, PartialEq)]
pub struct CallState {
    /// The call.
    pub call: ToolCall,
    /// Where it stands.
    pub progress: CallProgress,
}

/// Where a call stands.
#[derive(Clone, Debug, PartialEq)]
pub enum CallProgress {
    /// The model asked for it.
    Proposed,
    /// It waits for a decision since this event.
    Waiting(Seq),
    /// It was decided.
    Decided(Decision, Option<String>),
    /// It runs.
    Started,
    /// It has its result.
    Finished(ToolResult),
}

impl CallProgress {
    /// The call that a record is about, and where the call stands after it.
    pub(super) fn after(record: &Record) -> Option<(&str, Self)> {
        Some(match &record.event {
            Event::ToolStarted(started) => (&started.call_id, Self::Started),
            Event::ToolFinished(finished) => (&finished.call_id, Self::Finished(finished.result())),
            Event::ApprovalRequested(request) => (&request.call_id, Self::Waiting(record.seq)),
            Event::ApprovalDecided(decided) => {
                (&decided.call_id, Self::Decided(decided.decision, decided.reason.clone()))
            }
            _ => return None,
        })
    }
}

/// How a turn ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnEnd {
    /// The turn.
    pub turn: TurnNumber,
    /// The event that ended it.
    pub seq: Seq,
    /// How.
    pub status: TurnStatus,
    /// The model that answered.
    pub model: String,
    /// Its budgets, which a turn that continues it takes over.
    #[serde(default)]
    pub budgets: Budgets,
    /// How it compacted, if it said so itself; taken over too.
    #[serde(default)]
    pub compaction: Option<CompactionConfig>,
    /// What it said last; empty in what an idempotency key stands for, and in a snapshot.
    #[serde(skip)]
    pub text: Arc<[Body]>,
    /// The event that holds it.
    pub text_seq: Option<Seq>,
    /// Why it stopped.
    pub stop_reason: Option<StopReason>,
    /// What the turn did and cost.
    pub totals: TurnTotals,
    /// Why it did not complete.
    pub error: Option<ErrorBody>,
}

impl TurnEnd {
    /// The answer that is sent for it; `text` is what the model said last, whole.
    #[must_use]
    pub fn result(&self, session_id: SessionId, text: String) -> TurnResult {
        TurnResult {
            session_id,
            turn: self.turn,
            seq: self.seq,
            status: self.status,
            model: self.model.clone(),
            text,
            stop_reason: self.stop_reason,
            usage: self.totals.usage,
            steps: self.totals.steps,
            tool_calls: self.totals.tool_calls,
            compactions: self.totals.compactions,
            error: self.error.clone(),
        }
    }
}

/// What a turn's last event says of its end.
pub(super) fn ending(record: &Record, turn: TurnNumber) -> Option<(TurnStatus, TurnTotals, Option<ErrorBody>)> {
    match &record.event {
        Event::TurnCompleted(completed) => Some((TurnStatus::Completed, completed.totals.clone(), None)),
        Event::TurnFailed(failed) => Some((TurnStatus::Failed, failed.totals.clone(), Some(failed.error.clone()))),
        Event::TurnInterrupted(interrupted) => {
            let error = SessionError::Interrupted { turn }.body().detail("reason", interrupted.reason.clone());
            Some((TurnStatus::Interrupted, interrupted.totals.clone(), Some(error)))
        }
        _ => None,
    }
}

/// Finds how a turn ended in its events, for whoever follows them and has no [`Session`](super::Session).
#[derive(Debug)]
pub(crate) struct TurnFold {
    turn: TurnNumber,
    model: String,
    budgets: Budgets,
    compaction: Option<CompactionConfig>,
    text: Arc<[Body]>,
    text_seq: Option<Seq>,
    stop_reason: Option<StopReason>,
}

impl TurnFold {
    /// The fold of a turn. It wants the session's records from the turn's `turn_started` on.
    pub(crate) fn new(turn: TurnNumber) -> Self {
        Self {
            turn,
            model: String::new(),
            budgets: Budgets::default(),
            compaction: None,
            text: Arc::default(),
            text_seq: None,
            stop_reason: None,
        }
    }

    /// Takes the next record in; answers with the end, where that is what it records.
    pub(crate) fn push(&mut self, record: &Record) -> Option<TurnEnd> {
        if record.turn != Some(self.turn) {
            return None;
        }
        match &record.event {
            Event::TurnStarted(started) => {
                self.model.clone_from(&started.model);
                (self.budgets, self.compaction) = (started.budgets, started.compaction);
            }
            Event::AssistantMessage(answer) => {
                self.stop_reason = Some(answer.stop_reason);
                let text = answer.text();
                if !text.is_empty() {
                    (self.text, self.text_seq) = (text, Some(record.seq));
                }
            }
            _ => {}
        }
        let (status, totals, error) = ending(record, self.turn)?;
        Some(TurnEnd {
            turn: self.turn,
            seq: record.seq,
            status,
            model: self.model.clone(),
            budgets: self.budgets,
            compaction: self.compaction,
            text: self.text.clone(),
            text_seq: self.text_seq,
            stop_reason: self.stop_reason,
            totals,
            error,
        })
    }
}
