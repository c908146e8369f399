//! The feature `otel`: a server's spans reach a collector, which here is a listener of the test.

#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
    sync::mpsc,
};

use serde_json::Value;

const TOKEN: &str = "a-token-for-tests-0123456789";

/// Reads an HTTP message: its first line and its body.
fn read(stream: TcpStream) -> (String, Vec<u8>) {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).unwrap();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        match line.trim_end().to_lowercase().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().unwrap(),
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    (first, body)
}

/// A collector that takes everything: what was asked of it, and with which bytes.
fn collector() -> (u16, mpsc::Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, taken) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let request = read(stream.try_clone().unwrap());
            stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").unwrap();
            if sender.send(request).is_err() {
                return;
            }
        }
    });
    (port, taken)
}

/// A field of Protocol Buffers that is a text or a message shorter than 128 bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

/// An attribute that is a text, as OTLP writes it.
fn attribute(key: &str, value: &str) -> Vec<u8> {
    [field(1, key.as_bytes()), field(2, &field(1, value.as_bytes()))].concat()
}

fn post(address: &str, path: &str, body: &str) -> Value {
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!("POST {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {TOKEN}");
    let length = body.len();
    let request = format!("{head}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).unwrap();
    serde_json::from_slice(&read(stream).1).unwrap()
}

#[test]
fn the_spans_of_requests_and_turns_reach_the_collector_by_the_end() {
    let (port, taken) = collector();
    let dir = tempfile::TempDir::new().unwrap();
    let mut server = Command::new(env!("CARGO_BIN_EXE_meerkat"))
        .args(["--json", "serve", "--rest", "--listen", "127.0.0.1:0"])
        .env_clear()
        .env("HOME", dir.path())
        .env("MEERKAT_TOKEN", TOKEN)
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://127.0.0.1:{port}"))
        .current_dir(dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    let address = ready["listening"].as_str().unwrap().trim_start_matches("http://");

    let session = post(address, "/v1/sessions", "{}")["session_id"].as_str().unwrap().to_owned();
    let turn = post(address, &format!("/v1/sessions/{session}/turns"), r#"{"prompt":"hello"}"#);
    assert_eq!(turn["status"], "completed");
    let refused = post(address, &format!("/v1/sessions/{session}/turns"), r#"{"prompt":""}"#);
    assert_eq!(refused["code"], "INVALID_REQUEST");
    assert!(Command::new("kill").args(["-TERM", &server.id().to_string()]).status().unwrap().success());
    assert!(server.wait().unwrap().success());

    let (asked, bodies): (Vec<_>, Vec<_>) = taken.try_iter().unzip();
    assert!(!asked.is_empty() && asked.iter().all(|line| line.starts_with("POST /v1/traces ")), "{asked:?}");
    let sent = bodies.concat();
    let has = |bytes: &[u8]| sent.windows(bytes.len()).any(|window| window == bytes);
    for name in ["http", "request", "turn", "model_call"] {
        assert!(has(&field(5, name.as_bytes())), "no span is named {name}");
    }
    for (key, value) in [
        ("service.name", "meerkat"),
        ("request_id", "req-0"),
        ("surface", "rest"),
        ("operation", "start_turn"),
        ("session_id", &session),
        ("code", "OK"),
        ("code", "INVALID_REQUEST"),
        ("outcome", "turn_completed"),
    ] {
        assert!(has(&attribute(key, value)), "no span says {key} = {value}");
    }
}
