//! The feature `otel`: a server's spans reach a collector, which here is a listener of the test.

#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

#[path = "drive/mod.rs"]
mod drive;

use std::sync::mpsc;

use serde_json::json;

use self::drive::{fake, server::Server};

/// A field of Protocol Buffers that is a text or a message shorter than 128 bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

/// An attribute that is a text, as OTLP writes it.
fn attribute(key: &str, value: &str) -> Vec<u8> {
    [field(1, key.as_bytes()), field(2, &field(1, value.as_bytes()))].concat()
}

/// Starts a server with these variables, asks it, and returns all bytes that its collector has at its end.
fn sent<T>(env: &[(&str, &str)], ask: impl FnOnce(&Server) -> T) -> (T, Vec<u8>) {
    let (sender, taken) = mpsc::channel();
    let port = fake::serve(move |asked| {
        sender.send((asked.line, asked.body)).unwrap();
        Some((200, "application/x-protobuf", String::new()))
    });
    let collector = format!("http://127.0.0.1:{port}");
    let mut server = Server::start(&[env, &[("OTEL_EXPORTER_OTLP_ENDPOINT", &collector)]].concat());
    let asked = ask(&server);
    server.terminate();
    assert!(server.child.wait().unwrap().success());
    let (lines, bodies): (Vec<_>, Vec<_>) = taken.try_iter().unzip();
    assert!(!lines.is_empty() && lines.iter().all(|line| line.starts_with("POST /v1/traces ")), "{lines:?}");
    (asked, bodies.concat())
}

/// How often these bytes were sent.
fn count(sent: &[u8], bytes: &[u8]) -> usize {
    sent.windows(bytes.len()).filter(|window| *window == bytes).count()
}

#[test]
fn the_spans_of_requests_and_turns_reach_the_collector_by_the_end() {
    let (session, sent) = sent(&[], |server| {
        let session = server.session();
        let turns = format!("/v1/sessions/{session}/turns");
        assert_eq!(server.send_with_token("POST", &turns, &[], r#"{"prompt":"hello"}"#).json()["status"], "completed");
        let refused = server.send_with_token("POST", &turns, &[], r#"{"prompt":""}"#);
        assert_eq!(refused.json()["code"], "INVALID_REQUEST");
        session
    });
    for name in ["http", "request", "turn", "model_call"] {
        assert!(count(&sent, &field(5, name.as_bytes())) > 0, "no span is named {name}");
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
        assert!(count(&sent, &attribute(key, value)) > 0, "no span says {key} = {value}");
    }
}

/// A request that is refused before anything of it is looked at has its span all the same.
#[test]
fn what_is_refused_for_a_missing_capability_has_its_span_on_each_surface() {
    const CODE: &str = "SESSION_PERSISTENCE_DISABLED";
    let ((), sent) = sent(&[("MEERKAT_STORE__ENABLED", "false")], |server| {
        assert_eq!(server.send_with_token("GET", "/v1/sessions", &[], "").json()["code"], CODE);
        assert_eq!(server.rpc("session/list", &json!({}))["error"]["data"]["code"], CODE);
        let refused = server.mcp("session_list", &json!({}));
        assert!(refused["isError"] == true && refused.to_string().contains(CODE), "{refused}");
    });
    assert_eq!(count(&sent, &attribute("code", CODE)), 3);
    for surface in ["rest", "rpc", "mcp"] {
        assert_eq!(count(&sent, &attribute("surface", surface)), 1, "{surface}");
    }
}
