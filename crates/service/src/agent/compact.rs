//! `run_compaction`: the fourteen steps of the specification, with its numbers. Steps 7 and 8 are in
//! [`rebuild`](crate::compaction::rebuilt::rebuild). Step 9 records two events: 11 and 13 are their fold, and 10 needs
//! nothing. 12 is the fold of `compaction_started`, because a failed attempt counts, too.
//!
//! Before the ninth step nothing in the session changes, except that a compaction was attempted; a failed compaction
//! leaves the context as it was, byte for byte. A compactor may come from a user of the SDK: its panics and errors
//! never end the actor.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use meerkat_errors::{ErrorBody, ErrorCode};

use super::{
    actor::{Actor, Summary},
    bill::Bill,
    decide::internal,
    perform::{Effect, ModelEffect, Outcome, call_model},
    render::{Rendered, Said, fits, render_summary, request_bytes, step_end, unreadable, window_tokens},
};
use crate::{
    SessionError,
    compaction::{
        CompactionContext, Compactor, SUMMARY_BYTES_MAX, SharedCompactor, json_bytes,
        rebuilt::{
            Planned, Rebuilt, leaving, mask, mechanical_summary, planned, preview, rebuild, summary_of_the_rest,
        },
        summary_message, summary_of,
    },
    cost::Cost,
    model::{AnswerBlock, ModelAnswer, ModelError, ResolvedModel, StopReason, Usage},
    service::{CompactionMode, CompactionReceipt},
    session::{
        OpenTurn, Session,
        event::{CompactionFailed, CompactionStarted, Event, LiveEvent, Retrying, SummaryUnused},
        message::Message,
        reminder::without_forged_tags,
    },
    store::StoreError,
};

/// Calls that a summary may take at most.
const ROUNDS_MAX: u32 = 8;

/// A summary that a model wrote.
struct Written {
    text: String,
    /// Model calls: each continues the summary of the one before.
    rounds: u32,
    /// Messages that leave and that no call took in.
    unread: usize,
}

impl Actor {
    /// Returns true if the session's compactor would compact before the next model call. A compactor is not asked again
    /// before the next step.
    pub(super) fn wants_compaction(&self) -> bool {
        let Some((compactor, context)) = self.compactor() else { return false };
        // A compactor that panics panics again when it compacts, and that is recorded.
        !is_tried(&context) && guarded(|| compactor.should_compact(&context)).unwrap_or(true)
    }

    /// Returns true if a compaction may shorten a request that the model found too long.
    pub(super) fn may_compact(&self) -> bool {
        self.compactor().is_some_and(|(_, context)| !is_tried(&context))
    }

    fn compactor(&self) -> Option<(SharedCompactor, CompactionContext)> {
        let model = self.ports.compacts(&self.session).then(|| self.answering().ok()).flatten()?;
        let compactor = self.ports.compactor(None, &self.session, self.window(&model)).ok()?;
        Some((compactor, self.compaction_context(&model)))
    }

    /// The model that answers next.
    pub(super) fn answering(&self) -> Result<ResolvedModel, SessionError> {
        let name = self.session.open_turn().map_or(&self.session.model, |open| &open.terms.model);
        self.ports.models.resolve(name)
    }

    /// Tokens that a request to the model may have.
    pub(super) fn window(&self, model: &ResolvedModel) -> u64 {
        window_tokens(model, self.session.model_options(), &self.ports.options)
    }

    pub(super) fn compaction_context(&self, model: &ResolvedModel) -> CompactionContext {
        self.session.compaction_context(
            request_bytes(&self.session, model, &self.ports.tools_of(&self.session)),
            self.window(model),
        )
    }

    /// Step 1: records that a compaction begins. A turn does not wait until that is durable: the compaction's end
    /// becomes durable with it. A requested compaction makes the session run, so its start is published.
    pub(super) async fn begin_compaction(&mut self, context: &CompactionContext) -> Result<(), StoreError> {
        let started = CompactionStarted {
            input_tokens: context.last_input_tokens,
            estimated_history_tokens: context.estimated_history_tokens,
            message_count: context.message_count as u64,
        };
        let events = vec![Event::CompactionStarted(started)];
        match self.session.open_turn().map(|open| open.turn) {
            Some(turn) => self.record(Some(turn), events).await,
            None => self.record_durably(None, events).await.map(drop),
        }
    }

