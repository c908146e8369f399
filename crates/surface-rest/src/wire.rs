//! From a request's path, query, headers and body to the JSON of an operation's parameters, and from answers to responses.
//!
//! A body is spliced in as it came and never goes through a value tree. Whether values are allowed is not decided here.

use std::borrow::Cow;

use axum::{
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::Response,
};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use meerkat_service::{
    SessionError,
    service::{BlobPage, SessionCreated, TurnAccepted},
    wire::Answer,
};
use serde::{Deserialize, de::DeserializeOwned};

use crate::{
    App, error,
    routes::{BASE, Kind, Route},
};

/// What all answers are.
pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const PREFER: HeaderName = HeaderName::from_static("prefer");

/// Reads a body up to its limit.
pub(crate) async fn read_body(mut body: Body, limit: u64) -> Result<Vec<u8>, SessionError> {
    let announced = check_announced(&body, limit)?;
    let mut read = Vec::with_capacity(usize::try_from(announced).unwrap_or(0));
    while let Some(data) = next_data(&mut body).await? {
        within((read.len() + data.len()) as u64, limit)?;
        read.extend_from_slice(&data);
    }
    Ok(read)
}

/// How many bytes a body says that it has, at least.
pub(crate) fn check_announced(body: &Body, limit: u64) -> Result<u64, SessionError> {
    within(http_body::Body::size_hint(body).lower(), limit)
}

/// The next bytes of a body; `None` at its end.
pub(crate) async fn next_data(body: &mut Body) -> Result<Option<Bytes>, SessionError> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| SessionError::invalid("body", "it ended before it was whole"))?;
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// Refuses a body with more bytes than it may have.
pub(crate) fn within(bytes: u64, limit: u64) -> Result<u64, SessionError> {
    if bytes > limit { Err(SessionError::PayloadTooLarge { what: "body", bytes, limit }) } else { Ok(bytes) }
}

/// A request, taken apart.
pub(crate) struct Parts<'a> {
    pub(crate) path: Vec<(&'a str, Cow<'a, str>)>,
    pub(crate) query: Vec<Pair<'a>>,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: &'a [u8],
}

/// A parameter of a query and its value.
pub(crate) type Pair<'a> = (Cow<'a, str>, Cow<'a, str>);

/// The names and values of a query, which is encoded as a form.
pub(crate) fn query(text: Option<&str>) -> Result<Vec<Pair<'_>>, SessionError> {
    let refusal = || SessionError::invalid("query", "it is not percent-encoded UTF-8");
    let pairs = text.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    let split = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let decoded = |(name, value)| Some((decoded(name, b'+')?, decoded(value, b'+')?));
    split.map(|pair| decoded(pair).ok_or_else(refusal)).collect()
}

/// What stands in a path's braces.
pub(crate) fn path<'a>(
    params: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<Vec<(&'a str, Cow<'a, str>)>, SessionError> {
    let refusal = || SessionError::invalid("path", "it is not percent-encoded UTF-8");
    params.map(|(name, value)| decoded(value, b' ').map(|value| (name, value)).ok_or_else(refusal)).collect()
}

/// What was percent-encoded, with something that stands for a space besides.
fn decoded(text: &str, space: u8) -> Option<Cow<'_, str>> {
    if !text.bytes().any(|byte| byte == b'%' || byte == space) {
        return Some(text.into());
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            byte if byte == space => b' ',
            other => other,
        });
    }
    String::from_utf8(decoded).ok().map(Cow::Owned)
}

