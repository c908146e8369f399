//! [`PostgresIndex`]: lists, idempotency keys and checkpoints. They are as durable as the journals, and never rebuilt.
//!
//! A session's place in lists is the database's clock at its last change, in microseconds, and always behind its own last
//! place. Its row is written with its records; what is put later is only what an append did not carry.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use meerkat_service::{
    Seq, SessionId,
    store::{IndexedKey, ListedChange, SessionIndex, StoreError},
};
use meerkat_words::{
    answers::{Page, SessionState, SessionSummary},
    list::{PAGE_SESSIONS, Place},
    requests::SessionQuery,
};
use tokio_postgres::{Row, types::Type};
use uuid::Uuid;

use crate::{
    db::{column, signed, unsigned},
    store::Store,
    trouble::Trouble,
};

/// Rows to read at once for a page.
const ROWS_READ: i64 = 200;

/// Index of one database.
pub(crate) struct PostgresIndex(pub(crate) Arc<Store>);

/// Returns the scope of a key, as a column holds it.
pub(crate) fn scope(session_id: Option<SessionId>) -> Uuid {
    session_id.map_or(Uuid::nil(), |id| *id.as_uuid())
}

/// Encodes a key's entry.
pub(crate) fn key_params(key: &IndexedKey) -> Result<String, Trouble> {
    serde_json::to_string(key).map_err(|error| Trouble::Unreadable(error.to_string()))
}

fn decode<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, Trouble> {
    serde_json::from_str(text).map_err(|error| Trouble::Unreadable(format!("a row cannot be read: {error}")))
}

impl PostgresIndex {
    /// Puts a row, unless the stored one is newer, or the session is deleted: a node that lost the session may be late.
    /// One that `keeps_place` and is at the stored row's seq stays where it is.
    async fn put_row(&self, summary: &SessionSummary, keeps_place: bool) -> Result<(), StoreError> {
        let text = serde_json::to_string(summary).map_err(|error| StoreError::Failed(error.to_string()))?;
        let (seq, is_idle) = (signed(summary.last_seq), summary.state == SessionState::Idle);
        self.0
            .db
            .execute(
                "UPDATE meerkat.sessions SET summary = $2, summary_seq = $3, \
                 is_idle = CASE WHEN tail = $3 THEN $4 ELSE is_idle END, \
                 changed = CASE WHEN $5 AND summary_seq = $3 AND changed IS NOT NULL THEN changed \
                 ELSE greatest(changed + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::int8) END \
                 WHERE id = $1 AND tail > 0 AND (summary_seq IS NULL OR summary_seq <= $3)",
                &[
                    (summary.session_id.as_uuid(), Type::UUID),
                    (&text, Type::TEXT),
                    (&seq, Type::INT8),
                    (&is_idle, Type::BOOL),
                    (&keeps_place, Type::BOOL),
                ],
            )
            .await?;
        match is_idle {
            true => self.0.settle(summary.session_id, summary.last_seq).await,
            false => Ok(()),
        }
    }

    /// Reads sessions' rows before one by id, newest first; with `is_busy` of those alone that are not idle.
    async fn rows(
        &self,
        before: Option<SessionId>,
        limit: usize,
        is_busy: bool,
    ) -> Result<Vec<SessionSummary>, StoreError> {
        let before = before.map(|id| *id.as_uuid());
        let rows = self
            .0
            .db
            .query(
                "SELECT summary FROM meerkat.sessions WHERE summary IS NOT NULL AND tail > 0 \
                 AND ($1::uuid IS NULL OR id < $1) AND NOT ($3 AND is_idle) \
                 ORDER BY id DESC LIMIT $2",
                &[(&before, Type::UUID), (&signed(limit as u64), Type::INT8), (&is_busy, Type::BOOL)],
            )
            .await?;
        Ok(rows.iter().map(|row| decode(column(row, 0)?)).collect::<Result<_, Trouble>>()?)
    }
}

/// Reads a place and its session's row.
fn placed(row: &Row) -> Result<(Place, SessionSummary), Trouble> {
    let (number, id, text): (i64, Uuid, &str) = (column(row, 0)?, column(row, 1)?, column(row, 2)?);
    Ok((Place { number: unsigned(number)?, session_id: SessionId::from_uuid(id) }, decode(text)?))
}

