//! Vectors are kept by embedder and text, and a rebuild swaps them when it is complete.

use std::sync::atomic::Ordering;

use super::*;

const TEXTS: [&str; 3] = ["The bassoon is in the attic.", "The harbour is closed.", "Tulips bloom in May."];

fn store(dir: &Path, embedder: &Arc<Faulty>) -> HnswMemoryStore {
    memory(Some(dir), Some(embedder.clone()), false)
}

async fn has_vector(store: &HnswMemoryStore, text: &str) -> bool {
    find(store, text).await.first().is_some_and(|hit| hit.lanes.contains_key("vector"))
}

/// Makes what is missing, and returns how many texts were embedded for it.
async fn made(store: &HnswMemoryStore, embedder: &Faulty) -> usize {
    store.add(vec![intake(1, Vec::new())]).await.unwrap();
    store.made().await;
    embedder.embedded.swap(0, Ordering::Relaxed)
}

/// One command with another configuration, or a model that could not be read once, deleted all vectors.
#[tokio::test]
async fn vectors_of_another_embedder_and_of_none_are_kept() {
    let dir = meerkat_testkit::folder();
    let (one, other) = (Faulty::new("one", false), Faulty::new("other", false));
    for (embedder, expected) in [(&one, 3), (&other, 3), (&one, 0), (&other, 0)] {
        let store = store(dir.path(), embedder);
        store.add(vec![talk(1, &TEXTS)]).await.unwrap();
        assert_eq!(made(&store, embedder).await, expected, "{}", embedder.id);
        assert!(has_vector(&store, "bassoon").await);
        store.close().await;
        drop(store);
        let without = open(Some(dir.path()), false);
        without.add(vec![intake(2, Vec::new())]).await.unwrap();
        without.close().await;
    }
}

/// Each release with another table left the vectors of the one before, until somebody asked for a reindex.
#[tokio::test]
async fn the_vectors_of_a_former_builtin_table_go_and_those_of_a_server_stay() {
    let dir = meerkat_testkit::folder();
    let [server, former, table] = ["server", "builtin-1", "builtin-2"].map(|id| Faulty::new(id, false));
    let starts = async |embedder: &Arc<Faulty>| {
        let store = store(dir.path(), embedder);
        store.add(vec![talk(1, &TEXTS)]).await.unwrap();
        let made = made(&store, embedder).await;
        assert!(has_vector(&store, "bassoon").await);
        store.close().await;
        made
    };
    for (embedder, expected) in [(&server, 3), (&former, 3), (&table, 3), (&former, 0)] {
        assert_eq!(starts(embedder).await, expected, "{}", embedder.id);
    }
    // That start found its own complete, and the next one does again.
    for (embedder, expected) in [(&table, 3), (&table, 0), (&former, 3), (&server, 0)] {
        assert_eq!(starts(embedder).await, expected, "{}", embedder.id);
    }
}

/// Fifty forks had fifty vectors of each text.
#[tokio::test]
async fn equal_texts_are_embedded_once() {
    let dir = meerkat_testkit::folder();
    let embedder = Faulty::new("one", false);
    let store = store(dir.path(), &embedder);
    store.add((1..=10).map(|n| talk(n, &TEXTS)).collect()).await.unwrap();
    store.made().await;
    assert_eq!(made(&store, &embedder).await, 3);
    let forget = |n: u64| ForgetMemory { session_id: Some(session(n)), ..ForgetMemory::default() };
    for n in 1..=9 {
        assert_eq!(forgets(&store, forget(n)).await, 3);
    }
    assert!(has_vector(&store, "bassoon").await, "a text that is left has it");
    forgets(&store, forget(10)).await;
    store.add(vec![talk(11, &TEXTS)]).await.unwrap();
    store.made().await;
    assert_eq!(made(&store, &embedder).await, 3, "no text had it any more");
}

/// A reindex that failed left memory without vectors.
#[tokio::test]
async fn a_rebuild_that_fails_leaves_the_old_vectors_and_goes_on_later() {
    let dir = meerkat_testkit::folder();
    let embedder = Faulty::new("one", false);
    let store = store(dir.path(), &embedder);
    let texts: Vec<String> = (0..200).map(|n| format!("note number{n} of the harbour")).collect();
    store.add(vec![talk(1, &texts.iter().map(String::as_str).collect::<Vec<_>>())]).await.unwrap();
    assert_eq!(made(&store, &embedder).await, 200);
    embedder.fails.store(true, Ordering::Relaxed);
    assert!(store.reindex(&|_, _| ()).await.is_err());
    embedder.fails.store(false, Ordering::Relaxed);
    assert!(has_vector(&store, "number7").await);
    store.made().await;
    assert_eq!(made(&store, &embedder).await, 200, "the rebuild goes on");
    assert!(has_vector(&store, "number7").await);
    store.reindex(&|_, _| ()).await.unwrap();
    assert_eq!(embedder.embedded.swap(0, Ordering::Relaxed), 200);
    store.close().await;
    drop(store);
    let store = self::store(dir.path(), &embedder);
    assert_eq!(made(&store, &embedder).await, 0);
    assert!(has_vector(&store, "number7").await);
}

/// Past the limit of the scan the graph is built in the background, and again by each process.
#[tokio::test]
async fn many_vectors_are_found_before_and_after_their_graph() {
    let dir = meerkat_testkit::folder();
    let embedder = Faulty::new("one", false);
    let texts: Vec<String> = (0..700).map(|n| format!("number{n} harbour")).collect();
    for _ in 0..2 {
        let store = store(dir.path(), &embedder);
        store.add(vec![talk(1, &texts.iter().map(String::as_str).collect::<Vec<_>>())]).await.unwrap();
        made(&store, &embedder).await;
        assert!(!store.core.is_behind().unwrap(), "the graph is whole");
        assert!(has_vector(&store, "number7 harbour").await);
        forgets(
            &store,
            ForgetMemory {
                from_seq: Some(8),
                to_seq: Some(8),
                session_id: Some(session(1)),
                ..ForgetMemory::default()
            },
        )
        .await;
        assert!(find(&store, "number7").await.iter().all(|hit| hit.from_seq != 8));
        store.close().await;
    }
}
