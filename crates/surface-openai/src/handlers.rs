//! One handler for every operation: read the request, call the service, send the answer.

use std::{panic::AssertUnwindSafe, sync::Arc};

use axum::{
    body::{Body, Bytes, to_bytes},
    extract::{FromRequestParts as _, RawPathParams, Request},
    http::{HeaderValue, Method, StatusCode, Uri, header, request::Parts},
    response::{IntoResponse as _, Response},
};
use futures::FutureExt as _;
use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_service::{
    SessionError, SessionId, SessionService, TurnNumber,
    follow::turn::{handle, whole},
    service::{CancelQueued, CreateSession, DeleteSession, InterruptTurn, ReadEvents, TurnAccepted, UpdateSession},
    session::{event::Event, message::Attached},
};
use serde_json::{Value, json};

use crate::{
    App,
    asked::{Asked, Begun, with_no_tools},
    chat, error,
    ids::{ResponseId, conversation, mark, parse_conversation, unmark},
    responses::{self, Echo},
    routes::Operation,
    said::call_id_of,
    stream::{Protocol, run, stream},
    unfold::{Ending, Unfold, decode, first},
};

/// Header with a key that makes a repeated request the same one.
const KEY_HEADER: &str = "idempotency-key";

/// Performs the operation of a route.
pub(crate) async fn operate(app: Arc<App>, operation: Operation, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let performed = AssertUnwindSafe(perform(&app, operation, &mut parts, body)).catch_unwind().await;
    let answer = performed.unwrap_or_else(|_| Err(SessionError::Internal("the request's handler panicked".to_owned())));
    answer.unwrap_or_else(|error| {
        if error.code() == ErrorCode::Internal {
            tracing::error!(?operation, %error, "a request failed");
        }
        error::response(&error)
    })
}

async fn perform(
    app: &Arc<App>,
    operation: Operation,
    parts: &mut Parts,
    body: Body,
) -> Result<Response, SessionError> {
    match operation {
        Operation::Models => Ok(json_answer(&json!({ "object": "list", "data": app.models().collect::<Vec<_>>() }))),
        Operation::Model => {
            let name = param(parts, "model").await?;
            let model = app.models().find(|model| model["id"] == name.as_str());
            model.map(|model| json_answer(&model)).ok_or(SessionError::ItemNotFound("model"))
        }
        Operation::Create => {
            let text = read_body(app, body).await?;
            create(app, responses::decode(&text)?, parts).await
        }
        Operation::CreateConversation => {
            let text = read_body(app, body).await?;
            create_conversation(app, &text, parts).await
        }
        Operation::ReadConversation => read_conversation(app, conversation_id(parts).await?).await,
        Operation::UpdateConversation => {
            let (text, session_id) = (read_body(app, body).await?, conversation_id(parts).await?);
            let mut labels = responses::decode_metadata(&text)?;
            mark(&mut labels);
            app.service.update(UpdateSession { session_id, title: None, labels: Some(labels) }).await?;
            read_conversation(app, session_id).await
        }
        Operation::DeleteConversation => {
            let session_id = conversation_id(parts).await?;
            app.service.delete(DeleteSession { session_id, force: true }).await?;
            let deleted = json!({ "id": conversation(session_id), "object": "conversation.deleted", "deleted": true });
            Ok(json_answer(&deleted))
        }
        Operation::Complete => {
            let text = read_body(app, body).await?;
            complete(app, chat::decode(&text)?).await
        }
        Operation::Read => read(app, response_id(parts).await?, parts).await,
        Operation::Delete => delete(app, response_id(parts).await?).await,
        Operation::Cancel => cancel(app, response_id(parts).await?).await,
        Operation::InputItems => input_items(app, response_id(parts).await?, parts).await,
    }
}

/// The key of a request, which makes a repeated one the same.
fn key(parts: &Parts) -> Result<Option<&str>, SessionError> {
    let key = parts.headers.get(KEY_HEADER).map(HeaderValue::to_str).transpose();
    key.map_err(|_| SessionError::invalid(KEY_HEADER, "it is not ASCII"))
}

