//! What the tests share: a server on a port of its own, a client that speaks bare HTTP/1.1, and a reader of event streams.
#![allow(dead_code, reason = "each test file uses its part")]

use std::{net::SocketAddr, sync::Arc};

use meerkat_service::{Agent, AgentBuildConfig, SessionService};
use meerkat_surface_rest::{RestOptions, router};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// A server on loopback, until its runtime ends.
pub(crate) struct Server {
    address: SocketAddr,
    pub(crate) service: Arc<dyn SessionService>,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::with(AgentBuildConfig::new().build().unwrap(), RestOptions::default()).await
    }

    pub(crate) async fn with(agent: Agent, options: RestOptions) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, service) = (listener.local_addr().unwrap(), agent.service().clone());
        let rest = router(service.clone(), options);
        tokio::spawn(async move { axum::serve(listener, rest).await });
        Self { address, service }
    }

    /// Sends a request's head as it stands, its length, and its body.
    pub(crate) async fn open(&self, head: &str, body: &[u8]) -> Connection {
        let head = format!("{head}\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
        Connection::to(self.address, &[head.as_bytes(), body].concat()).await
    }

    /// Sends bytes and reads the answer.
    pub(crate) async fn raw(&self, request: &[u8]) -> Answer {
        let mut connection = Connection::to(self.address, request).await;
        let body = connection.rest().await;
        Answer { status: connection.status, headers: connection.headers, body }
    }

    /// Sends a request and reads its whole answer. `request` is a method and a path, then headers, a line each.
    pub(crate) async fn send(&self, request: &str, body: impl AsRef<[u8]>) -> Answer {
        let (line, headers) = request.split_once('\n').unwrap_or((request, ""));
        let mut head = format!("{line} HTTP/1.1");
        let is_typed = headers.to_ascii_lowercase().contains("content-type");
        if !body.as_ref().is_empty() && !is_typed {
            head.push_str("\r\ncontent-type: application/json");
        }
        for header in headers.lines() {
            head.push_str("\r\n");
            head.push_str(header.trim());
        }
        let mut connection = self.open(&head, body.as_ref()).await;
        let body = connection.rest().await;
        Answer { status: connection.status, headers: connection.headers, body }
    }

    /// Makes a session.
    pub(crate) async fn session(&self) -> String {
        let answer = self.send("POST /v1/sessions", "{}").await;
        answer.json()["session_id"].as_str().unwrap().to_owned()
    }

    /// Runs a turn to its end.
    pub(crate) async fn turn(&self, session: &str, prompt: &str) -> Value {
        let body = serde_json::json!({ "prompt": prompt }).to_string();
        self.send(&format!("POST /v1/sessions/{session}/turns"), body).await.ok()
    }

    /// Opens an event stream.
    pub(crate) async fn follow(&self, path: &str, headers: &str) -> Connection {
        let connection = self.open(&format!("GET {path} HTTP/1.1\r\naccept: text/event-stream{headers}"), b"").await;
        assert_eq!((connection.status, connection.header("content-type")), (200, "text/event-stream"));
        connection
    }
}

/// A whole answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        find(&self.headers, name)
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(&self.body)))
    }

    /// The JSON of a success.
    #[track_caller]
    pub(crate) fn ok(&self) -> Value {
        assert!(matches!(self.status, 200 | 201), "{}", String::from_utf8_lossy(&self.body));
        self.json()
    }

    /// The code and the field at fault.
    pub(crate) fn refusal(&self) -> (u16, String, String) {
        let body = self.json();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (self.status, text(&body["code"]), text(&body["details"]["field"]))
    }
}

fn find<'a>(headers: &'a [(String, String)], name: &str) -> &'a str {
    headers.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
}

/// A connection whose answer is being read.
pub(crate) struct Connection {
    stream: TcpStream,
    /// Of the body, what came and was not yet looked at.
    received: Vec<u8>,
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    is_chunked: bool,
}

