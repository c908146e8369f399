//! Where a project's sessions are kept: one data directory per project, which is found again when the project moves.
//!
//! What a project's folder says is taken from nobody's word: its mark names a store's id and no path, and the id is
//! looked for among this user's own data directories; a worktree must be known to its repository.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read as _},
    os::unix::fs::{OpenOptionsExt as _, symlink},
    path::{Path, PathBuf},
};

use meerkat_service::{SessionError, SessionId};
use rustix::fs::OFlags;

use super::{Config, is_own, project, refused};
use crate::{error::CliError, output::Surroundings};

/// Bytes of a mark or of a link between worktrees that are read.
const MARK_BYTES_MAX: u64 = 4096;

/// The folder of the files for people, in the project's root.
const PROJECTION: &str = ".rkat";

/// The link in a data directory to the root of its project.
const ROOT: &str = "project";

/// The folder of all data directories of projects.
fn home(around: &Surroundings) -> Result<PathBuf, CliError> {
    let home = around.variable("XDG_DATA_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = home.or_else(|| around.variable("HOME").map(|home| Path::new(&home).join(".local/share")));
    let home = home.filter(|home| home.is_absolute());
    let home = home.ok_or_else(|| refused("store.data_dir", "set it, or HOME", "the environment"))?;
    Ok(home.join("meerkat"))
}

/// The data directory that a project has by its path.
fn named(home: &Path, root: &Path) -> PathBuf {
    let name = root.file_name().map_or_else(|| "root".into(), |name| name.to_string_lossy().into_owned());
    // The hash keeps two projects of one name apart.
    home.join(format!("{name}-{:016x}", super::path_hash(root)))
}

/// A path beside a data directory's.
fn beside(named: &Path, suffix: &str) -> PathBuf {
    let mut name = named.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

/// The root whose data directory the project uses: for a worktree that of its repository, unless it has one already.
fn shared_root(around: &Surroundings) -> PathBuf {
    let root = project(&around.dir);
    let has_own = home(around).is_ok_and(|home| named(&home, &root).exists());
    repository(&root).filter(|_| !has_own).unwrap_or(root)
}

/// The main folder of the repository that a worktree belongs to. The worktree names it, and it must name the worktree.
fn repository(root: &Path) -> Option<PathBuf> {
    let mark = root.join(".git");
    let git_dir = root.join(read_own(&mark)?.strip_prefix("gitdir:")?.trim()).canonicalize().ok()?;
    let worktree = Path::new(read_own(&git_dir.join("gitdir"))?.trim()).canonicalize().ok()?;
    let (worktrees, is_known) = (git_dir.parent()?, worktree == mark.canonicalize().ok()?);
    let common =
        worktrees.parent().filter(|_| is_known && worktrees.file_name().is_some_and(|it| it == "worktrees"))?;
    let folder = if common.file_name()? == ".git" { common.parent()? } else { common };
    fs::metadata(folder).is_ok_and(|it| is_own(&it)).then(|| folder.to_owned())
}

/// The text of a small file of this user's; no link is followed.
fn read_own(path: &Path) -> Option<String> {
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).ok()?;
    let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    let mut text = String::new();
    let is_readable = metadata.is_file() && is_own(&metadata);
    file.take(MARK_BYTES_MAX).read_to_string(&mut text).ok().filter(|_| is_readable)?;
    Some(text)
}

/// The id that a file holds.
fn id(path: &Path) -> Option<SessionId> {
    read_own(path)?.trim().parse().ok()
}

/// The store that a project's files were made from, if its mark says so.
fn marked(root: &Path) -> Option<SessionId> {
    let folder = root.join(PROJECTION);
    fs::symlink_metadata(&folder).ok().filter(fs::Metadata::is_dir).and_then(|_| id(&folder.join("store")))
}

/// The data directory of a store among this user's own.
fn find(home: &Path, store: SessionId) -> Option<PathBuf> {
    let own = |entry: io::Result<fs::DirEntry>| {
        let path = entry.ok()?.path();
        let metadata = fs::symlink_metadata(&path).ok()?;
        (metadata.is_dir() && is_own(&metadata) && id(&path.join("id")) == Some(store)).then_some(path)
    };
    fs::read_dir(home).ok()?.find_map(own)
}

/// Keeps in a data directory which project its files are in.
pub(crate) fn keep_root(data_dir: &Path, root: &Path) {
    let link = data_dir.join(ROOT);
    if fs::read_link(&link).is_ok_and(|kept| kept == root) {
        return;
    }
    drop(fs::remove_file(&link));
    if let Err(error) = symlink(root, &link) {
        tracing::debug!(%error, "the data directory does not know its project");
    }
}

impl Config {
    /// The data directory: as configured, else one per project in the user's data folder.
    pub(crate) fn data_dir(&self, around: &Surroundings) -> Result<PathBuf, CliError> {
        if let Some(dir) = &self.values.store.data_dir {
            return Ok(around.dir.join(dir));
        }
        let home = home(around)?;
        let named = named(&home, &shared_root(around));
        // A project that moved has a link of one name to where its sessions are; a longer link is the user's own.
        let link = fs::read_link(&named).ok().filter(|link| link.components().count() == 1);
        Ok(link.and_then(|link| Some(home.join(link.file_name()?))).unwrap_or(named))
    }

    /// Where sessions stand as files: as configured, else at the root of the project whose sessions they are.
    pub(crate) fn projection_dir(&self, around: &Surroundings) -> PathBuf {
        let dir = self.values.projection.dir.as_ref();
        dir.map_or_else(|| self.root(around).join(PROJECTION), |dir| around.dir.join(dir))
    }

    /// The project whose sessions these are: of a data directory that is named, the one that has its files already.
    fn root(&self, around: &Surroundings) -> PathBuf {
        let known = self.values.store.data_dir.as_ref().and_then(|dir| {
            let dir = around.dir.join(dir);
            let root = fs::read_link(dir.join(ROOT)).ok()?;
            (marked(&root)? == id(&dir.join("id"))?).then_some(root)
        });
        known.unwrap_or_else(|| shared_root(around))
    }

    /// The project's root as a data directory keeps it, so that the next command finds it from anywhere; `None` if files
    /// do not stand in a project.
    pub(crate) fn kept_root(&self, around: &Surroundings) -> Option<PathBuf> {
        (self.projects() && self.values.projection.dir.is_none()).then(|| self.root(around))
    }

    /// Finds the sessions of a project that has none where its path says, by the mark in its folder. Answers with what is
    /// to be told, once: of sessions that were found, or of those that could not be taken without being asked for.
    pub(crate) fn find_moved(&self, around: &Surroundings) -> Option<String> {
        if self.values.store.data_dir.is_some() || !self.keeps_sessions() {
            return None;
        }
        let (home, root) = (home(around).ok()?, shared_root(around));
        let named = named(&home, &root);
        let store = marked(&root)?;
        let found = find(&home, store);
        // A copy of a project has the mark of its original, and is not the original.
        let is_copy = found.as_ref().is_some_and(|found| {
            fs::read_link(found.join(ROOT)).is_ok_and(|other| other != root && marked(&other) == Some(store))
        });
        if fs::symlink_metadata(&named).is_err() && !is_copy {
            let found = found?;
            symlink(found.file_name()?, &named).ok()?;
            return Some(format!("The sessions of this project were found by its mark, in {}.", found.display()));
        }
        let own = id(&named.join("id"));
        let is_anothers = is_copy || found.is_some_and(|found| own.is_some_and(|own| own != store) && found != named);
        // That it was said is remembered beside the data directory.
        let said = beside(&named, "told");
        if !is_anothers || id(&said) == Some(store) {
            return None;
        }
        fs::write(&said, store.to_string()).ok()?;
        Some(format!(
            "{} holds the files of earlier sessions, which are in another data directory; `meerkat project adopt` goes on \
             with those.",
            root.join(PROJECTION).display()
        ))
    }

    /// Goes on with the sessions that the project's mark names. Answers with their data directory, and with what the
    /// project's own has been renamed to, if it had one.
    pub(crate) fn adopt(&self, around: &Surroundings) -> Result<(PathBuf, Option<PathBuf>), CliError> {
        let refuse = |message: String| CliError::from(SessionError::invalid("project", message));
        if let Some(dir) = &self.values.store.data_dir {
            return Err(refuse(format!("store.data_dir names the data directory: {}", dir.display())));
        }
        let (home, root) = (home(around)?, shared_root(around));
        let named = named(&home, &root);
        let mark = root.join(PROJECTION).join("store");
        let store = marked(&root).ok_or_else(|| refuse(format!("{} names no store", mark.display())))?;
        let found = find(&home, store).ok_or_else(|| {
            refuse(format!(
                "none of your data directories in {} is the one that {} names",
                home.display(),
                mark.display()
            ))
        })?;
        if self.data_dir(around)? == found {
            return Ok((found, None));
        }
        let failed = |error: io::Error| refuse(format!("{}: {error}", named.display()));
        let mut aside = None;
        if fs::symlink_metadata(&named).is_ok_and(|it| it.is_dir()) {
            // Nobody may work in a folder while it is renamed.
            let lock = File::options().read(true).write(true).open(named.join("lock"));
            let is_held = lock.as_ref().is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)));
            if is_held {
                return Err(refuse("another process works with this project's sessions; end it first".to_owned()));
            }
            let free = (1..).map(|number| beside(&named, &format!("aside-{number}"))).find(|path| !path.exists());
            let to = free.ok_or_else(|| refuse("there is no free name".to_owned()))?;
            fs::rename(&named, &to).map_err(failed)?;
            aside = Some(to);
        } else if fs::symlink_metadata(&named).is_ok() {
            fs::remove_file(&named).map_err(failed)?;
        }
        symlink(found.file_name().unwrap_or_default(), &named).map_err(failed)?;
        Ok((found, aside))
    }
}
