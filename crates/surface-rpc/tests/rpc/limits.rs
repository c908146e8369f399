//! Limits of one caller, and the refusals beyond them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use jsonrpsee::server::HttpBody;
use meerkat_service::{
    AgentBuildConfig, ErrorBody, SessionService,
    clock::{Clock, SystemClock, Timestamp, World},
    memory::MemoryOptions,
    options::{ContextOptions, EngineOptions, EphemeralOptions, Overflow},
    service::{InterruptTurn, ReadEvents, StartTurn, TurnStatus},
    wire::Answers,
};
use meerkat_surface_rpc::{RpcOptions, RpcService, methods, service};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tower::Service as _;

use crate::{
    common::{self, Client, PIPE, connect, engine, listen, pipes, post, rpc, session, stdio},
    section_7::digest,
};

const TOO_LARGE: &str = "null: -32054 PAYLOAD_TOO_LARGE";

fn padded(id: u64, bytes: usize) -> String {
    let request = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"errors/list"}}"#);
    format!("{request}{}", " ".repeat(bytes - request.len()))
}

#[tokio::test]
async fn a_message_has_a_largest_size() {
    let rpc = service(engine(), RpcOptions { message_bytes: 1000, ..RpcOptions::default() });
    let lines = stdio(&rpc, [padded(1, 1001), padded(2, 100_000), padded(3, 1000)].join("\n").as_bytes()).await;
    let mut answers: Vec<_> = lines.iter().map(|line| digest(line)).collect();
    answers.sort_unstable();
    assert_eq!(answers, ["3: ok", TOO_LARGE, TOO_LARGE]);

    // On a WebSocket the parameters count, and their refusal names the request.
    let mut client = connect(&rpc).await;
    client.request(1, "session/pin", json!({ "text": "x".repeat(1000) })).await;
    assert_eq!(digest(&client.text().await.unwrap()), "1: -32054 PAYLOAD_TOO_LARGE");
    client.send(&padded(2, 1000)).await;
    assert_eq!(digest(&client.text().await.unwrap()), "2: ok");
    // A message that is twice too long is refused by the library.
    client.send(&padded(3, 3000)).await;
    assert_eq!(digest(&client.text().await.unwrap()), "null: -32007");

    let address = listen(rpc).await;
    assert_eq!(post(address, padded(1, 1000).as_bytes()).await.0, 200);
    let (status, body) = post(address, padded(1, 1001).as_bytes()).await;
    let body: ErrorBody = serde_json::from_str(&body).unwrap();
    assert_eq!((status, body.code.as_str()), (413, "PAYLOAD_TOO_LARGE"));
    assert_eq!(body.details["limit"], 1000);
}

#[tokio::test]
async fn a_connection_has_a_largest_number_of_subscriptions() {
    let engine = engine();
    let session = session(&engine).await;
    let mut client = pipes(&service(engine, RpcOptions { subscriptions: 1, ..RpcOptions::default() }), PIPE);
    let number = client.subscribe(&session, 1).await;
    client.request(2, "session/subscribe", json!({ "session_id": session })).await;
    assert_eq!(digest(&client.text().await.unwrap()), "2: -32055 TOO_MANY_CONNECTIONS");
    client.request(3, "session/unsubscribe", json!({ "subscription": number })).await;
    assert_eq!(digest(&client.text().await.unwrap()), "3: ok");
    // Its task gives the place back when it notices the end.
    for id in 4.. {
        client.request(id, "session/subscribe", json!({ "session_id": session, "since_seq": 1 })).await;
        if client.answer(id).await.1["result"].is_u64() {
            break;
        }
    }
}

