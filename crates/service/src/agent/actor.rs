//! A session's actor: the one task that owns its `Session`, and the loop of decide, perform, record.
//!
//! While an effect runs, commands are handled and interrupts heard. A barrier is awaited before the next
//! effect or reply and never inside a `select!`.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::sync::{mpsc, oneshot};

use super::{
    Engine,
    command::{Acceptance, Change, Command, Reply, TurnWaiter},
    decide::{Action, Control, PROCESS_ENDED, Rules, decide},
    perform::{Effect, Outcome},
    registry::{Departure, MAILBOX_MAX, Registry},
    shared::Shared,
};
use crate::{
    SessionError,
    ids::{Seq, TurnNumber},
    journal_compaction::History,
    service::{Changed, SessionSummary},
    session::{
        CONTEXT_RUNS_MAX, Session,
        event::{
            ApprovalDecided, Decision, Event, LogTailRepaired, Record, ReminderCleared, SessionArchived,
            SessionUnarchived, TurnDequeued, Unpinned,
        },
    },
    store::{Lease, StoreError, TailRepair, Ticket},
};

/// Why an actor's loop ended.
pub(super) enum Exit {
    /// Nobody needs it.
    Left,
    /// The store failed; everything in memory is discarded.
    Discarded,
}

/// The owner of one session.
pub(crate) struct Actor {
    pub(super) session: Session,
    pub(super) lease: Lease,
    pub(super) engine: Arc<Engine>,
    pub(super) shared: Arc<Shared>,
    /// Weak, so that actors end with their service.
    pub(super) registry: Weak<Registry>,
    pub(super) mailbox: mpsc::Receiver<Command>,
    pub(super) control: Control,
    /// Those who wait for a turn's end.
    pub(super) waiters: HashMap<TurnNumber, Vec<TurnWaiter>>,
    /// Those who asked for the interrupt that `control` holds.
    pub(super) interrupters: Vec<Reply<Changed>>,
    /// Those who wait until no turn runs.
    pub(super) drains: Vec<Reply<()>>,
    /// Those who wait for the session's deletion.
    pub(super) deletions: Vec<Reply<Changed>>,
    /// A turn that runs and whose start is not durable yet.
    pub(super) unacknowledged: Option<Unacknowledged>,
    /// The way out of the registry, once it is taken.
    pub(super) departure: Option<Departure>,
    /// Records that are applied, and staged with the next ones.
    pub(super) put_off: Vec<Record>,
    /// What the last snapshot covers.
    pub(super) snapshot_seq: Seq,
    /// Whoever brought the actor in waits until what a former process left open has ended.
    settled: Option<oneshot::Sender<()>>,
    /// When the running turn started, and when its calls began to wait, by the monotonic clock.
    pub(super) turn_started: Duration,
    pub(super) asked_at: Duration,
    /// The running turn, for logs and traces.
    pub(super) turn_span: tracing::Span,
    /// When draining turns into interrupting.
    pub(super) drain_until: Option<Duration>,
    /// The store failed under a command; the loop ends.
    pub(super) is_discarded: bool,
    /// It did so for want of room or of its lease, which may be otherwise the next time.
    pub(super) is_passing: bool,
    pub(super) idle: Duration,
    /// What the service's count of held bytes holds for this session.
    pub(super) resident_bytes: u64,
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.engine.held.shrink(self.resident_bytes);
    }
}

impl Actor {
    /// An actor for a session whose records are all applied. A turn that is open was left by a process that ended, and
    /// ends first; what waits then waits on.
    pub(crate) fn new(
        session: Session,
        lease: Lease,
        engine: Arc<Engine>,
        shared: Arc<Shared>,
        registry: Weak<Registry>,
        mailbox: mpsc::Receiver<Command>,
    ) -> Self {
        let idle = engine.idle();
        let snapshot_seq = session.last_seq();
        let control = Control {
            interrupt: session.open_turn().map(|open| (open.turn, PROCESS_ENDED)),
            is_queue_held: !session.queue().is_empty() && !engine.options.store.queue_goes_on,
            ..Control::default()
        };
        Self {
            session,
            lease,
            engine,
            shared,
            registry,
            mailbox,
            control,
            waiters: HashMap::new(),
            interrupters: Vec::new(),
            drains: Vec::new(),
            deletions: Vec::new(),
            unacknowledged: None,
            departure: None,
            put_off: Vec::new(),
            snapshot_seq,
            settled: None,
            turn_started: Duration::ZERO,
            asked_at: Duration::ZERO,
            turn_span: tracing::Span::none(),
            drain_until: None,
            is_discarded: false,
            is_passing: false,
            idle,
            resident_bytes: 0,
        }
    }

