//! Several nodes over one store: a session has one owner at a time, its work ends once, and a node that was stopped for
//! too long records nothing and takes nothing back.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use futures::{FutureExt as _, StreamExt as _, stream};
use serde_json::Value;
use tokio::{sync::Semaphore, time::timeout};

use super::{
    Rig, Subject, check_journal,
    fakes::{self, Heard, calls, does, says},
    shared_store::{LEASE, NodeStore},
    ticks,
};
use crate::{
    ErrorCode, SessionError,
    agent::tests::Service,
    clock::{Clock as _, SystemClock},
    ids::SessionId,
    model::{
        AnswerBlock, ModelAnswer, ModelClient, ModelError, ModelPart, ModelRequest, ModelStream, StaticModels,
        StopReason, Usage,
    },
    options::Policy,
    service::{
        AcknowledgeReader, CompactJournal, CompactionSkipped, CreateSession, FetchReader, ForkSession, InterruptTurn,
        JournalCompactionReport, NamedReader, PinFact, Remind, SessionQuery, SessionService, SessionState, StartTurn,
        TurnResult, TurnStatus, Unpin,
    },
    session::event::Event,
    store::{EventStore as _, Inbox, MemoryIndex, MemoryReaders, SessionIndex, StoreError},
    tool::Effect,
};

/// A model that begins to answer with its node's name, and ends each time it is let.
struct Gated(&'static str, Arc<Semaphore>);

#[async_trait]
impl ModelClient for Gated {
    fn vendor(&self) -> &str {
        "gated"
    }

    async fn stream_response(&self, _: ModelRequest) -> Result<ModelStream, ModelError> {
        let (name, gate) = (self.0.to_owned(), self.1.clone());
        let begun = stream::iter([Ok(ModelPart::Text(name.clone()))]);
        let ended = stream::once(async move {
            gate.acquire().await.unwrap().forget();
            let blocks = vec![AnswerBlock::Text(name)];
            let answer = ModelAnswer { blocks, stop_reason: StopReason::EndTurn, usage: Usage::default() };
            Ok(ModelPart::End(answer))
        });
        Ok(begun.chain(ended).boxed())
    }
}

/// Way from one node to the other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    None,
    Inbox,
}

pub(super) struct Node {
    pub(super) store: Arc<NodeStore>,
    model: Arc<Gated>,
    pub(super) service: Service,
}

impl Node {
    /// Two nodes over one store, with this way from one to the other.
    pub(super) async fn pair(way: Way) -> [Self; 2] {
        let readers = Arc::<MemoryReaders>::default();
        let index: Arc<dyn SessionIndex> = Arc::new(MemoryIndex::default());
        let [a, b] = NodeStore::of(["a", "b"]);
        let start = async |store: Arc<NodeStore>| {
            let name = if store.node() == Some("a") { "a" } else { "b" };
            let model = Arc::new(Gated(name, Semaphore::new(0).into()));
            let mut rig = Rig::new(Vec::new());
            rig.models = Arc::new(StaticModels::new("gated", model.clone(), 100_000));
            rig.readers = Some(readers.clone());
            rig.inbox = (way == Way::Inbox).then(|| store.clone() as Arc<dyn Inbox>);
            let service = rig.stored(store.clone(), index.clone());
            service.ready().await.unwrap();
            Self { store, model, service }
        };
        [start(a).await, start(b).await]
    }

    pub(super) fn answers(&self) {
        self.model.1.add_permits(1);
    }

    pub(super) async fn creates(&self) -> SessionId {
        self.service.create_session(CreateSession::default()).await.unwrap().session_id
    }

    /// Begins a turn, and waits until its model is asked.
    pub(super) async fn begins(
        &self,
        session_id: SessionId,
    ) -> tokio::task::JoinHandle<Result<TurnResult, SessionError>> {
        let service = self.service.clone();
        let turn = tokio::spawn(async move { service.start_turn(StartTurn::new(session_id, "Go.")).await });
        ticks(60).await;
        assert_eq!(self.service.read(&session_id).await.unwrap().state, SessionState::Running);
        turn
    }

