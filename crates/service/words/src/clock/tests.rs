//! Times as they are read, and ids in their order.

use super::*;

#[test]
fn a_time_is_read_in_the_form_of_its_schema_alone() {
    let read = |text: &str| serde_json::from_value::<Timestamp>(text.into()).ok().map(Timestamp::as_millis);
    for text in ["1970-01-01T00:00:01Z", "1970-01-01t00:00:01.000z", "1970-01-01T01:00:01+01:00"] {
        assert_eq!(read(text), Some(1000), "{text}");
    }
    let others = [
        "",
        "1970-01-01",
        "1970-01-01T00:00:01",
        "1970-01-01 00:00:01Z",
        "1970-01-01T00:00Z",
        "1970-01-01T00Z",
        "19700101T000001Z",
        "1970-01-01T000001Z",
        "1970-01-01T00:00:01,0Z",
        "1970-01-01T01:00:01+01",
        "1970-01-01T01:00:01+0100",
        "1970-01-01T01:00:01+01:00:00",
        "1970-01-01T00:00:01Z[UTC]",
        "1970-01-01T01:00:01+01:00[+01:00]",
        "+001970-01-01T00:00:01Z",
    ];
    for text in others {
        assert_eq!(read(text), None, "{text}");
    }
}

/// A process that starts with its clock set back still makes ids that sort after the stored ones.
#[test]
fn ids_sort_after_what_is_stored() {
    let early = SeededIds::wall_time();
    let late = Timestamp::from_millis(early.as_millis() + 60_000);
    let stored = RandomIds::new().next_session_id(late);
    let ids = RandomIds::new();
    assert!(ids.next_session_id(early) < stored);
    ids.follow(stored);
    assert!(ids.next_session_id(early) > stored);

    let (before, after) = (SeededIds::new(7, 0), SeededIds::new(7, 0));
    let made: Vec<SessionId> = (0..5).map(|_| before.next_session_id(early)).collect();
    after.follow(made[3]);
    assert_eq!(after.next_session_id(early), made[4]);
}
