//! Promises that were broken once.

use std::{sync::Arc, time::Duration};

use futures::FutureExt as _;

use super::{
    Rig, Subject, check_journal,
    fakes::{Answer, Does, Heard, calls, does, says},
    faults::{Fault, FaultyEvents, Fuse},
    ticks, walk,
};
use crate::{
    ErrorCode, SessionError,
    model::AnswerBlock,
    options::Policy,
    service::{
        CreateSession, DecideApproval, InterruptTurn, PinFact, ReadEvents, SessionService as _, StartTurn, TurnStatus,
    },
    session::{event::Decision, message::RawJson},
    store::{MemoryEventStore, MemoryIndex},
    tool::{Approval, Effect, ToolError},
};

/// Fails with a long message, or writes without end, or says which span or which call it is in.
fn work() -> Does {
    does("work", Effect::ReadOnly, |invocation, output| {
        async move {
            match invocation.arguments.as_str() {
                r#"{"fail":1}"# => Err(ToolError::Failed("x".repeat(1 << 20))),
                r#"{"flood":1}"# => loop {
                    output.write(&"y".repeat(1024)).await?;
                },
                r#"{"deaf":1}"# => {
                    for _ in 0..200 {
                        drop(output.write(&"y".repeat(1024)).await);
                    }
                    Ok(())
                }
                r#"{"span":1}"# => {
                    let span = tracing::Span::current();
                    output.write(span.metadata().map_or("no span", |span| span.name())).await
                }
                _ => output.write(&invocation.call_id).await,
            }
        }
        .boxed()
    })
}

fn rig(answers: impl IntoIterator<Item = Answer>) -> Rig {
    super::fakes::rig(Heard::new(answers), 100_000_000, Arc::new(work()))
}

async fn subject(answers: impl IntoIterator<Item = Answer>) -> Subject {
    Subject::new(rig(answers).service()).await
}

fn call(arguments: &'static str) -> Answer {
    calls([("work", arguments)])
}

async fn longest_event(subject: &Subject) -> usize {
    let request = ReadEvents { limit: Some(1000), ..ReadEvents::new(subject.session_id, 0) };
    subject.service.events(request).await.unwrap().items.iter().map(|line| line.len()).max().unwrap()
}

/// A model that gave two calls one id made both run for ever.
#[tokio::test(start_paused = true)]
async fn calls_are_named_by_us() {
    for ids in [["call_3_1"; 3], [""; 3], ["call_3_1", "", "call_3_1"]] {
        let Answer::Blocks(mut blocks) = calls([("work", "{}"); 3]) else { unreachable!() };
        for (block, id) in blocks.iter_mut().zip(ids) {
            let AnswerBlock::ToolCall(call) = block else { unreachable!() };
            call.call_id = id.to_owned();
        }
        let subject = subject([Answer::Blocks(blocks), says("Done.")]).await;
        let result = subject.turn("Go.").await.unwrap();
        assert_eq!((result.status, result.tool_calls), (TurnStatus::Completed, 3), "{ids:?}");
        check_journal(&subject.events().await);
    }
}

