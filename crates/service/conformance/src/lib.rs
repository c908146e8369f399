//! The suites that any store must pass, to run against your own: [`check`] names every promise that it breaks.
//!
//! An [`EventStore`] and a [`SessionStore`] are checked together, because a snapshot is nothing without its journal:
//! only sessions with records in that event store are saved. The suite asks through the two traits alone.

pub mod readers;
pub mod shared;

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use uuid::Uuid;

use meerkat_service::{
    Seq, Session, SessionId,
    clock::Timestamp,
    model::StopReason,
    options::Budgets,
    session::event::{AssistantMessage, Event, Record, SessionCreated, TurnCompleted, TurnStarted, TurnTotals},
    session::message::Block,
    store::{EventStore, Lease, ReadLimit, RecordSource, SessionFilter, SessionStore, SessionStoreError, StoreError},
    wire::encode_event,
};

/// Stores under test.
#[derive(Clone)]
pub struct Pair {
    /// Journals.
    pub events: Arc<dyn EventStore>,
    /// Snapshots of the sessions in them.
    pub snapshots: Arc<dyn SessionStore>,
}

/// Makes the stores under test.
#[async_trait]
pub trait Harness: Send + Sync {
    /// Makes empty stores.
    async fn fresh(&self) -> Pair;

    /// Reopens the stores after their process was killed. Stores in memory return the same pair.
    async fn restart(&self, pair: Pair) -> Pair;
}

/// Broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Name of the promise.
    pub promise: &'static str,
    /// Observation.
    pub why: String,
}

/// Lines, each with its seq.
type Lines = Vec<(Seq, Vec<u8>)>;

type Check = for<'a> fn(&'a dyn Harness, Pair) -> BoxFuture<'a, Result<(), String>>;

macro_rules! promises {
    ($( $(#[$doc:meta])* $name:ident; )*) => {
        /// Names of all promises.
        pub const PROMISES: &[&str] = &[$( stringify!($name), )*];

        const CHECKS: &[Check] = &[$( |harness, pair| Box::pin($name(harness, pair)), )*];
    };
}

promises! {
    frames_are_the_encoded_events;
    a_page_begins_behind_its_cursor;
    a_page_keeps_to_its_limit;
    a_gap_is_refused;
    a_batch_is_taken_whole_or_not;
    only_the_newest_lease_appends;
    what_is_durable_outlives_the_process;
    what_was_read_outlives_the_process;
    a_watch_follows_and_ends;
    a_fork_is_the_beginning_and_what_is_its_own;
    an_import_is_its_lines_to_the_letter;
    an_import_is_whole_or_not_there;
    what_is_deleted_stays_away;
    sessions_come_in_the_order_of_their_ids;
    a_snapshot_is_loaded_as_it_was_saved;
    what_was_said_never_shrinks;
    no_snapshot_goes_past_its_journal;
    a_list_keeps_to_its_filter;
    a_list_keeps_to_its_offset_and_limit;
    a_deleted_snapshot_is_gone;
    a_snapshot_never_speaks_for_its_session;
}

/// Checks every promise on fresh stores. Returns the broken ones; none if all are kept.
pub async fn check(harness: &dyn Harness) -> Vec<Broken> {
    let mut broken = Vec::new();
    for (&promise, check) in PROMISES.iter().zip(CHECKS) {
        if let Err(why) = check(harness, harness.fresh().await).await {
            broken.push(Broken { promise, why });
        }
    }
    broken
}

fn id(n: u8) -> SessionId {
    SessionId::from_uuid(Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0000 + u128::from(n)))
}

fn time(n: u64) -> Timestamp {
    Timestamp::from_millis(1_767_225_600_000 + i64::try_from(n).unwrap_or(0) * 1000)
}

/// A record of session `n`, made `n` seconds after the first one and changed a minute later with each event.
fn record(n: u8, seq: Seq) -> Record {
    let (model, budgets) = ("scripted".to_owned(), Budgets::default());
    let (turn, event) = match (seq, seq % 3) {
        (1, _) => {
            let system_prompt = Some("You are terse.".into());
            let created = SessionCreated { model, system_prompt, budgets, ..SessionCreated::default() };
            (None, Event::SessionCreated(created))
        }
        (_, 2) => {
            let prompt = Some(format!("say {seq}").into());
            let started = TurnStarted { prompt, model, budgets, ..TurnStarted::default() };
            (Some(seq), Event::TurnStarted(started))
        }
        (_, 0) => {
            let blocks = vec![Block::Text { text: format!("{seq} \"é\n").into() }];
            let (step, stop_reason, usage) = (0, StopReason::EndTurn, Default::default());
            (
                Some(seq - 1),
                Event::AssistantMessage(AssistantMessage {
                    step,
                    model,
                    blocks,
                    stop_reason,
                    usage,
                    cost: None,
                    tools: None,
                    context: None,
                }),
            )
        }
        _ => {
            let (stop_reason, totals) = (StopReason::EndTurn, TurnTotals::default());
            (Some(seq - 2), Event::TurnCompleted(TurnCompleted { stop_reason, totals }))
        }
    };
    let turn = turn.map(|first| u32::try_from((first - 2) / 3).unwrap_or(0));
    Record { session_id: id(n), seq, turn, time: time(u64::from(n) + (seq - 1) * 60), event }
}

fn said<T>(done: Result<T, impl std::fmt::Display>, what: &str) -> Result<T, String> {
    done.map_err(|error| format!("{what}: {error}"))
}

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, found: T, due: T) -> Result<(), String> {
    if found == due { Ok(()) } else { Err(format!("{what}: {found:?} in place of {due:?}")) }
}

