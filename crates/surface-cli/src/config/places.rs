//! Places of a project's data and files. Its data directory is named after the path of its root.
//!
//! No file in a project's folder is trusted for this: what `.rkat` names is only said, and a worktree must be known to
//! its repository.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use meerkat_service::SessionId;
use serde::{Deserialize, Serialize};

use super::{
    Config,
    project::{Links, is_own, is_too_wide, project, read},
};
use crate::{
    error::{CliError, refused},
    output::Environment,
};

/// Folder of the files for people, in the project's root.
const PROJECTION: &str = ".rkat";

/// File in a data directory that names its project.
const PROJECT: &str = "project.json";

/// Project as recorded in its data directory.
#[derive(Serialize, Deserialize)]
pub(crate) struct Project {
    /// Path of its root.
    root: String,
}

impl Project {
    fn of(data_dir: &Path) -> Option<Self> {
        serde_json::from_str(&text(&data_dir.join(PROJECT))?).ok()
    }

    fn is_in_place(&self) -> bool {
        Path::new(&self.root).is_dir()
    }

    /// Records it in its data directory, if that has no record that can be read: it stays the first project's.
    pub(crate) fn keep(&self, data_dir: &Path) {
        if Self::of(data_dir).is_some() {
            return;
        }
        let unfinished = data_dir.join(format!("{PROJECT}.{}.new", std::process::id()));
        let write = || {
            // Neither this nor the renaming follows a link.
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&unfinished)?;
            file.write_all(&serde_json::to_vec(self)?)?;
            fs::rename(&unfinished, data_dir.join(PROJECT))
        };
        if let Err(error) = write() {
            tracing::debug!(%error, "the project could not be recorded in the data directory");
        }
    }
}

impl Config {
    /// Returns the data directory: the configured one, else one per project in the user's data folder.
    pub(crate) fn data_dir(&self, env: &Environment) -> Result<PathBuf, CliError> {
        if let Some(dir) = &self.values.store.data_dir {
            return Ok(env.dir.join(dir));
        }
        let root = shared_root(env);
        let name = root.file_name().map_or_else(|| "root".into(), |name| name.to_string_lossy().into_owned());
        // The hash keeps two projects of one name apart.
        Ok(home(env)?.join(format!("{name}-{:016x}", meerkat_client::path_hash(&root))))
    }

    /// Returns the folder of the projection, if any: the configured one, else one at the project's root. The home folder
    /// and `/` get none.
    pub(crate) fn projection_dir(&self, env: &Environment) -> Option<PathBuf> {
        let has_files = |root: &PathBuf| !is_foreign(root) && !is_too_wide(root, env);
        let root = || Some(self.root(env)).filter(has_files).map(|root| root.join(PROJECTION));
        let dir = self.values.projection.dir.as_ref().map(|dir| env.dir.join(dir));
        self.projects().then(|| dir.or_else(root)).flatten()
    }

    /// Returns the root of the project; for a named data directory, of the project that it was made for.
    fn root(&self, env: &Environment) -> PathBuf {
        let known = self.values.store.data_dir.as_ref().and_then(|dir| Project::of(&env.dir.join(dir)));
        known.filter(Project::is_in_place).map_or_else(|| shared_root(env), |known| known.root.into())
    }

    /// Returns the project as its data directory records it.
    pub(crate) fn project(&self, env: &Environment) -> Project {
        Project { root: self.root(env).to_string_lossy().into_owned() }
    }

