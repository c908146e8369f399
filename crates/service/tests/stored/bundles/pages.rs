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
    AgentBuildConfig, ErrorCode, SessionId,
    options::Overflow,
    service::{ExportSession, PinFact, Remind, UpdateSession},
    session::reminder::SystemReminderType,
    store::{BlobStore, BlobWriter, StoreError, open_stores},
};
use serde_json::{Value, json};

use super::{archive::unpack, in_memory, place, sample};
use crate::stored::Process;

/// A prompt that is longer than two pages, and is in a blob.
fn long_prompt() -> String {
    format!("@say One. @note {}", "long ".repeat(500_000))
}

#[test]
fn an_export_holds_still_while_its_session_goes_on() {
    let (place, elsewhere) = (place(), place());
    let (id, bundle, lines) = place.process(true, |process| async move {
        let id = process.create().await;
        process.turn(id, &long_prompt()).await.unwrap();
        let lines = process.lines(id).await;
        let (mut bundle, mut cursor, mut pages) = (Vec::new(), None, 0);
        loop {
            let request = ExportSession { cursor, ..ExportSession::new(id) };
            let page = process.service.export_session(request.clone()).await.unwrap();
            assert_eq!(process.service.export_session(request).await.unwrap(), page, "a page can be asked for again");
            bundle.extend(BASE64_STANDARD.decode(page.data).unwrap());
            assert!(bundle.len() <= (pages + 1) * 1024 * 1024, "a page has at most a mebibyte");
            process.turn(id, "@say Meanwhile.").await.unwrap();
            (cursor, pages) = (page.next_cursor, pages + 1);
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(pages, 3);
        (id, bundle, lines)
    });
    elsewhere.process(true, |process| async move {
        let made = process.import(&bundle, 1_000_000, false).await.unwrap();
        assert_eq!(made[0].last_seq, lines.len() as u64);
        assert_eq!(process.lines(id).await, lines);
    });
}

/// Pages of a journal before and after it was compacted make no bundle, so the export has to begin again.
#[test]
fn an_export_notices_that_its_journal_was_compacted() {
    let (mut place, elsewhere) = (place(), place());
    place.options.journal.min_record_age_ms = 0;
    place.options.context.overflow = Overflow::Slide;
    let (id, bundle) = place.process(true, |process| async move {
        let (id, service) = (process.create().await, process.service.as_ref());
        for _ in 0..12 {
            process.turn(id, &format!("@say One. @note {}", "long ".repeat(20_000))).await.unwrap();
        }
        for text in ["One.", "Two.", "Three."] {
            let kind = SystemReminderType::Environment;
            service.remind(Remind { session_id: id, kind, text: text.to_owned() }).await.unwrap();
        }
        let ask = async |cursor| service.export_session(ExportSession { cursor, ..ExportSession::new(id) }).await;
        let cursor = ask(None).await.unwrap().next_cursor;
        process.register("one").await;
        process.is_done("one", id, service.read(&id).await.unwrap().last_seq).await;
        assert_eq!(process.compact(id, false, false).await.dropped, 2);
        for _ in 0..2 {
            let refused = ask(cursor.clone()).await.unwrap_err().body();
            assert_eq!((refused.code, &refused.details["field"]), (ErrorCode::InvalidRequest, &"cursor".into()));
        }
        (id, process.export(id, false).await.unwrap())
    });
    elsewhere.process(true, |process| async move {
        assert_eq!(process.import(&bundle, 1_000_000, false).await.unwrap()[0].session_id, id);
    });
}

#[tokio::test]
async fn a_cursor_is_that_of_the_page_before() {
    let (process, _) = in_memory(Default::default());
    let id = process.create().await;
    process.turn(id, &long_prompt()).await.unwrap();
    let ask = async |session_id: SessionId, cursor: Option<String>, redact: bool| {
        process.service.export_session(ExportSession { redact, cursor, ..ExportSession::new(session_id) }).await
    };
    let cursor = ask(id, None, false).await.unwrap().next_cursor.unwrap();
    let end = format!("9{cursor}");
    for wrong in ["", "x", "1.2", "1.x.y", "4.0.0", &cursor.replace('.', ","), &end[..end.len() - 1]] {
        let refused = ask(id, Some(wrong.to_owned()), false).await.unwrap_err().body();
        assert_eq!((refused.code, &refused.details["field"]), (ErrorCode::InvalidRequest, &"cursor".into()), "{wrong}");
    }
    let unknown = SessionId::from_uuid(uuid::Uuid::from_u128(7));
    assert_eq!(ask(unknown, None, false).await.unwrap_err().code(), ErrorCode::SessionNotFound);
    // Pages of two exports do not go together.
    process.service.pin(PinFact { session_id: id, text: "sk-planted-0123456789".to_owned() }).await.unwrap();
    let clean = ask(id, None, true).await.unwrap().next_cursor.unwrap();
    assert_eq!(ask(id, Some(clean.clone()), false).await.unwrap_err().code(), ErrorCode::InvalidRequest);
    ask(id, Some(clean), true).await.unwrap();
}

/// What looks like a key, and what is configured as a secret, wherever a session holds it.
#[test]
fn a_redacted_export_has_no_planted_key() {
    const KEYS: [&str; 4] =
        ["sk-planted-0123456789", "ghp_0123456789abcdef", "AKIAIOSFODNN7PLANTED", "tok.planted~0123456789"];
    const SECRET: &str = "correct horse \"battery\" staple";
    let (place, elsewhere) = (place(), place());
    let (ids, lines, bundle) = place.process(true, |process| async move {
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
        process.service.pin(PinFact { session_id: id, text: text.clone() }).await.unwrap();
        let lines = process.lines(id).await;
        let whole = process.export(id, false).await.unwrap();
        for key in KEYS {
            assert!(found(&whole, key), "{key} is planted");
        }
        let others = sample(&process).await;
        (([id], others), lines, whole)
    });
    let ([id], _) = ids;
    assert!(found(&bundle, "battery"));
    // The secret is configured only now.
    let clean = {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let agent = AgentBuildConfig::new().options(place.options.clone()).store(place.data_dir());
            let service = agent.secret(secrecy::SecretString::from(SECRET)).build().unwrap().service().clone();
            let clean = Process { service: service.clone() }.export(id, true).await.unwrap();
            service.shut_down(1_000).await;
            clean
        })
    };
    for planted in KEYS.iter().copied().chain(["battery"]) {
        assert!(!found(&clean, planted), "{planted} is told");
    }
    let files = unpack(&clean);
    let manifest: Value = serde_json::from_slice(&files.last().unwrap().body).unwrap();
    assert_eq!(manifest["redacted"], true);
    elsewhere.process(true, |process| async move {
        process.import(&clean, 100_000, false).await.unwrap();
        let answers = process.answers(id).await;
        let imported = answers["events"].as_array().unwrap();
        assert_eq!(imported.len(), lines.len());
        for (line, of) in imported.iter().zip(&lines) {
            let (line, of): (Value, Value) =
                (serde_json::from_str(line.as_str().unwrap()).unwrap(), serde_json::from_str(of).unwrap());
            for same in ["session_id", "seq", "turn", "time", "type"] {
                assert_eq!(line[same], of[same]);
            }
            // As text in a prompt an escape is no key; in the arguments of a call it is.
            assert_eq!(
                of["type"] == "assistant_message" && found(of.to_string().as_bytes(), "ghp_0123456789abcdef"),
                of["seq"] == 3
            );
            assert!(!found(line.to_string().as_bytes(), "ghp_0123456789abcdef"));
        }
        let bodies = answers["bodies"].as_array().unwrap();
        assert!(!bodies.is_empty(), "the bodies that keys were taken from can be read");
        for body in bodies {
            let body = BASE64_STANDARD.decode(body.as_str().unwrap()).unwrap();
            assert!(found(&body, "[redacted]") || !found(&body, "Bearer"));
        }
        process.turn(id, "@echo messages").await.unwrap();
    });
}

