//! Git directories of a workspace: the one that its `.git` leads to, and those of its submodules and worktrees.

use std::{
    collections::{BTreeSet, VecDeque},
    ffi::OsString,
    fs::{self, File},
    io::Read as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;

/// Folder of a repository, or the file that names one.
pub(super) const REPOSITORY: &str = ".git";
/// Folders of a git directory that hold the git directories of submodules and worktrees.
const HOLDERS: [&str; 2] = ["modules", "worktrees"];
/// Files of which a git directory has one at least.
const MARKS: [&str; 4] = ["HEAD", "commondir", "config", "gitdir"];
/// Folders of a git directory that hold neither.
const OTHERS: [&str; 6] = ["hooks", "info", "lfs", "logs", "objects", "refs"];
/// Folders that are looked at; a repository that needs more cannot be guarded.
const FOLDERS_MAX: usize = 2_048;
/// Depth of such a folder below its git directory: a submodule's name may have slashes.
const DEPTH_MAX: usize = 16;
/// Entries that a git directory has; a folder with all of them is one without a `.git` around it.
const BARE: [&str; 3] = ["HEAD", "objects", "refs"];
/// Folders of a workspace that are searched for repositories.
const SEARCHED_MAX: usize = 50_000;
/// Bytes of a file that names a folder.
const LINK_BYTES_MAX: u64 = 4 * 1024;

/// Lists the git directories of a workspace, by paths without links. Some may lie outside of it.
///
/// # Errors
/// Says that there are too many.
pub(crate) fn git_folders(workspace: &Path) -> Result<BTreeSet<PathBuf>, String> {
    search(workspace).map(|(found, _)| found)
}

/// Lists the git directories of a workspace, and the paths that name them, which may have links.
///
/// # Errors
/// Says that there are too many.
pub(super) fn search(workspace: &Path) -> Result<(BTreeSet<PathBuf>, BTreeSet<PathBuf>), String> {
    let (mut found, mut seen) = (BTreeSet::new(), BTreeSet::new());
    let mut names: BTreeSet<PathBuf> = [workspace.join(REPOSITORY)].into_iter().chain(file_name(workspace)).collect();
    let mut left: Vec<(PathBuf, usize, Kind)> = main_folders(workspace).map(|folder| (folder, 0, Kind::Git)).collect();
    while let Some((folder, depth, kind)) = left.pop() {
        if !seen.insert(folder.clone()) {
            continue;
        }
        if seen.len() > FOLDERS_MAX || depth > DEPTH_MAX {
            return Err(format!(
                "{} has more than {FOLDERS_MAX} folders of submodules and worktrees, or deeper ones than {DEPTH_MAX} \
                 levels, which cannot be guarded; remove those that are not used",
                workspace.join(REPOSITORY).display()
            ));
        }
        // A command may delete what is not protected; the other files stay as marks.
        let is_marked = || MARKS.iter().any(|name| folder.join(name).is_file());
        let is_git = matches!(kind, Kind::Git) || matches!(kind, Kind::Unknown) && is_marked();
        let inner: Vec<OsString> = match kind {
            Kind::Git => HOLDERS.iter().map(OsString::from).collect(),
            Kind::Holder | Kind::Unknown => {
                let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
                // So many files that no folder is reached would hide one.
                let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_file()));
                let names = folders.map(|entry| entry.file_name()).take(FOLDERS_MAX + 1);
                names.filter(|name| !is_git || !OTHERS.iter().any(|other| name == other)).collect()
            }
        };
        for name in inner {
            let path = folder.join(name);
            if path.is_symlink() {
                names.insert(path.clone());
            }
            let kind = if matches!(kind, Kind::Git) { Kind::Holder } else { Kind::Unknown };
            left.extend(path.canonicalize().ok().filter(|path| path.is_dir()).map(|path| (path, depth + 1, kind)));
        }
        if is_git {
            names.extend(text(&folder.join("commondir")).map(|common| folder.join(common.trim_end())));
            found.insert(folder);
        }
    }
    Ok((found, names))
}

/// Finds the git directory of a workspace, and the one that it shares configuration and hooks with, if it is a worktree's.
pub(crate) fn main_folders(workspace: &Path) -> impl Iterator<Item = PathBuf> {
    let first = named(workspace);
    let common =
        first.as_ref().and_then(|first| first.join(text(&first.join("commondir"))?.trim_end()).canonicalize().ok());
    first.into_iter().chain(common)
}

/// What a folder is by its place.
#[derive(Clone, Copy)]
enum Kind {
    Git,
    /// `modules` or `worktrees` of a git directory.
    Holder,
    /// A submodule's git directory, or a folder on the way to one.
    Unknown,
}

/// Finds the git directory of a workspace: a folder, a link to one, or a file that names one.
fn named(workspace: &Path) -> Option<PathBuf> {
    let repository = workspace.join(REPOSITORY).canonicalize().ok()?;
    if repository.is_dir() {
        return Some(repository);
    }
    file_name(workspace)?.canonicalize().ok().filter(|path| path.is_dir())
}

/// Returns the path that the file `.git` of a workspace names.
fn file_name(workspace: &Path) -> Option<PathBuf> {
    let file = workspace.join(REPOSITORY).canonicalize().ok()?;
    let path = text(&file)?;
    Some(file.parent()?.join(path.strip_prefix("gitdir:")?.trim()))
}

