//! [`PostgresBlobs`]: bodies in parts, so that neither side ever holds a large one at once.

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use meerkat_service::{
    SessionId,
    clock::Timestamp,
    store::{BlobStore, BlobWriter, StoreError, check_uploads},
};
use sha2::{Digest as _, Sha256};
use tokio::runtime::Handle;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::{
    db::{Param, Work, column, signed, unsigned},
    store::Store,
    trouble::Trouble,
};

/// Bytes of a part; only the last one is shorter.
const PART_BYTES: usize = 256 * 1024;

/// Blobs of one database.
pub(crate) struct PostgresBlobs(pub(crate) Arc<Store>);

#[async_trait]
impl BlobStore for PostgresBlobs {
    fn writer(&self, session_id: SessionId) -> Box<dyn BlobWriter> {
        let (store, hash, part) = (self.0.clone(), Sha256::new(), Vec::new());
        Box::new(Writer { store, session_id, hash, part, body: None, parts: 0, length: 0 })
    }

    async fn read(
        &self,
        session_id: SessionId,
        blob: &str,
        offset: u64,
        limit: usize,
    ) -> Result<Option<Bytes>, StoreError> {
        Ok(self.read_body((session_id, blob, None), offset, limit).await?)
    }

    async fn list(&self, session_id: SessionId) -> Result<BTreeSet<String>, StoreError> {
        let sql = "SELECT name FROM meerkat.blobs WHERE session = $1 AND uploaded = 0";
        let rows = self.0.db.query(sql, &[(session_id.as_uuid(), Type::UUID)]).await?;
        Ok(rows.iter().map(|row| column(row, 0)).collect::<Result<_, Trouble>>()?)
    }

    async fn remove(&self, session_id: SessionId, names: &BTreeSet<String>) -> Result<(), StoreError> {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let which = "uploaded = 0 AND name = ANY($2)";
        Ok(self.remove_in_transaction(session_id, which, &[(&names, Type::TEXT_ARRAY)]).await?)
    }

    async fn forget(&self, session_id: SessionId) {
        if let Err(trouble) = self.remove_in_transaction(session_id, ALL, &[]).await {
            tracing::warn!(%session_id, ?trouble, "the blobs of a session that does not exist stay for now");
        }
    }

    async fn read_upload(
        &self,
        session_id: SessionId,
        blob: &str,
        since: Timestamp,
        offset: u64,
        limit: usize,
    ) -> Result<Option<Bytes>, StoreError> {
        Ok(self.read_body((session_id, blob, Some(since)), offset, limit).await?)
    }

    async fn keep(&self, session_id: SessionId, blob: &str, since: Timestamp) -> Result<bool, StoreError> {
        let mut connection = self.0.db.connection().await?;
        let done = match connection.begin().await {
            Ok(work) => keep(work, session_id, blob, since).await,
            Err(trouble) => Err(trouble),
        };
        Ok(connection.end(done)?)
    }

    async fn uploads(&self, session_id: SessionId) -> Result<Vec<u64>, StoreError> {
        let sql = "SELECT length FROM meerkat.blobs WHERE session = $1 AND uploaded > 0";
        let rows = self.0.db.query(sql, &[(session_id.as_uuid(), Type::UUID)]).await?;
        Ok(rows.iter().map(|row| unsigned(column(row, 0)?)).collect::<Result<_, Trouble>>()?)
    }

