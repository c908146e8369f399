//! What goes on while a journal is compacted: sessions come, go and are read, whoever asked leaves, and nothing of it
//! fails. What is held by a compaction is held at a place that is waited for.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use futures::future::BoxFuture;
use meerkat_service::{
    ErrorCode, Seq, SessionId,
    clock::Timestamp,
    compaction::CompactionConfig,
    options::Policy,
    service::{
        CompactJournal, CompactSession, CompactionPolicy, DecideApproval, HistoryItem, ReadBlob, ReadHistory, StartTurn,
    },
    session::event::Decision,
    store::{EventStore, FramePage, JournalPruner, ReadLimit, StoreError, Stores},
};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinHandle,
    time::timeout,
};

use crate::stored::{
    PATIENCE, Place, Process, files,
    layer::{Layer, lay},
    seqs,
};

/// What happens once, behind a read that is like this.
type Between = (fn(&Watched, Read) -> bool, BoxFuture<'static, ()>);

/// A read: behind which record, how many frames at most, and whether there were none.
type Read = (Seq, usize, bool);

/// The stores of a data directory, which can be held within a compaction.
struct Watched {
    events: Arc<dyn EventStore>,
    pruner: Arc<dyn JournalPruner>,
    is_held: bool,
    /// A compaction is half done.
    entered: Semaphore,
    go: Semaphore,
    /// Prunes that have ended.
    pruned: watch::Sender<u64>,
    /// How often it was asked for a journal's parts.
    asked: watch::Sender<u64>,
    /// Journals that were looked at from their beginning.
    looks: AtomicU64,
    between: Mutex<Option<Between>>,
}

impl Watched {
    fn between(&self, when: fn(&Self, Read) -> bool, what: impl Future<Output = ()> + Send + 'static) {
        *self.between.lock().unwrap() = Some((when, Box::pin(what)));
    }

    async fn pruned(&self, times: u64) {
        self.pruned.subscribe().wait_for(|pruned| *pruned >= times).await.unwrap();
    }
}

#[async_trait]
impl JournalPruner for Watched {
    async fn parts(&self, session_id: SessionId) -> Result<Vec<(Seq, Seq)>, StoreError> {
        let parts = self.pruner.parts(session_id).await;
        self.asked.send_modify(|asked| *asked += 1);
        parts
    }

    async fn prune(
        &self,
        session_id: SessionId,
        up_to: Seq,
        keep: &BTreeSet<Seq>,
        older_than: Timestamp,
    ) -> Result<u64, StoreError> {
        let mut dropped = 0;
        if self.is_held {
            // The first part is another one from now on, and the others are as they were.
            let parts = self.pruner.parts(session_id).await?;
            dropped += self.pruner.prune(session_id, up_to.min(parts[0].1), keep, older_than).await?;
            assert!(dropped > 0 && parts.len() > 2, "half of it is done");
            self.entered.add_permits(1);
            self.go.acquire().await.unwrap().forget();
        }
        let pruned = self.pruner.prune(session_id, up_to, keep, older_than).await;
        self.pruned.send_modify(|pruned| *pruned += 1);
        pruned.map(|pruned| pruned + dropped)
    }
}

#[async_trait]
impl Layer for Watched {
    fn below(&self) -> &dyn EventStore {
        self.events.as_ref()
    }

    async fn read(&self, session_id: SessionId, after: Seq, limit: ReadLimit) -> Result<Option<FramePage>, StoreError> {
        let page = self.events.read(session_id, after, limit).await;
        self.looks.fetch_add(u64::from(after == 0 && limit.frames > 1), Ordering::Relaxed);
        let is_over = matches!(&page, Ok(Some(page)) if page.frames.is_empty());
        let what = {
            let mut between = self.between.lock().unwrap();
            between.take_if(|(when, _)| when(self, (after, limit.frames, is_over)))
        };
        if let Some((_, what)) = what {
            what.await;
        }
        page
    }
}

/// A place where nothing is too young to go, and even short outputs are in blobs.
fn place() -> Place {
    let mut place = Place::pruned();
    place.options.journal.keep_last_replies = 0;
    place.options.tools.inline_bytes = 64;
    place
}

impl Place {
    /// A process whose compactions are watched, and held half way if `is_held`.
    fn watched<T>(&self, is_held: bool, work: impl AsyncFnOnce(Process, Arc<Watched>) -> T) -> T {
        let watched = |stores: &mut Stores| {
            let pruner = stores.pruner.take().unwrap();
            let watched = lay(stores, |events| Watched {
                events,
                pruner,
                is_held,
                entered: Semaphore::new(0),
                go: Semaphore::new(0),
                pruned: watch::Sender::new(0),
                asked: watch::Sender::new(0),
                looks: AtomicU64::new(0),
                between: Mutex::default(),
            });
            stores.pruner = Some(watched.clone());
            watched
        };
        self.process_over(true, watched, work)
    }

    /// A process in which [`Process::parted`] is half compacted. What is dropped of it in the end is in `LEFT`.
    fn half_compacted(&self, work: impl AsyncFnOnce(Process, Half, SessionId)) {
        let session_id = self.process(true, async |process| process.parted().await);
        self.watched(true, async |process, watched| {
            let service = process.service.clone();
            let compaction = tokio::spawn(async move {
                let request = CompactJournal::new(session_id);
                service.compact_journal(request).await.map(|report| report.dropped).map_err(|error| error.code())
            });
            watched.entered.acquire().await.unwrap().forget();
            work(process, Half { watched, compaction }, session_id).await;
        });
    }
}

/// A compaction that is half done.
struct Half {
    watched: Arc<Watched>,
    compaction: JoinHandle<Result<u64, ErrorCode>>,
}

impl Half {
    /// Lets it go on; returns how many records it dropped.
    async fn ends(self) -> Result<u64, ErrorCode> {
        self.watched.go.add_permits(1);
        self.compaction.await.unwrap()
    }
}

impl Process {
    /// A session with two sealed parts and one that is written; of both sealed ones something may go now.
    async fn parted(&self) -> SessionId {
        let session_id = self.create().await;
        self.remind(session_id, "environment", "A desert.").await;
        for (up_to, dropped) in [(4, 1), (11, 4)] {
            for _ in 0..4 {
                self.remind(session_id, "git_status", &"x".repeat(1000)).await;
            }
            self.turn(session_id, "@say Well.").await.unwrap();
            self.register("one").await;
            self.is_done("one", session_id, up_to).await;
            // What is dropped of the part that is written seals it.
            assert_eq!(self.compact(session_id, false, false).await.dropped, dropped);
        }
        self.remind(session_id, "environment", "A sea.").await;
        self.remind(session_id, "git_status", "The last.").await;
        self.is_read(session_id).await;
        session_id
    }

    /// A session of ten turns with two replies and a call each. All but the last have left the context, and six of them
    /// for good: no more than three compactions can be undone. The first three have more than 64 KiB.
    async fn compacted(&self) -> SessionId {
        let session_id = self.create().await;
        let config = CompactionConfig { recent_turn_budget: 1, ..CompactionConfig::default() };
        for n in 0..10 {
            let text = format!("{n} of them ").repeat(if n < 3 { 60 } else { 1 });
            self.turn(session_id, &called(&text, "@say Done. @compaction @say So far.")).await.unwrap();
            if n > 0 {
                let request = CompactSession { session_id, compaction: Some(config) };
                assert_eq!(self.service.compact(request).await.unwrap().retained, 4);
            }
        }
        session_id
    }

    async fn reminders_set(&self, session_id: SessionId) -> Vec<u64> {
        seqs(&self.events(session_id).await, "reminder_set")
    }

    async fn has_blob(&self, session_id: SessionId, blob: &str) -> bool {
        let request = ReadBlob { session_id, blob: blob.to_owned(), offset: 0, limit: None };
        let read = self.service.blob(request).await.map_err(|error| error.code());
        assert!(read.is_ok() || read == Err(ErrorCode::ItemNotFound));
        read.is_ok()
    }
}

/// What a compaction of [`Process::parted`] leaves of its reminders, and how many records it drops.
const LEFT: ([u64; 2], u64) = ([17, 18], 4);

#[test]
fn sessions_come_and_turns_go_on_while_a_journal_is_half_compacted() {
    place().half_compacted(async |process, half, session_id| {
        for session_id in [process.create().await, session_id] {
            assert_eq!(process.turn(session_id, "@say Here.").await.unwrap().text, "Here.");
        }
        assert_eq!(process.reminders_set(session_id).await, [11, 12, 13, 17, 18], "half of it is gone");
        assert_eq!(half.ends().await, Ok(LEFT.1));
        assert_eq!(process.reminders_set(session_id).await, LEFT.0);
        assert_eq!(process.turn(session_id, "@echo messages").await.unwrap().text, "messages: 7");
    });
}

#[test]
fn a_fork_that_is_asked_for_while_a_journal_is_half_compacted_is_whole() {
    let place = place();
    let mut made = None;
    place.half_compacted(async |process, half, session_id| {
        let mut forked = Box::pin(process.fork(session_id, Some(1)));
        assert!(futures::poll!(&mut forked).is_pending(), "it has begun, and ends before the compaction or behind it");
        let (fork, compacted) = tokio::join!(forked, half.ends());
        assert_eq!(compacted, Ok(LEFT.1));
        let fork = fork.unwrap();
        assert_eq!(process.last_seq(fork).await, 17);
        assert_eq!(process.turn(fork, "@echo messages").await.unwrap().text, "messages: 5");
        assert_eq!(process.view(session_id).await.message_count, 4);
        made = Some(fork);
    });
    place.process(true, async |process| {
        let view = process.view(made.unwrap()).await;
        assert_eq!((view.message_count, view.turn_count), (6, 3));
    });
}

#[test]
fn a_session_that_is_deleted_while_it_is_compacted_is_gone() {
    let place = place();
    place.half_compacted(async |process, half, session_id| {
        process.delete(session_id).await;
        assert_eq!(half.ends().await, Err(ErrorCode::SessionNotFound));
        assert_eq!(process.service.read(&session_id).await.unwrap_err().code(), ErrorCode::SessionNotFound);
    });
    for folder in ["journal", "new"] {
        let left = files(&place.data_dir().join(folder));
        assert!(!left.iter().any(|name| name.ends_with(".mlog")), "{left:?}");
    }
}

#[test]
fn a_compaction_goes_on_where_whoever_asked_for_it_has_gone() {
    place().half_compacted(async |process, half, session_id| {
        half.compaction.abort();
        assert!(half.compaction.await.unwrap_err().is_cancelled());
        half.watched.go.add_permits(1);
        half.watched.pruned(1).await;
        assert_eq!(process.reminders_set(session_id).await, LEFT.0);
        // Nothing is held any more: readers come and go.
        process.register("two").await;
    });
}

/// A replay in pages met half of a turn: the other half was gone when it came there.
#[test]
fn a_replay_within_which_a_journal_is_compacted_begins_again() {
    let place = place();
    let (session_id, view) = place.process(true, async |process| {
        let session_id = process.create().await;
        for n in 0..511 {
            process.remind(session_id, "git_status", &n.to_string()).await;
        }
        for _ in 0..2 {
            let failed = process.turn(session_id, "@fail context").await.unwrap();
            assert_eq!(failed.error.unwrap().code, ErrorCode::ModelContextExceeded);
        }
        process.turn(session_id, "@say Short.").await.unwrap();
        process.is_read(session_id).await;
        let starts = seqs(&process.events(session_id).await, "turn_started");
        assert_eq!(starts, [513, 515, 517], "the first page of 512 behind the first record ends within a turn");
        (session_id, process.view(session_id).await)
    });
    // Without a snapshot.
    place.lose_index();
    place.watched(false, async |process, watched| {
        process.is_read(session_id).await;
        let compacting = process.clone();
        watched.between(|_, (after, frames, _)| after == 1 && frames > 1, async move {
            assert_eq!(compacting.compact(session_id, false, true).await.dropped, 510 + 4);
        });
        let now = process.view(session_id).await;
        assert_eq!(*watched.pruned.borrow(), 1, "it was compacted meanwhile");
        assert_eq!((now.message_count, now.usage), (view.message_count, view.usage));
        assert_eq!(process.turn(session_id, "@echo messages").await.unwrap().text, "messages: 3");
    });
}

fn called(text: &str, then: &str) -> String {
    format!(r#"@call test_echo {{"text":"{}"}} @step {then}"#, text.repeat(40))
}

/// The blobs that a session's tools have made, in order.
async fn named(process: &Process, session_id: SessionId) -> Vec<String> {
    let events = process.events(session_id).await;
    let finished = events.iter().filter(|event| event["type"] == "tool_finished");
    finished.map(|event| event["output"]["blob"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn blobs_go_with_the_last_record_that_names_them() {
    place().process(true, async |process| {
        let session_id = process.create().await;
        // A turn that leaves the context as a whole, with a prompt too long for its event.
        for (blank, key) in [(" ", None), ("\n", None), ("\n", Some("a key keeps its turn's start".to_owned()))] {
            let prompt = "@fail context".to_owned() + &blank.repeat(150_000);
            let turn = StartTurn { idempotency_key: key, ..StartTurn::new(session_id, &prompt) };
            let failed = process.service.start_turn(turn).await.unwrap();
            assert_eq!(failed.error.unwrap().code, ErrorCode::ModelContextExceeded);
        }
        process.turn(session_id, "@say Done.").await.unwrap();
        let events = process.events(session_id).await;
        let names: Vec<&str> = events.iter().filter_map(|event| event["prompt"]["blob"].as_str()).collect();
        let [gone, kept, _] = names[..] else { panic!("{names:?}") };
        let fork = process.fork(session_id, Some(0)).await.unwrap();
        process.is_read(session_id).await;
        process.compact(session_id, true, true).await;
        assert!(process.has_blob(session_id, gone).await, "a dry run changes nothing");
        assert!(process.compact(session_id, false, true).await.dropped > 0);
        assert!(!process.has_blob(session_id, gone).await);
        assert!(process.has_blob(session_id, kept).await, "a record that stays names it, too");
        assert!(process.has_blob(fork, gone).await, "the fork has its own");
        process.delete(session_id).await;
        assert!(process.has_blob(fork, gone).await);
    });
}

/// What a compaction that was killed has left, or a turn that never recorded what it made. While a call runs, it may be
/// what that call is making.
#[test]
fn blobs_that_nothing_names_go_with_the_next_compaction_when_no_call_runs() {
    let place = place();
    let (session_id, kept) = place.process(true, async |process| {
        let session_id = process.create().await;
        process.turn(session_id, &called("kept ", "@say Done.")).await.unwrap();
        process.is_read(session_id).await;
        (session_id, named(&process, session_id).await.remove(0))
    });
    let (blobs, unnamed) = (place.session_dir(session_id).join("blobs"), "0".repeat(64));
    std::fs::copy(blobs.join(&kept), blobs.join(&unnamed)).unwrap();
    place.process(true, async |process| {
        let turn = process.begin(session_id, r#"@call test_ask {"name":"log","line":"x"} @say Done."#).await;
        let asked = process.until(session_id, "approval_requested").await;
        process.compact(session_id, false, false).await;
        assert!(process.has_blob(session_id, &unnamed).await);
        let call_id = asked["call_id"].as_str().unwrap().to_owned();
        process.service.decide_approval(DecideApproval::new(session_id, call_id, Decision::Deny)).await.unwrap();
        turn.result.await.unwrap();
        process.compact(session_id, false, false).await;
    });
    assert_eq!(files(&blobs), [kept]);
}

/// A call made the same text again, which is the same blob, between the look at the journal and the removal.
#[test]
fn a_blob_that_is_named_again_meanwhile_stays() {
    place().watched(false, async |process, watched| {
        let session_id = process.create().await;
        process.turn(session_id, &called("again ", "@fail context")).await.unwrap();
        process.turn(session_id, "@say Done.").await.unwrap();
        process.is_read(session_id).await;
        let name = named(&process, session_id).await.remove(0);
        let meanwhile = process.clone();
        // After the prune, the journal is read to its end for the names of blobs.
        let is_read =
            |watched: &Watched, (_, frames, is_over): Read| *watched.pruned.borrow() > 0 && frames > 1 && is_over;
        watched.between(is_read, async move {
            assert_eq!(named(&meanwhile, session_id).await, [""; 0]);
            meanwhile.turn(session_id, &called("again ", "@say Done.")).await.unwrap();
        });
        assert!(process.compact(session_id, false, true).await.dropped > 0);
        assert_eq!(named(&process, session_id).await, std::slice::from_ref(&name));
        assert!(process.has_blob(session_id, &name).await);
    });
}

/// The prompt of a queued turn is in another event than the turn's start, which a page may still have.
#[test]
fn a_prompt_that_is_dropped_while_a_history_is_read_is_said_to_be_gone() {
    place().watched(false, async |process, watched| {
        let session_id = process.create().await;
        let running = process.begin(session_id, "@stall").await;
        let waiting = StartTurn { policy: Policy::Queue, ..StartTurn::new(session_id, "@fail context") };
        let queued = process.service.begin_turn(waiting).await.unwrap();
        process.interrupt(session_id, Some(running.accepted.turn)).await;
        assert_eq!(queued.result.await.unwrap().error.unwrap().code, ErrorCode::ModelContextExceeded);
        process.turn(session_id, "@say Done.").await.unwrap();
        process.is_read(session_id).await;
        let of = |item: &HistoryItem| (item.seq, item.role.clone());
        let roles = async || {
            let history = process.service.history(ReadHistory::new(session_id)).await.unwrap();
            history.items.iter().map(of).collect::<Vec<_>>()
        };
        let (mut expected, at) = (roles().await, queued.accepted.seq);
        let compacting = process.clone();
        watched.between(|_, (after, frames, _)| after == 0 && frames > 1, async move {
            assert!(compacting.compact(session_id, false, true).await.dropped > 0);
            let events = compacting.events(session_id).await;
            assert!(events.iter().all(|event| event["seq"] != at), "{events:?}");
        });
        expected.iter_mut().find(|(seq, _)| *seq > at).unwrap().1 = "pruned".to_owned();
        assert_eq!(roles().await, expected);
    });
}

/// What is sealed is looked at once; what is written too when a turn ends, and less and less often.
#[test]
fn journals_are_compacted_by_themselves_where_the_configuration_says_so() {
    for is_rolling in [true, false] {
        let mut place = place();
        let session_id = place.process(true, async |process| process.parted().await);
        place.options.journal.end_min_record_age_ms = 0;
        match is_rolling {
            true => place.options.journal.rolling_ms = 20,
            false => place.options.journal.end_of_run = true,
        }
        place.watched(false, async |process, watched| {
            let written = process.create().await;
            for n in 0..9 {
                process.remind(written, "git_status", &n.to_string()).await;
            }
            process.is_read(written).await;
            process.turn(written, "@say Here.").await.unwrap();
            process.turn(session_id, "@say Here.").await.unwrap();
            watched.pruned(1).await;
            // Of each kind the latest stays: of those in what is sealed, or of all. One alone is too little.
            let due: &[u64] = if is_rolling { &[2, 13, 17, 18] } else { &[2, 17, 18] };
            assert_eq!(process.reminders_set(session_id).await, due);
            // The reader comes further each time. Looks get rarer, because each reads the journal from its beginning.
            let (looks, rounds) = (watched.looks.load(Ordering::Relaxed), 12);
            for _ in 0..rounds {
                let asked = *watched.asked.borrow();
                for session_id in [written, session_id] {
                    process.turn(session_id, "@say More.").await.unwrap();
                    process.is_done("one", session_id, process.last_seq(session_id).await).await;
                }
                timeout(PATIENCE, watched.asked.subscribe().wait_for(|now| *now > asked + 1)).await.unwrap().unwrap();
            }
            let more = watched.looks.load(Ordering::Relaxed) - looks;
            let due = if is_rolling { 0..=0 } else { 2..=rounds };
            assert!(due.contains(&more), "{more} looks, and {rounds} at each session were due");
            assert_eq!(*watched.pruned.borrow(), 1, "nothing more goes");
            assert_eq!(process.reminders_set(written).await.len(), 9, "a segment that is written is not sealed for it");
        });
    }
}

/// A look at intervals sees nothing of the file that is written, so it does not stand for one at the end of a turn,
/// however little is new since.
#[test]
fn a_look_at_intervals_is_none_for_the_end_of_a_turn() {
    let mut place = place();
    let replaced = async |process: &Process, session_id, kind| {
        for _ in 0..10 {
            process.remind(session_id, kind, &"x".repeat(8_000)).await;
        }
    };
    let session_id = place.process(true, async |process| {
        let session_id = process.compacted().await;
        process.register("one").await;
        process.is_done("one", session_id, process.last_seq(session_id).await).await;
        replaced(&process, session_id, "git_status").await;
        // What is dropped of the part that is written seals it, with the reminders that the reader has not seen.
        assert_eq!(process.compact(session_id, false, false).await.dropped, 10);
        process.is_done("one", session_id, process.last_seq(session_id).await).await;
        session_id
    });
    let journal = &mut place.options.journal;
    (journal.rolling_ms, journal.end_of_run, journal.end_min_record_age_ms) = (20, true, 0);
    place.watched(false, async |process, watched| {
        // The session is in use from here on.
        process.remind(session_id, "environment", "A desert.").await;
        timeout(PATIENCE, watched.pruned(1)).await.unwrap();
        let mut due = process.reminders_set(session_id).await;
        replaced(&process, session_id, "token_status").await;
        process.is_done("one", session_id, process.last_seq(session_id).await).await;
        process.turn(session_id, "@say Over.").await.unwrap();
        timeout(PATIENCE, watched.pruned(2)).await.unwrap();
        // What was set last, of each kind.
        due.push(due[1] + 10);
        assert_eq!(due.len(), 3);
        assert_eq!(process.reminders_set(session_id).await, due);
    });
}

impl Watched {
    /// Ends a turn of the session; the compaction after it is over then.
    async fn ends_a_turn(&self, process: &Process, session_id: SessionId) {
        let asked = *self.asked.borrow();
        process.turn(session_id, "@say Over.").await.unwrap();
        // It asks twice; the third time is the next compaction, which finds nothing new.
        timeout(PATIENCE, self.asked.subscribe().wait_for(|now| *now >= asked + 2)).await.unwrap().unwrap();
        process.turn(session_id, "@say Again.").await.unwrap();
        timeout(PATIENCE, self.asked.subscribe().wait_for(|now| *now >= asked + 3)).await.unwrap().unwrap();
    }
}

/// The end of a turn compacts a short session, too: it ends the file that is written. History goes only where the
/// configuration says so, and then exactly the last replies stay. At intervals it goes from what is sealed.
#[test]
fn a_schedule_compacts_a_session_to_its_last_replies() {
    for (is_rolling, drop_history, gone) in [(false, true, 9), (false, false, 0), (true, true, 9)] {
        let mut place = Place::pruned();
        let session_id = place.process(true, async |process| {
            let session_id = process.compacted().await;
            process.is_read(session_id).await;
            if is_rolling {
                // What is dropped of the part that is written seals it.
                assert_eq!(process.compact(session_id, false, false).await.dropped, 10);
            }
            session_id
        });
        let journal = &mut place.options.journal;
        (journal.end_min_record_age_ms, journal.drop_history) = (0, drop_history);
        // Each goes by its own keys.
        match is_rolling {
            true => (journal.rolling_ms, journal.keep_last_replies, journal.end_keep_last_replies) = (20, 3, 0),
            false => (journal.end_of_run, journal.keep_last_replies) = (true, 0),
        }
        place.watched(false, async |process, watched| {
            let replies = async || seqs(&process.events(session_id).await, "assistant_message");
            let before = replies().await;
            match is_rolling {
                true => {
                    process.turn(session_id, "@say Over.").await.unwrap();
                    timeout(PATIENCE, watched.pruned(1)).await.unwrap();
                }
                false => watched.ends_a_turn(&process, session_id).await,
            }
            assert_eq!(*watched.pruned.borrow(), u64::from(drop_history));
            let stays: Vec<u64> = replies().await.into_iter().filter(|seq| before.contains(seq)).collect();
            // Of twelve replies that left for good three stay.
            assert_eq!(stays, before[gone..]);
            let now = process.said(session_id).await;
            assert_eq!(now.iter().any(|item| item["role"] == "pruned"), drop_history, "{now:?}");
        });
        assert_eq!(place.segments(session_id).len(), if drop_history { 2 } else { 1 });
        // It goes on.
        place.process(true, async |process| {
            assert_eq!(process.turn(session_id, "@say Good.").await.unwrap().text, "Good.");
        });
    }
}

/// The file that is written ends for 64 KiB, and not for less, however much of it that is.
#[test]
fn at_the_end_of_a_turn_a_file_ends_of_which_enough_was_replaced() {
    for (count, is_enough) in [(70, true), (50, false)] {
        let mut place = place();
        (place.options.journal.end_of_run, place.options.journal.end_min_record_age_ms) = (true, 0);
        let session_id = place.watched(false, async |process, watched| {
            let session_id = process.create().await;
            for _ in 0..count {
                process.remind(session_id, "git_status", &"x".repeat(1000)).await;
            }
            process.is_read(session_id).await;
            watched.ends_a_turn(&process, session_id).await;
            assert_eq!(process.reminders_set(session_id).await.len(), if is_enough { 1 } else { count });
            session_id
        });
        assert_eq!(place.segments(session_id).len(), if is_enough { 2 } else { 1 });
    }
}

/// A request's policy counts before the configuration's, each number by itself.
#[test]
fn a_request_brings_its_own_policy() {
    let mut place = Place::pruned();
    place.options.journal.min_record_age_ms = 3_600_000;
    place.process(true, async |process| {
        let session_id = process.compacted().await;
        process.is_read(session_id).await;
        let dropped = async |request: CompactJournal| {
            let report = process.service.compact_journal(CompactJournal { dry_run: true, ..request }).await;
            report.map(|report| report.dropped).map_err(|error| error.code())
        };
        let asked = CompactJournal::new(session_id);
        assert_eq!(dropped(asked.clone()).await, Ok(0), "as configured, all are too young");
        let old = CompactJournal { min_record_age_ms: Some(0), ..asked.clone() };
        assert_eq!(dropped(old.clone()).await, Ok(10), "the starts of calls that have ended");
        let ttl = CompactJournal { keep_answered_request_ttl_ms: Some(3_600_000), ..old.clone() };
        assert_eq!(dropped(ttl).await, Ok(0));
        // A turn is its start, two answers, the start and the end of its call, and its own end.
        let history = CompactJournal { drop_history: true, ..old.clone() };
        assert_eq!(dropped(history.clone()).await, Ok(6 + 9), "of twelve replies ten stay");
        for (replies, turns) in [(0, 6), (4, 4), (12, 0), (usize::MAX, 0)] {
            let policy = CompactionPolicy {
                min_record_age_ms: 0,
                keep_last_replies: Some(replies),
                keep_answered_request_ttl_ms: 0,
            };
            let kept = CompactJournal { keep_last_replies: Some(replies), ..history.clone() };
            assert_eq!(
                CompactJournal::by(session_id, policy),
                CompactJournal { keep_answered_request_ttl_ms: Some(0), ..kept.clone() }
            );
            assert_eq!(dropped(kept).await, Ok(turns * 6 + (10 - turns)), "of {replies}");
        }
        // A number of replies drops none: that takes the wish to drop history.
        assert_eq!(dropped(CompactJournal { keep_last_replies: Some(0), ..old }).await, Ok(10));
    });
}
