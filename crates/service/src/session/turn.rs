//! Turns in their states: queued, open, and ended.

use std::sync::Arc;

use meerkat_errors::ErrorBody;
use serde::{Deserialize, Serialize};

use meerkat_words::answers::{QueueItem, TurnResult, TurnStatus};

use super::{
    event::{
        AssistantMessage, Decision, Event, Key, Record, TurnEdited, TurnQueued, TurnStarted, TurnSteered, TurnTotals,
    },
    message::{Body, Message, ToolCall, ToolResult},
};
use crate::{
    SessionError,
    clock::Timestamp,
    compaction::CompactionConfig,
    ids::{Seq, SessionId, TurnNumber},
    model::StopReason,
    options::{Budget, Budgets, ModelOptions},
    tool::Form,
};

/// A turn that was accepted and waits.
#[derive(Clone, Debug, PartialEq)]
pub struct QueuedTurn {
    /// Number.
    pub turn: TurnNumber,
    /// The event that queued it.
    pub seq: Seq,
    /// The event that holds its prompt: a later one if it was edited.
    pub prompt_seq: Seq,
    /// Time of queueing.
    pub time: Timestamp,
    /// What it was asked for.
    pub terms: TurnQueued,
}

impl QueuedTurn {
    /// The turn that a `turn_queued` makes wait.
    pub(super) fn of(record: &Record, queued: &TurnQueued) -> Self {
        let (turn, seq) = (record.turn.unwrap_or(0), record.seq);
        Self { turn, seq, prompt_seq: seq, time: record.time, terms: queued.clone() }
    }

    /// Takes another prompt, if the event `seq` has one.
    pub(super) fn edited(&mut self, seq: Seq, edited: &TurnEdited) {
        if let Some(prompt) = &edited.prompt {
            (self.prompt_seq, self.terms.prompt) = (seq, prompt.clone());
            self.terms.blocks.clone_from(&edited.blocks);
        }
    }

    /// Takes away what would let its calls run, because it came in a bundle.
    pub(super) fn imported(&mut self) {
        (self.terms.attended, self.terms.allow, self.terms.search_path) = (false, Vec::new(), None);
    }

    /// Returns its entry in a list.
    #[must_use]
    pub fn item(&self) -> QueueItem {
        let TurnQueued { prompt, blocks, .. } = &self.terms;
        let (prompt, blocks) = (prompt.clone(), blocks.clone());
        QueueItem { turn: self.turn, seq: self.seq, prompt, blocks, queued_at: self.time }
    }
}

/// The turn that runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OpenTurn {
    /// Number.
    pub turn: TurnNumber,
    /// The event that started it.
    pub seq: Seq,
    /// How it started: without its prompt, which is in the context, and with the key of its `turn_queued`.
    pub terms: TurnStarted,
    /// True if it came in a bundle, so that no decision in it counts.
    pub is_imported: bool,
    /// Counts and cost so far.
    pub totals: TurnTotals,
    /// Calls of the last answer, in call order; empty once their results are in the context, and in a snapshot.
    #[serde(skip)]
    pub calls: Vec<CallState>,
    /// Questions of servers during these calls, as long as these run; empty in a snapshot.
    #[serde(skip)]
    pub forms: Vec<FormState>,
    /// True if the model has answered since the last prompt or results.
    pub is_answered: bool,
    /// Reason for the model's last stop.
    pub stop_reason: Option<StopReason>,
    /// Last text of the model; empty in a snapshot.
    #[serde(skip)]
    pub text: Arc<[Body]>,
    /// The event that holds it.
    pub text_seq: Option<Seq>,
    /// What had come of an answer that was cut off, while nothing follows it in the turn; empty in a snapshot.
    #[serde(skip)]
    pub partial: Option<Body>,
    /// The event that holds it.
    pub partial_seq: Option<Seq>,
    /// Texts that the user added while it ran.
    #[serde(default)]
    pub steered: Vec<SteeredText>,
    /// Budgets that were warned of.
    pub warned: Vec<Budget>,
    /// Hashes of the newest steps (calls with their results), the newest last. Versions may hash differently: then a
    /// loaded turn that goes on notices a loop later.
    pub signatures: Vec<u64>,
    /// The tool of the newest call.
    pub last_tool: String,
    /// Calls of the last answer that had malformed arguments.
    pub malformed_calls: usize,
    /// Steps in a row whose calls all had malformed arguments.
    pub malformed_steps: u32,
}