    /// Tells when what a former process left open has ended.
    pub(crate) fn on_settled(&mut self, settled: oneshot::Sender<()>) {
        self.settled = Some(settled);
    }

    pub(super) fn tell_settled(&mut self) {
        if let Some(settled) = self.settled.take() {
            // Whoever brought it in may have gone.
            let _ = settled.send(());
        }
    }

    /// Decides and acts until nobody needs the session.
    pub(super) async fn run(&mut self) -> Exit {
        if let Err(error) = self.report_repair().await {
            self.discard(&error);
        }
        loop {
            self.take_interrupts();
            // Bounded, so that a flood of commands does not keep the turn waiting.
            for _ in 0..MAILBOX_MAX {
                let Some(command) = (!self.is_discarded).then(|| self.mailbox.try_recv().ok()).flatten() else { break };
                self.handle(command).await;
            }
            self.take_interrupts();
            if self.is_discarded {
                return Exit::Discarded;
            }
            if self.control.interrupt.is_none_or(|(_, reason)| reason != PROCESS_ENDED) {
                self.tell_settled();
            }
            let action = self.decide();
            let done = match action {
                Action::Rest => match self.rest().await {
                    true => return Exit::Left,
                    false => Ok(()),
                },
                Action::AwaitApproval => {
                    self.wait().await;
                    Ok(())
                }
                action => self.act(action).await,
            };
            if let Err(error) = done {
                self.discard(&error);
            }
        }
    }

    /// Says so where the journal's end had to be cut off: it was never acknowledged, and is kept aside.
    async fn report_repair(&mut self) -> Result<(), StoreError> {
        let Some(TailRepair { bytes, quarantine }) = self.engine.events.tail_repair(self.session.id()) else {
            return Ok(());
        };
        let repaired = Event::LogTailRepaired(LogTailRepaired { bytes, quarantine });
        self.record_durably(None, vec![repaired]).await.map(drop)
    }

    fn decide(&mut self) -> Action {
        self.control.elapsed_ms = self.millis_since(self.turn_started);
        let waited = self.millis_since(self.asked_at);
        self.control.is_approval_expired = waited >= self.engine.options.tools.approval_timeout_ms;
        let is_drained = self.drain_until.is_some_and(|until| self.engine.world.clock.elapsed() >= until);
        if let (true, Some(open)) = (is_drained, self.session.open_turn()) {
            self.control.interrupt.get_or_insert((open.turn, "shutting_down"));
        }
        let options = &self.engine.options;
        let rules = Rules { turn: &options.turn, max_parallel: options.tools.max_parallel, tools: &self.engine.tools };
        decide(&self.session, &self.control, &rules)
    }

    /// Rests until something is asked. Answers whether the actor left.
    async fn rest(&mut self) -> bool {
        let is_leaving = !self.deletions.is_empty() || (self.control.is_draining && self.engine.derived.is_some());
        if let (true, Some(registry)) = (is_leaving, self.registry.upgrade()) {
            self.departure = Some(registry.depart(self.session.id()));
            return true;
        }
        self.release_drains();
        let (clock, shared) = (self.engine.world.clock.clone(), self.shared.clone());
        let asked = tokio::select! {
            biased;
            () = shared.interrupted.notified() => None,
            command = self.mailbox.recv() => Some(command),
            () = clock.sleep(self.idle) => {
                return self.leaves();
            }
        };
        match asked {
            Some(Some(command)) => self.handle(command).await,
            // Every sender is gone: the service was dropped.
            Some(None) => return true,
            None => {}
        }
        false
    }

    /// Takes the actor out of the registry, if nobody needs it.
    pub(super) fn leaves(&mut self) -> bool {
        let Some(registry) = self.registry.upgrade() else { return true };
        self.departure = registry.leave(self.session.id(), || self.mailbox.is_empty());
        self.departure.is_some()
    }

    /// No turn runs: those who waited for that go on.
    pub(super) fn release_drains(&mut self) {
        for drained in self.drains.drain(..) {
            // Whoever drained may have gone.
            let _ = drained.send(Ok(()));
        }
    }

