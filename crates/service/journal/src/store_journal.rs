//! The store journal: marks of sessions that are active or idle, and of readers.
//!
//! It never determines if a session exists. It is one segment, rewritten when it is long, damaged, or a write to it has
//! failed.

mod file;
mod state;

use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

pub(crate) use self::state::Done;
pub use self::{
    file::{Marks, look},
    state::Resting,
};
use self::{
    file::{Writer, append, load, rewrite},
    state::{MARK_BYTES, Marked, Pending, RESTING_MAX, State},
};

use super::{
    End, Limits,
    disk::{Disk, failed, is_full},
    executor::Executor,
    health::Health,
    layout::exists,
    lock,
    marks::Kept,
};
use meerkat_words::{
    ids::SessionId,
    store::{ReaderMark, ReaderMarks, StoreError},
};

/// Length from which the journal is rewritten when it is opened.
const OPEN_BYTES_MAX: u64 = 256 * 1024;
/// Marks of a store.
pub struct StoreJournal {
    disk: Arc<dyn Disk>,
    executor: Arc<dyn Executor>,
    health: Arc<Health>,
    bytes_max: u64,
    state: Mutex<State>,
    /// Held by the single writing job.
    writer: Mutex<Writer>,
}

/// Writing job. It leaves no caller waiting, even if it panics.
struct Writing {
    journal: Arc<StoreJournal>,
    is_over: bool,
}

impl Writing {
    fn run(mut self) {
        self.journal.write_pending();
        self.is_over = true;
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        self.journal.health.end_writing("the store journal: a write panicked");
        let mut state = lock(&self.journal.state);
        state.is_writing = false;
        let lost = std::mem::take(&mut state.pending);
        drop(state);
        // Callers get an error when their callbacks are dropped.
        drop(lost);
    }
}

impl StoreJournal {
    /// Opens the store journal, or makes one if the store is new. A damaged one is set aside, its good marks are kept,
    /// and every session counts as active.
    pub fn open(
        disk: Arc<dyn Disk>,
        executor: Arc<dyn Executor>,
        health: Arc<Health>,
        limits: &Limits,
        is_new: bool,
    ) -> Result<Self, StoreError> {
        let bytes_max = limits.store_journal_bytes;
        let mut state = State::default();
        let mut writer = load(disk.as_ref(), &mut state, is_new).map_err(failed)?;
        if (writer.file.is_none() || writer.at.offset > OPEN_BYTES_MAX.max(2 * state.kept_bytes()))
            && let Err(error) = rewrite(disk.as_ref(), state.marks(), &mut writer)
        {
            // Reading works without it; the first mark tries again.
            tracing::warn!(%error, "the store journal could not be rewritten");
        }
        Ok(Self { disk, executor, health, bytes_max, state: Mutex::new(state), writer: Mutex::new(writer) })
    }

    /// Returns the active sessions: those that may have changed since they were last idle.
    pub fn active(&self) -> Vec<SessionId> {
        lock(&self.state).active.iter().copied().collect()
    }

    /// Returns true if a session may have changed since it was last idle.
    pub fn is_active(&self, id: SessionId) -> bool {
        lock(&self.state).active.contains(&id)
    }

    /// Returns the end of a session's journal when it last became idle.
    pub fn resting(&self, id: SessionId) -> Option<End> {
        lock(&self.state).resting.get(&id).map(Resting::end)
    }

    /// Marks a session as active; calls `written` once the mark is written, `done` once it is durable.
    pub(super) fn mark_active(self: &Arc<Self>, id: SessionId, written: Option<Done>, done: Done) {
        self.push(Pending { marked: Marked::Active(id), written, done });
    }

    /// Marks a session as active, and waits until the mark is durable.
    pub async fn mark(self: &Arc<Self>, id: SessionId) -> Result<(), StoreError> {
        if self.is_active(id) {
            return Ok(());
        }
        self.write_durably(Marked::Active(id)).await
    }

    /// Writes a mark of readers, and waits until it is durable.
    pub async fn mark_reader(self: &Arc<Self>, mark: ReaderMark) -> Result<(), StoreError> {
        self.write_durably(Marked::Kept(Kept::Of(mark))).await
    }

    /// Looks at the readers.
    pub fn of_readers<T>(&self, look: impl FnOnce(&ReaderMarks) -> T) -> T {
        look(&lock(&self.state).readers)
    }

    /// Writes a mark of readers; calls `done` once it is durable.
    pub(super) fn mark_of_reader(self: &Arc<Self>, mark: ReaderMark, done: Done) {
        self.push(Pending { marked: Marked::Kept(Kept::Of(mark)), written: None, done });
    }

    async fn write_durably(self: &Arc<Self>, marked: Marked) -> Result<(), StoreError> {
        let (done, written) = oneshot::channel();
        self.push(Pending { marked, written: None, done: Box::new(|result| drop(done.send(result))) });
        written.await.unwrap_or_else(|_| Err(StoreError::Failed("the store journal ended".to_owned())))
    }

