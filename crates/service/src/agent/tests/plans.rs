//! Plans decide: the effect and the approval of a call come from its arguments, under the rules.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use serde::Deserialize;
use serde_json::Value;

use super::{
    Rig, Subject, check_journal,
    fakes::{Answer, Heard, calls, says},
    ticks,
};
use crate::{
    model::ToolSpec,
    options::Budgets,
    service::{DecideApproval, InterruptTurn, SessionService as _, StartTurn, TurnStatus},
    session::{event::Decision, message::RawJson},
    tool::{Approval, Invocation, OutputSink, Plan, Tool, ToolError},
};

/// Tool whose arguments say how its call is planned.
struct Planned(ToolSpec);

#[derive(Default, Deserialize)]
#[serde(default)]
struct Arguments {
    /// Words of the call.
    subject: Option<String>,
    is_asked: bool,
    is_refused: bool,
    /// Time before the plan is there.
    plans_ms: u64,
    /// Time that the plan gives the call.
    takes_ms: Option<u64>,
}

async fn plan(arguments: Arguments) -> Result<Plan, ToolError> {
    if arguments.plans_ms > 0 {
        tokio::time::sleep(Duration::from_millis(arguments.plans_ms)).await;
    }
    if arguments.is_refused {
        return Err(ToolError::Refused("The file has changed.".to_owned()));
    }
    let plan = if arguments.is_asked { Plan::once().ask() } else { Plan::read_only() };
    let (subjects, timeout) = (arguments.subject.into_iter().collect(), arguments.takes_ms.map(Duration::from_millis));
    Ok(Plan { subjects, timeout, ..plan })
}

#[async_trait]
impl Tool for Planned {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn plan(&self, invocation: &Invocation) -> Result<Plan, ToolError> {
        plan(ToolError::decode(&invocation.arguments)?).await
    }

    async fn call(&self, invocation: Invocation, output: &OutputSink) -> Result<(), ToolError> {
        let Arguments { takes_ms, .. } = ToolError::decode(&invocation.arguments)?;
        if takes_ms.is_some() {
            invocation.cancel.cancelled().await;
            return Err(ToolError::Cancelled);
        }
        output.write("ran").await
    }
}

fn rig(answers: impl IntoIterator<Item = Answer>) -> Rig {
    let (name, description) = ("work".to_owned(), "Works.".to_owned());
    let tool = Planned(ToolSpec { name, description, schema: RawJson::empty_object() });
    super::fakes::rig(Heard::new(answers), 100_000, Arc::new(tool))
}

