//! Operations of the projection on its folder. Paths are made of typed ids and of names in this module's parent, never
//! of a caller's text.
//!
//! A command of a tool may replace every part of the folder while this writes, and this is not confined. So the folder
//! that holds it is opened once, each part is opened from a handle of the part before it, and no part may be a link.

use std::{
    fs::File,
    io::{self, Read as _},
    os::{
        fd::OwnedFd,
        unix::fs::{FileExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, openat, renameat},
    sys::stat::{Mode, mkdirat},
    unistd::{UnlinkatFlags, unlinkat},
};
use rustix::fs::{AtFlags, Dir, FileType, statat};

/// Most bytes to read of a file.
const READ_BYTES_MAX: u64 = 64 * 1024;
const FOLDER: OFlag = OFlag::O_DIRECTORY.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);
/// Flags to follow no link, and not to wait for the other end of a pipe.
const FILE: OFlag = OFlag::O_NOFOLLOW.union(OFlag::O_NONBLOCK).union(OFlag::O_CLOEXEC);

/// Folder of the projection.
pub(super) trait Files: Send + Sync {
    /// Creates a folder with those above it, if it is missing.
    fn make_dir(&self, path: &str) -> io::Result<()>;
    /// Creates an empty file, or replaces one.
    fn create(&self, path: &str) -> io::Result<()>;
    /// Cuts an existing file to a length.
    fn cut(&self, path: &str, bytes: u64) -> io::Result<()>;
    /// Writes after the first `offset` bytes of an existing file.
    fn append(&self, path: &str, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes a file's bytes durable, or the names in a folder.
    fn sync(&self, path: &str) -> io::Result<()>;
    /// Renames a file, and replaces one of the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file, if it exists.
    fn remove(&self, path: &str) -> io::Result<()>;
    /// Removes a folder with everything in it, if it exists.
    fn remove_dir(&self, path: &str) -> io::Result<()>;
    /// Returns the length of a file; `None` if it is missing.
    fn len(&self, path: &str) -> io::Result<Option<u64>>;
    /// Lists the names in a folder; none if it is missing.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;
    /// Reads the beginning of a file; `None` if it is missing. Refuses everything but a regular file, even a link to
    /// one: the folder may come with somebody's repository.
    fn read(&self, path: &str) -> io::Result<Option<Vec<u8>>>;
}

/// Folder of the file system.
pub(super) struct RealFiles {
    /// The nearest folder above the projection's that existed at the start.
    holder: io::Result<OwnedFd>,
    /// Way from there to the projection's folder.
    way: PathBuf,
}

impl RealFiles {
    pub(super) fn new(root: &Path) -> Self {
        let holder = root.ancestors().skip(1).find(|folder| folder.is_dir());
        // A relative path of one part is below the folder that this process is in.
        let holder = holder.or_else(|| root.is_relative().then_some(Path::new("")));
        let (holder, way) = match holder {
            Some(holder) => (holder, root.strip_prefix(holder).unwrap_or(root)),
            None => (root, Path::new("")),
        };
        let opened = if holder.as_os_str().is_empty() { Path::new(".") } else { holder };
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Self { holder: openat(AT_FDCWD, opened, flags, Mode::empty()).map_err(Into::into), way: way.to_owned() }
    }

    /// Opens a folder, no part of whose path below the holder is a link; makes the missing parts if that is wanted.
    fn folder(&self, path: &str, makes: bool) -> io::Result<OwnedFd> {
        let holder = self.holder.as_ref().map_err(|error| io::Error::new(error.kind(), error.to_string()))?;
        let mut folder = openat(holder, ".", FOLDER, Mode::empty())?;
        for part in self.way.join(path).components() {
            let part = Path::new(part.as_os_str());
            let opened = match openat(&folder, part, FOLDER, Mode::empty()) {
                Err(Errno::ENOENT) if makes => match mkdirat(&folder, part, Mode::S_IRWXU) {
                    Ok(()) | Err(Errno::EEXIST) => openat(&folder, part, FOLDER, Mode::empty()),
                    Err(error) => Err(error),
                },
                opened => opened,
            };
            folder = opened.map_err(|error| match error {
                Errno::ELOOP | Errno::ENOTDIR => {
                    io::Error::other(format!("{} is not a folder, or is a link", part.display()))
                }
                error => error.into(),
            })?;
        }
        Ok(folder)
    }

    /// Opens the folder of a file, and returns it with the file's name.
    fn split<'a>(&self, path: &'a str) -> io::Result<(OwnedFd, &'a str)> {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.folder(above, false)?, name))
    }

    /// Opens an existing regular file that has no other name: another one could be a file of the workspace or outside.
    fn open(&self, path: &str, flags: OFlag) -> io::Result<File> {
        let (folder, name) = self.split(path)?;
        let file = File::from(openat(&folder, name, FILE | flags, Mode::empty())?);
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.nlink() != 1 {
            return Err(io::Error::other("it is not a regular file with one name"));
        }
        Ok(file)
    }
}

/// Turns a missing file into `None`.
fn if_there<T>(answer: io::Result<T>) -> io::Result<Option<T>> {
    match answer {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        answer => answer.map(Some),
    }
}

impl Files for RealFiles {
    fn make_dir(&self, path: &str) -> io::Result<()> {
        self.folder(path, true).map(drop)
    }

    fn create(&self, path: &str) -> io::Result<()> {
        self.remove(path)?;
        let (folder, name) = self.split(path)?;
        let flags = FILE | OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
        Ok(openat(&folder, name, flags, Mode::S_IRUSR | Mode::S_IWUSR).map(drop)?)
    }

    fn cut(&self, path: &str, bytes: u64) -> io::Result<()> {
        self.open(path, OFlag::O_WRONLY)?.set_len(bytes)
    }

    fn append(&self, path: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.open(path, OFlag::O_WRONLY)?.write_all_at(bytes, offset)
    }

    fn sync(&self, path: &str) -> io::Result<()> {
        match path {
            "" => File::from(self.folder("", false)?).sync_all(),
            path => self.open(path, OFlag::O_RDONLY)?.sync_all(),
        }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let ((from_folder, from), (to_folder, to)) = (self.split(from)?, self.split(to)?);
        Ok(renameat(&from_folder, from, &to_folder, to)?)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let remove = || {
            let (folder, name) = self.split(path)?;
            Ok(unlinkat(&folder, name, UnlinkatFlags::NoRemoveDir)?)
        };
        if_there(remove()).map(drop)
    }

    fn remove_dir(&self, path: &str) -> io::Result<()> {
        let remove = || {
            let (folder, name) = self.split(path)?;
            crate::folder::remove(&folder, Path::new(name))
        };
        if_there(remove()).map(drop)
    }

    fn len(&self, path: &str) -> io::Result<Option<u64>> {
        let len = || {
            let (folder, name) = self.split(path)?;
            let found = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
            let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
            // What is no file has no bytes of ours.
            Ok(if is_file { found.st_size.unsigned_abs() } else { 0 })
        };
        if_there(len())
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let Some(folder) = if_there(self.folder(path, false))? else { return Ok(Vec::new()) };
        let names = Dir::read_from(&folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.filter(|name| !name.as_ref().is_ok_and(|name| name == "." || name == "..")).collect()
    }

    fn read(&self, path: &str) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = if_there(self.open(path, OFlag::O_RDONLY))? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.take(READ_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }
}
