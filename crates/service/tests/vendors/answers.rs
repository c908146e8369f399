//! Whole answers: their parts, blocks and usage, and their form in the next request.

use std::sync::{Arc, Mutex};

use meerkat_service::{
    model::{AnswerBlock, ModelRequest, StopReason, ToolSpec, Usage},
    session::message::{Block, Message, RawJson, ToolCall, ToolResult},
};
use serde_json::{Value, json};

use crate::vendors::{ANTHROPIC, CHAT, COMPATIBLE, GEMINI, RESPONSES, WIRES, Wire, lines, replay::Reply, sent, user};

#[tokio::test]
async fn a_text_comes_in_parts_and_whole_however_the_bytes_are_cut_into_chunks() {
    for wire in WIRES {
        for chunk in [usize::MAX, 1, 7] {
            let heard = wire.hear(move || Reply { chunk, ..Reply::stream(wire.on_wire(wire.text)) }).await.unwrap();
            assert_eq!(heard.text, "Grüße, 世界 🦦", "{}", wire.model);
            assert_eq!(lines(&heard.answer.blocks), ["text Grüße, 世界 🦦"], "{}", wire.model);
            assert_eq!(heard.answer.stop_reason, StopReason::EndTurn, "{}", wire.model);
            let Usage { input_tokens, output_tokens, cached_tokens, .. } = heard.answer.usage;
            assert_eq!((input_tokens, output_tokens, cached_tokens), (135, 42, 100), "{}", wire.model);
        }
    }
}

/// Performs the first step of a turn, and checks the whole request of its second.
async fn two_steps(wire: &'static Wire, reasoning: &str, blocks: &[&str], next_body: Value) {
    let stories = Mutex::new([wire.text, wire.calls].to_vec());
    let call = wire.start(move |_| Reply::stream(wire.on_wire(stories.lock().unwrap().pop().unwrap()))).await;
    let mut request = call.request(vec![user("Look.")]);
    request.system = Some("Be brief.".into());
    request.tail = Some("<reminder>It rains.</reminder>".into());
    request.options.max_output_tokens = Some(500);
    let schema = RawJson::parse(r#"{"type":"object","properties":{"path":{"type":"string"}}}"#).unwrap();
    request.tools = Arc::new([ToolSpec { name: "read_file".to_owned(), description: "Reads.".to_owned(), schema }]);

    let first = call.send(request.clone()).await.unwrap();
    assert_eq!((first.text.as_str(), first.reasoning.as_str()), ("I look.", reasoning), "{}", wire.model);
    assert_eq!(lines(&first.answer.blocks), blocks, "{}", wire.model);
    assert_eq!(first.answer.stop_reason, StopReason::ToolUse, "{}", wire.model);
    let Usage { input_tokens, output_tokens, cached_tokens, .. } = first.answer.usage;
    assert_eq!((input_tokens, output_tokens, cached_tokens), (135, 42, 0), "{}", wire.model);

    request.messages.push(Arc::new(Message::BlockAssistant {
        model: wire.model.to_owned(),
        blocks: recorded(first.answer.blocks, wire),
    }));
    let calls: Vec<ToolCall> = request.messages[1].tool_calls().cloned().collect();
    let result = |call: &ToolCall, is_error, content: &str| ToolResult {
        call_id: call.call_id.clone(),
        name: call.name.clone(),
        is_error,
        content: content.into(),
        images: Vec::new(),
    };
    let results = vec![result(&calls[0], false, "a"), result(&calls[1], true, "no")];
    request.messages.push(Arc::new(Message::ToolResults { results }));
    let second = call.send(request).await.unwrap();
    assert_eq!(second.text, "Grüße, 世界 🦦", "{}", wire.model);
    assert_eq!(call.bodies.lock().unwrap()[1], next_body, "{}", wire.model);
}

/// Converts blocks as the engine does: with the vendor, and with an id for each call.
fn recorded(blocks: Vec<AnswerBlock>, wire: &Wire) -> Vec<Block> {
    let vendor = match wire.model {
        model if model.starts_with("claude") => "anthropic",
        model if model.starts_with("gpt") => "openai",
        model => model.split('/').next().unwrap(),
    };
    let record = |(index, block)| match block {
        AnswerBlock::Text(text) => Block::Text { text: text.into() },
        AnswerBlock::Reasoning { text, opaque } => {
            Block::Reasoning { text: text.into(), opaque, vendor: vendor.to_owned() }
        }
        AnswerBlock::ToolCall(call) if call.call_id.is_empty() => {
            Block::ToolCall(ToolCall { call_id: format!("call-{index}"), ..call })
        }
        AnswerBlock::ToolCall(call) => Block::ToolCall(call),
    };
    blocks.into_iter().enumerate().map(record).collect()
}

#[tokio::test]
async fn anthropic_gets_its_thinking_back_where_it_was_and_marks_on_what_stays() {
    let blocks = [
        r#"reasoning "Two files." Some("c2ln+1=")"#,
        r#"reasoning "" Some({"type":"redacted_thinking","data":"cmVk"})"#,
        "text I look.",
        r#"reasoning "" Some("c2lnMg==")"#,
        r#"call "toolu_1" read_file {"path":"a.txt","limit":1e2} None"#,
        r#"call "toolu_2" list {} None"#,
    ];
    let body = json!({
        "model": "claude-sonnet-5-5",
        "stream": true,
        "max_tokens": 500,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "tools": [{
            "name": "read_file", "description": "Reads.",
            "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
        }],
        "messages": [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Two files.", "signature": "c2ln+1="},
                {"type": "redacted_thinking", "data": "cmVk"},
                {"type": "text", "text": "I look."},
            ]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "", "signature": "c2lnMg=="},
                {"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {"path": "a.txt", "limit": 100.0}},
                {"type": "tool_use", "id": "toolu_2", "name": "list", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "a"},
                {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": true, "content": "no",
                 "cache_control": {"type": "ephemeral"}},
            ]},
            {"role": "user", "content": "<reminder>It rains.</reminder>"},
        ],
    });
    two_steps(&ANTHROPIC, "Two files.", &blocks, body).await;
}

