//! Full history, message by message, from a session's records in order. It only reads.

use meerkat_words::answers::HistoryItem;

use super::{
    event::{Event, Record, TurnEdited},
    message::{Message, ToolResult},
};
use crate::ids::{Seq, TurnNumber};

/// Folds records into the items of a history.
#[derive(Debug, Default)]
pub struct HistoryFold {
    /// The calls of the last answer, in call order, and their results as they come.
    calls: Vec<(String, Option<ToolResult>)>,
    /// That answer, and its turn.
    answer: (Seq, Option<TurnNumber>),
    /// The last record.
    last: Seq,
    /// The event that holds the prompt which the last record brought.
    queued: Option<(Seq, HistoryItem)>,
    /// What had come of an answer that was cut off: a message, if nothing but the turn's end follows it.
    partial: Option<HistoryItem>,
}

impl HistoryFold {
    /// Returns the results of the last answer's calls if this record, the next one, shows that the others are lost to
    /// damage. They come behind everything that was read.
    pub fn left_of_step(&mut self, next: &Record) -> Option<HistoryItem> {
        let is_over = match &next.event {
            Event::TurnStarted(_) | Event::SteeringEntered(_) | Event::AssistantMessage(_) => true,
            Event::TurnCompleted(_) | Event::TurnFailed(_) | Event::TurnInterrupted(_) => true,
            Event::RecordsLost(lost) => lost.ranges.iter().any(|(_, to)| *to > self.answer.0),
            _ => false,
        };
        if !is_over {
            return None;
        }
        let results: Vec<ToolResult> = self.calls.drain(..).filter_map(|(_, result)| result).collect();
        let (seq, turn, role) = (self.last, self.answer.1, "tool_results".to_owned());
        (!results.is_empty()).then_some(HistoryItem { seq, turn, role, message: Message::ToolResults { results } })
    }

    /// Takes the next record in; answers with the message that it completes. A prompt in [`Self::queued_at`] comes
    /// behind that one.
    pub fn push(&mut self, record: &Record) -> Option<HistoryItem> {
        self.last = record.seq;
        let item =
            |role: &str, message| HistoryItem { seq: record.seq, turn: record.turn, role: role.to_owned(), message };
        match &record.event {
            Event::HistoryGiven(given) => Some(item(given.role()?, given.message.clone())),
            Event::TurnStarted(started) => {
                self.partial = None;
                let content = started.prompt.clone();
                if let (None, Some(queued)) = (&content, started.queued) {
                    self.queued = Some((queued, item("user", Message::user(String::new()))));
                }
                let blocks = started.blocks.clone();
                content.map(|content| item("user", Message::User { content, blocks }))
            }
            Event::SteeringEntered(entered) => {
                self.queued = Some((entered.steered, item("user", Message::user(String::new()))));
                // The text was said behind what had come of an answer.
                self.partial.take()
            }
            Event::AssistantMessage(answer) => {
                self.partial = None;
                let message = answer.message();
                self.answer = (record.seq, record.turn);
                self.calls = message.tool_calls().map(|call| (call.call_id.clone(), None)).collect();
                Some(item("assistant", message))
            }
            Event::ToolFinished(finished) => {
                let slot = self.calls.iter_mut().find(|(call_id, _)| *call_id == finished.call_id)?;
                slot.1 = Some(finished.result());
                if self.calls.iter().any(|(_, result)| result.is_none()) {
                    return None;
                }
                self.partial = None;
                let results = self.calls.drain(..).filter_map(|(_, result)| result).collect();
                Some(item("tool_results", Message::ToolResults { results }))
            }
            Event::PartialText(partial) => {
                self.partial = Some(item("assistant", Message::cut_off(&partial.text)));
                None
            }
            Event::ContextRebuilt(_) | Event::TurnCompleted(_) => {
                self.partial = None;
                None
            }
            Event::TurnFailed(_) | Event::TurnInterrupted(_) => self.partial.take(),
            _ => None,
        }
    }

    /// Returns the answer that was cut off, if the end of its turn is not read.
    pub(super) fn cut_off(&mut self) -> Option<HistoryItem> {
        self.partial.take()
    }

    /// The `turn_queued`, `turn_edited` or `turn_steered` that holds the prompt which the last record brought, if another
    /// one holds it.
    pub fn queued_at(&mut self) -> Option<Seq> {
        self.queued.as_ref().map(|(seq, _)| *seq)
    }

    /// Returns the prompt of that event.
    pub fn queued_prompt(&mut self, queued: &Record) -> Option<HistoryItem> {
        let (_, item) = self.queued.take()?;
        let (content, blocks) = match &queued.event {
            Event::TurnQueued(queued) => (&queued.prompt, &queued.blocks),
            Event::TurnSteered(steered) => (&steered.prompt, &steered.blocks),
            Event::TurnEdited(TurnEdited { prompt: Some(prompt), blocks, .. }) => (prompt, blocks),
            _ => return None,
        };
        Some(HistoryItem { message: Message::User { content: content.clone(), blocks: blocks.clone() }, ..item })
    }
}
