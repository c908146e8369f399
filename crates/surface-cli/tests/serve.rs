//! `meerkat serve` as a process: its guard in front of every surface, its limits, and its end.

#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;

const TOKEN: &str = "a-token-for-tests-0123456789";

/// A server that ends with its test.
struct Server {
    child: Child,
    port: u16,
    _dir: TempDir,
}

/// An answer: its status, and what follows the head.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn code(&self) -> String {
        let body: Value = serde_json::from_str(&self.body).unwrap();
        // A guard's body, or one inside of a protocol's envelope.
        body["code"].as_str().unwrap_or_default().to_owned()
    }
}

fn command(dir: &TempDir, args: &[&str], env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meerkat"));
    command.args(args).env_clear().env("HOME", dir.path()).current_dir(dir.path());
    command.envs(env.iter().copied());
    command
}

impl Server {
    fn start(env: &[(&str, &str)]) -> Self {
        let dir = TempDir::new().unwrap();
        let args = ["--json", "serve", "--rest", "--rpc", "--mcp", "--listen", "127.0.0.1:0"];
        let mut env = env.to_vec();
        env.push(("MEERKAT_TOKEN", TOKEN));
        let mut child = command(&dir, &args, &env).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(ready["surfaces"], serde_json::json!(["rest", "rpc", "mcp"]));
        let port = ready["listening"].as_str().unwrap().rsplit_once(':').unwrap().1.parse().unwrap();
        Self { child, port, _dir: dir }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Sends a request with these headers and nothing else but a Host.
    fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let host = format!("127.0.0.1:{}", self.port);
        let has_host = headers.iter().any(|(name, _)| *name == "host");
        let mut request = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
        if !has_host {
            request.push_str(&format!("host: {host}\r\n"));
        }
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() {
            request.push_str(&format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len()));
        }
        let mut stream = self.connect();
        stream.write_all(format!("{request}\r\n{body}").as_bytes()).unwrap();
        read(stream)
    }

    fn send_with_token(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let authorization = format!("Bearer {TOKEN}");
        let mut headers = headers.to_vec();
        headers.push(("authorization", &authorization));
        self.send(method, path, &headers, body)
    }

    fn terminate(&self) {
        let killed = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(killed.success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already, as some tests ask it to.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn read(mut stream: TcpStream) -> Answer {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap();
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}

/// Every path that something is served at, found by walking the tables.
fn places() -> Vec<(String, String, String)> {
    let id = "01900000-0000-7000-8000-000000000001";
    let mut places: Vec<(String, String, String)> = meerkat_surface_rest::table()
        .iter()
        .map(|route| (route.method.to_string(), filled(&route.full_path(), id), String::new()))
        .collect();
    for (name, _) in meerkat_surface_rpc::METHODS {
        places.push(("POST".into(), "/rpc".into(), format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{name}"}}"#)));
    }
    for tool in meerkat_surface_mcp::tools::all() {
        let call = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{}","arguments":{{}}}}}}"#,
            tool.name
        );
        places.push(("POST".into(), "/mcp".into(), call));
    }
    for path in ["/openapi.json", "/readyz", "/metrics", "/", "/v2", "/mcp"] {
        places.push(("GET".into(), path.into(), String::new()));
    }
    places
}

/// A route's path with an id in place of each parameter.
fn filled(path: &str, id: &str) -> String {
    path.split('/').map(|part| if part.starts_with('{') { id } else { part }).collect::<Vec<_>>().join("/")
}

#[test]
fn nothing_but_the_health_is_open_without_a_token() {
    let server = Server::start(&[]);
    assert_eq!(server.send("GET", "/healthz", &[], "").status, 200);
    let places = places();
    assert!(places.len() > 80, "the tables were walked: {}", places.len());
    for (method, path, body) in places {
        let answer = server.send(&method, &path, &[], &body);
        assert_eq!((answer.status, answer.code().as_str()), (401, "UNAUTHENTICATED"), "{method} {path} {body}");
        assert!(answer.head.contains("www-authenticate: bearer"), "{}", answer.head);
    }
}

#[test]
fn hostile_hosts_and_origins_reach_no_surface() {
    let server = Server::start(&[]);
    let port = server.port;
    let own = format!("127.0.0.1:{port}");
    let hosts = [
        "evil.example".to_owned(),
        format!("evil.example:{port}"),
        "localhost:1".into(),
        format!("localhost.evil.example:{port}"),
    ];
    let origins = [
        "null".to_owned(),
        "http://evil.example".into(),
        format!("http://evil.example:{port}"),
        format!("https://localhost:{port}"),
    ];
    for path in ["/v1/capabilities", "/rpc", "/mcp", "/healthz", "/openapi.json"] {
        for host in &hosts {
            let answer = server.send_with_token("POST", path, &[("host", host)], "{}");
            assert_eq!((answer.status, answer.code().as_str()), (403, "FORBIDDEN_ORIGIN"), "{path} {host}");
        }
        for origin in &origins {
            let answer = server.send_with_token("POST", path, &[("host", &own), ("origin", origin)], "{}");
            assert_eq!((answer.status, answer.code().as_str()), (403, "FORBIDDEN_ORIGIN"), "{path} {origin}");
        }
    }
    let own_origin = format!("http://localhost:{port}");
    assert_eq!(server.send_with_token("GET", "/v1/capabilities", &[("origin", &own_origin)], "").status, 200);
}

#[test]
fn one_session_is_the_same_on_every_surface() {
    let server = Server::start(&[]);
    let created = server.send_with_token("POST", "/v1/sessions", &[], "{}");
    let created: Value = serde_json::from_str(&created.body).unwrap();
    let id = created["session_id"].as_str().unwrap();
    let turn = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"turn/start","params":{{"session_id":"{id}","prompt":"@say One truth."}}}}"#
    );
    let turn = server.send_with_token("POST", "/rpc", &[], &turn);
    assert!(turn.body.contains(r#""text":"One truth.""#), "{}", turn.body);
    let page = server.send_with_token(
        "GET",
        &format!("/v1/sessions/{id}/events?since_seq=2"),
        &[("accept", "application/json")],
        "",
    );
    assert!(
        page.body.contains(r#""type":"assistant_message""#) && page.body.ends_with(r#""next_seq":4}"#),
        "{}",
        page.body
    );
}

#[test]
fn a_bind_that_others_can_reach_is_refused_without_a_token() {
    let dir = TempDir::new().unwrap();
    let serve = |args: &[&str], env: &[(&str, &str)]| {
        let args: Vec<&str> = ["--json", "serve", "--rest"].iter().chain(args).copied().collect();
        let output = command(&dir, &args, env).output().unwrap();
        let body: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code().unwrap(), body["code"].as_str().unwrap().to_owned())
    };
    assert_eq!(serve(&["--listen", "0.0.0.0:0", "--no-auth"], &[]), (31, "CONFIG_INVALID".to_owned()));
    let tools = [("MEERKAT_TOOLS__TEST_DIR", "/nowhere"), ("MEERKAT_TOKEN", TOKEN)];
    assert_eq!(serve(&["--listen", "0.0.0.0:0"], &tools), (31, "CONFIG_INVALID".to_owned()));
    assert_eq!(serve(&["--listen", "somewhere"], &[]), (31, "CONFIG_INVALID".to_owned()));
    assert_eq!(serve(&[], &[("MEERKAT_TOKEN", "short")]), (31, "CONFIG_INVALID".to_owned()));
    let nothing = command(&dir, &["--json", "serve"], &[]).output().unwrap();
    assert_eq!(nothing.status.code(), Some(2), "it must be said what to serve");
}

#[test]
fn half_open_connections_are_closed_while_others_are_answered() {
    let server =
        Server::start(&[("MEERKAT_SERVE__HEADER_TIMEOUT_MS", "2000"), ("MEERKAT_SERVE__MAX_CONNECTIONS", "600")]);
    let half_open: Vec<TcpStream> = (0..400)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: ").unwrap();
            stream
        })
        .collect();
    assert_eq!(server.send("GET", "/healthz", &[], "").status, 200);
    for mut stream in half_open {
        let mut rest = Vec::new();
        // Closed, with or without a word; a reset is a close too.
        drop(stream.read_to_end(&mut rest));
        assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
    }
    assert_eq!(server.send("GET", "/healthz", &[], "").status, 200);
}

