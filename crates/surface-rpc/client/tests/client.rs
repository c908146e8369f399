//! The client against a server of this process, over TCP and over an owner's socket: what it is answered, and what it says
//! when it is refused or its server goes away.

#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures::{SinkExt as _, StreamExt as _};

use meerkat_client::{Client, Place};
use meerkat_serve::{Server, Token, owner::Owner};
use meerkat_service::{
    AgentBuildConfig, ErrorBody, ErrorCode, SessionService,
    service::{CreateSession, PinFact, StartTurn},
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, process::Command, task::JoinHandle};
use tokio_tungstenite::{accept_async, tungstenite::Message};
use tokio_util::sync::CancellationToken;

const TOKEN: &str = "a-token-for-tests-0123456789";

/// A server over a service, and what ends it.
struct Stage {
    url: String,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

fn service() -> Arc<dyn SessionService> {
    AgentBuildConfig::new().build().unwrap().service().clone()
}

impl Stage {
    async fn new(service: Arc<dyn SessionService>, port: u16) -> Self {
        let token = Token::new(TOKEN.to_owned()).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let server = Server::builder(service).rpc().token(token).listen(address).await.unwrap();
        let (url, stop) = (server.url().to_owned(), CancellationToken::new());
        let serving = tokio::spawn(server.serve_until(stop.clone().cancelled_owned()));
        Self { url, stop, serving }
    }

    async fn end(self) {
        self.stop.cancel();
        self.serving.await.unwrap();
    }
}

async fn refusal(url: &str, token: &str) -> (ErrorCode, String) {
    let body = Client::connect(url, token).await.unwrap_err().body();
    (body.code, body.message)
}

#[tokio::test]
async fn a_session_over_the_network_is_the_servers() {
    let service = service();
    let stage = Stage::new(service.clone(), 0).await;
    let client = Client::connect(&stage.url, TOKEN).await.unwrap();
    assert_eq!(client.capabilities(), service.capabilities());
    assert!(client.check_ready().await.unwrap());
    let id = client.create_session(CreateSession::default()).await.unwrap().session_id;
    let mut follower = client.follow(&id, 0).await.unwrap();
    let result = client.start_turn(StartTurn::new(id, "@say Hello.")).await.unwrap();
    assert_eq!(result.text, "Hello.");
    let begun = client.begin_turn(StartTurn::new(id, "@say Again.")).await.unwrap();
    let result = begun.result.await.unwrap();
    assert_eq!((result.turn, result.text.as_str()), (begun.accepted.turn, "Again."));
    let mut own = service.follow(&id, 0).await.unwrap();
    while follower.cursor() < result.seq {
        let line = follower.next().await.unwrap().unwrap();
        if line.seq.is_some() {
            while let Some(known) = own.next().await.unwrap() {
                if known.seq.is_some() {
                    assert_eq!(line, known);
                    break;
                }
            }
        }
    }
    let refused = client.pin(PinFact { session_id: id, text: String::new() }).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::InvalidRequest);
    stage.end().await;
}

#[tokio::test]
async fn a_wrong_token_and_a_wrong_url_are_told_apart() {
    let stage = Stage::new(service(), 0).await;
    let (code, message) = refusal(&stage.url, "a-wrong-token-0123456789").await;
    assert_eq!(code, ErrorCode::Unauthenticated, "{message}");
    let (code, message) = refusal(&format!("{}/elsewhere", stage.url), TOKEN).await;
    assert_eq!(code, ErrorCode::UnknownOperation, "{message}");
    for url in ["", "127.0.0.1", "ftp://127.0.0.1", "https://desk.example"] {
        assert_eq!(refusal(url, TOKEN).await.0, ErrorCode::InvalidRequest, "{url}");
    }
    assert_eq!(refusal(&stage.url, "two\nlines").await.0, ErrorCode::InvalidRequest);
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", nobody.local_addr().unwrap());
    drop(nobody);
    let (code, message) = refusal(&url, TOKEN).await;
    assert!(code == ErrorCode::ShuttingDown && message.contains(&url), "{message}");
    stage.end().await;
}

