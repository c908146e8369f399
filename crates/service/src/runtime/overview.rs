//! What people look at: the list of sessions as it changes, the calls that wait, and a session's steps and turns.
//!
//! Steps and turns are read from the journal's end, piece by piece: a long session costs no more than a short one.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use super::{admit::Admitted, sessions::Sessions, validate};
use crate::{
    ErrorBody, SessionError,
    clock::Timestamp,
    consumers::changes::Place,
    cost::Cost,
    ids::{Seq, SessionId, TurnNumber},
    model::Usage,
    service::{
        ChangePage, FollowSessions, ListApprovals, OpenApproval, OpenKind, Page, PendingApproval, ReadHistory,
        SessionChange, SessionState, StepKind, StepView, TurnStatus, TurnView,
    },
    session::event::{Event, Record, TurnTotals},
    store::{ReadLimit, list::Size},
    wire::{decode_event, type_of},
};

/// Milliseconds after which a waiting follower lists what changed without an answer to anybody, such as a step.
const LIST_MS: u64 = 250;
/// Sessions to read at once: each may have many labels.
const SESSIONS_READ: usize = 128;
/// Frames to read at once from the end of a journal, and the fewest seqs to look at for them.
const FRAMES_READ: u64 = 512;

impl Admitted<'_> {
    pub(super) async fn changes(&self, request: FollowSessions) -> Result<ChangePage, SessionError> {
        let limits = &self.0.engine().options.limits;
        let limit = validate::page_limit(request.limit, limits)?;
        let wait_ms = request.wait_ms.min(limits.wait_ms);
        let changes = &self.0.engine().derived.changes;
        let place = request.cursor.as_deref().map(|cursor| changes.place(cursor)).transpose()?.flatten();
        match place {
            None => {
                self.0.hear().await?;
                // What changes while the list is read comes after it.
                let change = *changes.watch().borrow();
                self.0.listed(Place { change, listed: None }, limit, true).await
            }
            Some(place) if place.listed.is_some() => self.0.listed(place, limit, false).await,
            Some(place) => self.0.changed(place.change, limit, wait_ms).await,
        }
    }

    pub(super) async fn approvals(&self, request: ListApprovals) -> Result<Page<OpenApproval>, SessionError> {
        let limit = validate::page_limit(request.limit, &self.0.engine().options.limits)?;
        let refusal = |_| SessionError::invalid("cursor", "use the next_cursor of the page before, or none");
        let mut before = request.cursor.map(|cursor| cursor.parse()).transpose().map_err(refusal)?;
        self.0.publish_all().await?;
        let (mut items, mut size) = (Vec::new(), Size::default());
        loop {
            let sessions = self.0.busy_before(before, SESSIONS_READ).await?;
            let Some(last) = sessions.last().map(|session| session.session_id) else { break };
            for session in sessions.into_iter().filter(|session| session.state == SessionState::Waiting) {
                // It may have been deleted, or decided, meanwhile.
                let Ok(view) = self.0.look(session.session_id).await else { continue };
                let open = |kind, waits_since, approval| OpenApproval {
                    session_id: session.session_id,
                    title: view.summary.title.clone(),
                    workspace: view.workspace.clone(),
                    root: view.root,
                    kind,
                    waits_since,
                    approval,
                };
                let asked = view.pending_approvals.iter().map(|(since, approval)| {
                    let kind = if approval.form.is_some() { OpenKind::Question } else { OpenKind::Approval };
                    open(kind, *since, approval.clone())
                });
                let requested = view.calls.iter().map(|(since, call)| {
                    let (call_id, name, arguments) = (call.call_id.clone(), call.name.clone(), call.arguments.shown());
                    let (turn, seq, preview, rule, form) = (call.turn, call.seq, None, None, None);
                    let call = PendingApproval { call_id, name, arguments, turn, seq, preview, rule, form };
                    open(OpenKind::Call, *since, call)
                });
                let asked: Vec<OpenApproval> = asked.chain(requested).collect();
                let is_more = items.len() + asked.len() > limit || !size.takes(&asked);
                if !items.is_empty() && is_more {
                    return Ok(Page { items, next_cursor: before.map(|before: SessionId| before.to_string()) });
                }
                items.extend(asked);
                before = Some(session.session_id);
            }
            before = Some(last);
        }
        Ok(Page::whole(items))
    }

    pub(super) async fn steps(&self, request: ReadHistory) -> Result<Page<StepView>, SessionError> {
        let mut taken = Vec::new();
        let next_cursor = self.backwards(&request, &mut taken, |record, taken| taken.extend(step(record))).await?;
        Ok(Page { items: taken, next_cursor })
    }

    pub(super) async fn turns(&self, request: ReadHistory) -> Result<Page<TurnView>, SessionError> {
        let mut read = Turns::default();
        let next_cursor = self.backwards(&request, &mut read, |record, read| read.take(record)).await?;
        Ok(Page { items: read.whole, next_cursor })
    }

    /// Reads a session's records from the newest to the oldest, until `taken` has as many items as a page, or up to
    /// damage, where the next page fails unless the request passes over it. Returns the cursor to go on with.
    async fn backwards<T: Taken>(
        &self,
        request: &ReadHistory,
        taken: &mut T,
        take: impl Fn(Record, &mut T),
    ) -> Result<Option<String>, SessionError> {
        let limit = validate::page_limit(request.limit, &self.0.engine().options.limits)?;
        let (events, session_id) = (self.0.engine().events.as_ref(), request.session_id);
        let missing = || SessionError::NotFound(session_id);
        let last = events.tail(session_id).await?.ok_or_else(missing)?;
        if let (Some(lost), None, false) = (events.lost_end(session_id), &request.cursor, request.skip_damage) {
            return Err(lost.into());
        }
        let mut before = match validate::seq_cursor(request.cursor.as_deref())? {
            0 => last + 1,
            cursor => cursor.min(last + 1),
        };
        // Seqs may be far apart: the range of seqs grows while it has few frames.
        let mut range = FRAMES_READ;
        while before > 1 {
            let from = before.saturating_sub(range + 1);
            let (mut after, mut frames, mut lost) = (from, Vec::new(), None::<(Seq, Seq)>);
            while after + 1 < before && frames.len() as u64 <= FRAMES_READ {
                let seqs = (before - 1 - after).min(FRAMES_READ);
                let limit = ReadLimit::frames(usize::try_from(seqs).unwrap_or(usize::MAX));
                let page = events.read(session_id, after, limit.skipping_damage(true)).await?.ok_or_else(missing)?;
                if !request.skip_damage {
                    lost = page.lost.into_iter().rev().find(|(from, _)| *from < before).or(lost);
                }
                let Some(newest) = page.frames.last().map(|frame| frame.seq) else { break };
                frames.extend(page.frames.into_iter().filter(|frame| frame.seq < before));
                after = newest;
            }
            match frames.len() as u64 {
                // Too many to hold.
                count if count > FRAMES_READ => {
                    range = (range / 2).max(FRAMES_READ);
                    continue;
                }
                count if count < FRAMES_READ / 4 => range = range.saturating_mul(2),
                _ => {}
            }
            // Only what is behind the newest damage is shown.
            frames.retain(|frame| lost.is_none_or(|(_, to)| frame.seq > to));
            // Pruned, like perhaps everything before it.
            if frames.is_empty() && lost.is_none() {
                let first = ReadLimit::frames(1).skipping_damage(true);
                let first = events.read(session_id, 0, first).await?.ok_or_else(missing)?;
                if first.frames.first().is_none_or(|frame| frame.seq >= before) {
                    return Ok(None);
                }
            }
            for frame in frames.into_iter().rev() {
                let line = std::str::from_utf8(&frame.line).unwrap_or_default();
                if type_of(line).is_some_and(|kind| T::KINDS.contains(&kind)) {
                    let broken = |error| SessionError::Internal(format!("event {}: {error}", frame.seq));
                    take(decode_event(line).map_err(broken)?, taken);
                    if taken.len() == limit {
                        return Ok((frame.seq > 1).then(|| frame.seq.to_string()));
                    }
                }
            }
            if let Some((from, to)) = lost {
                return match taken.len() {
                    0 => Err(SessionError::Corrupted { session_id, last_good_seq: Some(from - 1) }),
                    _ => Ok(Some((to + 1).min(before).to_string())),
                };
            }
            before = from + 1;
        }
        Ok(None)
    }
}

