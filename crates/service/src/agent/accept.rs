//! Acceptance of a turn: its key first, then its policy. Only a turn that is recorded here ever runs.

use std::sync::{Arc, atomic::Ordering};

use futures::FutureExt as _;
use tokio::sync::oneshot;

use super::{
    actor::{Actor, Unacknowledged},
    attach::Checked,
    command::TurnWaiter,
    decide::takes_texts,
    render::{check_options, text_room_bytes, window_tokens},
};
use crate::{
    SessionError,
    compaction::json_bytes,
    ids::{Seq, TurnNumber},
    model::ResolvedModel,
    options::{Budgets, ModelOptions, Policy},
    output::OutputSpec,
    prompt::check_attached,
    service::{StartTurn, TurnAccepted, TurnHandle, TurnStatus},
    session::{
        KeyUse, QueuedTurn,
        event::{Event, Key, TurnQueued, TurnStarted, TurnSteered},
        message::{Attached, Body, Message},
    },
    store::{StoreError, Ticket},
};

impl Actor {
    /// Accepts a turn, or refuses it and records nothing. A turn that starts at once is accepted when its ticket is
    /// durable: until then the actor connects to the model, and nobody sees the turn.
    pub(super) async fn accept(
        &mut self,
        request: &StartTurn,
        hash: String,
        is_continuation: bool,
        refusal: Option<SessionError>,
    ) -> Result<(TurnHandle, Option<Ticket>), SessionError> {
        self.shared.check_writable()?;
        let key = request
            .idempotency_key
            .as_ref()
            .map(|key| Key { key: self.ports.secrets.replace(key).into_owned(), request: hash });
        if let Some(replayed) = self.replay(key.as_ref(), request.wait).await {
            return Ok((replayed?, None));
        }
        refusal.map_or(Ok(()), Err)?;
        self.check_takes_work()?;
        if let Some(open) = self.session.open_turn().filter(|_| is_continuation && self.control.is_turn_held) {
            // This turn itself is what goes on.
            check_changes_nothing(request)?;
            if request.idempotency_key.is_some() {
                return Err(unchanged("idempotency_key"));
            }
            let (turn, seq) = (open.turn, open.seq.max(1));
            self.release_held();
            return Ok((self.accepted(turn, seq, request.wait), None));
        }
        self.ports.held.check_room()?;
        self.ports.events.room().await?;
        self.control.elapsed_ms = self.millis_since(self.running.turn_started);
        // Into a turn that can only end no text is put: it is a turn of its own then.
        let running = self.session.open_turn().filter(|open| takes_texts(open, &self.control));
        if let (Some(open), Policy::Steer, false) = (running, request.policy, is_continuation) {
            let (turn, started, steered) = (open.turn, open.seq, open.steered.len());
            check_changes_nothing(request)?;
            let limit = self.ports.options.turn.max_queued;
            if steered >= limit {
                return Err(SessionError::QueueFull { what: "steered texts", limit });
            }
            let model = self.answering().ok();
            let checked = self.check_blocks(&request.prompt, model.as_ref()).await?;
            let prompt = self.clean_text(&request.prompt.text());
            model.map_or(Ok(()), |model| self.check_room(&prompt, &checked, &model))?;
            let blocks = self.attach(checked).await?;
            let steered = Event::TurnSteered(TurnSteered { prompt, blocks, started, key });
            let recorded = self.record_durably(Some(turn), vec![steered]).await;
            let seq = recorded.map_err(|error| self.discard(&error))?;
            self.release_held();
            return Ok((self.accepted(turn, seq, request.wait), None));
        }
        let interrupted = self.session.last_end().filter(|end| end.status == TurnStatus::Interrupted);
        let continued = interrupted.filter(|_| is_continuation).map(|end| StartTurn {
            model: request.model.clone().or_else(|| Some(end.model.clone())),
            budgets: request.budgets.or(end.budgets),
            options: request.options.clone().or(&end.options),
            output: request.output.clone().or_else(|| end.output.as_deref().cloned()),
            compaction: request.compaction.or(end.compaction),
            // What was begun with less access does not go on with more.
            access: [end.access, request.access].into_iter().flatten().min(),
            ..request.clone()
        });
        let request = continued.as_ref().unwrap_or(request);
        let continues = interrupted.map(|end| end.turn);
        let model = self.ports.models.resolve(request.model.as_deref().unwrap_or(&self.session.model))?;
        self.check_model(request, &model)?;
        if let Some(turn) = continues.filter(|_| is_continuation) {
            let of_turn = self.session.context.entries().iter().rev().take_while(|entry| entry.turn == turn);
            of_turn.map(|entry| entry.message.attached()).try_for_each(|blocks| check_attached(blocks, &model))?;
        }
        let running = self.session.open_turn().map(|open| open.turn);
        let starts = self.check_turn(request.policy, is_continuation)?;
        // Blobs are read only for a turn that is taken.
        let blocks = self.check_blocks(&request.prompt, Some(&model)).await?;
        if starts {
            return self.start_now((request, blocks), continues.filter(|_| is_continuation), model, key).await;
        }
        let handle = self.enqueue((request, blocks), key).await?;
        self.release_held();
        if request.policy == Policy::Interrupt {
            if let Some(turn) = running {
                self.control.interrupt.get_or_insert((turn, "replaced"));
            }
            if let Some(asked) = &self.running.asked {
                asked.cancel.cancel();
            }
        }
        Ok((handle, None))
    }

