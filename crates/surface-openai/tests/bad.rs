//! Bad input: each field of a request once with a value of another type, and each that must be there once left out.

use serde_json::{Value, json};

use super::Server;

/// Requests for responses and for a chat with every field that is known, and where each is wrong once all of it is read.
fn whole() -> [(&'static str, &'static str, Value); 3] {
    let image = "data:image/png;base64,iVBORw0KGgo=";
    let response = json!({
        "model": "scripted", "stream": false, "stream_options": { "include_obfuscation": false }, "user": "anna",
        "metadata": { "a": "b" }, "temperature": 0.5, "top_p": 0.5, "max_output_tokens": 100, "store": true,
        "background": false, "instructions": "Be brief.", "reasoning": { "effort": "low", "summary": "auto" },
        "text": { "format": { "type": "json_schema", "name": "a", "schema": {}, "strict": true, "description": "b" },
            "verbosity": "medium" },
        "tools": [{ "type": "function", "name": "a", "description": "b", "parameters": {}, "strict": true }],
        "tool_choice": "auto", "parallel_tool_calls": true, "service_tier": "auto", "top_logprobs": 0,
        "truncation": "auto", "include": [], "safety_identifier": "a", "prompt_cache_key": "a",
        "prompt_cache_retention": "in_memory",
        "previous_response_id": "resp_01900000-0000-7000-8000-000000000001_1",
        "input": [
            { "type": "message", "id": "a", "status": "completed", "role": "assistant",
                "content": [{ "type": "output_text", "text": "a", "annotations": [], "logprobs": [] }] },
            { "type": "function_call", "id": "a", "call_id": "a", "name": "a", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "a", "output": "b" },
            { "type": "item_reference", "id": "msg_a" },
            { "role": "user", "content": [
                { "type": "input_text", "text": "a" },
                { "type": "input_image", "image_url": image, "detail": "auto" },
                { "type": "input_file", "filename": "a", "file_data": "data:text/plain;base64,YQ==" },
            ] },
        ],
    });
    let conversation = json!({
        "conversation": { "id": "conv_01900000-0000-7000-8000-000000000001" },
        "input": [
            { "type": "message", "role": "assistant", "phase": "commentary", "content": "a" },
            { "type": "item_reference", "id": "msg_a" }, { "role": "user", "content": "a" },
        ],
    });
    let chat = json!({
        "model": "scripted", "stream": false, "stream_options": { "include_usage": true }, "user": "anna",
        "metadata": { "a": "b" }, "temperature": 0.5, "top_p": 0.5, "max_completion_tokens": 100, "max_tokens": 100, "store": false,
        "stop": ["a"], "seed": 1, "n": 1, "logprobs": false, "frequency_penalty": 0, "presence_penalty": 0,
        "modalities": ["text"], "verbosity": "medium", "reasoning_effort": "low", "tool_choice": "none",
        "response_format": { "type": "json_schema", "json_schema": { "name": "a", "schema": {} } },
        "tools": [{ "type": "function", "function": { "name": "a", "description": "b", "parameters": {} } }],
        "messages": [
            { "role": "system", "content": "a", "name": "b" },
            { "role": "user", "content": [
                { "type": "text", "text": "a" }, { "type": "image_url", "image_url": { "url": image, "detail": "low" } },
                { "type": "file", "file": { "filename": "a", "file_data": "data:text/plain;base64,YQ==" } },
            ] },
            { "role": "assistant", "content": "a", "tool_calls": [
                { "id": "a", "type": "function", "index": 0, "function": { "name": "a", "arguments": "{}" } },
            ] },
            { "role": "tool", "tool_call_id": "a", "content": "b" },
        ],
    });
    // A reference leads nowhere, and an image is not in the last message.
    [
        ("/v1/responses", "input[3].id", response),
        ("/v1/chat/completions", "messages[1].content", chat),
        ("/v1/responses", "input[1].id", conversation),
    ]
}

/// Each place in a value, as a refusal names it and as a pointer, from the outside in.
fn places(value: &Value, place: &str, pointer: &str) -> Vec<(String, String)> {
    let inner: Vec<(String, String, &Value)> = match value {
        Value::Object(fields) => {
            let dot = if place.is_empty() { "" } else { "." };
            fields
                .iter()
                .map(|(name, value)| (format!("{place}{dot}{name}"), format!("{pointer}/{name}"), value))
                .collect()
        }
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.map(|(at, value)| (format!("{place}[{at}]"), format!("{pointer}/{at}"), value)).collect()
        }
        _ => Vec::new(),
    };
    let each = inner.into_iter().flat_map(|(place, pointer, value)| {
        let within = places(value, &place, &pointer);
        [(place, pointer)].into_iter().chain(within)
    });
    each.collect()
}

