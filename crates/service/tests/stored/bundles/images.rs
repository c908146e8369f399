//! Blobs of images: what names them keeps them, and they stay what they are.

use super::*;
use crate::common::camera::{camera, png};

impl Process {
    /// Returns the blob of the session's image, after reading it.
    async fn image(&self, session_id: SessionId) -> String {
        let events = self.events(session_id).await;
        let finished = events.iter().find(|event| event["type"] == "tool_finished").unwrap();
        let blob = finished["images"][0]["blob"].as_str().unwrap().to_owned();
        let request = ReadBlob { session_id, blob: blob.clone(), offset: 0, limit: None };
        assert_eq!(self.service.blob(request).await.unwrap().bytes().unwrap(), png(1));
        blob
    }
}

#[test]
fn an_image_outlives_a_compaction_of_its_journal_and_a_cleaned_bundle() {
    let mut place = Place::new();
    place.options.journal.min_record_age_ms = 0;
    place.options.journal.keep_last_replies = 0;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (session_id, blob) = runtime.block_on(async {
        let service = place.agent().tool(camera()).build().unwrap().service().clone();
        let process = Process { service: service.clone() };
        let session_id = process.create().await;
        process.turn(session_id, r#"@call camera {"take":[1]} @step @say Done."#).await.unwrap();
        process.register("one").await;
        let last_seq = service.read(&session_id).await.unwrap().last_seq;
        process.is_done("one", session_id, last_seq).await;
        process.compact(session_id, false, false).await;
        let blob = process.image(session_id).await;
        let fork = process.service.fork(ForkSession { session_id, turn: None }).await.unwrap();
        assert_eq!(process.image(fork.session_id).await, blob);
        let bundle = process.export(session_id, true).await.unwrap();
        let imported = process.import(&bundle, 1 << 20, true).await.unwrap();
        assert_eq!(process.image(imported[0].session_id).await, blob);
        service.shut_down(1_000).await;
        (session_id, blob)
    });
    runtime.shutdown_timeout(meerkat_testkit::PATIENCE);
    assert_eq!(place.examine(false).findings, []);
    let journal = place.data_dir().join("journal");
    let own = format!("{session_id}/blobs/{blob}");
    let file = files(&journal).into_iter().find(|name| name.ends_with(&own)).unwrap();
    std::fs::remove_file(journal.join(file)).unwrap();
    assert_eq!(place.examine(false).findings.len(), 1, "a missing image is a fault");
}

#[test]
fn a_text_that_begins_like_an_image_is_cleaned_of_keys() {
    const KEY: &[u8] = b"sk-planted-0123456789";
    Place::new().process(true, |process| async move {
        let session_id = process.create().await;
        let key = String::from_utf8_lossy(KEY);
        // A side of the image is what these letters are as a number.
        let text = format!("GIF89aA\nA\n @say Done. {}{key}", "long ".repeat(60_000));
        process.turn(session_id, &text).await.unwrap();
        for redact in [false, true] {
            let bundle = process.export(session_id, redact).await.unwrap();
            assert_eq!(bundle.windows(KEY.len()).any(|bytes| bytes == KEY), !redact);
        }
    });
}