    async fn expire(&self, session_id: SessionId, before: Timestamp) -> Result<(), StoreError> {
        let before = before.as_millis();
        let params: [Param<'_>; 2] = [(session_id.as_uuid(), Type::UUID), (&before, Type::INT8)];
        let sql = "SELECT FROM meerkat.blobs WHERE session = $1 AND uploaded > 0 AND uploaded < $2 LIMIT 1";
        if self.0.db.query_opt(sql, &params).await?.is_none() {
            return Ok(());
        }
        let which = "uploaded > 0 AND uploaded < $2";
        Ok(self.remove_in_transaction(session_id, which, &[(&before, Type::INT8)]).await?)
    }
}

impl PostgresBlobs {
    /// Reads a piece of a blob, or of an upload that is no older than a time.
    async fn read_body(
        &self,
        (session_id, blob, since): (SessionId, &str, Option<Timestamp>),
        offset: u64,
        limit: usize,
    ) -> Result<Option<Bytes>, Trouble> {
        let first = offset / PART_BYTES as u64;
        let last = offset.saturating_add(limit as u64).saturating_sub(1).max(offset) / PART_BYTES as u64;
        let (first_time, last_time) = since.map_or((0, 0), |since| (since.as_millis().max(1), i64::MAX));
        let rows = self
            .0
            .db
            .query(
                "SELECT b.length, p.part, p.data FROM meerkat.blobs b LEFT JOIN meerkat.blob_parts p \
                 ON p.body = b.body AND p.part BETWEEN $3 AND $4 \
                 WHERE b.session = $1 AND b.name = $2 AND b.uploaded BETWEEN $5 AND $6 ORDER BY p.part",
                &[
                    (session_id.as_uuid(), Type::UUID),
                    (&blob, Type::TEXT),
                    (&signed(first), Type::INT8),
                    (&signed(last), Type::INT8),
                    (&first_time, Type::INT8),
                    (&last_time, Type::INT8),
                ],
            )
            .await?;
        piece(&rows, first, offset, limit)
    }

