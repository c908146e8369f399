//! Lists, blobs and journal compaction.

use std::collections::BTreeSet;

use meerkat_service::{
    SessionId,
    clock::{Clock as _, SystemClock, Timestamp},
    store::{
        BlobStore as _, EventStore as _, JournalPruner as _, ReadLimit, ReaderStore as _, Registration,
        SessionIndex as _, StoreError,
    },
};
use meerkat_testkit::until_asked;
use meerkat_words::{
    answers::SessionState::{Idle, Running, Waiting},
    requests::SessionQuery,
};

use super::{append, database, events, id, node, record, row, seqs, time};
use crate::{blobs::PostgresBlobs, index::PostgresIndex, listing, prune::PostgresPruner, readers::PostgresReaders};

/// The inbox of approvals asks for them, and most sessions of a large store are idle.
#[tokio::test]
async fn sessions_that_are_not_idle_are_found_without_a_look_at_the_others() {
    let database = database!();
    let a = node(&database, "a").await;
    let index = PostgresIndex(a.clone());
    for (n, state) in [(1, Idle), (2, Waiting), (3, Running), (4, Idle)] {
        let lease = a.lease(id(n)).await.unwrap();
        append(&a, &lease, n, 1..=2, state).await.unwrap();
    }
    // Rows that nobody could read, were they looked at.
    database.psql("UPDATE sessions SET summary = 'no row' WHERE is_idle");
    assert_eq!(index.busy(None, 9).await.unwrap(), [row(3, 2, Running), row(2, 2, Waiting)]);
    assert_eq!(index.busy(None, 1).await.unwrap(), [row(3, 2, Running)]);
    assert_eq!(index.busy(Some(id(3)), 9).await.unwrap(), [row(2, 2, Waiting)]);
    assert_eq!(index.busy(Some(id(2)), 9).await.unwrap(), []);
}

#[tokio::test]
async fn a_row_goes_with_its_records_and_is_not_put_again() {
    let database = database!();
    let a = node(&database, "a").await;
    let (index, lease) = (PostgresIndex(a.clone()), a.lease(id(1)).await.unwrap());
    append(&a, &lease, 1, 1..=2, Running).await.unwrap();
    let place = || database.psql("SELECT changed, is_idle FROM sessions");
    let before = place();
    index.put(row(1, 2, Running)).await.unwrap();
    assert_eq!(place(), before);
    assert_eq!(index.sessions(None, 9).await.unwrap(), [row(1, 2, Running)]);
    append(&a, &lease, 1, 3..=3, Idle).await.unwrap();
    assert!(place().ends_with("|t") && place() != before, "{before} {}", place());
    // Nor is a late one of a former owner.
    index.put(row(1, 2, Running)).await.unwrap();
    assert_eq!(index.sessions(None, 9).await.unwrap(), [row(1, 3, Idle)]);
}

/// A commit may wait for a standby for longer than any node looks back: what it changed has its place long before it is
/// seen.
#[tokio::test]
async fn a_change_that_is_committed_late_is_found() {
    let database = database!();
    let (a, b) = (node(&database, "a").await, node(&database, "b").await);
    for n in 1..=2 {
        let lease = a.lease(id(n)).await.unwrap();
        append(&a, &lease, n, 1..=1, Running).await.unwrap();
    }
    let index = PostgresIndex(b.clone());
    let newest = index.changes(None).await.unwrap()[0].place;
    let found = async |since| -> Vec<SessionId> {
        index.changes(Some(since)).await.unwrap().iter().map(|change| change.session_id).collect()
    };
    let mut connection = a.db.connection().await.unwrap();
    let work = connection.begin().await.unwrap();
    listing::put(&work, &row(1, 1, Idle)).await.unwrap();
    database.psql("UPDATE sessions SET changed = changed + 60000000 WHERE node = 'a' AND id::text LIKE '%2'");
    // What is open is looked for again, and other tests have work open in this database too.
    assert!(found(newest).await.contains(&id(2)));
    let later = newest + 60_000_000;
    work.commit().await.unwrap();
    assert_eq!(found(later).await, [id(1), id(2)], "what was open at the last look");
    until_asked("nothing was open at the last look", async || found(later).await.is_empty()).await;
    connection.end(Ok(())).unwrap();
}

