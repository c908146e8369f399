//! A cancelled request ends its turn; a client that leaves does not, but in the newest revision over HTTP (`rounds`).

use std::time::Duration;

use http_body_util::BodyExt as _;
use meerkat_service::{
    Agent,
    options::Policy,
    service::{DecideApproval, InterruptTurn, SessionCreated, StartTurn},
    session::event::Decision,
};
use rmcp::model::ProtocolVersion;
use serde_json::{Value, json};

use super::{
    Client, HOLD, Way, agent, can_cancel, everywhere,
    framing::{Wire, body_text},
    http, lines, soon, type_of, types_until,
};

/// Approves the call that holds a turn; returns the turn's end event.
pub(super) async fn release(agent: &Agent, session: &SessionCreated) -> String {
    let session_id = session.session_id;
    let asked = lines(agent, session, 0).await.into_iter().rfind(|line| type_of(line) == "approval_requested").unwrap();
    let asked: Value = serde_json::from_str(&asked).unwrap();
    let call_id = asked["call_id"].as_str().unwrap().to_owned();
    let decision = DecideApproval::new(session_id, call_id, Decision::Approve);
    agent.service().decide_approval(decision).await.unwrap();
    let mut follower = agent.service().follow(&session_id, asked["seq"].as_u64().unwrap()).await.unwrap();
    loop {
        let line = soon(follower.next()).await.unwrap().unwrap();
        let kind = type_of(std::str::from_utf8(&line.line).unwrap());
        if ["turn_completed", "turn_interrupted", "turn_failed"].contains(&kind.as_str()) {
            return kind;
        }
    }
}

#[tokio::test]
async fn a_cancelled_request_interrupts_its_turn_and_no_other() {
    for (way, version) in everywhere().filter(|(way, version)| can_cancel(*way, version)) {
        let agent = agent();
        let mut client = Client::connect(&agent, way, &version).await;
        let (first, second) = (agent.create_session().await.unwrap(), agent.create_session().await.unwrap());
        let mut turns = Vec::new();
        for session in [&first, &second] {
            let request = json!({ "session_id": session.session_id, "prompt": HOLD });
            turns.push(client.begin("turn_start", request).await);
            client.progress_until("approval_requested").await;
        }
        let queued = json!({ "session_id": second.session_id, "prompt": "@say Never.", "policy": "queue" });
        let queued = client.begin("turn_start", queued).await;
        client.progress_until("turn_queued").await;
        queued.cancel(None).await.unwrap();
        types_until(&agent, &second, &["turn_dequeued"]).await;

        let other = turns.pop().unwrap();
        turns.pop().unwrap().cancel(Some("changed my mind".to_owned())).await.unwrap();
        let before = types_until(&agent, &first, &["turn_interrupted"]).await;
        assert!(before.contains(&"approval_requested".to_owned()));
        assert_eq!(release(&agent, &second).await, "turn_completed", "{way:?} {version}");
        let result = serde_json::to_value(other.await_response().await.unwrap()).unwrap();
        assert_eq!(result["structuredContent"]["text"], "Done.", "{way:?} {version}");
    }
}

/// The library handles a request and its cancellation in two tasks, in any order.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_request_that_is_cancelled_at_once_is_interrupted_all_the_same() {
    let agent = agent();
    for round in 0..100 {
        let session = agent.create_session().await.unwrap();
        let mut wire = Wire::open(&agent, 10_000, 10_000);
        wire.initialize("2025-11-25").await;
        let call =
            json!({ "name": "turn_start", "arguments": { "session_id": session.session_id, "prompt": "@stall" } });
        wire.write(&[
            json!({ "jsonrpc": "2.0", "id": round, "method": "tools/call", "params": call }),
            json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": round } }),
        ])
        .await;
        types_until(&agent, &session, &["turn_interrupted"]).await;
    }
}

/// A session with enough to compact, whose summary stalls.
pub(super) async fn compactable(agent: &Agent) -> SessionCreated {
    let session = agent.create_session().await.unwrap();
    let talk = "We went through all of it once more. ".repeat(20);
    for turn in 0..2 {
        let prompt = format!("@note {talk} @say Turn {turn}. @compaction @say The sum @stall");
        agent.service().start_turn(StartTurn::new(session.session_id, prompt)).await.unwrap();
    }
    session
}

pub(super) fn compact(session: &SessionCreated) -> Value {
    json!({ "session_id": session.session_id, "compaction": { "recent_turn_budget": 1 } })
}

