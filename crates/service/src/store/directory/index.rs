//! [`RedbIndex`]: lists, idempotency keys and checkpoints in `index.redb`. It never decodes events.

use std::{
    collections::BTreeSet,
    ops::Bound,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use meerkat_words::{
    answers::{Page, SessionState, SessionSummary},
    requests::SessionQuery,
};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    file::IndexFile,
    rows::{Table, Trouble, View, decode},
};
use crate::{
    ids::{Seq, SessionId},
    store::{IndexedKey, SessionIndex, StoreError, list::Place},
};

/// Index of one data directory.
pub struct RedbIndex {
    file: Arc<IndexFile>,
    /// Held while a key or checkpoint is put, so that it never replaces a newer one.
    putting: tokio::sync::Mutex<()>,
    /// Number of the next change, once it is known.
    next_change: tokio::sync::OnceCell<AtomicU64>,
    /// Sessions whose rows are not idle, and perhaps some whose rows were not when the file was opened. It is locked
    /// while a session's row is changed.
    busy: Mutex<BTreeSet<SessionId>>,
    /// Set when `busy` has those that a former process put.
    is_busy_known: tokio::sync::OnceCell<()>,
}

/// Encodes a session's row: the number of its last change, then its summary.
fn row(number: u64, summary: &SessionSummary) -> Result<Bytes, StoreError> {
    let json = serde_json::to_vec(summary).map_err(|error| StoreError::Failed(error.to_string()))?;
    Ok([&number.to_be_bytes()[..], &json].concat().into())
}

/// Decodes a session's row.
pub(crate) fn summary(row: &[u8]) -> Result<(u64, SessionSummary), Trouble> {
    let (number, json) = row.split_first_chunk().ok_or_else(|| Trouble::Damaged("a row is too short".to_owned()))?;
    Ok((u64::from_be_bytes(*number), decode(json)?))
}

impl RedbIndex {
    /// Makes the index over a file.
    #[must_use]
    pub fn new(file: Arc<IndexFile>) -> Self {
        Self {
            file,
            putting: tokio::sync::Mutex::default(),
            next_change: tokio::sync::OnceCell::new(),
            busy: Mutex::default(),
            is_busy_known: tokio::sync::OnceCell::new(),
        }
    }

    fn lock_busy(&self) -> MutexGuard<'_, BTreeSet<SessionId>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads every row once for those that are not idle.
    async fn find_busy(&self) -> Result<(), StoreError> {
        let read = self.file.read(|view| {
            let rows = view.rows_back(Table::Sessions, Bound::Unbounded, Bound::Unbounded)?;
            let sessions = rows.map(|row| Ok(summary(&row?.1)?.1));
            let is_busy = |session: &SessionSummary| session.state != SessionState::Idle;
            let ids =
                sessions.filter_map(|session| session.map(|it| is_busy(&it).then_some(it.session_id)).transpose());
            ids.collect::<Result<Vec<_>, Trouble>>()
        });
        let found = read.await?;
        self.lock_busy().extend(found);
        Ok(())
    }

    fn put_row(&self, table: Table, key: Vec<u8>, value: &impl Serialize) -> Result<(), StoreError> {
        let row = serde_json::to_vec(value).map_err(|error| StoreError::Failed(error.to_string()))?;
        self.file.change([((table, key), Some(Bytes::from(row)))]);
        Ok(())
    }

    /// Puts a session's row, and its place among the changes. The commit deletes the place before.
    fn put_session(&self, number: u64, summary: &SessionSummary) -> Result<(), StoreError> {
        let place = Place { number, session_id: summary.session_id };
        let mut busy = self.lock_busy();
        match summary.state == SessionState::Idle {
            true => busy.remove(&summary.session_id),
            false => busy.insert(summary.session_id),
        };
        self.file.change([
            ((Table::Sessions, summary.session_id.as_uuid().as_bytes().to_vec()), Some(row(number, summary)?)),
            ((Table::Changes, place.key()), Some(Bytes::new())),
        ]);
        Ok(())
    }

    async fn next_change(&self) -> Result<u64, StoreError> {
        let newest = || {
            self.file.read(|view| {
                let newest = view.rows_back(Table::Changes, Bound::Unbounded, Bound::Unbounded)?.next().transpose()?;
                Ok(newest.and_then(|(key, _)| Place::of_key(&key)).map(|place| place.number))
            })
        };
        let begin = async || {
            let found = match newest().await {
                // A damaged file is set aside by now, and there is another one.
                Err(_) => newest().await?,
                Ok(found) => found,
            };
            Ok::<_, StoreError>(AtomicU64::new(Place::next_number(found)))
        };
        Ok(self.next_change.get_or_try_init(begin).await?.fetch_add(1, Ordering::AcqRel))
    }

    /// Numbers the change of a session. If the file cannot be read for a moment, the session is listed by its time.
    async fn changed(&self, summary: &SessionSummary) -> u64 {
        self.next_change().await.unwrap_or_else(|error| {
            tracing::warn!(session_id = %summary.session_id, %error, "a session is not in order in lists until it changes again");
            Place::lost_number(summary)
        })
    }

    async fn row<T: DeserializeOwned + Send + 'static>(
        &self,
        table: Table,
        key: Vec<u8>,
    ) -> Result<Option<T>, StoreError> {
        self.file.read(move |view| view.get(table, &key)?.map(|row| decode(&row)).transpose()).await
    }
}

