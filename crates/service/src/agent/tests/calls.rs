//! Tools that the session's caller runs: their calls are requested once, wait through restarts, and are answered once.

mod definitions;
mod endings;
mod waits;

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::{
    Rig, Subject, TICKS_MAX, check_journal,
    fakes::{Answer, Heard, calls, does, rig, says},
    ticks, walk,
};
use crate::{
    ErrorCode, SessionError, SessionId,
    agent::tests::Service,
    clock::{Clock, SystemClock, Timestamp, World},
    follow::turn::{FollowedTurn, TurnStep, from_acceptance},
    service::{
        AnswerCall, AnsweredCall, CallContent, CallOutcome, ClientTool, CreateSession, DecideApproval, InterruptTurn,
        OpenCall, SessionService, StartTurn, TurnResult, TurnStatus,
    },
    session::{
        event::Decision,
        message::{Message, RawJson},
    },
    store::{MemoryEventStore, MemoryIndex},
    tool::{Approval, Effect},
};

/// A clock of which a test moves the wall time.
struct Moved {
    timers: SystemClock,
    ahead_ms: AtomicI64,
}

impl Moved {
    fn new() -> Arc<Self> {
        Arc::new(Self { timers: SystemClock::new(), ahead_ms: AtomicI64::new(0) })
    }

    fn ahead(&self, ms: i64) {
        self.ahead_ms.fetch_add(ms, Ordering::Relaxed);
    }
}

impl Clock for Moved {
    fn now(&self) -> Timestamp {
        let elapsed = i64::try_from(self.elapsed().as_millis()).unwrap();
        Timestamp::from_millis(1_767_225_600_000 + elapsed + self.ahead_ms.load(Ordering::Relaxed))
    }

    fn elapsed(&self) -> Duration {
        self.timers.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.timers.sleep(duration)
    }
}

/// A tool whose calls have a city and take a day.
fn tool(name: &str, effect: Effect) -> ClientTool {
    let schema = r#"{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}"#;
    let (name, description) = (name.to_owned(), "Weather of a city.".to_owned());
    ClientTool { name, description, input_schema: RawJson::parse(schema).unwrap(), effect, timeout_ms: None }
}

fn weather() -> Vec<ClientTool> {
    vec![tool("look", Effect::ReadOnly), tool("order", Effect::Once)]
}

const OSLO: &str = r#"{"city":"Oslo"}"#;
const BERGEN: &str = r#"{"city":"Bergen"}"#;

fn works() -> Arc<dyn crate::tool::Tool> {
    Arc::new(does("work", Effect::Once, |_, output| Box::pin(async { output.write("worked").await })))
}

/// A session with these tools over a store, and the model's answers.
struct Place {
    events: Arc<MemoryEventStore>,
    clock: Arc<Moved>,
    model: Arc<Heard>,
}

impl Place {
    fn new(answers: impl IntoIterator<Item = Answer>) -> Self {
        let events = Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()));
        Self { events, clock: Moved::new(), model: Heard::new(answers) }
    }

    /// A process over the store.
    fn process(&self, change: impl FnOnce(&mut Rig)) -> Service {
        let mut rig = rig(self.model.clone(), 100_000, works());
        rig.world = World { clock: self.clock.clone(), ..World::system() };
        change(&mut rig);
        rig.stored(self.events.clone(), Arc::new(MemoryIndex::default()))
    }

    async fn subject(&self) -> Subject {
        created(self.process(|_| {}), Some(weather())).await
    }
}

async fn created(service: Service, client_tools: Option<Vec<ClientTool>>) -> Subject {
    let request = CreateSession { client_tools, ..CreateSession::default() };
    let session_id = service.create_session(request).await.unwrap().session_id;
    Subject { service, session_id }
}

impl Subject {
    /// Answers a call with a text.
    async fn tell(&self, call_id: &str, text: &str) -> Result<u64, SessionError> {
        match self.service.answer_call(AnswerCall::text(self.session_id, call_id, text)).await? {
            AnsweredCall::Recorded(changed) => Ok(changed.seq),
            AnsweredCall::Turn(result) => panic!("{result:?}"),
        }
    }

