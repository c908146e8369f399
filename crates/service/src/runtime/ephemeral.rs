//! [`EphemeralSessionService`]: the engine over stores in memory. Sessions end with the process.
//!
//! What needs a capability it lacks is answered by the defaults of [`SessionService`].

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;
use futures::FutureExt as _;
use tokio::sync::{mpsc, oneshot};

use super::{
    creations::Creations,
    follow::{Follower, check_cursor, pruned_line},
    validate,
};
use crate::{
    SessionError,
    agent::{
        Engine,
        actor::Actor,
        command::{Acceptance, Change, Command},
        record::externalise,
        registry::{MAILBOX_MAX, Registry, Reservation},
        shared::Shared,
        supervise::supervise,
    },
    capability::{Capabilities, Capability},
    ids::SessionId,
    service::{
        BegunTurn, CancelQueued, Changed, ClearReminder, CreateSession, DecideApproval, EventPage, InterruptTurn, Page,
        Pin, PinFact, QueueItem, ReadEvents, Remind, Reminder, SessionCreated, SessionService, StartTurn, Unpin,
    },
    session::{
        QueuedTurn, Session,
        event::{Event, Key, Pinned, Record, ReminderSet, SessionCreated as Created},
        message::Body,
    },
    store::{EventStore as _, MemoryBlobStore, MemoryEventStore},
};

/// Bytes of events that one page may have.
const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Sessions that live in memory.
#[derive(Clone)]
pub struct EphemeralSessionService {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Arc<Engine>,
    events: Arc<MemoryEventStore>,
    blobs: Arc<MemoryBlobStore>,
    registry: Arc<Registry>,
    creations: Arc<Creations>,
}

impl EphemeralSessionService {
    /// A service over its own stores in memory, which are also the engine's.
    pub(crate) fn new(events: Arc<MemoryEventStore>, blobs: Arc<MemoryBlobStore>, engine: Engine) -> Self {
        Self {
            inner: Arc::new(Inner {
                engine: Arc::new(engine),
                events,
                blobs,
                registry: Arc::default(),
                creations: Arc::default(),
            }),
        }
    }

    fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    /// Refuses what asks for compaction where there is none.
    fn check_compaction(&self, is_asked: bool) -> Result<(), SessionError> {
        if is_asked || self.engine().is_compaction_configured {
            self.engine().capabilities.require(Capability::SessionCompaction)?;
        }
        Ok(())
    }

    fn reserve(&self, session_id: SessionId) -> Result<Reservation, SessionError> {
        self.inner.registry.reserve(session_id).ok_or(SessionError::NotFound(session_id))
    }

    fn shared(&self, session_id: SessionId) -> Result<Arc<Shared>, SessionError> {
        self.inner.registry.shared(session_id).ok_or(SessionError::NotFound(session_id))
    }