    pub(super) async fn history(&self, session_id: SessionId) -> Vec<Value> {
        let subject = Subject { service: Service::clone(&self.service), session_id };
        subject.events().await
    }
}

pub(super) fn count(events: &[Value], kind: &str) -> usize {
    events.iter().filter(|event| event["type"] == kind).count()
}

/// Lets the leases of stopped nodes end, and the others look.
pub(super) async fn leases_end() {
    SystemClock::new().sleep(LEASE * 2).await;
    ticks(100).await;
}

#[tokio::test(start_paused = true)]
async fn a_stopped_owner_that_goes_on_records_nothing_and_takes_nothing_back() {
    let [a, b] = Node::pair(Way::None).await;
    let session_id = a.creates().await;
    let waiting = a.begins(session_id).await;
    a.store.stop();
    leases_end().await;
    let taken = b.history(session_id).await;
    check_journal(&taken);
    assert_eq!(count(&taken, "turn_interrupted"), 1, "the new owner ends the turn: {taken:#?}");

    // While the new owner works, the old one goes on: its model answers, and that is recorded nowhere.
    let second = b.begins(session_id).await;
    let before = b.history(session_id).await;
    a.store.go_on();
    a.answers();
    let end = waiting.await.unwrap().unwrap();
    assert_eq!((end.turn, end.status), (0, TurnStatus::Interrupted), "the caller learns how its turn ended");
    ticks(100).await;
    assert_eq!(b.history(session_id).await, before);
    assert_eq!(a.store.given(session_id), ["a", "b"]);

    let refused = a.service.start_turn(StartTurn::new(session_id, "Mine.")).await.unwrap_err();
    let body = refused.body();
    assert_eq!((body.code, &body.details["node"]), (ErrorCode::SessionBusy, &"b".into()), "{refused}");
    let pin = a.service.pin(PinFact { session_id, text: "a fact".to_owned() }).await.unwrap_err();
    assert_eq!(pin.code(), ErrorCode::SessionBusy);
    let interrupt = a.service.interrupt(InterruptTurn { session_id, turn: None }).await.unwrap_err();
    assert_eq!(interrupt.body().details["node"], "b");
    assert_eq!(a.store.given(session_id), ["a", "b"]);

    b.answers();
    let done = second.await.unwrap().unwrap();
    assert_eq!((done.turn, done.text.as_str()), (1, "b"));
    // The session has nothing to do: it moves to the node that is asked.
    let third = a.begins(session_id).await;
    a.answers();
    assert_eq!(third.await.unwrap().unwrap().text, "a");
    assert_eq!(a.store.given(session_id), ["a", "b", "a"]);
    let events = a.history(session_id).await;
    check_journal(&events);
    assert_eq!((count(&events, "turn_interrupted"), count(&events, "turn_completed")), (1, 2));
}

/// The machine of a node sleeps between a call's intent and the call.
#[tokio::test(start_paused = true)]
async fn a_call_is_not_made_by_a_node_whose_turn_another_one_has_ended() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let nodes = NodeStore::of(["a", "b"]);
    let index: Arc<dyn SessionIndex> = Arc::new(MemoryIndex::default());
    let [a, b] = nodes.each_ref().map(|store| {
        let work = does("work", Effect::Once, |_, _| {
            CALLS.fetch_add(1, Ordering::Relaxed);
            std::future::ready(Ok(())).boxed()
        });
        let model = Heard::new([calls([("work", "{}")]), says("Done.")]);
        Arc::new(fakes::rig(model, 100_000, Arc::new(work)).stored(store.clone(), index.clone()))
    });
    b.ready().await.unwrap();
    let session_id = a.create_session(CreateSession::default()).await.unwrap().session_id;
    let wakes = nodes[0].sleeps_after_next(|event| matches!(event, Event::ToolStarted(_)));
    let service = a.clone();
    let turn = tokio::spawn(async move { service.start_turn(StartTurn::new(session_id, "Go.")).await });
    ticks(100).await;
    nodes[0].stop();
    leases_end().await;
    wakes.notify_one();
    assert_eq!(turn.await.unwrap().unwrap().status, TurnStatus::Interrupted);
    ticks(100).await;
    assert_eq!(CALLS.load(Ordering::Relaxed), 0);
    let events = Subject { service: Service::clone(&b), session_id }.events().await;
    check_journal(&events);
    let finished = events.iter().find(|event| event["type"] == "tool_finished").unwrap();
    assert_eq!(finished["outcome"], "unknown", "{finished}");
}

