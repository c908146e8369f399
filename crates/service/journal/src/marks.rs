//! Marks of a store: which sessions may have changed since they were last idle, and which readers are registered.
//!
//! Each mark is a file: `active/<session>`, which is empty, and `readers/<reader>.json`. None of them determines if a
//! session exists.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use tokio::sync::oneshot;

use super::{
    disk::{Disk, create_anew, ensure_dir, failed, if_there, is_full, is_missing, read_range, write_new},
    executor::Executor,
    health::Health,
    layout::{ACTIVE, NEW, READERS, exists, with_folders},
    lock,
};
use meerkat_words::{
    clock::Timestamp,
    ids::SessionId,
    store::{Registration, StoreError},
};

/// End of the name of a reader's file.
const READER: &str = ".json";
/// Most bytes of a reader's file that are read.
const READER_BYTES_MAX: u64 = 4096;

/// Callback for a written, or for a durable mark.
pub(crate) type Done = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// Marks of a store.
pub struct Marks {
    disk: Arc<dyn Disk>,
    executor: Arc<dyn Executor>,
    health: Arc<Health>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Sessions whose mark this process has made durable.
    active: BTreeSet<SessionId>,
    /// Sessions that a former process marked. Whether that mark is durable is not known, so that an append makes it again.
    found: BTreeSet<SessionId>,
    readers: BTreeMap<String, Timestamp>,
    pending: Vec<Pending>,
    is_writing: bool,
}

#[derive(Clone)]
enum Change {
    Active(SessionId),
    Idle(SessionId),
    Reader(Registration),
    Unreader(String),
}

impl State {
    fn forget(&mut self, id: SessionId) {
        self.active.remove(&id);
        self.found.remove(&id);
    }

    /// Returns true if the session came to rest while its mark was written.
    fn is_to_be_idle(&self, id: SessionId) -> bool {
        self.pending.iter().any(|waiting| matches!(waiting.change, Change::Idle(idle) if idle == id))
    }
}

impl Change {
    /// Returns the folder whose sync makes the change durable, if it must be.
    const fn synced_in(&self) -> Option<&'static str> {
        match self {
            Self::Active(_) => Some(ACTIVE),
            Self::Idle(_) => None,
            Self::Reader(_) | Self::Unreader(_) => Some(READERS),
        }
    }
}

struct Pending {
    change: Change,
    /// Called once it is written, before the sync.
    written: Option<Done>,
    done: Done,
}

/// Writing job. It leaves no caller waiting, even if it panics.
struct Writing {
    marks: Arc<Marks>,
    is_over: bool,
}

impl Writing {
    fn run(mut self) {
        self.marks.write_pending();
        self.is_over = true;
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        self.marks.health.end_writing("the marks of the store: a write panicked");
        let mut state = lock(&self.marks.state);
        state.is_writing = false;
        let lost = std::mem::take(&mut state.pending);
        drop(state);
        // Callers get an error when their callbacks are dropped.
        drop(lost);
    }
}

impl Marks {
    /// Reads the marks of a prepared store.
    pub fn open(disk: Arc<dyn Disk>, executor: Arc<dyn Executor>, health: Arc<Health>) -> Result<Self, StoreError> {
        let Found { active: found, readers, .. } = look(disk.as_ref()).map_err(failed)?;
        // A killed process may have left them in the system's memory alone.
        if !readers.is_empty()
            && let Err(error) = disk.sync_dir(Path::new(READERS))
            && !is_full(&error)
        {
            return Err(failed(error));
        }
        let state = State { found, readers, ..State::default() };
        Ok(Self { disk, executor, health, state: Mutex::new(state) })
    }

    /// Returns the active sessions: those that may have changed since they were last idle.
    pub fn active(&self) -> Vec<SessionId> {
        let state = lock(&self.state);
        state.active.union(&state.found).copied().collect()
    }

    /// Returns true if a session may have changed since it was last idle.
    pub fn is_active(&self, id: SessionId) -> bool {
        let state = lock(&self.state);
        state.active.contains(&id) || state.found.contains(&id)
    }

