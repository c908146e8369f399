//! Plan of a journal compaction: a pure function, without a clock and without a disk.
//!
//! Each dropped record is justified by itself: by a newer one that stays and says all that it said, or by a result that
//! stays. Messages are dropped only on request, turn by turn or answer by answer, each within one part of the journal,
//! so that a crash between two parts leaves no half of it; a `history_snapshot` then has the counters.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::{
    clock::Timestamp,
    ids::{Seq, TurnNumber},
    options::Budget,
    service::CompactionPolicy,
    session::{
        KEY_KEPT_MS, Session,
        event::{Event, Record, of_session},
        reminder::SystemReminderType,
    },
};

/// Bytes that a part must lose to be rewritten on schedule.
const WORTH_BYTES: usize = 64 * 1024;
/// Or the share of a sealed part: a quarter. One that is still written must lose the bytes: it is sealed for that, and
/// parts are never joined again, so that a share of a short one would leave a small file for each turn.
const WORTH_SHARE: usize = 4;

/// Record without its bodies.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Brief {
    seq: Seq,
    time: Timestamp,
    turn: Option<TurnNumber>,
    /// Bytes of its line.
    bytes: usize,
    what: What,
}

#[derive(Clone, Debug, PartialEq)]
enum What {
    /// Only the latest one of its key counts.
    Latest(Key),
    /// Snapshot of the history, and the time up to which it forgets keys.
    Snapshot(Timestamp),
    Request(Call),
    /// Part of a step or a call that no other record says: it goes with the step's answer, and not before; true with an
    /// idempotency key.
    Detail(bool),
    Result(Call),
    Reply,
    /// Prompt that waited, or its place; true with an idempotency key.
    Waited(bool),
    Started {
        has_key: bool,
        continues: Option<TurnNumber>,
    },
    Ended,
    /// Any other event, which stays.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Reminder(SystemReminderType),
    Warning(Budget),
    Partial(TurnNumber, u32),
}

/// True for the approval of a call, and the call's id.
type Call = (bool, String);

impl Brief {
    pub(crate) fn of(record: &Record, bytes: usize) -> Self {
        let what = match &record.event {
            Event::ReminderSet(set) => What::Latest(Key::Reminder(set.kind.clone())),
            Event::ReminderCleared(cleared) => What::Latest(Key::Reminder(cleared.kind.clone())),
            Event::BudgetWarning(warning) => What::Latest(Key::Warning(warning.budget)),
            Event::PartialText(partial) => {
                record.turn.map_or(What::Other, |turn| What::Latest(Key::Partial(turn, partial.step)))
            }
            Event::HistorySnapshot(snapshot) => What::Snapshot(snapshot.keys_up_to),
            // It alone names what a killed call replaced.
            Event::ToolStarted(started) if !started.files.is_empty() => What::Detail(false),
            Event::ToolStarted(started) => What::Request((false, started.call_id.clone())),
            Event::CallRequested(request) => What::Request((false, request.call_id.clone())),
            Event::DelegateStarted(started) => What::Request((false, started.call_id.clone())),
            // The answer is kept as long as a key.
            Event::CallAnswered(_) => What::Detail(true),
            Event::ToolFinished(finished) => What::Result((false, finished.call_id.clone())),
            // It alone says what its decision answers: no call has the question's id.
            Event::ApprovalRequested(request) if request.form.is_some() => What::Detail(false),
            Event::ApprovalRequested(request) => What::Request((true, request.call_id.clone())),
            Event::ApprovalDecided(decided) => What::Result((true, decided.call_id.clone())),
            Event::AssistantMessage(_) => What::Reply,
            Event::TurnQueued(queued) => What::Waited(queued.key.is_some()),
            Event::TurnSteered(steered) => What::Waited(steered.key.is_some()),
            Event::SteeringEntered(_) | Event::TurnEdited(_) => What::Waited(false),
            // It refuses the answer before it.
            Event::OutputRefused(_) => What::Detail(false),
            Event::TurnStarted(started) => {
                What::Started { has_key: started.key.is_some(), continues: started.continues }
            }
            Event::TurnCompleted(_) | Event::TurnFailed(_) | Event::TurnInterrupted(_) => What::Ended,
            of_session!()
            | Event::HistoryGiven(_)
            | Event::TurnDequeued(_)
            | Event::Pinned(_)
            | Event::Unpinned(_)
            | Event::ToolAllowed(_)
            | Event::LogTailRepaired(_)
            | Event::RecordsLost(_)
            | Event::ContextRebuilt(_)
            | Event::CompactionStarted(_)
            | Event::CompactionCompleted(_)
            | Event::CompactionFailed(_)
            | Event::SummaryUnused(_)
            | Event::CompactionUndone(_)
            | Event::Unknown(_) => What::Other,
        };
        Self { seq: record.seq, time: record.time, turn: record.turn, bytes, what }
    }