/// Appends the records of session `n` up to `last` and waits for them.
async fn fill(pair: &Pair, n: u8, last: Seq) -> Result<Lease, String> {
    let lease = said(pair.events.lease(id(n)).await, "lease")?;
    for seq in lease.tail + 1..=last {
        let ticket = said(pair.events.stage(&lease, &[record(n, seq)]), "stage")?;
        expect("a ticket tells its last seq", said(ticket.durable().await, "durable")?, seq)?;
    }
    Ok(lease)
}

/// The frames of a session after `after`, as far as one page goes; `None` if there is no such session.
async fn frames(pair: &Pair, of: SessionId, after: Seq, limit: usize) -> Result<Option<Lines>, String> {
    let page = said(pair.events.read(of, after, ReadLimit::frames(limit)).await, "read")?;
    for frame in page.iter().flat_map(|page| &page.frames) {
        let at_hand = pair.events.at_hand(of, frame.seq).unwrap_or_else(|| frame.clone());
        expect("a frame at hand", &at_hand, frame)?;
    }
    Ok(page.map(|page| page.frames.into_iter().map(|frame| (frame.seq, frame.line.to_vec())).collect()))
}

fn encoded(records: impl IntoIterator<Item = Record>) -> Result<Lines, String> {
    let line = |record: Record| encode_event(&record).map(|line| (record.seq, line.to_vec()));
    said(records.into_iter().map(line).collect(), "encode")
}

async fn holds(pair: &Pair, n: u8, last: Seq) -> Result<(), String> {
    let due = encoded((1..=last).map(|seq| record(n, seq)))?;
    expect("the session's frames", frames(pair, id(n), 0, 100).await?, Some(due))
}

fn session(n: u8, last: Seq) -> Result<Session, String> {
    let mut session = said(Session::begin(&record(n, 1)), "begin")?;
    for seq in 2..=last {
        said(session.apply(&record(n, seq)), "apply")?;
    }
    Ok(session)
}

/// Session `n` with its records and its snapshot at `last`.
async fn saved(pair: &Pair, n: u8, last: Seq) -> Result<Session, String> {
    fill(pair, n, last).await?;
    let session = session(n, last)?;
    said(pair.snapshots.save(&session).await, "save")?;
    Ok(session)
}

