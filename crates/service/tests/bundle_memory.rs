//! A large session is exported and imported in bounded memory. One test in one process, so that nobody else counts.

#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

use std::{
    alloc::System,
    io::{Read as _, Seek as _, Write as _},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use meerkat_service::{
    AgentBuildConfig, SessionId, SessionService,
    clock::{SeededIds, Timestamp},
    options::Budgets,
    service::{ExportSession, ImportBundle, ReadEvents},
    session::event::{Event, Record, SessionCreated, SessionUpdated},
    store::{EventStore, open_stores},
};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Bytes of a line, about, and how many there are.
const LINE_BYTES: usize = 200_000;
const LINES: u64 = 150;
/// Bytes that may be held at a time: a page, a file of lines, its base64, and what the store reads ahead.
const HELD_MAX: usize = 12 * 1024 * 1024;

fn held() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated.saturating_sub(stats.bytes_deallocated)
}

/// Does the work while another thread looks at what is held; answers with the most that it saw beyond what was before.
fn most_held(work: impl FnOnce()) -> usize {
    let empty = held();
    let much = vec![0_u8; HELD_MAX];
    assert!(held() >= empty + much.len(), "what is held is counted");
    drop(much);
    let (before, most, is_over) = (held(), AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                most.fetch_max(held().saturating_sub(before), Ordering::Relaxed);
                std::thread::yield_now();
            }
        });
        work();
        is_over.store(true, Ordering::Relaxed);
    });
    most.into_inner()
}

/// A session whose title is as long as a line may be, and changes with every event.
async fn fill(events: &dyn EventStore, session_id: SessionId) {
    let lease = events.lease(session_id).await.unwrap();
    let time = SeededIds::wall_time();
    for seq in 1..=LINES {
        let event = match seq {
            1 => Event::SessionCreated(SessionCreated {
                model: "scripted".to_owned(),
                system_prompt: None,
                labels: Default::default(),
                tools: None,
                budgets: Budgets::default(),
                key: None,
            }),
            _ => {
                let title = Some(format!("{seq} {}", "x".repeat(LINE_BYTES)));
                Event::SessionUpdated(SessionUpdated { title, labels: Default::default() })
            }
        };
        let time = Timestamp::from_millis(time.as_millis() + seq as i64);
        let record = Record { session_id, seq, turn: None, time, event };
        events.stage(&lease, &[record]).unwrap().durable().await.unwrap();
    }
    events.release(lease).await.unwrap();
}

async fn export(service: &dyn SessionService, session_id: SessionId, file: &mut std::fs::File) {
    let mut cursor = None;
    loop {
        let page = service.export_session(ExportSession { session_id, redact: false, cursor }).await.unwrap();
        file.write_all(&BASE64_STANDARD.decode(page.data).unwrap()).unwrap();
        cursor = page.next_cursor;
        if cursor.is_none() {
            return;
        }
    }
}

async fn import(service: &dyn SessionService, file: &mut std::fs::File) -> SessionId {
    file.rewind().unwrap();
    let (mut upload, mut offset, mut piece) = (None, 0, vec![0; 1_000_000]);
    let bytes = file.metadata().unwrap().len();
    loop {
        let read = file.read(&mut piece).unwrap();
        let (data, is_last) = (BASE64_STANDARD.encode(&piece[..read]), offset + read as u64 == bytes);
        let request = ImportBundle { upload, offset, data, is_last, new_ids: true };
        let imported = service.import_bundle(request).await.unwrap();
        if let Some(made) = imported.sessions.first() {
            assert_eq!(made.last_seq, LINES + 1);
            return made.session_id;
        }
        (upload, offset) = (imported.upload, imported.next_offset);
    }
}

#[test]
fn a_large_session_goes_out_and_in_in_bounded_memory() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let id: SessionId = "01900000-0000-7000-8000-000000000001".parse().unwrap();
    let stores = open_stores(&dir.path().join("data")).unwrap();
    let agent = {
        let _entered = runtime.enter();
        AgentBuildConfig::new().stores(stores.clone()).build().unwrap()
    };
    let service = agent.service().as_ref();
    runtime.block_on(async {
        service.ready().await.unwrap();
        fill(stores.events.as_ref(), id).await;
    });
    let mut file = tempfile::tempfile().unwrap();
    let exporting = most_held(|| runtime.block_on(export(service, id, &mut file)));
    let bytes = file.metadata().unwrap().len();
    assert!(bytes > LINES * LINE_BYTES as u64 * 9 / 10, "the bundle has {bytes} bytes");
    assert!(exporting < HELD_MAX, "the export of {bytes} bytes held {exporting}");
    let mut made = None;
    let importing = most_held(|| made = Some(runtime.block_on(import(service, &mut file))));
    assert!(importing < HELD_MAX, "the import of {bytes} bytes held {importing}");
    runtime.block_on(async {
        let read = async |session_id, since_seq| {
            let request = ReadEvents { session_id, since_seq, limit: Some(1), wait_ms: 0 };
            service.events(request).await.unwrap().items
        };
        for seq in 0..LINES {
            assert_eq!(read(made.unwrap(), seq).await, read(id, seq).await);
        }
        service.shut_down(0).await;
    });
}
