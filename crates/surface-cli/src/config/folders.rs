//! Data directories: one per project, which is found again when the project moves.
//!
//! No file in a project's folder is trusted for this. A data directory identifies its project's folder by file system
//! data; a mark in a folder leads to sessions only if the user asks for that, and a worktree must be known to its
//! repository.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use meerkat_service::{SessionError, SessionId};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::project::{is_own, project};
use crate::{
    error::{CliError, refused},
    output::Environment,
};

/// Most bytes read of a mark, of a link between worktrees and of a project's record.
const READ_BYTES_MAX: u64 = 64 * 1024;

/// Folder of the files for people, in the project's root.
pub(super) const PROJECTION: &str = ".rkat";

/// File in a data directory that identifies its project.
const PROJECT: &str = "project.json";

/// Project as recorded in its data directory.
#[derive(Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Project {
    /// Path of its root; empty if another project took its place.
    pub(super) root: String,
    /// Inode and creation time of the root: they stay when the folder moves, and no copy of its files has them.
    pub(super) folder: Option<String>,
    /// The last note about it, which is not repeated.
    pub(super) noted: Option<String>,
}

impl Project {
    pub(super) fn at(root: &Path) -> Self {
        let folder = fs::metadata(root).ok().and_then(|it| {
            let made = it.created().ok()?.duration_since(UNIX_EPOCH).ok()?;
            Some(format!("{}-{}", it.ino(), made.as_nanos()))
        });
        Self { root: root.to_string_lossy().into_owned(), folder, noted: None }
    }

    /// Reads a data directory's record; `None` if an earlier version made it.
    pub(super) fn of(data_dir: &Path) -> Result<Option<Self>, CliError> {
        let path = data_dir.join(PROJECT);
        if fs::symlink_metadata(&path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Ok(None);
        }
        let known = read_own(&path).and_then(|text| serde_json::from_str(&text).ok());
        known.map(Some).ok_or_else(|| {
            let path = path.display();
            refuse(format!(
                "{path} is not a readable file of yours that says whose the sessions beside it are; put it back, or delete it \
                 if they are this project's"
            ))
        })
    }

    pub(super) fn known(data_dir: &Path) -> Option<Self> {
        Self::of(data_dir).ok().flatten()
    }

    /// Returns true if its root is still the same folder.
    pub(super) fn is_in_place(&self) -> bool {
        let root = Path::new(&self.root);
        root.is_dir() && self.is_same_folder(&Self::at(root))
    }

    /// Returns true if both are one folder. On file systems without creation times the path decides.
    pub(super) fn is_same_folder(&self, other: &Self) -> bool {
        match (&self.folder, &other.folder) {
            (Some(folder), Some(other)) => folder == other,
            _ => self.root == other.root,
        }
    }

    /// Writes the record to its data directory, so that the next command finds it from anywhere.
    pub(crate) fn keep(&self, data_dir: &Path) {
        if Self::known(data_dir).as_ref() == Some(self) {
            return;
        }
        let unfinished = data_dir.join(format!("{PROJECT}.{}.new", std::process::id()));
        let write = || {
            let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
            file.write_all(&serde_json::to_vec(self)?)?;
            // After a power cut either the old or the new file is there, complete.
            file.sync_all()?;
            fs::rename(&unfinished, data_dir.join(PROJECT))
        };
        if let Err(error) = write() {
            tracing::debug!(%error, "the project could not be recorded in the data directory");
        }
    }
}