    /// Answers a call, and waits for what comes next.
    async fn tell_and_wait(&self, call_id: &str, text: &str) -> TurnResult {
        let request = AnswerCall { wait: true, ..AnswerCall::text(self.session_id, call_id, text) };
        match self.service.answer_call(request).await.unwrap() {
            AnsweredCall::Turn(result) => *result,
            AnsweredCall::Recorded(changed) => panic!("{changed:?}"),
        }
    }

    async fn open(&self) -> Vec<OpenCall> {
        self.service.calls(&self.session_id).await.unwrap().items
    }

    async fn types_after(&self, seq: u64) -> Vec<String> {
        let of = |event: Value| event["type"].as_str().unwrap().to_owned();
        self.events().await.into_iter().skip(usize::try_from(seq).unwrap()).map(of).collect()
    }
}

fn ids(calls: &[OpenCall]) -> Vec<&str> {
    calls.iter().map(|call| call.call_id.as_str()).collect()
}

/// What the model was given for its last calls.
fn results(model: &Heard) -> Vec<(String, bool)> {
    let last = model.last();
    let results = last.iter().rev().find_map(|message| match &**message {
        Message::ToolResults { results } => Some(results.clone()),
        _ => None,
    });
    results.unwrap().into_iter().map(|result| (result.content.excerpt().into_owned(), result.is_error)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_its_caller_and_the_model_reads_the_answer() {
    let place = Place::new([calls([("look", OSLO)]), says("Sunny there.")]);
    let subject = place.subject().await;
    let waiting = subject.turn("Weather?").await.unwrap();
    assert_eq!((waiting.status, waiting.steps, waiting.tool_calls), (TurnStatus::Waiting, 1, 1));
    let call = &waiting.calls[0];
    assert_eq!((call.name.as_str(), call.arguments.as_str(), call.turn), ("look", OSLO, 0));
    assert_eq!(call.effect, Effect::ReadOnly);
    let day_ms = call.deadline.as_millis() - place.clock.now().as_millis();
    assert_eq!(day_ms, 86_400_000, "tools.client_timeout_ms");
    assert_eq!(subject.open().await, waiting.calls);
    assert_eq!(subject.service.read(&subject.session_id).await.unwrap().state, crate::service::SessionState::Waiting);
    let done = subject.tell_and_wait(&call.call_id, "Sunny, 21 degrees.").await;
    assert_eq!((done.status, done.text.as_str(), done.calls.len()), (TurnStatus::Completed, "Sunny there.", 0));
    assert_eq!(results(&place.model), [("Sunny, 21 degrees.".to_owned(), false)]);
    let expected = [
        "session_created",
        "client_tools_changed",
        "turn_started",
        "assistant_message",
        "call_requested",
        "call_answered",
        "tool_finished",
        "assistant_message",
        "turn_completed",
    ];
    assert_eq!(subject.types_after(0).await, expected);
    let requested = subject.event("call_requested").await;
    assert_eq!(requested["arguments"], json!({ "city": "Oslo" }));
    let finished = subject.event("tool_finished").await;
    assert_eq!((&finished["outcome"], &finished["output"]), (&json!("succeeded"), &json!("Sunny, 21 degrees.")));
    let answered = subject.event("call_answered").await;
    assert!(!answered.to_string().contains("Sunny"), "a text is in one event: {answered}");
    assert_eq!(answered["started"], subject.event("turn_started").await["seq"]);
    check_journal(&subject.events().await);
}

/// A stream has no answer that would end it before the turn does.
#[tokio::test(start_paused = true)]
async fn a_stream_goes_on_while_the_turn_waits_and_ends_with_it() {
    let place = Place::new([calls([("look", OSLO)]), calls([("order", OSLO)]), says("Done.")]);
    let subject = place.subject().await;
    let service: Arc<dyn SessionService> = Arc::new(subject.service.clone());
    let turn = StartTurn { wait: false, ..StartTurn::new(subject.session_id, "Go.") };
    let turn = subject.service.begin_turn(turn).await.unwrap();
    let follower = from_acceptance(service.as_ref(), &turn.accepted).await.unwrap();
    let mut turn = FollowedTurn::new(turn, Some(follower));
    let mut types = Vec::new();
    let end = loop {
        match turn.next().await {
            TurnStep::Line(line) if line.seq.is_some() => {
                let event: Value = serde_json::from_slice(&line.line).unwrap();
                if event["type"] == "call_requested" {
                    subject.tell(event["call_id"].as_str().unwrap(), "answered").await.unwrap();
                }
                types.push(event["type"].as_str().unwrap().to_owned());
            }
            TurnStep::Line(_) => {}
            TurnStep::Lost(error) => panic!("{error}"),
            TurnStep::End(end) => break end.unwrap(),
        }
    };
    assert_eq!((end.status, end.text.as_str()), (TurnStatus::Completed, "Done."));
    assert_eq!(types.last().unwrap(), "turn_completed");
    assert_eq!(types.iter().filter(|kind| *kind == "call_answered").count(), 2);
}

/// The calls of a message: what runs here before the first one of a caller, then all of the caller's, then the rest.
#[tokio::test(start_paused = true)]
async fn all_calls_of_a_message_are_requested_together_between_those_that_run_here() {
    let first = [("work", "{}"), ("look", OSLO), ("work", "{}"), ("order", OSLO)];
    let place = Place::new([calls(first), says("Done.")]);
    let subject = place.subject().await;
    let waiting = subject.turn("Go.").await.unwrap();
    assert_eq!(ids(&waiting.calls), ["call_4_1", "call_4_3"]);
    let events = ["tool_started", "tool_finished", "call_requested", "call_requested"];
    assert_eq!(subject.types_after(4).await, events);
    let seqs: Vec<u64> = waiting.calls.iter().map(|call| call.seq).collect();
    assert_eq!(seqs, [7, 8]);
    let still = subject.tell_and_wait("call_4_3", "ordered").await;
    assert_eq!((still.status, ids(&still.calls)), (TurnStatus::Waiting, vec!["call_4_1"]));
    let done = subject.tell_and_wait("call_4_1", "sunny").await;
    assert_eq!((done.status, done.tool_calls), (TurnStatus::Completed, 4));
    let events = [
        "call_answered",
        "tool_finished",
        "call_answered",
        "tool_finished",
        "tool_started",
        "tool_finished",
        "assistant_message",
        "turn_completed",
    ];
    assert_eq!(subject.types_after(8).await, events);
    let texts: Vec<String> = results(&place.model).into_iter().map(|(text, _)| text).collect();
    assert_eq!(texts, ["worked", "sunny", "worked", "ordered"], "in call order");
}

/// Also those that could run beside others.
#[tokio::test(start_paused = true)]
async fn calls_that_run_here_end_before_the_calls_behind_them_are_requested() {
    let place = Place::new([calls([("peek", "{}"), ("look", OSLO)])]);
    let peek = does("peek", Effect::ReadOnly, |_, output| Box::pin(async { output.write("seen").await }));
    let subject = created(place.process(|rig| rig.tools.push(Arc::new(peek))), Some(weather())).await;
    subject.turn("Go.").await.unwrap();
    assert_eq!(subject.types_after(4).await, ["tool_started", "tool_finished", "call_requested"]);
}

#[tokio::test(start_paused = true)]
async fn the_same_answer_again_is_the_first_one_and_another_one_is_refused() {
    let place = Place::new([calls([("order", OSLO), ("work", "{}")]), says("Done."), says("Next."), says("Next.")]);
    let subject = place.subject().await;
    let call_id = subject.turn("Go.").await.unwrap().calls.remove(0).call_id;
    let seq = subject.tell(&call_id, "ordered").await.unwrap();
    let answer = |outcome, content| {
        let (session_id, call_id) = (subject.session_id, call_id.clone());
        subject.service.answer_call(AnswerCall { session_id, call_id, outcome, content, wait: false })
    };
    let code = |answered: Result<AnsweredCall, SessionError>| answered.unwrap_err().code();
    let text = |text: &str| vec![CallContent::Text(text.to_owned())];
    for ends in [false, true, true] {
        assert_eq!(subject.tell(&call_id, "ordered").await.unwrap(), seq);
        assert_eq!(subject.tell_and_wait(&call_id, "ordered").await.text, "Done.");
        let other = answer(CallOutcome::Succeeded, text("ordered twice")).await;
        assert_eq!(code(other), ErrorCode::IdempotencyConflict);
        assert_eq!(code(answer(CallOutcome::Failed, text("ordered")).await), ErrorCode::IdempotencyConflict);
        if ends {
            subject.turn("Next.").await.unwrap();
        }
    }
    for never in ["call_4_1", "call_9_9", ""] {
        assert_eq!(subject.tell(never, "x").await.unwrap_err().code(), ErrorCode::ItemNotFound, "{never}");
    }
    let events = subject.events().await;
    assert_eq!(events.iter().filter(|event| event["type"] == "call_answered").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_reaches_no_call_of_another_session() {
    let place = Place::new([calls([("look", OSLO)]), calls([("look", OSLO)])]);
    let first = place.subject().await;
    let call_id = first.turn("Go.").await.unwrap().calls.remove(0).call_id;
    let request = CreateSession { client_tools: Some(weather()), ..CreateSession::default() };
    let session_id = first.service.create_session(request).await.unwrap().session_id;
    let other = Subject { service: first.service.clone(), session_id };
    assert_eq!(other.tell(&call_id, "x").await.unwrap_err().code(), ErrorCode::ItemNotFound);
    let waiting = other.turn("Go.").await.unwrap();
    assert_eq!(ids(&waiting.calls), [call_id.as_str()], "ids are those of their session");
    assert_eq!(first.open().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn wrong_arguments_go_back_to_the_model_and_are_not_requested() {
    let place = Place::new([calls([("look", r#"{"town":"Oslo"}"#)]), says("Sorry.")]);
    let subject = place.subject().await;
    assert_eq!(subject.turn("Go.").await.unwrap().status, TurnStatus::Completed);
    let (text, is_error) = results(&place.model).remove(0);
    assert!(is_error && text.contains("required property") && text.contains("properties"), "{text}");
    assert!(!subject.types_after(0).await.contains(&"call_requested".to_owned()));
}

/// A rule of the configuration names tools that it cannot know by a pattern.
#[tokio::test(start_paused = true)]
async fn rules_hold_for_the_tools_of_a_caller_too() {
    let place = Place::new([calls([("order", OSLO), ("look", OSLO)]), says("Done.")]);
    let service = place.process(|rig| {
        rig.options.tools.approval = [("ord*".to_owned(), Approval::Ask), ("lo*".to_owned(), Approval::Deny)].into();
    });
    let subject = created(service, Some(weather())).await;
    let session_id = subject.session_id;
    let turn = StartTurn { attended: true, ..StartTurn::new(session_id, "Go.") };
    let turn = subject.service.begin_turn(turn).await.unwrap();
    let call_id = subject.asked().await;
    assert!(subject.open().await.is_empty(), "it is asked about first");
    assert_eq!(subject.tell(&call_id, "x").await.unwrap_err().code(), ErrorCode::ItemNotFound);
    subject.service.decide_approval(DecideApproval::new(session_id, &call_id, Decision::Approve)).await.unwrap();
    let waiting = turn.result.await.unwrap();
    assert_eq!(ids(&waiting.calls), [call_id.as_str()]);
    assert_eq!(subject.tell_and_wait(&call_id, "ordered").await.status, TurnStatus::Completed);
    let read = results(&place.model);
    assert_eq!(read[0], ("ordered".to_owned(), false));
    assert!(read[1].1 && read[1].0.contains("denies"), "{read:?}");
}

#[tokio::test(start_paused = true)]
async fn a_turn_has_no_more_calls_than_its_budget_and_none_of_too_many_is_requested() {
    let many = (0..100).map(|_| ("look", OSLO));
    let place = Place::new([calls(many)]);
    let subject = place.subject().await;
    let budgets = crate::options::Budgets { tool_calls: Some(99), ..Default::default() };
    let turn = StartTurn { budgets, ..StartTurn::new(subject.session_id, "Go.") };
    let ended = subject.service.start_turn(turn).await.unwrap();
    assert_eq!(ended.error.unwrap().code, ErrorCode::BudgetExhausted);
    assert!(!subject.types_after(0).await.contains(&"call_requested".to_owned()));
}

/// A day of waiting is no time of the turn.
#[tokio::test(start_paused = true)]
async fn time_in_which_a_turn_waits_for_its_caller_is_not_that_of_its_budget() {
    let slow = Answer::Late(Box::pin(async { tokio::time::sleep(Duration::from_secs(61)).await }), Vec::new());
    let place = Place::new([calls([("look", OSLO)]), slow]);
    let subject = place.subject().await;
    let budgets = crate::options::Budgets { wall_ms: Some(60_000), ..Default::default() };
    let turn = StartTurn { budgets, ..StartTurn::new(subject.session_id, "Go.") };
    let waiting = subject.service.start_turn(turn).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(ids(&subject.open().await), ids(&waiting.calls), "it waits on");
    let before = subject.events().await.len() as u64;
    let ended = subject.tell_and_wait("call_4_0", "sunny").await;
    // Its own time is over all the same.
    assert_eq!(ended.error.unwrap().code, ErrorCode::BudgetExhausted);
    let expected = ["call_answered", "tool_finished", "turn_failed"];
    assert_eq!(subject.types_after(before).await, expected);
    let took_ms = subject.event("tool_finished").await["duration_ms"].as_i64().unwrap();
    assert!((3_600_000..3_601_000).contains(&took_ms), "the call took that time: {took_ms}");
}

#[tokio::test(start_paused = true)]
async fn a_large_answer_is_in_a_blob_and_secrets_are_in_none() {
    let place = Place::new([calls([("look", OSLO), ("look", BERGEN)]), says("Done.")]);
    let service = place.process(|rig| {
        rig.secrets = crate::redact::Secrets::new(["hunter2\"x".to_owned().into()]);
    });
    let mut tools = weather();
    tools[0].description = "Needs hunter2\"x to work.".to_owned();
    let subject = created(service, Some(tools.clone())).await;
    let session_id = subject.session_id;
    // Other tools, which the turn brings.
    tools.reverse();
    let turn = StartTurn { client_tools: Some(tools), ..StartTurn::new(session_id, "Go.") };
    let calls = subject.service.start_turn(turn).await.unwrap().calls;
    let json = r#"{"pass":"hunter2\"x","big":12345678901234567890123}"#;
    let content = vec![
        CallContent::Text("It is hunter2\"x.".to_owned()),
        CallContent::Json(RawJson::parse(json).unwrap()),
        CallContent::Text("y".repeat(100_000)),
    ];
    let (call_id, outcome) = (calls[0].call_id.clone(), CallOutcome::Failed);
    let request = AnswerCall { session_id, call_id, outcome, content, wait: false };
    subject.service.answer_call(request).await.unwrap();
    let finished = subject.event("tool_finished").await;
    assert_eq!(finished["outcome"], "failed");
    let head = finished["output"]["head"].as_str().unwrap();
    assert!(head.contains("12345678901234567890123"), "numbers are as they were written: {head}");
    assert!(finished["output"]["bytes"].as_u64().unwrap() > 100_000);
    assert!(finished["error"]["message"].as_str().unwrap().starts_with("It is "));
    let all = serde_json::to_string(&subject.events().await).unwrap();
    assert!(!all.contains("hunter2"), "{all}");
}

/// Wherever an interrupt comes, the call has one result: the answer's, or that of the end.
#[test]
fn an_answer_and_an_interrupt_at_every_place_of_a_waiting_turn() {
    walk(async {
        let (mut answered, mut refused) = (0, 0);
        for tick in 0..TICKS_MAX {
            let place = Place::new([calls([("order", OSLO), ("look", OSLO)]), says("Done."), says("messages: 1")]);
            let subject = place.subject().await;
            let session_id = subject.session_id;
            subject.turn("Go.").await.unwrap();
            let answers = async {
                let first = subject.tell("call_4_0", "ordered").await;
                (first, subject.tell("call_4_1", "sunny").await)
            };
            let interrupt = async {
                ticks(tick).await;
                subject.service.interrupt(InterruptTurn { session_id, turn: Some(0) }).await
            };
            let ((first, second), interrupt) = tokio::join!(answers, interrupt);
            place.model.answers.lock().unwrap().insert(0, says("messages: 1"));
            let events = subject.check().await;
            for (call_id, answer) in [("call_4_0", &first), ("call_4_1", &second)] {
                let finished = events.iter().find(|it| it["type"] == "tool_finished" && it["call_id"] == call_id);
                let is_answered = finished.unwrap()["outcome"] == "succeeded";
                assert_eq!(is_answered, answer.is_ok(), "at tick {tick}: {answer:?}");
                match answer {
                    Ok(_) => answered += 1,
                    Err(error) => {
                        refused += 1;
                        assert_eq!(error.code(), ErrorCode::ItemNotFound, "at tick {tick}");
                    }
                }
            }
            if interrupt.is_err() {
                break;
            }
        }
        assert!(answered > 2 && refused > 0, "{answered} {refused}");
    });
}
