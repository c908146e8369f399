//! What a stored session is through its life: kept, listed, changed, put away, copied, deleted.

use std::{collections::BTreeMap, sync::Arc};

use meerkat_service::{
    ErrorCode,
    model::{StaticModels, scripted::ScriptedModel},
    options::{Budgets, Overflow},
    service::{
        DeleteSession, ForkSession, InterruptTurn, Page, ReadHistory, ResumeTurn, SessionQuery, SessionSummary,
        StartTurn, UpdateSession,
    },
    store::open_stores,
};
use serde_json::json;

use crate::stored::{Place, Process, files};

async fn list(process: &Process, query: SessionQuery) -> Page<SessionSummary> {
    process.service.list(query).await.unwrap()
}

async fn history(process: &Process, session_id: meerkat_service::SessionId, limit: usize) -> Vec<serde_json::Value> {
    let (mut items, mut cursor) = (Vec::new(), None);
    loop {
        let request = ReadHistory { cursor, limit: Some(limit), ..ReadHistory::new(session_id) };
        let page = process.service.history(request).await.unwrap();
        assert!(page.items.len() <= limit);
        items.extend(page.items.iter().map(|item| serde_json::to_value(item).unwrap()));
        cursor = page.next_cursor;
        if cursor.is_none() {
            return items;
        }
    }
}

/// What goes on with an interrupted turn is that turn: with its model, its budgets and its way to compact.
#[test]
fn a_resumed_turn_keeps_the_options_of_the_interrupted_one() {
    let place = Place::new();
    let client = || Arc::new(ScriptedModel);
    let models = StaticModels::new("scripted", client(), 200_000).with("other", client(), 200_000);
    let agent = place.agent().models(Arc::new(models.with("third", client(), 200_000)));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let service = agent.build().unwrap().service().clone();
        let process = Process { service };
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
            process.service.interrupt(InterruptTurn { session_id, turn: Some(turn) }).await.unwrap();
            process.service.begin_resume(&session_id, resume).await.unwrap();
            let events = process.events(session_id).await;
            let started = events.iter().rfind(|event| event["type"] == "turn_started").unwrap();
            assert_eq!((&started["model"], &started["continues"]), (&json!(model), &json!(turn)));
            assert_eq!(started["budgets"]["steps"], 7);
            assert_eq!(started["budgets"]["tool_calls"].as_u64().filter(|calls| *calls < 100), tool_calls);
        }
        process.service.interrupt(InterruptTurn { session_id, turn: Some(3) }).await.unwrap();
        // A new prompt is a turn of the session's own.
        let next = ResumeTurn { prompt: Some("@say Next.".to_owned()), ..ResumeTurn::default() };
        assert_eq!(process.service.resume(&session_id, next).await.unwrap().model, "scripted");
        process.service.shut_down(1_000).await;
    });
}