/// The JSON of an operation's parameters.
pub(crate) fn params(route: &Route, parts: &Parts<'_>) -> Result<String, SessionError> {
    let mut params = String::with_capacity(96 + parts.body.len());
    params.push('{');
    for (name, value) in &parts.path {
        member(&mut params, name, value)?;
    }
    let cursor = if route.query.contains(&"since_seq") { last_event_id(parts.headers)? } else { None };
    let mut labels = String::new();
    for (at, (name, value)) in parts.query.iter().enumerate() {
        if parts.query[..at].iter().any(|(other, _)| other == name) {
            return Err(SessionError::invalid(name.as_ref(), "it is there twice"));
        }
        let label = name.strip_prefix("labels[").and_then(|rest| rest.strip_suffix(']'));
        if let Some(label) = label.filter(|_| route.query.contains(&"labels")) {
            if label.contains("][") {
                return Err(SessionError::invalid(name.as_ref(), "a label has a name and a text"));
            }
            labels.push(if labels.is_empty() { '{' } else { ',' });
            labels.extend([&json_text(label)?, ":", &json_text(value)?]);
        } else if route.query.contains(&name.as_ref()) {
            match cursor {
                // A client that comes back sends its first cursor in the URL and its last one in the header.
                Some(_) if name == "since_seq" => drop(whole(name, value)?),
                _ => member(&mut params, name, value)?,
            }
        } else if route.switch.is_none_or(|(switch, _)| switch != name) {
            return Err(SessionError::invalid(name.as_ref(), "the query has no such parameter here"));
        }
    }
    if !labels.is_empty() {
        labels.push('}');
        raw_member(&mut params, "labels", &labels);
    }
    if let Some(cursor) = cursor {
        member(&mut params, "since_seq", cursor)?;
    }
    if route.runs_turn() {
        raw_member(&mut params, "wait", if wants_async(parts.headers) { "false" } else { "true" });
    }
    splice_body(params, route, parts)
}

/// Leaves out of what is said of an unknown field those that the body does not take, because the URL gives them.
pub(crate) fn of_body(error: SessionError, route: &Route, path: &[(&str, Cow<'_, str>)]) -> SessionError {
    let SessionError::InvalidRequest { field, mut message } = error else { return error };
    // What is before the list may be the caller's own word.
    if message.starts_with("unknown field")
        && let Some(at) = message.rfind(", expected")
    {
        let mut list = message.split_off(at);
        for name in path.iter().map(|(name, _)| *name).chain(route.query.iter().copied()).chain(["wait"]) {
            for listed in
                [format!("`{name}`, "), format!(", `{name}`"), format!("`{name}` or "), format!(" or `{name}`")]
            {
                list = list.replace(&listed, "");
            }
        }
        message.push_str(&list);
    }
    SessionError::InvalidRequest { field, message }
}

fn splice_body(mut params: String, route: &Route, parts: &Parts<'_>) -> Result<String, SessionError> {
    let refusal = |message: &str| SessionError::invalid("body", message);
    let body = std::str::from_utf8(parts.body).map_err(|_| refusal("it is not UTF-8"))?;
    let body = body.trim_end_matches([' ', '\t', '\r', '\n']);
    let is_json = body.is_empty() || has_type(parts.headers, "application/json");
    if !route.takes_body() && !body.is_empty() {
        return Err(refusal("this route takes none; its parameters stand in path and query"));
    }
    if !is_json {
        return Err(SessionError::invalid("content-type", "a body is sent as application/json"));
    }
    if route.takes_key()
        && let Some(key) = one_header(parts.headers, &IDEMPOTENCY_KEY)?
    {
        match key_in(body) {
            None => member(&mut params, "idempotency_key", key)?,
            Some(same) if same == key => {}
            Some(_) => return Err(SessionError::invalid("idempotency_key", "header and body name different ones")),
        }
    }
    if body.is_empty() {
        params.push('}');
        return Ok(params);
    }
    let inner = body.trim_start_matches([' ', '\t', '\r', '\n']).strip_prefix('{');
    let is_empty = inner.ok_or_else(|| refusal("it is not a JSON object"))?.trim() == "}";
    // Behind the body's own members, so that what is said of its lines and columns is true of what was sent. One that
    // does not end as an object is left as it is, and refused.
    match body.strip_suffix('}') {
        Some(members) if params.len() > 1 => {
            let comma = if is_empty { "" } else { "," };
            Ok([members, comma, &params[1..], "}"].concat())
        }
        _ => Ok(body.to_owned()),
    }
}

/// The key in a body. What cannot be read has none here; decoding it says why.
fn key_in(body: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Keyed {
        idempotency_key: Option<String>,
    }

    serde_json::from_str::<Keyed>(body).ok()?.idempotency_key
}

fn member(params: &mut String, name: &str, value: &str) -> Result<(), SessionError> {
    match Kind::of(name) {
        Kind::Text => raw_member(params, name, &json_text(value)?),
        Kind::Whole => raw_member(params, name, whole(name, value)?),
        Kind::Truth => raw_member(params, name, if truth(name, value)? { "true" } else { "false" }),
        Kind::Labels => return Err(SessionError::invalid(name, "labels are given as labels[name]=value")),
    }
    Ok(())
}

fn raw_member(params: &mut String, name: &str, json: &str) {
    if params.len() > 1 {
        params.push(',');
    }
    params.extend(["\"", name, "\":", json]);
}

fn json_text(text: &str) -> Result<String, SessionError> {
    serde_json::to_string(text).map_err(|error| SessionError::Internal(error.to_string()))
}

/// The digits of a whole number, in the one way in which JSON writes it.
fn whole<'a>(name: &str, text: &'a str) -> Result<&'a str, SessionError> {
    let is_plain = text == "0" || text.starts_with(|first: char| first.is_ascii_digit() && first != '0');
    let is_whole = is_plain && text.parse::<u64>().is_ok();
    if is_whole { Ok(text) } else { Err(SessionError::invalid(name, "it is a whole number, written in digits")) }
}