#[tokio::test]
async fn each_field_of_another_type_is_refused_by_its_name() {
    let server = Server::start();
    let mut count = 0;
    for (path, wrong, body) in whole() {
        assert_eq!(server.refused(path, &body).await, (400, "INVALID_REQUEST".to_owned(), wrong.to_owned()));
        let all = places(&body, "", "");
        count += all.len();
        for (place, pointer) in all {
            let mut other = body.clone();
            if path.ends_with("completions") && !place.starts_with("messages[1]") {
                // The refused image would hide what comes after it.
                other["messages"][1]["content"] = json!("a");
            }
            // No field is a list of lists.
            *other.pointer_mut(&pointer).unwrap() = json!([[]]);
            let (status, code, param) = server.refused(path, &other).await;
            assert_eq!((status, code.as_str()), (400, "INVALID_REQUEST"), "{path} {place}");
            // Texts of a list are read together.
            let near = [place.clone(), format!("{place}[0]"), place.trim_end_matches("[0]").to_owned()];
            assert!(near.contains(&param), "{path} {place}: {param}");
        }
    }
    assert!(count > 140, "{count}");
    let listed = server.service.list(Default::default()).await.unwrap();
    assert!(listed.items.is_empty(), "nothing was recorded: {listed:?}");
}

/// A program in front of the server may look at the first one of two fields, and only the last one would count.
#[tokio::test]
async fn each_field_that_is_given_twice_is_refused_by_its_name() {
    let server = Server::start();
    let conversation = ("/v1/conversations", "", json!({ "metadata": { "a": "b" } }));
    for (path, _, body) in whole().into_iter().chain([conversation]) {
        let all = places(&body, "", "");
        for (place, pointer) in all.iter().filter(|(place, _)| !place.ends_with(']')) {
            let mut other = body.clone();
            if path.ends_with("completions") && !place.starts_with("messages[1]") {
                other["messages"][1]["content"] = json!("a");
            }
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            let fields = other.pointer_mut(parent).unwrap();
            let once = std::mem::replace(fields, json!("fields")).to_string();
            // Also if one of them counts as missing.
            let twice = format!(r#"{{"{name}":null,{}"#, once.strip_prefix('{').unwrap());
            let text = other.to_string().replacen(r#""fields""#, &twice, 1);
            let (status, answer) = server.text("POST", path, &[], &text).await;
            let error = &serde_json::from_str::<Value>(&answer).unwrap()["error"];
            assert_eq!((status, &error["param"]), (400, &json!(place)), "{path} {text}: {answer}");
            assert!(error["message"].as_str().unwrap().contains("twice"), "{answer}");
        }
    }
}

#[tokio::test]
async fn each_field_that_must_be_there_is_missed_by_its_name() {
    let server = Server::start();
    let responses = [
        "input",
        "input[0].role",
        "input[0].content",
        "input[0].content[0].type",
        "input[0].content[0].text",
        "input[1].call_id",
        "input[1].name",
        "input[1].arguments",
        "input[2].call_id",
        "input[2].output",
        "input[3].id",
        "input[4].content[1].image_url",
        "input[4].content[2].filename",
        "input[4].content[2].file_data",
        "text.format.type",
        "text.format.name",
        "text.format.schema",
        "tools[0].type",
        "tools[0].name",
    ];
    let chats = [
        "model",
        "messages",
        "messages[0].role",
        "messages[0].content",
        "messages[1].content[1].image_url",
        "messages[1].content[1].image_url.url",
        "messages[1].content[2].file.file_data",
        "messages[2].tool_calls[0].id",
        "messages[2].tool_calls[0].function",
        "messages[2].tool_calls[0].function.name",
        "messages[2].tool_calls[0].function.arguments",
        "messages[3].tool_call_id",
        "messages[3].content",
        "response_format.json_schema",
        "response_format.json_schema.schema",
        "tools[0].function.name",
    ];
    let of_whole =
        [&responses[..], &chats[..], &["conversation.id", "input[0].role", "input[0].content", "input[1].id"]];
    for ((path, _, body), needed) in whole().into_iter().zip(of_whole) {
        let known = places(&body, "", "");
        for place in needed {
            let pointer = &known.iter().find(|(known, _)| known == place).expect(place).1;
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            let mut other = body.clone();
            // Only the last message may have an image.
            if path.ends_with("completions") && !place.starts_with("messages[1]") && *place != "messages" {
                other["messages"][1]["content"] = json!("a");
            }
            // In JSON, `null` is a field that is missing.
            for is_null in [false, true] {
                let fields = other.pointer_mut(parent).unwrap().as_object_mut().unwrap();
                match is_null {
                    true => drop(fields.insert(name.to_owned(), Value::Null)),
                    false => drop(fields.remove(name)),
                }
                let refusal = (400, "INVALID_REQUEST".to_owned(), (*place).to_owned());
                assert_eq!(server.refused(path, &other).await, refusal, "{path} {place}");
            }
        }
    }
}

#[tokio::test]
async fn what_is_said_is_a_list_that_ends_with_a_question() {
    let server = Server::start();
    let assistant = json!({ "role": "assistant", "content": "a" });
    let said = json!([{ "role": "user", "content": "a" }, assistant]);
    for (path, body, param) in [
        ("/v1/responses", json!({ "model": "scripted", "input": said }), "input[1]"),
        ("/v1/responses", json!({ "model": "scripted", "input": [] }), "input"),
        ("/v1/chat/completions", json!({ "model": "scripted", "messages": said }), "messages[1]"),
        // Only the input of a response may be a text.
        ("/v1/chat/completions", json!({ "model": "scripted", "messages": "a" }), "messages"),
        ("/v1/conversations", json!({ "items": "a" }), "items"),
    ] {
        assert_eq!(server.refused(path, &body).await, (400, "INVALID_REQUEST".to_owned(), param.to_owned()), "{body}");
    }
}

/// The service has other names for them.
#[tokio::test]
async fn what_the_service_refuses_has_the_name_that_the_client_knows() {
    let server = Server::start();
    let name = json!([{ "type": "function", "name": "a b" }]);
    let schema = json!({ "type": "json_schema", "name": "a", "schema": { "type": 5 } });
    let of_chat = json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": { "type": 5 } } });
    let [response, chat, conversation] = ["/v1/responses", "/v1/chat/completions", "/v1/conversations"];
    for (path, field, value, param) in [
        (response, "input", json!(""), "input"),
        (
            response,
            "input",
            json!([{ "role": "assistant", "content": "a" }, { "role": "user", "content": "a" }]),
            "input",
        ),
        (response, "temperature", json!(3), "temperature"),
        (response, "max_output_tokens", json!(0), "max_output_tokens"),
        (response, "tools", name, "tools"),
        (response, "text", json!({ "format": schema }), "text.format"),
        (response, "metadata", json!({ "": "a" }), "metadata"),
        (chat, "messages", json!([{ "role": "user", "content": "" }]), "messages"),
        (chat, "max_tokens", json!(0), "max_completion_tokens"),
        (chat, "stop", json!([""]), "stop"),
        (chat, "response_format", of_chat, "response_format"),
        (conversation, "items", json!([{ "role": "assistant", "content": "a" }]), "items"),
        (conversation, "metadata", json!({ "": "a" }), "metadata"),
    ] {
        let mut body = match path {
            "/v1/responses" => json!({ "model": "scripted", "input": "a" }),
            "/v1/conversations" => json!({}),
            _ => json!({ "model": "scripted", "messages": [{ "role": "user", "content": "a" }] }),
        };
        body[field] = value;
        assert_eq!(server.refused(path, &body).await, (400, "INVALID_REQUEST".to_owned(), param.to_owned()), "{body}");
    }
    let (status, text) =
        server.text("POST", response, &[("idempotency-key", " ")], r#"{"model":"scripted","input":"a"}"#).await;
    assert_eq!((status, text.contains(r#""param":"Idempotency-Key""#)), (400, true), "{text}");
}

#[tokio::test]
async fn a_refusal_says_what_to_send() {
    let server = Server::start();
    for stop in [json!({}), json!([1]), json!(1)] {
        let body = json!({ "model": "scripted", "messages": [{ "role": "user", "content": "a" }], "stop": stop });
        let (_, answer) = server.send("POST", "/v1/chat/completions", &body).await;
        let (message, param) = (answer["error"]["message"].as_str().unwrap(), &answer["error"]["param"]);
        assert!(message.contains("a list of texts: send one of these") && param == "stop", "{answer}");
    }
    let picture = json!({ "type": "input_image", "image_url": "data:image/png;base64,%" });
    for (field, value, advice) in [
        ("tools", json!([{ "type": "x" }]), r#"send tools of the type "function""#),
        ("text", json!({ "format": { "type": "x" } }), "send text, json_object or json_schema"),
        ("input", json!([{ "type": "x" }]), "send message, function_call or function_call_output"),
        ("input", json!([{ "role": "user", "content": [{ "type": "x" }] }]), "send a text, an image or a file"),
        ("input", json!([{ "role": "user", "content": [picture] }]), "send the bytes in base64"),
    ] {
        let mut body = json!({ "model": "scripted", "input": "a" });
        body[field] = value;
        let (status, text) = server.text("POST", "/v1/responses", &[], &body.to_string()).await;
        let error: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(status, 400, "{text}");
        assert!(error["error"]["message"].as_str().unwrap().contains(advice), "{text}");
    }
    for (query, advice) in [("stream=yes", "send true or false"), ("starting_after=x", "send a whole number")] {
        let path = format!("/v1/responses/resp_01900000-0000-7000-8000-000000000001_1?{query}");
        let (status, text) = server.text("GET", &path, &[], "").await;
        assert_eq!(status, 400, "{text}");
        assert!(text.contains(advice), "{text}");
    }
}
