//! Actions of an actor after a decision, and the records of their outcomes.

use meerkat_errors::{ErrorBody, ErrorCode};

use super::{
    actor::{Actor, Summary},
    decide::{Action, CallAnswer, Ending},
    perform::{Effect, ModelEffect, Outcome, ToolEffect, call_model, run_tools},
    render::render,
};
use crate::{
    SessionError,
    model::{AnswerBlock, ModelAnswer, ModelError, StopReason},
    options::Budget,
    service::{Changed, TurnStatus},
    session::{
        event::{
            AssistantMessage, Event, LiveEvent, PartialText, Retrying, ToolFinished, ToolProgress, ToolStarted,
            TurnCompleted, TurnFailed, TurnInterrupted,
        },
        message::{Block, Body, ToolCall},
    },
    store::StoreError,
    tool::Effect as ToolEffectClass,
};

impl Actor {
    /// Performs an action.
    pub(super) async fn act(&mut self, action: Action) -> Result<(), StoreError> {
        let turn = self.session.open_turn().map(|open| open.turn);
        if action != Action::CallModel {
            self.acknowledge().await?;
        }
        match action {
            Action::Rest | Action::AwaitApproval => Ok(()),
            Action::StartQueued => self.start_queued().await,
            Action::Warn(mut warning) => {
                // If wall time is frozen, measured time is written as 0, like durations.
                if warning.budget == Budget::WallMs && self.ports.world.is_frozen {
                    warning.used = 0;
                }
                self.record(turn, vec![Event::BudgetWarning(warning)]).await.map(drop)
            }
            Action::Compact => self.compact().await,
            Action::CallModel => self.call_model().await,
            Action::Answer(answers) => {
                let events = answers.into_iter().map(|answer| Event::ToolFinished(answered(answer))).collect();
                self.record(turn, events).await.map(drop)
            }
            Action::RequestApprovals(calls) => self.request_approvals(calls).await,
            Action::ExpireApprovals(calls) => self.expire_approvals(calls).await,
            Action::RunTools(calls) => self.run_tools(calls).await,
            Action::Fail(body) => {
                self.control.failure = Some(body);
                Ok(())
            }
            Action::End(ending) => self.end(ending).await,
        }
    }

    async fn call_model(&mut self) -> Result<(), StoreError> {
        let Some(open) = self.session.open_turn() else { return Ok(()) };
        let (turn, step) = (open.turn, open.totals.steps);
        let rendered = self.ports.models.resolve(&open.model).map_err(|error| error.body()).and_then(|model| {
            render(&self.session, &model, &self.ports.tools, &self.ports.options).map(|rendered| (model, rendered))
        });
        match rendered {
            Err(body) => {
                self.acknowledge().await?;
                self.control.failure = Some(body);
            }
            Ok((model, rendered)) => {
                self.shared.live.begin_step(self.session.last_seq(), turn, step, self.ports.world.clock.now());
                let span = tracing::info_span!(parent: &self.running.turn_span, "model_call", step, model = open.model);
                let (ports, session_id) = (self.ports.clone(), self.session.id());
                let effect = ModelEffect { ports, session_id, model, is_shown: true };
                // The model is connected to while the turn's start becomes durable; nothing of it is taken before.
                let effect = Effect::spawn(span, |outcomes, cancel| call_model(effect, rendered, outcomes, cancel));
                self.acknowledge().await?;
                self.drive(effect).await?;
            }
        }
        Ok(())
    }

