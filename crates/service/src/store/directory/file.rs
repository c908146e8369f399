//! `index.redb`: tables of copies, written by one thread that no caller waits for.
//!
//! Changes are visible at once from memory. The committer makes them durable: a second after the first one, if there
//! are many, or if a caller asks. All of it can be made again from the journals, so no turn waits for that. A damaged
//! file is set aside, never deleted, and one of another layout is replaced; both are rebuilt. The file is opened when
//! it is first needed.

use std::{
    path::PathBuf,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use redb::{AccessGuard, ReadableTable as _, TableError};
use tokio::sync::oneshot;

use meerkat_journal::{
    OwnerLock,
    derived::{DerivedFile, caught, set_aside},
    disk::if_there,
};

use super::{
    expiry::Expiry,
    rows::{Changes, SEAL_BYTES, Table, Trouble, View, decode, place, sealed, unsealed},
};
use crate::{
    ids::Seq,
    store::{BUILT_IN_READERS, IndexedKey, StoreError, list::Place},
};

/// Version of the tables and their rows. A file of another version is made again.
pub(super) const LAYOUT: &[u8] = b"2";
/// Key of the row that confirms that every stored session was put.
pub(crate) const REBUILT: &[u8] = b"rebuilt";
/// Bytes of a session's id, with which a key begins.
const ID_BYTES: usize = 16;
/// Wait for further changes before a commit.
const COMMIT_AFTER: Duration = Duration::from_secs(1);
/// Bytes of changes that are committed without a wait.
const COMMIT_BYTES: usize = 4 * 1024 * 1024;
/// Most bytes of pages that redb keeps in memory.
pub(super) const CACHE_BYTES: usize = 4 * 1024 * 1024;

/// Handle of the file.
pub struct IndexFile {
    shared: Arc<Shared>,
    /// Kept until the file is closed: the directory has no other owner before.
    owner: Option<Arc<OwnerLock>>,
}

struct Shared {
    path: PathBuf,
    file: Mutex<Option<Arc<DerivedFile>>>,
    /// Counts from 1 the files that were set aside, so that a rebuild can see if the index was lost once more.
    losses: AtomicU64,
    /// Count at which every stored session was put.
    whole_since: AtomicU64,
    /// Returns true if the disk has room for more than turns.
    has_room: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
    state: Mutex<State>,
    wake: Condvar,
}

/// Caller that waits for a commit.
type Waiter = oneshot::Sender<Result<(), StoreError>>;

#[derive(Default)]
struct State {
    dirty: Arc<Changes>,
    dirty_bytes: usize,
    /// Changes that the committer is writing, or could not write yet: newer than the file, older than `dirty`. Many may
    /// gather here, and no new change copies them, whoever reads.
    committing: Arc<Changes>,
    /// Callers that wait for the next commit.
    waiters: Vec<Waiter>,
    /// True if one of them wants it now.
    is_urgent: bool,
    is_closing: bool,
    committer: Option<thread::JoinHandle<()>>,
}

/// Converts a failure of the file.
fn answer(trouble: Trouble) -> StoreError {
    match trouble {
        Trouble::Damaged(why) => StoreError::Failed(format!("the index was damaged: {why}")),
        Trouble::Failed(why) => StoreError::Failed(format!("the index: {why}")),
        Trouble::Full(_) => StoreError::Full,
    }
}

impl Drop for IndexFile {
    fn drop(&mut self) {
        let committer = {
            let mut state = self.shared.state();
            state.is_closing = true;
            state.committer.take()
        };
        self.shared.wake.notify_all();
        // The file's lock is free when the committer has ended. Its panic was logged already.
        let _ = committer.map(thread::JoinHandle::join);
    }
}

impl IndexFile {
    /// Makes a handle of the file at `path`, which need not exist. Nothing is opened yet.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        let shared = Shared {
            path,
            file: Mutex::default(),
            losses: AtomicU64::new(1),
            whole_since: AtomicU64::new(0),
            has_room: OnceLock::new(),
            state: Mutex::default(),
            wake: Condvar::new(),
        };
        Self { shared: Arc::new(shared), owner: None }
    }

    /// Keeps the ownership of the directory until the file is closed.
    pub(super) fn held_by(mut self, owner: Arc<OwnerLock>) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Sets a check before each commit: without room, changes stay in memory.
    pub(super) fn commits_while(&self, has_room: impl Fn() -> bool + Send + Sync + 'static) {
        // Set once: a file has one store.
        drop(self.shared.has_room.set(Box::new(has_room)));
    }

    /// Puts rows. It never waits for the disk.
    pub(crate) fn change(&self, changes: impl IntoIterator<Item = ((Table, Vec<u8>), Option<Bytes>)>) {
        let mut guard = self.shared.state();
        let state = &mut *guard;
        let is_first = state.dirty.is_empty();
        let dirty = Arc::make_mut(&mut state.dirty);
        for ((table, key), value) in changes {
            state.dirty_bytes += key.len() + value.as_ref().map_or(0, Bytes::len);
            dirty.insert((table, key), value);
        }
        // If that fails, the next change retries; until then all is in memory.
        self.ensure_committer(state);
        // A committer that gathers already wakes up by itself.
        let is_awaited = is_first || state.dirty_bytes >= COMMIT_BYTES;
        drop(guard);
        if is_awaited {
            self.shared.wake.notify_all();
        }
    }

    /// Begins the thread that commits, if there is none. Returns true if there is one.
    fn ensure_committer(&self, state: &mut State) -> bool {
        if state.committer.is_none() && !state.is_closing {
            let shared = self.shared.clone();
            let committer = thread::Builder::new().name("meerkat-index".to_owned());
            match committer.spawn(move || shared.commit_until_closed()) {
                Ok(committer) => state.committer = Some(committer),
                Err(error) => tracing::warn!(%error, "the index has no thread to write it"),
            }
        }
        state.committer.is_some()
    }

    /// Waits until earlier changes are durable; with `is_urgent` they are committed now.
    pub(super) async fn committed(&self, is_urgent: bool) -> Result<(), StoreError> {
        let (done, committed) = oneshot::channel();
        {
            let mut state = self.shared.state();
            if state.dirty.is_empty() && state.committing.is_empty() {
                return Ok(());
            }
            if !self.ensure_committer(&mut state) {
                return Err(StoreError::Failed("the index has no thread to write it".to_owned()));
            }
            state.waiters.push(done);
            state.is_urgent |= is_urgent;
        }
        self.shared.wake.notify_all();
        committed.await.unwrap_or_else(|_| Err(StoreError::Failed("the index was closed".to_owned())))
    }

    /// Reads, on a thread that may block.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&View) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = self.shared.clone();
        let done = tokio::task::spawn_blocking(move || shared.read(read));
        done.await.unwrap_or_else(|error| Err(StoreError::Failed(error.to_string())))
    }

    /// Reads, on this thread.
    pub(crate) fn read_here<T>(&self, read: impl FnOnce(&View) -> Result<T, Trouble>) -> Result<T, StoreError> {
        self.shared.read(read)
    }

    /// Returns the loss since which stored sessions may be missing. Opens the file, if there is one.
    pub(super) async fn needs_rebuild(&self) -> Option<u64> {
        if let Err(error) = self.read(|_| Ok(())).await {
            tracing::warn!(%error, "the index cannot be opened");
        }
        let losses = self.shared.losses.load(Ordering::Acquire);
        (self.shared.whole_since.load(Ordering::Acquire) != losses).then_some(losses)
    }

    /// Confirms that every stored session was put since this loss.
    pub(super) async fn rebuilt(&self, loss: u64) -> Result<(), StoreError> {
        self.change([((Table::Meta, REBUILT.to_vec()), Some(Bytes::copy_from_slice(&loss.to_le_bytes())))]);
        self.committed(true).await?;
        // The file may have been set aside meanwhile.
        match self.read(|view| view.get(Table::Meta, REBUILT)).await? {
            None => Err(StoreError::Failed("the index was lost while it was rebuilt".to_owned())),
            Some(_) => {
                self.shared.whole_since.store(loss, Ordering::Release);
                Ok(())
            }
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the file, opened if necessary; `None` if there is none, unless `may_create`.
    fn file(&self, may_create: bool) -> Result<Option<Arc<DerivedFile>>, StoreError> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if file.is_none() && (may_create || self.path.exists()) {
            let opened = match caught(|| self.open()) {
                Err(Trouble::Damaged(why)) => {
                    self.set_aside(&why)?;
                    caught(|| self.open())
                }
                opened => opened,
            };
            *file = Some(opened.map_err(answer)?);
        }
        Ok(file.clone())
    }

    fn open(&self) -> Result<Arc<DerivedFile>, Trouble> {
        let file = DerivedFile::open(&self.path, CACHE_BYTES)?;
        let is_whole = match file.begin_read()?.open_table(Table::Meta.definition()) {
            Err(TableError::TableDoesNotExist(_)) => false,
            meta => {
                let meta = meta?;
                let layout = meta.get(&b"layout"[..])?.map(|layout| unsealed(b"layout", layout.value())).transpose()?;
                match layout.as_deref() {
                    Some(LAYOUT) => meta.get(REBUILT)?.is_some(),
                    Some(_) => return self.make_again(checkpoints(&file)?),
                    None => return Err(Trouble::Damaged("it has no layout".to_owned())),
                }
            }
        };
        let whole_since = if is_whole { self.losses.load(Ordering::Acquire) } else { 0 };
        self.whole_since.store(whole_since, Ordering::Release);
        Ok(Arc::new(file))
    }

    /// Makes the file again in place of one of another layout, with how far readers have come: nothing else knows that.
    fn make_again(&self, checkpoints: Changes) -> Result<Arc<DerivedFile>, Trouble> {
        tracing::info!("the index has another version's layout, and is made again");
        let failed = |error: std::io::Error| Trouble::Failed(error.to_string());
        let made = self.path.with_extension("redb.new");
        if_there(std::fs::remove_file(&made)).map_err(failed)?;
        write(&DerivedFile::open(&made, CACHE_BYTES)?, &checkpoints, 0, &mut Expiry::default())?;
        self.losses.fetch_add(1, Ordering::AcqRel);
        std::fs::rename(&made, &self.path).map_err(failed)?;
        // What is acknowledged from now on is in this file.
        let folder = self.path.parent().map(std::fs::File::open).transpose().map_err(failed)?;
        folder.map(|folder| folder.sync_all()).transpose().map_err(failed)?;
        Ok(Arc::new(DerivedFile::open(&self.path, CACHE_BYTES)?))
    }

    /// Closes a file that failed; a damaged one is set aside, and the next use makes a new one.
    fn give_up(&self, failed: Option<&Arc<DerivedFile>>, trouble: Trouble) -> StoreError {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // Another caller may have found the same failure first: then the open file is a newer one.
        let is_open = failed.is_some_and(|failed| file.as_ref().is_some_and(|open| Arc::ptr_eq(open, failed)));
        if is_open {
            *file = None;
        }
        match &trouble {
            Trouble::Damaged(why) if is_open => match self.set_aside(why) {
                Ok(()) => answer(trouble),
                Err(error) => error,
            },
            _ => answer(trouble),
        }
    }

    fn set_aside(&self, why: &str) -> Result<(), StoreError> {
        self.losses.fetch_add(1, Ordering::AcqRel);
        set_aside(&self.path, why).map_err(answer)
    }

    fn read<T>(&self, read: impl FnOnce(&View) -> Result<T, Trouble>) -> Result<T, StoreError> {
        let view = self.view()?;
        caught(|| read(&view)).map_err(|trouble| self.give_up(view.file.as_ref(), trouble))
    }

    /// Returns the file at one moment, with the changes that are not in it yet.
    fn view(&self) -> Result<View, StoreError> {
        let (file, state) = loop {
            let file = self.file(false)?;
            // The committer drops committed changes under this lock, so that nothing is missing in both. The file may
            // have been created since it was looked for.
            let state = self.state();
            if file.is_some() || !self.path.exists() {
                break (file, state);
            }
        };
        let transaction = file.as_ref().map(|file| file.begin_read()).transpose();
        let (dirty, committing) = (state.dirty.clone(), state.committing.clone());
        drop(state);
        let transaction = transaction.map_err(|trouble| self.give_up(file.as_ref(), trouble))?;
        Ok(View { dirty, committing, file, transaction })
    }

    /// The committer: gathers changes and commits them.
    fn commit_until_closed(&self) {
        let (mut has_failed, mut expiry) = (false, Expiry::default());
        loop {
            let Some(waiters) = self.next_batch(has_failed) else { return };
            let changes = self.state().committing.clone();
            let done = if changes.is_empty() { Ok(()) } else { self.commit(&changes, &mut expiry) };
            drop(changes);
            let had_failed = std::mem::replace(&mut has_failed, done.is_err());
            match &done {
                Ok(()) => self.state().committing = Arc::default(),
                Err(error) => {
                    match had_failed {
                        false => tracing::warn!(%error, "the index was not written; it is tried again"),
                        true => tracing::debug!(%error, "the index was not written; it is tried again"),
                    }
                    drop_snapshots(Arc::make_mut(&mut self.state().committing));
                }
            }
            for waiter in waiters {
                // The caller may have left.
                let _ = waiter.send(done.clone());
            }
        }
    }

    /// Waits until there is something to commit; `None` when the file is closed. After a failure it waits the full
    /// time.
    fn next_batch(&self, has_failed: bool) -> Option<Vec<Waiter>> {
        let idle = |state: &mut State| {
            !state.is_closing && state.waiters.is_empty() && state.dirty.is_empty() && state.committing.is_empty()
        };
        let state = self.wake.wait_while(self.state(), idle).unwrap_or_else(PoisonError::into_inner);
        let gathering = |state: &mut State| {
            !state.is_closing && !state.is_urgent && (has_failed || state.dirty_bytes < COMMIT_BYTES)
        };
        let waited = self.wake.wait_timeout_while(state, COMMIT_AFTER, gathering);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.is_closing {
            return None;
        }
        let newer = std::mem::take(&mut state.dirty);
        match state.committing.is_empty() {
            true => state.committing = newer,
            false => Arc::make_mut(&mut state.committing).extend(Arc::unwrap_or_clone(newer)),
        }
        (state.dirty_bytes, state.is_urgent) = (0, false);
        Some(std::mem::take(&mut state.waiters))
    }

    fn commit(&self, changes: &Changes, expiry: &mut Expiry) -> Result<(), StoreError> {
        if !self.has_room.get().is_none_or(|has_room| has_room()) {
            return Err(StoreError::Full);
        }
        let file = self.file(true)?;
        let Some(open) = &file else { return Ok(()) };
        // Read after the file: if that is a new one, it does not hold every session.
        let loss = self.losses.load(Ordering::Acquire);
        caught(|| write(open, changes, loss, expiry)).map_err(|trouble| self.give_up(file.as_ref(), trouble))
    }
}

