//! Blobs of images: what names them keeps them, and they stay what they are.

use meerkat_service::{SessionId, service::ReadBlob};

use crate::{
    common::camera::{camera, png},
    stored::{Place, Process},
};

/// The blob of the session's image, which is read.
async fn image(process: &Process, session_id: SessionId) -> String {
    let finished = process.until(session_id, "tool_finished").await;
    let blob = finished["images"][0]["blob"].as_str().unwrap().to_owned();
    let request = ReadBlob { session_id, blob: blob.clone(), offset: 0, limit: None };
    assert_eq!(process.service.blob(request).await.unwrap().bytes().unwrap(), png(1));
    blob
}

#[test]
fn an_image_outlives_a_compaction_of_its_journal_and_a_cleaned_bundle() {
    let mut place = Place::pruned();
    place.options.journal.keep_last_replies = 0;
    let with_camera = || place.agent().tool(camera());
    let (session_id, blob) = Place::process_of(with_camera, true, async |process| {
        let session_id = process.create().await;
        process.turn(session_id, r#"@call camera {"take":[1]} @step @say Done."#).await.unwrap();
        process.is_read(session_id).await;
        process.compact(session_id, false, false).await;
        let blob = image(&process, session_id).await;
        let fork = process.fork(session_id, None).await.unwrap();
        let imported = process.takes(&process.export(session_id, true).await, true).await;
        for copy in [fork, imported] {
            assert_eq!(image(&process, copy).await, blob);
        }
        (session_id, blob)
    });
    assert_eq!(place.examine(false).findings, []);
    std::fs::remove_file(place.session_dir(session_id).join("blobs").join(blob)).unwrap();
    assert_eq!(place.examine(false).findings.len(), 1, "a missing image is a fault");
}

#[test]
fn a_text_that_begins_like_an_image_is_cleaned_of_keys() {
    const KEY: &str = "sk-planted-0123456789";
    Place::new().process(true, async |process| {
        let session_id = process.create().await;
        // A side of the image is what these letters are as a number.
        let text = format!("GIF89aA\nA\n @say Done. {}{KEY}", "long ".repeat(60_000));
        process.turn(session_id, &text).await.unwrap();
        for redact in [false, true] {
            assert_eq!(super::found(&process.export(session_id, redact).await, KEY), !redact);
        }
    });
}
