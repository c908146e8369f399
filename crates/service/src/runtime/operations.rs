//! Admitted operations over the sessions of a service.

use std::{path::Path, sync::Arc, time::Duration};

use futures::stream::{self, StreamExt as _};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::{admit::Admitted, sessions::Sessions, validate};
use crate::{
    SessionError,
    agent::{
        command::{Change, Command},
        registry::Live,
    },
    consumers::{
        memory::{self, Memory},
        projection,
        readers::Readers,
    },
    follow::{check_cursor, check_end, gone_lines, turn},
    ids::{SessionId, TurnNumber},
    prompt,
    service::{
        AcknowledgeReader, AnswerCall, AnsweredCall, BlobPage, BundlePage, CancelQueued, Changed, Checkpoint,
        ClearReminder, CompactJournal, CompactSession, CompactionReceipt, DecideApproval, DeleteSession, Diagnosis,
        EditQueued, EventPage, ExportSession, FetchReader, Finding, ForgetMemory, Forgotten, ForkSession, HistoryItem,
        ImportBundle, Imported, InterruptTurn, JournalCompactionReport, ListTools, MemoryScope, NamedReader, OpenCall,
        Page, Pieces, Pin, PinFact, ProjectionRebuilt, PutBlob, QueueItem, ReadBlob, ReadEvents, ReadHistory,
        ReaderView, RecordPage, Reindexed, Remind, Reminder, Retain, Retained, SearchHit, SearchMemory, SessionQuery,
        SessionState, SessionSummary, SessionView, StoredBlob, ToolServerView, ToolView, TurnHandle, TurnStatus,
        UndoCompaction, Unpin, UpdateSession, WaitReader,
    },
    session::{
        QueuedTurn, TurnEnd,
        event::{Decision, Event, ReminderSet},
    },
    store::ReadLimit,
    tool::{ListedSession, Offer, ToolScope, is_copy},
    upkeep::{
        bundle,
        doctor::{self, Examination},
        journal_compaction::Pass,
    },
};

/// Most bytes of events, or of their history, in one page.
pub(super) const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Most findings of an examination in one answer.
const FINDINGS_MAX: usize = 1000;

impl Sessions {
    /// Returns the readers, after the index is complete.
    async fn readers(&self) -> Result<&Readers, SessionError> {
        // A reader's lag is counted from the rows, so none may be missing.
        self.complete_index().await?;
        self.hear().await?;
        Ok(&self.engine().derived.readers)
    }

    /// Returns the memory of this service.
    pub(super) fn memory(&self) -> Result<&Arc<Memory>, SessionError> {
        let lost = || SessionError::Internal("a service that remembers has no memory".to_owned());
        self.engine().derived.memory.as_deref().ok_or_else(lost)
    }

    /// Publishes everything durable, so that memory can take it in. Checks that a named session exists here or, if it
    /// ended with its process, in memory.
    async fn publish_to_memory(&self, session_id: Option<SessionId>) -> Result<(), SessionError> {
        if let Some(session_id) = session_id
            && self.engine().events.tail(session_id).await?.is_none()
            && self.memory()?.taken_in(session_id).await? == 0
        {
            return Err(SessionError::NotFound(session_id));
        }
        self.hear().await?;
        self.publish_all().await
    }

    /// Checks a fact that is to be pinned, and replaces secrets in it.
    fn pin_text(&self, text: &str) -> Result<String, SessionError> {
        validate::not_empty("text", text, "say what to pin")?;
        validate::size("pin", text, self.engine().options.limits.pin_bytes)?;
        Ok(self.engine().secrets.replace(text).into_owned())
    }

    /// Pins a fact for a call of a session's running turn.
    pub(super) async fn pin_in_turn(
        &self,
        session_id: SessionId,
        turn: TurnNumber,
        text: &str,
    ) -> Result<Changed, SessionError> {
        let text = self.pin_text(text)?;
        self.record(session_id, Change::Pin { text, turn: Some(turn) }).await
    }
}

/// Asks an actor to end its turn; answers when it has ended.
async fn ask_to_end(live: &Live, turn: Option<TurnNumber>) -> Result<Changed, SessionError> {
    let answer = live.shared.wish_interrupt(turn)?;
    answer.await.unwrap_or(Err(SessionError::NotRunning { turn }))
}

