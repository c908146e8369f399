//! A derived file in redb, which may be deleted: opening it, changing it, setting it aside if damaged, closing it.
//!
//! redb blocks its thread and panics on a damaged file: callers use blocking threads and [`caught`]. Opening writes
//! only the header, unsynced; the first commit syncs everything. Closing writes nothing: redb would commit once more so
//! that the file opens quickly, but every commit here already ensures that. Nothing here deletes a file.

use std::{
    fs::OpenOptions,
    io,
    ops::Bound,
    os::unix::fs::OpenOptionsExt as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use redb::{
    BackendError, Database, ReadTransaction, ReadableDatabase as _, StorageBackend, WriteTransaction,
    backends::{FileBackend, InMemoryBackend},
};

use crate::disk::is_full;

/// Failure of the file.
#[derive(Debug)]
pub enum Trouble {
    /// Its content is invalid.
    Damaged(String),
    /// It could not be read or written.
    Failed(String),
    /// The disk is full.
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

fn is_of_the_content(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

/// Open file.
pub struct DerivedFile {
    /// `None` while it is dropped.
    database: Option<Database>,
    phase: Arc<Phase>,
}

impl Drop for DerivedFile {
    fn drop(&mut self) {
        self.phase.is_closing.store(true, Ordering::Release);
        // redb panics when it closes a damaged file, which is of no concern to whoever used it last.
        let database = self.database.take();
        drop(catch_unwind(AssertUnwindSafe(|| drop(database))));
    }
}

impl DerivedFile {
    /// Opens the file at `path`, or makes it, with a page cache of `cache_bytes`.
    ///
    /// # Errors
    /// If it is damaged, locked, or cannot be read.
    pub fn open(path: &Path, cache_bytes: usize) -> Result<Self, Trouble> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
        Self::over(FileBackend::new(file.map_err(redb::Error::Io)?)?, cache_bytes)
    }

    /// Opens a copy of a file's bytes in memory, or a new file if there are none.
    ///
    /// # Errors
    /// If the bytes are damaged.
    pub fn in_memory(bytes: &[u8], cache_bytes: usize) -> Result<Self, Trouble> {
        let backend = InMemoryBackend::new();
        if !bytes.is_empty() {
            let copied = backend.set_len(bytes.len() as u64).and_then(|()| backend.write(0, bytes));
            copied.map_err(redb::Error::Io)?;
        }
        Self::over(backend, cache_bytes)
    }

    fn over(file: impl StorageBackend, cache_bytes: usize) -> Result<Self, Trouble> {
        let phase = Arc::<Phase>::default();
        let backend = Backend { file, phase: phase.clone() };
        let database = Database::builder().set_cache_size(cache_bytes).create_with_backend(backend)?;
        Ok(Self { database: Some(database), phase })
    }

    /// Lets redb check the whole file.
    ///
    /// # Errors
    /// If it is damaged, or cannot be read.
    pub fn check(mut self) -> Result<(), Trouble> {
        match self.database.as_mut().ok_or_else(closed)?.check_integrity() {
            Ok(true) => Ok(()),
            Ok(false) => Err(Trouble::Damaged("redb had to repair it".to_owned())),
            Err(error) => Err(error.into()),
        }
    }

    fn database(&self) -> Result<&Database, Trouble> {
        self.database.as_ref().ok_or_else(closed)
    }

    /// Begins to read the file as it is now.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn begin_read(&self) -> Result<ReadTransaction, Trouble> {
        Ok(self.database()?.begin_read()?)
    }

    /// Begins a change that is durable once it is committed.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn begin_write(&self) -> Result<WriteTransaction, Trouble> {
        self.phase.has_committed.store(true, Ordering::Release);
        let mut transaction = self.database()?.begin_write()?;
        // Otherwise the first opening after a kill would walk the whole file.
        transaction.set_quick_repair(true);
        Ok(transaction)
    }

    /// Begins a change that becomes durable with the first one of [`Self::begin_write`].
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn begin_loose_write(&self) -> Result<WriteTransaction, Trouble> {
        let mut transaction = self.database()?.begin_write()?;
        transaction.set_durability(redb::Durability::None)?;
        Ok(transaction)
    }
}

