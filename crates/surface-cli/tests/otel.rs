//! The feature `otel`: a server's spans reach a collector, which here is a listener of the test.

#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

#[path = "drive/mod.rs"]
mod drive;

use std::sync::mpsc;

use self::drive::{fake, server::Server};

/// A field of Protocol Buffers that is a text or a message shorter than 128 bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

/// An attribute that is a text, as OTLP writes it.
fn attribute(key: &str, value: &str) -> Vec<u8> {
    [field(1, key.as_bytes()), field(2, &field(1, value.as_bytes()))].concat()
}

#[test]
fn the_spans_of_requests_and_turns_reach_the_collector_by_the_end() {
    let (sender, taken) = mpsc::channel();
    let port = fake::serve(move |asked| {
        sender.send((asked.line, asked.body)).unwrap();
        Some((200, "application/x-protobuf", String::new()))
    });
    let mut server = Server::start(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://127.0.0.1:{port}"))]);
    let session = server.session();
    let turns = format!("/v1/sessions/{session}/turns");
    assert_eq!(server.send_with_token("POST", &turns, &[], r#"{"prompt":"hello"}"#).json()["status"], "completed");
    let refused = server.send_with_token("POST", &turns, &[], r#"{"prompt":""}"#);
    assert_eq!(refused.json()["code"], "INVALID_REQUEST");
    server.terminate();
    assert!(server.child.wait().unwrap().success());

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
