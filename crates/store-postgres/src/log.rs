//! Logs of the sessions that this process uses: what is staged, what is durable, and who waits for it.
//!
//! Pure: nothing here awaits or knows the database. A log appends one batch at a time; what is staged meanwhile goes
//! together into the next.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use meerkat_service::{
    Seq, SessionId,
    store::{Frame, StoreError},
};
use meerkat_words::answers::{SessionState, SessionSummary};
use tokio::sync::{oneshot, watch};

/// Bytes of the newest frames that are kept for followers.
const RECENT_BYTES: usize = 128 * 1024;
/// Most bytes of lines in one append of several sessions; a larger batch goes alone.
const APPEND_BYTES: usize = 4 * 1024 * 1024;
/// Most sessions in one append.
const APPEND_SESSIONS: usize = 64;

/// Sender of a ticket's outcome.
pub(crate) type Done = oneshot::Sender<Result<Seq, StoreError>>;

/// Record to append.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) seq: Seq,
    pub(crate) time_ms: i64,
    pub(crate) line: Bytes,
}

/// Records of one session that are appended together.
pub(crate) struct Append {
    pub(crate) session_id: SessionId,
    pub(crate) epoch: i64,
    /// Tail before.
    pub(crate) after: Seq,
    pub(crate) entries: Vec<Entry>,
    /// Session's row in lists behind them.
    pub(crate) row: Option<SessionSummary>,
    tickets: Vec<(Seq, Done)>,
}

impl Append {
    /// Makes an append that nobody waits for.
    pub(crate) const fn new(session_id: SessionId, epoch: i64, after: Seq, entries: Vec<Entry>) -> Self {
        Self { session_id, epoch, after, entries, row: None, tickets: Vec::new() }
    }

    /// Returns the tail afterwards.
    pub(crate) fn tail(&self) -> Seq {
        self.entries.last().map_or(self.after, |last| last.seq)
    }

    fn bytes(&self) -> usize {
        self.entries.iter().map(|entry| entry.line.len()).sum()
    }

    fn fail(self, error: &StoreError) {
        // Who does not wait any more does not need it.
        self.tickets.into_iter().for_each(|(_, done)| drop(done.send(Err(error.clone()))));
    }
}

/// Log of one session.
struct Log {
    /// Epoch of this process's lease, while it has one.
    epoch: Option<i64>,
    /// Tail behind everything that is staged.
    staged: Seq,
    waiting: Option<Append>,
    is_in_flight: bool,
    /// Failure after which nothing more goes in under this lease.
    failed: Option<StoreError>,
    tail: watch::Sender<Seq>,
    recent: VecDeque<Frame>,
    recent_bytes: usize,
    /// Row in lists that was written last.
    row: Option<SessionSummary>,
}

impl Log {
    fn new(tail: Seq) -> Self {
        Self {
            epoch: None,
            staged: tail,
            waiting: None,
            is_in_flight: false,
            failed: None,
            tail: watch::Sender::new(tail),
            recent: VecDeque::new(),
            recent_bytes: 0,
            row: None,
        }
    }

    fn fail(&mut self, error: &StoreError) {
        self.failed = Some(error.clone());
        if let Some(waiting) = self.waiting.take() {
            waiting.fail(error);
        }
    }

    fn grow(&mut self, tail: Seq) {
        self.tail.send_if_modified(|known| {
            let is_more = *known < tail;
            *known = tail.max(*known);
            is_more
        });
    }

    fn keep(&mut self, entries: Vec<Entry>) {
        for Entry { seq, line, .. } in entries {
            self.recent_bytes += line.len();
            self.recent.push_back(Frame { seq, line });
        }
        while self.recent_bytes > RECENT_BYTES {
            let Some(oldest) = self.recent.pop_front() else { break };
            self.recent_bytes -= oldest.line.len();
        }
    }
}

/// Logs of this process.
#[derive(Default)]
pub(crate) struct Logs {
    logs: HashMap<SessionId, Log>,
    /// Sessions with something to append and nothing in flight.
    ready: VecDeque<SessionId>,
}

