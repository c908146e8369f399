//! What a process that ends in the middle of its work leaves behind, and how the next one finds it.

use meerkat_service::{
    ErrorCode,
    options::Policy,
    service::{CreateSession, DeleteSession, SessionQuery, StartTurn},
};

use crate::{Place, files};

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
