//! What a list of sessions says, and in which order: a title for each, and what changed last first, whatever the clock.

use meerkat_service::{
    ErrorCode, SessionId,
    clock::Timestamp,
    service::{CreateSession, UpdateSession},
};

use crate::stored::{Place, Process};

async fn listed(process: &Process) -> Vec<SessionId> {
    process.listed().await.iter().map(|item| item.session_id).collect()
}

/// The title of a session, which the view and the list agree on.
async fn title(process: &Process, session_id: SessionId) -> Option<String> {
    let row = process.listed().await.into_iter().find(|item| item.session_id == session_id).unwrap();
    assert_eq!(process.view(session_id).await.title, row.title);
    row.title
}

async fn update(process: &Process, session_id: SessionId, title: Option<&str>) {
    let labels = title.is_none().then(|| [("team".to_owned(), "dig".to_owned())].into());
    let update = UpdateSession { session_id, title: title.map(str::to_owned), labels };
    process.service.update(update).await.unwrap();
}

#[test]
fn a_session_is_listed_by_its_title_or_the_first_line_of_its_first_prompt() {
    let place = Place::new();
    let titled = |title: &str| CreateSession {
        title: Some(title.to_owned()),
        idempotency_key: Some("k".to_owned()),
        ..CreateSession::default()
    };
    let (ids, cut, made) = place.process(false, async |process| {
        let session_id = process.create().await;
        assert_eq!(title(&process, session_id).await, None);
        let prompt = format!("\n \t\u{202e}Why\u{7} does  it\u{2066} rain?\r\nAnd when? {}", "x".repeat(200));
        for prompt in [&prompt, "Another line."] {
            process.turn(session_id, prompt).await.unwrap();
        }
        let cut = process.create().await;
        process.turn(cut, &"é".repeat(5_000)).await.unwrap();
        let create = async |title: &str| process.service.create_session(titled(title)).await;
        for wrong in ["two\nlines", &"x".repeat(100_000)] {
            assert_eq!(create(wrong).await.unwrap_err().code(), ErrorCode::InvalidRequest);
        }
        let made = create("Digging").await.unwrap();
        assert_eq!(create("Digging").await.unwrap(), made);
        assert_eq!(create("Another").await.unwrap_err().code(), ErrorCode::IdempotencyConflict);
        ([session_id, process.fork(session_id, None).await.unwrap()], cut, made.session_id)
    });
    place.lose_index();
    for is_clean in [false, true] {
        place.process(is_clean, async |process| {
            for id in ids {
                assert_eq!(title(&process, id).await.as_deref(), Some("Why does it rain?"));
            }
            assert_eq!(title(&process, cut).await, Some(format!("{}…", "é".repeat(79))));
            process.turn(made, "@say What is said.").await.unwrap();
            assert_eq!(title(&process, made).await.as_deref(), Some("Digging"));
        });
    }
    place.process(true, async |process| {
        // Other labels are no title, and a title that is taken away leaves what there was without one.
        for (given, shown) in [(None, "Why does it rain?"), (Some("Rain"), "Rain"), (None, "Rain")] {
            update(&process, ids[0], given).await;
            assert_eq!(title(&process, ids[0]).await.as_deref(), Some(shown));
        }
        update(&process, ids[0], Some("")).await;
        assert_eq!(title(&process, ids[0]).await.as_deref(), Some("Why does it rain?"));
    });
}

/// One run on a machine whose clock is years ahead does not stay first in lists for years.
#[test]
fn the_last_change_is_first_whatever_the_clock_says() {
    let mut place = Place::new();
    let year = |year: i64| Some(Timestamp::from_millis((year - 1970) * 365 * 24 * 60 * 60 * 1000));
    place.now = year(2031);
    let [early, late] = place.process(true, async |process| {
        let ids = [process.create().await, process.create().await];
        process.turn(ids[0], "@say 2031").await.unwrap();
        ids
    });
    place.now = year(2026);
    let second = place.process(false, async |process| {
        assert_eq!(listed(&process).await, [early, late], "what changed last is first");
        let second = process.create().await;
        process.turn(second, "@say 2026").await.unwrap();
        assert_eq!(listed(&process).await, [second, early, late]);
        second
    });
    place.now = year(2027);
    place.process(true, async |process| {
        assert_eq!(listed(&process).await, [second, early, late], "after a kill");
        process.turn(late, "@say Again.").await.unwrap();
    });
    place.process(true, async |process| assert_eq!(listed(&process).await, [late, second, early], "after a stop"));
    // Where the order is lost with the index, it is that of the times, and what changes from then on is first.
    place.lose_index();
    place.process(true, async |process| {
        assert_eq!(listed(&process).await, [early, late, second]);
        process.turn(second, "@say Again.").await.unwrap();
        assert_eq!(listed(&process).await, [second, early, late]);
    });
}
