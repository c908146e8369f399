//! Actions of an actor after a decision, and the records of their outcomes.

use std::{path::Path, sync::Arc};

use meerkat_errors::{ErrorBody, ErrorCode};
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use super::{
    actor::{Actor, Summary},
    decide::{Action, CallAnswer, Ending, internal},
    delegate::Children,
    perform::{Effect, ModelEffect, Outcome, Planning, Ready, ToolEffect, await_plans, bounded, call_model, run_tools},
    render::render,
};
use crate::{
    SessionError,
    model::{AnswerBlock, ModelAnswer, ModelError, StopReason},
    options::{Amount, Budget},
    output::OutputError,
    runtime::validate,
    service::{Changed, TurnStatus},
    session::{
        SteeredText,
        event::{
            AssistantMessage, ChangedFile, Event, LiveEvent, OutputRefused, PartialText, Retrying, SteeringEntered,
            ToolFinished, ToolProgress, ToolStarted, TurnCompleted, TurnFailed, TurnInterrupted,
        },
        message::{Block, Body, ToolCall},
    },
    store::{StoreError, hex},
    tool::{
        Effect as ToolEffectClass, Invocation, Offer, Plan, Rule, SEARCH_TOOLS, SearchTools, Tool, ToolError,
        check_answer, prefix, visible,
    },
};

/// Bytes of a preview; more is cut.
const PREVIEW_BYTES_MAX: usize = 16 * 1024;
/// Bytes of the hash of what was cut.
const HASH_BYTES: usize = 8;

impl Actor {
    /// Performs an action.
    pub(super) async fn act(&mut self, action: Action) -> Result<(), StoreError> {
        let turn = self.session.open_turn().map(|open| open.turn);
        if !matches!(action, Action::CallModel | Action::Prepare) {
            self.acknowledge().await?;
        }
        match action {
            Action::Rest | Action::AwaitApproval | Action::AwaitCalls => Ok(()),
            Action::StartQueued => self.start_queued().await,
            Action::Warn(mut warning) => {
                // If wall time is frozen, measured time is written as 0, like durations.
                if warning.budget == Budget::WallMs && self.ports.world.is_frozen {
                    warning.used = Amount::Number(0);
                }
                self.record(turn, vec![Event::BudgetWarning(warning)]).await
            }
            Action::Compact => self.compact().await,
            Action::Prepare => self.prepare().await,
            Action::CallModel => self.call_model().await,
            Action::CheckOutput => self.check_output().await,
            Action::RefuseOutput(errors) => {
                self.record(turn, vec![Event::OutputRefused(OutputRefused { errors })]).await
            }
            Action::EnterSteering => {
                let events = self.entering();
                self.record(turn, events).await
            }
            Action::Answer(answers) => {
                let events = answers.into_iter().map(|answer| Event::ToolFinished(self.answer_of(answer))).collect();
                self.record(turn, events).await
            }
            Action::Plan(calls) => self.plan(calls).await,
            Action::RequestApprovals(calls) => self.request_approvals(calls).await,
            Action::ExpireApprovals(calls) => self.expire_approvals(calls).await,
            Action::RunTools(calls) => self.run_tools(calls).await,
            Action::RequestCalls(calls) => self.request_calls(&calls).await,
            Action::Delegate(calls) => self.delegate(&calls).await,
            Action::EndChildren => {
                self.end_children().await;
                Ok(())
            }
            Action::Fail(body) => {
                self.control.failure = Some(body);
                Ok(())
            }
            Action::End(ending) => self.end(ending).await,
        }
    }

    /// The steered texts that wait, as events that put them into the context.
    fn entering(&self) -> Vec<Event> {
        let waiting = self.session.open_turn().into_iter().flat_map(|open| open.waiting_texts());
        let enters = |text: &SteeredText| Event::SteeringEntered(SteeringEntered { steered: text.seq });
        waiting.map(enters).collect()
    }

