//! Memory of answers that nobody reads: bounded, however many are requested.

use std::{fs, io::Write as _, process::Child};

use meerkat_testkit::{needs, until};
use serde_json::{Value, json};

use crate::drive::server::{Server, ask, text};

const MIB: u64 = 1024 * 1024;

/// Most bytes that answers may add to a process.
const COST_MAX: u64 = 64 * MIB;

/// A line of a process's status, in bytes.
fn status(child: &Child, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Forgets the peak that a process had so far.
fn forget_peak(child: &Child) {
    fs::write(format!("/proc/{}/clear_refs", child.id()), "5").unwrap();
}

/// Reads until the server does nothing more for others, as its memory shows: its peak, which stays the same.
fn until_idle(server: &Server, session: &str, check: impl Fn(u64)) {
    let (mut peak, mut same) = (0, 0);
    until("the server is idle", || {
        let answer = server.rpc("session/read", &json!({ "session_id": session }));
        assert!(answer["result"].is_object(), "{answer}");
        let now = status(&server.child, "VmHWM");
        same = if now == peak { same + 1 } else { 0 };
        peak = now;
        check(peak);
        same == 40
    });
}

/// A server with a session that has more than a page of events.
fn server() -> (Server, String) {
    server_with("30000")
}

/// One that ends connections after this time without progress.
fn server_with(stall_ms: &str) -> (Server, String) {
    let server = Server::start(&[
        ("MEERKAT_SERVE__STALL_MS", stall_ms),
        ("MEERKAT_CONTEXT__OVERFLOW", "slide"),
        ("MEERKAT_MODEL__SCRIPTED_WINDOW_TOKENS", "5000000"),
        ("MEERKAT_TURN__LOOP_REPEATS", "1000"),
    ]);
    let session = server.session();
    let text = "y".repeat(62_000);
    let prompt = format!(r#"@repeat 80 @call none {{"text":"{text}"}} @say Done."#);
    let turn = server.rpc("turn/start", &json!({ "session_id": session, "prompt": prompt }));
    assert_eq!(turn["result"]["text"], "Done.");
    // The first read has costs of its own.
    server.rpc("session/events", &json!({ "session_id": session }));
    (server, session)
}

#[test]
fn answers_that_nobody_takes_are_bounded() {
    needs!("root, to forget the peak of a server" => rustix::process::geteuid().is_root());
    let (server, session) = server();
    let idle = status(&server.child, "VmRSS");
    forget_peak(&server.child);
    let mut socket = server.websocket();
    for id in 1..=256 {
        ask(&mut socket, id, "session/events", &json!({ "session_id": session }));
    }
    until_idle(&server, &session, |peak| assert!(peak < idle + COST_MAX, "{} MiB more", (peak - idle) / MIB));
    // They come when they are read.
    for _ in 0..5 {
        let answer: Value = serde_json::from_str(&text(&mut socket).unwrap()).unwrap();
        assert!(answer["result"]["items"].as_array().unwrap().len() > 50);
    }
}

#[test]
fn a_batch_is_bounded() {
    needs!("root, to forget the peak of a server" => rustix::process::geteuid().is_root());
    let (server, session) = server();
    let idle = status(&server.child, "VmRSS");
    forget_peak(&server.child);
    let call =
        |id| json!({ "jsonrpc": "2.0", "id": id, "method": "session/events", "params": { "session_id": session } });
    let batch: Vec<Value> = (0..100).map(call).collect();
    let answer = server.send_with_token("POST", "/rpc", &[], &json!(batch).to_string()).json();
    let peak = status(&server.child, "VmHWM");
    assert!(peak < idle + COST_MAX, "{} MiB more", (peak - idle) / MIB);
    let answers = answer.as_array().unwrap();
    assert_eq!(answers.len(), 100);
    let first = answers.iter().take_while(|answer| answer["result"].is_object()).count();
    assert!(first >= 2, "{first} were answered");
    for (answer, id) in answers.iter().zip(0..) {
        assert_eq!(answer["id"], id);
        if id >= first {
            assert_eq!(answer["error"]["data"]["code"], "PAYLOAD_TOO_LARGE", "{answer}");
        }
    }
}

/// The first ten had all the room, and everybody else was refused until they were closed.
#[test]
fn others_read_beside_many_that_take_nothing() {
    let (server, session) = server();
    let mut sockets = Vec::new();
    for _ in 0..16 {
        let mut socket = server.websocket();
        for id in 1..=20 {
            ask(&mut socket, id, "session/events", &json!({ "session_id": session }));
        }
        sockets.push(socket);
        let answer = server.send_with_token("GET", "/v1/sessions", &[], "");
        assert_eq!(answer.status, 200, "beside {}: {}", sockets.len(), answer.body);
    }
}

/// WebSockets that take nothing have all the room of their kind; a newcomer gets its answer when they have given way.
#[test]
fn those_that_take_nothing_give_way_to_a_newcomer() {
    let (server, session) = server();
    let mut sockets: Vec<_> = (0..16).map(|_| server.websocket()).collect();
    for socket in &mut sockets {
        for id in 1..=5 {
            ask(socket, id, "session/events", &json!({ "session_id": session }));
        }
    }
    let mut newcomer = server.websocket();
    ask(&mut newcomer, 1, "session/events", &json!({ "session_id": session, "limit": 1 }));
    let answer: Value = serde_json::from_str(&text(&mut newcomer).unwrap()).unwrap();
    assert!(answer["result"]["items"].is_array(), "a WebSocket: {answer}");
}

/// Clients that take nothing have all the room of single requests, until their connections are ended.
#[test]
fn single_requests_are_answered_when_those_that_take_nothing_are_ended() {
    let (server, session) = server_with("5000");
    let page = format!("/v1/sessions/{session}/events");
    let mut streams: Vec<_> = (0..32).map(|_| server.open("GET", &page, &server.headers_with_token(&[]), "")).collect();
    for stream in &mut streams {
        // More than the buffers of a socket take.
        for _ in 0..4 {
            write!(stream, "GET {page} HTTP/1.1\r\n{}\r\n", server.headers_with_token(&[])).unwrap();
        }
    }
    until("a single request is answered", || server.send_with_token("GET", &page, &[], "").status == 200);
}
