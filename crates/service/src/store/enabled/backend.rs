//! The file of the index as redb sees it: without the syncs and writes that a copy of the journals does not need.
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

/// How far the use of the file has come.
#[derive(Debug, Default)]
pub(crate) struct Phase {
    /// Something was committed, or is about to be: syncs count.
    pub(crate) has_committed: AtomicBool,
    /// The file stays as the last commit left it.
    pub(crate) is_closing: AtomicBool,
}

/// The file.
#[derive(Debug)]
pub(crate) struct Backend {
    file: FileBackend,
    phase: Arc<Phase>,
}

impl Backend {
    /// The file, which is locked.
    ///
    /// # Errors
    /// Where the file cannot be locked.
    pub(crate) fn new(file: File, phase: Arc<Phase>) -> Result<Self, DatabaseError> {
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