async fn frames_are_the_encoded_events(_: &dyn Harness, pair: Pair) -> Result<(), String> {
    expect("a session that is not there", frames(&pair, id(1), 0, 9).await?, None)?;
    expect("the tail of a new session", said(pair.events.lease(id(1)).await, "lease")?.tail, 0)?;
    fill(&pair, 1, 7).await?;
    holds(&pair, 1, 7).await?;
    expect("the tail of a lease", said(pair.events.lease(id(1)).await, "lease")?.tail, 7)
}

async fn a_page_keeps_to_its_limit(_: &dyn Harness, pair: Pair) -> Result<(), String> {
    fill(&pair, 1, 5).await?;
    let lines = encoded((2..=5).map(|seq| record(1, seq)))?;
    let bytes = |count: usize| lines.iter().take(count).map(|(_, line)| line.len()).sum::<usize>();
    for (frames, bytes, due) in
        [(9, 0, 1), (9, bytes(2) - 1, 1), (9, bytes(2), 2), (9, usize::MAX, 4), (3, bytes(4), 3)]
    {
        let page = said(pair.events.read(id(1), 1, ReadLimit { frames, bytes, skips_damage: false }).await, "read")?;
        expect("the frames of a page", page.map(|page| page.frames.len()), Some(due))?;
    }
    Ok(())
}

async fn a_page_begins_behind_its_cursor(_: &dyn Harness, pair: Pair) -> Result<(), String> {
    fill(&pair, 1, 7).await?;
    for (after, limit, due) in [(0, 2, 1..=2), (2, 3, 3..=5), (5, 9, 6..=7), (6, 1, 7..=7)] {
        let due = encoded(due.map(|seq| record(1, seq)))?;
        expect(&format!("{limit} after {after}"), frames(&pair, id(1), after, limit).await?, Some(due))?;
    }
    expect("after the last", frames(&pair, id(1), 7, 9).await?, Some(Vec::new()))?;
    expect("far behind the last", frames(&pair, id(1), Seq::MAX, 9).await?, Some(Vec::new()))
}

async fn refuses(pair: &Pair, lease: &Lease, seqs: &[Seq], due: StoreError) -> Result<(), String> {
    let batch: Vec<Record> = seqs.iter().map(|&seq| record(1, seq)).collect();
    match pair.events.stage(lease, &batch) {
        Err(error) if error == due => Ok(()),
        other => Err(format!("a batch of {seqs:?} was answered with {:?}, not {due:?}", other.err())),
    }
}

async fn a_gap_is_refused(_: &dyn Harness, pair: Pair) -> Result<(), String> {
    let lease = fill(&pair, 1, 2).await?;
    for seqs in [&[4][..], &[2], &[1]] {
        refuses(&pair, &lease, seqs, StoreError::OutOfOrder).await?;
    }
    holds(&pair, 1, 2).await?;
    fill(&pair, 1, 3).await.map(drop)
}

async fn a_batch_is_taken_whole_or_not(_: &dyn Harness, pair: Pair) -> Result<(), String> {
    let lease = fill(&pair, 1, 2).await?;
    for seqs in [&[3, 5][..], &[3, 3], &[4, 3]] {
        refuses(&pair, &lease, seqs, StoreError::OutOfOrder).await?;
        holds(&pair, 1, 2).await?;
    }
    let ticket = said(pair.events.stage(&lease, &[record(1, 3), record(1, 4)]), "stage")?;
    expect("the last seq of a batch", said(ticket.durable().await, "durable")?, 4)?;
    holds(&pair, 1, 4).await
}

