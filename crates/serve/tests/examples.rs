//! The example serves its tool on every surface, and ends when it is told to.

#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};

/// The example, as `cargo test` has built it beside this test.
fn start() -> (Child, String, String) {
    let here = std::env::current_exe().unwrap();
    let program = here.parent().unwrap().parent().unwrap().join("examples").join("serve");
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let (url, token) = line.trim().split_once(' ').unwrap();
    let address = url.trim_start_matches("http://").to_owned();
    (child, address, token.to_owned())
}

/// Status and body of an answer.
fn post(address: &str, path: &str, headers: &str, body: &Value) -> (u16, Value) {
    let mut stream = TcpStream::connect(address).unwrap();
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\nconnection: close\r\n{headers}\
         content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap_or_else(|_| json!(body)))
}

/// Whether the answer of a turn has the tool's result.
fn says(result: &Value) -> bool {
    result["text"].as_str().is_some_and(|text| text.contains("It is noon."))
}

#[test]
fn a_program_with_a_tool_of_its_own_serves_all_three() {
    let (mut child, address, token) = start();
    let headers = format!("authorization: Bearer {token}\r\naccept: application/json, text/event-stream\r\n");
    let (status, refused) = post(&address, "/v1/sessions", "", &json!({}));
    assert_eq!((status, &refused["code"]), (401, &json!("UNAUTHENTICATED")));

    let plain = format!("authorization: Bearer {token}\r\n");
    let (_, session) = post(&address, "/v1/sessions", &plain, &json!({}));
    let session = session["session_id"].as_str().unwrap();
    let prompt = json!({ "prompt": "@call clock {} @echo last_result" });
    let (status, result) = post(&address, &format!("/v1/sessions/{session}/turns"), &plain, &prompt);
    assert!(status == 200 && says(&result), "{result}");

    let params = json!({ "session_id": session, "prompt": "@call clock {} @echo last_result" });
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "turn/start", "params": params });
    let (_, answer) = post(&address, "/rpc", &plain, &call);
    assert!(says(&answer["result"]), "{answer}");

    let client = json!({ "name": "test", "version": "1" });
    let params = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client });
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
    let (status, answer) = post(&address, "/mcp", &headers, &call);
    assert!(status == 200 && answer.to_string().contains("serverInfo"), "{answer}");

    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert_eq!(std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples")).unwrap().count(), 1);
}
