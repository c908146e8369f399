//! What a request says, in the order in which it was said, and how it becomes a turn: the last messages of the user are
//! the prompt, or the last outputs the answers to calls, and all before is history.

use meerkat_service::{
    SessionError, SessionId,
    given::{GivenBlock, GivenMessage, GivenResult},
    service::{Prompt, PromptBlock},
};
use serde_json::value::RawValue;

use crate::wire::{Fields, content, is_text, items, json_object, texts};

/// Prompt of a turn that goes on with results of calls which no session here has made.
const GO_ON: &str = "Go on with these results.";

#[derive(Default)]
pub(crate) struct Transcript {
    pub(crate) system: Vec<String>,
    pub(crate) history: Vec<GivenMessage>,
    /// The last messages of the user, with their places; none if outputs of calls come last.
    prompt: Vec<(String, Vec<PromptBlock>)>,
    /// Outputs that come last: the call and its text.
    pub(crate) outputs: Vec<(String, String)>,
    /// Items that are named by their ids, with their places: they are in a session already.
    references: Vec<(String, String)>,
    /// Place of the last item.
    last: String,
}

impl Transcript {
    /// Reads a list of items or messages. Only the input of a response may be a text of the user instead.
    pub(crate) fn read(place: &str, raw: &RawValue) -> Result<Self, SessionError> {
        let mut transcript = Self { last: place.to_owned(), ..Self::default() };
        if place == "input" && is_text(raw) {
            transcript.prompt.push((place.to_owned(), content(place, raw)?));
            return Ok(transcript);
        }
        for (place, raw) in items(place, raw)? {
            transcript.last.clone_from(&place);
            transcript.item(place, raw)?;
        }
        Ok(transcript)
    }

    /// Refuses a request that asks nothing.
    pub(crate) fn check_asked(&self) -> Result<(), SessionError> {
        if self.prompt.is_empty() && self.outputs.is_empty() {
            let message = "send a message of the user, or the output of a call, as the last item";
            return Err(SessionError::invalid(self.last.as_str(), message));
        }
        Ok(())
    }

    fn item(&mut self, place: String, raw: &RawValue) -> Result<(), SessionError> {
        let mut item = Fields::of(place.clone(), raw)?;
        let kind = item.kind()?;
        match kind.as_str() {
            "item_reference" => {
                let id: String = item.need("id")?;
                self.settle()?;
                // As with reasoning itself, no model is given it again.
                if !id.starts_with("rs_") {
                    self.references.push((place, id));
                }
                return item.finish();
            }
            "reasoning" => return Ok(()),
            _ => item.hints(&["id", "status"])?,
        }
        match kind.as_str() {
            "" | "message" => self.message(place, &mut item)?,
            "function_call" => {
                let call_id = item.need("call_id")?;
                self.call(call_id, &mut item)?;
            }
            "function_call_output" => self.output(item.need("call_id")?, &mut item, "output")?,
            other => return Err(item.other_type(other, "message, function_call or function_call_output")),
        }
        item.finish()
    }

    fn message(&mut self, place: String, message: &mut Fields<'_>) -> Result<(), SessionError> {
        // Hints of who speaks and how; the model is not shown them.
        message.hints(&["name", "phase"])?;
        message.allow("annotations", &["[]"])?;
        let role: String = message.need("role")?;
        if role == "tool" {
            return self.output(message.need("tool_call_id")?, message, "content");
        }
        let calls = if role == "assistant" { message.list("tool_calls")? } else { Vec::new() };
        let parts = match message.content("content")? {
            None if calls.is_empty() => return Err(message.wrong("content", "it is missing")),
            parts => parts.unwrap_or_default(),
        };
        match role.as_str() {
            "user" => {
                self.forget_calls();
                self.prompt.push(parts);
            }
            "assistant" => {
                let text = texts(&parts.0, parts.1)?;
                if calls.is_empty() || !text.is_empty() {
                    self.assistant(GivenBlock::Text { text })?;
                }
            }
            "system" | "developer" if self.is_empty() => self.system.push(texts(&parts.0, parts.1)?),
            "system" | "developer" => {
                return Err(SessionError::invalid(place, "instructions are only supported before everything else"));
            }
            other => return Err(message.wrong("role", format!("the role {other:?} is not supported"))),
        }
        for (place, raw) in calls {
            let mut call = Fields::of(place, raw)?;
            call.allow("type", &[r#""function""#])?;
            call.take::<u32>("index")?;
            let call_id = call.need("id")?;
            let mut function = call.inner("function", true)?;
            self.call(call_id, &mut function)?;
            function.finish()?;
        }
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.history.is_empty() && self.prompt.is_empty() && self.outputs.is_empty()
    }

    /// A call of the model, whose arguments are JSON in a text.
    fn call(&mut self, call_id: String, call: &mut Fields<'_>) -> Result<(), SessionError> {
        let text: String = call.need("arguments")?;
        let text = if text.trim().is_empty() { "{}" } else { &text };
        let arguments = json_object(&call.at("arguments"), text)?;
        self.assistant(GivenBlock::ToolCall { call_id, name: call.need("name")?, arguments })
    }

    fn assistant(&mut self, block: GivenBlock) -> Result<(), SessionError> {
        self.settle()?;
        match self.history.last_mut() {
            Some(GivenMessage::Assistant { blocks, .. }) => blocks.push(block),
            _ => self.history.push(GivenMessage::Assistant { content: None, blocks: vec![block] }),
        }
        Ok(())
    }

    /// The output of a call, in a field.
    fn output(&mut self, call_id: String, item: &mut Fields<'_>, name: &str) -> Result<(), SessionError> {
        let (place, parts) = item.content(name)?.ok_or_else(|| item.wrong(name, "it is missing"))?;
        self.settle_prompt()?;
        self.outputs.push((call_id, texts(&place, parts)?));
        Ok(())
    }

    /// Makes all of it history: nothing of it is asked.
    pub(crate) fn settle(&mut self) -> Result<(), SessionError> {
        self.forget_calls();
        self.settle_prompt()
    }

    fn settle_prompt(&mut self) -> Result<(), SessionError> {
        for (place, parts) in std::mem::take(&mut self.prompt) {
            self.history.push(GivenMessage::User { content: texts(&place, parts)? });
        }
        Ok(())
    }

    /// Makes outputs of calls that no session here has made a part of the history.
    fn forget_calls(&mut self) {
        let outputs = std::mem::take(&mut self.outputs).into_iter();
        let results: Vec<_> =
            outputs.map(|(call_id, content)| GivenResult { call_id, content, is_error: false }).collect();
        if !results.is_empty() {
            self.history.push(GivenMessage::ToolResults { results });
        }
    }

    /// Makes the last outputs a part of the history, with which a new session goes on.
    pub(crate) fn ask_to_go_on(&mut self) {
        self.forget_calls();
        self.prompt.push((String::new(), vec![PromptBlock::text(GO_ON)]));
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
    pub(crate) fn prompt(&self) -> Prompt {
        let mut parts: Vec<PromptBlock> = self.prompt.iter().flat_map(|(_, parts)| parts.clone()).collect();
        match (parts.len(), parts.pop()) {
            (1, Some(PromptBlock::Text { text })) => Prompt::Text(text),
            (_, last) => Prompt::Blocks(parts.into_iter().chain(last).collect()),
        }
    }
}
