//! Any life of any session, with any readers and any policy, compacted again and again while it goes on: it folds to
//! the same, nothing that a reader has not acknowledged goes, and nothing goes twice.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use meerkat_testkit::{campaigns::Part, cases_of};
use proptest::{collection::vec, prelude::*, strategy::ValueTree as _};

use super::{HOUR_MS, fold};
use crate::{
    clock::{FrozenClock, SeededIds, Timestamp},
    consumers::readers::Readers,
    ids::Seq,
    service::CompactionPolicy,
    session::{
        ContextEntry, ForkedHistory, Session, Summary,
        event::{ApprovalRequested, CompactionUndone, Event, Record},
        reminder::Reminder,
        snapshot::Snapshot,
        tests::{session_id, walk::Walk},
    },
    store::{
        MemoryEventStore, MemoryIndex, MemoryReaders, MemoryUse, ReaderStore as _, Registration, SessionIndex as _,
    },
    upkeep::journal_compaction::plan::{Bounds, Brief, Plan, plan},
};

/// What happens after a piece of life.
#[derive(Clone, Debug)]
struct Compaction {
    /// How far each reader comes, in parts of 16 of the journal.
    acknowledged: [u8; 3],
    /// Readers that there are by then.
    readers: usize,
    keep_last_replies: usize,
    min_record_age_ms: u64,
    keep_answered_request_ttl_ms: u64,
    is_sparing: bool,
    drops_history: bool,
    /// How long after the last record.
    age_ms: u64,
    /// Where the journal is parted, in parts of 16.
    parts: Vec<u8>,
    /// The parts that are rewritten when the process is killed.
    rewritten: u8,
    loses_index: bool,
}

fn compaction() -> impl Strategy<Value = Compaction> {
    let ages = || prop::sample::select(vec![0, HOUR_MS, 30 * HOUR_MS]);
    let what = (any::<[u8; 3]>(), 0_usize..4, 0_usize..4, any::<[bool; 3]>());
    (what, (ages(), ages(), ages()), vec(0_u8..16, 0..4), any::<u8>()).prop_map(|(what, ages, parts, rewritten)| {
        let (acknowledged, readers, keep_last_replies, [is_sparing, drops_history, loses_index]) = what;
        let (min_record_age_ms, keep_answered_request_ttl_ms, age_ms) = ages;
        Compaction {
            acknowledged,
            readers,
            keep_last_replies,
            min_record_age_ms,
            keep_answered_request_ttl_ms,
            is_sparing,
            drops_history,
            age_ms,
            parts,
            rewritten,
            loses_index,
        }
    })
}

/// A journal whose every record is known, and what is gone of it.
struct Journal {
    walk: Walk,
    gone: BTreeSet<Seq>,
    stores: (Arc<MemoryReaders>, Arc<MemoryIndex>),
    readers: Readers,
    /// The seq that each reader has acknowledged last.
    acknowledged: BTreeMap<String, Seq>,
}

const NAMES: [&str; 3] = ["a", "b", "c"];

impl Journal {
    fn new() -> Self {
        let stores = (Arc::new(MemoryReaders::default()), Arc::new(MemoryIndex::default()));
        let readers = readers(&stores);
        Self { walk: Walk::new(&[]), gone: BTreeSet::new(), stores, readers, acknowledged: BTreeMap::new() }
    }

    fn kept(&self) -> Vec<&Record> {
        self.walk.records.iter().filter(|record| !self.gone.contains(&record.seq)).collect()
    }

    fn tail(&self) -> Seq {
        self.walk.records.len() as Seq
    }

    /// Readers come, and come further.
    async fn read(&mut self, how: &Compaction) {
        for (name, share) in NAMES.into_iter().zip(how.acknowledged).take(how.readers) {
            let registration = Registration { reader: name.to_owned(), created_at: SeededIds::wall_time() };
            self.stores.0.register(registration).await.unwrap();
            let seq = self.tail() * u64::from(share % 17) / 16;
            let acknowledged = self.acknowledged.entry(name.to_owned()).or_default();
            *acknowledged = seq.max(*acknowledged);
            self.stores.1.put_checkpoint(name, session_id(), *acknowledged).await.unwrap();
        }
        self.readers = readers(&self.stores);
        self.readers.open().await.unwrap();
    }

