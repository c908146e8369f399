//! Event streams: replay, then follow; resumed to the byte; never a reason for a turn to end.

use std::time::Duration;

use crate::common::{Events, Sent, Server};
use http_body_util::BodyExt as _;
use meerkat_service::AgentBuildConfig;
use meerkat_surface_rest::RestOptions;
use meerkat_testkit::until_asked;
use serde_json::{Value, json};

/// The request for a session's events.
fn events(session: &str) -> String {
    format!("GET /v1/sessions/{session}/events")
}

fn data(sent: &[Sent]) -> Vec<String> {
    sent.iter().map(|sent| sent.data.clone()).collect()
}

/// Asks for a turn and follows it.
async fn stream_turn(server: &Server, session: &str, turn: &Value) -> Events {
    server.follow(&format!("POST /v1/sessions/{session}/turns"), turn.to_string()).await
}

/// Reads to the end; returns the durable events, the name of the last one and its data.
async fn to_end(events: &mut Events) -> (Vec<Sent>, String, Value) {
    let mut durable = Vec::new();
    while let Some(sent) = events.next().await {
        if let Some(event) = sent.event {
            assert_eq!((sent.id, events.next().await), (None, None), "nothing follows the last event");
            return (durable, event, serde_json::from_str(&sent.data).unwrap());
        }
        durable.extend(sent.id.is_some().then_some(sent));
    }
    panic!("the stream ended and did not say how");
}

