//! The stores of the engine keep every promise: those in memory, and those of a data directory.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, Ordering},
};

use async_trait::async_trait;
use meerkat_conformance::{Harness, Pair, check, readers, shared};
use meerkat_service::store::{
    EventStore, IndexFile, MemoryBlobStore, MemoryEventStore, MemoryIndex, MemoryReaders, MemorySessionStore,
    ReaderStore, RedbSessionStore, Stores as Opened, open_stores,
};

use super::{Stores, shared_store::NodeStore};

/// Each pair of stores in a directory of its own.
#[derive(Default)]
struct Directories(Mutex<Vec<tempfile::TempDir>>);

#[async_trait]
impl Harness for Directories {
    async fn fresh(&self) -> Pair {
        let dir = meerkat_testkit::folder();
        let Opened { events, snapshots, .. } = open_stores(dir.path()).unwrap();
        self.0.lock().unwrap().push(dir);
        Pair { events, snapshots }
    }

    async fn restart(&self, pair: Pair) -> Pair {
        drop(pair);
        let path = self.0.lock().unwrap().last().unwrap().path().to_owned();
        let Opened { events, snapshots, .. } = open_stores(&path).unwrap();
        Pair { events, snapshots }
    }
}

#[async_trait]
impl readers::Harness for Directories {
    async fn fresh(&self) -> Arc<dyn ReaderStore> {
        let dir = meerkat_testkit::folder();
        let store = open_stores(dir.path()).unwrap().readers;
        self.0.lock().unwrap().push(dir);
        store
    }

    async fn restart(&self, store: Arc<dyn ReaderStore>) -> Arc<dyn ReaderStore> {
        drop(store);
        let path = self.0.lock().unwrap().last().unwrap().path().to_owned();
        open_stores(&path).unwrap().readers
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_durable_stores_keep_every_promise_of_a_store() {
    assert_eq!(check(&Directories::default()).await, []);
    assert_eq!(readers::check(&Directories::default()).await, []);
}

#[tokio::test]
async fn the_stores_in_memory_keep_their_promises() {
    let fresh = || {
        let events = memory();
        Pair { events: events.clone(), snapshots: Arc::new(MemorySessionStore::new(events)) }
    };
    assert_eq!(check(&Stores(fresh, |pair| pair)).await, []);
}

/// Registrations in memory.
struct Registrations;

#[async_trait]
impl readers::Harness for Registrations {
    async fn fresh(&self) -> Arc<dyn ReaderStore> {
        Arc::<MemoryReaders>::default()
    }

    async fn restart(&self, store: Arc<dyn ReaderStore>) -> Arc<dyn ReaderStore> {
        store
    }
}

#[tokio::test]
async fn the_readers_in_memory_keep_their_promises() {
    assert_eq!(readers::check(&Registrations).await, []);
}

fn memory() -> Arc<MemoryEventStore> {
    Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()))
}

#[tokio::test]
async fn snapshots_in_redb_keep_their_promises() {
    let directory = meerkat_testkit::folder();
    let files = AtomicU32::new(0);
    let open = |n: u32, events: Arc<dyn EventStore>| {
        let file = Arc::new(IndexFile::new(directory.path().join(format!("{n}.redb"))));
        Pair { events: events.clone(), snapshots: Arc::new(RedbSessionStore::new(file, events)) }
    };
    let fresh = || open(files.fetch_add(1, Ordering::Relaxed), memory());
    let restart = |pair: Pair| {
        let events = pair.events.clone();
        // Only one of them may have the file open.
        drop(pair);
        open(files.load(Ordering::Relaxed) - 1, events)
    };
    assert_eq!(check(&Stores(fresh, restart)).await, []);
}

fn in_memory() -> Opened {
    let events = memory();
    Opened {
        blobs: Arc::<MemoryBlobStore>::default(),
        snapshots: Arc::new(MemorySessionStore::new(events.clone())),
        index: Arc::<MemoryIndex>::default(),
        pruner: None,
        readers: Arc::<MemoryReaders>::default(),
        inbox: None,
        events,
    }
}

/// Two handles of one store in memory, or two stores.
struct InMemory {
    are_one: bool,
}

#[async_trait]
impl shared::Harness for InMemory {
    async fn peers(&self) -> [Opened; 2] {
        let one = in_memory();
        let other = if self.are_one { one.clone() } else { in_memory() };
        [one, other]
    }
}

/// Only one process can open a data directory, so its handles are copies of one, and no nodes.
#[async_trait]
impl shared::Harness for Directories {
    async fn peers(&self) -> [Opened; 2] {
        let dir = meerkat_testkit::folder();
        let stores = open_stores(dir.path()).unwrap();
        self.0.lock().unwrap().push(dir);
        [stores.clone(), stores]
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_handles_of_a_store_are_one_store() {
    assert_eq!(shared::check(&InMemory { are_one: true }).await, []);
    assert_eq!(shared::check(&Directories::default()).await, []);
}

/// What is about nodes, or about journal compaction, does not apply to stores in memory.
#[tokio::test]
async fn two_stores_are_not_taken_for_one() {
    let broken = shared::check(&InMemory { are_one: false }).await;
    let broken: Vec<_> = broken.into_iter().map(|broken| broken.promise).collect();
    let does_not_apply = |promise: &&str| {
        ["a_key_has_one_session", "pruning_waits_for_readers_of_either_handle", "a_letter_is_taken_once_and_answered"]
            .contains(promise)
    };
    let due: Vec<_> = shared::PROMISES.iter().copied().filter(|promise| !does_not_apply(promise)).collect();
    assert_eq!(broken, due);
}

/// The store on which the engine's own tests run several nodes. Its lists are those in memory.
struct Nodes;

#[async_trait]
impl shared::Harness for Nodes {
    async fn peers(&self) -> [Opened; 2] {
        let lists = in_memory();
        NodeStore::of(["a", "b"]).map(|node| Opened {
            snapshots: Arc::new(MemorySessionStore::new(node.clone())),
            inbox: Some(node.clone()),
            events: node,
            ..lists.clone()
        })
    }
}

#[tokio::test]
async fn the_store_of_several_nodes_in_the_engines_tests_keeps_its_promises() {
    let fresh = || {
        let [events, _] = NodeStore::of(["a", "b"]);
        Pair { events: events.clone(), snapshots: Arc::new(MemorySessionStore::new(events)) }
    };
    assert_eq!(check(&Stores(fresh, |pair| pair)).await, []);
    // No list in memory says what other nodes changed.
    let promise = "lists_keys_and_checkpoints_are_one_for_both";
    let broken = shared::check(&Nodes).await;
    assert!(
        matches!(&*broken, [only] if only.promise == promise && only.why.starts_with("another node's change")),
        "{broken:?}"
    );
}