async fn create_conversation(app: &App, text: &str, parts: &Parts) -> Result<Response, SessionError> {
    let (transcript, mut labels) = responses::decode_conversation(text)?;
    mark(&mut labels);
    let system = transcript.system.join("\n\n");
    let request = CreateSession {
        labels,
        system_prompt: Some(system).filter(|system| !system.is_empty()),
        history: transcript.history,
        idempotency_key: key(parts)?.map(str::to_owned),
        ..with_no_tools()
    };
    let created = app.service.create_session(request).await?;
    read_conversation(app, created.session_id).await
}

async fn read_conversation(app: &App, session_id: SessionId) -> Result<Response, SessionError> {
    let view = app.service.read(&session_id).await?;
    let mut metadata = view.labels;
    unmark(&mut metadata);
    Ok(json_answer(&json!({
        "id": conversation(session_id),
        "object": "conversation",
        "created_at": view.created_at.as_millis() / 1000,
        "metadata": metadata,
    })))
}

async fn conversation_id(parts: &mut Parts) -> Result<SessionId, SessionError> {
    parse_conversation(&param(parts, "conversation_id").await?)
}

async fn create(app: &Arc<App>, mut asked: Asked, parts: &Parts) -> Result<Response, SessionError> {
    let key = key(parts)?;
    // A stream without a place begins no turn.
    let place = if asked.is_stream { (app.options.places)().map_err(refused)? } else { None };
    let begun = asked.begin(app, key).await?;
    let Begun { service, id, turn, instructions, mut metadata, is_passing } = begun;
    unmark(&mut metadata);
    let passing = is_passing.then(|| Passing::new(service.clone(), &turn.accepted));
    let echo = Echo {
        model: asked.model.unwrap_or_default(),
        instructions,
        previous: asked.previous.map(|previous| previous.to_string()),
        conversation: asked.conversation.map(conversation),
        tools: asked.tools,
        options: asked.options,
        output: asked.output,
        metadata,
        user: asked.user,
        is_stored: asked.is_stored,
        is_background: asked.is_background,
    };
    let unfold = Unfold::begin(service.as_ref(), id).await?;
    if asked.is_stream {
        return stream(service, turn, unfold, Protocol::responses(echo, None), (passing, place)).await;
    }
    if asked.is_background {
        return Ok(json_answer(&responses::response(&unfold, &echo)));
    }
    let unfold = run(service, turn, unfold).await?;
    passing.into_iter().for_each(Passing::answered);
    Ok(json_answer(&responses::response(&unfold, &echo)))
}

async fn complete(app: &Arc<App>, mut asked: Asked) -> Result<Response, SessionError> {
    let place = if asked.is_stream { (app.options.places)().map_err(refused)? } else { None };
    let Begun { service, id, turn, is_passing, .. } = asked.begin(app, None).await?;
    let passing = is_passing.then(|| Passing::new(service.clone(), &turn.accepted));
    let unfold = Unfold::begin(service.as_ref(), id).await?;
    if asked.is_stream {
        let protocol = Protocol::Chat(chat::Chunks::new(asked.has_usage));
        return stream(service, turn, unfold, protocol, (passing, place)).await;
    }
    let unfold = run(service, turn, unfold).await?;
    passing.into_iter().for_each(Passing::answered);
    let ending = unfold.ending.as_ref().unwrap_or(&Ending::Interrupted);
    Ok(match chat::completion(&unfold, ending) {
        Ok(completion) => json_answer(&completion),
        Err(body) => error::refusal(&body),
    })
}

/// Shows a response as it was recorded, or streams it from its beginning.
async fn read(app: &Arc<App>, id: ResponseId, parts: &Parts) -> Result<Response, SessionError> {
    let query = query(parts, &["stream", "starting_after", "include_obfuscation", "include[]", "include"])?;
    let asked = |name: &str| query.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    let is_stream = match asked("stream") {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(SessionError::invalid("stream", "it is true or false")),
    };
    let after = asked("starting_after")
        .map(|after| after.parse::<u64>().map_err(|_| SessionError::invalid("starting_after", "it is a whole number")));
    let after = after.transpose()?;
    let service = app.service.clone();
    if !is_stream {
        let (unfold, _) = Unfold::read(service.as_ref(), id).await?;
        let echo = echo(app, &unfold).await?;
        return Ok(json_answer(&responses::response(&unfold, &echo)));
    }
    let place = (app.options.places)().map_err(refused)?;
    let unfold = Unfold::begin(service.as_ref(), id).await?;
    let echo = echo(app, &unfold).await?;
    let accepted = TurnAccepted { session_id: id.session_id, turn: unfold.turn, seq: id.seq };
    let turn = handle(service.clone(), accepted);
    stream(service, turn, unfold, Protocol::responses(echo, after), (None, place)).await
}

