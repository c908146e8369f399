//! What a process that ends in the middle of its work leaves behind, and how the next one finds it.

use meerkat_service::{
    ErrorCode,
    options::Policy,
    service::{
        CreateSession, DecideApproval, DeleteSession, ResumeTurn, SessionQuery, SessionState, StartTurn, TurnStatus,
    },
    session::event::Decision,
};

use crate::{Place, files};

#[test]
fn a_turn_that_was_cut_is_interrupted_and_can_be_gone_on_with() {
    let place = Place::new();
    let session_id = place.process(false, |process| async move {
        let session_id = process.create().await;
        process.turn(session_id, "@say Before.").await.unwrap();
        drop(process.service.begin_turn(StartTurn::new(session_id, "@say Part. @stall")).await.unwrap());
        session_id
    });
    place.process(true, |process| async move {
        process.until(session_id, "turn_interrupted").await;
        let events = process.events(session_id).await;
        let last = events.last().unwrap();
        assert_eq!((last["type"].as_str(), last["reason"].as_str()), (Some("turn_interrupted"), Some("process_ended")));
        let events = process.events(session_id).await;
        assert!(events.iter().any(|event| event["prompt"] == "@say Part. @stall"), "the input is kept");
        assert_eq!(process.turn(session_id, "@echo messages").await.unwrap().text, "messages: 4");
        let refused = process.service.resume(&session_id, ResumeTurn::default()).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::ItemNotFound, "the interrupted turn is no longer the last one");
    });
}

#[test]
fn resume_without_a_prompt_takes_the_interrupted_turn_over() {
    let place = Place::new();
    let session_id = place.process(false, |process| async move {
        let session_id = process.create().await;
        let request = StartTurn::new(session_id, r#"@call test_echo {"text":"hi"} @stall"#);
        drop(process.service.begin_turn(request).await.unwrap());
        process.until(session_id, "tool_finished").await;
        session_id
    });
    place.process(true, |process| async move {
        let resumed = process.service.begin_resume(&session_id, ResumeTurn::default()).await.unwrap();
        assert_eq!(resumed.accepted.turn, 1);
        drop(resumed);
        process.until(session_id, "turn_started").await;
        let events = process.events(session_id).await;
        let started: Vec<_> = events.iter().filter(|event| event["type"] == "turn_started").collect();
        assert_eq!(
            (started.len(), &started[1]["continues"], &started[1]["prompt"]),
            (2, &0.into(), &serde_json::Value::Null)
        );
    });
}

#[test]
fn a_call_that_waited_for_a_decision_ends_with_its_process() {
    let place = Place::new();
    let prompt = r#"@call test_ask {"name":"out","line":"x"} @say Done."#;
    let (session_id, call_id) = place.process(false, |process| async move {
        let session_id = process.create().await;
        drop(process.service.begin_turn(StartTurn::new(session_id, prompt)).await.unwrap());
        process.until(session_id, "approval_requested").await;
        let view = process.service.read(&session_id).await.unwrap();
        assert_eq!(view.state, SessionState::Waiting);
        (session_id, view.pending_approvals[0].call_id.clone())
    });
    place.process(true, |process| async move {
        process.until(session_id, "turn_interrupted").await;
        let events = process.events(session_id).await;
        let result = events.iter().find(|event| event["type"] == "tool_finished").unwrap();
        assert_eq!(result["outcome"], "not_run");
        assert_eq!(result["output"], "Not run: the process ended before a decision.");
        let late = DecideApproval { session_id, call_id, decision: Decision::Approve, reason: None };
        let refused = process.service.decide_approval(late).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::ItemNotFound);
        assert_eq!(process.turn(session_id, "@say Next.").await.unwrap().text, "Next.");
    });
    assert!(!place.tool_file("out").exists());
}

#[test]
fn a_queue_outlives_its_process_and_waits_for_the_next_turn() {
    for queue_goes_on in [false, true] {
        let mut place = Place::new();
        place.options.store.queue_goes_on = queue_goes_on;
        let session_id = place.process(false, |process| async move {
            let session_id = process.create().await;
            drop(process.service.begin_turn(StartTurn::new(session_id, "@stall")).await.unwrap());
            for n in 1..3 {
                let waiting = StartTurn { policy: Policy::Queue, ..StartTurn::new(session_id, format!("@say Q{n}.")) };
                assert_eq!(process.service.accept_turn(waiting).await.unwrap().turn, n);
            }
            session_id
        });
        place.process(true, |process| async move {
            process.until(session_id, "turn_interrupted").await;
            if !queue_goes_on {
                let queue = process.service.queue(&session_id).await.unwrap();
                assert_eq!(queue.items.iter().map(|item| item.turn).collect::<Vec<_>>(), [1, 2]);
            }
            let last = StartTurn { policy: Policy::Queue, ..StartTurn::new(session_id, "@echo messages") };
            let last = process.service.start_turn(last).await.unwrap();
            assert_eq!((last.turn, last.text.as_str()), (3, "messages: 6"), "the queue ran in its order before");
        });
    }
}

