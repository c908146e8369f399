//! A session's actor: the one task that owns its `Session`, and the loop of decide, perform, record.
//!
//! While an effect runs, commands are handled and interrupts heard. A barrier is awaited before the next
//! effect or reply and never inside a `select!`.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Weak},
    time::Duration,
};

use meerkat_errors::ErrorBody;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    Ports,
    bill::Bill,
    command::{Command, Reply, TurnWaiter},
    decide::{Action, Control, PROCESS_ENDED, Rules, decide},
    delegate::Children,
    perform::{Effect, Outcome, allowed},
    registry::{MAILBOX_MAX, Passage, Registry},
    render::request_bytes,
    shared::Shared,
};
use crate::{
    SessionError,
    compaction::SharedCompactor,
    cost::Cost,
    ids::{Seq, TurnNumber},
    model::ModelAnswer,
    options::{Budgets, StoreOptions, TurnOptions},
    service::{Changed, CompactionReceipt, TurnHandle},
    session::{
        Session,
        event::{ContextTokens, Event, LogTailRepaired, Record},
        message::RawJson,
    },
    store::{Lease, StoreError, TailRepair, Ticket},
    tool::{Answer, ToolRegistry},
};

/// Reason for the end of an actor's loop.
pub(super) enum Exit {
    /// The session is not needed in memory.
    Left,
    /// The store failed; the state in memory is discarded.
    Discarded(StoreError),
}

/// The owner of one session.
pub(crate) struct Actor {
    pub(super) session: Session,
    pub(super) lease: Lease,
    pub(super) ports: Arc<Ports>,
    pub(super) shared: Arc<Shared>,
    /// Weak, so that actors end with their service.
    pub(super) registry: Weak<Registry>,
    pub(super) mailbox: mpsc::Receiver<Command>,
    pub(super) control: Control,
    pub(super) journalled: Journalled,
    pub(super) waiting: Waiting,
    pub(super) running: Running,
    /// The way out of the registry, once it is taken.
    pub(super) departure: Option<Passage>,
    /// Monotonic time at which draining interrupts the running turn.
    pub(super) drain_until: Option<Duration>,
    /// The store failed under a command; the loop ends.
    pub(super) store_failure: Option<StoreError>,
    pub(super) idle: Duration,
}

/// Progress of the session's records out of memory.
#[derive(Default)]
pub(super) struct Journalled {
    /// Records that are applied, and staged with the next ones.
    pub(super) deferred: Vec<Record>,
    /// Tickets of batches that nobody waits for, the oldest first.
    pub(super) staged: VecDeque<Ticket>,
    /// The last record that the newest snapshot covers.
    pub(super) snapshot_seq: Seq,
    /// The session's part of the service's count of held bytes.
    pub(super) resident_bytes: u64,
}

/// Callers that wait for something of the session.
#[derive(Default)]
pub(super) struct Waiting {
    /// For a turn's end.
    pub(super) waiters: HashMap<TurnNumber, Vec<TurnWaiter>>,
    /// For the interrupt that `control` holds.
    pub(super) interrupters: Vec<Reply<Changed>>,
    /// Until no turn runs.
    pub(super) drains: Vec<Reply<()>>,
    /// For the session's deletion.
    pub(super) deletions: Vec<Reply<Changed>>,
    /// For a turn that runs and whose start is not durable yet.
    pub(super) unacknowledged: Option<Unacknowledged>,
    /// For the end of a turn that a former process left open; the caller that loaded the session waits for it.
    pub(super) settled: Option<Reply<()>>,
}

/// A running turn whose start is not durable yet: nobody has seen it.
pub(super) struct Unacknowledged {
    pub(super) ticket: Ticket,
    pub(super) handle: TurnHandle,
    pub(super) reply: Reply<TurnHandle>,
}

/// The running turn, or the requested compaction.
pub(super) struct Running {
    /// The compaction.
    pub(super) asked: Option<AskedCompaction>,
    /// The summary that a model is writing.
    pub(super) summary: Summary,
    /// Tokens of the summary so far.
    pub(super) summary_bill: Bill,
    /// The start of either, and the moment at which calls began to wait, by the monotonic clock.
    pub(super) turn_started: Duration,
    pub(super) asked_at: Duration,
    /// The turn, for logs and traces.
    pub(super) turn_span: tracing::Span,
    /// Tools that the model was offered last.
    pub(super) tools: ToolRegistry,
    /// Hash of what it was offered, if it may change.
    pub(super) offered: Option<String>,
    /// Where the tokens of the last request went.
    pub(super) context: Option<ContextTokens>,
    /// Questions of running calls by their ids: the schema of the answer, and its way. Dropped, they are cancelled.
    pub(super) forms: HashMap<String, (RawJson, oneshot::Sender<Answer>)>,
    /// Sub-agents of the turn that work for this actor.
    pub(super) children: Children,
}