    /// Returns a note if no session is written as files, for a project that has no data directory yet: later nothing has
    /// changed about it.
    pub(crate) fn new_note(&self, env: &Environment) -> Option<String> {
        let (root, is_new) = (self.root(env), !self.data_dir(env).ok()?.exists());
        let is_here = self.projects() && self.values.projection.dir.is_none() && !is_too_wide(&root, env);
        if !is_new || !is_here {
            return None;
        }
        let (folder, root) = (root.join(PROJECTION), root.display());
        if is_foreign(&self.root(env)) {
            return Some(format!(
                "{root} or its {PROJECTION} belongs to another user, so no session is written there as files."
            ));
        }
        let mark = id_in(&folder.join("store")).filter(|_| self.values.store.data_dir.is_none())?;
        let earlier = all_projects(env).ok()?.into_iter().find(|(_, dir)| id_in(&dir.join("id")) == Some(mark));
        let (of, go_on) = earlier.map_or_else(
            || (format!("a data directory that is not in your data folder ({mark})"), String::new()),
            |(_, dir)| {
                (dir.display().to_string(), format!("continue those sessions with `--data-dir {}`, or ", typed(&dir)))
            },
        );
        Some(format!(
            "{} holds the files of the sessions in {of}, so nothing is written there: {go_on}set `projection.dir` to another \
             folder, or delete {}.",
            folder.display(),
            folder.join("store").display()
        ))
    }
}

/// Returns the folder of all projects' data directories.
fn home(env: &Environment) -> Result<PathBuf, CliError> {
    let home = env.variable("XDG_DATA_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = home.or_else(|| env.variable("HOME").map(|home| Path::new(&home).join(".local/share")));
    let home = home.filter(|home| home.is_absolute());
    let home = home.ok_or_else(|| refused("store.data_dir", "set it, or HOME", "the environment"))?;
    Ok(home.join("meerkat"))
}

/// Spells a path as a word for a shell.
pub(crate) fn typed(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+' | '@' | ':' | ',');
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// Lists the stores of all projects in the user's data folder, each with its project's root; with its own path if that is
/// not known. One that links lead to is listed once.
pub(crate) fn all_projects(env: &Environment) -> Result<Vec<(String, PathBuf)>, CliError> {
    let mut found = BTreeMap::new();
    for dir in fs::read_dir(home(env)?).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if dir.join("journal").is_dir()
            && let Ok(real) = dir.canonicalize()
        {
            let root = Project::of(&dir).map_or_else(|| dir.display().to_string(), |known| known.root);
            found.entry(real).or_insert((root, dir));
        }
    }
    Ok(found.into_values().collect())
}

/// Returns the root whose data directory the project uses: a worktree uses its repository's.
fn shared_root(env: &Environment) -> PathBuf {
    let root = project(env);
    repository(&root).unwrap_or(root)
}

/// Returns the main folder of a worktree's repository. Each must name the other. A bare repository and a submodule have
/// no such folder.
fn repository(root: &Path) -> Option<PathBuf> {
    let mark = root.join(".git");
    let git_dir = root.join(text(&mark)?.strip_prefix("gitdir:")?.trim()).canonicalize().ok()?;
    let worktree = git_dir.join(text(&git_dir.join("gitdir"))?.trim()).canonicalize().ok()?;
    let (worktrees, is_known) = (git_dir.parent()?, worktree == mark.canonicalize().ok()?);
    let common = worktrees.parent().filter(|_| is_known && worktrees.ends_with("worktrees"))?;
    let folder = common.parent().filter(|_| common.ends_with(".git"))?;
    fs::metadata(folder).is_ok_and(|it| is_own(&it)).then(|| folder.to_owned())
}

/// Reads a small file of this user's, without following a link.
fn text(path: &Path) -> Option<String> {
    String::from_utf8(read(path, Links::Refused).ok()??).ok()
}

/// Reads the id of a store.
fn id_in(path: &Path) -> Option<SessionId> {
    text(path)?.trim().parse().ok()
}

/// Returns true if a project's root or its folder of files belongs to another user, who could redirect them.
fn is_foreign(root: &Path) -> bool {
    let is_foreign = |found: io::Result<fs::Metadata>| found.is_ok_and(|it| !is_own(&it));
    is_foreign(fs::metadata(root)) || is_foreign(fs::symlink_metadata(root.join(PROJECTION)))
}