fn truth(name: &str, value: &str) -> Result<bool, SessionError> {
    value.parse().map_err(|_| SessionError::invalid(name, "it is true or false"))
}

/// The route that a request means, by its switch.
pub(crate) fn asked(route: &'static Route, text: Option<&str>) -> &'static Route {
    let value = route.switch.and_then(|(name, _)| switch(&query(text).ok()?, name).ok());
    value.map_or(route, |value| route.switched(value))
}

/// The value of a switch in the query; off where it is not there.
pub(crate) fn switch(query: &[(Cow<'_, str>, Cow<'_, str>)], name: &str) -> Result<bool, SessionError> {
    let mut values = query.iter().filter(|(known, _)| known == name).map(|(_, value)| truth(name, value));
    values.next().unwrap_or(Ok(false))
}

/// A header that may be there once.
fn one_header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, SessionError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let refusal = |why| SessionError::invalid(name.as_str(), why);
    let text = value.to_str().map_err(|_| refusal("it is not ASCII"))?;
    if values.next().is_some() { Err(refusal("it is there twice")) } else { Ok(Some(text)) }
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<&str>, SessionError> {
    let id = one_header(headers, &LAST_EVENT_ID)?.filter(|id| !id.is_empty());
    id.map(|id| whole(LAST_EVENT_ID.as_str(), id)).transpose()
}

/// The parts of a header that lists things, each without its parameters.
fn listed(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = (&str, &str)> {
    let texts = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    let parts = texts.flat_map(|text| text.split(','));
    parts.map(|part| part.split_once(';').unwrap_or((part, ""))).map(|(part, params)| (part.trim(), params.trim()))
}

/// Whether the caller asked for an event stream by name.
pub(crate) fn wants_stream(headers: &HeaderMap) -> bool {
    listed(headers, header::ACCEPT)
        .any(|(part, params)| part.eq_ignore_ascii_case("text/event-stream") && params != "q=0")
}

/// Whether the caller asked not to wait.
pub(crate) fn wants_async(headers: &HeaderMap) -> bool {
    listed(headers, PREFER).any(|(part, _)| part.eq_ignore_ascii_case("respond-async"))
}

/// Whether a body is of a type. A web page may send some types elsewhere without asking; a list of types is none.
fn has_type(headers: &HeaderMap, name: &str) -> bool {
    let mut values = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return false };
    let essence = value.to_str().map_or("", |value| value.split(';').next().unwrap_or_default());
    essence.trim().eq_ignore_ascii_case(name)
}

/// What an import takes beside its bundle.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Upload {
    #[serde(default)]
    pub(crate) new_ids: bool,
}