/// The caller waits at the old owner while the new one runs the turn to its end.
#[tokio::test(start_paused = true)]
async fn a_caller_gets_the_answer_of_a_queued_turn_from_the_new_owner() {
    let [a, b] = Node::pair(Way::None).await;
    let session_id = a.creates().await;
    let running = a.begins(session_id).await;
    let queued = StartTurn { policy: Policy::Queue, ..StartTurn::new(session_id, "Then this.") };
    let service = a.service.clone();
    let queued = tokio::spawn(async move { service.start_turn(queued).await });
    ticks(60).await;
    a.store.stop();
    leases_end().await;
    a.store.go_on();
    a.answers();
    assert_eq!(running.await.unwrap().unwrap().status, TurnStatus::Interrupted);
    // Nobody asks the new owner for the session: who waits for its queue is here.
    b.answers();
    let queued = timeout(LEASE * 9, queued).await.unwrap().unwrap().unwrap();
    assert_eq!((queued.turn, queued.text.as_str()), (1, "b"));
    check_journal(&b.history(session_id).await);
}

/// The other node records in the place of records that went lost: as many, more or fewer.
#[tokio::test(start_paused = true)]
async fn a_lost_turn_is_not_taken_for_what_another_node_recorded_in_its_place() {
    for pins in [0, 1, 3] {
        let [a, b] = Node::pair(Way::None).await;
        let session_id = a.creates().await;
        let keyed =
            |key: &str| StartTurn { idempotency_key: Some(key.to_owned()), ..StartTurn::new(session_id, "Go.") };
        a.store.loses_next();
        let (service, mine) = (a.service.clone(), keyed("mine"));
        let lost = tokio::spawn(async move { service.start_turn(mine).await });
        ticks(60).await;
        let others = match pins {
            0 => {
                b.answers();
                b.service.start_turn(keyed("another's")).await.unwrap();
                1
            }
            _ => {
                for _ in 0..pins {
                    b.service.pin(PinFact { session_id, text: "a fact".to_owned() }).await.unwrap();
                }
                0
            }
        };
        a.store.tells_of_the_lost();
        assert_eq!(lost.await.unwrap().unwrap_err().code(), ErrorCode::StoreFailed);
        // One for the lost turn's call, if it was made.
        a.model.1.add_permits(2);
        let again = a.service.start_turn(keyed("mine")).await.unwrap();
        assert_eq!((again.turn, again.text.as_str()), (others, "a"));
        let events = a.history(session_id).await;
        check_journal(&events);
        assert_eq!((count(&events, "pinned"), count(&events, "turn_started")), (pins, others as usize + 1));
        assert_eq!(a.service.pins(&session_id).await.unwrap().items.len(), pins);
    }
}