    /// Waits for a decision, an interrupt, or a deadline.
    async fn wait(&mut self) {
        let limit = self.engine.options.tools.approval_timeout_ms.saturating_sub(self.millis_since(self.asked_at));
        let wall = self.wall_left_ms();
        let (clock, shared) = (self.engine.world.clock.clone(), self.shared.clone());
        let command = tokio::select! {
            biased;
            () = shared.interrupted.notified() => None,
            command = self.mailbox.recv() => Some(command),
            () = clock.sleep(Duration::from_millis(limit.min(wall))) => None,
        };
        match (command, self.session.open_turn()) {
            (Some(Some(command)), _) => self.handle(command).await,
            // Every sender is gone, so no decision can come any more.
            (Some(None), Some(open)) => {
                self.control.interrupt.get_or_insert((open.turn, "shutting_down"));
            }
            (Some(None), None) | (None, _) => {}
        }
    }

    /// Milliseconds until the turn's deadline, or until draining turns into interrupting.
    fn wall_left_ms(&self) -> u64 {
        let wall = self.session.open_turn().and_then(|open| open.budgets.wall_ms).unwrap_or(u64::MAX);
        let drain = self.drain_until.map_or(u64::MAX, |until| {
            u64::try_from(until.saturating_sub(self.engine.world.clock.elapsed()).as_millis()).unwrap_or(u64::MAX)
        });
        // One more, because both clocks round down; at most a year, to keep the arithmetic of timers safe.
        wall.saturating_sub(self.millis_since(self.turn_started))
            .min(drain)
            .saturating_add(1)
            .min(365 * 24 * 3600 * 1000)
    }

    /// Runs an effect to its end. Commands are handled meanwhile; an interrupt or a deadline cancels it.
    pub(super) async fn drive(&mut self, mut effect: Effect) -> Result<(), StoreError> {
        let (clock, shared) = (self.engine.world.clock.clone(), self.shared.clone());
        let mut deadline = clock.sleep(Duration::from_millis(self.wall_left_ms()));
        let mut is_late = false;
        loop {
            let happened = tokio::select! {
                biased;
                () = shared.interrupted.notified() => Happened::Interrupted,
                () = &mut deadline, if !is_late => Happened::Deadline,
                outcome = effect.outcomes.recv() => Happened::Outcome(outcome.map(Box::new)),
                Some(command) = self.mailbox.recv(), if !self.is_discarded => Happened::Command(Box::new(command)),
            };
            match happened {
                Happened::Interrupted => self.take_interrupts(),
                Happened::Deadline => {
                    is_late = true;
                    effect.cancel.cancel();
                }
                Happened::Command(command) => {
                    self.handle(*command).await;
                    if self.drain_until.is_some() {
                        deadline = clock.sleep(Duration::from_millis(self.wall_left_ms()));
                    }
                }
                Happened::Outcome(Some(outcome)) => self.take_outcome(*outcome).await?,
                Happened::Outcome(None) => break,
            }
            let is_hit = self
                .session
                .open_turn()
                .is_some_and(|open| self.control.interrupt.is_some_and(|(turn, _)| turn == open.turn));
            if is_hit || self.is_discarded {
                effect.cancel.cancel();
            }
        }
        if let Err(error) = (&mut effect.task).await
            && error.is_panic()
        {
            self.control.failure = Some(super::decide::internal("a part of the engine panicked while the turn ran"));
        }
        Ok(())
    }

    /// Handles a command; its answer goes back when the change is durable.
    pub(super) async fn handle(&mut self, command: Command) {
        if let Err(error) = self.acknowledge().await {
            // What is in memory is not so, and says nothing about what is asked now.
            let refusal = self.discard(&error);
            return command.refuse(&refusal);
        }
        match command {
            Command::StartTurn { asked, reply } => match self.accept(*asked).await {
                Ok((acceptance, None)) => drop(reply.send(Ok(acceptance))),
                Ok((acceptance, Some(ticket))) => {
                    self.unacknowledged = Some(Unacknowledged { ticket, acceptance, reply });
                }
                Err(error) => drop(reply.send(Err(error))),
            },
            Command::Record { change, reply } => {
                let answer = self.change(*change).await;
                drop(reply.send(answer));
            }
            Command::Decide { call_id, decision, reason, reply } => {
                let answer = self.decide_approval(call_id, decision, reason).await;
                drop(reply.send(answer));
            }
            Command::CancelQueued { turn, reply } => {
                let answer = self.cancel_queued(turn, "cancelled").await;
                drop(reply.send(answer));
            }
            Command::Delete { is_forced, reply } => self.delete(is_forced, reply).await,
            Command::Drain { drain_ms, reply } => {
                self.control.is_draining = true;
                self.drain_until = Some(self.engine.world.clock.elapsed() + Duration::from_millis(drain_ms));
                self.drains.push(reply);
                // A queue that outlives the process needs no end.
                let is_kept = self.engine.derived.is_some();
                while let (false, Some(turn)) = (is_kept, self.session.queue().front().map(|queued| queued.turn)) {
                    if self.cancel_queued(turn, "shutting_down").await.is_err() {
                        break;
                    }
                }
            }
        }
    }