/// Requested compaction. Its start is recorded, and it runs.
pub(super) struct AskedCompaction {
    pub(super) compactor: SharedCompactor,
    pub(super) reply: Reply<CompactionReceipt>,
    /// Ends it without a summary. It is a child of the caller's token, which only the caller cancels.
    pub(super) cancel: CancellationToken,
}

/// Progress of a summary that a model writes.
#[derive(Default)]
pub(super) enum Summary {
    /// No summary is being written.
    #[default]
    None,
    /// The model is asked.
    Awaited,
    /// This came of it.
    Ended(Result<ModelAnswer, ErrorBody>),
}

impl Running {
    fn nothing() -> Self {
        Self {
            asked: None,
            summary: Summary::None,
            summary_bill: Bill::default(),
            turn_started: Duration::ZERO,
            asked_at: Duration::ZERO,
            turn_span: tracing::Span::none(),
            tools: ToolRegistry::default(),
            offered: None,
            context: None,
            forms: HashMap::new(),
            children: Children::default(),
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.ports.held.shrink(self.journalled.resident_bytes);
    }
}

impl Actor {
    /// Makes the actor of a session whose records are all applied. A turn that a former process left open ends first,
    /// unless it can go on: then the deadlines of its questions begin again. With no question open, it may wait until it is
    /// asked for, like the queue.
    pub(crate) fn new(
        session: Session,
        lease: Lease,
        ports: Arc<Ports>,
        shared: Arc<Shared>,
        registry: Weak<Registry>,
        mailbox: mpsc::Receiver<Command>,
    ) -> Self {
        let idle = ports.idle();
        let snapshot_seq = session.last_seq;
        let (left, ended) = match session.open_turn() {
            Some(open) if open.outlives_its_process() => (Some(open), None),
            open => (None, open),
        };
        // A program that does not stay would only cut the turns off. Where nodes share a store, the callers of queued
        // ones may wait at another node.
        let StoreOptions { queue_goes_on, turns_go_on, .. } = ports.options.store;
        let is_queue_run = turns_go_on && (queue_goes_on || ports.events.node().is_some());
        let control = Control {
            interrupt: ended.map(|open| (open.turn, PROCESS_ENDED)),
            is_queue_held: !session.queue.is_empty() && !is_queue_run,
            is_turn_held: !turns_go_on && left.is_some_and(|left| !left.asks()),
            ..Control::default()
        };
        Self {
            session,
            lease,
            ports,
            shared,
            registry,
            mailbox,
            control,
            journalled: Journalled { snapshot_seq, ..Journalled::default() },
            waiting: Waiting::default(),
            running: Running::nothing(),
            departure: None,
            drain_until: None,
            store_failure: None,
            idle,
        }
    }

    /// Notifies a caller when the turn that a former process left open has ended.
    pub(crate) fn on_settled(&mut self, settled: Reply<()>) {
        self.waiting.settled = Some(settled);
    }

    pub(super) fn notify_settled(&mut self, answer: Result<(), SessionError>) {
        if let Some(settled) = self.waiting.settled.take() {
            // The caller may have left.
            let _ = settled.send(answer);
        }
    }

    /// Decides and acts until the session is not needed in memory.
    pub(super) async fn run(&mut self) -> Exit {
        if let Err(error) = Box::pin(self.begin()).await {
            self.discard(&error);
        }
        self.turn_goes_on();
        let mut asked = None;
        loop {
            // Boxed, so that a session at rest holds no memory for a running turn.
            if let Some(exit) = Box::pin(self.work(asked.take())).await {
                return exit;
            }
            match self.rest().await {
                Ok(command) => asked = command,
                Err(exit) => return exit,
            }
        }
    }

