//! Calls of the newest revision over HTTP, which has no sessions: the server asks by its answer, a stream that closes
//! cancels its request, and the head of an answer does not wait for its end.

use std::{sync::Arc, time::Duration};

use http_body_util::BodyExt as _;
use meerkat_service::{
    Agent, AgentBuildConfig,
    clock::SystemClock,
    options::Policy,
    service::{SessionCreated, StartTurn},
    tool::test_tools::test_tools,
};
use meerkat_surface_mcp::{HttpOptions, McpHttpService, StateKey, tools::Offer};
use rmcp::model::ProtocolVersion;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
};
use tokio_util::sync::CancellationToken;

use super::{
    HOLD, agent, build,
    framing::{Http, describe},
    http, lines, listen, soon,
    turns::{compact, compactable, release},
    type_of, types_until,
};

/// A call on a connection of its own, which ends when this is dropped.
struct Call(BufReader<TcpStream>);

impl Call {
    async fn begin(url: &str, capabilities: &Value, mut params: Value) -> Self {
        let address = url.trim_start_matches("http://").trim_end_matches("/mcp");
        describe(&mut params, capabilities);
        let name = params["name"].as_str().unwrap();
        let head = format!(
            "POST /mcp HTTP/1.1\r\nhost: {address}\r\nmcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\n\
             mcp-name: {name}\r\naccept: application/json, text/event-stream\r\ncontent-type: application/json\r\n"
        );
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string();
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes()).await.unwrap();
        Self(BufReader::new(stream))
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        let read = self.0.read_line(&mut line).await.unwrap();
        assert_ne!(read, 0, "the connection ended");
        line
    }

    /// Reads up to the end of the head.
    async fn head(&mut self) {
        soon(async { while self.line().await != "\r\n" {} }).await;
    }

    /// The next message. Comments keep the stream alive for ever, so they do not count.
    async fn message(&mut self) -> Value {
        let message = async {
            loop {
                let line = self.line().await;
                if let Some(message) = line.trim_start_matches("data: ").strip_prefix(r#"{"jsonrpc":"2.0","#) {
                    return serde_json::from_str(&format!("{{{message}")).unwrap();
                }
            }
        };
        soon(message).await
    }

    /// Reads up to an event of this type, which comes as progress.
    async fn progress_until(&mut self, kind: &str) {
        loop {
            let message = self.message().await;
            let line = message["params"]["_meta"]["meerkat/event"].as_str().unwrap_or_else(|| panic!("{message}"));
            if type_of(line) == kind {
                return;
            }
        }
    }
}

/// A client that shows forms.
fn forms() -> Value {
    json!({ "elicitation": { "form": {} } })
}

/// A call of `turn_start`.
fn turn(session: &SessionCreated, prompt: &str) -> Value {
    let arguments = json!({ "session_id": session.session_id, "prompt": prompt, "attended": true });
    json!({ "name": "turn_start", "arguments": arguments })
}

async fn call(url: &str, params: Value) -> Value {
    Call::begin(url, &forms(), params).await.message().await
}

/// The questions of an answer that asks.
fn asked(answer: &Value) -> Vec<(String, Value)> {
    let result = &answer["result"];
    assert_eq!(result["resultType"], "input_required", "{answer}");
    let questions = result["inputRequests"].as_object().unwrap().clone();
    questions.into_iter().collect()
}

/// The call again, with this response to each question.
fn again(mut params: Value, answer: &Value, response: &Value) -> Value {
    params["inputResponses"] = asked(answer).into_iter().map(|(key, _)| (key, response.clone())).collect();
    params["requestState"] = answer["result"]["requestState"].clone();
    params
}

fn approve() -> Value {
    json!({ "action": "accept", "content": { "decision": "approve" } })
}

