//! The embedder over a table of model2vec, compared with model2vec itself.
//!
//! `fixtures/table/reference.py` made the table and the expectations.

#![expect(clippy::unwrap_used, reason = "helpers of tests stop at an impossible value, as tests do")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use meerkat_errors::ErrorCode;
use meerkat_recall::LocalEmbedder;
use meerkat_words::{
    SessionError,
    memory::{EmbedFor, Embedder},
};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// Largest deviation from the reference's vectors: memory keeps a component in one byte.
const DIFFERENCE_MAX: f32 = 0.01;
const COSINE_MIN: f32 = 0.9999;
/// Length from which on model2vec cuts this table's texts.
const CUT_BYTES: usize = 300;

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const TOKENIZER: &str = "tokenizer.json";
const MODULES: &str = "modules.json";
const FILES: [&str; 4] = [CONFIG, WEIGHTS, TOKENIZER, MODULES];

fn published() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/table")
}

/// Copy of the table that a test may change.
struct Copied(TempDir);

impl Copied {
    fn new() -> Self {
        let copy = Self(tempfile::tempdir().unwrap());
        FILES.into_iter().fold(copy, |copy, name| copy.with(name, fs::read(published().join(name)).unwrap()))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn without(self, name: &str) -> Self {
        fs::remove_file(self.path().join(name)).unwrap();
        self
    }

    fn with(self, name: &str, bytes: impl AsRef<[u8]>) -> Self {
        fs::write(self.path().join(name), bytes).unwrap();
        self
    }

    /// Changes some keys of a file.
    fn setting(self, name: &str, changes: Value) -> Self {
        let text = fs::read(self.path().join(name)).unwrap();
        let mut values: Map<String, Value> = serde_json::from_slice(&text).unwrap();
        values.extend(changes.as_object().unwrap().clone());
        self.with(name, serde_json::to_vec(&values).unwrap())
    }

    /// Changes the list of tensors and the bytes after it.
    fn changing(self, change: impl FnOnce(&mut Map<String, Value>, &mut Vec<u8>)) -> Self {
        let bytes = fs::read(self.path().join(WEIGHTS)).unwrap();
        let (size, rest) = bytes.split_first_chunk().unwrap();
        let (list, data) = rest.split_at(usize::try_from(u64::from_le_bytes(*size)).unwrap());
        let mut list: Map<String, Value> = serde_json::from_slice(list).unwrap();
        let mut data = data.to_vec();
        change(&mut list, &mut data);
        let list = serde_json::to_vec(&list).unwrap();
        let changed = [&u64::try_from(list.len()).unwrap().to_le_bytes(), &list[..], &data].concat();
        self.with(WEIGHTS, changed)
    }

    /// Changes the list of tensors.
    fn listing(self, change: impl FnOnce(&mut Map<String, Value>)) -> Self {
        self.changing(|list, _| change(list))
    }

    /// Stores each number in two bytes.
    fn halved(self, kind: &str, narrow: impl Fn(f32) -> u16) -> Self {
        self.changing(|list, data| {
            let numbers = data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            *data = numbers.flat_map(|number| narrow(number).to_le_bytes()).collect();
            list["embeddings"]["dtype"] = json!(kind);
            list["embeddings"]["data_offsets"] = json!([0, data.len()]);
        })
    }
}

/// Returns the message that refuses a directory.
#[track_caller]
fn refusal(dir: &Path) -> String {
    let error = LocalEmbedder::open(dir).unwrap_err();
    assert_eq!(error.code(), ErrorCode::ConfigInvalid);
    let SessionError::ConfigInvalid { key, message } = error else { panic!("{error:?}") };
    assert_eq!(key, "memory.local.dir");
    assert!(message.contains(dir.to_str().unwrap()), "it says which directory: {message}");
    message
}

/// Compares a table's vectors with the reference's.
async fn agrees(dir: &Path) {
    let expected: Value = serde_json::from_slice(&fs::read(published().join("expected.json")).unwrap()).unwrap();
    let texts: Vec<String> = serde_json::from_value(expected["texts"].clone()).unwrap();
    let expected: Vec<Vec<f32>> = serde_json::from_value(expected["table"].clone()).unwrap();
    let vectors = LocalEmbedder::open(dir).unwrap().embed(&texts, EmbedFor::Passage).await.unwrap();
    assert_eq!(vectors.len(), expected.len());
    // model2vec also cuts a long text at a number of characters, by the median length of a token; here tokens count alone.
    let is_cut = |text: &str| text.len() > CUT_BYTES;
    assert_eq!(texts.iter().filter(|text| is_cut(text)).count(), 1);
    for ((vector, expected), text) in vectors.iter().zip(&expected).zip(texts).filter(|(_, text)| !is_cut(text)) {
        assert_eq!(vector.len(), expected.len());
        let difference = vector.iter().zip(expected).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
        let cosine: f32 = vector.iter().zip(expected).map(|(one, other)| one * other).sum();
        let has_direction = expected.iter().any(|value| *value != 0.0);
        let is_close = difference < DIFFERENCE_MAX && (cosine >= COSINE_MIN || !has_direction);
        assert!(is_close, "{text:?}: {difference} {cosine}");
    }
}

#[tokio::test]
async fn vectors_are_those_of_the_reference() {
    agrees(&published()).await;
    agrees(Copied::new().halved("BF16", |number| (number.to_bits() >> 16) as u16).path()).await;
    // Standard normal numbers, so the exponent fits unless a number is next to nothing.
    let half = |number: f32| {
        let bits = number.to_bits();
        let exponent = (bits >> 23 & 255) as i32 - 112;
        let sign = (bits >> 16 & 0x8000) as u16;
        if exponent <= 0 { sign } else { sign | (exponent as u16) << 10 | (bits >> 13 & 1023) as u16 }
    };
    agrees(Copied::new().halved("F16", half).path()).await;
    // An older version of model2vec wrote no modules and no length.
    let older = json!({ "model_type": "model2vec", "max_length": null, "normalize": true, "seq_length": 1_000_000 });
    let older = Copied::new().without(MODULES).setting(CONFIG, older);
    let embedder = LocalEmbedder::open(older.path()).unwrap();
    let long = ["a ".repeat(1_000_000) + "base", "a".to_owned()];
    let vectors = embedder.embed(&long, EmbedFor::Passage).await.unwrap();
    let is_near = |(one, other): (&f32, &f32)| (one - other).abs() < 1e-4;
    assert!(vectors[0].iter().zip(&vectors[1]).all(is_near), "a text is read as far as the table reads");
}

#[test]
fn another_table_has_another_id() {
    let id = |copy: &Copied| LocalEmbedder::open(copy.path()).unwrap().id();
    let same = id(&Copied::new());
    assert_eq!(same, LocalEmbedder::open(&published()).unwrap().id());
    let others = [
        Copied::new().changing(|_, data| data[0] ^= 1),
        Copied::new().setting(CONFIG, json!({ "max_length": 4 })),
        Copied::new().setting(TOKENIZER, json!({ "version": "1.1" })),
        Copied::new().without(MODULES),
    ];
    let mut ids: Vec<String> = others.iter().map(id).chain([same]).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), others.len() + 1);
}