    /// The index is lost: every reader is there, and begins again.
    async fn lose_index(&mut self) {
        self.stores.1 = Arc::default();
        self.readers = readers(&self.stores);
        self.readers.open().await.unwrap();
        let names: Vec<String> = self.stores.0.readers().await.unwrap().into_iter().map(|it| it.reader).collect();
        assert!(names.iter().eq(self.acknowledged.keys()), "{names:?}");
        for (reader, acknowledged) in &mut self.acknowledged {
            let seq = self.readers.checkpoint(reader, session_id()).await.unwrap();
            assert_eq!(seq, 0, "{reader}");
            *acknowledged = seq;
        }
    }

    fn bounds<'a>(&self, how: &Compaction, parts: &'a [(Seq, Seq)]) -> Bounds<'a> {
        let policy = CompactionPolicy {
            min_record_age_ms: how.min_record_age_ms,
            keep_last_replies: how.drops_history.then_some(how.keep_last_replies),
            keep_answered_request_ttl_ms: how.keep_answered_request_ttl_ms,
        };
        let last = self.walk.records.iter().map(|record| record.time).max().unwrap();
        let now = Timestamp::from_millis(last.as_millis() + i64::try_from(how.age_ms).unwrap());
        Bounds { policy, now, parts, is_sparing: how.is_sparing }
    }

    fn plan(&self, up_to: Seq, bounds: &Bounds<'_>, session: &Session) -> Plan {
        let kept = self.kept();
        let briefs: Vec<Brief> = kept.iter().filter(|it| it.seq <= up_to).map(|it| brief(it)).collect();
        plan(&briefs, session, bounds)
    }

    async fn compact(&mut self, how: &Compaction) {
        let Some(up_to) = self.readers.watermark(session_id()).await.unwrap() else {
            assert!(self.acknowledged.is_empty(), "a reader is forgotten");
            return;
        };
        let parts = parts(self.tail(), &how.parts);
        let bounds = self.bounds(how, &parts);
        let before = fold(self.kept());
        let plan = self.plan(up_to, &bounds, &before);
        let sources = self.sources();
        self.check_alone(&plan);
        assert!(plan.history.is_none() || plan.dropped.is_disjoint(&sources), "what an undo needs goes");
        assert!(plan.dropped.iter().all(|seq| self.acknowledged.values().all(|done| seq <= done)), "unacknowledged");
        if let Some(history) = plan.history {
            let snapshot = before.history_snapshot(history.pruned_to, history.keys_up_to).unwrap();
            self.walk.add(Event::HistorySnapshot(snapshot));
        }
        let saved = fold(self.kept());
        self.check_mix(&plan, &parts, how.rewritten, &saved);
        self.gone.extend(&plan.dropped);
        let after = self.check();
        assert_eq!(restored(&saved, &self.kept()), saved, "a snapshot that was saved before");
        assert_eq!((after.message_count, after.usage), (before.message_count, before.usage));
        assert_eq!(&after.found_tools, &before.found_tools);
        let again = self.plan(up_to, &bounds, &after);
        assert_eq!((again.dropped, again.history), (BTreeSet::new(), None), "a second compaction drops something");
        self.check_forks(&after, Seq::from(how.rewritten % 4));
    }

    /// What a call alone says of files and questions goes with its result, and not before.
    fn check_alone(&self, plan: &Plan) {
        let gone: Vec<&Record> = self.kept().into_iter().filter(|it| plan.dropped.contains(&it.seq)).collect();
        for record in &gone {
            let Some(call) = alone(record) else { continue };
            let is_result = |it: &&Record| matches!(&it.event, Event::ToolFinished(end) if end.call_id == call);
            assert!(gone.iter().copied().any(|it| is_result(&it)), "{record:?} goes alone");
        }
    }

    /// The events that brought what stood in the live context before each of the newest three compactions of it that
    /// are not undone.
    fn sources(&self) -> BTreeSet<Seq> {
        let mut newest: Vec<Seq> = Vec::new();
        for record in self.kept() {
            match record.event {
                Event::ContextRebuilt(_) => newest.push(record.seq),
                Event::CompactionUndone(_) => drop(newest.pop()),
                _ => {}
            }
            if newest.len() > 3 {
                newest.remove(0);
            }
        }
        let before = |seq: Seq| fold(&self.walk.records[..usize::try_from(seq).unwrap() - 1]);
        let entries = |session: Session| session.context.entries().iter().map(|it| it.seq).collect::<Vec<_>>();
        newest.into_iter().flat_map(|seq| entries(before(seq))).collect()
    }

    /// Killed in between, some parts are rewritten and others are not, in any order.
    fn check_mix(&self, plan: &Plan, parts: &[(Seq, Seq)], rewritten: u8, whole: &Session) {
        let is_rewritten = |seq: Seq| rewritten >> (parts.partition_point(|(_, to)| *to < seq) % 8) & 1 == 1;
        let is_gone = |record: &&&Record| plan.dropped.contains(&record.seq) && is_rewritten(record.seq);
        let kept = self.kept();
        assert_eq!(fold(kept.iter().filter(|it| !is_gone(it)).copied()), *whole, "a mix of parts");
        for (_, to) in parts {
            let is_left = |record: &&&Record| record.seq > *to || !plan.dropped.contains(&record.seq);
            let left: Vec<&Record> = kept.iter().filter(is_left).copied().collect();
            self.check_reminders(&left, whole.pruned_to);
        }
    }

    /// A cold start reaches the same state, and the live context is whole.
    fn check(&self) -> Session {
        let (cold, live) = (fold(self.kept()), fold(&self.walk.records));
        assert_eq!(cold, live);
        assert!(live.context.entries().iter().all(|entry| !self.gone.contains(&entry.seq)));
        let again = restored(&live, &self.kept());
        assert_eq!(again, live, "a snapshot that is saved afterwards");
        assert_eq!(Snapshot::of(&again), Snapshot::of(&live), "and one that is saved of that");
        // What an undo has brought back may be counted without what is gone.
        if !self.walk.records.iter().any(|record| matches!(record.event, Event::CompactionUndone(_))) {
            let numbers =
                |of: &Session| of.context.entries().iter().map(|entry| entry.history_index).collect::<Vec<_>>();
            assert_eq!(numbers(&cold), numbers(&live));
        }
        self.check_undo(&cold, &live);
        cold
    }

    /// All that can be undone gives the same, whether anything is gone or not.
    fn check_undo(&self, cold: &Session, live: &Session) {
        let (mut cold, mut live) = (cold.clone(), live.clone());
        if live.open_turn().is_some() || live.open_compaction().is_some() {
            return;
        }
        while let Some(compaction) = latest(&live) {
            let seq = live.last_seq + 1;
            let event = Event::CompactionUndone(CompactionUndone { compaction });
            let record = Record { session_id: live.id, seq, turn: None, time: live.updated_at, event };
            live.apply(&record).unwrap();
            cold.apply(&record).unwrap();
            assert_eq!(cold, live, "{compaction} undone");
        }
    }

    /// Anywhere behind what is gone there is no reminder that did not count there; what is missing was replaced since.
    fn check_reminders(&self, left: &[&Record], pruned_to: Seq) {
        let mut replaced = BTreeMap::new();
        for record in &self.walk.records {
            match &record.event {
                Event::ReminderSet(set) => drop(replaced.insert(set.kind.clone(), record.seq)),
                Event::ReminderCleared(cleared) => drop(replaced.insert(cleared.kind.clone(), record.seq)),
                _ => {}
            }
        }
        let (mut whole, mut now) = (fold(&self.walk.records[..1]), fold(left[..1].iter().copied()));
        let mut left = left[1..].iter().copied().peekable();
        for record in &self.walk.records[1..] {
            whole.apply(record).unwrap();
            let Some(record) = left.next_if(|left| left.seq == record.seq) else { continue };
            now.apply(record).unwrap();
            if record.seq < pruned_to {
                continue;
            }
            let is_there = |reminder: &Reminder| now.reminders.contains(reminder);
            let is_replaced = |reminder: &Reminder| replaced[&reminder.kind] > record.seq;
            assert!(whole.reminders.iter().all(|it| is_there(it) || is_replaced(it)), "missing at {}", record.seq);
            let did_count = now.reminders.iter().all(|reminder| whole.reminders.contains(reminder));
            assert!(did_count, "{:?} did not count at {}", now.reminders, record.seq);
        }
    }

    /// A fork anywhere behind what is gone is what it would have been; but for reminders that had been replaced since.
    fn check_forks(&self, session: &Session, some: Seq) {
        let kept = self.kept();
        let is_tried = |record: &&&Record| record.seq >= session.pruned_to.max(1) && record.seq % 4 == some;
        for end in kept.iter().filter(is_tried) {
            let whole = fold(&self.walk.records[..usize::try_from(end.seq).unwrap()]);
            if whole.open_turn().is_some() || whole.open_compaction().is_some() {
                continue;
            }
            let own = uuid::Uuid::from_u128(u128::from(end.seq) + 7);
            let first = whole.fork_record(end.seq, crate::SessionId::from_uuid(own), end.time);
            let mut due = whole;
            due.apply(&first).unwrap();
            let mut fork = fold(kept.iter().filter(|record| record.seq <= end.seq).copied());
            fork.apply(&first).unwrap();
            let mut history = ForkedHistory::new(end.seq);
            if let Some(snapshot) = kept.iter().find_map(|record| history.push(record).unwrap()) {
                let event = Event::HistorySnapshot(snapshot);
                fork.apply(&Record { seq: first.seq + 1, event, ..first }).unwrap();
            }
            let parts = |of: &Session| (of.message_count, of.usage, of.next_turn, of.pins.clone());
            assert_eq!(parts(&fork), parts(&due), "forked behind {}", end.seq);
            assert_eq!(&fork.found_tools, &due.found_tools, "forked behind {}", end.seq);
            assert_eq!(said(&fork), said(&due), "forked behind {}", end.seq);
            self.check_fork_compactions(fork, due);
        }
    }
}