impl Admitted<'_> {
    pub(super) async fn interrupt(&self, request: InterruptTurn) -> Result<Changed, SessionError> {
        let answer = match self.0.inner.registry.live(request.session_id) {
            Some(live) => ask_to_end(&live, request.turn).await,
            None => {
                self.0.check_exists(request.session_id).await?;
                Err(SessionError::NotRunning { turn: request.turn })
            }
        };
        if matches!(answer, Err(SessionError::NotRunning { .. } | SessionError::TakenOver(_))) {
            // It may run on another node.
            self.0.check_here(request.session_id).await?;
        }
        match answer {
            Err(SessionError::NotRunning { .. }) if self.0.engine().is_stored() => self.interrupt_left(request).await,
            answer => answer,
        }
    }

    /// Interrupts a turn that is open in its journal, and whose session is not in memory because the store failed it, or
    /// is only coming.
    async fn interrupt_left(&self, request: InterruptTurn) -> Result<Changed, SessionError> {
        let InterruptTurn { session_id, turn } = request;
        let left = self.0.look(session_id).await?.summary;
        if !matches!(left.state, SessionState::Running | SessionState::Waiting) {
            return Err(SessionError::NotRunning { turn });
        }
        let live = self.0.live(session_id).await?;
        let answer = ask_to_end(&live, turn).await;
        if !matches!(answer, Err(SessionError::NotRunning { .. })) {
            return answer;
        }
        // A turn that cannot go on was interrupted when its session was loaded.
        let loaded = self.0.engine().restore(session_id).await?;
        let is_it = |end: &&TurnEnd| {
            let is_named = turn.is_none_or(|turn| turn == end.turn);
            is_named && end.seq > left.last_seq && end.status == TurnStatus::Interrupted
        };
        let end = loaded.as_ref().and_then(|session| session.last_end()).filter(is_it);
        end.map_or(answer, |end| Ok(Changed { session_id, seq: end.seq }))
    }

    pub(super) async fn decide_approval(&self, request: DecideApproval) -> Result<Changed, SessionError> {
        if let Some(reason) = &request.reason {
            validate::size("reason", reason, self.0.engine().options.limits.pin_bytes)?;
        }
        if request.decision == Decision::Deny && !request.scope.is_once() {
            let message = "a denial is for one call only: leave the scope out";
            return Err(SessionError::invalid("scope", message));
        }
        if request.decision == Decision::Deny && request.answer.is_some() {
            return Err(SessionError::invalid("answer", "a denial answers nothing: leave the answer out"));
        }
        let command = |reply| Command::Decide { request: Box::new(request.clone()), reply };
        self.0.ask(request.session_id, command).await
    }

    pub(super) async fn answer_call(&self, request: AnswerCall) -> Result<AnsweredCall, SessionError> {
        validate::call_content(&request.content, self.0.engine().options.tools.max_output_bytes)?;
        let hash = validate::request_hash(&(request.outcome, &request.content), true)?;
        let (session_id, request) = (request.session_id, Arc::new(request));
        let command = |reply| Command::AnswerCall { request: request.clone(), hash: hash.clone(), reply };
        let TurnHandle { accepted, wait, result } = match self.0.ask(session_id, command).await {
            Err(SessionError::HeldBy { .. }) if request.wait => return self.answer_elsewhere(&request).await,
            asked => self.0.followed(asked?),
        };
        Ok(match wait {
            false => AnsweredCall::Recorded(Changed { session_id, seq: accepted.seq }),
            true => AnsweredCall::Turn(Box::new(result.await?)),
        })
    }

    /// Answers a call of a session that another node has. No letter waits for a turn: its events say here how it goes on.
    async fn answer_elsewhere(&self, request: &AnswerCall) -> Result<AnsweredCall, SessionError> {
        let accepted = turn::answered(&self.0, request.clone()).await?;
        let result = turn::result_or_calls(&self.0, accepted, true).await?;
        Ok(AnsweredCall::Turn(Box::new(result)))
    }

    pub(super) async fn calls(&self, session_id: &SessionId) -> Result<Page<OpenCall>, SessionError> {
        let calls = self.0.look(*session_id).await?.calls;
        Ok(Page::whole(calls.into_iter().map(|(_, call)| Arc::unwrap_or_clone(call)).collect()))
    }

    pub(super) async fn queue(&self, session_id: &SessionId) -> Result<Page<QueueItem>, SessionError> {
        Ok(Page::whole(self.0.look(*session_id).await?.queue.iter().map(QueuedTurn::item).collect()))
    }

    pub(super) async fn cancel_queued(&self, request: CancelQueued) -> Result<Changed, SessionError> {
        self.0.ask(request.session_id, |reply| Command::CancelQueued { turn: request.turn, reply }).await
    }

    pub(super) async fn edit_queued(&self, request: EditQueued) -> Result<Changed, SessionError> {
        match (&request.prompt, request.position) {
            (Some(prompt), _) => prompt::check(prompt, &self.0.engine().options.limits)?,
            (None, Some(_)) => {}
            (None, None) => {
                return Err(SessionError::invalid("prompt", "say what to change: give a prompt, a position, or both"));
            }
        }
        let command = |reply| Command::EditQueued { request: Box::new(request.clone()), reply };
        self.0.ask(request.session_id, command).await
    }

    pub(super) async fn events(&self, request: ReadEvents) -> Result<EventPage, SessionError> {
        let limits = &self.0.engine().options.limits;
        let limit = validate::page_limit(request.limit, limits)?;
        let wait_ms = request.wait_ms.min(limits.wait_ms);
        let (events, session_id) = (self.0.engine().events.as_ref(), request.session_id);
        let mut tail = events.watch(session_id).await?.ok_or(SessionError::NotFound(session_id))?;
        let last_seq = *tail.borrow();
        check_cursor(events, session_id, request.since_seq, last_seq).await?;
        if last_seq == request.since_seq && wait_ms > 0 {
            tokio::select! {
                changed = tail.wait_for(|seq| *seq > request.since_seq) => drop(changed.is_ok()),
                () = self.0.engine().world.clock.sleep(Duration::from_millis(wait_ms)) => {}
            }
        }
        let limit = ReadLimit::frames(limit).skipping_damage(request.skip_damage);
        let page = events.read(session_id, request.since_seq, limit).await?;
        let page = page.ok_or(SessionError::NotFound(session_id))?;
        check_end(events, session_id, &page)?;
        let mut items = Vec::with_capacity(page.frames.len() + 1);
        let mut next_seq = request.since_seq;
        for frame in page.frames {
            let clock = self.0.engine().world.clock.as_ref();
            items.extend(gone_lines(session_id, clock, (next_seq, frame.seq), &page.lost)?);
            next_seq = frame.seq;
            items.push(frame.line);
        }
        Ok(EventPage { items, next_seq })
    }

    pub(super) async fn remind(&self, request: Remind) -> Result<Changed, SessionError> {
        request.kind.check()?;
        validate::not_empty("text", &request.text, "say what to remind of, or clear the reminder")?;
        validate::size("reminder", &request.text, self.0.engine().options.limits.reminder_bytes)?;
        let text = self.0.engine().secrets.replace(&request.text).into_owned();
        let event = Event::ReminderSet(ReminderSet { kind: request.kind.clone(), text, automatic: false });
        self.0.record(request.session_id, Change::Remind(Box::new(event), request.kind)).await
    }

    pub(super) async fn reminders(&self, session_id: &SessionId) -> Result<Page<Reminder>, SessionError> {
        Ok(Page::whole(self.0.look(*session_id).await?.reminders.to_vec()))
    }

    pub(super) async fn clear_reminder(&self, request: ClearReminder) -> Result<Changed, SessionError> {
        request.kind.check()?;
        self.0.record(request.session_id, Change::ClearReminder(request.kind)).await
    }

    pub(super) async fn pin(&self, request: PinFact) -> Result<Changed, SessionError> {
        let text = self.0.pin_text(&request.text)?;
        self.0.record(request.session_id, Change::Pin { text, turn: None }).await
    }

    pub(super) async fn pins(&self, session_id: &SessionId) -> Result<Page<Pin>, SessionError> {
        Ok(Page::whole(self.0.look(*session_id).await?.pins.to_vec()))
    }

    pub(super) async fn unpin(&self, request: Unpin) -> Result<Changed, SessionError> {
        self.0.record(request.session_id, Change::Unpin(request.pin)).await
    }

    pub(super) async fn read(&self, session_id: &SessionId) -> Result<SessionView, SessionError> {
        let view = self.0.look(*session_id).await?;
        // A model that is no longer configured has no known window.
        let window_tokens = self.0.engine().models.resolve(&view.summary.model).map_or(0, |model| model.window_tokens);
        Ok(view.session_view(window_tokens))
    }

    pub(super) async fn history(&self, request: ReadHistory) -> Result<Page<HistoryItem>, SessionError> {
        let limit = validate::page_limit(request.limit, &self.0.engine().options.limits)?;
        let cursor = validate::seq_cursor(request.cursor.as_deref())?;
        self.0.history_page(request.session_id, (cursor, request.skip_damage), limit).await
    }

    pub(super) async fn blob(&self, request: ReadBlob) -> Result<BlobPage, SessionError> {
        if is_copy(self.0.engine().blobs.as_ref(), request.session_id, &request.blob).await? {
            let why = "it is a copy of a file, unredacted; only a command of the data directory's owner may read it";
            return Err(SessionError::invalid("blob", why));
        }
        self.any_blob(request).await
    }

    /// Like [`Self::blob`], but also reads copies of files.
    pub(super) async fn any_blob(&self, request: ReadBlob) -> Result<BlobPage, SessionError> {
        validate::blob_hash(&request.blob)?;
        let limit = validate::blob_limit(request.limit)?;
        self.0.blob_page(request, limit).await
    }

    pub(super) async fn put_blob(&self, request: PutBlob) -> Result<StoredBlob, SessionError> {
        let PutBlob { session_id, data } = request;
        let length = Some(data.0.len() as u64);
        self.put_blob_from(session_id, length, stream::iter([Ok(data.0)]).boxed()).await
    }

    pub(super) async fn put_blob_from(
        &self,
        session_id: SessionId,
        length: Option<u64>,
        body: Pieces,
    ) -> Result<StoredBlob, SessionError> {
        self.0.store_upload(session_id, length, body).await
    }

    pub(super) async fn list(&self, query: SessionQuery) -> Result<Page<SessionSummary>, SessionError> {
        let limits = &self.0.engine().options.limits;
        let limit = validate::page_limit(query.limit, limits)?;
        validate::labels(&query.labels, limits)?;
        query.cursor()?;
        self.0.list_page(SessionQuery { limit: Some(limit), ..query }).await
    }

    pub(super) async fn update(&self, request: UpdateSession) -> Result<Changed, SessionError> {
        let UpdateSession { session_id, title, labels } = request;
        let limits = &self.0.engine().options.limits;
        if let Some(title) = &title {
            validate::title(title, limits)?;
        }
        if let Some(labels) = &labels {
            validate::labels(labels, limits)?;
        }
        let clean = |text: &str| self.0.engine().secrets.replace(text).into_owned();
        let title = title.as_deref().map(clean);
        let labels = labels.map(|labels| labels.iter().map(|(name, value)| (clean(name), clean(value))).collect());
        self.0.record(session_id, Change::Update { title, labels }).await
    }

    async fn archived(&self, session_id: SessionId, is_archived: bool) -> Result<Changed, SessionError> {
        self.0.to_the_end(move |service| async move { service.archive_tree(session_id, is_archived).await }).await
    }

    pub(super) async fn archive(&self, session_id: &SessionId) -> Result<Changed, SessionError> {
        self.archived(*session_id, true).await
    }

    pub(super) async fn unarchive(&self, session_id: &SessionId) -> Result<Changed, SessionError> {
        self.archived(*session_id, false).await
    }

    pub(super) async fn delete(&self, request: DeleteSession) -> Result<Changed, SessionError> {
        self.0.to_the_end(|service| async move { service.delete_session(request).await }).await
    }

    pub(super) async fn fork(&self, request: ForkSession) -> Result<Changed, SessionError> {
        self.0.to_the_end(|service| async move { service.fork_session(request).await }).await
    }

    pub(super) async fn compact(&self, request: CompactSession) -> Result<CompactionReceipt, SessionError> {
        self.compact_until(request, CancellationToken::new()).await
    }

    pub(super) async fn compact_until(
        &self,
        request: CompactSession,
        cancel: CancellationToken,
    ) -> Result<CompactionReceipt, SessionError> {
        validate::compaction(request.compaction)?;
        let CompactSession { session_id, compaction: config } = request;
        self.0.ask(session_id, |reply| Command::Compact { config, cancel: cancel.clone(), reply }).await
    }

    pub(super) async fn preview_compaction(&self, request: CompactSession) -> Result<CompactionReceipt, SessionError> {
        validate::compaction(request.compaction)?;
        let CompactSession { session_id, compaction: config } = request;
        self.0.ask(session_id, |reply| Command::PreviewCompaction { config, reply }).await
    }

    pub(super) async fn undo_compaction(&self, request: UndoCompaction) -> Result<Changed, SessionError> {
        let UndoCompaction { session_id, compaction } = request;
        self.0.ask(session_id, |reply| Command::UndoCompaction { compaction, reply }).await
    }

    pub(super) async fn compact_journal(
        &self,
        request: CompactJournal,
    ) -> Result<JournalCompactionReport, SessionError> {
        let pass = Pass::asked(&request, &self.0.engine().options.journal);
        self.0.check_exists(request.session_id).await?;
        // Memory is the one slow reader, and nothing is dropped that it has not read.
        if let Some(memory) = &self.0.engine().derived.memory {
            memory.catch_up().await;
        }
        self.0.compact_one(request.session_id, request.dry_run, pass).await
    }

    pub(super) async fn create_reader(&self, request: NamedReader) -> Result<ReaderView, SessionError> {
        validate::reader(&request.reader)?;
        self.0.readers().await?.create(&request.reader).await
    }

    pub(super) async fn fetch_reader(&self, request: FetchReader) -> Result<RecordPage, SessionError> {
        let limits = &self.0.engine().options.limits;
        validate::reader(&request.reader)?;
        let limit = validate::page_limit(request.limit, limits)?;
        let wait_ms = request.wait_ms.min(limits.wait_ms);
        self.0.readers().await?.fetch(&request.reader, limit, wait_ms).await
    }

    pub(super) async fn acknowledge_reader(&self, request: AcknowledgeReader) -> Result<Checkpoint, SessionError> {
        validate::reader(&request.reader)?;
        self.0.readers().await?.acknowledge(request).await
    }

    pub(super) async fn wait_reader(&self, mut request: WaitReader) -> Result<Checkpoint, SessionError> {
        validate::reader(&request.reader)?;
        request.wait_ms = request.wait_ms.min(self.0.engine().options.limits.wait_ms);
        self.0.readers().await?.wait(request).await
    }

    pub(super) async fn delete_reader(&self, request: NamedReader) -> Result<ReaderView, SessionError> {
        validate::reader(&request.reader)?;
        self.0.readers().await?.delete(&request.reader).await
    }

    pub(super) async fn list_readers(&self) -> Result<Page<ReaderView>, SessionError> {
        let mut page = self.0.readers().await?.list().await?;
        // A rebuild goes over sessions that the reader was done with before.
        if let Some(remaining) = self.0.engine().derived.memory.as_ref().map(|memory| memory.control.remaining())
            && let Some(view) = page.items.iter_mut().find(|view| view.reader == memory::READER)
        {
            view.records_behind = view.records_behind.max(remaining);
        }
        if let Some(remaining) =
            self.0.engine().derived.projector.as_ref().map(|projector| projector.control.remaining())
            && let Some(view) = page.items.iter_mut().find(|view| view.reader == projection::READER)
        {
            view.sessions_behind = view.sessions_behind.max(remaining);
        }
        Ok(page)
    }

    pub(super) async fn rebuild_projection(&self) -> Result<ProjectionRebuilt, SessionError> {
        let off = "there is no projection: set projection.enabled, and a folder for it";
        let projector = self.0.engine().derived.projector.as_ref();
        projector.ok_or_else(|| SessionError::invalid("projection", off))?.rebuild(self.0).await
    }

    pub(super) async fn diagnose(&self) -> Result<Diagnosis, SessionError> {
        let derived = &self.0.engine().derived;
        let Some(data_dir) = derived.data_dir.clone() else { return Ok(doctor::of_database()) };
        let what = Examination { data_dir, projection: None, is_repair: false };
        let turn = derived.examining.clone().lock_owned().await;
        let left = CancellationToken::new();
        let _left = left.clone().drop_guard();
        // It reads much from the disk, and ends at the next session when its caller has left.
        let examined = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            Handle::current().block_on(doctor::examine(what, &|_, _| !left.is_cancelled()))
        });
        let ended = |_| SessionError::Internal("an examination ended too early".to_owned());
        let mut found = examined.await.map_err(ended)??;
        if found.findings.len() > FINDINGS_MAX {
            let more = found.findings.len() - FINDINGS_MAX;
            found.findings.truncate(FINDINGS_MAX);
            let last = found.findings.last().cloned().into_iter();
            found.findings.extend(last.map(|last| Finding {
                session_id: None,
                what: format!("there are {more} further findings"),
                remedy: "`meerkat doctor` lists all of them.".to_owned(),
                ..last
            }));
        }
        Ok(found)
    }

    pub(super) async fn export_session(&self, request: ExportSession) -> Result<BundlePage, SessionError> {
        let _whole = self.0.journal(request.session_id).read().await;
        let (top, skips_damage) = (request.session_id, request.skip_damage);
        let mut page = bundle::page(self.0.engine(), &self.0.inner.exports, request).await?;
        if page.next_cursor.is_none() {
            let next = self.0.exported_after(top, page.session_id, skips_damage).await?;
            page.next_cursor = next.map(|next| next.to_string());
        }
        Ok(page)
    }

    pub(super) async fn import_bundle(&self, request: ImportBundle) -> Result<Imported, SessionError> {
        self.import_until(request, None).await
    }

    pub(super) async fn import_until(
        &self,
        request: ImportBundle,
        cancel: Option<CancellationToken>,
    ) -> Result<Imported, SessionError> {
        self.0.to_the_end(|service| async move { service.import(request, cancel).await }).await
    }

    pub(super) async fn retain(&self, request: Retain) -> Result<Retained, SessionError> {
        self.0.to_the_end(|service| async move { service.retain_all(request).await }).await
    }

    pub(super) async fn search_memory(&self, request: SearchMemory) -> Result<Page<SearchHit>, SessionError> {
        let (memory, limits) = (self.0.memory()?, &self.0.engine().options.limits);
        validate::search(&request, limits)?;
        let limit = Some(validate::hits(request.limit)?);
        self.0.publish_to_memory(request.session_id).await?;
        Ok(Page::whole(memory.search(SearchMemory { limit, ..request }).await?))
    }

    pub(super) async fn forget_memory(&self, request: ForgetMemory) -> Result<Forgotten, SessionError> {
        let memory = self.0.memory()?.clone();
        validate::forget(&request, &self.0.engine().options.limits)?;
        self.0.publish_to_memory(request.session_id).await?;
        let (to_forget, erased) = (memory.clone(), request.wait);
        let forgotten = self.0.to_the_end(|_| async move { to_forget.forget(request).await }).await?;
        if erased {
            memory.erased().await?;
        }
        Ok(Forgotten { forgotten, erased })
    }

    pub(super) async fn tools(&self, request: ListTools) -> Result<Page<ToolView>, SessionError> {
        let ListTools { session_id, with_workspace } = request;
        let engine = self.0.engine();
        let view = match session_id {
            Some(session_id) => Some(self.0.look(session_id).await?),
            None => None,
        };
        let of_new = if with_workspace { Some(".") } else { None };
        let model = view.as_ref().map_or(engine.models.default_model(), |view| view.summary.model.as_str());
        let workspace = view.as_ref().map_or(of_new, |view| view.workspace.as_deref());
        let session = ListedSession {
            scope: ToolScope {
                session_id: session_id.unwrap_or(SessionId::from_uuid(uuid::Uuid::nil())),
                workspace: workspace.map(Path::new),
            },
            offer: view.as_ref().map_or_else(Offer::default, |view| Offer {
                is_without_agents: false,
                named: view.tools.as_deref(),
                is_without_memory: view.memory.scope == MemoryScope::None,
                has_blobs: view.has_blobs,
                found: &view.found_tools,
                client: view.client_tools.as_deref(),
            }),
            client: view.as_ref().and_then(|view| view.client_tools.as_deref()),
            window_tokens: engine.models.resolve(model).map_or(0, |model| model.window_tokens),
            allowed_rules: view.as_ref().map_or(&[], |view| &view.allowed_rules),
        };
        Ok(Page::whole(engine.tools.list(&session, &engine.secrets)))
    }

    pub(super) async fn tool_servers(&self) -> Result<Page<ToolServerView>, SessionError> {
        let engine = self.0.engine();
        Ok(Page::whole(engine.tools.servers(&engine.secrets)))
    }

    pub(super) async fn reindex_memory(&self) -> Result<Reindexed, SessionError> {
        let memory = self.0.memory()?.clone();
        self.0.publish_to_memory(None).await?;
        self.0.to_the_end(|_| async move { memory.reindex().await }).await
    }
}
