//! What was said, read from records without folding a session: for a history, and for a context that is loaded.

use super::{
    event::{Event, Record},
    message::{Body, Message, ToolResult},
};
use crate::ids::Seq;

/// Reads records in order and gives the messages that they bring.
#[derive(Debug, Default)]
pub struct Transcript {
    /// The calls of the last answer, in call order, with the results that there are.
    calls: Vec<(String, Option<ToolResult>)>,
}

impl Transcript {
    /// The message that a record brings. `queued` gives the prompt of the `turn_queued` with a seq.
    pub fn take(&mut self, record: &Record, queued: impl FnOnce(Seq) -> Option<Body>) -> Option<Message> {
        match &record.event {
            Event::TurnStarted(started) => {
                let prompt = started.queued.map_or_else(|| started.prompt.clone(), queued);
                prompt.map(|content| Message::User { content })
            }
            Event::AssistantMessage(answer) => {
                let message = answer.message();
                self.calls = message.tool_calls().map(|call| (call.call_id.clone(), None)).collect();
                Some(message)
            }
            Event::ToolFinished(finished) => {
                let call = self.calls.iter_mut().find(|(call_id, _)| *call_id == finished.call_id)?;
                call.1 = Some(finished.result());
                if self.calls.iter().any(|(_, result)| result.is_none()) {
                    return None;
                }
                let results = std::mem::take(&mut self.calls).into_iter().filter_map(|(_, result)| result).collect();
                Some(Message::ToolResults { results })
            }
            _ => None,
        }
    }
}
