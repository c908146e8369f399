//! Drives REST: parameters go where the contract says, and statuses are checked against it.

use std::{sync::Arc, thread};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Map, Value, json};

use super::{
    bundle,
    http::{Client, Event, Request, Response, encoded},
    numbers_of, run_in_two,
    server::Server,
};
use crate::{
    contract::{Route, contract},
    driver::{Answer, Driver, Lines, Pending, member, open},
    run::{seq_of, type_of},
};

/// REST.
pub(super) struct Rest(Arc<Server>);

impl Rest {
    pub(super) fn new(server: Arc<Server>) -> Self {
        Self(server)
    }

    /// The parameters, with the number of the latest compaction: a path names the compaction that is undone, where
    /// elsewhere none means the latest. Where there is none it is 0, which no event has. Nothing else is filled in.
    fn with_compaction(&mut self, params: &Map<String, Value>) -> Result<Map<String, Value>, String> {
        let (mut latest, mut cursor) = (0, 0);
        let mut page = Map::from_iter(params.get_key_value("session_id").map(|(name, id)| (name.clone(), id.clone())));
        loop {
            page.insert("since_seq".to_owned(), cursor.into());
            let Ok(answer) = self.send("events", &page)?.wait()? else { break };
            let answer: Value = serde_json::from_str(&answer).map_err(|error| error.to_string())?;
            let Some(items) = answer["items"].as_array().filter(|items| !items.is_empty()) else { break };
            let mut compactions = items.iter().filter(|item| item["type"] == "compaction_completed");
            latest = compactions.next_back().and_then(|item| item["seq"].as_u64()).unwrap_or(latest);
            cursor = answer["next_seq"].as_u64().ok_or("a page has no next_seq")?;
        }
        let mut params = params.clone();
        params.insert("compaction".to_owned(), latest.into());
        Ok(params)
    }
}

impl Driver for Rest {
    fn send(&mut self, operation: &str, params: &Map<String, Value>) -> Result<Pending, String> {
        if operation == "run" {
            return run_in_two(self, params);
        }
        if operation == "undo_compaction" && params.get("compaction").is_none_or(Value::is_null) {
            let params = self.with_compaction(params)?;
            return self.send(operation, &params);
        }
        let spelling = contract().operations.get(operation);
        let request = match spelling.map(|spelling| &spelling.rest) {
            Some(route) if operation == "import_bundle" => {
                let mut params = params.clone();
                let bundle = bundle::take(&mut params)?;
                upload(route, &params, bundle)
            }
            // Over REST the bytes themselves are the body. What is no base64 elsewhere has no like here.
            Some(route) if operation == "put_blob" => {
                let mut params = params.clone();
                let data = params.remove("data").unwrap_or_default();
                let data = BASE64_STANDARD.decode(text(&data)).map_err(|error| format!("the data: {error}"))?;
                upload(route, &params, data)
            }
            Some(route) => place_params(route, params),
            // An operation outside the contract has no path; the surface takes the text behind `/v1/` for its name.
            None => post(format!("/v1/{operation}"), params),
        };
        let (client, operation) = (self.0.client.clone(), operation.to_owned());
        let is_detached = operation != "forget_memory" && params.get("wait") == Some(&Value::Bool(false));
        let (sender, pending) = Pending::channel();
        thread::spawn(move || {
            let answer = client.send(&request).and_then(|response| read(&operation, is_detached, response));
            // The caller may have given up.
            drop(sender.send(answer));
        });
        Ok(pending)
    }

    fn follow(&mut self, session_id: &str, since_seq: u64, until: &str) -> Result<Lines, String> {
        follow(&self.0.client, session_id, since_seq, until)
    }

    /// The turn's own event stream, whose last event is its result.
    fn stream(&mut self, params: &Map<String, Value>, until: &str) -> Result<Lines, String> {
        let mut turn = match open(self, params)? {
            Ok(turn) => turn,
            Err(body) => return Ok(Err(body)),
        };
        let session = turn.remove("session_id").unwrap_or_default();
        let mut request = post(format!("/v1/sessions/{}/turns", text(&session)), &turn);
        request.headers.push(("Accept", "text/event-stream".to_owned()));
        let mut response = self.0.client.send(&request)?;
        let lines = lines_until(&mut response, until)?;
        let last = response.event()?.ok_or("the stream ends without the turn's result")?;
        let end = lines.last().and_then(|line| seq_of(line));
        let is_result = last.name.as_deref() == Some("result") && last.id.is_none();
        if !is_result || member(&last.data, "seq")?.as_u64() != end || response.event()?.is_some() {
            return Err(format!("the stream should end with the result at {end:?}, but ends with {}", last.data));
        }
        Ok(Ok(lines))
    }

    fn end(self: Box<Self>) -> Result<(), String> {
        self.0.end()
    }
}

/// Follows a session's event stream until a line of this type comes.
pub(super) fn follow(client: &Client, session_id: &str, since_seq: u64, until: &str) -> Result<Lines, String> {
    let target = format!("/v1/sessions/{}/events?since_seq={since_seq}", encoded(session_id));
    let headers = vec![("Accept", "text/event-stream".to_owned())];
    let mut response = client.send(&Request { method: "GET".to_owned(), target, headers, body: None })?;
    lines_until(&mut response, until).map(Ok)
}