impl Sessions {
    /// Returns a page of the whole list, and after its end the changes since it began.
    async fn listed(&self, place: Place, limit: usize, restarts: bool) -> Result<ChangePage, SessionError> {
        self.publish_all().await?;
        let (mut items, mut listed, mut size, mut is_full) = (Vec::new(), place.listed, Size::default(), false);
        while !is_full {
            let sessions = self.stored_before(listed, (limit - items.len()).min(SESSIONS_READ)).await?;
            if sessions.is_empty() {
                listed = None;
                break;
            }
            for session in sessions {
                is_full = items.len() == limit || !size.takes(&session);
                if is_full {
                    break;
                }
                let session_id = session.session_id;
                listed = Some(session_id);
                items.push(SessionChange { session_id, session: Some(session) });
            }
            is_full |= items.len() == limit;
        }
        let changes = &self.engine().derived.changes;
        let next = Place { change: place.change, listed };
        let is_current = listed.is_none() && !changes.after(next.change, 0).2;
        Ok(ChangePage { restarts, items, is_current, next_cursor: changes.cursor(&next) })
    }

    /// Updates the list for all followers that wait for it, if none of them did just now.
    async fn publish_for_all(&self) -> Result<(), SessionError> {
        let now = self.engine().world.clock.elapsed();
        let is_due = {
            let mut last = self.inner.published.lock().unwrap_or_else(PoisonError::into_inner);
            let is_due = last.is_none_or(|last| now.saturating_sub(last) >= Duration::from_millis(LIST_MS));
            if is_due {
                *last = Some(now);
            }
            is_due
        };
        if is_due { self.publish_all().await } else { Ok(()) }
    }

