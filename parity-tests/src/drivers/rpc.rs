//! Drives JSON-RPC over its three transports. The number of an error is checked against the contract, and its
//! message against the body that it carries.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
    thread,
};

use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};

use super::{
    http::Request,
    numbers_of,
    process::{Process, Read, meerkat},
    run_in_two,
    server::Server,
    websocket::WebSocket,
};
use crate::{
    contract::contract,
    driver::{Answer, Driver, Lines, PATIENCE, Pending, Place},
    run::type_of,
};

/// JSON-RPC over a WebSocket.
pub(super) struct OverWebSocket {
    socket: WebSocket,
    events: Receiver<Notified>,
    server: Arc<Server>,
}

impl OverWebSocket {
    pub(super) fn new(server: Arc<Server>) -> Result<Self, String> {
        let (sender, events) = mpsc::channel();
        let socket = WebSocket::open(&server.client, "/rpc", move |message| read(message, Some(&sender)))?;
        Ok(Self { socket, events, server })
    }
}

impl Driver for OverWebSocket {
    fn send(&mut self, operation: &str, params: &Map<String, Value>) -> Result<Pending, String> {
        if operation == "run" {
            return run_in_two(self, params);
        }
        self.socket.ask(|id| request(id, method(operation), params))
    }

    fn follow(&mut self, session_id: &str, since_seq: u64, until: &str) -> Result<Lines, String> {
        let ask = |method: &str, params: &Map<String, Value>| self.socket.ask(|id| request(id, method, params));
        follow(ask, &self.events, session_id, since_seq, until)
    }

    fn end(self: Box<Self>) -> Result<(), String> {
        let Self { socket, server, .. } = *self;
        drop(socket);
        server.end()
    }
}

/// JSON-RPC over standard input and output.
pub(super) struct OverStdio {
    process: Process,
    events: Receiver<Notified>,
}

impl OverStdio {
    pub(super) fn new(place: Place) -> Result<Self, String> {
        let mut command = meerkat(&place);
        command.arg("rpc");
        let (sender, events) = mpsc::channel();
        let (process, _) = Process::start(command, &place, move |line| read(line, Some(&sender)))?;
        Ok(Self { process, events })
    }
}

impl Driver for OverStdio {
    fn send(&mut self, operation: &str, params: &Map<String, Value>) -> Result<Pending, String> {
        if operation == "run" {
            return run_in_two(self, params);
        }
        self.process.ask(|id| request(id, method(operation), params))
    }

    fn follow(&mut self, session_id: &str, since_seq: u64, until: &str) -> Result<Lines, String> {
        let ask = |method: &str, params: &Map<String, Value>| self.process.ask(|id| request(id, method, params));
        follow(ask, &self.events, session_id, since_seq, until)
    }

    fn end(self: Box<Self>) -> Result<(), String> {
        self.process.end(true)
    }
}

/// JSON-RPC over HTTP: one request, one answer. A batch has another request and a notification too.
pub(super) struct OverHttp {
    pub(super) server: Arc<Server>,
    pub(super) is_in_batch: bool,
}

impl Driver for OverHttp {
    fn send(&mut self, operation: &str, params: &Map<String, Value>) -> Result<Pending, String> {
        if operation == "run" {
            return run_in_two(self, params);
        }
        let (is_in_batch, mut body) = (self.is_in_batch, request(1, method(operation), params));
        if is_in_batch {
            let beside = request(2, "capabilities/get", &Map::new());
            body = format!(r#"[{beside},{body},{{"jsonrpc":"2.0","method":"capabilities/get"}}]"#);
        }
        let body = Some(body.into());
        let request = Request { method: "POST".to_owned(), target: "/rpc".to_owned(), headers: Vec::new(), body };
        let client = self.server.client.clone();
        let (sender, pending) = Pending::channel();
        thread::spawn(move || {
            let answer = client.send(&request).and_then(|response| match response.status {
                200 if is_in_batch => in_batch(&response.text()?),
                200 => match read(&response.text()?, None)? {
                    Some((1, answer)) => Ok(answer),
                    _ => Err("the answer is to another request".to_owned()),
                },
                // A wrong message has an answer, not a status.
                status => Err(format!("the status should be 200, but is {status}: {}", response.text()?)),
            });
            // The caller may have given up.
            drop(sender.send(answer));
        });
        Ok(pending)
    }

    /// A request over HTTP has one answer, so JSON-RPC shows live lines over its WebSocket.
    fn follow(&mut self, session_id: &str, since_seq: u64, until: &str) -> Result<Lines, String> {
        OverWebSocket::new(self.server.clone())?.follow(session_id, since_seq, until)
    }

    fn end(self: Box<Self>) -> Result<(), String> {
        self.server.end()
    }
}

/// The answer in a batch: there is one for each request, and none for the notification.
fn in_batch(text: &str) -> Result<Answer, String> {
    let batch: Vec<&RawValue> = serde_json::from_str(text).map_err(|error| format!("{text}: {error}"))?;
    let mut answers = BTreeMap::new();
    for answer in &batch {
        answers.extend(read(answer.get(), None)?);
    }
    match (answers.remove(&1), answers.remove(&2), batch.len()) {
        (Some(answer), Some(Ok(_)), 2) => Ok(answer),
        _ => Err(format!("there should be one answer to each of two requests: {text}")),
    }
}

/// The method of an operation. One outside the contract keeps its name.
fn method(operation: &str) -> &str {
    contract().operations.get(operation).map_or(operation, |spelling| &spelling.rpc)
}

fn request(id: u64, method: &str, params: &Map<String, Value>) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()
}