    /// Handles a command, then decides and acts until there is nothing to do. Returns an exit if the loop must end.
    async fn work(&mut self, asked: Option<Command>) -> Option<Exit> {
        if let Some(command) = asked {
            self.handle(command).await;
        }
        loop {
            self.take_interrupts();
            // Bounded, so that a flood of commands does not keep the turn waiting.
            for _ in 0..MAILBOX_MAX {
                let Some(command) = self.store_failure.is_none().then(|| self.mailbox.try_recv().ok()).flatten() else {
                    break;
                };
                self.handle(command).await;
            }
            self.take_interrupts();
            if let Some(error) = self.store_failure.take() {
                return Some(Exit::Discarded(error));
            }
            if self.control.interrupt.is_none_or(|(_, reason)| reason != PROCESS_ENDED) {
                self.notify_settled(Ok(()));
            }
            if self.leaves_its_turn() {
                self.departure = self.registry.upgrade().map(|registry| registry.depart(&self.shared));
                return Some(Exit::Left);
            }
            let done = match self.decide() {
                Action::Rest => return None,
                Action::AwaitApproval => {
                    let left = self.approval_left().min(Duration::from_millis(self.wall_left_ms()));
                    let command = self.next_command(left).await;
                    self.heed(command).await;
                    Ok(())
                }
                Action::AwaitCalls => {
                    self.await_callers().await;
                    Ok(())
                }
                action => self.act(action).await,
            };
            if let Err(error) = done {
                self.discard(&error);
            }
        }
    }

    /// Records the events that happened to the session while it had no actor.
    async fn begin(&mut self) -> Result<(), StoreError> {
        self.report_repair().await?;
        self.end_lost_compaction().await
    }

    /// Records a repair of the journal's end, if there was one. The bytes that were cut off had never been
    /// acknowledged, and are kept in quarantine.
    async fn report_repair(&mut self) -> Result<(), StoreError> {
        let Some(TailRepair { bytes, quarantine }) = self.ports.events.tail_repair(self.session.id) else {
            return Ok(());
        };
        let repaired = Event::LogTailRepaired(LogTailRepaired { bytes, quarantine });
        self.record_durably(None, vec![repaired]).await.map(drop)
    }

    /// Returns true if the service ends and the open turn can go on in the next one: it waits for a decision, or the
    /// time to finish it is over before a decided call has started.
    fn leaves_its_turn(&self) -> bool {
        let Some(open) = self.session.open_turn().filter(|open| open.outlives_its_process()) else { return false };
        let is_ending = self.control.interrupt.is_some() || self.control.failure.is_some();
        let leaves = self.ports.is_stored() && self.control.is_draining && !is_ending;
        leaves && (open.is_waiting() || self.is_drained())
    }

    /// Returns true if the time in which a turn may finish is over.
    fn is_drained(&self) -> bool {
        self.drain_until.is_some_and(|until| self.ports.world.clock.elapsed() >= until)
    }

    fn decide(&mut self) -> Action {
        self.control.elapsed_ms = self.millis_since(self.running.turn_started);
        self.control.is_approval_expired = self.approval_left().is_zero();
        if self.session.open_turn().is_some_and(|open| open.requested().next().is_some()) {
            self.control.now = self.ports.world.clock.now();
        }
        if let (true, Some(open)) = (self.is_drained(), self.session.open_turn()) {
            self.control.interrupt.get_or_insert((open.turn, "shutting_down"));
        }
        self.control.next_cost = self.next_cost().unwrap_or_default();
        let options = &self.ports.options;
        let (tools, max_parallel) = (&self.running.tools, options.tools.max_parallel);
        let wants_compaction = &|| self.wants_compaction();
        let check_priced = &|| {
            let cache = self.session.open_turn().and_then(|open| open.terms.options.cache);
            self.answering()?.check_priced(cache, self.ports.world.clock.now())
        };
        let unattended = options.approval.unattended;
        let rules = Rules { turn: &options.turn, max_parallel, tools, unattended, wants_compaction, check_priced };
        decide(&self.session, &self.control, &rules)
    }

    /// Estimates what the input of the turn's next model call costs at least; `None` if its cost is not limited, or not
    /// known. How much of it the vendor has in its cache, and what the answer will cost, is not known before.
    fn next_cost(&self) -> Option<Cost> {
        self.session.open_turn()?.terms.budgets.cost?;
        let model = self.answering().ok()?;
        let input_tokens = request_bytes(&self.session, &model, &self.ports.tools_of(&self.session)) / 4;
        model.least_cost(input_tokens, self.ports.world.clock.now())
    }

    /// Rests until something is asked, or until it leaves.
    async fn rest(&mut self) -> Result<Option<Command>, Exit> {
        let is_leaving = !self.waiting.deletions.is_empty() || (self.control.is_draining && self.ports.is_stored());
        if let (true, Some(registry)) = (is_leaving, self.registry.upgrade()) {
            self.departure = Some(registry.depart(&self.shared));
            return Err(Exit::Left);
        }
        self.release_drains();
        let (clock, shared) = (self.ports.world.clock.clone(), self.shared.clone());
        tokio::select! {
            biased;
            () = shared.interrupted.notified() => Ok(None),
            // If every sender is dropped, the service was dropped.
            command = self.mailbox.recv() => command.map(Some).ok_or(Exit::Left),
            () = clock.sleep(self.idle) => if self.leaves() { Err(Exit::Left) } else { Ok(None) },
        }
    }

