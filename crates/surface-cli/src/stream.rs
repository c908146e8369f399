//! A running turn as it is shown: its events as they come, its text, and its end.
//!
//! Event lines pass through unchanged; they are decoded only for people.

mod calls;
#[cfg(test)]
mod tests;
mod view;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_service::{
    Operation, Seq, SessionError, SessionId, SessionService, TurnNumber,
    follow::{
        below::{Below, SubAgent},
        turn::{FollowedTurn, TurnStep, record_at, whole},
    },
    model::StopReason,
    options::{Budgets, Effort},
    service::{Decision, OpenCall, PendingApproval, Scope, TurnAccepted, TurnHandle, TurnResult},
    session::{
        event::{ApprovalRequested, Event, Record},
        message::Block,
    },
    tool::Form,
    wire,
};
use serde_json::{Value, json};

pub(crate) use self::view::Show;
use self::{calls::TICK, view::View};
use crate::{app::App, error::CliError, wire::read};

/// Progress of a turn.
pub(crate) enum Progress {
    /// A tool call needs a decision.
    Approval(Call),
    /// The call of this session with this id is decided or over.
    Settled(SessionId, String),
    /// It has ended, or was refused.
    Ended(Result<Box<TurnResult>, SessionError>),
}

/// Tool call.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) session_id: SessionId,
    turn: Option<TurnNumber>,
    pub(crate) call_id: String,
    pub(crate) name: String,
    /// All of them, if the message with the call was followed too.
    pub(crate) arguments: String,
    /// Text for the person who decides: a diff, or a command.
    pub(crate) preview: Option<String>,
    /// Rule that an approval can allow beyond this call.
    pub(crate) rule: Option<String>,
    /// Question of a server.
    pub(crate) form: Option<Form>,
    /// The sub-agent that calls, if it is one.
    pub(crate) of: Option<String>,
}

/// Turn that was requested, until its end.
pub(crate) struct RunningTurn {
    service: Arc<dyn SessionService>,
    session_id: SessionId,
    turn: FollowedTurn,
    /// Its sub-agents.
    below: Below,
    /// The next line to show.
    line: Option<String>,
    /// Questions of a turn that was steered while it waited: no line that follows has them.
    asked_before: VecDeque<Call>,
    /// Reason why not all of the turn could be shown.
    lost: Option<SessionError>,
    since: Seq,
    number: Option<TurnNumber>,
    /// Budgets of the turn.
    budgets: Budgets,
    /// How long its model thinks, if that was said.
    pub(crate) effort: Option<Effort>,
    /// Tokens of the last request that was answered, and the window of its model if that is known.
    pub(crate) fill: Option<(u64, Option<u64>)>,
    /// Arguments of the last message's calls, by the calls' ids. A question has only a part of long ones.
    given: BTreeMap<String, String>,
    view: View,
}

impl Call {
    fn pending(session_id: SessionId, asked: PendingApproval) -> Self {
        let PendingApproval { call_id, name, arguments, turn, preview, rule, form, .. } = asked;
        Self { session_id, turn: Some(turn), call_id, name, arguments, preview, rule, form, of: None }
    }
}

#[cfg(test)]
impl Call {
    pub(crate) fn of(name: &str, arguments: &str) -> Self {
        let (session_id, call_id) = ("01900000-0000-7000-8000-000000000001".parse().unwrap(), "call_0_0".to_owned());
        let [name, arguments] = [name, arguments].map(str::to_owned);
        Self { session_id, turn: None, call_id, name, arguments, preview: None, rule: None, form: None, of: None }
    }
}