    /// Returns the changes after one, and waits for the first.
    async fn changed(&self, after: u64, limit: usize, wait_ms: u64) -> Result<ChangePage, SessionError> {
        let changes = &self.engine().derived.changes;
        let clock = &self.engine().world.clock;
        let mut newest = changes.watch();
        let mut left_ms = wait_ms;
        loop {
            self.hear().await?;
            match wait_ms {
                // It may not be asked again.
                0..LIST_MS => self.publish_all().await?,
                _ => self.publish_for_all().await?,
            }
            newest.mark_unchanged();
            let (items, change, has_more) = changes.after(after, limit);
            if !items.is_empty() || left_ms == 0 {
                let next_cursor = changes.cursor(&Place { change, listed: None });
                return Ok(ChangePage { restarts: false, items, is_current: !has_more, next_cursor });
            }
            let nap_ms = left_ms.min(LIST_MS);
            left_ms -= nap_ms;
            tokio::select! {
                changed = newest.changed() => drop(changed.is_ok()),
                () = clock.sleep(Duration::from_millis(nap_ms)) => {}
            }
        }
    }
}

/// What is collected from records, the newest first.
trait Taken {
    /// Types of the records that matter.
    const KINDS: &'static [&'static str];

    fn len(&self) -> usize;
}

impl Taken for Vec<StepView> {
    const KINDS: &'static [&'static str] =
        &["assistant_message", "context_rebuilt", "compaction_failed", "compaction_undone"];

    fn len(&self) -> usize {
        Self::len(self)
    }
}

fn step(record: Record) -> Option<StepView> {
    let Record { seq, time, turn, event, .. } = record;
    let view = |kind| StepView {
        seq,
        time,
        turn,
        kind,
        step: None,
        usage: None,
        cost: None,
        context: None,
        compaction: None,
        receipt: None,
        error: None,
    };
    match event {
        Event::AssistantMessage(message) => Some(StepView {
            step: Some(message.step),
            usage: Some(message.usage),
            cost: message.cost,
            context: message.context,
            ..view(StepKind::ModelCall)
        }),
        Event::ContextRebuilt(rebuilt) => {
            let (usage, cost) = rebuilt.bill();
            Some(StepView {
                usage: Some(usage),
                cost,
                compaction: Some(rebuilt.compaction),
                receipt: Some(rebuilt.receipt),
                ..view(StepKind::Compaction)
            })
        }
        Event::CompactionFailed(failed) => Some(StepView {
            error: Some(ErrorBody::with_message(failed.code, failed.message)),
            ..view(StepKind::CompactionFailed)
        }),
        Event::CompactionUndone(undone) => {
            Some(StepView { compaction: Some(undone.compaction), ..view(StepKind::CompactionUndone) })
        }
        // The other types were passed over.
        _ => None,
    }
}

/// Turns, each whole once its start was read.
#[derive(Default)]
struct Turns {
    whole: Vec<TurnView>,
    /// Counts of the turn that is read, and its end if it has ended.
    counts: Option<TurnTotals>,
    end: Option<(TurnStatus, Timestamp)>,
    /// Number of that turn.
    turn: Option<TurnNumber>,
}

impl Taken for Turns {
    const KINDS: &'static [&'static str] = &[
        "turn_started",
        "assistant_message",
        "tool_finished",
        "context_rebuilt",
        "summary_unused",
        "turn_completed",
        "turn_failed",
        "turn_interrupted",
    ];

    fn len(&self) -> usize {
        self.whole.len()
    }
}

impl Turns {
    /// Counts what a call of the model used in a turn that has not ended.
    fn spend(&mut self, usage: Usage, cost: Option<Cost>) -> &mut TurnTotals {
        let counts = self.counts.get_or_insert_with(TurnTotals::begun);
        counts.usage.add(usage);
        counts.cost = Cost::sum(counts.cost, cost);
        counts
    }

