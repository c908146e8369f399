//! Idempotency keys while the clock is wrong: no key runs twice because of one reading.

use meerkat_service::{
    SessionId,
    clock::Timestamp,
    service::{CreateSession, StartTurn},
};

use crate::{Place, Process};

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
async fn keyed_turn(process: &Process, session_id: SessionId, key: &str) -> u64 {
    let keyed = StartTurn { idempotency_key: Some(key.to_owned()), ..StartTurn::new(session_id, "@say Once.") };
    u64::from(process.service.start_turn(keyed).await.unwrap().turn)
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
                drop(std::fs::remove_file(place.data_dir().join("index.redb")));
            }
            place.process(false, async |process| {
                assert_eq!(create(&process, "first").await, first, "{hours}");
                let made = create(&process, "second").await;
                assert_eq!(*second.get_or_insert(made), made, "{hours}");
            });
        }
    }
}
