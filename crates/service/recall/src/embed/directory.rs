//! The embedder over a table of model2vec in a directory: reads and checks its files.
//!
//! Anything unsupported is refused with advice, never guessed: nobody would notice a wrong vector. Opening it checks
//! everything but the numbers, which are read when they are first needed: a command that embeds nothing does not wait
//! for them.

use std::{
    borrow::Cow,
    collections::HashMap,
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use async_trait::async_trait;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{
    pieces::{INNER, Pieces, WORD_MAX},
    table::Table,
};
use meerkat_words::{
    SessionError,
    memory::{EmbedFor, Embedder},
};

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const TOKENIZER: &str = "tokenizer.json";
const MODULES: &str = "modules.json";
/// Files that a vector depends on.
const FILES: [&str; 4] = [CONFIG, TOKENIZER, MODULES, WEIGHTS];

/// Most bytes of any other file.
const TEXT_BYTES_MAX: u64 = 64 * 1024 * 1024;
const WEIGHTS_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Most bytes of the list of tensors at the beginning of the weights.
const HEAD_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Most pieces of a text, unless the configuration says otherwise.
const PIECES_MAX: usize = 512;

/// Embedder over a table in a local directory.
#[derive(Debug)]
pub struct LocalEmbedder {
    directory: Directory,
    read: OnceLock<Result<(Table, String), String>>,
}

impl LocalEmbedder {
    /// Opens the table in a directory, without reading its numbers.
    ///
    /// # Errors
    /// `CONFIG_INVALID` if the directory or one of its files is missing, unreadable or of an unsupported kind.
    pub fn open(dir: &Path) -> Result<Self, SessionError> {
        let refused = |message| SessionError::ConfigInvalid { key: "memory.local.dir".to_owned(), message };
        Ok(Self { directory: Directory::open(dir).map_err(refused)?, read: OnceLock::new() })
    }

    fn read(&self) -> Result<&(Table, String), SessionError> {
        let read = self.read.get_or_init(|| self.directory.read());
        read.as_ref().map_err(|why| SessionError::MemoryUnavailable { why: why.clone() })
    }
}

#[async_trait]
impl Embedder for LocalEmbedder {
    /// Reads the numbers the first time.
    fn id(&self) -> String {
        // An unreadable table has an id of its own, so that all vectors are made again once it is readable.
        self.read().map_or_else(|_| "local-unreadable".to_owned(), |(_, hash)| format!("local-{hash}"))
    }

    fn is_table(&self) -> bool {
        true
    }

    async fn embed(&self, texts: &[String], _: EmbedFor) -> Result<Vec<Vec<f32>>, SessionError> {
        let (table, _) = self.read()?;
        Ok(texts.iter().map(|text| table.vector(text)).collect())
    }
}

#[derive(Debug)]
struct Directory {
    path: PathBuf,
    place: Place,
    most: usize,
}

#[derive(Deserialize)]
struct Config {
    model_type: String,
    max_length: Option<usize>,
}

#[derive(Deserialize)]
struct Module {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct Tokenizer {
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    model: Option<Model>,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    /// Not a table in other kinds of tokenizers.
    vocab: Value,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    max_input_chars_per_word: Option<usize>,
}

impl Directory {
    /// Reads and checks everything but the numbers. An error says what is wrong and what to do.
    fn open(path: &Path) -> Result<Self, String> {
        if !path.is_dir() {
            let path = path.display();
            return Err(format!("`{path}` is not a directory. Name the one that has the table's {CONFIG}."));
        }
        let Config { model_type, max_length } = required(path, CONFIG)?;
        if model_type != "model2vec" {
            return Err(unsupported(path, &format!("is of the type `{model_type}`")));
        }
        let modules = optional::<Vec<Module>>(path, MODULES)?.unwrap_or_default();
        let mut kinds = modules.iter().map(|module| module.kind.rsplit('.').next().unwrap_or_default());
        if let Some(kind) = kinds.find(|kind| !["StaticEmbedding", "Normalize"].contains(kind)) {
            return Err(unsupported(path, &format!("has a module `{kind}`")));
        }
        if max_length == Some(0) {
            return Err(misfit(path, &format!("by {CONFIG} it reads no token of a text")));
        }
        let place = Place::find(path)?;
        let rows = pieces(path)?.values().max().map_or(0, |id| *id as usize + 1);
        if rows > place.rows {
            return Err(misfit(path, &format!("its vocabulary has more pieces than {WEIGHTS} ({})", place.rows)));
        }
        Ok(Self { path: path.to_owned(), place, most: max_length.unwrap_or(PIECES_MAX) })
    }

    /// Reads the table; also returns a hash of all files that its vectors depend on.
    fn read(&self) -> Result<(Table, String), String> {
        let mut hash = Sha256::new();
        let mut weights = Vec::new();
        for name in FILES {
            let bytes = bytes(&self.path, name, WEIGHTS_BYTES_MAX)?.unwrap_or_default();
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(&bytes);
            weights = bytes;
        }
        let numbers = self.place.numbers(&weights).ok_or_else(|| unreadable(&self.path, "it is too short"))?;
        if numbers.iter().any(|number| !number.is_finite()) {
            return Err(unreadable(&self.path, "a number of it is infinite or none"));
        }
        let (mut scales, mut codes) = (Vec::with_capacity(self.place.rows), Vec::with_capacity(numbers.len()));
        for row in numbers.chunks(self.place.columns) {
            let most = row.iter().fold(0.0_f32, |most, component| most.max(component.abs()));
            let scale = most / f32::from(i8::MAX);
            codes.extend(row.iter().map(|component| ((component / scale.max(f32::MIN_POSITIVE)).round() as i8) as u8));
            scales.push(scale);
        }
        let pieces = Pieces::new(pieces(&self.path)?);
        let hash = hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        Ok((Table::new(pieces, scales, Cow::Owned(codes), self.place.columns, self.most), hash))
    }
}

/// Reads the pieces of the vocabulary, without the one for unknown words.
fn pieces(path: &Path) -> Result<HashMap<Cow<'static, str>, u32>, String> {
    let Tokenizer { normalizer, pre_tokenizer, model } = required(path, TOKENIZER)?;
    let other = |what: &str| unsupported(path, &format!("has a {TOKENIZER} {what}"));
    let is = |part: &Option<Value>, key: &str, values: &[Value]| {
        values.contains(part.as_ref().and_then(|part| part.get(key)).unwrap_or(&Value::Null))
    };
    let model = model.filter(|model| model.kind.as_deref().is_none_or(|kind| kind == "WordPiece"));
    let model = model.ok_or_else(|| other("that is not of the kind WordPiece"))?;
    let reads_as_bert = is(&normalizer, "type", &["BertNormalizer".into()])
        && is(&normalizer, "clean_text", &[true.into()])
        && is(&normalizer, "lowercase", &[true.into()])
        && is(&normalizer, "strip_accents", &[Value::Null, true.into()])
        && is(&normalizer, "handle_chinese_chars", &[true.into()])
        && is(&pre_tokenizer, "type", &["BertPreTokenizer".into()]);
    let cuts_as_bert = model.continuing_subword_prefix.as_deref().is_none_or(|prefix| prefix == INNER)
        && model.max_input_chars_per_word.is_none_or(|most| most == WORD_MAX);
    if !reads_as_bert || !cuts_as_bert {
        return Err(other("that does not cut a text into words as uncased models of the BERT family do"));
    }
    let ids: Option<HashMap<Cow<'static, str>, u32>> = serde_json::from_value(model.vocab).ok();
    let mut ids = ids.ok_or_else(|| misfit(path, &format!("{TOKENIZER} has no vocabulary of WordPiece")))?;
    ids.retain(|piece, _| Some(&**piece) != model.unk_token.as_deref());
    Ok(ids)
}

/// Place of the table's numbers in its file.
#[derive(Debug)]
struct Place {
    begin: usize,
    end: usize,
    rows: usize,
    columns: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, Deserialize)]