    /// Takes the actor out of the registry if the session is not needed in memory.
    pub(super) fn leaves(&mut self) -> bool {
        let Some(registry) = self.registry.upgrade() else { return true };
        // A turn that is held can be interrupted.
        if self.control.is_turn_held || self.is_owed_to_memory(&registry) {
            return false;
        }
        self.departure = registry.leave(&self.shared, || self.mailbox.is_empty());
        self.departure.is_some()
    }

    /// Returns true if memory has yet to take in a session that is stored nowhere else. While memory fails, such
    /// sessions may use half of the room; the other half is for new ones.
    fn is_owed_to_memory(&self, registry: &Registry) -> bool {
        let Ports { held, options, observer, .. } = self.ports.as_ref();
        let limits = &options.ephemeral;
        let has_room = registry.len() <= limits.max_sessions / 2 && held.bytes() <= limits.max_bytes / 2;
        !self.ports.is_stored() && has_room && observer.owes(self.session.id, self.session.last_seq)
    }

    /// No turn runs: those who waited for that go on.
    pub(super) fn release_drains(&mut self) {
        for drained in self.waiting.drains.drain(..) {
            // The caller may have left.
            let _ = drained.send(Ok(()));
        }
    }

    /// Time that the calls which wait for approval have left, in whole milliseconds.
    fn approval_left(&self) -> Duration {
        let waited = Duration::from_millis(self.millis_since(self.running.asked_at));
        allowed(self.ports.options.tools.approval_timeout_ms).saturating_sub(waited)
    }

    /// Waits for a command, an interrupt, or a deadline. The command is `Some(None)` if no further one can come.
    pub(super) async fn next_command(&mut self, left: Duration) -> Option<Option<Command>> {
        let (clock, shared) = (self.ports.world.clock.clone(), self.shared.clone());
        tokio::select! {
            biased;
            () = shared.interrupted.notified() => None,
            command = self.mailbox.recv() => Some(command),
            () = clock.sleep(left) => None,
        }
    }

    /// Handles the command that came while a turn waits, if one did.
    pub(super) async fn heed(&mut self, command: Option<Option<Command>>) {
        match (command, self.session.open_turn()) {
            (Some(Some(command)), _) => self.handle(command).await,
            // Every sender is dropped, so no decision can come here.
            (Some(None), Some(_)) if self.ports.is_stored() => self.control.is_draining = true,
            (Some(None), Some(open)) => {
                self.control.interrupt.get_or_insert((open.turn, "shutting_down"));
            }
            (Some(None), None) | (None, _) => {}
        }
    }

    /// Milliseconds that a compaction may take without a turn: as long as a turn by default, and never without end.
    pub(super) fn lone_wall_ms(&self) -> u64 {
        let wall_ms = self.ports.options.turn.budgets(Budgets::default()).wall_ms;
        wall_ms.unwrap_or(TurnOptions::default().default_wall_ms)
    }

    /// Milliseconds until the turn's deadline, or until draining turns into interrupting.
    pub(super) fn wall_left_ms(&self) -> u64 {
        let lone = || self.lone_wall_ms();
        let wall = self.session.open_turn().map_or_else(lone, |open| open.terms.budgets.wall_ms.unwrap_or(u64::MAX));
        // Add 1 because both clocks round down. At most a year, so that timers do not overflow.
        wall.saturating_sub(self.millis_since(self.running.turn_started))
            .min(self.drain_left_ms())
            .saturating_add(1)
            .min(365 * 24 * 3600 * 1000)
    }

    /// Milliseconds until draining turns into interrupting.
    pub(super) fn drain_left_ms(&self) -> u64 {
        self.drain_until.map_or(u64::MAX, |until| {
            u64::try_from(until.saturating_sub(self.ports.world.clock.elapsed()).as_millis()).unwrap_or(u64::MAX)
        })
    }

