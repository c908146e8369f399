//! Snapshots and the index in memory: lost with the process, like the journals that they are copied from.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use meerkat_words::{
    answers::{Page, SessionSummary},
    requests::SessionQuery,
};

use crate::{
    Session,
    ids::{Seq, SessionId},
    store::{
        EventStore, IndexedKey, SessionFilter, SessionIndex, SessionMeta, SessionStore, SessionStoreError, StoreError,
        append_only_save_guard, list::Place, load,
    },
};

/// Snapshots in memory.
pub struct MemorySessionStore {
    snapshots: Mutex<BTreeMap<SessionId, Vec<u8>>>,
    events: Arc<dyn EventStore>,
}

impl MemorySessionStore {
    /// Makes snapshots of the sessions whose journals `events` holds.
    #[must_use]
    pub fn new(events: Arc<dyn EventStore>) -> Self {
        Self { snapshots: Mutex::default(), events }
    }

    fn snapshots(&self) -> MutexGuard<'_, BTreeMap<SessionId, Vec<u8>>> {
        self.snapshots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl SessionStore for MemorySessionStore {
    async fn save(&self, session: &Session) -> Result<(), SessionStoreError> {
        let encoded = load::encode(session)?;
        let mut snapshots = self.snapshots();
        let previous = load::previous(session.id, snapshots.get(&session.id).map(Vec::as_slice))?;
        append_only_save_guard(session, previous.as_ref())?;
        snapshots.insert(session.id, encoded);
        Ok(())
    }

    async fn load(&self, id: &SessionId) -> Result<Option<Session>, SessionStoreError> {
        let Some(stored) = self.snapshots().get(id).cloned() else { return Ok(None) };
        load::load(*id, &stored, self.events.as_ref()).await
    }

    async fn list(&self, filter: SessionFilter) -> Result<Vec<SessionMeta>, SessionStoreError> {
        load::list(self.snapshots().values().rev().map(Vec::as_slice), &filter)
    }

    async fn delete(&self, id: &SessionId) -> Result<(), SessionStoreError> {
        self.snapshots().remove(id);
        Ok(())
    }

    async fn exists(&self, id: &SessionId) -> Result<bool, SessionStoreError> {
        Ok(self.snapshots().contains_key(id))
    }
}

/// Index in memory.
#[derive(Default)]
pub struct MemoryIndex {
    index: Mutex<Index>,
}

#[derive(Default)]
struct Index {
    /// Sessions, each with the number of its last change.
    sessions: BTreeMap<SessionId, (u64, SessionSummary)>,
    changes: BTreeSet<Place>,
    keys: HashMap<(Option<SessionId>, String), IndexedKey>,
    checkpoints: HashMap<(SessionId, String), Seq>,
}

impl Index {
    fn put(&mut self, summary: SessionSummary) {
        let session_id = summary.session_id;
        let number = Place::next_number(self.changes.last().map(|newest| newest.number));
        if let Some((number, _)) = self.sessions.insert(session_id, (number, summary)) {
            self.changes.remove(&Place { number, session_id });
        }
        self.changes.insert(Place { number, session_id });
    }
}

impl MemoryIndex {
    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl SessionIndex for MemoryIndex {
    async fn put(&self, summary: SessionSummary) -> Result<(), StoreError> {
        self.index().put(summary);
        Ok(())
    }

    async fn put_found(&self, summary: SessionSummary) -> Result<(), StoreError> {
        let mut index = self.index();
        match index.sessions.get_mut(&summary.session_id) {
            Some((_, listed)) if listed.last_seq == summary.last_seq => *listed = summary,
            _ => index.put(summary),
        }
        Ok(())
    }

    async fn remove(&self, session_id: SessionId) -> Result<(), StoreError> {
        let mut index = self.index();
        if let Some((number, _)) = index.sessions.remove(&session_id) {
            index.changes.remove(&Place { number, session_id });
        }
        index.keys.retain(|(scope, _), _| *scope != Some(session_id));
        index.checkpoints.retain(|(session, _), _| *session != session_id);
        Ok(())
    }

    async fn page(&self, query: SessionQuery) -> Result<Page<SessionSummary>, StoreError> {
        let index = self.index();
        let places = match query.after()? {
            Some(cursor) => index.changes.range(..cursor),
            None => index.changes.range(..),
        };
        let row = |place: &Place| Some((*place, index.sessions.get(&place.session_id)?.1.clone()));
        Ok(query.page(places.rev().filter_map(row)))
    }

    async fn sessions(&self, before: Option<SessionId>, limit: usize) -> Result<Vec<SessionSummary>, StoreError> {
        let index = self.index();
        let before = before.map_or(Bound::Unbounded, Bound::Excluded);
        let sessions = index.sessions.range((Bound::Unbounded, before)).rev();
        Ok(sessions.take(limit).map(|(_, (_, summary))| summary.clone()).collect())
    }

    async fn put_key(&self, key: &IndexedKey) -> Result<(), StoreError> {
        let (mut index, name) = (self.index(), (key.scope, key.key.key.clone()));
        if key.replaces(index.keys.get(&name)) {
            index.keys.insert(name, key.clone());
        }
        Ok(())
    }

    async fn key(&self, session_id: Option<SessionId>, key: &str) -> Result<Option<IndexedKey>, StoreError> {
        Ok(self.index().keys.get(&(session_id, key.to_owned())).cloned())
    }

    async fn put_checkpoint(&self, reader: &str, session_id: SessionId, seq: Seq) -> Result<Seq, StoreError> {
        let mut index = self.index();
        let checkpoint = index.checkpoints.entry((session_id, reader.to_owned())).or_default();
        *checkpoint = seq.max(*checkpoint);
        Ok(*checkpoint)
    }

    async fn reset_checkpoint(&self, reader: &str, session_id: SessionId) -> Result<(), StoreError> {
        self.index().checkpoints.remove(&(session_id, reader.to_owned()));
        Ok(())
    }

    async fn checkpoint(&self, reader: &str, session_id: SessionId) -> Result<Seq, StoreError> {
        Ok(self.index().checkpoints.get(&(session_id, reader.to_owned())).copied().unwrap_or(0))
    }

    async fn forget_reader(&self, reader: &str) -> Result<(), StoreError> {
        self.index().checkpoints.retain(|(_, name), _| name != reader);
        Ok(())
    }

    async fn needs_rebuild(&self) -> Option<u64> {
        None
    }

    async fn rebuilt(&self, _: u64) -> Result<(), StoreError> {
        Ok(())
    }

    async fn committed(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
