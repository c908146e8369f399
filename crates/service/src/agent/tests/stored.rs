//! Sessions that outlive their service, over slow or failing stores. Derived data blocks nobody.

use std::{
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::FutureExt as _;
use tokio::sync::mpsc;

use super::{
    Rig,
    faults::{Fault, FaultyEvents, Fuse},
    ticks,
};
use crate::{
    ErrorCode, Session, SessionError,
    agent::tests::Service,
    agent::{
        registry::{Found, Live, Registry},
        shared::Shared,
    },
    clock::Timestamp,
    consumers::{projection::Projection, projector::ProjectorHandle},
    engine::{Derived, Engine},
    follow::{live::LiveHub, turn},
    ids::{Seq, SessionId},
    model::{ModelResolver, ResolvedModel, StaticModels, scripted::ScriptedModel},
    runtime::sessions::Sessions,
    service::{
        CreateSession, DeleteSession, FetchReader, ForkSession, InterruptTurn, ListTools, NamedReader, Page, PinFact,
        SessionQuery, SessionService as _, SessionState, SessionSummary, StartTurn, TurnStatus, WaitReader,
    },
    session::{
        View,
        event::Record,
        tests::{created, record, session_id},
    },
    store::{
        EventStore, IndexedKey, MemoryEventStore, MemoryIndex, MemorySessionStore, SessionIndex, StoreError, Stores,
        restore::restore,
    },
};

fn rig() -> Rig {
    Rig::new(Vec::new())
}

fn keyed() -> CreateSession {
    CreateSession { idempotency_key: Some("k".to_owned()), ..CreateSession::default() }
}

/// Journals of a former service with so many sessions.
async fn left(sessions: usize, request: CreateSession) -> (Arc<MemoryEventStore>, Vec<SessionId>) {
    let (events, mut ids) = (journals(), Vec::new());
    let former = rig().stored(events.clone(), Arc::new(MemoryIndex::default()));
    for _ in 0..sessions {
        ids.push(former.create_session(request.clone()).await.unwrap().session_id);
    }
    former.shut_down(0).await;
    (events, ids)
}

/// A session that was being loaded while the service ended was passed over: it stayed, and its lease with it.
#[tokio::test(start_paused = true)]
async fn a_session_that_arrives_at_the_end_is_drained() {
    let (events, ids) = left(1, CreateSession::default()).await;
    let session_id = ids[0];
    for tick in 0..40 {
        let released = Fuse::new(0, 0);
        let service = faulty(&events, Fault::LateLease, &released);
        let pin = tokio::spawn({
            let service = service.clone();
            async move { service.pin(PinFact { session_id, text: "a fact".to_owned() }).await }
        });
        ticks(tick).await;
        service.shut_down(0).await;
        // A caller that comes too late loads no session.
        let is_late = match pin.await.unwrap() {
            Ok(_) => false,
            Err(SessionError::ShuttingDown) => released.calls() == 0,
            Err(error) => panic!("{error:?} at tick {tick}"),
        };
        assert!(is_late || released.calls() == 1, "at tick {tick}");
        let refused = service.pin(PinFact { session_id, text: "a fact".to_owned() }).await.unwrap_err();
        assert_eq!((refused.code(), released.calls() <= 1), (ErrorCode::ShuttingDown, true));
    }
}

/// Waiting and later interrupts of an actor that has left are refused: nothing runs.
#[tokio::test]
async fn interrupts_close_with_their_actor() {
    let session = Session::begin(&record(1, None, created())).unwrap();
    let shared = Shared::new(&session, Arc::new(LiveHub::new(session_id(), Weak::new())));
    let waiting = [shared.wish_interrupt(None).unwrap(), shared.wish_interrupt(Some(3)).unwrap()];
    assert!(shared.has_interrupts());
    shared.close();
    for (answer, turn) in waiting.into_iter().zip([None, Some(3)]) {
        assert_eq!(answer.await.unwrap().unwrap_err().body(), SessionError::NotRunning { turn }.body());
    }
    let late = shared.wish_interrupt(Some(4)).unwrap_err();
    assert_eq!(late.body(), SessionError::NotRunning { turn: Some(4) }.body());
    assert!(!shared.has_interrupts() && shared.take_interrupts().is_empty());
}

/// An index in memory that fails, is slow, or is lost.
#[derive(Default)]
pub(super) struct FaultyIndex {
    rows: Mutex<Arc<MemoryIndex>>,
    is_broken: bool,
    /// Number of pages read.
    pages: AtomicU64,
    /// Which rows take an hour to be put.
    slow_rows: Option<Fuse>,
    /// Which keys are refused.
    refused_keys: Option<Fuse>,
    /// Number of losses; no rebuild of it ever ends.
    losses: AtomicU64,
    /// Number of rebuilds.
    rebuilds: AtomicU64,
    /// Number of flushes.
    pub(super) flushes: AtomicU64,
}

impl FaultyIndex {
    fn rows(&self) -> Result<Arc<MemoryIndex>, StoreError> {
        let broken = || Err(StoreError::Failed("the index: EIO".to_owned()));
        if self.is_broken { broken() } else { Ok(self.rows.lock().unwrap().clone()) }
    }

    fn lose(&self) {
        *self.rows.lock().unwrap() = Arc::default();
        self.losses.fetch_add(1, Ordering::Relaxed);
    }
}

#[async_trait]
impl SessionIndex for FaultyIndex {
    async fn put(&self, summary: SessionSummary) -> Result<(), StoreError> {
        if self.slow_rows.as_ref().is_some_and(Fuse::blows) {
            tokio::time::sleep(Duration::from_secs(3600)).await;
        }
        self.rows()?.put(summary).await
    }

    async fn put_found(&self, summary: SessionSummary) -> Result<(), StoreError> {
        self.rows()?.put_found(summary).await
    }

    async fn sessions(&self, before: Option<SessionId>, limit: usize) -> Result<Vec<SessionSummary>, StoreError> {
        ticks(1).await;
        self.rows()?.sessions(before, limit).await
    }

    async fn remove(&self, session_id: SessionId) -> Result<(), StoreError> {
        self.rows()?.remove(session_id).await
    }

    async fn page(&self, query: SessionQuery) -> Result<Page<SessionSummary>, StoreError> {
        self.pages.fetch_add(1, Ordering::Relaxed);
        self.rows()?.page(query).await
    }

    async fn put_key(&self, key: &IndexedKey) -> Result<(), StoreError> {
        if self.refused_keys.as_ref().is_some_and(Fuse::blows) {
            return Err(StoreError::Full);
        }
        self.rows()?.put_key(key).await
    }

    async fn key(&self, session_id: Option<SessionId>, key: &str) -> Result<Option<IndexedKey>, StoreError> {
        self.rows()?.key(session_id, key).await
    }

    async fn put_checkpoint(&self, reader: &str, session_id: SessionId, seq: Seq) -> Result<Seq, StoreError> {
        self.rows()?.put_checkpoint(reader, session_id, seq).await
    }

    async fn reset_checkpoint(&self, reader: &str, session_id: SessionId) -> Result<(), StoreError> {
        self.rows()?.reset_checkpoint(reader, session_id).await
    }

    async fn checkpoint(&self, reader: &str, session_id: SessionId) -> Result<Seq, StoreError> {
        self.rows()?.checkpoint(reader, session_id).await
    }

    async fn forget_reader(&self, reader: &str) -> Result<(), StoreError> {
        self.rows()?.forget_reader(reader).await
    }

    async fn needs_rebuild(&self) -> Option<u64> {
        Some(self.losses.load(Ordering::Relaxed)).filter(|losses| self.is_broken || *losses > 0)
    }

    async fn rebuilt(&self, _: u64) -> Result<(), StoreError> {
        self.rebuilds.fetch_add(1, Ordering::Relaxed);
        std::future::pending().await
    }

    async fn committed(&self) -> Result<(), StoreError> {
        self.rows().map(drop)
    }

    async fn flush(&self) -> Result<(), StoreError> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.rows().map(drop)
    }
}

