//! Sessions that one reader is behind in, and whose turn it is.
//!
//! It knows seqs and never reads. Its content is a hint: one session too many costs a look, one too few loses a record.

use std::collections::{BTreeMap, HashMap};

use crate::ids::{Seq, SessionId};

/// Most sessions that the feed of a registered reader has; a scan finds the others when half of them are done.
pub(super) const BEHIND_MAX: usize = if cfg!(test) { 16 } else { 10_000 };

/// Sessions that a reader is behind in.
#[derive(Debug, Default)]
pub(super) struct Feed {
    behind: HashMap<SessionId, Behind>,
    /// Sessions by their place in the queue. One that was served goes to its end, so that none waits for ever.
    queue: BTreeMap<u64, SessionId>,
    next_place: u64,
    /// Deleted sessions that the reader has yet to forget, each with the number of its last deletion: an id may come
    /// back and be deleted again.
    deleted: BTreeMap<SessionId, u64>,
    /// True for a reader that keeps something of each session. There are few, and they wait for each session.
    keeps_deleted: bool,
    /// True if there was no room for a session: a scan of all sessions finds it again.
    pub(super) is_cut: bool,
    /// Session, by the order of the rows, up to which a scan that did not end has come.
    pub(super) scanned_to: Option<SessionId>,
}

#[derive(Clone, Copy, Debug)]
struct Behind {
    place: u64,
    last_seq: Seq,
    /// `None` until it is looked up.
    checkpoint: Option<Seq>,
}

/// Session whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) session_id: SessionId,
    /// Seq up to which the reader is done with it.
    pub(super) checkpoint: Seq,
    /// Its last known record.
    pub(super) last_seq: Seq,
}

/// Deletion of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deletion {
    pub(crate) session_id: SessionId,
    number: u64,
}

impl Feed {
    pub(super) fn new(keeps_deleted: bool) -> Self {
        Self { keeps_deleted, ..Self::default() }
    }

    /// Notes that a session has records up to `last_seq`; returns false if there is no room for it.
    pub(super) fn touched(&mut self, session_id: SessionId, last_seq: Seq) -> bool {
        if let Some(behind) = self.behind.get_mut(&session_id) {
            behind.last_seq = behind.last_seq.max(last_seq);
            return true;
        }
        if !self.keeps_deleted && self.behind.len() >= BEHIND_MAX {
            self.is_cut = true;
            return false;
        }
        let place = self.place(session_id);
        self.behind.insert(session_id, Behind { place, last_seq, checkpoint: None });
        true
    }

    /// Returns true if there is room for sessions for which there was none.
    pub(super) fn has_room_again(&self) -> bool {
        self.is_cut && self.behind.len() <= BEHIND_MAX / 2
    }

    /// Makes the reader begin again with a session that has records up to `last_seq`.
    pub(super) fn restart(&mut self, session_id: SessionId, last_seq: Seq) {
        self.remove(session_id);
        self.touched(session_id, last_seq);
    }

    /// Forgets all checkpoints, so that they are looked up again.
    pub(super) fn forget_checkpoints(&mut self) {
        self.behind.values_mut().for_each(|behind| behind.checkpoint = None);
    }

    /// Lists the sessions that the reader may be behind in, with their last records.
    pub(super) fn behind(&self) -> HashMap<SessionId, Seq> {
        self.behind.iter().map(|(session_id, behind)| (*session_id, behind.last_seq)).collect()
    }

    /// Returns true if the reader may be behind in a session up to `seq`.
    pub(super) fn is_behind(&self, session_id: SessionId, seq: Seq) -> bool {
        self.behind.get(&session_id).is_some_and(|behind| behind.checkpoint.is_none_or(|checkpoint| checkpoint < seq))
    }

    /// Notes that the reader is done with a session up to `checkpoint`.
    pub(super) fn set_checkpoint(&mut self, session_id: SessionId, checkpoint: Seq) {
        let Some(behind) = self.behind.get_mut(&session_id) else { return };
        behind.checkpoint = behind.checkpoint.max(Some(checkpoint));
        if behind.checkpoint >= Some(behind.last_seq) {
            self.remove(session_id);
        }
    }

    /// Notes that the reader has come to `checkpoint`, and makes others next.
    pub(super) fn moved(&mut self, session_id: SessionId, checkpoint: Seq) {
        self.set_checkpoint(session_id, checkpoint);
        self.requeue(session_id);
    }

    /// Moves a session to the end of the queue.
    pub(super) fn requeue(&mut self, session_id: SessionId) {
        let Some(behind) = self.behind.get(&session_id) else { return };
        self.queue.remove(&behind.place);
        let place = self.place(session_id);
        if let Some(behind) = self.behind.get_mut(&session_id) {
            behind.place = place;
        }
    }

    /// Rests a session of which nothing more can be read until it has records after `last_seq`.
    pub(super) fn rest_until(&mut self, session_id: SessionId, last_seq: Seq) {
        if self.behind.get(&session_id).is_some_and(|behind| behind.last_seq <= last_seq) {
            self.remove(session_id);
        }
    }

    /// Notes that a session was deleted.
    pub(super) fn delete(&mut self, session_id: SessionId) {
        self.remove(session_id);
        if self.keeps_deleted {
            self.deleted.insert(session_id, self.next_place);
            self.next_place += 1;
        }
    }

    /// Lists the deleted sessions that the reader has yet to forget.
    pub(super) fn deletions(&self) -> Vec<Deletion> {
        self.deleted.iter().map(|(&session_id, &number)| Deletion { session_id, number }).collect()
    }

    /// Notes that the reader has forgotten a deleted session, unless it was deleted again since.
    pub(super) fn forgot(&mut self, deletion: Deletion) {
        if self.deleted.get(&deletion.session_id) == Some(&deletion.number) {
            self.deleted.remove(&deletion.session_id);
        }
    }

    /// Lists sessions among the first `among`, at most `limit`, whose checkpoints were not looked up yet.
    pub(super) fn unknown(&self, among: usize, limit: usize) -> Vec<SessionId> {
        let is_unknown = |id: &&SessionId| self.behind.get(id).is_some_and(|behind| behind.checkpoint.is_none());
        self.queue.values().take(among).filter(is_unknown).take(limit).copied().collect()
    }

    /// Lists the first sessions in the queue whose checkpoints are known.
    pub(super) fn due(&self, limit: usize) -> Vec<Due> {
        let due = |session_id: &SessionId| {
            let behind = self.behind.get(session_id)?;
            Some(Due { session_id: *session_id, checkpoint: behind.checkpoint?, last_seq: behind.last_seq })
        };
        self.queue.values().take(limit).filter_map(due).collect()
    }

    /// Counts the sessions and records that the reader is not done with, as far as checkpoints are known.
    pub(super) fn lag(&self) -> (u64, u64) {
        let known = self.behind.values().filter_map(|behind| Some(behind.last_seq.saturating_sub(behind.checkpoint?)));
        known.fold((0, 0), |(sessions, records), behind| (sessions + 1, records + behind))
    }

    fn place(&mut self, session_id: SessionId) -> u64 {
        let place = self.next_place;
        self.next_place += 1;
        self.queue.insert(place, session_id);
        place
    }

    fn remove(&mut self, session_id: SessionId) {
        if let Some(behind) = self.behind.remove(&session_id) {
            self.queue.remove(&behind.place);
        }
    }
}
