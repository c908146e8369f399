//! What a list of sessions says, and in which order: a title for each, and what changed last first, whatever the clock.

use std::{collections::BTreeMap, fs};

use meerkat_service::{
    Operation, SessionId,
    clock::Timestamp,
    service::{CreateSession, ForkSession, SessionQuery, UpdateSession},
    wire::call,
};
use serde_json::{Value, json};

use crate::stored::{Place, Process, journals};

async fn listed(process: &Process) -> Vec<SessionId> {
    let page = process.service.list(SessionQuery::default()).await.unwrap();
    page.items.iter().map(|item| item.session_id).collect()
}

/// The title of a session, which the view and the list agree on.
async fn title(process: &Process, session_id: SessionId) -> Option<String> {
    let view = process.service.read(&session_id).await.unwrap();
    let page = process.service.list(SessionQuery::default()).await.unwrap();
    let row = page.items.into_iter().find(|item| item.session_id == session_id).unwrap();
    assert_eq!(view.title, row.title);
    row.title
}

async fn update(process: &Process, session_id: SessionId, title: Option<&str>) {
    let labels = title.is_none().then(|| BTreeMap::from([("team".to_owned(), "dig".to_owned())]));
    let update = UpdateSession { session_id, title: title.map(str::to_owned), labels };
    process.service.update(update).await.unwrap();
}

/// The index does not know: what it says comes from the journals alone.
fn lose_index(place: &Place) {
    fs::remove_file(place.data_dir().join("index.redb")).unwrap();
}

#[test]
fn a_session_is_listed_by_the_first_line_of_its_first_prompt() {
    let place = Place::new();
    let prompt = format!("\n \t\u{202e}Why\u{7} does  it\u{2066} rain?\r\nAnd when? {}", "x".repeat(200));
    let long = "é".repeat(5_000);
    let (session_id, fork, cut) = place.process(false, async |process| {
        let session_id = process.create().await;
        assert_eq!(title(&process, session_id).await, None);
        process.turn(session_id, &prompt).await.unwrap();
        process.turn(session_id, "Another line.").await.unwrap();
        let fork = process.service.fork(ForkSession { session_id, turn: None }).await.unwrap().session_id;
        let cut = process.create().await;
        process.turn(cut, &long).await.unwrap();
        (session_id, fork, cut)
    });
    lose_index(&place);
    for is_clean in [false, true, true] {
        place.process(is_clean, async |process| {
            for id in [session_id, fork] {
                assert_eq!(title(&process, id).await.as_deref(), Some("Why does it rain?"));
            }
            assert_eq!(title(&process, cut).await, Some(format!("{}…", "é".repeat(79))));
        });
    }
    place.process(true, async |process| {
        // Other labels are no title, and a title that is taken away leaves what there was without one.
        for (given, shown) in [(None, "Why does it rain?"), (Some("Rain"), "Rain"), (None, "Rain")] {
            update(&process, session_id, given).await;
            assert_eq!(title(&process, session_id).await.as_deref(), Some(shown));
        }
        update(&process, session_id, Some("")).await;
        assert_eq!(title(&process, session_id).await.as_deref(), Some("Why does it rain?"));
    });
}

/// What was said may go; what a session is listed by stays.
#[test]
fn a_title_outlives_the_prompt_that_gave_it() {
    let mut place = journals::place();
    place.options.journal.keep_last_replies = 0;
    let (session_id, fork) = place.process(true, async |process| {
        let session_id = process.create().await;
        // What does not fit the window leaves the context, and is history.
        for prompt in ["@fail context", "@fail context @say 2", "@fail context @say 3"] {
            process.turn(session_id, prompt).await.unwrap();
        }
        process.turn(session_id, "@say 4").await.unwrap();
        process.register("one").await;
        process.is_done("one", session_id, process.service.read(&session_id).await.unwrap().last_seq).await;
        let report = process.compact(session_id, false, true).await;
        assert!(report.dropped > 0, "{report:?}");
        let is_first = |line: &String| line.contains("\"prompt\":\"@fail context\"");
        assert!(!process.lines(session_id).await.iter().any(is_first), "it was not dropped");
        let fork = process.service.fork(ForkSession { session_id, turn: None }).await.unwrap().session_id;
        (session_id, fork)
    });
    lose_index(&place);
    place.process(true, async |process| {
        for id in [session_id, fork] {
            assert_eq!(title(&process, id).await.as_deref(), Some("@fail context"));
        }
    });
}

