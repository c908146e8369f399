//! Guard of the hooks and configurations of a workspace's git directories: git runs what they say, outside of any
//! confinement, later.
//!
//! A namespace mounts those that exist read-only (`protected`). Everything else is compared after a command, and a
//! change is put back. What is mounted is compared too, as a mount ends when somebody outside replaces the file; as the
//! change may be that person's own, it is only reported.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs::File,
    io::{Read as _, Write as _},
    os::{fd::OwnedFd, unix::ffi::OsStringExt as _},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, Mode, OFlags, RawMode, fchmod, mkdirat, openat, readlinkat, statat, symlinkat,
        unlinkat,
    },
    io::Errno,
};

use super::{
    Confinement, GitGuard,
    repositories::{REPOSITORY, git_folders},
};

/// Entries of a git directory that make git run something, or that say where such an entry is.
const ENTRIES: &[&str] = &["config", "config.worktree", "commondir", "gitdir", "hooks"];
/// Bytes of one file that can be put back.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Depth of the folder of hooks that is looked at.
const DEPTH_MAX: u32 = 3;
/// New git directories that are named; there may be more.
const NAMED_MAX: usize = 8;

/// State of an entry. What is too large or too deep, or no file, is only known by its kind and size.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Absent,
    File { mode: RawMode, bytes: Vec<u8> },
    Link(OsString),
    Folder(BTreeMap<OsString, Entry>),
    Other { kind: RawMode, bytes: i64 },
}

/// State of git directories before a command.
pub(crate) struct Guard {
    workspace: PathBuf,
    /// State of the workspace's `.git`, if it is no folder.
    repository: Option<Entry>,
    /// Git directories that were there.
    known: BTreeSet<PathBuf>,
    /// Their entries that no namespace protects.
    entries: Vec<(PathBuf, &'static str, Entry)>,
    /// Entries that a namespace mounts, by folder and name, and their state if it could be read.
    mounted: Vec<(PathBuf, &'static str, Option<Entry>)>,
}

/// Lists the paths that a namespace mounts over themselves, each after those above it, and if they are read-only. What
/// is mounted cannot be moved, so neither can a folder on the way to a read-only entry.
pub(super) fn protected(workspace: &Path) -> Result<BTreeMap<PathBuf, bool>, String> {
    let mut mounts = BTreeMap::new();
    let repository = workspace.join(REPOSITORY);
    if is(&repository, FileType::RegularFile) {
        mounts.insert(repository, true);
    }
    for folder in git_folders(workspace)?.iter().filter(|folder| folder.starts_with(workspace)) {
        let above = folder.ancestors().take_while(|path| *path != workspace);
        mounts.extend(above.map(|path| (path.to_owned(), false)));
        let entries = ENTRIES.iter().map(|name| folder.join(name));
        let entries = entries.filter(|path| is(path, FileType::RegularFile) || is(path, FileType::Directory));
        mounts.extend(entries.map(|path| (path, true)));
    }
    Ok(mounts)
}

fn is(path: &Path, kind: FileType) -> bool {
    statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == kind)
}

impl Guard {
    /// Keeps the state of all entries that the confinement leaves open.
    pub(crate) fn take(workspace: &Path, confinement: Confinement) -> Result<Self, String> {
        let mounted = match confinement.git_guard {
            GitGuard::Namespace => protected(workspace)?,
            GitGuard::Compare => BTreeMap::new(),
        };
        let known = git_folders(workspace)?;
        let mut guard =
            Self { workspace: workspace.to_owned(), repository: None, known, entries: Vec::new(), mounted: Vec::new() };
        let path = workspace.join(REPOSITORY);
        if !is(&path, FileType::Directory) && !mounted.contains_key(&path) {
            let workspace = folder(workspace).map_err(|error| unreadable(workspace, error))?;
            let entry = read(&workspace, Path::new(REPOSITORY), DEPTH_MAX);
            guard.repository = Some(entry.map_err(|error| unreadable(&path, error))?);
        }
        // A command whose files are confined changes nothing outside of the workspace.
        for path in guard.known.iter().filter(|path| !confinement.files || path.starts_with(workspace)) {
            let opened = guard.open(path).map_err(|error| unreadable(path, error))?;
            for name in ENTRIES {
                let entry = read(&opened, Path::new(name), 0);
                if mounted.contains_key(&path.join(name)) {
                    guard.mounted.push((path.clone(), name, entry.ok()));
                } else {
                    guard.entries.push((path.clone(), name, entry.map_err(|error| unreadable(path, error))?));
                }
            }
        }
        if mounted.get(&path) == Some(&true) {
            let entry = guard.look(workspace, REPOSITORY);
            guard.mounted.push((workspace.to_owned(), REPOSITORY, entry));
        }
        Ok(guard)
    }

