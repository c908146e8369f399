//! A model's directory: reads and checks its files and its weights.
//!
//! Anything unsupported is refused with advice, never guessed: nobody would notice a wrong vector.

use std::{
    collections::HashMap,
    fmt::Display,
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
};

use candle_transformers::models::bert::{self, HiddenAct};
use safetensors::{Dtype, tensor::Metadata};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::{
    encoder::{Encoder, Kind, Pooling},
    tokens::{Reading, Vocabulary},
};

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const WORDS: &str = "vocab.txt";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const POOLING: &str = "1_Pooling/config.json";
const MODULES: &str = "modules.json";
const LENGTH: &str = "sentence_bert_config.json";
const PROMPTS: &str = "config_sentence_transformers.json";
/// Files that a vector depends on.
const FILES: [&str; 9] = [CONFIG, WORDS, TOKENIZER, TOKENIZER_CONFIG, POOLING, MODULES, LENGTH, PROMPTS, WEIGHTS];

/// Most bytes of any other file.
const TEXT_BYTES_MAX: u64 = 64 * 1024 * 1024;
const WEIGHTS_BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;
/// Most bytes of the list of tensors at the beginning of the weights.
const HEAD_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Most tokens of a text that a table reads, unless its configuration says otherwise.
const TABLE_TOKENS: usize = 512;

#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    kind: Kind,
    pub(super) vocabulary: Vocabulary,
    /// Prompts before a query and before a passage.
    pub(super) prompts: (String, String),
}

#[derive(Deserialize)]
struct AnyConfig {
    model_type: String,
}

#[derive(Deserialize)]
struct BertConfig {
    vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    intermediate_size: usize,
    max_position_embeddings: usize,
    #[serde(default = "two")]
    type_vocab_size: usize,
    #[serde(default = "small")]
    layer_norm_eps: f64,
    #[serde(default = "gelu")]
    hidden_act: String,
    position_embedding_type: Option<String>,
    #[serde(default)]
    is_decoder: bool,
}

#[derive(Deserialize)]
struct TableConfig {
    max_length: Option<usize>,
}

#[derive(Default, Deserialize)]
struct TokenizerConfig {
    do_lower_case: Option<bool>,
    strip_accents: Option<bool>,
    tokenize_chinese_chars: Option<bool>,
}

#[derive(Deserialize)]
struct Tokenizer {
    model: Option<TokenizerModel>,
}

#[derive(Deserialize)]
struct TokenizerModel {
    #[serde(rename = "type")]
    kind: Option<String>,
    /// Not a table in other kinds of tokenizers.
    vocab: Value,
    unk_token: Option<String>,
    unk_id: Option<u32>,
}

#[derive(Deserialize)]
struct Module {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct Length {
    max_seq_length: Option<usize>,
}

#[derive(Default, Deserialize)]
struct Prompts {
    #[serde(default)]
    prompts: HashMap<String, String>,
    default_prompt_name: Option<String>,
}

const fn two() -> usize {
    2
}

const fn small() -> f64 {
    1e-12
}

fn gelu() -> String {
    "gelu".to_owned()
}

impl Directory {
    /// Reads and checks everything but the weights themselves. An error says what is wrong and what to do.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        if !path.is_dir() {
            let path = path.display();
            return Err(format!("`{path}` is not a directory. Name the one that has the model's {CONFIG}."));
        }
        let AnyConfig { model_type } = required(path, CONFIG)?;
        let weights = Weights::open(path)?;
        let (kind, vocabulary) = match model_type.as_str() {
            "bert" => encoder(path)?,
            "model2vec" => table(path, &weights)?,
            kind => return Err(unsupported(path, &format!("is of the type `{kind}`"))),
        };
        if vocabulary.rows() > kind.rows() {
            let what = format!("its vocabulary has more pieces than {CONFIG} or {WEIGHTS} says ({})", kind.rows());
            return Err(misfit(path, &what));
        }
        weights.check(path, &kind.tensors())?;
        Ok(Self { path: path.to_owned(), kind, vocabulary, prompts: prompts(path)? })
    }

    /// Reads the model; also returns a hash of all files that its vectors depend on.
    pub(super) fn read(&self) -> Result<(Encoder, String), String> {
        let mut hash = Sha256::new();
        let mut weights = Vec::new();
        for name in FILES {
            let bytes = bytes(&self.path, name, WEIGHTS_BYTES_MAX)?.unwrap_or_default();
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(&bytes);
            weights = bytes;
        }
        let encoder = self.kind.read(weights).map_err(|error| unreadable(&self.path, &error))?;
        Ok((encoder, hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()))
    }
}

