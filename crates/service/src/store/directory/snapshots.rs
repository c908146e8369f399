//! [`RedbSessionStore`]: snapshots in `index.redb`; their messages are in the journal.

use std::{ops::Bound, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;

use super::{file::IndexFile, rows::Table};
use crate::{
    Session,
    ids::SessionId,
    store::{
        EventStore, SessionFilter, SessionMeta, SessionStore, SessionStoreError, StoreError, append_only_save_guard,
        load,
    },
};

/// Snapshots of one data directory.
pub struct RedbSessionStore {
    file: Arc<IndexFile>,
    events: Arc<dyn EventStore>,
}

impl RedbSessionStore {
    /// Makes the snapshots in a file, of the sessions whose journals `events` holds.
    #[must_use]
    pub fn new(file: Arc<IndexFile>, events: Arc<dyn EventStore>) -> Self {
        Self { file, events }
    }

    async fn stored(&self, id: &SessionId) -> Result<Option<Bytes>, SessionStoreError> {
        let key = *id.as_uuid().as_bytes();
        self.file.read(move |view| view.get(Table::Snapshots, &key)).await.map_err(failed)
    }

    fn put(&self, id: &SessionId, snapshot: Option<Bytes>) {
        self.file.change([((Table::Snapshots, id.as_uuid().as_bytes().to_vec()), snapshot)]);
    }
}

fn failed(error: StoreError) -> SessionStoreError {
    SessionStoreError::Internal(error.to_string())
}

#[async_trait]
impl SessionStore for RedbSessionStore {
    async fn save(&self, session: &Session) -> Result<(), SessionStoreError> {
        let previous = load::previous(session.id, self.stored(&session.id).await?.as_deref())?;
        append_only_save_guard(session, previous.as_ref())?;
        self.put(&session.id, Some(Bytes::from(load::encode(session)?)));
        Ok(())
    }

    async fn load(&self, id: &SessionId) -> Result<Option<Session>, SessionStoreError> {
        let Some(stored) = self.stored(id).await? else { return Ok(None) };
        load::load(*id, &stored, self.events.as_ref()).await
    }

    async fn outline(&self, id: &SessionId) -> Result<Option<Session>, SessionStoreError> {
        let Some(stored) = self.stored(id).await? else { return Ok(None) };
        load::outline(*id, &stored)
    }

    async fn list(&self, filter: SessionFilter) -> Result<Vec<SessionMeta>, SessionStoreError> {
        let rows = self.file.read(|view| {
            let rows = view.rows_back(Table::Snapshots, Bound::Unbounded, Bound::Unbounded)?;
            rows.map(|row| row.map(|(_, snapshot)| snapshot)).collect::<Result<Vec<Bytes>, _>>()
        });
        load::list(rows.await.map_err(failed)?.iter().map(|row| &**row), &filter)
    }

    async fn delete(&self, id: &SessionId) -> Result<(), SessionStoreError> {
        self.put(id, None);
        Ok(())
    }

    async fn exists(&self, id: &SessionId) -> Result<bool, SessionStoreError> {
        Ok(self.stored(id).await?.is_some())
    }
}
