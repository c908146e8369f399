//! Messages as bytes: too large ones, no JSON, and none of the protocol. Every answer is one of the protocol.

use std::collections::HashSet;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use meerkat_service::{Agent, service::CreateSession, wire::Answers};
use meerkat_surface_mcp::{HttpOptions, McpHttpService, serve_io, tools::Offer};
use rmcp::model::ProtocolVersion;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::{agent, http as service, soon};

type Answer = Response<BoxBody<Bytes, std::convert::Infallible>>;

/// A client on a pair of streams that reads and writes lines.
pub(crate) struct Wire(BufReader<DuplexStream>);

impl Wire {
    pub(crate) fn open(agent: &Agent, max_message_bytes: usize, pipe_bytes: usize) -> Self {
        let (near, far) = tokio::io::duplex(pipe_bytes);
        let server = serve_io(
            agent.service().clone(),
            Offer::ALL,
            tokio::io::split(far),
            max_message_bytes,
            CancellationToken::new(),
        );
        tokio::spawn(server);
        Self(BufReader::new(near))
    }

    pub(crate) async fn write(&mut self, messages: &[Value]) {
        let lines: String = messages.iter().map(|message| message.to_string() + "\n").collect();
        self.0.write_all(lines.as_bytes()).await.unwrap();
    }

    /// The next line, which must be of the protocol.
    pub(crate) async fn read(&mut self) -> Value {
        let mut line = String::new();
        soon(self.0.read_line(&mut line)).await.unwrap();
        let message: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(message["jsonrpc"], "2.0");
        message
    }

    pub(crate) async fn initialize(&mut self, version: &str) {
        self.initialize_with(version, &json!({})).await;
    }

    /// As a client with these capabilities.
    pub(crate) async fn initialize_with(&mut self, version: &str, capabilities: &Value) {
        let mut request = initialize(version);
        request["params"]["capabilities"] = capabilities.clone();
        self.write(&[request, json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })]).await;
        assert_eq!(self.read().await["result"]["protocolVersion"], version);
    }
}

fn initialize(version: &str) -> Value {
    let params =
        json!({ "protocolVersion": version, "capabilities": {}, "clientInfo": { "name": "t", "version": "0" } });
    json!({ "jsonrpc": "2.0", "id": "i", "method": "initialize", "params": params })
}

/// A client over HTTP without a socket.
pub(crate) struct Http {
    service: McpHttpService,
    version: ProtocolVersion,
    session: Option<String>,
}

impl Http {
    pub(crate) async fn open(service: McpHttpService, version: &ProtocolVersion) -> Self {
        let mut client = Self { service, version: version.clone(), session: None };
        if version.has_initialize() {
            let answer = client.send(Method::POST, &[], initialize(version.as_str()).to_string()).await;
            client.session = answer.headers().get("mcp-session-id").map(|id| id.to_str().unwrap().to_owned());
            assert!(body_text(answer).await.contains(version.as_str()));
        }
        client
    }