/// Reads an encoder's configuration and vocabulary, and checks that its architecture is supported.
fn encoder(path: &Path) -> Result<(Kind, Vocabulary), String> {
    let config: BertConfig = required(path, CONFIG)?;
    if config.is_decoder {
        return Err(unsupported(path, "is a decoder"));
    }
    if let Some(kind) = config.position_embedding_type.as_ref().filter(|kind| *kind != "absolute") {
        return Err(unsupported(path, &format!("has positions of the type `{kind}`")));
    }
    let hidden_act = match config.hidden_act.as_str() {
        "gelu" => HiddenAct::Gelu,
        "gelu_new" | "gelu_pytorch_tanh" => HiddenAct::GeluApproximate,
        "relu" => HiddenAct::Relu,
        other => return Err(unsupported(path, &format!("has the activation `{other}`"))),
    };
    check_modules(path, &["Transformer", "Pooling", "Normalize"])?;
    let pooling = match modes(&optional(path, POOLING)?.unwrap_or_default()).as_slice() {
        [] => Pooling::Mean,
        [mode] if mode == "mean_tokens" || mode == "mean" => Pooling::Mean,
        [mode] if mode == "cls_token" || mode == "cls" => Pooling::First,
        modes => return Err(unsupported(path, &format!("pools by {}", modes.join(" and ")))),
    };
    let config = bert::Config {
        vocab_size: config.vocab_size,
        hidden_size: config.hidden_size,
        num_hidden_layers: config.num_hidden_layers,
        num_attention_heads: config.num_attention_heads,
        intermediate_size: config.intermediate_size,
        hidden_act,
        max_position_embeddings: config.max_position_embeddings,
        type_vocab_size: config.type_vocab_size,
        layer_norm_eps: config.layer_norm_eps,
        ..bert::Config::default()
    };
    let sizes = [config.vocab_size, config.type_vocab_size, config.num_hidden_layers, config.intermediate_size];
    let (width, heads, positions) = (config.hidden_size, config.num_attention_heads, config.max_position_embeddings);
    if sizes.contains(&0) || [width, heads, positions].contains(&0) || !width.is_multiple_of(heads) {
        return Err(misfit(path, &format!("the sizes in {CONFIG} do not go together")));
    }
    let length = optional::<Length>(path, LENGTH)?.and_then(|length| length.max_seq_length);
    let tokens_max = length.unwrap_or(positions).min(positions);
    if tokens_max < 2 {
        return Err(misfit(path, "it reads less than two tokens"));
    }
    let vocabulary = Vocabulary::of_pieces(pieces(path)?, reading(path)?, tokens_max);
    Ok((Kind::Encoder(config, pooling), vocabulary.map_err(|why| misfit(path, &why))?))
}

/// Reads a table's sizes and vocabulary.
fn table(path: &Path, weights: &Weights) -> Result<(Kind, Vocabulary), String> {
    let config: TableConfig = required(path, CONFIG)?;
    check_modules(path, &["StaticEmbedding", "Normalize"])?;
    if ["mapping", "weights"].iter().any(|name| weights.sizes(name).is_some()) {
        return Err(unsupported(path, "shares one vector among several tokens"));
    }
    let [rows, columns] = weights.sizes("embeddings").unwrap_or_default() else {
        return Err(misfit(path, &format!("{WEIGHTS} has no table `embeddings`")));
    };
    let file = bytes(path, TOKENIZER, TEXT_BYTES_MAX)?.ok_or_else(|| missing(path, TOKENIZER))?;
    let model = optional::<Tokenizer>(path, TOKENIZER)?.and_then(|tokenizer| tokenizer.model);
    let unknown = model.and_then(|model| {
        let id = model.unk_token.and_then(|token| model.vocab.get(token)?.as_u64());
        id.and_then(|id| u32::try_from(id).ok()).or(model.unk_id)
    });
    let vocabulary = Vocabulary::of_file(&file, unknown, config.max_length.unwrap_or(TABLE_TOKENS));
    let vocabulary = vocabulary.map_err(|why| misfit(path, &format!("{TOKENIZER} cannot be read: {why}")))?;
    Ok((Kind::Table(*rows, *columns), vocabulary))
}

