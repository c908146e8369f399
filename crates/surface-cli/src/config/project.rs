//! The project's file: the keys that take effect at once, and those that need the user's trust.
//!
//! Anybody may have made a project's folder, so it must not decide what is sent, to whom, or what may run. Keys without
//! a row below need trust.

use std::{
    fs::{self, File, Metadata},
    io::{self, Read as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use figment::{
    Figment,
    value::{Dict, Value},
};

use rustix::{fs::OFlags, io::Errno};

use super::{
    layers::{Layer, is_missing},
    mcp_file::MCP_FILE,
};
use crate::{
    error::{CliError, refused},
    output::Environment,
};

/// Most bytes of a project's file.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Keys, or beginnings of keys, that need no trust.
const HARMLESS: [(&str, Harmless); 5] = [
    ("turn.max_", Harmless::Lower),
    ("compaction.", Harmless::Always),
    ("context.overflow", Harmless::Always),
    ("model.name", Harmless::NamedModel),
    ("context.summary_model", Harmless::NamedModel),
];

/// Harmless values of a key.
#[derive(Clone, Copy)]
enum Harmless {
    /// All values.
    Always,
    /// Values not above the one in force without the project.
    Lower,
    /// Models that the user names.
    NamedModel,
}

/// The one limit that 0 does not remove.
const LIMITED_AT_ZERO: &str = "turn.max_queued";

/// Project's `meerkat.toml` as it was read.
pub(super) struct ProjectFile {
    pub(super) path: PathBuf,
    pub(super) layer: Layer,
    pub(super) bytes: Vec<u8>,
}

/// If a file may be a link.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Links {
    Followed,
    Refused,
}

/// Key of a project's file that is ignored, or could be.
pub(super) struct Ignored {
    pub(super) key: String,
    pub(super) value: Value,
    /// True if it takes effect without trust at present.
    pub(super) counts: bool,
}

impl ProjectFile {
    /// Reads the file in a project's root, if it exists and belongs to this user.
    pub(super) fn read(root: &Path) -> Result<Option<Self>, CliError> {
        let path = root.join("meerkat.toml");
        let unread = |why: String| {
            let origin = format!("project file {}", path.display());
            CliError::from(refused("file", &format!("it cannot be read: {why}"), &origin))
        };
        // A link is the project's own: the user trusts this project, not the one that the link leads to.
        let found = read(&path, Links::Followed).map_err(|error| unread(error.to_string()))?;
        let Some(bytes) = found else { return Ok(None) };
        let text = std::str::from_utf8(&bytes).map_err(|error| unread(error.to_string()))?;
        let layer = Layer::file_text("project", &path, text)?;
        Ok(Some(Self { path, layer, bytes }))
    }
}

/// Reads a file of a project, if it exists and belongs to this user.
pub(super) fn read(path: &Path, links: Links) -> io::Result<Option<Vec<u8>>> {
    // Never waits for a pipe or a device.
    let mut flags = OFlags::NONBLOCK;
    flags.set(OFlags::NOFOLLOW, links == Links::Refused);
    let file = match File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path) {
        Ok(file) => file,
        Err(error) if is_missing(&error) => return Ok(None),
        Err(error) if links == Links::Refused && error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
            return Err(io::Error::other("it is a link"));
        }
        Err(error) => return Err(error),
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() || !is_own(&metadata) {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other("it has more than a mebibyte"));
    }
    Ok(Some(bytes))
}