/// Text that the user added to a running turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SteeredText {
    /// The event that accepted it.
    pub seq: Seq,
    /// Its idempotency key.
    pub key: Option<String>,
    /// True if it is in the context.
    pub has_entered: bool,
    /// The user's message, until it is in the context; empty in a snapshot.
    #[serde(skip)]
    pub message: Option<Message>,
}

impl SteeredText {
    /// The text that a `turn_steered` brings.
    pub(super) fn of(seq: Seq, steered: &TurnSteered) -> Self {
        let key = steered.key.as_ref().map(|key| key.key.clone());
        Self { seq, key, has_entered: false, message: Some(steered.message()) }
    }
}

/// A call of the last answer.
#[derive(Clone, Debug, PartialEq)]
pub struct CallState {
    /// The call.
    pub call: ToolCall,
    /// Progress.
    pub progress: CallProgress,
}

/// Progress of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum CallProgress {
    /// The model asked for it.
    Proposed,
    /// It waits for a decision.
    Waiting(Asked),
    /// It has a decision.
    Decided(Answered),
    /// It runs.
    Started,
    /// It has its result.
    Finished(ToolResult),
}

/// Question about a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The event that asked.
    pub seq: Seq,
    /// Its time.
    pub time: Timestamp,
    /// Text for the person who decides.
    pub preview: Option<String>,
    /// Rule that an approval can allow beyond this call.
    pub rule: Option<String>,
}

/// Question of a server while its call runs.
#[derive(Clone, Debug, PartialEq)]
pub struct FormState {
    /// Its own id, which is no call's.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The event that asked.
    pub seq: Seq,
    /// Its time.
    pub time: Timestamp,
    /// The question.
    pub form: Form,
    /// True if it has a decision.
    pub is_decided: bool,
}

/// Decision on a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The decision.
    pub decision: Decision,
    /// Reason, for the model to read.
    pub reason: Option<String>,
    /// Preview that was shown to the person who decided.
    pub preview: Option<String>,
}

impl CallState {
    /// Returns true if a person approved the call, and it has not started.
    #[must_use]
    pub fn is_approved(&self) -> bool {
        matches!(&self.progress, CallProgress::Decided(answered) if answered.decision == Decision::Approve)
    }

    /// Moves the call on. A decision keeps the preview of its question.
    pub(super) fn follow(&mut self, mut progress: CallProgress) {
        if let (CallProgress::Decided(answered), CallProgress::Waiting(asked)) = (&mut progress, &mut self.progress) {
            answered.preview = asked.preview.take();
        }
        self.progress = progress;
    }
}

impl CallProgress {
    /// Returns the call of a record, and the call's progress after it.
    pub(super) fn after(record: &Record) -> Option<(&str, Self)> {
        Some(match &record.event {
            Event::ToolStarted(started) => (&started.call_id, Self::Started),
            Event::ToolFinished(finished) => (&finished.call_id, Self::Finished(finished.result())),
            Event::ApprovalRequested(request) if request.form.is_none() => {
                let (preview, rule) = (request.preview.clone(), request.rule.clone());
                (&request.call_id, Self::Waiting(Asked { seq: record.seq, time: record.time, preview, rule }))
            }
            Event::ApprovalDecided(decided) => {
                let (decision, reason) = (decided.decision, decided.reason.clone());
                (&decided.call_id, Self::Decided(Answered { decision, reason, preview: None }))
            }
            _ => return None,
        })
    }
}

/// End of a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnEnd {
    /// The turn.
    pub turn: TurnNumber,
    /// The event that ended it.
    pub seq: Seq,
    /// Status.
    pub status: TurnStatus,
    /// The model that answered.
    pub model: String,
    /// Budgets, which a turn that continues it takes over.
    pub budgets: Budgets,
    /// How its model was asked, which is taken over too.
    #[serde(default, skip_serializing_if = "ModelOptions::is_default")]
    pub options: ModelOptions,
    /// Its own compaction config, which is taken over too.
    pub compaction: Option<CompactionConfig>,
    /// Last text of the model; empty in a key's use, and in a snapshot.
    #[serde(skip)]
    pub text: Arc<[Body]>,
    /// The event that holds it.
    pub text_seq: Option<Seq>,
    /// Reason for the model's last stop.
    pub stop_reason: Option<StopReason>,
    /// Counts and cost of the turn.
    pub totals: TurnTotals,
    /// Reason why it did not complete.
    pub error: Option<ErrorBody>,
}

impl TurnEnd {
    /// Returns the answer for its callers; `text` is the model's last text, whole.
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
            cost: self.totals.cost,
            steps: self.totals.steps,
            tool_calls: self.totals.tool_calls,
            compactions: self.totals.compactions,
            error: self.error.clone(),
        }
    }
}

