//! Connections that begin something and do not end it keep their place only until the header timeout.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use serde_json::{Value, json};

use crate::drive::{
    TOKEN,
    server::{Server, ask, text},
};

const CONNECTIONS: usize = 1000;

/// Milliseconds until they are closed: enough for a busy machine to send whole requests.
const HEADER_TIMEOUT_MS: &str = "10000";

/// Raises the test's own limit, because it holds the other ends.
pub(crate) fn raise_descriptors() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let needed = 2 * CONNECTIONS as u64;
    if current.is_some_and(|current| current < needed) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum }).unwrap();
    }
}

/// Lists what such connections send; of a body, one half.
fn beginnings(server: &Server) -> Vec<String> {
    let host = format!("host: 127.0.0.1:{}\r\n", server.port);
    let half_body = |path: &str, more: &str| {
        format!(
            "POST {path} HTTP/1.1\r\n{host}authorization: Bearer {TOKEN}\r\ncontent-type: application/json\r\n\
             accept: application/json, text/event-stream\r\n{more}\r\n\r\n{{\"half"
        )
    };
    vec![
        String::new(),
        // This may yet become HTTP/1 or HTTP/2.
        "P".to_owned(),
        "GET /hea".to_owned(),
        "GET /healthz HTTP/1.1\r\n".to_owned(),
        format!("GET /healthz HTTP/1.1\r\n{host}accept: "),
        half_body("/v1/sessions", "content-length: 100"),
        half_body("/rpc", "content-length: 100"),
        half_body("/mcp", "content-length: 100"),
        half_body("/nowhere", "content-length: 100"),
        half_body("/rpc", "transfer-encoding: chunked"),
        "PRI * HTTP/2.0\r\n\r\nSM".to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
    ]
}

/// Reads until the other side closes. A reset is a close too; a timeout is none.
fn wait_for_the_close(stream: &mut TcpStream) -> String {
    let mut seen = Vec::new();
    match stream.read_to_end(&mut seen) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "after {seen:?}"),
    }
    String::from_utf8_lossy(&seen).into_owned()
}

#[test]
fn half_open_connections_are_closed_while_others_are_answered() {
    raise_descriptors();
    let server = Server::start_limited(
        "-Sn 256",
        &[("MEERKAT_SERVE__HEADER_TIMEOUT_MS", HEADER_TIMEOUT_MS), ("MEERKAT_SERVE__MAX_CONNECTIONS", "1010")],
    );
    // One that was used is closed too when nothing more comes.
    let mut used = server.open("GET", "/healthz", &server.headers(&[]), "");
    let beginnings = beginnings(&server);
    let mut half_open = Vec::new();
    for beginning in beginnings.iter().cycle().take(CONNECTIONS) {
        let mut stream = server.connect();
        stream.write_all(beginning.as_bytes()).unwrap();
        half_open.push((beginning, stream));
        if half_open.len() % 100 == 0 {
            assert_eq!(server.send("GET", "/healthz", &[], "").status, 200, "beside {}", half_open.len());
        }
    }
    for (beginning, stream) in &mut half_open {
        let seen = wait_for_the_close(stream);
        assert!(!seen.contains(" 200 "), "{beginning:?}: {seen}");
    }
    assert!(wait_for_the_close(&mut used).starts_with("HTTP/1.1 200 "));
    assert_eq!(server.send("GET", "/healthz", &[], "").status, 200);
}

/// Connections that send nothing take none of the store's descriptors.
#[test]
fn idle_connections_leave_the_store_its_descriptors() {
    raise_descriptors();
    let server = Server::start_limited("-n 1024", &[("MEERKAT_SERVE__HEADER_TIMEOUT_MS", "600000")]);
    let mut socket = server.websocket();
    let idle: Vec<TcpStream> = (0..1020).map(|_| server.connect()).collect();
    let mut call = |id: u64, method: &str, params: Value| -> Value {
        ask(&mut socket, id, method, &params);
        serde_json::from_str(&text(&mut socket).unwrap()).unwrap()
    };
    for id in (0..40).step_by(2) {
        let session = call(id, "session/create", json!({}))["result"]["session_id"].clone();
        let turn = call(id + 1, "turn/start", json!({ "session_id": session, "prompt": "@say Yes." }));
        assert_eq!(turn["result"]["text"], "Yes.", "{turn}");
    }
    drop(idle);
}

/// There is no HTTP/2 here. A client that speaks it without asking is not kept waiting for an answer.
#[test]
fn a_client_that_speaks_http_2_is_closed_at_once() {
    let server = Server::start(&[("MEERKAT_SERVE__HEADER_TIMEOUT_MS", "3600000")]);
    let mut stream = server.connect();
    // The preface, and a frame with no settings.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    assert_eq!(wait_for_the_close(&mut stream), "");
}