    /// Marks a session as idle; calls `done` once the mark is written. It needs no sync: if it is lost, the next start
    /// examines the session once more.
    pub fn mark_resting(self: &Arc<Self>, resting: Resting, done: Done) {
        self.push(Pending { marked: Marked::Resting(resting), written: None, done });
    }

    /// Forgets the end of a session whose directory is deleted. The session stays active until no list can show it.
    pub(super) fn forget_end(&self, id: SessionId) {
        lock(&self.state).forget_end(id);
    }

    /// Marks a session as deleted everywhere. The mark needs no sync: if it is lost, the next start finds the same.
    pub fn mark_gone(self: &Arc<Self>, id: SessionId) {
        let done = move |result: Result<(), StoreError>| {
            if let Err(error) = result {
                tracing::debug!(session_id = %id, %error, "a deleted session is looked at by the next start");
            }
        };
        self.push(Pending { marked: Marked::Gone(id), written: None, done: Box::new(done) });
    }

    /// Marks a session that is about to appear: first its end, then as active, and waits until both are durable.
    /// Otherwise an older mark of the same, since deleted, id would count as a loss.
    pub async fn mark_made(self: &Arc<Self>, resting: Resting) -> Result<(), StoreError> {
        self.write_durably(Marked::Resting(resting)).await?;
        self.mark(resting.session_id).await
    }

    fn push(self: &Arc<Self>, pending: Pending) {
        let mut state = lock(&self.state);
        // From now on the session is not active, so that the next append marks it again, after this mark.
        if let Marked::Resting(Resting { session_id: id, .. }) | Marked::Gone(id) = &pending.marked {
            state.active.remove(id);
        }
        state.pending.push(pending);
        if !std::mem::replace(&mut state.is_writing, true) {
            drop(state);
            let writing = Writing { journal: self.clone(), is_over: false };
            self.executor.run(Box::new(move || writing.run()));
        }
    }

    /// Writes the pending marks until none are left.
    fn write_pending(&self) {
        let mut writer = lock(&self.writer);
        loop {
            let mut pending = {
                let mut state = lock(&self.state);
                if state.pending.is_empty() {
                    state.is_writing = false;
                    return;
                }
                std::mem::take(&mut state.pending)
            };
            let written = self.write(&mut writer, &mut pending);
            for waiting in pending {
                if let Some(told) = waiting.written {
                    told(written.clone());
                }
                (waiting.done)(written.clone());
            }
        }
    }

    fn write(&self, writer: &mut Writer, pending: &mut [Pending]) -> Result<(), StoreError> {
        self.health.check_writable()?;
        let disk = self.disk.as_ref();
        let marks: Vec<Marked> = pending.iter().map(|waiting| waiting.marked.clone()).collect();
        let marks = || marks.iter().cloned();
        let needs_sync = marks().any(|marked| !matches!(marked, Marked::Resting(_)));
        let mut tell = || pending.iter_mut().filter_map(|waiting| waiting.written.take()).for_each(|told| told(Ok(())));
        let mut attempt = || {
            if writer.file.is_none() {
                // Copied first: the state's lock is not held during disk access.
                let kept: Vec<Marked> = lock(&self.state).marks().collect();
                rewrite(disk, kept, writer)?;
            }
            append(writer, marks(), needs_sync, &mut tell)
        };
        let mut written = attempt();
        // Unfinished sessions can wait for room, and the next start finds the other marks by itself.
        let may_use_reserve = |marked: Marked| match marked {
            Marked::Active(id) => exists(disk, id),
            Marked::Kept(_) => true,
            Marked::Resting(_) | Marked::Gone(_) => false,
        };
        if written.as_ref().is_err_and(is_full) && marks().any(may_use_reserve) && self.health.release_reserve(disk) {
            written = attempt();
        }
        let mut state = lock(&self.state);
        // After a failure the outcome is unknown, and counting a session as active is never wrong. On a full disk
        // nothing was written, and the next append marks the session again.
        let is_unknown = written.as_ref().is_err_and(|error| !is_full(error));
        let counts = |marked: &Marked| written.is_ok() || (is_unknown && matches!(marked, Marked::Active(_)));
        marks().filter(counts).for_each(|it| state.apply(it));
        if let Err(error) = &written
            && !is_full(error)
        {
            self.health.failed(&format!("the store journal: {error}"));
            // A file whose sync failed is not written again.
            writer.file = None;
        }
        let needed = state.kept_bytes() + MARK_BYTES * RESTING_MAX as u64;
        let is_long = writer.at.offset > self.bytes_max.max(4 * needed);
        let kept: Option<Vec<Marked>> = (writer.file.is_none() || is_long).then(|| state.marks().collect());
        drop(state);
        if let Some(kept) = kept
            && let Err(error) = rewrite(disk, kept, writer)
        {
            tracing::warn!(%error, "the store journal could not be rewritten");
        }
        written.map_err(failed)
    }
}
