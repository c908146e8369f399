//! From a request's path, query, headers and body to the JSON of an operation's parameters, and from answers to responses.
//!
//! A body is spliced in unchanged and never becomes a value tree. The service decides if values are allowed.

use std::error::Error as _;

use axum::{
    body::{Body, HttpBody as _, to_bytes},
    extract::{FromRequestParts as _, RawPathParams},
    http::{HeaderMap, HeaderName, HeaderValue, header, request},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use http_body_util::LengthLimitError;
use meerkat_service::{
    SessionError,
    service::{BlobPage, SessionCreated, TurnAccepted},
    tool::Picture,
    wire::{Answer, Room, encode},
};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    App, error,
    routes::{BASE, Kind, Route},
};

/// Type of most answers.
pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const PREFER: HeaderName = HeaderName::from_static("prefer");

/// Reads a body up to its limit. A body that announces more is not read at all.
pub(crate) async fn read_body(body: Body, limit: u64) -> Result<Bytes, SessionError> {
    check_announced(&body, limit)?;
    let read = to_bytes(body, usize::try_from(limit).unwrap_or(usize::MAX)).await;
    read.map_err(|error| match error.source().is_some_and(|cause| cause.is::<LengthLimitError>()) {
        true => too_large(limit.saturating_add(1), limit),
        false => broken_off(),
    })
}

/// Refuses a body that announces more bytes than the limit.
pub(crate) fn check_announced(body: &Body, limit: u64) -> Result<(), SessionError> {
    within(body.size_hint().lower(), limit)
}

/// Returns the bytes of a body that announces them.
pub(crate) fn length(body: &Body) -> Option<u64> {
    body.size_hint().exact()
}

/// Refuses more bytes than the limit.
pub(crate) fn within(bytes: u64, limit: u64) -> Result<(), SessionError> {
    if bytes > limit { Err(too_large(bytes, limit)) } else { Ok(()) }
}

fn too_large(bytes: u64, limit: u64) -> SessionError {
    SessionError::PayloadTooLarge { what: "body", bytes, limit }
}

/// The refusal of a body whose rest did not come.
pub(crate) fn broken_off() -> SessionError {
    SessionError::invalid("body", "its rest did not come, or came too slowly; send the request again")
}

/// Request without its body.
pub(crate) struct RequestHead {
    pub(crate) path: RawPathParams,
    pub(crate) query: Vec<(String, String)>,
    pub(crate) headers: HeaderMap,
}

impl RequestHead {
    /// Reads path and query. The parsers accept a broken percent-encoding; here it is refused.
    pub(crate) async fn read(mut parts: request::Parts) -> Result<Self, SessionError> {
        let refusal = |field| SessionError::invalid(field, "it is not percent-encoded UTF-8");
        let checked = |text, field| if is_encoded(text) { Ok(()) } else { Err(refusal(field)) };
        checked(parts.uri.path(), "path")?;
        let query = parts.uri.query().unwrap_or_default();
        checked(query, "query")?;
        let query = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let path = RawPathParams::from_request_parts(&mut parts, &()).await.map_err(|_| refusal("path"))?;
        Ok(Self { path, query, headers: parts.headers })
    }
}

/// Whether two digits follow each `%`, and all of it is UTF-8.
fn is_encoded(text: &str) -> bool {
    let is_byte = |rest: &str| rest.len() >= 2 && rest.bytes().take(2).all(|digit| digit.is_ascii_hexdigit());
    text.split('%').skip(1).all(is_byte) && percent_decode_str(text).decode_utf8().is_ok()
}

