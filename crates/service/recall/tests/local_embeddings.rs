//! The embedder over a local model, compared with another implementation of the same model.
//!
//! `fixtures/bert/reference.py` and `fixtures/table/reference.py` made the models and the expectations.

#![expect(clippy::unwrap_used, reason = "helpers of tests stop at an impossible value, as tests do")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use meerkat_errors::ErrorCode;
use meerkat_recall::{LocalEmbedder, open_memory};
use meerkat_words::{
    SessionError,
    clock::Timestamp,
    memory::{EmbedFor, Embedder, Intake, MemoryOptions, Passage},
    requests::SearchMemory,
};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// Largest deviation from the reference's vectors.
const DIFFERENCE_MAX: f32 = 1e-4;
const COSINE_MIN: f32 = 0.9999;

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const FILES: [&str; 6] =
    [CONFIG, WEIGHTS, "vocab.txt", "tokenizer.json", "tokenizer_config.json", "1_Pooling/config.json"];

fn published() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/bert")
}

fn table() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/table")
}

/// Copy of a model that a test may change.
struct Copied(TempDir);

impl Copied {
    fn new() -> Self {
        let copy = Self(tempfile::tempdir().unwrap());
        fs::create_dir(copy.path().join("1_Pooling")).unwrap();
        FILES.into_iter().fold(copy, |copy, name| copy.with(name, fs::read(published().join(name)).unwrap()))
    }