#[async_trait]
impl SessionIndex for PostgresIndex {
    async fn put(&self, summary: SessionSummary) -> Result<(), StoreError> {
        // It went with the records.
        if self.0.logs().has_row(&summary) {
            return Ok(());
        }
        self.put_row(&summary, false).await
    }

    async fn put_found(&self, summary: SessionSummary) -> Result<(), StoreError> {
        self.put_row(&summary, true).await
    }

    async fn remove(&self, session_id: SessionId) -> Result<(), StoreError> {
        let id = [(session_id.as_uuid() as _, Type::UUID)];
        let mut connection = self.0.db.connection().await?;
        let done = async {
            let work = connection.begin().await?;
            work.execute(
                "UPDATE meerkat.sessions SET summary = NULL, summary_seq = NULL, \
                 changed = greatest(changed + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::int8), \
                 node = CASE WHEN tail = 0 THEN NULL ELSE node END WHERE id = $1",
                &id,
            )
            .await?;
            work.execute("DELETE FROM meerkat.keys WHERE scope = $1", &id).await?;
            work.execute("DELETE FROM meerkat.checkpoints WHERE session = $1", &id).await?;
            work.commit().await
        };
        let done = done.await;
        Ok(connection.end(done)?)
    }

    async fn changes(&self, since: Option<u64>) -> Result<Vec<ListedChange>, StoreError> {
        // A change has its place before its commit, which may wait for a standby: what was open at the last look is
        // looked for again. Asked first: what ends after this is seen below.
        let sql = "SELECT (extract(epoch FROM min(xact_start)) * 1000000)::int8 FROM pg_stat_activity \
            WHERE datname = current_database() AND backend_xid IS NOT NULL";
        let open = self.0.db.query_opt(sql, &[]).await?;
        let open: Option<i64> = open.map_or(Ok(None), |row| column(&row, 0))?;
        let last = *self.0.open_since();
        let since = since.map(|since| last.map_or(since, |open| open.min(since)));
        // The newest alone, or all since the place.
        let sql = "SELECT changed, id, CASE WHEN tail > 0 THEN summary END FROM meerkat.sessions WHERE changed IS NOT NULL \
            AND ($1::int8 IS NULL OR changed > $1) ORDER BY changed DESC, id DESC \
            LIMIT CASE WHEN $1::int8 IS NULL THEN 1 END";
        let rows = self.0.db.query(sql, &[(&since.map(signed), Type::INT8)]).await?;
        let change = |row: &Row| {
            let text: Option<&str> = column(row, 2)?;
            let (place, session_id) = (unsigned(column(row, 0)?)?, SessionId::from_uuid(column(row, 1)?));
            Ok(ListedChange { place, session_id, summary: text.map(decode).transpose()? })
        };
        let changes = rows.iter().rev().map(change).collect::<Result<_, Trouble>>()?;
        *self.0.open_since() = open.map(unsigned).transpose()?;
        Ok(changes)
    }

    async fn page(&self, query: SessionQuery) -> Result<Page<SessionSummary>, StoreError> {
        let (mut rows, mut before) = (Vec::new(), query.after()?);
        loop {
            let (number, id) =
                (before.map(|place| signed(place.number)), before.map(|place| *place.session_id.as_uuid()));
            let read = self
                .0
                .db
                .query(
                    "SELECT changed, id, summary FROM meerkat.sessions WHERE changed IS NOT NULL \
                     AND summary IS NOT NULL AND tail > 0 AND ($1::int8 IS NULL OR (changed, id) < ($1, $2)) ORDER BY changed DESC, id DESC LIMIT $3",
                    &[(&number, Type::INT8), (&id, Type::UUID), (&ROWS_READ, Type::INT8)],
                )
                .await?;
            for row in &read {
                let (place, summary) = placed(row)?;
                before = Some(place);
                if query.matches(&summary) {
                    rows.push((place, summary));
                }
            }
            if (read.len() as i64) < ROWS_READ || rows.len() > query.limit.unwrap_or(PAGE_SESSIONS) {
                return Ok(query.page(rows.into_iter()));
            }
        }
    }

