//! One handler for every operation: read the request, call the service, send the answer.

use std::{panic::AssertUnwindSafe, str::FromStr, sync::Arc};

use axum::{
    body::Body,
    extract::{FromRequest as _, FromRequestParts as _, RawPathParams, Request},
    http::{HeaderValue, Method, StatusCode, Uri, header, request::Parts},
    response::{IntoResponse as _, Response},
};
use futures::FutureExt as _;
use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_service::{
    SessionError, SessionId,
    follow::turn::{handle, whole},
    service::{CancelQueued, CreateSession, DeleteSession, InterruptTurn, TurnAccepted},
    session::{event::Event, message::Attached},
};
use serde_json::{Value, json};

use crate::{
    App,
    asked::{Asked, Begun, new_session},
    chat::{self, Chunks},
    error,
    ids::{ResponseId, conversation, parse_conversation},
    own::{Made, check_metadata, own_conversation, update},
    responses::{self, Echo},
    said::call_id_of,
    stream::{Making, Protocol},
    unfold::{Ending, Records, Unfold},
};

/// Header with a key that makes a repeated request the same one.
const KEY_HEADER: &str = "idempotency-key";

/// Items of a page, unless a request says how many.
const PAGE_ITEMS: usize = 20;

/// Performs the operation of a route.
pub(crate) async fn operate(app: Arc<App>, path: &'static str, request: Request) -> Response {
    let performed = AssertUnwindSafe(perform(&app, path, request)).catch_unwind().await;
    let answer = performed.unwrap_or_else(|_| Err(SessionError::Internal("the request's handler panicked".to_owned())));
    answer.unwrap_or_else(|error| {
        if error.code() == ErrorCode::Internal {
            tracing::error!(path, %error, "a request failed");
        }
        error::response(&error)
    })
}

async fn perform(app: &Arc<App>, path: &'static str, request: Request) -> Result<Response, SessionError> {
    let (mut parts, body) = request.into_parts();
    let params = RawPathParams::from_request_parts(&mut parts, &()).await;
    let params = params.map_err(|error| SessionError::invalid("path", error.to_string()))?;
    // No path has two.
    let named = params.iter().next().map_or("", |(_, value)| value);
    let parts = &parts;
    let text = async || read_body(app, Request::from_parts(parts.clone(), body)).await;
    match (parts.method.as_str(), path) {
        ("GET", "/v1/models") => {
            Ok(json_answer(&json!({ "object": "list", "data": app.models().collect::<Vec<_>>() })))
        }
        ("GET", "/v1/models/{*model}") => {
            let model = app.models().find(|model| model["id"] == named);
            model.map(|model| json_answer(&model)).ok_or(SessionError::ItemNotFound("model"))
        }
        ("POST", "/v1/responses") => ask(app, responses::decode(&text().await?)?, key(parts)?).await,
        ("POST", "/v1/chat/completions") => ask(app, chat::decode(&text().await?)?, None).await,
        ("GET", "/v1/responses/{response_id}") => read(app, ResponseId::parse(named)?, parts).await,
        ("DELETE", "/v1/responses/{response_id}") => delete(app, ResponseId::parse(named)?).await,
        ("POST", "/v1/responses/{response_id}/cancel") => cancel(app, ResponseId::parse(named)?).await,
        ("GET", "/v1/responses/{response_id}/input_items") => input_items(app, ResponseId::parse(named)?, parts).await,
        ("POST", "/v1/conversations") => create_conversation(app, &text().await?, parts).await,
        ("GET", "/v1/conversations/{conversation_id}") => read_conversation(app, parse_conversation(named)?).await,
        ("POST", "/v1/conversations/{conversation_id}") => {
            let session_id = parse_conversation(named)?;
            update(app, session_id, responses::decode_metadata(&text().await?)?).await?;
            read_conversation(app, session_id).await
        }
        ("DELETE", "/v1/conversations/{conversation_id}") => {
            let session_id = parse_conversation(named)?;
            let _one_at_a_time = app.turn_of(session_id).await;
            own_conversation(app, session_id).await?;
            app.service.delete(DeleteSession { session_id, force: true }).await?;
            let deleted = json!({ "id": conversation(session_id), "object": "conversation.deleted", "deleted": true });
            Ok(json_answer(&deleted))
        }
        _ => Err(SessionError::UnknownOperation(path.to_owned())),
    }
}

/// The key of a request, which makes a repeated one the same.
fn key(parts: &Parts) -> Result<Option<&str>, SessionError> {
    let key = parts.headers.get(KEY_HEADER).map(HeaderValue::to_str).transpose();
    key.map_err(|_| SessionError::invalid(KEY_HEADER, "it is not ASCII"))
}

async fn create_conversation(app: &App, text: &str, parts: &Parts) -> Result<Response, SessionError> {
    let (transcript, metadata) = responses::decode_conversation(text)?;
    check_metadata(app, &metadata)?;
    transcript.check_references(None)?;
    let request = CreateSession {
        system_prompt: (!transcript.system.is_empty()).then(|| transcript.system.join("\n\n")),
        history: transcript.history,
        idempotency_key: key(parts)?.map(str::to_owned),
        ..new_session(app, Made::Conversation, &metadata, None, true)
    };
    let created = app.service.create_session(request).await?;
    read_conversation(app, created.session_id).await
}