#[tokio::test]
async fn a_server_that_goes_away_is_named_and_one_that_comes_back_is_found() {
    let first = service();
    let stage = Stage::new(first.clone(), 0).await;
    let (url, port) = (stage.url.clone(), stage.url.rsplit_once(':').unwrap().1.parse().unwrap());
    let client = Client::connect(&url, TOKEN).await.unwrap();
    let id = client.create_session(CreateSession::default()).await.unwrap().session_id;
    let mut follower = client.follow(&id, 0).await.unwrap();
    assert_eq!(follower.next().await.unwrap().unwrap().seq, Some(1));
    stage.end().await;
    let gone = client.queue(&id).await.unwrap_err().body();
    assert!(gone.code == ErrorCode::ShuttingDown && gone.message.contains(&url), "{gone:?}");

    let stage = Stage::new(service(), port).await;
    assert!(client.create_session(CreateSession::default()).await.is_ok());
    // The new server knows nothing of the session that was followed.
    assert_eq!(follower.next().await.unwrap(), None);
    stage.end().await;
}

#[tokio::test]
async fn an_owners_socket_needs_no_token() {
    let (dir, service) = (tempfile::tempdir().unwrap(), service());
    assert_eq!(Client::attach(dir.path().to_owned()).await.unwrap_err().code(), ErrorCode::ShuttingDown);
    let bound = Place::new(dir.path().to_owned(), None).bind().unwrap();
    let owner = Owner::start(bound, service.clone(), Arc::new(|_| Ok(())));
    let client = Client::attach(dir.path().to_owned()).await.unwrap();
    let id = client.create_session(CreateSession::default()).await.unwrap().session_id;
    assert_eq!(client.start_turn(StartTurn::new(id, "@say Hello.")).await.unwrap().text, "Hello.");
    owner.end().await;
    assert!(!dir.path().join("socket").exists());
}

#[tokio::test]
async fn the_example_runs_a_turn() {
    let stage = Stage::new(service(), 0).await;
    let here = std::env::current_exe().unwrap();
    let program = here.parent().unwrap().parent().unwrap().join("examples").join("client");
    let output = Command::new(program).args([&stage.url, TOKEN, "@say Hello."]).output().await.unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains(r#""type":"turn_completed""#) && said.ends_with("Hello.\n"), "{said}");
    assert_eq!(std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples")).unwrap().count(), 1);
    stage.end().await;
}

/// Whoever connected to a port that accepts and says nothing waited for ever.
#[tokio::test(start_paused = true)]
async fn a_server_that_says_nothing_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (code, message) = refusal(&url, TOKEN).await;
    assert_eq!(code, ErrorCode::ShuttingDown);
    assert!(message.contains(&url) && message.contains("does not answer"), "{message}");
}

/// A server that ends keeps the queue, so a turn that waited in it runs after its next start.
#[tokio::test]
async fn a_turn_that_may_be_queued_already_is_not_begun_again() {
    let service = service();
    let id = service.create_session(CreateSession::default()).await.unwrap().session_id;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (view, begun) = (json!(service.capabilities().view()), Arc::new(AtomicUsize::new(0)));
    let counted = begun.clone();
    let ending = tokio::spawn(async move {
        loop {
            let mut socket = accept_async(listener.accept().await.unwrap().0).await.unwrap();
            while let Some(Ok(Message::Text(text))) = socket.next().await {
                let asked: Value = serde_json::from_str(&text).unwrap();
                let is_turn = asked["method"] == "turn/start";
                counted.fetch_add(usize::from(is_turn), Ordering::Relaxed);
                let error = json!({ "code": -1, "message": "", "data": ErrorBody::new(ErrorCode::ShuttingDown) });
                let answer = if is_turn { ("error", error) } else { ("result", view.clone()) };
                let answer = json!({ "jsonrpc": "2.0", "id": asked["id"], answer.0: answer.1 });
                socket.send(Message::text(answer.to_string())).await.unwrap();
                if is_turn {
                    break;
                }
            }
        }
    });
    let client = Client::connect(&url, TOKEN).await.unwrap();
    let refused = client.start_turn(StartTurn::new(id, "@say Once.")).await.unwrap_err();
    assert_eq!((refused.code(), begun.load(Ordering::Relaxed)), (ErrorCode::ShuttingDown, 1));
    ending.abort();
}