/// Neither the turn that waits for the compaction nor that of another session.
#[tokio::test]
async fn a_cancelled_compaction_ends_and_no_turn_does() {
    for (way, version) in everywhere().filter(|(way, version)| can_cancel(*way, version)) {
        let agent = agent();
        let session = compactable(&agent).await;
        let other = agent.create_session().await.unwrap();
        let mut client = Client::connect(&agent, way, &version).await;
        let held = client.begin("turn_start", json!({ "session_id": other.session_id, "prompt": HOLD })).await;
        client.progress_until("approval_requested").await;
        let compaction = client.begin("session_compact", compact(&session)).await;
        types_until(&agent, &session, &["compaction_started"]).await;
        let waiting = StartTurn { policy: Policy::Queue, ..StartTurn::new(session.session_id, HOLD) };
        agent.service().accept_turn(waiting).await.unwrap();
        compaction.cancel(None).await.unwrap();
        types_until(&agent, &session, &["compaction_failed"]).await;
        types_until(&agent, &session, &["approval_requested"]).await;
        for session in [&session, &other] {
            assert_eq!(release(&agent, session).await, "turn_completed", "{way:?} {version}");
        }
        let result = serde_json::to_value(held.await_response().await.unwrap()).unwrap();
        assert_eq!(result["structuredContent"]["text"], "Done.", "{way:?} {version}");
    }
}

/// The turn that it steered is another request's.
#[tokio::test]
async fn a_cancelled_request_that_steered_ends_no_turn() {
    for (way, version) in everywhere().filter(|(way, version)| can_cancel(*way, version)) {
        let agent = agent();
        let session = agent.create_session().await.unwrap();
        let mut client = Client::connect(&agent, way, &version).await;
        let session_id = session.session_id;
        let held = client.begin("turn_start", json!({ "session_id": session_id, "prompt": HOLD })).await;
        client.progress_until("approval_requested").await;
        let text = json!({ "session_id": session_id, "prompt": "@say Steered.", "policy": "steer" });
        let steered = client.begin("turn_start", text).await;
        types_until(&agent, &session, &["turn_steered"]).await;
        steered.cancel(None).await.unwrap();
        // What follows on the same connection comes behind the cancellation.
        let queue = client.begin("turn_queue", json!({ "session_id": session_id })).await;
        queue.await_response().await.unwrap();
        assert_eq!(release(&agent, &session).await, "turn_completed", "{way:?} {version}");
        let result = serde_json::to_value(held.await_response().await.unwrap()).unwrap();
        assert_eq!(result["structuredContent"]["text"], "Steered.", "{way:?} {version}");
    }
}

/// The cancellation may overtake the request; then nothing is compacted.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_compaction_that_is_cancelled_at_once_holds_nothing_up() {
    let agent = agent();
    for round in 0..50 {
        let session = compactable(&agent).await;
        let mut wire = Wire::open(&agent, 10_000, 10_000);
        wire.initialize("2025-11-25").await;
        let call = json!({ "name": "session_compact", "arguments": compact(&session) });
        wire.write(&[
            json!({ "jsonrpc": "2.0", "id": round, "method": "tools/call", "params": call }),
            json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": round } }),
            json!({ "jsonrpc": "2.0", "id": "ping", "method": "ping" }),
        ])
        .await;
        while wire.read().await["id"] != "ping" {}
        let next = StartTurn { policy: Policy::Queue, ..StartTurn::new(session.session_id, "@say Next.") };
        let ended = soon(agent.service().start_turn(next)).await.unwrap();
        assert_eq!(ended.text, "Next.");
    }
}

