//! Paths within a workspace: every file is opened from a handle of the workspace's folder, so that none leads out.
//!
//! Reading follows links that stay inside, if the system resolves the whole path beneath the folder in one call
//! (`openat2`); otherwise, and for searching and writing, no part of a path may be a link.

use std::{
    fmt,
    fs::File,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{ffi::OsStrExt as _, fs::FileTypeExt as _},
    },
    path::{Component, Path, PathBuf},
};

use meerkat_service::tool::{Invocation, ToolError, is_unseen};
use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags},
    io::Errno,
};

use super::nearest;
use crate::confine::main_folders;

/// Longest path in bytes.
const PATH_BYTES_MAX: usize = 4096;
/// Folder in which git keeps a repository, with hooks and settings that git runs.
const GIT: &str = ".git";
/// Flags to open a file or folder without waiting for anybody, and without a terminal becoming ours.
const READING: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::DIRECTORY);

/// The workspace of a call.
pub(super) struct Workspace {
    root: PathBuf,
    folder: OwnedFd,
}

/// Relative path without `..`. It may still pass through links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Inside(PathBuf);

/// File or folder that was opened for reading.
pub(super) enum Opened {
    File(File),
    Folder(OwnedFd),
}

/// Way to open a path for reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The system resolves the whole path and follows links that stay inside.
    #[cfg(target_os = "linux")]
    Beneath,
    /// One part after the other, and no links.
    Parts,
}

impl Way {
    #[cfg(target_os = "linux")]
    const BEST: Self = Self::Beneath;
    #[cfg(not(target_os = "linux"))]
    const BEST: Self = Self::Parts;
}

impl fmt::Display for Inside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = if self.0.as_os_str().is_empty() { ".".to_owned() } else { shown(&self.0) };
        f.write_str(&path)
    }
}

impl Inside {
    /// The workspace itself.
    pub(super) fn root() -> Self {
        Self(PathBuf::new())
    }

    /// Returns the path of a name in this folder.
    pub(super) fn join(&self, name: &std::ffi::OsStr) -> Self {
        Self(self.0.join(name))
    }

    pub(super) fn as_path(&self) -> &Path {
        &self.0
    }

    /// Returns the path, or `.` for the workspace itself.
    #[cfg(target_os = "linux")]
    fn to_open(&self) -> &Path {
        if self.0.as_os_str().is_empty() { Path::new(".") } else { &self.0 }
    }

    /// Returns its folder and name.
    pub(super) fn split(&self) -> Option<(Self, &std::ffi::OsStr)> {
        Some((Self(self.0.parent()?.to_owned()), self.0.file_name()?))
    }

    /// Returns true for files in a `.git`. Some file systems take letters of either case for the same.
    fn is_git(&self) -> bool {
        self.0.components().any(|part| part.as_os_str().eq_ignore_ascii_case(GIT))
    }
}

impl Workspace {
    /// Opens the workspace of a call.
    pub(super) fn open(invocation: &Invocation) -> Result<Self, ToolError> {
        let none = || ToolError::Refused("This session has no workspace, so there are no files to work on.".to_owned());
        Self::at(invocation.workspace.clone().ok_or_else(none)?)
    }