impl Journal {
    /// What the fork can undo gives what it would have given; and no guard of it ends earlier.
    fn check_fork_compactions(&self, mut fork: Session, mut due: Session) {
        let (told, whole) = (fork.compaction_context(0, 0), due.compaction_context(0, 0));
        assert_eq!(told.current_turn, whole.current_turn);
        assert_eq!(told.last_compaction_turn.is_some(), whole.last_compaction_turn.is_some());
        assert!((whole.last_compaction_turn..=Some(told.current_turn)).contains(&told.last_compaction_turn));
        while let Some(compaction) = latest(&fork) {
            let seq = fork.last_seq.max(due.last_seq) + 1;
            let event = Event::CompactionUndone(CompactionUndone { compaction });
            let record = Record { session_id: fork.id, seq, turn: None, time: fork.updated_at, event };
            fork.apply(&record).unwrap();
            due.apply(&record).unwrap();
            assert_eq!(said(&fork), said(&due), "{compaction} undone in a fork");
        }
    }
}

/// The live context, but for how it was rebuilt before.
fn said(session: &Session) -> (Option<&Summary>, &[ContextEntry]) {
    (session.context.summary(), session.context.entries())
}

/// The call of a record that alone names files, or what a decision answers.
fn alone(record: &Record) -> Option<&str> {
    match &record.event {
        Event::ToolStarted(started) if !started.files.is_empty() => Some(&started.call_id),
        Event::ApprovalRequested(ApprovalRequested { form: Some(form), .. }) => Some(&form.call_id),
        _ => None,
    }
}

