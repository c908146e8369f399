//! The part of an actor that its callers share: the views and the interrupt slot.
//!
//! Reads take a view and never wait for a turn: a caller that has seen an event finds it in the view. An interrupt has
//! a slot of its own and never waits behind a full mailbox.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::{Mutex as AsyncMutex, Notify, oneshot};

use crate::{
    SessionError,
    clock::Timestamp,
    follow::live::LiveHub,
    ids::{Seq, SessionId, TurnNumber},
    service::Changed,
    session::{Session, View},
    store::StoreError,
};

/// Interrupts that may wait.
const INTERRUPTS_MAX: usize = 256;

/// A wish to interrupt.
pub(crate) struct InterruptWish {
    /// The turn; `None` for the running one.
    pub(crate) turn: Option<TurnNumber>,
    pub(crate) reply: oneshot::Sender<Result<Changed, SessionError>>,
}

/// The part of a session that is not its actor's alone.
pub(crate) struct Shared {
    pub(crate) session_id: SessionId,
    pub(crate) live: Arc<LiveHub>,
    /// Views that may be seen once their seq is durable, the oldest first: there is always one that may.
    views: Mutex<VecDeque<View>>,
    /// Last seq in lists, or 0; locked while a later one is listed, so that lists never go back.
    pub(crate) listed: AsyncMutex<Seq>,
    /// `None` once the actor has left.
    interrupts: Mutex<Option<Vec<InterruptWish>>>,
    pub(crate) interrupted: Notify,
    /// True after a second panic at one place: the session can be read, but not written.
    pub(crate) is_read_only: AtomicBool,
    /// The session was deleted.
    pub(crate) is_deleted: AtomicBool,
    /// Why the actor has left or leaves, if that was not its wish: an error of the store, or another owner.
    pub(crate) failure: OnceLock<SessionError>,
}

impl Shared {
    pub(crate) fn new(session: &Session, live: Arc<LiveHub>) -> Arc<Self> {
        Arc::new(Self {
            session_id: session.id,
            live,
            views: Mutex::new(VecDeque::from([View::of(session)])),
            listed: AsyncMutex::new(session.last_seq),
            interrupts: Mutex::new(Some(Vec::new())),
            interrupted: Notify::new(),
            is_read_only: AtomicBool::new(false),
            is_deleted: AtomicBool::new(false),
            failure: OnceLock::new(),
        })
    }

    fn views(&self) -> MutexGuard<'_, VecDeque<View>> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes records, and adds the view after them, which readers get as soon as its last record is durable. That may be
    /// before `make` returns, so they wait for it.
    pub(crate) fn show<T>(&self, make: impl FnOnce() -> Result<(View, T), StoreError>) -> Result<T, StoreError> {
        let mut views = self.views();
        let (view, made) = make()?;
        views.push_back(view);
        Ok(made)
    }

    /// Replaces all views, after records were lost.
    pub(crate) fn show_only(&self, view: View) {
        *self.views() = VecDeque::from([view]);
    }

    /// The last event that everybody may see: it is durable.
    pub(crate) fn shown_seq(&self) -> Seq {
        self.views().front().map_or(0, |view| view.summary.last_seq)
    }

    /// Returns the newest view of which everything is durable.
    pub(crate) fn view(&self, durable: Seq) -> Option<View> {
        self.views_from(durable).front().cloned()
    }

    /// Drops the views before the newest one of which everything is durable.
    pub(crate) fn forget_before(&self, durable: Seq) {
        drop(self.views_from(durable));
    }

    fn views_from(&self, durable: Seq) -> MutexGuard<'_, VecDeque<View>> {
        let mut views = self.views();
        while views.get(1).is_some_and(|next| next.summary.last_seq <= durable) {
            views.pop_front();
        }
        views
    }

    /// Time of the last change.
    pub(crate) fn changed_at(&self) -> Option<Timestamp> {
        self.views().back().map(|view| view.summary.updated_at)
    }

    /// The last event that was made, perhaps not yet durable.
    pub(crate) fn newest_seq(&self) -> Seq {
        self.views().back().map_or(0, |view| view.summary.last_seq)
    }

    /// Returns true if lists may lack a record.
    pub(crate) fn is_unlisted(&self) -> bool {
        let newest = self.newest_seq();
        // A task that holds the lock may be listing an older record.
        self.listed.try_lock().map_or(true, |listed| *listed != newest)
    }

    fn interrupts(&self) -> MutexGuard<'_, Option<Vec<InterruptWish>>> {
        self.interrupts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves a wish; the actor takes it whatever it is doing.
    pub(crate) fn wish_interrupt(
        &self,
        turn: Option<TurnNumber>,
    ) -> Result<oneshot::Receiver<Result<Changed, SessionError>>, SessionError> {
        let (reply, answer) = oneshot::channel();
        match self.interrupts().as_mut() {
            None => return Err(SessionError::NotRunning { turn }),
            Some(wishes) if wishes.len() == INTERRUPTS_MAX => {
                return Err(SessionError::QueueFull { what: "interrupts", limit: INTERRUPTS_MAX });
            }
            Some(wishes) => wishes.push(InterruptWish { turn, reply }),
        }
        self.interrupted.notify_one();
        Ok(answer)
    }

    pub(crate) fn take_interrupts(&self) -> Vec<InterruptWish> {
        self.interrupts().as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(crate) fn has_interrupts(&self) -> bool {
        self.interrupts().as_ref().is_some_and(|wishes| !wishes.is_empty())
    }

    /// Refuses waiting interrupts, because the actor has left and nothing runs.
    pub(crate) fn close(&self) {
        for wish in self.interrupts().take().into_iter().flatten() {
            drop(wish.reply.send(Err(SessionError::NotRunning { turn: wish.turn })));
        }
    }

    pub(crate) fn check_writable(&self) -> Result<(), SessionError> {
        let damaged = SessionError::Corrupted { session_id: self.session_id, last_good_seq: None };
        if self.is_read_only.load(Ordering::Acquire) { Err(damaged) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