impl Logs {
    /// Begins a lease, or keeps the one before until it is granted.
    pub(crate) fn lease(&mut self, session_id: SessionId, epoch: i64, tail: Seq) {
        let log = self.logs.entry(session_id).or_insert_with(|| Log::new(tail));
        log.fail(&StoreError::Fenced);
        (log.epoch, log.failed, log.staged) = (Some(epoch), None, tail);
        (log.recent, log.recent_bytes, log.row) = (VecDeque::new(), 0, None);
        log.is_in_flight = false;
        log.grow(tail);
    }

    /// Ends a lease: what waits is fenced. Without a follower the log leaves memory.
    pub(crate) fn unlease(&mut self, session_id: SessionId, epoch: i64) {
        let Some(log) = self.logs.get_mut(&session_id).filter(|log| log.epoch == Some(epoch)) else { return };
        log.fail(&StoreError::Fenced);
        log.epoch = None;
        if log.tail.receiver_count() == 0 {
            self.logs.remove(&session_id);
        }
    }

    /// Ends every lease: the node has lost its authority.
    pub(crate) fn unlease_all(&mut self) -> usize {
        let leased: Vec<_> = self.logs.iter().filter_map(|(id, log)| Some((*id, log.epoch?))).collect();
        leased.iter().for_each(|(session_id, epoch)| self.unlease(*session_id, *epoch));
        leased.len()
    }

    /// Returns true if this process has a lease.
    pub(crate) fn is_leased(&self, session_id: SessionId) -> bool {
        self.logs.get(&session_id).is_some_and(|log| log.epoch.is_some())
    }

    /// Returns the epoch of a lease of this process, and true if nobody can have taken it: its node lives as far as it
    /// knows, and its last row says that the session works.
    pub(crate) fn leased(&self, session_id: SessionId) -> Option<(i64, bool)> {
        let log = self.logs.get(&session_id)?;
        Some((log.epoch?, log.row.as_ref().is_some_and(|row| row.state != SessionState::Idle)))
    }

    /// Notes that the database has no such session. One that was leased and is not made yet stays.
    pub(crate) fn missed(&mut self, session_id: SessionId) {
        if self.logs.get(&session_id).is_some_and(|log| log.epoch.is_none() || *log.tail.borrow() > 0) {
            self.delete(session_id);
        }
    }

    /// Removes a deleted session: what waits is fenced, and its watches end.
    pub(crate) fn delete(&mut self, session_id: SessionId) {
        if let Some(mut log) = self.logs.remove(&session_id) {
            log.fail(&StoreError::Fenced);
        }
    }

    /// Stages records that follow what is staged already.
    pub(crate) fn stage(
        &mut self,
        session_id: SessionId,
        epoch: i64,
        entries: Vec<Entry>,
        row: Option<SessionSummary>,
        done: Done,
    ) -> Result<(), StoreError> {
        let log = self.logs.get_mut(&session_id).filter(|log| log.epoch == Some(epoch)).ok_or(StoreError::Fenced)?;
        if let Some(failed) = &log.failed {
            return Err(failed.clone());
        }
        if entries.is_empty() || entries.iter().zip(log.staged + 1..).any(|(entry, seq)| entry.seq != seq) {
            return Err(StoreError::OutOfOrder);
        }
        let after = log.staged;
        let waiting = log.waiting.get_or_insert_with(|| Append::new(session_id, epoch, after, Vec::new()));
        waiting.entries.extend(entries);
        // A row behind an earlier batch is not the session's any more.
        waiting.row = row;
        log.staged = waiting.tail();
        waiting.tickets.push((log.staged, done));
        if !log.is_in_flight && !self.ready.contains(&session_id) {
            self.ready.push_back(session_id);
        }
        Ok(())
    }

    /// Takes what is ready, for one append; empty if nothing is.
    pub(crate) fn take(&mut self) -> Vec<Append> {
        let (mut appends, mut bytes) = (Vec::new(), 0);
        while let Some(session_id) = self.ready.front().copied() {
            let Some(waiting) = self.logs.get(&session_id).and_then(|log| log.waiting.as_ref()) else {
                self.ready.pop_front();
                continue;
            };
            bytes += waiting.bytes();
            if appends.len() == APPEND_SESSIONS || (!appends.is_empty() && bytes > APPEND_BYTES) {
                break;
            }
            self.ready.pop_front();
            if let Some(log) = self.logs.get_mut(&session_id)
                && let Some(append) = log.waiting.take()
            {
                log.is_in_flight = true;
                appends.push(append);
            }
        }
        appends
    }

