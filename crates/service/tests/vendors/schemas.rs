//! Answers by a schema: the whole body of a request in each vendor's own mode, and the tool by which other models answer.

use std::sync::Arc;

use meerkat_service::{
    model::{
        ModelRequest, StopReason, ToolSpec,
        vendors::{CompatibleEndpoint, Preset, VendorOptions},
    },
    output::OutputSpec,
    session::message::RawJson,
};
use serde_json::{Value, json};

use crate::vendors::{ANTHROPIC, CHAT, COMPATIBLE, GEMINI, RESPONSES, Wire, lines, replay::Reply, sent, user};

/// Every object says what it has, and all of it is required.
const CLOSED: &str = r#"{"type":"object","properties":{"city":{"type":"string"},"at":{"type":"array","items":{"type":
    "object","properties":{"n":{"anyOf":[{"type":"integer"},{"type":"null"}]}},"required":["n"],"additionalProperties":
    false}}},"required":["city","at"],"additionalProperties":false}"#;
/// It has a property that may be left out, and it may have others.
const OPEN: &str = r#"{"type":"object","properties":{"city":{"type":"string"},"note":{"type":"string"}},"required":
    ["city"]}"#;
/// A part of it is an object whose properties it does not know.
const FREE: &str = r#"{"type":"object","properties":{"meta":{"type":"object"}},"required":["meta"]}"#;
/// A part of it is an object or nothing, and does not say that it is closed.
const MAYBE: &str = r#"{"type":"object","properties":{"at":{"type":["object","null"]}},"required":["at"],
    "additionalProperties":false}"#;
/// A keyword that Anthropic's mode refuses.
const BOUNDED: &str = r#"{"type":"object","properties":{"n":{"type":"integer","minimum":1}},"required":["n"],"additionalProperties":false}"#;

fn spec(schema: &str) -> OutputSpec {
    OutputSpec { name: Some("place".to_owned()), ..OutputSpec::new(RawJson::parse(schema).unwrap()) }
}

fn value(schema: &str) -> Value {
    serde_json::from_str(schema).unwrap()
}

