//! Sessions with a partly dropped history: the content of `history_snapshot`, and its effect.
//!
//! If nothing is missing, a snapshot changes nothing, except that it forgets expired keys.

use super::{
    Session, SessionFields,
    event::{CompactionAttempt, CompactionCounters, Event, HistorySnapshot, Record},
    human::heading,
};
use crate::{
    clock::Timestamp,
    cost::Cost,
    ids::{Seq, TurnNumber},
    session::ApplyError,
};

/// Runs of the live context that a snapshot may name; limits the size of its event.
pub(crate) const CONTEXT_RUNS_MAX: usize = 4096;

impl SessionFields {
    /// Collects the facts of the records up to `pruned_to` before some of them are dropped. `None` if the live context
    /// has too many runs.
    pub(crate) fn history_snapshot(&self, pruned_to: Seq, keys_up_to: Timestamp) -> Option<HistorySnapshot> {
        let context = self.context.runs(|entry| entry.history_index);
        (context.len() <= CONTEXT_RUNS_MAX).then(|| HistorySnapshot {
            pruned_to: self.pruned_to.max(pruned_to),
            keys_up_to,
            message_count: self.message_count,
            usage: self.usage,
            cost: self.cost,
            next_turn: self.next_turn,
            context,
            counters: Some(self.counters),
            undoable_after: self.context.floor(),
            found_tools: self.found_tools.to_vec(),
            first_line: self.first_line.clone(),
        })
    }

    /// Takes over the facts of dropped records.
    pub(super) fn mend(&mut self, snapshot: &HistorySnapshot) {
        // Dropped messages may have left the context only with the newest rebuild that cannot be undone: a context from
        // before it lacks them.
        self.pruned_to = snapshot.pruned_to.max(snapshot.undoable_after.unwrap_or_default());
        (self.message_count, self.next_turn) = (snapshot.message_count, snapshot.next_turn);
        (self.usage, self.cost) = (snapshot.usage, snapshot.cost);
        // An imported one may not be a heading.
        self.first_line = snapshot.first_line.as_deref().and_then(heading).or_else(|| self.first_line.take());
        self.counters = snapshot.counters.unwrap_or(self.counters);
        snapshot.found_tools.iter().for_each(|name| self.find_tool(name));
        self.context.renumber(&snapshot.context);
        self.context.settle(snapshot.undoable_after.unwrap_or_default());
        // A turn with an expired key may be dropped together with the key, so the key is forgotten even if the turn is
        // still there.
        self.keys.retain(|_, used| used.time > snapshot.keys_up_to);
        let keys = &self.keys;
        self.keys_by_age.retain(|(time, name)| keys.get(name).is_some_and(|used| used.time == *time));
        self.count_keys();
    }
}

/// Finds the `history_snapshot` of a fork whose parent's history is partly dropped: the parent's state at the fork, by
/// the first snapshot after it. It takes the parent's records in order.
pub(crate) struct ForkedHistory {
    at: Seq,
    /// As its records make it.
    session: Option<Session>,
    /// The session at that point.
    cut: Option<Session>,
    /// The first turn that was accepted behind the place.
    accepted: Option<TurnNumber>,
}

impl ForkedHistory {
    /// A fork after the record `at`; history may be dropped up to there, and is complete after it.
    pub(crate) const fn new(at: Seq) -> Self {
        Self { at, session: None, cut: None, accepted: None }
    }

    /// Takes the next record in; answers once it is found.
    pub(crate) fn push(&mut self, record: &Record) -> Result<Option<HistorySnapshot>, ApplyError> {
        let Some(session) = &mut self.session else {
            self.session = Some(Session::begin(record)?);
            return Ok(None);
        };
        if record.seq > self.at {
            let cut = self.cut.get_or_insert_with(|| session.clone());
            match &record.event {
                Event::HistorySnapshot(snapshot) => return Ok(Some(earlier(cut, session, snapshot, self.accepted))),
                Event::TurnStarted(started) if started.queued.is_some() => {}
                Event::TurnStarted(_) | Event::TurnQueued(_) => self.accepted = self.accepted.or(record.turn),
                _ => {}
            }
        }
        session.apply(record).map(|()| None)
    }
}

/// Computes the state at `cut` from `snapshot`, which is the state at `now`; no record between them is missing.
fn earlier(cut: &Session, now: &Session, snapshot: &HistorySnapshot, accepted: Option<TurnNumber>) -> HistorySnapshot {
    let missing = snapshot.message_count - now.message_count.min(snapshot.message_count);
    let mut numbered = now.context.clone();
    numbered.renumber(&snapshot.context);
    let index_of = |seq: Seq| {
        let at = numbered.entries().binary_search_by_key(&seq, |entry| entry.seq).ok()?;
        Some(numbered.entries()[at].history_index)
    };
    let mut usage = snapshot.usage.without(now.usage);
    usage.add(cut.usage);
    HistorySnapshot {
        message_count: cut.message_count + missing,
        usage,
        cost: Cost::sum(Cost::rest(snapshot.cost, now.cost), cut.cost),
        next_turn: accepted.unwrap_or(snapshot.next_turn),
        counters: snapshot.counters.map(|counters| earlier_counters(cut.counters, now.counters, counters)),
        // What was found behind the fork is known to be: no record is missing there.
        found_tools: {
            let was_there = |name: &&String| cut.found_tools.contains(*name) || !now.found_tools.contains(*name);
            snapshot.found_tools.iter().filter(was_there).cloned().collect()
        },
        // If the first prompt is there, it may come after the fork.
        first_line: if now.first_line == snapshot.first_line { &cut.first_line } else { &snapshot.first_line }.clone(),
        context: cut.context.runs(|entry| index_of(entry.seq).unwrap_or(entry.history_index + missing)),
        ..snapshot.clone()
    }
}

/// Computes the counters at `cut` from `now` and its true counters. It is unknown whether an older attempt came before
/// or after the missing turns: it counts as after them, and the guard holds for longer.
fn earlier_counters(
    cut: CompactionCounters,
    now: CompactionCounters,
    counted: CompactionCounters,
) -> CompactionCounters {
    let missing = counted.started_turns.saturating_sub(now.started_turns);
    let started_turns = cut.started_turns + missing;
    let behind = |attempt: CompactionAttempt| CompactionAttempt { turn: attempt.turn + missing, ..attempt };
    let is_last = cut.last_attempt == now.last_attempt;
    let last = if is_last { counted.last_attempt } else { cut.last_attempt.map(behind) };
    // An attempt before the first remaining turn counts as within it; none is after the newest turn.
    let within = |attempt: CompactionAttempt| attempt.turn.min(started_turns.saturating_sub(1));
    CompactionCounters {
        started_turns,
        last_input_tokens: cut.last_input_tokens,
        last_attempt: last.map(|attempt| CompactionAttempt { turn: within(attempt), ..attempt }),
    }
}