/// Broken once: the index was lost again before its rebuild was recorded, and the next list lacked the sessions.
#[tokio::test(start_paused = true)]
async fn no_list_lacks_a_session_however_often_the_index_is_lost() {
    let index = Arc::new(FaultyIndex::default());
    let service = rig().stored(journals(), index.clone());
    let session_id = service.create_session(CreateSession::default()).await.unwrap().session_id;
    for _ in 0..3 {
        index.lose();
        let listed = service.list(SessionQuery::default()).await.unwrap().items;
        assert_eq!(listed.iter().map(|row| row.session_id).collect::<Vec<_>>(), [session_id]);
    }
}

/// A fork is put into the index while somebody changes it and leaves again.
#[tokio::test(start_paused = true)]
async fn a_row_that_comes_late_takes_no_newer_ones_place() {
    // The parent's row comes first.
    let index = FaultyIndex { slow_rows: Some(Fuse::new(1, 1)), ..FaultyIndex::default() };
    let (events, mut rig) = (journals(), rig());
    rig.options.store.idle_ms = 1000;
    let service = rig.stored(events.clone(), Arc::new(index));
    let parent = service.create_session(CreateSession::default()).await.unwrap().session_id;
    let forking = tokio::spawn({
        let service = service.clone();
        async move { service.fork(ForkSession { session_id: parent, turn: None }).await.unwrap() }
    });
    ticks(100).await;
    let ids = events.sessions(None, 9).await.unwrap();
    let session_id = ids.into_iter().find(|id| *id != parent).expect("a fork whose row is on its way");
    let changed = service.pin(PinFact { session_id, text: "a fact".to_owned() }).await.unwrap();
    assert_eq!(forking.await.unwrap().session_id, session_id);
    let listed = service.list(SessionQuery::default()).await.unwrap().items;
    assert_eq!((listed[0].session_id, listed[0].last_seq), (session_id, changed.seq));
}

