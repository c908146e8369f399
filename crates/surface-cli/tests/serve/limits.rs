//! What one caller may take, and the code that says it is too much, on every surface that it applies to.

use std::io::{BufReader, Write as _};

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::{Answer, NOBODY, Server, ask, mcp_result, read, read_head, refusal, status, until};

const SURFACES: [&str; 3] = ["/v1/sessions", "/rpc", "/mcp"];

fn too_large() -> (u16, String) {
    refusal(413, "PAYLOAD_TOO_LARGE")
}

/// Sends a body that does not say how long it is.
fn send_chunked(server: &Server, path: &str, bytes: usize) -> Answer {
    let mut stream = server.connect();
    let accept = ("accept", "application/json, text/event-stream");
    let head =
        format!("POST {path} HTTP/1.1\r\n{}transfer-encoding: chunked\r\n", server.headers_with_token(&[accept]));
    let body = " ".repeat(bytes);
    stream.write_all(format!("{head}\r\n{bytes:x}\r\n{body}\r\n0\r\n\r\n").as_bytes()).unwrap();
    read(stream)
}

/// The code of a message over a WebSocket that is an error.
fn rpc_code(message: &Message) -> (i64, String) {
    let message: Value = serde_json::from_str(message.to_text().unwrap()).unwrap();
    let error = &message["error"];
    (error["code"].as_i64().unwrap(), error["data"]["code"].as_str().unwrap().to_owned())
}

#[test]
fn bodies_have_a_limit() {
    let server = Server::start(&[("MEERKAT_SERVE__MAX_BODY_BYTES", "1000")]);
    for path in SURFACES {
        let long = server.send_with_token("POST", path, &[], &" ".repeat(1001));
        assert_eq!(long.refusal(), too_large(), "{path}");
        assert_eq!(send_chunked(&server, path, 1001).refusal(), too_large(), "{path}, chunked");
        // As long as it may be, it is read; there is nothing in it.
        assert_ne!(send_chunked(&server, path, 1000).refusal(), too_large(), "{path}");
    }
    let mut socket = server.websocket();
    socket.send(Message::text(" ".repeat(1001))).unwrap();
    assert_eq!(rpc_code(&socket.read().unwrap()), (-32054, "PAYLOAD_TOO_LARGE".to_owned()));
}

#[test]
fn heads_have_a_limit() {
    let server = Server::start(&[]);
    for path in SURFACES {
        let value = "x".repeat(16 * 1024);
        assert_eq!(server.send_with_token("POST", path, &[("x", &value)], "{}").refusal(), too_large(), "{path}");
        let many = vec![("x", "y"); 64];
        assert_eq!(server.send_with_token("POST", path, &many, "{}").refusal(), too_large(), "{path}");
        let target = format!("{path}?{value}");
        assert_eq!(server.send_with_token("GET", &target, &[], "").refusal(), too_large(), "{path}");
        // What is not even worth reading is answered before there is a request: a status and nothing more.
        let value = "x".repeat(40 * 1024);
        let answer = server.send_with_token("POST", path, &[("x", &value)], "");
        assert_eq!((answer.status, answer.body.as_str()), (431, ""), "{path}");
        let many = vec![("x", "y"); 200];
        assert_eq!(server.send_with_token("POST", path, &many, "").status, 431, "{path}");
    }
}

#[test]
fn batches_have_a_limit() {
    let server = Server::start(&[]);
    let batch = |count: usize| json!(vec![json!({ "jsonrpc": "2.0", "id": 1, "method": "errors/list" }); count]);
    let send = |count: usize| server.send_with_token("POST", "/rpc", &[], &batch(count).to_string());
    assert_eq!(send(100).json().as_array().unwrap().len(), 100);
    // The protocol has its own errors inside of a success.
    assert_eq!(send(101).refusal(), refusal(200, "INVALID_REQUEST"));
    let mut socket = server.websocket();
    socket.send(Message::text(batch(101).to_string())).unwrap();
    assert_eq!(rpc_code(&socket.read().unwrap()), (-32600, "INVALID_REQUEST".to_owned()));
    // MCP has no batches.
    let accept = [("accept", "application/json, text/event-stream")];
    let answer = server.send_with_token("POST", "/mcp", &accept, &batch(1).to_string());
    assert_eq!(answer.refusal(), refusal(400, "INVALID_REQUEST"));
}

