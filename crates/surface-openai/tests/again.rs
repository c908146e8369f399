//! What is sent again, or of what a part is gone: half of the outputs, another agent's request, dropped records.

use meerkat_service::{
    SessionId,
    follow::turn::record_at,
    service::{AcknowledgeReader, AnswerCall, CompactJournal, NamedReader, Remind},
};
use serde_json::{Value, json};

use super::{Server, text_of, weather};

fn session_of(response: &Value) -> SessionId {
    response["id"].as_str().unwrap().split('_').nth(1).unwrap().parse().unwrap()
}

fn output(call: &Value, text: &str) -> Value {
    json!({ "type": "function_call_output", "call_id": call["call_id"], "output": text })
}

#[tokio::test]
async fn outputs_of_which_a_part_was_taken_are_sent_again() {
    let server = Server::start();
    let input = r#"@call weather {"city":"Rome"} @call weather {"city":"Oslo"} @echo results"#;
    let asked = server.respond(json!({ "model": "scripted", "input": input, "tools": [weather()] })).await;
    let [first, second] = [&asked["output"][0], &asked["output"][1]];
    let session = session_of(&asked);
    // The server ended between the two.
    let call = server.service.calls(&session).await.unwrap().items.remove(0).call_id;
    assert!(first["call_id"].as_str().unwrap().ends_with(call.strip_prefix("call_").unwrap()));
    let request = AnswerCall { wait: false, ..AnswerCall::text(session, call, "Sunny.") };
    server.service.answer_call(request).await.unwrap();
    let server = server.restarted().await;
    let answer = |outputs: Value| json!({ "model": "scripted", "previous_response_id": asked["id"], "input": outputs });
    let other = answer(json!([output(first, "Snow."), output(second, "Rain.")]));
    assert_eq!(server.refused("/v1/responses", &other).await.1, "IDEMPOTENCY_CONFLICT");
    assert_eq!(server.service.calls(&session).await.unwrap().items.len(), 1, "nothing was answered");
    let both = answer(json!([output(first, "Sunny."), output(second, "Rain.")]));
    let done = server.respond(both.clone()).await;
    let said = text_of(&done);
    assert!(said.contains("Sunny.") && said.contains("Rain."), "{said}");
    assert_eq!(server.respond(both).await["id"], done["id"]);
}

#[tokio::test]
async fn a_response_is_read_after_records_were_dropped() {
    let server = Server::start();
    let first = server.respond(json!({ "model": "scripted", "input": "@say One." })).await;
    let session_id = session_of(&first);
    let mut reminders = Vec::new();
    for text in ["a", "b", "c"] {
        let remind = Remind { session_id, kind: "git_status".parse().unwrap(), text: text.to_owned() };
        reminders.push(server.service.remind(remind).await.unwrap().seq);
    }
    let next = json!({ "model": "scripted", "input": "@say Two.", "previous_response_id": first["id"] });
    let next = server.respond(next).await;
    let reader = "one".to_owned();
    server.service.create_reader(NamedReader { reader: reader.clone() }).await.unwrap();
    let seq = server.service.read(&session_id).await.unwrap().last_seq;
    server.service.acknowledge_reader(AcknowledgeReader { reader, session_id, seq }).await.unwrap();
    let report = server.service.compact_journal(CompactJournal::new(session_id)).await.unwrap();
    assert!(report.dropped > 0, "{report:?}");
    assert_eq!(record_at(server.service.as_ref(), session_id, reminders[0]).await.unwrap(), None);
    for made in [first, next] {
        let path = format!("/v1/responses/{}", made["id"].as_str().unwrap());
        assert_eq!(server.send("GET", &path, &Value::Null).await, (200, made));
    }
}

