//! The journal on the real file system, with its own threads.

use super::common::{of, session};
use crate::store::{StoreError, Stores, open_stores};

async fn append(stores: &Stores, lease: &crate::store::Lease, seq: u64) -> Result<u64, StoreError> {
    stores.events.stage(lease, &[of(lease.session_id, seq)])?.durable().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_outlives_its_store() {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("data");
    let stores = open_stores(&data_dir).unwrap();
    let lease = stores.events.lease(session(1)).await.unwrap();
    assert_eq!(lease.tail, 0);
    for seq in 1..=40 {
        assert_eq!(append(&stores, &lease, seq).await, Ok(seq));
    }
    let mut watch = stores.events.watch(session(1)).await.unwrap().unwrap();
    assert_eq!(*watch.borrow_and_update(), 40);
    assert_eq!(stores.events.unsettled().await.unwrap(), [session(1)]);
    stores.events.fork(session(1), 7, &of(session(2), 8)).await.unwrap();
    stores.events.release(lease).await.unwrap();
    drop(stores);

    let stores = open_stores(&data_dir).unwrap();
    assert_eq!(stores.events.unsettled().await.unwrap(), [session(2)]);
    assert_eq!(stores.events.sessions(None, 9).await.unwrap(), [session(1), session(2)]);
    let page = stores.events.read(session(1), 30, 100).await.unwrap().unwrap();
    assert_eq!(page.frames.iter().map(|frame| frame.seq).collect::<Vec<_>>(), (31..=40).collect::<Vec<_>>());
    let lease = stores.events.lease(session(2)).await.unwrap();
    assert_eq!(lease.tail, 8);
    assert_eq!(append(&stores, &lease, 9).await, Ok(9));
    stores.events.delete(session(1)).await.unwrap();
    assert!(stores.events.read(session(1), 0, 1).await.unwrap().is_none());
    assert_eq!(stores.events.sessions(None, 9).await.unwrap(), [session(2)]);
}
