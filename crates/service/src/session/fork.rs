//! A fork: a new identity on a new journal, which begins with another session's records to the letter.
//!
//! Its journal folds like any other: the parent's records name the parent until `session_forked` names the fork.
//! No turn is ever cut in two.

use std::collections::BTreeMap;

use super::{
    SessionFields,
    event::{Event, Record, SessionForked, SessionUpdated},
};
use crate::{
    SessionError,
    clock::Timestamp,
    ids::{Seq, SessionId, TurnNumber},
};

/// Point at which a fork is cut off from its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForkPoint {
    /// After this event.
    After(Seq),
    /// After the event that ended this turn, which is in the journal behind the event `from`.
    EndOf {
        /// The turn.
        turn: TurnNumber,
        /// First event that may be the end.
        from: Seq,
    },
}

impl ForkPoint {
    /// Returns true if a record ends the turn.
    #[must_use]
    pub const fn is_end(turn: TurnNumber, record: &Record) -> bool {
        let is_terminal =
            matches!(record.event, Event::TurnCompleted(_) | Event::TurnFailed(_) | Event::TurnInterrupted(_));
        is_terminal && matches!(record.turn, Some(of) if of == turn)
    }
}

impl SessionFields {
    /// Finds the point of a fork with everything up to the end of `turn`; `None` for everything except an open turn or
    /// compaction.
    ///
    /// # Errors
    /// `ITEM_NOT_FOUND` if there is no such turn, or it never started; `SESSION_BUSY` if it has not ended.
    pub fn fork_at(&self, turn: Option<TurnNumber>) -> Result<ForkPoint, SessionError> {
        let ended = self.last_end.as_ref();
        match (turn, &self.open_turn) {
            (None, None) => Ok(ForkPoint::After(self.open_compaction.map_or(self.last_seq, |open| open.seq - 1))),
            (None, Some(open)) => {
                ended.map(|end| ForkPoint::After(end.seq)).ok_or(SessionError::Busy { turn: open.turn })
            }
            (Some(turn), Some(open)) if open.turn == turn => Err(SessionError::Busy { turn }),
            (Some(turn), _) if turn >= self.next_turn || self.queue.iter().any(|queued| queued.turn == turn) => {
                Err(SessionError::ItemNotFound("turn"))
            }
            (Some(turn), _) => Ok(match ended.filter(|end| end.turn == turn) {
                Some(end) => ForkPoint::After(end.seq),
                None => ForkPoint::EndOf { turn, from: self.context.last_seq_of(turn).unwrap_or(0) },
            }),
        }
    }

    /// The first record of a fork's own: it follows this session's record `at`.
    #[must_use]
    pub fn fork_record(&self, at: Seq, fork: SessionId, time: Timestamp) -> Record {
        let event = Event::SessionForked(SessionForked { parent: self.id, at, key: None });
        Record { session_id: fork, seq: at + 1, turn: None, time, event }
    }

    /// Makes the event for another title or other labels. `None` keeps the current value; an empty title removes it.
    #[must_use]
    pub fn updated(&self, title: Option<String>, labels: Option<BTreeMap<String, String>>) -> SessionUpdated {
        SessionUpdated {
            title: title.map_or_else(|| self.given_title.clone(), |title| (!title.is_empty()).then_some(title)),
            labels: labels.unwrap_or_else(|| self.labels.clone()),
        }
    }

    /// Makes the record that a copy of the events up to `at` needs to have these labels; it follows the copy's event
    /// `last`.
    pub(crate) fn labels_record(
        &self,
        at: Seq,
        labels: &BTreeMap<String, String>,
        (session_id, last, time): (SessionId, Seq, Timestamp),
    ) -> Option<Record> {
        let has_them = at >= self.labelled_at && *labels == self.labels;
        let event = || Event::SessionUpdated(self.updated(None, Some(labels.clone())));
        (!has_them).then(|| Record { session_id, seq: last + 1, turn: None, time, event: event() })
    }

    /// Turns the session into the fork. Messages and cost count on, and its caller's tools are the same; the parent's
    /// promises to its callers (queued turns, keys, decisions, rules that a person allowed there) stay with the parent.
    pub(super) fn forked(&mut self, record: &Record, forked: &SessionForked) {
        self.id = record.session_id;
        self.forked_from = Some(forked.parent);
        // Nobody waits for it.
        self.descent = None;
        self.created_at = record.time;
        self.created_key.clone_from(&forked.key);
        self.is_archived = false;
        self.queue = Default::default();
        self.tools_of_queue.clear();
        self.keys.clear();
        self.keys_by_age.clear();
        self.keyed_bytes = 0;
        self.decisions.clear();
        self.allowed_rules = Default::default();
    }
}