/// The compaction that may be undone next.
fn latest(session: &Session) -> Option<Seq> {
    session.undoable().next_back()
}

fn brief(record: &Record) -> Brief {
    // Some are long, so that some parts are worth it.
    Brief::of(record, if record.seq.is_multiple_of(5) { 10_000 } else { 100 })
}

/// A service's readers.
fn readers((store, index): &(Arc<MemoryReaders>, Arc<MemoryIndex>)) -> Readers {
    let events = Arc::new(MemoryEventStore::new(u64::MAX, Arc::new(MemoryUse::default())));
    Readers::new(store.clone(), events, index.clone(), Arc::new(FrozenClock::at(SeededIds::wall_time())))
}

/// What a store makes of a session's snapshot and what is left of its journal.
fn restored(session: &Session, kept: &[&Record]) -> Session {
    let snapshot = Snapshot::of(session);
    let is_wanted = |seq: Seq| snapshot.ranges().iter().any(|(from, to)| (from..=to).contains(&&seq));
    let mut read: BTreeMap<Seq, Record> =
        kept.iter().filter(|it| is_wanted(it.seq)).map(|it| (it.seq, Record::clone(it))).collect();
    for seq in Snapshot::missing(&read) {
        read.extend(kept.iter().filter(|it| it.seq == seq).map(|it| (seq, Record::clone(it))));
    }
    snapshot.restore(&read).unwrap()
}

