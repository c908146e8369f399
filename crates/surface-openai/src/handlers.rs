//! The table of operations, and the one handler of all: read the request, call the service, send the answer.

use std::{panic::AssertUnwindSafe, str::FromStr, sync::Arc};

use axum::{
    body::Body,
    extract::{FromRequest as _, FromRequestParts as _, RawPathParams, Request},
    http::{Method, StatusCode, Uri, request::Parts},
    response::{IntoResponse as _, Response},
};
use futures::{FutureExt as _, future::BoxFuture};
use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_service::{
    SessionError, SessionId,
    follow::turn::{handle, whole},
    service::{CreateSession, DeleteSession, TurnAccepted},
    session::{event::Event, message::Attached},
};
use serde_json::{Value, json};

use crate::{
    App,
    asked::{Asked, Begun, decode},
    calls,
    chat::Chunks,
    error,
    ids::{ResponseId, call_id_of, conversation, parse_conversation},
    own::{check_metadata, new_session, own, own_conversation, update},
    past::Records,
    responses::{Echo, response},
    said::Transcript,
    stream::{Making, Sending, json_answer},
    unfold::{Ending, Unfold},
    wire::Fields,
};

struct Call {
    app: Arc<App>,
    /// The parameter of the path; no path has two.
    named: String,
    parts: Parts,
    body: Body,
}

/// An operation: its method and path, whose parameter is in braces, and how it is performed.
#[derive(Debug)]
pub struct Route {
    /// Its method.
    pub method: Method,
    /// Its path.
    pub path: &'static str,
    perform: fn(Call) -> BoxFuture<'static, Result<Response, SessionError>>,
}

macro_rules! table {
    ($( $method:ident $path:literal $perform:ident, )+) => {
        /// The operations.
        pub static TABLE: &[Route] =
            &[$( Route { method: Method::$method, path: $path, perform: |call| $perform(call).boxed() } ),+];
    };
}

table! {
    GET "/v1/models" models,
    GET "/v1/models/{*model}" model,
    POST "/v1/responses" respond,
    GET "/v1/responses/{response_id}" read,
    DELETE "/v1/responses/{response_id}" delete,
    POST "/v1/responses/{response_id}/cancel" cancel,
    GET "/v1/responses/{response_id}/input_items" input_items,
    POST "/v1/conversations" converse,
    GET "/v1/conversations/{conversation_id}" read_conversation,
    POST "/v1/conversations/{conversation_id}" update_conversation,
    DELETE "/v1/conversations/{conversation_id}" delete_conversation,
    POST "/v1/chat/completions" chat,
}

/// Header with a key that makes a repeated request the same one.
const KEY_HEADER: &str = "idempotency-key";

const PAGE_ITEMS: usize = 20;

pub(crate) async fn operate(app: Arc<App>, route: &'static Route, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let performed = async {
        let params = RawPathParams::from_request_parts(&mut parts, &()).await;
        let params = params.map_err(|error| SessionError::invalid("path", error.to_string()))?;
        let named = params.iter().next().map_or_else(String::new, |(_, value)| value.to_owned());
        (route.perform)(Call { app, named, parts, body }).await
    };
    let answer = AssertUnwindSafe(performed).catch_unwind().await;
    let answer = answer.unwrap_or_else(|_| Err(SessionError::Internal("the request's handler panicked".to_owned())));
    answer.unwrap_or_else(|error| {
        if error.code() == ErrorCode::Internal {
            tracing::error!(route.path, %error, "a request failed");
        }
        error::refusal(&error.body())
    })
}

impl Call {
    /// The key, which makes a repeated request the same.
    fn key(&self) -> Result<Option<String>, SessionError> {
        let key = self.parts.headers.get(KEY_HEADER).map(|key| key.to_str().map(str::to_owned));
        key.transpose().map_err(|_| SessionError::invalid(KEY_HEADER, "it is not ASCII"))
    }

    async fn text(self) -> Result<String, SessionError> {
        let limit = self.app.options.body_bytes_max;
        let text = String::from_request(Request::from_parts(self.parts, self.body), &()).await;
        text.map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                SessionError::PayloadTooLarge { what: "body", bytes: limit.saturating_add(1), limit }
            }
            _ => SessionError::invalid("body", "it ended too early, or is not UTF-8"),
        })
    }

    fn query(&self, known: &[&str]) -> Result<Vec<(String, String)>, SessionError> {
        let text = self.parts.uri.query().unwrap_or_default();
        let query: Vec<(String, String)> = form_urlencoded::parse(text.as_bytes()).into_owned().collect();
        match query.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            Some((name, _)) => Err(SessionError::invalid(name.as_str(), "this parameter is not supported")),
            None => Ok(query),
        }
    }
}