    /// Opens a folder as a workspace.
    pub(super) fn at(root: PathBuf) -> Result<Self, ToolError> {
        // The path had no links when the session began; a link there now leads elsewhere.
        if root.canonicalize().is_ok_and(|real| real != root) {
            let message = format!("The workspace {} has become a link, so nothing in it is touched.", root.display());
            return Err(ToolError::Refused(message));
        }
        let folder = rustix::fs::open(&root, FOLDER, Mode::empty())
            .map_err(|error| io_failed(format_args!("the workspace {}", root.display()), error))?;
        Ok(Self { root, folder })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns true if a path lies in a folder of git's own: `.git` may be a file that names another folder.
    pub(super) fn is_git(&self, path: &Inside) -> bool {
        let has = |folder: &Path, name| {
            rustix::fs::statat(&self.folder, folder.join(name), AtFlags::SYMLINK_NOFOLLOW).is_ok()
        };
        // A file that would make its folder a repository counts too: git runs what the `config` beside it says.
        let is_repository = |folder: &Path| {
            let first = path.0.strip_prefix(folder).ok().and_then(|inner| inner.iter().next());
            let has = |name| has(folder, name) || first.is_some_and(|first| first.eq_ignore_ascii_case(name));
            has("HEAD") && (has("commondir") || has("objects") && has("refs"))
        };
        let full = self.root.join(&path.0);
        path.is_git()
            || main_folders(&self.root).any(|folder| full.starts_with(folder))
            || path.0.ancestors().skip(1).any(is_repository)
    }

    /// Reads a path as a model writes it. An absolute one must lie in the workspace.
    pub(super) fn inside(&self, path: &str) -> Result<Inside, ToolError> {
        if path.len() > PATH_BYTES_MAX || path.contains('\0') {
            let message = format!("A path has at most {PATH_BYTES_MAX} bytes and no NUL.");
            return Err(ToolError::Refused(message));
        }
        let relative = Path::new(path);
        let relative = match relative.strip_prefix(&self.root) {
            Ok(inside) => inside,
            Err(_) if relative.is_absolute() => {
                let root = self.root.display();
                let message = format!("{path} is not in the workspace {root}; use a path in it, relative to it.");
                return Err(ToolError::Refused(message));
            }
            Err(_) => relative,
        };
        let mut inside = PathBuf::new();
        for part in relative.components() {
            match part {
                Component::Normal(name) => inside.push(name),
                Component::CurDir => {}
                Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                    let message = format!("{path} contains `..`. Give a path relative to the workspace.");
                    return Err(ToolError::Refused(message));
                }
            }
        }
        Ok(Inside(inside))
    }

    /// Opens a file or folder for reading, and follows links that stay in the workspace if the system can.
    pub(super) fn open_to_read(&self, path: &Inside) -> Result<Opened, ToolError> {
        self.open_by(Way::BEST, path)
    }

    pub(super) fn open_by(&self, way: Way, path: &Inside) -> Result<Opened, ToolError> {
        let opened = match way {
            #[cfg(target_os = "linux")]
            Way::Beneath => match beneath(&self.folder, path.to_open(), READING, false) {
                // An older kernel has no such call, and some containers forbid it.
                Err(Errno::NOSYS | Errno::PERM) => return self.open_by(Way::Parts, path),
                opened => opened.map_err(|errno| self.explain(path, errno))?,
            },
            Way::Parts => match path.split() {
                None => self.folder(path)?,
                Some((parent, name)) => {
                    let parent = self.folder(&parent)?;
                    rustix::fs::openat(&parent, name, READING | OFlags::NOFOLLOW, Mode::empty())
                        .map_err(|errno| self.explain(path, errno))?
                }
            },
        };
        regular(path, opened)
    }

    /// Opens a folder, no part of whose path is a link.
    pub(super) fn folder(&self, path: &Inside) -> Result<OwnedFd, ToolError> {
        #[cfg(target_os = "linux")]
        match beneath(&self.folder, path.to_open(), FOLDER, true) {
            Err(Errno::NOSYS | Errno::PERM | Errno::LOOP | Errno::NOTDIR) => {}
            opened => return opened.map_err(|errno| self.explain(path, errno)),
        }
        self.walk(path, false)
    }

    /// Opens a folder, no part of whose path is a link, and makes the missing ones.
    pub(super) fn make_folder(&self, path: &Inside) -> Result<OwnedFd, ToolError> {
        self.walk(path, true)
    }