/// A line of a subscription, or the failure that ends it.
struct Notified {
    subscription: u64,
    line: Answer,
}

/// Subscribes to a session until a line of this type comes.
fn follow(
    mut ask: impl FnMut(&str, &Map<String, Value>) -> Result<Pending, String>,
    events: &Receiver<Notified>,
    session_id: &str,
    since_seq: u64,
    until: &str,
) -> Result<Lines, String> {
    let mut params = Map::new();
    params.insert("session_id".to_owned(), session_id.into());
    params.insert("since_seq".to_owned(), since_seq.into());
    let subscription = match ask("session/subscribe", &params)?.wait()? {
        Ok(number) => number.parse::<u64>().map_err(|error| format!("{number}: {error}"))?,
        Err(body) => return Ok(Err(body)),
    };
    let mut lines: Vec<String> = Vec::new();
    while lines.last().is_none_or(|line| type_of(line) != until) {
        let event = events.recv_timeout(PATIENCE).map_err(|_| format!("no event {until:?} came"))?;
        // One that has ended may have had an event under way.
        if event.subscription != subscription {
            continue;
        }
        lines.push(event.line.map_err(|body| format!("the subscription ends: {body}"))?);
    }
    let ended = ask("session/unsubscribe", &Map::from_iter([("subscription".to_owned(), subscription.into())]))?;
    match ended.wait()? {
        Ok(is_ended) if is_ended == "true" => {}
        other => return Err(format!("the subscription should end, but {other:?}")),
    }
    Ok(Ok(lines))
}

/// Reads a message: an answer, or an event, which goes to `events`.
fn read(message: &str, events: Option<&Sender<Notified>>) -> Read {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Message<'a> {
        jsonrpc: &'a str,
        id: Option<u64>,
        #[serde(borrow)]
        result: Option<&'a RawValue>,
        error: Option<Value>,
        method: Option<&'a str>,
        #[serde(borrow)]
        params: Option<Event<'a>>,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Event<'a> {
        subscription: u64,
        #[serde(borrow)]
        result: Option<&'a RawValue>,
        error: Option<Value>,
    }

    let answer = |result: Option<&RawValue>, error: Option<Value>| match (result, error) {
        (Some(result), None) => Ok(Ok(result.get().to_owned())),
        (None, Some(error)) => refusal(error).map(Err),
        _ => Err(format!("{message} has not exactly one of result and error")),
    };
    match serde_json::from_str(message).map_err(|error| format!("{message}: {error}"))? {
        Message { jsonrpc: "2.0", id: Some(id), result, error, method: None, params: None } => {
            Ok(Some((id, answer(result, error)?)))
        }
        Message {
            jsonrpc: "2.0",
            id: None,
            result: None,
            error: None,
            method: Some("session/event"),
            params: Some(event),
        } => {
            let line = answer(event.result, event.error)?;
            let sent = events.map(|events| events.send(Notified { subscription: event.subscription, line }));
            // The driver may have been dropped.
            drop(sent.ok_or_else(|| format!("{message} comes without a subscription"))?);
            Ok(None)
        }
        _ => Err(format!("{message} is neither an answer nor an event")),
    }
}

/// The body that an error carries.
fn refusal(error: Value) -> Result<Value, String> {
    let body = &error["data"];
    let expected = json!({ "code": numbers_of(body)?.rpc, "message": body["message"], "data": body });
    if error == expected { Ok(body.clone()) } else { Err(format!("the error should be {expected}, but is {error}")) }
}