#[test]
fn connections_have_a_limit() {
    // No connection was made before these two, so none can still hold its place. One becomes a WebSocket and keeps it.
    let server = Server::start(&[("MEERKAT_SERVE__MAX_CONNECTIONS", "2")]);
    let mut socket = server.websocket();
    let mut kept = BufReader::new(server.open("GET", "/healthz", &server.headers(&[]), ""));
    assert_eq!(status(&read_head(&mut kept)), 200);
    assert_eq!(read(server.connect()).refusal(), refusal(429, "TOO_MANY_CONNECTIONS"));
    ask(&mut socket, 1, "errors/list", &json!({}));
    assert!(socket.read().unwrap().to_text().unwrap().contains(r#""result""#));
}

#[test]
fn event_streams_have_a_limit() {
    let server = Server::start(&[("MEERKAT_SERVE__MAX_STREAMS", "2")]);
    let session = server.session();
    let follow = || {
        let mut stream = server.follow(&session, 0);
        (status(&read_head(&mut stream)), stream)
    };
    let kept = [follow(), follow()];
    assert_eq!(kept.each_ref().map(|(status, _)| *status), [200, 200]);
    let too_many = refusal(429, "TOO_MANY_CONNECTIONS");
    let stream = [("accept", "text/event-stream")];
    let events = format!("/v1/sessions/{session}/events");
    assert_eq!(server.send_with_token("GET", &events, &stream, "").refusal(), too_many);
    assert_eq!(server.send_with_token("GET", "/mcp", &stream, "").refusal(), too_many);
    let turns = format!("/v1/sessions/{session}/turns");
    assert_eq!(server.send_with_token("POST", &turns, &stream, r#"{"prompt":"Hi."}"#).refusal(), too_many);
    // What asks for no stream is answered, also where it could be by one; and no turn was begun.
    let page = server.mcp("session_events", &json!({ "session_id": session }));
    assert_eq!(page["structuredContent"]["next_seq"], 1);
    drop(kept);
    until("the server sees that they are closed", || follow().0 == 200);
}

#[test]
fn subscriptions_have_a_limit() {
    let server = Server::start(&[]);
    let session = server.session();
    let mut socket = server.websocket();
    for id in 1..=65 {
        ask(&mut socket, id, "session/subscribe", &json!({ "session_id": session, "since_seq": 1 }));
        let answer = socket.read().unwrap();
        match id {
            1..=64 => assert!(answer.to_text().unwrap().contains(r#""result""#), "{answer}"),
            _ => assert_eq!(rpc_code(&answer), (-32055, "TOO_MANY_CONNECTIONS".to_owned())),
        }
    }
}

#[test]
fn json_nests_and_has_keys_up_to_a_limit() {
    let server = Server::start(&[]);
    let nested = format!("{}{}", "[".repeat(64), "]".repeat(64));
    let keys: String = (0..10_000).map(|key| format!(r#""{key}":"","#)).collect();
    for (params, why) in [
        (format!(r#"{{"session_id":"{NOBODY}","labels":{nested}}}"#), "nests deeper"),
        (format!(r#"{{"session_id":"{NOBODY}",{keys}"labels":{{}}}}"#), "more than 10000 keys"),
    ] {
        let rest = server.send_with_token("POST", "/v1/sessions", &[], &params);
        assert_eq!(rest.refusal(), refusal(400, "INVALID_REQUEST"));
        assert!(rest.body.contains(why), "{}", rest.body);
        let call = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"session/update","params":{params}}}"#);
        let rpc = server.send_with_token("POST", "/rpc", &[], &call);
        assert_eq!(rpc.refusal(), refusal(200, "INVALID_REQUEST"));
        assert!(rpc.body.contains(why), "{}", rpc.body);
        let arguments: Value = serde_json::from_str(&params).unwrap();
        let mcp = mcp_result(server.open_mcp("session_update", &arguments));
        assert_eq!(mcp["structuredContent"]["code"], "INVALID_REQUEST");
        assert!(mcp.to_string().contains(why), "{mcp}");
    }
    // Brackets in a million are refused as quickly.
    let deep = "[".repeat(1_000_000);
    let accept = [("accept", "application/json, text/event-stream")];
    for (path, answered) in [("/v1/sessions", 400), ("/rpc", 200), ("/mcp", 400)] {
        let answer = server.send_with_token("POST", path, &accept, &deep);
        assert_eq!(answer.refusal(), refusal(answered, "INVALID_REQUEST"), "{path}");
    }
}
