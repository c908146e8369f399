//! The copies in `index.redb`: visible at once, never trusted, rebuilt when they are lost.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

mod journal;
mod races;

use super::{
    IndexFile, RedbIndex,
    rows::{Table, Trouble, sealed},
};
use crate::{
    clock::{SeededIds, Timestamp},
    ids::SessionId,
    service::{SessionQuery, SessionState, SessionSummary},
    session::event::Key,
    store::{IndexedKey, MemoryIndex, SessionIndex, list::Place},
};

fn id(n: u8) -> SessionId {
    SessionId::from_uuid(uuid::Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0000 + u128::from(n)))
}

fn time(seconds: i64) -> Timestamp {
    Timestamp::from_millis(SeededIds::wall_time().as_millis() + seconds * 1000)
}

fn summary(n: u8, version: u8) -> SessionSummary {
    let label = |name: &str, value: u8| (name.to_owned(), value.to_string());
    SessionSummary {
        session_id: id(n),
        title: Some(format!("version {version}")),
        labels: [label("even", n % 2), label("third", version % 3)].into(),
        model: "scripted".to_owned(),
        state: SessionState::Idle,
        archived: version.is_multiple_of(4),
        created_at: time(i64::from(n)),
        updated_at: time(i64::from(version)),
        turn_count: 1,
        message_count: 2,
        last_seq: u64::from(version),
        usage: Default::default(),
        cost: None,
        forked_from: None,
        last_error: None,
        parent: None,
    }
}

fn index(path: &Path) -> RedbIndex {
    RedbIndex::new(Arc::new(IndexFile::new(path.to_owned())))
}

/// Every page of a query, one after the other.
async fn pages(index: &dyn SessionIndex, query: &SessionQuery) -> Vec<SessionSummary> {
    let (mut query, mut all) = (query.clone(), Vec::new());
    loop {
        let page = index.page(query.clone()).await.unwrap();
        let limit = query.limit.unwrap();
        assert!(page.items.len() == limit || page.items.len() < limit && page.next_cursor.is_none());
        all.extend(page.items);
        match page.next_cursor {
            Some(cursor) => query.cursor = Some(cursor),
            None => return all,
        }
    }
}

fn key(scope: Option<u8>, name: &str, seconds: i64) -> IndexedKey {
    let key = Key { key: name.to_owned(), request: "r".to_owned() };
    IndexedKey { scope: scope.map(id), key, session_id: id(9), turn: Some(3), time: time(seconds) }
}

/// The sessions that are not idle, in pages.
async fn busy(index: &dyn SessionIndex) -> Vec<SessionId> {
    let mut ids: Vec<SessionId> = Vec::new();
    loop {
        let page = index.busy(ids.last().copied(), 2).await.unwrap();
        if page.is_empty() {
            return ids;
        }
        ids.extend(page.iter().map(|session| session.session_id));
    }
}

/// The inbox of approvals asks for them, and most sessions of a large store are idle.
#[tokio::test]
async fn sessions_that_are_not_idle_are_found_without_a_look_at_the_others() {
    use SessionState::{Idle, Queued, Running, Waiting};
    let directory = meerkat_testkit::folder();
    let path = directory.path().join("index.redb");
    let (mut redb, memory) = (index(&path), MemoryIndex::default());
    let put = async |redb: &RedbIndex, n, state| {
        redb.put(SessionSummary { state, ..summary(n, 1) }).await.unwrap();
        memory.put(SessionSummary { state, ..summary(n, 1) }).await.unwrap();
    };
    for (n, state) in [Idle, Waiting, Running, Idle, Waiting, Queued, Idle].into_iter().enumerate() {
        put(&redb, n as u8, state).await;
    }
    assert_eq!(busy(&redb).await, [5, 4, 2, 1].map(id));
    redb.flush().await.unwrap();
    drop(redb);
    let file = Arc::new(IndexFile::new(path));
    redb = RedbIndex::new(file.clone());
    put(&redb, 5, Idle).await;
    assert_eq!((busy(&redb).await, busy(&memory).await), ([4, 2, 1].map(id).to_vec(), [4, 2, 1].map(id).to_vec()));
    // A row that nobody could read, were it looked at.
    let idle = id(3).as_uuid().as_bytes().to_vec();
    file.change([((Table::Sessions, idle), Some("no row".into()))]);
    for (n, state) in [(4, Idle), (0, Waiting)] {
        put(&redb, n, state).await;
    }
    redb.remove(id(2)).await.unwrap();
    assert_eq!(busy(&redb).await, [1, 0].map(id));
}