/// With one request at a time the first answer comes first, else the quick one does.
#[tokio::test(start_paused = true)]
async fn stdio_answers_so_many_requests_at_a_time() {
    for (concurrent_requests, expected) in [(1, ["1: ok", "2: ok"]), (2, ["2: ok", "1: ok"])] {
        let engine = engine();
        let session = session(&engine).await;
        let rpc = service(engine, RpcOptions { concurrent_requests, ..RpcOptions::default() });
        let mut client = pipes(&rpc, PIPE);
        client.request(1, "session/events", json!({ "session_id": session, "since_seq": 1, "wait_ms": 1000 })).await;
        client.request(2, "errors/list", json!({})).await;
        let answers = [client.text().await.unwrap(), client.text().await.unwrap()];
        assert_eq!(answers.map(|answer| digest(&answer)), expected);
    }
}

/// Each once kept the place of its first read while it waited for one for its second.
#[tokio::test]
async fn batches_of_reads_do_not_wait_for_each_other() {
    let engine = engine();
    let params = json!({ "session_id": session(&engine).await });
    let mut client = connect(&service(engine, RpcOptions::default())).await;
    let read = |id: usize| json!({ "jsonrpc": "2.0", "id": id, "method": "session/pins", "params": params });
    for batch in 0..16 {
        client.send(&json!([read(2 * batch), read(2 * batch + 1)]).to_string()).await;
    }
    for _ in 0..16 {
        let answer = tokio::time::timeout(Duration::from_secs(60), client.text()).await;
        let answers: Vec<Value> = serde_json::from_str(&answer.expect("a batch is not answered").unwrap()).unwrap();
        assert!(answers.len() == 2 && answers.iter().all(|answer| answer["result"].is_object()), "{answers:?}");
    }
}

/// Otherwise a client that only sends could fill the memory: the library bounds no requests.
#[tokio::test]
async fn a_websocket_has_a_largest_number_of_requests() {
    let engine = engine();
    let session = session(&engine).await;
    let rpc = service(engine.clone(), RpcOptions { concurrent_requests: 1, ..RpcOptions::default() });
    let mut client = connect(&rpc).await;
    client.subscribe(&session, 1).await;
    client.request(2, "turn/start", json!({ "session_id": session, "prompt": "@stall" })).await;
    client.event("turn_started").await;
    client.request(3, "errors/list", json!({})).await;
    assert_eq!(digest(&client.answer(3).await.1.to_string()), "3: -32055 TOO_MANY_CONNECTIONS");
    engine.interrupt(InterruptTurn { session_id: session.parse().unwrap(), turn: None }).await.unwrap();
    assert_eq!(client.answer(2).await.1["result"]["status"], "interrupted");
    // The place is free again soon after the answer was handed on.
    for id in 4.. {
        client.request(id, "errors/list", json!({})).await;
        if client.answer(id).await.1["result"].is_object() {
            break;
        }
    }
}

/// A request to start a turn, whose parameters have so many bytes.
fn start(id: u64, session: &str, prompt: &str, bytes: usize) -> String {
    let params = json!({ "session_id": session, "prompt": prompt }).to_string();
    let params = params.replace(',', &format!(",{}", " ".repeat(bytes - params.len())));
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"turn/start","params":{params}}}"#)
}

async fn has_begun(engine: &Arc<dyn SessionService>, session: &str) {
    let request = ReadEvents { limit: Some(1), wait_ms: 60_000, ..ReadEvents::new(session.parse().unwrap(), 1) };
    assert_eq!(engine.events(request).await.unwrap().items.len(), 1, "its turn has begun");
}

