//! Memory shared by threads: opened when first needed, changed by one thread at a time, read by many, closed and opened
//! again if its file fails.
//!
//! Everything here blocks; [`super::store`] keeps it off the async threads. A change is committed before it is applied
//! in RAM, so a search never sees what a kill could undo.

#[cfg(test)]
mod tests;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use super::{
    erase::{Erasure, NEW_NAME},
    file::{FILE_NAME, MemoryFile, Trouble, discard_copies, remove},
    log::{Entry, Forgetting, MemoryLog},
    opened::Opened,
};
use meerkat_journal::{
    RealDisk,
    derived::{caught, set_aside},
};
use meerkat_words::{
    ids::SessionId,
    memory::{Embedder, MemoryOptions, Passage},
    store::StoreError,
};

/// Entries of the log that are applied together.
const REPLAYED_ENTRIES: usize = 256;

/// Memory of one directory, or of this process alone.
pub(super) struct Core {
    pub(super) dir: Option<PathBuf>,
    pub(super) embedder: Option<Arc<dyn Embedder>>,
    /// Vectors from which on a graph is built.
    pub(super) graph_from: usize,
    /// True if the embedder failed the last time.
    pub(super) is_embedder_failing: AtomicBool,
    /// True if no journal outlives the process: memory's own log then records what is taken in.
    pub(super) records_intake: bool,
    open: RwLock<Option<Opened>>,
    is_ready: AtomicBool,
    /// True after a panic: redb checks the file before it is opened again.
    is_suspect: AtomicBool,
    /// True if the log is applied; false if the disk had no room for it.
    is_settled: AtomicBool,
    /// Log, once open. Opening the memory needs this lock.
    log: Mutex<Option<MemoryLog>>,
    /// Held during a change.
    changing: Mutex<()>,
    /// Erasures that were asked for, and those that are done.
    pub(super) marks: AtomicU64,
    pub(super) erased: AtomicU64,
    /// Erasure under way, between its steps.
    pub(super) erasing: Mutex<Option<Erasure>>,
    /// True once nothing may be opened any more.
    is_shut: AtomicBool,
    /// Number of files that were made because there was none that could be used.
    files_made: AtomicU64,
    /// That number when it was last asked if sessions have to be added again.
    files_at_rebuild: AtomicU64,
}

impl Core {
    /// Makes a memory without opening its files.
    pub(super) fn new(dir: Option<PathBuf>, options: MemoryOptions) -> Self {
        let MemoryOptions { embedder, graph_from, records_intake, .. } = options;
        Self {
            dir,
            embedder,
            graph_from,
            is_embedder_failing: AtomicBool::new(false),
            records_intake,
            open: RwLock::default(),
            is_ready: AtomicBool::new(false),
            is_suspect: AtomicBool::new(false),
            is_settled: AtomicBool::new(false),
            log: Mutex::default(),
            changing: Mutex::default(),
            marks: AtomicU64::new(0),
            erased: AtomicU64::new(0),
            erasing: Mutex::default(),
            is_shut: AtomicBool::new(false),
            files_made: AtomicU64::new(0),
            files_at_rebuild: AtomicU64::new(0),
        }
    }

