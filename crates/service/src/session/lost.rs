//! Sessions that lost records to damage: what is left of them fits together as well as it can.
//!
//! A record is never refused because of a gap before it. What the gap left open is closed; a record whose beginning is
//! lost changes nothing but the session's last seq.

use meerkat_words::message::Body;

use super::{
    SessionFields,
    event::{
        Event, Key, LostKey, MemoryScope, Record, RecordsLost, SessionCreated, SessionForked, SessionMemory,
        ToolFinished, ToolOutcome, TurnInterrupted, TurnTotals,
    },
    state::KeyUse,
    turn::{CallProgress, TurnEnd},
};
use crate::{SessionError, ids::Seq, session::ApplyError};
use meerkat_words::answers::TurnStatus;

/// Why a turn or a call has ended.
const REASON: &str = "records_lost";
/// Result of a call whose own is lost.
const UNKNOWN: &str = "The result was lost to damage, and the outcome is unknown; verify before repeating.";

impl SessionFields {
    /// The session of a first record that is left.
    pub(super) fn begin_anywhere(record: &Record) -> Result<Self, ApplyError> {
        if record.seq <= 1 {
            return Self::begin(record);
        }
        // The label that parts it from others' sessions may be among what is lost.
        let memory = SessionMemory { scope: MemoryScope::None, index: false };
        let created = SessionCreated { tools: Some(Vec::new()), memory, ..SessionCreated::default() };
        let event = Event::SessionCreated(created);
        let mut session = Self::begin(&Record { seq: 1, turn: None, event, ..record.clone() })?;
        (session.last_seq, session.gaps.skipped) = (0, true);
        session.apply(record)?;
        Ok(session)
    }

    /// Closes what lost records left open before this one. Returns false if what the record itself goes on with is lost.
    pub(super) fn bridge(&mut self, record: &Record) -> bool {
        self.close_given();
        if record.session_id != self.id && !matches!(record.event, Event::SessionForked(_)) {
            // The event with which the fork began is lost.
            self.close(record);
            let forked = SessionForked { parent: self.id, at: self.last_seq, key: None };
            self.forked(record, &forked);
        }
        let is_open = self.open_turn.as_ref().is_some_and(|open| Some(open.turn) == record.turn);
        match &record.event {
            Event::SessionForked(_) => self.close(record),
            Event::TurnStarted(_) => {
                self.close(record);
                // The prompt that waited, or the turn that it goes on with, may be lost.
                return true;
            }
            Event::CompactionStarted(_)
            | Event::AssistantMessage(_)
            | Event::SteeringEntered(_)
            | Event::OutputRefused(_)
            | Event::TurnCompleted(_)
            | Event::TurnFailed(_)
            | Event::TurnInterrupted(_)
                if is_open || record.turn.is_none() =>
            {
                self.open_compaction = None;
                self.answer_calls(record);
            }
            _ if !is_open && record.turn.is_some() => self.close(record),
            _ => {}
        }
        self.obstacle(record).is_none()
    }

    /// Takes a record whose beginning is lost.
    pub(super) fn pass_over(&mut self, record: &Record) {
        self.gaps.skipped = true;
        if let Some(turn) = record.turn {
            self.next_turn = self.next_turn.max(turn + 1);
        }
        (self.last_seq, self.updated_at) = (record.seq, record.time);
    }

    /// Applies what a repair says.
    pub(super) fn records_lost(&mut self, record: &Record, lost: &RecordsLost) {
        let is_in_turn = |open: &super::turn::OpenTurn| lost.ranges.iter().any(|(_, to)| *to >= open.seq);
        if self.open_turn.as_ref().is_some_and(is_in_turn) || self.open_turn.is_none() {
            self.close(record);
        }
        self.gaps.is_unexplained = false;
        // An answer may be among them.
        self.cost = None;
        for LostKey { key, turn, seq, time } in &lost.keys {
            self.next_turn = self.next_turn.max(turn + 1);
            if self.keys.contains_key(&key.key) {
                continue;
            }
            let end = Some(lost_end(*turn, record, &self.model));
            let (request, is_dequeued) = (key.request.clone(), false);
            let used = KeyUse { request, turn: *turn, seq: *seq, time: *time, end, is_dequeued };
            self.keyed_bytes += used.bytes();
            self.keys.insert(key.key.clone(), used);
            let at = self.keys_by_age.partition_point(|(other, _)| other <= time);
            self.keys_by_age.insert(at, (*time, key.key.clone()));
        }
    }

    /// Returns the keys whose records are within these ranges.
    pub(crate) fn keys_within(&self, ranges: &[(Seq, Seq)]) -> Vec<LostKey> {
        let is_within = |seq: Seq| ranges.iter().any(|(from, to)| (*from..=*to).contains(&seq));
        let used = self.keys.iter().filter(|(_, used)| is_within(used.seq));
        let lost = used.map(|(key, used)| LostKey {
            key: Key { key: key.clone(), request: used.request.clone() },
            turn: used.turn,
            seq: used.seq,
            time: used.time,
        });
        lost.collect()
    }

    /// Takes back calls that were given, whose results are lost.
    fn close_given(&mut self) {
        if self.given_calls().is_some() {
            self.context.take_back();
        }
    }

    /// Ends the open turn and the open compaction, whose ends are lost.
    fn close(&mut self, record: &Record) {
        self.open_compaction = None;
        self.close_given();
        let Some(totals) = self.open_turn.as_ref().map(|open| open.totals.clone()) else { return };
        // One of the lost records may be an answer.
        self.cost = None;
        let totals = TurnTotals { cost: None, ..totals };
        self.answer_calls(record);
        let turn = self.open_turn.as_ref().map(|open| open.turn);
        let event = Event::TurnInterrupted(TurnInterrupted { reason: REASON.to_owned(), totals });
        let seq = if matches!(record.event, Event::RecordsLost(_)) { record.seq } else { self.last_seq };
        self.turn_ended(&Record { seq, turn, event, ..record.clone() });
    }

    /// Gives the open calls a result, if theirs is lost.
    fn answer_calls(&mut self, record: &Record) {
        let Some(open) = &self.open_turn else { return };
        let is_open = |progress: &CallProgress| !matches!(progress, CallProgress::Finished(_));
        let calls = open.calls.iter().filter(|call| is_open(&call.progress));
        let finished: Vec<ToolFinished> = calls
            .map(|call| {
                let (call_id, name) = (call.call.call_id.clone(), call.call.name.clone());
                ToolFinished::new(call_id, name, ToolOutcome::Unknown, Body::from(UNKNOWN.to_owned()))
            })
            .collect();
        let turn = open.turn;
        for finished in finished {
            // One of the lost ones brought it.
            let (seq, event) = (record.seq - 1, Event::ToolFinished(finished.clone()));
            self.tool_finished(&Record { seq, turn: Some(turn), event, ..record.clone() }, turn, &finished);
        }
    }
}

/// Makes the end of a turn of which nothing is left but its key.
fn lost_end(turn: crate::ids::TurnNumber, record: &Record, model: &str) -> TurnEnd {
    TurnEnd {
        turn,
        seq: record.seq,
        status: TurnStatus::Interrupted,
        model: model.to_owned(),
        budgets: Default::default(),
        options: Default::default(),
        output: None,
        refused: Vec::new(),
        has_output: false,
        compaction: None,
        access: None,
        text: Default::default(),
        text_seq: None,
        stop_reason: None,
        totals: TurnTotals::default(),
        error: Some(SessionError::Interrupted { turn }.body().detail("reason", REASON)),
    }
}