/// The body of a request that asks for an answer by this schema, beside a tool or alone.
async fn asked(wire: &Wire, schema: &str, with_tool: bool) -> Value {
    let ask = |request: &mut ModelRequest| {
        request.output = Some(Arc::new(spec(schema)));
        request.options.max_output_tokens = Some(500);
        let schema = RawJson::parse(r#"{"type":"object"}"#).unwrap();
        let look = ToolSpec { name: "look".to_owned(), description: "Looks.".to_owned(), schema };
        request.tools = with_tool.then_some(look).into_iter().collect();
    };
    sent(wire, ask, vec![user("Where?")]).await
}

/// The names of a body's tools, and if it has anything else of an answer by a schema.
fn ways(body: &Value) -> (Vec<String>, bool) {
    let tools = body["tools"].as_array().into_iter().flatten();
    // Gemini's are within one list of functions.
    let functions = body.pointer("/tools/0/functionDeclarations").and_then(Value::as_array).into_iter().flatten();
    let name = |tool: &Value| tool["name"].as_str().or_else(|| tool["function"]["name"].as_str()).map(str::to_owned);
    let names = tools.chain(functions).filter_map(name).collect();
    let modes = ["/response_format", "/text/format", "/output_config/format", "/generationConfig/responseJsonSchema"];
    (names, modes.iter().any(|mode| body.pointer(mode).is_some()))
}

#[tokio::test]
async fn anthropic_is_asked_in_its_output_config() {
    let body = |schema: Value| {
        json!({
            "model": "claude-sonnet-5-5",
            "stream": true,
            "max_tokens": 500,
            "output_config": {"format": {"type": "json_schema", "schema": schema}},
            "messages": [{"role": "user", "content": [
                {"type": "text", "text": "Where?", "cache_control": {"type": "ephemeral"}},
            ]}],
        })
    };
    assert_eq!(asked(&ANTHROPIC, CLOSED, false).await, body(value(CLOSED)));
    // Its mode has closed objects only.
    let mut open = value(OPEN);
    open["additionalProperties"] = json!(false);
    assert_eq!(asked(&ANTHROPIC, OPEN, false).await, body(open));
    let effort = |request: &mut ModelRequest| {
        request.output = Some(Arc::new(spec(CLOSED)));
        request.options.effort = Some(meerkat_service::options::Effort::Low);
    };
    let both = sent(&ANTHROPIC, effort, vec![user("Where?")]).await;
    let expected = json!({"effort": "low", "format": {"type": "json_schema", "schema": value(CLOSED)}});
    assert_eq!(both["output_config"], expected);
}

#[tokio::test]
async fn openai_is_asked_in_its_two_formats_and_strictly_if_the_schema_is_closed() {
    for (schema, strict) in [(CLOSED, true), (OPEN, false), (BOUNDED, false), (FREE, false), (MAYBE, false)] {
        let format = json!({"name": "place", "strict": strict, "schema": value(schema)});
        let body = json!({
            "model": "gpt-4.1",
            "stream": true,
            "stream_options": {"include_usage": true},
            "max_tokens": 500,
            "response_format": {"type": "json_schema", "json_schema": format},
            "messages": [{"role": "user", "content": "Where?"}],
        });
        assert_eq!(asked(&CHAT, schema, false).await, body);
        let mut format = format;
        format["type"] = json!("json_schema");
        let body = json!({
            "model": "gpt-5.6-terra",
            "stream": true,
            "store": false,
            "max_output_tokens": 500,
            "reasoning": null,
            "include": ["reasoning.encrypted_content"],
            "text": {"format": format},
            "input": [{"role": "user", "content": "Where?"}],
        });
        assert_eq!(asked(&RESPONSES, schema, false).await, body);
    }
}

#[tokio::test]
async fn gemini_is_asked_with_the_schema_as_it_is() {
    let body = json!({
        "generationConfig": {
            "maxOutputTokens": 500,
            "thinkingConfig": {"includeThoughts": true},
            "responseMimeType": "application/json",
            "responseJsonSchema": value(BOUNDED),
        },
        "contents": [{"role": "user", "parts": [{"text": "Where?"}]}],
    });
    assert_eq!(asked(&GEMINI, BOUNDED, false).await, body);
}

fn server(base_url: String, preset: Option<Preset>) -> VendorOptions {
    let (name, window_tokens) = ("local".to_owned(), Some(32_768));
    let compatible = vec![CompatibleEndpoint { name, base_url, preset, window_tokens, ..Default::default() }];
    VendorOptions { compatible, ..VendorOptions::default() }
}

/// Servers, Ollama among them, take the words of OpenAI. Behind a router only such are asked that have them.
#[tokio::test]
async fn servers_are_asked_in_the_words_of_openai() {
    let presets: [fn(String) -> VendorOptions; 5] = [
        |url| server(url, None),
        |url| server(url, Some(Preset::Ollama)),
        |url| server(url, Some(Preset::Vllm)),
        |url| server(url, Some(Preset::LlamaCpp)),
        |url| server(url, Some(Preset::LmStudio)),
    ];
    let mut body = json!({
        "model": "qwen/qwen-max",
        "stream": true,
        "stream_options": {"include_usage": true},
        "max_tokens": 500,
        "response_format": {
            "type": "json_schema", "json_schema": {"name": "place", "strict": false, "schema": value(OPEN)},
        },
        "messages": [{"role": "user", "content": "Where?"}],
    });
    for options in presets {
        assert_eq!(asked(&Wire { options, ..COMPATIBLE }, OPEN, false).await, body);
    }
    body["provider"] = json!({"require_parameters": true});
    let options = |url| server(url, Some(Preset::OpenRouter));
    assert_eq!(asked(&Wire { options, ..COMPATIBLE }, OPEN, false).await, body);
}

/// Without the vendor's own mode, the answer is the call of a tool, which is the last of them.
#[tokio::test]
async fn a_model_without_a_mode_for_it_gets_a_tool() {
    let of = |wire: Wire, model: &'static str| Wire { model, ..wire };
    let local: Wire = COMPATIBLE;
    for (wire, schema, alone, with_tools) in [
        (ANTHROPIC, CLOSED, true, true),
        (ANTHROPIC, BOUNDED, false, false),
        // Closed as the mode has it, they could only be empty.
        (ANTHROPIC, FREE, false, false),
        (ANTHROPIC, MAYBE, false, false),
        (ANTHROPIC, r#"{"type":"object","required":["n"]}"#, false, false),
        (ANTHROPIC, r#"{"type":"object","properties":{"m":{}},"required":["n"]}"#, false, false),
        (ANTHROPIC, r#"{"type":"object","additionalProperties":false}"#, true, true),
        (of(ANTHROPIC, "claude-haiku-4-5"), OPEN, true, true),
        (of(ANTHROPIC, "claude-opus-4-1-20250805"), OPEN, false, false),
        (of(ANTHROPIC, "claude-3-5-haiku-20241022"), OPEN, false, false),
        (of(CHAT, "gpt-4o"), OPEN, true, true),
        (of(CHAT, "gpt-4-turbo"), OPEN, false, false),
        (of(CHAT, "gpt-3.5-turbo"), OPEN, false, false),
        (of(CHAT, "o3"), OPEN, true, true),
        (of(RESPONSES, "gpt-5.4-pro"), OPEN, false, false),
        (RESPONSES, OPEN, true, true),
        (GEMINI, BOUNDED, true, true),
        (of(GEMINI, "gemini/gemini-2.5-flash"), BOUNDED, true, false),
        (local, OPEN, true, false),
    ] {
        for (with_tool, by_mode) in [(false, alone), (true, with_tools)] {
            let body = asked(&wire, schema, with_tool).await;
            let tools = with_tool.then_some("look").into_iter().chain((!by_mode).then_some("answer"));
            assert_eq!(ways(&body), (tools.map(str::to_owned).collect(), by_mode), "{} {body}", wire.model);
        }
    }
    for wire in [ANTHROPIC, CHAT, RESPONSES, GEMINI, COMPATIBLE] {
        let refused = |request: &mut ModelRequest| {
            request.output = Some(Arc::new(spec(CLOSED)));
            request.answers_by_tool = true;
        };
        let body = sent(&wire, refused, vec![user("Where?")]).await;
        assert_eq!(ways(&body), (vec!["answer".to_owned()], false), "{} after its mode was refused", wire.model);
    }
    let tool = json!({
        "name": "answer",
        "description": "Gives your final answer and ends the turn. Call it alone and once, when nothing else is left to \
                        do; its arguments are the answer.",
        "input_schema": value(BOUNDED),
    });
    assert_eq!(asked(&ANTHROPIC, BOUNDED, false).await["tools"], json!([tool]));
}

/// The call's arguments are the last text of the answer, as the model wrote them. Other calls stay calls.
#[tokio::test]
async fn the_call_of_the_tool_is_the_answer() {
    let cases = [
        (Wire { model: "claude-opus-4-1", ..ANTHROPIC }, false),
        (Wire { model: "gpt-4-turbo", ..CHAT }, false),
        (Wire { model: "gpt-5.4-pro", ..RESPONSES }, false),
        (Wire { model: "gemini/gemini-2.5-flash", ..GEMINI }, true),
        (COMPATIBLE, true),
    ];
    for (wire, with_tool) in cases {
        for (other, stop_reason) in [("answer", StopReason::EndTurn), ("list", StopReason::ToolUse)] {
            let story =
                wire.on_wire(&wire.calls.replace("read_file", "answer").replace("\"list\"", &format!("\"{other}\"")));
            let call = wire.start(move |_| Reply::stream(story.clone())).await;
            let mut request = call.request(vec![user("Where?")]);
            request.output = Some(Arc::new(spec(OPEN)));
            let look =
                ToolSpec { name: "look".to_owned(), description: String::new(), schema: RawJson::empty_object() };
            request.tools = with_tool.then_some(look).into_iter().collect();
            let heard = call.send(request).await.unwrap();
            assert_eq!((heard.text.as_str(), heard.answer.stop_reason), ("I look.", stop_reason), "{}", wire.model);
            let said = lines(&heard.answer.blocks);
            let said: Vec<&str> =
                said.iter().map(String::as_str).filter(|line| !line.starts_with("reasoning")).collect();
            assert_eq!(said[..2], ["text I look.", r#"text {"path":"a.txt","limit":1e2}"#], "{}", wire.model);
            match other {
                "answer" => assert_eq!(said[2..], ["text {}"], "{}", wire.model),
                _ => assert!(said[2].starts_with("call ") && said[2].contains(" list {} "), "{}: {said:?}", wire.model),
            }
        }
    }
}

/// A model that may not call the tool does not get it, and one that was not asked has no such tool.
#[tokio::test]
async fn a_request_without_a_schema_has_neither() {
    for wire in [ANTHROPIC, CHAT, RESPONSES, GEMINI, COMPATIBLE] {
        let body = sent(&wire, |_| {}, vec![user("Where?")]).await;
        assert_eq!(ways(&body), (Vec::new(), false), "{}", wire.model);
    }
}
