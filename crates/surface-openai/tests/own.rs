//! Whose sessions these are: only what was made over these protocols is reached by them, and nothing is done by halves.

use meerkat_service::{
    SessionId,
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
    let path = format!("/v1/responses/{}", made["id"].as_str().unwrap());
    assert_eq!(server.send("GET", &path, &Value::Null).await.0, 200);
    // Neither for a message nor for outputs.
    let input = r#"@call weather {"city":"Rome"} @echo last_result"#;
    let asked = server.respond(json!({ "model": "scripted", "input": input, "tools": [weather()] })).await;
    let conversation = format!("conv_{}", asked["id"].as_str().unwrap().split('_').nth(1).unwrap());
    let call = &asked["output"][0]["call_id"];
    let output = json!([{ "type": "function_call_output", "call_id": call, "output": "Sunny." }]);
    for input in [json!("@say Two."), output.clone()] {
        let body = json!({ "model": "scripted", "conversation": conversation, "input": input });
        let (status, answer) = server.send("POST", "/v1/responses", &body).await;
        assert_eq!((status, &answer["error"]["code"]), (404, &json!("SESSION_NOT_FOUND")), "{body}");
    }
    let body = json!({ "model": "scripted", "previous_response_id": asked["id"], "input": output });
    assert_eq!(text_of(&server.respond(body).await), "last_result: Sunny.");
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

/// The id of a call is random, but it may be seen by others: it does not open another user's session.
#[tokio::test]
async fn the_call_of_another_user_is_not_known() {
    let server = Server::start();
    let ask = json!({ "role": "user", "content": r#"@call weather {"city":"Rome"} @echo last_result"# });
    let other = json!({ "role": "user", "content": "Weather?" });
    let mut function = weather();
    function.as_object_mut().unwrap().remove("type");
    for (path, is_stored) in [("/v1/chat/completions", false), ("/v1/responses", false), ("/v1/responses", true)] {
        let is_chat = path.ends_with("completions");
        let body = |said: Value, user: Option<&str>| match is_chat {
            true => {
                let tools = json!([{ "type": "function", "function": function }]);
                json!({ "model": "scripted", "messages": said, "tools": tools, "user": user })
            }
            false => json!({
                "model": "scripted", "input": said, "tools": [weather()], "user": user, "store": is_stored,
            }),
        };
        let said = |answer: &Value| match is_chat {
            true => answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned(),
            false => text_of(answer),
        };
        let (status, asked) = server.send("POST", path, &body(json!([ask]), Some("ana"))).await;
        assert_eq!(status, 200, "{asked}");
        let (call, output) = match is_chat {
            true => {
                let message = asked["choices"][0]["message"].clone();
                let result =
                    json!({ "role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "Sunny." });
                (message, result)
            }
            false => {
                let call = asked["output"][0].clone();
                let output = json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "Sunny." });
                (call, output)
            }
        };
        for user in [Some("bob"), None] {
            let (status, answer) = server.send("POST", path, &body(json!([other, call, output]), user)).await;
            assert_eq!(status, 200, "{path} {user:?}: {answer}");
            assert!(said(&answer).contains("Go on"), "{path} {user:?}: {answer}");
            // Without the call there is no history that it could be a part of.
            let (status, answer) = server.send("POST", path, &body(json!([output]), user)).await;
            assert_eq!((status, &answer["error"]["code"]), (400, &json!("INVALID_REQUEST")), "{path} {user:?}");
        }
        let (_, done) = server.send("POST", path, &body(json!([ask, call, output]), Some("ana"))).await;
        assert_eq!(said(&done), "last_result: Sunny.", "{path}");
    }
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

/// Begins a chat whose call waits. Returns its session, and its messages with a result.
async fn open_chat(server: &Server) -> (SessionId, Value) {
    let mut function = weather();
    function.as_object_mut().unwrap().remove("type");
    let ask = json!({ "role": "user", "content": r#"@call weather {"city":"Rome"} @say The model was asked again."# });
    let mut chat = json!({
        "model": "scripted", "tools": [{ "type": "function", "function": function }], "messages": [ask],
    });
    let (_, asked) = server.send("POST", "/v1/chat/completions", &chat).await;
    assert_eq!(asked["choices"][0]["finish_reason"], "tool_calls", "{asked}");
    let session = asked["id"].as_str().unwrap().strip_prefix("chatcmpl-").unwrap();
    let message = asked["choices"][0]["message"].clone();
    let result = json!({ "role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "Sunny." });
    chat["messages"] = json!([ask, message, result]);
    (session.rsplit_once('_').unwrap().0.parse().unwrap(), chat)
}

/// Waits until the turn of a chat is interrupted.
async fn interrupted(server: &Server, session: SessionId) {
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

#[tokio::test]
async fn a_chat_that_nothing_goes_on_with_ends() {
    let server = Server::waiting(meerkat_testkit::folder(), std::time::Duration::ZERO);
    let (session, _) = open_chat(&server).await;
    interrupted(&server, session).await;
}

#[tokio::test]
async fn the_oldest_of_a_thousand_open_chats_makes_room() {
    let server = Server::start();
    let ((oldest, _), (next, answer)) = (open_chat(&server).await, open_chat(&server).await);
    // One that was answered needs no room.
    let (_, answered) = open_chat(&server).await;
    assert_eq!(server.send("POST", "/v1/chat/completions", &answered).await.0, 200);
    for _ in 2..1000 {
        open_chat(&server).await;
    }
    assert_eq!(server.passing.calls(&oldest).await.unwrap().items.len(), 1, "a thousand wait");
    open_chat(&server).await;
    interrupted(&server, oldest).await;
    assert_eq!(server.passing.calls(&next).await.unwrap().items.len(), 1, "one was enough");
    let (_, done) = server.send("POST", "/v1/chat/completions", &answer).await;
    assert_eq!(done["choices"][0]["message"]["content"], "The model was asked again.");
}
