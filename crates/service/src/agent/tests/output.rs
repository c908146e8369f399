//! Answers by a schema: what completes a turn, what goes back to the model, and what is left of either.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Value, json};
use tokio::sync::Notify;

use super::{
    Bench, Rig, Subject, TICKS_MAX, check_journal,
    fakes::{Answer, Does, Heard, calls, does, rig, says},
    faults::{Fault, FaultyEvents, Fuse},
    ticks, walk,
};
use crate::{
    ErrorCode, SessionId,
    agent::tests::Service,
    follow::turn,
    model::{AnswerBlock, StaticModels},
    options::{Budgets, Policy},
    output::OutputSpec,
    service::{
        CreateSession, DecideApproval, InterruptTurn, ResumeTurn, SessionService as _, StartTurn, TurnResult,
        TurnStatus,
    },
    session::{
        event::{AssistantMessage, Decision, Event, Record, TurnInterrupted, TurnStarted, TurnTotals},
        message::{Block, RawJson},
        tests::{created, record, session_id},
    },
    store::{EventStore, MemoryEventStore, MemoryIndex, MemorySessionStore, SessionStore},
    tool::{Approval, Effect},
};

const SCHEMA: &str =
    r#"{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}"#;

fn spec(repairs: u8) -> OutputSpec {
    OutputSpec { repairs, ..OutputSpec::new(RawJson::parse(SCHEMA).unwrap()) }
}

fn asks(session_id: SessionId, prompt: &str, repairs: u8) -> StartTurn {
    StartTurn { output: Some(spec(repairs)), ..StartTurn::new(session_id, prompt) }
}

fn keyed(turn: StartTurn) -> StartTurn {
    StartTurn { idempotency_key: Some("k".to_owned()), ..turn }
}

fn output(result: &TurnResult) -> Option<&str> {
    result.output.as_ref().map(RawJson::as_str)
}

fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

/// A session of a model without a tool.
async fn subject(model: &Arc<Heard>) -> Subject {
    let rig = rig(model.clone(), 1_000_000, Arc::new(does("work", Effect::Once, works)));
    let events = Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()));
    Subject::new(rig.stored(events, Arc::new(MemoryIndex::default()))).await
}

fn works(
    _: crate::tool::Invocation,
    output: &crate::tool::OutputSink,
) -> futures::future::BoxFuture<'_, Result<(), crate::tool::ToolError>> {
    Box::pin(output.write("worked"))
}

