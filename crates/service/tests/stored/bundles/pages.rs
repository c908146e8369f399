//! Exports page by page: unchanged while the session goes on, and without keys on request.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use meerkat_service::{
    ErrorCode, SessionId,
    options::Overflow,
    service::{BundlePage, ExportSession, PinFact, UpdateSession},
    store::{BlobStore, BlobWriter, StoreError, Stores},
};
use serde_json::{Value, json};

use super::{archive::unpack, found, in_memory, place};
use crate::stored::{Place, Process};

/// A text that takes more than one page, or is in a blob.
fn long(words: usize) -> String {
    format!("@say One. @note {}", "long ".repeat(words))
}

/// A page of an export; if it is refused, the code and the field.
async fn page(
    process: &Process,
    session_id: SessionId,
    cursor: Option<&str>,
    redact: bool,
) -> Result<BundlePage, (ErrorCode, Value)> {
    let cursor = cursor.map(str::to_owned);
    let page = process.service.export_session(ExportSession { redact, cursor, ..ExportSession::new(session_id) }).await;
    page.map_err(|error| (error.code(), error.body().details.get("field").cloned().unwrap_or_default()))
}

fn wrong_cursor() -> (ErrorCode, Value) {
    (ErrorCode::InvalidRequest, "cursor".into())
}

