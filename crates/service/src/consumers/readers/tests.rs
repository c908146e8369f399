//! Readers over stores in memory: nothing is lost, nothing goes back, nobody waits for another.

use std::collections::BTreeMap;

use futures::poll;
use meerkat_testkit::cases;
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{
    ErrorCode,
    clock::{FrozenClock, SeededIds},
    service::{RecordPage, SessionState, SessionSummary},
    session::{event::Record, tests::pinned},
    store::{MemoryEventStore, MemoryIndex, MemoryReaders},
};

fn id(n: u8) -> SessionId {
    SessionId::from_uuid(uuid::Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0000 + u128::from(n)))
}

fn summary(session_id: SessionId, last_seq: Seq) -> SessionSummary {
    SessionSummary {
        session_id,
        title: None,
        labels: BTreeMap::new(),
        model: "scripted".to_owned(),
        state: SessionState::Idle,
        archived: false,
        created_at: SeededIds::wall_time(),
        updated_at: SeededIds::wall_time(),
        turn_count: 0,
        message_count: 0,
        last_seq,
        usage: Default::default(),
        cost: None,
        forked_from: None,
        last_error: None,
        parent: None,
    }
}

/// Readers with their stores.
struct Place {
    events: Arc<MemoryEventStore>,
    index: Arc<MemoryIndex>,
    store: Arc<MemoryReaders>,
    readers: Readers,
}

impl Place {
    async fn new() -> Self {
        Self::over(Arc::new(MemoryEventStore::new(u64::MAX, Arc::default())), Arc::default(), Arc::default()).await
    }

    /// A process over stores that a former one left.
    async fn over(events: Arc<MemoryEventStore>, index: Arc<MemoryIndex>, store: Arc<MemoryReaders>) -> Self {
        let clock = Arc::new(FrozenClock::at(SeededIds::wall_time()));
        let readers = Readers::new(store.clone(), events.clone(), index.clone(), clock);
        readers.open().await.unwrap();
        Self { events, index, store, readers }
    }

    /// The next process.
    async fn restarted(self) -> Self {
        Self::over(self.events, self.index, self.store).await
    }

    /// The next process, after the index was lost and rebuilt from the journals.
    async fn without_index(self) -> Self {
        let index = Arc::new(MemoryIndex::default());
        for session_id in self.events.sessions(None, 1000).await.unwrap() {
            let last_seq = *self.events.watch(session_id).await.unwrap().unwrap().borrow();
            index.put(summary(session_id, last_seq)).await.unwrap();
        }
        Self::over(self.events, index, self.store).await
    }

    async fn last_seq(&self, n: u8) -> Seq {
        self.events.watch(id(n)).await.unwrap().map_or(0, |tail| *tail.borrow())
    }

    /// Appends records with this text to a session, as a turn does.
    async fn append(&self, n: u8, count: u64, text: &str) {
        let lease = self.events.lease(id(n)).await.unwrap();
        for seq in lease.tail + 1..=lease.tail + count {
            let record = Record { session_id: id(n), ..pinned(seq, text) };
            self.events.stage(&lease, &[record]).unwrap().durable().await.unwrap();
        }
        let last_seq = lease.tail + count;
        self.index.put(summary(id(n), last_seq)).await.unwrap();
        self.readers.touched(id(n), last_seq);
    }

    async fn delete(&self, n: u8) {
        self.events.delete(id(n)).await.unwrap();
        self.index.remove(id(n)).await.unwrap();
        self.readers.delete_session(id(n));
    }

    async fn fetch(&self, reader: &str, limit: usize) -> Vec<(u8, Seq)> {
        short(&self.readers.fetch(reader, limit, 0).await.unwrap())
    }

    async fn acknowledge(&self, reader: &str, n: u8, seq: Seq) -> Result<Seq, ErrorCode> {
        let request = AcknowledgeReader { reader: reader.to_owned(), session_id: id(n), seq };
        self.readers.acknowledge(request).await.map(|done| done.seq).map_err(|error| error.code())
    }

    async fn lag(&self, reader: &str) -> (u64, u64) {
        let view = self.readers.view(reader).await.unwrap();
        (view.sessions_behind, view.records_behind)
    }
}

