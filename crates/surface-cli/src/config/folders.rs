//! Where a project's sessions are kept: one data directory per project, which is found again when the project moves.
//!
//! What a project's folder says is taken from nobody's word. A data directory keeps which folder its project is, by what
//! the file system says of it; a mark in a folder leads to sessions only if the user asks for that, and a worktree must
//! be known to its repository.

use std::{
    collections::BTreeSet,
    fs::{self, File, TryLockError},
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use meerkat_service::{SessionError, SessionId};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::{Config, is_own, project, refused};
use crate::{error::CliError, output::Surroundings};

/// Bytes of a mark, of a link between worktrees and of what is kept of a project that are read.
const READ_BYTES_MAX: u64 = 64 * 1024;

/// The folder of the files for people, in the project's root.
const PROJECTION: &str = ".rkat";

/// The file in a data directory that says whose it is.
const PROJECT: &str = "project.json";

/// A project as its data directory keeps it.
#[derive(Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Project {
    /// The path of its root; empty if another project took its place.
    pub(crate) root: String,
    /// The root's inode and the moment that was made: they stay when the folder moves, and no copy of its files has them.
    folder: Option<String>,
    /// The last note about it, which is not repeated.
    noted: Option<String>,
}

impl Project {
    fn at(root: &Path) -> Self {
        let folder = fs::metadata(root).ok().and_then(|it| {
            let made = it.created().ok()?.duration_since(UNIX_EPOCH).ok()?;
            Some(format!("{}-{}", it.ino(), made.as_nanos()))
        });
        Self { root: root.to_string_lossy().into_owned(), folder, noted: None }
    }

    /// What a data directory keeps; nothing in one that an earlier version made.
    fn of(data_dir: &Path) -> Result<Option<Self>, CliError> {
        let path = data_dir.join(PROJECT);
        if fs::symlink_metadata(&path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Ok(None);
        }
        let known = read_own(&path).and_then(|text| serde_json::from_str(&text).ok());
        known.map(Some).ok_or_else(|| {
            let path = path.display();
            refuse(format!(
                "{path} is no readable file of yours that says whose the sessions beside it are; put it back, or delete it \
                 if they are this project's"
            ))
        })
    }

    fn known(data_dir: &Path) -> Option<Self> {
        Self::of(data_dir).ok().flatten()
    }

    /// Whether its root is still the folder that it was.
    fn is_there(&self) -> bool {
        let root = Path::new(&self.root);
        root.is_dir() && self.is(&Self::at(root))
    }

    /// Whether both are one folder. A file system that does not say when a folder was made leaves the path.
    fn is(&self, other: &Self) -> bool {
        match (&self.folder, &other.folder) {
            (Some(folder), Some(other)) => folder == other,
            _ => self.root == other.root,
        }
    }

    /// Keeps it in its data directory, so that the next command finds it from anywhere.
    pub(crate) fn keep(&self, data_dir: &Path) {
        if Self::known(data_dir).as_ref() == Some(self) {
            return;
        }
        let unfinished = data_dir.join(format!("{PROJECT}.{}.new", std::process::id()));
        let write = || {
            let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
            file.write_all(&serde_json::to_vec(self)?)?;
            // A power cut leaves the former one or this one, whole.
            file.sync_all()?;
            fs::rename(&unfinished, data_dir.join(PROJECT))
        };
        if let Err(error) = write() {
            tracing::debug!(%error, "the data directory does not know its project");
        }
    }
}