    async fn run_tools(&mut self, ids: Vec<String>) -> Result<(), StoreError> {
        let Some(open) = self.session.open_turn() else { return Ok(()) };
        let turn = open.turn;
        let calls: Vec<ToolCall> =
            open.calls.iter().map(|call| &call.call).filter(|call| ids.contains(&call.call_id)).cloned().collect();
        let effect_of =
            |call: &ToolCall| self.ports.tools.get(&call.name).map_or(ToolEffectClass::Once, |tool| tool.effect());
        let is_once = calls.iter().any(|call| effect_of(call) == ToolEffectClass::Once);
        let started = |call: &ToolCall| {
            Event::ToolStarted(ToolStarted {
                call_id: call.call_id.clone(),
                name: call.name.clone(),
                effect: effect_of(call),
            })
        };
        let events = calls.iter().map(started).collect();
        if is_once {
            // The intent must outlive the process before the effect can happen.
            self.record_durably(Some(turn), events).await?;
        } else {
            self.record(Some(turn), events).await?;
        }
        let effect = ToolEffect { ports: self.ports.clone(), session_id: self.session.id(), turn, calls };
        let span = self.running.turn_span.clone();
        self.drive(Effect::spawn(span, |outcomes, cancel| run_tools(effect, outcomes, cancel))).await
    }

    /// Records an outcome of an effect, or shows it to followers.
    pub(super) async fn take_outcome(&mut self, outcome: Outcome) -> Result<(), StoreError> {
        if matches!(self.running.summary, Summary::Awaited) {
            self.take_summary(outcome);
            return Ok(());
        }
        let Some(open) = self.session.open_turn() else { return Ok(()) };
        let (turn, step) = (open.turn, open.totals.steps);
        let show = |event: LiveEvent| {
            self.shared.live.show(self.session.last_seq(), turn, self.ports.world.clock.now(), &event)
        };
        match outcome {
            Outcome::Delta { is_reasoning, text } => {
                self.shared.live.delta(self.session.last_seq(), is_reasoning, text);
            }
            Outcome::Retrying { attempt, wait_ms, error } => {
                show(LiveEvent::Retrying(Retrying { step, attempt, wait_ms, error: error.body() }));
            }
            Outcome::Progress { call_id, text } => show(LiveEvent::ToolProgress(ToolProgress { call_id, text })),
            Outcome::Answered(answer) => self.answered(answer).await?,
            Outcome::ModelFailed { error, partial } => self.model_failed(error, partial).await?,
            Outcome::ToolDone(mut finished) => {
                if let Body::Inline(text) = &finished.output {
                    finished.output = Body::Inline(self.ports.secrets.replace(text).into_owned());
                }
                finished.error = finished.error.map(|error| self.clean(error));
                if let Some(error) = finished.error.as_ref().filter(|error| error.code == ErrorCode::Internal) {
                    self.control.failure = Some(error.clone());
                }
                self.record(Some(turn), vec![Event::ToolFinished(finished)]).await?;
            }
            Outcome::Broken(body) => self.control.failure = Some(body),
        }
        Ok(())
    }

    async fn answered(&mut self, answer: ModelAnswer) -> Result<(), StoreError> {
        self.shared.live.end_step();
        let Some(open) = self.session.open_turn() else { return Ok(()) };
        let (turn, step, model) = (open.turn, open.totals.steps, open.model.clone());
        let vendor =
            self.ports.models.resolve(&model).map_or_else(|_| model.clone(), |model| model.client.vendor().to_owned());
        let seq = self.session.last_seq() + 1;
        // Ids are ours: a vendor's may come again in another step, and a decision must never hit another call.
        let blocks = answer
            .blocks
            .into_iter()
            .enumerate()
            .map(|(index, block)| match block {
                AnswerBlock::Text(text) => Block::Text { text: Body::Inline(text) },
                AnswerBlock::Reasoning { text, opaque } => {
                    Block::Reasoning { text: Body::Inline(text), opaque, vendor: vendor.clone() }
                }
                AnswerBlock::ToolCall(call) => {
                    Block::ToolCall(ToolCall { call_id: format!("call_{seq}_{index}"), ..call })
                }
            })
            .collect::<Vec<_>>();
        let is_last = !blocks.iter().any(|block| matches!(block, Block::ToolCall(_)));
        let is_said = |block: &Block| matches!(block, Block::Text { text } if !text.excerpt().trim().is_empty());
        let stop_reason = match answer.stop_reason {
            StopReason::EndTurn if is_last && !blocks.iter().any(is_said) => StopReason::Empty,
            stop_reason => stop_reason,
        };
        let message = AssistantMessage { step, model, blocks, stop_reason, usage: answer.usage };
        let event = Event::AssistantMessage(message);
        match is_last {
            true => self.record_with_next(turn, event).await,
            false => self.record(Some(turn), vec![event]).await.map(drop),
        }
    }

