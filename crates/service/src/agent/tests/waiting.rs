//! Turns that wait for approval while their actor is lost: what was decided runs once, and nothing else runs.

use std::{sync::Arc, time::Duration};

use super::{
    Rig, Subject,
    fakes::{self, Answer, Heard, does, says},
    ticks,
};
use crate::{
    agent::tests::Service,
    clock::{Clock as _, SystemClock},
    ids::SessionId,
    model::AnswerBlock,
    service::{CreateSession, DecideApproval, ReadEvents, SessionService as _, SessionState, StartTurn, TurnStatus},
    session::{
        event::{ApprovalDecided, Decision, Event, Record, Scope, ToolStarted},
        message::{RawJson, ToolCall},
    },
    store::{EventStore as _, MemoryEventStore, MemoryIndex},
    tool::{Approval, Effect},
};

pub(super) const PROMPT: &str = "@call asks {} @say Done.";

fn service(events: &Arc<MemoryEventStore>) -> Service {
    let mut tool = does("asks", Effect::Once, |_, output| Box::pin(async { output.write("asked").await }));
    tool.approval = Approval::Ask;
    Rig::new(vec![Arc::new(tool)]).stored(events.clone(), Arc::new(MemoryIndex::default()))
}

pub(super) fn keyed(session_id: SessionId) -> StartTurn {
    StartTurn { idempotency_key: Some("k".to_owned()), attended: true, ..StartTurn::new(session_id, PROMPT) }
}

/// Begins a turn that waits; answers with its session and its call.
async fn waiting(service: &Service) -> (SessionId, String) {
    let session_id = service.create_session(CreateSession::default()).await.unwrap().session_id;
    service.accept_turn(keyed(session_id)).await.unwrap();
    ticks(100).await;
    let view = service.read(&session_id).await.unwrap();
    assert_eq!(view.state, SessionState::Waiting);
    (session_id, view.pending_approvals[0].call_id.clone())
}

pub(super) async fn types(service: &Service, session_id: SessionId, since_seq: u64) -> Vec<String> {
    let request = ReadEvents { limit: Some(100), ..ReadEvents::new(session_id, since_seq) };
    let lines = service.events(request).await.unwrap().items;
    let of = |line: &bytes::Bytes| serde_json::from_slice::<serde_json::Value>(line).unwrap()["type"].clone();
    lines.iter().map(|line| of(line).as_str().unwrap().to_owned()).collect()
}

/// The process is killed between a decision and its effect, or in it.
#[tokio::test(start_paused = true)]
async fn a_decision_outlives_its_process_until_its_call_has_started() {
    let goes_on = ["tool_started", "tool_finished", "assistant_message", "turn_completed"];
    for (decision, is_started, expected) in [
        (Decision::Approve, false, &goes_on[..]),
        (Decision::Deny, false, &goes_on[1..]),
        (Decision::Approve, true, &["tool_finished", "turn_interrupted"]),
    ] {
        let events = Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()));
        let former = service(&events);
        let (session_id, call_id) = waiting(&former).await;
        drop(former);
        ticks(100).await;
        let lease = events.lease(session_id).await.unwrap();
        let decided =
            ApprovalDecided { call_id: call_id.clone(), decision, scope: Scope::Once, reason: None, answer: None };
        let mut last = vec![Event::ApprovalDecided(decided)];
        if is_started {
            last.push(Event::ToolStarted(ToolStarted {
                call_id,
                name: "asks".to_owned(),
                effect: Effect::Once,
                files: Vec::new(),
            }));
        }
        let record = |(seq, event)| Record { session_id, seq, turn: Some(0), time: SystemClock::new().now(), event };
        let records: Vec<Record> = (lease.tail + 1..).zip(last).map(record).collect();
        events.stage(&lease, &records).unwrap().durable().await.unwrap();
        events.give_up(lease).await;

        let next = service(&events);
        let result = next.start_turn(keyed(session_id)).await.unwrap();
        let status = if is_started { TurnStatus::Interrupted } else { TurnStatus::Completed };
        assert_eq!((result.turn, result.status), (0, status), "{decision:?}");
        assert_eq!(types(&next, session_id, 4 + records.len() as u64).await, expected, "{decision:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiting_turn_that_was_taken_over_is_decided_wherever_it_is_asked() {
    let events = Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()));
    let (former, next) = (service(&events), service(&events));
    let (session_id, call_id) = waiting(&former).await;
    next.ready().await.unwrap();
    assert_eq!(next.read(&session_id).await.unwrap().state, SessionState::Waiting);
    let lease = events.lease(session_id).await.unwrap();
    events.give_up(lease).await;
    // The former actor has lost its lease: it loads the session again, which still waits.
    former.decide_approval(DecideApproval::new(session_id, call_id, Decision::Approve)).await.unwrap();
    let result = former.start_turn(keyed(session_id)).await.unwrap();
    assert_eq!((result.turn, result.status), (0, TurnStatus::Completed));
    let expected = ["approval_decided", "tool_started", "tool_finished", "assistant_message", "turn_completed"];
    assert_eq!(types(&former, session_id, 4).await, expected);
}

/// The model, a call and a person may each take a day if no limit says otherwise.
#[tokio::test(start_paused = true)]
async fn a_timeout_of_0_is_no_limit() {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let call = ToolCall { call_id: "c".into(), name: "slow".into(), arguments: RawJson::empty_object(), opaque: None };
    let late = Answer::Late(Box::pin(async { tokio::time::sleep(DAY).await }), vec![AnswerBlock::ToolCall(call)]);
    let mut tool = does("slow", Effect::ReadOnly, |_, output| {
        Box::pin(async {
            tokio::time::sleep(DAY).await;
            output.write("slept").await
        })
    });
    tool.approval = Approval::Ask;
    let mut rig = fakes::rig(Heard::new([late, says("Done.")]), 100_000, Arc::new(tool));
    (rig.options.turn.model_idle_timeout_ms, rig.options.turn.default_wall_ms) = (0, 0);
    (rig.options.tools.timeout_ms, rig.options.tools.approval_timeout_ms) = (0, 0);
    let subject = Subject::new(rig.service()).await;
    let turn = StartTurn { attended: true, ..StartTurn::new(subject.session_id, "Sleep.") };
    let turn = subject.service.begin_turn(turn).await.unwrap();
    tokio::time::sleep(2 * DAY).await;
    let session_id = subject.session_id;
    let asked = subject.event("approval_requested").await;
    let call_id = asked["call_id"].as_str().unwrap().to_owned();
    let decision = DecideApproval::new(session_id, call_id, Decision::Approve);
    subject.service.decide_approval(decision).await.unwrap();
    let result = turn.result.await.unwrap();
    assert_eq!((result.text.as_str(), result.error), ("Done.", None));
    assert_eq!(subject.event("tool_finished").await["output"], "slept");
}
