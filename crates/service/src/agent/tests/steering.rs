//! Texts that are steered into a running turn: where they enter, at every place of the turn, and that none is lost.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::Notify;

use super::{
    Bench, Rig, Subject, TICKS_MAX, check_journal,
    fakes::{Answer, Does, Heard, calls, does, rig, says},
    faults::{Fault, FaultyEvents, Fuse},
    ticks, walk,
};
use crate::{
    ErrorCode, SessionError, SessionId,
    agent::tests::Service,
    follow::turn,
    options::{Budgets, ModelOptions, Policy},
    output::OutputSpec,
    service::{
        CreateSession, DecideApproval, ForkSession, InterruptTurn, ReadHistory, ResumeTurn, SessionService as _,
        StartTurn, TurnResult, TurnStatus,
    },
    session::{
        event::Decision,
        message::{Message, RawJson},
    },
    store::{EventStore, MemoryEventStore, MemoryIndex, MemorySessionStore, SessionStore},
    tool::{Approval, Effect},
};

const TEXT: &str = "Also the tests.";

fn steer(session_id: SessionId, prompt: &str) -> StartTurn {
    StartTurn { policy: Policy::Steer, ..StartTurn::new(session_id, prompt) }
}

fn keyed(session_id: SessionId, prompt: &str, key: &str) -> StartTurn {
    StartTurn { idempotency_key: Some(key.to_owned()), ..steer(session_id, prompt) }
}

fn works() -> Does {
    does("work", Effect::Once, |_, output| {
        Box::pin(async {
            ticks(5).await;
            output.write("worked").await
        })
    })
}

/// A step with two calls, one with one, and then answers.
fn model() -> Arc<Heard> {
    let answers = [calls([("work", "{}"), ("work", "{}")]), calls([("work", "{\"n\":1}")]), says("Done.")];
    Heard::new(answers.into_iter().chain(["One more.", "Next.", "Last."].map(says)))
}

/// Messages with the text.
fn texts(request: &[Arc<Message>]) -> usize {
    request.iter().filter(|message| message.text() == TEXT).count()
}

/// Results come right behind their calls, and calls have results.
fn assert_paired(request: &[Arc<Message>]) {
    for (at, message) in request.iter().enumerate() {
        let has_calls = message.tool_calls().next().is_some();
        let has_results = request.get(at + 1).is_some_and(|next| matches!(**next, Message::ToolResults { .. }));
        assert_eq!(has_calls, has_results, "{request:#?}");
    }
}

fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

/// Wherever the text comes, every model call after its acceptance has it, none has it between a call and its result, and
/// the turn does not end before the model has answered it.
#[test]
fn a_text_at_every_place_of_a_turn_is_in_the_next_model_call() {
    walk(async {
        let (mut with_calls, mut put_off, mut late) = (0, 0, 0);
        for tick in 0..TICKS_MAX {
            let model = model();
            let subject = Subject::new(rig(model.clone(), 1_000_000, Arc::new(works())).service()).await;
            let session_id = subject.session_id;
            let first = subject.service.begin_turn(StartTurn::new(session_id, "Work.")).await.unwrap();
            ticks(tick).await;
            let accepted = subject.service.accept_turn(steer(session_id, TEXT)).await.unwrap();
            let asked = model.requests.lock().unwrap().len();
            let before = subject.events().await;
            let result = first.result.await.unwrap();
            while subject.events().await.last().unwrap()["type"] != "turn_completed" {
                ticks(1).await;
            }
            let events = subject.events().await;
            check_journal(&events);
            let requests = model.requests.lock().unwrap().split_off(0);
            assert!(requests.len() > asked, "the text was answered, at tick {tick}");
            for (at, request) in requests.iter().enumerate() {
                assert_paired(&request.messages);
                assert_eq!(texts(&request.messages), usize::from(at >= asked), "request {at} at tick {tick}");
            }
            if accepted.turn == 1 {
                late += 1;
                assert_eq!(result.text, "Done.");
                if late == 2 {
                    break;
                }
                continue;
            }
            let steered = &events[usize::try_from(accepted.seq).unwrap() - 1];
            assert_eq!((steered["type"].as_str(), steered["prompt"].as_str()), (Some("turn_steered"), Some(TEXT)));
            assert_eq!(steered["started"], first.accepted.seq);
            let entered: Vec<&Value> = events.iter().filter(|event| event["type"] == "steering_entered").collect();
            assert_eq!((entered.len(), &entered[0]["steered"]), (1, &accepted.seq.into()));
            with_calls += usize::from(types(&before).last() == Some(&"tool_started"));
            put_off += usize::from(result.text == "One more.");
        }
        assert!(with_calls > 3 && put_off > 0 && late == 2, "{with_calls} {put_off} {late}");
    });
}

