//! The embedder over a server, which plays answers on loopback.

#![expect(clippy::unwrap_used, reason = "helpers of tests stop at an impossible value, as tests do")]

#[path = "../../tests/vendors/replay.rs"]
#[allow(dead_code, reason = "the vendors' tests use the rest of it")]
mod replay;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use meerkat_errors::ErrorCode;
use meerkat_models::RetryPolicy;
use meerkat_recall::{EndpointEmbedder, EndpointOptions};
use meerkat_words::{
    SessionError,
    clock::World,
    memory::{EmbedFor, Embedder},
};
use replay::{Ends, Reply, Request, Server};
use serde_json::{Value, json};

const KEY: &str = "sk-embed-1234567890";

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}

/// Makes the server's answer with some vectors, each with its index.
fn answer(vectors: &[(usize, Value)]) -> Reply {
    let data: Vec<Value> = vectors
        .iter()
        .map(|(index, vector)| json!({"object": "embedding", "index": index, "embedding": vector}))
        .collect();
    let usage = json!({"prompt_tokens": 8, "total_tokens": 8});
    let body = json!({"object": "list", "data": data, "model": "text-embedding-3-small", "usage": usage});
    Reply::refusal(200, body.to_string())
}

fn refusal(status: u16, message: &str) -> Reply {
    let body = json!({"error": {"message": message, "type": "requests", "param": null, "code": "rate_limit_exceeded"}});
    Reply::refusal(status, body.to_string())
}

fn options(url: &str) -> EndpointOptions {
    let wait = Duration::from_millis(1);
    EndpointOptions {
        base_url: url.to_owned(),
        model: "text-embedding-3-small".to_owned(),
        key: Some(KEY.into()),
        retry: RetryPolicy { attempts: 3, base: wait, max: Duration::from_secs(1) },
        ..EndpointOptions::default()
    }
}

fn embedder(server: &Server) -> EndpointEmbedder {
    EndpointEmbedder::new(options(&server.url), World::system()).unwrap()
}

/// Embeds two texts; returns the error and the number of requests.
async fn failure(play: impl Fn(usize) -> Reply + Send + Sync + 'static) -> (String, usize) {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let server = Server::start(move |_| play(count.fetch_add(1, Ordering::Relaxed))).await;
    let error = embedder(&server).embed(&texts(&["one", "two"]), EmbedFor::Passage).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::MemoryIndexUnavailable, "{error}");
    assert!(!format!("{error} {error:?}").contains(KEY), "the key is told in {error}");
    (error.to_string(), asked.load(Ordering::Relaxed))
}

#[tokio::test]
async fn a_server_is_asked_in_the_wire_format_and_answers_in_any_order() {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = requests.clone();
    let server = Server::start(move |request: Request| {
        seen.lock().unwrap().push(request);
        answer(&[(2, json!([0.0, -2.0])), (0, json!([3.0, 4.0])), (1, json!([1, 0]))])
    });
    let server = server.await;
    let options = EndpointOptions { dimensions: Some(2), ..options(&server.url) };
    let embedder = EndpointEmbedder::new(options, World::system()).unwrap();
    let vectors = embedder.embed(&texts(&["one", " ", "three"]), EmbedFor::Passage).await.unwrap();
    assert_eq!(vectors, [vec![0.6, 0.8], vec![0.0, 0.0], vec![0.0, -1.0]]);
    assert!(embedder.id().ends_with("/v1/text-embedding-3-small#2"), "{}", embedder.id());
    let requests = requests.lock().unwrap();
    let Request { path, headers, body } = &requests[0];
    assert_eq!(
        (path.as_str(), headers["authorization"].as_str()),
        ("/v1/embeddings", format!("Bearer {KEY}").as_str())
    );
    let expected = json!({
        "model": "text-embedding-3-small", "input": ["one", "-", "three"], "encoding_format": "float", "dimensions": 2,
    });
    assert_eq!(*body, expected);
}

#[tokio::test]
async fn requests_are_bounded_and_a_text_too() {
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let seen = sizes.clone();
    let server = Server::start(move |request: Request| {
        let input = request.body["input"].as_array().unwrap().clone();
        let bytes: usize = input.iter().map(|text| text.as_str().unwrap().len()).sum();
        seen.lock().unwrap().push((input.len(), bytes));
        answer(&(0..input.len()).map(|index| (index, json!([1.0]))).collect::<Vec<_>>())
    });
    let server = server.await;
    let mut all = vec!["short".to_owned(); 130];
    all.extend(vec!["ü".repeat(50_000); 20]);
    assert_eq!(embedder(&server).embed(&all, EmbedFor::Passage).await.unwrap().len(), 150);
    let sizes = sizes.lock().unwrap().clone();
    assert!(sizes.iter().all(|&(count, bytes)| count <= 64 && bytes <= 256 * 1024), "{sizes:?}");
    assert_eq!(sizes.iter().map(|(count, _)| count).sum::<usize>(), 150);
    assert!(embedder(&server).embed(&[], EmbedFor::Passage).await.unwrap().is_empty());
}

