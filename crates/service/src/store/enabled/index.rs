//! [`RedbIndex`]: lists, idempotency keys and checkpoints in `index.redb`. It never decodes a session.

use std::{ops::Bound, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use super::file::{IndexFile, Table, Trouble};
use crate::{
    ids::{Seq, SessionId},
    service::{Page, SessionQuery, SessionSummary},
    store::{IndexedKey, SessionIndex, StoreError},
};

/// The index of one data directory.
pub struct RedbIndex {
    file: Arc<IndexFile>,
    /// Held while a key is put, so that it never takes the place of a newer one.
    putting: tokio::sync::Mutex<()>,
}

impl RedbIndex {
    /// The index in this file.
    #[must_use]
    pub fn new(file: Arc<IndexFile>) -> Self {
        Self { file, putting: tokio::sync::Mutex::default() }
    }

    fn put_row(&self, table: Table, key: Vec<u8>, value: &impl Serialize) -> Result<(), StoreError> {
        let row = serde_json::to_vec(value).map_err(|error| StoreError::Failed(error.to_string()))?;
        self.file.change([((table, key), Some(Bytes::from(row)))]);
        Ok(())
    }

    async fn row<T: DeserializeOwned + Send + 'static>(
        &self,
        table: Table,
        key: Vec<u8>,
    ) -> Result<Option<T>, StoreError> {
        self.file.read(move |view| view.get(table, &key)?.map(|row| decode(&row)).transpose()).await
    }
}

pub(super) fn decode<T: DeserializeOwned>(row: &[u8]) -> Result<T, Trouble> {
    serde_json::from_slice(row).map_err(|error| Trouble::Damaged(error.to_string()))
}

/// The key of what a session, or the store, has under a name.
fn named(scope: Option<SessionId>, name: &str) -> Vec<u8> {
    let scope = scope.map_or([0; 16], |session_id| *session_id.as_uuid().as_bytes());
    [&scope[..], name.as_bytes()].concat()
}

#[async_trait]
impl SessionIndex for RedbIndex {
    async fn put(&self, summary: SessionSummary) -> Result<(), StoreError> {
        self.put_row(Table::Sessions, summary.session_id.as_uuid().as_bytes().to_vec(), &summary)
    }

    async fn remove(&self, session_id: SessionId) -> Result<(), StoreError> {
        let id = session_id.as_uuid().as_bytes().to_vec();
        // No name has the byte 255, so this is behind all of them.
        let end = [&id[..], &[255]].concat();
        let rows = [(Table::Sessions, id.clone()), (Table::Lengths, id.clone())];
        let of_it = self.file.read(move |view| {
            let mut keys = Vec::new();
            for table in [Table::Keys, Table::Checkpoints] {
                for row in view.rows_back(table, Bound::Included(&id), Bound::Excluded(&end))? {
                    keys.push((table, row?.0));
                }
            }
            Ok(keys)
        });
        // All of it goes in one commit, and the row in any case.
        let of_it = of_it.await;
        let rows = rows.into_iter().chain(of_it.iter().flatten().cloned());
        self.file.change(rows.map(|key| (key, None)));
        of_it.map(drop)
    }

    async fn page(&self, query: SessionQuery) -> Result<Page<SessionSummary>, StoreError> {
        let cursor = query.after()?;
        let read = self.file.read(move |view| {
            let to = cursor.as_ref().map_or(Bound::Unbounded, |id| Bound::Excluded(&id.as_uuid().as_bytes()[..]));
            let mut trouble = None;
            let rows = view.rows_back(Table::Sessions, Bound::Unbounded, to)?;
            let sessions = rows.map_while(|row| match row.and_then(|(_, row)| decode(&row)) {
                Ok(summary) => Some(summary),
                Err(found) => {
                    trouble = Some(found);
                    None
                }
            });
            let page = query.page(sessions);
            trouble.map_or(Ok(page), Err)
        });
        read.await
    }

    async fn put_key(&self, key: &IndexedKey) -> Result<(), StoreError> {
        let _putting = self.putting.lock().await;
        match key.replaces(self.key(key.scope, &key.key.key).await?.as_ref()) {
            true => self.put_row(Table::Keys, named(key.scope, &key.key.key), key),
            false => Ok(()),
        }
    }

    async fn key(&self, session_id: Option<SessionId>, key: &str) -> Result<Option<IndexedKey>, StoreError> {
        self.row(Table::Keys, named(session_id, key)).await
    }

    async fn put_checkpoint(&self, reader: &str, session_id: SessionId, seq: Seq) -> Result<(), StoreError> {
        self.put_row(Table::Checkpoints, named(Some(session_id), reader), &seq)
    }

    async fn checkpoint(&self, reader: &str, session_id: SessionId) -> Result<Seq, StoreError> {
        Ok(self.row(Table::Checkpoints, named(Some(session_id), reader)).await?.unwrap_or(0))
    }

    async fn checkpoints(&self, reader: &str, session_ids: &[SessionId]) -> Result<Vec<Seq>, StoreError> {
        let keys: Vec<Vec<u8>> = session_ids.iter().map(|id| named(Some(*id), reader)).collect();
        let read = self.file.read(move |view| {
            let seq = |key: &Vec<u8>| view.get(Table::Checkpoints, key)?.map_or(Ok(0), |row| decode(&row));
            keys.iter().map(seq).collect()
        });
        read.await
    }

    async fn forget_reader(&self, reader: &str) -> Result<(), StoreError> {
        let name = reader.as_bytes().to_vec();
        let of_it = self.file.read(move |view| {
            let mut keys = Vec::new();
            for row in view.rows_back(Table::Checkpoints, Bound::Unbounded, Bound::Unbounded)? {
                let (key, _) = row?;
                if key.get(16..) == Some(&name[..]) {
                    keys.push((Table::Checkpoints, key));
                }
            }
            Ok(keys)
        });
        let of_it = of_it.await?;
        self.file.change(of_it.into_iter().map(|key| (key, None)));
        Ok(())
    }

    async fn needs_rebuild(&self) -> Option<u64> {
        self.file.needs_rebuild().await
    }

    async fn rebuilt(&self, loss: u64) -> Result<(), StoreError> {
        self.file.rebuilt(loss).await
    }

    async fn committed(&self) -> Result<(), StoreError> {
        self.file.committed(false).await
    }

    async fn flush(&self) -> Result<(), StoreError> {
        self.file.committed(true).await
    }
}
