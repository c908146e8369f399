//! Layers of the configuration: their sources, and the names of their origins.

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use figment::{
    Figment, Metadata, Profile, Provider,
    error::Kind,
    value::{Dict, Map, Value},
};
use meerkat_errors::ErrorBody;
use meerkat_service::{SessionError, model::vendors::VendorOptions};
use serde::{Deserialize, de::IntoDeserializer as _};

use super::project::{is_missing, is_own};
use crate::{
    args::Globals,
    error::{CliError, refused},
    output::Environment,
};

/// Every key with its default.
pub(super) const BUILT_IN: &str = include_str!("../../../../config/meerkat.toml");

/// Origin of the built-in layer's values.
pub(super) const BUILT_IN_ORIGIN: &str = "built-in";

/// Origin of values from variables that vendors' own tools use.
pub(super) const VENDOR_ORIGIN: &str = "a variable of the vendor";

/// Prefix of variables for keys.
const VARIABLE_PREFIX: &str = "MEERKAT_";

/// Variable that names a file as `--config` does.
const FILE_VARIABLE: &str = "MEERKAT_CONFIG";

/// Keys of paths: a relative one in a file is relative to that file.
const PATHS: [&str; 4] = ["store.data_dir", "projection.dir", "tools.test_dir", "memory.local.dir"];

/// Layer: a file, a variable or a flag.
pub(super) struct Layer {
    pub(super) origin: String,
    pub(super) values: Dict,
}

impl Layer {
    pub(super) fn text(origin: &str, text: &str) -> Result<Self, CliError> {
        let values: Dict = toml_edit::de::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            refused(&format!("line {line}"), error.message(), origin)
        })?;
        Ok(Self { origin: origin.to_owned(), values })
    }

    /// Makes the layer of a file's text, with its paths made absolute.
    pub(super) fn file_text(name: &str, path: &Path, text: &str) -> Result<Self, CliError> {
        let mut layer = Self::text(&file_origin(name, path), text)?;
        let folder = path.parent().unwrap_or(path);
        for key in PATHS {
            if let Some(Value::String(_, path)) = at(&mut layer.values, key)
                && Path::new(path).is_relative()
            {
                *path = folder.join(&*path).display().to_string();
            }
        }
        Ok(layer)
    }

    /// Reads the layer of the user's own file, if there is one. It decides which programs are started, so nobody else
    /// may write it.
    pub(super) fn users_file(path: &Path) -> Result<Option<Self>, CliError> {
        let refusal = |why: String| refused("file", &why, &file_origin("user", path));
        let unread = |error: io::Error| refusal(format!("it cannot be read: {error}"));
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(unread(error).into()),
        };
        let folder = path.parent().unwrap_or(path);
        for (path, found) in [(path, file.metadata()), (folder, folder.metadata())] {
            let (found, path) = (found.map_err(unread)?, path.display());
            if found.uid() != 0 && !is_own(&found) {
                let why =
                    format!("{path} is not obeyed: it belongs to another user, {}; make it your own", found.uid());
                return Err(refusal(why).into());
            }
            if found.mode() & 0o002 != 0 {
                let why = format!("{path} is not obeyed: everybody may write it; `chmod o-w {path}` ends that");
                return Err(refusal(why).into());
            }
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(unread)?;
        Self::file_text("user", path, &text).map(Some)
    }

    /// Reads the layer of a file, which may be missing unless it is required.
    pub(super) fn file(name: &str, path: &Path, is_required: bool) -> Result<Option<Self>, CliError> {
        let origin = file_origin(name, path);
        match std::fs::read_to_string(path) {
            Ok(text) => Self::file_text(name, path, &text).map(Some),
            Err(error) if !is_required && is_missing(&error) => Ok(None),
            Err(error) => Err(refused("file", &format!("it cannot be read: {error}"), &origin).into()),
        }
    }

    fn one(origin: String, path: &[&str], value: impl Into<Value>) -> Self {
        let values =
            path.iter().rev().fold(value.into(), |value, name| Dict::from([((*name).to_owned(), value)]).into());
        Self { origin, values: values.into_dict().unwrap_or_default() }
    }
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.origin.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Map::from([(Profile::Default, self.values.clone())]))
    }
}