/// Returns the folder of all projects' data directories.
pub(super) fn home(env: &Environment) -> Result<PathBuf, CliError> {
    let home = env.variable("XDG_DATA_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = home.or_else(|| env.variable("HOME").map(|home| Path::new(&home).join(".local/share")));
    let home = home.filter(|home| home.is_absolute());
    let home = home.ok_or_else(|| refused("store.data_dir", "set it, or HOME", "the environment"))?;
    Ok(home.join("meerkat"))
}

/// Makes the refusal of a request about a project.
pub(super) fn refuse(message: String) -> CliError {
    SessionError::invalid("project", message).into()
}

/// Returns the data directory named after a project's path, and true if it is the project's own; otherwise its name is
/// free. Several projects may have been at a path.
fn named_dir(home: &Path, root: &Path) -> Result<(PathBuf, bool), CliError> {
    let name = root.file_name().map_or_else(|| "root".into(), |name| name.to_string_lossy().into_owned());
    // The hash keeps two projects of one name apart.
    let name = format!("{name}-{:016x}", meerkat_client::path_hash(root));
    let (here, mut dir) = (Project::at(root), home.join(&name));
    for number in 1_u64.. {
        if fs::symlink_metadata(&dir).is_err() {
            break;
        }
        // A directory of an earlier version has no record.
        if Project::of(&dir)?.is_none_or(|known| known.is_same_folder(&here)) {
            return Ok((dir, true));
        }
        dir = home.join(format!("{name}.{number}"));
    }
    Ok((dir, false))
}

/// Lists the data directories of this user's projects, each with its project if known.
fn data_dirs(home: &Path) -> Vec<(PathBuf, Option<Project>)> {
    let own = |entry: io::Result<fs::DirEntry>| {
        let path = entry.ok()?.path();
        let metadata = fs::metadata(&path).ok()?;
        (metadata.is_dir() && is_own(&metadata))
            .then(|| (Project::known(&path), path))
            .map(|(known, path)| (path, known))
    };
    fs::read_dir(home).map(|entries| entries.filter_map(own).collect()).unwrap_or_default()
}

/// The stores of all projects, each with the project's root; with its own path if that is not known. One that links lead
/// to is listed once.
pub(crate) fn all_projects(env: &Environment) -> Result<Vec<(String, PathBuf)>, CliError> {
    let mut listed = BTreeSet::new();
    let mut is_new = |dir: &Path| dir.canonicalize().is_ok_and(|dir| listed.insert(dir));
    let stores = data_dirs(&home(env)?).into_iter().filter(|(dir, _)| id_of(dir).is_some() && is_new(dir));
    let named = |(dir, known): (PathBuf, Option<Project>)| {
        let root = known.map(|known| known.root).filter(|root| !root.is_empty());
        (root.unwrap_or_else(|| dir.display().to_string()), dir)
    };
    Ok(stores.map(named).collect())
}

/// Finds or creates a project's data directory.
pub(super) fn own_dir(home: &Path, root: &Path) -> Result<PathBuf, CliError> {
    let (dir, is_its) = named_dir(home, root)?;
    if is_its {
        return Ok(dir);
    }
    let (here, mark, all) = (Project::at(root), marked(root), data_dirs(home));
    // A snapshot of a file system has the same folder data as the original.
    let is_moved = |known: &Project| known.is_same_folder(&here) && (known.root == here.root || !known.is_in_place());
    // A folder restored from a backup has the files of the earlier one.
    let is_restored = |dir: &Path, known: &Project| known.root == here.root && mark.is_some() && mark == id_of(dir);
    let find = |is: &dyn Fn(&Path, &Project) -> bool| {
        all.iter().find(|(dir, known)| known.as_ref().is_some_and(|known| is(dir, known))).map(|(dir, _)| dir.clone())
    };
    Ok(find(&|_, known| is_moved(known)).or_else(|| find(&is_restored)).unwrap_or(dir))
}

/// Finds sessions of a project outside its data directory: those that its mark names, else those of a project that was
/// at its path.
pub(super) fn earlier_dir(home: &Path, root: &Path, own: &Path) -> Option<PathBuf> {
    let (here, mark, mut all) = (Project::at(root), marked(root), data_dirs(home));
    all.retain(|(dir, _)| id_of(dir).is_some() && id_of(dir) != id_of(own));
    let by_mark = all.iter().find(|(dir, _)| id_of(dir) == mark);
    let by_path = || all.iter().find(|(_, known)| known.as_ref().is_some_and(|known| known.root == here.root));
    by_mark.or_else(by_path).map(|(dir, _)| dir.clone())
}

/// Returns the root whose data directory the project uses: a worktree uses its repository's, unless it already has one.
pub(super) fn shared_root(env: &Environment) -> PathBuf {
    let root = project(env);
    let has_own = || home(env).is_ok_and(|home| named_dir(&home, &root).is_ok_and(|(_, is_its)| is_its));
    repository(&root).filter(|_| !has_own()).unwrap_or(root)
}

/// Returns the main folder of a worktree's repository. Each must name the other. A bare repository and a submodule have
/// no such folder.
fn repository(root: &Path) -> Option<PathBuf> {
    let mark = root.join(".git");
    let git_dir = root.join(read_own(&mark)?.strip_prefix("gitdir:")?.trim()).canonicalize().ok()?;
    let worktree = git_dir.join(read_own(&git_dir.join("gitdir"))?.trim()).canonicalize().ok()?;
    let (worktrees, is_known) = (git_dir.parent()?, worktree == mark.canonicalize().ok()?);
    let common = worktrees.parent().filter(|_| is_known && worktrees.ends_with("worktrees"))?;
    let folder = common.parent().filter(|_| common.ends_with(".git"))?;
    fs::metadata(folder).is_ok_and(|it| is_own(&it)).then(|| folder.to_owned())
}

/// Reads a small file of this user's, without following links.
fn read_own(path: &Path) -> Option<String> {
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).ok()?;
    let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    let mut text = String::new();
    let is_readable = metadata.is_file() && is_own(&metadata);
    file.take(READ_BYTES_MAX).read_to_string(&mut text).ok().filter(|_| is_readable)?;
    Some(text)
}

/// Reads the id in a file.
fn read_id(path: &Path) -> Option<SessionId> {
    read_own(path)?.trim().parse().ok()
}

/// Reads the id of a data directory's store.
pub(super) fn id_of(data_dir: &Path) -> Option<SessionId> {
    read_id(&data_dir.join("id"))
}

/// Returns the store that the mark of a project's files names, if any.
pub(super) fn marked(root: &Path) -> Option<SessionId> {
    let folder = root.join(PROJECTION);
    fs::symlink_metadata(&folder).ok().filter(fs::Metadata::is_dir).and_then(|_| read_id(&folder.join("store")))
}

/// Returns true if a project's root or its folder of files belongs to another user, who could redirect them.
pub(super) fn is_foreign(root: &Path) -> bool {
    let is_foreign = |found: io::Result<fs::Metadata>| found.is_ok_and(|it| !is_own(&it));
    is_foreign(fs::metadata(root)) || is_foreign(fs::symlink_metadata(root.join(PROJECTION)))
}