async fn read_conversation(app: &App, session_id: SessionId) -> Result<Response, SessionError> {
    let own = own_conversation(app, session_id).await?;
    Ok(json_answer(&json!({
        "id": conversation(session_id),
        "object": "conversation",
        "created_at": own.created_at.as_millis() / 1000,
        "metadata": own.metadata,
    })))
}

/// Makes a response, or completes a chat.
async fn ask(app: &Arc<App>, mut asked: Asked, key: Option<&str>) -> Result<Response, SessionError> {
    // A stream without a place begins no turn.
    let place = if asked.is_stream { place(app)? } else { None };
    let Begun { service, turn, unfold, echo, passing } = asked.begin(app, key).await?;
    let protocol = match asked.chat {
        Some(chat) => Protocol::Chat(Chunks::new(chat)),
        None => Protocol::responses(echo, None),
    };
    if asked.is_background && !asked.is_stream {
        return Ok(protocol.answer(&unfold));
    }
    let making = Making::begin(service, turn, unfold, (protocol, passing)).await?;
    Ok(if asked.is_stream { making.stream(place) } else { making.whole().await })
}

/// Shows a response as it was recorded, or streams it from its beginning.
async fn read(app: &Arc<App>, id: ResponseId, parts: &Parts) -> Result<Response, SessionError> {
    let query = query(parts, &["stream", "starting_after", "include_obfuscation", "include[]", "include"])?;
    let is_stream = asked(&query, "stream")?.unwrap_or(false);
    let after = asked(&query, "starting_after")?;
    let service = app.service.clone();
    if !is_stream {
        return recorded(app, id).await;
    }
    let place = place(app)?;
    let unfold = Unfold::begin(app, service.as_ref(), id).await?;
    let echo = Echo::of_record(service.as_ref(), &unfold, true).await?;
    let accepted = TurnAccepted { session_id: id.session_id, turn: unfold.turn, seq: id.seq };
    let protocol = Protocol::responses(echo, after);
    Ok(Making::begin(service.clone(), handle(service, accepted), unfold, (protocol, None)).await?.stream(place))
}

async fn recorded(app: &App, id: ResponseId) -> Result<Response, SessionError> {
    let service = app.service.as_ref();
    let (unfold, _) = Unfold::read(app, service, id).await?;
    let echo = Echo::of_record(service, &unfold, true).await?;
    Ok(json_answer(&responses::response(&unfold, &echo)))
}

async fn delete(app: &Arc<App>, id: ResponseId) -> Result<Response, SessionError> {
    let (service, session_id) = (app.service.as_ref(), id.session_id);
    // It is deleted before or after another request continues it.
    let _one_at_a_time = app.turn_of(session_id).await;
    let (unfold, later) = Unfold::read(app, service, id).await?;
    let echo = Echo::of_record(service, &unfold, true).await?;
    let has_previous = echo.previous.is_some_and(|previous| previous.contains(&session_id.to_string()));
    if later.is_some() || has_previous || unfold.own.is_conversation() {
        let message = "its session has other responses, which would be deleted too: delete the session instead";
        return Err(SessionError::invalid("response_id", message));
    }
    let runs = matches!(unfold.ending, None | Some(Ending::Waiting));
    service.delete(DeleteSession { session_id, force: runs }).await?;
    Ok(json_answer(&json!({ "id": id.to_string(), "object": "response", "deleted": true })))
}

async fn cancel(app: &Arc<App>, id: ResponseId) -> Result<Response, SessionError> {
    let service = app.service.as_ref();
    let (unfold, _) = Unfold::read(app, service, id).await?;
    let (session_id, turn) = (id.session_id, unfold.turn);
    if matches!(unfold.ending, None | Some(Ending::Waiting)) {
        let mut ended = Err(SessionError::ItemNotFound("turn"));
        if unfold.terms.is_none() {
            ended = service.cancel_queued(CancelQueued { session_id, turn }).await.map(drop);
        }
        // It is not in the queue, or it has started meanwhile.
        if ended.as_ref().is_err_and(|error| error.code() == ErrorCode::ItemNotFound) {
            ended = service.interrupt(InterruptTurn { session_id, turn: Some(turn) }).await.map(drop);
        }
        match ended {
            // It ended meanwhile.
            Err(error) if !matches!(error.code(), ErrorCode::SessionNotRunning | ErrorCode::ItemNotFound) => {
                return Err(error);
            }
            _ => {}
        }
    }
    recorded(app, id).await
}