    fn walk(&self, path: &Inside, make: bool) -> Result<OwnedFd, ToolError> {
        let mut folder = rustix::fs::openat(&self.folder, ".", FOLDER, Mode::empty())
            .map_err(|errno| io_failed(self.root.display(), errno))?;
        let mut done = Inside::root();
        for part in path.0.components() {
            let name = part.as_os_str();
            done.0.push(name);
            let open = || rustix::fs::openat(&folder, name, FOLDER | OFlags::NOFOLLOW, Mode::empty());
            let opened = match open() {
                Err(Errno::NOENT) if make => match rustix::fs::mkdirat(&folder, name, Mode::from_raw_mode(0o777)) {
                    Ok(()) | Err(Errno::EXIST) => open(),
                    Err(errno) => Err(errno),
                },
                opened => opened,
            };
            folder = match opened {
                Ok(opened) => opened,
                Err(errno @ (Errno::LOOP | Errno::NOTDIR)) => {
                    return Err(link_at(&folder, &done).unwrap_or_else(|| self.explain(&done, errno)));
                }
                Err(errno) => return Err(self.explain(&done, errno)),
            };
        }
        Ok(folder)
    }

    /// Returns true if a folder does not exist, and nothing but folders leads to where it would be.
    pub(super) fn is_missing(&self, path: &Inside) -> bool {
        let Ok(mut folder) = self.walk(&Inside::root(), false) else { return false };
        for part in path.0.components() {
            match rustix::fs::openat(&folder, part.as_os_str(), FOLDER | OFlags::NOFOLLOW, Mode::empty()) {
                Ok(next) => folder = next,
                Err(errno) => return errno == Errno::NOENT,
            }
        }
        false
    }

    /// Says in words why a path cannot be opened.
    fn explain(&self, path: &Inside, errno: Errno) -> ToolError {
        if errno == Errno::NOENT {
            return ToolError::Failed(self.missing(path));
        }
        explain(path, errno)
    }

    /// Says that a path does not exist, and which names in its last known folder are like it.
    pub(super) fn missing(&self, path: &Inside) -> String {
        let mut done = Inside::root();
        let Ok(mut folder) = self.walk(&done, false) else { return format!("{path} does not exist") };
        for part in path.0.components() {
            let name = part.as_os_str();
            match rustix::fs::openat(&folder, name, FOLDER | OFlags::NOFOLLOW, Mode::empty()) {
                Ok(next) => folder = next,
                Err(Errno::NOENT) => {
                    let wanted = shown(Path::new(name));
                    let like = nearest::names(&folder, &wanted);
                    if like.iter().any(|other| shown(Path::new(other)) == wanted) {
                        return format!("{path} has a name with characters that are not shown here; use it by shell");
                    }
                    let like: Vec<String> = like.iter().map(|other| Inside(done.0.join(other)).to_string()).collect();
                    return match like.as_slice() {
                        [] => format!("{path} does not exist; read {done} for the names in that folder"),
                        like => format!("{path} does not exist; did you mean {}?", like.join(" or ")),
                    };
                }
                Err(_) => break,
            }
            done.0.push(name);
        }
        format!("{path} does not exist")
    }
}

/// Opens a plain file of a folder: no link, pipe, socket or device.
pub(super) fn open_plain(folder: impl AsFd, path: &Inside, name: &std::ffi::OsStr) -> Result<File, PlainError> {
    match rustix::fs::openat(&folder, name, READING | OFlags::NOFOLLOW, Mode::empty()) {
        Ok(opened) => match regular(path, opened).map_err(PlainError::Other)? {
            Opened::File(file) => Ok(file),
            Opened::Folder(_) => Err(PlainError::Other(is_folder(path))),
        },
        Err(Errno::NOENT) => Err(PlainError::Missing),
        Err(errno @ (Errno::LOOP | Errno::MLINK)) => {
            Err(PlainError::Other(link_at(&folder, path).unwrap_or_else(|| explain(path, errno))))
        }
        Err(errno) => Err(PlainError::Other(explain(path, errno))),
    }
}

/// Failure to open a plain file.
pub(super) enum PlainError {
    Missing,
    Other(ToolError),
}

pub(super) fn is_folder(path: &Inside) -> ToolError {
    ToolError::Refused(format!("{path} is a folder; name a file in it."))
}

