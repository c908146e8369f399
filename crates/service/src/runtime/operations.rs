//! Each operation of the service over its sessions. What needs a capability asks for it first.

use std::{sync::atomic::Ordering, time::Duration};

use async_trait::async_trait;
use futures::FutureExt as _;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    follow::{Follower, check_cursor, gone_line},
    sessions::Sessions,
    validate,
};
use crate::{
    SessionError,
    agent::{
        command::{Acceptance, Change, Command},
        supervise::durable,
    },
    capability::{Capabilities, Capability},
    consumers::{
        memory::{self, Memory},
        projection,
        readers::Readers,
    },
    ids::SessionId,
    service::{
        AcknowledgeReader, BegunTurn, BlobPage, BundlePage, CancelQueued, Changed, Checkpoint, ClearReminder,
        CompactJournal, CompactSession, CompactionReceipt, CreateSession, DecideApproval, DeleteSession, EventPage,
        ExportSession, FetchReader, ForgetMemory, Forgotten, ForkSession, HistoryItem, ImportBundle, Imported,
        InterruptTurn, JournalCompactionReport, NamedReader, Page, Pin, PinFact, ProjectionRebuilt, QueueItem,
        ReadBlob, ReadEvents, ReadHistory, ReaderView, RecordPage, Reindexed, Remind, Reminder, ResumeTurn, Retain,
        Retained, SearchHit, SearchMemory, SessionCreated, SessionQuery, SessionService, SessionState, SessionSummary,
        SessionView, StartTurn, UndoCompaction, Unpin, UpdateSession, WaitReader,
    },
    session::{
        QueuedTurn,
        event::{Event, Pinned, ReminderSet},
    },
    store::ReadLimit,
    upkeep::{bundle, pruning::CompactionPolicy},
};

/// Bytes of events, or of what a history makes of them, that one page may have.
pub(super) const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

impl<Home: 'static> Sessions<Home> {
    /// Waits until what a former process left behind is settled, and asks for the store.
    pub(super) async fn stored(&self) -> Result<(), SessionError> {
        self.engine().capabilities.require(Capability::SessionStore)?;
        self.settle().await
    }

    /// The readers, once all that they may read is settled.
    async fn readers(&self) -> Result<&Readers, SessionError> {
        self.stored().await?;
        // What a reader is behind in is told by the rows, so none may be missing.
        self.complete_index().await?;
        let lost = || SessionError::Internal("a store of sessions has no readers".to_owned());
        Ok(&self.engine().derived.as_ref().ok_or_else(lost)?.readers)
    }

    /// The memory of this service.
    fn memory(&self) -> Result<&std::sync::Arc<Memory>, SessionError> {
        self.engine().capabilities.require(Capability::MemoryStore)?;
        let lost = || SessionError::Internal("a service that remembers has no memory".to_owned());
        Ok(self.engine().memory.as_ref().ok_or_else(lost)?.memory())
    }

    /// Memory learns of everything that is durable. A session is known here, or, where it ended with its process, to
    /// memory.
    async fn tell_memory(&self, session_id: Option<SessionId>) -> Result<(), SessionError> {
        self.settle().await?;
        if let Some(session_id) = session_id
            && self.engine().events.watch(session_id).await?.is_none()
            && self.memory()?.taken_in(session_id).await? == 0
        {
            return Err(SessionError::NotFound(session_id));
        }
        self.publish_all().await
    }

    /// What both asking for a compaction and asking what it would do need.
    async fn check_compact(&self, request: &CompactSession) -> Result<(), SessionError> {
        self.engine().capabilities.require(Capability::SessionCompaction)?;
        validate::compaction(request.compaction)?;
        self.settle().await
    }

    fn begun(acceptance: Acceptance) -> BegunTurn {
        let Acceptance { accepted, result } = acceptance;
        let lost = |_| SessionError::Internal("the session's actor was lost while the turn ran".to_owned());
        BegunTurn { accepted, result: async move { result.await.map_err(lost)? }.boxed() }
    }
}

