//! Guard of what git and other programs obey later, outside of any confinement: a workspace's git directories, the files
//! in the workspace that git's configuration names, and those whose names other programs know.
//!
//! In a namespace of its own a command sees them read-only (`protected`), unless a person allowed it to change them.
//! Everything else is compared after the command, and a change is said. Nothing is put back: this is not confined, and a
//! command that runs beside another one could choose what it writes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use super::{
    Job,
    repositories::{REPOSITORY, git_folders, holders, search},
    way::ways,
};
use crate::obeyed::{is_obeyed, of_workspace};

/// Entries of a git directory that make git run something, or that say where such an entry is.
const ENTRIES: &[&str] = &["config", "config.worktree", "commondir", "gitdir", "hooks", "rebase-merge"];
/// Entries of a folder, such as that of hooks, that are compared.
const INNER_MAX: usize = 256;
/// Changes that are named; there may be more.
const NAMED_MAX: usize = 8;
const GIT_OBEYS: &str = "git obeys it: look at it before git runs";
/// Folder of the files for people, which this program writes without confinement.
pub(crate) const PROJECTION: &str = ".rkat";

/// What tells that a file or folder was changed or replaced. No command can set the last two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    device: u64,
    inode: u64,
    changed: Option<(i64, i64)>,
}

/// State before a command of what git obeys.
pub(crate) struct Guard {
    /// The command's workspace, and what of it git and other programs obey.
    workspace: PathBuf,
    obeyed: Vec<PathBuf>,
    /// True if the command cannot change what is protected.
    is_protected: bool,
    /// True if it can change files outside of its workspace.
    is_open: bool,
    repositories: BTreeSet<PathBuf>,
    states: BTreeMap<PathBuf, State>,
}

/// Lists the paths in a workspace that git and other programs obey, but for its git directories: those that git's
/// configuration names, those whose names other programs know, and those that links of both and of the git directories lead
/// to, with the links themselves. A hook is often a link to a script of the work tree. Some may be missing. It blocks.
///
/// # Errors
/// Says that there are too many git directories.
pub(crate) fn obeyed(workspace: &Path, named: Vec<PathBuf>) -> Result<Vec<PathBuf>, String> {
    let (folders, names) = search(workspace)?;
    let entries = folders.iter().flat_map(|folder| ENTRIES.iter().map(|name| folder.join(name)));
    // The ends of named links are named too, and what a link in the middle leads to is more than what is obeyed.
    let (links, named): (Vec<PathBuf>, Vec<PathBuf>) = named.into_iter().partition(|path| path.is_symlink());
    let mut found = ways(workspace, names.into_iter().chain(entries).chain(named).chain(of_workspace(workspace)));
    found.extend(links);
    let repository = workspace.join(REPOSITORY);
    let is_gits = |path: &PathBuf| *path == repository || folders.iter().any(|folder| path.starts_with(folder));
    Ok(found.into_iter().filter(|path| !is_gits(path)).collect())
}

/// Lists the paths that a namespace mounts over themselves, each after those above it, and if they are read-only. What
/// is mounted cannot be moved, so neither can a folder on the way to a read-only entry.
pub(super) fn protected(job: &Job) -> Result<BTreeMap<PathBuf, bool>, String> {
    let mut fixed = BTreeSet::from([job.workspace.join(PROJECTION)]);
    if !job.git {
        fixed.insert(job.workspace.join(REPOSITORY));
        fixed.extend(git_folders(&job.workspace)?.into_iter().filter(|folder| folder.starts_with(&job.workspace)));
        fixed.extend(job.obeyed.iter().cloned());
    }
    let mut mounts: BTreeMap<PathBuf, bool> = BTreeMap::new();
    // Each comes after the folders above it.
    for path in fixed {
        let Ok(found) = fs::symlink_metadata(&path) else { continue };
        let is_beneath = |(above, is_fixed): (&PathBuf, &bool)| *is_fixed && path.starts_with(above);
        if mounts.iter().any(is_beneath) {
            continue;
        }
        for above in path.ancestors().skip(1).take_while(|above| *above != job.workspace) {
            mounts.entry(above.to_owned()).or_insert(false);
        }
        // A link has nothing to write.
        mounts.insert(path, !found.is_symlink());
    }
    Ok(mounts)
}

impl Guard {
    /// Keeps the state of what git obeys. It blocks.
    pub(crate) fn take(job: &Job) -> Result<Self, String> {
        let mut guard = Self {
            workspace: job.workspace.clone(),
            obeyed: job.obeyed.clone(),
            is_protected: job.has_namespace() && !job.git,
            is_open: !job.confinement.files,
            repositories: holders(&job.workspace),
            states: BTreeMap::new(),
        };
        guard.states = guard.look(&git_folders(&job.workspace)?);
        Ok(guard)
    }