    /// Compacts before the next model call, or as requested.
    pub(super) async fn compact(&mut self) -> Result<(), StoreError> {
        if self.session.open_compaction().is_some() {
            return self.compact_as_asked().await;
        }
        let exceeded = self.control.window_exceeded.take();
        let done = match self.compactor() {
            Some((compactor, context)) => {
                self.begin_compaction(&context).await?;
                match guarded(|| compactor.should_compact(&context)) {
                    Ok(_) => self.run_compaction(&*compactor, &context, exceeded.is_some()).await?.map(drop),
                    Err(body) => Err(self.compaction_failed(body).await?),
                }
            }
            None => Ok(()),
        };
        // The same request would be refused again.
        if let (Err(_), Some(refusal)) = (done, exceeded) {
            self.control.failure.get_or_insert(refusal);
        }
        Ok(())
    }

    /// Performs steps 2 to 14. Returns the body that `compaction_failed` recorded if they fail.
    pub(super) async fn run_compaction(
        &mut self,
        compactor: &dyn Compactor,
        context: &CompactionContext,
        is_exceeded: bool,
    ) -> Result<Result<CompactionReceipt, ErrorBody>, StoreError> {
        self.running.summary_bill = Bill::default();
        let rebuilt = match self.masked_enough(compactor, context, is_exceeded) {
            Ok(Some(masked)) => Ok(masked),
            Ok(None) => self.summarised(compactor, is_exceeded).await,
            Err(body) => Err(body),
        };
        if self.store_failure.is_some() {
            return Ok(Err(SessionError::StoreFailed.body()));
        }
        // A compaction that was given up in the meantime fails.
        self.take_interrupts();
        match rebuilt {
            Ok(_) if self.is_given_up() => self.compaction_failed(interrupted()).await.map(Err),
            Ok(rebuilt) => self.replace_context(rebuilt).await.map(Ok),
            Err(body) => self.compaction_failed(body).await.map(Err),
        }
    }

    /// Masks stale tool results if the compactor wants that; `None` if it would compact the masked context anyway.
    fn masked_enough(
        &self,
        compactor: &dyn Compactor,
        context: &CompactionContext,
        is_exceeded: bool,
    ) -> Result<Option<Rebuilt>, ErrorBody> {
        if is_exceeded {
            return Ok(None);
        }
        guarded(|| {
            let masked = if compactor.masks_tool_results() { mask(&self.session)? } else { return None };
            let saved = context.estimated_history_tokens.saturating_sub(masked.context_bytes / 4);
            let left = CompactionContext {
                last_input_tokens: context.last_input_tokens.saturating_sub(saved),
                estimated_history_tokens: context.estimated_history_tokens.saturating_sub(saved),
                request_tokens: context.request_tokens.saturating_sub(saved),
                request_bytes: context.request_bytes.saturating_sub(saved * 4),
                last_compaction_turn: None,
                ..context.clone()
            };
            (!compactor.should_compact(&left)).then_some(masked)
        })
    }

    /// Rebuilds the context with a summary: the model's, or a mechanical one if the model's fails and the next request
    /// would not fit.
    async fn summarised(&mut self, compactor: &dyn Compactor, is_exceeded: bool) -> Result<Rebuilt, ErrorBody> {
        // A summary that could replace nothing must cost nothing, where that can be known.
        let planned = self.planned(compactor)?;
        let rebuilt = |session: &Session, summary: &str, mode| {
            guarded(|| rebuild(session, compactor, summary, mode)).and_then(|rebuilt| rebuilt)
        };
        let written = self.summarise(compactor, planned.as_ref()).await;
        let failure = match written.and_then(|written| {
            rebuilt(&self.session, &written.text, CompactionMode::Summary).map(|rebuilt| (rebuilt, written))
        }) {
            Ok((mut rebuilt, Written { rounds, unread, .. })) => {
                (rebuilt.event.receipt.rounds, rebuilt.event.receipt.unread) = (rounds, unread as u64);
                rebuilt.completed.summary_tokens = match rounds {
                    1 if unread == 0 => self.running.summary_bill.usage.output_tokens,
                    _ => rebuilt.completed.summary_tokens,
                };
                return Ok(rebuilt);
            }
            Err(body) => body,
        };
        if failure.code == ErrorCode::TurnInterrupted || (!is_exceeded && self.fits()) {
            return Err(failure);
        }
        tracing::warn!(session_id = %self.session.id, code = ?failure.code, "a context is compacted without a model");
        let summary = guarded(|| mechanical_summary(&self.session, compactor, planned))??;
        rebuilt(&self.session, &summary, CompactionMode::Mechanical)
    }