/// Drops the snapshots among changes that cannot be written for now, if the changes are many: a snapshot is large, and is
/// made again from its journal. An older one in the file does not count, either.
fn drop_snapshots(changes: &mut Changes) {
    let bytes: usize = changes.values().flatten().map(Bytes::len).sum();
    if bytes > COMMIT_BYTES {
        changes.iter_mut().filter(|((table, _), _)| *table == Table::Snapshots).for_each(|(_, value)| *value = None);
    }
}

/// Reads how far registered readers have come. Readers of meerkat's own begin again.
fn checkpoints(file: &DerivedFile) -> Result<Changes, Trouble> {
    let transaction = file.begin_read()?;
    let table = match transaction.open_table(Table::Checkpoints.definition()) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(Changes::new()),
        table => table?,
    };
    let mut found = Changes::new();
    for row in table.iter()? {
        let (key, value) = row?;
        let key = key.value();
        let is_built_in = BUILT_IN_READERS.iter().any(|reader| key.get(ID_BYTES..) == Some(reader.as_bytes()));
        if let Ok(seq) = unsealed(key, value.value())
            && !is_built_in
            && decode::<Seq>(&seq).is_ok()
        {
            found.insert((Table::Checkpoints, key.to_vec()), Some(seq));
        }
    }
    Ok(found)
}

