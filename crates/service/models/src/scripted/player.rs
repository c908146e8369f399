//! Plays one step of a script as a stream of parts.
//!
//! It yields between any two parts, so that an interrupt can come there. It never waits for time.

use std::{collections::VecDeque, future::poll_fn, sync::Arc, task::Poll};

use futures::{StreamExt, future, stream};
use meerkat_errors::ErrorCode;
use serde_json::json;

use super::{
    RunningTurn, filler,
    grammar::{Action, Chunks, Echo, Failure, ScriptedUsage, Step, Words},
    rejected,
    summary::{self, excerpt},
};
use crate::{AnswerBlock, ModelAnswer, ModelError, ModelPart, ModelRequest, ModelStream, StopReason, Usage, said};
use meerkat_words::message::{Message, RawJson, ToolCall};

/// Longest quote of a prompt without a script.
const QUOTE_CHARS_MAX: usize = 200;

/// Longest text of an `@echo`, and of the system prompt in it.
const ECHO_CHARS_MAX: usize = 2000;
const ECHO_SYSTEM_CHARS_MAX: usize = 60;

/// Plays the due step.
pub(super) fn play(request: &ModelRequest, turn: RunningTurn<'_>, steps: Vec<Step>) -> Result<ModelStream, ModelError> {
    let mut step = due_step(steps, turn);
    step.actions.retain(|action| !matches!(action, Action::Failure { times, .. } if request.attempt >= *times));
    if let Some(Action::Failure { failure: Failure::Fail { code, retry_after }, .. }) = step.actions.first() {
        return Err(failure(*code, *retry_after));
    }
    let mut player = Player { step: turn.step, input_bytes: turn.prompt.len(), ..Player::default() };
    (player.usage, player.stop) = (step.usage, step.stop);
    for action in step.actions {
        player.take(action, request)?;
    }
    player.tasks.push_back(Task::End);
    let parts = stream::unfold(player, |mut player| async move {
        yield_once().await;
        match player.next() {
            Beat::Part(part) => Some((part, player)),
            Beat::Stall => future::pending().await,
            Beat::Over => None,
        }
    });
    Ok(parts.boxed())
}

/// Finds the turn's due step.
fn due_step(steps: Vec<Step>, turn: RunningTurn<'_>) -> Step {
    let is_script = !steps.is_empty();
    let mut left = turn.step;
    for step in steps {
        let plays = step.repeat.map_or(1, u64::from);
        if left < plays {
            return step;
        }
        left -= plays;
    }
    let answer = if is_script {
        "Done: the script has no further step.".to_owned()
    } else {
        format!(
            "Hello! I am meerkat's scripted model, not a real one. You said: \"{}\"",
            excerpt(turn.prompt, QUOTE_CHARS_MAX)
        )
    };
    let say = Action::Say { is_reasoning: false, words: Words::Plain(answer), chunks: Chunks::Words };
    Step { actions: vec![say], ..Step::default() }
}

/// Next event of a stream.
enum Beat {
    Part(Result<ModelPart, ModelError>),
    Stall,
    Over,
}

/// Remaining work.
enum Task {
    /// Streams the text of the block with this index, from this byte on.
    Say {
        block: usize,
        from: usize,
        chunks: Chunks,
    },
    Failure(Failure),
    End,
}

/// State of a step while it is played.
#[derive(Default)]
struct Player {
    step: u64,
    input_bytes: usize,
    usage: ScriptedUsage,
    stop: Option<StopReason>,
    tasks: VecDeque<Task>,
    /// All blocks of the answer.
    blocks: Vec<AnswerBlock>,
}

impl Player {
    fn take(&mut self, action: Action, request: &ModelRequest) -> Result<(), ModelError> {
        match action {
            Action::Say { is_reasoning, words, chunks } => {
                let text = match words {
                    Words::Plain(text) => text,
                    Words::Filler(bytes) => filler(bytes),
                    Words::Echo(what) => echo(what, request),
                    Words::Summary(distortion) => summary::distorted(distortion, &request.messages),
                };
                self.tasks.push_back(Task::Say { block: self.blocks.len(), from: 0, chunks });
                self.blocks.push(match is_reasoning {
                    true => AnswerBlock::Reasoning { text, opaque: None },
                    false => AnswerBlock::Text(text),
                });
            }
            Action::Call { tool, arguments } => {
                let place = RawJson::parse(&format!("{{\"step\":{}}}", self.step))
                    .map_err(|error| rejected(error.to_string()))?;
                self.blocks.push(AnswerBlock::ToolCall(ToolCall {
                    call_id: String::new(),
                    name: tool,
                    arguments,
                    opaque: Some(place),
                }));
            }
            Action::Failure { failure, .. } => self.tasks.push_back(Task::Failure(failure)),
        }
        Ok(())
    }

    fn next(&mut self) -> Beat {
        match self.tasks.pop_front() {
            Some(Task::Say { block, from, chunks }) => self.say(block, from, chunks),
            Some(Task::Failure(Failure::Fail { code, retry_after })) => {
                self.tasks.clear();
                Beat::Part(Err(failure(code, retry_after)))
            }
            Some(Task::Failure(Failure::Stall)) => Beat::Stall,
            Some(Task::End) => Beat::Part(Ok(ModelPart::End(self.answer()))),
            Some(Task::Failure(Failure::Cut)) | None => Beat::Over,
        }
    }

