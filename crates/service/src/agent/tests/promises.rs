//! Promises that were once broken: each test tells how.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use futures::StreamExt as _;

use super::{
    Rig, Subject,
    faults::{Fault, FaultyEvents, Fuse},
    ticks, walk,
};
use crate::{
    ErrorCode, SessionError,
    model::{
        AnswerBlock, ModelAnswer, ModelClient, ModelError, ModelPart, ModelRequest, ModelStream, StaticModels,
        StopReason, ToolSpec, Usage,
    },
    options::Policy,
    service::{
        CreateSession, DecideApproval, InterruptTurn, PinFact, ReadEvents, SessionService as _, StartTurn, TurnStatus,
    },
    session::{
        event::Decision,
        message::{RawJson, ToolCall},
    },
    tool::{Approval, Effect, Invocation, OutputSink, Tool, ToolError},
};

type Answer = Result<Vec<AnswerBlock>, ErrorCode>;

/// Gives one answer after another.
struct Canned(Mutex<Vec<Answer>>);

#[async_trait]
impl ModelClient for Canned {
    fn vendor(&self) -> &str {
        "canned"
    }

    async fn stream_response(&self, _: ModelRequest) -> Result<ModelStream, ModelError> {
        let blocks = self.0.lock().unwrap().remove(0).map_err(|code| ModelError::new(code, "no"))?;
        let stop_reason = match blocks.last() {
            Some(AnswerBlock::ToolCall(_)) => StopReason::ToolUse,
            _ => StopReason::EndTurn,
        };
        let end = ModelPart::End(ModelAnswer { blocks, stop_reason, usage: Usage::default() });
        Ok(futures::stream::iter([Ok(end)]).boxed())
    }
}

fn call(call_id: &str, arguments: &str) -> AnswerBlock {
    let arguments = RawJson::parse(arguments).unwrap();
    AnswerBlock::ToolCall(ToolCall { call_id: call_id.to_owned(), name: "work".to_owned(), arguments, opaque: None })
}

fn text(text: &str) -> AnswerBlock {
    AnswerBlock::Text(text.to_owned())
}

/// Fails with a long message, or writes without end, or says which span or which call it is in.
struct Work(ToolSpec, Approval);

#[async_trait]
impl Tool for Work {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn effect(&self) -> Effect {
        Effect::ReadOnly
    }

    fn approval(&self) -> Approval {
        self.1
    }

    async fn call(&self, invocation: Invocation, output: &OutputSink) -> Result<(), ToolError> {
        match invocation.arguments.as_str() {
            r#"{"fail":1}"# => Err(ToolError::Failed("x".repeat(1 << 20))),
            r#"{"flood":1}"# => loop {
                output.write(&"y".repeat(1024)).await?;
            },
            r#"{"span":1}"# => {
                let span = tracing::Span::current();
                output.write(span.metadata().map_or("no span", |span| span.name())).await
            }
            _ => output.write(&invocation.call_id).await,
        }
    }
}

fn rig(answers: Vec<Answer>, approval: Approval) -> Rig {
    let spec = ToolSpec { name: "work".into(), description: "Works.".into(), schema: RawJson::empty_object() };
    let mut rig = Rig::new(vec![Arc::new(Work(spec, approval))]);
    rig.models = Arc::new(StaticModels::new("canned", Arc::new(Canned(Mutex::new(answers))), 100_000_000));
    rig
}

async fn longest_event(subject: &Subject) -> usize {
    let request = ReadEvents { session_id: subject.session_id, since_seq: 0, limit: Some(1000), wait_ms: 0 };
    subject.service.events(request).await.unwrap().items.iter().map(|line| line.len()).max().unwrap()
}

/// A model that gave two calls one id made both run for ever.
#[tokio::test(start_paused = true)]
async fn calls_are_named_by_us() {
    let answers =
        vec![Ok(vec![call("call_3_1", "{}"), call("", "{}"), call("call_3_1", "{}")]), Ok(vec![text("Done.")])];
    let subject = Subject::new(rig(answers, Approval::Allow).service()).await;
    let result = subject.turn("Go.").await.unwrap();
    assert_eq!((result.status, result.tool_calls), (TurnStatus::Completed, 3));
    super::check_journal(&subject.events().await);
}