/// Returns the root of the work tree that the git directory of a linked worktree names.
pub(crate) fn named_work_tree(folder: &Path) -> Option<PathBuf> {
    let file = text(&folder.join("gitdir"))?;
    folder.join(file.trim_end()).parent().map(Path::to_owned)
}

/// Reads a short text, and never waits for a pipe.
fn text(path: &Path) -> Option<String> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    file.take(LINK_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Lists the folders of a workspace in which git finds a repository: those with a `.git`, and bare ones. Folders of a
/// repository's own are left out, and those beyond the limit: the nearest to the workspace are looked at first.
pub(super) fn holders(workspace: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut left = VecDeque::from([workspace.to_owned()]);
    let mut searched = 0;
    while let Some(folder) = left.pop_front().filter(|_| searched < SEARCHED_MAX) {
        searched += 1;
        let mut folders = Vec::new();
        let mut marks = 0;
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if name.eq_ignore_ascii_case(REPOSITORY) {
                found.insert(folder.clone());
                continue;
            }
            marks += usize::from(BARE.iter().any(|mark| name.eq_ignore_ascii_case(mark)));
            let room = SEARCHED_MAX.saturating_sub(searched + left.len());
            if folders.len() < room && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            }
        }
        if marks == BARE.len() {
            found.insert(folder);
        } else {
            left.extend(folders);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(workspace: &Path) -> Vec<String> {
        let root = workspace.parent().unwrap();
        let shown = |path: &PathBuf| path.strip_prefix(root).unwrap().display().to_string();
        git_folders(workspace).unwrap().iter().map(shown).collect()
    }

    #[test]
    fn submodules_worktrees_and_named_folders_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let workspace = root.join("w");
        let make = |path: &str| {
            fs::create_dir_all(root.join(path)).unwrap();
            fs::write(root.join(path).join("HEAD"), "ref: refs/heads/main\n").unwrap();
        };
        fs::create_dir(&workspace).unwrap();
        assert_eq!(list(&workspace), [""; 0]);
        for path in ["w/.git", "w/.git/modules/a", "w/.git/modules/lib/b", "w/.git/modules/a/modules/c"] {
            make(path);
        }
        make("w/.git/worktrees/t");
        fs::create_dir_all(workspace.join(".git/modules/a/objects/no")).unwrap();
        assert_eq!(
            list(&workspace),
            ["w/.git", "w/.git/modules/a", "w/.git/modules/a/modules/c", "w/.git/modules/lib/b", "w/.git/worktrees/t"]
        );
        // A worktree: its own folder, and that of the repository, with its submodules.
        fs::create_dir(root.join("t")).unwrap();
        fs::write(root.join("t/.git"), "gitdir: ../w/.git/worktrees/t\n").unwrap();
        fs::write(workspace.join(".git/worktrees/t/commondir"), "../..\n").unwrap();
        assert_eq!(list(&root.join("t")), list(&workspace));
        // A command deletes what marks a folder, or marks one on the way.
        fs::remove_file(workspace.join(".git/modules/a/HEAD")).unwrap();
        fs::write(workspace.join(".git/modules/a/config"), "").unwrap();
        fs::remove_file(workspace.join(".git/worktrees/t/HEAD")).unwrap();
        assert_eq!(list(&workspace).len(), 5);
        fs::write(workspace.join(".git/modules/lib/config"), "").unwrap();
        assert_eq!(list(&workspace).len(), 6);
        // A link, and a circle of links.
        fs::create_dir(root.join("l")).unwrap();
        std::os::unix::fs::symlink("../w/.git", root.join("l/.git")).unwrap();
        std::os::unix::fs::symlink("..", workspace.join(".git/modules/lib/circle")).unwrap();
        assert_eq!(list(&root.join("l")), list(&workspace));
    }

    #[test]
    fn every_repository_of_a_workspace_is_seen_and_a_deep_folder_is_no_harm() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let make = |path: &&str| fs::create_dir_all(root.join(path)).unwrap();
        assert_eq!(holders(&root), BTreeSet::new());
        ["a/.git/modules", "b/c", "bare/objects", "bare/refs", "half/objects", &"d/".repeat(1_000)]
            .iter()
            .for_each(make);
        fs::write(root.join("b/c/.GIT"), "gitdir: ../../a/.git\n").unwrap();
        for name in ["bare/HEAD", "half/HEAD"] {
            fs::write(root.join(name), "").unwrap();
        }
        std::os::unix::fs::symlink("bare/HEAD", root.join("HEAD")).unwrap();
        assert_eq!(holders(&root), ["a", "b/c", "bare"].map(|path| root.join(path)).into());
        // Links count, as git follows them.
        for name in ["objects", "refs"] {
            std::os::unix::fs::symlink(format!("bare/{name}"), root.join(name)).unwrap();
        }
        assert_eq!(holders(&root), BTreeSet::from([root.clone()]));
    }

    #[test]
    fn too_many_are_refused_and_not_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let modules = folder.path().join(".git/modules");
        fs::create_dir_all(modules.join("a/".repeat(DEPTH_MAX))).unwrap();
        assert!(git_folders(folder.path()).unwrap_err().contains("cannot be guarded"));
        fs::remove_dir_all(&modules).unwrap();
        for name in 0..FOLDERS_MAX {
            fs::create_dir_all(modules.join(name.to_string())).unwrap();
        }
        assert!(git_folders(folder.path()).unwrap_err().contains("more than 2048 folders"));
    }
}
