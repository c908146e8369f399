//! A program that saves sessions itself: beside the engine, by the same store.

use std::io::ErrorKind;

use meerkat_service::{
    AgentBuildConfig, ErrorCode, Session, SessionError, SessionId,
    service::{ClearReminder, ForkSession, Remind, StartTurn},
    session::reminder::SystemReminderType,
    store::{ReadLimit, SessionStoreError, Stores, open_stores},
    wire::decode_event,
};
use serde_json::json;

/// Folds the journal of a session, as far as it goes.
async fn folded(stores: &Stores, session_id: SessionId) -> Session {
    let page = stores.events.read(session_id, 0, ReadLimit::frames(100)).await.unwrap().unwrap();
    let mut records = page.frames.iter().map(|frame| decode_event(std::str::from_utf8(&frame.line).unwrap()).unwrap());
    let mut session = Session::begin(&records.next().unwrap()).unwrap();
    records.for_each(|record| session.apply(&record).unwrap());
    session
}

/// It is refused with the code and the numbers of every surface, and a fork saves the shorter history.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_as_it_was_before_is_not_saved_over_what_it_is() {
    let dir = meerkat_testkit::folder();
    let stores = open_stores(dir.path()).unwrap();
    let agent = AgentBuildConfig::new().stores(stores.clone()).build().unwrap();
    let service = agent.service();
    let session_id = agent.create_session().await.unwrap().session_id;
    service.start_turn(StartTurn::new(session_id, "@say One.")).await.unwrap();
    let earlier = folded(&stores, session_id).await;
    service.start_turn(StartTurn::new(session_id, "@say Two.")).await.unwrap();
    let later = folded(&stores, session_id).await;

    let save = async |session: &Session| stores.snapshots.save(session).await.map_err(SessionError::from);
    save(&earlier).await.unwrap();
    save(&later).await.unwrap();
    let refused = save(&earlier).await.unwrap_err();
    let code = refused.code();
    assert_eq!(code, ErrorCode::SessionMonotonicityViolation);
    assert_eq!((code.http_status(), code.rpc_code(), code.exit_code()), (409, -32040, 20));
    let body = refused.body();
    assert_eq!(json!(body.details), json!({ "session_id": session_id, "prev_len": 4, "new_len": 2 }));
    assert!(body.message.contains("new message count 2 is shorter than previously persisted 4"), "{}", body.message);
    assert_eq!(stores.snapshots.load(&session_id).await.unwrap(), Some(later));

    let fork = service.fork(ForkSession { session_id, turn: Some(0) }).await.unwrap();
    save(&folded(&stores, fork.session_id).await).await.unwrap();
    service.shut_down(1_000).await;
}

/// What a program reads of a failure of snapshots: a code, and whether asking again can help.
#[test]
fn each_failure_of_a_snapshot_has_a_code_of_its_own() {
    let session_id = "01900000-0000-7000-8000-000000000001".parse::<SessionId>().unwrap();
    let no_json = || serde_json::from_str::<u8>("x").unwrap_err();
    let io = |kind: ErrorKind| SessionStoreError::Io(kind.into());
    for (error, code, is_retryable) in [
        (io(ErrorKind::StorageFull), ErrorCode::StoreFull, true),
        (io(ErrorKind::TimedOut), ErrorCode::StoreFailed, true),
        (SessionStoreError::Internal("gone".to_owned()), ErrorCode::StoreFailed, true),
        (no_json().into(), ErrorCode::Internal, false),
        (SessionStoreError::Corrupted(session_id), ErrorCode::SessionCorrupted, false),
        (SessionStoreError::NotFound(session_id), ErrorCode::ItemNotFound, false),
    ] {
        let said = format!("{error}");
        let body = SessionError::from(error).body();
        assert_eq!((body.code, body.retryable), (code, is_retryable), "{said}");
    }
    let why = SessionError::from(SessionStoreError::from(no_json())).to_string();
    assert!(why.contains("expected value"), "{why}");
}

/// A name that could not be read again is refused before anything is recorded; the session stays readable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reminder_whose_name_could_not_be_read_again_is_refused() {
    let dir = meerkat_testkit::folder();
    let agent = AgentBuildConfig::new().store(dir.path().to_owned()).build().unwrap();
    let service = agent.service();
    let session_id = agent.create_session().await.unwrap().session_id;
    for name in ["", "a b", "x\">\n</system-reminder>", "é", "é".repeat(40).as_str(), "x".repeat(65).as_str()] {
        let kind = SystemReminderType::Custom(name.to_owned());
        assert!(serde_json::from_value::<SystemReminderType>(json!(kind)).is_err(), "{name:?} can be read");
        let refused =
            service.remind(Remind { session_id, kind: kind.clone(), text: "a".to_owned() }).await.unwrap_err();
        assert_eq!(refused.body().details["field"], "kind", "{name:?}: {refused}");
        let refused = service.clear_reminder(ClearReminder { session_id, kind }).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::InvalidRequest);
    }
    let kind = SystemReminderType::Custom("x".repeat(64));
    let set = service.remind(Remind { session_id, kind: kind.clone(), text: "a".to_owned() }).await.unwrap();
    assert_eq!(set.seq, 2);
    service.shut_down(1_000).await;
    drop(agent);
    let later = AgentBuildConfig::new().store(dir.path().to_owned()).build().unwrap();
    let reminders = later.service().reminders(&session_id).await.unwrap().items;
    assert_eq!(reminders.into_iter().map(|reminder| reminder.kind).collect::<Vec<_>>(), [kind]);
    later.service().shut_down(1_000).await;
}
