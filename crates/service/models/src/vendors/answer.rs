//! Conversion of genai's events to the parts of an answer.
//!
//! An answer is whole only if the vendor gave a stop reason and its last frame is complete: genai reports an end for
//! some streams that were cut. Facts that genai leaves out are read from the frames: the order of the blocks, and the
//! text of arguments that it holds as a value.

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
};

use futures::{StreamExt, stream};
use genai::{
    adapter::AdapterKind,
    chat::{
        ChatFrameSink, ChatStream, ChatStreamEvent, ContentPart, FrameCtx, MessageContent, RawFrameRef,
        StopReason as VendorStop, StreamEnd, ToolCall as VendorCall, Usage as VendorUsage,
    },
};
use meerkat_errors::ErrorCode;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value, value::RawValue};

use super::{
    failure::Failures,
    relay::{CALLS_MAX, Link},
};
use crate::{ARGUMENTS_BYTES_MAX, AnswerBlock, ModelAnswer, ModelError, ModelPart, ModelStream, StopReason, Usage};
use meerkat_words::message::{RawJson, ToolCall};

/// Stop reasons without a usable answer: a retry may bring one.
const BROKEN_STOPS: &[&str] =
    &["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "insufficient_system_resource", "error"];

/// Most blocks of one answer: each event is placed among them.
const PIECES_MAX: usize = 4096;

/// Bytes counted for each frame besides its data.
const FRAME_BYTES: usize = 16;

/// Streams the parts of an answer, up to its end or first failure.
pub(super) fn stream(events: ChatStream, frames: Arc<Frames>, link: Link, failures: Failures) -> ModelStream {
    let reader =
        Reader { events, frames, link, failures, pieces: Vec::new(), calls: Vec::new(), reasoning: String::new() };
    let parts = stream::unfold(Some(reader), |reader| async move {
        let mut reader = reader?;
        let part = reader.next_part().await;
        let goes_on = !matches!(part, Ok(ModelPart::End(_)) | Err(_));
        Some((part, goes_on.then_some(reader)))
    });
    parts.boxed()
}

/// Facts read from the frames themselves.
#[derive(Default)]
pub(super) struct Frames(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    /// The last frame's data.
    last: String,
    /// Blocks of reasoning that have begun; only in Anthropic's frames.
    thoughts: usize,
    /// Tokens of reasoning; only in Anthropic's frames, where genai reads none of a stream.
    thinking_tokens: Option<i32>,
    /// Stop reason and usage; only in chat completions.
    finish_reason: Option<String>,
    usage: Option<VendorUsage>,
    /// Bytes of frames that are not yet reported as [`ModelPart::Hidden`].
    bytes: usize,
}

/// Fields read from a frame of chat completions.
#[derive(Deserialize)]
struct ChatFrame {
    choices: Option<Vec<Choice>>,
    usage: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    finish_reason: Option<String>,
}

impl Frames {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_bytes(&self) -> usize {
        std::mem::take(&mut self.seen().bytes)
    }
}

impl ChatFrameSink for Frames {
    fn on_frame(&self, call: &FrameCtx, frame: RawFrameRef<'_>) {
        let mut seen = self.seen();
        // A comment has no data, and still costs its line.
        seen.bytes += frame.data.len() + FRAME_BYTES;
        if frame.data.is_empty() {
            return;
        }
        frame.data.clone_into(&mut seen.last);
        if call.model_iden.adapter_kind == AdapterKind::OpenAI
            && let Ok(ChatFrame { choices, usage }) = serde_json::from_str(frame.data)
        {
            seen.usage = usage.and_then(|usage| serde_json::from_value(usage).ok()).or_else(|| seen.usage.take());
            let choice = choices.into_iter().flatten().next();
            let reason = choice.and_then(|choice| choice.finish_reason).filter(|reason| !reason.is_empty());
            seen.finish_reason = reason.or_else(|| seen.finish_reason.take());
        }
        if frame.event == Some("message_delta") {
            let bill = frame.json();
            let tokens = bill.as_ref().and_then(|bill| bill.pointer("/usage/output_tokens_details/thinking_tokens"));
            seen.thinking_tokens = tokens.and_then(|tokens| i32::try_from(tokens.as_i64()?).ok());
        }
        if frame.event == Some("content_block_start") {
            let block = frame.json();
            let kind = block.as_ref().and_then(|block| block.pointer("/content_block/type")?.as_str());
            seen.thoughts += usize::from(matches!(kind, Some("thinking" | "redacted_thinking")));
        }
    }
}

/// Place of a part in the answer. Reasoning and calls are complete only at the end.
enum Piece {
    Thought,
    Text(String),
    Call,
}

/// Call as it was streamed.
struct StreamedCall {
    call_id: String,
    name: String,
    arguments: Option<String>,
    signatures: Vec<String>,
}

struct Reader {
    events: ChatStream,
    frames: Arc<Frames>,
    link: Link,
    failures: Failures,
    pieces: Vec<Piece>,
    calls: Vec<StreamedCall>,
    /// Readable reasoning so far.
    reasoning: String,
}

impl Reader {
    async fn next_part(&mut self) -> Result<ModelPart, ModelError> {
        loop {
            let Some(event) = self.next_event().await else { return Ok(ModelPart::Hidden(self.frames.take_bytes())) };
            let event = match event {
                Some(Ok(event)) => event,
                Some(Err(error)) if is_without_candidate(&error) => {
                    if self.frames.seen().last.contains("blockReason") {
                        let (stop_reason, usage) = (StopReason::ContentFilter, Usage::default());
                        return Ok(ModelPart::End(ModelAnswer { blocks: Vec::new(), stop_reason, usage }));
                    }
                    continue;
                }
                Some(Err(error)) => {
                    let seen = || self.failures.class(&error, &self.frames.seen().last);
                    let failure = self.link.failure(&self.failures).unwrap_or_else(seen);
                    return self.cut_after_its_end(failure);
                }
                None => {
                    let failure = self.cut();
                    return self.cut_after_its_end(failure);
                }
            };
            self.place_thoughts();
            if self.calls.len() > CALLS_MAX || self.pieces.len() > PIECES_MAX {
                let what = format!("the answer has more than {CALLS_MAX} calls or {PIECES_MAX} blocks");
                return Err(self.failures.failure(ErrorCode::ModelRejected, &what));
            }
            match event {
                ChatStreamEvent::Chunk(chunk) if !chunk.content.is_empty() => {
                    match self.pieces.last_mut() {
                        Some(Piece::Text(text)) => text.push_str(&chunk.content),
                        _ => self.pieces.push(Piece::Text(chunk.content.clone())),
                    }
                    self.frames.take_bytes();
                    return Ok(ModelPart::Text(chunk.content));
                }
                ChatStreamEvent::ReasoningChunk(chunk) if !chunk.content.is_empty() => {
                    self.frames.take_bytes();
                    self.reasoning.push_str(&chunk.content);
                    return Ok(ModelPart::Reasoning(chunk.content));
                }
                ChatStreamEvent::ToolCallChunk(chunk) => {
                    self.record_call(chunk.tool_call);
                    // All calls are copied with each frame of arguments.
                    let argued: usize = self.calls.iter().filter_map(|call| Some(call.arguments.as_ref()?.len())).sum();
                    if argued > ARGUMENTS_BYTES_MAX {
                        let what = format!("the calls of the answer passed {ARGUMENTS_BYTES_MAX} bytes");
                        return Err(self.failures.failure(ErrorCode::ModelRejected, &what));
                    }
                }
                ChatStreamEvent::End(end) => return self.finish(end).map(ModelPart::End),
                _ => {}
            }
        }
    }

    /// Returns the next event; the outer `None` means frames without an event.
    async fn next_event(&mut self) -> Option<Option<genai::Result<ChatStreamEvent>>> {
        let Self { events, frames, .. } = self;
        poll_fn(|context| match events.poll_next_unpin(context) {
            Poll::Ready(event) => Poll::Ready(Some(event)),
            Poll::Pending if frames.seen().bytes > 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    /// Builds the answer of a server that gave a stop reason but did not end the stream.
    fn cut_after_its_end(&mut self, failure: ModelError) -> Result<ModelPart, ModelError> {
        let (reason, usage) = {
            let mut seen = self.frames.seen();
            (seen.finish_reason.take(), seen.usage.take())
        };
        let Some(reason) = reason.filter(|_| failure.code == ErrorCode::ModelStreamIncomplete) else {
            return Err(failure);
        };
        let calls = self.calls.iter().map(|call| {
            ContentPart::ToolCall(VendorCall {
                call_id: call.call_id.clone(),
                fn_name: call.name.clone(),
                fn_arguments: call.arguments.clone().unwrap_or_default().into(),
                thought_signatures: None,
            })
        });
        let end = StreamEnd {
            captured_stop_reason: Some(reason.into()),
            captured_content: Some(MessageContent::from_parts(calls.collect::<Vec<_>>())),
            captured_reasoning_content: Some(std::mem::take(&mut self.reasoning)),
            captured_usage: usage,
            ..StreamEnd::default()
        };
        self.answer(end).map(ModelPart::End)
    }

    /// Reserves a place for each block of reasoning that has begun. Redacted ones bring no event.
    fn place_thoughts(&mut self) {
        let placed = self.pieces.iter().filter(|piece| matches!(piece, Piece::Thought)).count();
        let begun = self.frames.seen().thoughts;
        self.pieces.extend((placed..begun).map(|_| Piece::Thought));
    }

    /// Records facts that genai gives only while streaming: the arguments' text, and each call's signatures.
    fn record_call(&mut self, call: VendorCall) {
        let (arguments, grows) = match call.fn_arguments {
            Value::String(text) => (Some(text), true),
            value => (raw_arguments(&self.frames.seen().last, &value), false),
        };
        let known = self.calls.iter_mut().rev().find(|known| grows && known.call_id == call.call_id);
        if let Some(known) = known {
            (known.arguments, known.name) = (arguments, call.fn_name);
            return;
        }
        self.pieces.push(Piece::Call);
        let signatures = call.thought_signatures.unwrap_or_default();
        self.calls.push(StreamedCall { call_id: call.call_id, name: call.fn_name, arguments, signatures });
    }

    /// Makes the failure of an answer that ended before its end: by the relay, or for its own reason.
    fn cut(&self) -> ModelError {
        self.link.failure(&self.failures).unwrap_or_else(|| self.failures.cut(&self.frames.seen().last))
    }

    fn finish(&mut self, end: StreamEnd) -> Result<ModelAnswer, ModelError> {
        let is_whole = is_whole(&self.frames.seen().last);
        if is_whole { self.answer(end) } else { Err(self.cut()) }
    }

    fn answer(&mut self, end: StreamEnd) -> Result<ModelAnswer, ModelError> {
        let Some(stop) = end.captured_stop_reason else { return Err(self.cut()) };
        let is_cut_short = matches!(stop, VendorStop::MaxTokens(_));
        let mut thoughts = VecDeque::new();
        let mut calls = VecDeque::new();
        for part in end.captured_content.into_iter().flatten() {
            match part {
                ContentPart::ThoughtSignature(signature) => {
                    if !self.calls.iter().any(|call| call.signatures.contains(&signature)) {
                        thoughts.push_back((String::new(), Some(json_string(&signature))));
                    }
                }
                ContentPart::ReasoningContent(text) => match thoughts.back_mut() {
                    Some((signed, _)) => *signed = text,
                    None => thoughts.push_back((text, None)),
                },
                ContentPart::Custom(block) => {
                    thoughts.push_back((String::new(), RawJson::parse(&block.data.to_string()).ok()))
                }
                ContentPart::ToolCall(call) => calls.push_back(self.call(call, is_cut_short)),
                ContentPart::Text(_) | ContentPart::Binary(_) | ContentPart::ToolResponse(_) => {}
            }
        }
        if thoughts.iter().all(|(text, _)| text.is_empty()) {
            let unsigned = end.captured_reasoning_content.filter(|text| !text.is_empty());
            thoughts.extend(unsigned.map(|text| (text, None)));
        }
        let stop_reason = match stop {
            VendorStop::MaxTokens(_) if is_filtered(&self.frames.seen().last) => StopReason::ContentFilter,
            VendorStop::MaxTokens(_) => StopReason::MaxTokens,
            VendorStop::ContentFilter(reason) if reason == "refusal" => StopReason::Refusal,
            VendorStop::ContentFilter(_) => StopReason::ContentFilter,
            VendorStop::Other(reason) if BROKEN_STOPS.contains(&reason.as_str()) => {
                return Err(self
                    .failures
                    .failure(ErrorCode::ModelStreamIncomplete, &format!("the answer ended with {reason}")));
            }
            _ if calls.is_empty() => StopReason::EndTurn,
            _ => StopReason::ToolUse,
        };
        let usage = usage(&end.captured_usage.unwrap_or_default(), self.frames.seen().thinking_tokens);
        Ok(ModelAnswer { blocks: self.blocks(thoughts, calls), stop_reason, usage })
    }

    /// Puts the parts in order; reasoning without a place comes first, calls without one come last.
    fn blocks(
        &mut self,
        thoughts: VecDeque<(String, Option<RawJson>)>,
        mut calls: VecDeque<ToolCall>,
    ) -> Vec<AnswerBlock> {
        let mut thoughts: VecDeque<_> =
            thoughts.into_iter().map(|(text, opaque)| AnswerBlock::Reasoning { text, opaque }).collect();
        let placed = self.pieces.iter().filter(|piece| matches!(piece, Piece::Thought)).count();
        let mut blocks: Vec<AnswerBlock> = thoughts.drain(..thoughts.len().saturating_sub(placed)).collect();
        for piece in self.pieces.drain(..) {
            match piece {
                Piece::Thought => blocks.extend(thoughts.pop_front()),
                Piece::Text(text) => blocks.push(AnswerBlock::Text(text)),
                Piece::Call => blocks.extend(calls.pop_front().map(AnswerBlock::ToolCall)),
            }
        }
        blocks.extend(calls.into_iter().map(AnswerBlock::ToolCall));
        blocks
    }

    fn call(&mut self, call: VendorCall, is_cut_short: bool) -> ToolCall {
        let seen = self.calls.iter().position(|seen| seen.call_id == call.call_id).map(|at| self.calls.remove(at));
        let (raw, signatures) = seen.map_or((None, Vec::new()), |seen| (seen.arguments, seen.signatures));
        ToolCall {
            // genai invents such an id if Gemini gives none; the engine's own is unique in the session.
            call_id: if call.call_id.starts_with("call#") { String::new() } else { call.call_id },
            name: call.fn_name,
            arguments: arguments(&call.fn_arguments, raw, is_cut_short),
            opaque: (!signatures.is_empty())
                .then(|| RawJson::parse(&Value::from(signatures).to_string()).ok())
                .flatten(),
        }
    }
}

/// Checks for Gemini's frames of usage only, or of a blocked prompt; genai turns both into errors.
fn is_without_candidate(error: &genai::Error) -> bool {
    matches!(error, genai::Error::ChatResponse { body, .. } if body.get("finishReason").is_some())
}

/// Returns the arguments as the model wrote them; a JSON string of the raw text if they are not a JSON object.
fn arguments(value: &Value, raw: Option<String>, is_cut_short: bool) -> RawJson {
    let text = match (value, raw) {
        (Value::String(text), _) => text.clone(),
        (value, Some(raw)) if serde_json::from_str::<Value>(&raw).is_ok_and(|raw| raw == *value) => raw,
        (Value::Null, _) => String::new(),
        (value, _) => value.to_string(),
    };
    if text.trim().is_empty() && !is_cut_short {
        return RawJson::empty_object();
    }
    let is_object = text.trim_start().starts_with('{');
    RawJson::parse(&text).ok().filter(|_| is_object).unwrap_or_else(|| json_string(&text))
}

/// Finds the text of a call's arguments in one of Gemini's frames.
fn raw_arguments(frame: &str, value: &Value) -> Option<String> {
    fn field<'a>(object: &'a str, name: &str) -> Option<&'a str> {
        let fields: HashMap<String, &RawValue> = serde_json::from_str(object).ok()?;
        fields.get(name).map(|value| value.get())
    }
    fn items(list: &str) -> Option<Vec<&RawValue>> {
        serde_json::from_str(list).ok()
    }
    let candidates = items(field(frame, "candidates")?)?;
    let parts = items(field(field(candidates.first()?.get(), "content")?, "parts")?)?;
    let all = parts.iter().filter_map(|part| field(field(part.get(), "functionCall")?, "args"));
    let mut same = all.filter(|raw| serde_json::from_str::<Value>(raw).is_ok_and(|raw| raw == *value));
    same.next().map(str::to_owned)
}

/// Checks if a frame is complete.
fn is_whole(frame: &str) -> bool {
    frame == "[DONE]" || serde_json::from_str::<IgnoredAny>(frame).is_ok()
}

/// Checks if OpenAI's last frame blames a filter for the incomplete response; genai always reports a length limit.
fn is_filtered(frame: &str) -> bool {
    let frame: Option<Value> = serde_json::from_str(frame).ok();
    frame.is_some_and(|frame| {
        frame.pointer("/response/incomplete_details/reason").is_some_and(|reason| reason == "content_filter")
    })
}

fn json_string(text: &str) -> RawJson {
    RawJson::parse(&Value::from(text).to_string()).unwrap_or_else(|_| RawJson::empty_object())
}

/// Counts every vendor's bill in one way: the input includes what was cached, the output includes the reasoning. genai
/// adds Anthropic's cache and Gemini's thoughts.
fn usage(usage: &VendorUsage, thinking_tokens: Option<i32>) -> Usage {
    let count = |tokens: Option<i32>| tokens.and_then(|tokens| u64::try_from(tokens).ok()).unwrap_or(0);
    let input = usage.prompt_tokens_details.as_ref();
    let output = usage.completion_tokens_details.as_ref();
    let input_tokens = count(usage.prompt_tokens);
    let reasoning_tokens = count(output.and_then(|details| details.reasoning_tokens).or(thinking_tokens));
    let answered = count(usage.completion_tokens);
    // Some servers count reasoning beside the answer, which only the total shows. genai leaves Gemini's output empty if
    // there was only reasoning.
    let is_beside = usage.completion_tokens.is_none()
        || reasoning_tokens > 0 && count(usage.total_tokens) == input_tokens + answered + reasoning_tokens;
    Usage {
        input_tokens,
        output_tokens: if is_beside { answered + reasoning_tokens } else { answered },
        cached_tokens: count(input.and_then(|details| details.cached_tokens)),
        cache_write_tokens: count(input.and_then(|details| details.cache_creation_tokens)),
        reasoning_tokens,
    }
}
