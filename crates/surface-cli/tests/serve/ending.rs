//! SIGTERM under load: turns end in time or are interrupted with an event, and every client is notified.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    net::TcpStream,
    os::unix::process::ExitStatusExt as _,
};

use meerkat_testkit::until;
use serde_json::{Value, json};

use crate::drive::{
    server::{Server, ask, mcp_result, read, refusal, text},
    signal,
};

const STALL: &str = "@say Wait @stall";

/// Reads a stream of a session up to an event of a type.
fn read_to(stream: &mut BufReader<TcpStream>, event: &str) {
    let wanted = format!(r#""type":"{event}""#);
    assert!(stream.by_ref().lines().any(|line| line.unwrap().contains(&wanted)), "the stream ended before {event}");
}

/// Reads the rest of a stream.
fn rest(mut stream: BufReader<TcpStream>) -> String {
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    rest
}

fn turns(session: &str) -> String {
    format!("/v1/sessions/{session}/turns")
}

fn turn(prompt: &str) -> String {
    json!({ "prompt": prompt }).to_string()
}

/// It has an hour for turns that run, and needs no longer than they do.
#[test]
fn a_server_that_drains_ends_its_turns_and_begins_none() {
    let mut server = Server::start(&[("MEERKAT_SERVE__DRAIN_MS", "3600000"), ("MEERKAT_TOOLS__TEST_DIR", ".")]);
    let [quick, lasting, idle] = [(); 3].map(|()| server.session());
    let ask_for = |session: &str, prompt: &str| {
        server.open("POST", &turns(session), &server.headers_with_token(&[]), &turn(prompt))
    };
    let quick_answer = ask_for(&quick, r#"@call test_sleep {"ms":500} @step @say Done."#);
    let lasting_answer = ask_for(&lasting, STALL);
    read_to(&mut server.follow(&quick, 1), "tool_started");
    read_to(&mut server.follow(&lasting, 1), "text_delta");
    server.terminate();

    until("it is not ready", || server.send_with_token("GET", "/readyz", &[], "").status != 200);
    let refused = server.send_with_token("POST", &turns(&idle), &[], &turn("Too late."));
    assert_eq!(refused.refusal(), refusal(503, "SHUTTING_DOWN"));
    let answer = read(quick_answer);
    assert_eq!((answer.status, &answer.json()["text"]), (200, &json!("Done.")));
    // What ends a turn is no new work.
    let interrupted = server.send_with_token("POST", &format!("/v1/sessions/{lasting}/interrupt"), &[], "{}");
    assert_eq!(interrupted.status, 200, "{}", interrupted.body);
    let answer = read(lasting_answer);
    assert_eq!((answer.status, &answer.json()["status"]), (200, &json!("interrupted")));
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_server_that_is_told_to_end_under_load_ends_cleanly() {
    let mut server = Server::start(&[("MEERKAT_SERVE__DRAIN_MS", "300")]);
    let [followed, streamed, over_rpc, over_mcp] = [(); 4].map(|()| server.session());

    // Turns that never end, one on each surface, each with a client that waits for it or follows it.
    let accepted =
        server.send_with_token("POST", &turns(&followed), &[("prefer", "respond-async")], &turn(STALL)).status;
    assert_eq!(accepted, 202);
    let headers = server.headers_with_token(&[("accept", "text/event-stream")]);
    let turn_stream = BufReader::new(server.open("POST", &turns(&streamed), &headers, &turn(STALL)));
    let mut socket = server.websocket();
    ask(&mut socket, 1, "session/subscribe", &json!({ "session_id": over_rpc, "since_seq": 1 }));
    ask(&mut socket, 2, "turn/start", &json!({ "session_id": over_rpc, "prompt": STALL }));
    let tool = server.open_mcp("turn_start", &json!({ "session_id": over_mcp, "prompt": STALL }));

    let mut streams = [&followed, &streamed, &over_rpc, &over_mcp].map(|session| server.follow(session, 1));
    streams.iter_mut().for_each(|stream| read_to(stream, "text_delta"));
    server.terminate();

    for stream in streams {
        let rest = rest(stream);
        assert!(rest.contains(r#""type":"turn_interrupted","reason":"shutting_down""#), "{rest}");
        // The stream says why it ends.
        assert!(rest.contains("event: failure") && rest.contains("SHUTTING_DOWN"), "{rest}");
    }
    let turn_stream = rest(turn_stream);
    assert!(turn_stream.contains(r#""type":"turn_interrupted""#), "{turn_stream}");
    assert!(
        turn_stream.contains("event: result") && turn_stream.contains(r#""status":"interrupted""#),
        "{turn_stream}"
    );
    let result = mcp_result(tool);
    assert_eq!(result["structuredContent"]["status"], "interrupted", "{result}");

    let mut messages = Vec::new();
    while let Some(message) = text(&mut socket) {
        messages.push(serde_json::from_str::<Value>(&message).unwrap());
    }
    let answer = messages.iter().find(|message| message["id"] == 2).unwrap();
    assert_eq!(answer["result"]["status"], "interrupted", "{answer}");
    assert!(messages.iter().any(|message| message["params"]["result"]["type"] == "turn_interrupted"), "{messages:?}");
    let ends = messages.iter().filter(|message| message["params"]["error"]["data"]["code"] == "SHUTTING_DOWN");
    assert_eq!(ends.count(), 1, "{messages:?}");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

/// The file would lie in the folder that the server started in, with the keys of models in it.
#[test]
fn a_crash_leaves_no_core_file() {
    let mut server = Server::start_limited("-c unlimited", &[]);
    signal(&server.child, "ABRT");
    let status = server.child.wait().unwrap();
    assert_eq!((status.signal(), status.core_dumped()), (Some(6), false));
}