    /// Refuses a turn that has no place. Returns true if it starts at once, false if it waits in the queue.
    fn check_turn(&self, policy: Policy, is_continuation: bool) -> Result<bool, SessionError> {
        let (running, is_compacting) = (self.session.open_turn(), self.running.asked.is_some());
        if is_continuation {
            let is_interrupted = self.session.last_end().is_some_and(|end| end.status == TurnStatus::Interrupted);
            return match running {
                Some(open) => Err(self.session.busy_with(open.turn)),
                None if is_compacting => Err(SessionError::Compacting),
                None if !is_interrupted => Err(SessionError::NothingToResume),
                None => Ok(true),
            };
        }
        if running.is_none() && self.session.queue.is_empty() && !is_compacting {
            return Ok(true);
        }
        if policy == Policy::Reject {
            let pending = self.session.pending_turn();
            return Err(pending.map_or(SessionError::Compacting, |turn| self.session.busy_with(turn)));
        }
        // The running turn is steered before, unless it can only end; a compaction is waited for.
        let limit = self.ports.options.turn.max_queued;
        let is_full = self.session.queue.len() >= limit;
        if is_full { Err(SessionError::QueueFull { what: "turns", limit }) } else { Ok(false) }
    }

    /// The session takes anything to do at all.
    pub(super) fn check_takes_work(&self) -> Result<(), SessionError> {
        self.check_archived(false)?;
        if !self.waiting.deletions.is_empty() {
            return Err(SessionError::NotFound(self.session.id));
        }
        if self.control.is_draining || self.ports.is_shutting_down.load(Ordering::Acquire) {
            return Err(SessionError::ShuttingDown);
        }
        Ok(())
    }

    /// Checks a turn's options, its budget of cost and its own compaction config against its model.
    fn check_model(&self, request: &StartTurn, model: &ResolvedModel) -> Result<(), SessionError> {
        let options = self.asked(&request.options);
        check_options(&options, model)?;
        if self.budgets(request.budgets).cost.is_some() {
            model.check_priced(options.cache, self.ports.world.clock.now())?;
        }
        let window = window_tokens(model, &options, &self.ports.options);
        request.compaction.map_or(Ok(()), |config| config.check(window))
    }

    /// Checks that a text with its blocks fits the model's window, so that it cannot end the turn that it is for.
    fn check_room(&self, text: &Body, blocks: &[Checked], model: &ResolvedModel) -> Result<(), SessionError> {
        let (tools, compacts) = (self.ports.tools_of(&self.session), self.ports.compacts(&self.session));
        let limit = text_room_bytes(&self.session, model, &tools, &self.ports.options, compacts);
        let blocks = blocks.iter().map(|block| block.attached.clone()).collect();
        let bytes = json_bytes(&Message::User { content: text.clone(), blocks });
        if bytes <= limit { Ok(()) } else { Err(SessionError::PayloadTooLarge { what: "steered text", bytes, limit }) }
    }