async fn models(call: Call) -> Result<Response, SessionError> {
    Ok(json_answer(&json!({ "object": "list", "data": call.app.models().collect::<Vec<_>>() })))
}

async fn model(call: Call) -> Result<Response, SessionError> {
    let model = call.app.models().find(|model| model["id"] == call.named.as_str());
    model.map(|model| json_answer(&model)).ok_or(SessionError::ItemNotFound("model"))
}

async fn converse(call: Call) -> Result<Response, SessionError> {
    let (app, idempotency_key, text) = (call.app.clone(), call.key()?, call.text().await?);
    let mut body = Fields::body(&text)?;
    let metadata = body.texts("metadata")?.unwrap_or_default();
    let mut said = body.raw("items").map(|raw| Transcript::read("items", raw)).transpose()?.unwrap_or_default();
    body.finish()?;
    check_metadata(&app, &metadata)?;
    said.settle()?;
    said.check_references(None)?;
    let request = CreateSession {
        system_prompt: (!said.system.is_empty()).then(|| said.system.join("\n\n")),
        history: said.history,
        idempotency_key,
        ..new_session(&app, true, &metadata, None)
    };
    let created = app.service.create_session(request).await.map_err(|error| error::theirs(error, "items"))?;
    conversed(&app, created.session_id).await
}

async fn read_conversation(call: Call) -> Result<Response, SessionError> {
    conversed(&call.app, parse_conversation(&call.named)?).await
}

async fn update_conversation(call: Call) -> Result<Response, SessionError> {
    let (app, session_id, text) = (call.app.clone(), parse_conversation(&call.named)?, call.text().await?);
    let mut body = Fields::body(&text)?;
    let metadata = body.texts("metadata")?.ok_or_else(|| body.wrong("metadata", "it is missing"))?;
    body.finish()?;
    update(&app, session_id, metadata).await.map_err(|error| error::theirs(error, "items"))?;
    conversed(&app, session_id).await
}

async fn delete_conversation(Call { app, named, .. }: Call) -> Result<Response, SessionError> {
    let session_id = parse_conversation(&named)?;
    let _one_at_a_time = app.turn_of(session_id).await;
    own_conversation(&app, session_id).await?;
    app.service.delete(DeleteSession { session_id, force: true }).await?;
    Ok(json_answer(&json!({ "id": named, "object": "conversation.deleted", "deleted": true })))
}

async fn conversed(app: &App, session_id: SessionId) -> Result<Response, SessionError> {
    let own = own_conversation(app, session_id).await?;
    let (id, created_at) = (conversation(session_id), own.created_at.as_millis() / 1000);
    let shown = json!({ "id": id, "object": "conversation", "created_at": created_at, "metadata": own.metadata });
    Ok(json_answer(&shown))
}

async fn respond(call: Call) -> Result<Response, SessionError> {
    let (app, key) = (call.app.clone(), call.key()?);
    ask(&app, decode(&call.text().await?, false)?, key.as_deref()).await
}

async fn chat(call: Call) -> Result<Response, SessionError> {
    let app = call.app.clone();
    ask(&app, decode(&call.text().await?, true)?, None).await
}

async fn ask(app: &Arc<App>, mut asked: Asked, key: Option<&str>) -> Result<Response, SessionError> {
    // A stream without a place begins no turn.
    let place = if asked.is_stream { place(app)? } else { None };
    let Begun { service, turn, unfold, echo, passing } =
        asked.begin(app, key).await.map_err(|error| error::theirs(error, asked.said()))?;
    let chat = asked.is_chat.then(|| Chunks::new(asked.has_usage));
    let sending = Sending { echo, chat, after: None, count: 0 };
    if asked.is_background && !asked.is_stream {
        return Ok(sending.answer(&unfold));
    }
    let making = Making::begin(service, turn, unfold, (sending, passing)).await?;
    Ok(if asked.is_stream { making.stream(place) } else { making.whole().await })
}

/// Shows a response as it was recorded, or streams it from its beginning.
async fn read(call: Call) -> Result<Response, SessionError> {
    let (app, id) = (&call.app, ResponseId::parse(&call.named)?);
    let query = call.query(&["stream", "starting_after", "include_obfuscation", "include[]", "include"])?;
    let (is_stream, after) = (given(&query, "stream")?.unwrap_or(false), given(&query, "starting_after")?);
    let place = if is_stream { place(app)? } else { None };
    let service = app.service.clone();
    let (unfold, past) = Unfold::read(app, service.as_ref(), id).await?;
    let sending = Sending { echo: Echo::of(&unfold, &past, true), chat: None, after, count: 0 };
    if !is_stream {
        return Ok(sending.answer(&unfold));
    }
    let accepted = TurnAccepted { session_id: id.session_id, turn: unfold.turn, seq: id.seq };
    let begun = Unfold::begin(service.as_ref(), id, unfold.own).await?;
    Ok(Making::begin(service.clone(), handle(service, accepted), begun, (sending, None)).await?.stream(place))
}