fn chat_body(model: &str, strict: Value) -> Value {
    json!({
        "model": model,
        "stream": true,
        "stream_options": {"include_usage": true},
        "max_tokens": 500,
        "tools": [{"type": "function", "function": {
            "name": "read_file", "description": "Reads.", "strict": strict,
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        }}],
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": "I look.", "tool_calls": [
                {"type": "function", "id": "call_1",
                 "function": {"name": "read_file", "arguments": "{\"path\":\"a.txt\",\"limit\":100.0}"}},
                {"type": "function", "id": "call_2", "function": {"name": "list", "arguments": "{}"}},
            ]},
            {"role": "tool", "tool_call_id": "call_1", "content": "a"},
            {"role": "tool", "tool_call_id": "call_2", "content": "no"},
            {"role": "user", "content": "<reminder>It rains.</reminder>"},
        ],
    })
}

#[tokio::test]
async fn chat_completions_pair_calls_by_id_and_take_no_reasoning_back() {
    let blocks = [
        r#"reasoning "Two files." None"#,
        "text I look.",
        r#"call "call_1" read_file {"path":"a.txt","limit":1e2} None"#,
        r#"call "call_2" list {} None"#,
    ];
    two_steps(&CHAT, "Two files.", &blocks, chat_body("gpt-4.1", json!(false))).await;
    two_steps(&COMPATIBLE, "Two files.", &blocks, chat_body("qwen/qwen-max", json!(false))).await;
}