    /// Returns a line for each change since then. It blocks.
    pub(crate) fn changes(self) -> Vec<String> {
        let folders = match git_folders(&self.workspace) {
            Ok(folders) => folders,
            Err(why) => return vec![why],
        };
        let made = holders(&self.workspace);
        let made: Vec<&PathBuf> = made.difference(&self.repositories).collect();
        let now = self.look(&folders);
        let paths: BTreeSet<&PathBuf> = now.keys().chain(self.states.keys()).collect();
        let changed = paths.into_iter().filter(|path| now.get(*path) != self.states.get(*path));
        // What is in a new repository is new too.
        let changed = changed.filter(|path| !made.iter().any(|made| path.starts_with(made.join(REPOSITORY))));
        let changed = changed.take(NAMED_MAX).map(|path| {
            let inner = path.strip_prefix(&self.workspace).unwrap_or(path);
            let who = if is_obeyed(inner) { "other programs obey it: look at it before they run" } else { GIT_OBEYS };
            format!("{} changed while the command ran, and {who}", path.display())
        });
        let made = made.iter().take(NAMED_MAX).map(|path| {
            let text = "the command made a repository; git will run its hooks and what its config names";
            format!("{text}, so look at {}", path.display())
        });
        changed.chain(made).collect()
    }

    /// Returns the states of what exists.
    fn look(&self, folders: &BTreeSet<PathBuf>) -> BTreeMap<PathBuf, State> {
        let mut states = BTreeMap::new();
        let repository = self.workspace.join(REPOSITORY);
        // Some may be new.
        let others = of_workspace(&self.workspace);
        if self.is_protected {
            // A mount ends when the user replaces what is beneath it. Their own changes inside do not count.
            let folders = folders.iter().filter(|folder| folder.starts_with(&self.workspace));
            for path in folders.chain(&self.obeyed).chain(&others).chain([&repository]) {
                states.extend(State::of(path, false).map(|state| (path.clone(), state)));
            }
            return states;
        }
        // A command whose files are confined changes nothing outside of the workspace.
        let folders = folders.iter().filter(|path| self.is_open || path.starts_with(&self.workspace));
        let entries = folders.flat_map(|folder| ENTRIES.iter().map(|name| folder.join(name)));
        let whole = Some(repository).filter(|path| !path.is_dir() || path.is_symlink());
        for path in entries.chain(self.obeyed.iter().cloned()).chain(others).chain(whole) {
            let Some(state) = State::of(&path, true) else { continue };
            let inner = fs::read_dir(&path).into_iter().flatten().flatten().take(INNER_MAX);
            let inner = inner.map(|entry| entry.path()).filter_map(|path| Some((State::of(&path, true)?, path)));
            states.extend(inner.map(|(state, path)| (path, state)));
            states.insert(path, state);
        }
        states
    }
}

