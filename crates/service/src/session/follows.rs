//! Which record may follow which. It looks at the state alone and changes nothing.

use meerkat_words::answers::TurnStatus;

use super::{
    SessionFields,
    event::{
        ApprovalDecided, ApprovalRequested, CallAnswered, CallRequested, ContextRebuilt, DelegateStarted, Event,
        HistoryGiven, Record, ToolFinished, ToolStarted, is_given, of_session,
    },
    message::{Message, ToolCall, ToolResult},
    turn::CallProgress,
};
use crate::ids::{Seq, TurnNumber};

impl SessionFields {
    /// Explains why a record with the right seq still cannot follow; `None` if it can.
    pub(super) fn obstacle(&self, record: &Record) -> Option<&'static str> {
        let open = self.open_turn.as_ref();
        if let Event::SessionForked(forked) = &record.event {
            // The parent may itself be a fork that is cut within its inherited records, which do not name it.
            let is_new = record.session_id != self.id && record.session_id != forked.parent;
            return match open {
                Some(_) => Some("a turn is open where the fork begins"),
                None if self.open_compaction.is_some() => Some("a compaction is open where the fork begins"),
                None => {
                    (!is_new || forked.at.checked_add(1) != Some(record.seq)).then_some("the fork begins elsewhere")
                }
            };
        }
        if record.session_id != self.id {
            return Some("it happened in another session");
        }
        if let Event::TurnStarted(started) = &record.event {
            let waits =
                |seq| self.queue.iter().any(|queued| queued.prompt_seq == seq && Some(queued.turn) == record.turn);
            let is_interrupted = |turn| {
                self.last_end.as_ref().is_some_and(|end| end.turn == turn && end.status == TurnStatus::Interrupted)
            };
            return match (started.queued, started.continues) {
                _ if open.is_some() => Some("another turn is open"),
                _ if self.given_calls().is_some() => Some("a call has no result yet"),
                _ if self.open_compaction.is_some() => Some("a compaction is open"),
                (Some(seq), _) if !waits(seq) => Some("no such turn waits"),
                (_, Some(turn)) if !is_interrupted(turn) => Some("no such turn was interrupted last"),
                _ => None,
            };
        }
        let turn = record.turn;
        match &record.event {
            Event::CompactionStarted(_) => self.obstacle_to_start(turn),
            Event::ContextRebuilt(rebuilt) => {
                self.obstacle_in_compaction(turn, None).or_else(|| self.obstacle_to_rebuild(rebuilt))
            }
            Event::CompactionFailed(_) | Event::SummaryUnused(_) => self.obstacle_in_compaction(turn, None),
            Event::CompactionCompleted(_) => self.obstacle_in_compaction(turn, Some(record.seq)),
            Event::CompactionUndone(undone) => self.obstacle_to_undo(undone.compaction),
            of_session!()
            | Event::LogTailRepaired(_)
            | Event::RecordsLost(_)
            | Event::HistorySnapshot(_)
            | Event::TurnQueued(_)
            | Event::TurnEdited(_)
            | Event::TurnDequeued(_)
            | Event::TurnStarted(_)
            | Event::ReminderSet(_)
            | Event::ReminderCleared(_)
            | Event::Pinned(_)
            | Event::Unpinned(_)
            | Event::ToolAllowed(_)
            | Event::Unknown(_) => None,
            Event::HistoryGiven(_) if turn.is_some() => Some("it belongs to no turn"),
            Event::HistoryGiven(given) => self.obstacle_to_give(given),
            // The others belong to an open turn.
            _ if open.is_none() || open.map(|open| open.turn) != turn => Some("its turn is not open"),
            Event::BudgetWarning(_) | Event::PartialText(_) | Event::TurnSteered(_) => None,
            Event::SteeringEntered(entered) => {
                let waits = open.is_some_and(|open| open.waiting_texts().any(|text| text.seq == entered.steered));
                match self.open_compaction {
                    _ if self.has_calls() => Some("a call has no result yet"),
                    Some(_) => Some("a compaction is open"),
                    None => (!waits).then_some("no such text waits"),
                }
            }
            Event::OutputRefused(_) => match self.open_compaction {
                _ if self.has_calls() => Some("a call has no result yet"),
                Some(_) => Some("a compaction is open"),
                None => (!open.is_some_and(|open| open.is_answered)).then_some("there is no answer"),
            },
            Event::ApprovalRequested(ApprovalRequested { call_id, form: Some(form), .. }) => {
                // An id that a call has would decide the call.
                let is_own = open.is_some_and(|open| open.calls.iter().all(|call| call.call.call_id != *call_id));
                (!is_own || !self.is_unanswered(&form.call_id)).then_some("its call is not open")
            }
            Event::ApprovalDecided(decided) if self.has_form(&decided.call_id) => None,
            Event::ToolStarted(ToolStarted { call_id, .. })
            | Event::ToolFinished(ToolFinished { call_id, .. })
            | Event::CallRequested(CallRequested { call_id, .. })
            | Event::DelegateStarted(DelegateStarted { call_id, .. })
            | Event::CallAnswered(CallAnswered { call_id, .. })
            | Event::ApprovalRequested(ApprovalRequested { call_id, .. })
            | Event::ApprovalDecided(ApprovalDecided { call_id, .. }) => {
                (!self.is_unanswered(call_id)).then_some("its call is not open")
            }
            Event::AssistantMessage(_) | Event::TurnCompleted(_) | Event::TurnFailed(_) | Event::TurnInterrupted(_) => {
                match self.has_calls() {
                    true => Some("a call has no result yet"),
                    false => self.open_compaction.map(|_| "a compaction is open"),
                }
            }
        }
    }

    /// A compaction begins in the open turn, or between turns. Compactions of a turn that was dropped from the journal
    /// are still there.
    fn obstacle_to_start(&self, turn: Option<TurnNumber>) -> Option<&'static str> {
        match &self.open_turn {
            _ if self.open_compaction.is_some() => Some("another compaction is open"),
            Some(open) if turn != Some(open.turn) => Some("its turn is not open"),
            _ => self.has_calls().then_some("a call has no result yet"),
        }
    }

    /// Events of a compaction belong to the turn in which it began; `completes_at` is the end that its rebuilt context
    /// named.
    fn obstacle_in_compaction(&self, turn: Option<TurnNumber>, completes_at: Option<Seq>) -> Option<&'static str> {
        match self.open_compaction.filter(|open| open.turn == turn) {
            None => Some("its compaction is not open"),
            Some(open) if open.completes_at != completes_at => Some("the context was rebuilt, or was not, before it"),
            Some(_) => None,
        }
    }

    fn obstacle_to_undo(&self, compaction: Seq) -> Option<&'static str> {
        match self.undoable().next_back() {
            _ if self.open_turn.is_some() => Some("a turn is open"),
            _ if self.open_compaction.is_some() => Some("a compaction is open"),
            Some(latest) if latest == compaction => (!self.context_before_is_known())
                .then_some("a snapshot does not hold what stood before that compaction"),
            _ => Some("it is not the latest compaction that can be undone"),
        }
    }

    /// A history comes before all turns, and a call stays with its result.
    fn obstacle_to_give(&self, given: &HistoryGiven) -> Option<&'static str> {
        match (&given.message, self.given_calls()) {
            _ if self.next_turn > 0 => Some("a turn came before it"),
            _ if !given.is_plain() || !is_given(given.span()) => Some("no such message can be given"),
            _ if self.context.entries().last().is_some_and(|last| last.turn < given.span()) => {
                Some("its exchange is over")
            }
            (Message::ToolResults { results }, Some(answer)) => {
                let is_of = |(call, result): (&ToolCall, &ToolResult)| call.call_id == result.call_id;
                let are_all = answer.tool_calls().count() == results.len();
                (!are_all || !answer.tool_calls().zip(results).all(is_of)).then_some("they are results of other calls")
            }
            (Message::ToolResults { .. }, None) => Some("its calls were not given"),
            (_, answer) => answer.map(|_| "a call has no result yet"),
        }
    }

    /// The answer that was given last, if its calls have no results yet.
    pub(super) fn given_calls(&self) -> Option<&Message> {
        let last = self.context.entries().last().filter(|last| is_given(last.turn))?;
        last.message.tool_calls().next().is_some().then_some(&*last.message)
    }

    fn has_calls(&self) -> bool {
        self.open_turn.as_ref().is_some_and(|open| !open.calls.is_empty()) || self.given_calls().is_some()
    }

    /// The running turn continues from its last message, and a call stays with its result.
    fn obstacle_to_rebuild(&self, rebuilt: &ContextRebuilt) -> Option<&'static str> {
        let is_ordered = rebuilt.retained.iter().all(|(from, to)| from <= to)
            && rebuilt.retained.is_sorted_by(|(_, to), (from, _)| to < from)
            && rebuilt.masked.is_sorted_by(|one, other| one < other);
        if !is_ordered {
            return Some("what it keeps is not in order");
        }
        self.open_turn.as_ref()?;
        // That message may itself be dropped from the journal; then an older one is the last here.
        let last = self.context.entries().last().map(|entry| entry.seq);
        let is_kept = |seq: Seq| rebuilt.retained.last().is_some_and(|(_, to)| seq <= *to);
        (!last.is_none_or(is_kept)).then_some("the open turn's last message is not retained")
    }

    fn has_form(&self, id: &str) -> bool {
        self.open_turn.iter().flat_map(|open| open.open_forms()).any(|form| form.id == id)
    }

    fn is_unanswered(&self, call_id: &str) -> bool {
        let mut calls = self.open_turn.iter().flat_map(|open| &open.calls);
        calls.any(|call| call.call.call_id == call_id && !matches!(call.progress, CallProgress::Finished(_)))
    }
}