/// Names the origin of a file's layer.
fn file_origin(name: &str, path: &Path) -> String {
    format!("{name} file {}", path.display())
}

/// Finds the value of a key.
fn at<'a>(values: &'a mut Dict, key: &str) -> Option<&'a mut Value> {
    match key.split_once('.') {
        None => values.get_mut(key),
        Some((section, rest)) => match values.get_mut(section)? {
            Value::Dict(_, members) => at(members, rest),
            _ => None,
        },
    }
}

/// Reads `MEERKAT_<SECTION>__<KEY>`, deeper keys by more `__`. Others are not keys, and an empty one is absent.
pub(super) fn variables(env: &Environment) -> Result<Vec<Layer>, CliError> {
    let mut layers = Vec::new();
    for (name, value) in &env.variables {
        let Some(key) = name.strip_prefix(VARIABLE_PREFIX) else { continue };
        let key = if key == "DATA_DIR" { "STORE__DATA_DIR" } else { key };
        if !key.contains("__") || value.is_empty() {
            continue;
        }
        let (origin, key) = (format!("variable {name}"), key.to_lowercase());
        let path: Vec<&str> = key.split("__").collect();
        let text = value.to_str().ok_or_else(|| refused(&path.join("."), "it is not UTF-8", &origin))?;
        let value = <Value as Deserialize>::deserialize(written(text, || takes_text(&path)).into_deserializer());
        layers.push(Layer::one(origin, &path, value.unwrap_or_else(|_| text.into())));
    }
    Ok(layers)
}

/// Reads a value as it is written in a file. What is none there, such as a word without quotes, is text; so is a date, and
/// whatever a key gets that takes text.
pub(super) fn written(text: &str, takes_text: impl FnOnce() -> bool) -> toml_edit::Value {
    let text = text.trim();
    let value = text.parse::<toml_edit::Value>().ok().filter(|value| !value.is_datetime());
    value.filter(|value| value.is_str() || !takes_text()).unwrap_or_else(|| text.into())
}

/// Returns true if a key's value is text, as its row in the table shows.
pub(super) fn takes_text(path: &[&str]) -> bool {
    static WHOLE: LazyLock<Figment> = LazyLock::new(|| {
        let whole = Layer::text(BUILT_IN_ORIGIN, &whole_table());
        whole.map_or_else(|_| Figment::new(), Figment::from)
    });
    let path = match path {
        ["model", "compatible", _, rest @ ..] => ["model", "compatible", "local"].iter().chain(rest).copied().collect(),
        path => path.to_vec(),
    };
    WHOLE.find_value(&path.join(".")).is_ok_and(|value| value.as_str().is_some())
}

/// Returns the table with every optional key set to the example in its comment.
pub(super) fn whole_table() -> String {
    let is_key = |line: &&str| line.strip_prefix("# ").is_some_and(|line| line.split(' ').nth(1) == Some("="));
    BUILT_IN.lines().map(|line| format!("{}\n", if is_key(&line) { &line[2..] } else { line })).collect()
}

/// Reads the vendors' addresses from the variables of their own tools.
pub(super) fn vendor_addresses(env: &Environment) -> Vec<Layer> {
    let vendors = VendorOptions::from_env(|variable| env.variable(variable));
    let addresses = [("anthropic", vendors.anthropic), ("openai", vendors.openai), ("gemini", vendors.gemini)];
    let layer =
        |(vendor, url): (&str, String)| Layer::one(VENDOR_ORIGIN.to_owned(), &["model", vendor, "base_url"], url);
    addresses.into_iter().filter_map(|(vendor, access)| Some((vendor, access.base_url?))).map(layer).collect()
}