impl RunningTurn {
    /// Begins the turn. Events after `since` are shown, or those after the session's last one. Of a turn that
    /// `hides_text` only the JSON of its answer is shown; `None` if that has to be read, since the turn may have begun
    /// before.
    pub(crate) async fn start(
        app: &App,
        session_id: SessionId,
        begin: impl Future<Output = Result<TurnHandle, SessionError>>,
        since: Option<Seq>,
        show: Show,
        hides_text: Option<bool>,
    ) -> Self {
        let service = app.service.clone();
        // A session that cannot be followed can run no turn either, and the turn's answer says why.
        let since = match since {
            Some(since) => since,
            None => last_seq(&service, &session_id).await.unwrap_or(0),
        };
        let (follower, lost) = match service.follow(&session_id, since).await {
            Ok(follower) => (Some(follower), None),
            Err(error) => (None, Some(error)),
        };
        let begun = begin.await;
        let number = begun.as_ref().ok().map(|begun| begun.accepted.turn);
        let hides_text = match (hides_text, &begun) {
            (None, Ok(begun)) => has_schema(service.as_ref(), &begun.accepted).await,
            (known, _) => known.unwrap_or(false),
        };
        let view = match number {
            Some(_) if app.out.can_ask => service.read(&session_id).await.ok(),
            _ => None,
        };
        let is_before = |asked: &PendingApproval| Some(asked.turn) == number && asked.seq <= since;
        let pending = view.into_iter().flat_map(|view| view.pending_approvals).filter(is_before);
        let asked_before = pending.map(|asked| Call::pending(session_id, asked)).collect();
        let turn = begun.map_or_else(FollowedTurn::refused, |begun| FollowedTurn::new(begun, follower));
        let mut view = View::new(app.out.clone(), show, app.config.values.output.markdown);
        view.hides_text = hides_text;
        Self {
            below: Below::new(service.clone()),
            service,
            session_id,
            turn,
            line: None,
            asked_before,
            lost,
            since,
            number,
            budgets: Budgets::default(),
            effort: None,
            fill: None,
            given: BTreeMap::new(),
            view,
        }
    }

    /// Ends the line of a text that is being shown.
    pub(crate) fn end_line(&mut self) -> Result<(), CliError> {
        self.view.end_line()
    }

    /// Shows events up to the next progress. It can be dropped and called again.
    pub(crate) async fn next(&mut self) -> Result<Progress, CliError> {
        loop {
            if let Some(call) = self.asked_before.pop_front() {
                self.view.wait_for_decision()?;
                return Ok(Progress::Approval(call));
            }
            if let Some(line) = &self.line {
                let seen = decoded(&self.service, self.session_id, line, self.view.show).await;
                let Some(line) = self.line.take() else { continue };
                match seen {
                    Ok(record) => {
                        if let Some(progress) = self.see(&line, record)? {
                            return Ok(progress);
                        }
                    }
                    Err(error) => self.lose(error),
                }
            }
            let step = tokio::select! {
                biased;
                step = self.turn.next() => step,
                (agent, record) = self.below.next() => match self.see_below(agent, record)? {
                    Some(progress) => return Ok(progress),
                    None => continue,
                },
                () = tokio::time::sleep(TICK), if self.view.calls.is_waiting() => {
                    self.view.calls.draw();
                    continue;
                }
            };
            match step {
                TurnStep::Line(line) => self.line = Some(String::from_utf8_lossy(&line.line).into_owned()),
                TurnStep::Lost(error) => self.lose(error),
                TurnStep::End(Err(error)) => {
                    self.view.calls.has_answered();
                    return Ok(Progress::Ended(Err(error)));
                }
                TurnStep::End(Ok(result)) => {
                    self.view.calls.has_answered();
                    if result.seq <= self.since {
                        // A repeated request of a turn that had ended: only its answer has the text.
                        self.view.rest_of_step(u64::MAX, &result.text)?;
                    }
                    // A turn that could not be shown completely did not succeed.
                    let lost = self.lost.take().filter(|_| self.view.show != Show::Nothing);
                    return Ok(Progress::Ended(lost.map_or_else(|| Ok(Box::new(result)), Err)));
                }
            }
        }
    }

    /// Stops to show the turn's events; its answer still comes.
    fn lose(&mut self, error: SessionError) {
        tracing::warn!(%error, "the turn's events can be shown no further");
        self.turn.stop_lines();
        self.lost = Some(error);
    }

