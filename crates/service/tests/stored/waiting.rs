//! Turns that wait for approval while their process ends: they go on in the next one, and the call runs once.

use meerkat_service::{
    ErrorCode,
    options::Unattended,
    service::{DecideApproval, InterruptTurn, SessionState, StartTurn, TurnStatus},
    session::event::Decision,
};
use serde_json::Value;

use super::{Place, Process};
use meerkat_service::SessionId;

const PROMPT: &str = r#"@call test_ask {"name":"log","line":"asked"} @say Done."#;

/// The keyed request of a turn whose call asks.
fn asking(session_id: SessionId) -> StartTurn {
    StartTurn { idempotency_key: Some("k".to_owned()), ..StartTurn::new(session_id, PROMPT) }
}

/// Leaves a turn that waits in a process that is killed, or shuts down.
fn left_waiting(place: &Place, is_clean: bool) -> SessionId {
    let (session_id, turn) = place.process(is_clean, |process| async move {
        let session_id = process.create().await;
        let turn = process.service.begin_turn(asking(session_id)).await.unwrap();
        process.until(session_id, "approval_requested").await;
        (session_id, turn)
    });
    if is_clean {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let left = runtime.block_on(turn.result).unwrap_err();
        assert_eq!(left.code(), ErrorCode::ShuttingDown, "its caller is told that the service ends");
    }
    session_id
}

fn types(events: &[Value], from: usize) -> Vec<&str> {
    events[from..].iter().map(|event| event["type"].as_str().unwrap()).collect()
}

async fn waiting_call(process: &Process, session_id: SessionId) -> String {
    let view = process.service.read(&session_id).await.unwrap();
    assert_eq!(view.state, SessionState::Waiting);
    let [call] = &view.pending_approvals[..] else { panic!("{view:?}") };
    call.call_id.clone()
}

#[test]
fn a_waiting_turn_gets_a_new_deadline_and_its_end_comes_without_a_request_for_it() {
    for is_clean in [false, true] {
        let mut place = Place::new();
        let session_id = left_waiting(&place, is_clean);
        place.options.tools.approval_timeout_ms = 1;
        place.process(true, |process| async move {
            process.service.ready().await.unwrap();
            process.until(session_id, "turn_completed").await;
            let events = process.events(session_id).await;
            let expected = ["approval_decided", "tool_finished", "assistant_message", "turn_completed"];
            assert_eq!(types(&events, 4), expected);
            assert_eq!((&events[4]["decision"], &events[5]["outcome"]), (&"deny".into(), &"not_run".into()));
        });
        assert!(!place.dir.path().join("tools/log").exists());
    }
}

#[test]
fn a_waiting_turn_is_interrupted_in_the_next_process_only_on_request() {
    let place = Place::new();
    let session_id = left_waiting(&place, true);
    place.process(true, |process| async move {
        process.service.ready().await.unwrap();
        process.service.interrupt(InterruptTurn { session_id, turn: Some(0) }).await.unwrap();
        let events = process.events(session_id).await;
        assert_eq!(events.last().unwrap()["reason"], "requested");
    });
}

#[test]
fn a_turn_with_a_call_that_runs_is_ended_although_another_one_asks() {
    let place = Place::new();
    let prompt = r#"@call test_sleep {"ms":600000} @call test_ask {"name":"log","line":"asked"} @say Done."#;
    let session_id = place.process(false, |process| async move {
        let session_id = process.create().await;
        drop(process.service.begin_turn(StartTurn::new(session_id, prompt)).await.unwrap());
        process.until(session_id, "approval_requested").await;
        let call_id = waiting_call(&process, session_id).await;
        process.service.decide_approval(DecideApproval::new(session_id, call_id, Decision::Approve)).await.unwrap();
        process.until(session_id, "tool_started").await;
        session_id
    });
    place.process(true, |process| async move {
        process.service.ready().await.unwrap();
        process.until(session_id, "turn_interrupted").await;
        let events = process.events(session_id).await;
        let outcomes: Vec<&Value> =
            events.iter().filter(|event| event["type"] == "tool_finished").map(|event| &event["outcome"]).collect();
        assert_eq!(outcomes, ["unknown", "not_run"]);
    });
    assert!(!place.dir.path().join("tools/log").exists());
}

#[test]
fn a_call_that_asks_is_denied_at_once_if_nobody_attends_the_turn() {
    let mut place = Place::new();
    place.options.approval.unattended = Unattended::Deny;
    place.process(true, |process| async move {
        let session_id = process.create().await;
        let result = process.turn(session_id, PROMPT).await.unwrap();
        assert_eq!((result.status, result.text.as_str()), (TurnStatus::Completed, "Done."));
        let events = process.events(session_id).await;
        let expected = ["turn_started", "assistant_message", "tool_finished", "assistant_message", "turn_completed"];
        assert_eq!(types(&events, 1), expected);
        assert_eq!(
            (&events[3]["outcome"], &events[3]["error"]["code"]),
            (&"not_run".into(), &"APPROVAL_DENIED".into())
        );
        let text = events[3]["output"].as_str().unwrap();
        assert!(["--allow test_ask", "tools.approval", "attended"].iter().all(|word| text.contains(word)), "{text}");
        assert!(events[1].get("attended").is_none());
        // A queued turn keeps it that somebody attends.
        let stalled = process.service.begin_turn(StartTurn::new(session_id, "@stall")).await.unwrap();
        let policy = meerkat_service::options::Policy::Queue;
        let attended = StartTurn { attended: true, policy, ..StartTurn::new(session_id, PROMPT) };
        drop(process.service.begin_turn(attended).await.unwrap());
        process.service.interrupt(InterruptTurn { session_id, turn: Some(stalled.accepted.turn) }).await.unwrap();
        process.until(session_id, "approval_requested").await;
    });
    assert!(!place.dir.path().join("tools/log").exists());
}

/// The call had started, so nobody knows what it did; it never waits again, and it does not run twice.
#[test]
fn a_question_of_a_running_call_is_gone_after_a_kill() {
    let place = Place::new();
    let prompt = r#"@call test_form {"message":"Who are you?"} @say Done."#;
    let (session_id, id) = place.process(false, |process| async move {
        let session_id = process.create().await;
        drop(process.service.begin_turn(StartTurn::new(session_id, prompt)).await.unwrap());
        process.until(session_id, "approval_requested").await;
        (session_id, waiting_call(&process, session_id).await)
    });
    place.process(true, |process| async move {
        process.service.ready().await.unwrap();
        process.until(session_id, "turn_interrupted").await;
        let events = process.events(session_id).await;
        let last = ["tool_started", "approval_requested", "tool_finished", "turn_interrupted"];
        assert_eq!(types(&events, events.len() - last.len()), last);
        assert_eq!(events[events.len() - 2]["outcome"], "unknown");
        let view = process.service.read(&session_id).await.unwrap();
        assert_eq!((view.state, view.pending_approvals.len()), (SessionState::Idle, 0));
        let late = process.service.decide_approval(DecideApproval::new(session_id, id, Decision::Deny)).await;
        assert_eq!(late.unwrap_err().code(), ErrorCode::ItemNotFound);
    });
}
