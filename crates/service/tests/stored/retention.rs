//! Sessions that go because there are too many, or because they take too much room.

use meerkat_service::{
    ErrorCode, SessionId,
    service::{DeleteSession, Retain, RetentionReason, SessionQuery, StartTurn},
};

use crate::{Place, Process, files};

async fn stored(process: &Process) -> Vec<SessionId> {
    let page = process.service.list(SessionQuery::default()).await.unwrap();
    let mut ids: Vec<SessionId> = page.items.iter().map(|summary| summary.session_id).collect();
    ids.sort_unstable();
    ids
}

#[test]
fn a_dry_run_lists_what_would_go_and_the_run_deletes_it() {
    let place = Place::new();
    let ids = place.process(true, |process| {
        let place = &place;
        async move {
            let mut ids = Vec::new();
            for _ in 0..3 {
                ids.push(process.create().await);
                process.turn(ids[ids.len() - 1], "@say One.").await.unwrap();
            }
            assert_eq!(process.service.retain(Retain::default()).await.unwrap().items, [], "it is off by default");
            let request = Retain { dry_run: true, max_sessions: Some(2), ..Retain::default() };
            let listed = process.service.retain(request.clone()).await.unwrap();
            assert_eq!((listed.deleted, listed.items.len()), (0, 1));
            let item = &listed.items[0];
            let path = files(&place.data_dir()).into_iter().find(|path| path.contains(&ids[0].to_string())).unwrap();
            let bytes = std::fs::metadata(place.data_dir().join(path)).unwrap().len();
            assert_eq!((item.session_id, item.reason, item.bytes), (ids[0], RetentionReason::Count, bytes));
            assert_eq!(stored(&process).await, ids, "a dry run deletes nothing");

            let done = process.service.retain(Retain { dry_run: false, ..request }).await.unwrap();
            assert_eq!((done.deleted, &done.items), (1, &listed.items));
            assert_eq!(stored(&process).await, ids[1..]);
            let gone = process.service.read(&ids[0]).await.unwrap_err();
            assert_eq!(gone.code(), ErrorCode::SessionNotFound);
            ids
        }
    });
    let left = files(&place.data_dir());
    assert!(!left.iter().any(|path| path.contains(&ids[0].to_string())), "{left:?}");
}

#[test]
fn what_runs_or_waits_stays() {
    let place = Place::new();
    place.process(true, |process| async move {
        let running = process.create().await;
        let turn = process.service.begin_turn(StartTurn::new(running, "@say Part. @stall")).await.unwrap();
        let idle = process.create().await;
        let request = Retain { max_bytes: Some(1), ..Retain::default() };
        let done = process.service.retain(request).await.unwrap();
        let gone: Vec<_> = done.items.iter().map(|item| (item.session_id, item.reason)).collect();
        assert_eq!((gone, done.deleted), (vec![(idle, RetentionReason::Bytes)], 1));
        assert_eq!(stored(&process).await, [running]);
        process.service.delete(DeleteSession { session_id: running, force: true }).await.unwrap();
        turn.result.await.unwrap();
    });
}