    /// Waits until the running turn's start is durable; then its caller is answered and everybody may see it.
    pub(super) async fn acknowledge(&mut self) -> Result<(), StoreError> {
        let Some(Unacknowledged { ticket, handle, reply }) = self.waiting.unacknowledged.take() else { return Ok(()) };
        let durable = ticket.durable().await;
        let answer = durable.as_ref().map(|_| handle).map_err(|error| self.discard(error));
        if durable.is_ok() {
            self.publish().await;
        }
        drop(reply.send(answer));
        durable.map(drop)
    }

    /// Finds the turn of a key that was used before.
    async fn replay(&mut self, key: Option<&Key>, wait: bool) -> Option<Result<TurnHandle, SessionError>> {
        let key = key?;
        let used = self.session.key(&key.key)?.clone();
        if used.request != key.request {
            return Some(Err(SessionError::IdempotencyConflict { what: "idempotency_key" }));
        }
        Some(Ok(self.again(used, wait).await))
    }

    /// Makes the handle of a request that was accepted before, under a key.
    pub(super) async fn again(&mut self, used: KeyUse, wait: bool) -> TurnHandle {
        let (handle, waiter) = self.turn_handle(used.turn, used.seq, wait);
        match used.end {
            // The caller may have left; the journal has the turn.
            Some(end) => waiter.send(self.ports.kept_result(self.session.id, end).await),
            None if used.is_dequeued => waiter.send(Err(SessionError::Interrupted { turn: used.turn })),
            // The answer to a call outlives its turn, and does not know the end: the turn's events do.
            None if !self.session.is_pending(used.turn) => waiter.send(Err(SessionError::TakenOver(self.session.id))),
            None => {
                let waiters = self.waiting.waiters.entry(used.turn).or_default();
                waiters.retain(|waiter| !waiter.reply.is_closed());
                waiters.push(waiter);
                self.release_held();
            }
        }
        handle
    }

    async fn start_now(
        &mut self,
        (request, blocks): (&StartTurn, Vec<Checked>),
        continues: Option<TurnNumber>,
        model: ResolvedModel,
        key: Option<Key>,
    ) -> Result<(TurnHandle, Option<Ticket>), SessionError> {
        let turn = self.session.next_turn;
        let blocks = self.attach(blocks).await?;
        let (client_tools, changed) = self.tools_of_request(request, false);
        let terms = TurnQueued { client_tools, ..self.terms(request, blocks, key) };
        let options = self.asked(&terms.options);
        let mut started = TurnStarted { options, ..terms.start(model.name, self.budgets(request.budgets)) };
        if continues.is_some() {
            (started.prompt, started.continues) = (None, continues);
        }
        let events = changed.into_iter().chain([Event::TurnStarted(started)]).collect();
        let recorded = self.stage(Some(turn), events).await;
        let (seq, ticket) = recorded.map_err(|error| self.discard(&error))?;
        self.turn_begins();
        self.release_held();
        Ok((self.accepted(turn, seq, request.wait), Some(ticket)))
    }

    async fn enqueue(
        &mut self,
        (request, blocks): (&StartTurn, Vec<Checked>),
        key: Option<Key>,
    ) -> Result<TurnHandle, SessionError> {
        let turn = self.session.next_turn;
        let blocks = self.attach(blocks).await?;
        let (client_tools, changed) = self.tools_of_request(request, true);
        let queued = TurnQueued { client_tools, ..self.terms(request, blocks, key) };
        let events = changed.into_iter().chain([Event::TurnQueued(queued)]).collect();
        let recorded = self.record_durably(Some(turn), events).await;
        let seq = recorded.map_err(|error| self.discard(&error))?;
        Ok(self.accepted(turn, seq, request.wait))
    }

