//! Sessions that go because there are too many, or because they take too much room.

use meerkat_service::{
    SessionId,
    service::{DeleteSession, Retain, RetentionReason, SessionQuery, StartTurn},
};

use crate::{Place, Process};

async fn stored(process: &Process) -> Vec<SessionId> {
    let page = process.service.list(SessionQuery::default()).await.unwrap();
    let mut ids: Vec<SessionId> = page.items.iter().map(|summary| summary.session_id).collect();
    ids.sort_unstable();
    ids
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