/// Checks that a model has no parts but these.
fn check_modules(path: &Path, known: &[&str]) -> Result<(), String> {
    let modules = optional::<Vec<Module>>(path, MODULES)?.unwrap_or_default();
    let mut kinds = modules.iter().map(|module| module.kind.rsplit('.').next().unwrap_or_default());
    let unknown = kinds.find(|kind| !known.contains(kind));
    unknown.map_or(Ok(()), |kind| Err(unsupported(path, &format!("has a module `{kind}`"))))
}

/// Reads the prompts before a query and before a passage, as sentence-transformers does.
fn prompts(path: &Path) -> Result<(String, String), String> {
    let Prompts { prompts, default_prompt_name } = optional(path, PROMPTS)?.unwrap_or_default();
    let otherwise = default_prompt_name.map_or_else(
        || Ok(String::new()),
        |name| prompts.get(&name).cloned().ok_or_else(|| misfit(path, &format!("{PROMPTS} has no prompt `{name}`"))),
    )?;
    let of = |names: &[&str]| names.iter().find_map(|name| prompts.get(*name)).unwrap_or(&otherwise).clone();
    let found = (of(&["query"]), of(&["document", "passage", "corpus"]));
    let pooling: Map<String, Value> = optional(path, POOLING)?.unwrap_or_default();
    if pooling.get("include_prompt") == Some(&Value::Bool(false)) && found != (String::new(), String::new()) {
        return Err(misfit(path, "it leaves its prompts out when it pools, which is not supported"));
    }
    Ok(found)
}

/// Returns the enabled pooling modes.
fn modes(pooling: &Map<String, Value>) -> Vec<String> {
    let named = pooling.get("pooling_mode").and_then(Value::as_str).map(str::to_owned);
    let on = pooling.iter().filter(|(_, value)| **value == Value::Bool(true));
    let on = on.filter_map(|(key, _)| Some(key.strip_prefix("pooling_mode_")?.to_owned()));
    let mut modes: Vec<String> = named.into_iter().chain(on).collect();
    modes.sort();
    modes
}

fn reading(path: &Path) -> Result<Reading, String> {
    let config: TokenizerConfig = optional(path, TOKENIZER_CONFIG)?.unwrap_or_default();
    let lowers = config.do_lower_case.unwrap_or(true);
    Ok(Reading {
        lowers,
        strips_marks: config.strip_accents.unwrap_or(lowers),
        parts_chinese: config.tokenize_chinese_chars.unwrap_or(true),
    })
}

/// Reads the pieces of an encoder's vocabulary.
fn pieces(path: &Path) -> Result<HashMap<String, u32>, String> {
    if let Some(text) = bytes(path, WORDS, TEXT_BYTES_MAX)? {
        let text = String::from_utf8(text).map_err(|_| misfit(path, &format!("{WORDS} is not UTF-8")))?;
        return Ok(text.lines().map(str::to_owned).zip(0..).collect());
    }
    let Some(Tokenizer { model: Some(model) }) = optional(path, TOKENIZER)? else {
        return Err(missing(path, &format!("{WORDS} (or {TOKENIZER})")));
    };
    let is_ours = model.kind.as_deref().is_none_or(|kind| kind == "WordPiece");
    let ids = is_ours.then(|| serde_json::from_value(model.vocab).ok()).flatten();
    ids.ok_or_else(|| misfit(path, &format!("{TOKENIZER} has no WordPiece vocabulary")))
}

/// List at the beginning of the weights.
struct Weights(Metadata);

