//! [`PostgresEvents`]: the journals. Appends go through the logs of this process; reads ask the database.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use meerkat_service::{
    Seq, SessionId,
    service::ForgetMemory,
    session::event::Record,
    store::{
        Creation, EventStore, Frame, FramePage, Holder, IndexedKey, Lease, ReadLimit, RecordSource, StoreError, Ticket,
    },
    wire::encode_event,
};
use meerkat_words::answers::SessionSummary;
use tokio::sync::watch;
use tokio_postgres::types::Type;

use crate::{
    db::{column, signed, unsigned},
    follow::tail,
    log::Entry,
    store::Store,
    trouble::Trouble,
};

/// Most frames that one statement reads.
const FRAMES_MAX: usize = 4096;

/// Journals of one database.
pub(crate) struct PostgresEvents(pub(crate) Arc<Store>);

/// Encodes records.
pub(crate) fn entries(records: &[Record]) -> Result<Vec<Entry>, StoreError> {
    let entry = |record: &Record| {
        let line = encode_event(record).map_err(|error| StoreError::Failed(error.to_string()))?;
        Ok(Entry { seq: record.seq, time_ms: record.time.as_millis(), line })
    };
    records.iter().map(entry).collect()
}

impl PostgresEvents {
    fn staged(&self, lease: &Lease, batch: &[Record], row: Option<&SessionSummary>) -> Result<Ticket, StoreError> {
        // Encoded before any lock is taken.
        let entries = entries(batch)?;
        if !self.0.node.has_authority() {
            return Err(StoreError::Fenced);
        }
        let (done, ticket) = Ticket::new();
        self.0.logs().stage(lease.session_id, signed(lease.epoch), entries, row.cloned(), done)?;
        self.0.signals.staged.notify_one();
        Ok(ticket)
    }

    /// Sums the bytes of a session's lines, or of these and its blobs.
    async fn sum(&self, session_id: SessionId, sql: &str) -> Result<u64, StoreError> {
        let row = self.0.db.query_opt(sql, &[(session_id.as_uuid(), Type::UUID)]).await?;
        Ok(row.map_or(Ok(0), |row| unsigned(column(&row, 0)?))?)
    }
}

#[async_trait]
impl EventStore for PostgresEvents {
    async fn lease(&self, session_id: SessionId) -> Result<Lease, StoreError> {
        self.0.lease(session_id).await
    }

    async fn release(&self, lease: Lease) -> Result<(), StoreError> {
        self.0.release(lease).await
    }

    async fn give_up(&self, lease: Lease) {
        self.0.logs().unlease(lease.session_id, signed(lease.epoch));
    }

    fn stage(&self, lease: &Lease, batch: &[Record]) -> Result<Ticket, StoreError> {
        self.staged(lease, batch, None)
    }

    fn stage_listed(&self, lease: &Lease, batch: &[Record], row: &SessionSummary) -> Result<Ticket, StoreError> {
        self.staged(lease, batch, Some(row))
    }

    async fn create(
        &self,
        first: &[Record],
        row: &SessionSummary,
        key: Option<&IndexedKey>,
    ) -> Result<Creation, StoreError> {
        self.0.room()?;
        self.0.create(entries(first)?, row, key).await
    }

    async fn read(&self, session_id: SessionId, after: Seq, limit: ReadLimit) -> Result<Option<FramePage>, StoreError> {
        Ok(page(&self.0, session_id, after, limit).await?)
    }

    fn at_hand(&self, session_id: SessionId, seq: Seq) -> Option<Frame> {
        self.0.logs().at_hand(session_id, seq)
    }

    async fn tail(&self, session_id: SessionId) -> Result<Option<Seq>, StoreError> {
        // Without authority another node may have the session by now.
        let leased = self.0.logs().leased_tail(session_id).filter(|_| self.0.node.has_authority());
        if leased.is_some() {
            return Ok(leased);
        }
        Ok(tail(&self.0, session_id).await?)
    }

    async fn watch(&self, session_id: SessionId) -> Result<Option<watch::Receiver<Seq>>, StoreError> {
        // By the database alone: by the clocks of both, the lease may have ended unseen.
        let Some(tail) = tail(&self.0, session_id).await? else { return Ok(None) };
        let watch = self.0.logs().watch(session_id, tail);
        self.0.signals.followed.notify_one();
        Ok(Some(watch))
    }

    async fn fork(&self, parent: SessionId, at: Seq, first: &[Record]) -> Result<(), StoreError> {
        self.0.fork(parent, None, at, first).await
    }

    async fn fork_unpruned(
        &self,
        parent: SessionId,
        version: u64,
        at: Seq,
        first: &[Record],
    ) -> Result<(), StoreError> {
        self.0.fork(parent, Some(version), at, first).await
    }

    async fn import(&self, session_id: SessionId, records: &mut dyn RecordSource) -> Result<(), StoreError> {
        self.0.import(session_id, records).await
    }