#[tokio::test]
async fn a_cursor_that_is_none_is_refused() {
    let query = |cursor: &str| SessionQuery { cursor: Some(cursor.to_owned()), ..SessionQuery::default() };
    let (id, number) = (id(3), "40000000000000ff");
    for wrong in [
        "",
        "7",
        number,
        &id.to_string(),
        &format!("{number}-{}", id.as_uuid().simple()),
        &format!("+{}-{id}", &number[1..]),
    ] {
        assert_eq!(query(wrong).cursor().unwrap_err().code(), meerkat_errors::ErrorCode::InvalidRequest);
        assert!(MemoryIndex::default().page(query(wrong)).await.is_err());
    }
    let place = Place { number: (1 << 62) + 255, session_id: id };
    assert_eq!(query(&format!("{number}-{id}")).cursor().unwrap(), Some(place));
    assert_eq!(place.to_string(), format!("{number}-{id}"));
}

/// The files that were set aside.
fn aside(path: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(path.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    let mut aside: Vec<PathBuf> = files.filter(|file| file != path).collect();
    aside.sort();
    aside
}

#[tokio::test]
async fn nothing_is_opened_or_made_before_it_is_needed() {
    let directory = meerkat_testkit::folder();
    let path = directory.path().join("index.redb");
    let index = index(&path);
    assert!(index.needs_rebuild().await.is_some());
    index.flush().await.unwrap();
    assert_eq!(index.page(SessionQuery::default()).await.unwrap().items, []);
    assert!(!path.exists());
    index.rebuilt(index.needs_rebuild().await.unwrap()).await.unwrap();
    assert!(path.exists() && index.needs_rebuild().await.is_none());
}

#[tokio::test]
async fn what_was_rebuilt_need_not_be_again_and_what_was_begun_must() {
    let directory = meerkat_testkit::folder();
    let path = directory.path().join("index.redb");
    let begun = index(&path);
    begun.put(summary(1, 1)).await.unwrap();
    begun.flush().await.unwrap();
    drop(begun);
    let whole = index(&path);
    let loss = whole.needs_rebuild().await.unwrap();
    whole.rebuilt(loss).await.unwrap();
    drop(whole);
    let again = index(&path);
    assert!(again.needs_rebuild().await.is_none());
    assert_eq!(again.page(SessionQuery::default()).await.unwrap().items, [summary(1, 1)]);
    assert!(aside(&path).is_empty());
}

/// A rebuilt index with a hundred sessions.
async fn rebuilt(path: &Path) {
    let index = index(path);
    for n in 0..100 {
        index.put(summary(n, n)).await.unwrap();
    }
    index.rebuilt(index.needs_rebuild().await.unwrap()).await.unwrap();
}

/// It is set aside as it was, and another takes its place.
async fn assert_made_anew(path: &Path) {
    let index = index(path);
    let listed = index.page(SessionQuery { limit: Some(100), ..SessionQuery::default() }).await;
    // Damage may show when the file is opened, or when a row is read.
    assert!(listed.is_err() || listed.unwrap().items.is_empty());
    assert!(index.needs_rebuild().await.is_some());
    let kept = aside(path);
    assert_eq!(kept.len(), 1);
    assert!(!fs::read(&kept[0]).unwrap().is_empty());
    index.put(summary(7, 7)).await.unwrap();
    index.rebuilt(index.needs_rebuild().await.unwrap()).await.unwrap();
    assert_eq!(index.page(SessionQuery::default()).await.unwrap().items, [summary(7, 7)]);
    assert!(index.needs_rebuild().await.is_none());
}

#[tokio::test]
async fn a_damaged_file_is_set_aside_and_made_anew() {
    let damages: [fn(&mut Vec<u8>); 5] = [
        |bytes| {
            let found = |at: &usize| bytes[*at..].starts_with(b"version 50");
            let places: Vec<usize> = (0..bytes.len()).filter(found).collect();
            assert!(!places.is_empty());
            places.into_iter().for_each(|at| bytes[at] ^= 1);
        },
        |bytes| bytes.truncate(16 * 1024),
        |bytes| bytes.truncate(100),
        |bytes| *bytes = b"this was never an index".to_vec(),
        |bytes| bytes[64..].fill(0xff),
    ];
    for damage in damages {
        let directory = meerkat_testkit::folder();
        let path = directory.path().join("index.redb");
        rebuilt(&path).await;
        let mut bytes = fs::read(&path).unwrap();
        damage(&mut bytes);
        fs::write(&path, &bytes).unwrap();
        assert_made_anew(&path).await;
    }
}

#[tokio::test]
async fn closing_leaves_the_file_as_the_last_commit_did() {
    let directory = meerkat_testkit::folder();
    let path = directory.path().join("index.redb");
    let index = index(&path);
    index.put(summary(1, 1)).await.unwrap();
    index.flush().await.unwrap();
    let committed = fs::read(&path).unwrap();
    drop(index);
    assert!(fs::read(&path).unwrap() == committed);
    let index = super::tests::index(&path);
    let query = SessionQuery { limit: Some(10), ..SessionQuery::default() };
    assert_eq!(pages(&index, &query).await, [summary(1, 1)]);
    assert!(aside(&path).is_empty());
}

/// Nothing else knows how far readers have come. What meerkat's own have made may be of the past, too.
#[tokio::test]
async fn a_file_of_another_layout_is_made_again_with_how_far_readers_have_come() {
    let directory = meerkat_testkit::folder();
    let path = directory.path().join("index.redb");
    let older = index(&path);
    older.put(summary(1, 3)).await.unwrap();
    for (reader, seq) in [("billing", 2), ("projection", 3), ("audit", 1)] {
        older.put_checkpoint(reader, id(1), seq).await.unwrap();
    }
    older.flush().await.unwrap();
    drop(older);
    let table = |name| redb::TableDefinition::<&[u8], &[u8]>::new(name);
    let database = redb::Database::create(&path).unwrap();
    let write = database.begin_write().unwrap();
    write.open_table(table("meta")).unwrap().insert(&b"layout"[..], &*sealed(b"layout", b"1")).unwrap();
    // It is damaged there.
    let key = [id(1).as_uuid().as_bytes(), &b"audit"[..]].concat();
    write.open_table(table("checkpoints")).unwrap().insert(&*key, &b"nonsense"[..]).unwrap();
    write.commit().unwrap();
    drop(database);
    // What a killed process may have left.
    fs::write(directory.path().join("index.redb.new"), "nonsense").unwrap();
    for is_again in [false, true] {
        let made = index(&path);
        for (reader, seq) in [("billing", 2), ("projection", 0), ("audit", 0)] {
            assert_eq!(made.checkpoint(reader, id(1)).await.unwrap(), seq, "{reader}, again: {is_again}");
        }
        assert!(made.needs_rebuild().await.is_some());
        assert_eq!(made.page(SessionQuery::default()).await.unwrap().items, []);
    }
    assert!(aside(&path).is_empty());
    // One without a layout is not known at all.
    fs::remove_file(&path).unwrap();
    let database = redb::Database::create(&path).unwrap();
    let write = database.begin_write().unwrap();
    write.open_table(table("meta")).unwrap().insert(&b"other"[..], &b"row"[..]).unwrap();
    write.commit().unwrap();
    drop(database);
    assert_made_anew(&path).await;
}

#[tokio::test]
async fn what_cannot_be_written_is_tried_again() {
    let directory = meerkat_testkit::folder();
    let folder = directory.path().join("not yet");
    let index = index(&folder.join("index.redb"));
    index.put(summary(1, 1)).await.unwrap();
    let loss = index.needs_rebuild().await.unwrap();
    assert!(index.rebuilt(loss).await.is_err() && index.needs_rebuild().await == Some(loss));
    index.put(summary(2, 2)).await.unwrap();
    assert_eq!(index.page(SessionQuery::default()).await.unwrap().items, [summary(2, 2), summary(1, 1)]);
    fs::create_dir(&folder).unwrap();
    index.flush().await.unwrap();
    drop(index);
    let index = super::tests::index(&folder.join("index.redb"));
    assert!(index.needs_rebuild().await.is_none(), "that all is there is tried again with it");
    assert_eq!(index.page(SessionQuery::default()).await.unwrap().items, [summary(2, 2), summary(1, 1)]);
}

/// It was lost once more while the sessions were put, so that what was put first is gone: nothing says that it is
/// whole.
#[tokio::test]
async fn a_rebuild_that_the_file_did_not_outlive_makes_nothing_whole() {
    let directory = meerkat_testkit::folder();
    let path = directory.path().join("index.redb");
    let file = Arc::new(IndexFile::new(path.clone()));
    let begun = RedbIndex::new(file.clone());
    let loss = begun.needs_rebuild().await.unwrap();
    begun.put(summary(1, 1)).await.unwrap();
    begun.flush().await.unwrap();
    file.read(|_| Err::<(), _>(Trouble::Damaged("it is lost".to_owned()))).await.unwrap_err();
    begun.put(summary(2, 2)).await.unwrap();
    begun.rebuilt(loss).await.unwrap_err();
    assert!(begun.needs_rebuild().await.is_some_and(|next| next != loss));
    drop((begun, file));
    let next = index(&path);
    assert!(next.needs_rebuild().await.is_some());
    assert_eq!(next.page(SessionQuery::default()).await.unwrap().items, [summary(2, 2)]);
}

#[test]
fn the_file_is_opened_on_a_thread_that_may_block() {
    let directory = meerkat_testkit::folder();
    let path = directory.path().join("index.redb");
    let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        rebuilt(&path).await;
        let index = index(&path);
        let (go, held) = std::sync::mpsc::channel();
        let busy = tokio::task::spawn_blocking(move || held.recv().unwrap());
        let mut asked = index.needs_rebuild();
        assert!(futures::poll!(&mut asked).is_pending(), "it waits for the only such thread");
        go.send(()).unwrap();
        busy.await.unwrap();
        assert_eq!(asked.await, None);
    });
}