/// A request is kept as long as its turn runs.
#[tokio::test]
async fn the_requests_of_a_connection_have_a_largest_number_of_bytes() {
    async fn check(engine: &Arc<dyn SessionService>, client: &mut impl Client) {
        let sessions = [session(engine).await, session(engine).await, session(engine).await, session(engine).await];
        for (id, session) in (1..).zip(&sessions) {
            client.send(&start(id, session, "@stall", 3940)).await;
            has_begun(engine, session).await;
        }
        let fifth = session(engine).await;
        client.send(&start(5, &fifth, "@say Done.", 3940)).await;
        let refusal = client.answer(5).await.1;
        assert_eq!(digest(&refusal.to_string()), "5: -32055 TOO_MANY_CONNECTIONS");
        assert_eq!(refusal["error"]["data"]["details"], json!({ "what": "request_bytes", "limit": 16_000 }));
        // A short one needs no room.
        client.request(6, "turn/interrupt", json!({ "session_id": sessions[0] })).await;
        assert!(client.answer(6).await.1["result"].is_object());
        // The bytes are free again soon after an answer was handed on.
        for id in 7.. {
            client.send(&start(id, &fifth, "@say Done.", 3940)).await;
            if client.answer(id).await.1["result"].is_object() {
                break;
            }
        }
        for session in &sessions[1..] {
            let session_id = session.parse().unwrap();
            engine.interrupt(InterruptTurn { session_id, turn: None }).await.unwrap();
        }
    }

    let engine = engine();
    let rpc = service(engine.clone(), RpcOptions { message_bytes: 4000, ..RpcOptions::default() });
    check(&engine, &mut connect(&rpc).await).await;
    check(&engine, &mut pipes(&rpc, PIPE)).await;
}

/// The library keeps a batch until all of it is answered.
#[tokio::test]
async fn a_batch_counts_with_all_its_bytes() {
    let engine = engine();
    let rpc = service(engine.clone(), RpcOptions { message_bytes: 4000, ..RpcOptions::default() });
    let mut client = connect(&rpc).await;
    let batch = |session: &str, prompt: &str, bytes| {
        format!("[{},{}]", start(1, session, prompt, bytes), start(2, session, prompt, bytes))
    };
    for _ in 0..2 {
        let session = session(&engine).await;
        client.send(&batch(&session, "@stall", 3900)).await;
        has_begun(&engine, &session).await;
    }
    client.send(&batch(&session(&engine).await, "@say Done.", 3900)).await;
    assert_eq!(digest(&client.text().await.unwrap()), "null: -32055 TOO_MANY_CONNECTIONS");
}

/// Asks over HTTP; nothing of the answer is taken yet.
async fn ask(rpc: &mut RpcService, body: String) -> Response<HttpBody> {
    let request = Request::post("/rpc").header("content-type", "application/json");
    rpc.call(request.body(Full::new(Bytes::from(body))).unwrap()).await.unwrap()
}

async fn taken(answer: Response<HttpBody>) -> String {
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    digest(std::str::from_utf8(&bytes).unwrap())
}

/// Answers that no client takes have one room together, for all connections.
#[tokio::test(start_paused = true)]
async fn answers_over_http_have_room_until_they_are_taken() {
    let engine = engine();
    let params = json!({ "session_id": session(&engine).await });
    let options = RpcOptions { answers: Answers::new(6 * 1024 * 1024), ..RpcOptions::default() };
    let mut rpc = service(engine, options);
    let read = json!({ "jsonrpc": "2.0", "id": 1, "method": "session/events", "params": params }).to_string();
    let first = ask(&mut rpc, read.clone()).await;
    assert_eq!(taken(ask(&mut rpc, read.clone()).await).await, "1: -32055 TOO_MANY_CONNECTIONS");
    assert_eq!(taken(first).await, "1: ok");
    assert_eq!(taken(ask(&mut rpc, read).await).await, "1: ok");
}

