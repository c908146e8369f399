//! Callers that wait for a turn while it waits for them: whoever asks, and whatever ends meanwhile.

use tokio::time::timeout;

use super::*;
use crate::{
    agent::tests::{
        faults::{Fault, FaultyEvents, Fuse, PNG},
        shared_store::NodeStore,
    },
    follow::turn::result_or_calls,
    options::Policy,
    runtime::sessions::Sessions,
    service::{PinFact, PromptBlock, ResumeTurn, SessionQuery, SessionState},
    store::{BlobStore, MemoryBlobStore, SessionIndex, Stores},
};

const LONG: Duration = Duration::from_secs(60);

async fn until_open(subject: &Subject) {
    while subject.open().await.is_empty() {
        ticks(10).await;
    }
}

/// The journal has calls that were answered long ago. They are not what the turn waits for now.
#[tokio::test(start_paused = true)]
async fn a_follower_of_a_turn_gets_the_calls_that_wait_now() {
    let place = Place::new([calls([("look", OSLO)]), calls([("order", OSLO), ("look", BERGEN)])]);
    let subject = place.subject().await;
    let turn = subject.service.begin_turn(StartTurn::new(subject.session_id, "Go.")).await.unwrap();
    assert_eq!(turn.result.await.unwrap().steps, 1);
    let next = StartTurn { policy: Policy::Queue, ..StartTurn::new(subject.session_id, "Then go.") };
    let next = subject.service.accept_turn(next).await.unwrap();
    let waiting = subject.tell_and_wait("call_4_0", "sunny").await;
    assert_eq!((waiting.steps, waiting.tool_calls, waiting.calls.len()), (2, 3, 2));
    let followed = timeout(LONG, result_or_calls(&subject.service, turn.accepted, true)).await.unwrap().unwrap();
    assert_eq!(followed, waiting);
    let followed = timeout(LONG, result_or_calls(&subject.service, next, true)).await;
    assert!(followed.is_err(), "calls of another turn: {followed:?}");
}

/// What the turn waits for was asked before the text came.
#[tokio::test(start_paused = true)]
async fn a_follower_of_a_text_that_was_steered_gets_the_calls_that_wait() {
    let place = Place::new([calls([("look", OSLO)])]);
    let subject = place.subject().await;
    subject.turn("Go.").await.unwrap();
    let text = StartTurn { policy: Policy::Steer, wait: false, ..StartTurn::new(subject.session_id, "And Bergen?") };
    let accepted = subject.service.begin_turn(text).await.unwrap().accepted;
    let followed = timeout(LONG, result_or_calls(&subject.service, accepted, true)).await.expect("an answer").unwrap();
    assert_eq!((followed.status, followed.calls[0].call_id.as_str()), (TurnStatus::Waiting, "call_4_0"));
}

/// Who finds the session busy reads what to do about it.
#[tokio::test(start_paused = true)]
async fn a_turn_beside_one_that_waits_for_its_caller_is_refused_with_the_call() {
    let place = Place::new([calls([("order", OSLO), ("look", BERGEN)]), says("Done.")]);
    let subject = place.subject().await;
    let waiting = subject.turn("Go.").await.unwrap();
    let refused = subject.turn("And then?").await.unwrap_err().body();
    assert_eq!(refused.code, ErrorCode::SessionBusy);
    let says = "Turn 0 waits for the answer to call call_4_0 of tool order; answer that call, or interrupt the turn.";
    assert_eq!(refused.message, says);
    assert_eq!(serde_json::to_value(&refused.details).unwrap(), json!({ "turn": 0, "unanswered": "call_4_0" }));
    subject.tell("call_4_0", "ordered").await.unwrap();
    let refused = subject.turn("And then?").await.unwrap_err().body();
    assert_eq!(refused.details["unanswered"], waiting.calls[1].call_id);
}