/// Removes harmful values of a project. `below` is in force without the project, `user` are all layers of the user's.
/// Returns the keys that trust would allow, now or when the user's own change, and which of them are ignored.
pub(super) fn take_ignored(layer: &mut Layer, below: &Figment, user: &Figment) -> Vec<Ignored> {
    let row = |key: &str| {
        let is_row = |name: &str| name == key || (name.ends_with(['.', '_']) && key.starts_with(name));
        HARMLESS.iter().find(|(name, _)| is_row(name)).map(|(_, row)| *row)
    };
    let is_harmless = |key: &str, value: &Value| match row(key) {
        None => false,
        Some(Harmless::Always) => true,
        Some(Harmless::Lower) => {
            let limit = |value: &Value| {
                let limit = json(value).as_u64()?;
                Some(if limit == 0 && key != LIMITED_AT_ZERO { u64::MAX } else { limit })
            };
            let in_force = below.find_value(key).ok();
            in_force.is_some_and(|in_force| limit(value).zip(limit(&in_force)).is_some_and(|(new, old)| new <= old))
        }
        Some(Harmless::NamedModel) => ["model.name", "context.summary_model"].iter().any(|key| {
            let named = user.find_value(key).ok();
            let named = named.as_ref().and_then(Value::as_str).filter(|name| !name.is_empty());
            named.is_some() && named == value.as_str()
        }),
    };
    // A section without keys, as `config init` writes it, changes nothing. An empty table is a value elsewhere.
    let is_bare = |key: &str, value: &Value| {
        let is_section = |it: &Value| it.as_dict().is_some_and(|it| !it.is_empty());
        value.as_dict().is_some_and(Dict::is_empty) && below.find_value(key).is_ok_and(|it| is_section(&it))
    };
    let mut ignored = Vec::new();
    keep_values(&mut layer.values, "", &mut |key, value| {
        if is_bare(key, value) {
            return false;
        }
        let is_harmless = is_harmless(key, value);
        if !matches!(row(key), Some(Harmless::Always)) {
            ignored.push(Ignored { key: key.to_owned(), value: value.clone(), counts: is_harmless });
        }
        is_harmless
    });
    ignored
}

/// Keeps the values that pass, and removes empty sections.
fn keep_values(values: &mut Dict, path: &str, keeps: &mut impl FnMut(&str, &Value) -> bool) {
    values.retain(|name, value| {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match value {
            Value::Dict(_, members) if !members.is_empty() => {
                keep_values(members, &path, keeps);
                !members.is_empty()
            }
            value => keeps(&path, value),
        }
    });
}

/// Returns the project's root: the nearest folder upwards with `.git`, else the current folder. Other users' folders and
/// repositories do not count: in a shared folder they would affect everybody who works below it.
pub(crate) fn project(env: &Environment) -> PathBuf {
    candidates(env).find(is_root).unwrap_or(&env.dir).to_owned()
}

/// Returns true if a folder is the home folder or `/`, which hold what many projects are made of.
pub(super) fn is_too_wide(folder: &Path, env: &Environment) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    let home = env.variable("HOME").and_then(|home| real(Path::new(&home)));
    folder.parent().is_none() || home.is_some_and(|home| real(folder) == Some(home))
}

/// Lists the folders that may be the root: from the current one upwards, below the home folder and `/`.
fn candidates(env: &Environment) -> impl Iterator<Item = &Path> {
    env.dir.ancestors().take_while(|folder| !is_too_wide(folder, env))
}

fn is_root(folder: &&Path) -> bool {
    let mark = fs::symlink_metadata(folder.join(".git"));
    mark.is_ok_and(|it| is_trusty(&it)) && fs::metadata(folder).is_ok_and(|it| is_trusty(&it))
}

/// Finds the first repository or file of another user's on the way up to the project's root.
pub(super) fn skipped(env: &Environment) -> Option<PathBuf> {
    let is_other = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|it| !is_trusty(&it));
    let is_foreign = |path: &PathBuf| fs::metadata(path).is_ok_and(|it| !is_own(&it));
    let mut below = candidates(env).take_while(|folder| !is_root(folder)).map(|folder| folder.join(".git"));
    let files = ["meerkat.toml", MCP_FILE].map(|name| project(env).join(name));
    below.find(is_other).or_else(|| files.into_iter().find(is_foreign))
}

/// Returns true if a file or a folder belongs to this user, or to the system.
fn is_trusty(metadata: &Metadata) -> bool {
    is_own(metadata) || metadata.uid() == 0
}

/// Returns true if a file or a folder belongs to this user.
pub(crate) fn is_own(metadata: &Metadata) -> bool {
    metadata.uid() == rustix::process::geteuid().as_raw()
}

/// Converts a value to JSON.
pub(super) fn json(value: &Value) -> serde_json::Value {
    serde_json::to_value(value).unwrap_or_default()
}
