//! `meerkat serve` as a process, and a client that sends what a test wants, to the byte.

use std::{
    io::{self, BufRead, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
};

use meerkat_testkit::PATIENCE;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_tungstenite::tungstenite::{self, Message, WebSocket, client::IntoClientRequest as _};

use super::{TOKEN, meerkat, meerkat_after, signal};

/// Revision of MCP in which each call stands for itself.
pub(crate) const MCP_REVISION: &str = "2026-07-28";

/// A server that ends with its test.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) port: u16,
    _dir: Option<TempDir>,
}

/// An answer: its status, and what follows the head.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {} {:?}", self.status, self.body))
    }

    /// Status and code of a refusal that has the one body, bare or as the data of a protocol's error.
    #[track_caller]
    pub(crate) fn refusal(&self) -> (u16, String) {
        let body = self.json();
        let code =
            [&body["code"], &body["error"]["data"]["code"], &body["error"]["code"]].into_iter().find_map(Value::as_str);
        (self.status, code.unwrap_or_default().to_owned())
    }
}

pub(crate) fn refusal(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

pub(crate) const SERVE: [&str; 8] = ["--json", "serve", "--rest", "--rpc", "--mcp", "--acp", "--listen", "127.0.0.1:0"];

impl Server {
    /// Starts one with these variables, and waits until it listens.
    pub(crate) fn start(env: &[(&str, &str)]) -> Self {
        let dir = meerkat_testkit::folder();
        Self::run(meerkat(&dir, &SERVE), env, Some(dir))
    }

    /// Starts one with a limit, which `ulimit` sets.
    pub(crate) fn start_limited(limit: &str, env: &[(&str, &str)]) -> Self {
        let dir = meerkat_testkit::folder();
        Self::run(meerkat_after(&format!("ulimit {limit}"), &dir, &SERVE), env, Some(dir))
    }

    /// Starts one by this command, whose arguments are [`SERVE`], and waits until it listens.
    pub(crate) fn run(mut command: Command, env: &[(&str, &str)], dir: Option<TempDir>) -> Self {
        command.envs(env.iter().copied()).env("MEERKAT_TOKEN", TOKEN).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(
            (&ready["surfaces"], &ready["model"]),
            (&json!(["rest", "rpc", "mcp", "openai", "acp"]), &json!("scripted"))
        );
        let port = ready["listening"].as_str().unwrap().rsplit_once(':').unwrap().1.parse().unwrap();
        Self { child, port, _dir: dir }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        self.try_connect().unwrap()
    }

    fn try_connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Sends a request with these header lines and a content-length, and nothing else.
    pub(crate) fn open(&self, method: &str, target: &str, headers: &str, body: &str) -> TcpStream {
        self.try_open(method, target, headers, body).unwrap()
    }

    pub(crate) fn try_open(&self, method: &str, target: &str, headers: &str, body: &str) -> io::Result<TcpStream> {
        let mut stream = self.try_connect()?;
        let length = body.len();
        let head = format!("{method} {target} HTTP/1.1\r\n{headers}content-length: {length}\r\n\r\n");
        stream.write_all(format!("{head}{body}").as_bytes())?;
        Ok(stream)
    }

    /// The header lines of an ordinary request.
    pub(crate) fn headers(&self, more: &[(&str, &str)]) -> String {
        let mut headers = format!("host: 127.0.0.1:{}\r\ncontent-type: application/json\r\n", self.port);
        for (name, value) in more {
            headers.push_str(&format!("{name}: {value}\r\n"));
        }
        headers
    }

    pub(crate) fn headers_with_token(&self, more: &[(&str, &str)]) -> String {
        format!("{}authorization: Bearer {TOKEN}\r\n", self.headers(more))
    }

    /// Sends a request with a Host, these headers and no token.
    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        read(self.open(method, path, &self.headers(headers), body))
    }

    pub(crate) fn send_with_token(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        read(self.open(method, path, &self.headers_with_token(headers), body))
    }

    /// Makes a session.
    pub(crate) fn session(&self) -> String {
        self.send_with_token("POST", "/v1/sessions", &[], "{}").json()["session_id"].as_str().unwrap().to_owned()
    }

    /// Calls a method over HTTP.
    pub(crate) fn rpc(&self, method: &str, params: &Value) -> Value {
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
        self.send_with_token("POST", "/rpc", &[], &call).json()
    }

    /// Calls a tool without a session of the protocol; the result.
    pub(crate) fn mcp(&self, tool: &str, arguments: &Value) -> Value {
        mcp_result(self.open_mcp(tool, arguments))
    }

    /// Sends such a call.
    pub(crate) fn open_mcp(&self, tool: &str, arguments: &Value) -> TcpStream {
        let params = json!({ "name": tool, "arguments": arguments, "_meta": {
            "io.modelcontextprotocol/protocolVersion": MCP_REVISION,
            "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": {},
        } });
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string();
        let headers = [
            ("accept", "application/json, text/event-stream"),
            ("mcp-protocol-version", MCP_REVISION),
            ("mcp-method", "tools/call"),
            ("mcp-name", tool),
        ];
        self.open("POST", "/mcp", &self.headers_with_token(&headers), &call)
    }

    /// Opens the event stream of a session.
    pub(crate) fn follow(&self, session: &str, cursor: u64) -> BufReader<TcpStream> {
        let cursor = cursor.to_string();
        let headers = self.headers_with_token(&[("accept", "text/event-stream"), ("last-event-id", &cursor)]);
        BufReader::new(self.open("GET", &format!("/v1/sessions/{session}/events"), &headers, ""))
    }

    /// Opens a WebSocket of JSON-RPC.
    pub(crate) fn websocket(&self) -> WebSocket<TcpStream> {
        self.websocket_at("/rpc")
    }

    pub(crate) fn websocket_at(&self, path: &str) -> WebSocket<TcpStream> {
        let mut request = format!("ws://127.0.0.1:{}{path}", self.port).into_client_request().unwrap();
        request.headers_mut().insert("authorization", format!("Bearer {TOKEN}").parse().unwrap());
        tungstenite::client(request, self.connect()).unwrap().0
    }

    pub(crate) fn terminate(&self) {
        signal(&self.child, "TERM");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already, as some tests ask it to.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Reads the head of an answer.
pub(crate) fn read_head(stream: &mut impl BufRead) -> String {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).is_ok_and(|read| read > 0) {}
    head.to_lowercase()
}

#[track_caller]
pub(crate) fn status(head: &str) -> u16 {
    head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("no answer: {head:?}"))
}