/// Opens a path whose every step stays beneath the folder. `/proc` has links that lead anywhere; none is followed.
#[cfg(target_os = "linux")]
fn beneath(folder: &OwnedFd, path: &Path, flags: OFlags, without_links: bool) -> Result<OwnedFd, Errno> {
    use rustix::fs::ResolveFlags;

    /// Attempts while other processes rename folders.
    const ATTEMPTS: usize = 16;
    let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    resolve.set(ResolveFlags::NO_SYMLINKS, without_links);
    for _ in 1..ATTEMPTS {
        match rustix::fs::openat2(folder, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return opened,
        }
    }
    rustix::fs::openat2(folder, path, flags, Mode::empty(), resolve)
}

/// Tells a plain file or folder from what must not be read.
fn regular(path: &Inside, opened: OwnedFd) -> Result<Opened, ToolError> {
    let file = File::from(opened);
    let kind = file.metadata().map_err(|error| io_failed(path, error))?.file_type();
    if kind.is_file() {
        return Ok(Opened::File(file));
    }
    if kind.is_dir() {
        return Ok(Opened::Folder(file.into()));
    }
    let name = if kind.is_fifo() { "a pipe" } else { "a device or socket" };
    Err(ToolError::Refused(format!("{path} is {name}, not a file.")))
}

/// Says where a link leads, if the last part of the path is one.
fn link_at(folder: impl AsFd, path: &Inside) -> Option<ToolError> {
    let name = path.0.file_name()?;
    let stat = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        return None;
    }
    let target = rustix::fs::readlinkat(&folder, name, Vec::new()).ok()?;
    let target = String::from_utf8_lossy(target.as_bytes()).into_owned();
    let message = format!("{path} is a link to {target}, and links are not followed here; name what it leads to.");
    Some(ToolError::Refused(message))
}

fn explain(path: &Inside, errno: Errno) -> ToolError {
    match errno {
        Errno::NOENT => ToolError::Failed(format!("{path} does not exist")),
        Errno::XDEV => ToolError::Refused(format!("{path} leads out of the workspace through a link.")),
        Errno::LOOP => ToolError::Refused(format!("{path} passes through a link that is not followed.")),
        Errno::NOTDIR => ToolError::Failed(format!("{path}: a part of this path is a file, not a folder.")),
        Errno::NXIO | Errno::NODEV => ToolError::Refused(format!("{path} is a device or socket, not a file.")),
        errno => io_failed(path, errno),
    }
}

/// Words for an input or output error at a path.
pub(super) fn io_failed(path: impl fmt::Display, error: impl Into<std::io::Error>) -> ToolError {
    ToolError::Failed(format!("{path}: {}", error.into()))
}

/// Returns a path as one line of text: a name may hold line breaks, marks that turn text, and bytes that are no text.
pub(crate) fn shown(path: &Path) -> String {
    let text = String::from_utf8_lossy(path.as_os_str().as_bytes());
    text.chars().map(|c| if is_unseen(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_folder_that_a_git_file_names_is_gits() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("kept/repo")).unwrap();
        let workspace =
            Workspace { root: root.clone(), folder: rustix::fs::open(&root, FOLDER, Mode::empty()).unwrap() };
        let is_git = |path: &str| workspace.is_git(&Inside(path.into()));
        assert!(!is_git("kept/repo/config"), "nothing names it");
        fs::write(root.join(GIT), "gitdir: kept/repo\n").unwrap();
        assert!(is_git("kept/repo/config") && is_git("kept/repo/hooks/x") && is_git(".git"));
        assert!(!is_git("kept/other") && !is_git("kept/repository"));
        // The last file that makes a folder a repository.
        fs::create_dir_all(root.join("bare/objects")).unwrap();
        fs::write(root.join("bare/config"), "").unwrap();
        assert!(!is_git("bare/refs/x") && !is_git("bare/HEAD") && !is_git("bare/commondir"));
        fs::create_dir(root.join("bare/refs")).unwrap();
        assert!(is_git("bare/HEAD") && is_git("bare/head") && !is_git("bare/README"));
        fs::remove_dir(root.join("bare/refs")).unwrap();
        fs::write(root.join("bare/HEAD"), "").unwrap();
        assert!(is_git("bare/refs/x") && is_git("bare/commondir") && !is_git("bare/refs.md"));
    }
}