    async fn call_model(&mut self) -> Result<(), StoreError> {
        let Some(open) = self.session.open_turn() else { return Ok(()) };
        let (turn, step) = (open.turn, open.totals.steps);
        // The set that the model is offered is the set that its calls are run by.
        self.running.tools = self.ports.tools_of(&self.session);
        // A bundle may have brought it.
        let checked = if step == 0 { validate::output(open.terms.output.as_deref()) } else { Ok(()) };
        let resolved = checked.and_then(|()| self.ports.models.resolve(&open.terms.model));
        let rendered = resolved.map_err(|error| error.body()).and_then(|model| {
            render(&self.session, &model, &self.running.tools, &self.ports.options).map(|rendered| (model, rendered))
        });
        match rendered {
            Err(body) => {
                self.acknowledge().await?;
                self.control.failure = Some(body);
            }
            Ok((model, (rendered, context))) => {
                self.running.offered = self.running.tools.fingerprint(&rendered.request.tools);
                self.running.context = Some(context);
                self.shared.live.begin_step(self.session.last_seq, turn, step, self.ports.world.clock.now());
                let span =
                    tracing::info_span!(parent: &self.running.turn_span, "model_call", step, model = open.terms.model);
                let (ports, session_id) = (self.ports.clone(), self.session.id);
                let effect = ModelEffect { ports, session_id, model, is_shown: true };
                // The model is connected to while the turn's start becomes durable; nothing of it is taken before.
                let effect = Effect::spawn(span, |outcomes, cancel| call_model(effect, rendered, outcomes, cancel));
                self.acknowledge().await?;
                self.drive(effect).await?;
            }
        }
        Ok(())
    }

    /// Checks the last answer by the turn's schema.
    async fn check_output(&mut self) -> Result<(), StoreError> {
        let Some(open) = self.session.open_turn() else { return Ok(()) };
        let (Some(output), Some(seq)) = (&open.terms.output, open.text_seq) else { return Ok(()) };
        let answer = match open.text.last() {
            Some(answer) => self.ports.load(self.session.id, answer).await?,
            None => String::new(),
        };
        let clean = |text: &String| self.ports.secrets.replace(text).into_owned();
        let checked = check_answer(&output.schema, &answer).map_err(|errors| {
            let cleaned =
                errors.iter().map(|error| OutputError { path: clean(&error.path), message: clean(&error.message) });
            cleaned.collect()
        });
        self.control.checked = Some((seq, checked));
        Ok(())
    }

    /// Returns the calls that wait for something, with their tools. A call without a tool is answered by a decision.
    fn calls_of(&self, ids: &[String]) -> Vec<(ToolCall, Arc<dyn Tool>)> {
        let calls = self.session.open_turn().map_or(&[][..], |open| &open.calls);
        let wanted = calls.iter().map(|call| &call.call).filter(|call| ids.contains(&call.call_id));
        wanted.filter_map(|call| Some((call.clone(), self.tool(&call.name)?))).collect()
    }

    /// Returns a tool of the running step; the one that searches has the tools that the step did not show.
    fn tool(&self, name: &str) -> Option<Arc<dyn Tool>> {
        let tool = self.running.tools.get(name)?;
        let search = || SearchTools::over(tool.spec(), Offer::of(&self.session).hidden(&self.running.tools));
        Some(if name == SEARCH_TOOLS { search() } else { tool.clone() })
    }

    fn invocation(&self, call: &ToolCall) -> Invocation {
        let open = self.session.open_turn();
        let mut calls = open.into_iter().flat_map(|open| &open.calls);
        Invocation {
            session_id: self.session.id,
            turn: open.map_or(0, |open| open.turn),
            call_id: call.call_id.clone(),
            arguments: call.arguments.clone(),
            workspace: self.session.workspace().map(Path::to_owned),
            is_approved: calls.any(|state| state.call.call_id == call.call_id && state.is_approved()),
            search_path: self.session.open_turn().and_then(|open| open.terms.search_path.clone()),
            cancel: CancellationToken::new(),
        }
    }

    /// Asks the tools what their calls would do.
    async fn plan(&mut self, ids: Vec<String>) -> Result<(), StoreError> {
        let mut awaited = Vec::new();
        for (call, tool) in self.calls_of(&ids) {
            if let Err(error) = self.running.tools.check(&call.name, &call.arguments) {
                self.keep_plan(call.call_id, Err(error));
                continue;
            }
            let mut planning = Planning::new(tool, self.invocation(&call));
            match planning.at_once() {
                Some(Some(plan)) => self.keep_plan(call.call_id, plan),
                Some(None) => self.control.failure = Some(internal("a tool panicked")),
                None => awaited.push(planning),
            }
        }
        if awaited.is_empty() || self.control.failure.is_some() {
            return Ok(());
        }
        let (ports, span) = (self.ports.clone(), self.running.turn_span.clone());
        self.drive(Effect::spawn(span, |outcomes, cancel| await_plans(ports, awaited, outcomes, cancel))).await
    }