/// The folder of all data directories of projects.
fn home(around: &Surroundings) -> Result<PathBuf, CliError> {
    let home = around.variable("XDG_DATA_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = home.or_else(|| around.variable("HOME").map(|home| Path::new(&home).join(".local/share")));
    let home = home.filter(|home| home.is_absolute());
    let home = home.ok_or_else(|| refused("store.data_dir", "set it, or HOME", "the environment"))?;
    Ok(home.join("meerkat"))
}

/// A refusal of what is asked of a project.
fn refuse(message: String) -> CliError {
    SessionError::invalid("project", message).into()
}

/// The data directory that a project's path names and whether it is its own; else that is a name that is free for one.
/// More than one project may have been at a path.
fn named(home: &Path, root: &Path) -> Result<(PathBuf, bool), CliError> {
    let name = root.file_name().map_or_else(|| "root".into(), |name| name.to_string_lossy().into_owned());
    // The hash keeps two projects of one name apart.
    let name = format!("{name}-{:016x}", super::path_hash(root));
    let (here, mut dir) = (Project::at(root), home.join(&name));
    for number in 1_u64.. {
        if fs::symlink_metadata(&dir).is_err() {
            break;
        }
        // One that an earlier version made keeps no project.
        if Project::of(&dir)?.is_none_or(|known| known.is(&here)) {
            return Ok((dir, true));
        }
        dir = home.join(format!("{name}.{number}"));
    }
    Ok((dir, false))
}

/// The data directories of this user's projects, each with its project if that is known.
pub(crate) fn data_dirs(home: &Path) -> Vec<(PathBuf, Option<Project>)> {
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
pub(crate) fn all_projects(around: &Surroundings) -> Result<Vec<(String, PathBuf)>, CliError> {
    let mut listed = BTreeSet::new();
    let mut is_new = |dir: &Path| dir.canonicalize().is_ok_and(|dir| listed.insert(dir));
    let stores = data_dirs(&home(around)?).into_iter().filter(|(dir, _)| id_of(dir).is_some() && is_new(dir));
    let named = |(dir, known): (PathBuf, Option<Project>)| {
        let root = known.map(|known| known.root).filter(|root| !root.is_empty());
        (root.unwrap_or_else(|| dir.display().to_string()), dir)
    };
    Ok(stores.map(named).collect())
}

/// A project's data directory, which is made if it is not there.
fn place(home: &Path, root: &Path) -> Result<PathBuf, CliError> {
    let (dir, is_its) = named(home, root)?;
    if is_its {
        return Ok(dir);
    }
    let (here, mark, all) = (Project::at(root), marked(root), data_dirs(home));
    // A snapshot of a file system says of a folder what the original says of it.
    let is_moved = |known: &Project| known.is(&here) && (known.root == here.root || !known.is_there());
    // A folder that came back from elsewhere, as a backup does, has the files of the one that was there.
    let is_restored = |dir: &Path, known: &Project| known.root == here.root && mark.is_some() && mark == id_of(dir);
    let find = |is: &dyn Fn(&Path, &Project) -> bool| {
        all.iter().find(|(dir, known)| known.as_ref().is_some_and(|known| is(dir, known))).map(|(dir, _)| dir.clone())
    };
    Ok(find(&|_, known| is_moved(known)).or_else(|| find(&is_restored)).unwrap_or(dir))
}

/// Sessions of a project that are not in its data directory: those that its mark names, else those of a project that was
/// at its path.
fn earlier(home: &Path, root: &Path, own: &Path) -> Option<PathBuf> {
    let (here, mark, mut all) = (Project::at(root), marked(root), data_dirs(home));
    all.retain(|(dir, _)| id_of(dir).is_some() && id_of(dir) != id_of(own));
    let by_mark = all.iter().find(|(dir, _)| id_of(dir) == mark);
    let by_path = || all.iter().find(|(_, known)| known.as_ref().is_some_and(|known| known.root == here.root));
    by_mark.or_else(by_path).map(|(dir, _)| dir.clone())
}

/// The root whose data directory the project uses: for a worktree that of its repository, unless it has one already.
fn shared_root(around: &Surroundings) -> PathBuf {
    let root = project(&around.dir);
    let has_own = || home(around).is_ok_and(|home| named(&home, &root).is_ok_and(|(_, is_its)| is_its));
    repository(&root).filter(|_| !has_own()).unwrap_or(root)
}

/// The main folder of the repository that a worktree belongs to. The worktree names it, and it must name the worktree.
/// A bare repository and a submodule have no such folder.
fn repository(root: &Path) -> Option<PathBuf> {
    let mark = root.join(".git");
    let git_dir = root.join(read_own(&mark)?.strip_prefix("gitdir:")?.trim()).canonicalize().ok()?;
    let worktree = git_dir.join(read_own(&git_dir.join("gitdir"))?.trim()).canonicalize().ok()?;
    let (worktrees, is_known) = (git_dir.parent()?, worktree == mark.canonicalize().ok()?);
    let common = worktrees.parent().filter(|_| is_known && worktrees.ends_with("worktrees"))?;
    let folder = common.parent().filter(|_| common.ends_with(".git"))?;
    fs::metadata(folder).is_ok_and(|it| is_own(&it)).then(|| folder.to_owned())
}

/// The text of a small file of this user's; no link is followed.
fn read_own(path: &Path) -> Option<String> {
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).ok()?;
    let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    let mut text = String::new();
    let is_readable = metadata.is_file() && is_own(&metadata);
    file.take(READ_BYTES_MAX).read_to_string(&mut text).ok().filter(|_| is_readable)?;
    Some(text)
}

/// The id that a file holds.
fn id(path: &Path) -> Option<SessionId> {
    read_own(path)?.trim().parse().ok()
}

/// The id of a data directory's store.
fn id_of(data_dir: &Path) -> Option<SessionId> {
    id(&data_dir.join("id"))
}

/// The store that a project's files were made from, if its mark says so.
fn marked(root: &Path) -> Option<SessionId> {
    let folder = root.join(PROJECTION);
    fs::symlink_metadata(&folder).ok().filter(fs::Metadata::is_dir).and_then(|_| id(&folder.join("store")))
}

/// Whether a project's root, or what is there for files, is another user's, who could lead them anywhere.
fn is_anothers(root: &Path) -> bool {
    let is_anothers = |found: io::Result<fs::Metadata>| found.is_ok_and(|it| !is_own(&it));
    is_anothers(fs::metadata(root)) || is_anothers(fs::symlink_metadata(root.join(PROJECTION)))
}

impl Config {
    /// The data directory: as configured, else one per project in the user's data folder.
    pub(crate) fn data_dir(&self, around: &Surroundings) -> Result<PathBuf, CliError> {
        match &self.values.store.data_dir {
            Some(dir) => Ok(around.dir.join(dir)),
            None => place(&home(around)?, &shared_root(around)),
        }
    }

    /// Where sessions are written as files, if they are: as configured, else at the root of the project.
    pub(crate) fn projection_dir(&self, around: &Surroundings) -> Option<PathBuf> {
        let root = || Some(self.root(around)).filter(|root| !is_anothers(root)).map(|root| root.join(PROJECTION));
        let dir = self.values.projection.dir.as_ref().map(|dir| around.dir.join(dir));
        self.projects().then(|| dir.or_else(root)).flatten()
    }

    /// The project whose sessions these are: of a data directory that is named, the one that it was made for.
    fn root(&self, around: &Surroundings) -> PathBuf {
        let known = self.values.store.data_dir.as_ref().and_then(|dir| {
            Project::known(&around.dir.join(dir)).filter(Project::is_there).map(|known| known.root.into())
        });
        known.unwrap_or_else(|| shared_root(around))
    }

    /// The project as its data directory keeps it. A command that says nothing leaves its note to the next, and with that
    /// the root that the note is about.
    pub(crate) fn project(&self, around: &Surroundings, is_quiet: bool) -> Project {
        let here = Project::at(&self.root(around));
        if !is_quiet {
            return Project { noted: self.note(around), ..here };
        }
        match self.data_dir(around).ok().and_then(|dir| Project::known(&dir)) {
            Some(known) if known.is(&here) => known,
            known => Project { noted: known.and_then(|known| known.noted), ..here },
        }
    }

    /// A note about where the project's sessions are, if there is anything to know.
    fn note(&self, around: &Surroundings) -> Option<String> {
        let root = self.root(around);
        let folder = root.join(PROJECTION);
        let is_here = self.projects() && self.values.projection.dir.is_none();
        if is_here && is_anothers(&root) {
            let root = root.display();
            return Some(format!(
                "{root} or its {PROJECTION} is another user's, so no session is written there as files."
            ));
        }
        if self.values.store.data_dir.is_some() {
            return None;
        }
        let (home, own) = (home(around).ok()?, self.data_dir(around).ok()?);
        if let Some(known) = Project::known(&own).filter(|known| *known.root != *root.to_string_lossy()) {
            return Some(format!("This project was at {}; its sessions were found, in {}.", known.root, own.display()));
        }
        if let Some(found) = earlier(&home, &root, &own) {
            let known = Project::known(&found).filter(|known| !known.root.is_empty());
            let whose = known.as_ref().map_or("of a folder that is not known".to_owned(), |known| {
                format!("of the project at {}", known.root)
            });
            let advice = match known.is_some_and(|known| known.is_there()) {
                true => "",
                false => "; `meerkat project adopt` goes on with them",
            };
            return Some(format!("Other sessions, {whose}, are in {}{advice}.", found.display()));
        }
        let mark = marked(&root).filter(|mark| is_here && Some(*mark) != id_of(&own))?;
        Some(format!(
            "{} holds the files of somebody else's sessions ({mark}), so none of yours is written there; set \
             `projection.dir` to another folder, or remove the file `store` in it.",
            folder.display()
        ))
    }

    /// A note about where the project's sessions are, once for each project.
    pub(crate) fn new_note(&self, around: &Surroundings) -> Option<String> {
        let (note, dir) = (self.note(around).filter(|_| self.opens_data_dir())?, self.data_dir(around).ok()?);
        if Project::known(&dir).is_some_and(|known| known.noted.as_ref() == Some(&note)) {
            return None;
        }
        if dir.is_dir() {
            self.project(around, false).keep(&dir);
        }
        Some(note)
    }

    /// Goes on with sessions of the project that are not in its data directory. Answers with where they are, and with the
    /// data directory that the project had.
    pub(crate) fn adopt(&self, around: &Surroundings) -> Result<(PathBuf, Option<PathBuf>), CliError> {
        if let Some(dir) = &self.values.store.data_dir {
            return Err(refuse(format!("store.data_dir names the data directory: {}", dir.display())));
        }
        let (home, root) = (home(around)?, shared_root(around));
        let own = place(&home, &root)?;
        let Some(found) = earlier(&home, &root, &own) else {
            let mark = root.join(PROJECTION).join("store");
            return match marked(&root) {
                Some(store) if id_of(&own) == Some(store) => Ok((own, None)),
                Some(_) => {
                    let (home, mark) = (home.display(), mark.display());
                    Err(refuse(format!("none of your data directories in {home} is the one that {mark} names")))
                }
                None => Err(refuse(format!("{} names no store", mark.display()))),
            };
        };
        if let Some(known) = Project::of(&found)?.filter(Project::is_there) {
            let (found, root) = (found.display(), known.root);
            return Err(refuse(format!(
                "the sessions in {found} are those of the project at {root}, which is still there"
            )));
        }
        // Nobody may work in either meanwhile.
        let mut locks = Vec::new();
        for dir in [&own, &found] {
            let lock = File::options().read(true).write(true).open(dir.join("lock"));
            if lock.as_ref().is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock))) {
                return Err(refuse(format!(
                    "another process works with the sessions in {}; end it first",
                    dir.display()
                )));
            }
            locks.push(lock);
        }
        let aside = own.is_dir().then_some(own);
        if let Some(own) = &aside {
            Project::default().keep(own);
            if marked(&root) == id_of(own) {
                // Without its mark and its list the folder is made again, from the other sessions.
                for name in ["store", "index.json"] {
                    drop(fs::remove_file(root.join(PROJECTION).join(name)));
                }
            }
        }
        Project::at(&root).keep(&found);
        Ok((found, aside))
    }
}
