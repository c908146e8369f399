//! [`RemoteService`]: the service of a data directory that another process owns, for as long as one does.
//!
//! When the owner vanishes this process takes its place or attaches to the one that did, and goes on: what is followed
//! from its cursor, what can be asked twice by asking again. What can not, such as a turn without a key, has an unknown
//! outcome where the owner vanished before it answered, and the error says so.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt as _;
use meerkat_errors::ErrorCode;
use meerkat_service::{
    Capabilities, Capability, Operation, SessionError, SessionId, SessionService,
    compaction::CompactionConfig,
    operation::OperationEffect,
    runtime::{ended, follow::Follower},
    service::*,
    store::Router,
    wire::{call, encode},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{sync::Mutex, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{
    Door, Entered,
    connection::{Connection, Failed},
    following::follow,
    wire::{Lines, Readiness, Record, Records},
    within,
};
use crate::serve::owner::{Owner, method};

/// Owners that may vanish under one request before it is given up.
pub(super) const OWNERS_MAX: usize = 8;

/// How long an owner that is ending is waited for.
pub(super) const ENDING_LIMIT: Duration = Duration::from_secs(10);

/// How long the owner may take to say how it stands with it.
const GREETING_LIMIT: Duration = Duration::from_secs(2);

/// What this command was told by variables that a request carries.
#[derive(Clone, Debug, Default)]
pub(crate) struct Defaults {
    pub(crate) model: Option<String>,
    pub(crate) compaction: Option<CompactionConfig>,
}

/// The service of a data directory that another process owns.
#[derive(Clone)]
pub(crate) struct RemoteService {
    inner: Arc<Inner>,
}

struct Inner {
    door: Door,
    defaults: Defaults,
    state: Mutex<State>,
}

/// Who serves: another process, or by now this one.
enum State {
    There(Arc<Connection>),
    Here(Arc<dyn SessionService>, Option<Owner>),
}

#[derive(Clone)]
pub(super) enum Current {
    There(Arc<Connection>),
    Here(Arc<dyn SessionService>),
}

impl From<Entered> for State {
    fn from(entered: Entered) -> Self {
        match entered {
            Entered::Owner(service, owner) => Self::Here(service, Some(owner)),
            Entered::Attached(connection) => Self::There(Arc::new(connection)),
        }
    }
}

impl RemoteService {
    pub(crate) fn new(door: Door, defaults: Defaults, connection: Connection) -> Self {
        let state = Mutex::new(State::There(Arc::new(connection)));
        Self { inner: Arc::new(Inner { door, defaults, state }) }
    }

    /// Commands that are attached to this one, if it has taken the owner's place.
    pub(crate) async fn attached(&self) -> usize {
        match &*self.inner.state.lock().await {
            State::Here(_, Some(owner)) => owner.attached(),
            State::Here(_, None) | State::There(_) => 0,
        }
    }

    #[cfg(test)]
    pub(super) async fn subscriptions(&self) -> usize {
        match &*self.inner.state.lock().await {
            State::There(connection) => connection.subscriptions(),
            State::Here(..) => 0,
        }
    }

    /// Lets the data directory go, if this process has it by now.
    pub(crate) async fn end(&self) {
        let owner = match &mut *self.inner.state.lock().await {
            State::Here(_, owner) => owner.take(),
            State::There(_) => None,
        };
        if let Some(owner) = owner {
            owner.end().await;
        }
    }

    /// Who serves now. Where the owner has vanished, its place is taken first, or its successor's connection.
    pub(super) async fn current(&self) -> Result<Current, SessionError> {
        let mut state = self.inner.state.lock().await;
        if matches!(&*state, State::There(connection) if connection.closed().is_cancelled()) {
            *state = self.inner.door.enter().await?.into();
            tracing::info!(is_owner = matches!(&*state, State::Here(..)), "the owner of the data directory is another");
        }
        Ok(match &*state {
            State::There(connection) => Current::There(connection.clone()),
            State::Here(service, _) => Current::Here(service.clone()),
        })
    }

    /// Performs an operation where it is performed, and answers with its JSON.
    async fn perform(&self, operation: Operation, params: &str, is_repeatable: bool) -> Result<Bytes, SessionError> {
        let mut ending = None;
        for _ in 0..OWNERS_MAX {
            let connection = match self.current().await? {
                Current::Here(service) => return call(service.as_ref(), operation, params).await.map(Bytes::from),
                Current::There(connection) => connection,
            };
            match connection.request(method(operation), params).await {
                Ok(answer) => return Ok(answer),
                // Nothing was done yet, and whoever comes after this owner can do it.
                Err(Failed::Refused(body)) if body.code == ErrorCode::ShuttingDown => {
                    if !within(ENDING_LIMIT, connection.closed().cancelled()).await {
                        return Err(SessionError::Remote(body));
                    }
                    ending = Some(SessionError::Remote(body));
                }
                Err(Failed::Refused(body)) => return Err(SessionError::Remote(body)),
                Err(Failed::Unasked) => {}
                Err(Failed::Lost) if is_repeatable => {}
                Err(Failed::Lost) => return Err(SessionError::StoreFailed),
            }
        }
        Err(ending.unwrap_or(SessionError::StoreFailed))
    }

    /// Performs an operation that can be asked twice where its effect allows it.
    async fn ask<T: DeserializeOwned>(
        &self,
        operation: Operation,
        request: &impl Serialize,
    ) -> Result<T, SessionError> {
        let is_repeatable = matches!(operation.effect(), OperationEffect::Reads | OperationEffect::Settles);
        decode(&self.perform(operation, &text(request)?, is_repeatable).await?)
    }

    async fn ask_of<T: DeserializeOwned>(&self, operation: Operation, id: &SessionId) -> Result<T, SessionError> {
        self.ask(operation, &OneSession { session_id: *id }).await
    }

    /// Begins a turn. Once it is accepted, its events say how it ends, whoever owns the data directory by then.
    async fn begin(&self, operation: Operation, mut params: Value) -> Result<BegunTurn, SessionError> {
        let has_key = !params["idempotency_key"].is_null();
        params["wait"] = false.into();
        let accepted: TurnAccepted = decode(&self.perform(operation, &params.to_string(), has_key).await?)?;
        let (service, begun) = (self.clone(), accepted.clone());
        Ok(BegunTurn { accepted, result: async move { ended::result(&service, begun).await }.boxed() })
    }
}

fn text(request: &impl Serialize) -> Result<String, SessionError> {
    String::from_utf8(encode(request)?).map_err(|error| SessionError::Internal(error.to_string()))
}

fn decode<'a, T: Deserialize<'a>>(answer: &'a [u8]) -> Result<T, SessionError> {
    serde_json::from_slice(answer)
        .map_err(|error| SessionError::Internal(format!("the owner's answer could not be read: {error}")))
}

#[async_trait]
impl Router for RemoteService {
    async fn route(&self, _: SessionId) -> Result<Arc<dyn SessionService>, SessionError> {
        Ok(match self.current().await? {
            Current::Here(service) => service,
            Current::There(_) => Arc::new(self.clone()),
        })
    }
}

#[async_trait]
impl SessionService for RemoteService {
    /// The owner is of the same build, and has the store that it was found by.
    fn capabilities(&self) -> Capabilities {
        Capabilities::compiled()
    }

    async fn ready(&self) -> Result<(), SessionError> {
        // A list waits for what a former process left behind, and changes nothing.
        let query = SessionQuery { limit: Some(1), ..SessionQuery::default() };
        self.list(query).await.map(drop)
    }

    /// The owner says so when it is greeted, which needs no room among its requests.
    async fn check_ready(&self) -> Result<bool, SessionError> {
        if let Current::Here(service) = self.current().await? {
            return service.check_ready().await;
        }
        match timeout(GREETING_LIMIT, self.inner.door.attach()).await {
            Ok(Ok(Ok(connection))) => {
                let Readiness { is_ready, trouble } = connection.readiness.clone();
                trouble.map_or(Ok(is_ready), |body| Err(SessionError::Remote(Box::new(body))))
            }
            Ok(Ok(Err(refusal))) => Err(SessionError::Remote(refusal)),
            // The owner has just gone, or is too busy to greet anybody.
            Ok(Err(_)) | Err(_) => Ok(false),
        }
    }

    async fn create_session(&self, mut request: CreateSession) -> Result<SessionCreated, SessionError> {
        let Defaults { model, compaction } = &self.inner.defaults;
        request.model = request.model.or_else(|| model.clone());
        request.compaction = request.compaction.or(*compaction);
        let has_key = request.idempotency_key.is_some();
        decode(&self.perform(Operation::CreateSession, &text(&request)?, has_key).await?)
    }

    async fn begin_turn(&self, request: StartTurn) -> Result<BegunTurn, SessionError> {
        self.begin(Operation::StartTurn, json!(request)).await
    }

    async fn begin_resume(&self, session_id: &SessionId, request: ResumeTurn) -> Result<BegunTurn, SessionError> {
        let mut params = json!(request);
        params["session_id"] = json!(session_id);
        self.begin(Operation::Resume, params).await
    }

    async fn events(&self, request: ReadEvents) -> Result<EventPage, SessionError> {
        let page = self.perform(Operation::Events, &text(&request)?, true).await?;
        let lines: Lines<'_> = decode(&page)?;
        let items = lines.items.into_iter().map(|line| page.slice_ref(line.get().as_bytes())).collect();
        Ok(EventPage { items, next_seq: lines.next_seq })
    }

    async fn follow(&self, session_id: &SessionId, since_seq: u64) -> Result<Follower, SessionError> {
        follow(self.clone(), *session_id, since_seq, false).await
    }

    async fn follow_turn(&self, session_id: &SessionId, since_seq: u64) -> Result<Follower, SessionError> {
        follow(self.clone(), *session_id, since_seq, true).await
    }

    /// The owner ends when it does; only what this process has become the owner of ends with it.
    async fn shut_down(&self, drain_ms: u64) {
        let service = match &*self.inner.state.lock().await {
            State::Here(service, _) => service.clone(),
            State::There(_) => return,
        };
        service.shut_down(drain_ms).await;
    }

    async fn interrupt(&self, request: InterruptTurn) -> Result<Changed, SessionError> {
        // One that names no turn might hit the next one when it is asked twice.
        let is_repeatable = request.turn.is_some();
        decode(&self.perform(Operation::Interrupt, &text(&request)?, is_repeatable).await?)
    }

    async fn decide_approval(&self, request: DecideApproval) -> Result<Changed, SessionError> {
        self.ask(Operation::DecideApproval, &request).await
    }

    async fn queue(&self, session_id: &SessionId) -> Result<Page<QueueItem>, SessionError> {
        self.ask_of(Operation::Queue, session_id).await
    }

    async fn cancel_queued(&self, request: CancelQueued) -> Result<Changed, SessionError> {
        self.ask(Operation::CancelQueued, &request).await
    }

    async fn remind(&self, request: Remind) -> Result<Changed, SessionError> {
        self.ask(Operation::Remind, &request).await
    }

    async fn reminders(&self, session_id: &SessionId) -> Result<Page<Reminder>, SessionError> {
        self.ask_of(Operation::Reminders, session_id).await
    }

    async fn clear_reminder(&self, request: ClearReminder) -> Result<Changed, SessionError> {
        self.ask(Operation::ClearReminder, &request).await
    }

    async fn pin(&self, request: PinFact) -> Result<Changed, SessionError> {
        self.ask(Operation::Pin, &request).await
    }

    async fn pins(&self, session_id: &SessionId) -> Result<Page<Pin>, SessionError> {
        self.ask_of(Operation::Pins, session_id).await
    }

    async fn unpin(&self, request: Unpin) -> Result<Changed, SessionError> {
        self.ask(Operation::Unpin, &request).await
    }

    async fn read(&self, session_id: &SessionId) -> Result<SessionView, SessionError> {
        self.ask_of(Operation::Read, session_id).await
    }

    async fn history(&self, request: ReadHistory) -> Result<Page<HistoryItem>, SessionError> {
        self.ask(Operation::History, &request).await
    }

    async fn blob(&self, request: ReadBlob) -> Result<BlobPage, SessionError> {
        // The owner does not ask this of a command: a turn's answer comes by the same method.
        self.capabilities().require(Capability::SessionStore)?;
        self.answer_blob(request).await
    }

    async fn answer_blob(&self, request: ReadBlob) -> Result<BlobPage, SessionError> {
        self.ask(Operation::Blob, &request).await
    }

    async fn list(&self, query: SessionQuery) -> Result<Page<SessionSummary>, SessionError> {
        self.ask(Operation::List, &query).await
    }

    async fn update(&self, request: UpdateSession) -> Result<Changed, SessionError> {
        self.ask(Operation::Update, &request).await
    }

    async fn archive(&self, session_id: &SessionId) -> Result<Changed, SessionError> {
        self.ask_of(Operation::Archive, session_id).await
    }

    async fn unarchive(&self, session_id: &SessionId) -> Result<Changed, SessionError> {
        self.ask_of(Operation::Unarchive, session_id).await
    }

    async fn delete(&self, request: DeleteSession) -> Result<Changed, SessionError> {
        self.ask(Operation::Delete, &request).await
    }

    async fn fork(&self, request: ForkSession) -> Result<Changed, SessionError> {
        self.ask(Operation::Fork, &request).await
    }

    async fn export_session(&self, request: ExportSession) -> Result<BundlePage, SessionError> {
        self.ask(Operation::ExportSession, &request).await
    }

    async fn import_bundle(&self, request: ImportBundle) -> Result<Imported, SessionError> {
        self.ask(Operation::ImportBundle, &request).await
    }

    async fn create_reader(&self, request: NamedReader) -> Result<ReaderView, SessionError> {
        self.ask(Operation::CreateReader, &request).await
    }

    async fn fetch_reader(&self, request: FetchReader) -> Result<RecordPage, SessionError> {
        let page = self.perform(Operation::FetchReader, &text(&request)?, true).await?;
        let records: Records<'_> = decode(&page)?;
        let record = |Record { idempotency_key, event }: Record<'_>| {
            let (session_id, seq) = idempotency_key.split_once(':')?;
            let line = page.slice_ref(event.get().as_bytes());
            Some(ReaderRecord { session_id: session_id.parse().ok()?, seq: seq.parse().ok()?, line })
        };
        let unreadable = || SessionError::Internal("a record has no idempotency key".to_owned());
        let items = records.items.into_iter().map(record).collect::<Option<_>>().ok_or_else(unreadable)?;
        Ok(RecordPage { items })
    }

    async fn acknowledge_reader(&self, request: AcknowledgeReader) -> Result<Checkpoint, SessionError> {
        self.ask(Operation::AcknowledgeReader, &request).await
    }

    async fn wait_reader(&self, request: WaitReader) -> Result<Checkpoint, SessionError> {
        self.ask(Operation::WaitReader, &request).await
    }

    async fn delete_reader(&self, request: NamedReader) -> Result<ReaderView, SessionError> {
        self.ask(Operation::DeleteReader, &request).await
    }

    async fn list_readers(&self) -> Result<Page<ReaderView>, SessionError> {
        self.ask(Operation::ListReaders, &Nothing {}).await
    }

    async fn compact_journal(&self, request: CompactJournal) -> Result<JournalCompactionReport, SessionError> {
        self.ask(Operation::CompactJournal, &request).await
    }

    async fn rebuild_projection(&self) -> Result<ProjectionRebuilt, SessionError> {
        self.ask(Operation::RebuildProjection, &Nothing {}).await
    }

    async fn retain(&self, request: Retain) -> Result<Retained, SessionError> {
        self.ask(Operation::Retain, &request).await
    }

    async fn compact(&self, request: CompactSession) -> Result<CompactionReceipt, SessionError> {
        self.ask(Operation::Compact, &request).await
    }

    /// Over a connection nobody can give up just this compaction, so there it goes on.
    async fn compact_until(
        &self,
        request: CompactSession,
        cancel: CancellationToken,
    ) -> Result<CompactionReceipt, SessionError> {
        match self.current().await? {
            Current::Here(service) => service.compact_until(request, cancel).await,
            Current::There(_) => self.compact(request).await,
        }
    }

    async fn preview_compaction(&self, request: CompactSession) -> Result<CompactionReceipt, SessionError> {
        self.ask(Operation::PreviewCompaction, &request).await
    }

    async fn undo_compaction(&self, request: UndoCompaction) -> Result<Changed, SessionError> {
        self.ask(Operation::UndoCompaction, &request).await
    }

    async fn search_memory(&self, request: SearchMemory) -> Result<Page<SearchHit>, SessionError> {
        self.ask(Operation::SearchMemory, &request).await
    }

    async fn forget_memory(&self, request: ForgetMemory) -> Result<Forgotten, SessionError> {
        self.ask(Operation::ForgetMemory, &request).await
    }

    /// Over a connection the readers say it, where there are any.
    async fn memory_to_index(&self) -> Option<u64> {
        match self.current().await {
            Ok(Current::Here(service)) => service.memory_to_index().await,
            Ok(Current::There(_)) | Err(_) => None,
        }
    }

    async fn reindex_memory(&self) -> Result<Reindexed, SessionError> {
        self.ask(Operation::ReindexMemory, &Nothing {}).await
    }
}