    /// Closes the file for good, after work in progress.
    pub(super) fn shut(&self) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let _log = self.log();
        self.is_shut.store(true, Ordering::Release);
        self.is_ready.store(false, Ordering::Release);
        *self.open.write().unwrap_or_else(PoisonError::into_inner) = None;
        *self.erasing.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Does work that changes the memory, without other changes meanwhile.
    pub(super) fn work_alone<T>(&self, work: impl FnOnce() -> Result<T, Trouble>) -> Result<T, Trouble> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        self.work(|| {
            self.settle()?;
            work()
        })
    }

    /// Does work on the memory, after opening it if needed. A file that fails is closed, and set aside if damaged.
    pub(super) fn work<T>(&self, work: impl FnOnce() -> Result<T, Trouble>) -> Result<T, Trouble> {
        self.make_ready()?;
        // Weak, so that the first thread to find damage can close the file.
        let file = self.read(|open| Ok(Arc::downgrade(&open.file)))?;
        self.guarded(work).or_else(|trouble| self.close_failed(Some(&file), trouble))
    }

    /// Does work on the file. redb panics on some damage, but other code may panic too, or a thread be refused: what
    /// the file is worth, redb says when it checks it.
    fn guarded<T>(&self, work: impl FnOnce() -> Result<T, Trouble>) -> Result<T, Trouble> {
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
            self.is_suspect.store(true, Ordering::Release);
            Err(Trouble::Failed("using it panicked".to_owned()))
        })
    }

    pub(super) fn read<T>(&self, read: impl FnOnce(&Opened) -> Result<T, Trouble>) -> Result<T, Trouble> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.as_ref().map_or_else(|| Err(closed()), read)
    }

    /// Applies a change in RAM that was committed to `file`.
    pub(super) fn change<T>(
        &self,
        file: &Arc<MemoryFile>,
        change: impl FnOnce(&mut Opened) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        // Another file may be open by now.
        open.as_mut().filter(|open| Arc::ptr_eq(&open.file, file)).map_or_else(|| Err(closed()), change)
    }

    /// Appends to the log; returns its new end, or `None` if there is no log.
    pub(super) fn record(&self, entries: &[Entry]) -> Result<Option<u64>, Trouble> {
        let mut log = self.log();
        let Some(log) = log.as_mut() else { return Ok(None) };
        log.append(entries).map(Some).map_err(log_failed)
    }

    pub(super) fn record_forgettings(&self, forgettings: &[Forgetting]) -> Result<Option<u64>, Trouble> {
        self.record(&forgettings.iter().cloned().map(Entry::Forgot).collect::<Vec<_>>())
    }

    /// Removes these passages from a segment of the log; returns false if there is no such segment.
    pub(super) fn leave_out(
        &self,
        at: usize,
        is_gone: impl Fn(&Opened, SessionId, &Passage) -> bool,
    ) -> Result<bool, Trouble> {
        // Before the open file, as where both are opened.
        let mut log = self.log();
        let Some(log) = log.as_mut() else { return Ok(false) };
        let holds_texts = self.records_intake;
        self.read(|open| log.leave_out(at, holds_texts, |id, passage| is_gone(open, id, passage)).map_err(log_failed))
    }

    fn log(&self) -> MutexGuard<'_, Option<MemoryLog>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make_ready(&self) -> Result<(), Trouble> {
        if self.is_ready.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut log = self.log();
        if self.is_ready.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.is_shut.load(Ordering::Acquire) {
            return Err(closed());
        }
        self.guarded(|| self.open_all(&mut log)).or_else(|trouble| self.close_failed(None, trouble))
    }

    fn open_all(&self, log: &mut Option<MemoryLog>) -> Result<(), Trouble> {
        let known = self.reopen()?;
        if let Some(dir) = self.dir.as_deref().filter(|_| log.is_none()) {
            // A killed process left a copy, which may hold what was forgotten since.
            remove(&dir.join(NEW_NAME))?;
            let disk = Arc::new(RealDisk::new(dir.to_owned()));
            *log = Some(MemoryLog::open(disk, known).map_err(log_failed)?);
        }
        let is_settled = match self.settle_by(log.as_mut()) {
            Err(Trouble::Full(why)) => {
                tracing::warn!(%why, "the memory has no room for what its log says; it is searched as it is");
                self.reopen()?;
                false
            }
            settled => settled.map(|()| true)?,
        };
        self.load_vectors()?;
        if self.read(|open| Ok(open.is_to_erase))? {
            self.ask_to_erase();
        }
        self.is_settled.store(is_settled, Ordering::Release);
        self.is_ready.store(true, Ordering::Release);
        Ok(())
    }

    /// Closes the open file and opens it again; returns the log position applied to it.
    fn reopen(&self) -> Result<u64, Trouble> {
        *self.open.write().unwrap_or_else(PoisonError::into_inner) = None;
        let opened = self.open_file()?;
        let known = opened.log_position;
        *self.open.write().unwrap_or_else(PoisonError::into_inner) = Some(opened);
        Ok(known)
    }

    /// Returns true if sessions have to be added from their beginnings, and begins to wait for all of them.
    pub(super) fn needs_rebuild(&self) -> Result<bool, Trouble> {
        self.files_at_rebuild.store(self.files_made.load(Ordering::Acquire), Ordering::Release);
        Ok(!self.records_intake && self.read(|open| Ok(!open.is_whole))?)
    }

    /// Returns true if the file was lost again since [`Self::needs_rebuild`].
    pub(super) fn is_lost_again(&self) -> bool {
        self.files_made.load(Ordering::Acquire) != self.files_at_rebuild.load(Ordering::Acquire)
    }

    fn open_file(&self) -> Result<Opened, Trouble> {
        let path = self.dir.as_ref().map(|dir| dir.join(FILE_NAME));
        let open = || self.guarded(|| Opened::open(path.as_deref()));
        let opened = match (self.checked(path.as_deref()).and_then(|()| open()), &path) {
            (Err(Trouble::Failed(why)), Some(path)) if self.is_suspect.load(Ordering::Acquire) => {
                self.checked(Some(path)).and(Err(Trouble::Failed(why)))
            }
            (opened, _) => opened,
        };
        let opened = match (opened, &path) {
            (Err(Trouble::Damaged(why)), Some(_)) => {
                self.put_aside(&why)?;
                open()
            }
            (opened, _) => opened,
        };
        let (opened, is_new) = opened?;
        self.files_made.fetch_add(u64::from(is_new), Ordering::AcqRel);
        Ok(opened)
    }

    /// Sets a damaged file aside, and removes those before it.
    fn put_aside(&self, why: &str) -> Result<(), Trouble> {
        let Some(dir) = &self.dir else { return Ok(()) };
        discard_copies(dir)?;
        set_aside(&dir.join(FILE_NAME), why)
    }

    /// Lets redb check a file that something panicked on.
    fn checked(&self, path: Option<&Path>) -> Result<(), Trouble> {
        if !self.is_suspect.load(Ordering::Acquire) {
            return Ok(());
        }
        // Only redb runs in it.
        let checked = path.map_or(Ok(()), |path| caught(|| MemoryFile::check(path)));
        if !matches!(checked, Err(Trouble::Failed(_) | Trouble::Full(_))) {
            self.is_suspect.store(false, Ordering::Release);
        }
        checked
    }

    /// Applies the log before any change, if there was no room for that when the file was opened.
    fn settle(&self) -> Result<(), Trouble> {
        if self.is_settled.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut log = self.log();
        self.settle_by(log.as_mut())?;
        self.is_settled.store(true, Ordering::Release);
        Ok(())
    }

    fn settle_by(&self, log: Option<&mut MemoryLog>) -> Result<(), Trouble> {
        log.map_or(Ok(()), |log| self.replay(log))?;
        self.drop_unfinished()
    }

    /// Applies the log's entries that the file lacks: all of them if the file was lost.
    fn replay(&self, log: &mut MemoryLog) -> Result<(), Trouble> {
        let (known, is_whole) = self.read(|open| Ok((open.log_position, open.is_whole)))?;
        if !is_whole && !self.records_intake {
            check_forgettings(log)?;
        }
        let (mut forgettings, mut applied) = (Vec::new(), Vec::new());
        // Only where nothing else is in it, the log is short enough to be read from its beginning.
        let from = if self.records_intake { known } else { 0 };
        let forgotten = log.replay(from, |position, entry| match entry {
            Entry::Forgot(forgetting) if position > known => forgettings.push(forgetting),
            Entry::Forgot(forgetting) => applied.push(forgetting),
            Entry::Took(_) => {}
        });
        forgotten.map_err(log_failed)?;
        // A row of the file may be damaged and still be one.
        self.forget_again(applied)?;
        if !forgettings.is_empty() {
            // They may hold what is forgotten.
            self.dir.as_deref().map_or(Ok(()), discard_copies)?;
        }
        if !self.records_intake || !forgettings.is_empty() {
            // A process that was killed, or met a full disk, has not noted it.
            log.note_end();
        }
        let (mut entries, mut done) = (Vec::new(), Ok(()));
        let read = log.replay(known, |position, entry| {
            if done.is_err() {
                return;
            }
            entries.push(entry);
            if entries.len() >= REPLAYED_ENTRIES {
                done = self.apply(std::mem::take(&mut entries), position);
            }
        });
        read.map_err(log_failed)?;
        done?;
        if !log.is_whole() {
            tracing::warn!(
                "the memory's log is damaged; `meerkat doctor` says where; repair it, or forgotten texts may come back"
            );
        }
        if log.position() == known { Ok(()) } else { self.apply(entries, log.position()) }
    }

    fn apply(&self, entries: Vec<Entry>, position: u64) -> Result<(), Trouble> {
        for entry in entries {
            match entry {
                Entry::Took(intake) => self.take_in(vec![intake], true, None)?,
                Entry::Forgot(forgetting) => self.forget_now(vec![forgetting], None).map(drop)?,
            }
        }
        self.applied(position)
    }

    /// Closes a file that failed, so that the next use opens it again; a damaged one is set aside. A newer file, opened
    /// since, stays open.
    fn close_failed<T>(&self, file: Option<&Weak<MemoryFile>>, trouble: Trouble) -> Result<T, Trouble> {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        let is_to_blame = |open: &mut Opened| {
            file.is_none_or(|file| std::ptr::eq(file.as_ptr(), Arc::as_ptr(&open.file)))
                && (!matches!(trouble, Trouble::Full(_)) || file.is_none() || open.file.is_stuck())
        };
        if open.take_if(is_to_blame).is_some() {
            self.is_ready.store(false, Ordering::Release);
            if let Trouble::Damaged(why) = &trouble {
                self.put_aside(why)?;
            }
        }
        Err(trouble)
    }
}

/// Refuses to take in journals from the start if the log may have lost forgettings: what was forgotten would come back.
fn check_forgettings(log: &MemoryLog) -> Result<(), Trouble> {
    log.replay(0, |_, _| ()).map_err(log_failed)?;
    if log.is_whole() {
        return Ok(());
    }
    let why = "the index is gone, and the log is damaged that says what to forget; `meerkat doctor --repair` says what \
               is left of it, and lets everything else be taken in";
    Err(Trouble::Failed(why.to_owned()))
}

fn log_failed(error: StoreError) -> Trouble {
    match error {
        StoreError::Full => Trouble::Full("the memory's log has no room".to_owned()),
        error => Trouble::Failed(format!("the memory's log: {error}")),
    }
}

fn closed() -> Trouble {
    Trouble::Failed("it was closed meanwhile".to_owned())
}