    /// The running turn's start becomes durable: whoever asked for it is answered, and everybody may see it.
    pub(super) async fn acknowledge(&mut self) -> Result<(), StoreError> {
        let Some(Unacknowledged { ticket, acceptance, reply }) = self.unacknowledged.take() else { return Ok(()) };
        let durable = ticket.durable().await;
        let answer = durable.as_ref().map(|_| acceptance).map_err(Self::store_failed);
        if durable.is_ok() {
            self.publish().await;
        }
        drop(reply.send(answer));
        durable.map(drop)
    }

    /// Deletes the session as soon as nothing runs.
    async fn delete(&mut self, is_forced: bool, reply: Reply<Changed>) {
        let running = self.session.open_turn().map(|open| open.turn);
        let waiting = self.session.queue().front().map(|queued| queued.turn);
        if let (false, Some(turn)) = (is_forced, running.or(waiting)) {
            return drop(reply.send(Err(SessionError::Busy { turn })));
        }
        if let Some(turn) = running {
            self.control.interrupt.get_or_insert((turn, "deleted"));
        }
        self.control.is_draining = true;
        self.deletions.push(reply);
    }

    async fn change(&mut self, change: Change) -> Result<Changed, SessionError> {
        self.shared.check_writable()?;
        self.check_archived(matches!(change, Change::Archive(_) | Change::SnapshotHistory(_)))?;
        let limits = &self.engine.options.limits;
        let event = match change {
            Change::Remind(event, kind) => {
                if !self.session.has_reminder(&kind) && self.session.reminders().len() >= limits.reminders {
                    return Err(SessionError::QueueFull { what: "reminders", limit: limits.reminders });
                }
                *event
            }
            Change::ClearReminder(kind) => {
                if !self.session.has_reminder(&kind) {
                    return Err(SessionError::ItemNotFound("reminder"));
                }
                Event::ReminderCleared(ReminderCleared { kind })
            }
            Change::Pin(event) => {
                if self.session.pins().len() >= limits.pins {
                    return Err(SessionError::QueueFull { what: "pins", limit: limits.pins });
                }
                *event
            }
            Change::Unpin(pin) => {
                if !self.session.pins().iter().any(|known| known.seq == pin) {
                    return Err(SessionError::ItemNotFound("pin"));
                }
                Event::Unpinned(Unpinned { pin })
            }
            Change::Update { title, labels } => {
                let updated = self.session.updated(title, labels);
                if updated.title.as_deref() == self.session.title() && updated.labels == *self.session.labels() {
                    return Ok(Changed { session_id: self.session.id(), seq: self.session.last_seq() });
                }
                Event::SessionUpdated(updated)
            }
            Change::SnapshotHistory(History { pruned_to, keys_up_to }) => {
                let limit = SessionError::Limit { what: "runs of the context", limit: CONTEXT_RUNS_MAX as u64 };
                Event::HistorySnapshot(self.session.history_snapshot(pruned_to, keys_up_to).ok_or(limit)?)
            }
            // What is so already was recorded already.
            Change::Archive(is_archived) if self.session.is_archived() == is_archived => {
                return Ok(Changed { session_id: self.session.id(), seq: self.session.last_seq() });
            }
            Change::Archive(is_archived) => {
                let running = self.session.open_turn().map(|open| open.turn);
                if let Some(turn) = running.or(self.session.queue().front().map(|queued| queued.turn)) {
                    return Err(SessionError::Busy { turn });
                }
                match is_archived {
                    true => Event::SessionArchived(SessionArchived {}),
                    false => Event::SessionUnarchived(SessionUnarchived {}),
                }
            }
        };
        self.changed(None, event).await
    }