    /// Returns true if the next request would fit, whole or slid.
    fn fits(&self) -> bool {
        let (tools, options) = (self.ports.tools_of(&self.session), &self.ports.options);
        self.answering().is_ok_and(|model| fits(&self.session, &model, &tools, options))
    }

    /// Performs steps 2 to 6: sends the next request with the compaction prompt at its end. If the model cannot read
    /// everything that may leave at once, each further round shows it its own summary and the messages that follow.
    /// Messages that no round included are summarised mechanically.
    async fn summarise(&mut self, compactor: &dyn Compactor, planned: Option<&Planned>) -> Result<Written, ErrorBody> {
        let mut unread = leaving(&self.session, planned);
        // Step 2: the compactor's prompt.
        let wish = || (compactor.compaction_prompt().to_owned(), compactor.max_summary_tokens());
        let (prompt, max_summary_tokens) = guarded(wish)?;
        let model = match self.ports.options.context.summary_model.as_str() {
            "" => self.answering(),
            name => self.ports.models.resolve(name),
        };
        let model = model.map_err(|error| error.body())?;
        if self.session.open_turn().is_some_and(|open| open.terms.budgets.cost.is_some()) {
            model.check_priced(None, self.ports.world.clock.now()).map_err(|error| error.body())?;
        }
        let (mut text, mut rounds, mut at) = (String::new(), 0, 0);
        let mut former = self.session.context.summary().map(|summary| summary.message.clone());
        while unread.last().is_some_and(|last| at <= *last) && (rounds == 0 || self.may_go_round(rounds)) {
            // Step 3: the messages, and the prompt behind them.
            let said = Said { former: former.clone(), from: at, prompt: &prompt, max_summary_tokens };
            match render_summary(&self.session, &model, &self.ports.tools_of(&self.session), said) {
                Ok((rendered, end)) if end > at => {
                    // The price of what is written to the cache depends on it.
                    let cache = rendered.request.options.cache;
                    // Step 4: the model's call. Step 5: if it fails, so does the compaction, in `compaction_failed`.
                    let answer = self.summary_call(model.clone(), rendered).await?;
                    // A model that answered is paid, whatever its answer is good for.
                    let cost = model.cost(answer.usage, cache, self.ports.world.clock.now());
                    self.running.summary_bill.add(answer.usage, cost);
                    // Step 6: the summary in its answer.
                    text = summary_in(&answer)?;
                    rounds += 1;
                    former = Some(Arc::new(without_forged_tags(summary_message(&text))));
                    unread.retain(|place| !(at..end).contains(place));
                    at = end;
                }
                Ok(_) => at = step_end(&self.session, at),
                Err(body) if rounds == 0 => return Err(body),
                Err(_) => break,
            }
        }
        if rounds == 0 {
            return Err(unreadable(&model));
        }
        if !unread.is_empty() {
            let entries = self.session.context.entries();
            let rest: Vec<Message> = unread.iter().map(|place| Message::clone(&entries[*place].message)).collect();
            let rest = guarded(|| summary_of_the_rest(&rest, &text, compactor))?;
            text = format!("{text}\n\n{rest}");
        }
        Ok(Written { text, rounds, unread: unread.len() })
    }

    /// Returns true if a summary may take another call: a turn's budgets pay for it.
    fn may_go_round(&self, rounds: u32) -> bool {
        let Bill { usage, cost } = &self.running.summary_bill;
        let is_paid = |open: &OpenTurn| {
            let (tokens, cost) = (open.totals.usage.total() + usage.total(), Cost::sum(open.totals.cost, *cost));
            open.terms.budgets.tokens.is_none_or(|limit| tokens < limit)
                && open.terms.budgets.cost.is_none_or(|limit| cost.is_some_and(|cost| cost < limit))
        };
        rounds < ROUNDS_MAX && self.session.open_turn().is_none_or(is_paid)
    }

