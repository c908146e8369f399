//! A program that saves sessions itself: beside the engine, by the same store.

use meerkat_service::{
    AgentBuildConfig, ErrorCode, Session, SessionError, SessionId,
    service::{ForkSession, StartTurn},
    store::{ReadLimit, Stores, open_stores},
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
