//! A store that fails for a moment: what was not begun is done afterwards, and the session goes on.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::FutureExt as _;

use super::{
    Rig, Subject, check_journal,
    fakes::{Does, does},
    faults::{Fault, FaultyEvents, Fuse},
    ticks,
};
use crate::{
    ErrorCode, Session, SessionError,
    agent::registry::MAILBOX_MAX,
    agent::tests::Service,
    ids::SessionId,
    options::Policy,
    service::{CreateSession, InterruptTurn, PinFact, Remind, SessionService as _, SessionState, StartTurn},
    session::{SessionMeta, reminder::SystemReminderType},
    store::{
        EventStore, MemoryEventStore, MemoryIndex, MemorySessionStore, SessionFilter, SessionStore, SessionStoreError,
    },
    tool::{Approval, Effect},
};

/// A session whose store fails like this when it writes, and once when it reads after that.
async fn failing(fault: Fault, writes: Fuse) -> Subject {
    failing_with(Rig::new(Vec::new()), fault, writes).await
}

async fn failing_with(rig: Rig, fault: Fault, writes: Fuse) -> Subject {
    let journals: Arc<dyn EventStore> = Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()));
    let unread = Arc::new(FaultyEvents(journals, Fault::UnreadLines, Fuse::new(0, 1)));
    let events = Arc::new(FaultyEvents(unread, fault, writes));
    Subject::new(rig.stored(events, Arc::new(MemoryIndex::default()))).await
}

/// Broken once: it was called corrupted until the process ended.
#[tokio::test(start_paused = true)]
async fn a_session_that_could_not_be_read_once_after_a_panic_is_healthy() {
    // The creation, the turn's start, and its end, which panics.
    let subject = failing(Fault::Panic, Fuse::new(2, 1)).await;
    subject.turn("@say One.").await.unwrap_err();
    let next = subject.turn("@say Two.").await;
    assert_eq!(next.map(|result| result.text).map_err(|error| error.code()), Ok("Two.".to_owned()));
    check_journal(&subject.events().await);
}

/// The store failed the turn's end and the reload, so no actor has the session. Its journal shows that the turn runs.
#[tokio::test(start_paused = true)]
async fn a_turn_that_the_store_left_open_can_be_interrupted() {
    for (turn, answer) in
        [(None, Ok(3)), (Some(0), Ok(3)), (Some(7), Err(SessionError::NotRunning { turn: Some(7) }.body()))]
    {
        let subject = failing(Fault::Failure, Fuse::new(2, 1)).await;
        let session_id = subject.session_id;
        let interrupt = async |turn| {
            let done = subject.service.interrupt(InterruptTurn { session_id, turn }).await;
            done.map(|changed| changed.seq).map_err(|error| error.body())
        };
        subject.service.accept_turn(StartTurn::new(session_id, "@stall")).await.unwrap();
        assert_eq!(interrupt(None).await.unwrap_err().code, ErrorCode::StoreFailed);
        ticks(100).await;
        assert_eq!(subject.service.read(&session_id).await.unwrap().state, SessionState::Running);
        assert_eq!(interrupt(turn).await, answer, "{turn:?}");
        assert_eq!(subject.service.read(&session_id).await.unwrap().state, SessionState::Idle, "{turn:?}");
        assert_eq!(interrupt(turn).await, Err(SessionError::NotRunning { turn }.body()), "nothing runs any more");
        check_journal(&subject.events().await);
    }
}

/// A turn that waits for a decision goes on when its session is loaded again, until it is interrupted.
#[tokio::test(start_paused = true)]
async fn a_turn_that_waits_can_be_interrupted_after_the_store_failed() {
    let tool = Does { approval: Approval::Ask, ..does("ask", Effect::Once, |_, output| output.write("done").boxed()) };
    // The creation, the turn's start, its call, its question, and the pin.
    let subject = failing_with(Rig::new(vec![Arc::new(tool)]), Fault::Failure, Fuse::new(4, 1)).await;
    let session_id = subject.session_id;
    let turn = StartTurn { attended: true, ..StartTurn::new(session_id, "@call ask {} @say Done.") };
    subject.service.accept_turn(turn).await.unwrap();
    while subject.service.read(&session_id).await.unwrap().state != SessionState::Waiting {
        ticks(10).await;
    }
    subject.service.pin(PinFact { session_id, text: "a fact".to_owned() }).await.unwrap_err();
    ticks(100).await;
    assert_eq!(subject.service.read(&session_id).await.unwrap().state, SessionState::Waiting);
    subject.service.interrupt(InterruptTurn { session_id, turn: Some(0) }).await.unwrap();
    assert_eq!(subject.service.read(&session_id).await.unwrap().state, SessionState::Idle);
    let events = subject.events().await;
    assert_eq!(events.last().unwrap()["reason"], "requested");
    check_journal(&events);
}

