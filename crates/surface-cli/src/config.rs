//! The configuration: layers from the built-in table to the flags, each value with its origin.
//!
//! It reads and names; what a value means to the engine is the service's business. No key of a vendor stands in it.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use figment::{
    Figment, Metadata, Profile, Provider,
    error::Kind,
    providers::{Format as _, Toml},
    value::{Dict, Map, Value},
};
use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_service::{
    Capabilities, Capability, SessionError,
    compaction::CompactionConfig,
    memory::{EndpointAccess, MemoryOptions},
    model::vendors::{CompatibleEndpoint, VendorOptions},
    options::{
        ContextOptions, EngineOptions, EphemeralOptions, JournalOptions, Limits, MemoryConfig, ProjectionOptions,
        RetentionOptions, StoreOptions, ToolOptions, TurnOptions,
    },
    redact::redact_key_shapes,
};
use serde::{Deserialize, Serialize};

use crate::{args::Globals, attach::Defaults, error::CliError, output::Surroundings};

/// Every key at its default.
pub(crate) const BUILT_IN: &str = include_str!("../../../config/meerkat.toml");

/// Where the built-in layer's values say they come from.
const BUILT_IN_ORIGIN: &str = "built-in";

/// Where values come from that vendors' own tools know too.
const VENDOR_ORIGIN: &str = "a variable of the vendor";

/// What the names of variables for keys begin with.
const VARIABLE_PREFIX: &str = "MEERKAT_";

