//! `memory.redb`: how it is opened, set aside where it is damaged, and closed.
//!
//! redb blocks its thread and panics on a damaged file: whoever calls this stands on a thread that may block, and
//! catches panics.

use std::{
    fs::OpenOptions,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use redb::{Database, Durability, ReadableDatabase as _, TableError, WriteTransaction, backends::InMemoryBackend};

use super::tables::{self, LAYOUT, meta};
use meerkat_journal::derived::{Backend, Phase};
use meerkat_words::SessionError;

pub(super) use meerkat_journal::derived::Trouble;

/// Bytes of pages that redb keeps in memory.
const CACHE_BYTES: usize = 32 * 1024 * 1024;

#[cfg(test)]
thread_local! {
    /// How many writes of this thread find room, where that is bounded.
    pub(super) static WRITES_LEFT: std::cell::Cell<Option<u32>> = const { std::cell::Cell::new(None) };
}

/// The open file.
pub(super) struct MemoryFile {
    database: Database,
    phase: Arc<Phase>,
    /// Whether a write met a full disk: redb does nothing more with it, and it is to be opened anew.
    is_stuck: AtomicBool,
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        // Each commit leaves a file that opens at once; closing needs no other.
        self.phase.is_closing.store(true, Ordering::Release);
    }
}

impl MemoryFile {
    /// Opens the file at `path`, or one in memory; with whether it was made just now.
    pub(super) fn open(path: Option<&Path>) -> Result<(Self, bool), Trouble> {
        let phase = Arc::<Phase>::default();
        let mut builder = Database::builder();
        builder.set_cache_size(CACHE_BYTES);
        let database = match path {
            None => builder.create_with_backend(InMemoryBackend::new())?,
            Some(path) => {
                let mut options = OpenOptions::new();
                let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
                builder.create_with_backend(Backend::new(file.map_err(redb::Error::Io)?, phase.clone())?)?
            }
        };
        let file = Self { database, phase, is_stuck: AtomicBool::new(false) };
        let is_new = file.is_new()?;
        if is_new {
            file.make_tables()?;
        }
        Ok((file, is_new))
    }

    /// They are durable with what is first put into them.
    fn make_tables(&self) -> Result<(), Trouble> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::None)?;
        tables::make_all(&transaction)?;
        transaction.open_table(tables::META)?.insert(meta::LAYOUT, &LAYOUT.to_le_bytes()[..])?;
        Ok(transaction.commit()?)
    }

    fn is_new(&self) -> Result<bool, Trouble> {
        let transaction = self.database.begin_read()?;
        let table = match transaction.open_table(tables::META) {
            Err(TableError::TableDoesNotExist(_)) => return Ok(true),
            table => table?,
        };
        match table.get(meta::LAYOUT)? {
            Some(layout) if layout.value() == LAYOUT.to_le_bytes() => Ok(false),
            _ => Err(Trouble::Damaged("it has another layout".to_owned())),
        }
    }

    /// Changes the file in one durable transaction.
    pub(super) fn write<T>(&self, change: impl FnOnce(&WriteTransaction) -> Result<T, Trouble>) -> Result<T, Trouble> {
        let done = self.try_write(change);
        if matches!(done, Err(Trouble::Full(_))) {
            self.is_stuck.store(true, Ordering::Release);
        }
        done
    }

    /// Whether it is of no use until it is opened anew.
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

    fn try_write<T>(&self, change: impl FnOnce(&WriteTransaction) -> Result<T, Trouble>) -> Result<T, Trouble> {
        Self::check_room()?;
        self.phase.has_committed.store(true, Ordering::Release);
        let mut transaction = self.database.begin_write()?;
        // Without it the first opening after a kill would walk the whole file.
        transaction.set_quick_repair(true);
        let done = change(&transaction)?;
        transaction.commit()?;
        Ok(done)
    }

    /// Reads the file as it is now.
    pub(super) fn read(&self) -> Result<redb::ReadTransaction, Trouble> {
        Ok(self.database.begin_read()?)
    }
}

/// Renames a file to the first name that is free.
pub(super) fn set_aside(path: &Path, why: &str) -> Result<(), Trouble> {
    let names = (1_u32..).map(|n| {
        let mut aside = path.as_os_str().to_owned();
        aside.push(format!(".set-aside-{n}"));
        PathBuf::from(aside)
    });
    let aside = names.into_iter().find(|aside| !aside.exists()).unwrap_or_default();
    tracing::warn!(%why, aside = %aside.display(), "the memory is damaged; it is set aside and made anew");
    std::fs::rename(path, &aside).map_err(|error| Trouble::Failed(error.to_string()))
}

/// What is answered where the memory's files did not do what they were asked.
pub(super) fn unavailable(trouble: &Trouble) -> SessionError {
    let (Trouble::Damaged(why) | Trouble::Failed(why) | Trouble::Full(why)) = trouble;
    tracing::warn!(%why, "the memory's index is not available");
    if matches!(trouble, Trouble::Full(_)) {
        return SessionError::StoreFull;
    }
    SessionError::MemoryUnavailable { why: "its index failed; try again, or build it anew".to_owned() }
}
