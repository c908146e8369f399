//! The surface without a socket: what is decoded, what is answered, and streams as they are on the wire.

#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

mod again;
mod bad;
mod compliance;
mod own;

use std::sync::Arc;

use axum::{Router, body::Body};
use http::Request;
use http_body_util::BodyExt as _;
use meerkat_service::{AgentBuildConfig, SessionService, options::EngineOptions};
use meerkat_surface_openai::{OpenAiOptions, router};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tower::ServiceExt as _;

use crate::compliance::{complies, frames, text_of, weather};

/// The surface over a service in a folder.
struct Server {
    openai: Router,
    service: Arc<dyn SessionService>,
    passing: Arc<dyn SessionService>,
    dir: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        Self::over(meerkat_testkit::folder())
    }

    fn over(dir: tempfile::TempDir) -> Self {
        Self::waiting(dir, std::time::Duration::from_secs(600))
    }

    /// A server where calls of what is not stored wait for this long.
    fn waiting(dir: tempfile::TempDir, call_time: std::time::Duration) -> Self {
        let mut options = EngineOptions::default();
        // Records may be dropped at once.
        options.journal.min_record_age_ms = 0;
        let config = AgentBuildConfig::new().options(options).store(dir.path().join("data"));
        let service = config.build().unwrap().service().clone();
        let passing = AgentBuildConfig::new().ephemeral().build().unwrap().service().clone();
        let (models, scope_label) = (vec!["scripted".to_owned()], "project".to_owned());
        let places: meerkat_surface_openai::Places = Arc::new(|| Ok(None));
        let options = OpenAiOptions {
            passing: passing.clone(),
            models,
            scope_label,
            call_time,
            body_bytes_max: 1024 * 1024,
            places,
        };
        Self { openai: router(service.clone(), options), service, passing, dir }
    }

    /// The same sessions in another process, as far as they can tell.
    async fn restarted(self) -> Self {
        let Self { openai, service, dir, .. } = self;
        service.shut_down(0).await;
        drop((openai, service));
        Self::over(dir)
    }

    async fn text(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let (parts, body) = self.openai.clone().oneshot(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (parts.status.as_u16(), String::from_utf8(body.to_vec()).unwrap())
    }

    async fn send(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (status, text) = self.text(method, path, &[], &body).await;
        (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
    }

    /// Makes a response.
    async fn respond(&self, body: Value) -> Value {
        let (status, answer) = self.send("POST", "/v1/responses", &body).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// Status, code and param of a refusal.
    async fn refused(&self, path: &str, body: &Value) -> (u16, String, String) {
        let (status, answer) = self.send("POST", path, body).await;
        let text = |name: &str| answer["error"][name].as_str().unwrap_or_default().to_owned();
        (status, text("code"), text("param"))
    }
}

#[test]
fn each_case_has_the_fields_of_the_specification() {
    let runtime = Runtime::new().unwrap();
    let _within = runtime.enter();
    let server = Server::start();
    complies(|body| runtime.block_on(server.text("POST", "/v1/responses", &[], body)));
}

#[tokio::test]
async fn a_response_is_the_same_when_it_is_read_later() {
    let server = Server::start();
    let made = server
        .respond(json!({
            "model": "scripted", "input": "@think Hm. @say Hello. @usage in=9 out=3 cached=4 reasoning=1",
            "instructions": "Be brief.", "temperature": 0.5, "max_output_tokens": 100, "metadata": { "a": "b" },
            "tools": [weather()], "user": "anna",
        }))
        .await;
    assert_eq!(text_of(&made), "Hello.");
    assert_eq!((&made["status"], &made["object"]), (&json!("completed"), &json!("response")));
    assert_eq!(made["output"][0]["summary"], json!([{ "type": "summary_text", "text": "Hm." }]));
    let usage = json!({
        "input_tokens": 9, "input_tokens_details": { "cached_tokens": 4 },
        "output_tokens": 3, "output_tokens_details": { "reasoning_tokens": 1 }, "total_tokens": 12,
    });
    assert_eq!(made["usage"], usage);
    for (field, value) in [
        ("instructions", json!("Be brief.")),
        ("temperature", json!(0.5)),
        ("max_output_tokens", json!(100)),
        ("metadata", json!({ "a": "b" })),
        ("user", json!("anna")),
        ("store", json!(true)),
        ("previous_response_id", Value::Null),
    ] {
        assert_eq!(made[field], value, "{field}");
    }
    assert_eq!(made["tools"][0]["parameters"], weather()["parameters"]);
    let id = made["id"].as_str().unwrap().to_owned();
    let server = server.restarted().await;
    assert_eq!(server.send("GET", &format!("/v1/responses/{id}"), &Value::Null).await, (200, made));
    let (_, items) = server.send("GET", &format!("/v1/responses/{id}/input_items"), &Value::Null).await;
    assert_eq!(items["data"][0]["content"][0]["text"], "@think Hm. @say Hello. @usage in=9 out=3 cached=4 reasoning=1");
}

#[tokio::test]
async fn a_stream_has_every_event_once_and_goes_on_anywhere() {
    let server = Server::start();
    let body = json!({ "model": "scripted", "input": "@chunks 3 @say Grüße!", "stream": true }).to_string();
    let (status, live) = server.text("POST", "/v1/responses", &[], &body).await;
    assert_eq!(status, 200);
    let events = frames(&live);
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    for event in &events[..2] {
        assert_eq!(
            (&event["response"]["status"], &event["response"]["model"]),
            (&"in_progress".into(), &"scripted".into())
        );
    }
    let (begin, rest) = kinds.split_at(4);
    assert_eq!(
        begin,
        ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
    );
    let (deltas, end) = rest.split_at(rest.len() - 4);
    assert!(!deltas.is_empty() && deltas.iter().all(|kind| *kind == "response.output_text.delta"), "{kinds:?}");
    assert_eq!(
        end,
        ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"]
    );
    let said = |events: &[Value]| -> String { events.iter().filter_map(|event| event["delta"].as_str()).collect() };
    assert_eq!(said(&events), "Grüße!");
    let numbers: Vec<u64> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    let id = events[0]["response"]["id"].as_str().unwrap();
    for (at, number) in numbers.iter().enumerate() {
        let path = format!("/v1/responses/{id}?stream=true&starting_after={number}");
        let (_, again) = server.text("GET", &path, &[], "").await;
        let again = frames(&again);
        assert_eq!(said(&again), said(&events[at + 1..]), "after {number}");
        assert_eq!(
            again.last().map(|event| &event["sequence_number"]),
            events[at + 1..].last().map(|_| &events.last().unwrap()["sequence_number"])
        );
    }
    // A text counts by its bytes, in whatever pieces it comes: here from behind each of its characters.
    let begun = numbers[3];
    for (at, letter) in "Grüße!".char_indices() {
        let sent = at + letter.len_utf8();
        let path = format!("/v1/responses/{id}?stream=true&starting_after={}", begun + sent as u64);
        let (_, rest) = server.text("GET", &path, &[], "").await;
        assert_eq!(said(&frames(&rest)), "Grüße!"[sent..]);
    }
    let (_, read) = server.send("GET", &format!("/v1/responses/{id}"), &Value::Null).await;
    assert_eq!(events.last().unwrap()["response"], read);
}

#[tokio::test]
async fn a_call_waits_for_its_client_and_is_answered_once() {
    let server = Server::start();
    let input = r#"@call weather {"city":"Rome"} @echo last_result"#;
    let asked = server.respond(json!({ "model": "scripted", "input": input, "tools": [weather()] })).await;
    assert_eq!((&asked["status"], &asked["output"][0]["name"]), (&json!("completed"), &json!("weather")));
    let call_id = asked["output"][0]["call_id"].as_str().unwrap().to_owned();
    let server = server.restarted().await;
    let id = asked["id"].as_str().unwrap();
    let answer = |output: &str| {
        let output = json!({ "type": "function_call_output", "call_id": call_id, "output": output });
        json!({ "model": "scripted", "previous_response_id": id, "input": [output] })
    };
    // A message does not answer it.
    let message = json!({ "model": "scripted", "previous_response_id": id, "input": "hello" });
    assert_eq!(server.refused("/v1/responses", &message).await.0, 400);
    let done = server.respond(answer("Sunny.")).await;
    assert_eq!(text_of(&done), "last_result: Sunny.");
    assert_eq!(server.respond(answer("Sunny.")).await["id"], done["id"]);
    let conflict = (409, "IDEMPOTENCY_CONFLICT".to_owned(), String::new());
    assert_eq!(server.refused("/v1/responses", &answer("Rain.")).await, conflict);
    assert_eq!(server.refused("/v1/responses", &message).await.1, "IDEMPOTENCY_CONFLICT");
    // Read later, both are as they were; the second one knows the first.
    let path = |response: &Value| format!("/v1/responses/{}", response["id"].as_str().unwrap());
    assert_eq!(server.send("GET", &path(&asked), &Value::Null).await.1, asked);
    let (_, read) = server.send("GET", &path(&done), &Value::Null).await;
    assert_eq!((&read["output"], &read["previous_response_id"]), (&done["output"], &json!(id)));
    let (_, items) = server.send("GET", &format!("{}/input_items", path(&done)), &Value::Null).await;
    assert_eq!(items["data"][0]["output"], "Sunny.");
}

#[tokio::test]
async fn all_calls_are_answered_at_once() {
    let server = Server::start();
    let input = r#"@call weather {"city":"Rome"} @call weather {"city":"Oslo"} @echo last_result"#;
    let asked = server.respond(json!({ "model": "scripted", "input": input, "tools": [weather()] })).await;
    let outputs: Vec<Value> = asked["output"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "Sunny." }))
        .collect();
    assert_eq!(outputs.len(), 2);
    let answer =
        |outputs: &[Value]| json!({ "model": "scripted", "previous_response_id": asked["id"], "input": outputs });
    let refusal = (400, "INVALID_REQUEST".to_owned(), "input".to_owned());
    assert_eq!(server.refused("/v1/responses", &answer(&outputs[..1])).await, refusal);
    // Nothing was answered by that.
    assert_eq!(text_of(&server.respond(answer(&outputs)).await), "last_result: Sunny.");
}

