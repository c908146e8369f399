//! Damaged input: a request with wrong bytes gets a proper answer, and no text of a session breaks a stream's frames.

use std::{fs, path::Path};

use axum::{Router, body::Body};
use http::{HeaderName, HeaderValue, Request};
use http_body_util::BodyExt as _;
use meerkat_service::{AgentBuildConfig, ErrorBody, service::ReadEvents};
use meerkat_surface_rest::{RestOptions, router};
use meerkat_testkit::cases;
use proptest::{collection::vec, prelude::*, sample::Index};
use tokio::runtime::{Builder, Runtime};
use tower::ServiceExt as _;

/// The names of the files in a folder of the corpus, in order.
fn names(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(Path::new(CORPUS).join(folder)).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The files of a folder of the corpus.
fn corpus(folder: &str) -> Vec<Vec<u8>> {
    names(folder).iter().map(|name| fs::read(Path::new(CORPUS).join(folder).join(name)).unwrap()).collect()
}

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus");

/// The status of each request of the corpus in a new session, which has neither turns nor pins. A list, an update and a
/// search need the store, which the service lacks.
const STATUS: [(&str, u16); 12] = [
    ("create.http", 201),
    ("events-stream.http", 200),
    ("events.http", 200),
    ("list.http", 501),
    ("preview.http", 200),
    ("remind.http", 200),
    ("search.http", 501),
    ("turn-async.http", 202),
    ("turn-stream.http", 200),
    ("turn.http", 200),
    ("unpin.http", 404),
    ("update.http", 501),
];

/// Changes of some bytes: at each place, some are removed and others inserted.
type Damage = Vec<(Index, usize, Vec<u8>)>;

fn damage() -> impl Strategy<Value = Damage> {
    vec((any::<Index>(), 0..4_usize, vec(any::<u8>(), 0..4)), 0..6)
}

fn damaged(mut bytes: Vec<u8>, damage: &Damage) -> Vec<u8> {
    for (at, taken, put) in damage {
        let start = at.index(bytes.len() + 1);
        let end = (start + taken).min(bytes.len());
        bytes.splice(start..end, put.iter().copied());
    }
    bytes
}

fn service() -> (Runtime, Router, std::sync::Arc<dyn meerkat_service::SessionService>, String) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let (rest, service, session) = runtime.block_on(async {
        let agent = AgentBuildConfig::new().build().unwrap();
        let session = agent.create_session().await.unwrap().session_id.to_string();
        (router(agent.service().clone(), RestOptions::default()), agent.service().clone(), session)
    });
    (runtime, rest, service, session)
}

/// A request of the corpus: method and path, headers, an empty line, the body. `None` if it is not valid HTTP.
fn request(bytes: &[u8], session: &str) -> Option<Request<Body>> {
    let at = bytes.windows(2).position(|window| window == b"\n\n")?;
    let head = std::str::from_utf8(&bytes[..at]).ok()?.replace("SESSION", session);
    let mut lines = head.lines();
    let (method, uri) = lines.next()?.split_once(' ')?;
    let mut request = Request::builder().method(method).uri(uri);
    for line in lines {
        let (name, value) = line.split_once(':')?;
        request = request.header(name.parse::<HeaderName>().ok()?, value.trim().parse::<HeaderValue>().ok()?);
    }
    request.body(Body::from(bytes[at + 2..].to_vec())).ok()
}

#[test]
fn the_corpus_is_made_of_good_requests() {
    assert_eq!(names("requests"), STATUS.map(|(name, _)| name));
    for (file, (name, expected)) in corpus("requests").iter().zip(STATUS) {
        let (runtime, rest, _, session) = service();
        let request = request(file, &session).unwrap();
        let status = runtime.block_on(rest.oneshot(request)).unwrap().status().as_u16();
        assert_eq!(status, expected, "{name}");
    }
}

#[test]
fn a_damaged_request_gets_an_answer_of_ours() {
    let (runtime, rest, _, session) = service();
    let files = corpus("requests");
    proptest!(cases(2000), |(file in any::<Index>(), damage in damage())| {
        let bytes = damaged(file.get(&files).clone(), &damage);
        let Some(request) = request(&bytes, &session) else { return Ok(()) };
        let is_head = request.method() == http::Method::HEAD;
        runtime.block_on(async {
            let response = rest.clone().oneshot(request).await.unwrap();
            let status = response.status().as_u16();
            prop_assert_eq!(&response.headers()["cache-control"], "no-store");
            if status >= 400 && !is_head {
                let body = response.into_body().collect().await.unwrap().to_bytes();
                let body: ErrorBody = serde_json::from_slice(&body).unwrap();
                prop_assert_eq!(body.code.http_status(), status);
                prop_assert!(status != 500 && status != 502, "{:?}", body);
            } else {
                prop_assert!([200, 201, 202, 204].contains(&status), "{}", status);
            }
            Ok(())
        })?;
    });
}

#[test]
fn no_text_breaks_a_frame() {
    let files = corpus("texts");
    proptest!(cases(300), |(file in any::<Index>(), damage in damage(), cuts in vec(any::<Index>(), 0..8))| {
        let (runtime, rest, service, session) = service();
        let text = String::from_utf8_lossy(&damaged(file.get(&files).clone(), &damage)).into_owned();
        runtime.block_on(async {
            let body = serde_json::json!({ "text": format!("- {text}") }).to_string();
            let pin = Request::post(format!("/v1/sessions/{session}/pins")).header("content-type", "application/json");
            let pinned = rest.clone().oneshot(pin.body(Body::from(body)).unwrap()).await.unwrap();
            prop_assert_eq!(pinned.status().as_u16(), 200);
            let follow = Request::get(format!("/v1/sessions/{session}/events")).header("accept", "text/event-stream");
            let mut stream = rest.clone().oneshot(follow.body(Body::empty()).unwrap()).await.unwrap().into_body();
            let mut bytes = Vec::new();
            while bytes.windows(2).filter(|window| window == b"\n\n").count() < 2 {
                bytes.extend(stream.frame().await.unwrap().unwrap().into_data().unwrap());
            }
            let request = ReadEvents::new(session.parse().unwrap(), 0);
            let lines = service.events(request).await.unwrap().items;
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).chain([0, bytes.len()]).collect();
            cuts.sort_unstable();
            let mut parser = crate::common::Parser::default();
            let sent: Vec<_> = cuts.windows(2).flat_map(|cut| parser.feed(&bytes[cut[0]..cut[1]])).collect();
            prop_assert_eq!(sent.len(), 2);
            for (index, (sent, line)) in sent.iter().zip(&lines).enumerate() {
                prop_assert_eq!(sent.id.clone(), Some((index + 1).to_string()));
                prop_assert_eq!(sent.data.as_bytes(), line.as_ref());
            }
            Ok(())
        })?;
    });
}