#[async_trait]
impl<Home: 'static> SessionService for Sessions<Home> {
    fn capabilities(&self) -> Capabilities {
        self.engine().capabilities
    }

    async fn ready(&self) -> Result<(), SessionError> {
        self.settle().await
    }

    async fn check_ready(&self) -> Result<bool, SessionError> {
        self.engine().events.room().await?;
        Ok(self.engine().derived.is_none() || self.inner.is_ready.initialized())
    }

    async fn create_session(&self, request: CreateSession) -> Result<SessionCreated, SessionError> {
        self.settle().await?;
        self.create(request).await
    }

    async fn begin_turn(&self, request: StartTurn) -> Result<BegunTurn, SessionError> {
        self.settle().await?;
        Ok(Self::begun(self.accept(request, false).await?))
    }

    async fn begin_resume(&self, session_id: &SessionId, request: ResumeTurn) -> Result<BegunTurn, SessionError> {
        self.stored().await?;
        let ResumeTurn { prompt, model, policy, budgets, compaction, wait, idempotency_key } = request;
        let is_continuation = prompt.is_none();
        let request = StartTurn {
            session_id: *session_id,
            prompt: prompt.unwrap_or_default(),
            model,
            policy,
            budgets,
            compaction,
            wait,
            idempotency_key,
        };
        Ok(Self::begun(self.accept(request, is_continuation).await?))
    }

    async fn interrupt(&self, request: InterruptTurn) -> Result<Changed, SessionError> {
        self.settle().await?;
        let Some(reservation) = self.inner.registry.reserve(request.session_id) else {
            self.check_exists(request.session_id).await?;
            return Err(SessionError::NotRunning { turn: request.turn });
        };
        let answer = reservation.shared.wish_interrupt(request.turn)?;
        answer.await.map_err(|_| SessionError::NotRunning { turn: request.turn })?
    }

    async fn decide_approval(&self, request: DecideApproval) -> Result<Changed, SessionError> {
        self.settle().await?;
        let DecideApproval { session_id, call_id, decision, reason } = request;
        if let Some(reason) = &reason {
            validate::size("reason", reason, self.engine().options.limits.pin_bytes)?;
        }
        let command = |reply| Command::Decide { call_id: call_id.clone(), decision, reason: reason.clone(), reply };
        self.ask(session_id, command).await
    }

    async fn queue(&self, session_id: &SessionId) -> Result<Page<QueueItem>, SessionError> {
        self.settle().await?;
        Ok(Page::whole(self.look(*session_id).await?.queue.iter().map(QueuedTurn::item).collect()))
    }

    async fn cancel_queued(&self, request: CancelQueued) -> Result<Changed, SessionError> {
        self.settle().await?;
        self.ask(request.session_id, |reply| Command::CancelQueued { turn: request.turn, reply }).await
    }

    async fn events(&self, request: ReadEvents) -> Result<EventPage, SessionError> {
        let limits = &self.engine().options.limits;
        let limit = validate::page_limit(request.limit, limits)?;
        let wait_ms = request.wait_ms.min(limits.wait_ms);
        self.settle().await?;
        let (events, session_id) = (self.engine().events.as_ref(), request.session_id);
        let mut tail = events.watch(session_id).await?.ok_or(SessionError::NotFound(session_id))?;
        let last_seq = *tail.borrow();
        check_cursor(events, session_id, request.since_seq, last_seq).await?;
        if last_seq == request.since_seq && wait_ms > 0 {
            tokio::select! {
                changed = tail.wait_for(|seq| *seq > request.since_seq) => drop(changed.is_ok()),
                () = self.engine().world.clock.sleep(Duration::from_millis(wait_ms)) => {}
            }
        }
        let page = events.read(session_id, request.since_seq, ReadLimit::frames(limit)).await?;
        let page = page.ok_or(SessionError::NotFound(session_id))?;
        let mut items = Vec::with_capacity(page.frames.len() + 1);
        let mut next_seq = request.since_seq;
        for frame in page.frames {
            items.extend(gone_line(session_id, self.engine().world.clock.as_ref(), next_seq, frame.seq)?);
            next_seq = frame.seq;
            items.push(frame.line);
        }
        Ok(EventPage { items, next_seq })
    }

    async fn follow(&self, session_id: &SessionId, since_seq: u64) -> Result<Follower, SessionError> {
        self.settle().await?;
        self.check_exists(*session_id).await?;
        let (engine, hub) = (self.engine(), self.inner.registry.hub(*session_id));
        Follower::new(*session_id, engine.events.clone(), engine.world.clock.clone(), hub, since_seq).await
    }

    async fn follow_turn(&self, session_id: &SessionId, since_seq: u64) -> Result<Follower, SessionError> {
        let follower = self.follow(session_id, since_seq).await?.waiting();
        if self.engine().derived.is_some()
            && self.inner.registry.shared(*session_id).is_none()
            && self.look(*session_id).await.is_ok_and(|view| view.summary.state != SessionState::Idle)
        {
            // The store failed it before anybody followed. It is brought in, as by whoever asks next; where that fails, the
            // turn has no end yet.
            match self.reserve(*session_id).await {
                Ok(_) | Err(SessionError::ShuttingDown) => {}
                Err(error) => {
                    let tail = durable(self.engine(), *session_id).await.unwrap_or(since_seq);
                    self.inner.registry.hub(*session_id).lose(tail, &error);
                }
            }
        }
        Ok(follower)
    }

    async fn remind(&self, request: Remind) -> Result<Changed, SessionError> {
        validate::not_empty("text", &request.text, "say what to remind of, or clear the reminder")?;
        validate::size("reminder", &request.text, self.engine().options.limits.reminder_bytes)?;
        self.settle().await?;
        let text = self.engine().secrets.replace(&request.text).into_owned();
        let event = Event::ReminderSet(ReminderSet { kind: request.kind.clone(), text });
        self.record(request.session_id, Change::Remind(Box::new(event), request.kind)).await
    }

    async fn reminders(&self, session_id: &SessionId) -> Result<Page<Reminder>, SessionError> {
        self.settle().await?;
        Ok(Page::whole(self.look(*session_id).await?.reminders.to_vec()))
    }

    async fn clear_reminder(&self, request: ClearReminder) -> Result<Changed, SessionError> {
        self.settle().await?;
        self.record(request.session_id, Change::ClearReminder(request.kind)).await
    }

    async fn pin(&self, request: PinFact) -> Result<Changed, SessionError> {
        validate::not_empty("text", &request.text, "say what to pin")?;
        validate::size("pin", &request.text, self.engine().options.limits.pin_bytes)?;
        self.settle().await?;
        let text = self.engine().secrets.replace(&request.text).into_owned();
        self.record(request.session_id, Change::Pin(Box::new(Event::Pinned(Pinned { text })))).await
    }

    async fn pins(&self, session_id: &SessionId) -> Result<Page<Pin>, SessionError> {
        self.settle().await?;
        Ok(Page::whole(self.look(*session_id).await?.pins.to_vec()))
    }

    async fn unpin(&self, request: Unpin) -> Result<Changed, SessionError> {
        self.settle().await?;
        self.record(request.session_id, Change::Unpin(request.pin)).await
    }

    async fn read(&self, session_id: &SessionId) -> Result<SessionView, SessionError> {
        self.stored().await?;
        let view = self.look(*session_id).await?;
        // A model that is configured no longer has no window that could be told.
        let window_tokens = self.engine().models.resolve(&view.summary.model).map_or(0, |model| model.window_tokens);
        Ok(view.session_view(window_tokens))
    }

    async fn history(&self, request: ReadHistory) -> Result<Page<HistoryItem>, SessionError> {
        self.engine().capabilities.require(Capability::SessionStore)?;
        let limit = validate::page_limit(request.limit, &self.engine().options.limits)?;
        let cursor = validate::seq_cursor(request.cursor.as_deref())?;
        self.settle().await?;
        self.history_page(request.session_id, cursor, limit).await
    }

    async fn blob(&self, request: ReadBlob) -> Result<BlobPage, SessionError> {
        self.engine().capabilities.require(Capability::SessionStore)?;
        self.answer_blob(request).await
    }

    async fn answer_blob(&self, request: ReadBlob) -> Result<BlobPage, SessionError> {
        validate::blob_hash(&request.blob)?;
        let limit = validate::blob_limit(request.limit)?;
        self.settle().await?;
        self.blob_page(request, limit).await
    }

    async fn list(&self, query: SessionQuery) -> Result<Page<SessionSummary>, SessionError> {
        self.engine().capabilities.require(Capability::SessionStore)?;
        let limits = &self.engine().options.limits;
        let limit = validate::page_limit(query.limit, limits)?;
        validate::labels(&query.labels, limits)?;
        query.cursor()?;
        self.settle().await?;
        self.list_page(SessionQuery { limit: Some(limit), ..query }).await
    }

    async fn update(&self, request: UpdateSession) -> Result<Changed, SessionError> {
        self.engine().capabilities.require(Capability::SessionStore)?;
        let UpdateSession { session_id, title, labels } = request;
        let limits = &self.engine().options.limits;
        if let Some(title) = &title {
            validate::title(title, limits)?;
        }
        if let Some(labels) = &labels {
            validate::labels(labels, limits)?;
        }
        self.settle().await?;
        let clean = |text: &str| self.engine().secrets.replace(text).into_owned();
        let title = title.as_deref().map(clean);
        let labels = labels.map(|labels| labels.iter().map(|(name, value)| (clean(name), clean(value))).collect());
        self.record(session_id, Change::Update { title, labels }).await
    }

    async fn archive(&self, session_id: &SessionId) -> Result<Changed, SessionError> {
        self.stored().await?;
        self.record(*session_id, Change::Archive(true)).await
    }

    async fn unarchive(&self, session_id: &SessionId) -> Result<Changed, SessionError> {
        self.stored().await?;
        self.record(*session_id, Change::Archive(false)).await
    }

    async fn delete(&self, request: DeleteSession) -> Result<Changed, SessionError> {
        self.stored().await?;
        let service = self.clone();
        Self::to_the_end(async move { service.delete_session(request).await }).await
    }

    async fn fork(&self, request: ForkSession) -> Result<Changed, SessionError> {
        self.stored().await?;
        let service = self.clone();
        Self::to_the_end(async move { service.fork_session(request).await }).await
    }

    async fn compact(&self, request: CompactSession) -> Result<CompactionReceipt, SessionError> {
        self.compact_until(request, CancellationToken::new()).await
    }

    async fn compact_until(
        &self,
        request: CompactSession,
        cancel: CancellationToken,
    ) -> Result<CompactionReceipt, SessionError> {
        self.check_compact(&request).await?;
        let CompactSession { session_id, compaction: config } = request;
        self.ask(session_id, |reply| Command::Compact { config, cancel: cancel.clone(), reply }).await
    }

    async fn preview_compaction(&self, request: CompactSession) -> Result<CompactionReceipt, SessionError> {
        self.check_compact(&request).await?;
        let CompactSession { session_id, compaction: config } = request;
        self.ask(session_id, |reply| Command::PreviewCompaction { config, reply }).await
    }

    async fn undo_compaction(&self, request: UndoCompaction) -> Result<Changed, SessionError> {
        self.engine().capabilities.require(Capability::SessionCompaction)?;
        self.settle().await?;
        let UndoCompaction { session_id, compaction } = request;
        self.ask(session_id, |reply| Command::UndoCompaction { compaction, reply }).await
    }

    async fn compact_journal(&self, request: CompactJournal) -> Result<JournalCompactionReport, SessionError> {
        self.stored().await?;
        self.check_exists(request.session_id).await?;
        // It is the one reader that takes its time, and nothing is dropped that it has not read.
        if let Some(memory) = &self.engine().memory {
            memory.memory().catch_up().await;
        }
        self.compact_one(request, CompactionPolicy::asked(&self.engine().options.journal)).await
    }

    async fn create_reader(&self, request: NamedReader) -> Result<ReaderView, SessionError> {
        self.engine().capabilities.require(Capability::SessionStore)?;
        validate::reader(&request.reader)?;
        self.readers().await?.create(&request.reader).await
    }

    async fn fetch_reader(&self, request: FetchReader) -> Result<RecordPage, SessionError> {
        self.engine().capabilities.require(Capability::SessionStore)?;
        let limits = &self.engine().options.limits;
        validate::reader(&request.reader)?;
        let limit = validate::page_limit(request.limit, limits)?;
        let wait_ms = request.wait_ms.min(limits.wait_ms);
        self.readers().await?.fetch(&request.reader, limit, wait_ms).await
    }

    async fn acknowledge_reader(&self, request: AcknowledgeReader) -> Result<Checkpoint, SessionError> {
        self.engine().capabilities.require(Capability::SessionStore)?;
        validate::reader(&request.reader)?;
        self.readers().await?.acknowledge(request).await
    }

    async fn wait_reader(&self, mut request: WaitReader) -> Result<Checkpoint, SessionError> {
        self.engine().capabilities.require(Capability::SessionStore)?;
        validate::reader(&request.reader)?;
        request.wait_ms = request.wait_ms.min(self.engine().options.limits.wait_ms);
        self.readers().await?.wait(request).await
    }

    async fn delete_reader(&self, request: NamedReader) -> Result<ReaderView, SessionError> {
        self.engine().capabilities.require(Capability::SessionStore)?;
        validate::reader(&request.reader)?;
        self.readers().await?.delete(&request.reader).await
    }

    async fn list_readers(&self) -> Result<Page<ReaderView>, SessionError> {
        let mut page = self.readers().await?.list().await?;
        // A rebuild goes over what the reader was done with before.
        if let Some(remaining) = self.engine().memory.as_ref().map(|memory| memory.control.remaining())
            && let Some(view) = page.items.iter_mut().find(|view| view.reader == memory::READER)
        {
            view.records_behind = view.records_behind.max(remaining);
        }
        if let Some(remaining) = self.projector().map(|projector| projector.control.remaining())
            && let Some(view) = page.items.iter_mut().find(|view| view.reader == projection::READER)
        {
            view.sessions_behind = view.sessions_behind.max(remaining);
        }
        Ok(page)
    }

    async fn rebuild_projection(&self) -> Result<ProjectionRebuilt, SessionError> {
        self.stored().await?;
        let off = "there is no projection: set projection.enabled, and a folder for it";
        self.projector().ok_or_else(|| SessionError::invalid("projection", off))?.rebuild(self).await
    }

    async fn export_session(&self, request: ExportSession) -> Result<BundlePage, SessionError> {
        self.stored().await?;
        let _whole = self.journal(request.session_id).read().await;
        bundle::page(self.engine(), &self.inner.exports, request).await
    }

    async fn import_bundle(&self, request: ImportBundle) -> Result<Imported, SessionError> {
        self.stored().await?;
        self.import(request).await
    }

    async fn retain(&self, request: Retain) -> Result<Retained, SessionError> {
        self.stored().await?;
        self.retain_sessions(request).await
    }

    async fn search_memory(&self, request: SearchMemory) -> Result<Page<SearchHit>, SessionError> {
        let (memory, limits) = (self.memory()?, &self.engine().options.limits);
        validate::search(&request, limits)?;
        let limit = Some(validate::hits(request.limit)?);
        self.tell_memory(request.session_id).await?;
        Ok(Page::whole(memory.search(SearchMemory { limit, ..request }).await?))
    }

    async fn forget_memory(&self, request: ForgetMemory) -> Result<Forgotten, SessionError> {
        let memory = self.memory()?.clone();
        validate::forget(&request, &self.engine().options.limits)?;
        self.tell_memory(request.session_id).await?;
        Self::to_the_end(async move { memory.forget(request).await }).await
    }

    async fn memory_to_index(&self) -> Option<u64> {
        self.engine().memory.as_ref().map(|memory| memory.control.remaining())
    }

    async fn reindex_memory(&self) -> Result<Reindexed, SessionError> {
        let memory = self.memory()?.clone();
        self.tell_memory(None).await?;
        Self::to_the_end(async move { memory.reindex().await }).await
    }

    async fn shut_down(&self, drain_ms: u64) {
        self.engine().is_shutting_down.store(true, Ordering::Release);
        let registry = &self.inner.registry;
        let drains = registry.ids().into_iter().map(|id| async move {
            // One that is being loaded is drained once it is there; no other one is loaded from now on.
            registry.settled(id).await;
            if let Some(reservation) = registry.reserve(id) {
                let (reply, drained) = oneshot::channel();
                // An actor that leaves has nothing to drain.
                drop(reservation.mailbox.send(Command::Drain { drain_ms, reply }).await);
                drop(reservation);
                drop(drained.await);
            }
            registry.settled(id).await;
        });
        futures::future::join_all(drains).await;
        let engine = self.engine();
        let remembered = async {
            if let Some(memory) = &engine.memory {
                memory.end().await;
            }
        };
        let projected = async {
            if let Some(projector) = self.projector() {
                projector.end().await;
            }
        };
        tokio::join!(remembered, projected);
        if let Some(derived) = &engine.derived {
            if let Err(error) = derived.index.flush().await {
                tracing::warn!(%error, "the index could not be written; it is made good at the next start");
            }
            derived.settling.close();
            derived.settling.wait().await;
        }
    }
}