    /// Runs an effect to its end. Commands are handled meanwhile; an interrupt or a deadline cancels it.
    pub(super) async fn drive(&mut self, mut effect: Effect) -> Result<(), StoreError> {
        let (clock, shared) = (self.ports.world.clock.clone(), self.shared.clone());
        let mut deadline = clock.sleep(Duration::from_millis(self.wall_left_ms()));
        let mut is_late = false;
        let given_up = self.running.asked.as_ref().map(|asked| asked.cancel.clone()).unwrap_or_default();
        loop {
            let happened = tokio::select! {
                biased;
                () = shared.interrupted.notified() => Happened::Interrupted,
                () = given_up.cancelled(), if !effect.cancel.is_cancelled() => Happened::GivenUp,
                () = &mut deadline, if !is_late => Happened::Deadline,
                outcome = effect.outcomes.recv() => Happened::Outcome(outcome.map(Box::new)),
                Some(command) = self.mailbox.recv(), if self.store_failure.is_none() => Happened::Command(Box::new(command)),
            };
            match happened {
                Happened::Interrupted => self.take_interrupts(),
                Happened::GivenUp => {}
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
            if is_hit || given_up.is_cancelled() || self.store_failure.is_some() {
                effect.cancel.cancel();
            }
        }
        if let Err(error) = (&mut effect.task).await {
            if error.is_cancelled() {
                // The runtime ends: nothing is recorded any more, and no other call begins.
                std::future::pending::<()>().await;
            }
            let body = super::decide::internal("a part of the engine panicked while it worked for the session");
            match &mut self.running.summary {
                Summary::None => self.control.failure = Some(body),
                summary @ (Summary::Awaited | Summary::Ended(_)) => *summary = Summary::Ended(Err(body)),
            }
        }
        Ok(())
    }

    /// Takes the interrupts that wait. One that names another turn than the running one is refused.
    pub(super) fn take_interrupts(&mut self) {
        for wish in self.shared.take_interrupts() {
            let running = self.session.open_turn().map(|open| open.turn);
            match running.filter(|running| wish.turn.is_none_or(|turn| turn == *running)) {
                Some(turn) => {
                    self.control.interrupt.get_or_insert((turn, "requested"));
                    self.waiting.interrupters.push(wish.reply);
                }
                None => match self.running.asked.as_ref().filter(|_| wish.turn.is_none()) {
                    Some(asked) => {
                        asked.cancel.cancel();
                        self.waiting.interrupters.push(wish.reply);
                    }
                    None => drop(wish.reply.send(Err(SessionError::NotRunning { turn: wish.turn }))),
                },
            }
        }
    }

    /// Starts the deadlines and the trace of the open turn, if there is one.
    pub(super) fn turn_goes_on(&mut self) {
        let Some(turn) = self.session.open_turn().map(|open| open.turn) else { return };
        let now = self.ports.world.clock.elapsed();
        (self.running.turn_started, self.running.asked_at) = (now, now);
        let (session_id, outcome) = (self.session.id, tracing::field::Empty);
        self.running.turn_span = tracing::info_span!(parent: None, "turn", %session_id, turn, outcome);
    }

    /// Lets the turns that a former process left go on, because a caller asks for one.
    pub(super) fn release_held(&mut self) {
        self.control.is_queue_held = false;
        if std::mem::take(&mut self.control.is_turn_held) {
            self.turn_goes_on();
        }
    }

    /// A turn begins: nothing of the one before is left.
    pub(super) fn turn_begins(&mut self) {
        self.turn_goes_on();
        self.control.plans.clear();
        self.control.window_exceeded = None;
        self.control.is_prepared = false;
        self.control.is_turn_held = false;
        self.control.interrupt = None;
        self.control.failure = None;
    }

    /// Publishes everything that was recorded, which is durable now: lists show it, and older views are dropped.
    pub(super) async fn publish(&mut self) {
        let durable = self.session.last_seq;
        self.ports.observer.published(&self.shared, durable).await;
    }

    /// Discards the state in memory, because the store failed. If the session was taken over, this actor leaves the
    /// registry before its caller is answered, so that nobody asks it again.
    pub(super) fn discard(&mut self, error: &StoreError) -> SessionError {
        self.store_failure.get_or_insert_with(|| error.clone());
        if *error != StoreError::Fenced {
            return Self::store_failed(error);
        }
        // After another failure the session is loaded again, which finds out whose it is.
        let is_fenced = self.store_failure == Some(StoreError::Fenced);
        let taken_over = SessionError::TakenOver(self.session.id);
        if is_fenced && self.ports.is_stored() && self.departure.is_none() {
            self.shared.failure.get_or_init(|| taken_over.clone());
            self.departure = self.registry.upgrade().map(|registry| registry.depart(&self.shared));
        }
        taken_over
    }
}

enum Happened {
    Interrupted,
    GivenUp,
    Deadline,
    Outcome(Option<Box<Outcome>>),
    Command(Box<Command>),
}