#[test]
fn bodies_have_a_limit() {
    let server = Server::start(&[("MEERKAT_SERVE__MAX_BODY_BYTES", "1000")]);
    let long = format!(r#"{{"system_prompt":"{}"}}"#, "x".repeat(2000));
    for path in ["/v1/sessions", "/rpc", "/mcp"] {
        let answer = server.send_with_token("POST", path, &[], &long);
        assert_eq!((answer.status, answer.code().as_str()), (413, "PAYLOAD_TOO_LARGE"), "{path}");
    }
}

#[test]
fn connections_have_a_limit() {
    // No connection was made before these two, so none can still hold its place.
    let server = Server::start(&[("MEERKAT_SERVE__MAX_CONNECTIONS", "2")]);
    let mut kept = [server.connect(), server.connect()];
    for stream in &mut kept {
        stream
            .write_all(format!("GET /healthz HTTP/1.1\r\nhost: 127.0.0.1:{}\r\n\r\n", server.port).as_bytes())
            .unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
    }
    let answer = read(server.connect());
    assert_eq!((answer.status, answer.code().as_str()), (429, "TOO_MANY_CONNECTIONS"));
}

/// SIGTERM while a turn runs: it is interrupted with an event after the drain limit, streams end, and the exit is clean.
#[test]
fn a_server_that_is_told_to_end_ends_cleanly() {
    let mut server = Server::start(&[("MEERKAT_SERVE__DRAIN_MS", "100")]);
    let created: Value = serde_json::from_str(&server.send_with_token("POST", "/v1/sessions", &[], "{}").body).unwrap();
    let id = created["session_id"].as_str().unwrap();
    let mut follower = server.connect();
    let head = format!(
        "GET /v1/sessions/{id}/events HTTP/1.1\r\nhost: 127.0.0.1:{}\r\nauthorization: Bearer {TOKEN}\r\naccept: text/event-stream\r\n\r\n",
        server.port
    );
    follower.write_all(head.as_bytes()).unwrap();
    let turn = server.send_with_token(
        "POST",
        &format!("/v1/sessions/{id}/turns"),
        &[("prefer", "respond-async")],
        r#"{"prompt":"@stall"}"#,
    );
    assert_eq!(turn.status, 202);
    server.terminate();
    let mut seen = String::new();
    follower.read_to_string(&mut seen).unwrap();
    assert!(seen.contains(r#""type":"turn_interrupted","reason":"shutting_down""#), "{seen}");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

/// A thousand connections that are dropped at odd moments, over three ways to read, while turns run: every event is
/// seen once and in order.
#[test]
fn a_thousand_disconnects_lose_and_repeat_nothing() {
    const TURNS: u64 = 700;
    let server = Server::start(&[]);
    let created: Value = serde_json::from_str(&server.send_with_token("POST", "/v1/sessions", &[], "{}").body).unwrap();
    let id = created["session_id"].as_str().unwrap();
    let last = 1 + 3 * TURNS;
    let (mut cursor, mut connections, mut random) = (0, 0, 0x2545_f491_4f6c_dd1d_u64);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..TURNS {
                let turn = server.send_with_token(
                    "POST",
                    &format!("/v1/sessions/{id}/turns"),
                    &[],
                    r#"{"prompt":"@say On."}"#,
                );
                assert_eq!(turn.status, 200);
            }
        });
        while cursor < last {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            connections += 1;
            let wanted = 1 + random % 3;
            let seqs = match random % 4 {
                0 => page_over_rest(&server, id, cursor, wanted),
                1 => page_over_rpc(&server, id, cursor, wanted),
                _ => stream_over_rest(&server, id, cursor, wanted.min(last - cursor)),
            };
            for seq in seqs {
                assert_eq!(seq, cursor + 1, "at connection {connections}");
                cursor = seq;
            }
        }
    });
    assert!(connections >= 1_000, "only {connections} connections");
}

