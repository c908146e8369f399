//! Subscriptions, and the turns of a connection.

use std::{sync::Arc, time::Duration};

use meerkat_service::{
    AgentBuildConfig, SessionService,
    options::{EngineOptions, EphemeralOptions},
    service::{InterruptTurn, ReadEvents, StartTurn},
};
use meerkat_surface_rpc::{RpcOptions, RpcService, service};
use serde_json::{Value, json};

use crate::common::{Client, PIPE, connect, engine, http, listen, pipes, session, stdio};

async fn made() -> (Arc<dyn SessionService>, RpcService, String) {
    let engine = engine();
    let session = session(&engine).await;
    let rpc = service(engine.clone(), RpcOptions::default());
    (engine, rpc, session)
}

async fn turn(engine: &Arc<dyn SessionService>, session: &str, prompt: &str) {
    engine.start_turn(StartTurn::new(session.parse().unwrap(), prompt)).await.unwrap();
}

/// Every line of a session after `since_seq`, from the journal.
async fn lines(engine: &Arc<dyn SessionService>, session: &str, since_seq: u64) -> Vec<String> {
    let request = ReadEvents { limit: Some(1000), ..ReadEvents::new(session.parse().unwrap(), since_seq) };
    let page = engine.events(request).await.unwrap();
    page.items.iter().map(|line| String::from_utf8(line.to_vec()).unwrap()).collect()
}

