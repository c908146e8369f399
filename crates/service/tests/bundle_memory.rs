//! Large sessions are exported and imported in bounded memory, however many they are. One test in one process, so that nobody else counts.

#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

use std::io::{Read as _, Seek as _, Write as _};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use meerkat_service::{
    AgentBuildConfig, SessionId, SessionService,
    clock::SeededIds,
    service::{ExportSession, ImportBundle, ReadEvents},
    session::{
        event::{Event, Record, SessionCreated, TurnInterrupted, TurnStarted},
        message::{BlobRef, Body},
    },
    store::{EventStore, Stores, open_stores},
};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Bytes of a prompt, how many turns a session has, and how many sessions there are.
const PROMPT_BYTES: usize = 200_000;
const TURNS: u32 = 10;
const SESSIONS: u128 = 15;
/// Bytes of a long body, and something that looks like a key.
const BODY_BYTES: usize = 3 * HELD_MAX;
const KEY: &str = "sk-0123456789abcdef";
/// Events of a session: one that makes it, and two of each turn.
const EVENTS: u64 = 1 + 2 * TURNS as u64;
/// Bytes that may be held at a time: a page, a file of lines, its base64, what the store reads ahead, and one session
/// with all that was said in it.
const HELD_MAX: usize = 12 * 1024 * 1024;

/// Does the work; answers with the most that the process held meanwhile beyond what it held before.
fn most_held(work: impl FnOnce()) -> usize {
    ALLOCATOR.reset_peak_usage();
    let before = ALLOCATOR.current_usage();
    work();
    ALLOCATOR.peak_usage() - before
}

/// A session whose prompts are long, and all of them are part of what its model would see.
async fn fill(events: &dyn EventStore, session_id: SessionId) {
    let lease = events.lease(session_id).await.unwrap();
    let time = SeededIds::wall_time();
    let model = "scripted".to_owned();
    let created = Event::SessionCreated(SessionCreated { model: model.clone(), ..SessionCreated::default() });
    let turns = (0..TURNS).flat_map(|turn| {
        let started = Event::TurnStarted(TurnStarted {
            prompt: Some(Body::Inline(format!("{turn} {}", "x".repeat(PROMPT_BYTES)))),
            model: model.clone(),
            ..TurnStarted::default()
        });
        let ended = TurnInterrupted { reason: "requested".to_owned(), totals: Default::default() };
        [(Some(turn), started), (Some(turn), Event::TurnInterrupted(ended))]
    });
    for (seq, (turn, event)) in (1..).zip(std::iter::once((None, created)).chain(turns)) {
        let record = Record { session_id, seq, turn, time, event };
        events.stage(&lease, &[record]).unwrap().durable().await.unwrap();
    }
    events.release(lease).await.unwrap();
}

/// A session whose prompt is a long body with something that looks like a key at its end.
async fn fill_with_body(stores: &Stores, session_id: SessionId) {
    let lease = stores.events.lease(session_id).await.unwrap();
    let mut writer = stores.blobs.writer(session_id);
    let part = "A long text. ".repeat(10_000);
    let mut bytes = 0;
    while bytes < BODY_BYTES {
        writer.write(part.as_bytes()).await.unwrap();
        bytes += part.len();
    }
    writer.write(KEY.as_bytes()).await.unwrap();
    let (blob, bytes) = writer.finish().await.unwrap();
    let (time, model) = (SeededIds::wall_time(), "scripted".to_owned());
    let prompt = Body::Blob(BlobRef { blob, bytes, head: "A".to_owned(), tail: "key".to_owned() });
    let events = [
        (None, Event::SessionCreated(SessionCreated { model: model.clone(), ..SessionCreated::default() })),
        (Some(0), Event::TurnStarted(TurnStarted { prompt: Some(prompt), model, ..TurnStarted::default() })),
        (
            Some(0),
            Event::TurnInterrupted(TurnInterrupted { reason: "requested".to_owned(), totals: Default::default() }),
        ),
    ];
    for (seq, (turn, event)) in (1..).zip(events) {
        stores.events.stage(&lease, &[Record { session_id, seq, turn, time, event }]).unwrap().durable().await.unwrap();
    }
    stores.events.release(lease).await.unwrap();
}