#[tokio::test]
async fn elsewhere_than_at_its_end_a_session_forks() {
    let server = Server::start();
    let first = server.respond(json!({ "model": "scripted", "input": "@say One." })).await;
    let ask = json!({ "model": "scripted", "previous_response_id": first["id"], "input": "@echo messages" });
    let session = |response: &Value| response["id"].as_str().unwrap().rsplit_once('_').unwrap().0.to_owned();
    let second = server.respond(ask.clone()).await;
    assert_eq!((text_of(&second).as_str(), session(&second)), ("messages: 3", session(&first)));
    let other = server.respond(ask.clone()).await;
    assert_eq!(text_of(&other), "messages: 3");
    assert_ne!(session(&other), session(&first));
    // Two at once.
    let base = server.respond(json!({ "model": "scripted", "input": "@say One." })).await;
    let ask = json!({ "model": "scripted", "previous_response_id": base["id"], "input": "@echo messages" });
    let (one, two) = tokio::join!(server.respond(ask.clone()), server.respond(ask));
    assert_eq!((text_of(&one), text_of(&two)), ("messages: 3".to_owned(), "messages: 3".to_owned()));
    assert_ne!(one["id"], two["id"]);
}

#[tokio::test]
async fn a_repeated_request_with_a_key_is_the_same_response() {
    let server = Server::start();
    let send = async |body: &Value, key: &str| {
        let (_, text) = server.text("POST", "/v1/responses", &[("idempotency-key", key)], &body.to_string()).await;
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let first = json!({ "model": "scripted", "input": "@say One." });
    let made = send(&first, "a").await;
    assert_eq!(send(&first, "a").await["id"], made["id"]);
    assert_ne!(send(&first, "b").await["id"], made["id"]);
    let next = json!({ "model": "scripted", "input": "@say Two.", "previous_response_id": made["id"] });
    let head = send(&next, "c").await;
    let fork = send(&next, "d").await;
    assert_ne!(head["id"], fork["id"]);
    assert_eq!(send(&next, "c").await["id"], head["id"]);
    assert_eq!(send(&next, "d").await["id"], fork["id"]);
    let conflict = send(&json!({ "model": "scripted", "input": "@say Other." }), "a").await;
    assert_eq!(conflict["error"]["code"], "IDEMPOTENCY_CONFLICT");
}

#[tokio::test]
async fn a_conversation_is_a_session() {
    let server = Server::start();
    let said = json!([
        { "role": "developer", "content": "Be brief." },
        { "role": "user", "content": "Hi." },
        { "role": "assistant", "content": [{ "type": "output_text", "text": "Hello." }] },
    ]);
    let (status, made) =
        server.send("POST", "/v1/conversations", &json!({ "items": said, "metadata": { "a": "b" } })).await;
    assert_eq!((status, &made["object"], &made["metadata"]), (200, &json!("conversation"), &json!({ "a": "b" })));
    let id = made["id"].as_str().unwrap();
    let ask = |input: &str| json!({ "model": "scripted", "input": input, "conversation": id });
    let first = server.respond(ask("@echo system")).await;
    assert_eq!((text_of(&first).as_str(), &first["conversation"]), ("system: Be brief.", &json!({ "id": id })));
    let second = server.respond(ask("@say Two.")).await;
    let path = format!("/v1/responses/{}", second["id"].as_str().unwrap());
    assert_eq!(server.send("GET", &path, &Value::Null).await.1, second);
    assert_eq!(second["metadata"], json!({ "a": "b" }));
    assert_eq!(server.send("DELETE", &path, &Value::Null).await.0, 400);
    let both = json!({ "model": "scripted", "input": "a", "conversation": id, "previous_response_id": first["id"] });
    assert_eq!(server.refused("/v1/responses", &both).await.2, "conversation");
    for (field, value) in [
        ("instructions", json!("Other.")),
        ("metadata", json!({ "a": "c" })),
        ("user", json!("anna")),
        ("store", json!(false)),
    ] {
        let mut other = ask("hello");
        other[field] = value;
        let refusal = (400, "INVALID_REQUEST".to_owned(), field.to_owned());
        assert_eq!(server.refused("/v1/responses", &other).await, refusal);
    }
    let path = format!("/v1/conversations/{id}");
    let (_, changed) = server.send("POST", &path, &json!({ "metadata": { "c": "d" } })).await;
    assert_eq!(changed["metadata"], json!({ "c": "d" }));
    assert_eq!(server.send("GET", &path, &Value::Null).await.1, changed);
    assert_eq!(server.send("DELETE", &path, &Value::Null).await.1["deleted"], true);
    assert_eq!(server.send("GET", &path, &Value::Null).await.1["error"]["code"], "SESSION_NOT_FOUND");
    let (status, unknown) = server.send("GET", "/v1/conversations/conv_x", &Value::Null).await;
    assert_eq!((status, &unknown["error"]["code"]), (404, &json!("ITEM_NOT_FOUND")));
}

#[tokio::test]
async fn chats_are_not_stored() {
    let server = Server::start();
    let ask = json!({ "role": "user", "content": r#"@call weather {"city":"Rome"} @echo last_result"# });
    let mut function = weather();
    function.as_object_mut().unwrap().remove("type");
    let tools = json!([{ "type": "function", "function": function }]);
    let chat = |messages: Value| json!({ "model": "scripted", "messages": messages, "tools": tools });
    let (status, asked) = server.send("POST", "/v1/chat/completions", &chat(json!([ask]))).await;
    assert_eq!((status, &asked["choices"][0]["finish_reason"]), (200, &json!("tool_calls")), "{asked}");
    let message = &asked["choices"][0]["message"];
    let result = json!({ "role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "Sunny." });
    let (_, done) = server.send("POST", "/v1/chat/completions", &chat(json!([ask, message, result]))).await;
    assert_eq!(done["choices"][0]["message"]["content"], "last_result: Sunny.");
    let unstored = server.respond(json!({ "model": "scripted", "input": "@say Hi.", "store": false })).await;
    assert_eq!((text_of(&unstored).as_str(), &unstored["store"]), ("Hi.", &json!(false)));
    let path = format!("/v1/responses/{}", unstored["id"].as_str().unwrap());
    assert_eq!(server.send("GET", &path, &Value::Null).await.0, 404);
    let listed = server.service.list(Default::default()).await.unwrap();
    assert!(listed.items.is_empty(), "{listed:?}");
}

#[tokio::test]
async fn a_streamed_chat_ends_with_its_usage() {
    let server = Server::start();
    let body = json!({
        "model": "scripted", "messages": [{ "role": "user", "content": "@say One. @say Two. @usage in=5 out=2" }],
        "stream": true, "stream_options": { "include_usage": true },
    });
    let (_, stream) = server.text("POST", "/v1/chat/completions", &[], &body.to_string()).await;
    assert!(stream.ends_with("data: [DONE]\n\n"), "{stream}");
    let chunks = frames(&stream);
    let text: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    // However much of them was shown live, texts with nothing but calls between them are one.
    assert_eq!(text, "One.Two.");
    assert_eq!(chunks.last().unwrap()["usage"]["total_tokens"], 7);
    assert_eq!(chunks[chunks.len() - 2]["choices"][0]["finish_reason"], "stop");
    let body = json!({ "model": "scripted", "messages": [{ "role": "user", "content": "@fail unauthorized" }] });
    let (status, failed) = server.send("POST", "/v1/chat/completions", &body).await;
    assert_eq!((status, &failed["error"]["code"]), (502, &json!("MODEL_UNAUTHORIZED")));
}

#[tokio::test]
async fn what_is_not_supported_is_refused_by_its_name() {
    let server = Server::start();
    let of = |more: Value| {
        let mut body = json!({ "model": "scripted", "input": "hello" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (body, param) in [
        (json!({ "model": "scripted" }), "input"),
        (of(json!({ "input": 7 })), "input"),
        (of(json!({ "input": [] })), "input"),
        (of(json!({ "input": [{ "role": "user" }] })), "input[0].content"),
        (of(json!({ "input": [{ "content": "a" }] })), "input[0].role"),
        (of(json!({ "input": [{ "role": "odd", "content": "a" }] })), "input[0].role"),
        (of(json!({ "input": [{ "type": "web_search_call" }] })), "input[0].type"),
        (of(json!({ "input": [{ "type": "reasoning", "summary": [] }] })), "input[0]"),
        (
            of(json!({ "input": [{ "type": "item_reference", "id": "msg_1" }, { "role": "user", "content": "a" }] })),
            "input[0].id",
        ),
        (
            of(json!({ "input": [{ "role": "user", "content": [{ "type": "input_audio" }] }] })),
            "input[0].content[0].type",
        ),
        (of(json!({ "model": 7 })), "model"),
        (of(json!({ "stream": "yes" })), "stream"),
        (of(json!({ "temperature": "warm" })), "temperature"),
        (of(json!({ "tools": [{ "type": "function" }] })), "tools[0].name"),
        (of(json!({ "tools": [{ "type": "web_search" }] })), "tools[0].type"),
        (of(json!({ "tools": [weather()], "tool_choice": "required" })), "tool_choice"),
        (of(json!({ "text": { "format": { "type": "json_schema", "name": "a" } } })), "text.format.schema"),
        (of(json!({ "text": { "format": { "type": "grammar" } } })), "text.format.type"),
        (of(json!({ "reasoning": { "effort": "huge" } })), "reasoning.effort"),
        (of(json!({ "parallel_tool_calls": false })), "parallel_tool_calls"),
        (of(json!({ "include": ["reasoning.encrypted_content"] })), "include"),
        (of(json!({ "made_up": 1 })), "made_up"),
        (of(json!({ "background": true, "store": false })), "background"),
    ] {
        let refusal = (400, "INVALID_REQUEST".to_owned(), param.to_owned());
        assert_eq!(server.refused("/v1/responses", &body).await, refusal, "{body}");
    }
    for (body, param) in [
        (json!({ "messages": [{ "role": "user", "content": "a" }] }), "model"),
        (json!({ "model": "scripted" }), "messages"),
        (json!({ "model": "scripted", "messages": [{ "role": "tool", "content": "a" }] }), "messages[0].tool_call_id"),
        (json!({ "model": "scripted", "messages": [{ "role": "user", "content": "a" }], "n": 2 }), "n"),
    ] {
        let refusal = (400, "INVALID_REQUEST".to_owned(), param.to_owned());
        assert_eq!(server.refused("/v1/chat/completions", &body).await, refusal, "{body}");
    }
    for body in ["", "{", "[]", r#"{"temperature":NaN}"#] {
        let (status, answer) = server.text("POST", "/v1/responses", &[], body).await;
        assert_eq!(status, 400, "{answer}");
        assert!(answer.starts_with(r#"{"error":{"#), "{answer}");
    }
    let long = json!({ "model": "scripted", "input": "a".repeat(2_000_000) });
    assert_eq!(server.refused("/v1/responses", &long).await.1, "PAYLOAD_TOO_LARGE");
    for id in ["resp_1", "x", "resp_01900000-0000-7000-8000-000000000001_0"] {
        let (status, answer) = server.send("GET", &format!("/v1/responses/{id}"), &Value::Null).await;
        assert_eq!((status, &answer["error"]["code"]), (404, &json!("ITEM_NOT_FOUND")), "{id}");
    }
    let foreign = "/v1/responses/resp_01900000-0000-7000-8000-000000000001_1";
    assert_eq!(server.send("GET", foreign, &Value::Null).await.1["error"]["code"], "SESSION_NOT_FOUND");
    let listed = server.service.list(Default::default()).await.unwrap();
    assert!(listed.items.is_empty(), "nothing was recorded: {listed:?}");
}