/// The scripted model of an empty configuration.
struct StandIn(StaticModels);

impl ModelResolver for StandIn {
    fn default_model(&self) -> &str {
        self.0.default_model()
    }

    fn is_stand_in(&self) -> bool {
        true
    }

    fn resolve(&self, name: &str) -> Result<ResolvedModel, SessionError> {
        self.0.resolve(name)
    }
}

/// The index is asked once, and for one page, if a real model has answered before; a broken index refuses no session.
#[tokio::test(start_paused = true)]
async fn a_model_that_stands_in_asks_little_of_the_index() {
    let (events, rows) = (journals(), Arc::new(MemoryIndex::default()));
    let former = rig().stored(events.clone(), rows.clone());
    for _ in 0..5 {
        former.create_session(CreateSession::default()).await.unwrap();
    }
    former.shut_down(0).await;
    for is_broken in [false, true] {
        let index = FaultyIndex { rows: Mutex::new(rows.clone()), is_broken, ..FaultyIndex::default() };
        let index = Arc::new(index);
        let mut rig = rig();
        rig.models = Arc::new(StandIn(StaticModels::new("scripted", Arc::new(ScriptedModel), 100_000)));
        rig.options.limits.page_items = 2;
        let service = rig.stored(events.clone(), index.clone());
        for _ in 0..2 {
            let created = service.create_session(CreateSession::default()).await.unwrap();
            assert_eq!(service.read(&created.session_id).await.unwrap().model, "scripted");
        }
        // One of them is the start's; one that fails is asked again.
        assert!(is_broken || index.pages.load(Ordering::Relaxed) <= 2, "{:?}", index.pages);
    }
}

/// A failing index blocks lists and the keys of creations, and nothing else.
#[tokio::test(start_paused = true)]
async fn a_service_over_a_broken_index_runs_turns() {
    let (events, ids) = left(1, CreateSession::default()).await;
    let service = rig().stored(events, Arc::new(FaultyIndex { is_broken: true, ..FaultyIndex::default() }));
    service.ready().await.unwrap();
    let made = service.create_session(CreateSession::default()).await.unwrap().session_id;
    for session_id in [ids[0], made] {
        assert_eq!(service.start_turn(StartTurn::new(session_id, "@say On.")).await.unwrap().text, "On.");
        assert_eq!(service.read(&session_id).await.unwrap().turn_count, 1);
    }
    assert_eq!(service.list(SessionQuery::default()).await.unwrap_err().code(), ErrorCode::StoreFailed);
    assert_eq!(service.create_session(keyed()).await.unwrap_err().code(), ErrorCode::StoreFailed);
    service.shut_down(0).await;
}

