//! The client against a server of this process, over TCP and over an owner's socket: answers, refusals, and servers that
//! end, are silent or take less than others.

#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{SinkExt as _, StreamExt as _};

use meerkat_client::{Client, Place};
use meerkat_serve::{Limits, ServeOptions, Server, Token, owner::Owner};
use meerkat_service::{
    AgentBuildConfig, ErrorBody, ErrorCode, Operation, SessionService,
    service::{
        AnswerCall, AnsweredCall, CallContent, CallOutcome, CreateSession, ForgetMemory, InterruptTurn, OpenCall,
        PinFact, ReadEvents, StartTurn, TurnStatus,
    },
    session::message::RawJson,
    wire::call,
};
use meerkat_testkit::{refusing_address, until_asked};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    process::Command,
    task::JoinHandle,
};
use tokio_tungstenite::{WebSocketStream, accept_async, tungstenite::Message};
use tokio_util::sync::CancellationToken;

const TOKEN: &str = "a-token-for-tests-0123456789";

/// A server over a service, and what ends it.
struct Stage {
    url: String,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

fn service() -> Arc<dyn SessionService> {
    AgentBuildConfig::new().build().unwrap().service().clone()
}

impl Stage {
    async fn new(service: Arc<dyn SessionService>, port: u16) -> Self {
        Self::with(service, port, Limits::default()).await
    }

    async fn with(service: Arc<dyn SessionService>, port: u16, limits: Limits) -> Self {
        let token = Token::new(TOKEN.to_owned()).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let options = ServeOptions { has_rpc: true, limits, ..ServeOptions::new(address, Some(token)) };
        let server = Server::listen(service, options).await.unwrap();
        let (url, stop) = (server.url().to_owned(), CancellationToken::new());
        let serving = tokio::spawn(server.serve_until(stop.clone().cancelled_owned()));
        Self { url, stop, serving }
    }

    async fn end(self) {
        self.stop.cancel();
        self.serving.await.unwrap();
    }
}

/// A listener for a server that is played by the test, and its URL.
async fn played() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (listener, url)
}

/// The next request of a played server's client.
async fn asked(socket: &mut WebSocketStream<TcpStream>) -> Option<Value> {
    while let Some(Ok(message)) = socket.next().await {
        if let Message::Text(text) = message {
            return Some(serde_json::from_str(&text).unwrap());
        }
    }
    None
}

async fn answer(socket: &mut WebSocketStream<TcpStream>, id: &Value, member: &str, value: Value) {
    let answer = json!({ "jsonrpc": "2.0", "id": id, member: value });
    socket.send(Message::text(answer.to_string())).await.unwrap();
}

async fn refusal(url: &str, token: &str) -> (ErrorCode, String) {
    let body = Client::connect(url, token).await.unwrap_err().body();
    (body.code, body.message)
}

#[tokio::test]
async fn a_session_over_the_network_is_the_servers() {
    let service = service();
    let stage = Stage::new(service.clone(), 0).await;
    let client = Client::connect(&stage.url, TOKEN).await.unwrap();
    assert_eq!(client.capabilities(), service.capabilities());
    // It waits two seconds for the answer.
    until_asked("it is ready", async || client.check_ready().await.unwrap()).await;
    let id = client.create_session(CreateSession::default()).await.unwrap().session_id;
    let mut follower = client.follow(&id, 0).await.unwrap();
    let result = client.start_turn(StartTurn::new(id, "@say Hello.")).await.unwrap();
    assert_eq!(result.text, "Hello.");
    let begun = client.begin_turn(StartTurn::new(id, "@say Again.")).await.unwrap();
    let result = begun.result.await.unwrap();
    assert_eq!((result.turn, result.text.as_str()), (begun.accepted.turn, "Again."));
    let mut own = service.follow(&id, 0).await.unwrap();
    while follower.cursor() < result.seq {
        let line = follower.next().await.unwrap().unwrap();
        if line.seq.is_some() {
            while let Some(known) = own.next().await.unwrap() {
                if known.seq.is_some() {
                    assert_eq!(line, known);
                    break;
                }
            }
        }
    }
    let refused = client.pin(PinFact { session_id: id, text: String::new() }).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::InvalidRequest);
    stage.end().await;
}