/// Commits changes. A confirmation that every session was put is skipped if it is older than the last `loss`.
fn write(file: &DerivedFile, changes: &Changes, loss: u64, expiry: &mut Expiry) -> Result<(), Trouble> {
    let transaction = file.begin_write()?;
    transaction.open_table(Table::Meta.definition())?.insert(&b"layout"[..], &*sealed(b"layout", LAYOUT))?;
    let mut places: Vec<(Option<Place>, Option<Place>)> = Vec::new();
    // Places follow from the rows of sessions.
    let mut changes = changes.iter().filter(|((table, _), _)| *table != Table::Changes).peekable();
    while let Some(&((table, _), _)) = changes.peek() {
        let mut open = transaction.open_table(table.definition())?;
        while let Some(((_, key), value)) = changes.next_if(|((next, _), _)| next == table) {
            match value {
                Some(value) if **key == *REBUILT && **value != loss.to_le_bytes() => {}
                // The file has a newer one that could not be read when this was put.
                Some(value) if *table == Table::Keys && is_older_key(value, open.get(&**key)?) => {}
                _ => {
                    let before = match value {
                        Some(value) => open.insert(&**key, &*sealed(key, value))?,
                        None => open.remove(&**key)?,
                    };
                    if *table == Table::Sessions {
                        let before = before.and_then(|row| place(key, row.value().get(SEAL_BYTES..)?));
                        places.push((before, value.as_deref().and_then(|value| place(key, value))));
                    }
                }
            }
            expiry.saw(*table, value.as_deref());
        }
        expiry.forget(*table, &mut open)?;
    }
    if !places.is_empty() {
        let mut open = transaction.open_table(Table::Changes.definition())?;
        for (before, now) in places {
            before.map(|before| open.remove(&*before.key()).map(drop)).transpose()?;
            now.map(|now| open.insert(&*now.key(), &*sealed(&now.key(), &[])).map(drop)).transpose()?;
        }
    }
    transaction.commit()?;
    Ok(())
}