    /// Calls the model once for a summary.
    async fn summary_call(&mut self, model: ResolvedModel, rendered: Rendered) -> Result<ModelAnswer, ErrorBody> {
        let running = self.session.open_turn().map(|open| open.turn);
        let is_hit = self.control.interrupt.is_some_and(|(turn, _)| Some(turn) == running);
        if self.is_given_up() || is_hit {
            return Err(interrupted());
        }
        let span = tracing::info_span!(parent: &self.running.turn_span, "summary_call", model = model.name);
        let (ports, session_id) = (self.ports.clone(), self.session.id);
        let effect = ModelEffect { ports, session_id, model, is_shown: false };
        self.running.summary = Summary::Awaited;
        if let Err(error) =
            self.drive(Effect::spawn(span, |outcomes, cancel| call_model(effect, rendered, outcomes, cancel))).await
        {
            self.discard(&error);
        }
        match std::mem::take(&mut self.running.summary) {
            Summary::Ended(Err(_))
                if running.is_none() && self.millis_since(self.running.turn_started) >= self.lone_wall_ms() =>
            {
                let message = format!("The compaction took longer than {} ms.", self.lone_wall_ms());
                Err(ErrorBody::with_message(ErrorCode::ModelTimeout, message))
            }
            Summary::Ended(answer) => answer,
            Summary::Awaited | Summary::None => Err(internal("a summary ended without an end")),
        }
    }

    /// Takes an outcome of the summary's call. Followers see only its retries.
    pub(super) fn take_summary(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Answered(answer) => self.running.summary = Summary::Ended(Ok(answer)),
            Outcome::ModelFailed { error, .. } => {
                self.running.summary = Summary::Ended(Err(error.map_or_else(interrupted, |error| error.body())));
            }
            Outcome::Broken(body) => self.running.summary = Summary::Ended(Err(body)),
            Outcome::Retrying { attempt, wait_ms, error } => {
                let Some(open) = self.session.open_turn() else { return };
                let retrying = Retrying { step: open.totals.steps, attempt, wait_ms, error: error.body() };
                let now = self.ports.world.clock.now();
                self.shared.live.show(self.session.last_seq, open.turn, now, &LiveEvent::Retrying(retrying));
            }
            Outcome::Delta { .. }
            | Outcome::Planned { .. }
            | Outcome::Progress { .. }
            | Outcome::Asked { .. }
            | Outcome::Unasked { .. }
            | Outcome::Notes(_)
            | Outcome::ToolDone(_) => {}
        }
    }

    /// Performs steps 9 to 14 as one batch: the retained messages by reference, then the completion. Step 10: the
    /// journal keeps the messages that leave, and memory takes them in from there.
    async fn replace_context(&mut self, rebuilt: Rebuilt) -> Result<CompactionReceipt, StoreError> {
        let Rebuilt { mut event, completed, .. } = rebuilt;
        event.compaction = self.session.last_seq + 2;
        event.receipt.compaction = Some(event.compaction);
        let bill = std::mem::take(&mut self.running.summary_bill);
        event.receipt.usage = bill.usage;
        event.receipt.cost = bill.cost.filter(|_| event.receipt.mode != CompactionMode::Mask);
        let receipt = event.receipt.clone();
        let turn = self.session.open_turn().map(|open| open.turn);
        // Step 9: `context_rebuilt` replaces the context. Step 13: its receipt has the usage. Step 14: the completion.
        let events = vec![Event::ContextRebuilt(event), Event::CompactionCompleted(completed)];
        self.record_durably(turn, events).await?;
        Ok(receipt)
    }

    /// Step 5: records that the compaction failed, and leaves the context as it is; returns the recorded body.
    pub(super) async fn compaction_failed(&mut self, body: ErrorBody) -> Result<ErrorBody, StoreError> {
        let body = self.clean(body);
        let failed = CompactionFailed { code: body.code, message: body.message.clone() };
        let turn = self.session.open_turn().map(|open| open.turn);
        let Bill { usage, cost } = std::mem::take(&mut self.running.summary_bill);
        // A model that answered without a bill makes the cost unknown.
        let is_used = usage != Usage::default() || cost.is_none();
        let unused = is_used.then_some(Event::SummaryUnused(SummaryUnused { usage, cost }));
        self.record_durably(turn, unused.into_iter().chain([Event::CompactionFailed(failed)]).collect()).await?;
        Ok(body)
    }

    /// A compaction that a former life of the actor left open comes to its end before anything else.
    pub(super) async fn end_lost_compaction(&mut self) -> Result<(), StoreError> {
        match self.session.open_compaction() {
            Some(_) => self.compaction_failed(interrupted()).await.map(drop),
            None => Ok(()),
        }
    }

    /// Refuses a compaction of which it is known that it would do nothing.
    pub(super) fn check_compacts(
        &self,
        compactor: &dyn Compactor,
        context: &CompactionContext,
    ) -> Result<(), ErrorBody> {
        match self.masked_enough(compactor, context, false)? {
            Some(_) => Ok(()),
            None => self.planned(compactor).map(drop),
        }
    }

    /// Plans a compaction, and checks that it would do something. One that is not planned may.
    fn planned(&self, compactor: &dyn Compactor) -> Result<Option<Planned>, ErrorBody> {
        let planned = guarded(|| planned(&self.session, compactor))??;
        match &planned {
            Some(planned) if planned.receipt(&self.session).discarded == 0 => {
                Err(ErrorBody::new(ErrorCode::CompactionNoProgress))
            }
            _ => Ok(planned),
        }
    }

    /// Returns the receipt of a compaction that would run now; nothing is recorded and no model called.
    pub(super) fn previewed(
        &self,
        compactor: &dyn Compactor,
        context: &CompactionContext,
    ) -> Result<CompactionReceipt, ErrorBody> {
        match self.masked_enough(compactor, context, false)? {
            Some(masked) => Ok(masked.event.receipt),
            None => guarded(|| preview(&self.session, compactor)).and_then(|planned| planned),
        }
    }
}