    fn take(&mut self, record: Record) {
        let time = record.time;
        if record.turn != self.turn {
            // The start of the turn behind may be lost; then it is not known.
            (self.counts, self.end, self.turn) = (None, None, record.turn);
        }
        let mut ended = |status, totals| {
            self.end = Some((status, time));
            self.counts = Some(totals);
        };
        match record.event {
            Event::TurnCompleted(turn) => ended(TurnStatus::Completed, turn.totals),
            Event::TurnFailed(turn) => ended(TurnStatus::Failed, turn.totals),
            Event::TurnInterrupted(turn) => ended(TurnStatus::Interrupted, turn.totals),
            // What its end has counted is not counted again.
            Event::AssistantMessage(message) if self.end.is_none() => {
                self.spend(message.usage, message.cost).steps += 1;
            }
            Event::SummaryUnused(unused) if self.end.is_none() => drop(self.spend(unused.usage, unused.cost)),
            Event::ContextRebuilt(rebuilt) if self.end.is_none() => {
                let (usage, cost) = rebuilt.bill();
                self.spend(usage, cost);
            }
            Event::ToolFinished(_) if self.end.is_none() => {
                self.counts.get_or_insert_with(TurnTotals::begun).tool_calls += 1;
            }
            Event::TurnStarted(started) => {
                let counts = self.counts.take().unwrap_or_else(TurnTotals::begun);
                let end = self.end.take();
                self.whole.extend(record.turn.map(|turn| TurnView {
                    turn,
                    seq: record.seq,
                    started_at: time,
                    ended_at: end.map(|(_, time)| time),
                    status: end.map(|(status, _)| status),
                    model: started.model,
                    usage: counts.usage,
                    cost: counts.cost,
                    steps: counts.steps,
                    tool_calls: counts.tool_calls,
                    budgets: started.budgets,
                    options: started.options,
                    output: started.output.map(Arc::unwrap_or_clone),
                }));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        service::{CompactionMode, CompactionReceipt},
        session::{
            event::{AssistantMessage, ContextRebuilt, SummaryUnused, TurnStarted},
            tests::{record, walk::receipt},
        },
    };

    #[test]
    fn the_step_of_a_compaction_has_what_its_summary_used() {
        let used = receipt(9);
        for (mode, expected) in [
            (CompactionMode::Summary, (used.usage, used.cost)),
            (CompactionMode::Mask, (Usage::default(), Some(Cost::default()))),
        ] {
            let (receipt, summary) = (CompactionReceipt { mode, ..used.clone() }, None);
            let rebuilt = ContextRebuilt { compaction: 9, summary, retained: Vec::new(), masked: Vec::new(), receipt };
            let step = step(record(8, None, Event::ContextRebuilt(rebuilt))).unwrap();
            assert_eq!((step.usage, step.cost), (Some(expected.0), expected.1));
        }
    }

    /// Broken once: only the answers of a turn that runs were counted.
    #[test]
    fn a_running_turn_has_what_its_answers_and_compactions_used() {
        let usage = Usage { input_tokens: 10, output_tokens: 2, ..Usage::default() };
        let micros = |micros| Some(Cost::from_micros(micros));
        let rebuilt = |mode, cost| {
            let receipt = CompactionReceipt { mode, usage, cost, ..receipt(9) };
            let (summary, retained, masked) = (None, Vec::new(), Vec::new());
            Event::ContextRebuilt(ContextRebuilt { compaction: 9, summary, retained, masked, receipt })
        };
        let answer = AssistantMessage {
            step: 0,
            model: "m".to_owned(),
            blocks: Vec::new(),
            stop_reason: crate::model::StopReason::EndTurn,
            usage,
            cost: micros(1),
            tools: None,
            context: None,
        };
        for (unused, expected) in [(micros(100), micros(111)), (None, None)] {
            let events = [
                (None, rebuilt(CompactionMode::Summary, micros(1_000))),
                (Some(0), Event::TurnStarted(TurnStarted::default())),
                (Some(0), Event::AssistantMessage(answer.clone())),
                (Some(0), rebuilt(CompactionMode::Summary, micros(10))),
                (Some(0), rebuilt(CompactionMode::Mask, None)),
                (Some(0), Event::SummaryUnused(SummaryUnused { usage, cost: unused })),
            ];
            let mut turns = Turns::default();
            for (at, (turn, event)) in events.into_iter().enumerate().rev() {
                let record = record(at as u64 + 2, turn, event);
                assert!(Turns::KINDS.contains(&record.event.type_name()) || turn.is_none());
                turns.take(record);
            }
            let [turn] = &turns.whole[..] else { panic!("{:?}", turns.whole) };
            assert_eq!((turn.cost, turn.steps, turn.status), (expected, 1, None));
            assert_eq!((turn.usage.input_tokens, turn.usage.output_tokens), (30, 6));
        }
    }
}
