//! Blobs of images: what names them keeps them, and they stay what they are.

use meerkat_service::{
    SessionId,
    service::{PromptBlock, ReadBlob, StartTurn},
};
use serde_json::{Value, json};

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

/// What a prompt showed, by its name, and the bytes of each that are in the session's blobs.
async fn shown(process: &Process, session_id: SessionId) -> (Value, Vec<Vec<u8>>) {
    let said = process.said(session_id).await;
    let message = said.into_iter().find(|item| !item["message"]["blocks"].is_null()).unwrap();
    let blocks = message["message"]["blocks"].clone();
    let mut all = Vec::new();
    for block in blocks.as_array().unwrap() {
        let blob = block["blob"].as_str().unwrap().to_owned();
        let request = ReadBlob { session_id, blob, offset: 0, limit: None };
        all.push(process.service.blob(request).await.unwrap().bytes().unwrap().to_vec());
    }
    (blocks, all)
}

#[test]
fn what_a_prompt_shows_outlives_a_compaction_of_its_journal_and_bundles() {
    const KEY: &str = "sk-planted-0123456789";
    const PDF: &[u8] = b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n sk-planted-0123456789";
    let mut place = Place::pruned();
    place.options.journal.keep_last_replies = 0;
    let text = format!("The key is {KEY}.");
    let session_id = place.process(true, async |process| {
        let session_id = process.create().await;
        let blocks = vec![
            PromptBlock::image("image/png", png(1)),
            PromptBlock::file("a.pdf", "application/pdf", PDF.to_vec()),
            PromptBlock::file("a.txt", "text/plain", text.clone().into_bytes()),
            PromptBlock::text("@say Done."),
        ];
        process.service.start_turn(StartTurn::new(session_id, blocks)).await.unwrap();
        process.turn(session_id, "@say Later.").await.unwrap();
        process.is_read(session_id).await;
        process.compact(session_id, false, false).await;
        let (named, bytes) = shown(&process, session_id).await;
        assert_eq!(bytes, [png(1), PDF.to_vec(), text.clone().into_bytes()]);
        let kinds: Vec<&Value> = named.as_array().unwrap().iter().map(|block| &block["media_type"]).collect();
        assert_eq!(kinds, [&json!("image/png"), &json!("application/pdf"), &json!("text/plain")]);
        let fork = process.fork(session_id, None).await.unwrap();
        let whole = process.takes(&process.export(session_id, false).await, true).await;
        for copy in [fork, whole] {
            assert_eq!(shown(&process, copy).await, (named.clone(), bytes.clone()));
        }
        // A cleaned bundle has another text, and the same image and PDF.
        let bundle = process.export(session_id, true).await;
        let (_, clean) = shown(&process, process.takes(&bundle, true).await).await;
        assert_eq!(clean[..2], bytes[..2]);
        assert!(clean[2].starts_with(b"The key is ") && !clean[2].windows(KEY.len()).any(|it| it == KEY.as_bytes()));
        session_id
    });
    // The next process shows them to the model again.
    place.process(true, async |process| {
        let again = process.turn(session_id, "@echo messages").await.unwrap();
        assert_eq!(again.error, None);
        assert_eq!(shown(&process, session_id).await.1.len(), 3);
    });
    assert_eq!(place.examine(false).findings, []);
    let blobs = place.session_dir(session_id).join("blobs");
    std::fs::read_dir(blobs).unwrap().for_each(|blob| std::fs::remove_file(blob.unwrap().path()).unwrap());
    assert_eq!(place.examine(false).findings.len(), 3, "a missing file of a prompt is a fault");
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
