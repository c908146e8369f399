//! Limits of one caller, and the refusals beyond them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use meerkat_service::{
    AgentBuildConfig, ErrorBody,
    clock::{Clock, SystemClock, Timestamp, World},
    service::InterruptTurn,
};
use meerkat_surface_rpc::{RpcOptions, RpcService, methods, service};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::{
    common::{Client, PIPE, connect, engine, http, listen, pipes, post, rpc, session, stdio},
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
        assert_eq!(code(http(address, method, json, request).await), (405, "METHOD_NOT_ALLOWED".to_owned()));
    }
    for headers in ["", "content-type: text/plain\r\n", "content-type: application/x-www-form-urlencoded\r\n"] {
        assert_eq!(code(http(address, "POST", headers, request).await), (400, "INVALID_REQUEST".to_owned()));
    }
    for kind in ["Application/JSON; charset=utf-8", "application/json-rpc", "application/json; profile=\"a\""] {
        let headers = format!("content-type: {kind}\r\n");
        assert_eq!(http(address, "POST", &headers, request).await.0, 200, "{kind}");
    }
    let upgrade = "connection: keep-alive, Upgrade\r\nupgrade: websocket\r\n";
    for headers in [upgrade.to_owned(), format!("{upgrade}sec-websocket-version: 8\r\nsec-websocket-key: x\r\n")] {
        assert_eq!(code(http(address, "GET", &headers, b"").await), (400, "INVALID_REQUEST".to_owned()));
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
    let address = listen(rpc()).await;
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
    assert_eq!(answer(&public, waiting.clone()).await, "1: -32602 INVALID_REQUEST");
    assert_eq!(answer(&public, request("session/subscribe", &of_session)).await, "1: -32602 INVALID_REQUEST");
    // A service in memory has no store, but commands read the answers of their turns.
    let ungated = service(engine.clone(), RpcOptions { is_for_commands: true, ..RpcOptions::default() });
    assert_eq!(answer(&public, request("session/blob", &of_blob(""))).await, "1: -32030 SESSION_PERSISTENCE_DISABLED");
    assert_eq!(answer(&ungated, request("session/blob", &of_blob(""))).await, "1: -32042 ITEM_NOT_FOUND");
    assert_eq!(answer(&ungated, request("session/subscribe", &of_session)).await, "1: ok");
}