/// What a reader was handed, and how far it is, is in the index alone.
#[tokio::test(start_paused = true)]
async fn a_service_over_a_broken_index_knows_of_no_reader_how_far_it_is() {
    let (events, ids) = left(1, CreateSession::default()).await;
    let service = rig().stored(events, Arc::new(FaultyIndex { is_broken: true, ..FaultyIndex::default() }));
    let (session_id, name) = (ids[0], || "audit".to_owned());
    let named = || NamedReader { reader: name() };
    let made = service.create_reader(named()).await.unwrap_err();
    let listed = service.list_readers().await.unwrap_err();
    let fetched = service.fetch_reader(FetchReader { reader: name(), limit: None, wait_ms: 0 }).await.unwrap_err();
    let wait = WaitReader { reader: name(), session_id, seq: 1, wait_ms: 0 };
    let waited = service.wait_reader(wait).await.unwrap_err();
    let deleted = service.delete_reader(named()).await.unwrap_err();
    let codes = [made, listed, fetched, waited, deleted].map(|refused| refused.code());
    assert_eq!(codes, [ErrorCode::StoreFailed; 5]);
}

/// The index has the key of a session that was deleted, and refuses that of the next.
#[tokio::test(start_paused = true)]
async fn a_key_of_an_older_session_does_not_stand_for_a_newer_one() {
    let index = FaultyIndex { refused_keys: Some(Fuse::new(1, 9)), ..FaultyIndex::default() };
    let service = rig().stored(journals(), Arc::new(index));
    let first = service.create_session(keyed()).await.unwrap().session_id;
    service.delete(DeleteSession { session_id: first, force: false }).await.unwrap();
    let second = service.create_session(keyed()).await.unwrap().session_id;
    assert_ne!(second, first);
    assert_eq!(service.create_session(keyed()).await.unwrap().session_id, second);
}

/// A failure during a start hides no session from callers with its key.
#[tokio::test(start_paused = true)]
async fn a_start_that_cannot_read_for_a_moment_forgets_no_key() {
    for (at, times) in [(0, 1), (1, 1), (2, 1), (0, usize::MAX)] {
        let (events, ids) = left(1, keyed()).await;
        let service = faulty(&events, Fault::Unread, &Fuse::new(at, times));
        let again = service.create_session(keyed()).await.map(|created| created.session_id);
        match times {
            1 => assert_eq!(again.unwrap(), ids[0], "{at}"),
            _ => {
                assert_eq!(again.unwrap_err().code(), ErrorCode::StoreFailed);
                let tools = ListTools { session_id: Some(ids[0]), ..ListTools::default() };
                assert_eq!(service.tools(tools).await.unwrap_err().code(), ErrorCode::StoreFailed);
            }
        }
    }
}

/// A failing index, or one unreadable session, blocks no other session at a start.
#[tokio::test(start_paused = true)]
async fn a_start_fails_for_nothing_but_journals_that_cannot_be_read_at_all() {
    let (events, ids) = left(2, CreateSession::default()).await;
    let cases = [(Fault::Unread, true, Fuse::new(0, 1)), (Fault::Unsized(ids[0]), false, Fuse::new(0, 0))];
    for (fault, is_broken, fuse) in cases {
        let events: Arc<dyn EventStore> = Arc::new(FaultyEvents(events.clone(), fault, fuse));
        let service = rig().stored(events, Arc::new(FaultyIndex { is_broken, ..FaultyIndex::default() }));
        assert_eq!(service.start_turn(StartTurn::new(ids[1], "@say On.")).await.unwrap().text, "On.", "{fault:?}");
        service.shut_down(0).await;
    }
}

/// An index that lacks a session is not called whole: the next start looks again.
#[tokio::test(start_paused = true)]
async fn an_index_is_whole_only_when_every_session_could_be_read() {
    for times in [1, usize::MAX] {
        let (events, ids) = left(1, keyed()).await;
        let index = Arc::new(FaultyIndex::default());
        index.lose();
        let unread: Arc<dyn EventStore> = Arc::new(FaultyEvents(events, Fault::UnreadLines, Fuse::new(0, times)));
        let service = rig().stored(unread, index.clone());
        let listed = service.list(SessionQuery::default()).await.unwrap().items;
        ticks(10).await;
        let is_listed = listed.iter().any(|row| row.session_id == ids[0]);
        let is_whole = index.rebuilds.load(Ordering::Relaxed) > 0;
        assert_eq!((is_listed, is_whole), (times == 1, times == 1), "{times}");
        if times == 1 {
            assert_eq!(service.create_session(keyed()).await.unwrap().session_id, ids[0]);
        }
    }
}

