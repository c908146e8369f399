//! Questions of a call that runs: who is asked, what answers, and what ends them.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Bench, check_journal};
use crate::{
    ErrorCode, SessionError,
    service::{DecideApproval, InterruptTurn, SessionService as _, SessionState, StartTurn},
    session::{
        event::{Decision, Scope},
        message::RawJson,
    },
};

const PROMPT: &str = r#"@call test_form {"message":"Who are you?"} @echo last_result"#;

impl Bench {
    async fn answer(&self, id: &str, decision: Decision, answer: Option<&str>) -> Result<u64, SessionError> {
        let answer = answer.map(|answer| RawJson::parse(answer).unwrap());
        let decided = DecideApproval { answer, ..DecideApproval::new(self.subject.session_id, id, decision) };
        self.subject.service.decide_approval(decided).await.map(|changed| changed.seq)
    }

    /// Events from the question on, once no turn runs.
    async fn answered(&self) -> Vec<Value> {
        let events = self.ended().await;
        check_journal(&events);
        let asked = events.iter().position(|event| event["type"] == "approval_requested").unwrap();
        events[asked..].to_vec()
    }
}

fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn an_answer_goes_to_the_call_with_its_defaults_and_is_recorded() {
    let bench = Bench::new(|_| {}).await;
    let id = bench.asks(PROMPT).await;
    let view = bench.subject.service.read(&bench.subject.session_id).await.unwrap();
    let [asked] = &view.pending_approvals[..] else { panic!("{view:?}") };
    let form = asked.form.as_ref().unwrap();
    assert_eq!((view.state, asked.call_id.as_str()), (SessionState::Waiting, id.as_str()));
    assert_eq!(id, format!("{}_form_1", form.call_id));
    assert_eq!((form.server.as_str(), form.message.as_str()), ("test", "Who are you?"));
    let before = bench.subject.events().await.len();
    for (decision, answer, field) in [
        (Decision::Approve, None, "answer.name"),
        (Decision::Approve, Some(r#"{"name":1}"#), "answer.name"),
        (Decision::Approve, Some(r#"{"name":"Ann","age":1}"#), "answer.age"),
        (Decision::Deny, Some(r#"{"name":"Ann"}"#), "answer"),
    ] {
        let refused = bench.answer(&id, decision, answer).await.unwrap_err().body();
        assert_eq!((refused.code, &refused.details["field"]), (ErrorCode::InvalidRequest, &json!(field)));
    }
    let wider = DecideApproval::new(bench.subject.session_id, &id, Decision::Approve);
    let wider = bench.subject.service.decide_approval(DecideApproval { scope: Scope::Session, ..wider }).await;
    assert_eq!(wider.unwrap_err().body().details["field"], "scope");
    assert_eq!(bench.subject.events().await.len(), before, "a refusal records nothing");
    let seq = bench.answer(&id, Decision::Approve, Some(r#"{"name":"Ann"}"#)).await.unwrap();
    assert_eq!(bench.answer(&id, Decision::Approve, Some(r#"{"name":"Ann"}"#)).await.unwrap(), seq);
    let other = bench.answer(&id, Decision::Approve, Some(r#"{"name":"Bob"}"#)).await.unwrap_err();
    assert_eq!(other.code(), ErrorCode::IdempotencyConflict);
    let events = bench.answered().await;
    let expected = ["approval_requested", "approval_decided", "tool_finished", "assistant_message", "turn_completed"];
    assert_eq!(types(&events), expected);
    assert_eq!(events[1]["answer"], json!({ "count": 3, "name": "Ann" }));
    assert_eq!(events[2]["output"], r#"accepted {"count":3,"name":"Ann"}"#);
}

#[tokio::test]
async fn a_denial_declines_and_an_answer_belongs_to_questions_alone() {
    let bench = Bench::new(|_| {}).await;
    let id = bench.asks(PROMPT).await;
    bench.answer(&id, Decision::Deny, None).await.unwrap();
    assert_eq!(bench.answered().await[2]["output"], "declined");
    let prompt = r#"@call test_ask {"name":"log","line":"x"} @say Done."#;
    let turn = StartTurn { attended: true, ..StartTurn::new(bench.subject.session_id, prompt) };
    bench.subject.service.accept_turn(turn).await.unwrap();
    let call_id = bench.subject.asked().await;
    let refused = bench.answer(&call_id, Decision::Approve, Some("{}")).await.unwrap_err().body();
    assert_eq!((refused.code, &refused.details["field"]), (ErrorCode::InvalidRequest, &json!("answer")));
    bench.answer(&call_id, Decision::Approve, None).await.unwrap();
    bench.answered().await;
}

#[tokio::test]
async fn the_end_of_a_turn_cancels_its_question() {
    let bench = Bench::new(|_| {}).await;
    let id = bench.asks(PROMPT).await;
    let interrupt = InterruptTurn { session_id: bench.subject.session_id, turn: None };
    bench.subject.service.interrupt(interrupt).await.unwrap();
    let events = bench.answered().await;
    assert_eq!(types(&events), ["approval_requested", "tool_finished", "turn_interrupted"]);
    assert_eq!(events[1]["outcome"], "failed", "it stopped when it was asked to");
    let late = bench.answer(&id, Decision::Approve, Some(r#"{"name":"Ann"}"#)).await.unwrap_err();
    assert_eq!(late.code(), ErrorCode::ItemNotFound);
    assert!(bench.subject.service.read(&bench.subject.session_id).await.unwrap().pending_approvals.is_empty());
}

/// The time of a call does not run while a person thinks, and a person does not think for ever.
#[tokio::test(start_paused = true)]
async fn the_time_of_a_call_stands_still_until_it_is_answered_or_too_late() {
    let bench = Bench::new(|rig| {
        rig.options.tools.timeout_ms = 1_000;
        rig.options.tools.approval_timeout_ms = 60_000;
    })
    .await;
    let id = bench.asks(PROMPT).await;
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert_eq!(bench.state().await, SessionState::Waiting);
    bench.answer(&id, Decision::Approve, Some(r#"{"name":"Ann"}"#)).await.unwrap();
    assert_eq!(bench.answered().await[2]["outcome"], "succeeded");
    bench.asks(PROMPT).await;
    tokio::time::sleep(Duration::from_secs(70)).await;
    let events = bench.answered().await;
    let last = &events[events.len() - 4..];
    assert_eq!(types(last), ["approval_decided", "tool_finished", "assistant_message", "turn_completed"]);
    assert_eq!((&last[0]["reason"], &last[1]["output"]), (&json!("no decision came in time"), &json!("declined")));
}