    fn see(&mut self, line: &str, record: Option<Record>) -> Result<Option<Progress>, CliError> {
        if self.view.show == Show::Events {
            self.view.out.document(line.as_bytes())?;
        }
        let Some(record) = record else {
            let event: Value = read(line.as_bytes())?;
            if self.number.is_some_and(|turn| event["turn"] == turn) {
                self.view.live(&event, line)?;
            }
            return Ok(None);
        };
        if record.turn.is_none() || record.turn != self.number {
            return Ok(None);
        }
        if let Event::TurnStarted(started) = &record.event {
            (self.budgets, self.effort) = (started.budgets, started.options.effort);
        }
        self.view.durable(&record.event)?;
        self.below.take(&record);
        if matches!(
            record.event,
            Event::TurnCompleted(_) | Event::TurnFailed(_) | Event::TurnInterrupted(_) | Event::TurnDequeued(_)
        ) {
            self.turn.stop_lines();
        }
        let (session_id, turn) = (self.session_id, record.turn);
        Ok(match record.event {
            Event::AssistantMessage(message) => {
                let window = message.context.and_then(|split| Some(split.used() + split.free?));
                // A server that counts no tokens says 0.
                let used = match (message.usage.input_tokens, message.context) {
                    (0, Some(split)) => split.used(),
                    (counted, _) => counted,
                };
                self.fill = Some((used, window));
                let calls = message.blocks.into_iter().filter_map(|block| match block {
                    Block::ToolCall(call) => Some((call.call_id, call.arguments.as_str().to_owned())),
                    Block::Text { .. } | Block::Reasoning { .. } => None,
                });
                self.given = calls.collect();
                None
            }
            Event::ApprovalRequested(ApprovalRequested { call_id, name, arguments, preview, rule, form }) => {
                let arguments = self.given.get(&call_id).cloned().unwrap_or(arguments);
                let of = None;
                Some(Progress::Approval(Call { session_id, turn, call_id, name, arguments, preview, rule, form, of }))
            }
            Event::ApprovalDecided(decided) => Some(Progress::Settled(session_id, decided.call_id)),
            Event::ToolFinished(finished) => Some(Progress::Settled(session_id, finished.call_id)),
            _ => None,
        })
    }

    /// Shows what a sub-agent does, as part of the call that it works for. What it asks is asked here.
    fn see_below(&mut self, agent: SubAgent, record: Record) -> Result<Option<Progress>, CliError> {
        let (session_id, turn, of) = (record.session_id, record.turn, Some(agent.name));
        Ok(match record.event {
            Event::ApprovalRequested(ApprovalRequested { call_id, name, arguments, preview, rule, form }) => {
                if self.view.out.can_ask {
                    self.view.wait_for_decision()?;
                }
                Some(Progress::Approval(Call { session_id, turn, call_id, name, arguments, preview, rule, form, of }))
            }
            Event::ApprovalDecided(decided) => {
                self.view.calls.decided();
                Some(Progress::Settled(session_id, decided.call_id))
            }
            Event::ToolFinished(finished) => Some(Progress::Settled(session_id, finished.call_id)),
            event @ (Event::AssistantMessage(_) | Event::ToolStarted(_)) if self.view.show == Show::Text => {
                self.view.calls.works(&agent.call_id, &event.human_line());
                None
            }
            _ => None,
        })
    }

    /// Returns true if a call is of this turn.
    pub(crate) fn has(&self, call: &Call) -> bool {
        (call.session_id, call.turn) == (self.session_id, self.number) || self.below.get(call.session_id).is_some()
    }

    pub(crate) const fn session_id(&self) -> SessionId {
        self.session_id
    }

    /// Returns true if it is this turn.
    pub(crate) fn is_of(&self, session_id: SessionId, turn: TurnNumber) -> bool {
        (self.session_id, self.number) == (session_id, Some(turn))
    }

    /// Interrupts the turn.
    pub(crate) fn interrupt(&mut self) {
        // What is said about it gets a line of its own; if the output is closed, the next text says so.
        if self.view.out.width.is_some() {
            drop(self.view.end_line());
        }
        if self.number.is_some() {
            ask(&self.service, Operation::Interrupt, json!({ "session_id": self.session_id, "turn": self.number }));
        }
    }

    /// Ends the last line of the turn's text, and returns the error of a turn that did not complete.
    pub(crate) fn finish(&mut self, result: &TurnResult) -> Result<Option<ErrorBody>, CliError> {
        self.view.end_line()?;
        if self.view.show == Show::Text {
            if let Some(output) = result.output.as_ref().filter(|_| self.view.hides_text) {
                self.view.answer(output.as_str())?;
            }
            remarks(result, self.budgets).iter().for_each(|remark| self.view.out.note(remark));
        }
        Ok(result.error.clone().map(|error| explained(error, self.session_id)))
    }
}

/// Returns true if the answer of a turn is JSON, also of one that was steered, or whose call was answered.
async fn has_schema(service: &dyn SessionService, accepted: &TurnAccepted) -> bool {
    let event = async |seq| Some(record_at(service, accepted.session_id, seq).await.ok()??.event);
    let begun = match event(accepted.seq).await {
        Some(Event::TurnSteered(steered)) => event(steered.started).await,
        Some(Event::CallAnswered(answered)) => event(answered.started).await,
        begun => begun,
    };
    matches!(begun, Some(Event::TurnStarted(started)) if started.output.is_some())
}

