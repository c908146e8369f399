//! Operations of the projection on its folder. Paths are made of typed ids and of names in this module's parent, never
//! of a caller's text, and nothing is written through a symlink.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;

/// Most bytes to read of a file.
const READ_BYTES_MAX: u64 = 64 * 1024;
/// Flags to follow no link, and not to wait for the other end of a pipe.
const READ_FLAGS: i32 = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits().cast_signed();

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
    root: PathBuf,
}

impl RealFiles {
    pub(super) const fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// Makes a path beneath the root, none of whose folders is a link.
    fn beneath(&self, path: &str) -> io::Result<PathBuf> {
        let mut folder = self.root.clone();
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        for part in above.split('/').filter(|part| !part.is_empty()) {
            check_folder(&folder)?;
            folder.push(part);
        }
        check_folder(&folder)?;
        Ok(if name.is_empty() { folder } else { folder.join(name) })
    }

    /// Opens an existing file that is not a link.
    fn open(&self, path: &str) -> io::Result<fs::File> {
        let path = self.beneath(path)?;
        if !fs::symlink_metadata(&path)?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        OpenOptions::new().write(true).open(path)
    }
}

/// Refuses a path that exists and is not a folder.
fn check_folder(path: &Path) -> io::Result<()> {
    match if_there(fs::symlink_metadata(path))? {
        Some(found) if !found.is_dir() => Err(io::Error::other(format!("{} is no folder, or a link", path.display()))),
        _ => Ok(()),
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
        let path = self.beneath(path)?;
        check_folder(&path)?;
        DirBuilder::new().recursive(true).mode(0o700).create(path)
    }

    fn create(&self, path: &str) -> io::Result<()> {
        self.remove(path)?;
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.beneath(path)?).map(drop)
    }

    fn cut(&self, path: &str, bytes: u64) -> io::Result<()> {
        self.open(path)?.set_len(bytes)
    }

    fn append(&self, path: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.open(path)?.write_all_at(bytes, offset)
    }

    fn sync(&self, path: &str) -> io::Result<()> {
        fs::File::open(self.beneath(path)?)?.sync_all()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.beneath(from)?, self.beneath(to)?)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        if_there(fs::remove_file(self.beneath(path)?)).map(drop)
    }

    fn remove_dir(&self, path: &str) -> io::Result<()> {
        if_there(fs::remove_dir_all(self.beneath(path)?)).map(drop)
    }

    fn len(&self, path: &str) -> io::Result<Option<u64>> {
        Ok(if_there(fs::symlink_metadata(self.beneath(path)?))?.map(|found| found.len()))
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let path = self.beneath(path)?;
        check_folder(&path)?;
        let Some(entries) = if_there(fs::read_dir(path))? else { return Ok(Vec::new()) };
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn read(&self, path: &str) -> io::Result<Option<Vec<u8>>> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(READ_FLAGS);
        let Some(file) = if_there(options.open(self.beneath(path)?))? else { return Ok(None) };
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        let mut bytes = Vec::new();
        file.take(READ_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }
}