    /// Keeps the plan of a call, fit to be shown: without secrets, and with a rule only if it holds for the call.
    fn keep_plan(&mut self, call_id: String, plan: Result<Plan, ToolError>) {
        let Some(call) =
            self.session.open_turn().and_then(|open| open.calls.iter().find(|call| call.call.call_id == call_id))
        else {
            return;
        };
        let secrets = &self.ports.secrets;
        let shown = |text: String| {
            // On every surface a person sees the characters that have no shape, too.
            let text = visible(&secrets.replace(&text));
            match text.len() {
                0..=PREVIEW_BYTES_MAX => text,
                _ => {
                    let head = prefix(&text, PREVIEW_BYTES_MAX);
                    let rest = &text[head.len()..];
                    // The hash shows a later plan that differs in what is not shown.
                    let hash = hex(&Sha256::digest(rest)[..HASH_BYTES]);
                    format!("{head}\n[{} more bytes are not shown; their hash is {hash}]", rest.len())
                }
            }
        };
        let plan = match plan {
            Ok(mut plan) => {
                plan.preview = plan.preview.map(shown);
                // A rule goes to events and to the configuration: none with a secret.
                let is_apt = |rule: &String| {
                    let holds = |rule: Rule| rule.allows(&call.call.name, &plan);
                    secrets.replace(rule).as_ref() == rule.as_str() && Rule::parse(rule).is_ok_and(holds)
                };
                plan.rule = plan.rule.clone().filter(is_apt);
                Ok(plan)
            }
            Err(error) => Err(bounded(secrets, error, self.ports.options.tools.max_output_bytes)),
        };
        if self.control.outdated.remove(&call_id)
            && let (Ok(now), Some(Ok(shown))) = (&plan, self.control.plans.get_mut(&call_id))
        {
            // All else stays as it was shown and decided.
            shown.files.clone_from(&now.files);
            return;
        }
        self.control.plans.insert(call_id, plan);
    }

    async fn run_tools(&mut self, ids: Vec<String>) -> Result<(), StoreError> {
        let Some(open) = self.session.open_turn() else { return Ok(()) };
        let turn = open.turn;
        let mut calls = Vec::with_capacity(ids.len());
        let mut events = Vec::with_capacity(ids.len());
        let mut is_intent = false;
        for (call, tool) in self.calls_of(&ids) {
            let plan = self.control.plans.get(&call.call_id).and_then(|plan| plan.as_ref().ok());
            let effect = plan.map_or(ToolEffectClass::Once, |plan| plan.effect);
            let mut files = plan.map_or_else(Vec::new, |plan| plan.files.clone());
            // Nothing of a session in memory outlives its process.
            files.retain(|_| self.ports.is_stored());
            self.clean_paths(&mut files);
            is_intent |= effect == ToolEffectClass::Once || !files.is_empty();
            let (call_id, name) = (call.call_id.clone(), call.name.clone());
            events.push(Event::ToolStarted(ToolStarted { call_id, name, effect, files }));
            let (timeout, invocation) = (plan.and_then(|plan| plan.timeout), self.invocation(&call));
            calls.push(Ready { tool, invocation, name: call.name, timeout });
        }
        if is_intent {
            // The intent must outlive the process before the effect can happen.
            self.record_durably(Some(turn), events).await?;
            // This process may have stood still meanwhile: then another node has ended the turn.
            if !self.ports.events.holds(self.session.id).await? {
                return Err(StoreError::Fenced);
            }
        } else {
            self.record(Some(turn), events).await?;
        }
        let effect = ToolEffect { ports: self.ports.clone(), session_id: self.session.id, calls };
        let span = self.running.turn_span.clone();
        self.drive(Effect::spawn(span, |outcomes, cancel| run_tools(effect, outcomes, cancel))).await?;
        let may_change = |plan: &Plan| plan.effect != ToolEffectClass::ReadOnly;
        let plans = self.control.plans.iter().filter(|(_, plan)| plan.as_ref().is_ok_and(may_change));
        self.control.outdated = plans.map(|(call_id, _)| call_id.clone()).collect();
        Ok(())
    }