    /// Returns true if a session is active, and its mark is durable.
    pub(super) fn is_marked(&self, id: SessionId) -> bool {
        lock(&self.state).active.contains(&id)
    }

    /// Lists the readers by name.
    pub fn readers(&self) -> Vec<Registration> {
        registrations(&lock(&self.state).readers)
    }

    /// Marks a session as active; calls `written` once the mark is written, `done` once it is durable.
    pub(super) fn mark_active(self: &Arc<Self>, id: SessionId, written: Option<Done>, done: Done) {
        self.push(Pending { change: Change::Active(id), written, done });
    }

    /// Marks a session as active, and waits until the mark is durable.
    pub async fn mark(self: &Arc<Self>, id: SessionId) -> Result<(), StoreError> {
        if self.is_marked(id) {
            return Ok(());
        }
        self.write_durably(Change::Active(id)).await
    }

    /// Registers a reader, and waits until that is durable. One that is registered keeps its time.
    pub async fn register(self: &Arc<Self>, mut registration: Registration) -> Result<(), StoreError> {
        if let Some(created_at) = lock(&self.state).readers.get(&registration.reader) {
            registration.created_at = *created_at;
        }
        self.write_durably(Change::Reader(registration)).await
    }

    /// Deletes a reader, and waits until that is durable.
    pub async fn unregister(self: &Arc<Self>, reader: &str) -> Result<(), StoreError> {
        self.write_durably(Change::Unreader(reader.to_owned())).await
    }

    async fn write_durably(self: &Arc<Self>, change: Change) -> Result<(), StoreError> {
        let (done, written) = oneshot::channel();
        self.push(Pending { change, written: None, done: Box::new(|result| drop(done.send(result))) });
        written.await.unwrap_or_else(|_| Err(StoreError::Failed("the marks of the store ended".to_owned())))
    }

    /// Marks a session as idle, or as deleted everywhere; calls `done` once the mark is gone. It needs no sync: if it
    /// comes back, the next start examines the session once more.
    pub fn mark_idle(self: &Arc<Self>, id: SessionId, done: Done) {
        self.push(Pending { change: Change::Idle(id), written: None, done });
    }

    fn push(self: &Arc<Self>, pending: Pending) {
        let mut state = lock(&self.state);
        // From now on the session is not active, so that the next append marks it again, after this change.
        if let Change::Idle(id) = &pending.change {
            state.forget(*id);
        }
        state.pending.push(pending);
        if !std::mem::replace(&mut state.is_writing, true) {
            drop(state);
            let writing = Writing { marks: self.clone(), is_over: false };
            self.executor.run(Box::new(move || writing.run()));
        }
    }

    /// Makes the pending changes until none are left.
    fn write_pending(&self) {
        loop {
            let pending = {
                let mut state = lock(&self.state);
                if state.pending.is_empty() {
                    state.is_writing = false;
                    return;
                }
                std::mem::take(&mut state.pending)
            };
            self.write(pending);
        }
    }

    /// Makes changes in their order, with one sync for those of sessions and one for those of readers.
    fn write(&self, pending: Vec<Pending>) {
        let mut waiting: Vec<(Change, Done, Result<(), StoreError>)> = Vec::new();
        for Pending { change, written, done } in pending {
            let result = self.change(&change);
            if let Some(told) = written {
                told(result.clone());
            }
            waiting.push((change, done, result));
        }
        for folder in [ACTIVE, READERS] {
            let is_in = |change: &Change| change.synced_in() == Some(folder);
            let mut made = waiting.iter_mut().filter(|(change, _, result)| is_in(change) && result.is_ok()).peekable();
            if made.peek().is_some()
                && let Err(error) = self.disk.sync_dir(Path::new(folder))
            {
                // The names may be durable or not. The next attempt makes them again.
                let error = self.trouble(error);
                made.for_each(|(_, _, result)| *result = Err(error.clone()));
            }
        }
        let mut state = lock(&self.state);
        for (change, ..) in waiting.iter().filter(|(_, _, result)| result.is_ok()) {
            match change.clone() {
                Change::Active(id) if state.is_to_be_idle(id) => {}
                Change::Active(id) => drop(state.active.insert(id)),
                Change::Idle(id) => state.forget(id),
                Change::Reader(Registration { reader, created_at }) => {
                    state.readers.entry(reader).or_insert(created_at);
                }
                Change::Unreader(reader) => drop(state.readers.remove(&reader)),
            }
        }
        drop(state);
        for (_, done, result) in waiting {
            done(result);
        }
    }