/// Each answer that is not sent once kept its room until the batch was answered.
#[tokio::test(start_paused = true)]
async fn a_batch_keeps_room_for_what_is_sent_alone() {
    let ephemeral = EphemeralOptions { session_event_bytes: 100_000_000, ..EphemeralOptions::default() };
    let context = ContextOptions { overflow: Overflow::Slide, ..ContextOptions::default() };
    let options = EngineOptions { ephemeral, context, ..EngineOptions::default() };
    let engine = AgentBuildConfig::new().options(options).build().unwrap().service().clone();
    let session_id = session(&engine).await;
    for _ in 0..30 {
        let turn = StartTurn::new(session_id.parse().unwrap(), format!("@say {}", "x".repeat(60_000)));
        assert_eq!(engine.start_turn(turn).await.unwrap().status, TurnStatus::Completed);
    }
    // One read has 3.6 million bytes, a batch 12 MiB, and a read begins with 6 MiB.
    let mut rpc = service(engine, RpcOptions { answers: Answers::new(18 * 1024 * 1024), ..RpcOptions::default() });
    let params = json!({ "session_id": session_id, "limit": 1000 });
    let read = |id| json!({ "jsonrpc": "2.0", "id": id, "method": "session/events", "params": params });
    let batch = json!([read(1), read(2), read(3), read(4), read(5), read(6)]).to_string();
    let batch = ask(&mut rpc, batch).await;
    // With its three answers there is room for one more read, and not for two.
    let fourth = ask(&mut rpc, read(7).to_string()).await;
    assert_eq!(taken(ask(&mut rpc, read(8).to_string()).await).await, "8: -32055 TOO_MANY_CONNECTIONS");
    let too_long = "4: -32054 PAYLOAD_TOO_LARGE, 5: -32054 PAYLOAD_TOO_LARGE, 6: -32054 PAYLOAD_TOO_LARGE";
    assert_eq!(taken(batch).await, format!("[1: ok, 2: ok, 3: ok, {too_long}]"));
    assert_eq!(taken(ask(&mut rpc, read(9).to_string()).await).await, "9: ok");
    assert_eq!(taken(fourth).await, "7: ok");
}

#[tokio::test]
async fn deep_nesting_is_refused() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let params = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"session/pin","params":{{"text":{deep}}}}}"#);
    let member = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"errors/list","meta":{deep}}}"#);
    for (line, expected) in [
        (&deep, "null: -32600 INVALID_REQUEST"),
        (&params, "1: -32602 INVALID_REQUEST"),
        (&member, "1: ok"),
        (&"[".repeat(100_000), "null: -32700 INVALID_REQUEST"),
    ] {
        assert_eq!(digest(&stdio(&rpc(), line.as_bytes()).await[0]), expected);
    }
}

#[tokio::test]
async fn what_is_wrong_with_the_http_is_a_status() {
    let address = listen(rpc()).await;
    let request = br#"{"jsonrpc":"2.0","id":1,"method":"errors/list"}"#;
    let code = |(status, body): (u16, String)| {
        (status, serde_json::from_str::<ErrorBody>(&body).unwrap().code.as_str().to_owned())
    };
    let json = "content-type: application/json\r\n";
    for method in ["GET", "PUT", "DELETE", "OPTIONS"] {
        assert_eq!(code(common::http(address, method, json, request).await), (405, "METHOD_NOT_ALLOWED".to_owned()));
    }
    for headers in ["", "content-type: text/plain\r\n", "content-type: application/x-www-form-urlencoded\r\n"] {
        assert_eq!(code(common::http(address, "POST", headers, request).await), (400, "INVALID_REQUEST".to_owned()));
    }
    for kind in ["Application/JSON; charset=utf-8", "application/json-rpc", "application/json; profile=\"a\""] {
        let headers = format!("content-type: {kind}\r\n");
        assert_eq!(common::http(address, "POST", &headers, request).await.0, 200, "{kind}");
    }
    let upgrade = "connection: keep-alive, Upgrade\r\nupgrade: websocket\r\n";
    for headers in [upgrade.to_owned(), format!("{upgrade}sec-websocket-version: 8\r\nsec-websocket-key: x\r\n")] {
        assert_eq!(code(common::http(address, "GET", &headers, b"").await), (400, "INVALID_REQUEST".to_owned()));
    }
}

#[tokio::test]
async fn over_http_a_subscription_is_refused_and_says_what_to_do() {
    let address = listen(rpc()).await;
    for method in ["session/subscribe", "session/unsubscribe"] {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": {} }).to_string();
        let (status, answer) = post(address, request.as_bytes()).await;
        assert_eq!((status, digest(&answer).as_str()), (200, "1: -32602 INVALID_REQUEST"));
        assert!(answer.contains("session/events"));
    }
}