fn is_older_key(put: &[u8], kept: Option<AccessGuard<'_, &'static [u8]>>) -> bool {
    let kept = kept.and_then(|row| decode::<IndexedKey>(row.value().get(SEAL_BYTES..)?).ok());
    decode::<IndexedKey>(put).is_ok_and(|put| !put.replaces(kept.as_ref()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// On a full disk the rest of the room is for running turns; changes can be read all the same.
    #[tokio::test]
    async fn nothing_is_committed_without_room_and_all_of_it_once_there_is_some() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index.redb");
        let file = IndexFile::new(path.clone());
        let has_room = Arc::new(AtomicBool::new(false));
        let asked = has_room.clone();
        file.commits_while(move || asked.load(Ordering::Relaxed));
        file.change([((Table::Meta, b"x".to_vec()), Some(Bytes::from_static(b"y")))]);
        assert_eq!(file.committed(true).await, Err(StoreError::Full));
        assert!(!path.exists(), "it took room");
        let value = file.read(|view| view.get(Table::Meta, b"x")).await.unwrap();
        assert_eq!(value.as_deref(), Some(&b"y"[..]));
        has_room.store(true, Ordering::Relaxed);
        assert_eq!(file.committed(true).await, Ok(()));
        assert!(path.exists());
    }

    /// An import waits for the index, and a full disk has another answer than a broken one.
    #[test]
    fn a_full_disk_is_not_a_failure() {
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        let trouble = Trouble::from(redb::Error::Io(full));
        assert_eq!(answer(trouble), StoreError::Full);
        // A compaction that finds no room for its checkpoint.
        assert_eq!(answer(Trouble::Full("No space left on device".to_owned())), StoreError::Full);
        let broken = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        assert!(matches!(answer(Trouble::from(redb::Error::Io(broken))), StoreError::Failed(_)));
    }

    /// A change whose thread the system refused is committed when a caller waits for it.
    #[tokio::test]
    async fn a_flush_does_not_wait_for_a_thread_that_never_began() {
        let dir = tempfile::tempdir().unwrap();
        let file = IndexFile::new(dir.path().join("index.redb"));
        let row = ((Table::Meta, b"x".to_vec()), Some(Bytes::from_static(b"y")));
        Arc::make_mut(&mut file.shared.state().dirty).extend([row]);
        let committed = tokio::time::timeout(Duration::from_secs(60), file.committed(true));
        assert_eq!(committed.await.expect("it waits for ever"), Ok(()));
    }

    /// A list that is being read keeps what it sees: a change beside it must not copy all that waits for room.
    #[tokio::test]
    async fn a_change_on_a_full_disk_copies_none_of_those_that_wait() {
        let dir = tempfile::tempdir().unwrap();
        let file = IndexFile::new(dir.path().join("index.redb"));
        file.commits_while(|| false);
        let row = |n: u32| ((Table::Sessions, n.to_be_bytes().to_vec()), Some(Bytes::from_static(b"row")));
        file.change((0..1000).map(row));
        assert_eq!(file.committed(true).await, Err(StoreError::Full));
        let view = file.shared.view().unwrap();
        file.change([row(1000)]);
        assert_eq!(file.shared.state().dirty.len(), 1);
        assert_eq!(view.get(Table::Sessions, &1000u32.to_be_bytes()).unwrap(), None);
        for n in [0, 999, 1000_u32] {
            let found = file.read(move |view| view.get(Table::Sessions, &n.to_be_bytes())).await.unwrap();
            assert_eq!(found.as_deref(), Some(&b"row"[..]), "{n}");
        }
    }

    /// Snapshots are large, and each is made again from its journal.
    #[tokio::test]
    async fn an_index_that_cannot_be_written_holds_little_memory() {
        let dir = tempfile::tempdir().unwrap();
        let file = IndexFile::new(dir.path().join("index.redb"));
        file.commits_while(|| false);
        let put = |table, n: u8, bytes| file.change([((table, vec![n]), Some(Bytes::from(vec![n; bytes])))]);
        for n in 0..32 {
            put(Table::Snapshots, n, 1024 * 1024);
            put(Table::Keys, n, 100);
            assert_eq!(file.committed(true).await, Err(StoreError::Full));
        }
        let held: usize = file.shared.state().committing.values().flatten().map(Bytes::len).sum();
        assert!(held <= 2 * COMMIT_BYTES, "{held} bytes");
        for n in 0..32 {
            let key = file.read(move |view| view.get(Table::Keys, &[n])).await.unwrap();
            assert_eq!(key.map(|key| key.len()), Some(100), "{n}");
        }
        // One that is dropped is not the older one in the file, either.
        let first = file.read(|view| view.get(Table::Snapshots, &[0])).await.unwrap();
        assert_eq!(first, None);
    }
}