    /// Records the text that had arrived, and fails the turn unless it was cancelled.
    async fn model_failed(&mut self, error: Option<ModelError>, partial: String) -> Result<(), StoreError> {
        self.shared.live.end_step();
        let Some(open) = self.session.open_turn() else { return Ok(()) };
        let (turn, step) = (open.turn, open.totals.steps);
        match error {
            // The window was smaller than announced; the context may fit after a compaction.
            Some(error)
                if error.code == ErrorCode::ModelContextExceeded && partial.is_empty() && self.may_compact() =>
            {
                self.control.window_exceeded = Some(error.body());
            }
            Some(error) => self.control.failure = Some(error.body()),
            None => {}
        }
        if !partial.is_empty() {
            let event = Event::PartialText(PartialText { step, text: Body::Inline(partial) });
            self.record(Some(turn), vec![event]).await?;
        }
        Ok(())
    }

    /// Ends the turn: one terminal event, then the answers to all who wait for it.
    pub(super) async fn end(&mut self, ending: Ending) -> Result<(), StoreError> {
        self.shared.live.end_turn();
        let Some(open) = self.session.open_turn() else { return Ok(()) };
        let (turn, totals) = (open.turn, open.totals.clone());
        let stop_reason = open.stop_reason.unwrap_or(StopReason::EndTurn);
        let event = match ending {
            Ending::Completed => Event::TurnCompleted(TurnCompleted { stop_reason, totals }),
            Ending::Failed(error) => Event::TurnFailed(TurnFailed { error: self.clean(error), totals }),
            Ending::Interrupted(reason) => {
                Event::TurnInterrupted(TurnInterrupted { reason: reason.to_owned(), totals })
            }
        };
        self.running.turn_span.record("outcome", event.type_name());
        let seq = self.record_durably(Some(turn), vec![event]).await?;
        self.ports.observer.turn_ended(&self.ports, self.session.id());
        self.take_snapshot().await;
        self.running.turn_span = tracing::Span::none();
        self.control.interrupt = None;
        self.control.failure = None;
        // An interrupt behind the last answer came too late.
        let is_late = self.session.last_end().is_some_and(|end| end.status == TurnStatus::Completed);
        for reply in self.waiting.interrupters.drain(..) {
            let changed = Changed { session_id: self.session.id(), seq };
            drop(reply.send(if is_late { Err(SessionError::NotRunning { turn: Some(turn) }) } else { Ok(changed) }));
        }
        let Some(waiters) = self.waiting.waiters.remove(&turn) else { return Ok(()) };
        let result = match self.session.last_end() {
            Some(end) => self.ports.result(self.session.id(), end).await,
            None => Err(SessionError::Internal("a turn ended without an end".to_owned())),
        };
        for waiter in waiters {
            drop(waiter.send(result.clone()));
        }
        Ok(())
    }

    /// A body without configured secrets.
    pub(super) fn clean(&self, mut body: ErrorBody) -> ErrorBody {
        body.message = self.ports.secrets.replace(&body.message).into_owned();
        body
    }
}

fn answered(answer: CallAnswer) -> ToolFinished {
    let CallAnswer { call_id, name, outcome, text, error } = answer;
    ToolFinished { call_id, name, outcome, output: text.into(), error, duration_ms: 0 }
}