    /// Asks a session's actor and waits for its answer.
    async fn ask<T>(
        &self,
        session_id: SessionId,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, SessionError> {
        let reservation = self.reserve(session_id)?;
        let (reply, answer) = oneshot::channel();
        let gone = |_| SessionError::NotFound(session_id);
        reservation.mailbox.send(command(reply)).await.map_err(|_| gone(()))?;
        answer.await.map_err(|_| SessionError::Internal("the session's actor was lost before it answered".to_owned()))
    }

    async fn record(&self, session_id: SessionId, change: Change) -> Result<Changed, SessionError> {
        let change = Box::new(change);
        self.ask(session_id, |reply| Command::Record { change, reply }).await?
    }

    async fn accept(&self, request: StartTurn) -> Result<Acceptance, SessionError> {
        self.check_compaction(request.compaction.is_some())?;
        let limits = &self.engine().options.limits;
        validate::prompt(&request.prompt, limits)?;
        validate::idempotency_key(request.idempotency_key.as_deref(), limits)?;
        if let Some(model) = &request.model {
            self.engine().models.resolve(model)?;
        }
        // Nothing else stands before a session's existence, also not that the service ends.
        let session_id = request.session_id;
        self.shared(session_id)?;
        let hash = request.idempotency_key.as_ref().map_or(Ok(String::new()), |_| validate::turn_hash(&request))?;
        self.ask(session_id, |reply| Command::StartTurn { request: Box::new(request), hash, reply }).await?
    }

    /// Whether another session may be made, besides those in flight.
    fn check_new(&self, in_flight: usize) -> Result<(), SessionError> {
        if self.engine().is_shutting_down.load(Ordering::Acquire) {
            return Err(SessionError::ShuttingDown);
        }
        let limit = self.engine().options.ephemeral.max_sessions;
        if self.inner.registry.len() + in_flight >= limit {
            return Err(SessionError::Limit { what: "sessions", limit: limit as u64 });
        }
        self.engine().held.check_room()
    }

    fn check_create(&self, request: &CreateSession) -> Result<String, SessionError> {
        self.check_compaction(request.compaction.is_some())?;
        let limits = &self.engine().options.limits;
        validate::labels(&request.labels, limits)?;
        validate::idempotency_key(request.idempotency_key.as_deref(), limits)?;
        if let Some(system_prompt) = &request.system_prompt {
            validate::size("system prompt", system_prompt, limits.system_prompt_bytes)?;
        }
        let models = &self.engine().models;
        let model = models.resolve(request.model.as_deref().unwrap_or(models.default_model()))?;
        let names: BTreeSet<&String> = request.tools.iter().flatten().collect();
        if names.len() < request.tools.as_ref().map_or(0, Vec::len) {
            return Err(SessionError::invalid("tools", "a tool is named twice"));
        }
        if let Some(unknown) = request.tools.iter().flatten().find(|name| self.engine().tools.get(name).is_none()) {
            return Err(SessionError::ToolNotFound(unknown.clone()));
        }
        Ok(model.name)
    }

    async fn make(
        &self,
        request: CreateSession,
        model: String,
        key: Option<Key>,
    ) -> Result<SessionCreated, SessionError> {
        let engine = &self.inner.engine;
        let now = engine.world.clock.now();
        let session_id = engine.world.ids.next_session_id(now);
        let clean = |text: &str| engine.secrets.replace(text).into_owned();
        let created = Created {
            model,
            system_prompt: request.system_prompt.map(|text| Body::Inline(clean(&text))),
            labels: request.labels.iter().map(|(name, value)| (clean(name), clean(value))).collect(),
            tools: request.tools,
            budgets: request.budgets,
            key,
        };
        let failed = |error: crate::store::StoreError| {
            tracing::error!(%error, "a session could not be made");
            SessionError::StoreFailed
        };
        let mut event = Event::SessionCreated(created);
        externalise(engine.blobs.as_ref(), session_id, &mut event).await.map_err(failed)?;
        let record = Record { session_id, seq: 1, turn: None, time: now, event };
        let lease = engine.events.lease(session_id).await.map_err(failed)?;
        let ticket = engine.events.stage(&lease, std::slice::from_ref(&record)).map_err(failed)?;
        ticket.durable().await.map_err(failed)?;
        let session = Session::begin(&record).map_err(|error| SessionError::Internal(error.to_string()))?;
        let shared = Shared::new(&session);
        let (mailbox, commands) = mpsc::channel(MAILBOX_MAX);
        self.inner.registry.insert(shared.clone(), mailbox);
        let actor = Actor::new(session, lease, engine.clone(), shared, Arc::downgrade(&self.inner.registry), commands);
        let (events, blobs) = (self.inner.events.clone(), self.inner.blobs.clone());
        let registry = Arc::downgrade(&self.inner.registry);
        tokio::spawn(async move {
            supervise(actor).await;
            // Without a store nothing outlives its actor.
            if let Some(registry) = registry.upgrade() {
                registry.remove(session_id);
            }
            blobs.forget(session_id);
            if let Err(error) = events.delete(session_id).await {
                tracing::error!(%error, "the events of an ended session could not be dropped");
            }
        });
        Ok(SessionCreated { session_id, seq: 1, created_at: now })
    }
}

#[async_trait]
impl SessionService for EphemeralSessionService {
    fn capabilities(&self) -> Capabilities {
        self.engine().capabilities
    }

    async fn create_session(&self, request: CreateSession) -> Result<SessionCreated, SessionError> {
        let model = self.check_create(&request)?;
        let key = request.idempotency_key.as_ref().map(|key| {
            let request = validate::request_hash(&CreateSession { idempotency_key: None, ..request.clone() })?;
            Ok::<_, SessionError>(Key { key: self.engine().secrets.replace(key).into_owned(), request })
        });
        let key = key.transpose()?;
        let (service, recorded) = (self.clone(), key.clone());
        let creation = self.inner.creations.find_or_make(
            key,
            self.engine().world.clock.now(),
            |in_flight| self.check_new(in_flight),
            || async move { service.make(request, model, recorded).await },
        )?;
        creation.await
    }

    async fn begin_turn(&self, request: StartTurn) -> Result<BegunTurn, SessionError> {
        let Acceptance { accepted, result } = self.accept(request).await?;
        let lost = |_| SessionError::Internal("the session's actor was lost while the turn ran".to_owned());
        Ok(BegunTurn { accepted, result: async move { result.await.map_err(lost)? }.boxed() })
    }

    async fn interrupt(&self, request: InterruptTurn) -> Result<Changed, SessionError> {
        let reservation = self.reserve(request.session_id)?;
        let answer = reservation.shared.wish_interrupt(request.turn)?;
        answer.await.map_err(|_| SessionError::NotRunning { turn: request.turn })?
    }

    async fn decide_approval(&self, request: DecideApproval) -> Result<Changed, SessionError> {
        let DecideApproval { session_id, call_id, decision, reason } = request;
        if let Some(reason) = &reason {
            validate::size("reason", reason, self.engine().options.limits.pin_bytes)?;
        }
        self.ask(session_id, |reply| Command::Decide { call_id, decision, reason, reply }).await?
    }