/// Other turns end before this one starts, and start as soon as it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn progress_goes_from_a_turns_acceptance_to_its_end() {
    let agent = agent();
    let mut wire = Wire::open(&agent, 10_000, 100_000);
    wire.initialize("2025-11-25").await;
    for round in 0..50 {
        let session = agent.create_session().await.unwrap();
        let queued = |prompt: &str| StartTurn { policy: Policy::Queue, ..StartTurn::new(session.session_id, prompt) };
        agent.service().accept_turn(queued(HOLD)).await.unwrap();
        let arguments = json!({ "session_id": session.session_id, "prompt": "@say Mine.", "policy": "queue" });
        let call = json!({ "name": "turn_start", "arguments": arguments, "_meta": { "progressToken": "t" } });
        wire.write(&[json!({ "jsonrpc": "2.0", "id": round, "method": "tools/call", "params": call })]).await;
        types_until(&agent, &session, &["turn_queued"]).await;
        for _ in 0..3 {
            agent.service().accept_turn(queued("@say Next.")).await.unwrap();
        }
        types_until(&agent, &session, &["approval_requested"]).await;
        assert_eq!(release(&agent, &session).await, "turn_completed");
        let mut sent = Vec::new();
        let answer = loop {
            let message = wire.read().await;
            match message["params"]["_meta"]["meerkat/event"].as_str() {
                Some(line) => sent.extend(line.contains(r#""seq":"#).then(|| line.to_owned())),
                None => break message,
            }
        };
        let stored = lines(&agent, &session, 0).await;
        let from = stored.iter().position(|line| type_of(line) == "turn_queued").unwrap();
        let end = answer["result"]["structuredContent"]["seq"].as_u64().unwrap();
        assert_eq!(sent, stored[from..usize::try_from(end).unwrap()]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_nothing_loses_its_progress_and_not_its_answer() {
    let agent = agent();
    let session = agent.create_session().await.unwrap();
    let mut wire = Wire::open(&agent, 10_000, 1000);
    wire.initialize("2025-11-25").await;
    let arguments = json!({ "session_id": session.session_id, "prompt": "@long 20000" });
    let call = json!({ "name": "turn_start", "arguments": arguments, "_meta": { "progressToken": "t" } });
    wire.write(&[json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": call })]).await;
    types_until(&agent, &session, &["turn_completed"]).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let mut sent = Vec::new();
    let answer = loop {
        let message = wire.read().await;
        match message["params"]["_meta"]["meerkat/event"].as_str() {
            Some(line) => sent.push(type_of(line)),
            None => break message,
        }
    };
    assert_eq!((&answer["id"], &answer["result"]["structuredContent"]["status"]), (&json!(7), &json!("completed")));
    assert!(!sent.contains(&"turn_completed".to_owned()), "{sent:?}");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_drops_interrupts_nothing() {
    for version in ProtocolVersion::KNOWN_VERSIONS {
        let agent = agent();
        let mut client = Client::connect(&agent, Way::Streams, version).await;
        let session = agent.create_session().await.unwrap();
        let turn = client.begin("turn_start", json!({ "session_id": session.session_id, "prompt": HOLD })).await;
        client.progress_until("approval_requested").await;
        drop((turn, client.running));
        client.server.unwrap().await.unwrap().unwrap();
        assert_eq!(release(&agent, &session).await, "turn_completed", "{version}");
    }
}

/// In revisions with sessions of the protocol. In the newest one it cancels its request: see `rounds`.
#[tokio::test(start_paused = true)]
async fn a_stream_that_closes_interrupts_nothing() {
    let has_streams = |way: Way, version: &ProtocolVersion| way != Way::Streams && version.has_initialize();
    for (way, version) in everywhere().filter(|(way, version)| has_streams(*way, version)) {
        let agent = agent();
        let wire = super::framing::Http::open(http(&agent), &version).await;
        let session = agent.create_session().await.unwrap();
        let call = json!({
            "name": "turn_start",
            "arguments": { "session_id": session.session_id, "prompt": HOLD },
            "_meta": { "progressToken": "t" },
        });
        let mut answer = wire.request("tools/call", call).await;
        let mut read = String::new();
        while !read.contains("approval_requested") {
            let frame = answer.body_mut().frame().await.unwrap().unwrap();
            read += std::str::from_utf8(&frame.into_data().unwrap()).unwrap();
        }
        drop(answer);
        // Longer than the library waits before it cancels the requests of a client that left.
        tokio::time::sleep(Duration::from_secs(10)).await;
        let kinds: Vec<String> = lines(&agent, &session, 0).await.iter().map(|line| type_of(line)).collect();
        assert_eq!(kinds.last().unwrap(), "approval_requested", "{way:?} {version}");
        assert_eq!(release(&agent, &session).await, "turn_completed", "{way:?} {version}");
        // Without `notifications/cancelled`, an interrupt ends a turn.
        let held = StartTurn::new(session.session_id, HOLD);
        let held = agent.service().accept_turn(held).await.unwrap();
        let arguments = json!({ "session_id": session.session_id, "turn": held.turn });
        let answer = wire.request("tools/call", json!({ "name": "turn_interrupt", "arguments": arguments })).await;
        assert!(body_text(answer).await.contains(r#""isError":false"#), "{way:?} {version}");
        let gone = InterruptTurn { session_id: session.session_id, turn: Some(held.turn) };
        assert_eq!(agent.service().interrupt(gone).await.unwrap_err().code().as_str(), "SESSION_NOT_RUNNING");
    }
}
