//! Few connections, and broken ones: nothing waits for itself, and no lease ends because others wait.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use meerkat_service::{
    SessionId,
    session::event::Record,
    store::{BlobStore as _, EventStore as _, ReadLimit, RecordSource, StoreError},
    wire::encode_event,
};
use meerkat_testkit::{in_time, until_asked};
use meerkat_words::answers::SessionState::{Idle, Running};

use super::{
    append, database, events, id, jump, node, node_with,
    proxy::{Lose, Proxy},
    record, seqs,
};
use crate::{PostgresOptions, blobs::PostgresBlobs, store::Store};

/// Every connection but that for renewals is in use.
#[tokio::test]
async fn a_lease_is_renewed_whatever_holds_the_connections() {
    let database = database!();
    let a = node_with(PostgresOptions { connections: 3, ..database.options("a") }).await;
    let b = node(&database, "b").await;
    let lease = a.lease(id(1)).await.unwrap();
    append(&a, &lease, 1, 1..=1, Running).await.unwrap();
    let held = [a.db.connection().await.unwrap(), a.db.connection().await.unwrap()];
    database.expire("a");
    assert_eq!(b.orphans(false).await, Ok(vec![id(1)]));
    jump(a.node.pause()).await;
    until_asked("the lease is renewed", async || b.orphans(false).await == Ok(Vec::new())).await;
    drop(held);
}

/// Import whose source reads its blob from the same store.
struct Reads {
    store: Arc<Store>,
    of: SessionId,
    blob: String,
    records: Vec<Record>,
}

#[async_trait]
impl RecordSource for Reads {
    async fn next(&mut self) -> Result<Vec<(Record, Bytes)>, StoreError> {
        PostgresBlobs(self.store.clone())
            .read(self.of, &self.blob, 0, 9)
            .await?
            .ok_or(StoreError::NotFound(self.of))?;
        let records = std::mem::take(&mut self.records);
        Ok(records.into_iter().map(|record| (record.clone(), encode_event(&record).unwrap())).collect())
    }
}

#[tokio::test]
async fn imports_and_deletions_end_with_the_fewest_connections() {
    let database = database!();
    let few = |name| PostgresOptions { connections: 3, ..database.options(name) };
    let (a, b) = (node_with(few("a")).await, node_with(few("b")).await);
    let mut writer = PostgresBlobs(a.clone()).writer(id(9));
    writer.write(b"an upload").await.unwrap();
    let (blob, _) = writer.finish().await.unwrap();
    let imports = (1..=20).map(async |n| {
        let (store, records) = (a.clone(), vec![record(n, 1)]);
        events(&a).import(id(n), &mut Reads { store, of: id(9), blob: blob.clone(), records }).await
    });
    let done = in_time("twenty imports", futures::future::join_all(imports)).await;
    assert!(done.iter().all(Result::is_ok), "{done:?}");
    // Deletions of what another node works on ask who that is.
    for n in 1..=20 {
        let lease = b.lease(id(n)).await.unwrap();
        append(&b, &lease, n, 2..=2, if n % 2 == 0 { Idle } else { Running }).await.unwrap();
    }
    let deletions = (1..=20).map(async |n| events(&a).delete(id(n)).await);
    let done = in_time("twenty deletions", futures::future::join_all(deletions)).await;
    for (n, done) in (1..=20).zip(done) {
        let is_held = matches!(done, Err(StoreError::HeldBy { .. }));
        assert_eq!((is_held, seqs(&b, n).await.is_none()), (n % 2 == 1, n % 2 == 0), "{n}");
    }
}

/// After a restart of the server, or of a proxy, every connection that was made before is broken.
#[tokio::test]
async fn a_read_is_sent_again_over_another_connection() {
    let database = database!();
    let proxy = Proxy::start(&database).await;
    let a = node_with(database.options_by(proxy.url(), "a")).await;
    let lease = a.lease(id(1)).await.unwrap();
    append(&a, &lease, 1, 1..=3, Idle).await.unwrap();
    for lost in [Lose::Request, Lose::ReplyTo("LATERAL")] {
        proxy.lose(lost);
        let page = events(&a).read(id(1), 0, ReadLimit::frames(9)).await;
        assert_eq!(page.map(|page| page.map(|page| page.frames.len())), Ok(Some(3)), "{lost:?}");
        assert!(proxy.has_lost(), "{lost:?}");
    }
}
