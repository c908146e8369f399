//! Answers over HTTP without end: each ends its call, and no more of it is taken than may be kept. Streams that end at
//! once: they are opened again at a bounded pace.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use meerkat_service::{
    clock::{Clock, Timestamp},
    tool::{ToolError, ToolSource as _},
};
use meerkat_tools::servers::{ServersOptions, servers};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};

use crate::support::{call, options, pool, until};

crate::tests!(
    json_without_end_ends_the_call,
    events_without_end_end_the_call,
    failures_without_end_end_the_call,
    a_short_answer_in_each_form_is_taken,
    a_stream_that_ends_at_once_is_opened_again_after_a_pause,
);

/// Bytes of a long answer.
const LONG: usize = 100 * 1024 * 1024;
/// Bytes that may be taken of it: those of the longest message, and what lies in the buffers on the way.
const TAKEN_MAX: usize = 48 * 1024 * 1024;

/// Form of a call's answer: its status, type, beginning and end.
type Form = (&'static str, &'static str, &'static str, &'static str);

const JSON: Form = ("200 OK", "application/json", "", "");
const EVENTS: Form = ("200 OK", "text/event-stream", "data: ", "\n\n");
const FAILURE: Form = ("400 Bad Request", "application/json", "", "");

/// A short answer of a server whose own stream ends at once; its openings are counted.
const ENDING: Form = ("200 OK", "application/json", " ", "");
/// Streams that are opened without a pause.
const STREAMS_AT_ONCE: usize = 5;

/// Starts a server whose calls are answered in a form, with a text of so many bytes. Returns its address, and the bytes
/// that somebody took of such answers.
async fn start(form: Form, bytes: usize) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let taken = Arc::new(AtomicUsize::new(0));
    let counted = taken.clone();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let counted = counted.clone();
            // A client that takes no more ends it.
            tokio::spawn(async move { answer(socket, form, bytes, &counted).await.ok() });
        }
    });
    (url, taken)
}

async fn answer(socket: TcpStream, form: Form, bytes: usize, taken: &AtomicUsize) -> std::io::Result<()> {
    let mut socket = BufReader::new(socket);
    let (mut head, mut length) = (String::new(), 0);
    while socket.read_line(&mut head).await? > 2 {
        let line = head.lines().next_back().unwrap_or_default().to_ascii_lowercase();
        if let Some(number) = line.strip_prefix("content-length: ") {
            length = number.trim().parse().unwrap();
        }
    }
    if head.starts_with("GET") && form == ENDING {
        taken.fetch_add(1, Ordering::SeqCst);
        let ended = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
        return socket.write_all(ended.as_bytes()).await;
    }
    if !head.starts_with("POST") {
        let refused = "HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        return socket.write_all(refused.as_bytes()).await;
    }
    let mut body = vec![0; length];
    socket.read_exact(&mut body).await?;
    let request: Value = serde_json::from_slice(&body)?;
    let result = match request["method"].as_str().unwrap() {
        "initialize" => json!({
            "protocolVersion": "2025-06-18", "capabilities": { "tools": {} }, "serverInfo": { "name": "f", "version": "1" },
        }),
        "tools/list" => json!({ "tools": [{ "name": "flood", "inputSchema": { "type": "object" } }] }),
        "tools/call" if form == ENDING => json!({ "content": [{ "type": "text", "text": "called" }] }),
        "tools/call" => return flood(&mut socket, form, &request["id"], bytes, taken).await,
        // Older servers refuse the newest revision's first request in these forms, too.
        "server/discover" if form != JSON => {
            let (kind, body) = match form == FAILURE {
                true => ("application/json", r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no"}}"#),
                false => ("text/plain", "There is no session."),
            };
            let head = format!("content-type: {kind}\r\ncontent-length: {}\r\nconnection: close", body.len());
            return socket.write_all(format!("HTTP/1.1 400 Bad Request\r\n{head}\r\n\r\n{body}").as_bytes()).await;
        }
        _ => {
            let accepted = "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            return socket.write_all(accepted.as_bytes()).await;
        }
    };
    let body = json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }).to_string();
    let session = if form == ENDING { "mcp-session-id: one\r\n" } else { "" };
    let head =
        format!("content-type: application/json\r\ncontent-length: {}\r\n{session}connection: close", body.len());
    socket.write_all(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}").as_bytes()).await
}

