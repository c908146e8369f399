//! Sessions that outlive their service, where the stores are slow or fail. What is derived stands in nobody's way.

use std::sync::{Arc, Weak};

use async_trait::async_trait;

use super::{
    Rig,
    faults::{Fault, FaultyEvents, Fuse},
    ticks,
};
use crate::{
    ErrorCode, Session, SessionError,
    agent::shared::Shared,
    ids::{Seq, SessionId},
    runtime::live::LiveHub,
    service::{CreateSession, Page, PinFact, SessionQuery, SessionService as _, SessionSummary, StartTurn},
    session::tests::{created, record, session_id},
    store::{EventStore, IndexedKey, MemoryEventStore, MemoryIndex, SessionIndex, StoreError},
};

fn rig() -> Rig {
    Rig::new(Vec::new())
}

/// A session that was being loaded while the service ended was passed over: it stayed, and its lease with it.
#[tokio::test(start_paused = true)]
async fn a_session_that_arrives_at_the_end_is_drained() {
    let events = Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()));
    let first = rig().stored(events.clone(), Arc::new(MemoryIndex::default()));
    let session_id = first.create_session(CreateSession::default()).await.unwrap().session_id;
    first.shut_down(0).await;
    for tick in 0..40 {
        let released = Fuse::new(0, 0);
        let late: Arc<dyn EventStore> = Arc::new(FaultyEvents(events.clone(), Fault::LateLease, released.clone()));
        let service = rig().stored(late, Arc::new(MemoryIndex::default()));
        let pin = tokio::spawn({
            let service = service.clone();
            async move { service.pin(PinFact { session_id, text: "a fact".to_owned() }).await }
        });
        ticks(tick).await;
        service.shut_down(0).await;
        // Whoever asked too late brought nobody in.
        let is_late = match pin.await.unwrap() {
            Ok(_) => false,
            Err(SessionError::ShuttingDown) => released.calls() == 0,
            Err(error) => panic!("{error:?} at tick {tick}"),
        };
        assert!(is_late || released.calls() == 1, "at tick {tick}");
        let refused = service.pin(PinFact { session_id, text: "a fact".to_owned() }).await.unwrap_err();
        assert_eq!((refused.code(), released.calls() <= 1), (ErrorCode::ShuttingDown, true));
    }
}

/// Whoever waits for an interrupt when the actor leaves learns that nothing runs, and so does whoever comes later.
#[tokio::test]
async fn interrupts_close_with_their_actor() {
    let session = Session::begin(&record(1, None, created())).unwrap();
    let shared = Shared::new(&session, Arc::new(LiveHub::new(session_id(), Weak::new())));
    let waiting = [shared.wish_interrupt(None).unwrap(), shared.wish_interrupt(Some(3)).unwrap()];
    assert!(shared.has_interrupts());
    shared.close();
    for (answer, turn) in waiting.into_iter().zip([None, Some(3)]) {
        assert_eq!(answer.await.unwrap().unwrap_err().body(), SessionError::NotRunning { turn }.body());
    }
    let late = shared.wish_interrupt(Some(4)).unwrap_err();
    assert_eq!(late.body(), SessionError::NotRunning { turn: Some(4) }.body());
    assert!(!shared.has_interrupts() && shared.take_interrupts().is_empty());
}

/// An index that answers nothing and takes nothing.
struct BrokenIndex;

fn broken<T>() -> Result<T, StoreError> {
    Err(StoreError::Failed("the index: EIO".to_owned()))
}

#[async_trait]
impl SessionIndex for BrokenIndex {
    async fn put(&self, _: SessionSummary) -> Result<(), StoreError> {
        broken()
    }

    async fn remove(&self, _: SessionId) -> Result<(), StoreError> {
        broken()
    }

    async fn page(&self, _: SessionQuery) -> Result<Page<SessionSummary>, StoreError> {
        broken()
    }

    async fn put_key(&self, _: &IndexedKey) -> Result<(), StoreError> {
        broken()
    }

    async fn key(&self, _: Option<SessionId>, _: &str) -> Result<Option<IndexedKey>, StoreError> {
        broken()
    }

    async fn put_checkpoint(&self, _: &str, _: SessionId, _: Seq) -> Result<(), StoreError> {
        broken()
    }

    async fn checkpoint(&self, _: &str, _: SessionId) -> Result<Seq, StoreError> {
        broken()
    }

    async fn forget_reader(&self, _: &str) -> Result<(), StoreError> {
        broken()
    }

    async fn needs_rebuild(&self) -> bool {
        true
    }

    async fn rebuilt(&self) -> Result<(), StoreError> {
        broken()
    }

    async fn committed(&self) -> Result<(), StoreError> {
        broken()
    }

    async fn flush(&self) -> Result<(), StoreError> {
        broken()
    }
}

/// An index that fails stands in the way of lists and of the keys of creations, and of nothing else.
#[tokio::test(start_paused = true)]
async fn a_service_over_a_broken_index_runs_turns() {
    let events: Arc<dyn EventStore> = Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()));
    let former = rig().stored(events.clone(), Arc::new(MemoryIndex::default()));
    let stored = former.create_session(CreateSession::default()).await.unwrap().session_id;
    former.shut_down(0).await;
    let service = rig().stored(events, Arc::new(BrokenIndex));
    service.ready().await.unwrap();
    let made = service.create_session(CreateSession::default()).await.unwrap().session_id;
    for session_id in [stored, made] {
        assert_eq!(service.start_turn(StartTurn::new(session_id, "@say On.")).await.unwrap().text, "On.");
        assert_eq!(service.read(&session_id).await.unwrap().turn_count, 1);
    }
    assert_eq!(service.list(SessionQuery::default()).await.unwrap_err().code(), ErrorCode::StoreFailed);
    let keyed = CreateSession { idempotency_key: Some("k".to_owned()), ..CreateSession::default() };
    assert_eq!(service.create_session(keyed).await.unwrap_err().code(), ErrorCode::StoreFailed);
    service.shut_down(0).await;
}