/// What a program has not set is no setting of its configuration: the client says the server's reason, before it asks.
#[tokio::test]
async fn a_missing_capability_has_the_servers_reason() {
    let service = service();
    let stage = Stage::new(service.clone(), 0).await;
    let client = Client::connect(&stage.url, TOKEN).await.unwrap();
    for operation in [Operation::List, Operation::SearchMemory] {
        let due = call(service.as_ref(), operation, "{}").await.unwrap_err().body();
        assert_eq!(due.details["reason"], "not_set");
        assert_eq!(call(&client, operation, "{}").await.unwrap_err().body(), due);
    }
    stage.end().await;
}

/// A model wrote its arguments, and the same request without a client must be the same one.
#[tokio::test]
async fn a_history_comes_to_the_server_as_it_was_written() {
    let service = service();
    let stage = Stage::new(service.clone(), 0).await;
    let client = Client::connect(&stage.url, TOKEN).await.unwrap();
    let arguments = r#"{"n":1.50,"n":12345678901234567890123}"#;
    let call = format!(r#"{{"type":"tool_call","call_id":"a","name":"f","arguments":{arguments}}}"#);
    let result = r#"{"role":"tool_results","results":[{"call_id":"a","content":"b"}]}"#;
    let history = format!(r#"[{{"role":"user","content":"a"}},{{"role":"assistant","blocks":[{call}]}},{result}]"#);
    let history = serde_json::from_str(&history).unwrap();
    let idempotency_key = Some("k".to_owned());
    let request = CreateSession { history, idempotency_key, ..CreateSession::default() };
    let made = client.create_session(request.clone()).await.unwrap();
    assert_eq!(service.create_session(request).await.unwrap(), made);
    let mut follower = service.follow(&made.session_id, 2).await.unwrap();
    let followed = follower.next().await.unwrap().unwrap();
    let line = std::str::from_utf8(&followed.line).unwrap();
    assert!(line.contains(&format!(r#""arguments":{arguments}"#)), "{line}");
    stage.end().await;
}

#[tokio::test]
async fn a_wrong_token_and_a_wrong_url_are_told_apart() {
    let stage = Stage::new(service(), 0).await;
    let (code, message) = refusal(&stage.url, "a-wrong-token-0123456789").await;
    assert_eq!(code, ErrorCode::Unauthenticated, "{message}");
    let (code, message) = refusal(&format!("{}/elsewhere", stage.url), TOKEN).await;
    assert_eq!(code, ErrorCode::UnknownOperation, "{message}");
    for url in ["", "127.0.0.1", "ftp://127.0.0.1", "https://desk.example"] {
        assert_eq!(refusal(url, TOKEN).await.0, ErrorCode::InvalidRequest, "{url}");
    }
    // Everybody on the way could read the token.
    for url in ["http://desk.example:7670", "http://192.0.2.1", "http://[2001:db8::1]:7670", "http://127.0.0.1.example"]
    {
        let (code, message) = refusal(url, TOKEN).await;
        assert!(code == ErrorCode::InvalidRequest && message.contains("tunnel"), "{url}: {message}");
    }
    // This address is no loopback address, though it leads to this machine. The server hears of it, and has no such name.
    let other = stage.url.replace("127.0.0.1", "0.0.0.0");
    assert_eq!(refusal(&other, TOKEN).await.0, ErrorCode::InvalidRequest);
    let unencrypted = Client::connect_unencrypted(&other, TOKEN).await.unwrap_err();
    assert_eq!(unencrypted.code(), ErrorCode::ForbiddenOrigin);
    let local = stage.url.replace("127.0.0.1", "localhost");
    assert!(Client::connect(&local, TOKEN).await.is_ok(), "{local}");
    assert_eq!(refusal(&stage.url, "two\nlines").await.0, ErrorCode::InvalidRequest);
    let url = format!("http://{}", refusing_address());
    let (code, message) = refusal(&url, TOKEN).await;
    assert!(code == ErrorCode::ShuttingDown && message.contains(&url), "{message}");
    stage.end().await;
}

#[tokio::test]
async fn a_server_that_goes_away_is_named_and_one_that_comes_back_is_found() {
    let first = service();
    let port = refusing_address().port();
    let stage = Stage::new(first.clone(), port).await;
    let url = stage.url.clone();
    let client = Client::connect(&url, TOKEN).await.unwrap();
    let id = client.create_session(CreateSession::default()).await.unwrap().session_id;
    let mut follower = client.follow(&id, 0).await.unwrap();
    assert_eq!(follower.next().await.unwrap().unwrap().seq, Some(1));
    stage.end().await;
    let gone = client.queue(&id).await.unwrap_err().body();
    assert!(gone.code == ErrorCode::ShuttingDown && gone.message.contains(&url), "{gone:?}");

    let stage = Stage::new(service(), port).await;
    assert!(client.create_session(CreateSession::default()).await.is_ok());
    // The new server knows nothing of the session that was followed.
    assert_eq!(follower.next().await.unwrap(), None);
    stage.end().await;
}

#[tokio::test]
async fn an_owners_socket_needs_no_token() {
    let (dir, service) = (meerkat_testkit::folder(), service());
    assert_eq!(Client::attach(dir.path().to_owned()).await.unwrap_err().code(), ErrorCode::ShuttingDown);
    let bound = Place::new(dir.path().to_owned()).bind().unwrap();
    let owner = Owner::start(bound, service.clone(), Arc::new(|_| Ok(())));
    let client = Client::attach(dir.path().to_owned()).await.unwrap();
    let id = client.create_session(CreateSession::default()).await.unwrap().session_id;
    assert_eq!(client.start_turn(StartTurn::new(id, "@say Hello.")).await.unwrap().text, "Hello.");
    owner.end().await;
    assert!(!dir.path().join("socket").exists());
}

#[tokio::test]
async fn the_example_runs_a_turn() {
    let stage = Stage::new(service(), 0).await;
    let here = std::env::current_exe().unwrap();
    let program = here.parent().unwrap().parent().unwrap().join("examples").join("client");
    let output = Command::new(program).args([&stage.url, TOKEN, "@say Hello."]).output().await.unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains(r#""type":"turn_completed""#) && said.ends_with("Hello.\n"), "{said}");
    assert_eq!(std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples")).unwrap().count(), 1);
    stage.end().await;
}

/// Connecting to a port that accepts and says nothing once took for ever.
#[tokio::test(start_paused = true)]
async fn a_server_that_says_nothing_is_unreachable() {
    let (_listener, url) = played().await;
    let (code, message) = refusal(&url, TOKEN).await;
    assert_eq!(code, ErrorCode::ShuttingDown);
    assert!(message.contains(&url) && message.contains("does not answer"), "{message}");
}

/// It once closed the connection, with everything else that was asked over it.
#[tokio::test]
async fn a_message_that_is_too_long_for_the_server_is_refused_alone() {
    let stage = Stage::with(service(), 0, Limits { body_bytes: 4000, ..Limits::default() }).await;
    let client = Client::connect(&stage.url, TOKEN).await.unwrap();
    let id = client.create_session(CreateSession::default()).await.unwrap().session_id;
    let mut follower = client.follow(&id, 1).await.unwrap();
    let running = tokio::spawn({
        let client = client.clone();
        async move { client.start_turn(StartTurn::new(id, "@stall")).await }
    });
    assert_eq!(follower.next().await.unwrap().unwrap().seq, Some(2));
    for bytes in [4001, 5000] {
        let refused = client.pin(PinFact { session_id: id, text: "x".repeat(bytes) }).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::PayloadTooLarge, "{refused}");
    }
    client.interrupt(InterruptTurn { session_id: id, turn: None }).await.unwrap();
    assert_eq!(running.await.unwrap().unwrap().status, TurnStatus::Interrupted);
    assert!(follower.next().await.unwrap().is_some());
    stage.end().await;
}

/// The connection is closed then. A turn with a key was once sent eight times, and another request had an unknown outcome.
#[tokio::test]
async fn a_message_that_is_far_too_long_is_refused_and_sent_once() {
    let stage = Stage::with(service(), 0, Limits { body_bytes: 4000, ..Limits::default() }).await;
    let client = Client::connect(&stage.url, TOKEN).await.unwrap();
    let id = client.create_session(CreateSession::default()).await.unwrap().session_id;
    let other = Client::connect(&stage.url, TOKEN).await.unwrap();
    let text = "x".repeat(9000);
    let turn = StartTurn { idempotency_key: Some("a-key".to_owned()), ..StartTurn::new(id, text.clone()) };
    let turn = client.start_turn(turn).await.map(drop);
    let pin = other.pin(PinFact { session_id: id, text: text.clone() }).await.map(drop);
    let again = client.pin(PinFact { session_id: id, text }).await.map(drop);
    for refused in [turn, pin, again].map(Result::unwrap_err) {
        assert_eq!(refused.code(), ErrorCode::PayloadTooLarge, "{refused}");
        assert_eq!(refused.body().details["limit"], 4000);
    }
    client.pin(PinFact { session_id: id, text: "It fits.".to_owned() }).await.unwrap();
    stage.end().await;
}

/// Past the server's number of subscriptions, the turns that were begun could not be waited for.
#[tokio::test]
async fn any_number_of_turns_is_waited_for_over_one_connection() {
    let service = service();
    let stage = Stage::new(service.clone(), 0).await;
    let client = Client::connect(&stage.url, TOKEN).await.unwrap();
    let (mut sessions, mut results) = (Vec::new(), Vec::new());
    for _ in 0..70 {
        let id = client.create_session(CreateSession::default()).await.unwrap().session_id;
        let begun = client.begin_turn(StartTurn::new(id, "@stall")).await.unwrap();
        sessions.push(id);
        results.push(tokio::spawn(begun.result));
    }
    for session_id in sessions {
        service.interrupt(InterruptTurn { session_id, turn: None }).await.unwrap();
    }
    for result in results {
        assert_eq!(result.await.unwrap().unwrap().status, TurnStatus::Interrupted);
    }
    stage.end().await;
}

/// A server that ends keeps the queue, so a turn that waited in it runs after its next start.
#[tokio::test]
async fn a_turn_that_may_be_queued_already_is_not_begun_again() {
    let service = service();
    let id = service.create_session(CreateSession::default()).await.unwrap().session_id;
    let (listener, url) = played().await;
    let (view, begun) = (json!(service.capabilities().view()), Arc::new(AtomicUsize::new(0)));
    let counted = begun.clone();
    let ending = tokio::spawn(async move {
        loop {
            let mut socket = accept_async(listener.accept().await.unwrap().0).await.unwrap();
            while let Some(request) = asked(&mut socket).await {
                if request["method"] != "turn/start" {
                    answer(&mut socket, &request["id"], "result", view.clone()).await;
                    continue;
                }
                counted.fetch_add(1, Ordering::Relaxed);
                let error = json!({ "code": -1, "message": "", "data": ErrorBody::new(ErrorCode::ShuttingDown) });
                answer(&mut socket, &request["id"], "error", error).await;
                break;
            }
        }
    });
    let client = Client::connect(&url, TOKEN).await.unwrap();
    let refused = client.start_turn(StartTurn::new(id, "@say Once.")).await.unwrap_err();
    assert_eq!((refused.code(), begun.load(Ordering::Relaxed)), (ErrorCode::ShuttingDown, 1));
    ending.abort();
}

/// A forgetting waits for its end too, but a server that refuses it has begun nothing.
#[tokio::test]
async fn a_forgetting_that_an_ending_server_refuses_is_asked_of_the_next() {
    let service = service();
    let (listener, url) = played().await;
    let mut view = json!(service.capabilities().view());
    view["memory_store"] = true.into();
    let ending = tokio::spawn(async move {
        let mut is_first = true;
        loop {
            let mut socket = accept_async(listener.accept().await.unwrap().0).await.unwrap();
            while let Some(request) = asked(&mut socket).await {
                if request["method"] != "memory/forget" {
                    answer(&mut socket, &request["id"], "result", view.clone()).await;
                } else if std::mem::take(&mut is_first) {
                    let error = json!({ "code": -1, "message": "", "data": ErrorBody::new(ErrorCode::ShuttingDown) });
                    answer(&mut socket, &request["id"], "error", error).await;
                    break;
                } else {
                    answer(&mut socket, &request["id"], "result", json!({ "forgotten": 1, "erased": true })).await;
                }
            }
        }
    });
    let client = Client::connect(&url, TOKEN).await.unwrap();
    let forgotten = client.forget_memory(ForgetMemory { wait: true, ..ForgetMemory::default() }).await.unwrap();
    assert_eq!((forgotten.forgotten, forgotten.erased), (1, true));
    ending.abort();
}

/// jsonrpsee's client drops lines that are not taken in time, and hands on those that come behind them.
#[tokio::test]
async fn a_line_behind_dropped_ones_is_not_handed_on() {
    let (view, (listener, url)) = (json!(service().capabilities().view()), played().await);
    let session_id = "01900000-0000-7000-8000-000000000001".parse().unwrap();
    let playing = tokio::spawn(async move {
        let mut socket = accept_async(listener.accept().await.unwrap().0).await.unwrap();
        let mut asked_for = Vec::new();
        while let Some(request) = asked(&mut socket).await {
            if request["method"] != "session/subscribe" {
                let result = if request["method"] == "session/unsubscribe" { json!(true) } else { view.clone() };
                answer(&mut socket, &request["id"], "result", result).await;
                continue;
            }
            let number = asked_for.len() + 1;
            asked_for.push(request["params"]["since_seq"].as_u64().unwrap());
            answer(&mut socket, &request["id"], "result", json!(number)).await;
            for seq in if number == 1 { [2, 4] } else { [3, 4] } {
                let line = json!({ "v": 1, "session_id": session_id, "seq": seq, "type": "pinned" });
                let params = json!({ "subscription": number, "result": line });
                let event = json!({ "jsonrpc": "2.0", "method": "session/event", "params": params });
                socket.send(Message::text(event.to_string())).await.unwrap();
            }
            if number == 2 {
                return asked_for;
            }
        }
        panic!("it was subscribed to once: {asked_for:?}");
    });
    let client = Client::connect(&url, TOKEN).await.unwrap();
    let mut follower = client.follow(&session_id, 1).await.unwrap();
    for expected in 2..5 {
        assert_eq!(follower.next().await.unwrap().unwrap().seq, Some(expected));
    }
    assert_eq!(playing.await.unwrap(), [1, 2]);
}

/// A caller may leave before it has the number that ends the subscription.
#[tokio::test]
async fn a_subscription_whose_caller_has_left_is_ended() {
    let (view, (listener, url)) = (json!(service().capabilities().view()), played().await);
    let session_id = "01900000-0000-7000-8000-000000000001".parse().unwrap();
    let connecting = tokio::spawn(async move { Client::connect(&url, TOKEN).await.unwrap() });
    let mut socket = accept_async(listener.accept().await.unwrap().0).await.unwrap();
    let capabilities = asked(&mut socket).await.unwrap();
    answer(&mut socket, &capabilities["id"], "result", view).await;
    let client = connecting.await.unwrap();
    let follower = client.clone();
    let following = tokio::spawn(async move { follower.follow(&session_id, 1).await.map(drop) });
    let subscribe = asked(&mut socket).await.unwrap();
    assert_eq!(subscribe["method"], "session/subscribe");
    following.abort();
    assert!(following.await.unwrap_err().is_cancelled());
    answer(&mut socket, &subscribe["id"], "result", json!(7)).await;
    let unsubscribe = tokio::time::timeout(Duration::from_secs(60), asked(&mut socket)).await;
    let unsubscribe = unsubscribe.expect("the subscription is not ended").unwrap();
    assert_eq!((&unsubscribe["method"], &unsubscribe["params"]), (&json!("session/unsubscribe"), &json!([7])));
    drop(client);
}

/// On its way nothing reads the JSON of a request, which would change its numbers.
#[tokio::test]
async fn json_reaches_a_server_as_it_was_written() {
    let service = service();
    let stage = Stage::new(service.clone(), 0).await;
    let client = Client::connect(&stage.url, TOKEN).await.unwrap();
    let tool = json!({ "name": "look", "description": "Looks.", "input_schema": { "type": "object" } });
    let client_tools = Some(vec![serde_json::from_value(tool).unwrap()]);
    let session = CreateSession { client_tools, ..CreateSession::default() };
    let id = client.create_session(session).await.unwrap().session_id;
    let turn = StartTurn::new(id, "@call look {} @call look {} @echo last_result");
    let waiting = client.start_turn(turn).await.unwrap();
    assert_eq!((waiting.status, waiting.calls.len()), (TurnStatus::Waiting, 2));
    let written = r#"{"price":1.10,"id":12345678901234567890123,"far":1e400,"id":1e2}"#;
    let answer = |call: usize, json: &str| AnswerCall {
        session_id: id,
        call_id: waiting.calls[call].call_id.clone(),
        outcome: CallOutcome::Succeeded,
        content: vec![CallContent::Json(RawJson::parse(json).unwrap())],
        wait: true,
    };
    let AnsweredCall::Turn(next) = client.answer_call(answer(0, written)).await.unwrap() else { panic!("it waits") };
    assert_eq!(next.calls, waiting.calls[1..]);
    let AnsweredCall::Turn(ended) = client.answer_call(answer(1, written)).await.unwrap() else { panic!("it waits") };
    assert_eq!(ended.text, format!("last_result: {written}"));
    // The same answer by another way.
    assert!(service.answer_call(answer(1, written)).await.is_ok());
    let refused = service.answer_call(answer(1, "{}")).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::IdempotencyConflict);
    stage.end().await;
}

/// The program that runs them ends in the middle of a call, and so does the server; the next program runs the call again.
#[tokio::test]
async fn a_program_answers_the_calls_of_a_session() {
    let dir = meerkat_testkit::folder();
    let service = || AgentBuildConfig::new().store(dir.path().to_owned()).build().unwrap().service().clone();
    let port = refusing_address().port();
    let stage = Stage::new(service(), port).await;
    let client = Client::connect(&stage.url, TOKEN).await.unwrap();
    let tool = |name: &str| {
        let tool = json!({ "name": name, "description": "Works.", "input_schema": { "type": "object" } });
        serde_json::from_value(tool).unwrap()
    };
    let session = CreateSession { client_tools: Some(vec![tool("look"), tool("fail")]), ..CreateSession::default() };
    let id = client.create_session(session).await.unwrap().session_id;
    let turn = StartTurn {
        wait: false,
        ..StartTurn::new(id, r#"@call look {"n":1} @call fail {} @step @call look {"n":2} @echo last_result"#)
    };
    let accepted = client.accept_turn(turn).await.unwrap();
    let (asked, mut asks) = tokio::sync::mpsc::unbounded_channel();
    let stuck = tokio::spawn({
        let client = client.clone();
        async move {
            let run = |call: OpenCall| {
                asked.send(call.name).unwrap();
                std::future::pending()
            };
            client.tools(id, run).await.map(drop)
        }
    });
    let mut begun = [asks.recv().await.unwrap(), asks.recv().await.unwrap()];
    begun.sort();
    assert_eq!(begun, ["fail", "look"], "they run together");
    stuck.abort();
    stage.end().await;

    let service = service();
    let stage = Stage::new(service.clone(), port).await;
    let run = |call: OpenCall| async move {
        match call.name.as_str() {
            "fail" => Err("It does not work.".to_owned()),
            _ => Ok(vec![CallContent::Json(call.arguments)]),
        }
    };
    let result = meerkat_service::follow::turn::result(&client, accepted);
    tokio::select! {
        failed = client.tools(id, run) => panic!("{failed:?}"),
        result = result => assert_eq!(result.unwrap().text, r#"last_result: {"n":2}"#),
    }
    let events = service.events(ReadEvents::new(id, 0)).await.unwrap().items;
    let events: Vec<Value> = events.iter().map(|line| serde_json::from_slice(line).unwrap()).collect();
    let answered: Vec<&Value> = events.iter().filter(|event| event["type"] == "tool_finished").collect();
    let outcomes: Vec<&Value> = answered.iter().map(|event| &event["outcome"]).collect();
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == "succeeded").count(), 2);
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == "failed").count(), 1);
    assert_eq!(events.iter().filter(|event| event["type"] == "call_answered").count(), 3);
    stage.end().await;
}