pub(super) fn flags(globals: &Globals) -> Vec<Layer> {
    let mut layers = Vec::new();
    if let Some(folder) = &globals.data_dir {
        layers.push(Layer::one("flag --data-dir".to_owned(), &["store", "data_dir"], folder.display().to_string()));
    }
    if globals.ephemeral {
        layers.push(Layer::one("flag --ephemeral".to_owned(), &["store", "enabled"], false));
    }
    let level = match (globals.quiet, globals.verbose) {
        (true, _) => Some(("flag --quiet", "error")),
        (false, 0) => None,
        (false, 1) => Some(("flag -v", "info")),
        (false, 2) => Some(("flag -vv", "debug")),
        (false, _) => Some(("flag -vvv", "trace")),
    };
    layers.extend(level.map(|(origin, level)| Layer::one(origin.to_owned(), &["log", "level"], level)));
    layers
}

/// Returns the file that `--config` names, else its variable.
pub(super) fn named_file(env: &Environment, globals: &Globals) -> Result<Option<(&'static str, PathBuf)>, CliError> {
    if let Some(path) = &globals.config {
        return Ok(Some(("--config", env.dir.join(path))));
    }
    let variable = env.variables.get(FILE_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    // A relative path in an exported variable would make a user's file of one in every folder.
    match variable.as_ref().filter(|path| !path.is_absolute()) {
        Some(path) => {
            let why = format!("{} must be an absolute path; --config may be a relative one", path.display());
            Err(refused("file", &why, &format!("variable {FILE_VARIABLE}")).into())
        }
        None => Ok(variable.map(|path| (FILE_VARIABLE, path))),
    }
}

/// Returns the folder of a user's configuration.
pub(super) fn user_folder(env: &Environment) -> Option<PathBuf> {
    let folder = |name: &str| env.variables.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
    folder("XDG_CONFIG_HOME").or_else(|| folder("APPDATA")).or_else(|| Some(folder("HOME")?.join(".config")))
}

/// Names the origin of a value.
pub(super) fn origin(metadata: Option<&Metadata>) -> String {
    metadata.map_or_else(|| "unknown".to_owned(), |metadata| metadata.name.to_string())
}

/// Describes the mistake, its place, and the allowed values.
pub(super) fn invalid(figment: &Figment, error: figment::Error) -> ErrorBody {
    let mut path = error.path.clone();
    let whole = |expected: &str| match expected {
        "u64" | "u32" | "usize" => "a whole number, 0 or more".to_owned(),
        other if other.starts_with("struct ") => "a table of keys".to_owned(),
        other => other.to_owned(),
    };
    let what = match &error.kind {
        Kind::UnknownField(name, allowed) => {
            if path.last() != Some(name) {
                path.push(name.clone());
            }
            format!("there is no such key; the keys here are {}", allowed.join(", "))
        }
        Kind::UnknownVariant(name, allowed) => format!("it is {name:?}; allowed are {}", allowed.join(", ")),
        Kind::InvalidType(found, expected) | Kind::InvalidValue(found, expected) => {
            format!("it is {found}; it must be {}", whole(expected))
        }
        other => other.to_string(),
    };
    let key = path.join(".");
    let from = figment.find_metadata(&key).or(error.metadata.as_ref());
    refused(&key, &what, &origin(from))
}

/// Converts a refused value to an error that names its origin.
pub(super) fn with_origin(figment: &Figment, error: &SessionError) -> CliError {
    let (key, message, usual) = match error {
        SessionError::ConfigInvalid { key, message } => (key, message, VENDOR_ORIGIN),
        // A request's compaction settings are refused with the same code.
        SessionError::InvalidRequest { field, message } if field.starts_with("compaction.") => {
            (field, message, BUILT_IN_ORIGIN)
        }
        other => return other.body().into(),
    };
    let from = figment.find_metadata(key).map_or(usual, |found| &found.name);
    refused(key, message.trim_end_matches('.'), from).into()
}