/// Remarks on an answer that its text does not show.
fn remarks(result: &TurnResult, budgets: Budgets) -> Vec<String> {
    if result.error.is_some() {
        return Vec::new();
    }
    if !result.calls.is_empty() {
        let answer = |call: &OpenCall| {
            let (session_id, call_id) = (result.session_id, &call.call_id);
            format!("{} waits until you answer it: `meerkat sessions answer {session_id} {call_id} TEXT`.", call.name)
        };
        return result.calls.iter().map(answer).collect();
    }
    let cause = match result.stop_reason {
        Some(StopReason::MaxTokens) => {
            Some("The answer was cut off: the model reached its limit of tokens (max_tokens).")
        }
        Some(StopReason::ContentFilter) => Some("The vendor's filter held the answer back (content_filter)."),
        Some(StopReason::Refusal) => Some("The model declined to answer (refusal)."),
        Some(StopReason::Empty) => Some("The model answered with nothing (empty)."),
        Some(StopReason::EndTurn | StopReason::ToolUse) | None => None,
    };
    let used = result.usage.total();
    let tokens = budgets.tokens.filter(|limit| used > *limit);
    let tokens = tokens.map(|limit| format!("The turn used {used} tokens, over its budget of {limit}."));
    let cost = budgets.cost.zip(result.cost).filter(|(limit, cost)| cost > limit);
    let cost = cost.map(|(limit, cost)| format!("The turn cost {cost}, over its budget of {limit}."));
    cause.map(str::to_owned).into_iter().chain(tokens).chain(cost).collect()
}

/// Explains an error: a turn whose process ended can go on.
fn explained(mut error: ErrorBody, session_id: SessionId) -> ErrorBody {
    if error.code == ErrorCode::TurnInterrupted && error.details.get("reason") == Some(&json!("process_ended")) {
        error.message = format!(
            "The process that ran the turn ended before the turn did; `meerkat resume {session_id}` continues it."
        );
    }
    error
}

/// Decides a tool call.
pub(crate) fn decide(app: &App, call: &Call, decision: Decision, scope: Scope, reason: Option<&str>) {
    let Call { session_id, call_id, .. } = call;
    let mut params = json!({ "session_id": session_id, "call_id": call_id, "decision": decision, "reason": reason });
    if !scope.is_once() {
        params["scope"] = scope.name().into();
    }
    ask(&app.service, Operation::DecideApproval, params);
}

/// Answers the question of a server.
pub(crate) fn answer(app: &App, call: &Call, given: &Value) {
    let Call { session_id, call_id, .. } = call;
    let decision = Decision::Approve;
    let params = json!({ "session_id": session_id, "call_id": call_id, "decision": decision, "answer": given });
    ask(&app.service, Operation::DecideApproval, params);
}

/// Sends a request beside the turn. Its effect shows in the turn's events.
pub(crate) fn ask(service: &Arc<dyn SessionService>, operation: Operation, params: Value) {
    let service = service.clone();
    tokio::spawn(async move {
        if let Err(error) = wire::call(service.as_ref(), operation, &params.to_string()).await {
            tracing::info!(%error, operation = operation.name(), "it was over already");
        }
    });
}

/// Decodes an event, with complete texts if they are shown; `None` for a live event.
async fn decoded(
    service: &Arc<dyn SessionService>,
    session_id: SessionId,
    line: &str,
    show: Show,
) -> Result<Option<Record>, SessionError> {
    let Ok(mut record) = wire::decode_event(line) else { return Ok(None) };
    if show == Show::Text {
        view::make_whole(&mut record.event, async |body| whole(service.as_ref(), session_id, body).await).await?;
    }
    Ok(Some(record))
}

/// Returns the seq of the session's last event, which the refusal of a cursor beyond it names.
pub(crate) async fn last_seq(service: &Arc<dyn SessionService>, id: &SessionId) -> Result<Seq, SessionError> {
    match service.follow(id, Seq::MAX).await {
        Ok(follower) => Ok(follower.cursor()),
        Err(error) if error.code() == ErrorCode::CursorOutOfRange => {
            Ok(error.body().details.get("last_seq").and_then(Value::as_u64).unwrap_or(0))
        }
        Err(error) => Err(error),
    }
}