    /// Records an outcome of an effect, or shows it to followers.
    pub(super) async fn take_outcome(&mut self, outcome: Outcome) -> Result<(), StoreError> {
        if matches!(self.running.summary, Summary::Awaited) {
            self.take_summary(outcome);
            return Ok(());
        }
        let Some(open) = self.session.open_turn() else { return Ok(()) };
        let (turn, step) = (open.turn, open.totals.steps);
        let show =
            |event: LiveEvent| self.shared.live.show(self.session.last_seq, turn, self.ports.world.clock.now(), &event);
        match outcome {
            Outcome::Delta { is_reasoning, text } => {
                self.shared.live.delta(self.session.last_seq, is_reasoning, text);
            }
            Outcome::Retrying { attempt, wait_ms, error } => {
                show(LiveEvent::Retrying(Retrying { step, attempt, wait_ms, error: error.body() }));
            }
            Outcome::Planned { call_id, plan } => self.keep_plan(call_id, plan),
            Outcome::Progress { call_id, text } => show(LiveEvent::ToolProgress(ToolProgress { call_id, text })),
            Outcome::Asked { call_id, question, reply } => self.ask_form(call_id, question, reply).await?,
            Outcome::Unasked { call_id, reason } => self.unask_form(&call_id, reason).await?,
            Outcome::Notes(notes) => self.note(notes).await?,
            Outcome::Answered(answer) => self.answered(answer).await?,
            Outcome::ModelFailed { error, partial } => self.model_failed(error, partial).await?,
            Outcome::ToolDone(mut finished) => {
                if let Body::Inline(text) = &finished.output {
                    finished.output = Body::Inline(self.ports.secrets.replace(text).into_owned());
                }
                finished.error = finished.error.map(|error| self.clean(error));
                self.clean_paths(&mut finished.files);
                if let Some(error) = finished.error.as_ref().filter(|error| error.code == ErrorCode::Internal) {
                    self.control.failure = Some(error.clone());
                }
                self.record(Some(turn), vec![Event::ToolFinished(finished)]).await?;
                // Its question ended with it.
                self.running.forms.retain(|_, (_, reply)| !reply.is_closed());
            }
            Outcome::Broken(body) => self.control.failure = Some(body),
        }
        Ok(())
    }

    async fn answered(&mut self, answer: ModelAnswer) -> Result<(), StoreError> {
        self.shared.live.end_step();
        let Some(open) = self.session.open_turn() else { return Ok(()) };
        let (turn, step, model) = (open.turn, open.totals.steps, open.terms.model.clone());
        let resolved = self.ports.models.resolve(&model).ok();
        let vendor = resolved.as_ref().map_or_else(|| model.clone(), |model| model.client.vendor().to_owned());
        let (usage, cache) = (answer.usage, open.terms.options.cache);
        let cost = resolved.and_then(|model| model.cost(usage, cache, self.ports.world.clock.now()));
        let seq = self.session.last_seq + 1;
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
        self.control.plans.clear();
        let (tools, context) = (self.running.offered.clone(), self.running.context);
        let message = AssistantMessage { step, model, blocks, stop_reason, usage, cost, tools, context };
        let event = Event::AssistantMessage(message);
        match is_last {
            true => self.record_with_next(turn, event).await,
            false => self.record(Some(turn), vec![event]).await,
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

    /// Ends the turn: texts that nothing answers, one terminal event, then the answers to all who wait for it.
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
        let mut events = self.entering();
        events.push(event);
        let seq = self.record_durably(Some(turn), events).await?;
        self.ports.observer.turn_ended(&self.ports, self.session.id);
        self.running.turn_span = tracing::Span::none();
        self.control.interrupt = None;
        self.control.failure = None;
        self.control.checked = None;
        self.control.are_children_given_up = false;
        self.running.children = Children::default();
        self.control.is_turn_held = false;
        self.control.plans.clear();
        // An interrupt behind the last answer came too late.
        let is_late = self.session.last_end().is_some_and(|end| end.status == TurnStatus::Completed);
        for reply in self.waiting.interrupters.drain(..) {
            let changed = Changed { session_id: self.session.id, seq };
            drop(reply.send(if is_late { Err(SessionError::NotRunning { turn: Some(turn) }) } else { Ok(changed) }));
        }
        if let Some(waiters) = self.waiting.waiters.remove(&turn) {
            let result = match self.session.last_end() {
                Some(end) => self.ports.result(self.session.id, end).await,
                None => Err(SessionError::Internal("a turn ended without an end".to_owned())),
            };
            for waiter in waiters {
                waiter.send(result.clone());
            }
        }
        // Nobody who waits for the turn waits for this.
        self.take_snapshot().await;
        Ok(())
    }

    fn clean_paths(&self, files: &mut [ChangedFile]) {
        for file in files {
            file.path = self.ports.secrets.replace(&file.path).into_owned();
        }
    }

    /// A body without configured secrets.
    pub(super) fn clean(&self, mut body: ErrorBody) -> ErrorBody {
        body.message = self.ports.secrets.replace(&body.message).into_owned();
        body
    }

    /// The result of a call that did not run, without secrets.
    pub(super) fn answer_of(&self, answer: CallAnswer) -> ToolFinished {
        let CallAnswer { call_id, name, outcome, text, error } = answer;
        let output = Body::Inline(self.ports.secrets.replace(&text).into_owned());
        let error = error.map(|error| self.clean(error));
        ToolFinished { error, ..ToolFinished::new(call_id, name, outcome, output) }
    }
}