async fn export(service: &dyn SessionService, session_id: SessionId, redact: bool, file: &mut std::fs::File) {
    let mut cursor = None;
    loop {
        let request = ExportSession { redact, cursor, ..ExportSession::new(session_id) };
        let page = service.export_session(request).await.unwrap();
        file.write_all(&BASE64_STANDARD.decode(page.data).unwrap()).unwrap();
        cursor = page.next_cursor;
        if cursor.is_none() {
            return;
        }
    }
}

async fn import(service: &dyn SessionService, file: &mut std::fs::File) -> Vec<SessionId> {
    file.rewind().unwrap();
    let (mut upload, mut offset, mut piece) = (None, 0, vec![0; 1_000_000]);
    let bytes = file.metadata().unwrap().len();
    loop {
        let read = file.read(&mut piece).unwrap();
        let (data, is_last) = (BASE64_STANDARD.encode(&piece[..read]), offset + read as u64 == bytes);
        let request = ImportBundle { upload, offset, data, is_last, new_ids: true, keep_scope: false };
        let imported = service.import_bundle(request).await.unwrap();
        if is_last {
            assert!(imported.sessions.iter().all(|made| made.last_seq == EVENTS + 1));
            return imported.sessions.iter().map(|made| made.session_id).collect();
        }
        (upload, offset) = (imported.upload, imported.next_offset);
    }
}

#[test]
fn large_sessions_go_out_and_in_in_bounded_memory() {
    let for_a_moment = most_held(|| drop(std::hint::black_box(vec![0_u8; HELD_MAX])));
    assert!(for_a_moment >= HELD_MAX, "what is held for a moment is counted: {for_a_moment}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let dir = meerkat_testkit::folder();
    let first = 0x0190_0000_0000_7000_8000_0000_0000_0001;
    let ids: Vec<_> = (first..first + SESSIONS).map(|id| SessionId::from_uuid(uuid::Uuid::from_u128(id))).collect();
    let long = SessionId::from_uuid(uuid::Uuid::from_u128(first + SESSIONS));
    let stores = open_stores(&dir.path().join("data")).unwrap();
    let agent = {
        let _entered = runtime.enter();
        AgentBuildConfig::new().stores(stores.clone()).build().unwrap()
    };
    let service = agent.service().as_ref();
    runtime.block_on(async {
        service.ready().await.unwrap();
        for id in &ids {
            fill(stores.events.as_ref(), *id).await;
        }
        fill_with_body(&stores, long).await;
    });
    let mut file = tempfile::tempfile().unwrap();
    let exporting = most_held(|| ids.iter().for_each(|id| runtime.block_on(export(service, *id, false, &mut file))));
    let bytes = file.metadata().unwrap().len();
    assert!(bytes > 2 * HELD_MAX as u64, "the bundle has {bytes} bytes");
    assert!(exporting < HELD_MAX, "the export of {bytes} bytes held {exporting}");
    let mut clean = tempfile::tempfile().unwrap();
    let cleaning = most_held(|| runtime.block_on(export(service, long, true, &mut clean)));
    let clean_bytes = clean.metadata().unwrap().len();
    assert!(clean_bytes > BODY_BYTES as u64, "the bundle has {clean_bytes} bytes");
    assert!(cleaning < HELD_MAX, "the redacted export of {clean_bytes} bytes held {cleaning}");
    let mut end = Vec::new();
    clean.seek(std::io::SeekFrom::End(-4096)).unwrap();
    clean.read_to_end(&mut end).unwrap();
    let end = String::from_utf8_lossy(&end);
    assert!(!end.contains(KEY) && end.contains("A long text. [redacted]"), "{end}");
    let mut made = None;
    let importing = most_held(|| made = Some(runtime.block_on(import(service, &mut file))));
    assert!(importing < HELD_MAX, "the import of {bytes} bytes held {importing}");
    runtime.block_on(async {
        let read = async |session_id, since_seq| {
            let request = ReadEvents { limit: Some(1), ..ReadEvents::new(session_id, since_seq) };
            service.events(request).await.unwrap().items
        };
        for (made, id) in made.iter().flatten().zip(&ids) {
            for seq in 0..EVENTS {
                assert_eq!(read(*made, seq).await, read(*id, seq).await);
            }
        }
        service.shut_down(0).await;
    });
}
