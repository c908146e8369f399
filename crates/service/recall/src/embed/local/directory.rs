//! A model's directory: reads and checks its files and its weights.
//!
//! Anything unsupported is refused with advice, never guessed: nobody would notice a wrong vector.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
};

use safetensors::{Dtype, SafeTensors, tensor::Metadata};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::{
    bert::{self, Activation, Bert, Pooling, Shape},
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

#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    shape: Shape,
    prefix: &'static str,
    pub(super) vocabulary: Vocabulary,
    /// Tokens of a text that the model reads.
    pub(super) tokens_max: usize,
    /// Prompts before a query and before a passage.
    pub(super) prompts: (String, String),
}

#[derive(Deserialize)]
struct Config {
    model_type: String,
    vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    intermediate_size: usize,
    max_position_embeddings: usize,
    #[serde(default = "two")]
    type_vocab_size: usize,
    #[serde(default = "small")]
    layer_norm_eps: f32,
    #[serde(default = "gelu")]
    hidden_act: String,
    position_embedding_type: Option<String>,
    #[serde(default)]
    is_decoder: bool,
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

const fn small() -> f32 {
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
            return Err(format!("`{path}` is no directory. Name the one that has the model's {CONFIG}."));
        }
        let config: Config = required(path, CONFIG)?;
        let shape = shape(path, &config)?;
        let vocabulary = vocabulary(path)?;
        if vocabulary.rows() > shape.words {
            return Err(misfit(path, &format!("its vocabulary has more pieces than {CONFIG} says ({})", shape.words)));
        }
        let length = optional::<Length>(path, LENGTH)?.and_then(|length| length.max_seq_length);
        let tokens_max = length.unwrap_or(shape.positions).min(shape.positions);
        if tokens_max < 2 {
            return Err(misfit(path, "it reads less than two tokens"));
        }
        let prefix = check_weights(path, &shape)?;
        Ok(Self { path: path.to_owned(), shape, prefix, vocabulary, tokens_max, prompts: prompts(path)? })
    }

    /// Reads the encoder; also returns a hash of all files that its vectors depend on.
    pub(super) fn read(&self) -> Result<(Bert, String), String> {
        let mut hash = Sha256::new();
        let mut weights = Vec::new();
        for name in FILES {
            let bytes = bytes(&self.path, name, WEIGHTS_BYTES_MAX)?.unwrap_or_default();
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(&bytes);
            weights = bytes;
        }
        let broken = |error: &dyn std::fmt::Display| misfit(&self.path, &format!("{WEIGHTS} cannot be read: {error}"));
        let tensors = SafeTensors::deserialize(&weights).map_err(|error| broken(&error))?;
        let numbers = |name: &str| {
            let tensor = tensors.tensor(&format!("{}{name}", self.prefix)).map_err(|error| broken(&error))?;
            numbers(tensor.dtype(), tensor.data()).ok_or_else(|| broken(&format!("`{name}` is {}", tensor.dtype())))
        };
        // The file may have been replaced since it was checked.
        for (name, sizes) in bert::tensors(&self.shape) {
            let tensor = tensors.tensor(&format!("{}{name}", self.prefix)).map_err(|error| broken(&error))?;
            if tensor.shape() != sizes {
                return Err(broken(&format!("`{name}` has changed")));
            }
        }
        let bert = Bert::new(self.shape.clone(), &numbers)?;
        Ok((bert, hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()))
    }
}