/// Bodies that differ in their keys alone are one file once the keys are replaced.
#[test]
fn bodies_that_are_equal_without_their_keys_are_exported_once() {
    place().process(true, |process| async move {
        let id = process.create().await;
        for key in ["sk-planted-0123456789", "sk-planted-9876543210"] {
            process.turn(id, &format!("@say Read. @note {key} {}", "long ".repeat(60_000))).await.unwrap();
        }
        for (is_redacted, count) in [(false, 2), (true, 1)] {
            let files = unpack(&process.export(id, is_redacted).await.unwrap());
            let blobs = files.iter().filter(|file| found(&file.body, &"long ".repeat(60_000)));
            assert_eq!(blobs.count(), count, "{is_redacted}");
        }
    });
}

fn found(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
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
    let place = place();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut stores = open_stores(&place.data_dir()).unwrap();
        let blobs = Arc::new(Counting(stores.blobs, AtomicU64::new(0)));
        stores.blobs = blobs.clone();
        let agent = AgentBuildConfig::new().options(place.options.clone()).stores(stores).build().unwrap();
        let process = Process { service: agent.service().clone() };
        let id = process.create().await;
        process.turn(id, &long_prompt()).await.unwrap();
        let before = blobs.1.load(Ordering::Relaxed);
        let bundle = process.export(id, true).await.unwrap();
        assert!(bundle.len() > 2 * 1024 * 1024);
        // For its name and length, and for its pages.
        let read = blobs.1.load(Ordering::Relaxed) - before;
        assert!(read <= 2 * bundle.len() as u64, "{read} bytes were read for {}", bundle.len());
        assert_eq!(process.export(id, true).await.unwrap(), bundle);
        process.service.shut_down(1_000).await;
    });
}
