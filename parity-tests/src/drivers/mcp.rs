//! Drives the Model Context Protocol over its two transports. A refusal is a tool's error with the body as its
//! structured content; only a tool that is not there is an error of the protocol.

use std::{
    sync::mpsc::{self, Receiver},
    thread,
};

use meerkat_service::Operation;
use meerkat_surface_mcp::tools::{Spelling, spelling};
use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};

use super::{
    code_of,
    http::{Client, Request, Response},
    process::{Process, Read, meerkat},
    rest, run_in_two,
    server::Server,
};
use crate::{
    driver::{Answer, Driver, PATIENCE, Pending, Place},
    run::type_of,
};

const REVISION: &str = "2025-06-18";
/// What the protocol has for parameters that are not as they should be; a tool that is not there is such a one.
const INVALID_PARAMS: i64 = -32602;

/// The protocol over streamable HTTP.
pub(super) struct OverHttp {
    place: Place,
    server: Server,
    session: String,
    /// The last request's id.
    last: u64,
}

impl OverHttp {
    pub(super) fn new(place: Place) -> Result<Self, String> {
        let server = Server::start(&place)?;
        let response = server.client.send(&post(initialize(0), None))?;
        let session = response.header("mcp-session-id").ok_or("the answer names no session of the protocol")?;
        let session = session.to_owned();
        initialized_answer(&answer_in(response, 0)?)?;
        let response = server.client.send(&post(initialized(), Some(&session)))?;
        if response.status != 202 {
            return Err(format!("a notification should be accepted, but the status is {}", response.status));
        }
        Ok(Self { place, server, session, last: 0 })
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
        let request = post(call(self.last, operation, params), Some(&self.session));
        Ok(in_thread(self.server.client.clone(), request, self.last))
    }

    /// A tool shows no live line. So that what follows meets the same state, the server's event stream is waited on.
    fn follow(&mut self, session_id: &str, since_seq: u64, until: &str) -> Result<Answer, String> {
        rest::follow(&self.server.client, session_id, since_seq, until).wait()
    }

    fn restart(&mut self) -> Result<(), String> {
        *self = Self::new(self.place.clone())?;
        Ok(())
    }
}

fn post(message: String, session: Option<&str>) -> Request {
    let mut headers = vec![("Accept", "application/json, text/event-stream".to_owned())];
    if let Some(session) = session {
        headers.extend([("Mcp-Session-Id", session.to_owned()), ("Mcp-Protocol-Version", REVISION.to_owned())]);
    }
    Request { method: "POST".to_owned(), target: "/mcp".to_owned(), headers, body: Some(message) }
}

fn in_thread(client: Client, request: Request, id: u64) -> Pending {
    let (sender, pending) = Pending::channel();
    thread::spawn(move || {
        let message = client.send(&request).and_then(|response| answer_in(response, id));
        let answer = message.and_then(|message| match read(&message)? {
            Some((answered, answer)) if answered == id => Ok(answer),
            _ => Err(format!("{message} answers another request")),
        });
        // Whoever asked may have given up.
        drop(sender.send(answer));
    });
    pending
}

/// The message with this id in a response, which is one message or a stream of them.
fn answer_in(mut response: Response, id: u64) -> Result<String, String> {
    let status = response.status;
    if status != 200 {
        return Err(format!("the status should be 200, but is {status}: {}", response.text()?));
    }
    if response.is("application/json") {
        return response.text();
    }
    while let Some((_, data)) = response.event()? {
        // A stream may begin with an event of nothing, which only sets its cursor.
        let is_it = |message: Value| message["id"] == id;
        if !data.is_empty() && serde_json::from_str(&data).is_ok_and(is_it) {
            return Ok(data);
        }
    }
    Err("the stream ends without an answer".to_owned())
}

/// The protocol over standard input and output.
pub(super) struct OverStdio {
    place: Place,
    process: Process,
    lines: Receiver<String>,
}

impl OverStdio {
    pub(super) fn new(place: Place) -> Result<Self, String> {
        let mut command = meerkat(&place);
        command.arg("mcp");
        let (sender, lines) = mpsc::channel();
        let (mut process, greeted) = Process::start(command, &place, move |message| {
            let message_of = |value: Value| Some(value["params"]["message"].as_str()?.to_owned());
            match serde_json::from_str::<Value>(message) {
                Ok(value) if value["method"] == "notifications/progress" => {
                    // The driver may be gone already.
                    message_of(value).into_iter().for_each(|line| drop(sender.send(line)));
                    Ok(None)
                }
                Ok(value) if value["id"] == 0 => Ok(Some((0, Ok(message.to_owned())))),
                _ => read(message),
            }
        })?;
        process.tell(initialize(0))?;
        initialized_answer(&greeted.wait()?.map_err(|body| body.to_string())?)?;
        process.tell(initialized())?;
        Ok(Self { place, process, lines })
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
        self.process.ask(|id| call(id, operation, params))
    }

    /// Live lines come as the progress of the turn that they belong to.
    fn follow(&mut self, session_id: &str, since_seq: u64, until: &str) -> Result<Answer, String> {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).map_err(|_| format!("no progress {until:?} came"))?;
            let told: Value = serde_json::from_str(&line).map_err(|error| format!("{line}: {error}"))?;
            let is_new = told["seq"].as_u64().or(told["after"].as_u64()).is_some_and(|at| at >= since_seq);
            if type_of(&line) == until && is_new && told["session_id"] == session_id {
                return Ok(Ok(line));
            }
        }
    }

    fn restart(&mut self) -> Result<(), String> {
        *self = Self::new(self.place.clone())?;
        Ok(())
    }
}

/// Why an operation is not asked for here: the one place where this surface has less than the others, and the table's
/// own reason. No other refusal is excused.
fn passes_over(operation: &str) -> Option<&'static str> {
    match spelling(Operation::from_name(operation)?) {
        Spelling::NoTool { reason } => Some(reason),
        Spelling::Tool { .. } => None,
    }
}

/// What an operation is called here. What is not in the table keeps its name.
fn tool(operation: &str) -> &str {
    match Operation::from_name(operation).map(spelling) {
        Some(Spelling::Tool { name, .. }) => name,
        _ => operation,
    }
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
        if self.is_error {
            code_of(&told)?;
            return Ok(Err(told));
        }
        Ok(Ok(events(&told)?.unwrap_or_else(|| text.to_owned())))
    }
}

/// The page of events, if that is what this is: each line is a string here, so that it arrives to the letter.
fn events(told: &Value) -> Result<Option<String>, String> {
    let (Some(items), Some(next)) = (told["items"].as_array(), told["next_seq"].as_u64()) else { return Ok(None) };
    let line = |item: &Value| {
        let line = item.as_str().ok_or_else(|| format!("{item} is no line"))?;
        RawValue::from_string(line.to_owned()).map_err(|error| error.to_string())
    };
    let lines = items.iter().map(line).collect::<Result<Vec<_>, String>>()?;
    let lines: Vec<&str> = lines.iter().map(|line| line.get()).collect();
    Ok(Some(format!(r#"{{"items":[{}],"next_seq":{next}}}"#, lines.join(","))))
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
