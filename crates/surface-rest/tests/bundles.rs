//! Bundles: one body each way, however many pages and pieces it has.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::common::Server;
use axum::body::Body;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use meerkat_service::{AgentBuildConfig, service::ExportSession};
use meerkat_surface_rest::RestOptions;
use serde_json::json;
use tempfile::TempDir;

/// Bytes of an answer that needs a blob and several pages.
const LONG: usize = 2_200_000;

fn server(dir: &TempDir, options: RestOptions) -> Server {
    Server::with(AgentBuildConfig::new().store(dir.path().to_owned()).build().unwrap(), options)
}

/// A body that does not announce its length.
fn chunked(bytes: &[u8]) -> Body {
    let chunks: Vec<_> =
        bytes.chunks(100_000).map(|chunk| Ok::<_, std::io::Error>(Bytes::copy_from_slice(chunk))).collect();
    Body::from_stream(stream::iter(chunks))
}

/// The pages of a session's bundle, from the service.
async fn pages(server: &Server, session: &str) -> Vec<Vec<u8>> {
    let mut request = ExportSession::new(session.parse().unwrap());
    let mut pages = Vec::new();
    loop {
        let page = server.service.export_session(request.clone()).await.unwrap();
        pages.push(BASE64_STANDARD.decode(page.data).unwrap());
        request.cursor = page.next_cursor;
        if request.cursor.is_none() {
            return pages;
        }
    }
}

#[tokio::test]
async fn a_browser_shows_an_image_of_a_prompt_and_saves_all_other_blobs() {
    let dir = meerkat_testkit::folder();
    let server = server(&dir, RestOptions::default());
    let session = server.session().await;
    let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x02\x80\0\0\x01\xe0\x08\x02\0\0\0";
    let mut large = png.to_vec();
    large.resize(1024 * 1024 + 1, 0);
    let [image, page, large] =
        [&png[..], b"<script>alert(1)</script>", &large].map(|bytes| BASE64_STANDARD.encode(bytes));
    let prompt = json!([
        {"type": "image", "media_type": "image/png", "data": image},
        {"type": "file", "name": "a.html", "media_type": "text/html", "data": page},
        {"type": "image", "media_type": "image/png", "data": large},
    ]);
    let turn = format!("POST /v1/sessions/{session}/turns");
    server.send(&turn, json!({ "prompt": prompt }).to_string()).await.ok();
    let said = server.send(&format!("GET /v1/sessions/{session}/messages"), "").await.ok();
    let blocks = &said["items"][0]["message"]["blocks"];
    let read = async |block: usize, offset: usize| {
        let blob = blocks[block]["blob"].as_str().unwrap();
        let answer = server.send(&format!("GET /v1/sessions/{session}/blobs/{blob}?offset={offset}"), "").await;
        let headers = ["content-type", "content-disposition", "x-content-type-options"];
        headers.map(|name| answer.header(name).to_owned())
    };
    assert_eq!(read(0, 0).await, ["image/png", "", "nosniff"]);
    // Of the last one the first piece is no image.
    for (block, offset) in [(0, 1), (1, 0), (2, 0)] {
        assert_eq!(read(block, offset).await, ["application/octet-stream", "attachment", "nosniff"]);
    }
}

/// A megabyte that counts how many of them are held.
struct Piece(Arc<(AtomicUsize, AtomicUsize)>, Vec<u8>);