async fn delete(Call { app, named, .. }: Call) -> Result<Response, SessionError> {
    let id = ResponseId::parse(&named)?;
    let (service, session_id) = (app.service.as_ref(), id.session_id);
    // It is deleted before or after another request continues it.
    let _one_at_a_time = app.turn_of(session_id).await;
    let (unfold, past) = Unfold::read(&app, service, id).await?;
    let has_previous = past.previous(id).is_some_and(|previous| previous.session_id == session_id);
    if past.next(id).is_some() || has_previous || unfold.own.is_conversation {
        let message = "its session has other responses, which would be deleted too: delete the session instead";
        return Err(SessionError::invalid("response_id", message));
    }
    let runs = matches!(unfold.ending, None | Some(Ending::Waiting));
    service.delete(DeleteSession { session_id, force: runs }).await?;
    Ok(json_answer(&json!({ "id": named, "object": "response", "deleted": true })))
}

async fn cancel(Call { app, named, .. }: Call) -> Result<Response, SessionError> {
    let (service, id) = (app.service.as_ref(), ResponseId::parse(&named)?);
    let (mut unfold, past) = Unfold::read(&app, service, id).await?;
    if matches!(unfold.ending, None | Some(Ending::Waiting)) {
        calls::end(service, id.session_id, unfold.turn).await?;
        unfold = Unfold::read(&app, service, id).await?.0;
    }
    Ok(json_answer(&response(&unfold, &Echo::of(&unfold, &past, true))))
}

/// Lists what the response was asked: the prompt of its turn, or the outputs of the calls that it went on with.
async fn input_items(call: Call) -> Result<Response, SessionError> {
    let (app, id) = (&call.app, ResponseId::parse(&call.named)?);
    let service = app.service.as_ref();
    let begun = Unfold::begin(service, id, own(app, service, id.session_id).await?).await?;
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
    page(items, &call)
}

/// A page of items, the newest first unless the query says otherwise.
fn page(mut items: Vec<Value>, call: &Call) -> Result<Response, SessionError> {
    let query = call.query(&["limit", "order", "after", "include[]", "include"])?;
    let limit = given(&query, "limit")?.unwrap_or(PAGE_ITEMS);
    let order: String = given(&query, "order")?.unwrap_or_else(|| "desc".to_owned());
    let is_known = ["asc", "desc"].contains(&order.as_str());
    if !is_known || !(1..=100).contains(&limit) {
        let message = "limit is 1 to 100, order is \"asc\" or \"desc\"";
        return Err(SessionError::invalid(if is_known { "limit" } else { "order" }, message));
    }
    if order == "desc" {
        items.reverse();
    }
    if let Some(after) = given::<String>(&query, "after")? {
        let at = items.iter().position(|item| item["id"] == after.as_str());
        items.drain(..=at.ok_or(SessionError::ItemNotFound("item"))?);
    }
    let has_more = items.len() > limit;
    items.truncate(limit);
    let [first_id, last_id] = [items.first(), items.last()].map(|item| item.map(|item| item["id"].clone()));
    let page =
        json!({ "object": "list", "data": items, "first_id": first_id, "last_id": last_id, "has_more": has_more });
    Ok(json_answer(&page))
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

fn place(app: &App) -> Result<Option<Box<dyn Send>>, SessionError> {
    (app.options.places)().map_err(|body| SessionError::Failed(Box::new(body)))
}

fn given<T: FromStr>(query: &[(String, String)], name: &'static str) -> Result<Option<T>, SessionError> {
    let value = query.iter().find(|(known, _)| known == name).map(|(_, value)| value.parse());
    let form = if name == "stream" { "send true or false" } else { "send a whole number" };
    value.transpose().map_err(|_| SessionError::invalid(name, form))
}

pub(crate) async fn other_method(method: Method) -> Response {
    match method {
        Method::OPTIONS => StatusCode::NO_CONTENT.into_response(),
        _ => error::refusal(&ErrorBody::new(ErrorCode::MethodNotAllowed)),
    }
}

pub(crate) async fn unknown(uri: Uri) -> Response {
    error::refusal(&SessionError::UnknownOperation(uri.path().chars().take(200).collect()).body())
}