    /// Returns its key, if only the latest one of that counts.
    const fn key(&self) -> Option<&Key> {
        match &self.what {
            What::Latest(key) => Some(key),
            _ => None,
        }
    }
}

/// Bounds of a plan.
pub(crate) struct Bounds<'a> {
    pub(crate) policy: CompactionPolicy,
    pub(crate) now: Timestamp,
    /// Ranges of the journal, in order, each of which is rewritten as a whole. The last one is still written.
    pub(crate) parts: &'a [(Seq, Seq)],
    /// True if a part stays unchanged of which little would go.
    pub(crate) is_sparing: bool,
}

impl Bounds<'_> {
    /// Returns the time before which records are old enough to be dropped: without an age, all until now.
    pub(crate) fn older_than(&self) -> Timestamp {
        match self.policy.min_record_age_ms {
            0 => Timestamp::from_millis(self.now.as_millis().saturating_add(1)),
            age_ms => self.ago(age_ms),
        }
    }

    fn ago(&self, ms: u64) -> Timestamp {
        Timestamp::from_millis(self.now.as_millis().saturating_sub_unsigned(ms))
    }

    /// Returns the index of the part with a record.
    fn part(&self, seq: Seq) -> usize {
        self.parts.partition_point(|(_, to)| *to < seq)
    }

    /// Returns true if one part holds all of these records.
    fn are_together(&self, records: &[&Brief]) -> bool {
        records.windows(2).all(|pair| self.part(pair[0].seq) == self.part(pair[1].seq))
    }

    /// Returns true if dropping these records is worth rewriting a part.
    fn is_worth(&self, part: &[Brief], goes: &[&Brief]) -> bool {
        let whole: usize = part.iter().map(|record| record.bytes).sum();
        let gone: usize = goes.iter().map(|record| record.bytes).sum();
        let is_sealed = part.last().is_some_and(|last| self.part(last.seq) + 1 < self.parts.len());
        !self.is_sparing || gone >= WORTH_BYTES || (is_sealed && gone * WORTH_SHARE >= whole)
    }
}

/// Records that stay and records to drop.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    /// Records that stay, of those that were looked at.
    pub(crate) keep: BTreeSet<Seq>,
    pub(crate) dropped: BTreeSet<Seq>,
    /// Snapshot to record before messages are dropped.
    pub(crate) history: Option<History>,
    /// True if a record stays only until it is older, or its turn has ended.
    pub(crate) is_early: bool,
}

/// Extent of the dropped history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct History {
    pub(crate) pruned_to: Seq,
    pub(crate) keys_up_to: Timestamp,
}

/// Messages that go together or not at all: a turn, or an answer of it.
struct Said<'a> {
    records: Vec<&'a Brief>,
    /// Last end of the turn: until then it may have been in the context.
    until: Option<Seq>,
}

