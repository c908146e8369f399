//! What one reader is behind in: sessions with records that it may not be done with, and whose turn it is.
//!
//! It knows seqs and never reads. What it holds is a hint: too much of it costs a look, too little a record.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::ids::{Seq, SessionId};

/// The sessions that a reader is behind in.
#[derive(Debug, Default)]
pub(super) struct Feed {
    behind: HashMap<SessionId, Behind>,
    /// The sessions by their place in the queue. Who is served goes to its end, so that none waits for ever.
    queue: BTreeMap<u64, SessionId>,
    next_place: u64,
    /// Deleted sessions, for a reader that keeps something of each.
    gone: BTreeSet<SessionId>,
    /// Whether sessions that are gone are remembered.
    keeps_gone: bool,
}

#[derive(Clone, Copy, Debug)]
struct Behind {
    place: u64,
    last_seq: Seq,
    /// `None` until somebody looks.
    checkpoint: Option<Seq>,
}

/// A session whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) session_id: SessionId,
    /// The reader is done with it up to here.
    pub(super) checkpoint: Seq,
    /// The last record that is known of.
    pub(super) last_seq: Seq,
}

impl Feed {
    pub(super) fn new(keeps_gone: bool) -> Self {
        Self { keeps_gone, ..Self::default() }
    }

    /// A session has records up to `last_seq`.
    pub(super) fn touched(&mut self, session_id: SessionId, last_seq: Seq) {
        if let Some(behind) = self.behind.get_mut(&session_id) {
            behind.last_seq = behind.last_seq.max(last_seq);
            return;
        }
        let place = self.place(session_id);
        self.behind.insert(session_id, Behind { place, last_seq, checkpoint: None });
    }

    /// The reader is to begin anew with a session that has records up to `last_seq`.
    pub(super) fn again(&mut self, session_id: SessionId, last_seq: Seq) {
        self.remove(session_id);
        self.touched(session_id, last_seq);
    }

    /// What is known of checkpoints is to be looked at again.
    pub(super) fn unlearn(&mut self) {
        self.behind.values_mut().for_each(|behind| behind.checkpoint = None);
    }

    /// The sessions that the reader may be behind in, with their last records.
    pub(super) fn behind(&self) -> HashMap<SessionId, Seq> {
        self.behind.iter().map(|(session_id, behind)| (*session_id, behind.last_seq)).collect()
    }

    /// Whether the reader may be behind in a session up to `seq`.
    pub(super) fn is_behind(&self, session_id: SessionId, seq: Seq) -> bool {
        self.behind.get(&session_id).is_some_and(|behind| behind.checkpoint.is_none_or(|checkpoint| checkpoint < seq))
    }

    /// The reader was found to be done with a session up to `checkpoint`.
    pub(super) fn learned(&mut self, session_id: SessionId, checkpoint: Seq) {
        let Some(behind) = self.behind.get_mut(&session_id) else { return };
        behind.checkpoint = behind.checkpoint.max(Some(checkpoint));
        if behind.checkpoint >= Some(behind.last_seq) {
            self.remove(session_id);
        }
    }

    /// The reader has come to `checkpoint`: others are next.
    pub(super) fn moved(&mut self, session_id: SessionId, checkpoint: Seq) {
        self.learned(session_id, checkpoint);
        self.put_off(session_id);
    }

    /// Others are next.
    pub(super) fn put_off(&mut self, session_id: SessionId) {
        let Some(behind) = self.behind.get(&session_id) else { return };
        self.queue.remove(&behind.place);
        let place = self.place(session_id);
        if let Some(behind) = self.behind.get_mut(&session_id) {
            behind.place = place;
        }
    }

    /// Nothing more can be read of a session, whose last record was known to be `last_seq`.
    pub(super) fn exhausted(&mut self, session_id: SessionId, last_seq: Seq) {
        if self.behind.get(&session_id).is_some_and(|behind| behind.last_seq <= last_seq) {
            self.remove(session_id);
        }
    }

    /// A session is deleted.
    pub(super) fn gone(&mut self, session_id: SessionId) {
        self.remove(session_id);
        if self.keeps_gone {
            self.gone.insert(session_id);
        }
    }

    /// The deleted sessions that the reader has yet to forget.
    pub(super) fn gone_sessions(&self) -> Vec<SessionId> {
        self.gone.iter().copied().collect()
    }

    /// The reader has forgotten a deleted session.
    pub(super) fn forgot(&mut self, session_id: SessionId) {
        self.gone.remove(&session_id);
    }

    /// Sessions among the first `among`, at most `limit`, whose checkpoints nobody has looked at.
    pub(super) fn unknown(&self, among: usize, limit: usize) -> Vec<SessionId> {
        let is_unknown = |id: &&SessionId| self.behind.get(id).is_some_and(|behind| behind.checkpoint.is_none());
        self.queue.values().take(among).filter(is_unknown).take(limit).copied().collect()
    }

    /// The first sessions in the queue whose checkpoints are known.
    pub(super) fn due(&self, limit: usize) -> Vec<Due> {
        let due = |session_id: &SessionId| {
            let behind = self.behind.get(session_id)?;
            Some(Due { session_id: *session_id, checkpoint: behind.checkpoint?, last_seq: behind.last_seq })
        };
        self.queue.values().take(limit).filter_map(due).collect()
    }

    /// Sessions and records that the reader is not done with, as far as checkpoints are known.
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