/// One has answered a call and waits; another streams the turn, which waits for a person.
#[tokio::test(start_paused = true)]
async fn those_who_wait_for_a_turn_are_answered_when_the_service_ends() {
    let place = Place::new([calls([("look", OSLO)]), calls([("work", "{}")])]);
    let service = place.process(|rig| {
        rig.options.tools.approval = [("work".to_owned(), Approval::Ask)].into();
    });
    let subject = created(service, Some(weather())).await;
    let session_id = subject.session_id;
    let turn = StartTurn { attended: true, wait: false, ..StartTurn::new(session_id, "Go.") };
    let stream = subject.service.begin_turn(turn).await.unwrap();
    until_open(&subject).await;
    let answer = AnswerCall { wait: true, ..AnswerCall::text(session_id, "call_4_0", "sunny") };
    let service = subject.service.clone();
    let answered = tokio::spawn(async move { service.answer_call(answer).await });
    subject.asked().await;
    subject.service.shut_down(0).await;
    let answered = timeout(LONG, answered).await.expect("an answer").unwrap();
    assert_eq!(answered.unwrap_err().code(), ErrorCode::ShuttingDown);
    let streamed = timeout(LONG, stream.result).await.expect("an end");
    assert_eq!(streamed.unwrap_err().code(), ErrorCode::ShuttingDown);
}

/// The letter is answered when the answer is recorded, and the turn is followed at the node that was asked.
#[tokio::test(start_paused = true)]
async fn an_answer_at_another_node_waits_there_and_is_the_same_here() {
    let late = Answer::Late(Box::pin(async { tokio::time::sleep(Duration::from_secs(10)).await }), Vec::new());
    let place = Place::new([calls([("look", OSLO), ("order", OSLO)]), late]);
    let index: Arc<dyn SessionIndex> = Arc::new(MemoryIndex::default());
    let stores = NodeStore::of(["a", "b"]);
    let [here, there] = stores.clone().map(|store| {
        let mut rig = rig(place.model.clone(), 100_000, works());
        rig.inbox = Some(store.clone());
        rig.stored(store, index.clone())
    });
    let here = created(here, Some(weather())).await;
    let session_id = here.session_id;
    let model = here.turn("Go.").await.unwrap().model;
    let there = Subject { service: there, session_id };
    let price = r#"{"price":1.10,"id":12345678901234567890123,"id":1e2}"#;
    let answer = |call_id: &str, json: &str, wait| {
        let content = vec![CallContent::Json(RawJson::parse(json).unwrap())];
        AnswerCall { session_id, call_id: call_id.to_owned(), outcome: CallOutcome::Succeeded, content, wait }
    };
    let Ok(AnsweredCall::Recorded(first)) = there.service.answer_call(answer("call_4_0", price, false)).await else {
        panic!("it does not wait");
    };
    assert_eq!(here.event("tool_finished").await["output"], price, "it is as it was written");
    for json in [price, r#"{"price":1.1,"id":100.0}"#] {
        let again = here.service.answer_call(answer("call_4_0", json, false)).await.unwrap();
        assert_eq!(again, AnsweredCall::Recorded(first.clone()), "{json}");
    }
    let other = here.service.answer_call(answer("call_4_0", r#"{"price":1.2,"id":100.0}"#, false)).await;
    assert_eq!(other.unwrap_err().code(), ErrorCode::IdempotencyConflict);
    let asked = there.service.clone();
    let waits = answer("call_4_1", "1", true);
    let waiting = tokio::spawn(async move { asked.answer_call(waits).await });
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!waiting.is_finished() && !stores[0].has_letters(), "no letter waits for the turn");
    let Ok(AnsweredCall::Turn(ended)) = timeout(LONG, waiting).await.unwrap().unwrap() else { panic!("it waits") };
    assert_eq!((ended.status, ended.steps, ended.model), (TurnStatus::Completed, 2, model));
    check_journal(&here.events().await);
}

/// The store fails while a fact is pinned. A kill would not have ended the calls either.
#[tokio::test(start_paused = true)]
async fn a_store_that_fails_for_a_moment_ends_no_call_that_waits() {
    for fault in [Fault::Failure, Fault::LostWrite, Fault::LostSync, Fault::Panic] {
        let (mut writes, mut pinned) = (usize::MAX / 2, 0);
        for is_failing in [false, true] {
            let place = Place::new([calls([("look", OSLO), ("order", OSLO)]), says("Done.")]);
            let fuse = Fuse::new(writes, 1);
            let events = Arc::new(FaultyEvents(place.events.clone(), fault, fuse.clone()));
            let mut rig = rig(place.model.clone(), 100_000, works());
            rig.world = World { clock: place.clock.clone(), ..World::system() };
            let subject = created(rig.stored(events, Arc::new(MemoryIndex::default())), Some(weather())).await;
            let session_id = subject.session_id;
            let waiting = subject.turn("Go.").await.unwrap();
            ticks(100).await;
            writes = fuse.calls();
            let pin = subject.service.pin(PinFact { session_id, text: "A fact.".to_owned() }).await;
            assert_eq!(pin.is_err(), is_failing, "{fault:?}");
            pinned += usize::from(pin.is_ok());
            ticks(100).await;
            // Only what panics is given up.
            if is_failing && fault == Fault::Panic {
                assert_eq!(subject.event("turn_failed").await["turn"], 0);
                continue;
            }
            assert_eq!(subject.open().await, waiting.calls, "{fault:?}");
            subject.tell("call_4_0", "sunny").await.unwrap();
            assert_eq!(subject.tell_and_wait("call_4_1", "ordered").await.text, "Done.");
            check_journal(&subject.events().await);
        }
        assert_eq!(pinned, 1);
    }
}

/// Asks for the turn; decides and answers what waits, each twice, as far as the store lets it.
async fn go_on(subject: &Subject, turn: StartTurn) {
    let (service, session_id) = (&subject.service, subject.session_id);
    for _ in 0..20 {
        service.accept_turn(turn.clone()).await.ok();
        ticks(50).await;
        let Ok(view) = service.read(&session_id).await else { continue };
        if view.state == SessionState::Idle {
            return;
        }
        for asked in &view.pending_approvals {
            for _ in 0..2 {
                let decision = DecideApproval::new(session_id, &asked.call_id, Decision::Approve);
                service.decide_approval(decision).await.ok();
            }
        }
        for call in service.calls(&session_id).await.map_or_else(|_| Vec::new(), |calls| calls.items) {
            for _ in 0..2 {
                let text = format!("{} {}", call.call_id, call.arguments.as_str());
                service.answer_call(AnswerCall::text(session_id, &call.call_id, text)).await.ok();
            }
        }
    }
}

/// The end of the turn below after a fault at its write, or at its sync.
fn end_after(fault: Fault, times: usize, at: usize) -> &'static str {
    let is_for_good = times > 1;
    // The model works at the first sync, and a tool at the eighth, which a store that fails for good does not pass.
    let is_cut_off_by_a_sync = at == 1 || at == 8 || is_for_good && at < 8;
    // From here to there it only waits, for its callers or for a person.
    let waits = (4..=8).contains(&at);
    match fault {
        Fault::LostSync if is_cut_off_by_a_sync => "turn_failed",
        Fault::LostSync => "turn_completed",
        // Its start was not recorded, and it was asked for again.
        _ if at == 1 => "turn_completed",
        // What panics is given up, if that can be recorded.
        Fault::Panic if waits && !is_for_good => "turn_failed",
        _ if waits => "turn_completed",
        // The store can record no end, or not this process's: the next one closes the turn.
        _ if is_for_good || fault == Fault::Fenced => "turn_interrupted",
        _ => "turn_failed",
    }
}