#[tokio::test]
async fn what_passes_is_tried_again() {
    let asked = AtomicUsize::new(0);
    let server = Server::start(move |_| match asked.fetch_add(1, Ordering::Relaxed) {
        0 => refusal(429, "slow down"),
        1 => refusal(503, "overloaded"),
        _ => answer(&[(0, json!([1.0, 0.0]))]),
    });
    let embedder = embedder(&server.await);
    // A query is not retried, and fails at once.
    let refused = embedder.embed(&texts(&["one"]), EmbedFor::Query).await.unwrap_err();
    assert!(refused.to_string().contains("slow down"), "{refused}");
    assert_eq!(embedder.embed(&texts(&["one"]), EmbedFor::Passage).await.unwrap(), [[1.0, 0.0]]);
    assert_eq!(failure(|_| refusal(429, "slow down")).await.1, 3);
    let (told, asked) = failure(|_| Reply { ends: Ends::Abruptly, ..Reply::refusal(200, "{\"data\":") }).await;
    assert_eq!(asked, 3, "{told}");
}

#[tokio::test]
async fn what_does_not_pass_is_refused_at_once_and_says_what_to_do() {
    let one = || (0, json!([1.0, 0.0]));
    let replies: Vec<(&str, Reply)> = vec![
        ("1 vectors for 2 texts", answer(&[one()])),
        ("3 vectors for 2 texts", answer(&[one(), (1, json!([1.0, 0.0])), (2, json!([1.0, 0.0]))])),
        ("twice for one text", answer(&[one(), one()])),
        ("twice for one text", answer(&[one(), (7, json!([1.0, 0.0]))])),
        ("3 components instead of 2", answer(&[one(), (1, json!([1.0, 0.0, 0.0]))])),
        ("0 components instead of", answer(&[(0, json!([])), (1, json!([]))])),
        ("out of range", answer(&[one(), (1, json!([1.0, 1e300]))])),
        ("cannot be read", answer(&[one(), (1, json!("AACAPwAAAAA="))])),
        ("cannot be read", answer(&[one(), (1, json!([1.0, null]))])),
        ("cannot be read", Reply::refusal(200, "<html>hello</html>")),
        ("cannot be read", Reply::refusal(200, vec![0xFF, 0xFE, 0])),
        ("cannot be read", Reply::refusal(200, "")),
        ("check its key", refusal(401, &format!("Incorrect API key provided: {KEY}"))),
        ("check memory.endpoint", refusal(404, "The model does not exist")),
        (
            "check memory.endpoint",
            Reply { headers: vec![("location", "http://127.0.0.1:1/".into())], ..Reply::refusal(307, "") },
        ),
    ];
    for (expected, Reply { status, headers, body, .. }) in replies {
        let play = move |_| Reply { headers: headers.clone(), ..Reply::refusal(status, body.clone()) };
        let (told, asked) = failure(play).await;
        assert!(
            told.contains(expected) && told.contains("memory.endpoint") | told.contains("key"),
            "{expected}: {told}"
        );
        assert_eq!(asked, 1, "{told}");
        assert!(told.chars().count() < 600, "{told}");
    }
}

#[tokio::test]
async fn a_length_that_changes_between_requests_is_refused() {
    let asked = AtomicUsize::new(0);
    let server = Server::start(move |_| match asked.fetch_add(1, Ordering::Relaxed) {
        0 => answer(&[(0, json!([1.0, 0.0]))]),
        _ => answer(&[(0, json!([1.0, 0.0, 0.0]))]),
    });
    let embedder = embedder(&server.await);
    embedder.embed(&texts(&["one"]), EmbedFor::Passage).await.unwrap();
    let error = embedder.embed(&texts(&["two"]), EmbedFor::Passage).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::MemoryIndexUnavailable);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_told() {
    let url = format!("http://{}/v1", meerkat_testkit::refusing_address());
    let embedder = EndpointEmbedder::new(options(&url), World::system()).unwrap();
    let error = embedder.embed(&texts(&["one"]), EmbedFor::Query).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::MemoryIndexUnavailable);
    assert!(error.to_string().contains("cannot be reached") && error.to_string().contains(&url), "{error}");
}

#[test]
fn a_url_that_is_not_allowed_is_refused() {
    for url in ["", "ftp://host/v1", "http://example.org/v1", "https://169.254.169.254/v1", "https://user:pw@host/v1"] {
        let refused = EndpointEmbedder::new(options(url), World::system()).err().unwrap();
        assert!(
            matches!(&refused, SessionError::ConfigInvalid { key, .. } if key == "memory.endpoint.base_url"),
            "{url}"
        );
        assert!(!refused.to_string().contains("pw"));
    }
    let unnamed = EndpointOptions { model: String::new(), ..options("https://host/v1") };
    assert!(EndpointEmbedder::new(unnamed, World::system()).is_err());
}