/// The values in force.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Values {
    pub(crate) model: ModelValues,
    turn: TurnOptions,
    tools: ToolOptions,
    context: ContextOptions,
    pub(crate) limits: Limits,
    ephemeral: EphemeralOptions,
    pub(crate) store: StoreValues,
    journal: JournalOptions,
    projection: ProjectionOptions,
    retention: RetentionOptions,
    pub(crate) compaction: CompactionConfig,
    memory: MemoryConfig,
    pub(crate) serve: ServeValues,
    pub(crate) log: LogValues,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelValues {
    pub(crate) name: Option<String>,
    scripted_window_tokens: u64,
    #[serde(default)]
    anthropic: VendorValues,
    #[serde(default)]
    openai: VendorValues,
    #[serde(default)]
    gemini: VendorValues,
    #[serde(default)]
    compatible: BTreeMap<String, CompatibleValues>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct VendorValues {
    base_url: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CompatibleValues {
    base_url: String,
    key_variable: Option<String>,
    window_tokens: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoreValues {
    pub(crate) enabled: bool,
    data_dir: Option<PathBuf>,
    idle_ms: u64,
    queue_goes_on: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServeValues {
    pub(crate) listen: String,
    pub(crate) allowed_hosts: Vec<String>,
    pub(crate) allowed_origins: Vec<String>,
    pub(crate) max_connections: usize,
    pub(crate) max_streams: usize,
    pub(crate) header_timeout_ms: u64,
    pub(crate) max_body_bytes: u64,
    pub(crate) stall_ms: u64,
    pub(crate) drain_ms: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LogValues {
    pub(crate) level: LogLevel,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// The configuration, read and checked.
pub(crate) struct Config {
    pub(crate) values: Values,
    figment: Figment,
}

impl Config {
    /// Reads every layer.
    pub(crate) fn load(around: &Surroundings, globals: &Globals) -> Result<Self, CliError> {
        let mut figment = Figment::from(Layer::text(BUILT_IN_ORIGIN, BUILT_IN)?);
        for layer in vendor_addresses(around) {
            figment = figment.merge(layer);
        }
        let mut files = vec![("system", PathBuf::from("/etc/meerkat/meerkat.toml"))];
        files.extend(user_folder(around).map(|folder| ("user", folder.join("meerkat/meerkat.toml"))));
        files.push(("project", project(&around.dir).join("meerkat.toml")));
        for (name, path) in files {
            if let Some(layer) = Layer::file(name, &path, false)? {
                figment = figment.merge(layer);
            }
        }
        if let Some(path) = &globals.config
            && let Some(layer) = Layer::file("--config", &around.dir.join(path), true)?
        {
            figment = figment.merge(layer);
        }
        for layer in variables(around)? {
            figment = figment.merge(layer);
        }
        for layer in flags(globals) {
            figment = figment.merge(layer);
        }
        match figment.extract::<Values>() {
            Ok(mut values) => {
                let model = &mut values.memory.local.dir;
                *model = model.take().map(|dir| around.dir.join(dir));
                Ok(Self { values, figment })
            }
            Err(error) => Err(invalid(&figment, error).into()),
        }
    }

    /// What the engine is told.
    pub(crate) fn engine(&self) -> EngineOptions {
        EngineOptions {
            projection: self.values.projection.clone(),
            turn: self.values.turn.clone(),
            tools: self.values.tools.clone(),
            context: self.values.context.clone(),
            limits: self.values.limits.clone(),
            ephemeral: self.values.ephemeral.clone(),
            store: StoreOptions { idle_ms: self.values.store.idle_ms, queue_goes_on: self.values.store.queue_goes_on },
            journal: self.values.journal.clone(),
            retention: self.values.retention.clone(),
            memory: self.values.memory.clone(),
        }
    }

    /// How the vendors are reached: their own variables, and over them this configuration.
    pub(crate) fn vendors(&self, around: &Surroundings) -> VendorOptions {
        let ModelValues { name, scripted_window_tokens, anthropic, openai, gemini, compatible } = &self.values.model;
        let mut options = VendorOptions::from_env(|variable| around.variable(variable));
        for (access, values) in
            [(&mut options.anthropic, anthropic), (&mut options.openai, openai), (&mut options.gemini, gemini)]
        {
            access.base_url.clone_from(&values.base_url);
        }
        options.compatible = compatible
            .iter()
            .map(|(name, server)| CompatibleEndpoint {
                name: name.clone(),
                base_url: server.base_url.clone(),
                key: server.key_variable.as_ref().and_then(|variable| around.variable(variable)).map(Into::into),
                window_tokens: server.window_tokens,
            })
            .collect();
        options.default_model = name.clone();
        options.scripted_window_tokens = Some(*scripted_window_tokens);
        options
    }

    /// The data directory: as configured, else one per project in the user's data folder.
    pub(crate) fn data_dir(&self, around: &Surroundings) -> Result<PathBuf, CliError> {
        if let Some(dir) = &self.values.store.data_dir {
            return Ok(around.dir.join(dir));
        }
        let home = around.variable("XDG_DATA_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let home = home.or_else(|| around.variable("HOME").map(|home| Path::new(&home).join(".local/share")));
        let home = home.ok_or_else(|| refused("store.data_dir", "set it, or HOME", "the environment"))?;
        let project = project(&around.dir);
        let name = project.file_name().map_or_else(|| "root".into(), |name| name.to_string_lossy().into_owned());
        // The hash keeps two projects of one name apart.
        Ok(home.join("meerkat").join(format!("{name}-{:016x}", path_hash(&project))))
    }

    /// Where sessions stand as files: as configured, else at the project's root.
    pub(crate) fn projection_dir(&self, around: &Surroundings) -> PathBuf {
        let dir = self.values.projection.dir.as_ref();
        dir.map_or_else(|| project(&around.dir).join(".rkat"), |dir| around.dir.join(dir))
    }

    /// Whether sessions are to stand as files.
    pub(crate) fn projects(&self) -> bool {
        self.keeps_sessions() && self.values.projection.enabled
    }

    /// What the build has and this configuration leaves it.
    pub(crate) const fn capabilities(&self) -> Capabilities {
        let built = Capabilities::compiled();
        let built = if self.values.store.enabled { built } else { built.without_store() };
        if self.values.memory.enabled { built } else { built.without_memory() }
    }

    /// Whether this process opens the data directory: for its sessions, or for memory alone.
    pub(crate) fn opens_data_dir(&self) -> bool {
        self.keeps_sessions() || (self.values.store.enabled && self.remembers())
    }

    /// Whether what is said is remembered.
    pub(crate) fn remembers(&self) -> bool {
        self.capabilities().require(Capability::MemoryStore).is_ok()
    }

    /// Whether sessions outlive this process.
    pub(crate) fn keeps_sessions(&self) -> bool {
        self.capabilities().require(Capability::SessionStore).is_ok()
    }

    /// How memory is kept, and how an endpoint that makes its vectors is reached.
    pub(crate) fn memory(&self, around: &Surroundings) -> MemoryOptions {
        let vendors = self.vendors(around);
        let variable = self.values.memory.endpoint.key_variable.as_ref();
        let key = variable.and_then(|variable| around.variable(variable)).map(Into::into);
        let endpoint = EndpointAccess { key, proxy: vendors.proxy, no_proxy: vendors.no_proxy };
        MemoryOptions { endpoint, ..MemoryOptions::default() }
    }

    /// How contexts are compacted: as somebody asks, else where the build can.
    pub(crate) fn compaction(&self) -> Result<Option<CompactionConfig>, CliError> {
        let configured = self.values.compaction;
        configured.check(0).map_err(|error| self.with_origin(&error))?;
        let is_built = self.capabilities().require(Capability::SessionCompaction).is_ok();
        Ok((is_built || self.asks_for_compaction()).then_some(configured))
    }

    /// Whether something but the built-in table asks for compaction.
    fn asks_for_compaction(&self) -> bool {
        let value = self.figment.find_value("compaction").ok();
        let keys = value.iter().filter_map(Value::as_dict).flat_map(Dict::values);
        keys.map(|key| origin(self.figment.get_metadata(key.tag()))).any(|origin| origin != BUILT_IN_ORIGIN)
    }

    /// A refusal of the configuration, with the origin of what it refuses.
    pub(crate) fn with_origin(&self, error: &SessionError) -> CliError {
        match error {
            SessionError::ConfigInvalid { key, message } => {
                let from = self.figment.find_metadata(key).map_or(VENDOR_ORIGIN, |found| &found.name);
                refused(key, message.trim_end_matches('.'), from).into()
            }
            // How to compact is refused to a request in the same way.
            SessionError::InvalidRequest { field, message } if field.starts_with("compaction.") => {
                let from = self.figment.find_metadata(field).map_or(BUILT_IN_ORIGIN, |found| &found.name);
                refused(field, message.trim_end_matches('.'), from).into()
            }
            other => other.body().into(),
        }
    }

    /// What flags and variables set that is neither this process's own nor a field of its requests.
    pub(crate) fn settings(&self) -> Vec<Setting> {
        let mut settings = Vec::new();
        self.walk(|key, value, origin| {
            if is_told(&origin) && !OWN_SECTIONS.contains(&section(key)) && !REQUESTED.contains(&key) {
                settings.push(Setting { key: key.to_owned(), value: json(value), origin });
            }
        });
        settings
    }

    /// Whether the values in force are those that an attached command was told.
    pub(crate) fn agrees(&self, settings: &[Setting]) -> Result<(), ErrorBody> {
        for Setting { key, value, origin } in settings {
            let own = self.figment.find_value(key).ok();
            if own.as_ref().map(json).as_ref() != Some(value) {
                let own = own.map_or_else(|| "nothing".to_owned(), |own| shown(&own).to_string());
                let what = format!(
                    "process {} owns the data directory and has {own} here; leave it out, or end that process",
                    std::process::id()
                );
                return Err(refused(key, &what, origin));
            }
        }
        Ok(())
    }

    /// What variables set that the requests of an attached command carry.
    pub(crate) fn defaults(&self) -> Defaults {
        let (mut model, mut compaction) = (None, None);
        self.walk(|key, _, origin| match section(key) {
            "model" if key == "model.name" && is_told(&origin) => model.clone_from(&self.values.model.name),
            "compaction" if is_told(&origin) => compaction = Some(self.values.compaction),
            _ => {}
        });
        Defaults { model, compaction }
    }

    /// Passes every value in force, its key and its origin.
    fn walk(&self, mut see: impl FnMut(&str, &Value, String)) {
        fn walk(figment: &Figment, path: &str, value: &Value, see: &mut impl FnMut(&str, &Value, String)) {
            match value {
                Value::Dict(_, members) if !members.is_empty() => {
                    for (name, member) in members {
                        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                        walk(figment, &path, member, see);
                    }
                }
                _ => see(path, value, origin(figment.get_metadata(value.tag()))),
            }
        }
        if let Ok(members) = self.figment.extract::<Value>() {
            walk(&self.figment, "", &members, &mut see);
        }
    }

    /// Every value in force.
    pub(crate) fn entries(&self, around: &Surroundings) -> Vec<Entry> {
        let mut entries = Vec::new();
        self.walk(|key, value, origin| entries.push(Entry { key: key.to_owned(), value: shown(value), origin }));
        let vendors = VendorOptions::from_env(|variable| around.variable(variable));
        let keys = [("anthropic", vendors.anthropic), ("openai", vendors.openai), ("gemini", vendors.gemini)];
        entries.extend(keys.into_iter().map(|(vendor, access)| Entry {
            key: format!("model.{vendor}.key"),
            value: if access.key.is_some() { "set" } else { "not set" }.into(),
            origin: VENDOR_ORIGIN.to_owned(),
        }));
        entries
    }
}

/// A value and where it comes from.
#[derive(Serialize)]
pub(crate) struct Entry {
    pub(crate) key: String,
    value: serde_json::Value,
    pub(crate) origin: String,
}

/// A value that a flag or a variable of an attached command set.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setting {
    key: String,
    value: serde_json::Value,
    origin: String,
}

/// Sections that are about the process itself and not about the sessions.
const OWN_SECTIONS: [&str; 4] = ["store", "serve", "log", "compaction"];

/// Keys that a request carries; so does it all of `compaction`.
const REQUESTED: [&str; 1] = ["model.name"];

fn section(key: &str) -> &str {
    key.split('.').next().unwrap_or(key)
}

/// Whether a value comes from this command alone: files are the owner's.
fn is_told(origin: &str) -> bool {
    ["flag ", "variable ", "--config "].iter().any(|told| origin.starts_with(told))
}

fn json(value: &Value) -> serde_json::Value {
    serde_json::to_value(value).unwrap_or_default()
}

/// FNV-1a over a path, the same in every version.
pub(crate) fn path_hash(path: &Path) -> u64 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    path.as_os_str().as_encoded_bytes().iter().fold(0xcbf2_9ce4_8422_2325, fold)
}

/// One layer: a file, a variable or a flag.
struct Layer {
    origin: String,
    values: Dict,
}

impl Layer {
    fn text(origin: &str, text: &str) -> Result<Self, CliError> {
        let values = Toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            refused(&format!("line {line}"), error.message(), origin)
        })?;
        Ok(Self { origin: origin.to_owned(), values })
    }

    /// The layer of a file; one that need not be there may be missing.
    fn file(name: &str, path: &Path, is_required: bool) -> Result<Option<Self>, CliError> {
        let origin = format!("{name} file {}", path.display());
        match std::fs::read_to_string(path) {
            Ok(text) => Self::text(&origin, &text).map(Some),
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

/// A missing file, or a file where a folder should be.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// `MEERKAT_<SECTION>__<KEY>`, deeper keys by more `__`. Variables without `__` are no keys.
fn variables(around: &Surroundings) -> Result<Vec<Layer>, CliError> {
    let mut layers = Vec::new();
    for (name, value) in &around.env {
        let Some(key) = name.strip_prefix(VARIABLE_PREFIX) else { continue };
        let key = if key == "DATA_DIR" { "STORE__DATA_DIR" } else { key };
        if !key.contains("__") {
            continue;
        }
        let (origin, key) = (format!("variable {name}"), key.to_lowercase());
        let path: Vec<&str> = key.split("__").collect();
        let text = value.to_str().ok_or_else(|| refused(&path.join("."), "it is not UTF-8", &origin))?;
        let value: Value = text.parse().unwrap_or_else(|_| text.into());
        layers.push(Layer::one(origin, &path, value));
    }
    Ok(layers)
}

/// Where vendors are reached, as their own tools are told.
fn vendor_addresses(around: &Surroundings) -> Vec<Layer> {
    let vendors = VendorOptions::from_env(|variable| around.variable(variable));
    let addresses = [("anthropic", vendors.anthropic), ("openai", vendors.openai), ("gemini", vendors.gemini)];
    let layer =
        |(vendor, url): (&str, String)| Layer::one(VENDOR_ORIGIN.to_owned(), &["model", vendor, "base_url"], url);
    addresses.into_iter().filter_map(|(vendor, access)| Some((vendor, access.base_url?))).map(layer).collect()
}

fn flags(globals: &Globals) -> Vec<Layer> {
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

/// The folder of a user's configuration.
fn user_folder(around: &Surroundings) -> Option<PathBuf> {
    let folder = |name: &str| around.env.get(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    folder("XDG_CONFIG_HOME").or_else(|| folder("APPDATA")).or_else(|| Some(folder("HOME")?.join(".config")))
}

/// The project's root: the nearest folder upwards with `.rkat` or `.git`, else this one.
pub(crate) fn project(dir: &Path) -> PathBuf {
    let is_root = |folder: &&Path| folder.join(".rkat").exists() || folder.join(".git").exists();
    dir.ancestors().find(is_root).unwrap_or(dir).to_owned()
}

/// The project's file to begin with: every key commented out.
pub(crate) fn template() -> String {
    let comment = |line: &str| match line.chars().next() {
        None | Some('#' | '[') => format!("{line}\n"),
        Some(_) => format!("# {line}\n"),
    };
    BUILT_IN.lines().map(comment).collect()
}

/// A value as it may be shown: an address that can hold a password is not.
fn shown(value: &Value) -> serde_json::Value {
    match value.as_str() {
        Some(text) if text.contains("://") && text.contains(['@', '?', '#']) => "[redacted]".into(),
        Some(text) => redact_key_shapes(text).into(),
        None => serde_json::to_value(value).unwrap_or_default(),
    }
}

fn origin(metadata: Option<&Metadata>) -> String {
    metadata.map_or_else(|| "unknown".to_owned(), |metadata| metadata.name.to_string())
}

/// What is wrong, where, and what is allowed.
fn invalid(figment: &Figment, error: figment::Error) -> ErrorBody {
    let mut path = error.path.clone();
    let whole = |expected: &str| match expected {
        "u64" | "u32" | "usize" => "a whole number, 0 or more".to_owned(),
        other => other.to_owned(),
    };
    let what = match &error.kind {
        Kind::UnknownField(name, allowed) => {
            if path.last() != Some(name) {
                path.push(name.clone());
            }
            format!("there is no such key; here are {}", allowed.join(", "))
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

/// `CONFIG_INVALID`, with the key and its origin.
pub(crate) fn refused(key: &str, what: &str, origin: &str) -> ErrorBody {
    let message = format!("{key} ({origin}): {what}.");
    ErrorBody::with_message(ErrorCode::ConfigInvalid, redact_key_shapes(&message))
        .detail("key", key)
        .detail("origin", origin)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table with every optional key given, as its comment gives it.
    fn whole_table() -> String {
        let is_key = |line: &&str| line.strip_prefix("# ").is_some_and(|line| line.split(' ').nth(1) == Some("="));
        BUILT_IN.lines().map(|line| format!("{}\n", if is_key(&line) { &line[2..] } else { line })).collect()
    }

    fn load(text: &str) -> Values {
        Figment::from(Layer::text("test", text).unwrap_or_else(|_| panic!("{text}"))).extract().unwrap()
    }

    #[test]
    fn the_table_holds_the_engines_defaults_and_every_key() {
        let values = load(BUILT_IN);
        assert_eq!(values.compaction, CompactionConfig::default());
        let config = Config { values, figment: Figment::new() };
        assert_eq!(config.engine(), EngineOptions::default());
        let whole = Figment::from(Layer::text("test", &whole_table()).ok().unwrap());
        let mut sections = serde_json::to_value(EngineOptions::default()).unwrap();
        sections["compaction"] = serde_json::to_value(CompactionConfig::default()).unwrap();
        for (section, options) in sections.as_object().unwrap() {
            for key in options.as_object().unwrap().keys() {
                assert!(whole.contains(&format!("{section}.{key}")), "{section}.{key} is not in the table");
            }
        }
        assert!(whole.extract::<Values>().is_ok());
    }

    #[test]
    fn a_models_directory_is_found_from_the_folder_of_the_command() {
        let env = [("MEERKAT_MEMORY__EMBEDDER", "local"), ("MEERKAT_MEMORY__LOCAL__DIR", "models/mini")];
        let env = env.map(|(name, value)| (name.to_owned(), value.into())).into();
        let cli = <crate::args::Cli as clap::Parser>::try_parse_from(["meerkat", "capabilities"]).ok().unwrap();
        let config = Config::load(&Surroundings { env, dir: "/project".into() }, &cli.globals).ok().unwrap();
        assert_eq!(config.engine().memory.local.dir, Some(PathBuf::from("/project/models/mini")));
    }

    #[test]
    fn the_template_sets_nothing_and_holds_the_table() {
        let set = Figment::from(Layer::text("test", &template()).ok().unwrap());
        let set: BTreeMap<String, Value> = set.extract().unwrap();
        assert!(set.values().all(|section| section.as_dict().is_some_and(Dict::is_empty)));
        assert_eq!(
            template().matches("\n# ").count() + 1,
            BUILT_IN.lines().filter(|line| !line.is_empty() && !line.starts_with('[') && *line != "#").count()
        );
    }
}