enum Kind {
    F32,
    F16,
    BF16,
}

#[derive(Deserialize)]
struct Tensor {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

impl Place {
    fn find(path: &Path) -> Result<Self, String> {
        let broken = |what: &str| unreadable(path, what);
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
        let list: HashMap<String, Value> = serde_json::from_slice(&head).map_err(|error| broken(&error.to_string()))?;
        if ["mapping", "weights"].iter().any(|name| list.contains_key(*name)) {
            return Err(unsupported(path, "shares one vector among several tokens"));
        }
        let table = list.get("embeddings").and_then(|tensor| Tensor::deserialize(tensor).ok());
        let Some(Tensor { dtype, shape, data_offsets: [begin, end] }) = table else {
            return Err(misfit(path, &format!("{WEIGHTS} has no table `embeddings`")));
        };
        let [rows, columns] = shape[..] else {
            return Err(misfit(path, &format!("{WEIGHTS} has no table `embeddings`")));
        };
        let kind = Kind::deserialize(Value::from(&*dtype));
        let kind =
            kind.map_err(|_| unsupported(path, &format!("has numbers of the kind {dtype}, not F32, F16 or BF16")))?;
        let data = usize::try_from(8 + size).map_err(|error| broken(&error.to_string()))?;
        let bytes = rows.checked_mul(columns).and_then(|numbers| numbers.checked_mul(kind.bytes()));
        let is_whole = data.checked_add(end).is_some_and(|end| end as u64 <= length);
        if columns == 0 || !is_whole || end.checked_sub(begin) != bytes {
            return Err(broken("it is not as long as it says"));
        }
        Ok(Self { begin: data + begin, end: data + end, rows, columns, kind })
    }