/// Nor is it shown meanwhile.
#[tokio::test(start_paused = true)]
async fn a_lost_pin_is_not_shown_for_what_another_node_recorded_in_its_place() {
    let [a, b] = Node::pair(Way::None).await;
    let session_id = a.creates().await;
    let pin = |text: &str| PinFact { session_id, text: text.to_owned() };
    a.store.loses_next();
    let (service, mine) = (a.service.clone(), pin("mine"));
    let lost = tokio::spawn(async move { service.pin(mine).await });
    ticks(60).await;
    b.service.pin(pin("another's")).await.unwrap();
    let shown = async || {
        let pins = a.service.pins(&session_id).await.unwrap().items;
        pins.into_iter().map(|pin| pin.text).collect::<Vec<_>>()
    };
    // A list publishes what is durable, and a read forgets older views.
    a.service.list(SessionQuery::default()).await.unwrap();
    assert_eq!((shown().await, shown().await), (vec!["another's".to_owned()], vec!["another's".to_owned()]));
    a.store.tells_of_the_lost();
    assert_eq!(lost.await.unwrap().unwrap_err().code(), ErrorCode::StoreFailed);
}

/// The new owner ends the open turn, and the store does not confirm it.
#[tokio::test(start_paused = true)]
async fn a_session_is_loaded_although_the_end_of_its_turn_was_in_doubt() {
    let [a, b] = Node::pair(Way::None).await;
    let session_id = a.creates().await;
    drop(a.begins(session_id).await);
    a.store.stop();
    b.store.doubts_next();
    leases_end().await;
    let pin = b.service.pin(PinFact { session_id, text: "a fact".to_owned() });
    timeout(LEASE, pin).await.unwrap().unwrap();
    let events = b.history(session_id).await;
    check_journal(&events);
    assert_eq!((count(&events, "turn_interrupted"), count(&events, "pinned")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_fork_beside_which_records_were_dropped_is_made_again() {
    let [a, _b] = Node::pair(Way::None).await;
    let session_id = a.creates().await;
    a.store.drops_beside_a_fork();
    let child = a.service.fork(ForkSession { session_id, turn: None }).await.unwrap().session_id;
    let mut made = a.store.sessions(None, 9).await.unwrap();
    made.sort();
    assert_eq!(made, [session_id, child], "there is no other one");
    check_journal(&a.history(child).await);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_a_fork_beside_which_records_were_dropped_and_the_store_failed() {
    let [a, _b] = Node::pair(Way::None).await;
    let session_id = a.creates().await;
    a.store.fails_beside_a_fork();
    let failed = a.service.fork(ForkSession { session_id, turn: None }).await.unwrap_err();
    assert_eq!(failed.code(), ErrorCode::StoreFailed);
    assert_eq!(a.store.sessions(None, 9).await.unwrap(), [session_id]);
}

/// The owner learns that it has lost its lease, and panics before it has left.
#[tokio::test(start_paused = true)]
async fn an_owner_that_panics_after_it_lost_its_lease_gives_way_all_the_same() {
    let [a, b] = Node::pair(Way::None).await;
    let session_id = a.creates().await;
    let turn = a.begins(session_id).await;
    a.store.fences_next(1, |event| matches!(event, Event::Pinned(_)));
    a.store.panics_at_next(|event| matches!(event, Event::PartialText(_)));
    let pin = a.service.pin(PinFact { session_id, text: "a fact".to_owned() });
    timeout(LEASE, pin).await.unwrap().unwrap();
    let ended = timeout(LEASE, turn).await.unwrap().unwrap().unwrap();
    assert_eq!(ended.status, TurnStatus::Interrupted, "its end is the next owner's word");
    let events = b.history(session_id).await;
    check_journal(&events);
    assert_eq!(count(&events, "pinned"), 1);
}

/// The new owner loses its lease in the moment in which it is put into memory.
#[tokio::test(start_paused = true)]
async fn a_caller_is_not_handed_an_actor_that_has_left() {
    let [a, b] = Node::pair(Way::None).await;
    let session_id = a.creates().await;
    drop(a.begins(session_id).await);
    let queued = StartTurn { policy: Policy::Queue, ..StartTurn::new(session_id, "Then this.") };
    a.service.accept_turn(queued).await.unwrap();
    a.store.ends();
    b.store.fences_next(1, |event| matches!(event, Event::TurnStarted(_)));
    let pinned = b.service.pin(PinFact { session_id, text: "a fact".to_owned() }).await;
    assert!(pinned.is_ok(), "{pinned:?}");
    assert_eq!(b.store.given(session_id), ["a", "b", "b"]);
}

/// Each time before this node stores the first record of the turn, another one takes the idle session.
#[tokio::test(start_paused = true)]
async fn a_turn_begins_although_the_session_changes_hands_meanwhile() {
    let [a, _] = Node::pair(Way::None).await;
    let session_id = a.creates().await;
    a.store.fences_next(6, |event| matches!(event, Event::TurnStarted(_)));
    a.answers();
    let turn = timeout(LEASE, a.service.start_turn(StartTurn::new(session_id, "Go."))).await.unwrap().unwrap();
    assert_eq!(turn.status, TurnStatus::Completed);
    assert_eq!(count(&a.history(session_id).await, "turn_started"), 1);
    // If that never ends, the caller learns it.
    a.store.fences_next(u32::MAX, |event| matches!(event, Event::TurnStarted(_)));
    let refused = timeout(LEASE, a.service.start_turn(StartTurn::new(session_id, "Go."))).await.unwrap().unwrap_err();
    assert_eq!(refused.code(), ErrorCode::SessionBusy, "{refused:?}");
    a.store.fences_next(0, |_| false);
    a.answers();
    a.service.start_turn(StartTurn::new(session_id, "Go.")).await.unwrap();
}

/// The store grants a lease, for the first time or again after a failure, and another node has the session before this
/// one goes on.
#[tokio::test(start_paused = true)]
async fn a_session_that_another_node_changed_while_it_was_loaded_is_loaded_again() {
    for is_again in [false, true] {
        let [a, b] = Node::pair(Way::None).await;
        let session_id = b.creates().await;
        let pin = |text: &str| PinFact { session_id, text: text.to_owned() };
        if is_again {
            a.store.loses_next();
            let service = a.service.clone();
            drop(tokio::spawn(async move { service.start_turn(StartTurn::new(session_id, "Go.")).await }));
            ticks(60).await;
        }
        let known = a.store.learns_late_of_its_lease();
        if is_again {
            a.store.tells_of_the_lost();
            ticks(60).await;
        }
        let (service, first) = (a.service.clone(), pin("one"));
        let first = tokio::spawn(async move { service.pin(first).await });
        ticks(60).await;
        a.store.ends();
        b.service.pin(pin("two")).await.unwrap();
        a.store.go_on();
        known.notify_one();
        let pinned = first.await.unwrap();
        assert!(pinned.is_ok(), "again: {is_again}: {pinned:?}");
        let events = a.history(session_id).await;
        check_journal(&events);
        assert_eq!(count(&events, "pinned"), 2);
    }
}

/// Its caller may wait at another node, which asks nobody again: neither a restart nor the start of another node holds it.
/// A program that does not stay begins none that it would cut off.
#[tokio::test(start_paused = true)]
async fn a_queued_turn_runs_at_the_first_node_that_loads_its_session_and_stays() {
    for (next, stays) in [("a", true), ("c", true), ("c", false)] {
        let [a, b, c] = NodeStore::of(["a", "b", "c"]);
        let index: Arc<dyn SessionIndex> = Arc::new(MemoryIndex::default());
        let model = Arc::new(Gated("x", Semaphore::new(0).into()));
        let start = async |store: &Arc<NodeStore>, stays| {
            let mut rig = Rig::new(Vec::new());
            rig.options.store.turns_go_on = stays;
            rig.models = Arc::new(StaticModels::new("gated", model.clone(), 100_000));
            rig.inbox = Some(store.clone() as Arc<dyn Inbox>);
            let service = rig.stored(store.clone(), index.clone());
            service.ready().await.unwrap();
            service
        };
        let (former, other) = (start(&a, true).await, start(&b, true).await);
        let session_id = former.create_session(CreateSession::default()).await.unwrap().session_id;
        former.accept_turn(StartTurn::new(session_id, "Go.")).await.unwrap();
        let queued = StartTurn { policy: Policy::Queue, ..StartTurn::new(session_id, "Then this.") };
        let waiting = tokio::spawn(other.begin_turn(queued).await.unwrap().result);
        ticks(60).await;
        drop(former);
        ticks(60).await;
        if next == "c" {
            // The start is before the other node's next look.
            a.ends();
        }
        let started = start(if next == "a" { &a } else { &c }, stays).await;
        assert_eq!(a.given(session_id), ["a", next]);
        if !stays {
            started.shut_down(0).await;
            c.ends();
        }
        // One for the former process's call, if it still waits.
        model.1.add_permits(2);
        let result = timeout(LEASE * 9, waiting).await.expect(next).unwrap().unwrap();
        assert_eq!((result.turn, result.status, result.text.as_str()), (1, TurnStatus::Completed, "x"));
        let owners: &[&str] = if stays { &["a", next] } else { &["a", next, "b"] };
        assert_eq!(a.given(session_id), owners);
    }
}

#[tokio::test(start_paused = true)]
async fn open_turns_of_an_ended_node_are_interrupted_once() {
    let [a, b] = Node::pair(Way::None).await;
    let mut sessions = Vec::new();
    for _ in 0..5 {
        let session_id = a.creates().await;
        drop(a.begins(session_id).await);
        sessions.push(session_id);
    }
    let idle = a.creates().await;
    let Node { store, service, model } = a;
    store.stop();
    drop((service, model));
    // Before the leases end nobody touches them.
    ticks(100).await;
    for session_id in &sessions {
        assert_eq!(store.given(*session_id), ["a"]);
    }
    leases_end().await;
    leases_end().await;
    for session_id in &sessions {
        let events = b.history(*session_id).await;
        check_journal(&events);
        assert_eq!(count(&events, "turn_interrupted"), 1);
        assert_eq!(store.given(*session_id), ["a", "b"], "it is taken over once");
        assert_eq!(b.service.read(session_id).await.unwrap().state, SessionState::Idle);
    }
    assert_eq!(store.given(idle), ["a"], "a session with nothing to do is left alone");
}

/// Whatever fails for a moment when a session is taken over, its callers do not wait a minute for the next attempt.
#[tokio::test(start_paused = true)]
async fn a_session_that_could_not_be_taken_over_at_once_is_tried_again_soon() {
    let [a, b] = Node::pair(Way::None).await;
    let session_id = a.creates().await;
    drop(a.begins(session_id).await);
    let Node { store, service, model } = a;
    store.fails_leasing_to(&b.store, 3, StoreError::Failed("the store is away".to_owned()));
    store.ends();
    drop((service, model));
    leases_end().await;
    assert_eq!(store.given(session_id), ["a", "b"]);
    assert_eq!(b.service.read(&session_id).await.unwrap().state, SessionState::Idle);
}

/// Its caller waits at another node, and nobody asks for the session again. The other node does not wait for the lease.
#[tokio::test(start_paused = true)]
async fn a_turn_that_waits_where_its_node_ends_in_order_runs_elsewhere() {
    let [a, b] = Node::pair(Way::Inbox).await;
    let session_id = a.creates().await;
    let running = a.begins(session_id).await;
    let queued = StartTurn { policy: Policy::Queue, ..StartTurn::new(session_id, "Then this.") };
    let waiting = tokio::spawn(b.service.begin_turn(queued).await.unwrap().result);
    ticks(60).await;
    a.service.shut_down(0).await;
    assert_eq!(running.await.unwrap().unwrap().status, TurnStatus::Interrupted);
    b.answers();
    let result = timeout(LEASE / 2, waiting).await.expect("it runs").unwrap().unwrap();
    assert_eq!((result.turn, result.text.as_str()), (1, "b"));
    check_journal(&b.history(session_id).await);
}

/// Nobody else could run its turn: its journal is damaged.
#[tokio::test(start_paused = true)]
async fn who_waits_for_a_turn_that_no_node_can_load_is_told() {
    let [a, b] = Node::pair(Way::Inbox).await;
    let session_id = a.creates().await;
    drop(a.begins(session_id).await);
    let queued = StartTurn { policy: Policy::Queue, ..StartTurn::new(session_id, "Then this.") };
    let waiting = tokio::spawn(b.service.begin_turn(queued).await.unwrap().result);
    ticks(60).await;
    let Node { store, service, model } = a;
    let damage = StoreError::Corrupted { session_id, last_good_seq: 2, why: "a test".to_owned() };
    store.fails_leasing_to(&b.store, u32::MAX, damage);
    store.ends();
    drop((service, model));
    let error = timeout(LEASE * 2, waiting).await.expect("an answer").unwrap().unwrap_err();
    assert_eq!(error.code(), ErrorCode::SessionCorrupted);
}

/// A new process of a node settles what the former one left, and nothing that another node has.
#[tokio::test(start_paused = true)]
async fn a_start_settles_only_what_is_its_own_or_expired() {
    let [a, b] = NodeStore::of(["a", "b"]);
    let index: Arc<dyn SessionIndex> = Arc::new(MemoryIndex::default());
    let start = |store: &Arc<NodeStore>| {
        let mut rig = Rig::new(Vec::new());
        let model = Arc::new(Gated("x", Semaphore::new(0).into()));
        rig.models = Arc::new(StaticModels::new("gated", model, 100_000));
        rig.stored(store.clone(), index.clone())
    };
    let (former, other) = (start(&a), start(&b));
    let mut sessions = Vec::new();
    for service in [&former, &other] {
        let session_id = service.create_session(CreateSession::default()).await.unwrap().session_id;
        service.accept_turn(StartTurn::new(session_id, "Go.")).await.unwrap();
        sessions.push(session_id);
    }
    drop(former);
    ticks(100).await;
    let next = start(&a);
    next.ready().await.unwrap();
    let state = async |session_id| next.read(&session_id).await.unwrap().state;
    assert_eq!((state(sessions[0]).await, state(sessions[1]).await), (SessionState::Idle, SessionState::Running));
    assert_eq!((a.given(sessions[0]), a.given(sessions[1])), (vec!["a", "a"], vec!["b"]));
    drop(other);
}

/// A node whose idle session moved away serves it as it is, and not as it knew it.
#[tokio::test(start_paused = true)]
async fn a_session_that_moved_away_is_read_and_changed_as_it_is_by_now() {
    let [a, b] = Node::pair(Way::Inbox).await;
    let session_id = a.creates().await;
    let pin = |text: &str| PinFact { session_id, text: text.to_owned() };
    a.service.pin(pin("one")).await.unwrap();
    let second = b.service.pin(pin("two")).await.unwrap().seq;
    assert_eq!(a.service.pins(&session_id).await.unwrap().items.len(), 2);
    let unpinned = a.service.unpin(Unpin { session_id, pin: second }).await;
    assert!(unpinned.is_ok(), "a refusal by the state of the past: {unpinned:?}");
    assert_eq!(a.store.given(session_id), ["a", "b", "a"]);
}

/// Registered, read and deleted at any node; until it is done with records, no node drops them.
#[tokio::test(start_paused = true)]
async fn a_reader_of_one_node_is_a_reader_of_all() {
    let [a, b] = Node::pair(Way::Inbox).await;
    let session_id = a.creates().await;
    a.service.pin(PinFact { session_id, text: "a fact".to_owned() }).await.unwrap();
    let watermark = async || {
        let request = CompactJournal { dry_run: true, ..CompactJournal::new(session_id) };
        let report = a.service.compact_journal(request).await.unwrap();
        (report.safe_up_to, report.skipped)
    };
    assert_eq!(watermark().await, (0, Some(CompactionSkipped::NoReader)));
    let reader = || NamedReader { reader: "r".to_owned() };
    b.service.create_reader(reader()).await.unwrap();
    assert_eq!(watermark().await, (0, Some(CompactionSkipped::NoPruner)), "it has read nothing");
    let page = async |node: &Node| {
        let request = FetchReader { reader: "r".to_owned(), limit: None, wait_ms: 0 };
        let page = node.service.fetch_reader(request).await.unwrap();
        page.items.into_iter().map(|item| item.seq).collect::<Vec<_>>()
    };
    assert_eq!((page(&a).await, page(&b).await), (vec![1, 2], vec![1, 2]));
    let done = AcknowledgeReader { reader: "r".to_owned(), session_id, seq: 1 };
    b.service.acknowledge_reader(done).await.unwrap();
    assert_eq!((page(&a).await, watermark().await.0), (vec![2], 1));
    assert_eq!(a.service.list_readers().await.unwrap().items[0].records_behind, 1);
    a.service.delete_reader(reader()).await.unwrap();
    assert!(b.service.list_readers().await.unwrap().items.is_empty());
    assert_eq!(watermark().await, (0, Some(CompactionSkipped::NoReader)));
}

/// These stores have no pruner.
#[tokio::test(start_paused = true)]
async fn without_a_pruner_nothing_of_a_journal_is_dropped() {
    let [a, _] = Node::pair(Way::None).await;
    let session_id = a.creates().await;
    for text in ["It rains.", "It pours."] {
        let kind = "git_status".parse().unwrap();
        a.service.remind(Remind { session_id, kind, text: text.to_owned() }).await.unwrap();
    }
    let reader = "r".to_owned();
    a.service.create_reader(NamedReader { reader: reader.clone() }).await.unwrap();
    a.service.acknowledge_reader(AcknowledgeReader { reader, session_id, seq: 3 }).await.unwrap();
    let before = a.history(session_id).await;
    let request = CompactJournal { min_record_age_ms: Some(0), ..CompactJournal::new(session_id) };
    let report = a.service.compact_journal(request).await.unwrap();
    let skipped = Some(CompactionSkipped::NoPruner);
    assert_eq!(report, JournalCompactionReport { scanned: 0, dropped: 0, kept: 0, safe_up_to: 3, skipped });
    assert_eq!(a.history(session_id).await, before);
}

#[tokio::test(start_paused = true)]
async fn one_session_is_created_per_key_whichever_nodes_are_asked() {
    let [a, b] = Node::pair(Way::None).await;
    let keyed = |title: &str| CreateSession {
        idempotency_key: Some("k".to_owned()),
        title: Some(title.to_owned()),
        ..CreateSession::default()
    };
    let (one, other) = tokio::join!(a.service.create_session(keyed("x")), b.service.create_session(keyed("x")));
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_eq!((one.session_id, one.created_at), (other.session_id, other.created_at));
    assert_eq!(a.store.sessions(None, 9).await.unwrap().len(), 1);
    let refused = b.service.create_session(keyed("y")).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::IdempotencyConflict);
}

/// Durable events are seen at every node.
#[tokio::test(start_paused = true)]
async fn a_follower_at_another_node_sees_the_durable_events() {
    let [a, b] = Node::pair(Way::None).await;
    let session_id = a.creates().await;
    let mut follower = b.service.follow(&session_id, 1).await.unwrap();
    let turn = a.begins(session_id).await;
    a.answers();
    turn.await.unwrap().unwrap();
    let mut seen = Vec::new();
    while let Some(Ok(Some(line))) = follower.next().now_or_never() {
        seen.extend(line.seq);
    }
    let last = a.history(session_id).await.len() as u64;
    assert_eq!(seen, (2..=last).collect::<Vec<_>>());
    assert_eq!(b.store.given(session_id), ["a"]);
}