/// A text that comes while an approval is waited for is recorded at once, and enters behind the result.
#[tokio::test]
async fn a_text_while_an_approval_waits_enters_behind_the_result() {
    let bench = Bench::new(|_| {}).await;
    let call_id = bench.asks(r#"@call test_ask {"name":"log","line":"x"} @say Never."#).await;
    let session_id = bench.subject.session_id;
    let steered = bench.subject.service.accept_turn(steer(session_id, "@say Changed.")).await.unwrap();
    let last = bench.subject.events().await.pop().unwrap();
    assert_eq!((&last["type"], &last["seq"]), (&"turn_steered".into(), &steered.seq.into()));
    let decided = DecideApproval::new(session_id, call_id, Decision::Approve);
    bench.subject.service.decide_approval(decided).await.unwrap();
    let events = bench.ended().await;
    let expected = [
        "session_created",
        "turn_started",
        "assistant_message",
        "approval_requested",
        "turn_steered",
        "approval_decided",
        "tool_started",
        "tool_finished",
        "steering_entered",
        "assistant_message",
        "turn_completed",
    ];
    assert_eq!(types(&events), expected);
    assert_eq!(events[9]["blocks"][0]["text"], "Changed.");
}

#[tokio::test]
async fn a_key_leads_to_the_steered_turn() {
    let bench = Bench::new(|rig| rig.options.turn.max_queued = 2).await;
    let (service, session_id) = (&bench.subject.service, bench.subject.session_id);
    let call_id = bench.asks(r#"@call test_ask {"name":"log","line":"x"} @say Never."#).await;
    let steered = service.begin_turn(keyed(session_id, "@say Changed.", "k")).await.unwrap();
    let again = service.begin_turn(keyed(session_id, "@say Changed.", "k")).await.unwrap();
    assert_eq!(again.accepted, steered.accepted);
    let conflict = service.accept_turn(keyed(session_id, "@say Other.", "k")).await.unwrap_err();
    assert_eq!(conflict.code(), ErrorCode::IdempotencyConflict);
    // One more has room, and then the same request is still answered.
    service.accept_turn(steer(session_id, "@say Last.")).await.unwrap();
    let full = service.accept_turn(steer(session_id, "@say Never.")).await.unwrap_err();
    assert!(matches!(full, SessionError::QueueFull { what: "steered texts", limit: 2 }), "{full:?}");
    service.accept_turn(keyed(session_id, "@say Changed.", "k")).await.unwrap();
    service.decide_approval(DecideApproval::new(session_id, call_id, Decision::Approve)).await.unwrap();
    let result = steered.result.await.unwrap();
    assert_eq!((result.turn, result.text.as_str()), (0, "Last."), "the scripted model plays the newest text");
    assert_eq!(again.result.await.unwrap(), result);
    assert_eq!(service.start_turn(keyed(session_id, "@say Changed.", "k")).await.unwrap(), result);
    // A caller that knows the acceptance alone learns as much from the events.
    assert_eq!(turn::result(service, steered.accepted).await.unwrap(), result);
    let events = bench.ended().await;
    assert_eq!(events.iter().filter(|event| event["type"] == "turn_steered").count(), 2);
}

#[tokio::test]
async fn terms_beside_a_steered_text_are_refused_and_nothing_is_recorded() {
    let bench = Bench::new(|_| {}).await;
    let (service, session_id) = (&bench.subject.service, bench.subject.session_id);
    let terms = |field: &str| {
        let mut turn = steer(session_id, "@say Hello.");
        match field {
            "model" => turn.model = Some("scripted".to_owned()),
            "budgets" => turn.budgets = Budgets { steps: Some(3), ..Budgets::default() },
            "options" => turn.options = ModelOptions { stop: Some(vec!["x".to_owned()]), ..ModelOptions::default() },
            "output" => {
                turn.prompt = "@json {}".into();
                turn.output = Some(OutputSpec::new(RawJson::parse(r#"{"type":"object"}"#).unwrap()));
            }
            "client_tools" => turn.client_tools = Some(Vec::new()),
            _ => turn.allow = vec!["test_ask".to_owned()],
        }
        turn
    };
    let fields = ["model", "budgets", "options", "output", "client_tools", "allow"];
    bench.asks(r#"@call test_ask {"name":"log","line":"x"} @say Never."#).await;
    let before = bench.subject.events().await;
    for field in fields {
        let refused = service.accept_turn(terms(field)).await.unwrap_err();
        assert_eq!(
            (refused.code(), refused.body().details["field"].as_str()),
            (ErrorCode::InvalidRequest, Some(field))
        );
    }
    let empty = service.accept_turn(steer(session_id, " ")).await.unwrap_err();
    assert_eq!(empty.body().details["field"], "prompt");
    assert_eq!(bench.subject.events().await, before);
    service.interrupt(InterruptTurn { session_id, turn: None }).await.unwrap();
    // Without a running turn it is a turn, with all its terms.
    for field in fields {
        let result = service.start_turn(terms(field)).await.unwrap();
        let text = if field == "output" { "{}" } else { "Hello." };
        assert_eq!((result.status, result.text.as_str()), (TurnStatus::Completed, text), "{field}");
    }
}

/// Journals and snapshots that outlive their service.
struct Stored {
    events: Arc<dyn EventStore>,
    snapshots: Arc<dyn SessionStore>,
}

impl Stored {
    fn new(events: Arc<dyn EventStore>) -> Self {
        Self { snapshots: Arc::new(MemorySessionStore::new(events.clone())), events }
    }

    fn service(&self, model: &Arc<Heard>, approval: Approval) -> Service {
        let tool = Does { approval, ..works() };
        let rig: Rig = rig(model.clone(), 1_000_000, Arc::new(tool));
        rig.stored_with(self.snapshots.clone(), self.events.clone(), Arc::new(MemoryIndex::default()))
    }
}

fn heard(model: &Heard) -> Vec<String> {
    let written = |message: &Arc<Message>| match &**message {
        Message::ToolResults { .. } => "results".to_owned(),
        message if message.tool_calls().next().is_some() => "calls".to_owned(),
        message => message.text(),
    };
    model.last().iter().map(written).collect()
}

/// The process ends while a text waits behind a call that asks: whether a snapshot or the journal has the session, the
/// text enters behind the result, and its key still leads to the turn.
#[tokio::test(start_paused = true)]
async fn a_text_that_waits_outlives_its_process() {
    for has_snapshot in [false, true] {
        let stored = Stored::new(Arc::new(MemoryEventStore::new(u64::MAX, Arc::default())));
        let model = Heard::new([calls([("work", "{}")]), says("Done.")]);
        let former = stored.service(&model, Approval::Ask);
        let session_id = former.create_session(CreateSession::default()).await.unwrap().session_id;
        former.accept_turn(StartTurn { attended: true, ..StartTurn::new(session_id, "Work.") }).await.unwrap();
        ticks(100).await;
        let steered = former.accept_turn(keyed(session_id, TEXT, "k")).await.unwrap();
        former.shut_down(0).await;
        let stored = if has_snapshot { stored } else { Stored::new(stored.events) };
        let service = stored.service(&model, Approval::Ask);
        let call_id = service.read(&session_id).await.unwrap().pending_approvals[0].call_id.clone();
        let again = service.begin_turn(keyed(session_id, TEXT, "k")).await.unwrap();
        assert_eq!(again.accepted, steered);
        service.decide_approval(DecideApproval::new(session_id, call_id, Decision::Approve)).await.unwrap();
        let result = again.result.await.unwrap();
        assert_eq!((result.turn, result.status), (0, TurnStatus::Completed));
        assert_eq!(heard(&model), ["Work.", "calls", "results", TEXT]);
        assert_eq!(service.start_turn(keyed(session_id, TEXT, "k")).await.unwrap(), result);
        service.shut_down(0).await;
    }
}

/// A turn is interrupted while the model answers: the text is behind what had come, in the context, the history, a fork,
/// and for the turn that goes on.
#[tokio::test(start_paused = true)]
async fn a_text_that_never_was_answered_stays_behind_what_was_said() {
    let said = Arc::new(Notify::new());
    let stored = Stored::new(Arc::new(MemoryEventStore::new(u64::MAX, Arc::default())));
    let model = Heard::new([Answer::Halts("Half of it ", said.clone()), says("Fine."), says("Fine.")]);
    let former = stored.service(&model, Approval::Allow);
    let session_id = former.create_session(CreateSession::default()).await.unwrap().session_id;
    former.accept_turn(StartTurn::new(session_id, "Write.")).await.unwrap();
    said.notified().await;
    let steered = former.begin_turn(steer(session_id, TEXT)).await.unwrap();
    former.accept_turn(steer(session_id, "And the docs.")).await.unwrap();
    former.interrupt(InterruptTurn { session_id, turn: None }).await.unwrap();
    assert_eq!(steered.result.await.unwrap().status, TurnStatus::Interrupted);
    former.shut_down(0).await;
    let due = ["Write.", "Half of it [cut off]", TEXT, "And the docs."];
    for stored in [Stored::new(stored.events.clone()), stored] {
        let service = stored.service(&model, Approval::Allow);
        // Each page begins where the one before ended.
        let mut cursor = None;
        for text in due {
            let page = ReadHistory { cursor, limit: Some(1), ..ReadHistory::new(session_id) };
            let page = service.history(page).await.unwrap();
            assert_eq!(page.items[0].message.text(), text);
            cursor = page.next_cursor;
        }
        let fork = service.fork(ForkSession { session_id, turn: Some(0) }).await.unwrap().session_id;
        let view = service.read(&fork).await.unwrap();
        assert_eq!((view.context.messages, view.message_count), (4, 4));
        service.resume(&fork, ResumeTurn::default()).await.unwrap();
        assert_eq!(heard(&model), due);
        service.shut_down(0).await;
    }
}

/// A write of the turn is lost, each once: a text that was accepted is in the context once, and one whose acceptance was
/// lost is not.
#[tokio::test(start_paused = true)]
async fn a_fault_at_every_write_of_a_steered_turn() {
    let mut lost = 0;
    for fault in [Fault::LostSync, Fault::LostWrite] {
        for (at, tick) in (1..9).flat_map(|at| [2, 20, 40].map(|tick| (at, tick))) {
            let events: Arc<dyn EventStore> = Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()));
            let faulty = Arc::new(FaultyEvents(events, fault, Fuse::new(at, 1)));
            let stored = Stored::new(faulty);
            let model = model();
            let service = stored.service(&model, Approval::Allow);
            let session_id = service.create_session(CreateSession::default()).await.unwrap().session_id;
            let begun = service.begin_turn(StartTurn::new(session_id, "Work.")).await;
            ticks(tick).await;
            let steered = service.accept_turn(steer(session_id, TEXT)).await;
            if let Ok(begun) = begun {
                drop(begun.result.await);
            }
            ticks(200).await;
            let subject = Subject { service, session_id };
            let next: TurnResult = subject.turn("Next.").await.unwrap();
            assert_eq!(next.status, TurnStatus::Completed);
            let count = texts(&model.last());
            lost += usize::from(steered.is_err());
            match steered {
                Ok(_) => assert_eq!(count, 1, "{fault:?} {at} {tick}"),
                Err(error) => {
                    assert_eq!(error.code(), ErrorCode::StoreFailed, "{fault:?} {at} {tick}");
                    assert!(count <= 1, "{fault:?} {at} {tick}");
                }
            }
            assert_paired(&model.last());
            check_journal(&subject.events().await);
        }
    }
    assert!(lost > 1, "{lost}");
}

/// Waits until so many events of a type are recorded.
async fn seen(subject: &Subject, name: &str, count: usize) {
    while types(&subject.events().await).iter().filter(|seen| **seen == name).count() < count {
        ticks(1).await;
    }
}

/// A text that comes with an interrupt, at every place of a turn, does not go into the turn that ends.
#[test]
fn a_text_behind_an_interrupt_is_a_turn_of_its_own() {
    walk(async {
        let mut interrupted = 0;
        for tick in 0..60 {
            let subject = Subject::new(rig(model(), 1_000_000, Arc::new(works())).service()).await;
            let session_id = subject.session_id;
            subject.service.accept_turn(StartTurn::new(session_id, "Work.")).await.unwrap();
            ticks(tick).await;
            let interrupt = subject.service.interrupt(InterruptTurn { session_id, turn: Some(0) });
            let (ended, accepted) = futures::join!(interrupt, subject.service.accept_turn(steer(session_id, TEXT)));
            let accepted = accepted.unwrap();
            let result = turn::result(&subject.service, accepted.clone()).await.unwrap();
            assert_eq!(result.status, TurnStatus::Completed, "at tick {tick}");
            if ended.is_ok() {
                assert_eq!(accepted.turn, 1, "at tick {tick}");
                interrupted += 1;
            }
            check_journal(&subject.events().await);
        }
        assert!(interrupted > 5, "{interrupted}");
    });
}

/// A text that no budget is left for does not spoil the turn's answer. It is there for the next turn.
#[tokio::test(start_paused = true)]
async fn a_text_beside_the_last_answer_that_a_budget_allows_waits_for_the_next_turn() {
    let (asked, answers) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let waits = (asked.clone(), answers.clone());
    let late = async move {
        waits.0.notify_one();
        waits.1.notified().await;
    };
    let done = crate::model::AnswerBlock::Text("Done.".to_owned());
    let model = Heard::new([Answer::Late(Box::pin(late), vec![done]), says("Next.")]);
    let subject = Subject::new(rig(model.clone(), 1_000_000, Arc::new(works())).service()).await;
    let session_id = subject.session_id;
    let budgets = Budgets { steps: Some(1), ..Budgets::default() };
    let first = StartTurn { budgets, ..StartTurn::new(session_id, "Work.") };
    let first = subject.service.begin_turn(first).await.unwrap();
    asked.notified().await;
    let steered = subject.service.begin_turn(keyed(session_id, TEXT, "k")).await.unwrap();
    answers.notify_one();
    let result = first.result.await.unwrap();
    assert_eq!((result.status, result.text.as_str()), (TurnStatus::Completed, "Done."));
    assert_eq!(steered.result.await.unwrap(), result);
    let events = subject.events().await;
    let end = ["assistant_message", "steering_entered", "turn_completed"];
    assert_eq!(types(&events)[events.len() - 3..], end);
    check_journal(&events);
    assert_eq!(subject.turn("Go on.").await.unwrap().text, "Next.");
    assert_eq!(heard(&model), ["Work.", "Done.", TEXT, "Go on."]);
}

/// At every place of a turn with one step a text leaves its answer as it is, and is in the next model call.
#[test]
fn a_text_at_every_place_of_a_turn_without_room_for_another_step() {
    walk(async {
        for tick in 0..40 {
            let model = Heard::new(["Done.", "Next.", "Last."].map(says));
            let subject = Subject::new(rig(model.clone(), 1_000_000, Arc::new(works())).service()).await;
            let session_id = subject.session_id;
            let budgets = Budgets { steps: Some(1), ..Budgets::default() };
            let first = StartTurn { budgets, ..StartTurn::new(session_id, "Work.") };
            let first = subject.service.begin_turn(first).await.unwrap();
            ticks(tick).await;
            let steered = subject.service.begin_turn(steer(session_id, TEXT)).await.unwrap();
            let result = first.result.await.unwrap();
            assert_eq!((result.status, result.text.as_str()), (TurnStatus::Completed, "Done."), "at tick {tick}");
            assert_eq!(steered.result.await.unwrap().status, TurnStatus::Completed, "at tick {tick}");
            subject.turn("Go on.").await.unwrap();
            assert_eq!(texts(&model.last()), 1, "at tick {tick}");
            check_journal(&subject.events().await);
        }
    });
}

/// A model that repeats itself gets a new instruction: what it did before is no loop any more.
#[tokio::test(start_paused = true)]
async fn a_text_begins_the_guard_against_loops_again() {
    let again = || calls([("work", "{}")]);
    for repeats in [1, 3] {
        let answers = [again(), again()].into_iter().chain((0..repeats).map(|_| again())).chain([says("Done.")]);
        let subject = Subject::new(rig(Heard::new(answers), 1_000_000, Arc::new(works())).service()).await;
        let first = subject.service.begin_turn(StartTurn::new(subject.session_id, "Work.")).await.unwrap();
        seen(&subject, "tool_started", 2).await;
        subject.service.accept_turn(steer(subject.session_id, TEXT)).await.unwrap();
        let code = first.result.await.unwrap().error.map(|error| error.code);
        assert_eq!(code, (repeats == 3).then_some(ErrorCode::LoopDetected));
    }
}

/// A text that cannot fit the model's window is refused, so the turn goes on; so is one that others leave no room for.
#[tokio::test(start_paused = true)]
async fn a_text_that_cannot_fit_the_window_is_refused() {
    for compaction in [None, Some(crate::compaction::CompactionConfig::default())] {
        let tool = Does { approval: Approval::Ask, ..works() };
        let mut rig = rig(Heard::new([calls([("work", "{}")]), says("Done.")]), 2_000, Arc::new(tool));
        rig.compaction = compaction;
        let subject = Subject::new(rig.service()).await;
        let (service, session_id) = (&subject.service, subject.session_id);
        let turn = StartTurn { attended: true, ..StartTurn::new(session_id, "Work.") };
        let first = service.begin_turn(turn).await.unwrap();
        let call_id = subject.asked().await;
        let before = subject.events().await;
        let refused = service.accept_turn(steer(session_id, &"x".repeat(8_100))).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::PayloadTooLarge);
        assert_eq!(refused.body().details["what"], "steered text");
        assert_eq!(subject.events().await, before);
        service.accept_turn(steer(session_id, &"x".repeat(4_500))).await.unwrap();
        let refused = service.accept_turn(steer(session_id, &"x".repeat(4_500))).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::PayloadTooLarge);
        service.decide_approval(DecideApproval::new(session_id, call_id, Decision::Approve)).await.unwrap();
        assert_eq!(first.result.await.unwrap().status, TurnStatus::Completed);
    }
}

/// The turn outgrows the window: the next one still knows what was said in it.
#[tokio::test(start_paused = true)]
async fn of_a_turn_that_did_not_fit_the_beginning_of_each_text_stays() {
    let floods = does("work", Effect::Once, |_, output| {
        Box::pin(async {
            ticks(20).await;
            output.write(&"x".repeat(20_000)).await
        })
    });
    let model = Heard::new([calls([("work", "{}")]), says("Next.")]);
    let subject = Subject::new(rig(model.clone(), 2_000, Arc::new(floods)).service()).await;
    let session_id = subject.session_id;
    let first = subject.service.begin_turn(StartTurn::new(session_id, "Work.")).await.unwrap();
    seen(&subject, "tool_started", 1).await;
    subject.service.accept_turn(steer(session_id, TEXT)).await.unwrap();
    subject.service.accept_turn(steer(session_id, &"long ".repeat(300))).await.unwrap();
    let error = first.result.await.unwrap().error.unwrap();
    assert_eq!(error.code, ErrorCode::ContextOverflow);
    subject.turn("Go on.").await.unwrap();
    let long = &"long ".repeat(300)[..1024];
    let left = format!(
        "Work.\n\n[Added while it ran:]\n{TEXT}\n\n[Added while it ran:]\n{long} [...]\n\n\
         [This turn did not fit the model's window, and the rest of it left the context. It had called:]\n\
         - work {{}}: succeeded"
    );
    assert_eq!(heard(&model), [left.as_str(), "Go on."]);
}

/// The context has to shrink where a text enters behind results: the model reads them, and the task, before it goes on.
#[tokio::test(start_paused = true)]
async fn a_compaction_at_a_text_keeps_the_results_that_the_model_has_not_read() {
    let writes = does("work", Effect::Once, |_, output| {
        Box::pin(async {
            ticks(20).await;
            output.write(&"x".repeat(4_000)).await
        })
    });
    let work = |n: u32| calls([("work", format!("{{\"n\":{n}}}"))]);
    let model = Heard::new([work(1), work(2), says("It went well."), says("Done.")]);
    let mut rig = rig(model.clone(), 2_500, Arc::new(writes));
    rig.compaction = Some(crate::compaction::CompactionConfig {
        auto_compact_threshold: 1_500,
        max_summary_tokens: 200,
        mask_tool_results: false,
        ..Default::default()
    });
    let subject = Subject::new(rig.service()).await;
    let first = subject.service.begin_turn(StartTurn::new(subject.session_id, "Work.")).await.unwrap();
    seen(&subject, "tool_started", 2).await;
    subject.service.accept_turn(steer(subject.session_id, TEXT)).await.unwrap();
    assert_eq!(first.result.await.unwrap().text, "Done.");
    let heard = heard(&model);
    assert!(heard[0].ends_with("It went well."), "{heard:?}");
    assert_eq!(heard[1..], ["Work.", "calls", "results", TEXT]);
    let events = subject.events().await;
    let behind = types(&events).iter().position(|name| *name == "steering_entered").unwrap();
    assert_eq!(
        types(&events)[behind + 1..behind + 4],
        ["compaction_started", "context_rebuilt", "compaction_completed"]
    );
    check_journal(&events);
}
