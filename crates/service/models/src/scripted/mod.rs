//! Scripted model: deterministic, without a key and without I/O. It takes its script from the last user message.
//!
//! `docs/scripted-model.md` describes the directives. The model keeps no state: the due step of the script follows from
//! the request alone. It reads the messages of the running turn, and the whole context only for a summary.

mod grammar;
mod player;
mod summary;

use std::sync::Arc;

use async_trait::async_trait;
use meerkat_errors::ErrorCode;
use serde::Deserialize;

use super::{ModelClient, ModelError, ModelRequest, ModelStream};
use meerkat_words::{
    message::{Body, Message},
    options::ModelOptions,
};

/// Vendor name in events.
const VENDOR: &str = "scripted";

/// Sentence that filler text repeats.
const FILLER: &str = "One meerkat keeps watch while the others dig. ";

/// Built-in model that answers as its prompt says.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScriptedModel;

#[async_trait]
impl ModelClient for ScriptedModel {
    fn vendor(&self) -> &str {
        VENDOR
    }

    fn sees_images(&self, _: &str) -> bool {
        true
    }

    fn takes(&self, _: &str, _: &str) -> bool {
        true
    }

    fn lacks(&self, _: &str, _: &ModelOptions) -> Option<&'static str> {
        None
    }

    async fn stream_response(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let (turn, steps) = match summary::summary_call(&request.messages) {
            Some(asked) => asked?,
            None => {
                let turn = running_turn(&request.messages)?;
                (turn, grammar::parse(turn.prompt)?.steps)
            }
        };
        player::play(&request, turn, steps)
    }
}

/// Parts of a request's messages that the scripted model reads.
#[derive(Clone, Copy)]
struct RunningTurn<'a> {
    /// The last user message.
    prompt: &'a str,
    /// Answers of this turn so far: the index of the due step.
    step: u64,
}

/// Mark beside a call, which gives the step if older ones of the turn were compacted away.
#[derive(Deserialize)]
struct Place {
    step: u64,
}

/// Finds the running turn, and refuses a context that a strict vendor would refuse.
fn running_turn(messages: &[Arc<Message>]) -> Result<RunningTurn<'_>, ModelError> {
    let (mut answers, mut place) = (0, None);
    for (at, message) in messages.iter().enumerate().rev() {
        match &**message {
            Message::User { content: Body::Inline(prompt), .. } => {
                check_pairs(&messages[turn_before(messages, at)..])?;
                return Ok(RunningTurn { prompt, step: place.unwrap_or(answers) });
            }
            Message::User { content: Body::Blob(_), .. } => return Err(rejected("a user message is not inline")),
            Message::System { .. } => return Err(rejected("there is a system message among the messages")),
            // A step that was cut off is due again.
            Message::Assistant { .. } if message.is_cut_off() => {}
            Message::Assistant { .. } | Message::BlockAssistant { .. } => {
                answers += 1;
                let noted = message.tool_calls().find_map(|call| call.opaque.as_ref()?.decode::<Place>().ok());
                place = place.or(noted.map(|noted| noted.step.saturating_add(answers)));
            }
            Message::ToolResults { .. } | Message::SystemReminder { .. } | Message::Pin { .. } => {}
        }
    }
    Err(rejected("the request has no user message"))
}

/// Finds the beginning of the pair right before the prompt at `at`: an unpaired call there also spoils the request.
fn turn_before(messages: &[Arc<Message>], at: usize) -> usize {
    let is_results = at > 0 && matches!(*messages[at - 1], Message::ToolResults { .. });
    at.saturating_sub(if is_results { 2 } else { 1 })
}

/// Refuses calls without results, results without calls, and results in another order than their calls.
fn check_pairs(messages: &[Arc<Message>]) -> Result<(), ModelError> {
    let mut open: Vec<&str> = Vec::new();
    for message in messages {
        if let Message::ToolResults { results } = &**message {
            let answered: Vec<&str> = results.iter().map(|result| result.call_id.as_str()).collect();
            if open != answered {
                return Err(rejected(format!("tool results for {answered:?} follow the calls {open:?}")));
            }
            open.clear();
        } else if open.is_empty() {
            open.extend(message.tool_calls().map(|call| call.call_id.as_str()));
        } else {
            break;
        }
    }
    if open.is_empty() { Ok(()) } else { Err(rejected(format!("the tool calls {open:?} have no results"))) }
}

fn rejected(why: impl Into<String>) -> ModelError {
    ModelError::new(ErrorCode::ModelRejected, why)
}

/// Makes a deterministic ASCII text of exactly this many bytes.
#[must_use]
pub fn filler(bytes: usize) -> String {
    FILLER.chars().cycle().take(bytes).collect()
}

#[cfg(test)]
mod tests;
