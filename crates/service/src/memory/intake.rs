//! From records to what memory takes in: whole turns, or only what compactions discarded.
//!
//! It is pure and never goes back: what it says is taken in up to a record is all that memory wants of them.

use std::collections::BTreeMap;

use crate::{
    ids::{Seq, SessionId},
    memory::{Passage, passages::passages},
    service::HistoryItem,
    session::{
        HistoryFold,
        event::{ContextRebuilt, Event, Record},
        message::Message,
    },
};

/// Passages of an open turn up to which nothing is taken in; more is not kept in memory.
const OPEN_PASSAGES_MAX: usize = 2_000;

/// What a compaction took out of the context.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Discarded {
    /// It came about here: what was said later was not in the context.
    pub(crate) before: Seq,
    retained: Vec<(Seq, Seq)>,
    masked: Vec<Seq>,
}

impl Discarded {
    fn of(seq: Seq, rebuilt: &ContextRebuilt) -> Self {
        Self { before: seq, retained: rebuilt.retained.clone(), masked: rebuilt.masked.clone() }
    }

    fn holds(&self, seq: Seq) -> bool {
        let is_retained = self.retained.iter().any(|(from, to)| (*from..=*to).contains(&seq));
        seq < self.before && (!is_retained || self.masked.contains(&seq))
    }

    /// The first message that stayed in the context: all before it is discarded.
    pub(crate) fn stays_from(&self) -> Seq {
        self.retained.iter().map(|(from, _)| *from).min().unwrap_or(self.before)
    }
}

/// Which messages are taken in.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    /// All of every turn that has ended.
    Turns,
    /// What compactions discard, which has to be looked for when they do.
    Discarded,
    /// What this one discarded.
    DiscardedBy(Discarded),
}

/// Folds a session's records into what memory takes in.
#[derive(Debug)]
pub(crate) struct IntakeFold {
    wanted: Wanted,
    history: HistoryFold,
    /// What the open turn has said so far.
    open: Vec<Passage>,
    is_open: bool,
    rebuilt: Option<Discarded>,
    /// What is to be taken in.
    pub(crate) taken: Vec<Passage>,
    /// Everything up to here is.
    pub(crate) up_to: Seq,
    /// The last record that was looked at.
    pub(crate) last: Seq,
    /// What compactions discarded up to there, where that is all that is wanted.
    pub(crate) discarded: Vec<Discarded>,
    /// The session's labels, where a record says them.
    pub(crate) labels: Option<BTreeMap<String, String>>,
    /// The sessions in which the records were written, and those of which they were forked, each with its last record.
    pub(crate) written: BTreeMap<SessionId, Seq>,
}

impl IntakeFold {
    /// Takes in what follows the record `after`.
    pub(crate) fn new(wanted: Wanted, after: Seq) -> Self {
        Self {
            wanted,
            history: HistoryFold::default(),
            open: Vec::new(),
            is_open: false,
            rebuilt: None,
            taken: Vec::new(),
            up_to: after,
            last: after,
            discarded: Vec::new(),
            labels: None,
            written: BTreeMap::new(),
        }
    }

    /// The same within a turn that is open.
    pub(crate) fn within_turn(wanted: Wanted, after: Seq) -> Self {
        Self { is_open: true, ..Self::new(wanted, after) }
    }

    /// The next record, and the `turn_queued` that holds its prompt, where there is one.
    pub(crate) fn push(&mut self, record: &Record, queued: Option<&Record>) {
        let mut item = self.history.push(record);
        if self.history.queued_at().is_some() {
            item = self.history.queued_prompt(queued.unwrap_or(record));
        }
        self.last = record.seq;
        self.written.insert(record.session_id, record.seq);
        match &record.event {
            Event::SessionForked(forked) => drop(self.written.insert(forked.parent, forked.at)),
            Event::SessionCreated(created) => self.labels = Some(created.labels.clone()),
            Event::SessionUpdated(updated) => self.labels = Some(updated.labels.clone()),
            Event::TurnStarted(_) => self.is_open = true,
            Event::ContextRebuilt(rebuilt) => self.rebuilt = Some(Discarded::of(record.seq, rebuilt)),
            _ => {}
        }
        // Between messages no call lacks its result, so that one may begin to read there.
        let is_between = item.as_ref().is_some_and(|item| !matches!(item.message, Message::BlockAssistant { .. }));
        if let Some(item) = item {
            self.is_open = true;
            self.say(&item, record);
        }
        if is_end(&record.event) {
            self.is_open = false;
        }
        let is_rebuilt = matches!(record.event, Event::CompactionCompleted(_));
        if !self.is_open || is_rebuilt || (is_between && self.open.len() >= OPEN_PASSAGES_MAX) {
            self.up_to = record.seq;
            self.taken.append(&mut self.open);
        }
        if is_rebuilt && matches!(self.wanted, Wanted::Discarded) {
            self.discarded.extend(self.rebuilt.take());
        }
    }

    fn say(&mut self, item: &HistoryItem, record: &Record) {
        let is_wanted = match &self.wanted {
            Wanted::Turns => true,
            Wanted::Discarded => false,
            Wanted::DiscardedBy(discarded) => discarded.holds(item.seq),
        };
        if is_wanted {
            self.open.extend(passages(item, record.time));
        }
    }

    /// All that was wanted, whether its turn has ended or not.
    pub(crate) fn all(mut self) -> Vec<Passage> {
        self.taken.append(&mut self.open);
        self.taken
    }
}

/// Whether a turn ends.
const fn is_end(event: &Event) -> bool {
    matches!(event, Event::TurnCompleted(_) | Event::TurnFailed(_) | Event::TurnInterrupted(_))
}