    async fn decide_approval(
        &mut self,
        call_id: String,
        decision: Decision,
        reason: Option<String>,
    ) -> Result<Changed, SessionError> {
        self.shared.check_writable()?;
        if let Some((decided, seq)) = self.session.decision(&call_id) {
            return if decided == decision {
                Ok(Changed { session_id: self.session.id(), seq })
            } else {
                Err(SessionError::IdempotencyConflict { what: "approval" })
            };
        }
        let is_waiting = |open: &crate::session::OpenTurn| {
            open.calls.iter().any(|call| {
                call.call.call_id == call_id && matches!(call.progress, crate::session::CallProgress::Waiting(_))
            })
        };
        let Some(turn) = self.session.open_turn().filter(|open| is_waiting(open)).map(|open| open.turn) else {
            return Err(SessionError::ItemNotFound("call"));
        };
        let reason = reason.map(|reason| self.engine.secrets.replace(&reason).into_owned());
        self.changed(Some(turn), Event::ApprovalDecided(ApprovalDecided { call_id, decision, reason })).await
    }

    async fn cancel_queued(&mut self, turn: TurnNumber, reason: &str) -> Result<Changed, SessionError> {
        self.shared.check_writable()?;
        if !self.session.queue().iter().any(|queued| queued.turn == turn) {
            return Err(SessionError::ItemNotFound("turn"));
        }
        let changed = self.changed(Some(turn), Event::TurnDequeued(TurnDequeued { reason: reason.to_owned() })).await?;
        for waiter in self.waiters.remove(&turn).unwrap_or_default() {
            // Whoever waits may have gone.
            drop(waiter.send(Err(SessionError::Interrupted { turn })));
        }
        Ok(changed)
    }

    async fn changed(&mut self, turn: Option<TurnNumber>, event: Event) -> Result<Changed, SessionError> {
        let seq = self.record_durably(turn, vec![event]).await.map_err(|error| self.discard(&error))?;
        Ok(Changed { session_id: self.session.id(), seq })
    }

    /// Takes the interrupts that wait. One that names another turn than the running one is refused.
    pub(super) fn take_interrupts(&mut self) {
        for wish in self.shared.take_interrupts() {
            let running = self.session.open_turn().map(|open| open.turn);
            match running.filter(|running| wish.turn.is_none_or(|turn| turn == *running)) {
                Some(turn) => {
                    self.control.interrupt.get_or_insert((turn, "requested"));
                    self.interrupters.push(wish.reply);
                }
                None => drop(wish.reply.send(Err(SessionError::NotRunning { turn: wish.turn }))),
            }
        }
    }

    /// A turn begins: nothing of the one before is left.
    pub(super) fn turn_begins(&mut self) {
        self.turn_started = self.engine.world.clock.elapsed();
        let (session_id, turn) = (self.session.id(), self.session.open_turn().map(|open| open.turn));
        let outcome = tracing::field::Empty;
        self.turn_span = tracing::info_span!(parent: None, "turn", %session_id, turn, outcome);
        self.control.interrupt = None;
        self.control.failure = None;
    }

    /// An archived session is only read, and brought back.
    pub(super) fn check_archived(&self, is_archiving: bool) -> Result<(), SessionError> {
        let is_refused = self.session.is_archived() && !is_archiving;
        if is_refused { Err(SessionError::Archived(self.session.id())) } else { Ok(()) }
    }

    /// Everything that was recorded is durable: lists show it too, and what was seen before is let go.
    pub(super) async fn publish(&self) {
        let Some(view) = self.shared.view(self.session.last_seq()) else { return };
        if let Some(derived) = &self.engine.derived
            && let Err(error) = derived.publish(SessionSummary::clone(&view.summary)).await
        {
            tracing::error!(%error, "the index did not take a session in; it will at the next start");
        }
    }

    /// The store failed: what is in memory is no longer to be trusted.
    pub(super) fn discard(&mut self, error: &StoreError) -> SessionError {
        self.is_discarded = true;
        self.is_passing = matches!(error, StoreError::Fenced | StoreError::Full);
        match error {
            StoreError::Fenced => SessionError::TakenOver(self.session.id()),
            error => Self::store_failed(error),
        }
    }
}

/// A turn that runs, whose start is not durable yet: nobody has seen it.
pub(super) struct Unacknowledged {
    ticket: Ticket,
    acceptance: Acceptance,
    reply: Reply<Acceptance>,
}

impl Unacknowledged {
    /// Whoever asked for the turn gets this answer.
    pub(super) fn refuse(self, error: SessionError) {
        drop(self.reply.send(Err(error)));
    }
}

enum Happened {
    Interrupted,
    Deadline,
    Outcome(Option<Box<Outcome>>),
    Command(Box<Command>),
}
