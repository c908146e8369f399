//! Turns in their states: queued, open, and ended.

use std::sync::Arc;

use meerkat_errors::ErrorBody;
use serde::{Deserialize, Serialize};

use meerkat_words::{
    agents::Delegated,
    answers::{QueueItem, TurnResult, TurnStatus},
    calls::OpenCall,
};

use super::{
    event::{
        Agent, AssistantMessage, CallRequested, Decision, Event, Key, Record, ToolFinished, TurnEdited, TurnQueued,
        TurnStarted, TurnSteered, TurnTotals,
    },
    message::{Block, Body, Message, RawJson, ToolCall, ToolResult},
};
use crate::{
    SessionError,
    clock::Timestamp,
    compaction::CompactionConfig,
    cost::Cost,
    ids::{Seq, SessionId, TurnNumber},
    model::{StopReason, Usage},
    options::{Budget, Budgets, ModelOptions},
    output::{OutputError, OutputSpec},
    tool::{Form, TurnAccess},
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
        self.terms.client_tools = None;
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
    /// Answers so far that did not fit its schema and went back to the model.
    #[serde(default)]
    pub refusals: u8,
    /// What was wrong with the last answer, if it went back to the model.
    #[serde(default)]
    pub refused: Vec<OutputError>,
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
    /// It waits for its caller.
    Requested(Requested),
    /// It waits for its sub-agent.
    Delegated(Delegating),
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

/// Request of a call to its caller.
#[derive(Clone, Debug, PartialEq)]
pub struct Requested {
    /// Its time.
    pub time: Timestamp,
    /// The call, as answers name it.
    pub call: Arc<OpenCall>,
}

/// Call that waits for its sub-agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delegating {
    /// The time at which it started.
    pub time: Timestamp,
    /// The sub-agent.
    pub child: SessionId,
    /// What is kept for the sub-agent.
    pub reserved: Budgets,
    /// The agent that it is.
    pub agent: Option<Arc<Agent>>,
}

impl Delegating {
    /// Returns what is kept for the sub-agent as if it were used. A budget without a limit counts for nothing.
    #[must_use]
    pub fn all(&self) -> Delegated {
        let Budgets { tokens, steps, tool_calls, wall_ms: _, cost, agents } = self.reserved;
        let of = Option::unwrap_or_default;
        Delegated {
            agents: of(agents).saturating_add(1),
            steps: of(steps),
            tool_calls: of(tool_calls),
            tokens: of(tokens),
            cost,
        }
    }
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
            Event::CallRequested(request) => {
                let CallRequested { call_id, name, arguments, effect, deadline } = request.clone();
                let (turn, seq) = (record.turn.unwrap_or_default(), record.seq);
                let call = Arc::new(OpenCall { call_id, name, arguments, effect, deadline, turn, seq });
                (&request.call_id, Self::Requested(Requested { time: record.time, call }))
            }
            Event::DelegateStarted(started) => {
                let (child, reserved, agent) = (started.child, started.reserved, started.agent.clone());
                (&started.call_id, Self::Delegated(Delegating { time: record.time, child, reserved, agent }))
            }
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
    /// Schema that an interrupted turn's answer had to fit, which is taken over too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Arc<OutputSpec>>,
    /// What was wrong with its last answer, if it was interrupted before another one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<OutputError>,
    /// True if it completed with an answer that fits a schema.
    #[serde(default)]
    pub has_output: bool,
    /// Its own compaction config, which is taken over too.
    pub compaction: Option<CompactionConfig>,
    /// What its calls might do, which is taken over too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<TurnAccess>,
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
    /// Returns the answer for its callers; `text` are the model's last texts, whole, of which the last begins at
    /// `last_at`. By a schema that one counts: a model that calls a tool to answer may say something before.
    #[must_use]
    pub fn result(&self, session_id: SessionId, text: String, last_at: usize) -> TurnResult {
        let answer = text.get(last_at..).filter(|_| self.has_output);
        let output = answer.and_then(|answer| RawJson::parse(answer.trim()).ok());
        TurnResult {
            session_id,
            turn: self.turn,
            seq: self.seq,
            status: self.status,
            model: self.model.clone(),
            text,
            output,
            stop_reason: self.stop_reason,
            usage: self.totals.usage,
            cost: self.totals.cost,
            steps: self.totals.steps,
            tool_calls: self.totals.tool_calls,
            compactions: self.totals.compactions,
            error: self.error.clone(),
            delegated: self.totals.delegated,
            calls: Vec::new(),
        }
    }
}