/// Numbers are as the model wrote them, whoever asks for the result, and whenever.
#[tokio::test(start_paused = true)]
async fn an_answer_that_fits_is_the_output_as_it_was_written() {
    let schema = RawJson::parse(r#"{"type":"object","required":["a"]}"#).unwrap();
    let written = r#"{"a":1.0,"b":1e2,"c":12345678901234567890,"d":[0.10,-0]}"#;
    let events: Arc<dyn EventStore> = Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()));
    let stored = || Rig::new(Vec::new()).stored(events.clone(), Arc::new(MemoryIndex::default()));
    let service = stored();
    let session_id = service.create_session(CreateSession::default()).await.unwrap().session_id;
    let turn = StartTurn::new(session_id, format!("@json {written}"));
    let turn = keyed(StartTurn { output: Some(OutputSpec::new(schema)), ..turn });
    let begun = service.begin_turn(turn.clone()).await.unwrap();
    let accepted = begun.accepted.clone();
    let result = begun.result.await.unwrap();
    assert_eq!((result.status, result.text.as_str(), output(&result)), (TurnStatus::Completed, written, Some(written)));
    let json = serde_json::to_string(&result).unwrap();
    assert!(json.contains(&format!(r#""output":{written},"#)), "{json}");
    assert_eq!(service.start_turn(turn.clone()).await.unwrap(), result);
    assert_eq!(turn::result(&service, accepted.clone()).await.unwrap(), result);
    service.shut_down(0).await;
    let service = stored();
    assert_eq!(service.start_turn(turn).await.unwrap(), result, "after a restart");
    assert_eq!(turn::result(&service, accepted).await.unwrap(), result);
    let plain = service.start_turn(StartTurn::new(session_id, "@json {\"n\":1}")).await.unwrap();
    assert_eq!((plain.text.as_str(), plain.output), ("{\"n\":1}", None), "without a schema there is none");
    service.shut_down(0).await;
}

/// White space around it is allowed; what is said before the last text is not part of the answer.
#[tokio::test(start_paused = true)]
async fn the_last_text_of_the_last_answer_counts() {
    let text = |text: &str| AnswerBlock::Text(text.to_owned());
    let model = Heard::new([
        Answer::Blocks(vec![text("Here it is:"), text(" \n{ \"n\" : 1 }\n")]),
        Answer::Blocks(vec![text("{\"n\":1}"), text("Done.")]),
        Answer::Blocks(Vec::new()),
        says("```json\n{\"n\":2}\n```"),
    ]);
    let subject = subject(&model).await;
    let result = subject.service.start_turn(asks(subject.session_id, "Go.", 0)).await.unwrap();
    assert_eq!(output(&result), Some("{\"n\":1}"));
    assert_eq!(result.text, "Here it is: \n{ \"n\" : 1 }\n");
    for why in ["behind it", "nothing", "a fence"] {
        let result = subject.service.start_turn(asks(subject.session_id, "Go.", 0)).await.unwrap();
        assert_eq!((result.status, output(&result)), (TurnStatus::Failed, None), "{why}");
    }
}

/// The model is told what is wrong with each answer, in the request after it and in no later one.
#[tokio::test(start_paused = true)]
async fn an_answer_that_does_not_fit_goes_back_to_the_model() {
    let model = Heard::new([r#"{"n":"x","m":1}"#, "No.", r#"{"n":3}"#, "Fine."].map(says));
    let subject = subject(&model).await;
    let result = subject.service.start_turn(asks(subject.session_id, "Go.", 2)).await.unwrap();
    assert_eq!((result.status, result.steps, output(&result)), (TurnStatus::Completed, 3, Some(r#"{"n":3}"#)));
    subject.turn("Thanks.").await.unwrap();
    let events = subject.events().await;
    check_journal(&events);
    let due = ["assistant_message", "output_refused", "assistant_message", "output_refused", "assistant_message"];
    assert_eq!(types(&events)[2..8], [&due[..], &["turn_completed"]].concat());
    let paths = |at: usize| {
        let errors = events[at]["errors"].as_array().unwrap().iter();
        errors.map(|error| error["path"].as_str().unwrap()).collect::<BTreeSet<_>>()
    };
    assert_eq!((paths(3), paths(5)), (BTreeSet::from(["", "/n"]), BTreeSet::from([""])));
    let requests = model.requests.lock().unwrap();
    let tails: Vec<String> =
        requests.iter().map(|request| request.tail.as_deref().unwrap_or_default().into()).collect();
    assert_eq!((tails[0].as_str(), tails[3].as_str()), ("", ""));
    assert!(tails[1].contains("\n- /n: value is not of type \"integer\""), "{}", tails[1]);
    assert!(!tails[1].contains("JSON: ") && tails[2].contains("\n- not valid JSON: "), "{}", tails[2]);
    assert!(!tails[2].contains("/n"), "{}", tails[2]);
    let asked: Vec<bool> = requests.iter().map(|request| request.output.is_some()).collect();
    assert_eq!(asked, [true, true, true, false]);
}

#[tokio::test(start_paused = true)]
async fn a_turn_fails_after_its_repairs() {
    for repairs in [0, 1, 5] {
        let model = Heard::new((0..=repairs).map(|n| says(&format!(r#"{{"n":{n}.5}}"#))).chain([says("Next.")]));
        let subject = subject(&model).await;
        let turn = keyed(asks(subject.session_id, "Go.", repairs));
        let result = subject.service.start_turn(turn.clone()).await.unwrap();
        let error = result.error.clone().unwrap();
        assert_eq!((error.code, &error.details["paths"]), (ErrorCode::OutputInvalid, &json!(["/n"])));
        assert!(error.message.ends_with("schema: /n: value is not of type \"integer\"."), "{}", error.message);
        assert_eq!((result.status, output(&result)), (TurnStatus::Failed, None));
        assert_eq!(result.text, format!(r#"{{"n":{repairs}.5}}"#), "the last answer can be looked at");
        assert_eq!(subject.service.start_turn(turn).await.unwrap(), result);
        let events = subject.events().await;
        let refused = types(&events).iter().filter(|name| **name == "output_refused").count();
        assert_eq!((refused, result.steps), (repairs.into(), u32::from(repairs) + 1));
        assert_eq!(subject.turn("Go on.").await.unwrap().text, "Next.");
    }
}

/// Only the answer that would end the turn is checked. A budget ends the turn before a repair that it does not allow.
#[tokio::test(start_paused = true)]
async fn the_schema_binds_the_last_step() {
    let beside = |text: &str| match calls([("work", "{}")]) {
        Answer::Blocks(call) => Answer::Blocks([AnswerBlock::Text(text.to_owned())].into_iter().chain(call).collect()),
        other => other,
    };
    let (beside, fits) = (beside("Let me see."), beside(r#"{"n":1}"#));
    let nothing = Answer::Blocks(Vec::new());
    let model = Heard::new([beside, says(r#"{"n":1}"#), fits, nothing, says("No."), says("Next.")]);
    let subject = subject(&model).await;
    let result = subject.service.start_turn(asks(subject.session_id, "Work.", 0)).await.unwrap();
    assert_eq!((result.tool_calls, output(&result)), (1, Some(r#"{"n":1}"#)));
    let result = subject.service.start_turn(asks(subject.session_id, "Work.", 0)).await.unwrap();
    assert_eq!(
        (result.status, output(&result)),
        (TurnStatus::Failed, None),
        "what was said beside a call is no answer"
    );
    let budgets = Budgets { steps: Some(1), ..Budgets::default() };
    let turn = StartTurn { budgets, ..asks(subject.session_id, "Go.", 2) };
    let result = subject.service.start_turn(turn).await.unwrap();
    assert_eq!(result.error.unwrap().code, ErrorCode::BudgetExhausted);
    assert_eq!(subject.turn("Go on.").await.unwrap().text, "Next.");
    check_journal(&subject.events().await);
}

/// A text that is steered in behind an answer that fits: the answer to it has to fit.
#[tokio::test(start_paused = true)]
async fn the_answer_to_a_steered_text_must_fit() {
    let (asked, answers) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let waits = (asked.clone(), answers.clone());
    let late = async move {
        waits.0.notify_one();
        waits.1.notified().await;
    };
    let fits = AnswerBlock::Text(r#"{"n":1}"#.to_owned());
    let model = Heard::new([Answer::Late(Box::pin(late), vec![fits]), says("Two."), says(r#"{"n":2}"#)]);
    let subject = subject(&model).await;
    let first = subject.service.begin_turn(asks(subject.session_id, "Go.", 1)).await.unwrap();
    asked.notified().await;
    let steer = StartTurn { policy: Policy::Steer, ..StartTurn::new(subject.session_id, "Rather two.") };
    let refused = StartTurn { output: Some(spec(1)), ..steer.clone() };
    let refused = subject.service.accept_turn(refused).await.unwrap_err();
    assert_eq!(refused.body().details["field"], "output");
    subject.service.accept_turn(steer).await.unwrap();
    answers.notify_one();
    let result = first.result.await.unwrap();
    assert_eq!(output(&result), Some(r#"{"n":2}"#));
    let events = subject.events().await;
    let due = ["assistant_message", "steering_entered", "assistant_message", "output_refused", "assistant_message"];
    assert_eq!(types(&events)[3..], [&due[..], &["turn_completed"]].concat());
    check_journal(&events);
}

/// An interrupt at every place of a turn that is repaired: it completes with an output or is interrupted without one, and
/// the turn that goes on with it has its schema.
#[test]
fn a_turn_that_is_interrupted_goes_on_with_its_schema() {
    walk(async {
        let (mut interrupted, mut behind_an_answer) = (0, 0);
        for tick in 0..TICKS_MAX {
            let bench = Bench::new(|_| {}).await;
            let (service, session_id) = (&bench.subject.service, bench.subject.session_id);
            let prompt = r#"@json {"n":"x"} @step @json {"n":"y"} @step @json {"n":3}"#;
            let first = service.begin_turn(asks(session_id, prompt, 2)).await.unwrap();
            ticks(tick).await;
            let is_late = service.interrupt(InterruptTurn { session_id, turn: Some(0) }).await.is_err();
            let result = first.result.await.unwrap();
            if is_late {
                assert_eq!(output(&result), Some(r#"{"n":3}"#), "at tick {tick}");
                break;
            }
            assert_eq!((result.status, output(&result)), (TurnStatus::Interrupted, None), "at tick {tick}");
            interrupted += 1;
            let answers = types(&bench.subject.events().await).iter().filter(|it| **it == "assistant_message").count();
            behind_an_answer += usize::from(answers > 0);
            let result = service.resume(&session_id, ResumeTurn::default()).await.unwrap();
            assert_eq!(output(&result), Some(r#"{"n":3}"#), "at tick {tick}");
            let text = |event: &Value| event["blocks"][0]["text"].as_str().map(str::to_owned);
            let said: Vec<String> = bench.subject.events().await.iter().filter_map(text).collect();
            assert_eq!(
                said,
                [r#"{"n":"x"}"#, r#"{"n":"y"}"#, r#"{"n":3}"#],
                "each step is played once, at tick {tick}"
            );
        }
        assert!(interrupted > 5 && behind_an_answer > 3, "{interrupted} {behind_an_answer}");
    });
}

/// A turn that goes on behind an answer that was refused ends its request with a user's message, as vendors want it.
#[tokio::test(start_paused = true)]
async fn a_turn_that_goes_on_behind_a_refused_answer_asks_for_another() {
    let asked = Arc::new(Notify::new());
    let notice = asked.clone();
    let stalls = Answer::Late(
        Box::pin(async move {
            notice.notify_one();
            std::future::pending().await
        }),
        Vec::new(),
    );
    let model = Heard::new([says("No."), stalls, says(r#"{"n":1}"#)]);
    let subject = subject(&model).await;
    let (service, session_id) = (&subject.service, subject.session_id);
    let first = service.begin_turn(asks(session_id, "Go.", 1)).await.unwrap();
    asked.notified().await;
    service.interrupt(InterruptTurn { session_id, turn: None }).await.unwrap();
    assert_eq!(first.result.await.unwrap().status, TurnStatus::Interrupted);
    let result = service.resume(&session_id, ResumeTurn::default()).await.unwrap();
    assert_eq!(output(&result), Some(r#"{"n":1}"#));
    let last = model.requests.lock().unwrap().last().unwrap().clone();
    assert_eq!(last.messages.last().unwrap().text(), "No.");
    let tail = last.tail.unwrap();
    assert!(tail.starts_with("[Your last answer does not fit") && tail.contains("\n- not valid JSON: "), "{tail}");
}

/// By another schema something else is wrong with it.
#[tokio::test(start_paused = true)]
async fn a_turn_that_goes_on_by_another_schema_is_not_told_what_was_wrong_by_the_former() {
    let asked = Arc::new(Notify::new());
    let model = Heard::new([says(r#"{"n":"x"}"#), Answer::Halts("", asked.clone()), says(r#"{"n":"x"}"#)]);
    let subject = subject(&model).await;
    let (service, session_id) = (&subject.service, subject.session_id);
    let first = service.begin_turn(asks(session_id, "Go.", 1)).await.unwrap();
    asked.notified().await;
    service.interrupt(InterruptTurn { session_id, turn: None }).await.unwrap();
    first.result.await.unwrap();
    let other = OutputSpec::new(RawJson::parse(r#"{"type":"object"}"#).unwrap());
    let resumed = ResumeTurn { output: Some(other), ..ResumeTurn::default() };
    assert_eq!(output(&service.resume(&session_id, resumed).await.unwrap()), Some(r#"{"n":"x"}"#));
    let tail = model.requests.lock().unwrap().last().unwrap().tail.clone().unwrap();
    assert!(tail.starts_with("[Answer again from the beginning") && !tail.contains("/n"), "{tail}");
}

/// Half of a JSON text and its rest are two answers of which none fits.
#[tokio::test(start_paused = true)]
async fn a_turn_that_goes_on_behind_a_part_of_its_answer_asks_for_the_whole() {
    let said = Arc::new(Notify::new());
    let model = Heard::new([Answer::Halts(r#"{"n":"#, said.clone()), says(r#"{"n":1}"#)]);
    let subject = subject(&model).await;
    let (service, session_id) = (&subject.service, subject.session_id);
    let first = service.begin_turn(asks(session_id, "Go.", 0)).await.unwrap();
    said.notified().await;
    service.interrupt(InterruptTurn { session_id, turn: None }).await.unwrap();
    first.result.await.unwrap();
    assert_eq!(output(&service.resume(&session_id, ResumeTurn::default()).await.unwrap()), Some(r#"{"n":1}"#));
    let last = model.requests.lock().unwrap().last().unwrap().clone();
    assert_eq!(last.messages.last().unwrap().text(), r#"{"n": [cut off]"#);
    let tail = last.tail.unwrap();
    assert!(tail.contains("Answer again from the beginning") && !tail.contains("Go on where it ended"), "{tail}");
}

/// The end of a turn was lost, and the session was told that it was interrupted: nothing is known of its answer.
#[tokio::test(start_paused = true)]
async fn what_goes_on_behind_an_answer_that_was_never_checked_says_nothing_of_it() {
    for has_schema in [true, false] {
        let mut records = left("Fine.");
        if let Event::TurnStarted(started) = &mut records[1].event {
            started.output.take_if(|_| !has_schema);
        }
        records.push(interrupted(4));
        let model = Heard::new([says(r#"{"n":1}"#)]);
        let service = resumed(records, &model).await;
        service.resume(&session_id(), ResumeTurn::default()).await.unwrap();
        let tail = model.requests.lock().unwrap()[0].tail.as_deref().map(str::to_owned);
        let due = has_schema
            .then_some("[Answer again from the beginning, with nothing but JSON that fits the schema of this answer.]");
        assert_eq!(tail.as_deref(), due);
    }
}

/// What a bundle says of an answer is checked before it is sent.
#[tokio::test(start_paused = true)]
async fn the_schema_of_a_turn_that_was_made_elsewhere_is_checked() {
    let of = |schema: &str| OutputSpec::new(RawJson::parse(schema).unwrap());
    for (output, field) in [
        (spec(255), "output.repairs"),
        (OutputSpec { name: Some("a b".to_owned()), ..spec(1) }, "output.name"),
        (of(r#"{"type":"array"}"#), "output.schema"),
        (of(&format!(r#"{{"type":"object","title":"{}"}}"#, "x".repeat(64 * 1024))), "output.schema"),
    ] {
        let mut records = left("Fine.");
        if let Event::TurnStarted(started) = &mut records[1].event {
            started.output = Some(Arc::new(output));
        }
        records.truncate(2);
        records.push(interrupted(3));
        let model = Heard::new([says("Next.")]);
        let service = resumed(records, &model).await;
        let result = service.resume(&session_id(), ResumeTurn::default()).await.unwrap();
        let error = result.error.unwrap();
        assert_eq!((error.code, &error.details["field"]), (ErrorCode::InvalidRequest, &json!(field)));
        assert!(model.requests.lock().unwrap().is_empty(), "nothing was sent");
        let next = service.start_turn(StartTurn::new(session_id(), "Go.")).await.unwrap();
        assert_eq!(next.text, "Next.");
    }
}

fn interrupted(seq: u64) -> Record {
    let event = TurnInterrupted { reason: "requested".to_owned(), totals: TurnTotals::default() };
    record(seq, Some(0), Event::TurnInterrupted(event))
}

/// A service of this model over a session with these events.
async fn resumed(records: Vec<Record>, model: &Arc<Heard>) -> Service {
    let events: Arc<dyn EventStore> = Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()));
    let lease = events.lease(session_id()).await.unwrap();
    events.stage(&lease, &records).unwrap().durable().await.unwrap();
    let mut rig = Rig::new(Vec::new());
    rig.models = Arc::new(StaticModels::new("scripted", model.clone(), 1_000_000));
    rig.stored(events, Arc::new(MemoryIndex::default()))
}

/// A vendor refuses its mode for reasons that no table knows: then the tool is tried, once.
#[tokio::test(start_paused = true)]
async fn where_the_mode_is_refused_the_answer_is_asked_for_by_the_tool() {
    let fails = || Answer::Fails(ErrorCode::ModelRejected);
    let model = Heard::new([fails(), says(r#"{"n":1}"#), fails(), fails(), fails()]);
    let subject = subject(&model).await;
    let by_tool =
        || model.requests.lock().unwrap().drain(..).map(|request| request.answers_by_tool).collect::<Vec<_>>();
    let result = subject.service.start_turn(asks(subject.session_id, "Go.", 0)).await.unwrap();
    assert_eq!((output(&result), by_tool()), (Some(r#"{"n":1}"#), vec![false, true]));
    let result = subject.service.start_turn(asks(subject.session_id, "Go.", 0)).await.unwrap();
    assert_eq!((result.error.unwrap().code, by_tool()), (ErrorCode::ModelRejected, vec![false, true]));
    let result = subject.turn("Go.").await.unwrap();
    assert_eq!((result.error.unwrap().code, by_tool()), (ErrorCode::ModelRejected, vec![false]));
}

/// Who declines once declines again, and each time costs.
#[tokio::test(start_paused = true)]
async fn an_answer_that_was_declined_does_not_go_back() {
    for (reason, steps) in [("refusal", 1), ("content_filter", 1), ("max_tokens", 2)] {
        let bench = Bench::new(|_| {}).await;
        let prompt = format!(r#"@say No. @stop {reason} @step @json {{"n":1}}"#);
        let result = bench.subject.service.start_turn(asks(bench.subject.session_id, &prompt, 2)).await.unwrap();
        assert_eq!(result.steps, steps, "{reason}");
        let (code, stop) = (result.error.as_ref().map(|error| error.code), json!(result.stop_reason));
        match steps {
            1 => assert_eq!((code, stop), (Some(ErrorCode::OutputInvalid), json!(reason))),
            _ => assert_eq!((code, output(&result)), (None, Some(r#"{"n":1}"#))),
        }
    }
}

/// Another node, or MCP, has decoded what it passes on.
#[tokio::test(start_paused = true)]
async fn a_schema_that_is_spelt_in_another_way_is_the_same() {
    let subject = subject(&Heard::new([says(r#"{"n":1}"#)])).await;
    let of = |schema: &str| {
        let output = Some(OutputSpec::new(RawJson::parse(schema).unwrap()));
        keyed(StartTurn { output, ..StartTurn::new(subject.session_id, "Go.") })
    };
    let first = of(r#"{"type":"object","title":"\u00fcber","properties":{"n":{"maximum":1e2}}}"#);
    let first = subject.service.start_turn(first).await.unwrap();
    let again = of(r#"{"type":"object","title":"über","properties":{"n":{"maximum":100.0}}}"#);
    assert_eq!(subject.service.start_turn(again).await.unwrap(), first);
    let other = of(r#"{"type":"object","title":"uber","properties":{"n":{"maximum":1e2}}}"#);
    assert_eq!(subject.service.start_turn(other).await.unwrap_err().code(), ErrorCode::IdempotencyConflict);
}

/// A step that only calls says no text, so the text before is still the last one.
#[tokio::test(start_paused = true)]
async fn a_turn_that_ends_at_a_call_has_the_text_before_it() {
    let Answer::Blocks(call) = calls([("work", "{}")]) else { unreachable!() };
    let beside = [AnswerBlock::Text("Let me see.".to_owned())].into_iter().chain(call).collect();
    let subject = subject(&Heard::new([Answer::Blocks(beside), calls([("work", "{}")])])).await;
    let budgets = Budgets { steps: Some(2), ..Budgets::default() };
    let turn = StartTurn { budgets, ..asks(subject.session_id, "Work.", 0) };
    let result = subject.service.start_turn(turn).await.unwrap();
    assert_eq!((result.error.unwrap().code, result.text.as_str()), (ErrorCode::BudgetExhausted, "Let me see."));
}

/// The schema is sent with every request, so it is a part of the window.
#[tokio::test(start_paused = true)]
async fn the_schema_takes_room_of_the_window() {
    let subject = subject(&Heard::new([r#"{"n":1}"#, r#"{"n":1}"#].map(says))).await;
    subject.turn("Go.").await.unwrap();
    subject.service.start_turn(asks(subject.session_id, "Go.", 0)).await.unwrap();
    let events = subject.events().await;
    let tokens = |part: &str| {
        let answers = events.iter().filter(|event| event["type"] == "assistant_message");
        answers.map(|answer| answer["context"][part].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let tools = tokens("tools");
    let more = tools[1] * 4 - tools[0] * 4;
    assert!(more.abs_diff(SCHEMA.len() as u64) < 4, "{tools:?}");
}

/// Refusals are counted in the journal and in snapshots: a turn that waited for a decision meanwhile, in two processes, has
/// no more repairs than others.
#[tokio::test(start_paused = true)]
async fn refusals_count_after_a_restart() {
    for keeps_snapshots in [true, false] {
        let mut stored = Stored::new(Arc::new(MemoryEventStore::new(u64::MAX, Arc::default())));
        let model = Heard::new([says("No."), calls([("work", "{}")])]);
        let former = stored.asking(&model);
        let session_id = former.create_session(CreateSession::default()).await.unwrap().session_id;
        let turn = StartTurn { attended: true, ..asks(session_id, "Go.", 1) };
        former.accept_turn(turn).await.unwrap();
        let former = Subject { service: former, session_id };
        let call_id = former.asked().await;
        former.service.shut_down(0).await;
        if !keeps_snapshots {
            stored = Stored::new(stored.events);
        }
        let model = Heard::new([says("No again."), says("Next.")]);
        let service = stored.asking(&model);
        service.decide_approval(DecideApproval::new(session_id, call_id, Decision::Approve)).await.unwrap();
        let subject = Subject { service, session_id };
        ticks(200).await;
        let events = subject.events().await;
        assert_eq!(types(&events).iter().filter(|it| **it == "output_refused").count(), 1, "{events:#?}");
        assert_eq!(events.last().unwrap()["error"]["code"], "OUTPUT_INVALID", "{events:#?}");
        subject.service.shut_down(0).await;
    }
}

/// The process ended between the answer and the turn's end: an answer that fits completes the turn, another one does not.
#[tokio::test(start_paused = true)]
async fn an_answer_that_a_former_process_left_is_checked() {
    for (text, status) in [(r#"{"n":1}"#, TurnStatus::Completed), (r#"{"n":"x"}"#, TurnStatus::Interrupted)] {
        let events: Arc<dyn EventStore> = Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()));
        let lease = events.lease(session_id()).await.unwrap();
        let ticket = events.stage(&lease, &left(text)).unwrap();
        ticket.durable().await.unwrap();
        let service = Rig::new(Vec::new()).stored(events, Arc::new(MemoryIndex::default()));
        let subject = Subject { service, session_id: session_id() };
        subject.turn("@say Next.").await.unwrap();
        let events = subject.events().await;
        let ended = [("turn_completed", TurnStatus::Completed), ("turn_interrupted", TurnStatus::Interrupted)];
        let due = ended.iter().find(|(_, of)| *of == status).unwrap().0;
        assert_eq!(types(&events)[3], due, "{text}");
        subject.service.shut_down(0).await;
    }
}

/// A session with a turn whose answer has this text and whose end is missing.
fn left(text: &str) -> Vec<Record> {
    let started = TurnStarted { prompt: Some("Go.".into()), output: Some(Arc::new(spec(2))), ..TurnStarted::default() };
    let started = TurnStarted { model: "scripted".to_owned(), ..started };
    let answer = AssistantMessage {
        step: 0,
        model: "scripted".to_owned(),
        blocks: vec![Block::Text { text: text.into() }],
        stop_reason: crate::model::StopReason::EndTurn,
        usage: crate::model::Usage::default(),
        cost: None,
        tools: None,
        context: None,
    };
    let events =
        [(None, created()), (Some(0), Event::TurnStarted(started)), (Some(0), Event::AssistantMessage(answer))];
    (1..).zip(events).map(|(seq, (turn, event))| record(seq, turn, event)).collect()
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

    /// A service of a model whose calls ask.
    fn asking(&self, model: &Arc<Heard>) -> Service {
        let tool = Does { approval: Approval::Ask, ..does("work", Effect::Once, works) };
        let rig = rig(model.clone(), 1_000_000, Arc::new(tool));
        rig.stored_with(self.snapshots.clone(), self.events.clone(), Arc::new(MemoryIndex::default()))
    }

    fn service(&self) -> Service {
        let index = Arc::new(MemoryIndex::default());
        Rig::new(Vec::new()).stored_with(self.snapshots.clone(), self.events.clone(), index)
    }
}

/// A write of the turn fails, each once. Whatever is left, a repetition by its key gives the output or says why there is
/// none, and no turn completes with an answer that does not fit.
#[tokio::test(start_paused = true)]
async fn a_fault_at_every_write_of_a_repaired_turn() {
    let (mut failed, mut completed) = (0, 0);
    for fault in [Fault::Panic, Fault::Failure, Fault::LostSync, Fault::LostWrite] {
        for at in 1..7 {
            let events: Arc<dyn EventStore> = Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()));
            let stored = Stored::new(Arc::new(FaultyEvents(events, fault, Fuse::new(at, 1))));
            let service = stored.service();
            let session_id = service.create_session(CreateSession::default()).await.unwrap().session_id;
            let turn = keyed(asks(session_id, r#"@json {"n":"x"} @step @json {"n":3}"#, 1));
            let answered = service.start_turn(turn.clone()).await;
            ticks(100).await;
            let again = service.start_turn(turn).await.unwrap();
            failed += usize::from(answered.is_err());
            completed += usize::from(again.status == TurnStatus::Completed);
            let due = (again.status == TurnStatus::Completed).then_some(r#"{"n":3}"#);
            assert_eq!(output(&again), due, "{fault:?} {at}: {again:?}");
            let subject = Subject { service, session_id };
            let last = subject.events().await.pop().unwrap();
            assert!(last["type"].as_str().unwrap().starts_with("turn_"), "{fault:?} {at}: {last}");
            subject.service.shut_down(0).await;
        }
    }
    assert!(failed > 3 && completed > 3, "{failed} {completed}");
}