    fn numbers(&self, weights: &[u8]) -> Option<Vec<f32>> {
        let bytes = weights.get(self.begin..self.end)?;
        let two = || bytes.as_chunks::<2>().0.iter().map(|pair| u16::from_le_bytes(*pair));
        Some(match self.kind {
            Kind::F32 => bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect(),
            Kind::F16 => two().map(half).collect(),
            Kind::BF16 => two().map(|upper| f32::from_bits(u32::from(upper) << 16)).collect(),
        })
    }
}

impl Kind {
    const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }
}

/// Widens a number of sixteen bits: five for the exponent, ten for the rest.
fn half(bits: u16) -> f32 {
    let (exponent, rest) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023) / 1024.0);
    let size = match exponent {
        0 => rest * 2.0_f32.powi(-14),
        31 if rest == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1.0 + rest) * 2.0_f32.powi(exponent - 15),
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
        Ok(found) if !found.is_file() => return Err(misfit(path, &format!("{name} is not a file"))),
        Ok(found) if found.len() > bytes_max => {
            return Err(misfit(path, &format!("{name} has {} bytes, and may have {bytes_max}", found.len())));
        }
        _ => {}
    }
    File::open(file).map(Some).map_err(|error| misfit(path, &format!("{name} cannot be read: {error}")))
}

fn missing(path: &Path, name: &str) -> String {
    format!("`{}` has no {name}. Put all files of the table there, as they are published.", path.display())
}

fn misfit(path: &Path, what: &str) -> String {
    format!("The table in `{}` cannot be used: {what}. Put all files of one table there again.", path.display())
}

fn unreadable(path: &Path, why: &str) -> String {
    misfit(path, &format!("{WEIGHTS} cannot be read: {why}"))
}

fn unsupported(path: &Path, what: &str) -> String {
    let name = path.display();
    format!(
        "The table in `{name}` {what}, which is not supported. Take one of model2vec whose {TOKENIZER} is of the kind \
         WordPiece, or let a server run the model, with memory.embedder = \"endpoint\"."
    )
}