    /// Makes the terms of a request's turn, without secrets and without its caller's tools: a rule that holds one then
    /// allows nothing.
    fn terms(&self, request: &StartTurn, blocks: Vec<Attached>, key: Option<Key>) -> TurnQueued {
        let clean = |text: &String| self.ports.secrets.replace(text).into_owned();
        TurnQueued {
            prompt: self.clean_text(&request.prompt.text()),
            blocks,
            model: request.model.clone(),
            budgets: request.budgets,
            options: request.options.clone().with_texts(clean),
            output: request.output.as_ref().map(|output| {
                let schema = self.ports.secrets.replace_json(&output.schema);
                Arc::new(OutputSpec { schema, name: output.name.as_ref().map(clean), repairs: output.repairs })
            }),
            compaction: request.compaction,
            policy: request.policy,
            attended: request.attended,
            allow: request.allow.iter().map(clean).collect(),
            access: request.access,
            search_path: request.search_path.as_ref().map(clean),
            client_tools: None,
            key,
        }
    }

    /// Makes the handle of a recorded turn.
    pub(super) fn accepted(&mut self, turn: TurnNumber, seq: Seq, wait: bool) -> TurnHandle {
        let (handle, waiter) = self.turn_handle(turn, seq, wait);
        self.waiting.waiters.entry(turn).or_default().push(waiter);
        handle
    }

    fn turn_handle(&self, turn: TurnNumber, seq: Seq, wait: bool) -> (TurnHandle, TurnWaiter) {
        let (reply, result) = oneshot::channel();
        let waiter = TurnWaiter { reply, answers_calls: wait };
        let lost = |_| SessionError::Internal("the session's actor was lost while the turn ran".to_owned());
        let result = async move { result.await.map_err(lost)? }.boxed();
        let accepted = TurnAccepted { session_id: self.session.id, turn, seq };
        (TurnHandle { accepted, wait, result }, waiter)
    }

    /// Starts the first turn of the queue.
    pub(super) async fn start_queued(&mut self) -> Result<(), StoreError> {
        let Some(QueuedTurn { turn, prompt_seq, terms, .. }) = self.session.queue.front().cloned() else {
            return Ok(());
        };
        // The name was checked when the turn was accepted. If the model was removed since, the model call fails with
        // it.
        let name = terms.model.clone().unwrap_or_else(|| self.session.model.clone());
        let model = self.ports.models.resolve(&name).map_or(name, |model| model.name);
        let budgets = self.budgets(terms.budgets);
        let options = self.asked(&terms.options);
        let started = TurnStarted {
            prompt: None,
            blocks: Vec::new(),
            queued: Some(prompt_seq),
            options,
            key: None,
            ..terms.start(model, budgets)
        };
        let events = self.queued_tools(&started).into_iter().chain([Event::TurnStarted(started)]).collect();
        self.record_durably(Some(turn), events).await?;
        self.turn_begins();
        Ok(())
    }

    /// How the model of a turn is asked, which says only a part of it.
    fn asked(&self, options: &ModelOptions) -> ModelOptions {
        self.ports.options.turn.capped(options.clone().or(&self.session.options))
    }

    fn budgets(&self, asked: Budgets) -> Budgets {
        let options = &self.ports.options;
        let budgets = options.turn.budgets(asked.or(self.session.budgets));
        Budgets { agents: options.agents.budget(budgets.agents), ..budgets }
    }
}

/// Checks that a request has no wishes for a turn that goes on as it was started. A terminal always says that somebody
/// attends, and its command's `PATH`.
fn check_changes_nothing(request: &StartTurn) -> Result<(), SessionError> {
    // All fields are named, so that a new one is decided on here.
    let StartTurn {
        session_id: _,
        prompt: _,
        model,
        policy: _,
        budgets,
        options,
        output,
        compaction,
        attended: _,
        allow,
        access,
        client_tools,
        search_path: _,
        wait: _,
        idempotency_key: _,
    } = request;
    let wishes = [
        ("model", model.is_some()),
        ("budgets", *budgets != Budgets::default()),
        ("options", !options.is_default()),
        ("output", output.is_some()),
        ("compaction", compaction.is_some()),
        ("allow", !allow.is_empty()),
        ("access", access.is_some()),
        ("client_tools", client_tools.is_some()),
    ];
    wishes.into_iter().find(|(_, is_there)| *is_there).map_or(Ok(()), |(field, _)| Err(unchanged(field)))
}

fn unchanged(field: &str) -> SessionError {
    let message = "the turn goes on as it was started: leave this out, or interrupt the turn and start another";
    SessionError::invalid(field, message)
}