fn number(session_id: SessionId) -> u8 {
    session_id.as_uuid().as_bytes()[15]
}

fn short(page: &RecordPage) -> Vec<(u8, Seq)> {
    page.items.iter().map(|record| (number(record.session_id), record.seq)).collect()
}

fn wait(reader: &str, n: u8, seq: Seq, wait_ms: u64) -> WaitReader {
    WaitReader { reader: reader.to_owned(), session_id: id(n), seq, wait_ms }
}

/// A reader that is made late, or whose checkpoints went lost, is behind in all sessions.
#[tokio::test]
async fn a_reader_that_is_behind_in_many_sessions_has_few_in_memory_and_is_given_all() {
    let place = Place::new().await;
    for n in 1..=60 {
        place.append(n, 2, "x").await;
    }
    place.readers.create("late").await.unwrap();
    let held = || place.readers.with("late", |known| known.feed.behind().len()).unwrap();
    let mut due: BTreeMap<u8, Seq> = (1..=60).map(|n| (n, 2)).collect();
    let mut given: BTreeMap<u8, Seq> = (1..=60).map(|n| (n, 0)).collect();
    for n in 0.. {
        let behind: Vec<Seq> = due.iter().map(|(n, due)| due - given[n]).filter(|behind| *behind > 0).collect();
        assert_eq!(place.lag("late").await, (behind.len() as u64, behind.iter().sum()));
        let page = place.fetch("late", 3).await;
        assert!(held() <= feed::BEHIND_MAX, "{}", held());
        if page.is_empty() {
            break;
        }
        for (session, seq) in page {
            assert_eq!(given.insert(session, seq), Some(seq - 1), "{session}");
            place.acknowledge("late", session, seq).await.unwrap();
        }
        // One goes on meanwhile, whether it has room or not.
        if n < 10 {
            place.append(1, 1, "x").await;
            *due.entry(1).or_default() += 1;
        }
    }
    assert_eq!((given[&1], given), (12, due));
}

/// Somebody lists the readers while memory still finds out that it has lost what its checkpoints say.
#[tokio::test]
async fn a_reader_that_begins_anew_is_behind_in_all_sessions_also_where_it_was_looked_at_before() {
    let place = Place::new().await;
    place.readers.add_built_in("memory", false);
    for n in [1, 2] {
        place.append(n, 3, "x").await;
        place.readers.done("memory", id(n), 3).await.unwrap();
    }
    let place = place.restarted().await;
    place.readers.add_built_in("memory", false);
    assert_eq!(place.lag("memory").await, (0, 0));
    place.append(2, 1, "x").await;
    place.readers.trust("memory", true).await.unwrap();
    assert_eq!(place.lag("memory").await, (2, 7));
    let mut waited_for = place.readers.behind("memory").await.unwrap();
    assert_eq!(waited_for, [(id(1), 3), (id(2), 4)].into());
    // What comes later is not waited for.
    place.append(1, 1, "x").await;
    place.append(3, 1, "x").await;
    place.readers.done("memory", id(1), 3).await.unwrap();
    place.readers.retain_behind("memory", &mut waited_for).unwrap();
    assert_eq!(waited_for, [(id(2), 4)].into());
}

#[tokio::test]
async fn a_long_session_keeps_no_other_waiting() {
    let place = Place::new().await;
    place.readers.create("r").await.unwrap();
    place.append(1, 1000, "x").await;
    for n in 2..=10 {
        place.append(n, 1, "x").await;
    }
    let page = place.fetch("r", 20).await;
    assert_eq!(page.len(), 20, "what the others leave goes to the long one");
    assert_eq!(page.iter().filter(|(n, _)| *n == 1).map(|(_, seq)| *seq).collect::<Vec<_>>(), Vec::from_iter(1..=11));
    assert_eq!(page.iter().filter(|(n, _)| *n > 1).count(), 9);
    // However small the pages: who acknowledges is given others next.
    let mut seen = BTreeSet::new();
    for _ in 0..4 {
        for (n, seq) in place.fetch("r", 3).await {
            seen.insert(n);
            place.acknowledge("r", n, seq).await.unwrap();
        }
    }
    assert_eq!(seen, (1..=10).collect());
}