/// The engine answers a call with wrong arguments, and the model tries again. The client sees one call.
#[tokio::test]
async fn a_call_that_is_answered_here_is_none_of_the_clients() {
    let server = Server::start();
    let input = r#"@call weather {"town":1} @step @call weather {"city":"Rome"} @echo last_result"#;
    let asked = server.respond(json!({ "model": "scripted", "input": input, "tools": [weather()] })).await;
    assert_eq!(asked["output"].as_array().unwrap().len(), 1, "{asked}");
    let call = &asked["output"][0];
    assert_eq!(call["arguments"], r#"{"city":"Rome"}"#);
    let next = json!({
        "model": "scripted", "previous_response_id": asked["id"], "input": [output(call, "Sunny.")],
    });
    assert_eq!(text_of(&server.respond(next).await), "last_result: Sunny.");
    let mut function = weather();
    function.as_object_mut().unwrap().remove("type");
    let chat = json!({
        "model": "scripted", "messages": [{ "role": "user", "content": input }],
        "tools": [{ "type": "function", "function": function }],
    });
    let (status, made) = server.send("POST", "/v1/chat/completions", &chat).await;
    assert_eq!(status, 200, "{made}");
    assert_eq!(made["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 1, "{made}");
    assert_eq!(made["choices"][0]["finish_reason"], "tool_calls");
}

/// A request with all that was said before is the turn's only with the turn's terms.
#[tokio::test]
async fn what_another_agent_asks_is_a_new_session() {
    let server = Server::start();
    let ask = json!({ "role": "user", "content": r#"@call weather {"city":"Rome"} @echo last_result"# });
    let base = json!({
        "model": "scripted", "input": [ask], "instructions": "Be brief.", "temperature": 0.5, "tools": [weather()],
    });
    let with = |field: &str, value: Value| {
        let mut body = base.clone();
        body[field] = value;
        body
    };
    let asked = server.respond(base.clone()).await;
    let call = &asked["output"][0];
    let said = json!([ask, call, output(call, "Sunny.")]);
    for (field, value) in [
        ("instructions", json!("Be long.")),
        ("temperature", json!(0.25)),
        ("tools", json!([])),
        ("text", json!({ "format": { "type": "json_schema", "name": "a", "schema": { "type": "object" } } })),
    ] {
        let mut other = with(field, value.clone());
        other["input"] = said.clone();
        let (status, made) = server.send("POST", "/v1/responses", &other).await;
        assert_eq!(status, 200, "{field}: {made}");
        assert_ne!(session_of(&made), session_of(&asked), "{field}");
    }
    // Without what was said before, or in its conversation, it cannot be another one's.
    let alone = json!({ "model": "scripted", "temperature": 0.25, "input": [output(call, "Sunny.")] });
    let refusal = (400, "INVALID_REQUEST".to_owned(), "temperature".to_owned());
    assert_eq!(server.refused("/v1/responses", &alone).await, refusal);
    assert_eq!(server.service.calls(&session_of(&asked)).await.unwrap().items.len(), 1, "nothing was answered");
    let done = server.respond(with("input", said)).await;
    assert_eq!((session_of(&done), text_of(&done).as_str()), (session_of(&asked), "last_result: Sunny."));
}

#[tokio::test]
async fn the_terms_of_a_turn_hold_in_its_conversation() {
    let server = Server::start();
    let (_, conversation) = server.send("POST", "/v1/conversations", &json!({})).await;
    let ask = json!({
        "model": "scripted", "conversation": conversation["id"], "temperature": 0.5, "tools": [weather()],
        "input": r#"@call weather {"city":"Rome"} @echo last_result"#,
    });
    let asked = server.respond(ask.clone()).await;
    let mut answer = ask;
    answer["input"] = json!([output(&asked["output"][0], "Sunny.")]);
    let mut other = answer.clone();
    other["temperature"] = json!(0.25);
    let refusal = (400, "INVALID_REQUEST".to_owned(), "temperature".to_owned());
    assert_eq!(server.refused("/v1/responses", &other).await, refusal);
    assert_eq!(text_of(&server.respond(answer).await), "last_result: Sunny.");
}

#[tokio::test]
async fn an_answer_is_sent_back_with_its_reasoning() {
    let server = Server::start();
    let ask = json!({
        "role": "user",
        "content": r#"@think Hm. @say Let me see. @call weather {"city":"Rome"} @echo last_result"#,
    });
    let body = |input: Value| json!({ "model": "scripted", "input": input, "tools": [weather()] });
    for is_named in [false, true] {
        let asked = server.respond(body(json!([ask]))).await;
        let items = asked["output"].as_array().unwrap();
        let kinds: Vec<&str> = items.iter().map(|item| item["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["reasoning", "message", "function_call"]);
        let named =
            |item: &Value| if is_named { json!({ "type": "item_reference", "id": item["id"] }) } else { item.clone() };
        let mut input = vec![ask.clone()];
        input.extend(items.iter().map(named));
        input.push(output(&items[2], "Sunny."));
        let done = server.respond(body(json!(input))).await;
        assert_eq!((session_of(&done), text_of(&done).as_str()), (session_of(&asked), "last_result: Sunny."));
        // An item that is only named is in no other session.
        if is_named {
            input.push(json!({ "role": "user", "content": "@say Two." }));
            let refusal = (400, "INVALID_REQUEST".to_owned(), "input[2].id".to_owned());
            assert_eq!(server.refused("/v1/responses", &body(json!(input))).await, refusal);
        }
    }
}

#[tokio::test]
async fn what_is_not_stored_is_asked_again_after_its_answer() {
    let server = Server::start();
    let call = r#"@call weather {"city":"Rome"} @echo last_result"#;
    let body = |input: Value| json!({ "model": "scripted", "store": false, "input": input, "tools": [weather()] });
    let ask = json!({ "role": "user", "content": call });
    let asked = server.respond(body(json!([ask]))).await;
    let session = session_of(&asked);
    assert_eq!(server.passing.calls(&session).await.unwrap().items.len(), 1);
    let call = &asked["output"][0];
    let again = body(json!([ask, call, output(call, "Sunny.")]));
    assert_eq!(text_of(&server.respond(again.clone()).await), "last_result: Sunny.");
    // Sent again, it is asked again, with the output as what was said.
    let repeated = server.respond(again).await;
    assert_ne!(session_of(&repeated), session);
}

/// However often it comes and at what time, a request with a key makes one response, also where that is in a fork.
#[tokio::test]
async fn a_key_that_comes_twice_at_once_makes_one_response() {
    let server = Server::start();
    let send = async |body: &Value, key: &str| {
        let (status, text) = server.text("POST", "/v1/responses", &[("idempotency-key", key)], &body.to_string()).await;
        (status, serde_json::from_str::<Value>(&text).unwrap()["id"].clone())
    };
    let first = server.respond(json!({ "model": "scripted", "input": "@say One." })).await;
    let next = json!({ "model": "scripted", "input": "@echo messages", "previous_response_id": first["id"] });
    let head = server.respond(next.clone()).await;
    assert_eq!(text_of(&head), "messages: 3");
    let new = json!({ "model": "scripted", "input": "@say New.", "tools": [weather()] });
    for body in [&new, &next] {
        let key = if body == &new { "a" } else { "b" };
        let (one, two) = tokio::join!(send(body, key), send(body, key));
        assert_eq!(one.0, 200);
        assert_eq!(one, two);
        assert_eq!(send(body, key).await, one);
    }
    let sessions = server.service.list(Default::default()).await.unwrap().items.len();
    assert_eq!(sessions, 3, "the first one, the new one and one fork");
}
