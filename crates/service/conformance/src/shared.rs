//! Two handles of one store: what one does counts at the other. Handles of two nodes must pass, and two of one process.
//!
//! In a store that only one process can open, a lease is always granted, its engine creates one session per key, and no
//! other node changes anything: the promises about nodes are checked only if the handles have names.

use std::collections::BTreeSet;

use async_trait::async_trait;
use futures::future::BoxFuture;
use meerkat_service::{
    Seq,
    clock::Timestamp,
    service::{Parent, SessionQuery, SessionState, SessionSummary},
    session::event::Key,
    store::{
        Creation, Fate, IndexedKey, Lease, Letter, ReadLimit, Registration, SessionIndex, StoreError, Stores,
        UPLOADS_MAX,
    },
};
use uuid::Uuid;

use crate::{Broken, encoded, expect, id, record, said, time};

/// Makes the stores under test.
#[async_trait]
pub trait Harness: Send + Sync {
    /// Opens an empty store twice.
    async fn peers(&self) -> [Stores; 2];
}

type Check = fn([Stores; 2]) -> BoxFuture<'static, Result<(), String>>;

macro_rules! promises {
    ($( $(#[$doc:meta])* $name:ident; )*) => {
        /// Names of all promises.
        pub const PROMISES: &[&str] = &[$( stringify!($name), )*];

        const CHECKS: &[Check] = &[$( |peers| Box::pin($name(peers)), )*];
    };
}

promises! {
    a_session_that_works_stays_and_an_idle_one_moves;
    a_moved_lease_fences_the_one_before;
    a_follower_sees_what_the_other_handle_does;
    a_key_has_one_session;
    pruning_waits_for_readers_of_either_handle;
    a_blob_is_one_for_both;
    what_is_kept_beside_the_same_bytes_is_kept_once;
    an_upload_is_one_for_both_and_waits_to_be_kept;
    uploads_of_a_session_are_bounded;
    lists_keys_and_checkpoints_are_one_for_both;
    a_list_is_what_was_put;
    keys_and_checkpoints_are_scoped_and_go_with_their_session;
    a_letter_is_taken_once_and_answered;
}

/// Checks every promise on fresh stores. Returns the broken ones; none if all are kept.
pub async fn check(harness: &dyn Harness) -> Vec<Broken> {
    let mut broken = Vec::new();
    for (&promise, check) in PROMISES.iter().zip(CHECKS) {
        if let Err(why) = check(harness.peers().await).await {
            broken.push(Broken { promise, why });
        }
    }
    broken
}

/// Row of session `n` in lists.
fn row(n: u8, last_seq: Seq, state: SessionState) -> SessionSummary {
    SessionSummary {
        session_id: id(n),
        title: None,
        labels: Default::default(),
        model: "scripted".to_owned(),
        state,
        archived: false,
        created_at: time(u64::from(n)),
        updated_at: time(u64::from(n) + last_seq * 60),
        turn_count: 0,
        message_count: last_seq,
        last_seq,
        usage: Default::default(),
        cost: None,
        forked_from: None,
        last_error: None,
        parent: None,
    }
}

fn are_nodes([one, other]: &[Stores; 2]) -> bool {
    one.events.node().is_some() && other.events.node().is_some()
}

/// Appends a record of session `n` with its row, and waits for it.
async fn append(stores: &Stores, lease: &Lease, n: u8, seq: Seq, state: SessionState) -> Result<Seq, StoreError> {
    stores.events.stage_listed(lease, &[record(n, seq)], &row(n, seq, state))?.durable().await
}

/// Leases session `n` and appends its records up to `last`.
async fn fill(stores: &Stores, n: u8, last: Seq, state: SessionState) -> Result<Lease, String> {
    let lease = said(stores.events.lease(id(n)).await, "lease")?;
    for seq in lease.tail + 1..=last {
        said(append(stores, &lease, n, seq, state).await, "append")?;
    }
    Ok(lease)
}

async fn holds(stores: &Stores, n: u8, last: Seq) -> Result<(), String> {
    let page = said(stores.events.read(id(n), 0, ReadLimit::frames(100)).await, "read")?;
    let found = page.map(|page| page.frames.into_iter().map(|frame| (frame.seq, frame.line.to_vec())).collect());
    expect("the session's frames", found, Some(encoded((1..=last).map(|seq| record(n, seq)))?))
}

async fn a_session_that_works_stays_and_an_idle_one_moves([one, other]: [Stores; 2]) -> Result<(), String> {
    let peers = [one, other];
    let [one, other] = &peers;
    let lease = fill(one, 1, 2, SessionState::Running).await?;
    if are_nodes(&peers) {
        let holder = said(other.events.holder(id(1)).await, "holder")?;
        expect("the holder", holder.map(|holder| holder.node).as_deref(), one.events.node())?;
        match other.events.lease(id(1)).await {
            Err(StoreError::HeldBy { session_id, .. }) if session_id == id(1) => {}
            granted => return Err(format!("the lease of a session that works was answered with {granted:?}")),
        }
    }
    said(append(one, &lease, 1, 3, SessionState::Idle).await, "append")?;
    let holder = said(other.events.holder(id(1)).await, "holder")?;
    expect("the holder of an idle session", holder.map(|holder| holder.node), None)?;
    let moved = said(other.events.lease(id(1)).await, "the lease of an idle session")?;
    expect("the tail of a moved lease", moved.tail, 3)?;
    let held = (said(one.events.holds(id(1)).await, "holds")?, said(other.events.holds(id(1)).await, "holds")?);
    expect("who holds the lease", held, (!are_nodes(&peers), true))
}

async fn a_moved_lease_fences_the_one_before([one, other]: [Stores; 2]) -> Result<(), String> {
    let first = fill(&one, 1, 2, SessionState::Idle).await?;
    let second = said(other.events.lease(id(1)).await, "lease")?;
    expect("a newer lease has a higher epoch", second.epoch > first.epoch, true)?;
    expect(
        "what the former owner stages",
        append(&one, &first, 1, 3, SessionState::Idle).await,
        Err(StoreError::Fenced),
    )?;
    said(one.events.release(first).await, "release")?;
    said(append(&other, &second, 1, 3, SessionState::Running).await, "append")?;
    holds(&one, 1, 3).await?;
    holds(&other, 1, 3).await
}

async fn a_follower_sees_what_the_other_handle_does([one, other]: [Stores; 2]) -> Result<(), String> {
    // Followed where the session was, where it is, and where it never was.
    fill(&one, 1, 1, SessionState::Idle).await?;
    let mut watches = Vec::new();
    for stores in [&one, &other] {
        watches.push(said(stores.events.watch(id(1)).await, "watch")?.ok_or("a session has no watch")?);
    }
    fill(&other, 1, 4, SessionState::Idle).await?;
    for watch in &mut watches {
        said(watch.wait_for(|seq| *seq >= 4).await.map(drop), "a watch follows")?;
    }
    holds(&one, 1, 4).await?;
    said(other.events.delete(id(1)).await, "delete")?;
    for watch in &mut watches {
        // It ends when the deletion is seen.
        while watch.changed().await.is_ok() {}
    }
    expect("a deleted session", said(one.events.tail(id(1)).await, "tail")?, None)
}

async fn a_key_has_one_session(peers: [Stores; 2]) -> Result<(), String> {
    if !are_nodes(&peers) {
        return Ok(());
    }
    let [one, other] = &peers;
    let key = |n: u8| IndexedKey {
        scope: None,
        key: Key { key: "k".to_owned(), request: "r".to_owned() },
        session_id: id(n),
        turn: None,
        time: time(u64::from(n)),
    };
    let create = async |stores: &Stores, n: u8| {
        let (first, row) = ([record(n, 1)], row(n, 1, SessionState::Idle));
        said(stores.events.create(&first, &row, Some(&key(n))).await, "create")
    };
    let (first, second) = futures::join!(create(one, 1), create(other, 2));
    let made = match (first?, second?) {
        (Creation::Made(lease), Creation::Exists(known)) | (Creation::Exists(known), Creation::Made(lease)) => {
            expect("the session of the key", known.session_id, lease.session_id)?;
            lease.session_id
        }
        both => return Err(format!("two nodes created {both:?}")),
    };
    expect("the sessions", said(other.events.sessions(None, 9).await, "sessions")?, vec![made])?;
    // A deleted session frees its key.
    said(one.events.delete(made).await, "delete")?;
    expect("a freed key", matches!(create(other, 3).await?, Creation::Made(_)), true)
}

async fn pruning_waits_for_readers_of_either_handle([one, other]: [Stores; 2]) -> Result<(), String> {
    let Some(pruner) = &one.pruner else { return Ok(()) };
    fill(&one, 1, 7, SessionState::Idle).await?;
    let version = async |stores: &Stores| -> Result<u64, String> {
        let page = said(stores.events.read(id(1), 0, ReadLimit::frames(1)).await, "read")?;
        page.map(|page| page.version).ok_or_else(|| "there is no session".to_owned())
    };
    let before = version(&other).await?;
    let registration = Registration { reader: "r".to_owned(), created_at: time(0) };
    said(other.readers.register(registration.clone()).await, "register")?;
    expect("the readers", said(one.readers.readers().await, "readers")?, vec![registration])?;
    let keep = BTreeSet::from([1]);
    let prune = async || said(pruner.prune(id(1), 7, &keep, time(10_000)).await, "prune");
    expect("records that a reader has yet to read", prune().await?, 0)?;
    expect("the version of a whole journal", version(&other).await?, before)?;
    said(other.index.put_checkpoint("r", id(1), 4).await, "put_checkpoint")?;
    let dropped = prune().await?;
    expect("no more is dropped than the reader is done with", dropped <= 3, true)?;
    // A store may drop only whole parts.
    expect("the version grows with what is dropped", version(&other).await? > before, dropped > 0)?;
    said(other.readers.unregister("r").await, "unregister")?;
    expect("the readers", said(one.readers.readers().await, "readers")?, Vec::new())
}

async fn a_blob_is_one_for_both([one, other]: [Stores; 2]) -> Result<(), String> {
    fill(&one, 1, 1, SessionState::Idle).await?;
    let mut writer = one.blobs.writer(id(1));
    said(writer.write(b"a body").await, "write")?;
    let (name, _) = said(writer.finish().await, "finish")?;
    let read = said(other.blobs.read(id(1), &name, 2, 9).await, "read a blob")?;
    expect("a blob", read.as_deref(), Some(&b"body"[..]))?;
    let names = BTreeSet::from([name.clone()]);
    expect("the blobs", said(other.blobs.list(id(1)).await, "list blobs")?, names.clone())?;
    said(other.blobs.remove(id(1), &names).await, "remove a blob")?;
    expect("a removed blob", said(one.blobs.read(id(1), &name, 0, 9).await, "read a blob")?, None)
}

async fn what_is_kept_beside_the_same_bytes_is_kept_once([one, other]: [Stores; 2]) -> Result<(), String> {
    fill(&one, 1, 1, SessionState::Idle).await?;
    let finish = async || {
        let mut writer = other.blobs.writer(id(1));
        writer.write(b"a body").await?;
        writer.finish().await
    };
    // Beside a second upload, and beside a blob that is written.
    for round in 0..8 {
        let name = said(upload(&one, b"a body", 10).await, "upload")?;
        let keep = one.blobs.keep(id(1), &name, fresh(10));
        let kept = if round % 2 == 0 {
            let (kept, uploaded) = futures::join!(keep, upload(&other, b"a body", 20));
            said(uploaded, "upload")?;
            kept
        } else {
            let (kept, finished) = futures::join!(keep, finish());
            said(finished, "finish")?;
            kept
        };
        expect("what is kept", said(kept, "keep")?, true)?;
        let read = said(other.blobs.read(id(1), &name, 0, 9).await, "read a blob")?;
        expect("a blob", read.as_deref(), Some(&b"a body"[..]))?;
        said(one.blobs.remove(id(1), &BTreeSet::from([name])).await, "remove a blob")?;
        said(one.blobs.expire(id(1), fresh(30)).await, "expire")?;
    }
    Ok(())
}

/// A time of an upload: in years to come, because a store that has just started deletes uploads that are a day old.
fn fresh(n: u64) -> Timestamp {
    time(50 * 365 * 86_400 + n)
}

/// Uploads a body to session 1.
async fn upload(stores: &Stores, body: &[u8], at: u64) -> Result<String, StoreError> {
    let mut writer = stores.blobs.writer(id(1));
    writer.write(body).await?;
    Ok(writer.upload(fresh(at)).await?.0)
}

async fn an_upload_is_one_for_both_and_waits_to_be_kept([one, other]: [Stores; 2]) -> Result<(), String> {
    fill(&one, 1, 1, SessionState::Idle).await?;
    let name = said(upload(&one, b"a body", 10).await, "upload")?;
    expect("the same upload", said(upload(&other, b"a body", 20).await, "upload")?, name.clone())?;
    expect("a blob", said(one.blobs.read(id(1), &name, 0, 9).await, "read a blob")?, None)?;
    expect("the blobs", said(one.blobs.list(id(1)).await, "list blobs")?, BTreeSet::new())?;
    // The later time counts.
    said(one.blobs.expire(id(1), fresh(20)).await, "expire")?;
    let read = said(other.blobs.read_upload(id(1), &name, fresh(20), 2, 9).await, "read an upload")?;
    expect("an upload", read.as_deref(), Some(&b"body"[..]))?;
    let read = said(other.blobs.read_upload(id(1), &name, fresh(21), 2, 9).await, "read an upload")?;
    expect("an upload that is too old", read, None)?;
    expect("the lengths", said(one.blobs.uploads(id(1)).await, "list uploads")?, vec![6])?;
    let too_old = said(one.blobs.keep(id(1), &name, fresh(21)).await, "keep")?;
    expect("what is too old to be kept", too_old, false)?;
    let kept = async |stores: &Stores| said(stores.blobs.keep(id(1), &name, fresh(20)).await, "keep");
    expect("what is kept", kept(&other).await?, true)?;
    expect("what is kept twice", kept(&one).await?, true)?;
    expect("an upload", said(one.blobs.read_upload(id(1), &name, fresh(0), 0, 9).await, "read an upload")?, None)?;
    expect("the blobs", said(one.blobs.list(id(1)).await, "list blobs")?, BTreeSet::from([name.clone()]))?;
    // A blob that is uploaded, too, waits beside it.
    said(upload(&other, b"a body", 30).await, "upload")?;
    said(one.blobs.remove(id(1), &BTreeSet::from([name.clone()])).await, "remove a blob")?;
    expect("what is kept again", kept(&one).await?, true)?;
    said(upload(&other, b"a body", 30).await, "upload")?;
    expect("what is there", kept(&one).await?, true)?;
    let read = said(other.blobs.read(id(1), &name, 2, 9).await, "read a blob")?;
    expect("a blob", read.as_deref(), Some(&b"body"[..]))?;
    let late = said(upload(&one, b"late", 40).await, "upload")?;
    said(other.blobs.expire(id(1), fresh(41)).await, "expire")?;
    expect("an old upload", said(one.blobs.read_upload(id(1), &late, fresh(0), 0, 9).await, "read an upload")?, None)?;
    expect("an old upload", said(one.blobs.keep(id(1), &late, fresh(0)).await, "keep")?, false)?;
    expect("the blobs", said(one.blobs.list(id(1)).await, "list blobs")?, BTreeSet::from([name]))
}

async fn uploads_of_a_session_are_bounded([one, other]: [Stores; 2]) -> Result<(), String> {
    fill(&one, 1, 1, SessionState::Idle).await?;
    let body = |at: usize| at.to_string().into_bytes();
    for at in 1..UPLOADS_MAX {
        said(upload(&one, &body(at), 10).await, "upload")?;
    }
    // Of two at once one is too many.
    let [first, second] = [body(100), body(200)];
    let both = futures::join!(upload(&one, &first, 10), upload(&other, &second, 10));
    let (held, limit) = (UPLOADS_MAX as u64, UPLOADS_MAX as u64);
    let full = Err(StoreError::UploadsFull { what: "unused uploads", held, limit });
    let (taken, refused) = if both.0.is_ok() { both } else { (both.1, both.0) };
    let taken = said(taken, "the last upload")?;
    expect("one upload too many", refused, full.clone())?;
    // One that is there already is none more, and one that is kept makes room.
    said(upload(&other, &body(1), 10).await, "the same upload")?;
    expect("what is kept", said(one.blobs.keep(id(1), &taken, fresh(0)).await, "keep")?, true)?;
    said(upload(&one, &body(300), 10).await, "upload")?;
    expect("one upload too many", upload(&one, &body(400), 10).await, full)
}

async fn lists_keys_and_checkpoints_are_one_for_both(peers: [Stores; 2]) -> Result<(), String> {
    let [one, other] = &peers;
    let seen = said(other.index.changes(None).await, "changes")?.last().map_or(0, |change| change.place);
    fill(one, 1, 2, SessionState::Idle).await?;
    said(one.index.put(row(1, 2, SessionState::Idle)).await, "put")?;
    let page = said(other.index.page(SessionQuery::default()).await, "page")?;
    expect("the list", page.items, vec![row(1, 2, SessionState::Idle)])?;
    for (stores, seq, due) in [(one, 2, 2), (other, 1, 2), (other, 5, 5), (one, 3, 5)] {
        let seq = said(stores.index.put_checkpoint("r", id(1), seq).await, "put_checkpoint")?;
        expect("a checkpoint only grows", seq, due)?;
    }
    expect("a checkpoint", said(one.index.checkpoint("r", id(1)).await, "checkpoint")?, 5)?;
    let key = key(Some(1), "k", 1);
    said(one.index.put_key(&key).await, "put_key")?;
    expect("a key", said(other.index.key(Some(id(1)), "k").await, "key")?, Some(key))?;
    let heard = async || -> Result<Option<bool>, String> {
        let changes = said(other.index.changes(Some(seen)).await, "changes")?;
        let last = changes.into_iter().rfind(|change| change.session_id == id(1));
        Ok(last.map(|change| change.summary.is_some()))
    };
    expect("another node's change", heard().await?, are_nodes(&peers).then_some(true))?;
    said(one.events.delete(id(1)).await, "delete")?;
    said(one.index.remove(id(1)).await, "remove")?;
    expect("another node's deletion", heard().await?, are_nodes(&peers).then_some(false))?;
    let page = said(other.index.page(SessionQuery::default()).await, "page")?;
    expect("the list", page.items, Vec::new())
}

/// Row of session `n` after so many changes, with something to filter by.
fn changed(n: u8, version: Seq) -> SessionSummary {
    let labels = [("third".to_owned(), (version % 3).to_string())].into();
    let parent = (n % 4 == 3).then(|| Parent { session_id: id(n), turn: 0, call_id: "call_4_0".to_owned() });
    SessionSummary { labels, archived: version.is_multiple_of(4), parent, ..row(n, version, SessionState::Idle) }
}

/// Every page of a query, one after the other.
async fn pages(index: &dyn SessionIndex, mut query: SessionQuery) -> Result<Vec<SessionSummary>, String> {
    let (mut all, limit) = (Vec::new(), query.limit);
    loop {
        let page = said(index.page(query.clone()).await, "page")?;
        let is_full = limit.is_none_or(|limit| page.items.len() == limit);
        expect("a page with others behind it is full", is_full || page.next_cursor.is_none(), true)?;
        all.extend(page.items);
        match page.next_cursor {
            Some(cursor) => query.cursor = Some(cursor),
            None => return Ok(all),
        }
    }
}

/// Every session by its id, in pages.
async fn by_id(index: &dyn SessionIndex, limit: usize) -> Result<Vec<SessionSummary>, String> {
    let mut all: Vec<SessionSummary> = Vec::new();
    loop {
        let before = all.last().map(|last| last.session_id);
        let page = said(index.sessions(before, limit).await, "sessions")?;
        if page.is_empty() {
            return Ok(all);
        }
        all.extend(page);
    }
}

/// Whatever is asked for, an index lists these sessions, whose last change comes last.
async fn lists(index: &dyn SessionIndex, sessions: &[(u8, Seq)], limit: usize) -> Result<(), String> {
    type Wanted = fn(&(u8, Seq)) -> bool;
    let all = SessionQuery { limit: Some(limit), children: true, ..SessionQuery::default() };
    let archived = |archived| SessionQuery { archived: Some(archived), ..all.clone() };
    for (query, wanted) in [
        (all.clone(), (|_| true) as Wanted),
        (SessionQuery { created_after: Some(time(6)), ..all.clone() }, |(n, _)| *n > 6),
        (SessionQuery { updated_after: Some(time(3 * 60 + 30)), ..all.clone() }, |(_, version)| *version > 3),
        (SessionQuery { labels: [("third".to_owned(), "1".to_owned())].into(), ..all.clone() }, |(_, of)| of % 3 == 1),
        (SessionQuery { children: false, ..all.clone() }, |(n, _)| n % 4 != 3),
        (archived(true), |(_, version)| version.is_multiple_of(4)),
        (archived(false), |(_, version)| !version.is_multiple_of(4)),
    ] {
        let due = sessions.iter().rev().filter(|session| wanted(session)).map(|&(n, version)| changed(n, version));
        expect("a list", pages(index, query).await?, due.collect())?;
    }
    let mut due = sessions.to_vec();
    due.sort_unstable_by(|one, other| other.cmp(one));
    let due = due.into_iter().map(|(n, version)| changed(n, version));
    expect("the sessions by their ids", by_id(index, limit).await?, due.collect())
}

/// Sessions are put, found and removed at either handle. One that was removed does not come back.
async fn a_list_is_what_was_put(peers: [Stores; 2]) -> Result<(), String> {
    // There is nothing that was stored before.
    if let Some(loss) = peers[0].index.needs_rebuild().await {
        said(peers[0].index.rebuilt(loss).await, "rebuilt")?;
    }
    let mut state = 7_u64;
    let mut below = |count: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % count
    };
    let (mut sessions, mut removed): (Vec<(u8, Seq)>, BTreeSet<u8>) = Default::default();
    for step in 0..90 {
        let (n, index) = (u8::try_from(below(12)).unwrap_or(0), &peers[step % 2].index);
        let listed = sessions.iter().find(|(listed, _)| *listed == n).map(|(_, version)| *version);
        let version = listed.unwrap_or(2) + below(2);
        match below(12) {
            _ if removed.contains(&n) => {}
            0 => said(index.flush().await, "flush")?,
            1 if listed.is_some() => {
                said(peers[0].events.delete(id(n)).await, "delete")?;
                said(index.remove(id(n)).await, "remove")?;
                sessions.retain(|(listed, _)| *listed != n);
                removed.insert(n);
            }
            change => {
                if listed.is_none() {
                    fill(&peers[0], n, 1, SessionState::Running).await?;
                }
                match change < 5 {
                    true => said(index.put_found(changed(n, version)).await, "put_found")?,
                    false => said(index.put(changed(n, version)).await, "put")?,
                }
                // One that is found as it is listed keeps its place.
                if change >= 5 || listed != Some(version) {
                    sessions.retain(|(listed, _)| *listed != n);
                    sessions.push((n, version));
                }
            }
        }
        if step % 3 == 0 {
            lists(&*peers[step / 3 % 2].index, &sessions, 1 + step % 4).await?;
        }
    }
    expect("sessions that were removed", removed.is_empty(), false)?;
    // A change moves a session to the front, and off the pages behind a cursor.
    let [one, other] = peers.map(|stores| stores.index);
    let query = SessionQuery { limit: Some(1), children: true, ..SessionQuery::default() };
    let first = said(one.page(query.clone()).await, "page")?;
    let (n, version) = sessions.remove(sessions.len() - 2);
    said(other.put(changed(n, version)).await, "put")?;
    sessions.pop();
    let due = sessions.iter().rev().map(|&(n, version)| changed(n, version)).collect();
    let behind = pages(&*one, SessionQuery { cursor: first.next_cursor, ..query }).await?;
    expect("the pages behind a cursor", behind, due)
}

/// A key of turn 3, or of a session, that was used so many seconds after the first.
fn key(scope: Option<u8>, name: &str, seconds: u64) -> IndexedKey {
    let key = Key { key: name.to_owned(), request: "r".to_owned() };
    IndexedKey { scope: scope.map(id), key, session_id: id(9), turn: Some(3), time: time(seconds) }
}

async fn keys_and_checkpoints_are_scoped_and_go_with_their_session([one, other]: [Stores; 2]) -> Result<(), String> {
    let (one, other) = (&*one.index, &*other.index);
    let holds = async |scope: Option<u8>, name: &str, due: Option<u64>| {
        let found = said(other.key(scope.map(id), name).await, "key")?;
        expect(&format!("the key {name:?} of {scope:?}"), found, due.map(|seconds| key(scope, name, seconds)))
    };
    for (scope, name, seconds) in [(None, "k", 0), (Some(1), "k", 1), (Some(1), "", 2), (Some(2), "k", 3)] {
        said(one.put_key(&key(scope, name, seconds)).await, "put_key")?;
        holds(scope, name, Some(seconds)).await?;
    }
    // An older one that comes in late changes nothing; a newer one does.
    for (seconds, due) in [(2, 3), (4, 4)] {
        said(one.put_key(&key(Some(2), "k", seconds)).await, "put_key")?;
        holds(Some(2), "k", Some(due)).await?;
    }
    holds(None, "other", None).await?;
    for (reader, n, seq, due) in [("r", 1, 7, 7), ("r", 2, 8, 8), ("r", 1, 3, 7), ("r-2", 2, 5, 5)] {
        expect("a checkpoint", said(one.put_checkpoint(reader, id(n), seq).await, "put_checkpoint")?, due)?;
        said(one.flush().await, "flush")?;
    }
    let are = async |reader: &str, due: [Seq; 3]| {
        let found = said(other.checkpoints(reader, &[id(2), id(3), id(1)]).await, "checkpoints")?;
        expect("the checkpoints of sessions 2, 3 and 1", found, due.to_vec())
    };
    are("r", [8, 0, 7]).await?;
    said(one.reset_checkpoint("r-2", id(2)).await, "reset_checkpoint")?;
    are("r-2", [0, 0, 0]).await?;
    said(one.put_checkpoint("r-2", id(2), 4).await, "put_checkpoint").map(drop)?;
    said(one.remove(id(1)).await, "remove")?;
    are("r", [8, 0, 0]).await?;
    said(one.forget_reader("r").await, "forget_reader")?;
    are("r", [0, 0, 0]).await?;
    are("r-2", [4, 0, 0]).await?;
    holds(Some(1), "k", None).await?;
    holds(Some(1), "", None).await?;
    holds(None, "k", Some(0)).await?;
    holds(Some(2), "k", Some(4)).await
}

async fn a_letter_is_taken_once_and_answered(peers: [Stores; 2]) -> Result<(), String> {
    let [one, other] = &peers;
    let (Some(here), Some(there), Some(node)) = (&one.inbox, &other.inbox, other.events.node()) else { return Ok(()) };
    let lease = fill(other, 1, 2, SessionState::Running).await?;
    let letter = Letter {
        node: node.to_owned(),
        session_id: id(1),
        operation: "pin".to_owned(),
        params: r#"{"text":"é"}"#.to_owned(),
    };
    let [letter_id, late, useless] = [1, 2, 3].map(Uuid::from_u128);
    said(here.leave(letter_id, &letter).await, "leave")?;
    said(here.leave(letter_id, &letter).await, "leave it again")?;
    expect("a new letter", said(here.fate(letter_id, false).await, "fate")?, Fate::Open)?;
    expect("letters for another node", said(here.take(&[]).await, "take")?, Vec::new())?;
    let taken = vec![(letter_id, letter.clone())];
    expect("the letters", said(there.take(&[]).await, "take")?, taken.clone())?;
    expect("letters of a taking that went lost", said(there.take(&[]).await, "take")?, taken)?;
    expect("letters at work", said(there.take(&[letter_id]).await, "take")?, Vec::new())?;
    // It is being answered, and cannot be taken back.
    expect("a letter that was taken", said(here.fate(letter_id, true).await, "fate")?, Fate::Open)?;
    said(there.answer(letter_id, "ok".to_owned()).await, "answer")?;
    expect("letters that were answered", said(there.take(&[]).await, "take")?, Vec::new())?;
    expect("the answer", said(here.fate(letter_id, false).await, "fate")?, Fate::Answered("ok".to_owned()))?;
    expect("a letter that is gone", said(here.fate(letter_id, false).await, "fate")?, Fate::Lost)?;
    said(here.leave(late, &letter).await, "leave")?;
    expect("a letter that waits too long", said(here.fate(late, true).await, "fate")?, Fate::Returned)?;
    expect("letters that were taken back", said(there.take(&[]).await, "take")?, Vec::new())?;
    said(here.leave(useless, &letter).await, "leave")?;
    said(append(other, &lease, 1, 3, SessionState::Idle).await, "append")?;
    expect("a letter about an idle session", said(here.fate(useless, false).await, "fate")?, Fate::Returned)
}