    /// Takes the next chunk of a block's text.
    fn say(&mut self, block: usize, from: usize, chunks: Chunks) -> Beat {
        let (text, is_reasoning) = match &self.blocks[block] {
            AnswerBlock::Text(text) => (text, false),
            AnswerBlock::Reasoning { text, .. } => (text, true),
            AnswerBlock::ToolCall(_) => return Beat::Over,
        };
        let rest = &text[from..];
        let length = match chunks {
            Chunks::Words => rest.split_inclusive(char::is_whitespace).next().map_or(0, str::len),
            Chunks::Characters(count) => rest.char_indices().nth(count.get()).map_or(rest.len(), |(at, _)| at),
        };
        let chunk = rest[..length].to_owned();
        if length < rest.len() {
            self.tasks.push_front(Task::Say { block, from: from + length, chunks });
        }
        Beat::Part(Ok(if is_reasoning { ModelPart::Reasoning(chunk) } else { ModelPart::Text(chunk) }))
    }

    /// Builds the whole answer; a quarter of the bytes counts as tokens if the script sets none.
    fn answer(&mut self) -> ModelAnswer {
        let blocks = std::mem::take(&mut self.blocks);
        let output_bytes: usize = blocks.iter().map(bytes).sum();
        let has_calls = blocks.iter().any(|block| matches!(block, AnswerBlock::ToolCall(_)));
        let usage = Usage {
            input_tokens: self.usage.input.unwrap_or_else(|| tokens(self.input_bytes)),
            output_tokens: self.usage.output.unwrap_or_else(|| tokens(output_bytes)),
            cached_tokens: self.usage.cached.unwrap_or(0),
            cache_write_tokens: self.usage.written.unwrap_or(0),
            reasoning_tokens: self.usage.reasoning.unwrap_or(0),
        };
        let stop_reason = self.stop.unwrap_or(if has_calls { StopReason::ToolUse } else { StopReason::EndTurn });
        ModelAnswer { blocks, stop_reason, usage }
    }
}

fn bytes(block: &AnswerBlock) -> usize {
    match block {
        AnswerBlock::Text(text) | AnswerBlock::Reasoning { text, .. } => text.len(),
        AnswerBlock::ToolCall(call) => call.name.len() + call.arguments.as_str().len(),
    }
}

fn tokens(bytes: usize) -> u64 {
    bytes.div_ceil(4) as u64
}

fn failure(code: ErrorCode, retry_after: Option<std::time::Duration>) -> ModelError {
    ModelError { retry_after, ..ModelError::new(code, format!("The script says so: {}", code.message())) }
}

/// Describes the request.
fn echo(what: Echo, request: &ModelRequest) -> String {
    let text = |text: Option<&str>, limit| text.map_or("none".to_owned(), |text| excerpt(text, limit));
    match what {
        Echo::All => [Echo::Messages, Echo::Tail, Echo::Tools, Echo::System].map(|part| echo(part, request)).join("\n"),
        Echo::Messages => format!("messages: {}", request.messages.len()),
        Echo::First => {
            let first = request.messages.first().map(|message| message.text());
            format!("first: {}", text(first.as_deref(), ECHO_CHARS_MAX))
        }
        Echo::Tail => format!("tail: {}", text(request.tail.as_deref(), ECHO_CHARS_MAX)),
        Echo::Tools => {
            let names: Vec<&str> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
            format!("tools: {}", if names.is_empty() { "none".to_owned() } else { names.join(" ") })
        }
        Echo::System => format!("system: {}", text(request.system.as_deref(), ECHO_SYSTEM_CHARS_MAX)),
        Echo::LastResult => {
            let last = results(&request.messages).pop();
            format!("last_result: {}", text(last.as_deref(), ECHO_CHARS_MAX))
        }
        Echo::Results => {
            let results = Some(results(&request.messages).join("\n")).filter(|results| !results.is_empty());
            format!("results: {}", text(results.as_deref(), ECHO_CHARS_MAX))
        }
        Echo::Attempt => format!("attempt: {}", request.attempt),
        Echo::Options => format!("options: {}", json!(request.options)),
        Echo::Output => {
            let asked = request.output.as_ref().map(|output| format!("{} {}", output.name(), output.schema.as_str()));
            format!("output: {}", text(asked.as_deref(), ECHO_CHARS_MAX))
        }
        Echo::Blocks => format!("blocks: {}", text(blocks(request).as_deref(), ECHO_CHARS_MAX)),
    }
}

/// Describes the newest prompt's images and files, as a vendor would be sent them.
fn blocks(request: &ModelRequest) -> Option<String> {
    let message = request.messages.iter().rfind(|message| matches!(***message, Message::User { .. }))?;
    (!message.attached().is_empty()).then(|| said::lines(message.attached(), request).join("\n"))
}

/// Lists the tool results of the running turn, the newest last.
fn results(messages: &[Arc<Message>]) -> Vec<String> {
    let begun = messages.iter().rposition(|message| matches!(**message, Message::User { .. }));
    let of_turn = &messages[begun.map_or(0, |at| at + 1)..];
    let results = of_turn.iter().filter_map(|message| match &**message {
        Message::ToolResults { results } => Some(results),
        _ => None,
    });
    results.flatten().map(|result| result.content.excerpt().into_owned()).collect()
}

/// Yields to other tasks. Waking itself at once costs less than a turn of the runtime's timers.
async fn yield_once() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