#[test]
fn a_key_stands_for_its_turn_and_its_session_in_every_process() {
    let place = Place::new();
    let create = CreateSession { idempotency_key: Some("make".to_owned()), ..CreateSession::default() };
    let turn =
        |session_id| StartTurn { idempotency_key: Some("k".to_owned()), ..StartTurn::new(session_id, "@say Once.") };
    let (created, result) = place.process(false, |process| {
        let create = create.clone();
        async move {
            let created = process.service.create_session(create).await.unwrap();
            (created.clone(), process.service.start_turn(turn(created.session_id)).await.unwrap())
        }
    });
    place.process(true, |process| async move {
        assert_eq!(process.service.create_session(create.clone()).await.unwrap(), created);
        assert_eq!(process.service.start_turn(turn(created.session_id)).await.unwrap(), result);
        let other = CreateSession { model: Some("scripted".to_owned()), ..create };
        assert_eq!(process.service.create_session(other).await.unwrap_err().code(), ErrorCode::IdempotencyConflict);
        let other = StartTurn { prompt: "@say Twice.".to_owned(), ..turn(created.session_id) };
        assert_eq!(process.service.start_turn(other).await.unwrap_err().code(), ErrorCode::IdempotencyConflict);
        assert_eq!(process.lines(created.session_id).await.len(), 4, "one turn");
    });
}

/// Each life of the store ends without a word, and the next one finds one more interrupted turn.
#[test]
fn many_lives_in_a_row() {
    let place = Place::new();
    let session_id = place.process(true, |process| async move { process.create().await });
    for life in 0..5 {
        place.process(false, |process| async move {
            let done = process.turn(session_id, "@say Done.").await.unwrap();
            assert_eq!((done.status, done.turn), (TurnStatus::Completed, life * 2));
            drop(process.service.begin_turn(StartTurn::new(session_id, "@say Part. @stall")).await.unwrap());
        });
    }
    place.process(true, |process| async move {
        let events = process.events(session_id).await;
        let seqs: Vec<u64> = events.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
        assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
        let count = |name: &str| events.iter().filter(|event| event["type"] == name).count();
        assert_eq!((count("turn_completed"), count("turn_interrupted")), (5, 5));
    });
}

#[test]
fn a_journal_without_its_beginning_is_damaged_and_can_be_deleted() {
    let place = Place::new();
    let session_id = place.process(true, |process| async move {
        let session_id = process.create().await;
        process.turn(session_id, "@say One.").await.unwrap();
        session_id
    });
    let of_it = files(&place.data_dir()).into_iter().find(|path| path.contains(&session_id.to_string())).unwrap();
    let path = place.data_dir().join(of_it);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    place.process(true, |process| async move {
        let code = process.service.read(&session_id).await.unwrap_err().code();
        assert_eq!(code, ErrorCode::SessionCorrupted);
        assert_eq!(process.turn(session_id, "@say Two.").await.unwrap_err().code(), ErrorCode::SessionCorrupted);
        process.service.delete(DeleteSession { session_id, force: false }).await.unwrap();
        assert_eq!(process.service.read(&session_id).await.unwrap_err().code(), ErrorCode::SessionNotFound);
    });
}

#[test]
fn an_index_that_cannot_be_opened_stands_in_the_way_of_lists_alone() {
    let place = Place::new();
    let session_id = place.process(true, |process| async move { process.create().await });
    let index = place.data_dir().join("index.redb");
    std::fs::remove_file(&index).unwrap();
    std::fs::create_dir(&index).unwrap();
    let made = place.process(false, |process| async move {
        process.turn(session_id, "@say One.").await.unwrap();
        let made = process.create().await;
        assert_eq!(process.turn(made, "@say Two.").await.unwrap().text, "Two.");
        assert!(process.service.list(SessionQuery::default()).await.is_err());
        made
    });
    std::fs::remove_dir(&index).unwrap();
    place.process(true, |process| async move {
        let listed = process.service.list(SessionQuery::default()).await.unwrap().items;
        assert_eq!(
            listed.iter().map(|row| (row.session_id, row.turn_count)).collect::<Vec<_>>(),
            [(made, 1), (session_id, 1)]
        );
    });
}
