//! The cases of Open Responses' compliance suite that are answered here, and some more, by hand: each answer has every
//! field that the specification requires, even if it is `null`, and each of the type that it has there. They are asked
//! of the router, and of the binary (crates/surface-cli/tests/serve/openai.rs).

use serde_json::{Value, json};

pub(crate) fn text_of(response: &Value) -> String {
    let messages = response["output"].as_array().unwrap().iter().filter(|item| item["type"] == "message");
    messages.map(|item| item["content"][0]["text"].as_str().unwrap()).collect()
}

/// The data of each frame of a stream.
pub(crate) fn frames(stream: &str) -> Vec<Value> {
    let data = stream.split("\n\n").filter_map(|frame| frame.lines().find_map(|line| line.strip_prefix("data: ")));
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

const WEATHER: &str = r#"{"type":"function","name":"weather","description":"Weather.","parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}"#;

pub(crate) fn weather() -> Value {
    serde_json::from_str(WEATHER).unwrap()
}

/// The fields that a response must have, with their types in JSON.
const RESPONSE: &[(&str, &[&str])] = &[
    ("id", &["string"]),
    ("object", &["string"]),
    ("created_at", &["integer"]),
    ("completed_at", &["integer", "null"]),
    ("status", &["string"]),
    ("incomplete_details", &["object", "null"]),
    ("model", &["string"]),
    ("previous_response_id", &["string", "null"]),
    ("instructions", &["string", "null"]),
    ("output", &["array"]),
    ("error", &["object", "null"]),
    ("tools", &["array"]),
    ("tool_choice", &["string"]),
    ("truncation", &["string"]),
    ("parallel_tool_calls", &["boolean"]),
    ("text", &["object"]),
    ("top_p", &["integer", "number"]),
    ("presence_penalty", &["integer", "number"]),
    ("frequency_penalty", &["integer", "number"]),
    ("top_logprobs", &["integer"]),
    ("temperature", &["integer", "number"]),
    ("reasoning", &["object", "null"]),
    ("user", &["string", "null"]),
    ("usage", &["object", "null"]),
    ("max_output_tokens", &["integer", "null"]),
    ("max_tool_calls", &["integer", "null"]),
    ("store", &["boolean"]),
    ("background", &["boolean"]),
    ("service_tier", &["string"]),
    ("metadata", &["object"]),
    ("safety_identifier", &["string", "null"]),
    ("prompt_cache_key", &["string", "null"]),
];
const TEXT: &[(&str, &[&str])] =
    &[("type", &["string"]), ("text", &["string"]), ("annotations", &["array"]), ("logprobs", &["array"])];
const SUMMARY: &[(&str, &[&str])] = &[("type", &["string"]), ("text", &["string"])];

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Checks that an object has these fields.
fn has(object: &Value, fields: &[(&str, &[&str])]) {
    for (name, types) in fields {
        let value = object.get(name).unwrap_or_else(|| panic!("{name} is missing: {object}"));
        assert!(types.contains(&type_of(value)), "{name}: {object}");
    }
}

fn is_item(item: &Value) {
    let text: &[&str] = &["string"];
    has(item, &[("type", text), ("id", text), ("status", text)]);
    match item["type"].as_str().unwrap() {
        "message" => {
            has(item, &[("role", text), ("content", &["array"])]);
            item["content"].as_array().unwrap().iter().for_each(|part| has(part, TEXT));
        }
        "reasoning" => {
            has(item, &[("summary", &["array"])]);
            item["summary"].as_array().unwrap().iter().for_each(|part| has(part, SUMMARY));
        }
        "function_call" => has(item, &[("call_id", text), ("name", text), ("arguments", text)]),
        other => panic!("{other} is not in the specification"),
    }
}

fn is_response(response: &Value) {
    has(response, RESPONSE);
    assert_eq!(response["object"], "response");
    response["output"].as_array().unwrap().iter().for_each(is_item);
    has(&response["text"], &[("format", &["object"]), ("verbosity", &["string"])]);
    for tool in response["tools"].as_array().unwrap() {
        has(tool, &[("type", &["string"]), ("name", &["string"]), ("parameters", &["object", "null"])]);
    }
    if !response["usage"].is_null() {
        let whole: &[&str] = &["integer"];
        has(&response["usage"], &[("input_tokens", whole), ("output_tokens", whole), ("total_tokens", whole)]);
        has(&response["usage"]["input_tokens_details"], &[("cached_tokens", whole)]);
        has(&response["usage"]["output_tokens_details"], &[("reasoning_tokens", whole)]);
    }
}

/// Checks an event of a stream by its type.
fn is_event(event: &Value) {
    let (text, whole): (&[&str], &[&str]) = (&["string"], &["integer"]);
    has(event, &[("type", text), ("sequence_number", whole)]);
    let in_item: &[(&str, &[&str])] = &[("item_id", text), ("output_index", whole)];
    match event["type"].as_str().unwrap().strip_prefix("response.").unwrap() {
        "created" | "in_progress" | "completed" | "incomplete" | "failed" => is_response(&event["response"]),
        "output_item.added" | "output_item.done" => {
            has(event, &[("output_index", whole)]);
            is_item(&event["item"]);
        }
        "content_part.added" | "content_part.done" => {
            has(event, in_item);
            has(event, &[("content_index", whole)]);
            has(&event["part"], TEXT);
        }
        "reasoning_summary_part.added" | "reasoning_summary_part.done" => {
            has(event, in_item);
            has(event, &[("summary_index", whole)]);
            has(&event["part"], SUMMARY);
        }
        kind => {
            has(event, in_item);
            let field = match kind.rsplit_once('.').unwrap() {
                (_, "delta") => "delta",
                ("function_call_arguments", "done") => "arguments",
                ("output_text" | "reasoning_summary_text", "done") => "text",
                _ => panic!("{kind} is not in the specification"),
            };
            has(event, &[(field, text)]);
            if kind.starts_with("output_text") {
                has(event, &[("content_index", whole), ("logprobs", &["array"])]);
            }
        }
    }
}

fn user(content: impl Into<Value>) -> Value {
    json!({ "type": "message", "role": "user", "content": content.into() })
}

/// Each case: what is asked beside the model, the types of the items of the answer, and its status.
fn cases() -> Vec<(&'static str, Value, &'static [&'static str], &'static str)> {
    let image = "data:image/png;base64,\
                 iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let look = json!([{ "type": "input_text", "text": "@echo blocks" }, { "type": "input_image", "image_url": image }]);
    let schema = json!({ "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"] });
    let format = json!({ "format": { "type": "json_schema", "name": "place", "schema": schema, "strict": true } });
    let call = r#"@call weather {"city":"San Francisco"}"#;
    vec![
        ("a text", json!({ "input": [user("@say Hello to you.")] }), &["message"], "completed"),
        ("a text alone", json!({ "input": "@say Hello." }), &["message"], "completed"),
        (
            "instructions",
            json!({ "input": [
                { "type": "message", "role": "system", "content": "Speak like a pirate." }, user("@echo system"),
            ] }),
            &["message"],
            "completed",
        ),
        ("a call", json!({ "input": [user(call)], "tools": [weather()] }), &["function_call"], "completed"),
        ("a picture", json!({ "input": [user(look)] }), &["message"], "completed"),
        (
            "turns before",
            json!({ "input": [
                user("My name is Anna."), { "type": "message", "role": "assistant", "content": "Hello Anna." },
                user("@echo first"),
            ] }),
            &["message"],
            "completed",
        ),
        (
            "phases before",
            json!({ "input": [
                user("@say Look."),
                { "type": "message", "role": "assistant", "phase": "commentary", "content": "I look it up." },
                { "type": "message", "role": "assistant", "phase": "final_answer", "content": "It is blue." },
                user("@echo messages"),
            ] }),
            &["message"],
            "completed",
        ),
        ("reasoning", json!({ "input": "@think Hm. @say Yes." }), &["reasoning", "message"], "completed"),
        ("a schema", json!({ "input": r#"@json {"city":"Rome"}"#, "text": format }), &["message"], "completed"),
        ("a limit", json!({ "input": "@say One. @stop max_tokens" }), &["message"], "incomplete"),
        ("a failure", json!({ "input": "@fail unauthorized" }), &[], "failed"),
    ]
}

/// Asks each case of a server: a function that sends the body of a request for a response, and returns the status and
/// the body of its answer.
pub(crate) fn complies(send: impl Fn(&str) -> (u16, String)) {
    for (name, mut body, kinds, status) in cases() {
        body["model"] = json!("scripted");
        let (code, made) = send(&body.to_string());
        assert_eq!(code, 200, "{name}: {made}");
        let made: Value = serde_json::from_str(&made).unwrap();
        is_response(&made);
        let items = made["output"].as_array().unwrap();
        let made_kinds: Vec<&str> = items.iter().map(|item| item["type"].as_str().unwrap()).collect();
        assert_eq!((made_kinds.as_slice(), &made["status"]), (kinds, &json!(status)), "{name}: {made}");
        assert_eq!(made["error"].is_null(), status != "failed", "{name}: {made}");
        match name {
            "instructions" => assert_eq!(text_of(&made), "system: Speak like a pirate."),
            "turns before" => assert!(text_of(&made).contains("My name is Anna."), "{made}"),
            "phases before" => assert_eq!(text_of(&made), "messages: 3", "one answer of two texts"),
            "a schema" => assert_eq!(text_of(&made), r#"{"city":"Rome"}"#),
            "a picture" => assert!(text_of(&made).contains("png"), "{made}"),
            _ => {}
        }
        // As a stream, with the same items.
        body["stream"] = json!(true);
        let (code, stream) = send(&body.to_string());
        assert_eq!(code, 200, "{name}: {stream}");
        let events = frames(&stream);
        events.iter().for_each(is_event);
        let types: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
        assert_eq!(types[..2], ["response.created", "response.in_progress"], "{name}");
        assert_eq!(types.last().unwrap(), &format!("response.{status}"), "{name}");
        let last = &events.last().unwrap()["response"];
        assert_eq!(last["output"].as_array().unwrap().len(), kinds.len(), "{name}");
        for (index, item) in last["output"].as_array().unwrap().iter().enumerate() {
            let of: Vec<&Value> = events.iter().filter(|event| event["output_index"] == index).collect();
            assert_eq!(of[0]["type"], "response.output_item.added", "{name}");
            assert_eq!(of.last().unwrap()["type"], "response.output_item.done", "{name}");
            assert_eq!(&of.last().unwrap()["item"], item, "{name}");
            let text: String = of.iter().filter_map(|event| event["delta"].as_str()).collect();
            let part = if item["type"] == "reasoning" { &item["summary"][0] } else { &item["content"][0] };
            assert_eq!(text, part["text"].as_str().or(item["arguments"].as_str()).unwrap(), "{name}");
        }
    }
}
