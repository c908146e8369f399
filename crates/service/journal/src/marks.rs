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
    disk::{Disk, create_anew, failed, if_there, is_full, read_range, write_new},
    executor::Executor,
    health::Health,
    layout::{ACTIVE, NEW, READERS, exists, log_unlisted, sessions_on, with_folders},
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
    /// True if nothing was known of active sessions when the store was opened, so that all count as active.
    are_lost: bool,
}

#[derive(Default)]
struct State {
    active: BTreeSet<SessionId>,
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
    /// Reads the marks of a prepared store. If the folder of active sessions had to be made again, all count as active.
    pub fn open(
        disk: Arc<dyn Disk>,
        executor: Arc<dyn Executor>,
        health: Arc<Health>,
        are_lost: bool,
    ) -> Result<Self, StoreError> {
        let mut found = look(disk.as_ref()).map_err(failed)?;
        // A killed process may have left them in the system's memory alone.
        for folder in [ACTIVE, READERS] {
            match disk.sync_dir(Path::new(folder)) {
                Err(error) if !is_full(&error) => return Err(failed(error)),
                _ => {}
            }
        }
        if are_lost {
            tracing::warn!("the folder of active sessions was missing: every session is looked at");
            found.active.extend(sessions_on(disk.as_ref(), &mut log_unlisted).map_err(failed)?);
        }
        let state = State { active: found.active, readers: found.readers, ..State::default() };
        Ok(Self { disk, executor, health, state: Mutex::new(state), are_lost })
    }

    /// Returns true if nothing was known of active sessions, and of those that were deleted, when the store was opened.
    pub const fn are_lost(&self) -> bool {
        self.are_lost
    }

    /// Returns the active sessions: those that may have changed since they were last idle.
    pub fn active(&self) -> Vec<SessionId> {
        lock(&self.state).active.iter().copied().collect()
    }

    /// Returns true if a session may have changed since it was last idle.
    pub fn is_active(&self, id: SessionId) -> bool {
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
        if self.is_active(id) {
            return Ok(());
        }
        self.write_durably(Change::Active(id)).await
    }

    /// Registers a reader, and waits until that is durable.
    pub async fn register(self: &Arc<Self>, registration: Registration) -> Result<(), StoreError> {
        if lock(&self.state).readers.contains_key(&registration.reader) {
            return Ok(());
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
            state.active.remove(id);
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
                Change::Active(id) => drop(state.active.insert(id)),
                Change::Idle(id) => drop(state.active.remove(&id)),
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
            Change::Active(id) => with_folders(disk, || create_anew(disk, &active_of(*id)).map(drop)),
            Change::Idle(id) => if_there(disk.remove(&active_of(*id))).map(drop),
            Change::Reader(registration) => write_reader(disk, registration),
            Change::Unreader(reader) => if_there(disk.remove(&reader_of(reader))).map(drop),
        };
        let mut done = attempt();
        // Unfinished sessions can wait for room.
        let may_use_reserve = match change {
            Change::Active(id) => exists(disk, *id),
            Change::Reader(_) | Change::Unreader(_) => true,
            Change::Idle(_) => false,
        };
        if done.as_ref().is_err_and(is_full) && may_use_reserve && self.health.release_reserve(disk) {
            done = attempt();
        }
        done.map_err(|error| self.trouble(error))
    }

    /// Returns the error for callers; a disk that is not full may be faulty.
    fn trouble(&self, error: io::Error) -> StoreError {
        if !is_full(&error) {
            self.health.failed(&format!("the marks of the store: {error}"));
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
        let Some(reader) = name.strip_suffix(READER) else { continue };
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
    for id in active {
        with_folders(disk, || create_anew(disk, &active_of(*id)).map(drop))?;
    }
    for registration in readers {
        write_reader(disk, registration)?;
    }
    disk.sync_dir(Path::new(ACTIVE))?;
    disk.sync_dir(Path::new(READERS))
}