/// An import ends between the reads of a journal.
#[tokio::test(start_paused = true)]
async fn a_session_that_appears_while_it_is_looked_for_is_not_damaged() {
    let (events, ids) = left(1, CreateSession::default()).await;
    let snapshots = MemorySessionStore::new(events.clone());
    let appearing = FaultyEvents(events, Fault::Appears, Fuse::new(0, 1));
    let session = restore(&appearing, &snapshots, ids[0]).await.unwrap();
    assert_eq!(session.unwrap().id, ids[0]);
}

/// Changes within turns are listed on request, in their order.
#[tokio::test]
async fn sessions_that_are_not_listed_yet_come_in_the_order_of_their_changes() {
    let registry = Registry::default();
    let mut changed: Vec<SessionId> = Vec::new();
    // The newest session changed first.
    for n in (0..8_u64).rev() {
        let id = SessionId::from_uuid(uuid::Uuid::from_u128(u128::from(n)));
        let session = Session::begin(&Record { session_id: id, ..record(1, None, created()) }).unwrap();
        let shared = Shared::new(&session, Arc::new(LiveHub::new(id, Weak::new())));
        let mut view = View::of(&session);
        let summary = Arc::make_mut(&mut view.summary);
        summary.last_seq = 2;
        summary.updated_at = Timestamp::from_millis(summary.updated_at.as_millis() + changed.len() as i64);
        shared.show(|| Ok((view, ()))).unwrap();
        registry.insert(Live { mailbox: mpsc::channel(1).0, shared });
        changed.push(id);
    }
    let unlisted: Vec<SessionId> = registry.unlisted().iter().map(|shared| shared.session_id).collect();
    assert_eq!(unlisted, changed);
}

/// An actor leaves while its caller is about to put it in, or when another one has come since.
#[tokio::test]
async fn an_actor_that_has_left_is_not_in_memory() {
    let registry = Arc::<Registry>::default();
    let session = Session::begin(&record(1, None, created())).unwrap();
    let actor = || Shared::new(&session, Arc::new(LiveHub::new(session_id(), Weak::new())));
    let arrival = || match registry.find(session_id()) {
        Found::Absent(arrival) => arrival,
        Found::Live(_) | Found::Passing(_) => panic!("an actor is there"),
    };
    let (early, first) = (actor(), arrival());
    drop(registry.depart(&early));
    let (next, second) = (actor(), arrival());
    // What the first one's caller does late changes nothing for the second.
    let live = |shared: &Arc<Shared>| Live { mailbox: mpsc::channel(1).0, shared: shared.clone() };
    assert!(first.arrive(&registry, live(&early)).is_none());
    assert!(matches!(registry.find(session_id()), Found::Passing(_)));
    assert!(second.arrive(&registry, live(&next)).is_some());
    drop(registry.depart(&early));
    assert!(registry.leave(&early, || true).is_none());
    assert!(Arc::ptr_eq(&registry.shared(session_id()).unwrap(), &next));
    let asks = registry.live(session_id()).unwrap();
    assert!(registry.leave(&next, || true).is_none(), "a caller is about to ask it");
    drop(asks);
    drop(registry.leave(&next, || true));
    drop(arrival());
}

/// A service over journals that fail by `fuse`.
pub(super) fn faulty(events: &Arc<MemoryEventStore>, fault: Fault, fuse: &Fuse) -> Service {
    let events: Arc<dyn EventStore> = Arc::new(FaultyEvents(events.clone(), fault, fuse.clone()));
    rig().stored(events, Arc::new(MemoryIndex::default()))
}

pub(super) fn journals() -> Arc<MemoryEventStore> {
    Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()))
}

