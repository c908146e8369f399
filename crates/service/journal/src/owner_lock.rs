//! Lock that gives a data directory one owner; the system releases it however the owner ends.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use meerkat_words::SessionError;

/// Flag that refuses a symlink as the last part of a path.
pub(super) const NOFOLLOW: i32 = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();

/// Locked file, which names its holder.
const LOCK: &str = "lock";

/// Ownership of a data directory, until dropped.
pub struct OwnerLock {
    file: File,
    path: Arc<LockedPath>,
}

/// Reason that nothing more may be written: someone else has changed the directory under a running store.
#[derive(Debug)]
pub(super) struct Displaced(pub(super) &'static str);

impl std::fmt::Display for Displaced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Displaced {}

/// Path of a lock, and the file that is locked: as long as both belong together, nobody else can own the directory.
pub(super) struct LockedPath {
    path: PathBuf,
    file: (u64, u64),
}

impl LockedPath {
    /// Fails if the path leads to another file by now, or to none.
    pub(super) fn check(&self) -> io::Result<()> {
        match self.path.symlink_metadata() {
            Ok(found) if identity(&found) == self.file => Ok(()),
            Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Err(error),
            _ => {
                let why =
                    "the lock of the data directory was removed or replaced, and another process may own it by now";
                Err(io::Error::other(Displaced(why)))
            }
        }
    }
}

fn identity(file: &std::fs::Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

impl Drop for OwnerLock {
    fn drop(&mut self) {
        // A child between its fork and its exec has the file open too, and would keep the lock.
        self.file.unlock().ok();
    }
}

impl OwnerLock {
    /// Takes the lock of `dir` for a program of this `build`.
    ///
    /// # Errors
    /// `STORE_LOCKED` with the holder's pid, and `STORE_NOT_WRITABLE`.
    pub fn take(dir: &Path, build: &str) -> Result<Self, SessionError> {
        let path = dir.join(LOCK);
        let refuse = |error: io::Error| SessionError::StoreNotWritable {
            path: path.display().to_string(),
            why: error.to_string(),
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.custom_flags(NOFOLLOW);
        let mut file = options.open(&path).map_err(refuse)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(SessionError::StoreLocked { pid: holder(&mut file) });
            }
            Err(TryLockError::Error(error)) => return Err(refuse(error)),
        }
        let identity = file.metadata().map(|file| identity(&file)).map_err(refuse)?;
        let locked = Arc::new(LockedPath { path: path.clone(), file: identity });
        // Its former owner may have removed it between the two.
        locked.check().map_err(refuse)?;
        let line = serde_json::json!({
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "build": build,
        });
        let written =
            file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(format!("{line}\n").as_bytes()));
        if let Err(error) = written {
            // The lock works without the name; a full disk must not prevent reads.
            tracing::warn!(%error, "the owner's name could not be written");
        }
        Ok(Self { file, path: locked })
    }

    /// Returns the path at which it must stay.
    pub(super) const fn path(&self) -> &Arc<LockedPath> {
        &self.path
    }
}

fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    let named: serde_json::Value = serde_json::from_str(&text).ok()?;
    named.get("pid")?.as_u64()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Broken once: a store could not be opened again while another thread started a process.
    #[test]
    fn the_lock_is_free_although_a_child_has_not_closed_its_copy_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let lock = OwnerLock::take(dir.path(), "F").unwrap();
        let inherited = lock.file.try_clone().unwrap();
        assert!(matches!(OwnerLock::take(dir.path(), "F"), Err(SessionError::StoreLocked { .. })));
        drop(lock);
        OwnerLock::take(dir.path(), "F").map(drop).unwrap();
        drop(inherited);
    }
}