/// What a recorded response repeats of its request.
async fn echo(app: &App, unfold: &Unfold) -> Result<Echo, SessionError> {
    let (service, id) = (app.service.as_ref(), unfold.id);
    let (instructions, mut metadata) = first(service, id.session_id).await?;
    let user = metadata.remove(&app.options.scope_label);
    let conversation = unmark(&mut metadata).then(|| conversation(id.session_id));
    let mut echo = Echo { instructions, metadata, user, conversation, is_stored: true, ..Echo::default() };
    let (mut since, mut tools) = (0, Vec::new());
    let mut has_answered = false;
    'pages: loop {
        let page = service.events(ReadEvents::new(id.session_id, since)).await?;
        for line in &page.items {
            let record = decode(line)?;
            let begins = match &record.event {
                Event::TurnQueued(_) => true,
                Event::TurnStarted(started) => started.queued.is_none(),
                Event::CallAnswered(_) => std::mem::take(&mut has_answered),
                Event::AssistantMessage(_) => {
                    has_answered = true;
                    false
                }
                Event::ClientToolsChanged(changed) => {
                    if let Some(defined) = &changed.tools {
                        tools.push((record.seq, changed.hash.clone(), defined.clone()));
                    }
                    false
                }
                _ => false,
            };
            if record.seq >= id.seq {
                break 'pages;
            }
            if begins {
                echo.previous = Some(ResponseId { session_id: record.session_id, seq: record.seq }.to_string());
            }
        }
        if page.items.is_empty() || page.next_seq == since {
            break;
        }
        since = page.next_seq;
    }
    // In a conversation, the one before is not what was asked for.
    echo.previous = echo.previous.filter(|_| echo.conversation.is_none());
    if let Some(terms) = &unfold.terms {
        echo.options = terms.options.clone();
        echo.output = terms.output.as_deref().cloned();
        let hash = terms.client_tools.as_ref();
        let named = tools.into_iter().rev().find(|(_, known, _)| Some(known) == hash);
        echo.tools = named.map(|(_, _, tools)| tools).unwrap_or_default();
    }
    Ok(echo)
}

async fn delete(app: &Arc<App>, id: ResponseId) -> Result<Response, SessionError> {
    let service = app.service.as_ref();
    let (unfold, later) = Unfold::read(service, id).await?;
    let echo = echo(app, &unfold).await?;
    if later.is_some() || echo.previous.is_some() || echo.conversation.is_some() {
        let message = "its session has other responses, which would be deleted too: delete the session instead";
        return Err(SessionError::invalid("response_id", message));
    }
    service.delete(DeleteSession { session_id: id.session_id, force: true }).await?;
    Ok(json_answer(&json!({ "id": id.to_string(), "object": "response", "deleted": true })))
}

async fn cancel(app: &Arc<App>, id: ResponseId) -> Result<Response, SessionError> {
    let service = app.service.as_ref();
    let (unfold, _) = Unfold::read(service, id).await?;
    let (session_id, turn) = (id.session_id, unfold.turn);
    if !matches!(unfold.ending, Some(Ending::Completed(_) | Ending::Failed(_) | Ending::Interrupted)) {
        let ended = match unfold.terms.is_some() {
            true => service.interrupt(InterruptTurn { session_id, turn: Some(turn) }).await.map(drop),
            false => service.cancel_queued(CancelQueued { session_id, turn }).await.map(drop),
        };
        match ended {
            // It ended meanwhile.
            Err(error) if !matches!(error.code(), ErrorCode::SessionNotRunning | ErrorCode::ItemNotFound) => {
                return Err(error);
            }
            _ => {}
        }
    }
    let (unfold, _) = Unfold::read(service, id).await?;
    let echo = echo(app, &unfold).await?;
    Ok(json_answer(&responses::response(&unfold, &echo)))
}