impl Connection {
    /// Sends a request and reads the answer's head.
    async fn to(address: SocketAddr, request: &[u8]) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut connection = Self { stream, received: Vec::new(), status: 0, headers: Vec::new(), is_chunked: false };
        connection.read_head().await;
        connection
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        find(&self.headers, name)
    }

    async fn fill(&mut self) -> bool {
        self.stream.read_buf(&mut self.received).await.unwrap() > 0
    }

    /// What stands before the next `end`, which is passed over.
    async fn until(&mut self, end: &[u8]) -> Vec<u8> {
        loop {
            if let Some(at) = self.received.windows(end.len()).position(|window| window == end) {
                let before = self.received[..at].to_vec();
                self.received.drain(..at + end.len());
                return before;
            }
            assert!(self.fill().await, "the connection ended in {:?}", String::from_utf8_lossy(&self.received));
        }
    }

    async fn read_head(&mut self) {
        let head = String::from_utf8(self.until(b"\r\n\r\n").await).unwrap();
        let mut lines = head.split("\r\n");
        self.status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        self.headers = lines
            .map(|line| line.split_once(':').unwrap())
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        self.is_chunked = self.header("transfer-encoding") == "chunked";
    }

    /// The next piece of the body; empty at its end.
    async fn piece(&mut self) -> Vec<u8> {
        if !self.is_chunked {
            while self.fill().await {}
            return std::mem::take(&mut self.received);
        }
        let length = String::from_utf8(self.until(b"\r\n").await).unwrap();
        let length = usize::from_str_radix(&length, 16).unwrap();
        while self.received.len() < length + 2 {
            assert!(self.fill().await, "the connection ended in a chunk");
        }
        let piece = self.received[..length].to_vec();
        self.received.drain(..length + 2);
        piece
    }

    async fn rest(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let piece = self.piece().await;
            if piece.is_empty() {
                return body;
            }
            body.extend(piece);
        }
    }
}

/// Reads an event stream as a browser does.
pub(crate) struct Events {
    connection: Connection,
    parser: Parser,
    ready: std::collections::VecDeque<Sent>,
}

impl Events {
    pub(crate) fn of(connection: Connection) -> Self {
        Self { connection, parser: Parser::default(), ready: Default::default() }
    }

    /// The next event or comment; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Sent> {
        while self.ready.is_empty() {
            let piece = self.connection.piece().await;
            if piece.is_empty() {
                return None;
            }
            self.ready.extend(self.parser.feed(&piece));
        }
        self.ready.pop_front()
    }

    /// Reads up to a durable event of this type; answers with the durable ones on the way.
    pub(crate) async fn until(&mut self, kind: &str) -> Vec<Sent> {
        let mut durable = Vec::new();
        loop {
            let sent = self.next().await.unwrap_or_else(|| panic!("the stream ended before {kind}"));
            let is_it = sent.data.contains(&format!(r#""type":"{kind}""#));
            if sent.id.is_some() {
                durable.push(sent);
            }
            if is_it {
                return durable;
            }
        }
    }
}

/// Something that a stream sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sent {
    pub(crate) id: Option<String>,
    pub(crate) event: Option<String>,
    pub(crate) data: String,
    pub(crate) comment: Option<String>,
}

/// The parser of the event stream's standard, for lines that end in a line feed.
#[derive(Default)]
pub(crate) struct Parser {
    line: Vec<u8>,
    current: Sent,
    data: Vec<String>,
}

impl Parser {
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<Sent> {
        let mut sent = Vec::new();
        for &byte in bytes {
            if byte != b'\n' {
                self.line.push(byte);
                continue;
            }
            let line = String::from_utf8(std::mem::take(&mut self.line)).unwrap();
            let (field, value) = line.split_once(':').unwrap_or((&line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
            match field {
                "" if line.is_empty() => {
                    let event = std::mem::take(&mut self.current);
                    let data = std::mem::take(&mut self.data).join("\n");
                    if !data.is_empty() {
                        sent.push(Sent { data, ..event });
                    }
                }
                "" => sent.push(Sent { comment: Some(value), ..Sent::default() }),
                "id" => self.current.id = Some(value),
                "event" => self.current.event = Some(value),
                "data" => self.data.push(value),
                other => panic!("an unknown field {other:?}"),
            }
        }
        sent
    }
}