/// Lists what the response was asked: the prompt of its turn, or the outputs of the calls that it went on with.
async fn input_items(app: &Arc<App>, id: ResponseId, parts: &Parts) -> Result<Response, SessionError> {
    let query = query(parts, &["limit", "order", "after", "include[]", "include"])?;
    let limit = asked(&query, "limit")?.unwrap_or(PAGE_ITEMS);
    let order: String = asked(&query, "order")?.unwrap_or_else(|| "desc".to_owned());
    if !(1..=100).contains(&limit) || !["asc", "desc"].contains(&order.as_str()) {
        let field = if ["asc", "desc"].contains(&order.as_str()) { "limit" } else { "order" };
        return Err(SessionError::invalid(field, "limit is 1 to 100, order is \"asc\" or \"desc\""));
    }
    let service = app.service.as_ref();
    let begun = Unfold::begin(app, service, id).await?;
    let mut items: Vec<Value> = Vec::new();
    let mut records = Records::after(service, id.session_id, id.seq - 1);
    while let Some(record) = records.next().await? {
        let (prompt, blocks) = match &record.event {
            Event::TurnStarted(started) if record.seq == id.seq => (started.prompt.as_ref(), &started.blocks),
            Event::TurnQueued(queued) if record.seq == id.seq => (Some(&queued.prompt), &queued.blocks),
            Event::ToolFinished(finished) if record.turn == Some(begun.turn) => {
                items.push(json!({
                    "id": format!("fco_{}_{}", id.session_id, record.seq),
                    "type": "function_call_output",
                    "call_id": call_id_of(id.session_id, &finished.call_id),
                    "output": whole(service, id.session_id, &finished.output).await?,
                    "status": "completed",
                }));
                continue;
            }
            Event::AssistantMessage(_) if record.turn == Some(begun.turn) => break,
            _ => continue,
        };
        if let Some(prompt) = prompt {
            items.push(user_item(id, &whole(service, id.session_id, prompt).await?, blocks));
        }
    }
    if order == "desc" {
        items.reverse();
    }
    if let Some(after) = asked::<String>(&query, "after")? {
        let at = items.iter().position(|item| item["id"] == after.as_str());
        items.drain(..=at.ok_or(SessionError::ItemNotFound("item"))?);
    }
    let has_more = items.len() > limit;
    items.truncate(limit);
    let [first_id, last_id] = [items.first(), items.last()].map(|item| item.map(|item| item["id"].clone()));
    let list = json!({
        "object": "list", "data": items, "first_id": first_id, "last_id": last_id, "has_more": has_more,
    });
    Ok(json_answer(&list))
}

fn user_item(id: ResponseId, text: &str, blocks: &[Attached]) -> Value {
    let mut parts = vec![json!({ "type": "input_text", "text": text })];
    // The bytes are in the session's blobs.
    parts.extend(blocks.iter().map(|block| {
        let block = serde_json::to_value(block).unwrap_or_default();
        let kind = if block["type"] == "image" { "input_image" } else { "input_file" };
        json!({ "type": kind, "detail": "auto", "file_id": block["blob"], "filename": block["name"], "image_url": null })
    }));
    json!({
        "id": format!("msg_{}_{}", id.session_id, id.seq),
        "type": "message", "role": "user", "status": "completed", "content": parts,
    })
}

/// Takes a place for a stream.
fn place(app: &App) -> Result<Option<Box<dyn Send>>, SessionError> {
    (app.options.places)().map_err(|body| match body.code {
        ErrorCode::TooManyConnections => SessionError::TooManyAnswers,
        _ => SessionError::Internal(body.message),
    })
}

async fn read_body(app: &App, request: Request) -> Result<String, SessionError> {
    let limit = app.options.body_bytes_max;
    String::from_request(request, &()).await.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            SessionError::PayloadTooLarge { what: "body", bytes: limit.saturating_add(1), limit }
        }
        _ => SessionError::invalid("body", "it ended too early, or is not UTF-8"),
    })
}

fn query(parts: &Parts, known: &[&str]) -> Result<Vec<(String, String)>, SessionError> {
    let text = parts.uri.query().unwrap_or_default();
    let query: Vec<(String, String)> = form_urlencoded::parse(text.as_bytes()).into_owned().collect();
    match query.iter().find(|(name, _)| !known.contains(&name.as_str())) {
        Some((name, _)) => Err(SessionError::invalid(name.as_str(), "this parameter is not supported")),
        None => Ok(query),
    }
}

/// A parameter of a type.
fn asked<T: FromStr>(query: &[(String, String)], name: &'static str) -> Result<Option<T>, SessionError> {
    let value = query.iter().find(|(known, _)| known == name).map(|(_, value)| value.parse());
    value.transpose().map_err(|_| SessionError::invalid(name, "it has another form"))
}

pub(crate) fn json_answer(value: &Value) -> Response {
    typed(HeaderValue::from_static("application/json"), value.to_string())
}

/// A response of a type, which no cache keeps.
pub(crate) fn typed(content_type: HeaderValue, body: impl Into<Body>) -> Response {
    let body: Body = body.into();
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    (headers, body).into_response()
}

/// Answers for a method that a path does not have.
pub(crate) async fn other_method(method: Method) -> Response {
    match method {
        Method::OPTIONS => StatusCode::NO_CONTENT.into_response(),
        _ => error::refusal(&ErrorBody::new(ErrorCode::MethodNotAllowed)),
    }
}

/// Answers for an unknown path.
pub(crate) async fn unknown(uri: Uri) -> Response {
    error::response(&SessionError::UnknownOperation(uri.path().chars().take(200).collect()))
}
