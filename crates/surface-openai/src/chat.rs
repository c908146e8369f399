//! Chat completions: a request's fields, and an answer as JSON, whole or in chunks.

use meerkat_errors::ErrorBody;
use meerkat_service::{SessionError, model::StopReason};
use serde_json::{Value, json};

use crate::{
    asked::{Asked, Chat},
    responses::{self, arguments, message},
    said::{Said, Transcript},
    unfold::{Ending, Kind, Piece, Unfold},
    wire::{self, Fields, content, effort, format, is_text, items, texts},
};

/// What is between two texts of an answer.
const BETWEEN: &str = "\n\n";

/// Decodes the body of `POST /v1/chat/completions`.
pub(crate) fn decode(text: &str) -> Result<Asked, SessionError> {
    let mut body = Fields::body(text)?;
    let mut asked = Asked { model: Some(body.need("model")?), chat: Some(Chat::default()), ..Asked::default() };
    wire::common(&mut body, &mut asked)?;
    asked.tools = wire::tools(&mut body, true)?;
    let tokens: Option<u32> = body.take("max_tokens")?;
    asked.options.max_output_tokens = body.take("max_completion_tokens")?.or(tokens);
    let stop = body.raw("stop").map(|raw| match is_text(raw) {
        true => serde_json::from_str(raw.get()).map(|stop| vec![stop]),
        false => serde_json::from_str(raw.get()),
    });
    let stop = stop.transpose().map_err(|_| body.wrong("stop", "it is neither a text nor a list of texts"));
    (asked.options.stop, asked.options.seed) = (stop?, body.take("seed")?);
    asked.options.effort = effort(&mut body, "reasoning_effort")?;
    asked.output = body.object("response_format")?.map(|fields| format(fields, true)).transpose()?.flatten();
    for (name, values) in [
        ("n", &["1"][..]),
        ("store", &["false"]),
        ("logprobs", &["false"]),
        ("frequency_penalty", &["0", "0.0"]),
        ("presence_penalty", &["0", "0.0"]),
        ("modalities", &[r#"["text"]"#]),
        ("verbosity", &[r#""medium""#]),
    ] {
        body.allow(name, values)?;
    }
    let messages = body.raw("messages").ok_or_else(|| body.wrong("messages", "it is missing"))?;
    let mut said = Vec::new();
    for (path, raw) in items("messages", messages)? {
        said_in(Fields::of(path.clone(), raw)?, &path, &mut said)?;
    }
    body.finish()?;
    asked.transcript = Transcript::of(said)?;
    Ok(asked)
}

fn said_in(mut fields: Fields<'_>, path: &str, said: &mut Vec<(String, Said)>) -> Result<(), SessionError> {
    let role: String = fields.need("role")?;
    let (at, raw) = (fields.at("content"), fields.raw("content"));
    // A hint of who speaks; the model is not shown it.
    fields.hints(&["name"])?;
    let mut push = |one| said.push((path.to_owned(), one));
    match (role.as_str(), raw) {
        ("tool", Some(raw)) => {
            push(Said::Output { call_id: fields.need("tool_call_id")?, text: texts(&at, content(&at, raw)?)? });
        }
        ("assistant", raw) => {
            let calls = fields.list("tool_calls")?.unwrap_or_default();
            fields.allow("annotations", &["[]"])?;
            let text = raw.map(|raw| texts(&at, content(&at, raw)?)).transpose()?.filter(|text| !text.is_empty());
            if text.is_none() && calls.is_empty() {
                return Err(fields.wrong("content", "it is missing"));
            }
            text.into_iter().for_each(|text| push(Said::Text(text)));
            for (path, raw) in calls {
                let mut call = Fields::of(path, raw)?;
                call.allow("type", &[r#""function""#])?;
                call.take::<u32>("index")?;
                let call_id = call.need("id")?;
                let mut of = call.object("function")?.ok_or_else(|| call.wrong("function", "it is missing"))?;
                let arguments = arguments(&of.at("arguments"), &of.need::<String>("arguments")?)?;
                push(Said::Call { call_id, name: of.need("name")?, arguments });
                of.finish()?;
                call.finish()?;
            }
        }
        (_, None) => return Err(fields.wrong("content", "it is missing")),
        (_, Some(raw)) => {
            let parts = content(&at, raw)?;
            push(message(&fields, &role, &at, parts)?);
        }
    }
    fields.finish()
}

/// Why the answer ended; the error if it failed.
fn finish_reason(unfold: &Unfold) -> Result<&'static str, Box<ErrorBody>> {
    match &unfold.ending {
        Some(Ending::Waiting) => Ok("tool_calls"),
        Some(Ending::Completed(StopReason::MaxTokens)) => Ok("length"),
        Some(Ending::Completed(StopReason::ContentFilter | StopReason::Refusal)) => Ok("content_filter"),
        Some(Ending::Completed(_)) => Ok("stop"),
        Some(Ending::Failed(body)) => Err(body.clone()),
        Some(Ending::Interrupted) | None => Err(Box::new(SessionError::Interrupted { turn: unfold.turn }.body())),
    }
}

/// An answer, or a chunk of one.
fn frame(unfold: &Unfold, object: &str, choices: Value) -> Value {
    json!({
        "id": format!("chatcmpl-{}-{}", unfold.id.session_id, unfold.id.seq),
        "object": object,
        "created": unfold.begun_at / 1000,
        "model": unfold.model(),
        "choices": choices,
        "service_tier": "default",
        "system_fingerprint": null,
    })
}

fn usage(unfold: &Unfold) -> Value {
    responses::usage(&unfold.usage, ["prompt", "completion"])
}

/// A call in an answer.
fn call(call_id: &str, name: &str, arguments: &str) -> Value {
    json!({ "id": call_id, "type": "function", "function": { "name": name, "arguments": arguments } })
}

/// A whole answer; an error if it failed.
pub(crate) fn completion(unfold: &Unfold) -> Result<Value, Box<ErrorBody>> {
    let reason = finish_reason(unfold)?;
    let texts = unfold.items.iter().filter(|item| item.kind == Kind::Message).map(|item| item.text.as_str());
    let text = texts.collect::<Vec<_>>().join(BETWEEN);
    let calls = unfold.items.iter().filter_map(|item| match &item.kind {
        Kind::Call { call_id, name } => Some(call(call_id, name, &item.text)),
        Kind::Message | Kind::Reasoning => None,
    });
    let calls: Vec<Value> = calls.collect();
    let mut message = json!({ "role": "assistant", "content": text, "refusal": null, "annotations": [] });
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
        if text.is_empty() {
            message["content"] = Value::Null;
        }
    }
    let choice = json!({ "index": 0, "message": message, "logprobs": null, "finish_reason": reason });
    let mut answer = frame(unfold, "chat.completion", json!([choice]));
    answer["usage"] = usage(unfold);
    Ok(answer)
}

/// Chunks of a stream.
#[derive(Default)]
pub(crate) struct Chunks {
    pub(crate) has_usage: bool,
    texts: usize,
    calls: usize,
}

impl Chunks {
    pub(crate) fn new(chat: Chat) -> Self {
        Self { has_usage: chat.has_usage, ..Self::default() }
    }

    fn chunk(&self, unfold: &Unfold, choices: Value) -> Value {
        let mut chunk = frame(unfold, "chat.completion.chunk", choices);
        if self.has_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn delta(&self, unfold: &Unfold, delta: &Value, reason: Option<&str>) -> Value {
        self.chunk(unfold, json!([{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": reason }]))
    }

    /// The first chunk.
    pub(crate) fn first(&self, unfold: &Unfold) -> Value {
        self.delta(unfold, &json!({ "role": "assistant", "content": "", "refusal": null }), None)
    }

    /// The chunk that a piece of the output is, if it is one.
    pub(crate) fn piece(&mut self, unfold: &Unfold, piece: &Piece) -> Option<Value> {
        let (Piece::Opened(index) | Piece::More(index, _) | Piece::Closed(index)) = piece;
        let item = unfold.items.get(*index)?;
        let delta = match (piece, &item.kind) {
            (Piece::Opened(_), Kind::Message) => {
                self.texts += 1;
                (self.texts > 1).then(|| json!({ "content": BETWEEN }))?
            }
            (Piece::More(_, text), Kind::Message) => json!({ "content": text }),
            (Piece::Closed(_), Kind::Call { call_id, name }) => {
                let mut call = call(call_id, name, &item.text);
                call["index"] = self.calls.into();
                self.calls += 1;
                json!({ "tool_calls": [call] })
            }
            _ => return None,
        };
        Some(self.delta(unfold, &delta, None))
    }

    /// The last chunks, or an error.
    pub(crate) fn last(&self, unfold: &Unfold) -> Result<Vec<Value>, Box<ErrorBody>> {
        let mut chunks = vec![self.delta(unfold, &json!({}), Some(finish_reason(unfold)?))];
        if self.has_usage {
            let mut chunk = self.chunk(unfold, json!([]));
            chunk["usage"] = usage(unfold);
            chunks.push(chunk);
        }
        Ok(chunks)
    }
}
