//! `memory.redb`: opening, writing and reading it.
//!
//! redb blocks its thread and panics on a damaged file: call this on a thread that may block, and catch panics.

use std::{
    fs, io,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use meerkat_journal::derived::DerivedFile;
use meerkat_words::SessionError;
use redb::{Durability, TableError, WriteTransaction};

use super::tables::{self, LAYOUT, meta};

pub(super) use meerkat_journal::derived::Trouble;

pub(super) const FILE_NAME: &str = "memory.redb";
/// End of the name of a copy that is examined.
const EXAMINED: &str = ".examined";
/// Graphs that an older version saved.
const OLD_GRAPHS: [&str; 2] = ["vectors.graph", "vectors.graph.new"];
const CACHE_BYTES: usize = 8 * 1024 * 1024;

#[cfg(test)]
thread_local! {
    /// Writes of this thread that still find room, if a test limits them.
    pub(super) static WRITES_LEFT: std::cell::Cell<Option<u32>> = const { std::cell::Cell::new(None) };
}

pub(super) struct MemoryFile {
    file: DerivedFile,
    /// True if a write met a full disk: redb refuses everything until the file is opened again.
    is_stuck: AtomicBool,
}

impl MemoryFile {
    /// Opens the file at `path`, or one in memory; returns true with it if it is new.
    pub(super) fn open(path: Option<&Path>) -> Result<(Self, bool), Trouble> {
        let file =
            path.map_or_else(|| DerivedFile::in_memory(&[], CACHE_BYTES), |path| DerivedFile::open(path, CACHE_BYTES))?;
        let file = Self { file, is_stuck: AtomicBool::new(false) };
        let is_new = file.is_new()?;
        if is_new {
            file.make_tables()?;
        }
        Ok((file, is_new))
    }

    /// Lets redb check the file at `path`.
    pub(super) fn check(path: &Path) -> Result<(), Trouble> {
        DerivedFile::open(path, CACHE_BYTES)?.check()
    }

    /// Makes the tables. They become durable with the first rows.
    fn make_tables(&self) -> Result<(), Trouble> {
        let transaction = self.file.begin_loose_write()?;
        tables::make_all(&transaction)?;
        transaction.open_table(tables::META)?.insert(meta::LAYOUT, &LAYOUT.to_le_bytes()[..])?;
        Ok(transaction.commit()?)
    }

    fn is_new(&self) -> Result<bool, Trouble> {
        let transaction = self.read()?;
        let table = match transaction.open_table(tables::META) {
            Err(TableError::TableDoesNotExist(_)) => return Ok(true),
            table => table?,
        };
        match table.get(meta::LAYOUT)? {
            Some(layout) if layout.value() == LAYOUT.to_le_bytes() => Ok(false),
            _ => Err(Trouble::Damaged("it has another layout".to_owned())),
        }
    }

    /// Performs one durable transaction.
    pub(super) fn write<T>(&self, change: impl FnOnce(&WriteTransaction) -> Result<T, Trouble>) -> Result<T, Trouble> {
        self.write_with(Durability::Immediate, change)
    }

    /// Performs a transaction that becomes durable with the next one that is: for what can be made again.
    pub(super) fn write_lazily<T>(
        &self,
        change: impl FnOnce(&WriteTransaction) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        self.write_with(Durability::None, change)
    }

    fn write_with<T>(
        &self,
        durability: Durability,
        change: impl FnOnce(&WriteTransaction) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        let done = self.try_write(durability, change);
        if matches!(done, Err(Trouble::Full(_))) {
            self.is_stuck.store(true, Ordering::Release);
        }
        done
    }

    /// Returns true if the file must be opened again before any use.
    pub(super) fn is_stuck(&self) -> bool {
        self.is_stuck.load(Ordering::Acquire)
    }

    #[cfg(not(test))]
    const fn check_room() -> Result<(), Trouble> {
        Ok(())
    }

    #[cfg(test)]
    fn check_room() -> Result<(), Trouble> {
        let is_left = WRITES_LEFT.get().is_none_or(|left| left > 0);
        WRITES_LEFT.set(WRITES_LEFT.get().map(|left| left.saturating_sub(1)));
        let full = || Trouble::Full("there is no room for another write".to_owned());
        is_left.then_some(()).ok_or_else(full)
    }

    fn try_write<T>(
        &self,
        durability: Durability,
        change: impl FnOnce(&WriteTransaction) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        Self::check_room()?;
        let mut transaction = self.file.begin_write()?;
        transaction.set_durability(durability)?;
        let done = change(&transaction)?;
        transaction.commit()?;
        Ok(done)
    }

    pub(super) fn read(&self) -> Result<redb::ReadTransaction, Trouble> {
        self.file.begin_read()
    }
}

/// Removes copies of the file: damaged ones that were set aside, and the graph that an older version saved.
pub(super) fn discard_copies(dir: &Path) -> Result<(), Trouble> {
    let is_copy = |name: &str| {
        name.strip_prefix(FILE_NAME).is_some_and(|rest| rest.starts_with(".set-aside-") || rest == EXAMINED)
            || OLD_GRAPHS.contains(&name)
    };
    for entry in fs::read_dir(dir).map_err(redb::Error::Io)? {
        let entry = entry.map_err(redb::Error::Io)?;
        if entry.file_name().to_str().is_some_and(is_copy) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

pub(super) fn remove(path: &Path) -> Result<(), Trouble> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(redb::Error::Io(error).into()),
        _ => Ok(()),
    }
}

/// Converts a failure of memory's files into the caller's error.
pub(super) fn unavailable(trouble: &Trouble) -> SessionError {
    let (Trouble::Damaged(why) | Trouble::Failed(why) | Trouble::Full(why)) = trouble;
    tracing::warn!(%why, "the memory's index is not available");
    if matches!(trouble, Trouble::Full(_)) {
        return SessionError::StoreFull;
    }
    SessionError::MemoryUnavailable {
        why: "its files failed; try again, and run `meerkat doctor` if that does not help".to_owned(),
    }
}