/// Broken once: a turn whose end found no room was retried for ever without a pause, and a start that met it hung. Its
/// actor leaves instead; the next caller tries the disk again, and once there is room the turn ends.
#[tokio::test(start_paused = true)]
async fn a_turn_that_cannot_end_on_a_full_disk_ends_when_there_is_room() {
    let (events, full) = (journals(), Fuse::new(2, 4));
    let service = faulty(&events, Fault::Full, &full);
    let session_id = service.create_session(CreateSession::default()).await.unwrap().session_id;
    let failed = service.start_turn(StartTurn::new(session_id, "@say One.")).await.unwrap_err();
    assert_eq!(failed.code(), ErrorCode::StoreFailed);
    ticks(100).await;
    assert_eq!(full.calls(), 4, "the creation, the turn's start, and its end twice");
    assert_eq!(service.read(&session_id).await.unwrap().state, SessionState::Running);
    let pin = |service: &Service| {
        let service = service.clone();
        async move { service.pin(PinFact { session_id, text: "a fact".to_owned() }).await }
    };
    assert_eq!((pin(&service).await.unwrap_err().code(), full.calls()), (ErrorCode::StoreFull, 6));

    let full = Fuse::new(0, 4);
    let next = faulty(&events, Fault::Full, &full);
    tokio::time::timeout(Duration::from_secs(600), next.ready()).await.unwrap().unwrap();
    assert_eq!((next.read(&session_id).await.unwrap().state, full.calls()), (SessionState::Running, 2));
    assert_eq!(pin(&next).await.unwrap_err().code(), ErrorCode::StoreFull);
    assert_eq!(pin(&next).await.unwrap().seq, 4, "behind the turn's end");
    assert_eq!(next.read(&session_id).await.unwrap().state, SessionState::Idle);
}

/// An unknown session is reported before a full disk.
#[tokio::test]
async fn a_fork_of_nothing_is_not_refused_for_want_of_room() {
    let (events, ids) = left(1, CreateSession::default()).await;
    let service = faulty(&events, Fault::Roomless, &Fuse::new(0, 0));
    for (session_id, code) in [(session_id(), ErrorCode::SessionNotFound), (ids[0], ErrorCode::StoreFull)] {
        let refused = service.fork(ForkSession { session_id, turn: None }).await.unwrap_err();
        assert_eq!(refused.code(), code);
    }
}

/// Broken once: if the caller of a start gave up, the next one started a second projector.
#[tokio::test(start_paused = true)]
async fn a_start_that_its_caller_gives_up_begins_nothing_twice() {
    let dir = meerkat_testkit::folder();
    let mut begun = Vec::new();
    for gives_up in [false, true] {
        let index = Arc::new(FaultyIndex::default());
        let engine = rig().engine(Stores { index, ..Stores::in_memory(u64::MAX, &Arc::default()) }, true);
        let mut derived = Derived::new(engine.derived.index.clone(), engine.derived.readers.clone(), None);
        let projection = Projection::new(dir.path().join("files"), None);
        let (events, clock) = (engine.ports.events.clone(), engine.ports.world.clock.clone());
        derived.projector = Some(ProjectorHandle::of(projection, events, derived.readers.clone(), clock));
        let engine = Engine { ports: engine.ports, derived: Arc::new(derived), owner: None };
        let service = Service::new(Sessions::new(engine));
        let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let before = tasks();
        if gives_up {
            assert!(service.ready().now_or_never().is_none());
        }
        service.ready().await.unwrap();
        begun.push(tasks() - before);
        service.shut_down(0).await;
        // The projector's thread does not use the paused clock.
        tokio::time::resume();
        meerkat_testkit::until_async("its tasks end", || tasks() <= before).await;
        tokio::time::pause();
    }
    assert!(begun[0] > 0 && begun[0] == begun[1], "{begun:?}");
}

/// A deletion, which makes room, needs none.
#[tokio::test(start_paused = true)]
async fn a_session_whose_turn_cannot_end_on_a_full_disk_can_be_deleted() {
    let (events, full) = (journals(), Fuse::new(2, usize::MAX / 2));
    let service = faulty(&events, Fault::Full, &full);
    let session_id = service.create_session(CreateSession::default()).await.unwrap().session_id;
    service.start_turn(StartTurn::new(session_id, "@say One.")).await.unwrap_err();
    ticks(100).await;
    assert_eq!(service.delete(DeleteSession { session_id, force: false }).await.unwrap().seq, 2);
    assert_eq!(service.read(&session_id).await.unwrap_err().code(), ErrorCode::SessionNotFound);
}

