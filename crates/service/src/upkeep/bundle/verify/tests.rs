//! Numbers that leave room for what follows.

use super::{SEQ_MAX, TURN_MAX, is_possible};
use crate::{
    clock::Timestamp,
    service::CallOutcome,
    session::{
        event::{
            CallAnswered, ClientToolsChanged, CompactionAttempt, CompactionCounters, Event, HistorySnapshot, Record,
            SteeringEntered, TurnStarted, TurnSteered,
        },
        tests::{created, fold, pinned, record},
    },
};

/// The next record of an imported session has a number, too.
#[test]
fn a_seq_leaves_room_for_what_follows_it() {
    assert!(is_possible(&pinned(SEQ_MAX, "a")));
    assert!(!is_possible(&pinned(SEQ_MAX + 1, "a")) && !is_possible(&pinned(u64::MAX, "a")));
}

/// The next turn of an imported session has a number, too.
#[test]
fn a_turn_leaves_room_for_what_follows_it() {
    let of = |turn| Record { turn: Some(turn), ..pinned(SEQ_MAX, "a") };
    assert!(is_possible(&of(TURN_MAX)));
    assert!(!is_possible(&of(TURN_MAX + 1)) && !is_possible(&of(u32::MAX)));
}

/// The counters of a session grow by each turn that comes after its import.
#[test]
fn a_count_of_turns_leaves_room_for_what_follows_it() {
    let session = fold(&[record(1, None, created())]);
    let of = |next_turn, started_turns, turn| {
        let last_attempt = Some(CompactionAttempt { turn, step: 0 });
        let counters = Some(CompactionCounters { started_turns, last_input_tokens: 0, last_attempt });
        let history = session.history_snapshot(0, Timestamp::from_millis(0)).unwrap();
        let event = Event::HistorySnapshot(HistorySnapshot { next_turn, counters, ..history });
        is_possible(&Record { event, ..pinned(SEQ_MAX, "a") })
    };
    assert!(of(TURN_MAX, TURN_MAX, TURN_MAX - 1));
    for (next_turn, started_turns, attempt) in
        [(TURN_MAX + 1, 1, 0), (1, TURN_MAX + 1, 0), (1, u32::MAX, 0), (u32::MAX, 1, 0), (1, 1, u32::MAX)]
    {
        assert!(!of(next_turn, started_turns, attempt), "{next_turn} {started_turns} {attempt}");
    }
}

/// Broken once: the prompt of a text that entered was read before the first event.
#[test]
fn what_an_event_names_is_earlier() {
    for (of, is_fine) in [(0, false), (1, true), (8, true), (9, false), (u64::MAX, false)] {
        let started = TurnStarted { queued: Some(of), ..TurnStarted::default() };
        let steered = TurnSteered { prompt: "x".into(), blocks: Vec::new(), started: of, key: None };
        let entered = SteeringEntered { steered: of };
        let (call_id, outcome, answer_hash) = ("call_3_0".into(), CallOutcome::Succeeded, "h".into());
        let answered = CallAnswered { call_id, outcome, answer_hash, started: of };
        let changed = ClientToolsChanged { hash: "h".into(), tools: None, defined: Some(of), queued: false };
        for event in [
            Event::TurnStarted(started),
            Event::TurnSteered(steered),
            Event::SteeringEntered(entered),
            Event::CallAnswered(answered),
            Event::ClientToolsChanged(changed),
        ] {
            let record = Record { turn: Some(0), event, ..pinned(9, "a") };
            assert_eq!(is_possible(&record), is_fine, "{record:?}");
        }
    }
}
