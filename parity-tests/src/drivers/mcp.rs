//! Drives the Model Context Protocol over its two transports. A refusal is a tool's error with the body as its
//! structured content; only a tool that is not there is an error of the protocol.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
    thread,
};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    http::{Event, Request, Response},
    numbers_of,
    process::{Process, Read, meerkat},
    rest, run_in_two,
    server::Server,
};
use crate::{
    contract::contract,
    driver::{Answer, Driver, Lines, PATIENCE, Pending, Place, open},
    run::{seq_of, type_of},
};

const REVISION: &str = "2025-06-18";
/// The protocol's number for wrong parameters, an unknown tool among them.
const INVALID_PARAMS: i64 = -32602;
/// The protocol's number for an unknown resource.
const RESOURCE_NOT_FOUND: i64 = -32002;

/// The protocol over streamable HTTP.
pub(super) struct OverHttp {
    server: Arc<Server>,
    session: String,
    /// The last request's id.
    last: u64,
    /// The last turn's.
    turn: u64,
    /// Sessions whose turns this driver has asked for, and the lines that came in the streams of its calls.
    own: BTreeSet<String>,
    lines: (Sender<String>, Receiver<String>),
    /// Whether a page of events is read as a resource.
    reads_resources: bool,
}

impl OverHttp {
    pub(super) fn new(server: Arc<Server>, reads_resources: bool) -> Result<Self, String> {
        let response = server.client.send(&post(initialize(0), None))?;
        let session = response.header("mcp-session-id").ok_or("the answer names no session of the protocol")?;
        let session = session.to_owned();
        initialized_answer(&answer_in(response, 0, |_| ())?)?;
        let (own, lines) = (BTreeSet::new(), mpsc::channel());
        let driver = Self { server, session, last: 0, turn: 0, own, lines, reads_resources };
        driver.notify(initialized())?;
        Ok(driver)
    }

    fn notify(&self, notification: String) -> Result<(), String> {
        match self.server.client.send(&post(notification, Some(&self.session)))?.status {
            202 => Ok(()),
            status => Err(format!("a notification should be accepted, but the status is {status}")),
        }
    }

    /// Sends a request, and reads its answer in a thread.
    fn ask(&mut self, message: String, read: fn(&str) -> Read) -> Pending {
        let (id, client, request) = (self.last, self.server.client.clone(), post(message, Some(&self.session)));
        let (sender, pending) = Pending::channel();
        let lines = self.lines.0.clone();
        thread::spawn(move || {
            // The driver may have been dropped.
            let line = |line| drop(lines.send(line));
            let message = client.send(&request).and_then(|response| answer_in(response, id, line));
            // The caller may have given up.
            drop(sender.send(message.and_then(|message| answer_to(id, &message, read))));
        });
        pending
    }
}

impl Driver for OverHttp {
    fn passes_over(&self, operation: &str) -> Option<&'static str> {
        passes_over(operation)
    }

    fn send(&mut self, operation: &str, params: &Map<String, Value>) -> Result<Pending, String> {
        if operation == "run" {
            return run_in_two(self, params);
        }
        self.last += 1;
        let is_page = operation == "events" && params.keys().all(|name| name == "session_id" || name == "since_seq");
        if self.reads_resources && is_page {
            return Ok(self.ask(read_resource(self.last, params), read_contents));
        }
        self.turn = if operation == "start_turn" { self.last } else { self.turn };
        if ["start_turn", "resume"].contains(&operation) {
            self.own.extend(params.get("session_id").and_then(Value::as_str).map(str::to_owned));
        }
        Ok(self.ask(call(self.last, operation, params), read))
    }

    /// Live lines come in the stream of the turn that they belong to. Of a turn that another surface has begun the protocol
    /// shows none; to continue in the same state as other drivers, wait on the server's event stream.
    fn follow(&mut self, session_id: &str, since_seq: u64, until: &str) -> Result<Lines, String> {
        if self.own.contains(session_id) {
            follow(&self.lines.1, session_id, since_seq, until)
        } else {
            rest::follow(&self.server.client, session_id, since_seq, until)
        }
    }

    /// The turn's progress, in the stream that its answer ends.
    fn stream(&mut self, params: &Map<String, Value>, until: &str) -> Result<Lines, String> {
        let turn = match open(self, params)? {
            Ok(turn) => turn,
            Err(body) => return Ok(Err(body)),
        };
        self.last += 1;
        let (request, mut lines) = (post(call(self.last, "start_turn", &turn), Some(&self.session)), Vec::new());
        let answer = answer_in(self.server.client.send(&request)?, self.last, |line| lines.push(line))?;
        match (answer_to(self.last, &answer, read)?, lines.last()) {
            (Ok(_), Some(line)) if type_of(line) == until => Ok(Ok(lines)),
            _ => Err(format!("the progress should end with {until}: {lines:?}, {answer}")),
        }
    }

    fn take_turn_back(&mut self) -> Result<(), String> {
        self.notify(cancelled(self.turn))
    }

    fn end(self: Box<Self>) -> Result<(), String> {
        self.server.end()
    }
}