    /// Notes the outcome of an append and answers who waits.
    pub(crate) fn finish(&mut self, mut append: Append, outcome: Result<(), StoreError>) {
        let (tail, epoch, session_id) = (append.tail(), append.epoch, append.session_id);
        let log = self.logs.get_mut(&session_id).filter(|log| log.epoch == Some(epoch));
        if let Some(log) = log {
            log.is_in_flight = false;
            match &outcome {
                Ok(()) => {
                    log.row = append.row.take().or(log.row.take());
                    log.keep(std::mem::take(&mut append.entries));
                    log.grow(tail);
                    if log.waiting.is_some() {
                        self.ready.push_back(session_id);
                    }
                }
                Err(error) => log.fail(error),
            }
        } else if outcome.is_ok()
            && let Some(log) = self.logs.get_mut(&session_id)
        {
            log.grow(tail);
        }
        match outcome {
            Ok(()) => append.tickets.into_iter().for_each(|(seq, done)| drop(done.send(Ok(seq)))),
            Err(error) => append.fail(&error),
        }
    }

    /// Returns true if nothing of a lease is on its way.
    pub(crate) fn is_quiet(&self, session_id: SessionId, epoch: i64) -> bool {
        let log = self.logs.get(&session_id).filter(|log| log.epoch == Some(epoch));
        log.is_none_or(|log| !log.is_in_flight && log.waiting.is_none())
    }

    /// Returns true if exactly this row was written with the last append.
    pub(crate) fn has_row(&self, row: &SessionSummary) -> bool {
        self.logs.get(&row.session_id).is_some_and(|log| log.epoch.is_some() && log.row.as_ref() == Some(row))
    }

    /// Notes that a session's row was written with its records.
    pub(crate) fn wrote(&mut self, row: SessionSummary) {
        if let Some(log) = self.logs.get_mut(&row.session_id) {
            log.row = Some(row);
        }
    }

    /// Returns a frame that was appended lately.
    pub(crate) fn at_hand(&self, session_id: SessionId, seq: Seq) -> Option<Frame> {
        let recent = &self.logs.get(&session_id)?.recent;
        recent.binary_search_by_key(&seq, |frame| frame.seq).ok().and_then(|at| recent.get(at)).cloned()
    }

    /// Returns the tail of a session that this process has a lease of, and that works.
    pub(crate) fn leased_tail(&self, session_id: SessionId) -> Option<Seq> {
        let log = self.logs.get(&session_id).filter(|_| self.leased(session_id).is_some_and(|(_, works)| works))?;
        Some(*log.tail.borrow()).filter(|tail| *tail > 0)
    }

    /// Follows the tail of a session, which is at least `tail`.
    pub(crate) fn watch(&mut self, session_id: SessionId, tail: Seq) -> watch::Receiver<Seq> {
        let log = self.logs.entry(session_id).or_insert_with(|| Log::new(tail));
        log.grow(tail);
        log.tail.subscribe()
    }

    /// Lists the sessions that somebody follows and that another process may append to. Those that nobody follows any
    /// more leave memory.
    pub(crate) fn followed(&mut self) -> Vec<SessionId> {
        self.logs.retain(|_, log| log.epoch.is_some() || log.tail.receiver_count() > 0);
        let may_move = |id: &SessionId, log: &Log| {
            log.tail.receiver_count() > 0 && self.leased(*id).is_none_or(|(_, works)| !works)
        };
        self.logs.iter().filter(|(id, log)| may_move(id, log)).map(|(id, _)| *id).collect()
    }

    /// Notes the epoch and tail of a session as the database has them; returns true if its tail has grown. If another
    /// process has it by now, the lease ends.
    pub(crate) fn saw(&mut self, session_id: SessionId, epoch: i64, tail: Seq) -> bool {
        if let Some((leased, _)) = self.leased(session_id)
            && leased < epoch
        {
            self.unlease(session_id, leased);
        }
        let Some(log) = self.logs.get_mut(&session_id).filter(|log| log.epoch.is_none()) else { return false };
        let before = *log.tail.borrow();
        log.grow(tail);
        before < tail
    }
}