/// Reads a whole answer that has a length, or ends with its connection.
#[track_caller]
pub(crate) fn read(stream: TcpStream) -> Answer {
    let mut stream = BufReader::new(stream);
    let head = read_head(&mut stream);
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let mut body = String::new();
    stream.take(length.unwrap_or(u64::MAX)).read_to_string(&mut body).unwrap();
    Answer { status: status(&head), head, body }
}

/// Reads the result of a call, which is the one message of an answer.
pub(crate) fn mcp_result(stream: TcpStream) -> Value {
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let is_message = |line: &String| line.trim_start_matches("data: ").starts_with(r#"{"jsonrpc""#);
    let message = lines.find(is_message).unwrap();
    let mut message: Value = serde_json::from_str(message.trim_start_matches("data: ")).unwrap();
    message["result"].take()
}

/// The next message of a WebSocket that is a text; `None` at its end. The server pings.
pub(crate) fn text(socket: &mut WebSocket<TcpStream>) -> Option<String> {
    loop {
        match socket.read() {
            Ok(Message::Text(text)) => return Some(text.to_string()),
            Ok(Message::Ping(_) | Message::Pong(_)) => {}
            _ => return None,
        }
    }
}

/// Sends a request over a WebSocket and leaves its answer unread.
pub(crate) fn ask(socket: &mut WebSocket<TcpStream>, id: u64, method: &str, params: &Value) {
    let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    socket.send(Message::text(request.to_string())).unwrap();
}