    async fn queue(&self, session_id: &SessionId) -> Result<Page<QueueItem>, SessionError> {
        let queue = self.shared(*session_id)?.view.borrow().queue.clone();
        Ok(Page::whole(queue.iter().map(QueuedTurn::item).collect()))
    }

    async fn cancel_queued(&self, request: CancelQueued) -> Result<Changed, SessionError> {
        self.ask(request.session_id, |reply| Command::CancelQueued { turn: request.turn, reply }).await?
    }

    async fn events(&self, request: ReadEvents) -> Result<EventPage, SessionError> {
        let limits = &self.engine().options.limits;
        let limit = validate::page_limit(request.limit, limits)?;
        if request.wait_ms > limits.wait_ms {
            return Err(SessionError::invalid("wait_ms", format!("a long poll waits at most {} ms", limits.wait_ms)));
        }
        let session_id = request.session_id;
        let tail = self.inner.events.watch(session_id).await.map_err(|_| SessionError::StoreFailed)?;
        let mut tail = tail.ok_or(SessionError::NotFound(session_id))?;
        let last_seq = *tail.borrow();
        check_cursor(self.inner.events.as_ref(), session_id, request.since_seq, last_seq).await?;
        if last_seq == request.since_seq && request.wait_ms > 0 {
            tokio::select! {
                changed = tail.wait_for(|seq| *seq > request.since_seq) => drop(changed.is_ok()),
                () = self.engine().world.clock.sleep(Duration::from_millis(request.wait_ms)) => {}
            }
        }
        let page = self
            .inner
            .events
            .read(session_id, request.since_seq, limit)
            .await
            .map_err(|_| SessionError::StoreFailed)?;
        let page = page.ok_or(SessionError::NotFound(session_id))?;
        let mut items = Vec::with_capacity(page.frames.len() + 1);
        if let Some((from, to)) = page.pruned {
            items.push(pruned_line(session_id, self.engine().world.clock.as_ref(), from, to)?);
        }
        let (mut next_seq, mut bytes) = (request.since_seq, 0);
        for frame in page.frames {
            bytes += frame.line.len();
            if bytes > PAGE_BYTES_MAX && !items.is_empty() {
                break;
            }
            next_seq = frame.seq;
            items.push(frame.line);
        }
        Ok(EventPage { items, next_seq })
    }

    async fn follow(&self, session_id: &SessionId, since_seq: u64) -> Result<Follower, SessionError> {
        let shared = self.shared(*session_id)?;
        let engine = self.engine();
        Follower::new(*session_id, engine.events.clone(), engine.world.clock.clone(), shared.live.clone(), since_seq)
            .await
    }

    async fn remind(&self, request: Remind) -> Result<Changed, SessionError> {
        validate::not_empty("text", &request.text, "say what to remind of, or clear the reminder")?;
        validate::size("reminder", &request.text, self.engine().options.limits.reminder_bytes)?;
        let text = self.engine().secrets.replace(&request.text).into_owned();
        let event = Event::ReminderSet(ReminderSet { kind: request.kind.clone(), text });
        self.record(request.session_id, Change::Remind(Box::new(event), request.kind)).await
    }

    async fn reminders(&self, session_id: &SessionId) -> Result<Page<Reminder>, SessionError> {
        let reminders = self.shared(*session_id)?.view.borrow().reminders.clone();
        Ok(Page::whole(reminders.to_vec()))
    }

    async fn clear_reminder(&self, request: ClearReminder) -> Result<Changed, SessionError> {
        self.record(request.session_id, Change::ClearReminder(request.kind)).await
    }

    async fn pin(&self, request: PinFact) -> Result<Changed, SessionError> {
        validate::not_empty("text", &request.text, "say what to pin")?;
        validate::size("pin", &request.text, self.engine().options.limits.pin_bytes)?;
        let text = self.engine().secrets.replace(&request.text).into_owned();
        self.record(request.session_id, Change::Pin(Box::new(Event::Pinned(Pinned { text })))).await
    }

    async fn pins(&self, session_id: &SessionId) -> Result<Page<Pin>, SessionError> {
        let pins = self.shared(*session_id)?.view.borrow().pins.clone();
        Ok(Page::whole(pins.to_vec()))
    }

    async fn unpin(&self, request: Unpin) -> Result<Changed, SessionError> {
        self.record(request.session_id, Change::Unpin(request.pin)).await
    }

    async fn shut_down(&self, drain_ms: u64) {
        self.engine().is_shutting_down.store(true, Ordering::Release);
        let sessions = self.inner.registry.ids();
        let drains = sessions.into_iter().map(|id| self.ask(id, |reply| Command::Drain { drain_ms, reply }));
        for drained in futures::future::join_all(drains).await {
            if let Err(error) = drained {
                tracing::warn!(%error, "a session left before it was drained");
            }
        }
    }
}