/// The store fails at a write, for a moment or for good. Another process goes on with the turn, which shows a picture, has
/// two calls of its caller's, and asks for approval of a third call.
#[tokio::test(start_paused = true)]
async fn a_fault_at_every_write_of_a_turn_with_calls_an_approval_and_a_picture() {
    const PROMPT: &str = r#"@call look {"city":"Oslo"} @call order {"city":"Bergen"} @call work {} @echo results"#;
    let read = [r#"call_4_0 {"city":"Oslo"}"#, r#"call_4_1 {"city":"Bergen"}"#, "worked"];
    let faults = [Fault::Failure, Fault::LostWrite, Fault::LostSync, Fault::Fenced, Fault::Panic];
    for (fault, times) in faults.into_iter().flat_map(|fault| [(fault, 1), (fault, usize::MAX / 2)]) {
        for at in 1.. {
            let events: Arc<dyn crate::store::EventStore> = Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()));
            let blobs: Arc<dyn BlobStore> = Arc::new(MemoryBlobStore::new(Arc::default()));
            let process = |fuse: &Fuse| {
                let mut rig = Rig::new(vec![works()]);
                rig.options.tools.approval = [("work".to_owned(), Approval::Ask)].into();
                let events = Arc::new(FaultyEvents(events.clone(), fault, fuse.clone()));
                let stores = Stores { events, blobs: blobs.clone(), ..Stores::in_memory(u64::MAX, &Arc::default()) };
                Service::new(Sessions::new(rig.engine(stores, true)))
            };
            let fuse = Fuse::new(at, times);
            let subject = created(process(&fuse), Some(weather())).await;
            let session_id = subject.session_id;
            let prompt = vec![PromptBlock::Text { text: PROMPT.to_owned() }, PromptBlock::image("image/png", PNG)];
            let key = Some("k".to_owned());
            let turn = StartTurn { attended: true, idempotency_key: key, ..StartTurn::new(session_id, prompt) };
            go_on(&subject, turn.clone()).await;
            drop(subject);
            ticks(100).await;
            let subject = Subject { service: process(&Fuse::new(usize::MAX, 0)), session_id };
            go_on(&subject, turn).await;

            let told = subject.events().await;
            let why = format!("{fault:?} at {at}, {times} times: {told:#?}");
            check_journal(&told);
            let of = |kind: &str| {
                let of = told.iter().filter(|event| event["type"] == kind);
                let mut of: Vec<String> = of.map(|event| event["call_id"].to_string()).collect();
                of.sort();
                of
            };
            let [requested, answered, asked, decided] =
                ["call_requested", "call_answered", "approval_requested", "approval_decided"].map(of);
            assert!(requested.is_empty() || requested == [r#""call_4_0""#, r#""call_4_1""#], "{why}");
            // What panics is given up.
            assert!(answered == requested && asked == decided || fault == Fault::Panic, "{why}");
            assert!(asked.len() <= 1 && decided.len() <= 1, "{why}");
            for event in told.iter().filter(|event| event["type"] == "tool_finished" && event["outcome"] == "succeeded")
            {
                let at = event["call_id"].as_str().unwrap().strip_prefix("call_4_").unwrap();
                assert_eq!(event["output"], read[at.parse::<usize>().unwrap()], "{why}");
            }
            let [started] = &told.iter().filter(|event| event["type"] == "turn_started").collect::<Vec<_>>()[..] else {
                panic!("{why}")
            };
            let picture =
                blobs.read(session_id, started["blocks"][0]["blob"].as_str().unwrap(), 0, PNG.len() * 2).await;
            assert_eq!(picture.unwrap().unwrap(), PNG, "{why}");
            let end = told.last().unwrap()["type"].as_str().unwrap();
            let is_over = fuse.calls() <= at;
            let expected = if is_over { "turn_completed" } else { end_after(fault, times, at) };
            assert_eq!(end, expected, "{why}");
            if end == "turn_completed" {
                let last = told.iter().rfind(|event| event["type"] == "assistant_message").unwrap();
                assert_eq!(last["blocks"][0]["text"], format!("results: {}", read.join("\n")), "{why}");
            }
            if is_over {
                break;
            }
        }
    }
}

/// A command owns the store for a moment: it runs no turn that it would only cut off.
#[tokio::test(start_paused = true)]
async fn a_short_command_holds_a_turn_whose_call_is_late_until_it_is_asked_for() {
    for resumes in [false, true] {
        let place = Place::new([calls([("order", OSLO), ("look", OSLO)]), says("Done.")]);
        let mut tools = weather();
        tools[0].timeout_ms = Some(60_000);
        let subject = created(place.process(|_| {}), Some(tools)).await;
        let session_id = subject.session_id;
        subject.turn("Go.").await.unwrap();
        let before = subject.events().await.len() as u64;
        drop(subject);
        ticks(100).await;
        place.clock.ahead(61_000);
        let mut rig = rig(place.model.clone(), 100_000, works());
        rig.world = World { clock: place.clock.clone(), ..World::system() };
        rig.options.store.turns_go_on = false;
        // It says at a start which sessions a former process left.
        let events = FaultyEvents(place.events.clone(), Fault::Full, Fuse::new(usize::MAX, 0));
        let service = rig.stored(Arc::new(events), Arc::new(MemoryIndex::default()));
        let subject = Subject { service, session_id };
        let listed = subject.service.list(SessionQuery::default()).await.unwrap();
        assert_eq!(listed.items[0].state, SessionState::Waiting);
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert!(subject.types_after(before).await.is_empty(), "nothing goes on by a list");
        match resumes {
            true => {
                let resumed = subject.service.resume(&session_id, ResumeTurn::default()).await.unwrap();
                assert_eq!((resumed.status, ids(&resumed.calls)), (TurnStatus::Waiting, vec!["call_4_0"]));
                assert_eq!(subject.tell_and_wait("call_4_0", "ordered").await.text, "Done.");
            }
            false => assert_eq!(subject.tell_and_wait("call_4_0", "ordered").await.text, "Done."),
        }
        assert_eq!(results(&place.model)[1].0, "No caller answered the call in time.");
        check_journal(&subject.events().await);
    }
}