impl Piece {
    fn new(held: &Arc<(AtomicUsize, AtomicUsize)>) -> Self {
        let now = held.0.fetch_add(1, Ordering::Relaxed) + 1;
        held.1.fetch_max(now, Ordering::Relaxed);
        Self(held.clone(), vec![b'x'; 1024 * 1024])
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.1
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn an_upload_is_stored_piece_by_piece_and_served_as_other_blobs() {
    let dir = meerkat_testkit::folder();
    let server = server(&dir, RestOptions::default());
    let session = server.session().await;
    let put = format!("POST /v1/sessions/{session}/blobs\ncontent-type: text/plain");
    let held = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
    let pieces = held.clone();
    let body = stream::iter(0..24).map(move |_| Ok::<_, std::io::Error>(Bytes::from_owner(Piece::new(&pieces))));
    let stored = server.send(&put, Body::from_stream(body)).await.ok();
    assert_eq!(stored["bytes"], 24 * 1024 * 1024);
    let (now, most) = (held.0.load(Ordering::Relaxed), held.1.load(Ordering::Relaxed));
    assert!(now == 0 && (1..=2).contains(&most), "{now} are held, and at most {most} were");

    let blob = stored["blob"].as_str().unwrap();
    let read = async |blob: &str| {
        let answer = server.send(&format!("GET /v1/sessions/{session}/blobs/{blob}"), "").await;
        let headers = ["content-type", "content-disposition", "x-content-type-options", "next-offset"];
        headers.map(|name| answer.header(name).to_owned())
    };
    assert_eq!(read(blob).await, ["application/octet-stream", "attachment", "nosniff", "1048576"]);
    let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x02\x80\0\0\x01\xe0\x08\x02\0\0\0";
    let image = server.send(&put, png.to_vec()).await.ok();
    assert_eq!(read(image["blob"].as_str().unwrap()).await, ["image/png", "", "nosniff", ""]);

    // One that breaks off is none.
    let broken = stream::iter([Ok(Bytes::from_static(b"half")), Err(std::io::Error::other("gone"))]);
    let refused = server.send(&put, Body::from_stream(broken)).await;
    assert_eq!(refused.refusal(), (400, "INVALID_REQUEST".to_owned(), "body".to_owned()));
    let nowhere = "POST /v1/sessions/01900000-0000-7000-8000-000000000001/blobs";
    assert_eq!(server.send(nowhere, "x").await.refusal().1, "SESSION_NOT_FOUND");
    assert_eq!(server.send(&format!("{}?data=eA==", put.lines().next().unwrap()), "").await.refusal().2, "data");
}

#[tokio::test]
async fn only_a_body_with_content_may_be_longer_than_16_mib() {
    let dir = meerkat_testkit::folder();
    let server = server(&dir, RestOptions::default());
    let session = server.session().await;
    let long = " ".repeat(16 * 1024 * 1024) + "x";
    let refused = server.send(&format!("POST /v1/sessions/{session}/pins"), long.clone()).await;
    assert_eq!(refused.json()["details"], json!({ "what": "body", "bytes": 16_777_217, "limit": 16_777_216 }));
    for route in ["/v1/sessions".to_owned(), format!("/v1/sessions/{session}/turns")] {
        let read = server.send(&format!("POST {route}"), long.clone()).await;
        assert_eq!(read.refusal().1, "INVALID_REQUEST", "{route}");
    }
}

#[tokio::test]
async fn a_bundle_is_one_body_out_and_in() {
    let dir = meerkat_testkit::folder();
    let server = server(&dir, RestOptions::default());
    let session = server.session().await;
    server.turn(&session, &format!("@long {LONG}")).await;
    let pages = pages(&server, &session).await;
    assert!(pages.len() > 2, "{}", pages.len());

    let bundle = server.send(&format!("GET /v1/sessions/{session}/bundle"), "").await;
    assert_eq!((bundle.status, bundle.header("content-type")), (200, "application/x-tar"));
    assert!(bundle.body == pages.concat());

    let import = "POST /v1/bundles?new_ids=true\ncontent-type: application/x-tar";
    let imported = server.send(import, bundle.body.clone()).await.ok();
    assert_eq!(imported["sessions"][0]["imported_from"], session.as_str());
    assert_eq!((&imported["upload"], &imported["next_offset"]), (&json!(null), &json!(bundle.body.len())));
    let copy = imported["sessions"][0]["session_id"].as_str().unwrap();
    let view = server.send(&format!("GET /v1/sessions/{copy}"), "").await.ok();
    assert_eq!(view["message_count"], 2);

    // In chunks too; the former import left nothing behind.
    let import = "POST /v1/bundles\ncontent-type: application/x-tar";
    let there = server.send(import, chunked(&bundle.body)).await.ok();
    assert_eq!((&there["sessions"], &there["skipped"][0]["session_id"]), (&json!([]), &json!(session)));
    server.turn(&session, "@say One.").await;
    let other = server.send(&format!("GET /v1/sessions/{session}/bundle"), "").await;
    server.send(&format!("DELETE /v1/sessions/{session}"), "").await.ok();
    let back = server.send(import, chunked(&bundle.body)).await.ok();
    assert_eq!(back["sessions"][0]["session_id"], session.as_str());
    // It has gone another way since.
    server.turn(&session, "@say Two.").await;
    let there = server.send(import, chunked(&other.body)).await;
    assert_eq!((there.status, there.refusal().1.as_str()), (409, "BUNDLE_INVALID"));
    assert_eq!(there.json()["details"], json!({ "reason": "exists" }));
}

#[tokio::test]
async fn a_bundle_has_a_limit_of_its_own() {
    let dir = meerkat_testkit::folder();
    let options = RestOptions { body_bytes_max: 20, bundle_bytes_max: 1000, ..RestOptions::default() };
    let server = server(&dir, options);
    let import = "POST /v1/bundles\ncontent-type: application/x-tar";
    let answer = server.send(import, vec![0; 1001]).await;
    assert_eq!((answer.status, answer.refusal().1.as_str()), (413, "PAYLOAD_TOO_LARGE"));
    assert_eq!(answer.json()["details"], json!({ "what": "body", "bytes": 1001, "limit": 1000 }));
    assert_eq!(server.send(import, vec![0; 1000]).await.refusal().1, "BUNDLE_INVALID");
    assert_eq!(server.send(import, chunked(&[0; 1001])).await.status, 413);
}
