//! Chat completions: what responses and their events say, in another form.

use serde_json::{Value, json};

const BETWEEN: &str = "\n\n";

fn frame(response: &Value, object: &str, choices: Value) -> Value {
    json!({
        "id": response["id"].as_str().unwrap_or_default().replacen("resp_", "chatcmpl-", 1),
        "object": object,
        "created": response["created_at"],
        "model": response["model"],
        "choices": choices,
        "service_tier": "default",
        "system_fingerprint": null,
    })
}

fn usage(response: &Value) -> Value {
    let usage = &response["usage"];
    json!({
        "prompt_tokens": usage["input_tokens"],
        "prompt_tokens_details": usage["input_tokens_details"],
        "completion_tokens": usage["output_tokens"],
        "completion_tokens_details": usage["output_tokens_details"],
        "total_tokens": usage["total_tokens"],
    })
}

fn output(response: &Value) -> impl DoubleEndedIterator<Item = &Value> {
    response["output"].as_array().into_iter().flatten()
}

fn finish_reason(response: &Value) -> &'static str {
    match response["incomplete_details"]["reason"].as_str() {
        Some("max_output_tokens") => "length",
        Some(_) => "content_filter",
        None if output(response).next_back().is_some_and(|item| item["type"] == "function_call") => "tool_calls",
        None => "stop",
    }
}

fn call(item: &Value) -> Value {
    let function = json!({ "name": item["name"], "arguments": item["arguments"] });
    json!({ "id": item["call_id"], "type": "function", "function": function })
}

pub(crate) fn completion(response: &Value) -> Value {
    let texts = output(response).filter(|item| item["type"] == "message");
    let texts: Vec<&str> = texts.filter_map(|item| item["content"][0]["text"].as_str()).collect();
    let text = texts.join(BETWEEN);
    let calls: Vec<Value> = output(response).filter(|item| item["type"] == "function_call").map(call).collect();
    let mut message = json!({ "role": "assistant", "content": text, "refusal": null, "annotations": [] });
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
        if text.is_empty() {
            message["content"] = Value::Null;
        }
    }
    let choice = json!({ "index": 0, "message": message, "logprobs": null, "finish_reason": finish_reason(response) });
    let mut answer = frame(response, "chat.completion", json!([choice]));
    answer["usage"] = usage(response);
    answer
}

#[derive(Default)]
pub(crate) struct Chunks {
    has_usage: bool,
    response: Value,
    texts: usize,
    calls: usize,
}

impl Chunks {
    pub(crate) fn new(has_usage: bool) -> Self {
        Self { has_usage, ..Self::default() }
    }

    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = frame(&self.response, "chat.completion.chunk", choices);
        if self.has_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn delta(&self, delta: &Value, reason: Option<&str>) -> Vec<Value> {
        vec![self.chunk(json!([{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": reason }]))]
    }

    /// The chunks that an event of a response is.
    pub(crate) fn of(&mut self, event: &Value) -> Vec<Value> {
        let (item, response) = (&event["item"], &event["response"]);
        match event["type"].as_str().unwrap_or_default() {
            "response.created" => {
                self.response = response.clone();
                self.delta(&json!({ "role": "assistant", "content": "", "refusal": null }), None)
            }
            "response.output_item.added" if item["type"] == "message" => {
                self.texts += 1;
                if self.texts == 1 { Vec::new() } else { self.delta(&json!({ "content": BETWEEN }), None) }
            }
            "response.output_text.delta" => self.delta(&json!({ "content": event["delta"] }), None),
            "response.output_item.done" if item["type"] == "function_call" => {
                let mut call = call(item);
                call["index"] = self.calls.into();
                self.calls += 1;
                self.delta(&json!({ "tool_calls": [call] }), None)
            }
            "response.completed" | "response.incomplete" => {
                let mut chunks = self.delta(&json!({}), Some(finish_reason(response)));
                if self.has_usage {
                    let mut chunk = self.chunk(json!([]));
                    chunk["usage"] = usage(response);
                    chunks.push(chunk);
                }
                chunks
            }
            _ => Vec::new(),
        }
    }
}