fn closed() -> Trouble {
    Trouble::Failed("it is closed".to_owned())
}

/// Renames a file that cannot be used to the first free name.
///
/// # Errors
/// If it cannot be renamed.
pub fn set_aside(path: &Path, why: &str) -> Result<(), Trouble> {
    let names = (1_u32..).map(|n| {
        let mut aside = path.as_os_str().to_owned();
        aside.push(format!(".set-aside-{n}"));
        PathBuf::from(aside)
    });
    let aside = names.into_iter().find(|aside| !aside.exists()).unwrap_or_default();
    let name = path.file_name().unwrap_or_default().display();
    tracing::warn!(%why, aside = %aside.display(), "{name} cannot be used; it is set aside and made again");
    std::fs::rename(path, &aside).map_err(|error| Trouble::Failed(error.to_string()))
}

/// Does work on a file; a panic becomes damage.
///
/// # Errors
/// Those of the work.
pub fn caught<T>(work: impl FnOnce() -> Result<T, Trouble>) -> Result<T, Trouble> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(Trouble::Damaged("reading it panicked".to_owned())))
}

/// Progress of the file's use.
#[derive(Debug, Default)]
struct Phase {
    /// True from the first commit on: syncs count.
    has_committed: AtomicBool,
    /// True once closing: the file stays as the last commit left it.
    is_closing: AtomicBool,
}

/// redb's view of the file, without the syncs and writes that a derived file does not need.
#[derive(Debug)]
struct Backend<F> {
    file: F,
    phase: Arc<Phase>,
}

impl<F> Backend<F> {
    fn check_open(&self) -> io::Result<()> {
        match self.phase.is_closing.load(Ordering::Acquire) {
            true => Err(io::Error::other("it is being closed")),
            false => Ok(()),
        }
    }
}

impl<F: StorageBackend> StorageBackend for Backend<F> {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use redb::TableDefinition;

    use super::*;

    const TABLE: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");

    /// File in memory that counts its syncs; a clone is the same file.
    #[derive(Clone, Debug)]
    struct Counted(Arc<(InMemoryBackend, AtomicU32)>);

    impl Counted {
        fn bytes(&self) -> Vec<u8> {
            let mut bytes = vec![0; usize::try_from(self.len().unwrap()).unwrap()];
            self.read(0, &mut bytes).unwrap();
            bytes
        }

        fn syncs(&self) -> u32 {
            self.0.1.load(Ordering::Relaxed)
        }
    }

    impl StorageBackend for Counted {
        fn len(&self) -> io::Result<u64> {
            self.0.0.len()
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.0.0.read(offset, out)
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.0.0.set_len(len)
        }

        fn sync_data(&self) -> io::Result<()> {
            self.0.1.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }

        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.0.0.write(offset, data)
        }
    }

    fn put(transaction: WriteTransaction, number: u64) {
        transaction.open_table(TABLE).unwrap().insert("it", number).unwrap();
        transaction.commit().unwrap();
    }

    #[test]
    fn the_first_durable_commit_syncs_and_closing_writes_nothing() {
        let disk = Counted(Arc::new((InMemoryBackend::new(), AtomicU32::new(0))));
        let file = DerivedFile::over(disk.clone(), 1 << 20).unwrap();
        put(file.begin_loose_write().unwrap(), 1);
        assert_eq!(disk.syncs(), 0);
        put(file.begin_write().unwrap(), 2);
        assert!(disk.syncs() > 0, "a durable commit syncs");
        let bytes = disk.bytes();
        drop(file);
        assert!(disk.bytes() == bytes, "closing changes nothing");
        let file = DerivedFile::over(disk, 1 << 20).unwrap();
        let table = file.begin_read().unwrap().open_table(TABLE).unwrap();
        assert_eq!(table.get("it").unwrap().unwrap().value(), 2);
    }

    #[test]
    fn a_panic_is_damage() {
        let read = caught(|| -> Result<(), Trouble> { panic!("the file holds noise") });
        assert!(matches!(read, Err(Trouble::Damaged(_))));
    }
}