#[tokio::test]
async fn a_page_is_bounded_in_bytes_and_never_without_a_record() {
    let place = Place::new().await;
    place.readers.create("r").await.unwrap();
    for n in 1..=3 {
        place.append(n, 20, &"x".repeat(100_000)).await;
    }
    let page = place.readers.fetch("r", 1000, 0).await.unwrap();
    let bytes: usize = page.items.iter().map(|record| record.line.len()).sum();
    assert!((4_000_000..=4 * 1024 * 1024).contains(&bytes), "{bytes}");
    for n in 1..=3 {
        place.acknowledge("r", n, 20).await.unwrap();
    }
    place.append(1, 2, &"x".repeat(5_000_000)).await;
    assert_eq!(place.fetch("r", 1000).await, [(1, 21)]);
}

#[tokio::test]
async fn there_are_no_more_readers_than_a_bound() {
    let place = Place::new().await;
    place.readers.add_built_in("projection", true);
    for n in 0..READERS_MAX {
        place.readers.create(&format!("r{n}")).await.unwrap();
    }
    let refused = place.readers.create("one-more").await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::SessionLimit);
    let details = serde_json::to_value(refused.body()).unwrap()["details"].clone();
    assert_eq!((&details["what"], &details["limit"]), (&"readers".into(), &64.into()));
    place.readers.create("r0").await.unwrap();
    place.readers.delete("r0").await.unwrap();
    place.readers.create("one-more").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_fetch_waits_for_the_first_record_and_no_longer_than_asked() {
    let place = Place::new().await;
    place.readers.create("r").await.unwrap();
    assert_eq!(place.readers.fetch("r", 9, 30_000).await.unwrap(), RecordPage::default());
    let mut fetch = std::pin::pin!(place.readers.fetch("r", 9, 30_000));
    assert!(poll!(&mut fetch).is_pending());
    place.append(1, 2, "x").await;
    assert_eq!(short(&fetch.await.unwrap()), [(1, 1), (1, 2)]);
    place.acknowledge("r", 1, 2).await.unwrap();
    let mut fetch = std::pin::pin!(place.readers.fetch("r", 9, 30_000));
    assert!(poll!(&mut fetch).is_pending());
    place.readers.delete("r").await.unwrap();
    assert_eq!(fetch.await.unwrap_err().code(), ErrorCode::ReaderNotFound);
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_when_the_reader_is_done_and_no_later_than_asked() {
    let place = Place::new().await;
    place.append(1, 5, "x").await;
    place.readers.create("r").await.unwrap();
    assert_eq!(place.readers.wait(wait("r", 1, 0, 0)).await.unwrap().seq, 0);
    assert_eq!(place.readers.wait(wait("r", 1, 3, 30_000)).await.unwrap().seq, 0, "its time was over");
    let mut waiting = std::pin::pin!(place.readers.wait(wait("r", 1, 3, 30_000)));
    assert!(poll!(&mut waiting).is_pending());
    place.acknowledge("r", 1, 2).await.unwrap();
    assert!(poll!(&mut waiting).is_pending());
    place.acknowledge("r", 1, 4).await.unwrap();
    assert_eq!(waiting.await.unwrap().seq, 4);
    for (reader, n, code) in [("r", 2, ErrorCode::SessionNotFound), ("other", 1, ErrorCode::ReaderNotFound)] {
        assert_eq!(place.readers.wait(wait(reader, n, 1, 30_000)).await.unwrap_err().code(), code);
    }
    let mut waiting = std::pin::pin!(place.readers.wait(wait("r", 1, 9, 30_000)));
    assert!(poll!(&mut waiting).is_pending());
    place.delete(1).await;
    assert_eq!(waiting.await.unwrap_err().code(), ErrorCode::SessionNotFound);
}

#[tokio::test]
async fn a_session_that_is_gone_is_in_nobodys_way() {
    let place = Place::new().await;
    place.readers.create("r").await.unwrap();
    place.append(1, 3, "x").await;
    place.append(2, 1, "x").await;
    place.acknowledge("r", 1, 2).await.unwrap();
    place.delete(1).await;
    assert_eq!((place.fetch("r", 9).await, place.lag("r").await), (vec![(2, 1)], (1, 1)));
    assert_eq!(place.acknowledge("r", 1, 1).await, Err(ErrorCode::SessionNotFound));
    assert_eq!(place.index.checkpoint("r", id(1)).await.unwrap(), 0);
    // Another one may have its id.
    place.append(1, 1, "x").await;
    assert_eq!(place.fetch("r", 9).await, [(2, 1), (1, 1)]);
}

/// A row may know of more than the journal has: one whose end was found damaged.
#[tokio::test]
async fn a_session_without_the_records_that_its_row_names_is_in_nobodys_way() {
    let place = Place::new().await;
    place.append(1, 2, "x").await;
    place.append(2, 1, "x").await;
    place.index.put(summary(id(2), 7)).await.unwrap();
    place.readers.create("r").await.unwrap();
    place.acknowledge("r", 2, 1).await.unwrap();
    assert_eq!(place.fetch("r", 1).await, [(1, 1)]);
    place.acknowledge("r", 1, 2).await.unwrap();
    assert_eq!(place.fetch("r", 1).await, []);
    assert_eq!(place.lag("r").await, (0, 0));
    place.append(2, 7, "x").await;
    assert_eq!(place.fetch("r", 1).await, [(2, 2)]);
}

#[tokio::test]
async fn a_built_in_reader_is_given_sessions_in_turn_and_those_that_are_deleted_until_it_has_forgotten_them() {
    let place = Place::new().await;
    place.append(1, 3, "x").await;
    place.readers.add_built_in("projection", true);
    let due = async |limit| {
        let due = place.readers.due_sessions("projection", limit).await.unwrap();
        due.into_iter().map(number).collect::<Vec<_>>()
    };
    assert_eq!(due(9).await, [1]);
    place.append(2, 1, "x").await;
    // What it did not take in comes again, after the others.
    for n in [1, 2, 1] {
        assert_eq!(due(1).await, [n]);
    }
    assert_eq!(due(9).await, [2, 1]);
    assert_eq!(place.readers.done("projection", id(2), 1).await.unwrap(), 1);
    for seq in [2, 3] {
        assert_eq!(due(9).await, [1]);
        assert_eq!(place.readers.done("projection", id(1), seq).await.unwrap(), seq);
    }
    let changes = place.readers.changes();
    assert_eq!((due(9).await, changes.has_changed().unwrap()), (vec![], false));
    place.append(2, 1, "x").await;
    assert_eq!((due(9).await, changes.has_changed().unwrap()), (vec![2], true));
    let deleted = || place.readers.deleted_of("projection").unwrap();
    assert_eq!(deleted(), []);
    place.delete(2).await;
    assert_eq!(place.readers.done("projection", id(2), 2).await.unwrap_err().code(), ErrorCode::SessionNotFound);
    assert_eq!(place.index.checkpoint("projection", id(2)).await.unwrap(), 0);
    assert_eq!(due(9).await, [0_u8; 0]);
    // Another session takes its id, and is deleted before the first one is forgotten.
    let first = deleted()[0];
    place.append(2, 1, "x").await;
    place.delete(2).await;
    place.readers.forgot("projection", first).unwrap();
    let [second] = deleted()[..] else { panic!("the second deletion counts as forgotten") };
    assert_eq!(second.session_id, id(2));
    place.readers.forgot("projection", second).unwrap();
    assert_eq!(deleted(), []);

    for name in BUILT_IN_READERS {
        for refused in [place.readers.create(name).await, place.readers.delete(name).await] {
            assert_eq!(refused.unwrap_err().code(), ErrorCode::InvalidRequest, "{name}");
        }
    }
    let view = place.readers.list().await.unwrap().items;
    assert_eq!((view.len(), view[0].built_in, view[0].records_behind), (1, true, 0));
}

#[tokio::test]
async fn the_watermark_is_the_least_checkpoint_and_without_the_index_readers_begin_again() {
    let place = Place::new().await;
    place.append(1, 9, "x").await;
    assert_eq!(place.readers.watermark(id(1)).await.unwrap(), None);
    place.readers.create("a").await.unwrap();
    place.readers.create("b").await.unwrap();
    place.acknowledge("a", 1, 7).await.unwrap();
    assert_eq!(place.readers.watermark(id(1)).await.unwrap(), Some(0));
    place.acknowledge("b", 1, 4).await.unwrap();
    assert_eq!(place.readers.watermark(id(1)).await.unwrap(), Some(4));
    let place = place.without_index().await;
    assert_eq!(place.fetch("b", 1).await, [(1, 1)]);
    assert_eq!(place.readers.watermark(id(1)).await.unwrap(), Some(0));
}

/// What happens to two readers of three sessions.
#[derive(Clone, Debug)]
enum Happens {
    Append(u8, u64),
    Delete(u8),
    Register(usize),
    Forget(usize),
    /// Fetches so many, and acknowledges the first so many of them.
    Consume(usize, usize, usize),
    Watermark(u8),
    Restart,
    LoseIndex,
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        6 => (1..4u8, 1..6u64).prop_map(|(n, count)| Happens::Append(n, count)),
        1 => (1..4u8).prop_map(Happens::Delete),
        2 => (0..2usize).prop_map(Happens::Register),
        1 => (0..2usize).prop_map(Happens::Forget),
        6 => (0..2usize, 1..8usize, 0..8usize).prop_map(|(reader, limit, of)| Happens::Consume(reader, limit, of)),
        2 => (1..4u8).prop_map(Happens::Watermark),
        1 => Just(Happens::Restart),
        1 => Just(Happens::LoseIndex),
    ]
}

