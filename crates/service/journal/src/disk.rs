//! The interface to the disk: the few operations that a journal needs, and their guarantees. Each may fail.
//!
//! Paths are relative to the data directory and made as `layout` says; no file is opened through a symlink. Nothing here
//! retries, or decides what a failure means.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use super::owner_lock::{Displaced, LockedPath, NOFOLLOW, OwnerLock};
use meerkat_words::store::StoreError;

/// Data directory. A name is durable once its folder is synced; a rename is atomic.
pub trait Disk: Send + Sync + 'static {
    /// Makes a folder with mode 700.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Makes a file with mode 600, which must not exist.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens a file for reading and, if `is_written`, writing.
    fn open(&self, path: &Path, is_written: bool) -> io::Result<Arc<dyn DiskFile>>;
    /// Moves a file or a folder.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Gives a file a second name.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file, or a folder with its content.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Lists the names in a folder.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// Returns a file's length without opening it.
    fn len(&self, path: &Path) -> io::Result<u64>;
    /// Makes the names in a folder durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Estimates the free bytes.
    fn free_bytes(&self) -> io::Result<u64>;
    /// Estimates how many files can still be made.
    fn free_files(&self) -> io::Result<u64>;
}

/// Open file. Written bytes are durable once `sync` has succeeded.
#[expect(clippy::len_without_is_empty, reason = "it is never asked; a file that is empty is read as any other")]
pub trait DiskFile: Send + Sync {
    /// Reads; returns fewer bytes than requested only at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes some or all bytes; returns how many.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;
    /// Cuts or extends the file.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Returns its length.
    fn len(&self) -> io::Result<u64>;
    /// Makes its bytes durable.
    fn sync(&self) -> io::Result<()>;
}

/// Writes all bytes.
pub fn write_all(file: &dyn DiskFile, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write_at(bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = bytes.get(written..).unwrap_or_default();
                offset += written as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads the bytes from `offset` up to `end`, or to the file's end if that comes first.
pub fn read_range(file: &dyn DiskFile, offset: u64, end: u64) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX)];
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    buffer.truncate(filled);
    Ok(buffer)
}

/// Makes a file, replacing one that an earlier attempt may have left.
pub fn create_anew(disk: &dyn Disk, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
    match disk.create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            disk.remove(path)?;
            disk.create(path)
        }
        made => made,
    }
}

/// Writes a file durably, replacing one that an earlier attempt may have left. Its name is not synced.
pub fn write_new(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<Arc<dyn DiskFile>> {
    let file = create_anew(disk, path)?;
    write_all(file.as_ref(), bytes, 0)?;
    file.sync()?;
    Ok(file)
}

/// Turns the error that something is missing into `None`.
pub fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if is_missing(&error) => Ok(None),
        found => found.map(Some),
    }
}

/// Makes a folder if it is missing; returns true if it was.
pub fn ensure_dir(disk: &dyn Disk, path: &Path) -> io::Result<bool> {
    match disk.create_dir(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns true if the file or folder is missing.
pub fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// Returns true if the file or folder itself is unreadable, and a retry is useless. A lack of descriptors or memory is
/// no sign of that.
pub fn is_unreadable(error: &io::Error) -> bool {
    use rustix::io::Errno;
    const REFUSALS: &[Errno] = &[
        Errno::IO,
        Errno::ACCESS,
        Errno::PERM,
        Errno::NOTDIR,
        Errno::ISDIR,
        Errno::LOOP,
        Errno::NXIO,
        Errno::BADMSG,
        #[cfg(target_os = "linux")]
        Errno::UCLEAN,
        Errno::STALE,
    ];
    let is_refusal = |number| REFUSALS.iter().any(|refusal| refusal.raw_os_error() == number);
    error.raw_os_error().map_or(error.kind() == io::ErrorKind::NotADirectory, is_refusal)
}

/// Returns true if the disk is full.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Returns true if no more files may be open for now, of this process or on this machine. Then nothing was written, and
/// the disk is well.
pub(super) fn is_out_of_files(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let is = |errno: Errno| error.raw_os_error() == Some(errno.raw_os_error());
    is(Errno::MFILE) || is(Errno::NFILE)
}

/// Returns true if someone else has changed the directory, so that nothing more may be written.
pub(super) fn is_displaced(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Displaced>())
}

/// Directory of the file system.
pub struct RealDisk {
    root: PathBuf,
    /// Place of the owner's lock, without which nothing is changed, and nothing counts as durable.
    lock: Option<Arc<LockedPath>>,
}

impl RealDisk {
    /// Uses the directory `root`, whoever owns it.
    pub const fn new(root: PathBuf) -> Self {
        Self { root, lock: None }
    }

    /// Uses the directory `root` as long as it belongs to `owner`: once its lock is removed or replaced, another process
    /// may own it. The look takes a microsecond.
    pub fn owned(root: PathBuf, owner: &OwnerLock) -> Self {
        Self { root, lock: Some(owner.path().clone()) }
    }

    /// Returns the path of something that is to be changed.
    fn changed(&self, path: &Path) -> io::Result<PathBuf> {
        check(self.lock.as_deref())?;
        Ok(self.root.join(path))
    }
}

fn check(lock: Option<&LockedPath>) -> io::Result<()> {
    lock.map_or(Ok(()), LockedPath::check)
}

impl Disk for RealDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(self.changed(path)?)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        Ok(Arc::new(RealFile { file: options.open(self.changed(path)?)?, lock: self.lock.clone() }))
    }

    fn open(&self, path: &Path, is_written: bool) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(is_written).custom_flags(NOFOLLOW);
        Ok(Arc::new(RealFile { file: options.open(self.root.join(path))?, lock: self.lock.clone() }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(self.changed(from)?, self.root.join(to))
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(self.changed(from)?, self.root.join(to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let path = self.changed(path)?;
        if fs::symlink_metadata(&path)?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let path = self.root.join(path);
        // A folder that is a link would lead out of the data directory.
        if !fs::symlink_metadata(&path)?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn len(&self, path: &Path) -> io::Result<u64> {
        Ok(fs::symlink_metadata(self.root.join(path))?.len())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(self.root.join(path))?.sync_all()?;
        check(self.lock.as_deref())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let found = rustix::fs::statvfs(&self.root)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    fn free_files(&self) -> io::Result<u64> {
        let found = rustix::fs::statvfs(&self.root)?;
        // Some file systems make room for files as for bytes, and count none.
        Ok(if found.f_files == 0 { u64::MAX } else { found.f_favail })
    }
}

/// Open file of a directory.
struct RealFile {
    file: File,
    lock: Option<Arc<LockedPath>>,
}

impl DiskFile for RealFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(&self.file, buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        check(self.lock.as_deref())?;
        std::os::unix::fs::FileExt::write_at(&self.file, bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        check(self.lock.as_deref())?;
        self.file.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()?;
        check(self.lock.as_deref())?;
        // What nobody can open any more is gone with the process.
        match self.file.metadata()?.nlink() {
            0 => Err(io::Error::other(Displaced("a file of the store was removed or replaced while it was written"))),
            _ => Ok(()),
        }
    }
}

/// Converts an error of the disk into the store's.
pub fn failed(error: io::Error) -> StoreError {
    if is_full(&error) { StoreError::Full } else { StoreError::Failed(error.to_string()) }
}
