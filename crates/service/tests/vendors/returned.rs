//! Earlier answers in requests: names, reasoning, calls of tools that no longer exist.

use std::sync::Arc;

use meerkat_service::{
    model::{
        ModelRequest, ModelResolver,
        vendors::{CompatibleEndpoint, VendorOptions},
    },
    session::message::{Block, Image, Message, RawJson, ToolCall, ToolResult},
};
use serde_json::{Value, json};

use crate::vendors::{
    ANTHROPIC, CHAT, COMPATIBLE, GEMINI, RESPONSES, WIRES, Wire, models,
    replay::{Reply, Server},
    sent, strict, user, wire,
};

/// Makes a call of a tool with this name, and its result.
fn called(wire: &Wire, name: &str) -> Vec<Message> {
    let signature = RawJson::parse(r#"["c2ln"]"#).unwrap();
    let call = ToolCall {
        call_id: "call_1".to_owned(),
        name: name.to_owned(),
        arguments: RawJson::empty_object(),
        opaque: wire.model.starts_with("gemini").then_some(signature),
    };
    let result = ToolResult {
        call_id: call.call_id.clone(),
        name: name.to_owned(),
        is_error: true,
        content: "No.".into(),
        images: Vec::new(),
    };
    vec![
        user("Look."),
        Message::BlockAssistant { model: "m".to_owned(), blocks: vec![Block::ToolCall(call)] },
        Message::ToolResults { results: vec![result] },
    ]
}

/// A vendor once refused an invented name in every later request, which made the session useless.
#[tokio::test]
async fn a_name_that_a_model_made_up_goes_back_as_a_legal_one() {
    let long = "x".repeat(200);
    for wire in WIRES {
        for name in ["functions.read", "", "read file", "Grüße", "7zip", "a:b", long.as_str(), "read_file"] {
            let bodies = [sent(wire, |_| {}, called(wire, name)).await, sent(wire, |_| {}, called(wire, name)).await];
            assert_eq!(bodies[0], bodies[1], "{} {name:?}", wire.model);
        }
        let body = sent(wire, |_| {}, called(wire, "functions.read")).await.to_string();
        assert!(body.contains("functions_read") && !body.contains("functions.read"), "{}: {body}", wire.model);
    }
}

/// Anthropic refuses calls and results in a request without tools.
#[tokio::test]
async fn calls_of_tools_that_are_not_there_any_more_have_stubs() {
    let messages = [called(&ANTHROPIC, "zip"), called(&ANTHROPIC, "a.b"), called(&ANTHROPIC, "zip")].concat();
    let body = sent(&ANTHROPIC, |_| {}, messages).await;
    let names: Vec<&Value> = body["tools"].as_array().unwrap().iter().map(|tool| &tool["name"]).collect();
    assert_eq!(names, ["a_b", "zip"]);
    assert_eq!(sent(&ANTHROPIC, |_| {}, vec![user("Hello.")]).await.get("tools"), None);
}

/// Vendors count thoughts as output, so a limit on the answer needs room for them.
#[tokio::test]
async fn a_bound_on_an_answer_leaves_room_to_think() {
    let bound = |request: &mut ModelRequest| {
        request.options.max_output_tokens = Some(500);
        request.thinking_tokens = 100;
    };
    for (wire, place, tokens) in [
        (&ANTHROPIC, "/max_tokens", 600),
        (&GEMINI, "/generationConfig/maxOutputTokens", 600),
        (&COMPATIBLE, "/max_tokens", 600),
        (&RESPONSES, "/max_output_tokens", 600),
        (&CHAT, "/max_tokens", 500),
    ] {
        let body = sent(wire, bound, vec![user("Hello.")]).await;
        assert_eq!(body.pointer(place), Some(&json!(tokens)), "{}: {body}", wire.model);
    }
}

/// Some servers refuse a call without its reasoning, others refuse the field.
#[tokio::test]
async fn a_server_that_wants_its_reasoning_back_gets_it() {
    for returns_reasoning in [false, true] {
        let server = Server::start(move |request| {
            let has_reasoning = request.body["messages"][1]["reasoning_content"] == "Two files.";
            let is_bare = request.body["messages"][1].get("reasoning_content").is_none();
            let verdict = strict::chat_without_key(&request);
            match verdict.is_ok() && if returns_reasoning { has_reasoning } else { is_bare } {
                true => Reply::stream(wire::CHAT_TEXT),
                false => Reply::refusal(400, format!("{verdict:?}: {}", request.body)),
            }
        });
        let (name, base_url) = ("local".to_owned(), server.await.url);
        let endpoint =
            CompatibleEndpoint { name, base_url, window_tokens: Some(32_768), returns_reasoning, ..Default::default() };
        let options = VendorOptions { compatible: vec![endpoint], ..VendorOptions::default() };
        let resolved = models(&options).unwrap().resolve("local/x").unwrap();
        let mut messages = called(&COMPATIBLE, "look");
        if let Message::BlockAssistant { blocks, .. } = &mut messages[1] {
            let thought = |text: &str, vendor: &str| Block::Reasoning {
                text: text.into(),
                opaque: None,
                vendor: vendor.to_owned(),
            };
            blocks.splice(0..0, [thought("Two files.", "local"), thought("Foreign.", "other")]);
        }
        let request = ModelRequest {
            model: resolved.vendor_model,
            messages: messages.into_iter().map(Arc::new).collect(),
            ..ModelRequest::default()
        };
        let mut stream = resolved.client.stream_response(request).await.unwrap();
        let first = futures::StreamExt::next(&mut stream).await.unwrap();
        assert!(first.is_ok(), "{first:?}");
    }
}

/// Returns a call and its result, with an image.
fn pictured(wire: &Wire) -> Vec<Message> {
    let mut messages = called(wire, "camera");
    if let Some(Message::ToolResults { results }) = messages.last_mut() {
        let [media_type, blob] = ["image/png", "b10b"].map(str::to_owned);
        results[0].is_error = false;
        results[0].content = "[Image: image/png]".into();
        results[0].images = vec![Image { media_type, blob, bytes: 3, width: 1, height: 1 }];
    }
    messages
}

#[tokio::test]
async fn an_image_of_a_result_is_sent_as_each_vendor_takes_it() {
    let see = |request: &mut ModelRequest| {
        request.images = Arc::new([("b10b".to_owned(), "QUJD".into())].into());
    };
    let bodies = [
        (
            &ANTHROPIC,
            "/messages/2/content/0/content/1",
            json!({ "type": "image", "source": {
            "type": "base64", "media_type": "image/png", "data": "QUJD" } }),
        ),
        (
            &CHAT,
            "/messages/3/content/1",
            json!({ "type": "image_url", "image_url": {
            "url": "data:image/png;base64,QUJD" } }),
        ),
        (
            &RESPONSES,
            "/input/3/content/1",
            json!({ "type": "input_image", "detail": "auto",
            "image_url": "data:image/png;base64,QUJD" }),
        ),
        (&GEMINI, "/contents/3/parts/1", json!({ "inline_data": { "mime_type": "image/png", "data": "QUJD" } })),
        (
            &COMPATIBLE,
            "/messages/3/content/1",
            json!({ "type": "image_url", "image_url": {
            "url": "data:image/png;base64,QUJD" } }),
        ),
    ];
    for (wire, place, expected) in bodies {
        let body = sent(wire, see, pictured(wire)).await;
        assert_eq!(body.pointer(place), Some(&expected), "{}: {body:#}", wire.model);
        assert!(body.to_string().contains("[Image: image/png]"), "{}", wire.model);
        // A model that does not see, or an old image: the line only.
        let mut blind = pictured(wire);
        let unseen = sent(wire, |_| {}, blind.clone()).await;
        if let Some(Message::ToolResults { results }) = blind.last_mut() {
            results[0].images.clear();
        }
        assert_eq!(unseen, sent(wire, |_| {}, blind).await, "{}", wire.model);
    }
}

#[test]
fn models_that_see_are_known_by_vendor_and_name_or_by_configuration() {
    let sees = |wire: &Wire, change: fn(&mut VendorOptions), name: &str| {
        let mut options = (wire.options)("http://127.0.0.1:9/v1".to_owned());
        change(&mut options);
        let resolved = models(&options).unwrap().resolve(name).unwrap();
        resolved.client.sees_images(&resolved.vendor_model)
    };
    assert!(sees(&ANTHROPIC, |_| {}, "claude-sonnet-5-5") && !sees(&ANTHROPIC, |_| {}, "claude-2.1"));
    assert!(sees(&CHAT, |_| {}, "gpt-4o") && !sees(&CHAT, |_| {}, "gpt-3.5-turbo"));
    assert!(sees(&GEMINI, |_| {}, GEMINI.model));
    assert!(!sees(&COMPATIBLE, |_| {}, COMPATIBLE.model));
    assert!(sees(&COMPATIBLE, |options| options.compatible[0].sees_images = true, COMPATIBLE.model));
}
