//! State of the store journal: the marks that count, and those that wait to be written.

use std::collections::{BTreeSet, HashMap, VecDeque};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    End,
    marks::{Kept, marks_of, weight_of},
};
use meerkat_words::{
    ids::{Seq, SessionId},
    store::{ReaderMarks, StoreError},
};

/// Idle sessions whose end is remembered; older ones are trusted without it.
pub(super) const RESTING_MAX: usize = 1024;
/// Approximate bytes of a mark.
pub(super) const MARK_BYTES: u64 = 160;

/// End of a session's journal when it became idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resting {
    /// The session.
    pub session_id: SessionId,
    /// Seq of the last record.
    pub seq: Seq,
    /// Chain value after it.
    pub chain: u64,
}

impl Resting {
    /// Returns it as a journal's end.
    pub const fn end(&self) -> End {
        End { seq: self.seq, chain: self.chain }
    }
}

#[derive(Clone)]
pub(super) enum Marked {
    Active(SessionId),
    Resting(Resting),
    Kept(Kept),
    Gone(SessionId),
}

/// Callback for a written, or for a durable mark.
pub(crate) type Done = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

#[derive(Default)]
pub(super) struct State {
    pub(super) active: BTreeSet<SessionId>,
    pub(super) resting: HashMap<SessionId, Resting>,
    /// Idle sessions, longest idle first; some may be active again.
    order: VecDeque<SessionId>,
    pub(super) readers: ReaderMarks,
    /// Marks of a newer version, in order.
    newer: Vec<(u16, Bytes)>,
    pub(super) pending: Vec<Pending>,
    pub(super) is_writing: bool,
}

pub(super) struct Pending {
    pub(super) marked: Marked,
    /// Called once it is written, before the sync.
    pub(super) written: Option<Done>,
    pub(super) done: Done,
}

impl State {
    pub(super) fn apply(&mut self, marked: Marked) {
        match marked {
            Marked::Active(id) => {
                self.active.insert(id);
            }
            Marked::Gone(id) => {
                self.active.remove(&id);
                self.forget_end(id);
            }
            Marked::Resting(resting) => {
                self.active.remove(&resting.session_id);
                if self.resting.insert(resting.session_id, resting).is_some() {
                    self.order.retain(|id| *id != resting.session_id);
                }
                self.order.push_back(resting.session_id);
                if self.order.len() > RESTING_MAX
                    && let Some(oldest) = self.order.pop_front()
                {
                    self.resting.remove(&oldest);
                }
            }
            Marked::Kept(Kept::Of(mark)) => self.readers.apply(mark),
            Marked::Kept(Kept::Newer(kind, line)) => self.newer.push((kind, line)),
        }
    }

    pub(super) fn forget_end(&mut self, id: SessionId) {
        if self.resting.remove(&id).is_some() {
            self.order.retain(|resting| *resting != id);
        }
    }

    /// Lists marks that reproduce this state.
    pub(super) fn marks(&self) -> impl Iterator<Item = Marked> {
        let resting = self.order.iter().filter_map(|id| self.resting.get(id)).map(|it| Marked::Resting(*it));
        let active = self.active.iter().map(|id| Marked::Active(*id));
        let readers = marks_of(&self.readers).map(Kept::Of);
        let newer = self.newer.iter().map(|(kind, line)| Kept::Newer(*kind, line.clone()));
        resting.chain(active).chain(readers.chain(newer).map(Marked::Kept))
    }

    /// Estimates the least bytes of those marks, without idle sessions.
    pub(super) fn kept_bytes(&self) -> u64 {
        MARK_BYTES * (self.active.len() + weight_of(&self.readers) + self.newer.len()) as u64
    }
}