/// What a tool logged could not be told from what any other did.
#[tokio::test]
async fn a_tool_works_inside_the_span_of_its_call() {
    // For all threads: one that has none would switch the spans off that it meets first.
    tracing::subscriber::set_global_default(tracing_subscriber::registry()).unwrap();
    let answers = vec![Ok(vec![call("call_0", r#"{"span":1}"#)]), Ok(vec![text("Done.")])];
    let subject = Subject::new(rig(answers, Approval::Allow).service()).await;
    subject.turn("Go.").await.unwrap();
    let events = subject.events().await;
    let finished = events.iter().find(|event| event["type"] == "tool_finished").unwrap();
    assert_eq!(finished["output"], "tool_call", "{finished}");
}

/// An approval that came twice approved the next turn's call, because the vendor had named both alike.
#[tokio::test(start_paused = true)]
async fn a_late_approval_hits_no_other_call() {
    let answers = vec![Ok(vec![call("call_0", "{}")]), Ok(vec![text("Done.")]), Ok(vec![call("call_0", "{}")])];
    let subject = Subject::new(rig(answers, Approval::Ask).service()).await;
    let decide = |call_id: &str| {
        let (call_id, decision) = (call_id.to_owned(), Decision::Approve);
        subject.service.decide_approval(DecideApproval {
            session_id: subject.session_id,
            call_id,
            decision,
            reason: None,
        })
    };
    subject.service.accept_turn(StartTurn::new(subject.session_id, "First.")).await.unwrap();
    ticks(50).await;
    let asked = subject.events().await.last().unwrap()["call_id"].as_str().unwrap().to_owned();
    decide(&asked).await.unwrap();
    ticks(50).await;
    subject.service.accept_turn(StartTurn::new(subject.session_id, "Second.")).await.unwrap();
    ticks(50).await;
    assert_eq!(decide(&asked).await.unwrap_err().code(), ErrorCode::ItemNotFound);
    assert_eq!(subject.events().await.last().unwrap()["type"], "approval_requested");
}

#[tokio::test(start_paused = true)]
async fn another_decision_is_refused_with_the_one_that_was_made() {
    for (first, second, said) in
        [(Decision::Approve, Decision::Deny, "approved"), (Decision::Deny, Decision::Approve, "denied")]
    {
        let answers = vec![Ok(vec![call("call_0", "{}")]), Ok(vec![text("Done.")])];
        let subject = Subject::new(rig(answers, Approval::Ask).service()).await;
        subject.service.accept_turn(StartTurn::new(subject.session_id, "First.")).await.unwrap();
        ticks(50).await;
        let call_id = subject.events().await.last().unwrap()["call_id"].as_str().unwrap().to_owned();
        let decide = |decision| {
            let (session_id, call_id) = (subject.session_id, call_id.clone());
            subject.service.decide_approval(DecideApproval { session_id, call_id, decision, reason: None })
        };
        decide(first).await.unwrap();
        let body = decide(second).await.unwrap_err().body();
        assert_eq!((body.code, &body.details["what"]), (ErrorCode::IdempotencyConflict, &"approval".into()));
        assert!(body.message.contains(&call_id) && body.message.contains(&format!("already {said}")), "{body:?}");
    }
}

/// A service that ended waited for ever for a session whose store had failed meanwhile.
#[tokio::test(start_paused = true)]
async fn a_service_ends_also_where_a_store_fails() {
    let fuse = Fuse::new(2, usize::MAX / 2);
    let service =
        Rig::new(Vec::new()).service_over(|events| Arc::new(FaultyEvents(events, Fault::Failure, fuse)), |blobs| blobs);
    let subject = Subject::new(service).await;
    subject.service.accept_turn(StartTurn::new(subject.session_id, "@say Part. @stall")).await.unwrap();
    ticks(20).await;
    tokio::time::timeout(Duration::from_secs(3600), subject.service.shut_down(1_000)).await.unwrap();
}

/// A turn with the policy `reject` that came between a turn's end and the next one's start was queued.
#[test]
fn a_rejected_turn_is_never_queued() {
    walk(async {
        for tick in 0..60 {
            let slow = |events| -> Arc<dyn crate::store::EventStore> {
                Arc::new(FaultyEvents(events, Fault::Slow, Fuse::new(0, 0)))
            };
            let subject = Subject::new(Rig::new(Vec::new()).service_over(slow, |blobs| blobs)).await;
            let start = |policy, prompt: &str| StartTurn { policy, ..StartTurn::new(subject.session_id, prompt) };
            subject.service.accept_turn(start(Policy::Reject, "@stall")).await.unwrap();
            ticks(10).await;
            subject.service.accept_turn(start(Policy::Queue, "@say Queued.")).await.unwrap();
            let interrupt = subject.service.interrupt(InterruptTurn { session_id: subject.session_id, turn: Some(0) });
            let reject = async {
                ticks(tick).await;
                subject.service.accept_turn(start(Policy::Reject, "@say Rejected.")).await
            };
            let (_, rejected) = tokio::join!(interrupt, reject);
            assert!(rejected.is_ok() || matches!(rejected, Err(SessionError::Busy { .. })), "{rejected:?}");
            ticks(200).await;
            let queued = |event: &&serde_json::Value| event["type"] == "turn_queued" && event["policy"] == "reject";
            assert_eq!(subject.events().await.iter().filter(queued).count(), 0, "at tick {tick}");
        }
    });
}

/// A tool's failure, an opaque part and a long list made events of a megabyte; an event has at most 256 KiB.
#[tokio::test(start_paused = true)]
async fn no_event_is_over_its_limit() {
    let opaque = RawJson::parse(&format!("\"{}\"", "z".repeat(1 << 20))).unwrap();
    let answers = vec![
        Ok(vec![call("", r#"{"fail":1}"#)]),
        Ok(vec![text(&"\u{1}".repeat(100_000)); 40]),
        Ok(vec![AnswerBlock::Reasoning { text: String::new(), opaque: Some(opaque) }]),
        Ok((0..5_000).map(|_| call("", "{}")).collect()),
    ];
    let subject = Subject::new(rig(answers, Approval::Allow).service()).await;
    subject.turn("Fails.").await.unwrap();
    for refused in ["Opaque.", "Many."] {
        assert_eq!(subject.turn(refused).await.unwrap().error.unwrap().code, ErrorCode::ModelRejected);
    }
    assert!(longest_event(&subject).await <= 256 * 1024);
    let tools = Some(vec!["work".to_owned(); 100_000]);
    let refused = subject.service.create_session(CreateSession { tools, ..CreateSession::default() }).await;
    assert_eq!(refused.unwrap_err().code(), ErrorCode::InvalidRequest);
}

/// Answers with 200,000 bytes, and then with how many bytes of that it was sent.
struct Reader;

#[async_trait]
impl ModelClient for Reader {
    fn vendor(&self) -> &str {
        "reader"
    }

    async fn stream_response(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let said = match request.messages.get(1) {
            Some(answer) => answer.text().len().to_string(),
            None => "z".repeat(200_000),
        };
        let end = ModelAnswer { blocks: vec![text(&said)], stop_reason: StopReason::EndTurn, usage: Usage::default() };
        Ok(futures::stream::iter([Ok(ModelPart::End(end))]).boxed())
    }
}

/// An answer too long for its event was cut in the turn's result, and in what the model was sent of it.
#[tokio::test(start_paused = true)]
async fn a_long_answer_is_whole() {
    let mut rig = Rig::new(Vec::new());
    rig.models = Arc::new(StaticModels::new("reader", Arc::new(Reader), 100_000));
    let subject = Subject::new(rig.service()).await;
    let request = StartTurn { idempotency_key: Some("k".to_owned()), ..StartTurn::new(subject.session_id, "Say it.") };
    let first = subject.service.start_turn(request.clone()).await.unwrap();
    assert_eq!(first.text.len(), 200_000);
    assert_eq!(subject.service.start_turn(request).await.unwrap(), first, "also where it is answered again");
    assert!(longest_event(&subject).await < 16 * 1024, "the event has a reference");
    assert_eq!(subject.turn("How long was it?").await.unwrap().text, "200000");
}

/// A tool that wrote more than it may lost everything that it had written.
#[tokio::test(start_paused = true)]
async fn what_was_written_before_the_cap_stays() {
    let mut rig = rig(vec![Ok(vec![call("", r#"{"flood":1}"#)]), Ok(vec![text("Done.")])], Approval::Allow);
    rig.options.tools.max_output_bytes = 100 * 1024;
    let subject = Subject::new(rig.service()).await;
    subject.turn("Flood.").await.unwrap();
    let events = subject.events().await;
    let finished = events.iter().find(|event| event["type"] == "tool_finished").unwrap();
    assert!(
        finished["output"].to_string().contains("yyyy") && finished["error"]["message"].to_string().contains("102400"),
        "{finished}"
    );
    assert!(finished["output"]["blob"].is_string(), "the result names what was kept: {finished}");
}

/// A prompt that the vendor found too long stood in the way of every later turn.
#[tokio::test(start_paused = true)]
async fn what_a_vendor_finds_too_long_leaves_the_context() {
    let answers = vec![Err(ErrorCode::ModelContextExceeded), Ok(vec![text("Fine.")])];
    let subject = Subject::new(rig(answers, Approval::Allow).service()).await;
    let failed = subject.turn("Long.").await.unwrap().error.unwrap();
    assert_eq!((failed.code, &failed.details["vendor"]), (ErrorCode::ModelContextExceeded, &"canned".into()));
    assert_eq!(subject.turn("Short.").await.unwrap().text, "Fine.");
}

/// A session whose write was lost was declared damaged, though its journal was whole.
#[tokio::test(start_paused = true)]
async fn a_lost_write_is_forgotten() {
    let fuse = Fuse::new(1, 1);
    let service = Rig::new(Vec::new())
        .service_over(|events| Arc::new(FaultyEvents(events, Fault::LostWrite, fuse)), |blobs| blobs);
    let subject = Subject::new(service).await;
    assert_eq!(subject.turn("@say One.").await.unwrap_err().code(), ErrorCode::StoreFailed);
    assert_eq!(subject.turn("@say Two.").await.unwrap().turn, 0, "the turn that was lost never happened");
    subject.check().await;
}

/// A command that came with one whose write was lost was answered from what the lost one had made of the session.
#[tokio::test(start_paused = true)]
async fn a_command_behind_a_lost_write_meets_what_is_durable() {
    for prompt in [None, Some("@say Part. @stall")] {
        let fuse = Fuse::new(if prompt.is_some() { 2 } else { 1 }, 1);
        let service = Rig::new(Vec::new())
            .service_over(|events| Arc::new(FaultyEvents(events, Fault::LostWrite, fuse)), |blobs| blobs);
        let subject = Subject::new(service).await;
        if let Some(prompt) = prompt {
            subject.service.accept_turn(StartTurn::new(subject.session_id, prompt)).await.unwrap();
        }
        let durable = subject.events().await.len() as u64;
        let pin = || subject.service.pin(PinFact { session_id: subject.session_id, text: "fact".to_owned() });
        // Both stand in the mailbox before the actor comes to the first.
        let (lost, pinned) = tokio::join!(pin(), pin());
        assert_eq!(lost.unwrap_err().code(), ErrorCode::StoreFailed);
        assert_eq!(pinned.unwrap().seq, durable + 1);
        let pins = subject.service.pins(&subject.session_id).await.unwrap().items;
        assert_eq!(pins.iter().map(|pin| pin.seq).collect::<Vec<_>>(), [durable + 1]);
        ticks(50).await;
        subject.check().await;
    }
}

/// A read-only session kept its place for ever; a full list was said to be a queue of turns.
#[tokio::test(start_paused = true)]
async fn a_read_only_session_leaves_and_limits_say_what_is_full() {
    let mut rig = Rig::new(Vec::new());
    rig.options.ephemeral.idle_ms = 1_000;
    rig.options.ephemeral.max_sessions = 1;
    rig.options.limits.pins = 0;
    let fuse = Fuse::new(1, 2);
    let subject =
        Subject::new(rig.service_over(|events| Arc::new(FaultyEvents(events, Fault::Failure, fuse)), |blobs| blobs))
            .await;
    let pin = subject.service.pin(PinFact { session_id: subject.session_id, text: "fact".into() }).await.unwrap_err();
    assert_eq!(pin.body().details["what"], "pins");
    for code in [ErrorCode::StoreFailed, ErrorCode::StoreFailed, ErrorCode::SessionCorrupted] {
        assert_eq!(subject.turn("@say One.").await.unwrap_err().code(), code);
    }
    tokio::time::sleep(Duration::from_secs(100)).await;
    subject.service.create_session(CreateSession::default()).await.unwrap();
}

/// A session that was being made while the service ended took turns afterwards.
#[tokio::test(start_paused = true)]
async fn a_session_made_at_the_end_takes_no_turn() {
    let slow =
        |events| -> Arc<dyn crate::store::EventStore> { Arc::new(FaultyEvents(events, Fault::Slow, Fuse::new(0, 0))) };
    let service = Rig::new(Vec::new()).service_over(slow, |blobs| blobs);
    let create = tokio::spawn({
        let service = service.clone();
        async move { service.create_session(CreateSession::default()).await }
    });
    ticks(2).await;
    service.shut_down(0).await;
    let made = create.await.unwrap().unwrap();
    let refused = service.start_turn(StartTurn::new(made.session_id, "@say Late.")).await;
    assert!(matches!(refused, Err(SessionError::ShuttingDown)), "{refused:?}");
}

/// A model that asked for the same thing three times at once was said to go round in circles, though it had had no
/// result yet.
#[tokio::test(start_paused = true)]
async fn calls_that_are_made_together_are_no_loop() {
    let together = || vec![call("", r#"{"fail":1}"#), call("", r#"{"fail":1}"#), call("", r#"{"fail":1}"#)];
    let answers = vec![Ok(together()), Ok(together()), Ok(vec![text("Done.")])];
    let subject = Subject::new(rig(answers, Approval::Allow).service()).await;
    assert_eq!(subject.turn("Go.").await.unwrap().status, TurnStatus::Completed);
    let answers = vec![Ok(together()), Ok(together()), Ok(together()), Ok(vec![text("Never.")])];
    let subject = Subject::new(rig(answers, Approval::Allow).service()).await;
    assert_eq!(subject.turn("Go.").await.unwrap().error.unwrap().code, ErrorCode::LoopDetected);
    // One that asks again until the answer changes gets on; each result here is another.
    let mut answers: Vec<Answer> = (0..5).map(|_| Ok(vec![call("", "{}")])).collect();
    answers.push(Ok(vec![text("Done.")]));
    let subject = Subject::new(rig(answers, Approval::Allow).service()).await;
    assert_eq!(subject.turn("Go.").await.unwrap().status, TurnStatus::Completed);
}

/// A failure's text passed the limit that every other output has.
#[tokio::test(start_paused = true)]
async fn what_a_tool_says_of_its_failure_is_bounded() {
    let answers = vec![Ok(vec![call("", r#"{"fail":1}"#)]), Ok(vec![text("Done.")])];
    let mut rig = rig(answers, Approval::Allow);
    rig.options.tools.max_output_bytes = 5_000;
    let subject = Subject::new(rig.service()).await;
    subject.turn("Go.").await.unwrap();
    let events = subject.events().await;
    let finished = events.iter().find(|event| event["type"] == "tool_finished").unwrap();
    assert_eq!(finished["output"].as_str().map(str::len), Some(5_000));
}