/// Lists what the response was asked: the prompt of its turn, or the outputs of the calls that it went on with.
async fn input_items(app: &Arc<App>, id: ResponseId, parts: &Parts) -> Result<Response, SessionError> {
    query(parts, &["limit", "order", "after", "include[]", "include"])?;
    let service = app.service.as_ref();
    let begun = Unfold::begin(service, id).await?;
    let page = service.events(ReadEvents::new(id.session_id, id.seq - 1)).await?;
    let mut items: Vec<Value> = Vec::new();
    for line in &page.items {
        let record = decode(line)?;
        let is_own = record.turn == Some(begun.turn);
        match &record.event {
            Event::TurnStarted(started) if record.seq == id.seq => {
                if let Some(prompt) = &started.prompt {
                    let text = whole(service, id.session_id, prompt).await?;
                    items.push(user_item(id, &text, &started.blocks));
                }
            }
            Event::TurnQueued(queued) if record.seq == id.seq => {
                let text = whole(service, id.session_id, &queued.prompt).await?;
                items.push(user_item(id, &text, &queued.blocks));
            }
            Event::ToolFinished(finished) if is_own => {
                let output = whole(service, id.session_id, &finished.output).await?;
                items.push(json!({
                    "id": format!("fco_{}_{}", id.session_id, record.seq),
                    "type": "function_call_output",
                    "call_id": call_id_of(id.session_id, &finished.call_id),
                    "output": output,
                    "status": "completed",
                }));
            }
            Event::AssistantMessage(_) if is_own => break,
            _ => {}
        }
    }
    let ends = [items.first(), items.last()].map(|item| item.map(|item| item["id"].clone()));
    let [first_id, last_id] = ends;
    let list = json!({
        "object": "list", "data": items, "first_id": first_id, "last_id": last_id, "has_more": false,
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

/// Turn that is not stored: nobody reads it if its reader leaves, so it ends then.
pub(crate) struct Passing(Option<(Arc<dyn SessionService>, SessionId, TurnNumber)>);

impl Passing {
    fn new(service: Arc<dyn SessionService>, accepted: &TurnAccepted) -> Self {
        Self(Some((service, accepted.session_id, accepted.turn)))
    }

    /// Its reader has the answer. If calls wait, their outputs may still come.
    pub(crate) fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        if let (Some((service, session_id, turn)), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current())
        {
            runtime.spawn(async move { service.interrupt(InterruptTurn { session_id, turn: Some(turn) }).await });
        }
    }
}

fn refused(body: ErrorBody) -> SessionError {
    match body.code {
        ErrorCode::TooManyConnections => SessionError::TooManyAnswers,
        _ => SessionError::Internal(body.message),
    }
}

async fn read_body(app: &App, body: Body) -> Result<String, SessionError> {
    let limit = app.options.body_bytes_max;
    let read = to_bytes(body, usize::try_from(limit).unwrap_or(usize::MAX)).await;
    let bytes: Bytes = read.map_err(|error| {
        let is_long = std::error::Error::source(&error).is_some_and(|cause| cause.to_string().contains("length limit"));
        match is_long {
            true => SessionError::PayloadTooLarge { what: "body", bytes: limit.saturating_add(1), limit },
            false => SessionError::invalid("body", "the request ended before its body was complete"),
        }
    })?;
    String::from_utf8(bytes.into()).map_err(|_| SessionError::invalid("body", "it is not UTF-8"))
}

async fn param(parts: &mut Parts, name: &'static str) -> Result<String, SessionError> {
    let params = RawPathParams::from_request_parts(parts, &()).await;
    let params = params.map_err(|error| SessionError::invalid("path", error.to_string()))?;
    let value = params.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_owned());
    value.ok_or_else(|| SessionError::invalid(name, "it is missing"))
}

async fn response_id(parts: &mut Parts) -> Result<ResponseId, SessionError> {
    ResponseId::parse(&param(parts, "response_id").await?)
}

fn query(parts: &Parts, known: &[&str]) -> Result<Vec<(String, String)>, SessionError> {
    let text = parts.uri.query().unwrap_or_default();
    let query: Vec<(String, String)> = form_urlencoded::parse(text.as_bytes()).into_owned().collect();
    match query.iter().find(|(name, _)| !known.contains(&name.as_str())) {
        Some((name, _)) => Err(SessionError::invalid(name.as_str(), "this parameter is not supported")),
        None => Ok(query),
    }
}

fn json_answer(value: &Value) -> Response {
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