#[test]
fn what_cannot_be_used_is_refused_with_what_to_do() {
    let told = |told: String, expected: &[&str]| {
        for expected in expected {
            assert!(told.contains(expected), "{told}\n{expected}");
        }
    };
    let empty = tempfile::tempdir().unwrap();
    told(refusal(&empty.path().join("absent")), &["not a directory", "Name the one"]);
    told(refusal(empty.path()), &["has no config.json", "as they are published"]);
    let refused = |copy: Copied, expected: &[&str]| told(refusal(copy.path()), expected);
    refused(Copied::new().without(WEIGHTS), &["has no model.safetensors"]);
    refused(Copied::new().without(TOKENIZER), &["has no tokenizer.json"]);
    refused(Copied::new().with(CONFIG, "{"), &["config.json cannot be read"]);
    refused(Copied::new().setting(CONFIG, json!({ "model_type": null })), &["config.json cannot be read"]);
    let bert = Copied::new().setting(CONFIG, json!({ "model_type": "bert" }));
    refused(bert, &["type `bert`", "not supported", "model2vec", "memory.embedder = \"endpoint\""]);
    let dense = r#"[{"type": "sentence_transformers.models.Dense"}]"#;
    refused(Copied::new().with(MODULES, dense), &["module `Dense`", "not supported"]);

    let tokenizer = |changes| Copied::new().setting(TOKENIZER, changes);
    let kind = ["not of the kind WordPiece", "not supported", "memory.embedder = \"endpoint\""];
    refused(tokenizer(json!({ "model": { "type": "Unigram", "vocab": [["a", 0.5]] } })), &kind);
    refused(tokenizer(json!({ "model": null })), &kind);
    refused(tokenizer(json!({ "model": { "type": "WordPiece", "vocab": [] } })), &["no vocabulary of WordPiece"]);
    let cased = json!({ "type": "BertNormalizer", "lowercase": false, "handle_chinese_chars": true });
    let reading = ["cut a text into words as uncased models"];
    refused(tokenizer(json!({ "normalizer": cased })), &reading);
    refused(tokenizer(json!({ "normalizer": { "type": "NFC" } })), &reading);
    refused(tokenizer(json!({ "pre_tokenizer": { "type": "Metaspace" } })), &reading);
    refused(tokenizer(json!({ "pre_tokenizer": null })), &reading);
    for (part, key, value) in [
        ("normalizer", "clean_text", json!(false)),
        ("model", "continuing_subword_prefix", json!("@@")),
        ("model", "max_input_chars_per_word", json!(50)),
    ] {
        let published: Value = serde_json::from_slice(&fs::read(published().join(TOKENIZER)).unwrap()).unwrap();
        let mut changed = published[part].clone();
        changed[key] = value;
        refused(tokenizer(json!({ part: changed })), &reading);
    }

    let renamed = |to: &'static str| {
        Copied::new().listing(move |list| {
            let table = list.remove("embeddings").unwrap();
            list.insert(to.to_owned(), table);
        })
    };
    refused(renamed("vectors"), &["no table `embeddings`"]);
    let mapped = |list: &mut Map<String, Value>| drop(list.insert("mapping".to_owned(), json!({})));
    refused(Copied::new().listing(mapped), &["shares one vector among several tokens"]);
    let flat = |list: &mut Map<String, Value>| list["embeddings"]["shape"] = json!([3072]);
    refused(Copied::new().listing(flat), &["no table `embeddings`"]);
    let narrow = |list: &mut Map<String, Value>| {
        let numbers =
            list["embeddings"]["shape"][0].as_u64().unwrap() * list["embeddings"]["shape"][1].as_u64().unwrap();
        list["embeddings"]["shape"] = json!([numbers / 32, 32]);
    };
    refused(Copied::new().listing(narrow), &["more pieces"]);
    let small = |list: &mut Map<String, Value>| list["embeddings"]["dtype"] = json!("I8");
    refused(Copied::new().listing(small), &["kind I8, not F32, F16 or BF16", "Take one of model2vec"]);
    refused(Copied::new().setting(CONFIG, json!({ "max_length": 0 })), &["no token of a text"]);

    let whole = fs::read(published().join(WEIGHTS)).unwrap();
    refused(Copied::new().with(WEIGHTS, &whole[..4]), &["too short"]);
    refused(Copied::new().with(WEIGHTS, &whole[..whole.len() - 4]), &["not as long as it says"]);
    refused(Copied::new().with(WEIGHTS, [0xff; 64]), &["does not begin with the list"]);
    let noise = [16, 0, 0, 0, 0, 0, 0, 0].repeat(4);
    refused(Copied::new().with(WEIGHTS, noise), &["model.safetensors cannot be read"]);
}

#[tokio::test]
async fn numbers_that_went_away_after_the_start_are_said_so() {
    let copy = Copied::new();
    let embedder = LocalEmbedder::open(copy.path()).unwrap();
    let copy = copy.without(WEIGHTS);
    let error = embedder.embed(&["text".to_owned()], EmbedFor::Query).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::MemoryIndexUnavailable);
    assert!(error.to_string().contains(copy.path().to_str().unwrap()), "{error}");
}

#[tokio::test]
async fn a_table_with_a_number_that_is_none_is_refused() {
    for number in [f32::NAN, f32::INFINITY] {
        let copy = Copied::new().changing(|_, data| data[..4].copy_from_slice(&number.to_le_bytes()));
        let embedder = LocalEmbedder::open(copy.path()).unwrap();
        let error = embedder.embed(&["text".to_owned()], EmbedFor::Query).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::MemoryIndexUnavailable);
        assert!(error.to_string().contains("infinite or none"), "{error}");
    }
}