#[tokio::test]
async fn a_stream_replays_and_then_follows_from_the_moment_the_session_exists() {
    let server = Server::start();
    let session = server.session().await;
    let mut events = server.follow(&events(&session), "").await;
    let created = events.next().await.unwrap();
    assert_eq!(
        (created.id.as_deref(), created.event),
        (Some("1"), None),
        "an ordinary EventSource gets it as a message"
    );
    server.turn(&session, "@chunks 1 @say Good day.").await;
    let mut sent = vec![];
    while sent.last().is_none_or(|last: &Sent| !last.data.contains("turn_completed")) {
        sent.push(events.next().await.unwrap());
    }
    let (durable, live): (Vec<Sent>, Vec<Sent>) = sent.into_iter().partition(|sent| sent.id.is_some());
    assert_eq!(durable.iter().map(|sent| sent.id.clone().unwrap()).collect::<Vec<_>>(), ["2", "3", "4"]);
    assert_eq!(data(&durable), server.lines(&session, 1).await);
    assert!(live.iter().all(|sent| sent.data.contains(r#""after":"#) && sent.event.is_none()));
}

#[tokio::test]
async fn the_last_id_resumes_to_the_byte() {
    let server = Server::start();
    let session = server.session().await;
    server.turn(&session, "@say One.").await;
    server.turn(&session, "@say Two.").await;
    let all = server.lines(&session, 0).await;
    for cursor in 0..all.len() {
        for more in [
            format!("?since_seq={cursor}"),
            format!("\nlast-event-id: {cursor}"),
            format!("?since_seq=1\nlast-event-id: {cursor}"),
        ] {
            let mut stream = server.follow(&(events(&session) + &more), "").await;
            let mut suffix = Vec::new();
            while suffix.len() < all.len() - cursor {
                suffix.push(stream.next().await.unwrap());
            }
            assert_eq!(data(&suffix), all[cursor..], "{more:?}");
        }
    }
    let empty = server.follow(&(events(&session) + "\nlast-event-id: "), "").await.next().await.unwrap();
    assert_eq!(empty.id.as_deref(), Some("1"), "an empty id is none");
}

#[tokio::test]
async fn what_keeps_a_stream_from_beginning_is_an_ordinary_refusal() {
    let server = Server::start();
    let session = server.session().await;
    let stream = "accept: text/event-stream";
    let beyond = server.send(&format!("{}?since_seq=9\n{stream}", events(&session)), "").await;
    assert_eq!(
        (beyond.refusal().1.as_str(), beyond.header("content-type")),
        ("CURSOR_OUT_OF_RANGE", "application/json")
    );
    let unknown = events("01900000-0000-7000-8000-000000000001");
    assert_eq!(server.send(&format!("{unknown}\n{stream}"), "").await.refusal().1, "SESSION_NOT_FOUND");
    let turns = format!("POST /v1/sessions/{session}/turns\n{stream}");
    assert_eq!(server.send(&turns, r#"{"prompt":" "}"#).await.refusal().2, "prompt");
    let page = server.send(&format!("{}\naccept: text/event-stream;q=0, */*", events(&session)), "").await;
    assert_eq!(page.header("content-type"), "application/json");
}

/// The list of sessions as `GET /v1/sessions` streams it: the whole list, then what changes, and from the last id on.
#[tokio::test]
async fn the_list_of_sessions_is_followed_by_its_own_cursor() {
    let dir = meerkat_testkit::folder();
    let server =
        Server::with(AgentBuildConfig::new().store(dir.path().to_owned()).build().unwrap(), RestOptions::default());
    let first = server.session().await;
    for path in ["/v1/sessions", "/v1/session-changes"] {
        let mut list = server.follow(&format!("GET {path}"), "").await;
        let whole = list.next().await.unwrap();
        let page: Value = serde_json::from_str(&whole.data).unwrap();
        assert_eq!((&page["restarts"], &page["items"][0]["session_id"]), (&json!(true), &json!(first)), "{path}");
        assert_eq!((whole.id.as_deref(), whole.event), (page["next_cursor"].as_str(), None));
        let made = server.session().await;
        let mut changed: Value = serde_json::from_str(&list.next().await.unwrap().data).unwrap();
        assert_eq!(changed["restarts"], false);
        assert_eq!(changed["items"][0]["session"]["session_id"], json!(made));
        server.send(&format!("DELETE /v1/sessions/{made}"), "").await;
        drop(list);
        // A client that comes back gets what has happened since, by its last id or the cursor in the query.
        let cursor = changed["next_cursor"].take();
        let cursor = cursor.as_str().unwrap();
        for more in [format!("\nlast-event-id: {cursor}"), format!("?cursor={cursor}")] {
            let next = server.follow(&format!("GET {path}{more}"), "").await.next().await.unwrap();
            let page: Value = serde_json::from_str(&next.data).unwrap();
            assert_eq!(
                (&page["restarts"], &page["items"]),
                (&json!(false), &json!([{ "session_id": made, "session": null }]))
            );
        }
    }
    let stream = "accept: text/event-stream";
    for (query, field) in [("?archived=true", "query"), ("?limit=5", "query"), ("?cursor=x", "cursor")] {
        assert_eq!(server.send(&format!("GET /v1/sessions{query}\n{stream}"), "").await.refusal().2, field, "{query}");
    }
    // Without the stream's type, the address of the list is what it always was.
    let page = server.send("GET /v1/sessions?archived=false&limit=5", "").await;
    assert_eq!(page.header("content-type"), "application/json");
}

#[tokio::test]
async fn a_turn_streams_its_events_and_then_its_result() {
    let server = Server::start();
    let session = server.session().await;
    server.turn(&session, "@say Before.").await;
    let request = json!({ "prompt": "@say Now.", "idempotency_key": "now" });
    let (durable, event, result) = to_end(&mut stream_turn(&server, &session, &request).await).await;
    assert_eq!((event.as_str(), &result["text"], &result["turn"]), ("result", &json!("Now."), &json!(1)));
    assert_eq!(data(&durable), server.lines(&session, 4).await);
    // A key stands for its turn, also as a stream and long after it.
    server.turn(&session, "@say After.").await;
    let (again, _, same) = to_end(&mut stream_turn(&server, &session, &request).await).await;
    assert_eq!((same, data(&again)), (result, data(&durable)));
}

#[tokio::test]
async fn a_queued_turn_is_followed_to_its_own_end() {
    let server = Server::start();
    let session = server.session().await;
    let first = stream_turn(&server, &session, &json!({ "prompt": "@say Wait @stall" })).await;
    let mut second = stream_turn(&server, &session, &json!({ "prompt": "@say Mine.", "policy": "queue" })).await;
    let mut third = stream_turn(&server, &session, &json!({ "prompt": "@say No.", "policy": "queue" })).await;
    third.until("turn_queued").await;
    server.send(&format!("DELETE /v1/sessions/{session}/queue/2"), "").await.ok();
    let (durable, event, failure) = to_end(&mut third).await;
    assert!(durable.last().unwrap().data.contains("turn_dequeued"));
    assert_eq!((event.as_str(), &failure["code"]), ("failure", &json!("TURN_INTERRUPTED")));
    drop(first);
    server.send(&format!("POST /v1/sessions/{session}/interrupt"), "").await.ok();
    let (durable, event, result) = to_end(&mut second).await;
    assert_eq!((event.as_str(), &result["text"]), ("result", &json!("Mine.")));
    assert!(durable[0].data.contains("turn_queued"));
}

#[tokio::test]
async fn who_goes_away_interrupts_nothing() {
    let server = Server::start();
    let session = server.session().await;
    let mut events = stream_turn(&server, &session, &json!({ "prompt": "@say Still here @stall" })).await;
    events.until("text_delta").await;
    drop(events);
    // The server has noticed when no stream is open.
    until_asked("no stream is open", async || {
        let text = String::from_utf8(server.send("GET /metrics", "").await.body).unwrap();
        text.contains("meerkat_rest_streams_open 0")
    })
    .await;
    let last = server.lines(&session, 1).await;
    assert!(last.len() == 1 && last[0].contains("turn_started"), "{last:?}");
    server.send(&format!("POST /v1/sessions/{session}/interrupt"), r#"{"turn":0}"#).await.ok();
    assert!(server.lines(&session, 1).await.last().unwrap().contains("turn_interrupted"));
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_shows_that_it_is_alive() {
    let server = Server::start();
    let session = server.session().await;
    let mut events = server.follow(&format!("{}?since_seq=1", events(&session)), "").await;
    let begin = tokio::time::Instant::now();
    for beat in 1..=3 {
        assert_eq!(events.next().await.unwrap().comment.as_deref(), Some("keep-alive"));
        assert_eq!(begin.elapsed().as_secs(), 15 * beat);
    }
}

#[tokio::test]
async fn streams_end_with_the_service() {
    let options = RestOptions::default();
    let server = Server::with(AgentBuildConfig::new().build().unwrap(), options.clone());
    let session = server.session().await;
    let mut events = server.follow(&events(&session), "").await;
    options.closing.cancel();
    let (durable, event, failure) = to_end(&mut events).await;
    assert_eq!((durable.len(), event.as_str(), &failure["code"]), (1, "failure", &json!("SHUTTING_DOWN")));
}

/// A body that is read too late ends with the reason, and its cursor resumes; one that waits for events may wait.
#[tokio::test(start_paused = true)]
async fn a_subscriber_that_takes_nothing_is_closed() {
    let server = Server::start();
    let session = server.session().await;
    let long = "x".repeat(40_000);
    server.turn(&session, &format!("@say {long}")).await;
    let body = async |cursor: u64| {
        let request = format!("{}\naccept: text/event-stream\nlast-event-id: {cursor}", events(&session));
        server.open(&request, "").await.into_body()
    };
    let mut slow = body(0).await;
    let mut received = Vec::new();
    for _ in 0..5 {
        // Slow, but it reads something.
        tokio::time::advance(Duration::from_secs(29)).await;
        received.extend(slow.frame().await.unwrap().unwrap().into_data().unwrap());
    }
    tokio::time::advance(Duration::from_secs(30)).await;
    while let Some(frame) = slow.frame().await {
        received.extend(frame.unwrap().into_data().unwrap());
    }
    let mut sent = crate::common::Parser::default().feed(&received);
    let last = sent.pop().unwrap();
    assert_eq!((last.event.as_deref(), last.data.contains("SUBSCRIBER_LAGGED")), (Some("failure"), true));
    let all = server.lines(&session, 0).await;
    assert_eq!(data(&sent), all[..sent.len()], "what came is whole");
    assert!(sent.len() < all.len());

    let cursor = sent.last().unwrap().id.as_deref().unwrap().parse().unwrap();
    let mut again = body(cursor).await;
    let (mut parser, mut suffix) = (crate::common::Parser::default(), Vec::new());
    while suffix.len() < all.len() - sent.len() {
        suffix.extend(parser.feed(&again.frame().await.unwrap().unwrap().into_data().unwrap()));
    }
    assert_eq!(data(&suffix), all[sent.len()..]);
    // It has asked for more than there is, so it cannot fall behind.
    assert_eq!(again.frame().await.unwrap().unwrap().into_data().unwrap(), ": keep-alive\n\n");
}