/// The JSON of an operation's parameters.
pub(crate) fn params(route: &Route, asked: &RequestHead, body: &[u8]) -> Result<String, SessionError> {
    let (mut params, mut labels) = (Map::new(), Map::new());
    for (name, value) in &asked.path {
        params.insert(name.to_owned(), parameter(name, value)?);
    }
    for (at, (name, value)) in asked.query.iter().enumerate() {
        if asked.query[..at].iter().any(|(other, _)| other == name) {
            return Err(SessionError::invalid(name, "it is given more than once"));
        }
        let label = name.strip_prefix("labels[").and_then(|rest| rest.strip_suffix(']'));
        if let Some(label) = label.filter(|_| route.query.contains(&"labels")) {
            if label.contains("][") {
                return Err(SessionError::invalid(name, "a label has a name and a text"));
            }
            labels.insert(label.to_owned(), value.as_str().into());
        } else if route.query.contains(&name.as_str()) {
            params.insert(name.clone(), parameter(name, value)?);
        } else if route.switch.is_some_and(|(switch, _)| switch == name) {
            truth(name, value)?;
        } else {
            let known: Vec<&str> = route.query.iter().copied().chain(route.switch.map(|(switch, _)| switch)).collect();
            let which =
                if known.is_empty() { "none is allowed".to_owned() } else { format!("allowed: {}", known.join(", ")) };
            return Err(SessionError::invalid(name, format!("this route has no such query parameter; {which}")));
        }
    }
    if !labels.is_empty() {
        params.insert("labels".to_owned(), labels.into());
    }
    // A browser that reconnects sends its first cursor in the URL and its last one in the header.
    if route.query.contains(&"since_seq")
        && let Some(cursor) = last_event_id(&asked.headers)?
    {
        params.insert("since_seq".to_owned(), whole(LAST_EVENT_ID.as_str(), cursor)?.into());
    }
    if route.follows_list()
        && wants_stream(&asked.headers)
        && let Some(cursor) = last_event_id(&asked.headers)?
    {
        params.insert("cursor".to_owned(), cursor.into());
    }
    if route.runs_turn() {
        params.insert("wait".to_owned(), (!wants_async(&asked.headers)).into());
    }
    splice_body(params, route, asked, body)
}