/// A tool's logs could not be told from those of other calls.
#[tokio::test]
async fn a_tool_works_inside_the_span_of_its_call() {
    // For all threads: one that has none would switch the spans off that it meets first.
    tracing::subscriber::set_global_default(tracing_subscriber::registry()).unwrap();
    let subject = subject([call(r#"{"span":1}"#), says("Done.")]).await;
    subject.turn("Go.").await.unwrap();
    assert_eq!(subject.event("tool_finished").await["output"], "tool_call");
}

/// An approval that came twice approved the next turn's call, because the vendor had named both alike.
#[tokio::test(start_paused = true)]
async fn a_late_approval_hits_no_other_call() {
    let tool = Does { approval: Approval::Ask, ..work() };
    let model = Heard::new([call("{}"), says("Done."), call("{}")]);
    let subject = Subject::new(super::fakes::rig(model, 100_000, Arc::new(tool)).service()).await;
    let decide = |call_id: &str| {
        let (session_id, call_id, decision) = (subject.session_id, call_id.to_owned(), Decision::Approve);
        subject.service.decide_approval(DecideApproval::new(session_id, call_id, decision))
    };
    subject.service.accept_turn(StartTurn::new(subject.session_id, "First.")).await.unwrap();
    let asked = subject.asked().await;
    decide(&asked).await.unwrap();
    ticks(50).await;
    subject.service.accept_turn(StartTurn::new(subject.session_id, "Second.")).await.unwrap();
    assert_ne!(subject.asked().await, asked);
    assert_eq!(decide(&asked).await.unwrap_err().code(), ErrorCode::ItemNotFound);
}

/// A service that ended waited for ever for a session whose store had failed meanwhile.
#[tokio::test(start_paused = true)]
async fn a_service_ends_also_where_a_store_fails() {
    let subject = Subject::new(Rig::new(Vec::new()).faulty(Fault::Failure, &Fuse::new(2, usize::MAX / 2))).await;
    subject.service.accept_turn(StartTurn::new(subject.session_id, "@say Part. @stall")).await.unwrap();
    ticks(20).await;
    tokio::time::timeout(Duration::from_secs(3600), subject.service.shut_down(1_000)).await.unwrap();
}

/// A turn with the policy `reject` that came between a turn's end and the next one's start was queued.
#[test]
fn a_rejected_turn_is_never_queued() {
    walk(async {
        for tick in 0..60 {
            let subject = Subject::new(Rig::new(Vec::new()).faulty(Fault::Slow, &Fuse::new(0, 0))).await;
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
    let subject = subject([
        call(r#"{"fail":1}"#),
        Answer::Blocks(vec![AnswerBlock::Text("\u{1}".repeat(100_000)); 40]),
        Answer::Blocks(vec![AnswerBlock::Reasoning { text: String::new(), opaque: Some(opaque) }]),
        calls([("work", "{}"); 5_000]),
    ])
    .await;
    subject.turn("Fails.").await.unwrap();
    for refused in ["Opaque.", "Many."] {
        assert_eq!(subject.turn(refused).await.unwrap().error.unwrap().code, ErrorCode::ModelRejected);
    }
    assert!(longest_event(&subject).await <= 256 * 1024);
    let tools = Some(vec!["work".to_owned(); 100_000]);
    let refused = subject.service.create_session(CreateSession { tools, ..CreateSession::default() }).await;
    assert_eq!(refused.unwrap_err().code(), ErrorCode::InvalidRequest);
}

/// An answer too long for its event was cut in the turn's result and in the next request.
#[tokio::test(start_paused = true)]
async fn a_long_answer_is_whole() {
    let long = "z".repeat(200_000);
    let model = Heard::new([says(&long), says("Long.")]);
    let subject = Subject::new(super::fakes::rig(model.clone(), 100_000, Arc::new(work())).service()).await;
    let request = StartTurn { idempotency_key: Some("k".to_owned()), ..StartTurn::new(subject.session_id, "Say it.") };
    let first = subject.service.start_turn(request.clone()).await.unwrap();
    assert_eq!(first.text, long);
    assert_eq!(subject.service.start_turn(request).await.unwrap(), first, "also where it is answered again");
    assert!(longest_event(&subject).await < 16 * 1024, "the event has a reference");
    subject.turn("How long was it?").await.unwrap();
    assert_eq!(model.last()[1].text(), long);
}

/// A tool that wrote more than it may lost everything that it had written, and a failure's text had no limit.
#[tokio::test(start_paused = true)]
async fn what_a_tool_writes_and_says_of_its_failure_is_kept_up_to_the_cap() {
    let finished = async |arguments| {
        let mut rig = rig([call(arguments), says("Done.")]);
        rig.options.tools.max_output_bytes = 100 * 1024;
        let subject = Subject::new(rig.service()).await;
        subject.turn("Go.").await.unwrap();
        subject.event("tool_finished").await
    };
    // The second one passes over the refusal of its output.
    for arguments in [r#"{"flood":1}"#, r#"{"deaf":1}"#] {
        let flooded = finished(arguments).await;
        assert!(flooded["output"].to_string().contains("yyyy"), "{flooded}");
        assert!(flooded["error"]["message"].to_string().contains("102400"), "{flooded}");
        assert!(flooded["output"]["blob"].is_string(), "the result names what was kept: {flooded}");
    }
    assert_eq!(finished(r#"{"fail":1}"#).await["output"].as_str().map(str::len), Some(100 * 1024));
}

/// A command behind one whose write was lost was answered from the lost state.
#[tokio::test(start_paused = true)]
async fn a_command_behind_a_lost_write_meets_what_is_durable() {
    for prompt in [None, Some("@say Part. @stall")] {
        let fuse = Fuse::new(if prompt.is_some() { 2 } else { 1 }, 1);
        let subject = Subject::new(Rig::new(Vec::new()).faulty(Fault::LostWrite, &fuse)).await;
        if let Some(prompt) = prompt {
            subject.service.accept_turn(StartTurn::new(subject.session_id, prompt)).await.unwrap();
        }
        let durable = subject.events().await.len() as u64;
        let pin = || subject.service.pin(PinFact { session_id: subject.session_id, text: "fact".to_owned() });
        // Both are in the mailbox before the actor takes the first.
        let (lost, pinned) = tokio::join!(pin(), pin());
        assert_eq!(lost.unwrap_err().code(), ErrorCode::StoreFailed);
        assert_eq!(pinned.unwrap().seq, durable + 1);
        let pins = subject.service.pins(&subject.session_id).await.unwrap().items;
        assert_eq!(pins.iter().map(|pin| pin.seq).collect::<Vec<_>>(), [durable + 1]);
        ticks(50).await;
        subject.check().await;
    }
}

/// A session that was being made while the service ended took turns afterwards.
#[tokio::test(start_paused = true)]
async fn a_session_made_at_the_end_takes_no_turn() {
    let service = Rig::new(Vec::new()).faulty(Fault::Slow, &Fuse::new(0, 0));
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

/// A model that made the same call three times in one step was accused of a loop before it had a result. A model may
/// repeat a call while its results change, as they do without arguments.
#[tokio::test(start_paused = true)]
async fn calls_that_are_made_together_are_no_loop() {
    let same = r#"{"fail":1}"#;
    for (arguments, at_once, steps, is_loop) in [(same, 3, 2, false), (same, 3, 3, true), ("{}", 1, 5, false)] {
        let together = (0..steps).map(|_| calls(vec![("work", arguments); at_once]));
        let error = subject(together.chain([says("Done.")])).await.turn("Go.").await.unwrap().error;
        assert_eq!(error.map(|error| error.code), is_loop.then_some(ErrorCode::LoopDetected), "{arguments} {steps}");
    }
}

/// Broken once, on a loaded machine: a record was durable, and so shown to followers, before readers had its view.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_has_seen_an_event_finds_it_in_the_view() {
    let fuse = Fuse::new(usize::MAX, 0);
    let events = Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()));
    let events = Arc::new(FaultyEvents(events, Fault::Held, fuse.clone()));
    let service = Arc::new(Rig::new(Vec::new()).stored(events, Arc::new(MemoryIndex::default())));
    let session_id = service.create_session(CreateSession::default()).await.unwrap().session_id;
    let mut follower = service.follow(&session_id, 0).await.unwrap();
    let turn = tokio::spawn({
        let service = service.clone();
        async move { service.start_turn(StartTurn::new(session_id, "@say Done.")).await.unwrap() }
    });
    let mut seen = 0;
    while seen < 4 {
        let Some(seq) = follower.next().await.unwrap().unwrap().seq else { continue };
        let view = service.read(&session_id).await.unwrap();
        fuse.blows();
        assert!(view.last_seq >= seq, "event {seq} is not in the view of {}", view.last_seq);
        seen = seq;
    }
    assert_eq!(turn.await.unwrap().seq, 4);
}
