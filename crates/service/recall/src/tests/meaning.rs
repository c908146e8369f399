//! What the built-in vectors find, and that they find nothing about what nobody said.

use super::*;
use crate::builtin_embedder;

const TEXTS: [&str; 8] = [
    "The certificate had expired.",
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
        ("removed fields from the database", TEXTS[6]),
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
async fn a_paraphrase_is_found_among_many_texts() {
    let store = builtin();
    let mut texts = Vec::new();
    for who in
        ["gardener", "teacher", "neighbour", "plumber", "singer", "baker", "captain", "doctor", "tailor", "guest"]
    {
        for did in ["painted", "sold", "borrowed", "cleaned", "lifted", "lost", "bought", "drew", "hid", "praised"] {
            for what in ["fence", "piano", "bicycle", "carpet", "ladder", "kettle", "boat", "mirror", "jacket", "lamp"]
            {
                texts.push(format!("The {who} {did} the {what}."));
            }
        }
    }
    texts.extend(TEXTS.map(str::to_owned));
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    store.add(vec![talk(1, &texts)]).await.unwrap();
    let hits = find(&store, "TLS cert ran out").await;
    assert_eq!(hits.first().map(|hit| &*hit.text), Some(TEXTS[0]), "{hits:#?}");
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

/// Table that never answers about texts.
struct Silent;

#[async_trait]
impl Embedder for Silent {
    fn id(&self) -> String {
        "silent".to_owned()
    }

    fn is_table(&self) -> bool {
        true
    }

    async fn embed(&self, texts: &[String], purpose: EmbedFor) -> Result<Vec<Vec<f32>>, SessionError> {
        if purpose == EmbedFor::Passage {
            std::future::pending::<()>().await;
        }
        Ok(texts.iter().map(|text| toy(text)).collect())
    }
}

/// An intake that made the vectors of all that was there before would hold up those of every other session.
#[tokio::test]
async fn a_new_text_does_not_wait_for_the_vectors_of_earlier_ones() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(Some(dir.path()), false);
    store.add(vec![talk(1, &TEXTS)]).await.unwrap();
    store.close().await;
    drop(store);
    let store = memory(Some(dir.path()), Some(Arc::new(Silent)), false);
    let added = store.add(vec![talk(2, &["The harbour was frozen."])]);
    tokio::time::timeout(std::time::Duration::from_secs(60), added).await.expect("it is taken in at once").unwrap();
    assert_eq!(find(&store, "harbour").await.len(), 1);
    store.close().await;
}