fn post(message: String, session: Option<&str>) -> Request {
    let mut headers = vec![("Accept", "application/json, text/event-stream".to_owned())];
    if let Some(session) = session {
        headers.extend([("Mcp-Session-Id", session.to_owned()), ("Mcp-Protocol-Version", REVISION.to_owned())]);
    }
    Request { method: "POST".to_owned(), target: "/mcp".to_owned(), headers, body: Some(message.into()) }
}

fn answer_to(id: u64, message: &str, read: fn(&str) -> Read) -> Result<Answer, String> {
    match read(message)? {
        Some((answered, answer)) if answered == id => Ok(answer),
        _ => Err(format!("{message} answers another request")),
    }
}

/// The message with this id in a response, which is one message or a stream of them. Lines that are progress go to
/// `line` as they come.
fn answer_in(mut response: Response, id: u64, mut line: impl FnMut(String)) -> Result<String, String> {
    let status = response.status;
    if status != 200 {
        return Err(format!("the status should be 200, but is {status}: {}", response.text()?));
    }
    if response.is("application/json") {
        return response.text();
    }
    while let Some(Event { data, .. }) = response.event()? {
        // A stream may begin with an event of nothing, which only sets its cursor.
        if data.is_empty() {
            continue;
        }
        let message: Value = serde_json::from_str(&data).map_err(|error| format!("{data}: {error}"))?;
        if message["id"] == id {
            return Ok(data);
        }
        progress(&message).map(&mut line);
    }
    Err("the stream ends without an answer".to_owned())
}

/// The line that a message of progress carries, beside its words.
fn progress(message: &Value) -> Option<String> {
    let line =
        message["params"]["_meta"]["meerkat/event"].as_str().filter(|_| message["method"] == "notifications/progress");
    line.map(str::to_owned)
}

/// The lines of a session's turns after `since_seq`, up to one of this type.
fn follow(progress: &Receiver<String>, session_id: &str, since_seq: u64, until: &str) -> Result<Lines, String> {
    let mut lines: Vec<String> = Vec::new();
    while lines.last().is_none_or(|line| type_of(line) != until) {
        let line = progress.recv_timeout(PATIENCE).map_err(|_| format!("no progress {until:?} came"))?;
        let told: Value = serde_json::from_str(&line).map_err(|error| format!("{line}: {error}"))?;
        let is_new =
            told["seq"].as_u64().map(|seq| seq > since_seq).or(told["after"].as_u64().map(|at| at >= since_seq));
        if is_new == Some(true) && told["session_id"] == session_id {
            lines.push(line);
        }
    }
    Ok(Ok(lines))
}

/// The protocol over standard input and output.
pub(super) struct OverStdio {
    process: Process,
    lines: Receiver<String>,
    /// The last turn's request.
    turn: u64,
}