    async fn remove_in_transaction(
        &self,
        session_id: SessionId,
        which: &str,
        params: &[Param<'_>],
    ) -> Result<(), Trouble> {
        let mut connection = self.0.db.connection().await?;
        let done = async {
            let work = connection.begin().await?;
            // A fork of the session holds this lock while it shares the blobs.
            let sql = "SELECT FROM meerkat.sessions WHERE id = $1 FOR UPDATE";
            work.query(sql, &[(session_id.as_uuid(), Type::UUID)]).await?;
            remove(&work, session_id, which, params).await?;
            work.commit().await
        };
        let done = done.await;
        connection.end(done)
    }
}

/// Makes an upload a blob, in a transaction that has the session to itself as an upload and a removal have.
async fn keep(work: Work<'_>, session_id: SessionId, blob: &str, since: Timestamp) -> Result<bool, Trouble> {
    let session: Param<'_> = (session_id.as_uuid(), Type::UUID);
    let name: Param<'_> = (&blob, Type::TEXT);
    let first_time = since.as_millis().max(1);
    work.query("SELECT FROM meerkat.sessions WHERE id = $1 FOR UPDATE", std::slice::from_ref(&session)).await?;
    // Another may write a blob of the same bytes meanwhile, without the lock: the first one stays.
    let copied = "INSERT INTO meerkat.blobs (session, name, length, body) SELECT session, name, length, body \
        FROM meerkat.blobs WHERE session = $1 AND name = $2 AND uploaded >= $3 ON CONFLICT DO NOTHING";
    if work.execute(copied, &[session.clone(), name.clone(), (&first_time, Type::INT8)]).await? > 0 {
        let moved = "DELETE FROM meerkat.blobs WHERE session = $1 AND name = $2 AND uploaded > 0";
        work.execute(moved, &[session, name]).await?;
        work.commit().await?;
        return Ok(true);
    }
    let sql = "SELECT FROM meerkat.blobs WHERE session = $1 AND name = $2 AND uploaded = 0";
    let is_there = work.query_opt(sql, &[session, name.clone()]).await?.is_some();
    if is_there {
        remove(&work, session_id, "uploaded > 0 AND name = $2", &[name]).await?;
    }
    work.commit().await?;
    Ok(is_there)
}

/// Removes a session's blobs in a transaction that has locked the session.
pub(crate) async fn remove_all(work: &Work<'_>, session_id: SessionId) -> Result<(), Trouble> {
    remove(work, session_id, ALL, &[]).await
}

/// Condition of all blobs and uploads of a session.
const ALL: &str = "true";

/// Removes blobs and uploads of a session that fulfil a condition, whose parameters are `$2` and those after it. A body
/// that another session names stays.
async fn remove(work: &Work<'_>, session_id: SessionId, which: &str, params: &[Param<'_>]) -> Result<(), Trouble> {
    let sql = format!(
        "WITH removed AS (DELETE FROM meerkat.blobs WHERE session = $1 AND {which} \
         RETURNING body) DELETE FROM meerkat.blob_parts p USING removed r WHERE p.body = r.body \
         AND NOT EXISTS (SELECT FROM meerkat.blobs b WHERE b.body = r.body AND b.session <> $1)"
    );
    let session: Param<'_> = (session_id.as_uuid(), Type::UUID);
    let all: Vec<Param<'_>> = std::iter::once(session).chain(params.iter().cloned()).collect();
    work.execute(&sql, &all).await?;
    Ok(())
}

/// Joins parts, and cuts the piece out of them.
fn piece(rows: &[tokio_postgres::Row], first: u64, offset: u64, limit: usize) -> Result<Option<Bytes>, Trouble> {
    let Some(row) = rows.first() else { return Ok(None) };
    let length = unsigned(column(row, 0)?)?;
    let wanted = usize::try_from(length.saturating_sub(offset)).unwrap_or(usize::MAX).min(limit);
    let mut bytes = Vec::new();
    for (row, due) in rows.iter().zip(first..) {
        let (part, data): (Option<i64>, Option<&[u8]>) = (column(row, 1)?, column(row, 2)?);
        if let Some(data) = data.filter(|_| part == Some(signed(due))) {
            bytes.extend_from_slice(data);
        }
    }
    let skip = usize::try_from(offset - first * PART_BYTES as u64).unwrap_or(usize::MAX);
    match bytes.get(skip.min(bytes.len())..).and_then(|rest| rest.get(..wanted)) {
        Some(piece) => Ok(Some(Bytes::copy_from_slice(piece))),
        None => Err(Trouble::Unreadable("a part of a blob is missing".to_owned())),
    }
}

/// Blob that is being written. Dropped before its end, it deletes its parts; those of a process that has ended are swept
/// later.
struct Writer {
    store: Arc<Store>,
    session_id: SessionId,
    hash: Sha256,
    /// Bytes that are in no part yet.
    part: Vec<u8>,
    /// Id of the body, once a part is stored.
    body: Option<Uuid>,
    parts: i64,
    length: u64,
}

impl Writer {
    /// Stores a part.
    async fn store(&mut self, part: &[u8]) -> Result<Uuid, Trouble> {
        let sql = "INSERT INTO meerkat.blob_parts (body, part, data) \
            VALUES (coalesce($1, gen_random_uuid()), $2, $3) RETURNING body";
        let params = [(&self.body as _, Type::UUID), (&self.parts as _, Type::INT8), (&part as _, Type::BYTEA)];
        let row = self.store.db.query_opt(sql, &params).await?;
        let row = row.ok_or_else(|| Trouble::Unreadable("a part has no id".to_owned()))?;
        let body = column(&row, 0)?;
        (self.body, self.parts) = (Some(body), self.parts + 1);
        Ok(body)
    }
}

impl Writer {
    /// Stores the last part; returns the name of the blob, and its body.
    async fn end(&mut self) -> Result<(String, Uuid), Trouble> {
        let hash = std::mem::take(&mut self.hash).finalize();
        let name = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        let part = std::mem::take(&mut self.part);
        Ok((name, self.store(&part).await?))
    }