/// The events of this type.
async fn events(agent: &Agent, session: &SessionCreated, kind: &str) -> Vec<Value> {
    let lines = lines(agent, session, 0).await;
    lines.iter().filter(|line| type_of(line) == kind).map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn a_person_is_asked_by_the_answer_and_the_repeated_call_is_of_the_same_turn() {
    let deny = json!({ "action": "accept", "content": { "decision": "deny", "reason": "too late" } });
    for (response, outcome, reason) in [
        (approve(), "succeeded", Value::Null),
        (deny, "not_run", "too late".into()),
        (json!({ "action": "decline" }), "not_run", Value::Null),
        (json!({ "action": "cancel" }), "not_run", Value::Null),
    ] {
        let agent = agent();
        let session = agent.create_session().await.unwrap();
        let url = listen(http(&agent)).await;
        let first = call(&url, turn(&session, HOLD)).await;
        let [(_, question)] = &asked(&first)[..] else { panic!("{first}") };
        assert_eq!(question["method"], "elicitation/create");
        assert_eq!(question["params"]["message"], "The tool hold waits for approval:\n{}");
        let schema = &question["params"]["requestedSchema"];
        assert_eq!(schema["properties"]["decision"]["enum"], json!(["approve", "deny"]), "{question}");
        assert_eq!(events(&agent, &session, "approval_decided").await, Vec::<Value>::new());

        let second = call(&url, again(turn(&session, HOLD), &first, &response)).await;
        let result = &second["result"];
        assert_eq!((&result["resultType"], &result["isError"]), (&json!("complete"), &json!(false)), "{second}");
        assert_eq!(result["structuredContent"]["text"], "Done.", "{second}");
        let decided = &events(&agent, &session, "approval_decided").await[..];
        assert_eq!((decided.len(), &decided[0]["reason"]), (1, &reason), "{response}");
        assert_eq!(events(&agent, &session, "tool_finished").await[0]["outcome"], outcome, "{response}");
        assert_eq!(events(&agent, &session, "turn_started").await.len(), 1);
    }
}

#[tokio::test]
async fn a_call_that_steers_asks_about_what_waits_already() {
    let agent = agent();
    let session = agent.create_session().await.unwrap();
    let waits = StartTurn { attended: true, ..StartTurn::new(session.session_id, HOLD) };
    agent.service().accept_turn(waits).await.unwrap();
    types_until(&agent, &session, &["approval_requested"]).await;
    let url = listen(http(&agent)).await;
    let mut steer = turn(&session, "@say Steered.");
    steer["arguments"]["policy"] = "steer".into();
    let first = call(&url, steer.clone()).await;
    assert_eq!(asked(&first).len(), 1, "{first}");
    let second = call(&url, again(steer, &first, &approve())).await;
    assert_eq!(second["result"]["structuredContent"]["text"], "Steered.", "{second}");
    assert_eq!(events(&agent, &session, "turn_steered").await.len(), 1);
}

/// Its progress goes on where the first call's ended.
#[tokio::test]
async fn calls_that_wait_at_once_are_asked_about_together_and_later_ones_in_the_next_round() {
    const PROMPT: &str = "@call hold {} @call hold {} @step @call hold {} @say Done.";
    let agent = agent();
    let session = agent.create_session().await.unwrap();
    let url = listen(http(&agent)).await;
    let mut params = turn(&session, PROMPT);
    params["_meta"]["progressToken"] = "t".into();
    let (mut rounds, mut seqs) = (Vec::new(), Vec::new());
    let mut next = params.clone();
    let text = loop {
        let mut call = Call::begin(&url, &forms(), next).await;
        let answer = loop {
            let message = call.message().await;
            match message["params"]["_meta"]["meerkat/event"].as_str() {
                Some(line) => seqs.extend(serde_json::from_str::<Value>(line).unwrap()["seq"].as_u64()),
                None => break message,
            }
        };
        if answer["result"]["resultType"] == "complete" {
            break answer["result"]["structuredContent"]["text"].clone();
        }
        rounds.push(asked(&answer).len());
        next = again(params.clone(), &answer, &approve());
    };
    assert_eq!((text, rounds.iter().sum::<usize>()), (json!("Done."), 3), "{rounds:?}");
    assert_eq!(rounds.last(), Some(&1), "the last call waits alone");
    let last = lines(&agent, &session, 0).await.len() as u64;
    assert_eq!(seqs, (2..=last).collect::<Vec<_>>(), "each event is shown once");
}

#[tokio::test]
async fn what_is_no_answer_is_asked_again() {
    let agent = agent();
    let session = agent.create_session().await.unwrap();
    let url = listen(http(&agent)).await;
    let first = call(&url, turn(&session, HOLD)).await;
    let mut answer = first.clone();
    for response in [
        json!({ "action": "accept", "content": { "decision": "perhaps" } }),
        json!({ "action": "accept", "content": [] }),
        json!({ "action": "perhaps" }),
        json!("yes"),
    ] {
        answer = call(&url, again(turn(&session, HOLD), &answer, &response)).await;
        assert_eq!(asked(&answer), asked(&first), "{response}");
    }
    // A response to something else, and none.
    for responses in [json!({ "somebody": approve() }), json!({}), Value::Null] {
        let mut params = again(turn(&session, HOLD), &answer, &approve());
        params["inputResponses"] = responses;
        answer = call(&url, params).await;
        assert_eq!(asked(&answer), asked(&first));
    }
    assert_eq!(events(&agent, &session, "approval_decided").await.len(), 0);
    let done = call(&url, again(turn(&session, HOLD), &answer, &approve())).await;
    assert_eq!(done["result"]["structuredContent"]["text"], "Done.", "{done}");
    assert_eq!(events(&agent, &session, "turn_started").await.len(), 1);
}

/// A state is of its server's key, its tool and its arguments.
#[tokio::test]
async fn a_state_that_was_not_given_for_this_call_is_refused_and_does_nothing() {
    let dir = meerkat_testkit::folder();
    let agent = build().store(dir.path().to_owned()).build().unwrap();
    let session = agent.create_session().await.unwrap();
    let other = agent.create_session().await.unwrap();
    let with_key = |key: &str| {
        let options = HttpOptions { state_key: StateKey::of(key), offer: Offer::ALL, ..HttpOptions::default() };
        McpHttpService::new(agent.service().clone(), options)
    };
    let url = listen(with_key("a secret of this server")).await;
    let first = call(&url, turn(&session, HOLD)).await;
    let genuine = again(turn(&session, HOLD), &first, &approve());
    let with_state = |state: &str| {
        let mut params = genuine.clone();
        params["requestState"] = state.into();
        params
    };
    let mut resumed = genuine.clone();
    resumed["name"] = "session_resume".into();
    let mut listed = genuine.clone();
    listed["name"] = "session_list".into();
    let mut elsewhere = genuine.clone();
    elsewhere["arguments"]["session_id"] = json!(other.session_id);
    let mut reworded = genuine.clone();
    reworded["arguments"]["prompt"] = "@say Something else.".into();
    let mut stateless = genuine.clone();
    stateless.as_object_mut().unwrap().remove("requestState");
    let state = genuine["requestState"].as_str().unwrap();
    let changed: String = state.chars().rev().enumerate().map(|(at, it)| if at == 60 { 'A' } else { it }).collect();
    let changed: String = changed.chars().rev().collect();
    assert_ne!(changed, state);
    let refused =
        [resumed, listed, elsewhere, reworded, stateless, with_state(&changed), with_state(""), with_state("x")];
    let refuse = async |url: &str, params: Value| {
        let answer = call(url, params.clone()).await;
        let error = &answer["error"];
        assert_eq!((&error["code"], &error["data"]["code"]), (&json!(-32602), &json!("INVALID_REQUEST")), "{answer}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("requestState") && message.contains("session_events"), "{message}");
    };
    for params in refused {
        refuse(&url, params).await;
    }
    for key in [StateKey::default(), StateKey::of("a secret of another server")] {
        let options = HttpOptions { state_key: key, offer: Offer::ALL, ..HttpOptions::default() };
        refuse(&listen(McpHttpService::new(agent.service().clone(), options)).await, genuine.clone()).await;
    }
    for session in [&session, &other] {
        assert_eq!(events(&agent, session, "approval_decided").await.len(), 0);
    }
    assert_eq!(events(&agent, &other, "turn_started").await.len(), 0);
    assert_eq!(events(&agent, &session, "turn_started").await.len(), 1);
    // Another server with the same key goes on; the order of the arguments' members does not matter.
    let mut reordered = genuine;
    let members = reordered["arguments"].as_object().unwrap().clone();
    reordered["arguments"] = members.into_iter().rev().collect();
    let done = call(&listen(with_key("a secret of this server")).await, reordered).await;
    assert_eq!(done["result"]["structuredContent"]["text"], "Done.", "{done}");
}

#[tokio::test]
async fn a_question_is_decided_once_by_whoever_is_first() {
    let deny = json!({ "action": "decline" });
    for is_elsewhere in [true, false] {
        let agent = agent();
        let session = agent.create_session().await.unwrap();
        let url = listen(http(&agent)).await;
        let first = call(&url, turn(&session, HOLD)).await;
        match is_elsewhere {
            true => drop(release(&agent, &session).await),
            false => drop(call(&url, again(turn(&session, HOLD), &first, &approve())).await),
        }
        let late = call(&url, again(turn(&session, HOLD), &first, &deny)).await;
        assert_eq!(late["result"]["structuredContent"]["text"], "Done.", "{late}");
        let decided = events(&agent, &session, "approval_decided").await;
        assert_eq!((decided.len(), &decided[0]["decision"]), (1, &json!("approve")));
        assert_eq!(events(&agent, &session, "turn_started").await.len(), 1);
    }
}

/// The client's person sees the server's own form, and the server gets the answer.
#[tokio::test]
async fn a_question_of_a_server_is_passed_on() {
    const PROMPT: &str = r#"@call test_form {"message":"Who are you?"} @echo last_result"#;
    for (response, expected) in [
        (json!({ "action": "accept", "content": { "name": "Ann" } }), r#"accepted {"count":3,"name":"Ann"}"#),
        (json!({ "action": "decline" }), "declined"),
        (json!({ "action": "cancel" }), "declined"),
    ] {
        let folder = meerkat_testkit::folder();
        let tools = test_tools(folder.path().to_owned(), Arc::new(SystemClock::new()));
        let build = tools.into_iter().fold(AgentBuildConfig::new(), |build, tool| build.tool(tool));
        let agent = build.build().unwrap();
        let session = agent.create_session().await.unwrap();
        let url = listen(http(&agent)).await;
        let first = call(&url, turn(&session, PROMPT)).await;
        let [(_, question)] = &asked(&first)[..] else { panic!("{first}") };
        let message = question["params"]["message"].as_str().unwrap();
        assert!(message.starts_with("The tool server test asks this, and gets the answer"), "{message}");
        assert_eq!(question["params"]["requestedSchema"]["required"], json!(["name"]));
        // What does not fit the form is asked again.
        let wrong = json!({ "action": "accept", "content": { "name": 7 } });
        let second = call(&url, again(turn(&session, PROMPT), &first, &wrong)).await;
        assert_eq!(asked(&second), asked(&first));
        let done = call(&url, again(turn(&session, PROMPT), &second, &response)).await;
        assert_eq!(done["result"]["structuredContent"]["text"], format!("last_result: {expected}"), "{done}");
    }
}

/// Without forms the call waits until it is decided on another way.
#[tokio::test]
async fn a_client_that_shows_no_forms_is_not_asked() {
    for capabilities in [json!({}), json!({ "elicitation": { "url": {} } })] {
        let agent = agent();
        let session = agent.create_session().await.unwrap();
        let url = listen(http(&agent)).await;
        let mut call = Call::begin(&url, &capabilities, turn(&session, HOLD)).await;
        types_until(&agent, &session, &["approval_requested"]).await;
        assert_eq!(release(&agent, &session).await, "turn_completed");
        assert_eq!(call.message().await["result"]["structuredContent"]["text"], "Done.");
    }
}

/// Whether or not anything has been sent on it: before the head, between the lines, and in the repeated call.
#[tokio::test]
async fn a_stream_that_closes_cancels_its_request() {
    let agent = agent();
    let url = listen(http(&agent)).await;
    for has_progress in [true, false] {
        let session = agent.create_session().await.unwrap();
        let mut params = turn(&session, HOLD);
        if has_progress {
            params["_meta"]["progressToken"] = "t".into();
        }
        let mut call = Call::begin(&url, &json!({}), params).await;
        match has_progress {
            true => call.progress_until("approval_requested").await,
            false => drop(types_until(&agent, &session, &["approval_requested"]).await),
        }
        drop(call);
        types_until(&agent, &session, &["turn_interrupted"]).await;
    }
    let session = agent.create_session().await.unwrap();
    let mut call = Call::begin(&url, &json!({}), turn(&session, HOLD)).await;
    call.head().await;
    drop(call);
    types_until(&agent, &session, &["turn_interrupted"]).await;

    // The first call was answered, so its end is none of a request.
    let session = agent.create_session().await.unwrap();
    let params = turn(&session, "@call hold {} @step @stall");
    let mut call = Call::begin(&url, &forms(), params.clone()).await;
    let first = call.message().await;
    drop(call);
    let call = Call::begin(&url, &forms(), again(params, &first, &approve())).await;
    let before = types_until(&agent, &session, &["tool_finished", "turn_interrupted"]).await;
    assert_eq!(before.last().unwrap(), "tool_finished");
    drop(call);
    types_until(&agent, &session, &["turn_interrupted"]).await;
}

#[tokio::test]
async fn a_stream_that_closes_takes_a_turn_out_of_the_queue_and_ends_a_compaction() {
    let agent = agent();
    let url = listen(http(&agent)).await;
    let session = agent.create_session().await.unwrap();
    let held = StartTurn { policy: Policy::Queue, ..StartTurn::new(session.session_id, HOLD) };
    agent.service().accept_turn(held).await.unwrap();
    types_until(&agent, &session, &["approval_requested"]).await;
    let mut queued = turn(&session, "@say Never.");
    queued["arguments"]["policy"] = "queue".into();
    let call = Call::begin(&url, &json!({}), queued).await;
    types_until(&agent, &session, &["turn_queued"]).await;
    drop(call);
    types_until(&agent, &session, &["turn_dequeued"]).await;
    assert_eq!(release(&agent, &session).await, "turn_completed");

    let session = compactable(&agent).await;
    let params = json!({ "name": "session_compact", "arguments": compact(&session) });
    let call = Call::begin(&url, &json!({}), params).await;
    types_until(&agent, &session, &["compaction_started"]).await;
    drop(call);
    types_until(&agent, &session, &["compaction_failed"]).await;
}

/// The server closes its streams when it ends; its turns are not its clients' to lose.
#[tokio::test(start_paused = true)]
async fn a_server_that_ends_interrupts_nothing() {
    let agent = agent();
    let session = agent.create_session().await.unwrap();
    let shutdown = CancellationToken::new();
    let options = HttpOptions { shutdown: shutdown.clone(), ..HttpOptions::default() };
    let client =
        Http::open(McpHttpService::new(agent.service().clone(), options), &ProtocolVersion::V_2026_07_28).await;
    let mut params = turn(&session, HOLD);
    params["_meta"] = json!({ "progressToken": "t" });
    let answer = client.request("tools/call", params).await;
    types_until(&agent, &session, &["approval_requested"]).await;
    shutdown.cancel();
    answer.into_body().collect().await.unwrap();
    // Longer than the library waits before it cancels the requests of a client that left.
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(release(&agent, &session).await, "turn_completed");
}

/// Broken once: without a progress token, not even the head came before the turn's end.
#[tokio::test(start_paused = true)]
async fn the_head_of_an_answer_comes_soon_and_comments_keep_its_stream_alive() {
    let agent = agent();
    let session = agent.create_session().await.unwrap();
    let client = Http::open(http(&agent), &ProtocolVersion::V_2026_07_28).await;
    let began = tokio::time::Instant::now();
    let answer = soon(client.request("tools/call", turn(&session, HOLD))).await;
    assert!(began.elapsed() <= Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["content-type"]),
        (200, &"text/event-stream".parse().unwrap())
    );
    let mut body = answer.into_body();
    let mut last = tokio::time::Instant::now();
    for at in 0..4 {
        let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(frame.starts_with(b":") && frame.ends_with(b"\n\n"), "{frame:?}");
        let pause = last.elapsed();
        assert!(pause <= Duration::from_secs(15) && (at == 0 || pause >= Duration::from_secs(5)), "{pause:?}");
        last = tokio::time::Instant::now();
    }
    assert_eq!(release(&agent, &session).await, "turn_completed");
    let rest = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    let message = rest.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
    let message: Value = serde_json::from_str(message).unwrap();
    assert_eq!(message["result"]["structuredContent"]["text"], "Done.");
}

#[tokio::test(start_paused = true)]
async fn an_error_that_comes_soon_has_its_status() {
    let agent = agent();
    let client = Http::open(http(&agent), &ProtocolVersion::V_2026_07_28).await;
    assert_eq!(client.request("sessions/fly", json!({})).await.status(), 404);
    let answer = client.request("tools/call", json!({ "name": "fly", "arguments": {} })).await;
    assert!(super::framing::body_text(answer).await.contains("UNKNOWN_OPERATION"));
}
