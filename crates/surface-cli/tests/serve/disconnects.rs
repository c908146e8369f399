//! Readers that come and go, on every surface: none misses an event or sees one twice.

use std::{io::BufRead as _, thread};

use meerkat_testkit::{Random, campaigns::Part, seed};
use serde_json::{Value, json};

use crate::drive::server::{Server, ask, mcp_result, text};

/// Turns, and connections at least: a fifth, unless the campaign `properties` is asked for.
fn sizes() -> (u64, usize) {
    if Part::Properties.is_whole() { (650, 1_000) } else { (130, 200) }
}

/// Connections that are dropped at odd moments while turns run: all together they see every event once and
/// in order.
#[test]
fn disconnects_lose_and_repeat_nothing() {
    let (turns, least) = sizes();
    // The session's creation, and each turn's beginning, message and end.
    let last = 1 + 3 * turns;
    let server = Server::start(&[]);
    let session = server.session();
    let mut random = Random::new(seed());
    let (mut cursor, mut connections) = (0, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let path = format!("/v1/sessions/{session}/turns");
            for _ in 0..turns {
                assert_eq!(server.send_with_token("POST", &path, &[], r#"{"prompt":"@say On."}"#).status, 200);
            }
        });
        while cursor < last {
            connections += 1;
            let wanted = (1 + random.below(3)).min(last - cursor);
            let page = json!({ "session_id": session, "since_seq": cursor, "limit": wanted, "wait_ms": 1000 });
            let way = random.below(6);
            let seqs = match way {
                0 => page_over_rest(&server, &session, cursor, wanted),
                1 => seqs(&server.rpc("session/events", &page)["result"]),
                2 => seqs(&mcp_result(server.open_mcp("session_events", &page))["structuredContent"]),
                3 => stream_over_rest(&server, &session, cursor, wanted),
                4 => stream_over_rpc(&server, &session, cursor, wanted),
                _ => {
                    // Leaves before it has read anything.
                    drop((server.follow(&session, cursor), server.open_mcp("session_events", &page)));
                    Vec::new()
                }
            };
            for seq in seqs {
                assert_eq!(seq, cursor + 1, "connection {connections}, way {way}");
                cursor = seq;
            }
        }
    });
    assert!(connections >= least, "only {connections} connections");
}

fn seqs(page: &Value) -> Vec<u64> {
    let items = page["items"].as_array().unwrap_or_else(|| panic!("no page: {page}"));
    let seq = |item: &Value| match item {
        // Over MCP a line is a text.
        Value::String(line) => serde_json::from_str::<Value>(line).unwrap()["seq"].as_u64().unwrap(),
        event => event["seq"].as_u64().unwrap(),
    };
    items.iter().map(seq).collect()
}

fn page_over_rest(server: &Server, session: &str, cursor: u64, limit: u64) -> Vec<u64> {
    let path = format!("/v1/sessions/{session}/events?since_seq={cursor}&limit={limit}&wait_ms=1000");
    seqs(&server.send_with_token("GET", &path, &[("accept", "application/json")], "").json())
}

/// Reads so many durable events from a stream and drops it.
fn stream_over_rest(server: &Server, session: &str, cursor: u64, wanted: u64) -> Vec<u64> {
    let lines = server.follow(session, cursor).lines().map(Result::unwrap);
    let ids = lines.filter_map(|line| line.strip_prefix("id: ").map(|id| id.parse().unwrap()));
    ids.take(usize::try_from(wanted).unwrap()).collect()
}

/// Reads so many from a subscription, whose live lines have no seq.
fn stream_over_rpc(server: &Server, session: &str, cursor: u64, wanted: u64) -> Vec<u64> {
    let mut socket = server.websocket();
    ask(&mut socket, 1, "session/subscribe", &json!({ "session_id": session, "since_seq": cursor }));
    let messages = std::iter::from_fn(|| text(&mut socket));
    let events = messages.map(|message| serde_json::from_str::<Value>(&message).unwrap());
    let seqs = events.filter_map(|event| event["params"]["result"]["seq"].as_u64());
    seqs.take(usize::try_from(wanted).unwrap()).collect()
}