/// A page of a history is bounded in bytes too, however few messages that is.
#[test]
fn a_history_of_long_messages_comes_in_pages_of_bounded_bytes() {
    const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
    const TURNS: usize = 80;
    let mut place = Place::new();
    place.options.context.overflow = Overflow::Slide;
    place.process(true, |process| async move {
        let session_id = process.create().await;
        for _ in 0..TURNS {
            process.turn(session_id, "@chunks 65536 @long 60000").await.unwrap();
        }
        let (mut pages, mut cursor) = (Vec::new(), None);
        loop {
            let request = ReadHistory { cursor, limit: Some(1000), ..ReadHistory::new(session_id) };
            let page = process.service.history(request).await.unwrap();
            assert!(serde_json::to_vec(&page).unwrap().len() < PAGE_BYTES_MAX, "{} items", page.items.len());
            pages.push(page.items);
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        assert!(pages.len() > 1 && pages.iter().all(|page| !page.is_empty()));
        assert_eq!(json!(pages.concat()), json!(history(&process, session_id, 7).await));
        assert_eq!(pages.concat().len(), TURNS * 2);
    });
}

/// Acknowledged changes are in the list, and so is the progress of a running turn, as far as it can be read.
#[test]
fn a_list_shows_what_a_read_shows() {
    Place::new().process(true, |process| async move {
        let session_id = process.create().await;
        let same = async |what: &str| {
            let (read, listed) =
                (process.service.read(&session_id).await, list(&process, SessionQuery::default()).await);
            let (read, listed) = (json!(read.unwrap()), json!(listed.items[0]));
            for (name, value) in listed.as_object().unwrap() {
                assert_eq!(read[name], *value, "{what}: {name}");
            }
            listed
        };
        same("a creation").await;
        let labels = Some(BTreeMap::from([("team".to_owned(), "dig".to_owned())]));
        let update = UpdateSession { session_id, title: Some("A title".to_owned()), labels };
        process.service.update(update).await.unwrap();
        assert_eq!(same("an update").await["title"], "A title");
        process.service.archive(&session_id).await.unwrap();
        assert_eq!(same("an archive").await["archived"], true);
        process.service.unarchive(&session_id).await.unwrap();
        same("an unarchive").await;

        let mut follower = process.service.follow(&session_id, 4).await.unwrap();
        let prompt = r#"@call test_echo {"text":"hi"} @stall"#;
        let begun = process.service.begin_turn(StartTurn::new(session_id, prompt)).await.unwrap();
        assert_eq!(list(&process, SessionQuery::default()).await.items[0].turn_count, 1);
        // Each of them is waited for, and the list is asked at once: nothing else tells it of them.
        for type_name in ["turn_started", "assistant_message", "tool_started", "tool_finished"] {
            let line = loop {
                let line = follower.next().await.unwrap().unwrap();
                if line.seq.is_some() {
                    break serde_json::from_slice::<serde_json::Value>(&line.line).unwrap();
                }
            };
            assert_eq!(line["type"], type_name);
            let listed = list(&process, SessionQuery::default()).await.items.remove(0);
            assert!(json!(listed)["last_seq"].as_u64() >= line["seq"].as_u64(), "{type_name}: {listed:?}");
        }
        assert_eq!(same("a turn that waits").await["message_count"], 3);
        process.service.interrupt(InterruptTurn { session_id, turn: None }).await.unwrap();
        begun.result.await.unwrap();
        assert_eq!(same("a turn that has ended").await["state"], "idle");
        process.service.delete(DeleteSession { session_id, force: false }).await.unwrap();
        assert!(list(&process, SessionQuery::default()).await.items.is_empty());
    });
}

#[test]
fn a_deleted_session_is_gone_with_all_its_files_and_its_streams_end() {
    let place = Place::new();
    let root = place.data_dir();
    let session_id = place.process(true, |process| async move {
        let session_id = process.create().await;
        let long = format!("@say Read. @note {}", "long ".repeat(60_000));
        process.turn(session_id, &long).await.unwrap();
        let stored: Vec<String> =
            files(&root).into_iter().filter(|path| path.contains(&session_id.to_string())).collect();
        assert!(stored.iter().any(|path| path.contains("blobs")) && stored.iter().any(|path| path.ends_with(".mlog")));
        let mut follower = process.service.follow(&session_id, 4).await.unwrap();
        let deleted = process.service.delete(DeleteSession { session_id, force: false }).await.unwrap();
        assert_eq!(deleted.seq, 4);
        let last = follower.next().await.unwrap().unwrap();
        let last: serde_json::Value = serde_json::from_slice(&last.line).unwrap();
        assert_eq!((&last["type"], &last["after"]), (&json!("session_deleted"), &json!(4)));
        assert_eq!(follower.next().await.unwrap(), None);
        session_id
    });
    place.process(true, |process| async move {
        let code = |result: Result<(), meerkat_service::SessionError>| result.unwrap_err().code();
        assert_eq!(code(process.service.read(&session_id).await.map(drop)), ErrorCode::SessionNotFound);
        assert_eq!(code(process.turn(session_id, "@say No.").await.map(drop)), ErrorCode::SessionNotFound);
        assert_eq!(list(&process, SessionQuery::default()).await.items, []);
        let again = process.service.delete(DeleteSession { session_id, force: true }).await;
        assert_eq!(code(again.map(drop)), ErrorCode::SessionNotFound);
    });
    let left = files(&place.data_dir());
    assert!(!left.iter().any(|path| path.contains(&session_id.to_string())), "{left:?}");
}

/// Who follows slowly is shown what became durable before the deletion, as much of it as is kept, and then its end.
#[test]
fn a_deletion_hides_no_event_from_those_who_follow() {
    let place = Place::new();
    place.process(true, |process| async move {
        for (changes, gone) in [(5, None), (100, Some(json!([1, 39])))] {
            let session_id = process.create().await;
            let mut follower = process.service.follow(&session_id, 0).await.unwrap();
            for n in 0..changes {
                let title = Some(format!("title {n}"));
                process.service.update(UpdateSession { session_id, title, labels: None }).await.unwrap();
            }
            let running = process.service.begin_turn(StartTurn::new(session_id, "@stall")).await.unwrap();
            let refused = process.service.delete(DeleteSession { session_id, force: false }).await.unwrap_err();
            assert_eq!(refused.code(), ErrorCode::SessionBusy, "only by force");
            process.service.delete(DeleteSession { session_id, force: true }).await.unwrap();
            let ended = running.result.await.unwrap();
            assert_eq!(ended.error.unwrap().code, ErrorCode::TurnInterrupted);
            let (mut seqs, mut others) = (Vec::new(), Vec::new());
            while let Some(followed) = follower.next().await.unwrap() {
                let line: serde_json::Value = serde_json::from_slice(&followed.line).unwrap();
                match followed.seq {
                    Some(seq) => seqs.push(seq),
                    None => others.push((line["type"].clone(), json!([line["from"], line["to"]]))),
                }
            }
            let first = gone.as_ref().map_or(1, |gone| gone[1].as_u64().unwrap() + 1);
            assert_eq!(seqs, (first..=changes + 3).collect::<Vec<_>>(), "the last one is the turn's end");
            let mut expected: Vec<_> = gone.map(|gone| (json!("pruned"), gone)).into_iter().collect();
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
    let fork = place.process(true, |process| async move {
        let session_id = process.create().await;
        process.turn(session_id, "@say One.").await.unwrap();
        let deleted = process.create().await;
        process.service.delete(DeleteSession { session_id: deleted, force: false }).await.unwrap();
        process.service.fork(ForkSession { session_id, turn: None }).await.unwrap().session_id
    });
    assert_eq!(unsettled(), [fork]);
    place.process(true, |process| async move { process.service.ready().await.unwrap() });
    assert_eq!(unsettled(), []);
}
