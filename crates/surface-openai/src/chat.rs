//! Chat completions: a request's fields, and an answer as JSON, whole or in chunks.

use meerkat_service::{
    SessionError,
    model::{StopReason, Usage},
    options::ModelOptions,
};
use serde_json::{Map, Value, json};

use crate::{
    asked::Asked,
    responses::{arguments, message},
    said::{Said, Transcript},
    unfold::{Ending, Kind, Piece, Unfold},
    wire::{self, Fields, content, effort, format, function, items, texts},
};

/// Decodes the body of `POST /v1/chat/completions`.
pub(crate) fn decode(text: &str) -> Result<Asked, SessionError> {
    let mut body = Fields::body(text)?;
    let mut asked = Asked { model: Some(body.need("model")?), ..Asked::default() };
    asked.is_stream = body.take("stream")?.unwrap_or(false);
    if let Some(mut options) = body.object("stream_options")? {
        asked.has_usage = options.take("include_usage")?.unwrap_or(false);
        options.allow("include_obfuscation", &["true", "false"])?;
        options.finish()?;
    }
    let of = |mut tool: Fields<'_>| {
        let inner = tool.object("function")?.ok_or_else(|| tool.wrong("function", "it is missing"))?;
        tool.finish()?;
        function(inner)
    };
    asked.tools = wire::tools(&mut body, of)?.unwrap_or_default();
    let tokens: Option<u32> = body.take("max_tokens")?;
    let stop = body.raw("stop").map(|raw| match wire::is_text(raw) {
        true => serde_json::from_str(raw.get()).map(|stop| vec![stop]),
        false => serde_json::from_str(raw.get()),
    });
    asked.options = ModelOptions {
        temperature: body.take("temperature")?,
        top_p: body.take("top_p")?,
        max_output_tokens: body.take("max_completion_tokens")?.or(tokens),
        stop: stop.transpose().map_err(|_| body.wrong("stop", "it is neither a text nor a list of texts"))?,
        seed: body.take("seed")?,
        effort: effort(&mut body, "reasoning_effort")?,
        ..ModelOptions::default()
    };
    asked.output = body.object("response_format")?.map(|fields| format(fields, true)).transpose()?.flatten();
    asked.user = body.take("user")?;
    asked.metadata = body.take("metadata")?.unwrap_or_default();
    body.allow("n", &["1"])?;
    body.allow("store", &["false"])?;
    body.allow("logprobs", &["false"])?;
    body.allow("top_logprobs", &["0"])?;
    body.allow("frequency_penalty", &["0", "0.0"])?;
    body.allow("presence_penalty", &["0", "0.0"])?;
    body.allow("parallel_tool_calls", &["true"])?;
    body.allow("modalities", &[r#"["text"]"#])?;
    body.allow("service_tier", &[r#""auto""#, r#""default""#])?;
    body.allow("verbosity", &[r#""medium""#])?;
    body.hints(&["safety_identifier", "prompt_cache_key", "prompt_cache_retention"])?;
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

fn usage(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": { "cached_tokens": usage.cached_tokens },
        "completion_tokens_details": { "reasoning_tokens": usage.reasoning_tokens },
    })
}

/// Why the answer ended; `None` if it failed.
fn finish_reason(ending: &Ending) -> Option<&'static str> {
    match ending {
        Ending::Waiting => Some("tool_calls"),
        Ending::Completed(StopReason::MaxTokens) => Some("length"),
        Ending::Completed(StopReason::ContentFilter | StopReason::Refusal) => Some("content_filter"),
        Ending::Completed(_) => Some("stop"),
        Ending::Interrupted | Ending::Failed(_) => None,
    }
}

fn id(unfold: &Unfold) -> String {
    format!("chatcmpl-{}-{}", unfold.id.session_id, unfold.id.seq)
}

/// A call in an answer.
fn call(call_id: &str, name: &str, arguments: &str) -> Value {
    json!({ "id": call_id, "type": "function", "function": { "name": name, "arguments": arguments } })
}

/// A whole answer; an error if it failed.
pub(crate) fn completion(unfold: &Unfold, ending: &Ending) -> Result<Value, Box<meerkat_errors::ErrorBody>> {
    let Some(reason) = finish_reason(ending) else { return Err(failure(unfold, ending)) };
    let texts = unfold.items.iter().filter(|item| item.kind == Kind::Message).map(|item| item.text.as_str());
    let text = texts.collect::<Vec<_>>().join("\n\n");
    let calls: Vec<Value> = unfold
        .items
        .iter()
        .filter_map(|item| match &item.kind {
            Kind::Call { call_id, name } => Some(call(call_id, name, &item.text)),
            Kind::Message | Kind::Reasoning => None,
        })
        .collect();
    let mut message = json!({ "role": "assistant", "content": text, "refusal": null, "annotations": [] });
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
        if text.is_empty() {
            message["content"] = Value::Null;
        }
    }
    Ok(json!({
        "id": id(unfold),
        "object": "chat.completion",
        "created": unfold.begun_at / 1000,
        "model": unfold.model(),
        "choices": [{ "index": 0, "message": message, "logprobs": null, "finish_reason": reason }],
        "usage": usage(&unfold.usage),
        "service_tier": "default",
        "system_fingerprint": null,
    }))
}

/// The error of an answer that failed.
pub(crate) fn failure(unfold: &Unfold, ending: &Ending) -> Box<meerkat_errors::ErrorBody> {
    match ending {
        Ending::Failed(body) => body.clone(),
        _ => Box::new(SessionError::Interrupted { turn: unfold.turn }.body()),
    }
}

/// Chunks of a stream.
pub(crate) struct Chunks {
    pub(crate) has_usage: bool,
    texts: usize,
    calls: usize,
}

impl Chunks {
    pub(crate) const fn new(has_usage: bool) -> Self {
        Self { has_usage, texts: 0, calls: 0 }
    }

    fn chunk(&self, unfold: &Unfold, choices: Value) -> Map<String, Value> {
        let chunk = json!({
            "id": id(unfold),
            "object": "chat.completion.chunk",
            "created": unfold.begun_at / 1000,
            "model": unfold.model(),
            "choices": choices,
            "service_tier": "default",
            "system_fingerprint": null,
        });
        let mut chunk = match chunk {
            Value::Object(chunk) => chunk,
            _ => Map::new(),
        };
        if self.has_usage {
            chunk.insert("usage".to_owned(), Value::Null);
        }
        chunk
    }

    fn delta(&self, unfold: &Unfold, delta: &Value, reason: Option<&str>) -> Map<String, Value> {
        self.chunk(unfold, json!([{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": reason }]))
    }

    /// The first chunk.
    pub(crate) fn first(&self, unfold: &Unfold) -> Map<String, Value> {
        self.delta(unfold, &json!({ "role": "assistant", "content": "", "refusal": null }), None)
    }

    /// The chunk that a piece of the output is, if it is one.
    pub(crate) fn piece(&mut self, unfold: &Unfold, piece: &Piece) -> Option<Map<String, Value>> {
        let (Piece::Opened(index) | Piece::More(index, _) | Piece::Closed(index)) = piece;
        let item = unfold.items.get(*index)?;
        match (piece, &item.kind) {
            (Piece::Opened(_), Kind::Message) => {
                self.texts += 1;
                // As in a whole answer, an empty line is between two texts.
                (self.texts > 1).then(|| self.delta(unfold, &json!({ "content": "\n\n" }), None))
            }
            (Piece::More(_, text), Kind::Message) => Some(self.delta(unfold, &json!({ "content": text }), None)),
            (Piece::Closed(_), Kind::Call { call_id, name }) => {
                let mut call = call(call_id, name, &item.text);
                call["index"] = self.calls.into();
                self.calls += 1;
                Some(self.delta(unfold, &json!({ "tool_calls": [call] }), None))
            }
            _ => None,
        }
    }

    /// The last chunks, or an error.
    pub(crate) fn last(
        &self,
        unfold: &Unfold,
        ending: &Ending,
    ) -> Result<Vec<Map<String, Value>>, Box<meerkat_errors::ErrorBody>> {
        let Some(reason) = finish_reason(ending) else { return Err(failure(unfold, ending)) };
        let mut chunks = vec![self.delta(unfold, &json!({}), Some(reason))];
        if self.has_usage {
            let mut chunk = self.chunk(unfold, json!([]));
            chunk.insert("usage".to_owned(), usage(&unfold.usage));
            chunks.push(chunk);
        }
        Ok(chunks)
    }
}