fn page_over_rest(server: &Server, id: &str, cursor: u64, limit: u64) -> Vec<u64> {
    let path = format!("/v1/sessions/{id}/events?since_seq={cursor}&limit={limit}&wait_ms=1000");
    seqs(
        &serde_json::from_str(&server.send_with_token("GET", &path, &[("accept", "application/json")], "").body)
            .unwrap(),
    )
}

fn page_over_rpc(server: &Server, id: &str, cursor: u64, limit: u64) -> Vec<u64> {
    let params = serde_json::json!({ "session_id": id, "since_seq": cursor, "limit": limit, "wait_ms": 1000 });
    let call = serde_json::json!({ "jsonrpc": "2.0", "id": 1, "method": "session/events", "params": params });
    let answer: Value =
        serde_json::from_str(&server.send_with_token("POST", "/rpc", &[], &call.to_string()).body).unwrap();
    seqs(&answer["result"])
}

fn seqs(page: &Value) -> Vec<u64> {
    page["items"].as_array().unwrap().iter().map(|event| event["seq"].as_u64().unwrap()).collect()
}

/// Reads so many durable events from a stream and drops it.
fn stream_over_rest(server: &Server, id: &str, cursor: u64, wanted: u64) -> Vec<u64> {
    let mut stream = server.connect();
    let head = format!(
        "GET /v1/sessions/{id}/events HTTP/1.1\r\nhost: 127.0.0.1:{}\r\nauthorization: Bearer {TOKEN}\r\naccept: text/event-stream\r\nlast-event-id: {cursor}\r\n\r\n",
        server.port
    );
    stream.write_all(head.as_bytes()).unwrap();
    let ids = BufReader::new(stream)
        .lines()
        .filter_map(|line| line.unwrap().strip_prefix("id: ").map(|id| id.parse().unwrap()));
    ids.take(usize::try_from(wanted).unwrap()).collect()
}
