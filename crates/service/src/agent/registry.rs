//! The actors that are in memory, by session, and the protocol by which one leaves.
//!
//! A caller reserves an entry before it sends; an actor leaves only when, under the same lock, nothing
//! is reserved and nothing is left in its mailbox. So no command ever reaches an actor that is gone.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::mpsc;

use super::{command::Command, shared::Shared};
use crate::ids::SessionId;

/// Commands that may wait in one mailbox; more wait at their senders.
pub(crate) const MAILBOX_MAX: usize = 64;

/// The actors in memory.
#[derive(Default)]
pub(crate) struct Registry {
    entries: Mutex<HashMap<SessionId, Entry>>,
}

struct Entry {
    mailbox: mpsc::Sender<Command>,
    shared: Arc<Shared>,
    /// Callers that hold a reservation.
    reserved: usize,
}

/// The right to ask an actor, which keeps it in memory.
pub(crate) struct Reservation {
    registry: Arc<Registry>,
    pub(crate) mailbox: mpsc::Sender<Command>,
    pub(crate) shared: Arc<Shared>,
}

impl Registry {
    fn entries(&self) -> MutexGuard<'_, HashMap<SessionId, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries().len()
    }

    pub(crate) fn ids(&self) -> Vec<SessionId> {
        self.entries().keys().copied().collect()
    }

    pub(crate) fn insert(&self, shared: Arc<Shared>, mailbox: mpsc::Sender<Command>) {
        self.entries().insert(shared.session_id, Entry { mailbox, shared, reserved: 0 });
    }

    /// Reserves the actor of a session.
    pub(crate) fn reserve(self: &Arc<Self>, session_id: SessionId) -> Option<Reservation> {
        let mut entries = self.entries();
        let entry = entries.get_mut(&session_id)?;
        entry.reserved += 1;
        Some(Reservation { registry: self.clone(), mailbox: entry.mailbox.clone(), shared: entry.shared.clone() })
    }

    /// What everybody may see of a session; it keeps nothing in memory.
    pub(crate) fn shared(&self, session_id: SessionId) -> Option<Arc<Shared>> {
        self.entries().get(&session_id).map(|entry| entry.shared.clone())
    }

    /// Takes the actor out if nobody needs it; `is_mailbox_empty` is asked under the lock.
    pub(crate) fn leave(&self, session_id: SessionId, is_mailbox_empty: impl FnOnce() -> bool) -> bool {
        let mut entries = self.entries();
        let is_free =
            entries.get(&session_id).is_some_and(|entry| entry.reserved == 0 && !entry.shared.has_interrupts());
        let leaves = is_free && is_mailbox_empty();
        if leaves {
            entries.remove(&session_id);
        }
        leaves
    }

    /// Takes the actor out whatever is asked of it.
    pub(crate) fn remove(&self, session_id: SessionId) {
        self.entries().remove(&session_id);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(entry) = self.registry.entries().get_mut(&self.shared.session_id) {
            entry.reserved = entry.reserved.saturating_sub(1);
        }
    }
}
