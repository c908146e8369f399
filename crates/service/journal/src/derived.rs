//! A file of copies as redb sees it: without the syncs and writes that a copy of the journals does not need.
//!
//! Opening writes the header alone, and the first commit syncs all of the file before anything of it counts. Closing
//! would commit once more, to leave a file that opens at once; but so does every commit of ours. It decides nothing.

use std::{
    fs::File,
    io,
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use redb::{BackendError, DatabaseError, StorageBackend, backends::FileBackend};

use crate::disk::is_full;

/// Why the file did not do what it was asked.
#[derive(Debug)]
pub enum Trouble {
    /// It holds what nobody wrote.
    Damaged(String),
    /// It could not be read or written.
    Failed(String),
    /// There is no room to write it.
    Full(String),
}

impl<E: Into<redb::Error>> From<E> for Trouble {
    fn from(error: E) -> Self {
        match error.into() {
            error @ (redb::Error::Corrupted(_)
            | redb::Error::UpgradeRequired(_)
            | redb::Error::RepairAborted
            | redb::Error::TableTypeMismatch { .. }
            | redb::Error::TableIsMultimap(_)
            | redb::Error::TypeDefinitionChanged { .. }) => Self::Damaged(error.to_string()),
            redb::Error::Io(error) if is_of_the_content(&error) => Self::Damaged(error.to_string()),
            redb::Error::Io(error) if is_full(&error) => Self::Full(error.to_string()),
            error => Self::Failed(error.to_string()),
        }
    }
}

fn is_of_the_content(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof)
}

/// How far the use of the file has come.
#[derive(Debug, Default)]
pub struct Phase {
    /// Something was committed, or is about to be: syncs count.
    pub has_committed: AtomicBool,
    /// The file stays as the last commit left it.
    pub is_closing: AtomicBool,
}

/// The file.
#[derive(Debug)]
pub struct Backend {
    file: FileBackend,
    phase: Arc<Phase>,
}

impl Backend {
    /// The file, which is locked.
    ///
    /// # Errors
    /// Where the file cannot be locked.
    pub fn new(file: File, phase: Arc<Phase>) -> Result<Self, DatabaseError> {
        Ok(Self { file: FileBackend::new(file)?, phase })
    }

    fn check_open(&self) -> io::Result<()> {
        match self.phase.is_closing.load(Ordering::Acquire) {
            true => Err(io::Error::other("the index is being closed")),
            false => Ok(()),
        }
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check_open()?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.phase.has_committed.load(Ordering::Acquire) { self.file.sync_data() } else { Ok(()) }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check_open()?;
        self.file.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.query_lock_range(start, end)
    }
}