/// Makes the key of a row that a session, or the store, has under a name.
fn named(scope: Option<SessionId>, name: &str) -> Vec<u8> {
    let scope = scope.map_or([0; 16], |session_id| *session_id.as_uuid().as_bytes());
    [&scope[..], name.as_bytes()].concat()
}

/// Reads the page of sessions that changed before a place.
pub(super) fn page(view: &View, query: &SessionQuery, before: Option<Place>) -> Result<Page<SessionSummary>, Trouble> {
    let to = before.map(Place::key);
    let to = to.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let mut trouble = None;
    let read = |key: Vec<u8>| {
        let id = key.get(8..).unwrap_or_default();
        let found = view.get(Table::Sessions, id)?.map(|row| summary(&row)).transpose()?;
        // There may be a newer change of the session.
        let is_it = |(number, _): &(u64, _)| key.starts_with(&number.to_be_bytes());
        Ok(Place::of_key(&key).zip(found.filter(is_it)).map(|(place, (_, summary))| (place, summary)))
    };
    let rows = view.rows_back(Table::Changes, Bound::Unbounded, to)?;
    let sessions = rows.map_while(|row| match row.and_then(|(key, _)| read(key)) {
        Ok(found) => Some(found),
        Err(found) => {
            trouble = Some(found);
            None
        }
    });
    let page = query.page(sessions.flatten());
    trouble.map_or(Ok(page), Err)
}

#[async_trait]
impl SessionIndex for RedbIndex {
    async fn put(&self, summary: SessionSummary) -> Result<(), StoreError> {
        self.put_session(self.changed(&summary).await, &summary)
    }

    async fn put_found(&self, found: SessionSummary) -> Result<(), StoreError> {
        let id = found.session_id.as_uuid().as_bytes().to_vec();
        let listed = self.file.read(move |view| view.get(Table::Sessions, &id)?.map(|row| summary(&row)).transpose());
        let number = match listed.await {
            Ok(Some((number, listed))) if listed.last_seq == found.last_seq => number,
            Ok(Some(_)) => self.changed(&found).await,
            _ if self.file.needs_rebuild().await.is_some() => Place::lost_number(&found),
            _ => self.changed(&found).await,
        };
        self.put_session(number, &found)
    }

    async fn remove(&self, session_id: SessionId) -> Result<(), StoreError> {
        let id = session_id.as_uuid().as_bytes().to_vec();
        // No name has the byte 255, so this is after all of them.
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
        // All rows are deleted in one commit, and the session's row in any case.
        let of_it = of_it.await;
        let rows = rows.into_iter().chain(of_it.iter().flatten().cloned());
        let mut busy = self.lock_busy();
        busy.remove(&session_id);
        self.file.change(rows.map(|key| (key, None)));
        of_it.map(drop)
    }

    async fn page(&self, query: SessionQuery) -> Result<Page<SessionSummary>, StoreError> {
        let cursor = query.after()?;
        self.file.read(move |view| page(view, &query, cursor)).await
    }

    async fn sessions(&self, before: Option<SessionId>, limit: usize) -> Result<Vec<SessionSummary>, StoreError> {
        let read = self.file.read(move |view| {
            let to = before.as_ref().map_or(Bound::Unbounded, |id| Bound::Excluded(&id.as_uuid().as_bytes()[..]));
            let rows = view.rows_back(Table::Sessions, Bound::Unbounded, to)?.take(limit);
            rows.map(|row| Ok(summary(&row?.1)?.1)).collect()
        });
        read.await
    }

    async fn busy(&self, before: Option<SessionId>, limit: usize) -> Result<Vec<SessionSummary>, StoreError> {
        self.is_busy_known.get_or_try_init(|| self.find_busy()).await?;
        let to = before.map_or(Bound::Unbounded, Bound::Excluded);
        let ids: Vec<SessionId> = self.lock_busy().range((Bound::Unbounded, to)).rev().copied().collect();
        let read = self.file.read(move |view| {
            let read = |id: &SessionId| view.get(Table::Sessions, id.as_uuid().as_bytes());
            let rows = ids.iter().filter_map(|id| read(id).transpose());
            rows.map(|row| Ok(summary(&row?)?.1)).take(limit).collect()
        });
        read.await
    }

    async fn put_key(&self, key: &IndexedKey) -> Result<(), StoreError> {
        let _putting = self.putting.lock().await;
        // If it cannot be read, the commit checks again.
        let kept = self.key(key.scope, &key.key.key).await.unwrap_or_default();
        match key.replaces(kept.as_ref()) {
            true => self.put_row(Table::Keys, named(key.scope, &key.key.key), key),
            false => Ok(()),
        }
    }

    async fn key(&self, session_id: Option<SessionId>, key: &str) -> Result<Option<IndexedKey>, StoreError> {
        self.row(Table::Keys, named(session_id, key)).await
    }

    async fn put_checkpoint(&self, reader: &str, session_id: SessionId, seq: Seq) -> Result<Seq, StoreError> {
        let _putting = self.putting.lock().await;
        let before = self.checkpoint(reader, session_id).await?;
        if seq > before {
            self.put_row(Table::Checkpoints, named(Some(session_id), reader), &seq)?;
        }
        Ok(seq.max(before))
    }

    async fn reset_checkpoint(&self, reader: &str, session_id: SessionId) -> Result<(), StoreError> {
        let _putting = self.putting.lock().await;
        // A row of 0, unlike none, says that the reader was sent back.
        self.put_row(Table::Checkpoints, named(Some(session_id), reader), &0)
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