/// A file that cannot be read for a moment, such as without descriptors, does not keep rows and keys from being put:
/// whoever put them takes them as put.
#[tokio::test]
async fn what_is_put_while_the_file_cannot_be_read_is_in_it_later() {
    let dir = meerkat_testkit::folder();
    let (path, away) = (dir.path().join("index.redb"), dir.path().join("away"));
    {
        let index = index(&path);
        index.put(summary(1, 1)).await.unwrap();
        index.put(summary(2, 1)).await.unwrap();
        index.put_key(&key(None, "newer", 9)).await.unwrap();
        index.flush().await.unwrap();
    }
    fs::rename(&path, &away).unwrap();
    fs::create_dir(&path).unwrap();
    let index = index(&path);
    index.page(SessionQuery::default()).await.unwrap_err();
    index.put_found(summary(1, 2)).await.unwrap();
    index.put(summary(3, 1)).await.unwrap();
    index.put_key(&key(None, "new", 1)).await.unwrap();
    index.put_key(&key(None, "newer", 1)).await.unwrap();
    fs::remove_dir(&path).unwrap();
    fs::rename(&away, &path).unwrap();
    index.flush().await.unwrap();
    let listed = pages(&index, &SessionQuery { limit: Some(1), ..SessionQuery::default() }).await;
    let mut listed: Vec<_> = listed.iter().map(|row| (row.session_id, row.last_seq)).collect();
    listed.sort_unstable();
    assert_eq!(listed, [(id(1), 2), (id(2), 1), (id(3), 1)], "each once, as it was put last");
    assert_eq!(index.key(None, "new").await.unwrap(), Some(key(None, "new", 1)));
    assert_eq!(index.key(None, "newer").await.unwrap(), Some(key(None, "newer", 9)));
}
