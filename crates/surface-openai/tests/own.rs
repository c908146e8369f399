//! Whose sessions these are: only what was made over these protocols is reached by them, and nothing is done by halves.

use meerkat_service::{
    service::{CreateSession, ReadEvents, SessionMemory, StartTurn},
    session::event::Event,
    wire::decode_event,
};
use serde_json::{Value, json};

use super::{Server, text_of, weather};

/// Each request that names a session by an id of a response, a conversation or a call.
fn requests(session: &str) -> Vec<(&'static str, String, Value)> {
    let (response, conversation) = (format!("resp_{session}_2"), format!("conv_{session}"));
    let responses = "/v1/responses".to_owned();
    let output = json!([{ "type": "function_call_output", "call_id": format!("call_{session}_5_0"), "output": "x" }]);
    let ask = |more: Value| {
        let mut body = json!({ "model": "scripted", "input": "hello" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    vec![
        ("GET", format!("/v1/responses/{response}"), Value::Null),
        ("GET", format!("/v1/responses/{response}?stream=true"), Value::Null),
        ("GET", format!("/v1/responses/{response}/input_items"), Value::Null),
        ("POST", format!("/v1/responses/{response}/cancel"), Value::Null),
        ("DELETE", format!("/v1/responses/{response}"), Value::Null),
        ("GET", format!("/v1/conversations/{conversation}"), Value::Null),
        ("POST", format!("/v1/conversations/{conversation}"), json!({ "metadata": {} })),
        ("DELETE", format!("/v1/conversations/{conversation}"), Value::Null),
        ("POST", responses.clone(), ask(json!({ "previous_response_id": response }))),
        ("POST", responses.clone(), ask(json!({ "previous_response_id": response, "input": output.clone() }))),
        ("POST", responses.clone(), ask(json!({ "conversation": conversation }))),
        ("POST", responses, ask(json!({ "conversation": conversation, "input": output }))),
    ]
}

#[tokio::test]
async fn a_session_that_was_made_elsewhere_is_not_found() {
    let server = Server::start();
    let labels = std::collections::BTreeMap::from([("project".to_owned(), "anna".to_owned())]);
    let request = CreateSession { labels: labels.clone(), ..CreateSession::default() };
    let session = server.service.create_session(request).await.unwrap().session_id;
    server.service.start_turn(StartTurn::new(session, "@say One.")).await.unwrap();
    let before = server.service.read(&session).await.unwrap();
    for (method, path, body) in requests(&session.to_string()) {
        let (status, answer) = server.send(method, &path, &body).await;
        assert_eq!((status, &answer["error"]["code"]), (404, &json!("SESSION_NOT_FOUND")), "{method} {path} {body}");
    }
    assert_eq!(server.service.read(&session).await.unwrap(), before);
    // What a response made is no conversation.
    let made = server.respond(json!({ "model": "scripted", "input": "@say One." })).await;
    let session = made["id"].as_str().unwrap().split('_').nth(1).unwrap().to_owned();
    let (status, _) = server.send("DELETE", &format!("/v1/conversations/conv_{session}"), &Value::Null).await;
    assert_eq!(status, 404);
    assert_eq!(
        server.send("GET", &format!("/v1/responses/{}", made["id"].as_str().unwrap()), &Value::Null).await.0,
        200
    );
}

#[tokio::test]
async fn what_is_not_stored_answers_no_call_of_what_is() {
    let server = Server::start();
    let input = r#"@call weather {"city":"Rome"} @echo last_result"#;
    let asked = server.respond(json!({ "model": "scripted", "input": input, "tools": [weather()] })).await;
    let call = asked["output"][0].clone();
    let chat = json!({ "model": "scripted", "messages": [
        { "role": "user", "content": "Weather?" },
        { "role": "assistant", "tool_calls": [
            { "id": call["call_id"], "type": "function", "function": { "name": "weather", "arguments": "{}" } },
        ] },
        { "role": "tool", "tool_call_id": call["call_id"], "content": "Rain." },
    ] });
    let (status, answer) = server.send("POST", "/v1/chat/completions", &chat).await;
    assert!(
        status == 200 && answer["choices"][0]["message"]["content"].as_str().unwrap().contains("Go on"),
        "{answer}"
    );
    let output = |text: &str| json!({ "type": "function_call_output", "call_id": call["call_id"], "output": text });
    let unstored = json!({ "model": "scripted", "store": false, "input": [
        { "role": "user", "content": "Weather?" },
        { "type": "function_call", "call_id": call["call_id"], "name": "weather", "arguments": "{}" },
        output("Rain."),
    ] });
    assert!(text_of(&server.respond(unstored).await).contains("Go on"));
    // Nor does a request in a conversation answer the call of another session.
    let (_, conversation) = server.send("POST", "/v1/conversations", &json!({})).await;
    let elsewhere = json!({ "model": "scripted", "conversation": conversation["id"], "input": [output("Rain.")] });
    let refusal = (400, "INVALID_REQUEST".to_owned(), "input".to_owned());
    assert_eq!(server.refused("/v1/responses", &elsewhere).await, refusal);
    let done = server.respond(json!({ "model": "scripted", "input": [output("Sunny.")] })).await;
    assert_eq!(text_of(&done), "last_result: Sunny.");
    // Sent again, it is the same response, also without an id of the one before.
    let again = server.respond(json!({ "model": "scripted", "input": [output("Sunny.")] })).await;
    assert_eq!(again["id"], done["id"]);
}

#[tokio::test]
async fn metadata_sets_no_label_that_decides() {
    let server = Server::start();
    let (_, conversation) = server.send("POST", "/v1/conversations", &json!({})).await;
    let path = format!("/v1/conversations/{}", conversation["id"].as_str().unwrap());
    let made = server.respond(json!({ "model": "scripted", "input": "@say One.", "user": "anna" })).await;
    for name in ["project", "openai", "openai.key"] {
        let metadata = json!({ name: "a" });
        for (path, body) in [
            ("/v1/responses", json!({ "model": "scripted", "input": "hello", "metadata": metadata })),
            (
                "/v1/responses",
                json!({ "model": "scripted", "input": "hello", "metadata": metadata, "previous_response_id": made["id"] }),
            ),
            (
                "/v1/chat/completions",
                json!({ "model": "scripted", "messages": [{ "role": "user", "content": "hello" }], "metadata": metadata }),
            ),
            ("/v1/conversations", json!({ "metadata": metadata })),
            (path.as_str(), json!({ "metadata": metadata })),
        ] {
            let refusal = (400, "INVALID_REQUEST".to_owned(), format!("metadata.{name}"));
            assert_eq!(server.refused(path, &body).await, refusal, "{path}");
        }
    }
    // Memory takes in what a user says, and nothing of a request without one.
    for (user, is_indexed) in [(Some("anna"), true), (None, false)] {
        let made = server.respond(json!({ "model": "scripted", "input": "@say One.", "user": user })).await;
        let session = made["id"].as_str().unwrap().split('_').nth(1).unwrap().parse().unwrap();
        let view = server.service.read(&session).await.unwrap();
        let SessionMemory { index, .. } = view.memory;
        assert_eq!((index, view.labels.get("project").map(String::as_str)), (is_indexed, user));
    }
    // Other metadata of a conversation takes none of these labels away.
    assert_eq!(server.send("POST", &path, &json!({ "metadata": { "a": "b" } })).await.0, 200);
    assert_eq!(server.send("GET", &path, &Value::Null).await.1["metadata"], json!({ "a": "b" }));
}

#[tokio::test]
async fn a_response_that_is_continued_is_not_deleted() {
    let server = Server::start();
    for _ in 0..20 {
        let made = server.respond(json!({ "model": "scripted", "input": "@say One." })).await;
        let path = format!("/v1/responses/{}", made["id"].as_str().unwrap());
        let next = json!({ "model": "scripted", "input": "@say Two.", "previous_response_id": made["id"] });
        let ((deleted, _), (continued, next)) =
            tokio::join!(server.send("DELETE", &path, &Value::Null), server.send("POST", "/v1/responses", &next));
        assert!(matches!((deleted, continued), (200, 404) | (400, 200)), "{deleted} {continued} {next}");
        if continued == 200 {
            assert_eq!(text_of(&next), "Two.");
            let path = format!("/v1/responses/{}", next["id"].as_str().unwrap());
            assert_eq!(server.send("GET", &path, &Value::Null).await, (200, next));
        }
    }
}

#[tokio::test]
async fn outputs_are_taken_all_or_none() {
    let server = Server::start();
    let input = r#"@call weather {"city":"Rome"} @call weather {"city":"Oslo"} @step @call weather {"city":"Bonn"} @echo results"#;
    let asked = server.respond(json!({ "model": "scripted", "input": input, "tools": [weather()] })).await;
    let output = |call: &Value, text: &str| json!({ "type": "function_call_output", "call_id": call, "output": text });
    let [first, second] = [&asked["output"][0]["call_id"], &asked["output"][1]["call_id"]];
    let foreign = json!(first.as_str().unwrap().rsplit_once('_').map(|(id, _)| format!("{id}_77")));
    let answer = |outputs: Value| json!({ "model": "scripted", "previous_response_id": asked["id"], "input": outputs });
    let refusal = (400, "INVALID_REQUEST".to_owned(), "input".to_owned());
    for outputs in [
        json!([output(first, "a")]),
        json!([output(first, "a"), output(second, "b"), output(&foreign, "c")]),
        json!([output(first, "a"), output(second, "b"), output(first, "c")]),
        json!([{ "role": "user", "content": "hello" }, output(first, "a"), output(second, "b")]),
    ] {
        assert_eq!(server.refused("/v1/responses", &answer(outputs)).await, refusal);
    }
    let session = asked["id"].as_str().unwrap().split('_').nth(1).unwrap().parse().unwrap();
    assert_eq!(server.service.calls(&session).await.unwrap().items.len(), 2, "nothing was answered");
    // Two that answer otherwise at the same time: the outputs of one of them count.
    let [one, two] = ["one", "two"].map(|text| answer(json!([output(first, text), output(second, text)])));
    let (one, two) =
        tokio::join!(server.send("POST", "/v1/responses", &one), server.send("POST", "/v1/responses", &two),);
    let statuses = [one.0, two.0];
    assert!(statuses == [200, 409] || statuses == [409, 200], "{statuses:?}");
    let (counted, next) = if one.0 == 200 { ("one", one.1) } else { ("two", two.1) };
    // Those of an older step are not sent beside those that wait.
    let last = &next["output"][0]["call_id"];
    let both = json!([output(first, counted), output(last, "c")]);
    assert_eq!(server.refused("/v1/responses", &answer(both)).await, refusal);
    let done = server
        .respond(json!({ "model": "scripted", "previous_response_id": next["id"], "input": [output(last, "c")] }))
        .await;
    let said = text_of(&done);
    assert!(said.matches("one").count() == 2 || said.matches("two").count() == 2, "{said}");
}

#[tokio::test]
async fn a_chat_that_nothing_goes_on_with_ends() {
    let server = Server::waiting(meerkat_testkit::folder(), std::time::Duration::ZERO);
    let mut function = weather();
    function.as_object_mut().unwrap().remove("type");
    let chat = json!({
        "model": "scripted", "tools": [{ "type": "function", "function": function }],
        "messages": [{ "role": "user", "content": r#"@call weather {"city":"Rome"} @say The model was asked again."# }],
    });
    let (_, asked) = server.send("POST", "/v1/chat/completions", &chat).await;
    assert_eq!(asked["choices"][0]["finish_reason"], "tool_calls");
    let session = asked["id"].as_str().unwrap().strip_prefix("chatcmpl-").unwrap();
    let session = session.rsplit_once('_').unwrap().0.parse().unwrap();
    let (mut since, mut ends) = (0, Vec::new());
    while ends.is_empty() {
        let read = ReadEvents { wait_ms: 60_000, ..ReadEvents::new(session, since) };
        let page = server.passing.events(read).await.unwrap();
        assert!(page.next_seq > since, "it goes on waiting");
        since = page.next_seq;
        for line in &page.items {
            match decode_event(std::str::from_utf8(line).unwrap()).unwrap().event {
                Event::AssistantMessage(message) => assert_eq!(message.step, 0, "no model was asked for nothing"),
                Event::TurnInterrupted(_) => ends.push("interrupted"),
                Event::TurnCompleted(_) | Event::TurnFailed(_) => ends.push("ended"),
                _ => {}
            }
        }
    }
    assert_eq!(ends, ["interrupted"]);
}
