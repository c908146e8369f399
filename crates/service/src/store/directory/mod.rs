//! Durable stores of one data directory, and how it is opened: checked, locked, prepared, read.
//!
//! The journals are the truth. `index.redb` has copies for speed, and is rebuilt if it is missing.

mod events;
mod glance;
mod index;
mod lengths;
mod pruner;
mod readers;
mod snapshots;

mod expiry;
mod file;
mod rows;

#[cfg(test)]
mod tests;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

pub(crate) use meerkat_journal as journal;
use meerkat_journal::{FileBlobs, OwnerLock, RealDisk, check_directory, check_private};

pub use events::RedbEventStore;
pub(crate) use events::{entry, knows};
pub use file::IndexFile;
pub(crate) use file::REBUILT;
pub use glance::glance;
pub use index::RedbIndex;
pub(crate) use index::summary;
pub(crate) use rows::{Table, View, decode};
pub use snapshots::RedbSessionStore;

use super::Stores;
use crate::{
    SessionError,
    capability::{Capabilities, Capability},
};
use pruner::FilePruner;
use readers::FileReaders;

/// Opens the stores in `data_dir`, which is created if it is missing and is owned by this process from now on.
///
/// # Errors
/// `STORE_LOCKED` if another process owns it, `STORE_NOT_WRITABLE`, `STORE_FORMAT_UNSUPPORTED`; nothing was changed
/// then. `STORE_FAILED` if the disk fails.
pub fn open_stores(data_dir: &Path) -> Result<Stores, SessionError> {
    Capabilities::compiled().require(Capability::SessionStore)?;
    check_directory(data_dir)?;
    check_private(data_dir)?;
    let owner = Arc::new(own(data_dir)?);
    let disk = Arc::new(RealDisk::owned(data_dir.to_owned(), &owner));
    let file = Arc::new(IndexFile::new(data_dir.join("index.redb")).held_by(owner.clone()));
    let lengths = lengths::Lengths(Arc::downgrade(&file));
    let events = Arc::new(RedbEventStore::open(disk, Some(owner.clone()), Arc::new(lengths))?);
    let (health, disk) = (events.context().health.clone(), events.context().disk.clone());
    file.commits_while(move || !health.is_full() || health.room(disk.as_ref()).is_ok());
    let blobs = FileBlobs::new(events.context().clone(), Some(owner.clone()));
    let readers = FileReaders::new(events.context().clone(), Some(owner));
    let index = Arc::new(RedbIndex::new(file.clone()));
    Ok(Stores {
        blobs: Arc::new(blobs),
        readers: Arc::new(readers),
        index: index.clone(),
        snapshots: Arc::new(RedbSessionStore::new(file, events.clone())),
        pruner: Some(Arc::new(FilePruner { events: events.clone(), index })),
        inbox: None,
        events,
    })
}

/// Owned data directory; dropping this releases it.
pub struct DirectoryOwner {
    data_dir: PathBuf,
    _lock: OwnerLock,
}

impl DirectoryOwner {
    /// Returns the directory.
    pub(crate) fn data_dir(&self) -> &Path {
        &self.data_dir
    }
}

/// Owns `data_dir` without a store in it; it is created if it is missing.
///
/// # Errors
/// As [`open_stores`]; nothing was changed then.
pub fn own_directory(data_dir: &Path) -> Result<DirectoryOwner, SessionError> {
    check_directory(data_dir)?;
    check_private(data_dir)?;
    Ok(DirectoryOwner { data_dir: data_dir.to_owned(), _lock: own(data_dir)? })
}

/// Takes the lock of `data_dir` in the name of this build.
pub(crate) fn own(data_dir: &Path) -> Result<OwnerLock, SessionError> {
    OwnerLock::take(data_dir, &Capabilities::compiled().view().build)
}

/// Lowers the priority of this thread for good, so that background work does not keep turns waiting.
pub(crate) fn step_back() {
    // Elsewhere it would be that of the whole process.
    if cfg!(target_os = "linux")
        && let Err(error) = rustix::process::nice(19)
    {
        tracing::debug!(%error, "a thread works with the same priority as the turns");
    }
}