    async fn sessions(&self, before: Option<SessionId>, limit: usize) -> Result<Vec<SessionSummary>, StoreError> {
        self.rows(before, limit, false).await
    }

    async fn busy(&self, before: Option<SessionId>, limit: usize) -> Result<Vec<SessionSummary>, StoreError> {
        self.rows(before, limit, true).await
    }

    async fn put_key(&self, key: &IndexedKey) -> Result<(), StoreError> {
        let (scope, entry, time) = (scope(key.scope), key_params(key)?, key.time.as_millis());
        self.0
            .db
            .execute(
                "INSERT INTO meerkat.keys AS k (scope, key, session, time, entry) VALUES ($1, $2, $3, $4, $5) \
                 ON CONFLICT (scope, key) DO UPDATE SET session = excluded.session, time = excluded.time, \
                 entry = excluded.entry, stored = now() WHERE (k.time, k.session) <= (excluded.time, excluded.session)",
                &[
                    (&scope, Type::UUID),
                    (&key.key.key, Type::TEXT),
                    (key.session_id.as_uuid(), Type::UUID),
                    (&time, Type::INT8),
                    (&entry, Type::TEXT),
                ],
            )
            .await?;
        Ok(())
    }

    async fn key(&self, session_id: Option<SessionId>, key: &str) -> Result<Option<IndexedKey>, StoreError> {
        let sql = "SELECT entry FROM meerkat.keys WHERE scope = $1 AND key = $2";
        let row = self.0.db.query_opt(sql, &[(&scope(session_id), Type::UUID), (&key, Type::TEXT)]).await?;
        Ok(row.map(|row| decode(column(&row, 0)?)).transpose()?)
    }

    async fn put_checkpoint(&self, reader: &str, session_id: SessionId, seq: Seq) -> Result<Seq, StoreError> {
        let row = self
            .0
            .db
            .query_opt(
                "INSERT INTO meerkat.checkpoints AS c (session, reader, seq) VALUES ($1, $2, $3) \
                 ON CONFLICT (session, reader) DO UPDATE SET seq = greatest(c.seq, excluded.seq) RETURNING seq",
                &[(session_id.as_uuid(), Type::UUID), (&reader, Type::TEXT), (&signed(seq), Type::INT8)],
            )
            .await?;
        Ok(row.map_or(Ok(seq), |row| unsigned(column(&row, 0)?))?)
    }

    async fn reset_checkpoint(&self, reader: &str, session_id: SessionId) -> Result<(), StoreError> {
        let sql = "DELETE FROM meerkat.checkpoints WHERE session = $1 AND reader = $2";
        self.0.db.execute(sql, &[(session_id.as_uuid(), Type::UUID), (&reader, Type::TEXT)]).await?;
        Ok(())
    }

    async fn checkpoint(&self, reader: &str, session_id: SessionId) -> Result<Seq, StoreError> {
        Ok(self.checkpoints(reader, &[session_id]).await?.first().copied().unwrap_or(0))
    }

    async fn checkpoints(&self, reader: &str, session_ids: &[SessionId]) -> Result<Vec<Seq>, StoreError> {
        let ids: Vec<Uuid> = session_ids.iter().map(|id| *id.as_uuid()).collect();
        let sql = "SELECT session, seq FROM meerkat.checkpoints WHERE reader = $1 AND session = ANY($2)";
        let rows = self.0.db.query(sql, &[(&reader, Type::TEXT), (&ids, Type::UUID_ARRAY)]).await?;
        let seq = |row: &Row| Ok((column(row, 0)?, unsigned(column(row, 1)?)?));
        let seqs: HashMap<Uuid, Seq> = rows.iter().map(seq).collect::<Result<_, Trouble>>()?;
        Ok(ids.iter().map(|id| seqs.get(id).copied().unwrap_or(0)).collect())
    }

    async fn forget_reader(&self, reader: &str) -> Result<(), StoreError> {
        self.0.db.execute("DELETE FROM meerkat.checkpoints WHERE reader = $1", &[(&reader, Type::TEXT)]).await?;
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
