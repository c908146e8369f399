//! Git directories of a workspace: the one that its `.git` leads to, and those of its submodules and worktrees.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
};

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
/// Bytes of a file that names a folder.
const LINK_BYTES_MAX: u64 = 4 * 1024;

/// Lists the git directories of a workspace, by paths without links. Some may lie outside of it.
///
/// # Errors
/// Says that there are too many.
pub(super) fn git_folders(workspace: &Path) -> Result<BTreeSet<PathBuf>, String> {
    let (mut found, mut seen) = (BTreeSet::new(), BTreeSet::new());
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
        let names: Vec<OsString> = match kind {
            Kind::Git => HOLDERS.iter().map(OsString::from).collect(),
            Kind::Holder | Kind::Unknown => {
                let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
                // So many files that no folder is reached would hide one.
                let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_file()));
                let names = folders.map(|entry| entry.file_name()).take(FOLDERS_MAX + 1);
                names.filter(|name| !is_git || !OTHERS.iter().any(|other| name == other)).collect()
            }
        };
        for name in names {
            let kind = if matches!(kind, Kind::Git) { Kind::Holder } else { Kind::Unknown };
            left.extend(
                folder.join(name).canonicalize().ok().filter(|path| path.is_dir()).map(|path| (path, depth + 1, kind)),
            );
        }
        if is_git {
            found.insert(folder);
        }
    }
    Ok(found)
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
    let path = text(&repository)?;
    let path = path.strip_prefix("gitdir:")?.trim();
    repository.parent()?.join(path).canonicalize().ok().filter(|path| path.is_dir())
}

/// Reads a short text, and never waits for a pipe.
fn text(path: &Path) -> Option<String> {
    if !fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    File::open(path).ok()?.take(LINK_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
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
