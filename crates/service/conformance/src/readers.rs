//! Suite for stores of readers, like [`super::check`] for events and snapshots.

use std::sync::Arc;

use async_trait::async_trait;
use futures::future::BoxFuture;

use meerkat_service::store::{ReaderStore, Registration};

use super::{Broken, expect, said, time};

/// Makes the stores under test.
#[async_trait]
pub trait Harness: Send + Sync {
    /// Makes an empty store.
    async fn fresh(&self) -> Arc<dyn ReaderStore>;

    /// Reopens the store after its process was killed. A store in memory returns itself.
    async fn restart(&self, store: Arc<dyn ReaderStore>) -> Arc<dyn ReaderStore>;
}

type Check = for<'a> fn(&'a dyn Harness, Arc<dyn ReaderStore>) -> BoxFuture<'a, Result<(), String>>;

/// Every promise, by its name.
const PROMISES: [(&str, Check); 3] = [
    ("a_reader_is_registered_once", |harness, store| Box::pin(a_reader_is_registered_once(harness, store))),
    ("a_registration_outlives_the_process", |harness, store| {
        Box::pin(a_registration_outlives_the_process(harness, store))
    }),
    ("nothing_is_left_of_a_forgotten_reader", |harness, store| {
        Box::pin(nothing_is_left_of_a_forgotten_reader(harness, store))
    }),
];

/// Checks every promise on fresh stores. Returns the broken ones; none if all are kept.
pub async fn check(harness: &dyn Harness) -> Vec<Broken> {
    let mut broken = Vec::new();
    for (promise, check) in PROMISES {
        if let Err(why) = check(harness, harness.fresh().await).await {
            broken.push(Broken { promise, why });
        }
    }
    broken
}

async fn register(store: &dyn ReaderStore, reader: &str, at: u64) -> Result<(), String> {
    let registration = Registration { reader: reader.to_owned(), created_at: time(at) };
    said(store.register(registration).await, "register")
}

/// The readers are these, each registered at its time.
async fn holds(store: &dyn ReaderStore, due: &[(&str, u64)]) -> Result<(), String> {
    let due = due.iter().map(|&(reader, at)| Registration { reader: reader.to_owned(), created_at: time(at) });
    expect("the readers", said(store.readers().await, "readers")?, due.collect())
}

async fn a_reader_is_registered_once(_: &dyn Harness, store: Arc<dyn ReaderStore>) -> Result<(), String> {
    let store = store.as_ref();
    holds(store, &[]).await?;
    for (reader, at) in [("b", 1), ("a", 2), ("b", 3)] {
        register(store, reader, at).await?;
    }
    holds(store, &[("a", 2), ("b", 1)]).await
}

async fn a_registration_outlives_the_process(harness: &dyn Harness, store: Arc<dyn ReaderStore>) -> Result<(), String> {
    register(store.as_ref(), "a", 1).await?;
    register(store.as_ref(), "b", 2).await?;
    let store = harness.restart(store).await;
    holds(store.as_ref(), &[("a", 1), ("b", 2)]).await?;
    said(store.unregister("a").await, "unregister")?;
    holds(harness.restart(store).await.as_ref(), &[("b", 2)]).await
}

async fn nothing_is_left_of_a_forgotten_reader(
    harness: &dyn Harness,
    store: Arc<dyn ReaderStore>,
) -> Result<(), String> {
    register(store.as_ref(), "a", 1).await?;
    said(store.unregister("a").await, "unregister")?;
    said(store.unregister("nobody").await, "a reader that is not there")?;
    register(store.as_ref(), "a", 5).await?;
    let store = harness.restart(store).await;
    holds(store.as_ref(), &[("a", 5)]).await
}