/// Removes from a message about an unknown field the fields that the body does not take, because the URL has them, and
/// says of such a field in the body where it belongs.
pub(crate) fn of_body(error: SessionError, route: &Route) -> SessionError {
    let SessionError::InvalidRequest { field, mut message } = error else { return error };
    let twice = message.strip_prefix("duplicate field `").and_then(|rest| rest.split_once('`')).map(|(name, _)| name);
    match twice {
        Some("wait") if route.runs_turn() => {
            let message = "leave it out of the body: a request waits unless it has the header `Prefer: respond-async`";
            return SessionError::invalid("wait", message);
        }
        Some(name) if route.path_params().any(|param| param == name) => {
            return SessionError::invalid(name, "leave it out of the body: the path has it");
        }
        _ => {}
    }
    // Before the list is the caller's own word.
    if message.starts_with("unknown field")
        && let Some(at) = message.rfind(", expected")
    {
        let mut list = message.split_off(at);
        for name in route.path_params().chain(route.query.iter().copied()).chain(route.runs_turn().then_some("wait")) {
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

fn splice_body(
    mut params: Map<String, Value>,
    route: &Route,
    asked: &RequestHead,
    body: &[u8],
) -> Result<String, SessionError> {
    let refusal = |message: &str| SessionError::invalid("body", message);
    let body = std::str::from_utf8(body).map_err(|_| refusal("it is not UTF-8"))?;
    let body = body.trim_end_matches([' ', '\t', '\r', '\n']);
    let is_json = body.is_empty() || has_type(&asked.headers, "application/json");
    if !route.takes_body() && !body.is_empty() {
        return Err(refusal("this route takes no body; pass its parameters in the path and the query"));
    }
    if !is_json {
        return Err(SessionError::invalid("content-type", "a body is sent as application/json"));
    }
    if route.takes_key()
        && let Some(key) = one_header(&asked.headers, &IDEMPOTENCY_KEY)?
    {
        match key_in(body) {
            None => drop(params.insert("idempotency_key".to_owned(), key.into())),
            Some(same) if same == key => {}
            Some(_) => return Err(SessionError::invalid("idempotency_key", "header and body name different ones")),
        }
    }
    let has_params = !params.is_empty();
    let params = Value::Object(params).to_string();
    if body.is_empty() {
        return Ok(params);
    }
    let inner = body.trim_start_matches([' ', '\t', '\r', '\n']).strip_prefix('{');
    let is_empty = inner.ok_or_else(|| refusal("it is not a JSON object"))?.trim() == "}";
    // After the body's own members, so that lines and columns in messages are those of the body. A body that does not
    // end as an object is refused when it is decoded.
    match body.strip_suffix('}') {
        Some(members) if has_params => Ok([members, if is_empty { "" } else { "," }, &params[1..]].concat()),
        _ => Ok(body.to_owned()),
    }
}

/// The key in a body. A body that cannot be read has none, and is refused when it is decoded.
fn key_in(body: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Keyed {
        idempotency_key: Option<String>,
    }

    serde_json::from_str::<Keyed>(body).ok()?.idempotency_key
}

/// The value of a parameter in the path or the query.
fn parameter(name: &str, value: &str) -> Result<Value, SessionError> {
    match Kind::of(name) {
        Kind::Text => Ok(value.into()),
        Kind::Whole => whole(name, value).map(Value::from),
        Kind::Truth => truth(name, value).map(Value::from),
        Kind::Labels => Err(SessionError::invalid(name, "labels are given as labels[name]=value")),
    }
}

/// A whole number, written as in JSON.
fn whole(name: &str, text: &str) -> Result<u64, SessionError> {
    let is_plain = text == "0" || text.starts_with(|first: char| first.is_ascii_digit() && first != '0');
    let number = text.parse().ok().filter(|_| is_plain);
    number.ok_or_else(|| SessionError::invalid(name, "it is a whole number, written in digits"))
}

fn truth(name: &str, value: &str) -> Result<bool, SessionError> {
    value.parse().map_err(|_| SessionError::invalid(name, "it is true or false"))
}

/// A header that may be given once.
fn one_header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, SessionError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let refusal = |why| SessionError::invalid(name.as_str(), why);
    let text = value.to_str().map_err(|_| refusal("it is not ASCII"))?;
    if values.next().is_some() { Err(refusal("it is given more than once")) } else { Ok(Some(text)) }
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<&str>, SessionError> {
    Ok(one_header(headers, &LAST_EVENT_ID)?.filter(|id| !id.is_empty()))
}

/// The items of a header's list, each with its parameters apart.
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

/// Returns true if a body has this type. A list of types is refused, because a web page may send one without asking.
fn has_type(headers: &HeaderMap, name: &str) -> bool {
    let mut values = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return false };
    let essence = value.to_str().map_or("", |value| value.split(';').next().unwrap_or_default());
    essence.trim().eq_ignore_ascii_case(name)
}

/// Parameters of an import besides its bundle.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Upload {
    #[serde(default)]
    pub(crate) new_ids: bool,
    #[serde(default)]
    pub(crate) keep_scope: bool,
}

/// An answer in JSON.
pub(crate) fn json(bytes: impl Into<Body>) -> Response {
    typed(JSON, bytes)
}

/// A response of a type.
pub(crate) fn typed(content_type: HeaderValue, body: impl Into<Body>) -> Response {
    let body: Body = body.into();
    ([(header::CONTENT_TYPE, content_type)], body).into_response()
}

/// Adds to every response that it must not be cached, and has the type that it names.
pub(crate) async fn seal(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// The answer if a session was created, with its `Location`.
pub(crate) fn created(app: &App, created: &SessionCreated) -> Result<Response, SessionError> {
    let location = location(app, &format!("/sessions/{}", created.session_id))?;
    Ok((error::CREATED, location, json(encode(created)?)).into_response())
}

/// The answer to a turn that is not waited for, with the `Location` of its events.
pub(crate) fn accepted(app: &App, turn: &TurnAccepted) -> Result<Response, SessionError> {
    let TurnAccepted { session_id, seq, .. } = turn;
    let location = location(app, &format!("/sessions/{session_id}/events?since_seq={}", seq.saturating_sub(1)))?;
    let applied = [("preference-applied", "respond-async")];
    Ok((error::ACCEPTED, location, applied, json(encode(turn)?)).into_response())
}

fn location(app: &App, path: &str) -> Result<[(HeaderName, HeaderValue); 1], SessionError> {
    let location = format!("{}{BASE}{path}", app.options.public_url.as_deref().unwrap_or_default());
    let value = HeaderValue::try_from(location).map_err(|error| SessionError::Internal(error.to_string()))?;
    Ok([(header::LOCATION, value)])
}

/// The bytes of a piece of a blob; `next-offset` is where the next piece begins. A browser shows nothing but images that
/// are there whole.
pub(crate) fn blob(page: &BlobPage, is_begin: bool, room: Option<Room>) -> Result<Response, SessionError> {
    let piece = page.bytes().ok_or_else(|| SessionError::Internal("a blob's page is not base64".to_owned()))?;
    let image = Picture::media_type(&piece).filter(|_| is_begin && page.next_offset.is_none());
    let media_type = HeaderValue::from_static(image.unwrap_or("application/octet-stream"));
    let saved = image.is_none().then_some([(header::CONTENT_DISPOSITION, "attachment")]);
    let piece = Answer::within(piece, room).into_bytes();
    let next_offset = page.next_offset.map(|offset| [("next-offset", HeaderValue::from(offset))]);
    Ok((next_offset, saved, typed(media_type, piece)).into_response())
}