impl OverStdio {
    pub(super) fn new(place: Place) -> Result<Self, String> {
        let mut command = meerkat(&place);
        command.arg("mcp");
        if !place.is_plain {
            command.args(["--tools", "all", "--approve"]);
        }
        let (sender, lines) = mpsc::channel();
        let (mut process, greeted) = Process::start(command, &place, move |message| {
            let value: Value = serde_json::from_str(message).unwrap_or_default();
            match progress(&value) {
                Some(line) => {
                    // The driver may have been dropped.
                    drop(sender.send(line));
                    Ok(None)
                }
                None if value["id"] == 0 => Ok(Some((0, Ok(message.to_owned())))),
                None => read(message),
            }
        })?;
        process.tell(initialize(0))?;
        initialized_answer(&greeted.wait()?.map_err(|body| body.to_string())?)?;
        process.tell(initialized())?;
        Ok(Self { process, lines, turn: 0 })
    }
}

impl Driver for OverStdio {
    fn passes_over(&self, operation: &str) -> Option<&'static str> {
        passes_over(operation)
    }

    fn send(&mut self, operation: &str, params: &Map<String, Value>) -> Result<Pending, String> {
        if operation == "run" {
            return run_in_two(self, params);
        }
        let turn = &mut self.turn;
        self.process.ask(|id| {
            *turn = if operation == "start_turn" { id } else { *turn };
            call(id, operation, params)
        })
    }

    /// Live lines come as the progress of the turn that they belong to.
    fn follow(&mut self, session_id: &str, since_seq: u64, until: &str) -> Result<Lines, String> {
        follow(&self.lines, session_id, since_seq, until)
    }

    fn stream(&mut self, params: &Map<String, Value>, until: &str) -> Result<Lines, String> {
        let turn = match open(self, params)? {
            Ok(turn) => turn,
            Err(body) => return Ok(Err(body)),
        };
        let turn_ends = self.send("start_turn", &turn)?;
        let session = turn["session_id"].as_str().unwrap_or_default();
        let lines = self.follow(session, 1, until)?;
        turn_ends.wait()?.map_err(|body| body.to_string())?;
        Ok(lines)
    }

    fn take_turn_back(&mut self) -> Result<(), String> {
        self.process.tell(cancelled(self.turn))
    }

    fn end(self: Box<Self>) -> Result<(), String> {
        self.process.end(true)
    }
}

/// The contract's reason why this surface does not have an operation. No other refusal is excused.
fn passes_over(operation: &str) -> Option<&'static str> {
    contract().operations.get(operation)?.no_mcp.as_deref()
}

/// The tool of an operation. One outside the contract keeps its name.
fn tool(operation: &str) -> &str {
    contract().operations.get(operation).and_then(|spelling| spelling.mcp.as_deref()).unwrap_or(operation)
}

fn initialize(id: u64) -> String {
    let client = json!({ "name": "parity", "version": env!("CARGO_PKG_VERSION") });
    let params = json!({ "protocolVersion": REVISION, "capabilities": {}, "clientInfo": client });
    json!({ "jsonrpc": "2.0", "id": id, "method": "initialize", "params": params }).to_string()
}

fn initialized_answer(message: &str) -> Result<(), String> {
    let answer: Value = serde_json::from_str(message).map_err(|error| format!("{message}: {error}"))?;
    let is_agreed = answer["result"]["protocolVersion"] == REVISION;
    if is_agreed { Ok(()) } else { Err(format!("the revision should be {REVISION}: {message}")) }
}

fn initialized() -> String {
    json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }).to_string()
}

fn call(id: u64, operation: &str, params: &Map<String, Value>) -> String {
    let params = json!({ "name": tool(operation), "arguments": params, "_meta": { "progressToken": id } });
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }).to_string()
}

fn cancelled(id: u64) -> String {
    json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } }).to_string()
}

fn read_resource(id: u64, params: &Map<String, Value>) -> String {
    let query = params.get("since_seq").map(|since| format!("?since_seq={since}")).unwrap_or_default();
    let session = params.get("session_id").and_then(Value::as_str).unwrap_or_default();
    let params = json!({ "uri": format!("meerkat://sessions/{session}{query}") });
    json!({ "jsonrpc": "2.0", "id": id, "method": "resources/read", "params": params }).to_string()
}

