//! What the built-in vectors find, and that they find nothing about what nobody said.

use super::*;
use crate::builtin_embedder;

const TEXTS: [&str; 8] = [
    "Requests failed all morning: the certificate had expired.",
    "We moved the tests of the parser into a folder of their own.",
    "My daughter starts school in September.",
    "The invoice for the carpenter is paid.",
    "Lunch is at noon, bring bread and cheese.",
    "The train to the coast was late because of snow.",
    "I deleted the unused columns of the users table.",
    "The hotel had no room, so we slept in the car.",
];

fn builtin() -> HnswMemoryStore {
    memory(None, builtin_embedder(), false)
}

#[tokio::test]
async fn a_paraphrase_without_a_common_word_is_found_at_once() {
    let store = builtin();
    store.add(vec![talk(1, &TEXTS)]).await.unwrap();
    for (asked, expected) in [
        ("TLS cert ran out", TEXTS[0]),
        ("kid's first day of class", TEXTS[2]),
        ("dropped database fields", TEXTS[6]),
        ("delayed railway journey", TEXTS[5]),
    ] {
        let hits = find(&store, asked).await;
        let first = hits.first().map(|hit| &*hit.text);
        assert_eq!(first, Some(expected), "{asked}: {hits:#?}");
        let lanes: Vec<&str> = hits[0].lanes.keys().map(String::as_str).collect();
        assert_eq!(lanes, ["vector"], "{asked}");
    }
}

#[tokio::test]
async fn what_nobody_said_is_not_found_by_its_meaning() {
    let store = builtin();
    store.add(vec![talk(1, &TEXTS)]).await.unwrap();
    for asked in ["zebra xylophone", "medieval cathedral gargoyle", "chromosome mutation", "qwzx"] {
        let hits = find(&store, asked).await;
        assert!(hits.is_empty(), "{asked}: {hits:#?}");
    }
}
