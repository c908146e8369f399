//! Where a project begins, and which of its files belong to this user. Anybody may have made a project's folder, so its
//! files count only if they are trusted.

use std::{
    fs::{self, File, Metadata},
    io::{self, Read as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use figment::value::Value;
use rustix::{fs::OFlags, io::Errno};

use super::mcp_file::MCP_FILE;
use crate::output::Environment;

/// Most bytes of a project's file.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// If a file may be a link.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Links {
    Followed,
    Refused,
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

/// Returns the project's root: the nearest folder upwards with `.git`, else the current folder. Other users' folders and
/// repositories do not count: in a shared folder they would affect everybody who works below it.
pub(crate) fn project(env: &Environment) -> PathBuf {
    candidates(env).find(is_root).unwrap_or(&env.dir).to_owned()
}

/// Returns true for a missing file, or a file where a folder should be.
pub(super) fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
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
