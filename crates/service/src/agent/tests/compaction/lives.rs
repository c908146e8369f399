//! Compactions of sessions that outlive their service.

use std::{sync::Arc, time::Duration};

use serde_json::Value;

use super::{COST, Rig, SUMMARY, Strict, WINDOW, Write, outcomes, patient, rig, texts};
use crate::{
    ErrorCode, SessionError,
    agent::tests::Service,
    agent::tests::ticks,
    compaction::{CompactionConfig, SUMMARY_PREFIX},
    ids::SessionId,
    options::Policy,
    service::{
        CompactSession, CompactionReceipt, CreateSession, DeleteSession, InterruptTurn, ReadEvents, ResumeTurn,
        SessionQuery, SessionService as _, SessionState, StartTurn, TurnStatus, UndoCompaction,
    },
    store::{EventStore as _, MemoryEventStore, MemoryIndex, MemorySessionStore, SessionStore},
};

/// Journals and snapshots, which outlive a service.
struct Disk {
    events: Arc<MemoryEventStore>,
    snapshots: Arc<dyn SessionStore>,
    config: CompactionConfig,
}

impl Disk {
    fn new(config: CompactionConfig) -> Self {
        let events = Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()));
        let snapshots = Arc::new(MemorySessionStore::new(events.clone()));
        Self { events, snapshots, config }
    }

    /// Another life of the service.
    fn service(&self) -> (Service, Arc<Strict>) {
        let (rig, model): (Rig, _) = rig(WINDOW, self.config);
        let index = Arc::new(MemoryIndex::default());
        (rig.stored_with(self.snapshots.clone(), self.events.clone(), index), model)
    }
}

async fn events(service: &Service, session_id: SessionId) -> Vec<Value> {
    let request = ReadEvents { limit: Some(1000), ..ReadEvents::new(session_id, 0) };
    let page = service.events(request).await.unwrap();
    page.items.iter().map(|line| serde_json::from_slice(line).unwrap()).collect()
}

async fn turn(service: &Service, session_id: SessionId, prompt: &str) {
    let result = service.start_turn(StartTurn::new(session_id, prompt)).await.unwrap();
    assert_eq!(result.status, TurnStatus::Completed, "{result:?}");
}

/// A snapshot lacks the context from before a compaction; the journal has it.
#[tokio::test]
async fn an_undo_reaches_behind_a_snapshot() {
    let disk = Disk::new(patient());
    let (service, _) = disk.service();
    let session_id = service.create_session(CreateSession::default()).await.unwrap().session_id;
    for _ in 0..3 {
        turn(&service, session_id, "@long 2000").await;
    }
    let before = service.read(&session_id).await.unwrap().usage;
    let receipt = service.compact(CompactSession { session_id, compaction: None }).await.unwrap();
    assert_eq!(service.read(&session_id).await.unwrap().usage.without(before), COST);
    service.shut_down(0).await;

    let (service, model) = disk.service();
    turn(&service, session_id, "@say Since.").await;
    let request = model.requests.lock().unwrap().pop().unwrap();
    assert_eq!(texts(&request)[0], format!("{SUMMARY_PREFIX}\n\n{SUMMARY}"));
    service.shut_down(0).await;

    let (service, model) = disk.service();
    service.undo_compaction(UndoCompaction { session_id, compaction: receipt.compaction }).await.unwrap();
    service.shut_down(0).await;
    let (service, after) = disk.service();
    turn(&service, session_id, "@say After.").await;
    let request = after.requests.lock().unwrap().pop().unwrap();
    let texts = texts(&request);
    assert_eq!((texts.len(), texts[0].as_str(), texts[6].as_str()), (9, "@long 2000", "@say Since."));
    assert!(model.requests.lock().unwrap().is_empty());
}

/// A stored session with something to compact, and a compaction of it that waits for its summary.
async fn compacting(
    disk: &Disk,
) -> (Service, SessionId, tokio::task::JoinHandle<Result<CompactionReceipt, SessionError>>) {
    let (service, model) = disk.service();
    let session_id = service.create_session(CreateSession::default()).await.unwrap().session_id;
    for _ in 0..6 {
        turn(&service, session_id, "@long 100").await;
    }
    model.writes.lock().unwrap().push_back(Write::Late(Arc::default()));
    let asked = service.clone();
    let compacting = tokio::spawn(async move { asked.compact(CompactSession { session_id, compaction: None }).await });
    ticks(50).await;
    (service, session_id, compacting)
}