/// Plans for the records up to the watermark, in order; the session is the fold of all its records.
pub(crate) fn plan(records: &[Brief], session: &Session, bounds: &Bounds<'_>) -> Plan {
    let (said, is_said_early) =
        bounds.policy.keep_last_replies.map_or_else(Default::default, |last| history(records, session, bounds, last));
    let seqs: HashSet<Seq> = said.iter().flat_map(|said| &said.records).map(|record| record.seq).collect();
    let (dropped, is_early) = dropped(records, session, bounds, &seqs);
    let goes = said.iter().filter(|said| said.records.iter().all(|record| dropped.contains(&record.seq)));
    let history = goes
        .filter_map(|said| said.until)
        .max()
        .map(|pruned_to| History { pruned_to, keys_up_to: bounds.ago(KEY_KEPT_MS.unsigned_abs()) });
    let keep = records.iter().map(|record| record.seq).filter(|seq| !dropped.contains(seq)).collect();
    Plan { keep, dropped, history, is_early: is_early || is_said_early }
}

/// Finds records whose content another one, which stays, has too, and adds them to those that were `said`; leaves out
/// the parts for which that is too little. Returns true if there are more that are too young.
fn dropped(records: &[Brief], session: &Session, bounds: &Bounds<'_>, said: &HashSet<Seq>) -> (BTreeSet<Seq>, bool) {
    let (mut latest, mut answered, mut snapshot, mut open_from) = (HashMap::new(), HashSet::new(), None, None);
    let open = session.open_turn().map(|open| open.turn);
    for record in records {
        match &record.what {
            What::Latest(key) => drop(latest.insert(key, record.seq)),
            What::Snapshot(keys_up_to) => snapshot = Some((record.seq, *keys_up_to)),
            What::Result(call) => drop(answered.insert(call)),
            What::Started { .. } if open.is_some() && record.turn == open => open_from = Some(record.seq),
            _ => {}
        }
    }
    let is_redundant = |record: &&Brief| match &record.what {
        What::Latest(key) => latest.get(key) != Some(&record.seq),
        // If the clock went back, a newer one forgets fewer keys.
        What::Snapshot(keys_up_to) => snapshot.is_some_and(|(seq, newer)| seq != record.seq && newer >= *keys_up_to),
        What::Request(call) => answered.contains(call),
        What::Detail(_)
        | What::Result(_)
        | What::Reply
        | What::Waited(_)
        | What::Started { .. }
        | What::Ended
        | What::Other => false,
    };
    let ttl_ms = bounds.policy.keep_answered_request_ttl_ms;
    let is_within_its_grace = |record: &Brief| ttl_ms > 0 && record.time >= bounds.ago(ttl_ms);
    let may_go = |record: &Brief| {
        let is_of_the_open_turn = open_from.is_some_and(|from| record.seq >= from);
        let is_graceful = matches!(record.what, What::Request(_)) && is_within_its_grace(record);
        let is_old = record.time < bounds.older_than() && !is_graceful;
        is_old && record.seq < session.last_seq && !is_of_the_open_turn
    };
    let (mut dropped, mut is_early) = (BTreeSet::new(), false);
    // Of one key the older ones are dropped first: a fork between two dropped ones must not find one that did not count
    // there.
    let mut held: HashSet<&Key> = HashSet::new();
    for part in records.chunk_by(|one, other| bounds.part(one.seq) == bounds.part(other.seq)) {
        let mut goes = Vec::new();
        for record in part {
            if said.contains(&record.seq) {
                goes.push(record);
                continue;
            }
            if !is_redundant(&record) {
                continue;
            }
            let is_held = record.key().is_some_and(|key| held.contains(key));
            if !is_held && may_go(record) {
                goes.push(record);
                continue;
            }
            is_early |= !is_held;
            held.extend(record.key());
        }
        match bounds.is_worth(part, &goes) {
            true => dropped.extend(goes.iter().map(|record| record.seq)),
            false => held.extend(goes.iter().filter_map(|record| record.key())),
        }
    }
    (dropped, is_early)
}

/// Turn with those that continued it after an interrupt.
#[derive(Default)]
struct Chain<'a> {
    records: Vec<&'a Brief>,
    turns: Vec<TurnNumber>,
    started: usize,
    ended: usize,
}