#[tokio::test]
async fn responses_get_their_encrypted_reasoning_back() {
    let blocks = [
        r#"reasoning "" Some("Z0FB")"#,
        "text I look.",
        r#"call "call_1" read_file {"path":"a.txt","limit":1e2} None"#,
        r#"call "call_2" list {} None"#,
    ];
    let body = json!({
        "model": "gpt-5.6-terra",
        "stream": true,
        "store": false,
        "instructions": "Be brief.",
        "max_output_tokens": 500,
        "reasoning": null,
        "include": ["reasoning.encrypted_content"],
        "tools": [{
            "type": "function", "name": "read_file", "description": "Reads.", "strict": false,
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        }],
        "input": [
            {"role": "user", "content": "Look."},
            {"type": "reasoning", "encrypted_content": "Z0FB", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "call_id": "call_1", "name": "read_file",
             "arguments": "{\"path\":\"a.txt\",\"limit\":100.0}"},
            {"type": "function_call", "call_id": "call_2", "name": "list", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": "a"},
            {"type": "function_call_output", "call_id": "call_2", "output": "no"},
            {"role": "user", "content": "<reminder>It rains.</reminder>"},
        ],
    });
    two_steps(&RESPONSES, "", &blocks, body).await;
}

#[tokio::test]
async fn gemini_gets_each_signature_back_on_its_call() {
    let blocks = [
        r#"reasoning "Two files." None"#,
        "text I look.",
        r#"call "" read_file {"path":"a.txt","limit":1e2} Some(["Q2lr"])"#,
        r#"call "" list {} None"#,
    ];
    let response = |name: &str, id: &str, content: &str| json!({"functionResponse": {"name": name, "id": id, "response": {"name": name, "content": content}}});
    let body = json!({
        "generationConfig": {"maxOutputTokens": 500, "thinkingConfig": {"includeThoughts": true}},
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "tools": [{"functionDeclarations": [{
            "name": "read_file", "description": "Reads.",
            "parametersJsonSchema": {"type": "object", "properties": {"path": {"type": "string"}}},
        }]}],
        "contents": [
            {"role": "user", "parts": [{"text": "Look."}]},
            {"role": "model", "parts": [
                {"text": "I look."},
                {"functionCall": {"id": "call-2", "name": "read_file", "args": {"path": "a.txt", "limit": 100.0}},
                 "thoughtSignature": "Q2lr"},
                {"functionCall": {"id": "call-3", "name": "list", "args": {}}},
            ]},
            {"role": "user", "parts": [response("read_file", "call-2", "a"), response("list", "call-3", "no")]},
            {"role": "user", "parts": [{"text": "<reminder>It rains.</reminder>"}]},
        ],
    });
    two_steps(&GEMINI, "Two files.", &blocks, body).await;
}

#[tokio::test]
async fn what_another_vendor_thought_and_blank_texts_are_left_out() {
    for wire in WIRES {
        let opaque = Some(RawJson::parse(r#""foreign-signature""#).unwrap());
        let thought =
            || Block::Reasoning { text: "foreign-thought".into(), opaque: opaque.clone(), vendor: "other".into() };
        let foreign = Some(RawJson::parse(r#"["foreign-call-signature"]"#).unwrap());
        let arguments = RawJson::parse(r#""{\"path\": oops""#).unwrap();
        let call_id = "functions.list:0".to_owned();
        let opaque = foreign.filter(|_| !wire.model.contains("gemini"));
        let called = ToolCall { call_id: call_id.clone(), name: "list".to_owned(), arguments, opaque };
        let messages = vec![
            user("One."),
            Message::BlockAssistant {
                model: "other".to_owned(),
                blocks: vec![thought(), Block::Text { text: " \n".into() }],
            },
            user("Two."),
            Message::BlockAssistant { model: "other".to_owned(), blocks: vec![thought(), Block::ToolCall(called)] },
            Message::ToolResults {
                results: vec![ToolResult {
                    call_id,
                    name: "list".to_owned(),
                    is_error: false,
                    content: "".into(),
                    images: Vec::new(),
                }],
            },
            Message::Assistant { content: "Well.".into() },
            user("Three."),
        ];
        let body = sent(wire, |_| {}, messages).await.to_string();
        assert!(!body.contains("foreign"), "{}: {body}", wire.model);
        assert!(body.contains("malformed_arguments"), "{}: {body}", wire.model);
    }
}

#[tokio::test]
async fn a_stop_is_told_apart_and_malformed_arguments_come_as_they_are() {
    let stops: [(&Wire, &str, &str, StopReason); 9] = [
        (&ANTHROPIC, "end_turn", "max_tokens", StopReason::MaxTokens),
        (&ANTHROPIC, "end_turn", "refusal", StopReason::Refusal),
        (&CHAT, "\"stop\"", "\"length\"", StopReason::MaxTokens),
        (&CHAT, "\"stop\"", "\"content_filter\"", StopReason::ContentFilter),
        (&RESPONSES, "response.completed", "response.incomplete", StopReason::MaxTokens),
        (&RESPONSES, "response.completed", "response.incomplete ", StopReason::ContentFilter),
        (&GEMINI, "STOP", "MAX_TOKENS", StopReason::MaxTokens),
        (&GEMINI, "STOP", "SAFETY", StopReason::ContentFilter),
        (&COMPATIBLE, "\"stop\"", "\"eos\"", StopReason::EndTurn),
    ];
    for (wire, from, to, stop_reason) in stops {
        let mut story = wire.text.replace(from, to);
        if to.starts_with("response.incomplete") {
            let details = match stop_reason {
                StopReason::ContentFilter => r#","incomplete_details":{"reason":"content_filter"},"model""#,
                _ => r#","incomplete_details":{"reason":"max_output_tokens"},"model""#,
            };
            story = story.replace("response.incomplete ", "response.incomplete");
            story = story.replace(r#""status":"completed","model""#, &format!(r#""status":"incomplete"{details}"#));
        }
        let story = wire.on_wire(&story);
        let heard = wire.hear(move || Reply::stream(story.clone())).await.unwrap();
        assert_eq!(
            (heard.answer.stop_reason, heard.text.as_str()),
            (stop_reason, "Grüße, 世界 🦦"),
            "{} {to}",
            wire.model
        );
    }
    for wire in [&ANTHROPIC, &CHAT, &COMPATIBLE] {
        let heard =
            wire.hear(|| Reply::stream(wire.calls.replace(r#"\"limit\":1e2}"#, r#"\"limit\":"#))).await.unwrap();
        let expected = r#" read_file "{\"path\":\"a.txt\",\"limit\":" None"#;
        assert!(lines(&heard.answer.blocks).iter().any(|line| line.ends_with(expected)), "{}", wire.model);
    }
    let blocked = r#"data: {"promptFeedback":{"blockReason":"SAFETY"},"usageMetadata":{"promptTokenCount":9}}"#;
    let heard = GEMINI.hear(move || Reply::stream(format!("{blocked}\r\n\r\n"))).await.unwrap();
    assert_eq!(heard.answer.stop_reason, StopReason::ContentFilter);
}

/// The tools stay, for the cache; the choice changes only if the cache survives that.
#[tokio::test]
async fn a_request_that_forbids_tools_differs_in_its_choice_alone() {
    let none = json!({ "tool_choice": "none" });
    let choices = [
        (&ANTHROPIC, json!({})),
        (&CHAT, none.clone()),
        (&COMPATIBLE, none.clone()),
        (&RESPONSES, none),
        (&GEMINI, json!({ "toolConfig": { "functionCallingConfig": { "mode": "NONE" } } })),
    ];
    for (wire, choice) in choices {
        let body = async |forbids_tools| {
            let change = |request: &mut ModelRequest| {
                let schema = RawJson::parse(r#"{"type":"object","properties":{}}"#).unwrap();
                let tool = ToolSpec { name: "look".to_owned(), description: "Looks.".to_owned(), schema };
                (request.tools, request.forbids_tools) = (Arc::new([tool]), forbids_tools);
            };
            sent(wire, change, vec![user("Look.")]).await
        };
        let mut expected = body(false).await;
        assert!(expected.get("tools").is_some());
        expected.as_object_mut().unwrap().extend(choice.as_object().unwrap().clone());
        assert_eq!(body(true).await, expected, "{}", wire.model);
    }
}
