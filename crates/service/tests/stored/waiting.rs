//! Turns that wait for approval while their process ends: they go on in the next one, and the call runs once.

use meerkat_service::{
    ErrorCode, SessionId,
    options::{Policy, Unattended},
    service::{DecideApproval, SessionState, StartTurn, TurnStatus},
    session::event::Decision,
};
use serde_json::Value;

use super::{Place, Process};

const PROMPT: &str = r#"@call test_ask {"name":"log","line":"asked"} @say Done."#;

impl Place {
    /// Leaves a turn whose call waits in a process that is killed, or shuts down; returns its session and the call.
    fn left_waiting(&self, is_clean: bool, prompt: &str) -> (SessionId, String) {
        let (waiting, turn) = self.process(is_clean, async |process| {
            let session_id = process.create().await;
            let turn = process.begin(session_id, prompt).await;
            process.until(session_id, "approval_requested").await;
            ((session_id, waiting_call(&process, session_id).await), turn)
        });
        if is_clean {
            let left = futures::executor::block_on(turn.result).unwrap_err();
            assert_eq!(left.code(), ErrorCode::ShuttingDown, "its caller is told that the service ends");
        }
        waiting
    }

    fn has_log(&self) -> bool {
        self.dir.path().join("tools/log").exists()
    }
}

fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

async fn waiting_call(process: &Process, session_id: SessionId) -> String {
    let view = process.view(session_id).await;
    assert_eq!(view.state, SessionState::Waiting);
    let [call] = &view.pending_approvals[..] else { panic!("{view:?}") };
    call.call_id.clone()
}

#[test]
fn a_waiting_turn_gets_a_new_deadline_and_its_end_comes_without_a_request_for_it() {
    for is_clean in [false, true] {
        let mut place = Place::new();
        let (session_id, _) = place.left_waiting(is_clean, PROMPT);
        place.options.tools.approval_timeout_ms = 1;
        place.process(true, async |process| {
            process.service.ready().await.unwrap();
            process.until(session_id, "turn_completed").await;
            let events = process.events(session_id).await;
            let expected = ["approval_decided", "tool_finished", "assistant_message", "turn_completed"];
            assert_eq!(types(&events[4..]), expected);
            assert_eq!((&events[4]["decision"], &events[5]["outcome"]), (&"deny".into(), &"not_run".into()));
        });
        assert!(!place.has_log());
    }
}

#[test]
fn a_waiting_turn_is_interrupted_in_the_next_process_only_on_request() {
    let place = Place::new();
    let (session_id, _) = place.left_waiting(true, PROMPT);
    place.process(true, async |process| {
        process.service.ready().await.unwrap();
        process.interrupt(session_id, Some(0)).await;
        assert_eq!(process.events(session_id).await.last().unwrap()["reason"], "requested");
    });
}

#[test]
fn a_turn_with_a_call_that_runs_is_ended_although_another_one_asks() {
    let place = Place::new();
    let prompt = r#"@call test_sleep {"ms":600000} @call test_ask {"name":"log","line":"asked"} @say Done."#;
    let session_id = place.process(false, async |process| {
        let session_id = process.create().await;
        drop(process.begin(session_id, prompt).await);
        process.until(session_id, "approval_requested").await;
        let call_id = waiting_call(&process, session_id).await;
        process.service.decide_approval(DecideApproval::new(session_id, call_id, Decision::Approve)).await.unwrap();
        process.until(session_id, "tool_started").await;
        session_id
    });
    place.process(true, async |process| {
        process.service.ready().await.unwrap();
        process.until(session_id, "turn_interrupted").await;
        let events = process.events(session_id).await;
        let finished = events.iter().filter(|event| event["type"] == "tool_finished");
        assert_eq!(finished.map(|event| &event["outcome"]).collect::<Vec<_>>(), ["unknown", "not_run"]);
    });
    assert!(!place.has_log());
}

#[test]
fn a_call_that_asks_is_denied_at_once_if_nobody_attends_the_turn() {
    let mut place = Place::new();
    place.options.approval.unattended = Unattended::Deny;
    place.process(true, async |process| {
        let session_id = process.create().await;
        let result = process.turn(session_id, PROMPT).await.unwrap();
        assert_eq!((result.status, result.text.as_str()), (TurnStatus::Completed, "Done."));
        let events = process.events(session_id).await;
        let expected = ["turn_started", "assistant_message", "tool_finished", "assistant_message", "turn_completed"];
        assert_eq!(types(&events[1..]), expected);
        let finished = &events[3];
        let denied = (&"not_run".into(), &"APPROVAL_DENIED".into());
        assert_eq!((&finished["outcome"], &finished["error"]["code"]), denied);
        let text = finished["output"].as_str().unwrap();
        assert!(["--allow test_ask", "tools.approval", "attended"].iter().all(|word| text.contains(word)), "{text}");
        assert!(events[1].get("attended").is_none());
        // A queued turn keeps it that somebody attends.
        let stalled = process.begin(session_id, "@stall").await;
        let attended = StartTurn { attended: true, policy: Policy::Queue, ..StartTurn::new(session_id, PROMPT) };
        drop(process.service.begin_turn(attended).await.unwrap());
        process.interrupt(session_id, Some(stalled.accepted.turn)).await;
        process.until(session_id, "approval_requested").await;
    });
    assert!(!place.has_log());
}

/// The call had started, so nobody knows what it did; it never waits again, and it does not run twice.
#[test]
fn a_question_of_a_running_call_is_gone_after_a_kill() {
    let place = Place::new();
    let (session_id, id) = place.left_waiting(false, r#"@call test_form {"message":"Who are you?"} @say Done."#);
    place.process(true, async |process| {
        process.service.ready().await.unwrap();
        process.until(session_id, "turn_interrupted").await;
        let events = process.events(session_id).await;
        let last = &events[events.len() - 4..];
        assert_eq!(types(last), ["tool_started", "approval_requested", "tool_finished", "turn_interrupted"]);
        assert_eq!(last[2]["outcome"], "unknown");
        let view = process.view(session_id).await;
        assert_eq!((view.state, view.pending_approvals.len()), (SessionState::Idle, 0));
        let late = process.service.decide_approval(DecideApproval::new(session_id, id, Decision::Deny)).await;
        assert_eq!(late.unwrap_err().code(), ErrorCode::ItemNotFound);
    });
}