impl OpenTurn {
    /// Returns true if a call waits for a decision.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.calls.iter().any(|call| matches!(call.progress, CallProgress::Waiting(_)))
    }

    /// Returns the question about a call that waits.
    #[must_use]
    pub fn asked(&self, call_id: &str) -> Option<&Asked> {
        let call = self.calls.iter().find(|call| call.call.call_id == call_id)?;
        match &call.progress {
            CallProgress::Waiting(asked) => Some(asked),
            CallProgress::Proposed | CallProgress::Decided(..) | CallProgress::Started | CallProgress::Finished(_) => {
                None
            }
        }
    }

    /// Lists the steered texts that are not in the context yet, in order.
    pub(crate) fn waiting_texts(&self) -> impl Iterator<Item = &SteeredText> {
        self.steered.iter().filter(|text| !text.has_entered)
    }

    /// Lists the idempotency keys that lead to it.
    pub(super) fn keys(&self) -> impl Iterator<Item = &String> {
        let own = self.terms.key.iter().map(|key| &key.key);
        own.chain(self.steered.iter().filter_map(|text| text.key.as_ref()))
    }

    /// Lists the questions of servers that wait for an answer. They end with their calls, and so with the process.
    pub fn open_forms(&self) -> impl Iterator<Item = &FormState> {
        self.forms.iter().filter(|form| !form.is_decided)
    }

    /// Returns true if the turn can go on in another process: somebody was asked about its open calls, and none of them
    /// has started, so none has had an effect.
    #[must_use]
    pub fn outlives_its_process(&self) -> bool {
        let is_asked = |call: &CallState| matches!(call.progress, CallProgress::Waiting(_) | CallProgress::Decided(..));
        let is_started = |call: &CallState| call.progress == CallProgress::Started;
        !self.is_imported && self.calls.iter().any(is_asked) && !self.calls.iter().any(is_started)
    }

    /// Opens the turn of a `turn_started`, which is the event `seq`.
    pub(super) fn of(turn: TurnNumber, seq: Seq, started: &TurnStarted, key: Option<Key>) -> Self {
        let terms = TurnStarted { key, prompt: None, blocks: Vec::new(), ..started.clone() };
        Self { turn, seq, terms, totals: TurnTotals::begun(), ..Self::default() }
    }

    /// Takes the text of an answer, and the reason for its end.
    pub(super) fn answered(&mut self, seq: Seq, answer: &AssistantMessage) {
        self.stop_reason = Some(answer.stop_reason);
        let text = answer.text();
        if !text.is_empty() {
            (self.text, self.text_seq) = (text, Some(seq));
        }
    }

    /// Returns the turn's end if the record is it.
    pub(super) fn end(&self, record: &Record) -> Option<TurnEnd> {
        let (status, totals, error) = match &record.event {
            Event::TurnCompleted(completed) => (TurnStatus::Completed, &completed.totals, None),
            Event::TurnFailed(failed) => (TurnStatus::Failed, &failed.totals, Some(failed.error.clone())),
            Event::TurnInterrupted(interrupted) => {
                let error = SessionError::Interrupted { turn: self.turn }.body();
                let error = error.detail("reason", interrupted.reason.clone());
                (TurnStatus::Interrupted, &interrupted.totals, Some(error))
            }
            _ => return None,
        };
        Some(TurnEnd {
            turn: self.turn,
            seq: record.seq,
            status,
            model: self.terms.model.clone(),
            budgets: self.terms.budgets,
            options: self.terms.options.clone(),
            compaction: self.terms.compaction,
            text: self.text.clone(),
            text_seq: self.text_seq,
            stop_reason: self.stop_reason,
            totals: totals.clone(),
            error,
        })
    }
}

/// Finds the end of a turn in its events, for followers without a [`Session`](super::Session).
#[derive(Debug)]
pub(crate) struct TurnFold(OpenTurn);

impl TurnFold {
    /// The fold of a turn. It wants the session's records from the turn's `turn_started` on.
    pub(crate) fn new(turn: TurnNumber) -> Self {
        Self(OpenTurn { turn, ..OpenTurn::default() })
    }

    /// Takes the next record; returns the end if the record is it.
    pub(crate) fn push(&mut self, record: &Record) -> Option<TurnEnd> {
        let turn = record.turn.filter(|turn| *turn == self.0.turn)?;
        match &record.event {
            Event::TurnStarted(started) => self.0 = OpenTurn::of(turn, record.seq, started, None),
            Event::AssistantMessage(answer) => self.0.answered(record.seq, answer),
            _ => {}
        }
        self.0.end(record)
    }
}