impl<'a> Chain<'a> {
    fn add(&mut self, record: &'a Brief) {
        match record.what {
            What::Started { .. } => {
                self.turns.extend(record.turn);
                self.started += 1;
            }
            What::Ended => self.ended += 1,
            _ => {}
        }
        if !matches!(record.what, What::Other) {
            self.records.push(record);
        }
    }

    /// Groups its answers, each with its calls' requests and results.
    fn steps(&self) -> Vec<Vec<&'a Brief>> {
        let mut steps: Vec<Vec<&Brief>> = Vec::new();
        for record in &self.records {
            match (&record.what, steps.last_mut()) {
                (What::Reply, _) => steps.push(vec![record]),
                (What::Request(_) | What::Detail(_) | What::Result(_), Some(step)) => step.push(record),
                _ => {}
            }
        }
        steps
    }

    /// Returns true if an idempotency key of one of its turns is younger than `time`.
    fn has_key_since(&self, time: Timestamp) -> bool {
        let has_key =
            |what: &What| matches!(what, What::Waited(true) | What::Detail(true) | What::Started { has_key: true, .. });
        self.records.iter().any(|record| has_key(&record.what) && record.time > time)
    }
}

/// Finds messages of turns that have ended and left the live context, except the `last` replies; returns true if there
/// are more that are too young.
fn history<'a>(records: &'a [Brief], session: &Session, bounds: &Bounds<'_>, last: usize) -> (Vec<Said<'a>>, bool) {
    let mut first_of: BTreeMap<TurnNumber, TurnNumber> = BTreeMap::new();
    let mut chains: BTreeMap<TurnNumber, Chain<'_>> = BTreeMap::new();
    for record in records {
        let Some(turn) = record.turn else { continue };
        if let What::Started { continues: Some(interrupted), .. } = record.what {
            let first = first_of.get(&interrupted).copied().unwrap_or(interrupted);
            first_of.insert(turn, first);
        }
        chains.entry(first_of.get(&turn).copied().unwrap_or(turn)).or_default().add(record);
    }
    let live: HashSet<TurnNumber> = session.context.entries().iter().map(|entry| entry.turn).collect();
    chains.retain(|_, chain| {
        let is_live = chain.turns.iter().any(|turn| live.contains(turn));
        !is_live && !chain.records.iter().any(|record| session.context.may_return(record.seq))
    });
    let replies = chains.values().flat_map(|chain| &chain.records).filter(|record| record.what == What::Reply);
    let mut newest: Vec<Seq> = replies.map(|record| record.seq).collect();
    newest.sort_unstable();
    let newest: HashSet<Seq> = newest.into_iter().rev().take(last).collect();
    // The latest end below the watermark stays too: a turn above it may continue that one.
    let ended = records.iter().rev().find(|record| record.what == What::Ended).and_then(|record| record.turn);
    let ends = [session.last_end().map(|end| end.turn), ended];
    let is_over = |chain: &&Chain<'_>| {
        let is_last = chain.turns.iter().any(|turn| ends.contains(&Some(*turn)));
        chain.started > 0 && chain.started == chain.ended && !is_last
    };
    let keys_up_to = bounds.ago(KEY_KEPT_MS.unsigned_abs());
    let is_old = |records: &[&Brief]| records.iter().all(|record| record.time < bounds.older_than());
    let may_go = |records: &[&Brief]| is_old(records) && bounds.are_together(records);
    let (mut said, mut is_early) = (Vec::new(), false);
    for chain in chains.values().filter(is_over) {
        let has_key = chain.has_key_since(keys_up_to);
        is_early |= has_key || !is_old(&chain.records);
        if has_key {
            continue;
        }
        let mut goes = chain.steps();
        let is_kept = |step: &Vec<&Brief>| step.iter().any(|record| newest.contains(&record.seq));
        if !goes.iter().any(is_kept) && may_go(&chain.records) {
            goes = vec![chain.records.clone()];
        } else {
            goes.retain(|step| !is_kept(step) && may_go(step));
        }
        let until = chain.records.last().map(|record| record.seq);
        said.extend(goes.into_iter().map(|records| Said { records, until }));
    }
    (said, is_early)
}