/// The line in a notification; `None` if it is no durable event of that subscription.
fn line_of(notification: &str, subscription: u64) -> Option<&str> {
    let head =
        format!(r#"{{"jsonrpc":"2.0","method":"session/event","params":{{"subscription":{subscription},"result":"#);
    let line = notification.strip_prefix(&head)?.strip_suffix("}}")?;
    serde_json::from_str::<Value>(line).unwrap().get("seq").map(|_| line)
}

/// Reads until there are as many lines as `expected` has, and compares.
async fn expect_lines(client: &mut impl Client, subscription: u64, expected: &[String]) {
    let mut found = Vec::new();
    while found.len() < expected.len() {
        let notification = client.text().await.expect("the connection is open");
        found.extend(line_of(&notification, subscription).map(str::to_owned));
    }
    assert_eq!(found, expected);
}

async fn replays_follows_and_ends(mut client: impl Client, engine: Arc<dyn SessionService>, session: &str) {
    turn(&engine, session, "@say One.").await;
    let number = client.subscribe(session, 1).await;
    expect_lines(&mut client, number, &lines(&engine, session, 1).await).await;
    let last = lines(&engine, session, 0).await.len() as u64;

    turn(&engine, session, "@say Two.").await;
    expect_lines(&mut client, number, &lines(&engine, session, last).await).await;

    client.request(2, "session/unsubscribe", json!({ "subscription": number })).await;
    assert_eq!(client.answer(2).await.1["result"], true);
    turn(&engine, session, "@say Three.").await;
    client.request(3, "session/unsubscribe", json!([number])).await;
    assert_eq!(client.answer(3).await, (vec![], json!({ "jsonrpc": "2.0", "id": 3, "result": false })));

    client.request(4, "session/subscribe", json!({ "session_id": session, "since_seq": 1000 })).await;
    assert_eq!(client.next().await["error"]["data"]["code"], "CURSOR_OUT_OF_RANGE");
}

#[tokio::test]
async fn a_subscription_replays_follows_and_ends() {
    let (engine, rpc, session) = made().await;
    replays_follows_and_ends(connect(&rpc).await, engine, &session).await;
    let (engine, rpc, session) = made().await;
    replays_follows_and_ends(pipes(&rpc, PIPE), engine, &session).await;
}

async fn follows_the_list(mut client: impl Client, engine: Arc<dyn SessionService>) {
    let first = session(&engine).await;
    client.request(1, "session/list_subscribe", json!({})).await;
    let number = client.next().await["result"].take();
    let whole = client.next().await;
    assert_eq!((&whole["method"], &whole["params"]["subscription"]), (&json!("session/event"), &number));
    let page = &whole["params"]["result"];
    assert_eq!((&page["restarts"], &page["items"][0]["session_id"]), (&json!(true), &json!(first)));
    let second = session(&engine).await;
    let page = client.next().await["params"]["result"].take();
    assert_eq!((&page["restarts"], &page["items"][0]["session_id"]), (&json!(false), &json!(second)));
    client.request(2, "session/unsubscribe", json!({ "subscription": number })).await;
    assert_eq!(client.answer(2).await.1["result"], true);
    let third = session(&engine).await;
    client.request(3, "session/list_subscribe", json!({ "cursor": page["next_cursor"] })).await;
    let (before, answer) = client.answer(3).await;
    assert!(before.is_empty() && answer["result"].is_u64() && answer["result"] != number, "{before:?} {answer}");
    let page = client.next().await["params"]["result"].take();
    assert_eq!(page["items"][0]["session_id"], json!(third), "it goes on where the first one ended");
    client.request(4, "session/list_subscribe", json!({ "cursor": "x" })).await;
    assert_eq!(client.answer(4).await.1["error"]["data"]["code"], "INVALID_REQUEST");
}

#[tokio::test]
async fn the_list_of_sessions_is_followed() {
    let stored = |dir: &tempfile::TempDir| {
        let engine = AgentBuildConfig::new().store(dir.path().to_owned()).build().unwrap().service().clone();
        (service(engine.clone(), RpcOptions::default()), engine)
    };
    let (one, other) = (meerkat_testkit::folder(), meerkat_testkit::folder());
    let (rpc, engine) = stored(&one);
    follows_the_list(connect(&rpc).await, engine).await;
    let (rpc, engine) = stored(&other);
    follows_the_list(pipes(&rpc, PIPE), engine).await;
}

#[tokio::test]
async fn a_client_that_leaves_interrupts_nothing() {
    for is_closed_well in [true, false] {
        let (engine, rpc, session) = made().await;
        let mut client = connect(&rpc).await;
        client.request(1, "session/subscribe", json!({ "session_id": session })).await;
        client.request(2, "turn/start", json!({ "session_id": session, "prompt": "@stall" })).await;
        client.event("turn_started").await;
        if is_closed_well {
            client.0.close(None).await.unwrap();
            // The server has read the close when it answers it.
            while client.text().await.is_some() {}
        }
        drop(client);
        let running = InterruptTurn { session_id: session.parse().unwrap(), turn: Some(0) };
        let interrupted = engine.interrupt(running).await.expect("the turn still runs");
        assert!(lines(&engine, &session, interrupted.seq - 1).await[0].contains(r#""type":"turn_interrupted""#));
    }
}

#[tokio::test]
async fn what_runs_at_the_end_of_input_is_answered() {
    let (_, rpc, session) = made().await;
    let start = |id, prompt| {
        let params = json!({ "session_id": session, "prompt": prompt, "policy": "queue" });
        json!({ "jsonrpc": "2.0", "id": id, "method": "turn/start", "params": params }).to_string()
    };
    let input = format!("{}\n{}", start(1, "@say One."), start(2, "@say Two."));
    let mut texts: Vec<_> = stdio(&rpc, input.as_bytes())
        .await
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["result"]["text"].as_str().unwrap().to_owned())
        .collect();
    texts.sort_unstable();
    assert_eq!(texts, ["One.", "Two."]);
}

/// The code of a message that ends a subscription.
fn end_of(message: &str) -> Option<Value> {
    let mut message: Value = serde_json::from_str(message).unwrap();
    let failure = message["params"]["error"].take();
    let code = failure["data"]["code"].clone();
    (!failure.is_null()).then_some(code)
}

#[tokio::test]
async fn stopping_answers_what_runs_and_ends_subscriptions() {
    let (engine, rpc, session) = made().await;
    let (mut socket, mut pipes) = (connect(&rpc).await, pipes(&rpc, PIPE));
    socket.subscribe(&session, 0).await;
    pipes.subscribe(&session, 0).await;
    socket.request(2, "turn/start", json!({ "session_id": session, "prompt": "@stall" })).await;
    socket.event("turn_started").await;

    let stopping = tokio::spawn({
        let rpc = rpc.clone();
        async move { rpc.stop().await }
    });
    assert_eq!(end_of(pipes.rest().await.last().unwrap()).unwrap(), "SHUTTING_DOWN");
    pipes.served.await.unwrap().unwrap();
    // The socket's subscription has ended; the socket waits for its turn.
    while end_of(&socket.text().await.unwrap()).is_none_or(|code| code != "SHUTTING_DOWN") {}
    assert!(!stopping.is_finished());
    engine.interrupt(InterruptTurn { session_id: session.parse().unwrap(), turn: None }).await.unwrap();
    assert_eq!(socket.answer(2).await.1["result"]["status"], "interrupted");
    assert!(socket.rest().await.is_empty());
    stopping.await.unwrap();
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\n";
    assert_eq!(http(listen(rpc).await, "GET", upgrade, b"").await.0, 503);
}

#[tokio::test(start_paused = true)]
async fn a_subscription_ends_with_its_session() {
    let options =
        EngineOptions { ephemeral: EphemeralOptions { idle_ms: 1000, ..Default::default() }, ..Default::default() };
    let engine = AgentBuildConfig::new().options(options).build().unwrap().service().clone();
    let session = session(&engine).await;
    let mut client = pipes(&service(engine, RpcOptions::default()), PIPE);
    client.subscribe(&session, 1).await;
    assert_eq!(end_of(&client.text().await.unwrap()).unwrap(), "SESSION_NOT_FOUND");
}

/// Bytes under way to a subscriber that reads nothing.
const UNDER_WAY_MAX: usize = 64 * 1024;

/// Events of many more bytes than may be under way.
async fn write_much(engine: &Arc<dyn SessionService>, session: &str) -> Vec<String> {
    for _ in 0..100 {
        turn(engine, session, &format!("@say {}", "x".repeat(4000))).await;
    }
    let lines = lines(engine, session, 0).await;
    assert!(lines.iter().map(String::len).sum::<usize>() > 8 * UNDER_WAY_MAX);
    lines
}

/// The lines before the end of a subscription are few, and those of the next one are the rest.
async fn expect_suffix(rpc: &RpcService, session: &str, before: &[String], written: &[String]) {
    assert_eq!(before, &written[..before.len()]);
    assert!(before.iter().map(|line| line.len()).sum::<usize>() <= UNDER_WAY_MAX);
    let mut again = pipes(rpc, PIPE);
    let number = again.subscribe(session, before.len() as u64).await;
    expect_lines(&mut again, number, &written[before.len()..]).await;
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_stalls_is_told_where_to_go_on() {
    let (engine, rpc, session) = made().await;
    let mut client = pipes(&rpc, 1024);
    let number = client.subscribe(&session, 0).await;
    let written = write_much(&engine, &session).await;
    tokio::time::sleep(Duration::from_secs(31)).await;

    let mut before = Vec::new();
    let end = loop {
        let message = client.text().await.unwrap();
        if end_of(&message).is_some() {
            break serde_json::from_str::<Value>(&message).unwrap();
        }
        before.extend(line_of(&message, number).map(str::to_owned));
    };
    assert_eq!(end["params"]["subscription"], number);
    assert_eq!(end["params"]["error"]["code"], -32056);
    assert_eq!(end["params"]["error"]["data"]["code"], "SUBSCRIBER_LAGGED");
    assert_eq!(end["params"]["error"]["data"]["details"]["since_seq"], before.len());
    expect_suffix(&rpc, &session, &before, &written).await;
    // The connection goes on.
    client.request(2, "errors/list", json!({})).await;
    assert!(client.answer(2).await.1["result"].is_object());
}

/// A WebSocket is closed by its listener (`surface-cli/tests/serve/stalled.rs`).
#[tokio::test(start_paused = true)]
async fn stdio_that_stalls_is_closed() {
    let (engine, rpc, session) = made().await;
    let mut client = pipes(&rpc, 1024);
    client.subscribe(&session, 0).await;
    write_much(&engine, &session).await;
    let ended = client.served.await.unwrap().unwrap_err();
    assert_eq!(ended.kind(), std::io::ErrorKind::TimedOut);
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_is_slow_is_not_closed() {
    let (engine, rpc, session) = made().await;
    let written = write_much(&engine, &session).await;
    let mut client = pipes(&rpc, 1024);
    let number = client.subscribe(&session, 0).await;
    let mut found = Vec::new();
    while found.len() < 20 {
        // A short message may be in the pipe already, so that its place in the queue was free before.
        tokio::time::sleep(Duration::from_secs(10)).await;
        let message = client.text().await.unwrap();
        found.extend(line_of(&message, number).map(str::to_owned));
    }
    assert_eq!(found, written[..20]);
}
