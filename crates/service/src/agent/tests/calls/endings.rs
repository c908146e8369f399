//! Calls that no caller answers: deadlines, interrupts, restarts and imports.

use super::*;
use crate::{
    session::event::{Event, Record, SessionImported},
    store::EventStore as _,
};

const MINUTE_MS: i64 = 60_000;

/// The outcome of each call, and what the model read of it.
async fn outcomes(subject: &Subject) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let events = subject.events().await;
    let finished = events.iter().filter(|event| event["type"] == "tool_finished");
    finished.map(|event| (text(&event["outcome"]), text(&event["output"]))).collect()
}

#[tokio::test(start_paused = true)]
async fn a_call_that_no_caller_answers_in_time_is_unknown_if_it_happens_once() {
    for restarts in [false, true] {
        let place = Place::new([calls([("order", OSLO), ("look", OSLO)]), says("Nobody was there.")]);
        let mut tools = weather();
        (tools[0].timeout_ms, tools[1].timeout_ms) = (Some(10 * 60_000), Some(20 * 60_000));
        let mut subject = created(place.process(|_| {}), Some(tools)).await;
        let waiting = subject.turn("Go.").await.unwrap();
        let left: Vec<i64> =
            waiting.calls.iter().map(|call| call.deadline.as_millis() - place.clock.now().as_millis()).collect();
        assert_eq!(left, [20 * MINUTE_MS, 10 * MINUTE_MS]);
        if restarts {
            // The machine sleeps through the first deadline, and the process ends.
            let session_id = subject.session_id;
            drop(subject);
            ticks(100).await;
            place.clock.ahead(11 * MINUTE_MS);
            subject = Subject { service: place.process(|_| {}), session_id };
        } else {
            place.clock.ahead(11 * MINUTE_MS);
            tokio::time::sleep(Duration::from_secs(61)).await;
            assert_eq!(outcomes(&subject).await.len(), 1, "it does not wait until it is asked");
        }
        assert_eq!(subject.tell("call_4_1", "late").await.unwrap_err().code(), ErrorCode::ItemNotFound);
        ticks(100).await;
        assert_eq!(ids(&subject.open().await), ["call_4_0"], "the other deadline is its own");
        tokio::time::sleep(Duration::from_secs(9 * 60 + 1)).await;
        ticks(100).await;
        let not_run = ("not_run".to_owned(), "No caller answered the call in time.".to_owned());
        let (outcome, text) = ("unknown", "Outcome unknown; verify before repeating. No caller answered in time.");
        assert_eq!(outcomes(&subject).await, [not_run, (outcome.to_owned(), text.to_owned())]);
        assert_eq!(subject.tell("call_4_0", "late").await.unwrap_err().code(), ErrorCode::ItemNotFound);
        assert_eq!(subject.event("turn_completed").await["turn"], 0, "the model goes on");
        check_journal(&subject.events().await);
    }
}