fn parts(tail: Seq, cuts: &[u8]) -> Vec<(Seq, Seq)> {
    let ends: BTreeSet<Seq> = cuts.iter().map(|cut| tail * u64::from(*cut) / 16).chain([tail]).collect();
    let mut from = 1;
    let part = |to: Seq| (std::mem::replace(&mut from, to + 1), to);
    ends.into_iter().filter(|to| *to > 0).map(part).collect()
}

/// Some pieces of a life, and what happens after each.
fn lives() -> impl Strategy<Value = Vec<(Vec<u16>, Compaction)>> {
    vec((vec(any::<u16>(), 1..24), compaction()), 1..4)
}

proptest! {
    #![proptest_config(cases_of(Part::Journal, 10_000))]

    #[test]
    fn a_compacted_journal_folds_to_the_same(pieces in lives()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut journal = Journal::new();
            for (choices, how) in &pieces {
                journal.walk.go_on_with(choices);
                journal.read(how).await;
                journal.compact(how).await;
                if how.loses_index {
                    journal.lose_index().await;
                }
            }
            journal.check();
        });
    }
}

/// The property says something: lives are compacted, history goes, and snapshots replace one another.
#[test]
fn lives_that_are_compacted_lose_something_of_every_kind() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut gone: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..2000 {
        let pieces = lives().new_tree(&mut runner).unwrap().current();
        runtime.block_on(async {
            let mut journal = Journal::new();
            for (choices, how) in &pieces {
                journal.walk.go_on_with(choices);
                journal.read(&Compaction { acknowledged: [16; 3], readers: 3, ..how.clone() }).await;
                let age_ms = 30 * HOUR_MS;
                let (keep_last_replies, keep_answered_request_ttl_ms) = (0, 0);
                let is_sparing = false;
                let how =
                    Compaction { age_ms, keep_last_replies, keep_answered_request_ttl_ms, is_sparing, ..how.clone() };
                journal.compact(&how).await;
            }
            for seq in &journal.gone {
                let record = &journal.walk.records[usize::try_from(*seq).unwrap() - 1];
                let mark = if alone(record).is_some() { "+" } else { "" };
                *gone.entry(format!("{}{mark}", record.event.type_name())).or_default() += 1;
            }
        });
    }
    let due = "approval_decided approval_requested approval_requested+ assistant_message budget_warning \
               call_answered call_requested delegate_started history_snapshot output_refused partial_text \
               reminder_cleared reminder_set steering_entered tool_finished tool_started tool_started+ turn_completed turn_edited turn_failed \
               turn_interrupted turn_queued turn_started turn_steered";
    assert_eq!(gone.keys().cloned().collect::<Vec<_>>(), due.split_whitespace().collect::<Vec<_>>());
}