#[test]
fn an_export_holds_still_while_its_session_goes_on() {
    let (id, bundle, lines) = place().process(true, async |process| {
        let id = process.create().await;
        process.turn(id, &long(500_000)).await.unwrap();
        let lines = process.lines(id).await;
        let (mut bundle, mut cursor, mut pages) = (Vec::new(), None, 0);
        loop {
            let next = page(&process, id, cursor.as_deref(), false).await.unwrap();
            assert_eq!(page(&process, id, cursor.as_deref(), false).await.unwrap(), next, "it can be asked for again");
            bundle.extend(BASE64_STANDARD.decode(next.data).unwrap());
            assert!(bundle.len() <= (pages + 1) * 1024 * 1024, "a page has at most a mebibyte");
            process.turn(id, "@say Meanwhile.").await.unwrap();
            (cursor, pages) = (next.next_cursor, pages + 1);
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(pages, 3);
        (id, bundle, lines)
    });
    place().process(true, async |process| {
        process.takes(&bundle, false).await;
        assert_eq!(process.lines(id).await, lines);
    });
}

/// Pages of a journal before and after it was compacted make no bundle, so the export has to begin again.
#[test]
fn an_export_notices_that_its_journal_was_compacted() {
    let mut place = place();
    place.options.context.overflow = Overflow::Slide;
    let (id, bundle) = place.process(true, async |process| {
        let id = process.create().await;
        for _ in 0..12 {
            process.turn(id, &long(20_000)).await.unwrap();
        }
        for text in ["One.", "Two.", "Three."] {
            process.remind(id, "environment", text).await;
        }
        let cursor = page(&process, id, None, false).await.unwrap().next_cursor;
        process.is_read(id).await;
        assert_eq!(process.compact(id, false, false).await.dropped, 2);
        for _ in 0..2 {
            assert_eq!(page(&process, id, cursor.as_deref(), false).await, Err(wrong_cursor()));
        }
        (id, process.export(id, false).await)
    });
    Place::new().process(true, async |process| assert_eq!(process.takes(&bundle, false).await, id));
}

#[tokio::test]
async fn a_cursor_is_that_of_the_page_before() {
    let (process, _) = in_memory(Default::default());
    let id = process.create().await;
    process.turn(id, &long(500_000)).await.unwrap();
    let cursor = page(&process, id, None, false).await.unwrap().next_cursor.unwrap();
    let end = format!("9{cursor}");
    for wrong in ["", "x", "1.2", "1.x.y", "4.0.0", &cursor.replace('.', ","), &end[..end.len() - 1]] {
        assert_eq!(page(&process, id, Some(wrong), false).await, Err(wrong_cursor()), "{wrong}");
    }
    let unknown = SessionId::from_uuid(uuid::Uuid::from_u128(7));
    assert_eq!(page(&process, unknown, None, false).await.unwrap_err().0, ErrorCode::SessionNotFound);
    // Pages of two exports do not go together.
    process.service.pin(PinFact { session_id: id, text: "sk-planted-0123456789".to_owned() }).await.unwrap();
    let clean = page(&process, id, None, true).await.unwrap().next_cursor;
    assert_eq!(page(&process, id, clean.as_deref(), false).await.unwrap_err().0, ErrorCode::InvalidRequest);
    page(&process, id, clean.as_deref(), true).await.unwrap();
}

/// What looks like a key, and what is configured as a secret, wherever a session holds it.
#[test]
fn a_redacted_export_has_no_planted_key() {
    const KEYS: [&str; 4] =
        ["sk-planted-0123456789", "ghp_0123456789abcdef", "AKIAIOSFODNN7PLANTED", "tok.planted~0123456789"];
    const SECRET: &str = "correct horse \"battery\" staple";
    let place = place();
    let (id, lines) = place.process(true, async |process| {
        let id = process.create().await;
        let text = format!("{} Bearer {} \\n{} {SECRET}", KEYS[0], KEYS[3], KEYS[1]);
        let arguments = json!({ "text": text, KEYS[2]: "a name", "escaped": "ghp_" });
        // The letters of a key may be escaped, too.
        let arguments = arguments.to_string().replace(r#""ghp_""#, r#""gh\u0070_0123456789abcdef""#);
        process.turn(id, &format!("@say {text} @call test_echo {arguments} @echo last_result")).await.unwrap();
        process.turn(id, &format!("@say Long. @note {text} {}{text}", "long ".repeat(60_000))).await.unwrap();
        let labels = Some([("key".to_owned(), KEYS[0].to_owned())].into());
        let update = UpdateSession { session_id: id, title: Some(KEYS[1].to_owned()), labels };
        process.service.update(update).await.unwrap();
        process.service.pin(PinFact { session_id: id, text }).await.unwrap();
        let whole = process.export(id, false).await;
        for planted in KEYS.into_iter().chain(["battery"]) {
            assert!(found(&whole, planted), "{planted} is planted");
        }
        (id, process.lines(id).await)
    });
    // The secret is configured only now.
    let with_secret = || place.agent().secret(secrecy::SecretString::from(SECRET));
    let clean = Place::process_of(with_secret, true, async |process| process.export(id, true).await);
    for planted in KEYS.into_iter().chain(["battery"]) {
        assert!(!found(&clean, planted), "{planted} is told");
    }
    let manifest: Value = serde_json::from_slice(&unpack(&clean).last().unwrap().body).unwrap();
    assert_eq!(manifest["redacted"], true);
    Place::new().process(true, async |process| {
        process.takes(&clean, false).await;
        let answers = process.answers(id).await;
        assert_eq!(answers.lines.len(), lines.len());
        for (line, of) in answers.lines.iter().zip(&lines) {
            let [line, of]: [Value; 2] = [line, of].map(|line| serde_json::from_str(line).unwrap());
            for same in ["session_id", "seq", "turn", "time", "type"] {
                assert_eq!(line[same], of[same]);
            }
            // As text in a prompt an escape is no key; in the arguments of a call it is.
            let has_key = found(of.to_string().as_bytes(), KEYS[1]);
            assert_eq!(of["type"] == "assistant_message" && has_key, of["seq"] == 3);
            assert!(!found(line.to_string().as_bytes(), KEYS[1]));
        }
        assert!(!answers.bodies.is_empty(), "the bodies that keys were taken from can be read");
        for body in answers.bodies {
            let body = BASE64_STANDARD.decode(body).unwrap();
            assert!(found(&body, "[redacted]") || !found(&body, "Bearer"));
        }
        process.turn(id, "@echo messages").await.unwrap();
    });
}

/// Bodies that differ in their keys alone are one file once the keys are replaced.
#[test]
fn bodies_that_are_equal_without_their_keys_are_exported_once() {
    place().process(true, async |process| {
        let (id, body) = (process.create().await, "long ".repeat(60_000));
        for key in ["sk-planted-0123456789", "sk-planted-9876543210"] {
            process.turn(id, &format!("@say Read. @note {key} {body}")).await.unwrap();
        }
        for (is_redacted, count) in [(false, 2), (true, 1)] {
            let files = unpack(&process.export(id, is_redacted).await);
            assert_eq!(files.iter().filter(|file| found(&file.body, &body)).count(), count, "{is_redacted}");
        }
    });
}

/// Counts the bytes of blobs that are read.
struct Counting(Arc<dyn BlobStore>, AtomicU64);

#[async_trait]
impl BlobStore for Counting {
    fn writer(&self, session_id: SessionId) -> Box<dyn BlobWriter> {
        self.0.writer(session_id)
    }

    async fn read(&self, id: SessionId, blob: &str, offset: u64, limit: usize) -> Result<Option<Bytes>, StoreError> {
        let read = self.0.read(id, blob, offset, limit).await?;
        self.1.fetch_add(read.as_ref().map_or(0, Bytes::len) as u64, Ordering::Relaxed);
        Ok(read)
    }

    async fn list(&self, session_id: SessionId) -> Result<BTreeSet<String>, StoreError> {
        self.0.list(session_id).await
    }

    async fn remove(&self, session_id: SessionId, names: &BTreeSet<String>) -> Result<(), StoreError> {
        self.0.remove(session_id, names).await
    }

    async fn forget(&self, session_id: SessionId) {
        self.0.forget(session_id).await;
    }
}

/// Each page read and cleaned the whole blob again, which took minutes for a long one.
#[test]
fn a_blob_is_cleaned_once_for_all_of_its_pages() {
    let counting = |stores: &mut Stores| {
        let blobs = Arc::new(Counting(stores.blobs.clone(), AtomicU64::new(0)));
        stores.blobs = blobs.clone();
        blobs
    };
    place().process_over(true, counting, async |process, blobs| {
        let id = process.create().await;
        process.turn(id, &long(500_000)).await.unwrap();
        let before = blobs.1.load(Ordering::Relaxed);
        let bundle = process.export(id, true).await;
        assert!(bundle.len() > 2 * 1024 * 1024);
        // For its name and length, and for its pages.
        let read = blobs.1.load(Ordering::Relaxed) - before;
        assert!(read <= 2 * bundle.len() as u64, "{read} bytes were read for {}", bundle.len());
        assert_eq!(process.export(id, true).await, bundle);
    });
}