async fn only_the_newest_lease_appends(_: &dyn Harness, pair: Pair) -> Result<(), String> {
    let old = fill(&pair, 1, 2).await?;
    let new = said(pair.events.lease(id(1)).await, "lease")?;
    expect("a newer lease has a higher epoch", new.epoch > old.epoch, true)?;
    refuses(&pair, &old, &[3], StoreError::Fenced).await?;
    holds(&pair, 1, 2).await?;
    let ticket = said(pair.events.stage(&new, &[record(1, 3)]), "stage")?;
    said(ticket.durable().await, "durable").map(drop)
}

async fn what_is_durable_outlives_the_process(harness: &dyn Harness, pair: Pair) -> Result<(), String> {
    fill(&pair, 1, 5).await?;
    let pair = harness.restart(pair).await;
    for after in [0, 3, 5] {
        let lines: Arc<Mutex<Vec<Bytes>>> = Arc::default();
        let sink = lines.clone();
        let see = move |line: &Bytes| sink.lock().unwrap_or_else(PoisonError::into_inner).push(line.clone());
        if said(pair.events.scan(id(1), after, Box::new(see)).await, "scan")? {
            let due = encoded((after + 1..=5).map(|seq| record(1, seq)))?;
            let shown: Vec<Vec<u8>> =
                lines.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|line| line.to_vec()).collect();
            expect("what a scan shows", shown, due.into_iter().map(|(_, line)| line).collect())?;
        }
    }
    holds(&pair, 1, 5).await
}

async fn what_was_read_outlives_the_process(harness: &dyn Harness, pair: Pair) -> Result<(), String> {
    let lease = fill(&pair, 1, 2).await?;
    // Nobody waits for it.
    let ticket = said(pair.events.stage(&lease, &[record(1, 3)]), "stage")?;
    let read = frames(&pair, id(1), 0, 9).await?.map_or(0, |frames| frames.len());
    drop(ticket);
    let pair = harness.restart(pair).await;
    let after = frames(&pair, id(1), 0, 9).await?.map_or(0, |frames| frames.len());
    expect("what was read before is there", after >= read, true)
}

async fn a_watch_follows_and_ends(_: &dyn Harness, pair: Pair) -> Result<(), String> {
    expect("the watch of no session", said(pair.events.watch(id(1)).await, "watch")?.is_none(), true)?;
    fill(&pair, 1, 2).await?;
    let mut watch = said(pair.events.watch(id(1)).await, "watch")?.ok_or("a session has no watch")?;
    fill(&pair, 1, 4).await?;
    said(watch.wait_for(|seq| *seq >= 4).await.map(drop), "a watch follows")?;
    said(pair.events.delete(id(1)).await, "delete")?;
    // A dropped sender is noticed without waiting.
    expect("the watch of a deleted session has ended", watch.has_changed().is_err(), true)
}

async fn a_fork_is_the_beginning_and_what_is_its_own(harness: &dyn Harness, pair: Pair) -> Result<(), String> {
    let parent = fill(&pair, 1, 7).await?;
    let first = session(1, 4)?.fork_record(4, id(2), time(900));
    let own = [first, record(2, 6)];
    said(pair.events.fork(id(1), 4, &own).await, "fork")?;
    let due = encoded((1..=4).map(|seq| record(1, seq)).chain(own))?;
    expect("the fork's frames", frames(&pair, id(2), 0, 9).await?, Some(due.clone()))?;
    holds(&pair, 1, 7).await?;
    let ticket = said(pair.events.stage(&parent, &[record(1, 8)]), "the parent's lease")?;
    said(ticket.durable().await, "durable")?;
    said(pair.events.delete(id(1)).await, "delete")?;
    let pair = harness.restart(pair).await;
    expect("the fork of a deleted parent", frames(&pair, id(2), 0, 9).await?, Some(due))?;
    expect("the fork's tail", said(pair.events.lease(id(2)).await, "lease")?.tail, 6)
}

/// Records that come in the parts that they are given in.
struct Parts(std::vec::IntoIter<Vec<(Record, Bytes)>>);

#[async_trait]
impl RecordSource for Parts {
    async fn next(&mut self) -> Result<Vec<(Record, Bytes)>, StoreError> {
        Ok(self.0.next().unwrap_or_default())
    }
}