    fn of_table() -> Self {
        let copy = Self(tempfile::tempdir().unwrap());
        let files = [CONFIG, WEIGHTS, "tokenizer.json", "modules.json"];
        files.into_iter().fold(copy, |copy, name| copy.with(name, fs::read(table().join(name)).unwrap()))
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

    /// Changes the list of tensors.
    fn listing(self, change: impl FnOnce(&mut Map<String, Value>)) -> Self {
        let bytes = fs::read(self.path().join(WEIGHTS)).unwrap();
        let (size, rest) = bytes.split_first_chunk().unwrap();
        let (list, data) = rest.split_at(usize::try_from(u64::from_le_bytes(*size)).unwrap());
        let mut list: Map<String, Value> = serde_json::from_slice(list).unwrap();
        change(&mut list);
        let list = serde_json::to_vec(&list).unwrap();
        let changed = [&u64::try_from(list.len()).unwrap().to_le_bytes(), &list[..], data].concat();
        self.with(WEIGHTS, changed)
    }

    fn refusal(&self) -> String {
        refusal(self.path())
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

fn expected() -> Value {
    serde_json::from_slice(&fs::read(published().join("expected.json")).unwrap()).unwrap()
}

fn texts() -> Vec<String> {
    serde_json::from_value(expected()["texts"].clone()).unwrap()
}

/// Compares a model's vectors with the reference's.
async fn agrees(dir: &Path, key: &str) {
    agrees_with(dir, key, &expected()).await;
}

async fn agrees_with(dir: &Path, key: &str, expected: &Value) {
    let expected: Vec<Vec<f32>> = serde_json::from_value(expected[key].clone()).unwrap();
    let vectors = LocalEmbedder::open(dir).unwrap().embed(&texts(), EmbedFor::Passage).await.unwrap();
    assert_eq!(vectors.len(), expected.len());
    for ((vector, expected), text) in vectors.iter().zip(&expected).zip(texts()) {
        assert_eq!(vector.len(), expected.len());
        let difference = vector.iter().zip(expected).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
        let cosine: f32 = vector.iter().zip(expected).map(|(one, other)| one * other).sum();
        let has_direction = expected.iter().any(|value| *value != 0.0);
        let is_close = difference < DIFFERENCE_MAX && (cosine >= COSINE_MIN || !has_direction);
        assert!(is_close, "{key}: {text:?}: {difference} {cosine}");
    }
}

#[tokio::test]
async fn vectors_are_those_of_the_reference() {
    agrees(&published(), "mean").await;
    // Mean pooling is the default.
    agrees(Copied::new().without("1_Pooling/config.json").path(), "mean").await;
    let first = json!({ "pooling_mode_mean_tokens": false, "pooling_mode_cls_token": true });
    agrees(Copied::new().setting("1_Pooling/config.json", first).path(), "cls").await;
    agrees(Copied::new().setting("tokenizer_config.json", json!({ "do_lower_case": false })).path(), "cased").await;
    agrees(Copied::new().without("vocab.txt").path(), "mean").await;
    let half = fs::read(published().join("half.safetensors")).unwrap();
    agrees(Copied::new().with(WEIGHTS, half).path(), "half").await;
    // As in models that can do more than encode.
    let prefixed = Copied::new().listing(|list| {
        *list = std::mem::take(list).into_iter().map(|(name, tensor)| (under_bert(&name), tensor)).collect();
    });
    agrees(prefixed.path(), "mean").await;
}

#[tokio::test]
async fn a_tables_vectors_are_those_of_the_reference() {
    let expected = serde_json::from_slice(&fs::read(table().join("expected.json")).unwrap()).unwrap();
    agrees_with(&table(), "table", &expected).await;
    // An older version of model2vec wrote no modules and no length.
    let older = json!({ "model_type": "model2vec", "max_length": null, "normalize": true, "seq_length": 1_000_000 });
    let older = Copied::of_table().without("modules.json").setting(CONFIG, older);
    let embedder = LocalEmbedder::open(older.path()).unwrap();
    let long = ["a ".repeat(1_000_000) + "base", "a".to_owned()];
    let vectors = embedder.embed(&long, EmbedFor::Passage).await.unwrap();
    assert!(vectors[0].iter().zip(&vectors[1]).all(|(one, other)| (one - other).abs() < DIFFERENCE_MAX));
}

#[test]
fn a_table_that_cannot_be_used_is_refused_with_what_to_do() {
    let refused = |copy: Copied, expected: &str| {
        let told = copy.refusal();
        assert!(told.contains(expected), "{told}\n{expected}");
    };
    let renamed = |to: &'static str| {
        Copied::of_table().listing(move |list| {
            let table = list.remove("embeddings").unwrap();
            list.insert(to.to_owned(), table);
        })
    };
    refused(renamed("vectors"), "no table `embeddings`");
    refused(renamed("mapping"), "shares one vector among several tokens");
    refused(Copied::of_table().without("tokenizer.json"), "has no tokenizer.json");
    refused(Copied::of_table().with("tokenizer.json", "{}"), "tokenizer.json cannot be read");
    let narrow = |list: &mut Map<String, Value>| list["embeddings"]["shape"] = json!([96, 32]);
    refused(Copied::of_table().listing(narrow), "more pieces");
    let flat = |list: &mut Map<String, Value>| list["embeddings"]["shape"] = json!([3072]);
    refused(Copied::of_table().listing(flat), "no table `embeddings`");
    let dense = r#"[{"type": "sentence_transformers.models.Dense"}]"#;
    refused(Copied::of_table().with("modules.json", dense), "module `Dense`");
    refused(Copied::of_table().setting(CONFIG, json!({ "model_type": null })), "config.json cannot be read");
}

fn under_bert(name: &str) -> String {
    if name.starts_with("__") { name.to_owned() } else { format!("bert.{name}") }
}

#[tokio::test]
async fn a_text_is_read_as_far_as_the_model_reads() {
    let short = Copied::new().with("sentence_bert_config.json", r#"{"max_seq_length": 4}"#);
    let (short, long) = (LocalEmbedder::open(short.path()).unwrap(), LocalEmbedder::open(&published()).unwrap());
    let texts = ["data base failed again and again".to_owned(), "data base".to_owned(), "a ".repeat(1_000_000)];
    let vectors = short.embed(&texts, EmbedFor::Passage).await.unwrap();
    assert_eq!(vectors[0], vectors[1]);
    assert_ne!(vectors[1], vectors[2]);
    let vectors = long.embed(&texts, EmbedFor::Passage).await.unwrap();
    assert_ne!(vectors[0], vectors[1]);
}

#[tokio::test]
async fn what_a_model_wants_before_a_text_is_put_there() {
    let plain = LocalEmbedder::open(&published()).unwrap();
    let text = ["the cafe is far".to_owned()];
    for (config, query, passage) in [
        (json!({"prompts": {"query": "data: ", "passage": "base: "}}), "data: ", "base: "),
        (json!({"prompts": {"query": "data: ", "document": "again: ", "passage": "base: "}}), "data: ", "again: "),
        (
            json!({"prompts": {"query": "data: ", "other": "base: "}, "default_prompt_name": "other"}),
            "data: ",
            "base: ",
        ),
        (
            json!({"prompts": {"query": "data: "}, "default_prompt_name": null, "similarity_fn_name": "cosine"}),
            "data: ",
            "",
        ),
        (json!({"__version__": {}}), "", ""),
    ] {
        let copy = Copied::new().with("config_sentence_transformers.json", config.to_string());
        let embedder = LocalEmbedder::open(copy.path()).unwrap();
        for (purpose, prompt) in [(EmbedFor::Query, query), (EmbedFor::Passage, passage)] {
            let expected = plain.embed(&[format!("{prompt}{}", text[0])], purpose).await.unwrap();
            assert_eq!(embedder.embed(&text, purpose).await.unwrap(), expected, "{config} {purpose:?}");
        }
    }
}

#[test]
fn another_model_has_another_id() {
    let id = |copy: &Copied| LocalEmbedder::open(copy.path()).unwrap().id();
    let same = id(&Copied::new());
    assert_eq!(same, LocalEmbedder::open(&published()).unwrap().id());
    let half = fs::read(published().join("half.safetensors")).unwrap();
    let first = json!({ "pooling_mode_mean_tokens": false, "pooling_mode_cls_token": true });
    let others = [
        Copied::new().with(WEIGHTS, half),
        Copied::new().setting("tokenizer_config.json", json!({ "do_lower_case": false })),
        Copied::new().setting("1_Pooling/config.json", first),
        Copied::new().setting(CONFIG, json!({ "layer_norm_eps": 1e-5 })),
        Copied::new().with("sentence_bert_config.json", r#"{"max_seq_length": 4}"#),
        Copied::new().with("config_sentence_transformers.json", r#"{"prompts": {"query": "query: "}}"#),
    ];
    let mut ids: Vec<String> = others.iter().map(id).chain([same]).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), others.len() + 1);
}

#[tokio::test]
async fn memory_finds_by_it() {
    let texts = ["the deployment failed", "the cafe is far because", "re-run bar.rs"];
    let embedder: Arc<dyn Embedder> = Arc::new(LocalEmbedder::open(&published()).unwrap());
    let memory = open_memory(None, MemoryOptions { embedder: Some(embedder), ..MemoryOptions::default() }).unwrap();
    let passages = (1..).zip(texts).map(|(seq, text)| Passage {
        seq,
        to_seq: seq,
        part: 0,
        role: "user".to_owned(),
        source: "user".to_owned(),
        time: Timestamp::from_millis(1_700_000_000_000),
        text: text.to_owned(),
    });
    let session_id = serde_json::from_value(json!("018bcfe5-6800-7000-8000-000000000001")).unwrap();
    let intake = Intake {
        session_id,
        labels: BTreeMap::new(),
        passages: passages.collect(),
        up_to: 3,
        inherited: BTreeMap::new(),
    };
    memory.add(vec![intake]).await.unwrap();
    // Afterwards every text has its vector.
    memory.reindex(&|_, _| {}).await.unwrap();
    let query: SearchMemory = serde_json::from_value(json!({ "query": "the deployment failed" })).unwrap();
    let hits = memory.search(query).await.unwrap().items;
    assert_eq!(hits[0].text, texts[0]);
    assert!(hits[0].lanes["vector"] > 0.99, "{:?}", hits[0].lanes);
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
    told(Copied::new().without(WEIGHTS).refusal(), &["has no model.safetensors"]);
    told(
        Copied::new().without("vocab.txt").without("tokenizer.json").refusal(),
        &["has no vocab.txt (or tokenizer.json)"],
    );

    let config = |changes| Copied::new().setting(CONFIG, changes).refusal();
    told(config(json!({ "model_type": "roberta" })), &["type `roberta`", "not supported", "BERT family", "model2vec"]);
    told(config(json!({ "is_decoder": true })), &["is a decoder", "not supported"]);
    told(config(json!({ "position_embedding_type": "relative_key" })), &["`relative_key`", "not supported"]);
    told(config(json!({ "hidden_act": "swish" })), &["activation `swish`", "not supported"]);
    told(config(json!({ "num_attention_heads": 3 })), &["sizes in config.json do not go together"]);
    told(config(json!({ "num_attention_heads": 0 })), &["sizes in config.json do not go together"]);
    told(config(json!({ "max_position_embeddings": 1 })), &["less than two tokens"]);
    told(config(json!({ "vocab_size": 50 })), &["vocabulary has more pieces"]);
    told(config(json!({ "num_hidden_layers": 3 })), &["no tensor `encoder.layer.2."]);
    told(config(json!({ "intermediate_size": 48 })), &["sizes [40] instead of [48]"]);
    told(config(json!({ "hidden_size": "wide" })), &["config.json cannot be read"]);
    told(Copied::new().with(CONFIG, "{").refusal(), &["config.json cannot be read"]);

    let pools = json!({ "pooling_mode_max_tokens": true });
    let pooling = Copied::new().setting("1_Pooling/config.json", pools);
    told(pooling.refusal(), &["pools by max_tokens and mean_tokens", "not supported"]);
    let dense =
        r#"[{"type": "sentence_transformers.models.Transformer"}, {"type": "sentence_transformers.models.Dense"}]"#;
    told(Copied::new().with("modules.json", dense).refusal(), &["module `Dense`", "not supported"]);

    let prompts = |text: &str| Copied::new().with("config_sentence_transformers.json", text);
    told(prompts(r#"{"default_prompt_name": "s2s"}"#).refusal(), &["no prompt `s2s`"]);
    told(prompts(r#"{"prompts": 1}"#).refusal(), &["config_sentence_transformers.json cannot be read"]);
    let left_out = prompts(r#"{"prompts": {"query": "query: "}}"#);
    let left_out = left_out.setting("1_Pooling/config.json", json!({ "include_prompt": false }));
    told(left_out.refusal(), &["leaves its prompts out", "not supported"]);

    told(Copied::new().with("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n").refusal(), &["vocabulary has no [SEP]"]);
    told(Copied::new().with("vocab.txt", [0xff, 0xfe]).refusal(), &["vocab.txt is not UTF-8"]);
    let other = json!({ "model": { "type": "BPE", "vocab": {} } });
    let other = Copied::new().without("vocab.txt").setting("tokenizer.json", other);
    told(other.refusal(), &["tokenizer.json has no WordPiece vocabulary"]);

    let whole = fs::read(published().join(WEIGHTS)).unwrap();
    told(Copied::new().with(WEIGHTS, &whole[..4]).refusal(), &["too short"]);
    told(Copied::new().with(WEIGHTS, &whole[..whole.len() - 4]).refusal(), &["not as long as it says"]);
    told(Copied::new().with(WEIGHTS, [0xff; 64]).refusal(), &["does not begin with the list"]);
    told(
        Copied::new().with(WEIGHTS, [16, 0, 0, 0, 0, 0, 0, 0].repeat(4)).refusal(),
        &["model.safetensors cannot be read"],
    );
    let whole_numbers = Copied::new().listing(|list| list["embeddings.LayerNorm.bias"]["dtype"] = json!("I32"));
    told(whole_numbers.refusal(), &["is I32", "F32, F16 and BF16 are supported"]);
}

#[tokio::test]
async fn weights_that_went_away_after_the_start_are_said_so() {
    let copy = Copied::new();
    let embedder = LocalEmbedder::open(copy.path()).unwrap();
    let copy = copy.without(WEIGHTS);
    let error = embedder.embed(&texts(), EmbedFor::Query).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::MemoryIndexUnavailable);
    assert!(error.to_string().contains(copy.path().to_str().unwrap()), "{error}");
}
