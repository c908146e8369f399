//! The suites that any store must pass.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use meerkat_conformance::{Harness, Pair, check, readers, shared};
use meerkat_service::store::{ReaderStore, Stores};
use meerkat_testkit::needs;
use meerkat_words::answers::SessionState::Running;

use super::{
    append,
    cluster::{Database, fresh},
    database, id, node_with,
    pooler::Pooler,
};
use crate::{PostgresOptions, open};

/// Stores, each in a schema of its own.
#[derive(Default)]
struct Schemas {
    databases: Mutex<Vec<Database>>,
    /// Address of a pooler before the database.
    pooler: Option<String>,
}

impl Schemas {
    async fn opened(&self, is_new: bool) -> Stores {
        if is_new {
            self.databases.lock().unwrap().push(fresh());
        }
        let options = self.databases.lock().unwrap().last().unwrap().options("a");
        open(self.through(options)).await.unwrap()
    }

    /// Names the pooler in place of the database, if there is one.
    fn through(&self, options: PostgresOptions) -> PostgresOptions {
        match &self.pooler {
            Some(pooler) => PostgresOptions { url: pooler.clone().into(), ..options },
            None => options,
        }
    }
}

#[async_trait]
impl Harness for Schemas {
    async fn fresh(&self) -> Pair {
        let Stores { events, snapshots, .. } = self.opened(true).await;
        Pair { events, snapshots }
    }

    async fn restart(&self, pair: Pair) -> Pair {
        drop(pair);
        let Stores { events, snapshots, .. } = self.opened(false).await;
        Pair { events, snapshots }
    }
}

#[async_trait]
impl readers::Harness for Schemas {
    async fn fresh(&self) -> Arc<dyn ReaderStore> {
        self.opened(true).await.readers
    }

    async fn restart(&self, store: Arc<dyn ReaderStore>) -> Arc<dyn ReaderStore> {
        drop(store);
        self.opened(false).await.readers
    }
}

#[async_trait]
impl shared::Harness for Schemas {
    async fn peers(&self) -> [Stores; 2] {
        let database = fresh();
        let peers = ["a", "b"].map(|node| open(self.through(database.options(node))));
        let [a, b] = peers;
        let peers = [a.await.unwrap(), b.await.unwrap()];
        self.databases.lock().unwrap().push(database);
        peers
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stores_keep_every_promise() {
    let _ = database!();
    assert_eq!(check(&Schemas::default()).await, []);
    assert_eq!(readers::check(&Schemas::default()).await, []);
    assert_eq!(shared::check(&Schemas::default()).await, []);
}

/// Two connections of the server serve all of ours, each for one transaction at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stores_keep_every_promise_through_a_pooler_in_transaction_mode() {
    let database = database!();
    needs!("Debian's pgbouncer" => Pooler::is_here());
    let pooler = Pooler::start(database.cluster);
    let schemas = || Schemas { pooler: Some(pooler.url()), ..Schemas::default() };
    assert_eq!(check(&schemas()).await, []);
    assert_eq!(readers::check(&schemas()).await, []);
    assert_eq!(shared::check(&schemas()).await, []);
    // Sessions of many appenders at once, over fewer connections than appenders.
    let a = node_with(database.options_by(pooler.url(), "a")).await;
    let sessions = (1..=20).map(async |n| {
        let lease = a.lease(id(n)).await.unwrap();
        for seq in 1..=10 {
            assert_eq!(append(&a, &lease, n, seq..=seq, Running).await, Ok(seq));
        }
    });
    futures::future::join_all(sessions).await;
    assert_eq!(database.psql("SELECT sum(tail), (SELECT count(*) FROM events) FROM sessions"), "200|200");
}