/// The actor has not looked at the clock yet.
#[tokio::test(start_paused = true)]
async fn an_answer_behind_the_deadline_comes_too_late() {
    let place = Place::new([calls([("order", OSLO)]), says("Done.")]);
    let subject = place.subject().await;
    subject.turn("Go.").await.unwrap();
    place.clock.ahead(86_400_000);
    assert_eq!(subject.tell("call_4_0", "late").await.unwrap_err().code(), ErrorCode::ItemNotFound);
    ticks(100).await;
    assert_eq!(outcomes(&subject).await[0].0, "unknown");
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_ends_calls_that_wait_for_their_caller() {
    let place = Place::new([calls([("order", OSLO), ("look", OSLO)])]);
    let subject = place.subject().await;
    subject.turn("Go.").await.unwrap();
    let session_id = subject.session_id;
    subject.service.interrupt(InterruptTurn { session_id, turn: None }).await.unwrap();
    let outcomes = outcomes(&subject).await;
    assert_eq!((outcomes[0].0.as_str(), outcomes[1].0.as_str()), ("unknown", "not_run"));
    assert_eq!(outcomes[1].1, "Not run: the turn was interrupted.");
    for call_id in ["call_4_0", "call_4_1"] {
        assert_eq!(subject.tell(call_id, "late").await.unwrap_err().code(), ErrorCode::ItemNotFound);
    }
    check_journal(&subject.events().await);
}

/// Each process ends between an answer and the next; the calls are there once, and so are the answers.
#[tokio::test(start_paused = true)]
async fn calls_and_answers_outlive_their_processes() {
    let place = Place::new([calls([("order", OSLO), ("look", OSLO), ("work", "{}")]), says("Done.")]);
    let mut subject = place.subject().await;
    let session_id = subject.session_id;
    let turn = StartTurn { idempotency_key: Some("k".to_owned()), ..StartTurn::new(session_id, "Go.") };
    let waiting = subject.service.start_turn(turn.clone()).await.unwrap();
    let deadlines: Vec<Timestamp> = waiting.calls.iter().map(|call| call.deadline).collect();
    let mut first = None;
    for answers in 0..2_usize {
        drop(subject);
        ticks(100).await;
        place.clock.ahead(MINUTE_MS);
        subject = Subject { service: place.process(|_| {}), session_id };
        let open = subject.open().await;
        let left: Vec<Timestamp> = open.iter().map(|call| call.deadline).collect();
        assert_eq!(left, deadlines[answers..], "a deadline does not begin again");
        let again = subject.service.start_turn(turn.clone()).await.unwrap();
        assert_eq!((again.turn, again.status, again.calls), (0, TurnStatus::Waiting, open.clone()));
        if let Some(seq) = first {
            assert_eq!(subject.tell("call_4_0", "ordered").await.unwrap(), seq);
        }
        let seq = subject.tell(&open[0].call_id, if answers == 0 { "ordered" } else { "sunny" }).await.unwrap();
        first.get_or_insert(seq);
    }
    let done = subject.service.start_turn(turn).await.unwrap();
    assert_eq!((done.status, done.text.as_str(), done.tool_calls), (TurnStatus::Completed, "Done.", 3));
    let texts: Vec<String> = results(&place.model).into_iter().map(|(text, _)| text).collect();
    assert_eq!(texts, ["ordered", "sunny", "worked"]);
    let events = subject.events().await;
    let count = |kind: &str| events.iter().filter(|event| event["type"] == kind).count();
    assert_eq!((count("call_requested"), count("call_answered"), count("client_tools_changed")), (2, 2, 1));
    check_journal(&events);
}

/// Two processes share the store, as nodes do.
#[tokio::test(start_paused = true)]
async fn a_call_of_a_session_that_was_taken_over_is_answered_wherever_it_is_asked() {
    let place = Place::new([calls([("order", OSLO)]), says("Done.")]);
    let subject = place.subject().await;
    let waiting = subject.turn("Go.").await.unwrap();
    let lease = place.events.lease(subject.session_id).await.unwrap();
    place.events.give_up(lease).await;
    let other = Subject { service: place.process(|_| {}), session_id: subject.session_id };
    assert_eq!(other.open().await, waiting.calls);
    // The former actor has lost its lease: it loads the session again, which still waits.
    let done = subject.tell_and_wait("call_4_0", "ordered").await;
    assert_eq!((done.status, done.text.as_str()), (TurnStatus::Completed, "Done."));
    assert_eq!(other.tell("call_4_0", "ordered").await.unwrap(), 6);
    check_journal(&subject.events().await);
}

/// The caller that the calls were requested from does not know the imported session.
#[tokio::test(start_paused = true)]
async fn an_import_answers_the_calls_that_wait_and_takes_the_tools_away() {
    let place = Place::new([calls([("order", OSLO)]), says("Without tools.")]);
    let subject = place.subject().await;
    let session_id = subject.session_id;
    subject.turn("Go.").await.unwrap();
    drop(subject);
    ticks(100).await;
    let lease = place.events.lease(session_id).await.unwrap();
    let event = Event::SessionImported(SessionImported { had_client_tools: true, descent: None });
    let record = Record { session_id, seq: lease.tail + 1, turn: None, time: place.clock.now(), event };
    place.events.stage(&lease, &[record]).unwrap().durable().await.unwrap();
    place.events.give_up(lease).await;
    let subject = Subject { service: place.process(|_| {}), session_id };
    assert_eq!(subject.tell("call_4_0", "late").await.unwrap_err().code(), ErrorCode::ItemNotFound);
    ticks(100).await;
    assert_eq!(outcomes(&subject).await[0].0, "not_run");
    assert_eq!(subject.event("turn_interrupted").await["turn"], 0);
    assert_eq!(subject.turn("Go on.").await.unwrap().text, "Without tools.");
    let offered = place.model.requests.lock().unwrap().last().unwrap().tools.clone();
    assert!(offered.iter().all(|tool| tool.name != "order"));
    check_journal(&subject.events().await);
}