impl Weights {
    fn open(path: &Path) -> Result<Self, String> {
        let broken = |what: &dyn Display| unreadable(path, what);
        let mut file = open(path, WEIGHTS, WEIGHTS_BYTES_MAX)?.ok_or_else(|| missing(path, WEIGHTS))?;
        let length = file.metadata().map_err(|error| broken(&error))?.len();
        let mut size = [0; 8];
        file.read_exact(&mut size).map_err(|_| broken(&"it is too short"))?;
        let size = u64::from_le_bytes(size);
        if size > HEAD_BYTES_MAX || size > length {
            return Err(broken(&"it does not begin with the list of its tensors"));
        }
        let mut head = Vec::new();
        file.take(size).read_to_end(&mut head).map_err(|error| broken(&error))?;
        let list: Metadata = serde_json::from_slice(&head).map_err(|error| broken(&error))?;
        if length.checked_sub(8 + size) != Some(list.data_len() as u64) {
            return Err(broken(&"it is not as long as it says"));
        }
        Ok(Self(list))
    }

    fn sizes(&self, name: &str) -> Option<&[usize]> {
        self.0.info(name).map(|tensor| &*tensor.shape)
    }

    /// Checks that the list has all these tensors, in the right sizes.
    fn check(&self, path: &Path, tensors: &[(String, Vec<usize>)]) -> Result<(), String> {
        let broken = |what: String| Err(unreadable(path, &what));
        let prefix = if self.sizes("bert.embeddings.word_embeddings.weight").is_some() { "bert." } else { "" };
        for (name, sizes) in tensors {
            let Some(tensor) = self.0.info(&format!("{prefix}{name}")) else {
                return broken(format!("it has no tensor `{name}`"));
            };
            if tensor.shape != *sizes {
                return broken(format!("`{name}` has the sizes {:?} instead of {sizes:?}", tensor.shape));
            }
            if ![Dtype::F32, Dtype::F16, Dtype::BF16].contains(&tensor.dtype) {
                return broken(format!("`{name}` is {}; F32, F16 and BF16 are supported", tensor.dtype));
            }
        }
        Ok(())
    }
}

fn required<T: DeserializeOwned>(path: &Path, name: &str) -> Result<T, String> {
    optional(path, name)?.ok_or_else(|| missing(path, name))
}

/// Reads a file of JSON, if it exists.
fn optional<T: DeserializeOwned>(path: &Path, name: &str) -> Result<Option<T>, String> {
    let Some(bytes) = bytes(path, name, TEXT_BYTES_MAX)? else { return Ok(None) };
    let read = serde_json::from_slice(&bytes);
    read.map(Some).map_err(|error| misfit(path, &format!("{name} cannot be read: {error}")))
}

fn bytes(path: &Path, name: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, String> {
    let Some(file) = open(path, name, bytes_max)? else { return Ok(None) };
    let mut bytes = Vec::new();
    match file.take(bytes_max).read_to_end(&mut bytes) {
        Ok(_) => Ok(Some(bytes)),
        Err(error) => Err(misfit(path, &format!("{name} cannot be read: {error}"))),
    }
}

/// Opens a file of the directory, if it exists.
fn open(path: &Path, name: &str, bytes_max: u64) -> Result<Option<File>, String> {
    let file = path.join(name);
    // Opening a pipe would block.
    match fs::metadata(&file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Ok(found) if !found.is_file() => return Err(misfit(path, &format!("{name} is not a file"))),
        Ok(found) if found.len() > bytes_max => {
            return Err(misfit(path, &format!("{name} has {} bytes, and may have {bytes_max}", found.len())));
        }
        _ => {}
    }
    File::open(file).map(Some).map_err(|error| misfit(path, &format!("{name} cannot be read: {error}")))
}

fn missing(path: &Path, name: &str) -> String {
    format!("`{}` has no {name}. Put all files of the model there, as they are published.", path.display())
}

fn misfit(path: &Path, what: &str) -> String {
    format!("The model in `{}` cannot be used: {what}. Put all files of one model there again.", path.display())
}

fn unreadable(path: &Path, why: &dyn Display) -> String {
    misfit(path, &format!("{WEIGHTS} cannot be read: {why}"))
}

fn unsupported(path: &Path, what: &str) -> String {
    let name = path.display();
    format!(
        "The model in `{name}` {what}, which is not supported. Take one of the BERT family, such as MiniLM, or a table \
         of model2vec."
    )
}
