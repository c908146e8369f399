//! What a stored session is through its life: kept, listed, changed, put away, copied, deleted.

use std::sync::Arc;

use meerkat_service::{
    ErrorCode,
    model::{StaticModels, scripted::ScriptedModel},
    options::{Budgets, Overflow},
    service::{DeleteSession, ReadHistory, ResumeTurn, StartTurn, UpdateSession},
    store::open_stores,
};
use serde_json::{Value, json};

use crate::stored::{Place, files, pages};

/// What goes on with an interrupted turn is that turn: with its model, its budgets and its way to compact.
#[test]
fn a_resumed_turn_keeps_the_options_of_the_interrupted_one() {
    let mut place = Place::new();
    let client = || Arc::new(ScriptedModel);
    let models = StaticModels::new("scripted", client(), 200_000).with("other", client(), 200_000);
    place.models = Some(Arc::new(models.with("third", client(), 200_000)));
    place.process(true, async |process| {
        let session_id = process.create().await;
        let request = StartTurn {
            model: Some("other".to_owned()),
            budgets: Budgets { steps: Some(7), ..Budgets::default() },
            wait: false,
            ..StartTurn::new(session_id, "@stall")
        };
        process.service.accept_turn(request).await.unwrap();
        let (asked, other) = (Budgets { tool_calls: Some(9), ..Budgets::default() }, Some("third".to_owned()));
        for (turn, resume, model, tool_calls) in [
            (0, ResumeTurn::default(), "other", None),
            (1, ResumeTurn { budgets: asked, ..ResumeTurn::default() }, "other", Some(9)),
            (2, ResumeTurn { model: other, ..ResumeTurn::default() }, "third", Some(9)),
        ] {
            process.interrupt(session_id, Some(turn)).await;
            process.service.begin_resume(&session_id, resume).await.unwrap();
            let events = process.events(session_id).await;
            let started = events.iter().rfind(|event| event["type"] == "turn_started").unwrap();
            assert_eq!((&started["model"], &started["continues"]), (&json!(model), &json!(turn)));
            assert_eq!(started["budgets"]["steps"], 7);
            assert_eq!(started["budgets"]["tool_calls"].as_u64().filter(|calls| *calls < 100), tool_calls);
        }
        process.interrupt(session_id, Some(3)).await;
        // A new prompt is a turn of the session's own.
        let next = ResumeTurn { prompt: Some("@say Next.".into()), ..ResumeTurn::default() };
        assert_eq!(process.service.resume(&session_id, next).await.unwrap().model, "scripted");
    });
}

/// A page of a history is bounded in bytes too, however few messages that is.
#[test]
fn a_history_of_long_messages_comes_in_pages_of_bounded_bytes() {
    const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
    const TURNS: usize = 80;
    let mut place = Place::new();
    place.options.context.overflow = Overflow::Slide;
    place.process(true, async |process| {
        let session_id = process.create().await;
        for _ in 0..TURNS {
            process.turn(session_id, "@chunks 65536 @long 60000").await.unwrap();
        }
        let history = async |limit| {
            pages(async |cursor| {
                let request = ReadHistory { cursor, limit: Some(limit), ..ReadHistory::new(session_id) };
                let page = process.service.history(request).await?;
                assert!(!page.items.is_empty() && page.items.len() <= limit);
                assert!(serde_json::to_vec(&page).unwrap().len() < PAGE_BYTES_MAX, "{} items", page.items.len());
                Ok(page)
            })
            .await
            .0
        };
        let long = history(1000).await;
        assert!(long.len() > 1 && long.concat().len() == TURNS * 2);
        assert_eq!(long.concat(), history(7).await.concat());
    });
}