#[test]
fn a_session_is_made_with_its_title() {
    let place = Place::new();
    let ask = async |process: &Process, params: Value| {
        call(process.service.as_ref(), Operation::CreateSession, &params.to_string()).await
    };
    let session_id = place.process(false, async |process| {
        let wrong = [json!({ "title": "two\nlines" }), json!({ "title": "x".repeat(100_000) })];
        for params in wrong {
            let refused = ask(&process, params).await.unwrap_err();
            assert_eq!(refused.code(), meerkat_service::ErrorCode::InvalidRequest);
        }
        let keyed = json!({ "title": "Digging", "idempotency_key": "k" });
        let made: Value = serde_json::from_slice(&ask(&process, keyed.clone()).await.unwrap()).unwrap();
        let again: Value = serde_json::from_slice(&ask(&process, keyed).await.unwrap()).unwrap();
        assert_eq!(made, again);
        let other = ask(&process, json!({ "title": "Another", "idempotency_key": "k" })).await.unwrap_err();
        assert_eq!(other.code(), meerkat_service::ErrorCode::IdempotencyConflict);
        made["session_id"].as_str().unwrap().parse::<SessionId>().unwrap()
    });
    lose_index(&place);
    place.process(true, async |process| {
        process.turn(session_id, "@say What is said.").await.unwrap();
        assert_eq!(title(&process, session_id).await.as_deref(), Some("Digging"));
    });
}

/// One run on a machine whose clock is years ahead does not stay first in lists for years.
#[test]
fn the_last_change_is_first_whatever_the_clock_says() {
    let mut place = Place::new();
    let year = |place: &mut Place, year: i64| {
        place.now = Some(Timestamp::from_millis((year - 1970) * 365 * 24 * 60 * 60 * 1000));
    };
    year(&mut place, 2031);
    let [early, late] = place.process(true, async |process| {
        let ids = [process.create().await, process.create().await];
        process.turn(ids[0], "@say 2031").await.unwrap();
        ids
    });
    year(&mut place, 2026);
    let second = place.process(false, async |process| {
        assert_eq!(listed(&process).await, [early, late], "what changed last is first");
        let second = process.create().await;
        process.turn(second, "@say 2026").await.unwrap();
        assert_eq!(listed(&process).await, [second, early, late]);
        second
    });
    year(&mut place, 2027);
    place.process(true, async |process| {
        assert_eq!(listed(&process).await, [second, early, late], "after a kill");
        process.turn(late, "@say Again.").await.unwrap();
    });
    place.process(true, async |process| assert_eq!(listed(&process).await, [late, second, early], "after a stop"));
    // Where the order is lost with the index, it is that of the times, and what changes from then on is first.
    lose_index(&place);
    place.process(true, async |process| {
        assert_eq!(listed(&process).await, [early, late, second]);
        process.turn(second, "@say Again.").await.unwrap();
        assert_eq!(listed(&process).await, [second, early, late]);
    });
}

/// A key from a time when the clock was ahead finds its session, even after a kill.
#[test]
fn a_key_that_was_used_while_the_clock_was_ahead_is_known_when_it_is_right() {
    let mut place = Place::new();
    let at = |ms| Some(Timestamp::from_millis(ms));
    let keyed = || CreateSession { idempotency_key: Some("k".to_owned()), ..CreateSession::default() };
    let create = async |process: Process| process.service.create_session(keyed()).await.unwrap().session_id;
    place.now = at(1_900_000_000_000);
    let made = place.process(false, create);
    // It may not be there yet.
    drop(fs::remove_file(place.data_dir().join("index.redb")));
    place.now = at(1_800_000_000_000);
    assert_eq!(place.process(true, create), made);
}

/// Sessions that change while somebody pages come first in the list; those that do not are all shown, once.
#[test]
fn pages_skip_nothing_that_did_not_change() {
    let place = Place::new();
    place.process(true, async |process| {
        let mut ids = Vec::new();
        for _ in 0..9 {
            ids.push(process.create().await);
        }
        let mut shown = Vec::new();
        let mut query = SessionQuery { limit: Some(2), ..SessionQuery::default() };
        // Some are behind the cursor's place, some before it, one is at it.
        let mut changes = [0, 8, 5, 3].into_iter();
        loop {
            let page = process.service.list(query.clone()).await.unwrap();
            shown.extend(page.items.iter().map(|item| item.session_id));
            if let Some(changed) = changes.next() {
                update(&process, ids[changed], Some("Changed")).await;
            }
            query.cursor = page.next_cursor;
            if query.cursor.is_none() {
                break;
            }
        }
        let expected = [8, 7, 6, 5, 4, 3, 2, 1].map(|n| ids[n]);
        assert_eq!(shown, expected);
        assert_eq!(listed(&process).await[..4], [3, 5, 8, 0].map(|n| ids[n]));
    });
}
