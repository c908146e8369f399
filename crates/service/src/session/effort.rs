//! Work that a record makes: [`Session::apply`](super::Session::apply) searches lists that are short in every session
//! that was made here, and may be long in one that comes from elsewhere.

use super::{
    SessionFields,
    event::{Event, Record},
    message::Block,
    state::KEYS_KEPT,
};

impl SessionFields {
    /// Estimates the steps that applying a record takes, beyond a few and those that its own length explains.
    pub(crate) fn effort(&self, record: &Record) -> u64 {
        let open = self.open_turn.as_ref();
        let calls = open.map_or(0, |open| open.calls.len() + open.forms.len());
        let steered = open.map_or(0, |open| open.steered.len());
        let brought = (self.tools_of_queue.len() + 1) * (self.queue.len() + 1) - 1;
        // Old keys are searched for once in so many.
        let keyed = |is_keyed: bool| if is_keyed { self.keys_by_age.len() / KEYS_KEPT } else { 0 };
        let steps = match &record.event {
            Event::ReminderSet(_) | Event::ReminderCleared(_) => self.reminders.len(),
            Event::Unpinned(_) => self.pins.len(),
            Event::TurnQueued(queued) => keyed(queued.key.is_some()),
            Event::TurnEdited(_) => self.queue.len(),
            Event::TurnDequeued(_) => self.queue.len() + self.keys.len() + brought,
            Event::ClientToolsChanged(_) => brought,
            Event::TurnStarted(started) => {
                let continued = if started.continues.is_some() { self.context.held() } else { 0 };
                self.queue.len() + continued + keyed(started.key.is_some()) + brought
            }
            Event::TurnSteered(steered) => keyed(steered.key.is_some()),
            Event::SteeringEntered(_) | Event::TurnCompleted(_) | Event::TurnInterrupted(_) => steered,
            Event::AssistantMessage(answer) => {
                let is_call = |block: &&Block| matches!(block, Block::ToolCall(_));
                answer.blocks.iter().filter(is_call).count().pow(2)
            }
            Event::ToolStarted(_)
            | Event::ToolFinished(_)
            | Event::CallRequested(_)
            | Event::DelegateStarted(_)
            | Event::ApprovalRequested(_)
            | Event::ApprovalDecided(_) => calls,
            Event::CallAnswered(_) => calls + keyed(true),
            Event::ContextRebuilt(_) | Event::CompactionUndone(_) => self.context.held(),
            Event::TurnFailed(_) => self.context.held() + steered,
            Event::HistorySnapshot(_) => self.context.held() + self.keys.len() + self.keys_by_age.len(),
            Event::RecordsLost(lost) => lost.keys.len().saturating_mul(self.keys_by_age.len()),
            Event::SessionImported(_) => self.queue.len(),
            Event::SessionCreated(_)
            | Event::SessionForked(_)
            | Event::HistoryGiven(_)
            | Event::SessionUpdated(_)
            | Event::SessionArchived(_)
            | Event::SessionUnarchived(_)
            | Event::Pinned(_)
            | Event::ToolAllowed(_)
            | Event::BudgetWarning(_)
            | Event::PartialText(_)
            | Event::OutputRefused(_)
            | Event::LogTailRepaired(_)
            | Event::CompactionStarted(_)
            | Event::CompactionCompleted(_)
            | Event::SummaryUnused(_)
            | Event::CompactionFailed(_)
            | Event::Unknown(_) => 0,
        };
        steps as u64
    }
}
