//! Guard of a repository's hooks and configuration: git runs what they say, outside of any confinement, later.
//!
//! A namespace mounts those that exist read-only (`protected`). Everything else is compared after a command, and a
//! change is put back.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::File,
    io::{Read as _, Write as _},
    os::{fd::OwnedFd, unix::ffi::OsStringExt as _},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fchmod, mkdirat, openat, readlinkat, statat, symlinkat, unlinkat},
    io::Errno,
};

/// Folder of a repository, or the file that names one.
const REPOSITORY: &str = ".git";
/// Entries of a repository that make git run something, or that say where such an entry is.
const ENTRIES: &[&str] = &["config", "config.worktree", "commondir", "hooks"];
/// Bytes of one file that can be put back.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Depth of the folder of hooks that is looked at.
const DEPTH_MAX: u32 = 3;

/// State of an entry. What is too large or too deep, or no file, is only known by its kind and size.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Absent,
    File { mode: u32, bytes: Vec<u8> },
    Link(OsString),
    Folder(BTreeMap<OsString, Entry>),
    Other { kind: u32, bytes: i64 },
}

/// State of a repository's entries before a command.
pub(crate) struct Guard {
    workspace: PathBuf,
    /// State of the repository itself, if it is no folder.
    repository: Option<Entry>,
    entries: Vec<(&'static str, Entry)>,
}

/// Lists the paths that a namespace mounts over themselves, so that they cannot be moved, and if they are read-only.
pub(super) fn protected(workspace: &Path) -> Vec<(PathBuf, bool)> {
    let repository = workspace.join(REPOSITORY);
    if is(&repository, FileType::RegularFile) {
        return vec![(repository, true)];
    }
    if !is(&repository, FileType::Directory) {
        return Vec::new();
    }
    let entries = ENTRIES.iter().map(|name| repository.join(name));
    let entries = entries.filter(|path| is(path, FileType::RegularFile) || is(path, FileType::Directory));
    let entries: Vec<_> = entries.map(|path| (path, true)).collect();
    std::iter::once((repository, false)).chain(entries).collect()
}

fn is(path: &Path, kind: FileType) -> bool {
    statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == kind)
}

impl Guard {
    /// Keeps the state of all entries that no namespace protects.
    pub(crate) fn take(workspace: &Path, has_namespace: bool) -> Result<Self, String> {
        let mounted = if has_namespace { protected(workspace) } else { Vec::new() };
        let mut guard = Self { workspace: workspace.to_owned(), repository: None, entries: Vec::new() };
        let is_mounted = |path: &Path| mounted.iter().any(|(mounted, _)| mounted == path);
        let path = workspace.join(REPOSITORY);
        match folder(&path) {
            Ok(repository) => {
                for name in ENTRIES.iter().filter(|name| !is_mounted(&path.join(name))) {
                    let entry = read(&repository, Path::new(name), 0).map_err(|error| unreadable(&path, error))?;
                    guard.entries.push((name, entry));
                }
            }
            Err(_) if is_mounted(&path) => {}
            Err(_) => {
                let workspace = folder(workspace).map_err(|error| unreadable(workspace, error))?;
                let entry = read(&workspace, Path::new(REPOSITORY), DEPTH_MAX);
                guard.repository = Some(entry.map_err(|error| unreadable(&path, error))?);
            }
        }
        Ok(guard)
    }

    /// Puts back what a command changed, and returns a line for each change.
    pub(crate) fn put_back(self) -> Vec<String> {
        let path = self.workspace.join(REPOSITORY);
        let mut lines = Vec::new();
        match &self.repository {
            Some(Entry::Absent) => {
                if statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                    let text = "the command made a repository; git will run its hooks and what its config names";
                    lines.push(format!("{text}, so look at {}", path.display()));
                }
            }
            Some(before) => {
                let done = folder(&self.workspace).and_then(|folder| settle(&folder, Path::new(REPOSITORY), before));
                lines.extend(line(&path, done));
            }
            None => match folder(&path) {
                Ok(repository) => {
                    for (name, before) in &self.entries {
                        lines.extend(line(&path.join(name), settle(&repository, Path::new(name), before)));
                    }
                }
                Err(error) => lines.extend(line(&path, Err(error))),
            },
        }
        lines
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