/// Reads the sizes from the configuration, and checks that the architecture is supported.
fn shape(path: &Path, config: &Config) -> Result<Shape, String> {
    let unsupported = |what: &str| {
        let name = path.display();
        format!("The model in `{name}` {what}, which is not supported. Take one of the BERT family, such as MiniLM.")
    };
    if config.model_type != "bert" || config.is_decoder {
        return Err(unsupported(&format!("is of the type `{}`", config.model_type)));
    }
    if let Some(kind) = config.position_embedding_type.as_ref().filter(|kind| *kind != "absolute") {
        return Err(unsupported(&format!("has positions of the type `{kind}`")));
    }
    let activation = match config.hidden_act.as_str() {
        "gelu" => Activation::Gelu,
        "gelu_new" | "gelu_pytorch_tanh" => Activation::GeluTanh,
        "relu" => Activation::Relu,
        other => return Err(unsupported(&format!("has the activation `{other}`"))),
    };
    let modules = optional::<Vec<Module>>(path, MODULES)?.unwrap_or_default();
    let is_known = |kind: &str| ["Transformer", "Pooling", "Normalize"].contains(&kind);
    let kinds = modules.iter().map(|module| module.kind.rsplit('.').next().unwrap_or_default());
    if let Some(kind) = kinds.into_iter().find(|kind| !is_known(kind)) {
        return Err(unsupported(&format!("has a module `{kind}`")));
    }
    let pooling = match modes(&optional(path, POOLING)?.unwrap_or_default()).as_slice() {
        [] => Pooling::Mean,
        [mode] if mode == "mean_tokens" || mode == "mean" => Pooling::Mean,
        [mode] if mode == "cls_token" || mode == "cls" => Pooling::First,
        modes => return Err(unsupported(&format!("pools by {}", modes.join(" and ")))),
    };
    let shape = Shape {
        words: config.vocab_size,
        positions: config.max_position_embeddings,
        types: config.type_vocab_size,
        hidden: config.hidden_size,
        wide: config.intermediate_size,
        layers: config.num_hidden_layers,
        heads: config.num_attention_heads,
        epsilon: config.layer_norm_eps,
        activation,
        pooling,
    };
    let sizes = [shape.words, shape.positions, shape.types, shape.hidden, shape.wide, shape.layers, shape.heads];
    if sizes.contains(&0) || !shape.hidden.is_multiple_of(shape.heads) {
        return Err(misfit(path, &format!("the sizes in {CONFIG} do not go together")));
    }
    Ok(shape)
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

fn vocabulary(path: &Path) -> Result<Vocabulary, String> {
    let config: TokenizerConfig = optional(path, TOKENIZER_CONFIG)?.unwrap_or_default();
    let lowers = config.do_lower_case.unwrap_or(true);
    let reading = Reading {
        lowers,
        strips_marks: config.strip_accents.unwrap_or(lowers),
        parts_chinese: config.tokenize_chinese_chars.unwrap_or(true),
    };
    let ids: HashMap<String, u32> = if let Some(text) = bytes(path, WORDS, TEXT_BYTES_MAX)? {
        let text = String::from_utf8(text).map_err(|_| misfit(path, &format!("{WORDS} is not UTF-8")))?;
        text.lines().map(str::to_owned).zip(0..).collect()
    } else if let Some(Tokenizer { model: Some(model) }) = optional(path, TOKENIZER)? {
        let is_ours = model.kind.as_deref().is_none_or(|kind| kind == "WordPiece");
        let ids = is_ours.then(|| serde_json::from_value(model.vocab).ok()).flatten();
        ids.ok_or_else(|| misfit(path, &format!("{TOKENIZER} has no WordPiece vocabulary")))?
    } else {
        return Err(missing(path, &format!("{WORDS} (or {TOKENIZER})")));
    };
    Vocabulary::new(ids, reading).map_err(|token| misfit(path, &format!("its vocabulary has no {token}")))
}

/// Checks that the list has all tensors, in the right sizes; returns the prefix of their names.
fn check_weights(path: &Path, shape: &Shape) -> Result<&'static str, String> {
    let broken = |what: &str| misfit(path, &format!("{WEIGHTS} cannot be read: {what}"));
    let mut file = open(path, WEIGHTS, WEIGHTS_BYTES_MAX)?.ok_or_else(|| missing(path, WEIGHTS))?;
    let length = file.metadata().map_err(|error| broken(&error.to_string()))?.len();
    let mut size = [0; 8];
    file.read_exact(&mut size).map_err(|_| broken("it is too short"))?;
    let size = u64::from_le_bytes(size);
    if size > HEAD_BYTES_MAX || size > length {
        return Err(broken("it does not begin with the list of its tensors"));
    }
    let mut head = Vec::new();
    file.take(size).read_to_end(&mut head).map_err(|error| broken(&error.to_string()))?;
    let list: Metadata = serde_json::from_slice(&head).map_err(|error| broken(&error.to_string()))?;
    if length.checked_sub(8 + size) != Some(list.data_len() as u64) {
        return Err(broken("it is not as long as it says"));
    }
    let known = |prefix: &str, name: &str| list.info(&format!("{prefix}{name}"));
    let prefix = if known("bert.", "embeddings.word_embeddings.weight").is_some() { "bert." } else { "" };
    for (name, sizes) in bert::tensors(shape) {
        let tensor = known(prefix, &name).ok_or_else(|| broken(&format!("it has no tensor `{name}`")))?;
        if tensor.shape != sizes {
            return Err(broken(&format!("`{name}` has the sizes {:?} instead of {sizes:?}", tensor.shape)));
        }
        if numbers(tensor.dtype, &[]).is_none() {
            return Err(broken(&format!("`{name}` is {}; F32, F16 and BF16 are supported", tensor.dtype)));
        }
    }
    Ok(prefix)
}

/// Decodes a tensor; `None` for an unsupported type.
fn numbers(kind: Dtype, data: &[u8]) -> Option<Vec<f32>> {
    let pairs = || data.as_chunks::<2>().0.iter().map(|pair| u16::from_le_bytes(*pair));
    match kind {
        Dtype::F32 => Some(data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()),
        Dtype::BF16 => Some(pairs().map(|bits| f32::from_bits(u32::from(bits) << 16)).collect()),
        Dtype::F16 => Some(pairs().map(half).collect()),
        _ => None,
    }
}

/// Decodes a 16-bit float: a sign, five bits of exponent, ten of fraction.
fn half(bits: u16) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    let size = match exponent {
        0 => fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1.0 + fraction / 1024.0) * 2f32.powi(exponent - 15),
    };
    if bits >> 15 == 1 { -size } else { size }
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
        Ok(found) if !found.is_file() => return Err(misfit(path, &format!("{name} is no file"))),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_numbers_are_those_that_the_standard_says() {
        let halves =
            [(0x3C00, 1.0), (0xC000, -2.0), (0x7BFF, 65504.0), (0x3555, 0.333_251_95), (0x0001, 5.960_464_5e-8)];
        for (bits, value) in halves {
            assert_eq!(half(bits), value, "{bits:x}");
        }
        assert!(half(0x7C00).is_infinite() && half(0x7E00).is_nan() && half(0x8000) == 0.0);
        assert_eq!(numbers(Dtype::BF16, &[0x80, 0x3F, 0x20, 0xC1]), Some(vec![1.0, -10.0]));
        assert_eq!(numbers(Dtype::I8, &[1]), None);
    }
}