/// Returns true if a compaction was attempted since the turn's last step.
fn is_tried(context: &CompactionContext) -> bool {
    context.last_compaction_turn == Some(context.current_turn) && context.steps_since_compaction == 0
}

/// Step 6: reads the summary in an answer. A truncated summary is refused: its gaps would go unnoticed.
fn summary_in(answer: &ModelAnswer) -> Result<String, ErrorBody> {
    let refused = |why: &str| Err(ModelError::new(ErrorCode::ModelRejected, why).body());
    if answer.blocks.iter().any(|block| matches!(block, AnswerBlock::ToolCall(_))) {
        return refused("The model called a tool where it was asked for a summary.");
    }
    if answer.stop_reason == StopReason::MaxTokens {
        return refused("The summary was cut off; raise compaction.max_summary_tokens.");
    }
    if matches!(answer.stop_reason, StopReason::Refusal | StopReason::ContentFilter) {
        return refused("The model declined to write a summary.");
    }
    let texts = answer.blocks.iter().map(|block| match block {
        AnswerBlock::Text(text) => text.as_str(),
        AnswerBlock::Reasoning { .. } | AnswerBlock::ToolCall(_) => "",
    });
    let message = summary_message(&texts.collect::<String>());
    let bytes = json_bytes(&message);
    if bytes > SUMMARY_BYTES_MAX {
        return refused(&format!("The summary has {bytes} bytes as JSON and may have at most {SUMMARY_BYTES_MAX}."));
    }
    match summary_of(&message).map_or("", str::trim) {
        "" => refused("The model's summary is empty."),
        summary => Ok(summary.to_owned()),
    }
}

pub(super) fn interrupted() -> ErrorBody {
    ErrorBody::with_message(ErrorCode::TurnInterrupted, "The compaction was interrupted.")
}

/// Runs a part of a compactor, and turns its panic into a failure.
fn guarded<T>(part: impl FnOnce() -> T) -> Result<T, ErrorBody> {
    catch_unwind(AssertUnwindSafe(part)).map_err(|_| internal("the compactor panicked"))
}