/// A process that ends while a summary is written leaves the session as it was before, and usable.
#[tokio::test(start_paused = true)]
async fn a_compaction_that_is_left_alone_has_failed() {
    let disk = Disk::new(CompactionConfig::default());
    let (_lost, session_id, hanging) = compacting(&disk).await;
    let (service, model) = disk.service();
    turn(&service, session_id, "@say Works.").await;
    let events = events(&service, session_id).await;
    assert_eq!(outcomes(&events), [(Value::Null, "TURN_INTERRUPTED".to_owned())]);
    assert_eq!(model.requests.lock().unwrap()[0].messages.len(), 13);
    hanging.abort();
}

/// A compacting session is listed as running; only a forced deletion ends it, and its caller is notified.
#[tokio::test(start_paused = true)]
async fn a_session_that_compacts_is_deleted_by_force_alone() {
    let disk = Disk::new(CompactionConfig::default());
    let (service, session_id, compacting) = compacting(&disk).await;
    let listed = service.list(SessionQuery::default()).await.unwrap();
    assert_eq!((listed.items[0].session_id, listed.items[0].state), (session_id, SessionState::Running));
    let refused = service.delete(DeleteSession { session_id, force: false }).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::SessionBusy);
    service.delete(DeleteSession { session_id, force: true }).await.unwrap();
    assert_eq!(compacting.await.unwrap().unwrap_err().code(), ErrorCode::TurnInterrupted);
    assert_eq!(service.read(&session_id).await.unwrap_err().code(), ErrorCode::SessionNotFound);
    assert!(disk.events.sessions(None, 10).await.unwrap().is_empty());
}

/// A compacting session stays in memory, and a shutdown waits for it like for a turn.
#[tokio::test(start_paused = true)]
async fn a_session_that_compacts_does_not_leave() {
    let disk = Disk::new(CompactionConfig::default());
    let (service, session_id, compacting) = compacting(&disk).await;
    // Longer than a session at rest stays, and shorter than a silent model is waited for.
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(service.read(&session_id).await.unwrap().state, SessionState::Running);
    service.shut_down(1_000).await;
    assert_eq!(compacting.await.unwrap().unwrap_err().code(), ErrorCode::TurnInterrupted);
    let (service, _) = disk.service();
    assert_eq!(service.read(&session_id).await.unwrap().state, SessionState::Idle);
    assert_eq!(outcomes(&events(&service, session_id).await), [(Value::Null, "TURN_INTERRUPTED".to_owned())]);
}

/// A turn is resumed only if nothing runs; a turn that waits behind the compaction is found by its key.
#[tokio::test(start_paused = true)]
async fn a_turn_behind_a_compaction_is_accepted_once() {
    let disk = Disk::new(CompactionConfig::default());
    let (service, session_id, compacting) = compacting(&disk).await;
    let resume = ResumeTurn { policy: Policy::Queue, ..ResumeTurn::default() };
    let refused = service.resume(&session_id, resume).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::SessionBusy);
    let keyed = StartTurn {
        policy: Policy::Queue,
        idempotency_key: Some("once".to_owned()),
        ..StartTurn::new(session_id, "@say Queued.")
    };
    let (first, second) =
        (service.accept_turn(keyed.clone()).await.unwrap(), service.accept_turn(keyed.clone()).await.unwrap());
    assert_eq!((first.turn, first.seq), (second.turn, second.seq));
    service.interrupt(InterruptTurn { session_id, turn: None }).await.unwrap();
    assert_eq!(compacting.await.unwrap().unwrap_err().code(), ErrorCode::TurnInterrupted);
    assert_eq!(service.start_turn(keyed).await.unwrap().text, "Queued.");
    let events = events(&service, session_id).await;
    assert_eq!(events.iter().filter(|event| event["type"] == "turn_queued").count(), 1);
}