/// The lines of a stream up to one of this type. The id of a durable one is its seq, and no other has one.
fn lines_until(response: &mut Response, until: &str) -> Result<Vec<String>, String> {
    if !response.is("text/event-stream") {
        return Err(format!("the status is {}, and there is no stream", response.status));
    }
    let mut lines = Vec::new();
    while let Some(Event { id, name, data }) = response.event()? {
        if let Some(name) = name {
            return Err(format!("the stream ends with {name}: {data}"));
        }
        if id != seq_of(&data).map(|seq| seq.to_string()) {
            return Err(format!("the id of {data} is {id:?}"));
        }
        lines.push(data);
        if lines.last().is_some_and(|line| type_of(line) == until) {
            return Ok(lines);
        }
    }
    Err("the stream ends without a word".to_owned())
}

fn post(target: String, params: &Map<String, Value>) -> Request {
    let body = Some(json!(params).to_string().into());
    Request { method: "POST".to_owned(), target, headers: Vec::new(), body }
}

/// A request with every parameter in its place: path, query, header or body.
fn place_params(route: &Route, params: &Map<String, Value>) -> Request {
    let mut request = Request { target: route.path.clone(), method: route.method.clone(), ..Request::default() };
    let has_body = !matches!(request.method.as_str(), "GET" | "DELETE");
    let (mut query, mut body) = (Vec::new(), Map::new());
    let runs_turn = ["/turns", "/resume"].iter().any(|end| route.path.ends_with(end));
    let is_in_query = |name: &str| route.query.iter().any(|known| known == name);
    query.extend(route.switch.clone());
    for (name, value) in params {
        let brace = format!("{{{name}}}");
        match (name.as_str(), value) {
            _ if request.target.contains(&brace) => {
                request.target = request.target.replace(&brace, &encoded(&text(value)))
            }
            ("labels", Value::Object(labels)) if is_in_query("labels") => {
                query.extend(labels.iter().map(|(label, value)| {
                    format!("{}={}", encoded(&format!("labels[{label}]")), encoded(&text(value)))
                }));
            }
            (_, Value::Null) if !has_body || is_in_query(name) => {}
            // An unknown parameter goes to the query, and is refused by its name.
            _ if !has_body || is_in_query(name) => {
                query.push(format!("{}={}", encoded(name), encoded(&text(value))));
            }
            // How long a turn's caller waits is no part of the body.
            ("wait", Value::Bool(true)) if runs_turn => {}
            ("wait", Value::Bool(false)) if runs_turn => request.headers.push(("Prefer", "respond-async".to_owned())),
            ("idempotency_key", Value::String(key)) => request.headers.push(("Idempotency-Key", key.clone())),
            _ => drop(body.insert(name.clone(), value.clone())),
        }
    }
    if !query.is_empty() {
        request.target = format!("{}?{}", request.target, query.join("&"));
    }
    request.body = has_body.then(|| Value::Object(body).to_string().into());
    request
}

/// A request whose body is a bundle, or a blob.
fn upload(route: &Route, params: &Map<String, Value>, bytes: Vec<u8>) -> Request {
    let mut request = place_params(route, params);
    request.headers.push(("Content-Type", "application/octet-stream".to_owned()));
    request.body = Some(bytes);
    request
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Reads a response, and checks its status by its body.
fn read(operation: &str, is_detached: bool, response: Response) -> Result<Answer, String> {
    let status = response.status;
    if status == 200 && operation == "blob" {
        return blob(response);
    }
    if status == 200 && operation == "export_session" {
        let is_tar = response.is("application/x-tar");
        let page = bundle::page(&response.bytes()?);
        return if is_tar { Ok(Ok(page)) } else { Err("a bundle has another type".to_owned()) };
    }
    if !response.is("application/json") {
        return Err(format!("the answer with status {status} is no JSON"));
    }
    let text = response.text()?;
    let expected = match status {
        200..=299 if is_detached => 202,
        200..=299 if operation == "create_session" => 201,
        200..=299 => 200,
        _ => {
            let body: Value = serde_json::from_str(&text).map_err(|error| format!("{text}: {error}"))?;
            let expected = numbers_of(&body)?.http;
            return if status == expected { Ok(Err(body)) } else { Err(wrong_status(expected, status, &text)) };
        }
    };
    if status == expected { Ok(Ok(text)) } else { Err(wrong_status(expected, status, &text)) }
}

fn wrong_status(expected: u16, came: u16, text: &str) -> String {
    format!("the status should be {expected}, but is {came}: {text}")
}

/// The page for a piece of a blob, whose bytes REST sends.
fn blob(response: Response) -> Result<Answer, String> {
    let next = response.header("next-offset").map(str::parse::<u64>).transpose().map_err(|error| error.to_string())?;
    let types = ["application/octet-stream", "image/png", "image/jpeg", "image/gif", "image/webp"];
    if !types.iter().any(|media_type| response.is(media_type)) {
        return Err("a piece of a blob has another type".to_owned());
    }
    Ok(Ok(json!({ "data": BASE64_STANDARD.encode(response.bytes()?), "next_offset": next }).to_string()))
}