    /// Makes one change, without a sync.
    fn change(&self, change: &Change) -> Result<(), StoreError> {
        self.health.check_writable()?;
        let disk = self.disk.as_ref();
        let attempt = || match change {
            Change::Active(id) => self.write_active(*id),
            Change::Idle(id) => if_there(disk.remove(&active_of(*id))).map(drop),
            Change::Reader(registration) => write_reader(disk, registration),
            Change::Unreader(reader) => if_there(disk.remove(&reader_of(reader))).map(drop),
        };
        let mut done = attempt();
        // Unfinished sessions can wait for room.
        let may_use_reserve = || match change {
            Change::Active(id) => exists(disk, *id),
            Change::Reader(_) | Change::Unreader(_) => true,
            Change::Idle(_) => false,
        };
        if done.as_ref().is_err_and(is_full) && may_use_reserve() && self.health.release_reserve(disk) {
            done = attempt();
        }
        done.map_err(|error| self.trouble(error))
    }

    /// Writes a session's mark. If the folder has gone, it appears again with all marks at once.
    fn write_active(&self, id: SessionId) -> io::Result<()> {
        let disk = self.disk.as_ref();
        match write_active(disk, id) {
            Err(error) if is_missing(&error) && if_there(disk.list(Path::new(ACTIVE)))?.is_none() => {
                tracing::warn!("the folder of active sessions was missing, and is made again");
                with_folders(disk, || make_active(disk, self.active().into_iter().chain([id])))
            }
            written => written,
        }
    }

    /// Returns the error for callers; a disk that is not full may be faulty.
    fn trouble(&self, error: io::Error) -> StoreError {
        if !is_full(&error) {
            self.health.failed("the marks of the store", &error);
        }
        failed(error)
    }
}

/// Returns the path of a session's mark.
fn active_of(id: SessionId) -> PathBuf {
    Path::new(ACTIVE).join(id.to_string())
}

/// Returns the path of a reader's file. The end of the name keeps `.` and `..` from being folders.
fn reader_of(reader: &str) -> PathBuf {
    Path::new(READERS).join(format!("{reader}{READER}"))
}

/// Writes a session's mark in place of what may be there: what is durable of that stays until it is.
fn write_active(disk: &dyn Disk, id: SessionId) -> io::Result<()> {
    let made = Path::new(NEW).join("mark");
    with_folders(disk, || create_anew(disk, &made).map(drop))?;
    disk.rename(&made, &active_of(id))
}

/// Makes the folder of active sessions, durably. It appears with all these marks, or not at all.
pub(super) fn make_active(disk: &dyn Disk, ids: impl Iterator<Item = SessionId>) -> io::Result<()> {
    let made = Path::new(NEW).join(ACTIVE);
    if_there(disk.remove(&made))?;
    disk.create_dir(&made)?;
    let ids: BTreeSet<SessionId> = ids.collect();
    for id in ids {
        disk.create(&made.join(id.to_string()))?;
    }
    disk.sync_dir(&made)?;
    disk.rename(&made, Path::new(ACTIVE))?;
    disk.sync_dir(Path::new(""))
}

fn write_reader(disk: &dyn Disk, registration: &Registration) -> io::Result<()> {
    let made = Path::new(NEW).join("reader");
    let line = serde_json::to_vec(registration)?;
    with_folders(disk, || write_new(disk, &made, &line).map(drop))?;
    with_folders(disk, || disk.rename(&made, &reader_of(&registration.reader)))
}

