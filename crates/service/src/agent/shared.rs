//! What a session's actor shares with those who ask it: the published view and the interrupt slot.
//!
//! Reads take the view and never wait for a turn; an interrupt has a slot of its own and never waits
//! behind a full mailbox.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::{Notify, oneshot, watch};

use crate::{
    SessionError,
    ids::{SessionId, TurnNumber},
    runtime::live::LiveHub,
    service::Changed,
    session::{Session, View},
};

/// How many interrupts may wait to be handled.
const INTERRUPTS_MAX: usize = 256;

/// A wish to interrupt.
pub(crate) struct InterruptWish {
    /// The turn; whichever runs where `None`.
    pub(crate) turn: Option<TurnNumber>,
    pub(crate) reply: oneshot::Sender<Result<Changed, SessionError>>,
}

/// The part of a session that is not its actor's alone.
pub(crate) struct Shared {
    pub(crate) session_id: SessionId,
    pub(crate) live: Arc<LiveHub>,
    pub(crate) view: watch::Sender<View>,
    interrupts: Mutex<Vec<InterruptWish>>,
    pub(crate) interrupted: Notify,
    /// A second panic at the same place: it can be read, and no longer written.
    pub(crate) is_read_only: AtomicBool,
    /// The session was deleted.
    pub(crate) is_deleted: AtomicBool,
}

impl Shared {
    pub(crate) fn new(session: &Session, live: Arc<LiveHub>) -> Arc<Self> {
        Arc::new(Self {
            session_id: session.id(),
            live,
            view: watch::Sender::new(View::of(session)),
            interrupts: Mutex::default(),
            interrupted: Notify::new(),
            is_read_only: AtomicBool::new(false),
            is_deleted: AtomicBool::new(false),
        })
    }

    /// Leaves a wish; the actor takes it whatever it is doing.
    pub(crate) fn wish_interrupt(
        &self,
        turn: Option<TurnNumber>,
    ) -> Result<oneshot::Receiver<Result<Changed, SessionError>>, SessionError> {
        let (reply, answer) = oneshot::channel();
        let mut interrupts = self.interrupts.lock().unwrap_or_else(PoisonError::into_inner);
        if interrupts.len() == INTERRUPTS_MAX {
            return Err(SessionError::QueueFull { what: "interrupts", limit: INTERRUPTS_MAX });
        }
        interrupts.push(InterruptWish { turn, reply });
        drop(interrupts);
        self.interrupted.notify_one();
        Ok(answer)
    }

    pub(crate) fn take_interrupts(&self) -> Vec<InterruptWish> {
        std::mem::take(&mut *self.interrupts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn has_interrupts(&self) -> bool {
        !self.interrupts.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub(crate) fn check_writable(&self) -> Result<(), SessionError> {
        if self.is_read_only.load(Ordering::Acquire) { Err(SessionError::Corrupted(self.session_id)) } else { Ok(()) }
    }
}