/// Callers that follow a turn by its events get the same error as those that wait for it, however often the store
/// fails: if once, the turn fails; if more often, its end is written when somebody asks. Waiting callers ask; watching
/// ones go on.
#[tokio::test(start_paused = true)]
async fn a_turn_that_the_store_failed_is_lost_to_all_who_wait_for_it() {
    for times in [1, 2, 4] {
        let service = faulty(&journals(), Fault::Failure, &Fuse::new(2, times));
        let session_id = service.create_session(CreateSession::default()).await.unwrap().session_id;
        let mut watching = service.follow(&session_id, 0).await.unwrap();
        let begun = service.begin_turn(StartTurn::new(session_id, "@stall")).await.unwrap();
        let accepted = begun.accepted.clone();
        let both = async {
            let interrupt = async {
                ticks(50).await;
                service.interrupt(InterruptTurn { session_id, turn: None }).await.unwrap_err();
            };
            tokio::join!(begun.result, turn::result(&service, begun.accepted), interrupt)
        };
        let told = tokio::time::timeout(Duration::from_secs(600), both).await;
        let (awaited, followed, ()) = told.unwrap_or_else(|_| panic!("{times}: somebody waits for ever"));
        let (awaited, followed) = (awaited.unwrap_err().body(), followed.unwrap_err().body());
        assert_eq!((followed.code, awaited.code), (ErrorCode::StoreFailed, ErrorCode::StoreFailed), "{times}");
        ticks(100).await;
        let late = async || {
            let told = turn::result(&service, accepted.clone());
            tokio::time::timeout(Duration::from_secs(600), told).await.expect("an answer")
        };
        if times > 2 {
            assert_eq!(late().await.unwrap_err().code(), ErrorCode::StoreFailed, "it still cannot be written");
        }
        // The first who can write its end after it was given up finds a turn that was left open.
        let status = if times == 1 { TurnStatus::Failed } else { TurnStatus::Interrupted };
        assert_eq!(late().await.unwrap().status, status, "{times}");
        let last_seq = service.read(&session_id).await.unwrap().last_seq;
        while watching.cursor() < last_seq {
            watching.next().await.unwrap().unwrap();
        }
        assert_eq!(last_seq, 3, "the creation, the turn's start and its end");
    }
}

/// A request is completed after its client has left, so that no session is half made or half deleted.
#[tokio::test(start_paused = true)]
async fn a_client_that_goes_away_leaves_no_work_half_done() {
    let (events, ids) = left(1, CreateSession::default()).await;
    let parent = ids[0];
    let service = faulty(&events, Fault::LateLease, &Fuse::new(0, 0));
    service.ready().await.unwrap();
    let mut forking = service.fork(ForkSession { session_id: parent, turn: None });
    assert!(futures::poll!(&mut forking).is_pending());
    drop(forking);
    ticks(100).await;
    let listed = service.list(SessionQuery::default()).await.unwrap().items;
    assert_eq!(listed.iter().map(|row| row.forked_from.is_some()).collect::<Vec<_>>(), [true]);
    let mut deleting = service.delete(DeleteSession { session_id: parent, force: false });
    assert!(futures::poll!(&mut deleting).is_pending());
    drop(deleting);
    ticks(100).await;
    assert_eq!(service.read(&parent).await.unwrap_err().code(), ErrorCode::SessionNotFound);
}

/// A damaged journal of a fork may hold only its parent's beginning, which is not the fork.
#[tokio::test]
async fn a_fork_without_a_record_of_its_own_is_no_session() {
    let (events, fork) = (journals(), SessionId::from_uuid(uuid::Uuid::from_u128(7)));
    let lease = events.lease(fork).await.unwrap();
    events.stage(&lease, &[record(1, None, created())]).unwrap().durable().await.unwrap();
    let service = rig().stored(events, Arc::new(MemoryIndex::default()));
    assert_eq!(service.read(&fork).await.unwrap_err().code(), ErrorCode::SessionCorrupted);
    let pin = service.pin(PinFact { session_id: fork, text: "a fact".to_owned() }).await;
    assert_eq!(pin.unwrap_err().code(), ErrorCode::SessionCorrupted);
}
