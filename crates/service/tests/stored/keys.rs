//! Idempotency keys while the clock is wrong, or after the configuration has changed: no key runs twice because of one
//! reading, and a repeat has the first answer.

use std::sync::Arc;

use meerkat_service::{
    ErrorCode, SessionId,
    clock::Timestamp,
    model::{StaticModels, scripted::ScriptedModel},
    service::{CreateSession, StartTurn},
};

use crate::stored::{Place, Process};

const HOUR_MS: i64 = 3_600_000;

/// Time of the clock, in hours.
fn at(hours: i64) -> Option<Timestamp> {
    Some(Timestamp::from_millis(1_800_000_000_000 + hours * HOUR_MS))
}

async fn create(process: &Process, key: &str) -> SessionId {
    let keyed = CreateSession { idempotency_key: Some(key.to_owned()), ..CreateSession::default() };
    process.service.create_session(keyed).await.unwrap().session_id
}

/// Starts a turn under a key; returns its number.
async fn keyed_turn(process: &Process, session_id: SessionId, key: &str) -> u32 {
    let keyed = StartTurn { idempotency_key: Some(key.to_owned()), ..StartTurn::new(session_id, "@say Once.") };
    process.service.start_turn(keyed).await.unwrap().turn
}

/// The clock is a day ahead, or behind, for one turn and then right again.
#[test]
fn a_turn_runs_once_whatever_one_reading_of_the_clock_says() {
    for wrong in [25, -25] {
        let mut place = Place::new();
        place.now = at(0);
        let session_id = place.process(true, async |process| {
            let session_id = create(&process, "session").await;
            assert_eq!(keyed_turn(&process, session_id, "first").await, 0);
            session_id
        });
        place.now = at(wrong);
        place.process(false, async |process| assert_eq!(keyed_turn(&process, session_id, "second").await, 1));
        for hours in [0, wrong, 1] {
            place.now = at(hours);
            place.process(true, async |process| {
                assert_eq!(keyed_turn(&process, session_id, "first").await, 0, "{wrong} {hours}");
                assert_eq!(keyed_turn(&process, session_id, "second").await, 1, "{wrong} {hours}");
            });
        }
    }
}

/// The clock is ahead for more turns than a session keeps keys of whatever their time: what was used in these turns and
/// after them stays, also once the clock is right again.
#[test]
fn the_last_keys_stay_however_long_the_clock_was_wrong() {
    let mut place = Place::new();
    place.now = at(0);
    let session_id = place.process(true, async |process| create(&process, "session").await);
    // Of 768 keys the oldest 512 may go.
    for (hours, turns) in [(0, 0..300), (25, 300..601), (0, 601..768)] {
        place.now = at(hours);
        place.process(true, async |process| {
            for n in turns {
                assert_eq!(keyed_turn(&process, session_id, &format!("k{n}")).await, n);
            }
        });
    }
    place.process(false, async |process| {
        for n in 300..768 {
            assert_eq!(keyed_turn(&process, session_id, &format!("k{n}")).await, n);
        }
        // Others were used a day after this one, more than its session keeps whatever their time.
        assert_eq!(keyed_turn(&process, session_id, "k299").await, 768);
    });
}

/// The clock jumps ahead and stays there. The index may be lost at any time.
#[test]
fn a_create_makes_one_session_whatever_one_reading_of_the_clock_says() {
    for loses_index in [false, true] {
        let mut place = Place::new();
        place.now = at(0);
        let first = place.process(true, async |process| create(&process, "first").await);
        let mut second = None;
        for hours in [25, 0, 26, 50] {
            place.now = at(hours);
            if loses_index {
                place.lose_index();
            }
            place.process(false, async |process| {
                assert_eq!(create(&process, "first").await, first, "{hours}");
                let made = create(&process, "second").await;
                assert_eq!(*second.get_or_insert(made), made, "{hours}");
            });
        }
    }
}

/// A repeat asks for nothing new. So it has the first answer, also if the request would be refused by now.
#[test]
fn a_repeat_is_answered_although_the_configuration_no_longer_takes_its_request() {
    let mut place = Place::new();
    let models = || StaticModels::new("scripted", Arc::new(ScriptedModel), 200_000);
    place.models = Some(Arc::new(models().with("other", Arc::new(ScriptedModel), 200_000)));
    let key = || Some("k".to_owned());
    let create = CreateSession {
        model: Some("other".to_owned()),
        system_prompt: Some("Be brief.".to_owned()),
        tools: Some(vec!["test_echo".to_owned()]),
        idempotency_key: key(),
        ..CreateSession::default()
    };
    let turn = |session_id| StartTurn {
        model: Some("other".to_owned()),
        allow: vec!["test_echo".to_owned()],
        idempotency_key: key(),
        ..StartTurn::new(session_id, "@say Once.")
    };
    let mut made = None;
    let changes =
        ["nothing", "the model is not configured", "the tools are gone", "prompts are shorter", "keys are shorter"];
    for what in changes {
        // Each change comes to those before it.
        let limits = &mut place.options.limits;
        match what {
            "nothing" => {}
            "the model is not configured" => place.models = Some(Arc::new(models())),
            "the tools are gone" => place.options.tools.test_dir = None,
            "prompts are shorter" => (limits.prompt_bytes, limits.system_prompt_bytes) = (4, 4),
            _ => limits.label_bytes = 0,
        }
        place.process(true, async |process| {
            let service = process.service.as_ref();
            let session_id = service.create_session(create.clone()).await.unwrap().session_id;
            assert_eq!(session_id, *made.get_or_insert(session_id), "{what}");
            let first = service.start_turn(turn(session_id)).await.unwrap();
            assert_eq!((first.turn, first.text.as_str()), (0, "Once."), "{what}");
            // Another request with the key is no repeat, and says so.
            let other = CreateSession { title: Some("Another".to_owned()), ..create.clone() };
            let other_turn = StartTurn { prompt: "@say Twice.".into(), ..turn(session_id) };
            let (other, other_turn) = (service.create_session(other).await, service.start_turn(other_turn).await);
            for refused in [other.map(drop), other_turn.map(drop)] {
                assert_eq!(refused.unwrap_err().code(), ErrorCode::IdempotencyConflict, "{what}");
            }
        });
    }
}