/// Acknowledged changes are in the list, and so is the progress of a running turn, as far as it can be read.
#[test]
fn a_list_shows_what_a_read_shows() {
    Place::new().process(true, async |process| {
        let session_id = process.create().await;
        let same = async |what: &str| {
            let (read, listed) = (json!(process.view(session_id).await), json!(process.listed().await[0]));
            for (name, value) in listed.as_object().unwrap() {
                assert_eq!(read[name], *value, "{what}: {name}");
            }
            listed
        };
        same("a creation").await;
        let labels = Some([("team".to_owned(), "dig".to_owned())].into());
        let update = UpdateSession { session_id, title: Some("A title".to_owned()), labels };
        process.service.update(update).await.unwrap();
        assert_eq!(same("an update").await["title"], "A title");
        process.service.archive(&session_id).await.unwrap();
        assert_eq!(same("an archive").await["archived"], true);
        process.service.unarchive(&session_id).await.unwrap();
        same("an unarchive").await;

        let mut follower = process.service.follow(&session_id, 4).await.unwrap();
        let begun = process.begin(session_id, r#"@call test_echo {"text":"hi"} @stall"#).await;
        assert_eq!(process.listed().await[0].turn_count, 1);
        // Each of them is waited for, and the list is asked at once: nothing else tells it of them.
        for type_name in ["turn_started", "assistant_message", "tool_started", "tool_finished"] {
            let line = loop {
                let line = follower.next().await.unwrap().unwrap();
                if line.seq.is_some() {
                    break serde_json::from_slice::<Value>(&line.line).unwrap();
                }
            };
            assert_eq!(line["type"], type_name);
            let listed = process.listed().await.remove(0);
            assert!(json!(listed)["last_seq"].as_u64() >= line["seq"].as_u64(), "{type_name}: {listed:?}");
        }
        assert_eq!(same("a turn that waits").await["message_count"], 3);
        process.interrupt(session_id, None).await;
        begun.result.await.unwrap();
        assert_eq!(same("a turn that has ended").await["state"], "idle");
        process.delete(session_id).await;
        assert!(process.listed().await.is_empty());
    });
}

#[test]
fn a_deleted_session_is_gone_with_all_its_files_and_its_streams_end() {
    let place = Place::new();
    let of = |id: meerkat_service::SessionId| -> Vec<String> {
        files(&place.data_dir()).into_iter().filter(|path| path.contains(&id.to_string())).collect()
    };
    let session_id = place.process(true, async |process| {
        let session_id = process.create().await;
        process.turn(session_id, &format!("@say Read. @note {}", "long ".repeat(60_000))).await.unwrap();
        let stored = of(session_id);
        assert!(stored.iter().any(|path| path.contains("blobs")) && stored.iter().any(|path| path.ends_with(".mlog")));
        let mut follower = process.service.follow(&session_id, 4).await.unwrap();
        let deleted = process.service.delete(DeleteSession { session_id, force: false }).await.unwrap();
        assert_eq!(deleted.seq, 4);
        let last: Value = serde_json::from_slice(&follower.next().await.unwrap().unwrap().line).unwrap();
        assert_eq!((&last["type"], &last["after"]), (&json!("session_deleted"), &json!(4)));
        assert_eq!(follower.next().await.unwrap(), None);
        session_id
    });
    place.process(true, async |process| {
        let again = process.service.delete(DeleteSession { session_id, force: true }).await;
        let turn = process.turn(session_id, "@say No.").await;
        for refused in [process.service.read(&session_id).await.map(drop), turn.map(drop), again.map(drop)] {
            assert_eq!(refused.unwrap_err().code(), ErrorCode::SessionNotFound);
        }
        assert_eq!(process.listed().await, []);
    });
    assert_eq!(of(session_id), [""; 0]);
}

/// Who follows slowly is shown what became durable before the deletion, as much of it as is kept, and then its end.
#[test]
fn a_deletion_hides_no_event_from_those_who_follow() {
    Place::new().process(true, async |process| {
        for (changes, gone) in [(5, None), (100, Some([1, 39]))] {
            let session_id = process.create().await;
            let mut follower = process.service.follow(&session_id, 0).await.unwrap();
            for n in 0..changes {
                let title = Some(format!("title {n}"));
                process.service.update(UpdateSession { session_id, title, labels: None }).await.unwrap();
            }
            let running = process.begin(session_id, "@stall").await;
            let refused = process.service.delete(DeleteSession { session_id, force: false }).await.unwrap_err();
            assert_eq!(refused.code(), ErrorCode::SessionBusy, "only by force");
            process.service.delete(DeleteSession { session_id, force: true }).await.unwrap();
            assert_eq!(running.result.await.unwrap().error.unwrap().code, ErrorCode::TurnInterrupted);
            let (mut seqs, mut others) = (Vec::new(), Vec::new());
            while let Some(followed) = follower.next().await.unwrap() {
                let line: Value = serde_json::from_slice(&followed.line).unwrap();
                match followed.seq {
                    Some(seq) => seqs.push(seq),
                    None => others.push((line["type"].clone(), json!([line["from"], line["to"]]))),
                }
            }
            let first = gone.map_or(1, |[_, to]| to + 1);
            assert_eq!(seqs, (first..=changes + 3).collect::<Vec<_>>(), "the last one is the turn's end");
            let mut expected: Vec<_> = gone.map(|gone| (json!("pruned"), json!(gone))).into_iter().collect();
            expected.push((json!("session_deleted"), json!([null, null])));
            assert_eq!(others, expected);
        }
    });
}

#[test]
fn what_nobody_runs_is_settled_by_the_start_that_looks_at_it() {
    let place = Place::new();
    let unsettled = || {
        let stores = open_stores(&place.data_dir()).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(stores.events.unsettled()).unwrap()
    };
    let fork = place.process(true, async |process| {
        let session_id = process.create().await;
        process.turn(session_id, "@say One.").await.unwrap();
        process.delete(process.create().await).await;
        process.fork(session_id, None).await.unwrap()
    });
    assert_eq!(unsettled(), [fork]);
    place.process(true, async |process| process.service.ready().await.unwrap());
    assert_eq!(unsettled(), []);
}