impl State {
    fn of(path: &Path, with_changes: bool) -> Option<Self> {
        let found = fs::symlink_metadata(path).ok()?;
        let changed = with_changes.then(|| (found.ctime(), found.ctime_nsec()));
        Some(Self { device: found.dev(), inode: found.ino(), changed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::confine::Confinement;

    /// A job over a workspace, whose repository is in it.
    fn job(workspace: &Path, confinement: Confinement) -> Job {
        let job = Job { confinement, ..Job::trial() };
        Job { workspace: workspace.to_owned(), ..job }
    }

    fn repository(path: &Path) {
        for folder in ["objects", "refs", "hooks"] {
            fs::create_dir_all(path.join(folder)).unwrap();
        }
        for name in ["HEAD", "config", "hooks/x"] {
            fs::write(path.join(name), "mine").unwrap();
        }
    }

    /// Tells which paths the lines name, and with which word.
    fn said(lines: &[String], word: &str) -> Vec<String> {
        let lines = lines.iter().filter(|line| line.contains(word));
        lines
            .map(|line| line.split(' ').find(|part| part.starts_with('/')).unwrap().trim_end_matches(',').to_owned())
            .collect()
    }

    /// A repository whose git directory lies outside of the workspace, which only a command without confinement reaches.
    #[test]
    fn a_git_directory_outside_is_compared_if_files_are_open() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let (workspace, outside) = (root.join("w"), root.join("outside.git"));
        fs::create_dir(&workspace).unwrap();
        repository(&outside);
        fs::write(workspace.join(REPOSITORY), "gitdir: ../outside.git\n").unwrap();

        let guard = Guard::take(&job(&workspace, Confinement::NONE)).unwrap();
        fs::write(outside.join("config"), "evil").unwrap();
        fs::write(outside.join("hooks/y"), "evil").unwrap();
        fs::write(workspace.join(REPOSITORY), "gitdir: evil\n").unwrap();
        let lines = guard.changes();
        // The file leads elsewhere now, so nothing of what it led to is as it was.
        let expected = ["outside.git/config", "outside.git/hooks", "outside.git/hooks/x", "w/.git"];
        let expected = expected.map(|path| root.join(path).display().to_string());
        assert_eq!(said(&lines, "changed while"), expected, "{lines:?}");

        fs::write(workspace.join(REPOSITORY), "gitdir: ../outside.git\n").unwrap();
        let guard = Guard::take(&job(&workspace, Confinement { files: true, ..Confinement::NONE })).unwrap();
        fs::write(outside.join("config"), "the user's own change").unwrap();
        assert_eq!(guard.changes(), [""; 0], "what no command can change is the user's");
    }

    /// What the user replaces is mounted no longer, so the command could write it.
    #[test]
    fn a_mounted_folder_that_is_replaced_is_said_and_the_users_changes_in_it_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let workspace = folder.path().canonicalize().unwrap();
        let git = workspace.join(REPOSITORY);
        repository(&git);
        let job = job(&workspace, Confinement::WHOLE);
        let guard = Guard::take(&job).unwrap();
        fs::write(git.join("config"), "the user's own change").unwrap();
        assert_eq!(guard.changes(), [""; 0]);
        let guard = Guard::take(&job).unwrap();
        fs::rename(&git, workspace.join("old")).unwrap();
        repository(&git);
        let lines = guard.changes();
        assert_eq!(said(&lines, "changed while"), [git.display().to_string()], "{lines:?}");
        assert_eq!(said(&lines, "made a repository"), [workspace.join("old").display().to_string()], "{lines:?}");
    }

    /// Broken once: a link that a command planted was taken for the user's and made again after the command.
    #[test]
    fn nothing_is_written_whatever_changes() {
        let folder = tempfile::tempdir().unwrap();
        let workspace = folder.path().canonicalize().unwrap();
        let git = workspace.join(REPOSITORY);
        repository(&git);
        std::os::unix::fs::symlink("../evil", git.join("commondir")).unwrap();
        let guard = Guard::take(&job(&workspace, Confinement::NONE)).unwrap();
        fs::remove_file(git.join("commondir")).unwrap();
        fs::remove_file(git.join("config")).unwrap();
        let lines = guard.changes();
        let changed = said(&lines, "changed while");
        assert_eq!(changed, ["commondir", "config"].map(|name| git.join(name).display().to_string()), "{lines:?}");
        assert!(fs::symlink_metadata(git.join("commondir")).is_err() && !git.join("config").exists());
    }

    #[test]
    fn a_file_that_git_is_to_obey_and_that_did_not_exist_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let workspace = folder.path().canonicalize().unwrap();
        repository(&workspace.join(REPOSITORY));
        let hooks = workspace.join(".husky");
        let job = Job { obeyed: vec![hooks.clone()], ..job(&workspace, Confinement::WHOLE) };
        let guard = Guard::take(&job).unwrap();
        fs::create_dir(&hooks).unwrap();
        let lines = guard.changes();
        assert_eq!(said(&lines, "changed while"), [hooks.display().to_string()], "{lines:?}");
    }

    #[test]
    fn what_is_protected_is_mounted_once_and_its_way_is_pinned() {
        let folder = tempfile::tempdir().unwrap();
        let workspace = folder.path().canonicalize().unwrap();
        repository(&workspace.join("kept/repo"));
        repository(&workspace.join("kept/repo/modules/a"));
        std::os::unix::fs::symlink("kept/repo", workspace.join(REPOSITORY)).unwrap();
        fs::create_dir(workspace.join(PROJECTION)).unwrap();
        let mut job = Job { obeyed: vec![workspace.join("tools/missing")], ..job(&workspace, Confinement::WHOLE) };
        let mounts = |job: &Job| {
            let shown = |path: &PathBuf| path.strip_prefix(&workspace).unwrap().display().to_string();
            protected(job).unwrap().iter().map(|(path, is_fixed)| (shown(path), *is_fixed)).collect::<Vec<_>>()
        };
        let named = |names: &[(&str, bool)]| {
            names.iter().map(|(name, is_fixed)| ((*name).to_owned(), *is_fixed)).collect::<Vec<_>>()
        };
        assert_eq!(mounts(&job), named(&[(".git", false), (".rkat", true), ("kept", false), ("kept/repo", true)]));
        job.git = true;
        assert_eq!(mounts(&job), named(&[(".rkat", true)]));
    }
}
