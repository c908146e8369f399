//! The sessions in memory, and the protocol by which actors come and leave.
//!
//! A caller takes a way to the actor before it sends; an actor leaves only if, under the same lock, there is no other way
//! to it and its mailbox is empty. So no command reaches an actor that has left, and while a session is loaded or closed,
//! its callers wait.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use tokio::sync::{mpsc, watch};

use super::{command::Command, shared::Shared};
use crate::{
    follow::live::{Hubs, LiveHub},
    ids::SessionId,
};

/// Commands that may wait in one mailbox; more wait at their senders.
pub(crate) const MAILBOX_MAX: usize = 64;

/// The sessions in memory.
#[derive(Default)]
pub(crate) struct Registry {
    entries: Mutex<HashMap<SessionId, Entry>>,
    /// Live events for actors and followers alike; a follower may come before the actor.
    hubs: Arc<Hubs>,
}

enum Entry {
    /// The actor is coming or going; the channel closes when that is over.
    Passing(watch::Receiver<()>),
    Live(Live),
}

/// The way to an actor. One that a caller holds keeps the actor in memory.
#[derive(Clone)]
pub(crate) struct Live {
    pub(crate) mailbox: mpsc::Sender<Command>,
    pub(crate) shared: Arc<Shared>,
}

/// Result of a look-up in the registry.
pub(crate) enum Found {
    /// The actor.
    Live(Live),
    /// The session is being loaded or closed: look again when the channel closes.
    Passing(watch::Receiver<()>),
    /// Nothing: this caller loads the session, and others wait.
    Absent(Passage),
}

/// An actor on its way in or out: callers that need its session wait until this is dropped. Whoever is given it for an
/// absent session loads the session; if it is dropped before, the next caller tries.
pub(crate) struct Passage {
    registry: Weak<Registry>,
    session_id: SessionId,
    over: watch::Sender<()>,
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

    /// Puts the actor of a new session in.
    pub(crate) fn insert(&self, live: Live) {
        self.entries().insert(live.shared.session_id, Entry::Live(live));
    }

    /// Returns the actor of a session, if it is in memory.
    pub(crate) fn live(&self, session_id: SessionId) -> Option<Live> {
        match self.entries().get(&session_id) {
            Some(Entry::Live(live)) => Some(live.clone()),
            _ => None,
        }
    }

    /// Returns the actor of a session, or the right to load it.
    pub(crate) fn find(self: &Arc<Self>, session_id: SessionId) -> Found {
        let mut entries = self.entries();
        match entries.get(&session_id) {
            Some(Entry::Live(live)) => Found::Live(live.clone()),
            Some(Entry::Passing(over)) => Found::Passing(over.clone()),
            None => Found::Absent(self.pass(&mut entries, session_id)),
        }
    }

    /// Lists sessions with records that lists may not show yet, the latest change last.
    pub(crate) fn unlisted(&self) -> Vec<Arc<Shared>> {
        let live = |entry: &Entry| match entry {
            Entry::Live(live) => Some(live.shared.clone()),
            Entry::Passing(_) => None,
        };
        let mut unlisted: Vec<_> = self.entries().values().filter_map(live).collect();
        unlisted.retain(|shared| shared.is_unlisted());
        unlisted.sort_by_cached_key(|shared| (shared.changed_at(), shared.session_id));
        unlisted
    }

    /// Returns the shared part of a session in memory, and does not keep it there.
    pub(crate) fn shared(&self, session_id: SessionId) -> Option<Arc<Shared>> {
        match self.entries().get(&session_id) {
            Some(Entry::Live(live)) => Some(live.shared.clone()),
            _ => None,
        }
    }

    /// Takes the actor out if it is not needed; `is_mailbox_empty` is called under the lock.
    pub(crate) fn leave(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        is_mailbox_empty: impl FnOnce() -> bool,
    ) -> Option<Passage> {
        let mut entries = self.entries();
        let Some(Entry::Live(live)) = entries.get(&shared.session_id) else { return None };
        let is_free = live.mailbox.strong_count() == 1 && !live.shared.has_interrupts();
        if !(Arc::ptr_eq(&live.shared, shared) && is_free && is_mailbox_empty()) {
            return None;
        }
        Some(self.pass(&mut entries, shared.session_id))
    }

    /// Takes the actor out whatever is asked of it; one that has come in its place stays.
    pub(crate) fn depart(self: &Arc<Self>, shared: &Arc<Shared>) -> Passage {
        let mut entries = self.entries();
        match entries.get(&shared.session_id) {
            Some(Entry::Live(live)) if !Arc::ptr_eq(&live.shared, shared) => {
                Passage { registry: Arc::downgrade(self), session_id: shared.session_id, over: watch::Sender::new(()) }
            }
            _ => self.pass(&mut entries, shared.session_id),
        }
    }

    fn pass(self: &Arc<Self>, entries: &mut HashMap<SessionId, Entry>, session_id: SessionId) -> Passage {
        let (sender, over) = watch::channel(());
        entries.insert(session_id, Entry::Passing(over));
        Passage { registry: Arc::downgrade(self), session_id, over: sender }
    }

    /// Waits while the session's actor comes or goes.
    pub(crate) async fn settled(self: &Arc<Self>, session_id: SessionId) {
        if let Found::Passing(mut over) = self.find(session_id) {
            // Nothing is ever sent: it ends when the channel closes.
            drop(over.changed().await);
        }
    }

    /// The hub of a session's live events: one for all who want it.
    pub(crate) fn hub(&self, session_id: SessionId) -> Arc<LiveHub> {
        let mut hubs = self.hubs.lock().unwrap_or_else(PoisonError::into_inner);
        let known = hubs.get(&session_id).and_then(Weak::upgrade);
        let hub = match &known {
            // A deleted session may return by an import while a follower of the old one is still there.
            Some(hub) if !hub.is_deleted() => hub.clone(),
            _ => {
                let hub = Arc::new(LiveHub::new(session_id, Arc::downgrade(&self.hubs)));
                hubs.insert(session_id, Arc::downgrade(&hub));
                hub
            }
        };
        // A dropped hub locks this map.
        drop(hubs);
        hub
    }
}

impl Passage {
    /// Puts the actor in; `None` if it has left already.
    pub(crate) fn arrive(self, registry: &Registry, live: Live) -> Option<Live> {
        let mut entries = registry.entries();
        self.is_in(&entries).then(|| {
            entries.insert(self.session_id, Entry::Live(live.clone()));
            live
        })
    }

    /// Returns true if those who want the session wait for this.
    fn is_in(&self, entries: &HashMap<SessionId, Entry>) -> bool {
        let Some(Entry::Passing(over)) = entries.get(&self.session_id) else { return false };
        over.same_channel(&self.over.subscribe())
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        let Some(registry) = self.registry.upgrade() else { return };
        let mut entries = registry.entries();
        if self.is_in(&entries) {
            entries.remove(&self.session_id);
        }
    }
}
