//! The surface in this process, and a reader of event streams.
#![allow(dead_code, reason = "each test file uses its part")]

use std::{collections::VecDeque, sync::Arc};

use axum::{Router, body::Body, response::Response};
use http::{HeaderMap, Request};
use http_body_util::BodyExt as _;
use meerkat_service::{Agent, AgentBuildConfig, SessionService, service::ReadEvents};
use meerkat_surface_rest::{RestOptions, router};
use serde_json::Value;
use tower::ServiceExt as _;

/// The surface over a service.
pub(crate) struct Server {
    rest: Router,
    pub(crate) service: Arc<dyn SessionService>,
    _folder: Option<tempfile::TempDir>,
}

impl Server {
    /// With a store, so that no request is refused for a missing capability.
    pub(crate) fn stored() -> Self {
        let folder = meerkat_testkit::folder();
        let agent = AgentBuildConfig::new().store(folder.path().join("data")).build().unwrap();
        Self { _folder: Some(folder), ..Self::with(agent, RestOptions::default()) }
    }

    pub(crate) fn start() -> Self {
        Self::with(AgentBuildConfig::new().build().unwrap(), RestOptions::default())
    }

    pub(crate) fn with(agent: Agent, options: RestOptions) -> Self {
        let service = agent.service().clone();
        Self { rest: router(service.clone(), options), service, _folder: None }
    }

    /// Sends a request. `request` is a method and a path, then headers, a line each; a body is JSON unless they say
    /// otherwise.
    pub(crate) async fn open(&self, request: &str, body: impl Into<Body>) -> Response {
        let mut lines = request.lines();
        let (method, path) = lines.next().unwrap().split_once(' ').unwrap();
        let mut builder = Request::builder().method(method).uri(path);
        for (name, value) in lines.map(|line| line.split_once(':').unwrap()) {
            builder = builder.header(name, value.trim());
        }
        let mut request = builder.body(body.into()).unwrap();
        request.headers_mut().entry("content-type").or_insert("application/json".parse().unwrap());
        self.rest.clone().oneshot(request).await.unwrap()
    }

    /// Sends a request and reads its whole answer.
    pub(crate) async fn send(&self, request: &str, body: impl Into<Body>) -> Answer {
        let (parts, body) = self.open(request, body).await.into_parts();
        let body = body.collect().await.unwrap().to_bytes().to_vec();
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
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

    /// Opens an event stream; `request` as for [`Self::open`].
    pub(crate) async fn follow(&self, request: &str, body: impl Into<Body>) -> Events {
        let response = self.open(&format!("{request}\naccept: text/event-stream"), body).await;
        assert_eq!(
            (response.status().as_u16(), response.headers()["content-type"].to_str().unwrap()),
            (200, "text/event-stream")
        );
        Events { body: response.into_body(), parser: Parser::default(), ready: VecDeque::new() }
    }

    /// The durable lines after a cursor, as the service has them.
    pub(crate) async fn lines(&self, session: &str, since_seq: u64) -> Vec<String> {
        let request = ReadEvents { limit: Some(1000), ..ReadEvents::new(session.parse().unwrap(), since_seq) };
        let page = self.service.events(request).await.unwrap();
        page.items.iter().map(|line| String::from_utf8(line.to_vec()).unwrap()).collect()
    }
}

/// A whole answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
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

    /// The status, the code and the field at fault.
    pub(crate) fn refusal(&self) -> (u16, String, String) {
        let body = self.json();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (self.status, text(&body["code"]), text(&body["details"]["field"]))
    }
}

/// Reads an event stream as a browser does.
pub(crate) struct Events {
    body: Body,
    parser: Parser,
    ready: VecDeque<Sent>,
}

impl Events {
    /// The next event or comment; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Sent> {
        while self.ready.is_empty() {
            let piece = self.body.frame().await?.unwrap().into_data().unwrap();
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

/// An event or a comment of a stream.
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