#[tokio::test]
async fn a_blob_is_read_in_any_pieces_and_a_fork_keeps_it() {
    let database = database!();
    let a = node(&database, "a").await;
    let blobs = PostgresBlobs(a.clone());
    let body: Vec<u8> = (0..700_000_u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
    let mut writer = blobs.writer(id(1));
    for piece in body.chunks(100_001) {
        writer.write(piece).await.unwrap();
    }
    let (name, length) = writer.finish().await.unwrap();
    assert_eq!(length, body.len() as u64);
    let (empty, _) = blobs.writer(id(1)).finish().await.unwrap();
    for (offset, limit) in
        [(0, 10), (262_140, 10), (262_144, 262_144), (699_999, 5), (0, 800_000), (700_000, 1), (1, 0)]
    {
        let due = &body[offset..body.len().min(offset + limit)];
        let read = blobs.read(id(1), &name, offset as u64, limit).await.unwrap();
        assert!(read.as_deref() == Some(due), "{limit} from {offset}");
    }
    assert_eq!(blobs.read(id(1), &empty, 0, 9).await.unwrap().as_deref(), Some(&[][..]));
    assert_eq!(blobs.read(id(1), &empty, 1 << 40, 9).await.unwrap().as_deref(), Some(&[][..]));
    assert_eq!(blobs.read(id(2), &name, 0, 9).await, Ok(None));
    // Written again it takes no more room.
    let mut writer = blobs.writer(id(1));
    writer.write(&body).await.unwrap();
    assert_eq!(writer.finish().await, Ok((name.clone(), length)));
    assert_eq!(database.psql("SELECT count(*) FROM blob_parts"), "4");

    let lease = a.lease(id(1)).await.unwrap();
    append(&a, &lease, 1, 1..=3, Idle).await.unwrap();
    events(&a).fork(id(1), 2, &[record(2, 3)]).await.unwrap();
    assert_eq!(blobs.list(id(2)).await.unwrap(), BTreeSet::from([name.clone(), empty.clone()]));
    events(&a).delete(id(1)).await.unwrap();
    assert_eq!(blobs.list(id(1)).await, Ok(BTreeSet::new()));
    assert!(blobs.read(id(2), &name, 0, 800_000).await.unwrap().as_deref() == Some(&body));
    blobs.remove(id(2), &BTreeSet::from([empty])).await.unwrap();
    assert_eq!(blobs.list(id(2)).await.unwrap(), BTreeSet::from([name]));
    blobs.forget(id(2)).await;
    assert_eq!(database.psql("SELECT (SELECT count(*) FROM blobs), (SELECT count(*) FROM blob_parts)"), "0|0");
}

#[tokio::test]
async fn an_upload_is_deleted_with_its_session_or_after_its_day_and_is_in_no_fork() {
    let database = database!();
    let (a, b) = (node(&database, "a").await, node(&database, "b").await);
    let (here, there) = (PostgresBlobs(a.clone()), PostgresBlobs(b));
    let rows = || database.psql("SELECT (SELECT count(*) FROM blobs), (SELECT count(*) FROM blob_parts)");
    let upload = async |blobs: &PostgresBlobs, text: &str| {
        let mut writer = blobs.writer(id(1));
        writer.write(text.as_bytes()).await.unwrap();
        writer.upload(SystemClock::new().now()).await
    };
    assert_eq!(upload(&here, "too early").await, Err(StoreError::NotFound(id(1))));
    until_asked("a refused upload leaves no part", async || rows() == "0|0").await;
    let lease = a.lease(id(1)).await.unwrap();
    append(&a, &lease, 1, 1..=3, Idle).await.unwrap();
    let (used, _) = upload(&here, "used").await.unwrap();
    let (unused, _) = upload(&there, "unused").await.unwrap();
    upload(&there, "unused").await.unwrap();
    let (old, _) = upload(&here, "old").await.unwrap();
    assert_eq!(rows(), "3|3", "the same bytes take no more room");
    assert_eq!(here.keep(id(1), &used, Timestamp::from_millis(0)).await, Ok(true));
    events(&a).fork(id(1), 2, &[record(2, 3)]).await.unwrap();
    assert_eq!(here.list(id(2)).await.unwrap(), BTreeSet::from([used.clone()]));
    assert_eq!(here.keep(id(2), &unused, Timestamp::from_millis(0)).await, Ok(false));
    // A day later by the database's clock a sweep finds what nobody asked for.
    for (name, hours) in [(&unused, 23), (&old, 25)] {
        let then = format!("(extract(epoch FROM now() - interval '{hours} hours') * 1000)::int8");
        database.psql(&format!("UPDATE blobs SET uploaded = {then} WHERE name = '{name}'"));
    }
    let _c = node(&database, "c").await;
    until_asked("the old one is swept", async || rows() == "3|3").await;
    assert!(
        there.read_upload(id(1), &unused, Timestamp::from_millis(0), 0, 9).await.unwrap().as_deref() == Some(b"unused")
    );
    events(&a).delete(id(1)).await.unwrap();
    assert_eq!(there.read_upload(id(1), &unused, Timestamp::from_millis(0), 0, 9).await, Ok(None));
    assert!(there.read(id(2), &used, 0, 9).await.unwrap().as_deref() == Some(b"used"));
}

#[tokio::test]
async fn nothing_is_pruned_that_a_reader_of_another_node_has_yet_to_read() {
    let database = database!();
    let (a, b) = (node(&database, "a").await, node(&database, "b").await);
    let lease = a.lease(id(1)).await.unwrap();
    append(&a, &lease, 1, 1..=6, Idle).await.unwrap();
    let (pruner, readers, index) = (PostgresPruner(a.clone()), PostgresReaders(b.clone()), PostgresIndex(b.clone()));
    let version = async || events(&a).read(id(1), 0, ReadLimit::frames(1)).await.unwrap().unwrap().version;
    let (before, keep) = (version().await, BTreeSet::from([1]));
    for reader in ["x", "y"] {
        readers.register(Registration { reader: reader.to_owned(), created_at: time(1) }).await.unwrap();
    }
    assert_eq!(pruner.prune(id(1), 6, &keep, time(99)).await, Ok(0));
    index.put_checkpoint("x", id(1), 5).await.unwrap();
    index.put_checkpoint("y", id(1), 3).await.unwrap();
    // Too young to be dropped.
    assert_eq!(pruner.prune(id(1), 6, &keep, time(2)).await, Ok(0));
    assert_eq!(version().await, before);
    assert_eq!(pruner.prune(id(1), 6, &keep, time(99)).await, Ok(2));
    assert_eq!(seqs(&b, 1).await, Some(vec![1, 4, 5, 6]));
    assert!(version().await > before);
    let kept: u64 = events(&a).journal_bytes(id(1)).await.unwrap();
    assert_eq!(kept.to_string(), database.psql("SELECT sum(octet_length(line)) FROM events"));
    assert_eq!(pruner.prune(id(2), 6, &keep, time(99)).await, Err(StoreError::NotFound(id(2))));
    // A fork whose maker read the journal before.
    let forked = async |version| events(&b).fork_unpruned(id(1), version, 6, &[record(3, 7)]).await;
    assert_eq!((forked(before).await, seqs(&a, 3).await), (Err(StoreError::Fenced), None));
    assert_eq!((forked(version().await).await, seqs(&a, 3).await), (Ok(()), Some(vec![1, 4, 5, 6, 7])));
}

/// A node that lost its session puts the row when another one has deleted it: lists show nothing that cannot be opened.
#[tokio::test]
async fn a_late_row_of_a_deleted_session_is_not_taken() {
    let database = database!();
    let (a, b) = (node(&database, "a").await, node(&database, "b").await);
    let lease = a.lease(id(1)).await.unwrap();
    append(&a, &lease, 1, 1..=2, Idle).await.unwrap();
    let (of_a, of_b) = (PostgresIndex(a.clone()), PostgresIndex(b.clone()));
    events(&b).delete(id(1)).await.unwrap();
    // The row is there until it is removed, and lists do not show it.
    let all = async || {
        let listed = of_b.page(SessionQuery::default()).await.unwrap().items;
        (listed, of_b.sessions(None, 9).await.unwrap(), database.psql("SELECT count(summary) FROM sessions"))
    };
    assert_eq!(all().await, (Vec::new(), Vec::new(), "1".to_owned()));
    of_b.remove(id(1)).await.unwrap();
    for _ in 0..2 {
        of_a.put(row(1, 3, Idle)).await.unwrap();
        of_a.put_found(row(1, 3, Idle)).await.unwrap();
        assert_eq!(all().await, (Vec::new(), Vec::new(), "0".to_owned()));
        // Not even where the session's row is gone, too.
        database.psql("DELETE FROM sessions");
    }
}