impl OpenTurn {
    /// Returns true if a call waits for a decision, for its caller or for its sub-agent.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        let waits = |call: &CallState| {
            let progress = &call.progress;
            matches!(progress, CallProgress::Waiting(_) | CallProgress::Requested(_) | CallProgress::Delegated(_))
        };
        self.calls.iter().any(waits)
    }

    /// Lists the calls that wait for their sub-agents.
    pub fn delegating(&self) -> impl Iterator<Item = (&ToolCall, &Delegating)> {
        self.calls.iter().filter_map(|state| match &state.progress {
            CallProgress::Delegated(delegating) => Some((&state.call, delegating)),
            _ => None,
        })
    }

    /// Returns what sub-agents used, and what is kept for those that work.
    #[must_use]
    pub fn delegated(&self) -> Delegated {
        let used = self.totals.delegated.unwrap_or(Delegated::NOTHING);
        self.delegating().fold(used, |sum, (_, delegating)| sum.and(delegating.all()))
    }

    /// Counts what the sub-agent of a call used that has its result.
    pub(super) fn spend_delegated(&mut self, finished: &ToolFinished) {
        let its = self.delegating().find(|(call, _)| call.call_id == finished.call_id);
        let kept = its.map(|(_, delegating)| delegating.all());
        if let Some(used) = finished.delegated.or(kept) {
            self.totals.delegated = Some(self.totals.delegated.unwrap_or(Delegated::NOTHING).and(used));
        }
    }

    /// Returns true if a call waits for a decision.
    #[must_use]
    pub fn asks(&self) -> bool {
        self.calls.iter().any(|call| matches!(call.progress, CallProgress::Waiting(_)))
    }

    /// Lists the requests of the calls that wait for their caller.
    pub fn requested(&self) -> impl Iterator<Item = &Requested> {
        self.calls.iter().filter_map(|state| match &state.progress {
            CallProgress::Requested(requested) => Some(requested),
            _ => None,
        })
    }

    /// Returns the question about a call that waits.
    #[must_use]
    pub fn asked(&self, call_id: &str) -> Option<&Asked> {
        let call = self.calls.iter().find(|call| call.call.call_id == call_id)?;
        match &call.progress {
            CallProgress::Waiting(asked) => Some(asked),
            CallProgress::Proposed
            | CallProgress::Decided(..)
            | CallProgress::Started
            | CallProgress::Requested(_)
            | CallProgress::Delegated(_)
            | CallProgress::Finished(_) => None,
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

    /// Returns true if the turn can go on in another process: somebody was asked about its open calls, or for them, and
    /// none of them has started, so none has had an effect here.
    #[must_use]
    pub fn outlives_its_process(&self) -> bool {
        let is_asked = |call: &CallState| {
            let progress = &call.progress;
            let is_decided = matches!(progress, CallProgress::Waiting(_) | CallProgress::Decided(..));
            is_decided || matches!(progress, CallProgress::Requested(_) | CallProgress::Delegated(_))
        };
        let is_started = |call: &CallState| call.progress == CallProgress::Started;
        !self.is_imported && self.calls.iter().any(is_asked) && !self.calls.iter().any(is_started)
    }

    /// Opens the turn of a `turn_started`, which is the event `seq`.
    pub(super) fn of(turn: TurnNumber, seq: Seq, started: &TurnStarted, key: Option<Key>) -> Self {
        let terms = TurnStarted { key, prompt: None, blocks: Vec::new(), ..started.clone() };
        Self { turn, seq, terms, totals: TurnTotals::begun(), ..Self::default() }
    }

    /// Counts tokens and their cost.
    pub(super) fn spend(&mut self, usage: Usage, cost: Option<Cost>) {
        self.totals.usage.add(usage);
        self.totals.cost = Cost::sum(self.totals.cost, cost);
    }

    /// Takes the text of an answer, and the reason for its end.
    pub(super) fn answered(&mut self, seq: Seq, answer: &AssistantMessage) {
        self.stop_reason = Some(answer.stop_reason);
        self.refused.clear();
        let text = answer.text();
        let has_calls = || answer.blocks.iter().any(|block| matches!(block, Block::ToolCall(_)));
        // By a schema the last answer counts, also one without a text.
        if !text.is_empty() || (self.terms.output.is_some() && !has_calls()) {
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
        Some(TurnEnd { error, ..self.so_far(record.seq, status, totals.clone()) })
    }

    /// Returns what there is of the turn, which waits for its caller to answer these calls.
    pub(crate) fn waiting(&self, calls: &[OpenCall]) -> TurnEnd {
        let seq = calls.iter().map(|call| call.seq).max().unwrap_or(self.seq);
        self.so_far(seq, TurnStatus::Waiting, self.totals.clone())
    }

    fn so_far(&self, seq: Seq, status: TurnStatus, totals: TurnTotals) -> TurnEnd {
        TurnEnd {
            turn: self.turn,
            seq,
            status,
            model: self.terms.model.clone(),
            budgets: self.terms.budgets,
            options: self.terms.options.clone(),
            output: self.terms.output.clone().filter(|_| status == TurnStatus::Interrupted),
            refused: if status == TurnStatus::Interrupted { self.refused.clone() } else { Vec::new() },
            has_output: self.terms.output.is_some() && status == TurnStatus::Completed,
            compaction: self.terms.compaction,
            access: self.terms.access,
            text: self.text.clone(),
            text_seq: self.text_seq,
            stop_reason: self.stop_reason,
            totals,
            error: None,
        }
    }
}

/// Finds the end of a turn in its events, and what there is of it before, for followers without a
/// [`Session`](super::Session).
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
            Event::AssistantMessage(answer) => {
                self.0.totals.steps += 1;
                self.0.spend(answer.usage, answer.cost);
                self.0.answered(record.seq, answer);
            }
            Event::ToolStarted(_) | Event::CallRequested(_) | Event::DelegateStarted(_) => {
                self.0.totals.tool_calls += 1;
            }
            Event::ContextRebuilt(rebuilt) => {
                let (usage, cost) = rebuilt.bill();
                self.0.spend(usage, cost);
            }
            Event::SummaryUnused(unused) => self.0.spend(unused.usage, unused.cost),
            Event::ToolFinished(finished) => self.0.spend_delegated(finished),
            Event::CompactionCompleted(_) => self.0.totals.compactions += 1,
            _ => {}
        }
        self.0.end(record)
    }

    /// Returns what there is of the turn, which waits for its caller to answer these calls.
    pub(crate) fn waiting(&self, calls: &[OpenCall]) -> TurnEnd {
        self.0.waiting(calls)
    }
}
