//! Uploads in pieces: in order, bounded, and dropped if the rest does not come.

use std::time::Duration;

use meerkat_service::{
    ErrorCode,
    options::EngineOptions,
    service::{ImportBundle, Imported},
};
use serde_json::Value;

use super::{in_memory, piece, place, stored};
use crate::stored::Process;

async fn sent(process: &Process, request: ImportBundle) -> Imported {
    process.service.import_bundle(request).await.unwrap()
}

/// Sends a piece that is refused; returns why.
async fn refused(process: &Process, request: ImportBundle) -> (ErrorCode, Value) {
    let refused = process.service.import_bundle(request).await.unwrap_err().body();
    (refused.code, refused.details.into())
}

#[tokio::test(start_paused = true)]
async fn a_piece_follows_the_one_before_it() {
    let (process, held) = in_memory(EngineOptions::default());
    let before = held.bytes();
    let Imported { upload, next_offset, sessions, .. } = sent(&process, piece(None, 0, b"12345")).await;
    assert_eq!((next_offset, sessions), (5, vec![]));
    for (request, field) in [
        (piece(upload.clone(), 4, b"5"), "offset"),
        (piece(upload.clone(), 6, b"7"), "offset"),
        (piece(None, 5, b"6"), "offset"),
        (piece(Some("01900000-0000-7000-8000-000000000001".to_owned()), 5, b"6"), "upload"),
        (piece(Some("../../etc/passwd".to_owned()), 5, b"6"), "upload"),
        (ImportBundle { data: "no base64".to_owned(), ..piece(upload.clone(), 5, b"") }, "data"),
    ] {
        let (code, details) = refused(&process, request).await;
        assert_eq!((code, &details["field"]), (ErrorCode::InvalidRequest, &field.into()));
    }
    // None of them has done any harm.
    let next = sent(&process, piece(upload.clone(), 5, b"6")).await;
    assert_eq!((&next.upload, next.next_offset), (&upload, 6));
    let last = ImportBundle { is_last: true, ..piece(upload.clone(), 6, b"") };
    assert_eq!(refused(&process, last).await.0, ErrorCode::BundleInvalid);
    assert_eq!(refused(&process, piece(upload, 6, b"7")).await.0, ErrorCode::InvalidRequest, "it is over");
    assert_eq!(held.bytes(), before);
}

/// They went only when somebody imported again, and never if they got a byte now and then.
#[tokio::test(start_paused = true)]
async fn abandoned_uploads_go_and_make_room_for_others() {
    const MIB: usize = 1024 * 1024;
    let (process, held) = in_memory(EngineOptions::default());
    let mut uploads = Vec::new();
    for _ in 0..4 {
        uploads.push(sent(&process, piece(None, 0, b"12345")).await.upload);
    }
    let (code, details) = refused(&process, piece(None, 0, b"1")).await;
    assert_eq!((code, &details["what"]), (ErrorCode::SessionLimit, &"uploads".into()));
    tokio::time::sleep(Duration::from_secs(599)).await;
    // These grow by enough, at once or not; a third one does not.
    sent(&process, piece(uploads[0].clone(), 5, &[b'x'; MIB])).await;
    sent(&process, piece(uploads[1].clone(), 5, &[b'x'; MIB / 2])).await;
    sent(&process, piece(uploads[1].clone(), 5 + MIB as u64 / 2, &[b'x'; MIB / 2 - 5])).await;
    sent(&process, piece(uploads[2].clone(), 5, &[b'x'; MIB - 6])).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(held.bytes(), 5 + 2 * MIB as u64, "what was abandoned or came too slowly is forgotten");
    sent(&process, piece(uploads[0].clone(), 5 + MIB as u64, b"7")).await;
    assert_eq!(refused(&process, piece(uploads[2].clone(), MIB as u64 - 1, b"6")).await.0, ErrorCode::InvalidRequest);
    assert_eq!(refused(&process, piece(uploads[3].clone(), 5, b"6")).await.0, ErrorCode::InvalidRequest);
    // A byte is too little from then on, too.
    tokio::time::sleep(Duration::from_secs(599)).await;
    assert_eq!(held.bytes(), 0);
    for _ in 0..4 {
        sent(&process, piece(None, 0, b"1")).await;
    }
    let full = process.service.import_bundle(piece(None, 0, b"1")).await.unwrap_err();
    assert_eq!(full.code(), ErrorCode::SessionLimit);
    let advice = "one that is abandoned or too slow is dropped, after ten minutes at most.";
    assert!(full.to_string().ends_with(advice), "{full}");
    // The next ones are watched as well.
    tokio::time::sleep(Duration::from_secs(601)).await;
    assert_eq!(held.bytes(), 0);
}

#[tokio::test]
async fn a_bundle_over_the_limit_is_refused_and_forgotten() {
    let mut options = EngineOptions::default();
    options.limits.bundle_bytes = 1000;
    let (process, held) = in_memory(options);
    let upload = sent(&process, piece(None, 0, &[0; 1000])).await.upload;
    let (code, details) = refused(&process, piece(upload.clone(), 1000, b"x")).await;
    assert_eq!((code, &details["limit"]), (ErrorCode::PayloadTooLarge, &1000.into()));
    assert_eq!(held.bytes(), 0);
    assert_eq!(refused(&process, piece(upload, 1000, b"")).await.0, ErrorCode::InvalidRequest);
}

/// A process that ends takes what was on its way with it.
#[test]
fn an_upload_ends_with_its_process() {
    let place = place();
    place.process(true, async |process| process.create().await);
    let before = stored(&place);
    for is_clean in [true, false] {
        let upload = place
            .process(is_clean, async |process| sent(&process, piece(None, 0, &vec![b'x'; 1_000_000])).await.upload);
        place.process(true, async |process| {
            process.service.ready().await.unwrap();
            assert_eq!(refused(&process, piece(upload, 1_000_000, b"x")).await.0, ErrorCode::InvalidRequest);
        });
        assert_eq!(stored(&place), before);
    }
}