    async fn bytes(&self, session_id: SessionId) -> Result<u64, StoreError> {
        let sql = "SELECT s.bytes + coalesce((SELECT sum(length) FROM meerkat.blobs WHERE session = s.id), 0)::int8 \
            FROM meerkat.sessions s WHERE id = $1 AND tail > 0";
        self.sum(session_id, sql).await
    }

    async fn journal_bytes(&self, session_id: SessionId) -> Result<u64, StoreError> {
        self.sum(session_id, "SELECT bytes FROM meerkat.sessions WHERE id = $1 AND tail > 0").await
    }

    async fn delete(&self, session_id: SessionId) -> Result<(), StoreError> {
        self.0.delete(session_id).await
    }

    fn node(&self) -> Option<&str> {
        Some(&self.0.node.name)
    }

    async fn end_leases(&self) {
        if let Err(trouble) = self.0.node.end(&self.0.db).await {
            tracing::warn!(?trouble, "other nodes wait until the lease of this one expires");
        }
    }

    async fn holder(&self, session_id: SessionId) -> Result<Option<Holder>, StoreError> {
        self.0.holder(session_id).await
    }

    async fn holds(&self, session_id: SessionId) -> Result<bool, StoreError> {
        let leased = || self.0.logs().leased(session_id);
        if leased().is_some_and(|(_, works)| !works || !self.0.node.has_authority()) {
            tail(&self.0, session_id).await?;
        }
        Ok(leased().is_some())
    }

    async fn orphaned(&self) -> Result<Vec<SessionId>, StoreError> {
        self.0.orphans(false).await
    }

    async fn unsettled(&self) -> Result<Vec<SessionId>, StoreError> {
        self.0.orphans(true).await
    }

    async fn rests(&self, session_id: SessionId, last_seq: Seq) {
        if let Err(error) = self.0.settle(session_id, last_seq).await {
            tracing::warn!(%session_id, %error, "could not release the session's lease; it will be checked again at the next start");
        }
    }

    fn id(&self) -> Option<String> {
        Some(self.0.id.simple().to_string())
    }

    async fn record_forgotten(&self, decided: &[ForgetMemory]) -> Result<(), StoreError> {
        self.0.record_forgotten(decided).await
    }

    async fn forgotten(&self, after: u64) -> Result<Vec<(u64, ForgetMemory)>, StoreError> {
        self.0.forgotten(after).await
    }

    async fn room(&self) -> Result<(), StoreError> {
        self.0.room()
    }

    async fn sessions(&self, after: Option<SessionId>, limit: usize) -> Result<Vec<SessionId>, StoreError> {
        let after = after.map(|id| *id.as_uuid());
        let sql =
            "SELECT id FROM meerkat.sessions WHERE tail > 0 AND ($1::uuid IS NULL OR id > $1) ORDER BY id LIMIT $2";
        let rows = self.0.db.query(sql, &[(&after, Type::UUID), (&signed(limit as u64), Type::INT8)]).await?;
        let ids = rows.iter().map(|row| Ok(SessionId::from_uuid(column(row, 0)?)));
        Ok(ids.collect::<Result<_, Trouble>>()?)
    }
}

/// Reads a page of frames and the journal's version in one statement; `None` if there is no such session.
async fn page(
    store: &Store,
    session_id: SessionId,
    after: Seq,
    limit: ReadLimit,
) -> Result<Option<FramePage>, Trouble> {
    let sql = "SELECT s.version, e.seq, e.line FROM meerkat.sessions s LEFT JOIN LATERAL (SELECT seq, line FROM \
        (SELECT seq, line, row_number() OVER by_seq AS number, sum(octet_length(line)) OVER by_seq AS bytes FROM \
        (SELECT seq, line FROM meerkat.events WHERE session = $1 AND seq > $2 ORDER BY seq LIMIT $3) near \
        WINDOW by_seq AS (ORDER BY seq)) counted WHERE number = 1 OR bytes <= $4) e ON true \
        WHERE s.id = $1 AND s.tail > 0 ORDER BY e.seq";
    let frames = signed(limit.frames.min(FRAMES_MAX) as u64);
    let rows = store
        .db
        .query(
            sql,
            &[
                (session_id.as_uuid(), Type::UUID),
                (&signed(after), Type::INT8),
                (&frames, Type::INT8),
                (&signed(limit.bytes as u64), Type::INT8),
            ],
        )
        .await?;
    let Some(first) = rows.first() else { return Ok(None) };
    let version = unsigned(column(first, 0)?)?;
    let mut frames = Vec::with_capacity(rows.len());
    for row in &rows {
        let (seq, line): (Option<i64>, Option<&[u8]>) = (column(row, 1)?, column(row, 2)?);
        if let (Some(seq), Some(line)) = (seq, line) {
            frames.push(Frame { seq: unsigned(seq)?, line: Bytes::copy_from_slice(line) });
        }
    }
    Ok(Some(FramePage { frames, version, ..FramePage::default() }))
}
