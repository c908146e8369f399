//! What a request says, in the order in which it was said, and how it becomes a turn: the last part is the prompt or
//! the answers to calls, all before it is history.

use meerkat_service::{
    SessionError, SessionId,
    given::{GivenBlock, GivenMessage, GivenResult},
    service::{Prompt, PromptBlock},
    session::message::RawJson,
};

use crate::wire::texts;

/// Prompt of a turn that goes on with results of calls which no session here has made.
const GO_ON: &str = "Go on with these results.";

/// One thing that was said, with its place in the request.
pub(crate) enum Said {
    /// Instructions.
    System(String),
    /// A message of the user.
    User(Vec<PromptBlock>),
    /// A text of the model.
    Text(String),
    /// A call of the model.
    Call { call_id: String, name: String, arguments: RawJson },
    /// The output of a call.
    Output { call_id: String, text: String },
    /// The id of an item of an earlier answer.
    Reference(String),
}

/// What a request says.
#[derive(Default)]
pub(crate) struct Transcript {
    /// Instructions before everything.
    pub(crate) system: Vec<String>,
    /// What was said before.
    pub(crate) history: Vec<GivenMessage>,
    /// The last message of the user; none if outputs of calls come last.
    pub(crate) prompt: Vec<PromptBlock>,
    /// Outputs that come last: the call and its text.
    pub(crate) outputs: Vec<(String, String)>,
    /// Items that are named by their ids, with their places: they are in a session already.
    references: Vec<(String, String)>,
}

impl Transcript {
    /// Sorts what was said.
    pub(crate) fn of(said: Vec<(String, Said)>) -> Result<Self, SessionError> {
        let mut transcript = Self::default();
        let is_tail = |said: &Said| match said {
            Said::Output { .. } => Some(false),
            Said::User(_) => Some(true),
            Said::System(_) | Said::Text(_) | Said::Call { .. } | Said::Reference(_) => None,
        };
        let last = said.last().and_then(|(_, said)| is_tail(said));
        let Some(last) = last else {
            let place = said.last().map_or_else(|| "input".to_owned(), |(place, _)| place.clone());
            return Err(SessionError::invalid(
                place,
                "the last item is a message of the user, or the output of a call",
            ));
        };
        let tail = said.iter().rev().take_while(|(_, said)| is_tail(said) == Some(last)).count();
        let before = said.len() - tail;
        for (at, (place, said)) in said.into_iter().enumerate() {
            match said {
                Said::User(parts) if at >= before => transcript.prompt.extend(parts),
                Said::Output { call_id, text } if at >= before => transcript.outputs.push((call_id, text)),
                said => transcript.push(place, said)?,
            }
        }
        Ok(transcript)
    }

    /// Makes all of it history: nothing of it is asked.
    pub(crate) fn before(said: Vec<(String, Said)>) -> Result<Self, SessionError> {
        let mut transcript = Self::default();
        for (place, said) in said {
            transcript.push(place, said)?;
        }
        Ok(transcript)
    }

    /// Adds to the history.
    fn push(&mut self, place: String, said: Said) -> Result<(), SessionError> {
        match said {
            Said::System(text) if self.history.is_empty() => self.system.push(text),
            Said::System(_) => {
                return Err(SessionError::invalid(place, "instructions are only supported before everything else"));
            }
            Said::User(parts) => self.history.push(GivenMessage::User { content: texts(&place, parts)? }),
            Said::Text(text) => self.assistant(GivenBlock::Text { text }),
            Said::Call { call_id, name, arguments } => {
                self.assistant(GivenBlock::ToolCall { call_id, name, arguments });
            }
            Said::Output { call_id, text } => self.result(call_id, text),
            Said::Reference(id) => self.references.push((place, id)),
        }
        Ok(())
    }

    fn assistant(&mut self, block: GivenBlock) {
        match self.history.last_mut() {
            Some(GivenMessage::Assistant { blocks, .. }) => blocks.push(block),
            _ => self.history.push(GivenMessage::Assistant { content: None, blocks: vec![block] }),
        }
    }

    fn result(&mut self, call_id: String, content: String) {
        let result = GivenResult { call_id, content, is_error: false };
        match self.history.last_mut() {
            Some(GivenMessage::ToolResults { results }) => results.push(result),
            _ => self.history.push(GivenMessage::ToolResults { results: vec![result] }),
        }
    }

    /// Makes outputs of calls that no session here has made a part of the history.
    pub(crate) fn forget_calls(&mut self) {
        for (call_id, text) in std::mem::take(&mut self.outputs) {
            self.result(call_id, text);
            self.prompt = vec![PromptBlock::text(GO_ON)];
        }
    }

    /// Refuses items that are named by their ids, but are not in the session that goes on.
    pub(crate) fn check_references(&self, session_id: Option<SessionId>) -> Result<(), SessionError> {
        let of = |id: &str| id.split('_').nth(1).and_then(|session_id| session_id.parse().ok());
        match self.references.iter().find(|(_, id)| session_id.is_none() || of(id) != session_id) {
            None => Ok(()),
            Some((place, _)) => Err(SessionError::invalid(
                format!("{place}.id"),
                "this item is not in the session that goes on: send the item itself",
            )),
        }
    }

    /// The prompt: a text if there is nothing else.
    pub(crate) fn take_prompt(&mut self) -> Prompt {
        let mut parts = std::mem::take(&mut self.prompt);
        match (parts.len(), parts.pop()) {
            (1, Some(PromptBlock::Text { text })) => Prompt::Text(text),
            (_, last) => Prompt::Blocks(parts.into_iter().chain(last).collect()),
        }
    }
}

/// The id of a call for clients: it names the session too, so that an output finds its call.
pub(crate) fn call_id_of(session_id: SessionId, call_id: &str) -> String {
    format!("call_{session_id}_{}", call_id.strip_prefix("call_").unwrap_or(call_id))
}

/// The session and the call that an id names.
pub(crate) fn session_of(call_id: &str) -> Option<(SessionId, String)> {
    let (session_id, rest) = call_id.strip_prefix("call_")?.split_once('_')?;
    Some((session_id.parse().ok()?, format!("call_{rest}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_a_call_names_its_session() {
        let session_id: SessionId = "01900000-0000-7000-8000-000000000001".parse().unwrap();
        let given = call_id_of(session_id, "call_12_0");
        assert_eq!(given, "call_01900000-0000-7000-8000-000000000001_12_0");
        assert_eq!(session_of(&given), Some((session_id, "call_12_0".to_owned())));
        for foreign in ["call_abc", "call_12_0", "x", "call_01900000-0000-7000-8000-00000000000g_1_0"] {
            assert_eq!(session_of(foreign), None, "{foreign}");
        }
    }
}