    /// Puts back what a command changed, and returns a line for each change.
    pub(crate) fn put_back(self) -> Vec<String> {
        let path = self.workspace.join(REPOSITORY);
        let mut lines = Vec::new();
        if let Some(before) = self.repository.as_ref().filter(|before| **before != Entry::Absent) {
            let done = folder(&self.workspace).and_then(|folder| settle(&folder, Path::new(REPOSITORY), before));
            lines.extend(line(&path, done));
        }
        for (folder, name, before) in &self.entries {
            let done = self.open(folder).and_then(|folder| settle(&folder, Path::new(name), before));
            lines.extend(line(&folder.join(name), done));
        }
        let changed = self.mounted.iter().filter(|(folder, name, before)| self.look(folder, name) != *before);
        lines.extend(changed.map(|(folder, name, _)| {
            let path = folder.join(name);
            format!("{} changed while a command ran: look at it before git runs", path.display())
        }));
        match git_folders(&self.workspace) {
            Ok(now) => lines.extend(now.difference(&self.known).take(NAMED_MAX).map(|path| {
                let text = "the command made a repository; git will run its hooks and what its config names";
                format!("{text}, so look at {}", path.display())
            })),
            Err(why) => lines.push(why),
        }
        lines
    }

    /// Returns the state of an entry, if it can be read.
    fn look(&self, folder: &Path, name: &str) -> Option<Entry> {
        self.open(folder).and_then(|folder| read(&folder, Path::new(name), 0)).ok()
    }

    /// Opens a git directory. No part of its path below the workspace may have become a link.
    fn open(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        match path.strip_prefix(&self.workspace) {
            Ok(inside) => {
                inside.iter().try_fold(folder(&self.workspace)?, |folder, name| folder_in(&folder, Path::new(name)))
            }
            Err(_) => folder(path),
        }
    }
}

fn unreadable(path: &Path, error: Errno) -> String {
    format!("{} cannot be guarded against the command: {error}", path.display())
}

fn line(path: &Path, done: rustix::io::Result<bool>) -> Option<String> {
    match done {
        Ok(false) => None,
        Ok(true) => Some(format!("{} was changed by the command and put back", path.display())),
        Err(error) => Some(format!("{} may be the command's; do not run git before a look: {error}", path.display())),
    }
}

fn folder(path: &Path) -> rustix::io::Result<OwnedFd> {
    openat(CWD, path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn folder_in(parent: &OwnedFd, name: &Path) -> rustix::io::Result<OwnedFd> {
    openat(parent, name, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn names(folder: &OwnedFd) -> rustix::io::Result<Vec<OsString>> {
    let entries = Dir::read_from(folder)?.map(|entry| Ok(OsString::from_vec(entry?.file_name().to_bytes().to_vec())));
    let entries: rustix::io::Result<Vec<_>> = entries.collect();
    Ok(entries?.into_iter().filter(|name| name != "." && name != "..").collect())
}

fn read(parent: &OwnedFd, name: &Path, depth: u32) -> rustix::io::Result<Entry> {
    let found = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(Entry::Absent),
        found => found?,
    };
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Symlink => Ok(Entry::Link(OsString::from_vec(readlinkat(parent, name, Vec::new())?.into_bytes()))),
        FileType::RegularFile if u64::try_from(found.st_size).is_ok_and(|bytes| bytes <= FILE_BYTES_MAX) => {
            let file = openat(parent, name, OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
            let mut bytes = Vec::new();
            File::from(file).take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(errno)?;
            Ok(Entry::File { mode: found.st_mode & 0o7777, bytes })
        }
        FileType::Directory if depth < DEPTH_MAX => {
            let folder = folder_in(parent, name)?;
            let entries = names(&folder)?.into_iter().map(|name| {
                let entry = read(&folder, Path::new(&name), depth + 1)?;
                Ok((name, entry))
            });
            Ok(Entry::Folder(entries.collect::<rustix::io::Result<_>>()?))
        }
        _ => Ok(Entry::Other { kind: found.st_mode & 0o170_000, bytes: found.st_size }),
    }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Makes an entry what it was, and returns true if it had changed.
fn settle(parent: &OwnedFd, name: &Path, before: &Entry) -> rustix::io::Result<bool> {
    let depth = if name == Path::new(REPOSITORY) { DEPTH_MAX } else { 0 };
    if read(parent, name, depth)? == *before {
        return Ok(false);
    }
    if matches!(before, Entry::Other { .. }) {
        // Nobody knows what was in it.
        return Err(Errno::FBIG);
    }
    remove(parent, name)?;
    write(parent, name, before)?;
    Ok(true)
}

fn remove(parent: &OwnedFd, name: &Path) -> rustix::io::Result<()> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error),
    }
    let folder = folder_in(parent, name)?;
    for entry in names(&folder)? {
        remove(&folder, Path::new(&entry))?;
    }
    unlinkat(parent, name, AtFlags::REMOVEDIR)
}

fn write(parent: &OwnedFd, name: &Path, entry: &Entry) -> rustix::io::Result<()> {
    match entry {
        Entry::Absent => Ok(()),
        Entry::Link(target) => symlinkat(Path::new(target), parent, name),
        Entry::File { mode, bytes } => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mut file = File::from(openat(parent, name, flags, Mode::RUSR | Mode::WUSR)?);
            file.write_all(bytes).map_err(errno)?;
            fchmod(&file, Mode::from_raw_mode(*mode))
        }
        Entry::Folder(entries) => {
            mkdirat(parent, name, Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH)?;
            let folder = folder_in(parent, name)?;
            entries.iter().try_for_each(|(name, entry)| write(&folder, Path::new(name), entry))
        }
        Entry::Other { .. } => Err(Errno::FBIG),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A repository whose git directory lies outside of the workspace, which only a command without confinement reaches.
    #[test]
    fn a_git_directory_outside_is_compared_if_files_are_open() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let (workspace, outside) = (root.join("w"), root.join("outside.git"));
        fs::create_dir(&workspace).unwrap();
        fs::create_dir_all(outside.join("hooks")).unwrap();
        fs::write(outside.join("HEAD"), "").unwrap();
        fs::write(outside.join("config"), "[core]\n").unwrap();
        fs::write(workspace.join(REPOSITORY), "gitdir: ../outside.git\n").unwrap();

        let guard = Guard::take(&workspace, Confinement::NONE).unwrap();
        fs::write(outside.join("config"), "evil").unwrap();
        fs::write(outside.join("hooks/x"), "evil").unwrap();
        fs::write(workspace.join(REPOSITORY), "gitdir: evil\n").unwrap();
        let lines = guard.put_back();
        assert_eq!(lines.iter().filter(|line| line.ends_with("put back")).count(), 3, "{lines:?}");
        assert_eq!(fs::read_to_string(outside.join("config")).unwrap(), "[core]\n");
        assert!(!outside.join("hooks/x").exists());
        assert_eq!(fs::read_to_string(workspace.join(REPOSITORY)).unwrap(), "gitdir: ../outside.git\n");

        let confined = Confinement { files: true, ..Confinement::NONE };
        let guard = Guard::take(&workspace, confined).unwrap();
        fs::write(outside.join("config"), "the user's own change").unwrap();
        assert_eq!(guard.put_back(), [""; 0], "what no command can change is the user's");
    }

    /// Broken once: a file that somebody replaces is mounted no longer, so the command could write it.
    #[test]
    fn a_mounted_entry_that_changed_stays_and_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let workspace = folder.path().canonicalize().unwrap();
        let repository = workspace.join(REPOSITORY);
        fs::create_dir_all(repository.join("hooks")).unwrap();
        for name in ["HEAD", "config", "hooks/x"] {
            fs::write(repository.join(name), "mine").unwrap();
        }
        assert_eq!(Guard::take(&workspace, Confinement::WHOLE).unwrap().put_back(), [""; 0]);
        let guard = Guard::take(&workspace, Confinement::WHOLE).unwrap();
        fs::write(workspace.join("new"), "changed").unwrap();
        fs::rename(workspace.join("new"), repository.join("config")).unwrap();
        fs::write(repository.join("hooks/x"), "changed").unwrap();
        let lines = guard.put_back();
        assert_eq!(lines.len(), 2, "{lines:?}");
        for (line, name) in lines.iter().zip(["config", "hooks"]) {
            let path = repository.join(name);
            let expected = format!("{} changed while a command ran: look at it before git runs", path.display());
            assert_eq!(*line, expected);
        }
        assert_eq!(fs::read_to_string(repository.join("config")).unwrap(), "changed");
    }

