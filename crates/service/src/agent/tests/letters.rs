//! Letters between nodes: what is asked of one that another has, is run once, whatever becomes of either.

use tokio::time::timeout;

use super::{
    check_journal,
    nodes::{Node, Way, count, leases_end},
    shared_store::LEASE,
    ticks,
};
use crate::{
    ErrorCode,
    options::Policy,
    output::OutputSpec,
    service::{InterruptTurn, PinFact, SessionService as _, StartTurn, TurnStatus},
    session::message::RawJson,
};

/// A request that reaches a node while it ends is run by the node that has it.
#[tokio::test(start_paused = true)]
async fn a_letter_to_a_node_that_ends_in_order_is_run_by_its_sender() {
    let [a, b] = Node::pair(Way::Inbox).await;
    let session_id = a.creates().await;
    drop(a.begins(session_id).await);
    let asked = b.service.clone();
    let pin = tokio::spawn(async move { asked.pin(PinFact { session_id, text: "a fact".to_owned() }).await });
    ticks(60).await;
    assert!(a.store.has_letters());
    a.service.shut_down(0).await;
    let pinned = timeout(LEASE / 2, pin).await.expect("an answer").unwrap().unwrap();
    assert_eq!(b.service.pins(&session_id).await.unwrap().items[0].seq, pinned.seq);
    assert_eq!(a.store.given(session_id), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_request_is_handed_to_the_node_that_has_the_session() {
    let [a, b] = Node::pair(Way::Inbox).await;
    let session_id = a.creates().await;
    let turn = a.begins(session_id).await;
    let queued = StartTurn { policy: Policy::Queue, ..StartTurn::new(session_id, "Then this.") };
    let handle = b.service.begin_turn(queued).await.unwrap();
    assert_eq!(handle.accepted.turn, 1);
    let pinned = b.service.pin(PinFact { session_id, text: "a fact".to_owned() }).await.unwrap();
    assert_eq!(a.service.pins(&session_id).await.unwrap().items[0].seq, pinned.seq);
    // Interrupted from the other node; the queued turn runs then.
    b.service.interrupt(InterruptTurn { session_id, turn: Some(0) }).await.unwrap();
    assert_eq!(turn.await.unwrap().unwrap().status, TurnStatus::Interrupted);
    a.answers();
    assert_eq!(handle.result.await.unwrap().text, "a");
    assert_eq!(a.store.given(session_id), ["a"], "it never moved");
    check_journal(&a.history(session_id).await);
}

/// A schema is decoded on its way to another node, and the request stays the same.
#[tokio::test(start_paused = true)]
async fn a_turn_with_a_schema_has_one_key_at_both_nodes() {
    let [a, b] = Node::pair(Way::Inbox).await;
    let session_id = a.creates().await;
    let turn = a.begins(session_id).await;
    let schema = r#"{"type":"object","title":"\u00fcber","properties":{"n":{"maximum":1e2,"minimum":1.0}}}"#;
    let output = Some(OutputSpec { repairs: 0, ..OutputSpec::new(RawJson::parse(schema).unwrap()) });
    let idempotency_key = Some("k".to_owned());
    let queued = StartTurn { policy: Policy::Queue, output, idempotency_key, ..StartTurn::new(session_id, "Then.") };
    let by_b = b.service.begin_turn(queued.clone()).await.unwrap();
    let by_a = a.service.begin_turn(queued).await.unwrap();
    assert_eq!(by_b.accepted, by_a.accepted);
    a.answers();
    turn.await.unwrap().unwrap();
    a.answers();
    assert_eq!(by_b.result.await.unwrap().error.unwrap().code, ErrorCode::OutputInvalid);
}

#[tokio::test(start_paused = true)]
async fn a_letter_is_run_once_and_answered_although_the_store_fails_meanwhile() {
    let [a, b] = Node::pair(Way::Inbox).await;
    let session_id = a.creates().await;
    drop(a.begins(session_id).await);
    a.store.fails_at_letters();
    let pin = b.service.pin(PinFact { session_id, text: "a fact".to_owned() });
    let pinned = timeout(LEASE, pin).await.unwrap().unwrap();
    assert_eq!(b.service.pins(&session_id).await.unwrap().items[0].seq, pinned.seq);
    assert_eq!(count(&a.history(session_id).await, "pinned"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_letter_at_which_its_node_panics_is_answered() {
    let [a, b] = Node::pair(Way::Inbox).await;
    let session_id = a.creates().await;
    drop(a.begins(session_id).await);
    a.store.panics_at_asking();
    let pin = || b.service.pin(PinFact { session_id, text: "a fact".to_owned() });
    let failed = timeout(LEASE, pin()).await.expect("an answer").unwrap_err();
    assert_eq!(failed.code(), ErrorCode::Internal);
    pin().await.unwrap();
    assert_eq!(count(&a.history(session_id).await, "pinned"), 1);
}

/// The letter lies there when its node ends: it is run where it was written, once the lease has ended.
#[tokio::test(start_paused = true)]
async fn a_letter_that_nobody_took_is_run_by_its_sender() {
    let [a, b] = Node::pair(Way::Inbox).await;
    let session_id = a.creates().await;
    drop(a.begins(session_id).await);
    a.store.stop();
    a.store.takes_nothing();
    let pinned = b.service.pin(PinFact { session_id, text: "a fact".to_owned() }).await.unwrap();
    assert_eq!(b.service.pins(&session_id).await.unwrap().items[0].seq, pinned.seq);
    assert_eq!(a.store.given(session_id), ["a", "b"]);
    let events = b.history(session_id).await;
    check_journal(&events);
    assert_eq!((count(&events, "turn_interrupted"), count(&events, "pinned")), (1, 1));
}

/// Its node ran the request and ended before it answered: nothing is done twice, and only a request with a key can say
/// what was done.
#[tokio::test(start_paused = true)]
async fn a_letter_whose_answer_was_lost_is_not_run_twice() {
    let [a, b] = Node::pair(Way::Inbox).await;
    let session_id = a.creates().await;
    drop(a.begins(session_id).await);
    a.store.loses_answers();
    let asked = b.service.clone();
    let keyed = StartTurn {
        policy: Policy::Queue,
        idempotency_key: Some("k".to_owned()),
        ..StartTurn::new(session_id, "Then this.")
    };
    let keyed = tokio::spawn(async move { asked.accept_turn(keyed).await });
    let asked = b.service.clone();
    let pin = tokio::spawn(async move { asked.pin(PinFact { session_id, text: "a fact".to_owned() }).await });
    ticks(200).await;
    assert!(!pin.is_finished() && !keyed.is_finished());
    a.store.stop();
    leases_end().await;
    assert_eq!(pin.await.unwrap().unwrap_err().code(), ErrorCode::StoreFailed);
    assert_eq!(keyed.await.unwrap().unwrap().turn, 1);
    b.answers();
    ticks(200).await;
    let events = b.history(session_id).await;
    check_journal(&events);
    assert_eq!((count(&events, "pinned"), count(&events, "turn_queued")), (1, 1), "{events:#?}");
}