#[tokio::test]
async fn in_a_batch_a_subscription_is_refused() {
    let mut client = connect(&rpc()).await;
    client.send(r#"[{"jsonrpc":"2.0","id":1,"method":"session/list_subscribe"}]"#).await;
    assert_eq!(digest(&client.text().await.unwrap()), "[1: -32602 INVALID_REQUEST]");
}

#[tokio::test]
async fn every_method_is_there_and_takes_names_only() {
    // What a service lacks it says first.
    let dir = meerkat_testkit::folder();
    let all = AgentBuildConfig::new().store(dir.path().to_owned()).memory(None, MemoryOptions::default());
    let address = listen(service(all.build().unwrap().service().clone(), RpcOptions::default())).await;
    for (method, _) in methods() {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": ["x"] }).to_string();
        assert_eq!(digest(&post(address, request.as_bytes()).await.1), "1: -32602 INVALID_REQUEST", "{method}");
    }
}

/// A clock that panics when it is told to.
struct Broken(SystemClock, Arc<AtomicBool>);

impl Clock for Broken {
    fn now(&self) -> Timestamp {
        assert!(!self.1.load(Ordering::Relaxed), "the clock is broken");
        self.0.now()
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep(duration)
    }
}

#[tokio::test]
async fn a_panic_is_an_answer_and_the_connection_goes_on() {
    let is_broken = Arc::new(AtomicBool::new(false));
    let clock = Arc::new(Broken(SystemClock::new(), is_broken.clone()));
    let world = World { clock, ..World::system() };
    let engine = AgentBuildConfig::new().world(world).build().unwrap().service().clone();
    let mut client = pipes(&service(engine, RpcOptions::default()), PIPE);
    is_broken.store(true, Ordering::Relaxed);
    client.request(1, "session/create", json!({})).await;
    assert_eq!(digest(&client.text().await.unwrap()), "1: -32080 INTERNAL");
    is_broken.store(false, Ordering::Relaxed);
    client.request(2, "session/create", json!({})).await;
    assert_eq!(digest(&client.text().await.unwrap()), "2: ok");
    client.input.shutdown().await.unwrap();
    client.served.await.unwrap().unwrap();
}

/// Only an attached command may use these parameters.
#[tokio::test]
async fn a_public_request_cannot_wait_as_an_attached_command_does() {
    let engine = engine();
    let session = session(&engine).await;
    let blob = "0".repeat(64);
    let of_blob = |more: &str| format!(r#"{{"session_id":"{session}","blob":"{blob}"{more}}}"#);
    let of_session = format!(r#"{{"session_id":"{session}","turn":0}}"#);
    let request =
        |method: &str, params: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
    let answer = async |rpc: &RpcService, request: String| {
        let mut client = connect(rpc).await;
        client.send(&request).await;
        digest(&client.text().await.unwrap())
    };
    let public = service(engine.clone(), RpcOptions::default());
    let waiting = request("session/blob", &of_blob(r#","is_waiting":true"#));
    let dir = meerkat_testkit::folder();
    let stored = AgentBuildConfig::new().store(dir.path().to_owned()).build().unwrap().service().clone();
    assert_eq!(answer(&service(stored, RpcOptions::default()), waiting.clone()).await, "1: -32602 INVALID_REQUEST");
    assert_eq!(answer(&public, request("session/subscribe", &of_session)).await, "1: -32602 INVALID_REQUEST");
    // A service in memory has no store, but commands read the answers of their turns.
    let ungated = service(engine.clone(), RpcOptions { is_for_commands: true, ..RpcOptions::default() });
    assert_eq!(answer(&public, request("session/blob", &of_blob(""))).await, "1: -32030 SESSION_PERSISTENCE_DISABLED");
    assert_eq!(answer(&ungated, request("session/blob", &of_blob(""))).await, "1: -32042 ITEM_NOT_FOUND");
    assert_eq!(answer(&ungated, request("session/subscribe", &of_session)).await, "1: ok");
}