/// Reads a message that answers with a session's lines as a resource, and makes a page of them.
fn read_contents(message: &str) -> Read {
    let told: Value = serde_json::from_str(message).map_err(|error| format!("{message}: {error}"))?;
    let id = told["id"].as_u64().ok_or_else(|| format!("{message} answers nothing"))?;
    if !told["error"].is_null() {
        // The URI of the resource is beside the body.
        let (error, mut body) = (&told["error"], told["error"]["data"].clone());
        let uri = body.as_object_mut().and_then(|body| body.remove("uri"));
        if !uri.is_some_and(|uri| uri.as_str().is_some_and(|uri| uri.starts_with("meerkat://sessions/"))) {
            return Err(format!("{message} does not say which resource"));
        }
        let body = &body;
        let own = i64::from(numbers_of(body)?.rpc);
        let number = if body["code"] == "SESSION_NOT_FOUND" { RESOURCE_NOT_FOUND } else { own };
        let is_right = error["code"] == number && error["message"] == body["message"];
        return if is_right { Ok(Some((id, Err(body.clone())))) } else { Err(format!("{message} is no refusal")) };
    }
    let content = &told["result"]["contents"][0];
    let text = content["text"].as_str().filter(|_| content["mimeType"] == "application/jsonl");
    let text = text.ok_or_else(|| format!("{message} has no lines"))?;
    let lines: Vec<&str> = text.lines().collect();
    // A resource has no cursor: it is the last line's seq, or the one of the request if there is no line.
    let since = content["uri"].as_str().and_then(|uri| uri.split_once("since_seq=")).map_or("0", |(_, since)| since);
    let next = lines.last().and_then(|line| seq_of(line)).map_or(since.to_owned(), |seq| seq.to_string());
    Ok(Some((id, Ok(format!(r#"{{"items":[{}],"next_seq":{next}}}"#, lines.join(","))))))
}

/// Reads a message that answers the call of a tool.
fn read(message: &str) -> Read {
    #[derive(Deserialize)]
    struct Message {
        id: u64,
        result: Option<ToolResult>,
        error: Option<Value>,
    }

    let Message { id, result, error } = serde_json::from_str(message).map_err(|error| format!("{message}: {error}"))?;
    let answer = match (result, error) {
        (Some(result), None) => result.answer().map_err(|why| format!("{why}: {message}"))?,
        (None, Some(error)) => Err(no_tool(&error)?),
        _ => return Err(format!("{message} has not exactly one of result and error")),
    };
    Ok(Some((id, answer)))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolResult {
    content: Vec<Value>,
    structured_content: Value,
    #[serde(default)]
    is_error: bool,
}

impl ToolResult {
    /// The answer. Beside the structured content there is the same as text, which has the answer's own bytes.
    fn answer(self) -> Result<Answer, String> {
        let [content] = self.content.as_slice() else { return Err("there should be one piece of content".to_owned()) };
        let text = content["text"].as_str().filter(|_| content["type"] == "text").ok_or("the content is no text")?;
        let told: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if told != self.structured_content {
            return Err("text and structured content differ".to_owned());
        }
        // A turn that failed has its result; only a refusal has a code.
        let is_failed = told["status"] == "failed";
        if is_failed && !self.is_error {
            return Err("a failed turn should be an error".to_owned());
        }
        if self.is_error && !is_failed {
            numbers_of(&told)?;
            return Ok(Err(told));
        }
        Ok(Ok(text.to_owned()))
    }
}

/// The body of the one error that the protocol itself has for a call: there is no such tool.
fn no_tool(error: &Value) -> Result<Value, String> {
    let body = &error["data"];
    let is_right = body["code"] == "UNKNOWN_OPERATION" && error["code"] == INVALID_PARAMS;
    if is_right && error["message"] == body["message"] {
        Ok(body.clone())
    } else {
        Err(format!("{error} is no refusal"))
    }
}