    /// A worktree's `.git` is a file, which is mounted too.
    #[test]
    fn a_mounted_file_that_names_a_git_directory_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let workspace = folder.path().canonicalize().unwrap();
        fs::create_dir_all(workspace.join("kept")).unwrap();
        fs::write(workspace.join("kept/HEAD"), "").unwrap();
        fs::write(workspace.join(REPOSITORY), "gitdir: kept\n").unwrap();
        let guard = Guard::take(&workspace, Confinement::WHOLE).unwrap();
        fs::write(workspace.join(REPOSITORY), "gitdir: other\n").unwrap();
        let lines = guard.put_back();
        assert!(lines.iter().any(|line| line.contains(".git changed while a command ran")), "{lines:?}");
    }

    /// The owner's hand that puts things back must not be led elsewhere.
    #[test]
    fn nothing_is_put_back_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let (workspace, module) = (root.join("w"), root.join("w/.git/modules/a"));
        fs::create_dir_all(&module).unwrap();
        fs::create_dir_all(root.join("outside/a")).unwrap();
        for name in ["HEAD", "config"] {
            fs::write(module.join(name), "mine").unwrap();
        }
        let guard = Guard::take(&workspace, Confinement::NONE).unwrap();
        fs::rename(workspace.join(".git/modules"), workspace.join("old")).unwrap();
        std::os::unix::fs::symlink("../../outside", workspace.join(".git/modules")).unwrap();
        let lines = guard.put_back();
        assert!(lines.iter().any(|line| line.contains("do not run git before a look")), "{lines:?}");
        assert_eq!(fs::read_dir(root.join("outside/a")).unwrap().count(), 0);
    }
}
