//! Fold from records to passages for memory: whole turns, or only discarded messages.
//!
//! It is pure and never goes back: what it took up to a record is all that memory wants of them.

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

/// Most passages of an open turn to hold back until its end.
const OPEN_PASSAGES_MAX: usize = 2_000;

/// Messages that a compaction removed from the context: its step 10.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Discarded {
    /// Seq of the compaction: later messages were not in the context.
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

    /// Returns the first message that stayed in the context: all before it are discarded.
    pub(crate) fn stays_from(&self) -> Seq {
        self.retained.iter().map(|(from, _)| *from).min().unwrap_or(self.before)
    }
}

/// Messages to take in.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    /// All messages of every turn that has ended.
    Turns,
    /// Messages that compactions discard, which have to be searched for then.
    Discarded,
    /// Messages that this compaction discarded.
    DiscardedBy(Discarded),
}

/// Fold of a session's records into passages.
#[derive(Debug)]
pub(crate) struct IntakeFold {
    wanted: Wanted,
    history: HistoryFold,
    /// Passages of the open turn so far.
    open: Vec<Passage>,
    is_open: bool,
    rebuilt: Option<Discarded>,
    /// Passages to take in.
    pub(crate) taken: Vec<Passage>,
    /// Seq up to which they are complete.
    pub(crate) up_to: Seq,
    /// Last record that was folded.
    pub(crate) last: Seq,
    /// Compactions up to there, if only discarded messages are wanted.
    pub(crate) discarded: Vec<Discarded>,
    /// Labels of the session, if a record has them.
    pub(crate) labels: Option<BTreeMap<String, String>>,
    /// True if memory takes the session in, if a record says it.
    pub(crate) is_indexed: Option<bool>,
    /// Sessions that wrote the records, and parents of forks, each with its last record.
    pub(crate) written: BTreeMap<SessionId, Seq>,
}

impl IntakeFold {
    /// Begins after the record `after`.
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
            is_indexed: None,
            written: BTreeMap::new(),
        }
    }

    /// Begins after the record `after`, within an open turn.
    pub(crate) fn within_turn(wanted: Wanted, after: Seq) -> Self {
        Self { is_open: true, ..Self::new(wanted, after) }
    }

    /// Folds the next record, with the event that has its prompt, if there is one.
    pub(crate) fn push(&mut self, record: &Record, queued: Option<&Record>) {
        let item = self.history.push(record);
        let prompt = self.history.queued_prompt(queued.unwrap_or(record));
        self.last = record.seq;
        self.written.insert(record.session_id, record.seq);
        match &record.event {
            Event::SessionForked(forked) => drop(self.written.insert(forked.parent, forked.at)),
            Event::SessionCreated(created) => {
                (self.labels, self.is_indexed) = (Some(created.labels.clone()), Some(created.memory.index));
            }
            Event::SessionUpdated(updated) => self.labels = Some(updated.labels.clone()),
            Event::TurnStarted(_) => self.is_open = true,
            Event::ContextRebuilt(rebuilt) => self.rebuilt = Some(Discarded::of(record.seq, rebuilt)),
            _ => {}
        }
        // Between messages no call lacks its result, so that reading may begin there.
        let last = prompt.as_ref().or(item.as_ref());
        let is_between = last.is_some_and(|item| !matches!(item.message, Message::BlockAssistant { .. }));
        for item in item.into_iter().chain(prompt) {
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

    /// Returns all wanted passages, even those of an open turn.
    pub(crate) fn all(mut self) -> Vec<Passage> {
        self.taken.append(&mut self.open);
        self.taken
    }
}

/// Returns true if the event ends a turn, or what was said without one.
const fn is_end(event: &Event) -> bool {
    let is_of_turn = matches!(event, Event::TurnCompleted(_) | Event::TurnFailed(_) | Event::TurnInterrupted(_));
    is_of_turn || matches!(event, Event::HistoryGiven(_))
}
