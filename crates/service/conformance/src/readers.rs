//! Suite for stores of readers, like [`super::check`] for events and snapshots.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use futures::future::BoxFuture;

use meerkat_service::{
    Seq,
    store::{ReaderStore, Registration},
};

use super::{Broken, expect, id, said, time};

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
const PROMISES: [(&str, Check); 5] = [
    ("a_reader_is_registered_once", |harness, store| Box::pin(a_reader_is_registered_once(harness, store))),
    ("a_registration_outlives_the_process", |harness, store| {
        Box::pin(a_registration_outlives_the_process(harness, store))
    }),
    ("what_is_relied_on_never_goes_back", |harness, store| Box::pin(what_is_relied_on_never_goes_back(harness, store))),
    ("nothing_is_left_of_a_forgotten_reader", |harness, store| {
        Box::pin(nothing_is_left_of_a_forgotten_reader(harness, store))
    }),
    ("nothing_is_left_of_a_forgotten_session", |harness, store| {
        Box::pin(nothing_is_left_of_a_forgotten_session(harness, store))
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

fn relied(of: &[(&str, Seq)]) -> BTreeMap<String, Seq> {
    of.iter().map(|(reader, seq)| ((*reader).to_owned(), *seq)).collect()
}

async fn register(store: &dyn ReaderStore, reader: &str, at: u64) -> Result<(), String> {
    let registration = Registration { reader: reader.to_owned(), created_at: time(at) };
    said(store.register(registration).await, "register")
}

/// The readers are these, each registered at its time, and certainly all.
async fn holds(store: &dyn ReaderStore, due: &[(&str, u64)]) -> Result<(), String> {
    let due = due.iter().map(|&(reader, at)| Registration { reader: reader.to_owned(), created_at: time(at) });
    expect("the readers", said(store.readers().await, "readers")?, due.collect())?;
    expect("whether they are trusted", store.is_trusted(), true)
}

async fn relies(store: &dyn ReaderStore, n: u8, due: &[(&str, Seq)]) -> Result<(), String> {
    expect("what is relied on", said(store.relied(id(n)).await, "relied")?, relied(due))
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

async fn what_is_relied_on_never_goes_back(harness: &dyn Harness, store: Arc<dyn ReaderStore>) -> Result<(), String> {
    relies(store.as_ref(), 1, &[]).await?;
    for of in [&[("a", 3), ("b", 1)][..], &[("a", 2), ("b", 4)], &[("b", 4)], &[]] {
        said(store.rely(id(1), relied(of)).await, "rely")?;
    }
    said(store.rely(id(2), relied(&[("a", 9)])).await, "rely")?;
    let store = harness.restart(store).await;
    relies(store.as_ref(), 1, &[("a", 3), ("b", 4)]).await?;
    relies(store.as_ref(), 2, &[("a", 9)]).await
}

async fn nothing_is_left_of_a_forgotten_reader(
    harness: &dyn Harness,
    store: Arc<dyn ReaderStore>,
) -> Result<(), String> {
    register(store.as_ref(), "a", 1).await?;
    for n in 1..=2 {
        said(store.rely(id(n), relied(&[("a", 3), ("b", 1)])).await, "rely")?;
    }
    said(store.unregister("a").await, "unregister")?;
    said(store.unregister("nobody").await, "a reader that is not there")?;
    register(store.as_ref(), "a", 5).await?;
    let store = harness.restart(store).await;
    holds(store.as_ref(), &[("a", 5)]).await?;
    relies(store.as_ref(), 1, &[("b", 1)]).await?;
    relies(store.as_ref(), 2, &[("b", 1)]).await
}

async fn nothing_is_left_of_a_forgotten_session(
    harness: &dyn Harness,
    store: Arc<dyn ReaderStore>,
) -> Result<(), String> {
    for n in 1..=2 {
        said(store.rely(id(n), relied(&[("a", 3)])).await, "rely")?;
    }
    said(store.forget(id(1)).await, "forget")?;
    said(store.forget(id(3)).await, "a session that is not there")?;
    let store = harness.restart(store).await;
    relies(store.as_ref(), 1, &[]).await?;
    // It may come again, as another one.
    said(store.rely(id(1), relied(&[("a", 1)])).await, "rely")?;
    relies(store.as_ref(), 1, &[("a", 1)]).await?;
    relies(store.as_ref(), 2, &[("a", 3)]).await
}
