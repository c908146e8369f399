//! Bundles over a real connection: one body each way, however many pages and pieces it has.

#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

mod common;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use common::Server;
use meerkat_service::{AgentBuildConfig, service::ExportSession};
use meerkat_surface_rest::RestOptions;
use serde_json::json;
use tempfile::TempDir;

/// Bytes of an answer that stands in a blob and needs several pages.
const LONG: usize = 2_200_000;

async fn server(dir: &TempDir, options: RestOptions) -> Server {
    Server::with(AgentBuildConfig::new().store(dir.path().to_owned()).build().unwrap(), options).await
}

/// The pages of a session's bundle, as the service hands them out.
async fn pages(server: &Server, session: &str) -> Vec<Vec<u8>> {
    let mut request = ExportSession { session_id: session.parse().unwrap(), redact: false, cursor: None };
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
async fn a_bundle_is_one_body_out_and_in() {
    let dir = TempDir::new().unwrap();
    let server = server(&dir, RestOptions::default()).await;
    let session = server.session().await;
    server.turn(&session, &format!("@long {LONG}")).await;
    let pages = pages(&server, &session).await;
    assert!(pages.len() > 2, "{}", pages.len());

    let bundle = server.send(&format!("GET /v1/sessions/{session}/bundle"), "").await;
    assert_eq!((bundle.status, bundle.header("content-type")), (200, "application/x-tar"));
    assert!(bundle.body == pages.concat());

    let import = "POST /v1/bundles?new_ids=true\ncontent-type: application/x-tar";
    let imported = server.send(import, &bundle.body).await.ok();
    assert_eq!(imported["sessions"][0]["imported_from"], session.as_str());
    assert_eq!((&imported["upload"], &imported["next_offset"]), (&json!(null), &json!(bundle.body.len())));
    let copy = imported["sessions"][0]["session_id"].as_str().unwrap();
    let view = server.send(&format!("GET /v1/sessions/{copy}"), "").await.ok();
    assert_eq!(view["message_count"], 2);

    // The same in chunks, and nothing was left over of what went before.
    let mut chunked = b"POST /v1/bundles HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
        content-type: application/x-tar\r\ntransfer-encoding: chunked\r\n\r\n"
        .to_vec();
    for chunk in bundle.body.chunks(100_000) {
        chunked.extend(format!("{:x}\r\n", chunk.len()).bytes());
        chunked.extend(chunk);
        chunked.extend(b"\r\n");
    }
    chunked.extend(b"0\r\n\r\n");
    let there = server.raw(&chunked).await;
    assert_eq!((there.status, there.refusal().1.as_str()), (409, "BUNDLE_INVALID"));
    assert_eq!(there.json()["details"], json!({ "reason": "exists" }));
    server.send(&format!("DELETE /v1/sessions/{session}"), "").await.ok();
    let back = serde_json::from_slice::<serde_json::Value>(&server.raw(&chunked).await.body).unwrap();
    assert_eq!(back["sessions"][0]["session_id"], session.as_str());
}

#[tokio::test]
async fn a_session_that_is_not_there_has_no_bundle() {
    let dir = TempDir::new().unwrap();
    let server = server(&dir, RestOptions::default()).await;
    let answer = server.send("GET /v1/sessions/01900000-0000-7000-8000-000000000001/bundle", "").await;
    assert_eq!((answer.status, answer.refusal().1.as_str()), (404, "SESSION_NOT_FOUND"));
    assert_eq!(answer.header("content-type"), "application/json");
}

#[tokio::test]
async fn a_bundle_has_a_limit_of_its_own() {
    let dir = TempDir::new().unwrap();
    let options = RestOptions { body_bytes_max: 20, bundle_bytes_max: 1000, ..RestOptions::default() };
    let server = server(&dir, options).await;
    let import = "POST /v1/bundles\ncontent-type: application/x-tar";
    let answer = server.send(import, [0; 1001]).await;
    assert_eq!((answer.status, answer.refusal().1.as_str()), (413, "PAYLOAD_TOO_LARGE"));
    assert_eq!(answer.json()["details"], json!({ "what": "body", "bytes": 1001, "limit": 1000 }));
    assert_eq!(server.send(import, [0; 1000]).await.refusal().1, "BUNDLE_INVALID");
    let chunked = format!(
        "POST /v1/bundles HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-tar\r\n\
         transfer-encoding: chunked\r\n\r\n3e9\r\n{}\r\n",
        " ".repeat(1001)
    );
    assert_eq!(server.raw(chunked.as_bytes()).await.status, 413);
}
