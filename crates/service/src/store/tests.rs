//! What the stores in memory count, and how they are bounded. What any store promises is tested by its suite.

use std::sync::Arc;

use super::*;
use crate::session::tests::{pinned, session_id};

const CHILD: SessionId = SessionId::from_uuid(uuid::Uuid::from_u128(7));

/// A store that keeps `bytes` of each session, and what it counts.
fn store(bytes: u64) -> (MemoryEventStore, Arc<MemoryUse>) {
    let held = Arc::<MemoryUse>::default();
    (MemoryEventStore::new(bytes, held.clone()), held)
}

/// Appends `count` events; answers with the lease that did.
async fn filled(store: &MemoryEventStore, count: u64) -> Lease {
    let lease = store.lease(session_id()).await.unwrap();
    for seq in lease.tail + 1..=lease.tail + count {
        let ticket = store.stage(&lease, &[pinned(seq, "0123456789")]).unwrap();
        assert_eq!(ticket.durable().await, Ok(seq));
    }
    lease
}

/// An event of another session.
fn of(session_id: SessionId, seq: Seq) -> Record {
    Record { session_id, ..pinned(seq, "its own") }
}

async fn read(store: &MemoryEventStore, after: Seq, limit: usize) -> Vec<Seq> {
    let page = store.read(session_id(), after, ReadLimit::frames(limit)).await.unwrap().unwrap();
    page.frames.iter().map(|frame| frame.seq).collect()
}

/// What the frames of a session weigh.
async fn weight(store: &MemoryEventStore, session_id: SessionId) -> u64 {
    let page = store.read(session_id, 0, ReadLimit::frames(usize::MAX)).await.unwrap().unwrap();
    page.frames.iter().map(|frame| frame.line.len() as u64).sum()
}

#[tokio::test]
async fn the_oldest_events_are_pruned_and_the_newest_stay() {
    let line = crate::wire::encode_event(&pinned(1, "0123456789")).unwrap().len() as u64;
    let (store, held) = store(3 * line);
    let lease = filled(&store, 5).await;
    assert_eq!(store.stage(&lease, &[pinned(6, "x"), pinned(8, "x")]).unwrap_err(), StoreError::OutOfOrder);
    assert_eq!(held.bytes(), 3 * line);
    assert_eq!(read(&store, 0, 9).await, [3, 4, 5]);
    assert_eq!(read(&store, 1, 1).await, [3]);
    assert_eq!(read(&store, 2, 9).await, [3, 4, 5]);
    drop(store.stage(&lease, &[pinned(6, &"long ".repeat(1000))]).unwrap());
    assert_eq!(read(&store, 0, 9).await, [6]);
    assert_eq!(held.bytes(), weight(&store, session_id()).await);
}

#[tokio::test]
async fn a_fork_is_counted_as_a_session_of_its_own() {
    let (store, held) = store(u64::MAX);
    filled(&store, 4).await;
    store.fork(session_id(), 2, &[of(CHILD, 3)]).await.unwrap();
    assert_eq!(held.bytes(), weight(&store, session_id()).await + weight(&store, CHILD).await);
    for (at, child) in [(5, SessionId::from_uuid(uuid::Uuid::nil())), (1, CHILD)] {
        assert!(matches!(store.fork(session_id(), at, &[of(child, at + 1)]).await, Err(StoreError::Failed(_))));
    }
    store.delete(session_id()).await.unwrap();
    assert_eq!(held.bytes(), weight(&store, CHILD).await);
    for _ in 0..2 {
        store.delete(CHILD).await.unwrap();
        assert_eq!(held.bytes(), 0);
    }
}

#[tokio::test]
async fn a_blob_is_named_by_its_content_and_counted_once() {
    let held = Arc::<MemoryUse>::default();
    let store = MemoryBlobStore::new(held.clone());
    let mut named = Vec::new();
    for pieces in [&["hel", "lo"][..], &["hello"], &[]] {
        let mut writer = store.writer(session_id());
        for piece in pieces {
            writer.write(piece.as_bytes()).await.unwrap();
        }
        named.push(writer.finish().await.unwrap());
        assert_eq!(held.bytes(), 5);
    }
    // The hashes are those of SHA-256's own tools.
    let hello = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    let nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert_eq!(named, [(hello.to_owned(), 5), (hello.to_owned(), 5), (nothing.to_owned(), 0)]);
    for (offset, limit, piece) in [(0, 9, "hello"), (1, 3, "ell"), (4, 9, "o"), (5, 9, ""), (u64::MAX, usize::MAX, "")]
    {
        let read = store.read(session_id(), hello, offset, limit).await.unwrap();
        assert_eq!(read.as_deref(), Some(piece.as_bytes()));
    }
    assert!(store.read(CHILD, hello, 0, 9).await.unwrap().is_none());
    assert!(store.read(session_id(), "none", 0, 9).await.unwrap().is_none());
    drop(store.writer(session_id()));
    store.forget(session_id()).await;
    assert!(store.read(session_id(), hello, 0, 9).await.unwrap().is_none());
    assert_eq!(held.bytes(), 0);
}

/// The texts of the specification, to the letter.
#[test]
fn the_errors_of_the_session_store_say_what_the_specification_does() {
    let id: SessionId = "01900000-0000-7000-8000-000000000001".parse().unwrap();
    let shrunk = SessionStoreError::MonotonicityViolation { id, prev_len: 4, new_len: 2 };
    let json = serde_json::from_str::<u8>("x").unwrap_err();
    for (error, text) in [
        (SessionStoreError::from(std::io::Error::other("no disk")), "IO error: no disk"),
        (SessionStoreError::from(json), "Serialization error: expected value at line 1 column 1"),
        (SessionStoreError::NotFound(id), "Session not found: 01900000-0000-7000-8000-000000000001"),
        (SessionStoreError::Corrupted(id), "Session corrupted: 01900000-0000-7000-8000-000000000001"),
        (
            shrunk,
            "session 01900000-0000-7000-8000-000000000001 save rejected: new message count 2 is shorter than \
             previously persisted 4 — shrink operations must go through Session::fork_at (F1 closure, wave-c C-H1)",
        ),
        (SessionStoreError::Internal("why".to_owned()), "Internal error: why"),
    ] {
        assert_eq!(error.to_string(), text);
    }
}