/// Writes an answer that is good but for its length.
async fn flood(
    socket: &mut BufReader<TcpStream>,
    (status, kind, begin, end): Form,
    id: &Value,
    bytes: usize,
    taken: &AtomicUsize,
) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n");
    let (before, after) = match status {
        "200 OK" => (r#""result":{"content":[{"type":"text","text":""#, r#""}]}}"#),
        _ => (r#""error":{"code":-32000,"message":""#, r#""}}"#),
    };
    socket.write_all(format!(r#"{head}{begin}{{"jsonrpc":"2.0","id":{id},{before}"#).as_bytes()).await?;
    let piece = vec![b'x'; 64 * 1024];
    let mut left = bytes;
    while left > 0 {
        let now = left.min(piece.len());
        socket.write_all(&piece[..now]).await?;
        taken.fetch_add(now, Ordering::SeqCst);
        left -= now;
    }
    socket.write_all(format!("{after}{end}").as_bytes()).await?;
    socket.shutdown().await
}

async fn check_long(form: Form, taken_max: usize) {
    let (url, taken) = start(form, LONG).await;
    let pool = pool(serde_json::from_value(json!({ "url": url })).unwrap());
    let called = call(&pool, "flood", json!({})).await;
    // Nobody has read to its end what became of it.
    assert!(matches!(called.result, Err(ToolError::Unknown(_))), "{:?}", called.result);
    let taken = taken.load(Ordering::SeqCst);
    assert!(taken < taken_max, "{taken} bytes were taken");
    pool.shut_down().await;
}

async fn json_without_end_ends_the_call() {
    check_long(JSON, TAKEN_MAX).await;
}

async fn events_without_end_end_the_call() {
    check_long(EVENTS, TAKEN_MAX).await;
}

async fn failures_without_end_end_the_call() {
    check_long(FAILURE, TAKEN_MAX / 2).await;
}

async fn a_short_answer_in_each_form_is_taken() {
    for form in [JSON, EVENTS, FAILURE] {
        let (url, _) = start(form, 1_000).await;
        let pool = pool(serde_json::from_value(json!({ "url": url })).unwrap());
        let called = call(&pool, "flood", json!({})).await;
        match called.result {
            Ok(()) if form != FAILURE => assert_eq!(called.output.excerpt().len(), 1_000),
            Err(ToolError::Failed(why)) if form == FAILURE => assert!(why.contains("xxx"), "{why}"),
            other => panic!("{form:?}: {other:?}"),
        }
        pool.shut_down().await;
    }
}

/// Clock that stands, and keeps what is waited for.
#[derive(Default)]
struct Standing(Mutex<Vec<Duration>>);

impl Clock for Standing {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(0)
    }

    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.lock().unwrap().push(duration);
        std::future::pending().boxed()
    }
}

async fn a_stream_that_ends_at_once_is_opened_again_after_a_pause() {
    let (url, opened) = start(ENDING, 0).await;
    let clock = Arc::new(Standing::default());
    let config = serde_json::from_value(json!({ "url": url })).unwrap();
    let pool = servers(ServersOptions { clock: clock.clone(), ..options(config) }).unwrap();
    call(&pool, "flood", json!({})).await.result.unwrap();
    let pause = Duration::from_secs(2);
    until("it waits to open the next stream", || clock.0.lock().unwrap().contains(&pause)).await;
    for _ in 0..20 {
        assert_eq!(call(&pool, "flood", json!({})).await.text(), "called");
    }
    assert_eq!(opened.load(Ordering::SeqCst), STREAMS_AT_ONCE);
    pool.shut_down().await;
}