const NAMES: [&str; 2] = ["a", "b"];

/// What a reader acknowledged in each session.
type Acknowledged = BTreeMap<u8, Seq>;

async fn walk(steps: Vec<Happens>) {
    let mut place = Place::new().await;
    let mut readers: BTreeMap<usize, Acknowledged> = BTreeMap::new();
    for step in steps {
        match step {
            Happens::Append(n, count) => place.append(n, count, "x").await,
            Happens::Delete(n) => {
                place.delete(n).await;
                readers.values_mut().for_each(|acknowledged| acknowledged.retain(|known, _| *known != n));
            }
            Happens::Register(reader) => {
                place.readers.create(NAMES[reader]).await.unwrap();
                readers.entry(reader).or_default();
            }
            Happens::Forget(reader) => {
                let known = readers.remove(&reader).is_some();
                assert_eq!(place.readers.delete(NAMES[reader]).await.is_ok(), known);
            }
            Happens::Consume(reader, limit, of) => {
                let Some(acknowledged) = readers.get_mut(&reader) else { continue };
                for (n, seq) in place.fetch(NAMES[reader], limit).await.into_iter().take(of) {
                    let known = acknowledged.entry(n).or_default();
                    assert_eq!(seq, *known + 1, "the next one");
                    *known = place.acknowledge(NAMES[reader], n, seq).await.unwrap();
                    assert_eq!(*known, seq);
                }
            }
            Happens::Watermark(n) => {
                let least = readers.values().map(|of| of.get(&n).copied().unwrap_or_default()).min();
                assert_eq!(place.readers.watermark(id(n)).await.unwrap(), least);
            }
            Happens::Restart => place = place.restarted().await,
            Happens::LoseIndex => {
                place = place.without_index().await;
                readers.values_mut().for_each(BTreeMap::clear);
            }
        }
    }
    for (reader, acknowledged) in readers {
        let mut found = place.fetch(NAMES[reader], 1000).await;
        let (sessions, records) = place.lag(NAMES[reader]).await;
        // A stable sort: each session's records stay in the order in which they came.
        found.sort_by_key(|(n, _)| *n);
        let mut due = Vec::new();
        for n in 1..4 {
            let from = acknowledged.get(&n).copied().unwrap_or_default();
            due.extend((from + 1..=place.last_seq(n).await).map(|seq| (n, seq)));
        }
        assert_eq!(found, due);
        let behind: BTreeSet<u8> = due.iter().map(|(n, _)| *n).collect();
        assert_eq!((sessions, records), (behind.len() as u64, due.len() as u64));
    }
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn whatever_happens_each_reader_is_given_what_it_has_not_acknowledged(steps in vec(happens(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(walk(steps));
    }
}