/// The records of session `n` with these seqs, two in a part. Their lines are not those that this version would write.
fn foreign(n: u8, seqs: &[Seq]) -> Result<(Parts, Lines), String> {
    let mut all = Vec::new();
    for (seq, line) in encoded(seqs.iter().map(|&seq| record(n, seq)))? {
        let more = [&line[..line.len() - 1], br#","more":1}"#].concat();
        all.push((record(n, seq), Bytes::from(more)));
    }
    let lines = all.iter().map(|(record, line)| (record.seq, line.to_vec())).collect();
    let parts: Vec<_> = all.chunks(2).map(<[_]>::to_vec).collect();
    Ok((Parts(parts.into_iter()), lines))
}

async fn an_import_is_its_lines_to_the_letter(harness: &dyn Harness, pair: Pair) -> Result<(), String> {
    // Journal compaction in the source of the records leaves gaps between seqs.
    let seqs: Vec<Seq> = vec![1, 2, 4, 5, 7];
    let (mut parts, due) = foreign(1, &seqs)?;
    said(pair.events.import(id(1), &mut parts).await, "import")?;
    expect("the frames", frames(&pair, id(1), 0, 9).await?, Some(due.clone()))?;
    let least = due.iter().map(|(_, line)| line.len() as u64).sum::<u64>();
    expect("the bytes that it takes", said(pair.events.bytes(id(1)).await, "bytes")? >= least, true)?;
    let pair = harness.restart(pair).await;
    expect("the frames after a restart", frames(&pair, id(1), 0, 9).await?, Some(due))?;
    expect("the sessions", said(pair.events.sessions(None, 9).await, "sessions")?, vec![id(1)])?;
    fill(&pair, 1, 8).await?;
    said(pair.events.delete(id(1)).await, "delete")?;
    expect("the bytes of no session", said(pair.events.bytes(id(1)).await, "bytes")?, 0)?;
    // It may come back, and what was known of the one before says nothing about it.
    let (mut parts, due) = foreign(1, &seqs)?;
    said(pair.events.import(id(1), &mut parts).await, "a second import")?;
    let pair = harness.restart(pair).await;
    expect("the frames of the second one", frames(&pair, id(1), 0, 9).await?, Some(due))?;
    fill(&pair, 1, 8).await.map(drop)
}

async fn an_import_is_whole_or_not_there(harness: &dyn Harness, pair: Pair) -> Result<(), String> {
    fill(&pair, 1, 2).await?;
    let refused = |done: Result<(), StoreError>, what: &str| expect(what, done.is_err(), true);
    refused(pair.events.import(id(1), &mut foreign(1, &[1, 2, 3])?.0).await, "an import of what is there")?;
    for seqs in [&[1, 3, 2][..], &[3, 2], &[1, 1], &[]] {
        refused(pair.events.import(id(2), &mut foreign(2, seqs)?.0).await, &format!("an import of {seqs:?}"))?;
    }
    let pair = harness.restart(pair).await;
    holds(&pair, 1, 2).await?;
    expect("what was refused", frames(&pair, id(2), 0, 9).await?, None)?;
    expect("the sessions", said(pair.events.sessions(None, 9).await, "sessions")?, vec![id(1)])?;
    said(pair.events.import(id(2), &mut foreign(2, &[1])?.0).await, "an import after those that failed")?;
    // The first events of a damaged session may be lost.
    said(pair.events.import(id(3), &mut foreign(3, &[2, 3])?.0).await, "an import without the first event")?;
    let pair = harness.restart(pair).await;
    let left = frames(&pair, id(3), 0, 9).await?.map(|frames| frames.iter().map(|(seq, _)| *seq).collect::<Vec<_>>());
    expect("what is left of a damaged session", left, Some(vec![2, 3]))
}

async fn what_is_deleted_stays_away(harness: &dyn Harness, pair: Pair) -> Result<(), String> {
    let lease = fill(&pair, 1, 3).await?;
    fill(&pair, 2, 1).await?;
    said(pair.events.delete(id(1)).await, "delete")?;
    refuses(&pair, &lease, &[4], StoreError::Fenced).await?;
    expect("a deleted session", frames(&pair, id(1), 0, 9).await?, None)?;
    let pair = harness.restart(pair).await;
    expect("a deleted session after a restart", frames(&pair, id(1), 0, 9).await?, None)?;
    expect("the sessions that are left", said(pair.events.sessions(None, 9).await, "sessions")?, vec![id(2)])?;
    said(pair.events.delete(id(1)).await.or_else(gone), "a second delete")
}

/// A store may say that there was nothing to delete.
fn gone(error: StoreError) -> Result<(), StoreError> {
    if matches!(error, StoreError::NotFound(_)) { Ok(()) } else { Err(error) }
}

async fn sessions_come_in_the_order_of_their_ids(_: &dyn Harness, pair: Pair) -> Result<(), String> {
    for n in [3, 1, 4, 2] {
        fill(&pair, n, 1).await?;
    }
    for (after, limit, due) in [(None, 9, 1..=4), (None, 2, 1..=2), (Some(id(2)), 9, 3..=4), (Some(id(2)), 1, 3..=3)] {
        let found = said(pair.events.sessions(after, limit).await, "sessions")?;
        expect(&format!("{limit} after {after:?}"), found, due.map(id).collect())?;
    }
    Ok(())
}

async fn a_snapshot_is_loaded_as_it_was_saved(harness: &dyn Harness, pair: Pair) -> Result<(), String> {
    expect("no snapshot", said(pair.snapshots.load(&id(1)).await, "load")?.is_none(), true)?;
    for last in [1, 2, 3, 4, 7] {
        let due = saved(&pair, 1, last).await?;
        // The journal goes on: a snapshot stays at its own seq.
        fill(&pair, 1, last + 1).await?;
        let loaded = said(pair.snapshots.load(&id(1)).await, "load")?;
        let outline = said(pair.snapshots.outline(&id(1)).await, "outline")?;
        expect("its outline", outline.is_none_or(|outline| outline.summary() == due.summary()), true)?;
        expect(&format!("the snapshot at {last}"), loaded == Some(due), true)?;
        expect("it is there", said(pair.snapshots.exists(&id(1)).await, "exists")?, true)?;
    }
    // A snapshot may be lost with the process; it is never another one.
    let pair = harness.restart(pair).await;
    let loaded = said(pair.snapshots.load(&id(1)).await, "load")?;
    expect("the snapshot after a restart", loaded.is_none_or(|loaded| session(1, loaded.last_seq) == Ok(loaded)), true)
}

async fn what_was_said_never_shrinks(_: &dyn Harness, pair: Pair) -> Result<(), String> {
    let due = saved(&pair, 1, 7).await?;
    said(pair.snapshots.save(&due).await, "the same again")?;
    match pair.snapshots.save(&session(1, 4)?).await {
        Err(SessionStoreError::MonotonicityViolation { prev_len: 4, new_len: 2, .. }) => {}
        other => return Err(format!("fewer messages were answered with {:?}", other.err())),
    }
    expect("what was saved stays", said(pair.snapshots.load(&id(1)).await, "load")? == Some(due), true)
}

async fn no_snapshot_goes_past_its_journal(_: &dyn Harness, pair: Pair) -> Result<(), String> {
    saved(&pair, 1, 7).await?;
    said(pair.events.delete(id(1)).await, "delete")?;
    // A store may call it damaged; it never makes a session of it.
    expect("a snapshot without a journal", matches!(pair.snapshots.load(&id(1)).await, Ok(Some(_))), false)
}

async fn listed(pair: &Pair, filter: SessionFilter) -> Result<Vec<SessionId>, String> {
    Ok(said(pair.snapshots.list(filter).await, "list")?.into_iter().map(|meta| meta.id).collect())
}

async fn a_list_keeps_to_its_filter(_: &dyn Harness, pair: Pair) -> Result<(), String> {
    for n in 1..=3 {
        // The older a session, the later it changed.
        saved(&pair, n, 13 - 3 * Seq::from(n)).await?;
    }
    let metas = said(pair.snapshots.list(SessionFilter::default()).await, "list")?;
    for meta in &metas {
        let due = session(1, meta.last_seq)?.message_count;
        expect("the count of a snapshot", meta.message_count, due)?;
    }
    let sorted = |mut ids: Vec<SessionId>| {
        ids.sort_unstable();
        ids
    };
    let created = |n: u64| SessionFilter { created_after: Some(time(n)), ..SessionFilter::default() };
    let updated = |n: u64| SessionFilter { updated_after: Some(time(n)), ..SessionFilter::default() };
    for (what, filter, due) in [
        ("all", SessionFilter::default(), vec![1, 2, 3]),
        ("made after the first", created(1), vec![2, 3]),
        ("made after the last", created(3), vec![]),
        ("changed after the third", updated(3 + 3 * 60), vec![1, 2]),
        ("changed after the first", updated(1 + 9 * 60), vec![]),
        ("both", SessionFilter { updated_after: Some(time(3 + 3 * 60)), ..created(1) }, vec![2]),
    ] {
        expect(what, sorted(listed(&pair, filter).await?), due.into_iter().map(id).collect())?;
    }
    Ok(())
}

async fn a_list_keeps_to_its_offset_and_limit(_: &dyn Harness, pair: Pair) -> Result<(), String> {
    for n in 1..=5 {
        saved(&pair, n, 1).await?;
    }
    let all = listed(&pair, SessionFilter::default()).await?;
    expect("all of them", all.len(), 5)?;
    for (offset, limit) in [(0, 2), (2, 2), (4, 2), (5, 2), (1, 0)] {
        let filter = SessionFilter { offset: Some(offset), limit: Some(limit), ..SessionFilter::default() };
        let due: Vec<SessionId> = all.iter().skip(offset).take(limit).copied().collect();
        expect(&format!("{limit} from {offset}"), listed(&pair, filter).await?, due)?;
    }
    let filter = SessionFilter { offset: Some(1), limit: Some(9), created_after: Some(time(2)), updated_after: None };
    expect("the offset counts what is wanted", listed(&pair, filter).await?.len(), 2)
}

async fn a_deleted_snapshot_is_gone(harness: &dyn Harness, pair: Pair) -> Result<(), String> {
    saved(&pair, 1, 4).await?;
    saved(&pair, 2, 4).await?;
    said(pair.snapshots.delete(&id(1)).await, "delete")?;
    expect("a deleted one", said(pair.snapshots.load(&id(1)).await, "load")?.is_none(), true)?;
    expect("whether it is there", said(pair.snapshots.exists(&id(1)).await, "exists")?, false)?;
    expect("the list", listed(&pair, SessionFilter::default()).await?, vec![id(2)])?;
    said(pair.snapshots.delete(&id(1)).await, "a second delete")?;
    let pair = harness.restart(pair).await;
    expect("after a restart", listed(&pair, SessionFilter::default()).await?.contains(&id(1)), false)?;
    // What was deleted does not guard against what comes.
    said(pair.snapshots.save(&session(1, 1)?).await, "a shorter one after the delete")
}

async fn a_snapshot_never_speaks_for_its_session(_: &dyn Harness, pair: Pair) -> Result<(), String> {
    fill(&pair, 1, 4).await?;
    expect("no snapshot", said(pair.snapshots.exists(&id(1)).await, "exists")?, false)?;
    saved(&pair, 1, 4).await?;
    said(pair.snapshots.delete(&id(1)).await, "delete")?;
    holds(&pair, 1, 4).await
}