/// More requests than a mailbox holds wait for one whose write fails. Nothing was done for them, so the session does it
/// once it is loaded again.
#[tokio::test(start_paused = true)]
async fn requests_that_waited_for_a_failed_one_are_carried_out() {
    const PINS: usize = 2 * MAILBOX_MAX;
    let mut rig = Rig::new(Vec::new());
    rig.options.limits.pins = PINS;
    // The creation, and the first pin.
    let subject = failing_with(rig, Fault::Failure, Fuse::new(1, 1)).await;
    let session_id = subject.session_id;
    let pins = (0..PINS).map(|n| subject.service.pin(PinFact { session_id, text: n.to_string() }));
    let done = futures::future::join_all(pins).await;
    let failed: Vec<ErrorCode> = done.iter().filter_map(|done| done.as_ref().err().map(SessionError::code)).collect();
    assert_eq!(failed, [ErrorCode::StoreFailed], "only of one is unknown what became of it");
    assert_eq!(subject.service.read(&session_id).await.unwrap().pins.len(), PINS - 1);
    check_journal(&subject.events().await);
}

/// A turn whose start is not durable yet is no reason to refuse the request behind it.
#[tokio::test(start_paused = true)]
async fn a_request_behind_a_turn_that_never_began_is_carried_out() {
    let subject = failing(Fault::LostWrite, Fuse::new(1, 1)).await;
    let session_id = subject.session_id;
    let pin = subject.service.pin(PinFact { session_id, text: "a fact".to_owned() });
    let (turn, pinned) = tokio::join!(subject.turn("@say One."), pin);
    assert_eq!(turn.unwrap_err().code(), ErrorCode::StoreFailed);
    assert_eq!(pinned.unwrap().seq, 2);
}

/// A turn that is refused is none: what waits goes on waiting.
#[tokio::test(start_paused = true)]
async fn a_refused_turn_starts_no_held_queue() {
    let events = Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()));
    let service = || Rig::new(Vec::new()).stored(events.clone(), Arc::new(MemoryIndex::default()));
    let former: Service = service();
    let session_id = former.create_session(CreateSession::default()).await.unwrap().session_id;
    let queued = |prompt| StartTurn { policy: Policy::Queue, ..StartTurn::new(session_id, prompt) };
    former.accept_turn(StartTurn::new(session_id, "@stall")).await.unwrap();
    former.accept_turn(queued("@say Queued.")).await.unwrap();
    former.shut_down(0).await;
    let subject = Subject { service: service(), session_id };
    let refused = subject.turn("@say Refused.").await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::SessionBusy);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(subject.service.queue(&session_id).await.unwrap().items.len(), 1);
    // One that is accepted runs behind it.
    assert_eq!(subject.service.start_turn(queued("@say Next.")).await.unwrap().text, "Next.");
    assert_eq!(subject.service.queue(&session_id).await.unwrap().items.len(), 0);
}

/// Its caller repeats the request after a restart.
#[tokio::test(start_paused = true)]
async fn a_turn_of_a_held_queue_that_is_asked_for_again_runs() {
    let events = Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()));
    let service = || Rig::new(Vec::new()).stored(events.clone(), Arc::new(MemoryIndex::default()));
    let former: Service = service();
    let session_id = former.create_session(CreateSession::default()).await.unwrap().session_id;
    former.accept_turn(StartTurn::new(session_id, "@stall")).await.unwrap();
    let idempotency_key = Some("k".to_owned());
    let queued = StartTurn { policy: Policy::Queue, idempotency_key, ..StartTurn::new(session_id, "@say Queued.") };
    former.accept_turn(queued.clone()).await.unwrap();
    former.shut_down(0).await;
    let next = service();
    // Loaded, and nobody has asked for the turn yet.
    next.pin(PinFact { session_id, text: "a fact".to_owned() }).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(next.read(&session_id).await.unwrap().state, SessionState::Queued);
    let result = next.start_turn(queued).await.unwrap();
    assert_eq!((result.turn, result.text.as_str()), (1, "Queued."));
}

/// Never comes to an end of saving.
struct Slow(MemorySessionStore);

#[async_trait]
impl SessionStore for Slow {
    async fn save(&self, _: &Session) -> Result<(), SessionStoreError> {
        std::future::pending().await
    }

    async fn load(&self, id: &SessionId) -> Result<Option<Session>, SessionStoreError> {
        self.0.load(id).await
    }

    async fn list(&self, filter: SessionFilter) -> Result<Vec<SessionMeta>, SessionStoreError> {
        self.0.list(filter).await
    }

    async fn delete(&self, id: &SessionId) -> Result<(), SessionStoreError> {
        self.0.delete(id).await
    }
}

/// Whoever waits for a turn does not wait for the snapshot behind it.
#[tokio::test(start_paused = true)]
async fn a_turn_is_answered_before_its_snapshot_is_saved() {
    let events = Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()));
    let snapshots = Arc::new(Slow(MemorySessionStore::new(events.clone())));
    let service = Rig::new(Vec::new()).stored_with(snapshots, events, Arc::new(MemoryIndex::default()));
    let subject = Subject::new(service).await;
    for n in 0..crate::agent::record::SNAPSHOT_EVENTS_MIN {
        let (session_id, kind) = (subject.session_id, SystemReminderType::ClaudeMd);
        subject.service.remind(Remind { session_id, kind, text: n.to_string() }).await.unwrap();
    }
    let turn = tokio::time::timeout(Duration::from_secs(60), subject.turn("@say One.")).await;
    let text = turn.map(|answer: Result<_, SessionError>| answer.unwrap().text);
    assert_eq!(text, Ok("One.".to_owned()));
}