fn registrations(readers: &BTreeMap<String, Timestamp>) -> Vec<Registration> {
    let registration =
        |(reader, created_at): (&String, &Timestamp)| Registration { reader: reader.clone(), created_at: *created_at };
    readers.iter().map(registration).collect()
}

/// Marks as they are on the disk.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Active sessions.
    pub active: BTreeSet<SessionId>,
    /// Readers with their times of registration.
    pub readers: BTreeMap<String, Timestamp>,
    /// True if it is known which sessions are active.
    pub is_whole: bool,
}

impl Found {
    /// Lists the readers by name.
    #[must_use]
    pub fn readers(&self) -> Vec<Registration> {
        registrations(&self.readers)
    }
}

/// Reads the marks without changing anything.
pub(super) fn look(disk: &dyn Disk) -> io::Result<Found> {
    let active = if_there(disk.list(Path::new(ACTIVE)))?;
    let mut found = Found { is_whole: active.is_some(), ..Found::default() };
    let named = |name: String| name.parse::<SessionId>().ok().filter(|id| id.to_string() == name);
    found.active.extend(active.unwrap_or_default().into_iter().filter_map(named));
    for name in if_there(disk.list(Path::new(READERS)))?.unwrap_or_default() {
        // Others could not be deleted by their names.
        let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-');
        let reader = name.strip_suffix(READER).filter(|reader| reader.bytes().all(is_allowed));
        let Some(reader) = reader else { continue };
        let read = disk.open(&reader_of(reader), false).and_then(|file| read_range(file.as_ref(), 0, READER_BYTES_MAX));
        let known = read.and_then(|line| Ok(serde_json::from_slice::<Registration>(&line)?));
        let created_at = known.map_or_else(
            |error| {
                // That there is one is what counts.
                tracing::warn!(reader, %error, "when a reader was registered cannot be read");
                Timestamp::from_millis(0)
            },
            |known| known.created_at,
        );
        found.readers.insert(reader.to_owned(), created_at);
    }
    Ok(found)
}

/// Writes marks while no process has the store open, durably.
pub fn write_marks(disk: &dyn Disk, active: &BTreeSet<SessionId>, readers: &[Registration]) -> io::Result<()> {
    with_folders(disk, || ensure_dir(disk, Path::new(ACTIVE)).map(drop))?;
    for id in active {
        write_active(disk, *id)?;
    }
    for registration in readers {
        write_reader(disk, registration)?;
    }
    with_folders(disk, || [ACTIVE, READERS, ""].into_iter().try_for_each(|folder| disk.sync_dir(Path::new(folder))))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::{RealDisk, executor::Pool};

    /// Otherwise an append at that moment would rely on a mark that is about to go.
    #[test]
    fn a_session_that_comes_to_rest_while_its_mark_is_written_is_marked_again() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, pool) = (Arc::new(RealDisk::new(dir.path().to_owned())), Pool::new().unwrap());
        std::fs::create_dir(dir.path().join("journal")).unwrap();
        write_marks(disk.as_ref(), &BTreeSet::new(), &[]).unwrap();
        let marks = Arc::new(Marks::open(disk, Arc::new(pool), Arc::new(Health::new(0))).unwrap());
        let id = SessionId::from_uuid(uuid::Uuid::from_u128(7));
        let (told, tells) = mpsc::channel();
        let (at_rest, durable) = (told.clone(), told);
        let (rests, looks) = (marks.clone(), marks.clone());
        let written = move |_| rests.mark_idle(id, Box::new(move |_| at_rest.send(("at rest", false)).unwrap()));
        let done = move |_| durable.send(("durable", looks.is_marked(id))).unwrap();
        marks.mark_active(id, Some(Box::new(written)), Box::new(done));
        assert_eq!(tells.iter().collect::<Vec<_>>(), [("durable", false), ("at rest", false)]);
        let (durable, tells) = mpsc::channel();
        marks.mark_active(id, None, Box::new(move |result| durable.send(result).unwrap()));
        assert_eq!(tells.recv().unwrap(), Ok(()));
        assert!(marks.is_marked(id) && dir.path().join(active_of(id)).exists());
    }
}