    async fn send(&self, method: Method, headers: &[(&str, &str)], body: String) -> Answer {
        let mut request = Request::builder()
            .method(method)
            .uri("/mcp")
            .header("host", "anybody.example")
            .header("origin", "https://anybody.example")
            .header("accept", "application/json, text/event-stream")
            .header("content-type", "application/json");
        if let Some(session) = &self.session {
            request = request.header("mcp-session-id", session);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.service.clone().oneshot(request.body(Full::<Bytes>::from(body)).unwrap()).await.unwrap()
    }

    pub(crate) async fn request(&self, method: &str, mut params: Value) -> Answer {
        let name = params["name"].as_str().or(params["uri"].as_str()).unwrap_or_default().to_owned();
        let version = self.version.as_str();
        let mut headers = vec![("mcp-protocol-version", version)];
        if !self.version.has_initialize() {
            headers.extend([("mcp-method", method), ("mcp-name", &name)]);
            describe(&mut params, &json!({}));
        }
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        self.send(Method::POST, &headers, body.to_string()).await
    }
}

/// Puts into a request of the newest revision what it says of its client.
pub(crate) fn describe(params: &mut Value, capabilities: &Value) {
    for (key, value) in [
        ("protocolVersion", json!(ProtocolVersion::V_2026_07_28)),
        ("clientInfo", json!({ "name": "t", "version": "0" })),
        ("clientCapabilities", capabilities.clone()),
    ] {
        params["_meta"][format!("io.modelcontextprotocol/{key}")] = value;
    }
}

pub(crate) async fn body_text(answer: Answer) -> String {
    String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// Status, number and code of a refusal.
async fn refusal(answer: Answer) -> (u16, i64, String) {
    let status = answer.status().as_u16();
    let message: Value = serde_json::from_str(&body_text(answer).await).unwrap();
    let error = &message["error"];
    (status, error["code"].as_i64().unwrap(), error["data"]["code"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn a_refusal_of_the_transport_has_a_status_and_the_body() {
    let agent = agent();
    let options = HttpOptions { max_message_bytes: 10_000, ..HttpOptions::default() };
    let with = McpHttpService::new(agent.service().clone(), options);
    let mut client = Http::open(with, &ProtocolVersion::V_2025_11_25).await;
    let post = async |client: &Http, body: String| refusal(client.send(Method::POST, &[], body).await).await;
    let invalid = |status: u16, number: i64| (status, number, "INVALID_REQUEST".to_owned());
    let too_large = meerkat_service::ErrorCode::PayloadTooLarge;
    let expected = (413, i64::from(too_large.rpc_code()), too_large.as_str().to_owned());
    assert_eq!(post(&client, "x".repeat(10_001)).await, expected);
    assert_eq!(post(&client, "{".to_owned()).await, invalid(400, -32700));
    assert_eq!(post(&client, "[]".to_owned()).await, invalid(400, -32600));
    assert_eq!(post(&client, "[".repeat(4000) + &"]".repeat(4000)).await, invalid(400, -32600));
    client.session = Some("nobody's".to_owned());
    assert_eq!(
        post(&client, json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" }).to_string()).await,
        invalid(404, -32600)
    );

    let answer = client.send(Method::PUT, &[], String::new()).await;
    assert_eq!(answer.headers()["allow"], "GET, POST, DELETE");
    let code = meerkat_service::ErrorCode::MethodNotAllowed;
    assert_eq!(refusal(answer).await, (405, i64::from(code.rpc_code()), code.as_str().to_owned()));
}

#[tokio::test]
async fn the_session_that_was_idle_for_the_longest_time_gives_way() {
    let agent = agent();
    let service = service(&agent);
    let mut clients = Vec::new();
    for _ in 0..1000 {
        clients.push(Http::open(service.clone(), &ProtocolVersion::V_2025_06_18).await);
    }
    let sessions: HashSet<&str> = clients.iter().filter_map(|client| client.session.as_deref()).collect();
    assert_eq!(sessions.len(), 1000);
    // A session that reads its stream is not idle, however old its request is.
    let stream = clients[1].send(Method::GET, &[], String::new()).await;
    assert_eq!(stream.status(), 200);
    for client in (0..1000).filter(|client| *client != 1) {
        assert_eq!(clients[client].request("ping", json!({})).await.status(), 200);
    }
    clients.push(Http::open(service, &ProtocolVersion::V_2025_06_18).await);
    assert!(clients[1000].session.is_some(), "whoever comes is served as everyone");
    for (client, status) in [(0, 404), (1, 200), (2, 200), (1000, 200)] {
        let answer = clients[client].request("tools/call", json!({ "name": "session_create", "arguments": {} })).await;
        assert_eq!(answer.status(), status, "client {client}");
    }
}

/// A result keeps its room until it is read; without room, other reads are refused after a while.
#[tokio::test(start_paused = true)]
async fn results_that_nobody_takes_have_a_limit() {
    let agent = agent();
    for version in [ProtocolVersion::V_2025_11_25, ProtocolVersion::V_2026_07_28] {
        let options = HttpOptions { answers: Answers::new(6 * 1024 * 1024), ..HttpOptions::default() };
        let service = McpHttpService::new(agent.service().clone(), options);
        let client = Http::open(service, &version).await;
        let session = agent.service().create_session(CreateSession::default()).await.unwrap().session_id;
        let calls = [
            ("tools/call", json!({ "name": "session_events", "arguments": { "session_id": session } })),
            ("resources/read", json!({ "uri": format!("meerkat://sessions/{session}") })),
        ];
        for (method, params) in calls {
            let mut kept = client.request(method, params.clone()).await.into_body();
            // An event of such a stream may come before its result.
            let mut pieces = Vec::new();
            while !pieces.iter().any(|piece: &Bytes| String::from_utf8_lossy(piece).contains("session_created")) {
                pieces.push(kept.frame().await.unwrap().unwrap().into_data().unwrap());
            }
            let refused = body_text(client.request(method, params.clone()).await).await;
            assert!(refused.contains("TOO_MANY_CONNECTIONS"), "{method} {version}: {refused}");
            drop((kept, pieces));
            let taken = body_text(client.request(method, params).await).await;
            assert!(taken.contains("session_created"), "{method} {version}: {taken}");
        }
    }
}

/// If a client sends nonsense and reads nothing, the server stops reading, so the answers take no memory.
#[tokio::test]
async fn nonsense_is_answered_before_more_of_it_is_read() {
    let agent = agent();
    let mut wire = Wire::open(&agent, 2000, 4096);
    wire.initialize("2024-11-05").await;
    let mut lines = 0;
    let nonsense = async {
        loop {
            wire.0.write_all(b"{\n").await.unwrap();
            lines += 1;
        }
    };
    let everybody_else = async {
        for _ in 0..2000 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = nonsense => {}
        () = everybody_else => {}
    }
    assert!(lines < 10_000, "{lines} lines were taken in");
}

/// Number and code of a refusal.
fn refused(message: &Value) -> (i64, &str) {
    (message["error"]["code"].as_i64().unwrap(), message["error"]["data"]["code"].as_str().unwrap())
}

#[tokio::test]
async fn every_line_is_answered_and_leaves_the_connection_whole() {
    let agent = agent();
    let mut wire = Wire::open(&agent, 2000, 1 << 20);
    wire.initialize("2024-11-05").await;
    let too_large = meerkat_service::ErrorCode::PayloadTooLarge;
    let deep = "[".repeat(900) + &"]".repeat(900);
    let lines = [
        ("x".repeat(2001), (i64::from(too_large.rpc_code()), too_large.as_str())),
        ("x".repeat(70_000), (i64::from(too_large.rpc_code()), too_large.as_str())),
        ("{".to_owned(), (-32700, "INVALID_REQUEST")),
        ("[]".to_owned(), (-32600, "INVALID_REQUEST")),
        (deep, (-32600, "INVALID_REQUEST")),
    ];
    for (line, expected) in lines {
        wire.0.write_all(format!("\r\n{line}\r\n").as_bytes()).await.unwrap();
        assert_eq!(refused(&wire.read().await), expected, "{line}");
    }
    let call = |id: i64, params: Value| json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params });
    let capabilities = call(1, json!({ "name": "capabilities" })).to_string();
    // A message may be as long as its limit, and arrive in any pieces.
    let padded = format!("{capabilities:<2000}\n");
    for piece in padded.as_bytes().chunks(7) {
        wire.0.write_all(piece).await.unwrap();
        tokio::task::yield_now().await;
    }
    let build = meerkat_service::Capabilities::compiled().view().build;
    assert_eq!(wire.read().await["result"]["structuredContent"]["build"], build);
    for params in [json!({ "name": "turn_start", "arguments": 7 }), json!({ "arguments": {} })] {
        wire.write(&[call(2, params)]).await;
        assert_eq!(refused(&wire.read().await), (-32602, "INVALID_REQUEST"));
    }
    wire.write(&[json!({ "jsonrpc": "2.0", "id": 3, "method": "sessions/fly" })]).await;
    assert_eq!(refused(&wire.read().await), (-32601, "UNKNOWN_OPERATION"));
    let deep: Value = serde_json::from_str(&("[".repeat(100) + &"]".repeat(100))).unwrap();
    wire.write(&[call(4, json!({ "name": "session_create", "arguments": { "labels": deep } }))]).await;
    assert_eq!(wire.read().await["result"]["structuredContent"]["code"], "INVALID_REQUEST");
}

#[tokio::test]
async fn a_session_of_the_protocol_ends_with_nothing_to_say() {
    let agent = agent();
    let client = Http::open(service(&agent), &ProtocolVersion::V_2025_06_18).await;
    let answer = client.send(Method::DELETE, &[], String::new()).await;
    assert_eq!(answer.status(), 204);
    assert_eq!(body_text(answer).await, "");
}

/// Even if the library itself refuses, and for known methods with parameters that it cannot read.
#[tokio::test]
async fn every_refusal_of_a_method_has_the_body() {
    let agent = agent();
    let mut wire = Wire::open(&agent, 2000, 1 << 20);
    wire.initialize("2025-06-18").await;
    let uri = json!({ "uri": "meerkat://sessions/x" });
    let completion = json!({ "ref": { "type": "ref/prompt", "name": "x" }, "argument": { "name": "x", "value": "" } });
    for (method, params, expected) in [
        ("logging/setLevel", json!({ "level": "info" }), (-32601, "UNKNOWN_OPERATION")),
        ("resources/subscribe", uri.clone(), (-32601, "UNKNOWN_OPERATION")),
        ("resources/unsubscribe", uri, (-32601, "UNKNOWN_OPERATION")),
        ("prompts/list", json!({}), (-32601, "UNKNOWN_OPERATION")),
        ("prompts/get", json!({ "name": "x" }), (-32601, "UNKNOWN_OPERATION")),
        ("completion/complete", completion, (-32601, "UNKNOWN_OPERATION")),
        ("resources/read", json!({ "uri": 7 }), (-32602, "INVALID_REQUEST")),
    ] {
        wire.write(&[json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params })]).await;
        let answer = wire.read().await;
        assert_eq!(answer["error"]["data"]["code"], expected.1, "{method}: {answer}");
        assert_eq!(refused(&answer), expected, "{method}");
    }
}
