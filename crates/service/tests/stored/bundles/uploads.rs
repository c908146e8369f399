//! Uploads in pieces: in order, bounded, and dropped if the rest does not come.

use std::time::Duration;

use meerkat_service::{
    ErrorCode,
    options::EngineOptions,
    service::{ImportBundle, Imported},
};

use super::{archive::base64, in_memory, place, stored};

fn piece(upload: Option<String>, offset: u64, bytes: &[u8]) -> ImportBundle {
    ImportBundle { upload, offset, data: base64(bytes), is_last: false, new_ids: false, keep_scope: false }
}

#[tokio::test(start_paused = true)]
async fn a_piece_follows_the_one_before_it() {
    let (process, held) = in_memory(EngineOptions::default());
    let before = held.bytes();
    let Imported { upload, next_offset, sessions, .. } =
        process.service.import_bundle(piece(None, 0, b"12345")).await.unwrap();
    assert_eq!((next_offset, sessions), (5, vec![]));
    let fields = [
        (piece(upload.clone(), 4, b"5"), "offset"),
        (piece(upload.clone(), 6, b"7"), "offset"),
        (piece(None, 5, b"6"), "offset"),
        (piece(Some("01900000-0000-7000-8000-000000000001".to_owned()), 5, b"6"), "upload"),
        (piece(Some("../../etc/passwd".to_owned()), 5, b"6"), "upload"),
        (ImportBundle { data: "no base64".to_owned(), ..piece(upload.clone(), 5, b"") }, "data"),
    ];
    for (request, field) in fields {
        let refused = process.service.import_bundle(request).await.unwrap_err().body();
        assert_eq!((refused.code, &refused.details["field"]), (ErrorCode::InvalidRequest, &field.into()));
    }
    // None of them has done any harm.
    let next = process.service.import_bundle(piece(upload.clone(), 5, b"6")).await.unwrap();
    assert_eq!((next.upload.clone(), next.next_offset), (upload.clone(), 6));
    let last = ImportBundle { is_last: true, ..piece(upload.clone(), 6, b"") };
    assert_eq!(process.service.import_bundle(last).await.unwrap_err().code(), ErrorCode::BundleInvalid);
    let refused = process.service.import_bundle(piece(upload, 6, b"7")).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::InvalidRequest, "it is over");
    assert_eq!(held.bytes(), before);
}

#[tokio::test(start_paused = true)]
async fn abandoned_uploads_go_and_make_room_for_others() {
    let (process, held) = in_memory(EngineOptions::default());
    let mut uploads = Vec::new();
    for _ in 0..4 {
        uploads.push(process.service.import_bundle(piece(None, 0, b"12345")).await.unwrap().upload);
    }
    let refused = process.service.import_bundle(piece(None, 0, b"1")).await.unwrap_err().body();
    assert_eq!((refused.code, &refused.details["what"]), (ErrorCode::SessionLimit, &"uploads".into()));
    tokio::time::sleep(Duration::from_secs(599)).await;
    process.service.import_bundle(piece(uploads[0].clone(), 5, b"6")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    process.service.import_bundle(piece(uploads[0].clone(), 6, b"7")).await.unwrap();
    let refused = process.service.import_bundle(piece(uploads[1].clone(), 5, b"6")).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::InvalidRequest);
    assert_eq!(held.bytes(), 7, "what was abandoned is forgotten");
    for _ in 0..3 {
        process.service.import_bundle(piece(None, 0, b"1")).await.unwrap();
    }
    let refused = process.service.import_bundle(piece(None, 0, b"1")).await.unwrap_err();
    assert!(refused.to_string().ends_with("one that is abandoned is dropped, after ten minutes."), "{refused}");
    assert_eq!(process.service.import_bundle(piece(None, 0, b"1")).await.unwrap_err().code(), ErrorCode::SessionLimit);
}

/// They went only when somebody imported again.
#[tokio::test(start_paused = true)]
async fn an_abandoned_upload_goes_although_nobody_imports_again() {
    let (process, held) = in_memory(EngineOptions::default());
    let upload = process.service.import_bundle(piece(None, 0, b"12345")).await.unwrap().upload;
    tokio::time::sleep(Duration::from_secs(300)).await;
    process.service.import_bundle(piece(None, 0, b"123")).await.unwrap();
    process.service.import_bundle(piece(upload, 5, b"6")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(599)).await;
    assert_eq!(held.bytes(), 9);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(held.bytes(), 0);
    // The next one is watched as well.
    process.service.import_bundle(piece(None, 0, b"1234")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(601)).await;
    assert_eq!(held.bytes(), 0);
}

#[tokio::test]
async fn a_bundle_over_the_limit_is_refused_and_forgotten() {
    let mut options = EngineOptions::default();
    options.limits.bundle_bytes = 1000;
    let (process, held) = in_memory(options);
    let upload = process.service.import_bundle(piece(None, 0, &[0; 1000])).await.unwrap().upload;
    let refused = process.service.import_bundle(piece(upload.clone(), 1000, b"x")).await.unwrap_err().body();
    assert_eq!((refused.code, &refused.details["limit"]), (ErrorCode::PayloadTooLarge, &1000.into()));
    assert_eq!(held.bytes(), 0);
    let gone = process.service.import_bundle(piece(upload, 1000, b"")).await.unwrap_err();
    assert_eq!(gone.code(), ErrorCode::InvalidRequest);
}

/// A process that ends takes what was on its way with it.
#[test]
fn an_upload_ends_with_its_process() {
    let place = place();
    place.process(true, |process| async move {
        process.create().await;
    });
    let before = stored(&place);
    for is_clean in [true, false] {
        let bundle = vec![b'x'; 1_000_000];
        let upload = place.process(is_clean, |process| async move {
            process.service.import_bundle(piece(None, 0, &bundle)).await.unwrap().upload
        });
        place.process(true, |process| async move {
            process.service.ready().await.unwrap();
            let refused = process.service.import_bundle(piece(upload, 1_000_000, b"x")).await.unwrap_err();
            assert_eq!(refused.code(), ErrorCode::InvalidRequest);
        });
        assert_eq!(stored(&place), before);
    }
}
