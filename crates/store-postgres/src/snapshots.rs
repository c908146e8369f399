//! [`PostgresSnapshots`]: folded sessions; their messages are in the journal.

use std::sync::Arc;

use async_trait::async_trait;
use meerkat_service::{
    Session, SessionId,
    store::{EventStore, SessionFilter, SessionMeta, SessionStore, SessionStoreError, append_only_save_guard, load},
};
use tokio_postgres::types::Type;

use crate::{db::column, store::Store, trouble::Trouble};

/// Snapshots of one database.
pub(crate) struct PostgresSnapshots {
    store: Arc<Store>,
    events: Arc<dyn EventStore>,
}

fn failed(trouble: Trouble) -> SessionStoreError {
    SessionStoreError::Internal(meerkat_service::store::StoreError::from(trouble).to_string())
}

impl PostgresSnapshots {
    pub(crate) fn new(store: Arc<Store>, events: Arc<dyn EventStore>) -> Self {
        Self { store, events }
    }

    async fn stored(&self, id: &SessionId) -> Result<Option<Vec<u8>>, SessionStoreError> {
        let sql = "SELECT data FROM meerkat.snapshots WHERE session = $1";
        let row = self.store.db.query_opt(sql, &[(id.as_uuid(), Type::UUID)]).await.map_err(failed)?;
        row.map(|row| column(&row, 0)).transpose().map_err(failed)
    }
}

#[async_trait]
impl SessionStore for PostgresSnapshots {
    async fn save(&self, session: &Session) -> Result<(), SessionStoreError> {
        let id = session.id;
        let previous = load::previous(id, self.stored(&id).await?.as_deref())?;
        append_only_save_guard(session, previous.as_ref())?;
        let bytes = load::encode(session)?;
        let sql = "INSERT INTO meerkat.snapshots (session, data) VALUES ($1, $2) \
            ON CONFLICT (session) DO UPDATE SET data = excluded.data";
        let saved = self.store.db.execute(sql, &[(id.as_uuid(), Type::UUID), (&bytes, Type::BYTEA)]).await;
        saved.map(drop).map_err(failed)
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
        let sql = "SELECT data FROM meerkat.snapshots ORDER BY session DESC";
        let rows = self.store.db.query(sql, &[]).await.map_err(failed)?;
        let stored: Vec<&[u8]> = rows.iter().map(|row| column(row, 0)).collect::<Result<_, _>>().map_err(failed)?;
        load::list(stored, &filter)
    }

    async fn delete(&self, id: &SessionId) -> Result<(), SessionStoreError> {
        let sql = "DELETE FROM meerkat.snapshots WHERE session = $1";
        self.store.db.execute(sql, &[(id.as_uuid(), Type::UUID)]).await.map(drop).map_err(failed)
    }

    async fn exists(&self, id: &SessionId) -> Result<bool, SessionStoreError> {
        let sql = "SELECT FROM meerkat.snapshots WHERE session = $1";
        let row = self.store.db.query_opt(sql, &[(id.as_uuid(), Type::UUID)]).await.map_err(failed)?;
        Ok(row.is_some())
    }
}