    /// Gives a body its name as an upload, in a transaction that has it to itself to count the others.
    async fn name_upload(&mut self, work: Work<'_>, name: &str, body: Uuid, time: Timestamp) -> Result<(), Trouble> {
        let session: Param<'_> = (self.session_id.as_uuid(), Type::UUID);
        let sql = "SELECT FROM meerkat.sessions WHERE id = $1 AND tail > 0 FOR UPDATE";
        if work.query_opt(sql, std::slice::from_ref(&session)).await?.is_none() {
            return Err(StoreError::NotFound(self.session_id).into());
        }
        let row = work
            .query_opt(
                "SELECT count(*), coalesce(sum(length), 0)::int8 FROM meerkat.blobs \
                 WHERE session = $1 AND uploaded > 0 AND name <> $2",
                &[session.clone(), (&name, Type::TEXT)],
            )
            .await?;
        let row = row.ok_or_else(|| Trouble::Unreadable("uploads have no count".to_owned()))?;
        let (others, others_bytes) = (unsigned(column(&row, 0)?)?, unsigned(column(&row, 1)?)?);
        check_uploads(usize::try_from(others).unwrap_or(usize::MAX), others_bytes, self.length)?;
        remove(&work, self.session_id, "uploaded > 0 AND name = $2", &[(&name, Type::TEXT)]).await?;
        // 0 says that it is no upload.
        let uploaded = time.as_millis().max(1);
        work.execute(
            "INSERT INTO meerkat.blobs (session, name, length, body, uploaded) VALUES ($1, $2, $3, $4, $5)",
            &[
                session,
                (&name, Type::TEXT),
                (&signed(self.length), Type::INT8),
                (&body, Type::UUID),
                (&uploaded, Type::INT8),
            ],
        )
        .await?;
        // From here on it may have a name, although the answer that says so is lost.
        self.body = None;
        work.commit().await
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let (Some(body), Ok(runtime)) = (self.body, Handle::try_current()) else { return };
        let store = self.store.clone();
        runtime.spawn(async move {
            let sql = "DELETE FROM meerkat.blob_parts WHERE body = $1";
            if let Err(trouble) = store.db.execute(sql, &[(&body, Type::UUID)]).await {
                tracing::warn!(?trouble, "the parts of an unfinished blob stay for now");
            }
        });
    }
}

#[async_trait]
impl BlobWriter for Writer {
    async fn write(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        self.hash.update(bytes);
        self.length += bytes.len() as u64;
        while self.part.len() + bytes.len() > PART_BYTES {
            let (fills, rest) = bytes.split_at(PART_BYTES - self.part.len());
            self.part.extend_from_slice(fills);
            let part = std::mem::take(&mut self.part);
            self.store(&part).await?;
            bytes = rest;
        }
        self.part.extend_from_slice(bytes);
        Ok(())
    }

    async fn finish(mut self: Box<Self>) -> Result<(String, u64), StoreError> {
        let (name, body) = self.end().await?;
        // From here on it may have a name, although the answer that says so is lost.
        self.body = None;
        let sql = "INSERT INTO meerkat.blobs (session, name, length, body) VALUES ($1, $2, $3, $4) \
            ON CONFLICT DO NOTHING";
        let params = [
            (self.session_id.as_uuid() as _, Type::UUID),
            (&name as _, Type::TEXT),
            (&signed(self.length) as _, Type::INT8),
            (&body as _, Type::UUID),
        ];
        if self.store.db.execute(sql, &params).await? == 0 {
            // The session has it already.
            let sql = "DELETE FROM meerkat.blob_parts p WHERE body = $1 \
                AND NOT EXISTS (SELECT FROM meerkat.blobs b WHERE b.body = p.body)";
            self.store.db.execute(sql, &[(&body, Type::UUID)]).await?;
        }
        Ok((name, self.length))
    }

    async fn upload(mut self: Box<Self>, time: Timestamp) -> Result<(String, u64), StoreError> {
        let (name, body) = self.end().await?;
        let store = self.store.clone();
        let mut connection = store.db.connection().await?;
        let done = match connection.begin().await {
            Ok(work) => self.name_upload(work, &name, body, time).await,
            Err(trouble) => Err(trouble),
        };
        connection.end(done)?;
        Ok((name, self.length))
    }
}