/// An answer.
pub(crate) fn json(bytes: impl Into<Body>) -> Response {
    typed(JSON, bytes)
}

/// A response of a type.
pub(crate) fn typed(content_type: HeaderValue, body: impl Into<Body>) -> Response {
    let mut response = sealed(body.into());
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

/// What every response is made of: it is not to be kept, and is nothing but what it says it is.
pub(crate) fn sealed(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// The answer to a session that was made, and where it is.
pub(crate) fn created(app: &App, bytes: Vec<u8>) -> Result<Response, SessionError> {
    let SessionCreated { session_id, .. } = read(&bytes)?;
    located(app, error::CREATED, &format!("/sessions/{session_id}"), bytes)
}

fn located(app: &App, status: StatusCode, path: &str, bytes: Vec<u8>) -> Result<Response, SessionError> {
    let location = format!("{}{BASE}{path}", app.options.public_url.as_deref().unwrap_or_default());
    let mut response = json(bytes);
    *response.status_mut() = status;
    response.headers_mut().insert(header::LOCATION, header_value(&location)?);
    Ok(response)
}

/// The answer to a turn that is not waited for, and where to look for what becomes of it.
pub(crate) fn accepted(app: &App, bytes: Vec<u8>) -> Result<Response, SessionError> {
    let TurnAccepted { session_id, seq, .. } = read(&bytes)?;
    let path = format!("/sessions/{session_id}/events?since_seq={}", seq.saturating_sub(1));
    let mut response = located(app, error::ACCEPTED, &path, bytes)?;
    let headers = response.headers_mut();
    headers.insert("preference-applied", HeaderValue::from_static("respond-async"));
    Ok(response)
}

/// A piece of a blob, as it is; `next-offset` says where the next piece begins.
pub(crate) fn blob(answer: Answer) -> Result<Response, SessionError> {
    let mut next_offset = None;
    let mut decoded = Ok(());
    let piece = answer.map(|bytes| {
        let unreadable = || SessionError::Internal("a blob's page is not base64".to_owned());
        let piece = read(&bytes).and_then(|page: BlobPage| {
            next_offset = page.next_offset;
            page.bytes().ok_or_else(unreadable)
        });
        piece.unwrap_or_else(|error| {
            decoded = Err(error);
            Vec::new()
        })
    });
    decoded?;
    let mut response = typed(HeaderValue::from_static("application/octet-stream"), piece.into_bytes());
    if let Some(offset) = next_offset {
        response.headers_mut().insert("next-offset", HeaderValue::from(offset));
    }
    Ok(response)
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, SessionError> {
    serde_json::from_slice(bytes).map_err(|error| SessionError::Internal(format!("an answer is unreadable: {error}")))
}

fn header_value(text: &str) -> Result<HeaderValue, SessionError> {
    HeaderValue::from_str(text).map_err(|error| SessionError::Internal(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_blob_is_sent_as_it_is() {
        // The examples of RFC 4648.
        let pieces = ["", "f", "fo", "foo", "foob", "fooba", "foobar"];
        let encoded = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"];
        for (piece, data) in pieces.into_iter().zip(encoded) {
            let answer = format!(r#"{{"data":"{data}","next_offset":7}}"#).into_bytes();
            let response = blob(answer.into()).unwrap();
            assert_eq!(response.headers()["next-offset"], "7");
            assert_eq!(response.headers()["content-type"], "application/octet-stream");
            assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), piece);
        }
        let decoded = |data: &str| BlobPage { data: data.to_owned(), next_offset: None }.bytes();
        assert_eq!(decoded("/+8="), Some(vec![0xff, 0xef]));
        assert_eq!(decoded("_-8="), None);
    }
}
