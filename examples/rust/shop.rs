//! A chat backend: a tool of its own, pictures, and answers by a schema. It keeps nothing. What was said is in meerkat,
//! and so are the calls that wait, also while this program does not run.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program says where it listens")]

use std::{collections::BTreeMap, env, sync::Arc, time::Duration};

use axum::{Json, Router, extract, http::StatusCode, routing::post};
use meerkat_client::Client;
use meerkat_service::{cost::Cost, output::OutputSpec, prelude::*, service::*};
use serde_json::{Map, Value, json};

type Meerkat = extract::State<Arc<Client>>;
type Answer<T> = Result<Json<T>, (StatusCode, Json<ErrorBody>)>;

const ITEM: &str = r#"{"type":"object","properties":{"item":{"type":"string"}},"required":["item"]}"#;
const PRICE: &str = r#"{"type":"object","properties":{"euros":{"type":"number"}},"required":["euros"]}"#;

/// Begins a chat. Its model has one tool.
async fn create(extract::State(meerkat): Meerkat) -> Answer<Value> {
    let (name, description) = ("price".to_owned(), "Looks up the price of an item.".to_owned());
    let input_schema = RawJson::parse(ITEM).map_err(refused)?;
    let price = ClientTool { name, description, input_schema, effect: Effect::ReadOnly, timeout_ms: None };
    let chat = CreateSession { labels: labels(), client_tools: Some(vec![price]), ..CreateSession::default() };
    let chat = meerkat.create_session(chat).await.map_err(refused)?.session_id;
    tokio::spawn(answer_calls(meerkat, chat));
    Ok(Json(json!({ "chat": chat })))
}

/// What a web page sends. If it gets no answer, it sends the same again: a turn with this key runs once.
#[derive(serde::Deserialize)]
struct Message {
    text: String,
    picture: Option<Data>,
    key: String,
}

/// What a web page gets. The answer has its numbers as the model wrote them.
#[derive(serde::Serialize)]
struct Said {
    status: TurnStatus,
    answer: Option<RawJson>,
    cost: Option<Cost>,
    error: Option<ErrorBody>,
}

/// Runs a turn. Only the chats of this program are open to its pages: other sessions of the server are not.
async fn say(meerkat: Meerkat, extract::Path(chat): extract::Path<SessionId>, message: Json<Message>) -> Answer<Said> {
    let Json(Message { text, picture, key }) = message;
    if meerkat.read(&chat).await.map_err(refused)?.labels != labels() {
        return Err(refused(SessionError::NotFound(chat)));
    }
    let mut prompt = vec![PromptBlock::Text { text }];
    let image = |data| PromptBlock::Image { media_type: "image/png".to_owned(), data: Some(data), blob: None };
    prompt.extend(picture.map(image));
    let schema = RawJson::parse(PRICE).map_err(refused)?;
    let turn = StartTurn {
        output: Some(OutputSpec { schema, name: None, repairs: 2 }),
        idempotency_key: Some(key),
        // Its result is the turn's end, not a call that waits.
        wait: false,
        ..StartTurn::new(chat, prompt)
    };
    let result = meerkat.begin_turn(turn).await.map_err(refused)?.result.await.map_err(refused)?;
    let TurnResult { status, output: answer, cost, error, .. } = result;
    Ok(Json(Said { status, answer, cost, error }))
}

/// The mark of this program's sessions.
fn labels() -> BTreeMap<String, String> {
    [("app".to_owned(), "shop".to_owned())].into()
}

/// Answers the calls of a chat: those that wait already, and those that come.
async fn answer_calls(meerkat: Arc<Client>, chat: SessionId) {
    loop {
        let Err(error) = meerkat.tools(chat, |call| async move { price(call.arguments.as_str()).await }).await;
        eprintln!("{chat}: {error}");
        if error.code() == ErrorCode::SessionNotFound {
            return;
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}

/// The tool. The model also reads its errors.
async fn price(arguments: &str) -> Result<Vec<CallContent>, String> {
    let arguments: Value = serde_json::from_str(arguments).map_err(|error| error.to_string())?;
    let prices = tokio::fs::read_to_string("prices.json").await.map_err(|error| error.to_string())?;
    let prices: Map<String, Value> = serde_json::from_str(&prices).map_err(|error| error.to_string())?;
    let price = arguments["item"].as_str().and_then(|item| prices.get(item)).ok_or("We do not have it.")?;
    Ok(vec![CallContent::Text(format!("{price} euros"))])
}

fn refused(error: SessionError) -> (StatusCode, Json<ErrorBody>) {
    let status = StatusCode::from_u16(error.code().http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, Json(error.body()))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let meerkat = Arc::new(Client::connect(&env::var("MEERKAT_URL")?, &env::var("MEERKAT_TOKEN")?).await?);
    // Calls may have come while this program did not run.
    let mut query = SessionQuery { labels: labels(), ..SessionQuery::default() };
    loop {
        let page = meerkat.list(query.clone()).await?;
        for chat in page.items {
            tokio::spawn(answer_calls(meerkat.clone(), chat.session_id));
        }
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            break;
        }
    }
    let chats = Router::new().route("/chats", post(create)).route("/chats/{chat}/messages", post(say));
    // A picture may have 20 MiB, and more in base64.
    let chats = chats.layer(extract::DefaultBodyLimit::max(32 << 20)).with_state(meerkat);
    let listener = tokio::net::TcpListener::bind(env::args().nth(1).as_deref().unwrap_or("127.0.0.1:8000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, chats).await?)
}