fn work(arguments: &[&'static str]) -> Answer {
    calls(arguments.iter().map(|arguments| ("work", *arguments)).collect::<Vec<_>>())
}

/// Type and call of each event that belongs to a call, with its outcome or effect.
async fn progress(subject: &Subject) -> Vec<String> {
    let of = |event: &Value| {
        let index = event["call_id"].as_str()?.rsplit('_').next()?.to_owned();
        let more = event["outcome"].as_str().or(event["effect"].as_str()).unwrap_or_default();
        Some(format!("{} {index} {more}", event["type"].as_str()?).trim_end().to_owned())
    };
    subject.events().await.iter().filter_map(of).collect()
}

#[tokio::test(start_paused = true)]
async fn a_plan_decides_on_effect_and_approval_by_the_arguments() {
    let wanted = work(&["{}", r#"{"is_asked":true}"#, r#"{"is_refused":true}"#]);
    let subject = Subject::new(rig([wanted, says("Done.")]).service()).await;
    let session_id = subject.session_id;
    subject.service.accept_turn(StartTurn::new(session_id, "Go.")).await.unwrap();
    let call_id = subject.asked().await;
    let decision = Decision::Approve;
    subject.service.decide_approval(DecideApproval::new(session_id, call_id, decision)).await.unwrap();
    ticks(50).await;
    let expected = [
        "tool_finished 2 not_run",
        "approval_requested 1",
        "approval_decided 1",
        "tool_started 0 read_only",
        "tool_finished 0 succeeded",
        "tool_started 1 once",
        "tool_finished 1 succeeded",
    ];
    assert_eq!(progress(&subject).await, expected);
    let refused = subject.event("tool_finished").await;
    assert_eq!(
        (&refused["output"], &refused["error"]["code"]),
        (&"The file has changed.".into(), &"TOOL_FAILED".into())
    );
    check_journal(&subject.events().await);
}

/// A tool that refuses well-formed calls is no model that cannot write arguments.
#[tokio::test(start_paused = true)]
async fn refused_calls_are_not_malformed() {
    let refused = [r#"{"is_refused":true}"#, r#"{"is_refused":true,"plans_ms":1}"#];
    let steps = (0..6).map(|step| work(&[refused[step % 2]]));
    let mut rig = rig(steps.chain([says("I gave up.")]));
    rig.options.turn.loop_repeats = 10;
    rig.options.turn.repair_rounds = 2;
    let subject = Subject::new(rig.service()).await;
    assert_eq!(subject.turn("Go.").await.unwrap().status, TurnStatus::Completed);
}

#[tokio::test(start_paused = true)]
async fn rules_decide_by_the_subject_of_a_call() {
    let wanted = work(&[
        r#"{"subject":"rm -rf src"}"#,
        r#"{"subject":"cargo test","is_asked":true}"#,
        r#"{"subject":"cargo publish","is_asked":true}"#,
    ]);
    let mut rig = rig([wanted, says("Done.")]);
    let rules = [("work: rm *", Approval::Deny), ("work: cargo test *", Approval::Allow)];
    rig.options.tools.approval = rules.map(|(rule, approval)| (rule.to_owned(), approval)).into();
    let subject = Subject::new(rig.service()).await;
    subject.service.accept_turn(StartTurn::new(subject.session_id, "Go.")).await.unwrap();
    assert!(subject.asked().await.ends_with("_2"), "cargo publish is asked about");
    assert_eq!(progress(&subject).await, ["tool_finished 0 not_run", "approval_requested 2"]);
    let denied = subject.event("tool_finished").await;
    assert_eq!(denied["error"]["code"], "APPROVAL_DENIED");
}

/// A plan may take a moment, in which the others are made; one that takes too long is a call that did not run.
#[tokio::test(start_paused = true)]
async fn a_plan_is_awaited_for_a_limited_time() {
    let wanted = work(&[r#"{"plans_ms":9000}"#, r#"{"plans_ms":9001}"#, r#"{"plans_ms":1000000}"#]);
    let subject = Subject::new(rig([wanted, says("Done.")]).service()).await;
    let started = tokio::time::Instant::now();
    assert_eq!(subject.turn("Go.").await.unwrap().status, TurnStatus::Completed);
    assert_eq!(started.elapsed().as_secs(), 10);
    let mut progress = progress(&subject).await;
    assert_eq!(progress.remove(0), "tool_finished 2 not_run");
    assert_eq!(progress[..2], ["tool_started 0 read_only", "tool_started 1 read_only"]);
    check_journal(&subject.events().await);
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_ends_planning() {
    let subject = Subject::new(rig([work(&[r#"{"plans_ms":9000}"#]), says("Done.")]).service()).await;
    subject.service.accept_turn(StartTurn::new(subject.session_id, "Go.")).await.unwrap();
    ticks(50).await;
    let started = tokio::time::Instant::now();
    subject.service.interrupt(InterruptTurn { session_id: subject.session_id, turn: None }).await.unwrap();
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert_eq!(progress(&subject).await, ["tool_finished 0 not_run"]);
}

/// The deadline of a turn holds for planning too.
#[tokio::test(start_paused = true)]
async fn a_turns_deadline_ends_planning() {
    let subject = Subject::new(rig([work(&[r#"{"plans_ms":9000}"#]), says("Done.")]).service()).await;
    let budgets = Budgets { wall_ms: Some(50), ..Budgets::default() };
    let turn = StartTurn { budgets, ..StartTurn::new(subject.session_id, "Go.") };
    let started = tokio::time::Instant::now();
    let failed = subject.service.start_turn(turn).await.unwrap();
    assert_eq!(failed.error.unwrap().code.as_str(), "BUDGET_EXHAUSTED");
    assert!(started.elapsed() < Duration::from_secs(1));
}

/// A tool that knows better than the configuration how long its call may take.
#[tokio::test(start_paused = true)]
async fn a_plan_has_a_timeout_of_its_own() {
    let mut rig = rig([work(&[r#"{"takes_ms":700}"#]), says("Done.")]);
    rig.options.tools.timeout_ms = 60_000;
    let subject = Subject::new(rig.service()).await;
    let started = tokio::time::Instant::now();
    subject.turn("Go.").await.unwrap();
    assert_eq!(started.elapsed().as_millis(), 700);
    assert_eq!(subject.event("tool_finished").await["output"], "The tool was stopped after 700 ms.");
}

/// Arguments that do not fit the schema are not planned: nobody is asked, and the tool does not see them.
#[tokio::test(start_paused = true)]
async fn arguments_are_checked_before_anybody_is_asked() {
    let schema = r#"{"type":"object","properties":{"is_asked":{"type":"boolean"}},"required":["is_asked"]}"#;
    let model = Heard::new([work(&["{}", r#"{"is_asked":"yes"}"#]), work(&["{}"]), says("Never.")]);
    let (name, description) = ("work".to_owned(), "Works.".to_owned());
    let tool = Planned(ToolSpec { name, description, schema: RawJson::parse(schema).unwrap() });
    let mut rig = super::fakes::rig(model, 100_000, Arc::new(tool));
    rig.options.turn.repair_rounds = 2;
    let subject = Subject::new(rig.service()).await;
    let failed = subject.turn("Go.").await.unwrap().error.unwrap();
    assert_eq!(failed.details["reason"], "malformed_arguments");
    assert_eq!(
        progress(&subject).await,
        ["tool_finished 0 not_run", "tool_finished 1 not_run", "tool_finished 0 not_run"]
    );
    let told = subject.event("tool_finished").await["output"].as_str().unwrap().to_owned();
    let expected = format!(
        "The arguments do not fit, so the tool did not run: \"is_asked\" is a required property (schema /required). Its schema is: {schema}"
    );
    assert_eq!(told, expected);
}
