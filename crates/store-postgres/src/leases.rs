//! Leases: a session's row names its node and counts its leases. Who may take one is decided in one statement, by the
//! database's clock. An epoch never comes back, so that what an earlier owner still does changes nothing.

use meerkat_service::{
    SessionId,
    clock::Timestamp,
    store::{Holder, Lease, StoreError},
};
use tokio_postgres::{Row, types::Type};

use crate::{
    db::{column, signed, unsigned},
    store::Store,
    trouble::Trouble,
};

/// Attempts to take a lease whose holder has just let go of it.
const ATTEMPTS: u32 = 5;

/// Most orphaned sessions to list at once; the rest come later.
const ORPHANS_MAX: i64 = 1000;

/// Statement that finds the node, other than this one, which works on a session.
pub(crate) const HOLDER: &str = "SELECT n.id, (extract(epoch FROM n.alive_until) * 1000)::int8 \
    FROM meerkat.sessions s JOIN meerkat.nodes n ON n.id = s.node WHERE s.id = $1 AND n.id <> $2 AND NOT s.is_idle \
    AND n.alive_until > clock_timestamp()";

/// Reads the answer to [`HOLDER`].
pub(crate) fn holder_of(row: Option<Row>) -> Result<Option<Holder>, Trouble> {
    let Some(row) = row else { return Ok(None) };
    let (node, until): (String, i64) = (column(&row, 0)?, column(&row, 1)?);
    Ok(Some(Holder { node, until: Timestamp::from_millis(until) }))
}

impl Store {
    /// Takes the lease of a session, unless another node that lives has it and has something to do there.
    pub(crate) async fn lease(&self, session_id: SessionId) -> Result<Lease, StoreError> {
        self.node.check()?;
        for _ in 0..ATTEMPTS {
            if let Some(lease) = self.try_lease(session_id).await? {
                return Ok(lease);
            }
            if let Some(holder) = self.holder(session_id).await? {
                return Err(StoreError::HeldBy { session_id, holder });
            }
        }
        Err(StoreError::Failed("the lease changes hands all the time".to_owned()))
    }

    async fn try_lease(&self, session_id: SessionId) -> Result<Option<Lease>, Trouble> {
        let row = self
            .db
            .query_opt(
                "INSERT INTO meerkat.sessions AS s (id, epoch, node) VALUES ($1, 1, $2) ON CONFLICT (id) DO UPDATE \
                 SET epoch = s.epoch + 1, node = excluded.node WHERE s.node IS NULL OR s.node = excluded.node \
                 OR s.is_idle OR NOT EXISTS (SELECT FROM meerkat.nodes n WHERE n.id = s.node \
                 AND n.alive_until > clock_timestamp()) RETURNING epoch, tail",
                &[(session_id.as_uuid(), Type::UUID), (&self.node.name, Type::TEXT)],
            )
            .await?;
        let Some(row) = row else { return Ok(None) };
        let (epoch, tail) = (column(&row, 0)?, unsigned(column(&row, 1)?)?);
        self.logs().lease(session_id, epoch, tail);
        self.signals.ended.notify_waiters();
        Ok(Some(Lease { session_id, epoch: unsigned(epoch)?, tail }))
    }

    /// Returns the other node that has a session.
    pub(crate) async fn holder(&self, session_id: SessionId) -> Result<Option<Holder>, StoreError> {
        let params = [(session_id.as_uuid() as _, Type::UUID), (&self.node.name as _, Type::TEXT)];
        Ok(holder_of(self.db.query_opt(HOLDER, &params).await?)?)
    }

    /// Gives a lease back. It leaves the lease of a later owner alone.
    pub(crate) async fn release(&self, lease: Lease) -> Result<(), StoreError> {
        let epoch = signed(lease.epoch);
        self.quiet(lease.session_id, epoch).await;
        self.logs().unlease(lease.session_id, epoch);
        let sql = "UPDATE meerkat.sessions SET node = NULL WHERE id = $1 AND epoch = $2";
        self.db.execute(sql, &[(lease.session_id.as_uuid(), Type::UUID), (&epoch, Type::INT8)]).await?;
        Ok(())
    }

    /// Marks a session that nobody uses as settled, unless it has changed since.
    pub(crate) async fn settle(&self, session_id: SessionId, last_seq: u64) -> Result<(), StoreError> {
        if self.logs().is_leased(session_id) {
            return Ok(());
        }
        let sql = "UPDATE meerkat.sessions s SET node = NULL WHERE id = $1 AND tail = $2 AND (node = $3 \
            OR NOT EXISTS (SELECT FROM meerkat.nodes n WHERE n.id = s.node AND n.alive_until > clock_timestamp()))";
        let params = [
            (session_id.as_uuid() as _, Type::UUID),
            (&signed(last_seq) as _, Type::INT8),
            (&self.node.name as _, Type::TEXT),
        ];
        self.db.execute(sql, &params).await?;
        Ok(())
    }

    /// Lists the sessions whose node has ended, and those that this process gave up. With `all` also those that have
    /// nothing to do, and those of which only the row in lists is left; without it, not those that this process has a
    /// lease of.
    pub(crate) async fn orphans(&self, all: bool) -> Result<Vec<SessionId>, StoreError> {
        let sql = "SELECT s.id, s.epoch, s.tail FROM meerkat.sessions s LEFT JOIN meerkat.nodes n ON n.id = s.node \
            WHERE s.node IS NOT NULL AND (s.node = $1 OR n.id IS NULL OR n.alive_until <= clock_timestamp()) \
            AND ($2 AND (s.tail > 0 OR s.summary IS NOT NULL) OR NOT s.is_idle AND s.tail > 0) ORDER BY s.node = $1, s.id LIMIT $3";
        // The start takes all of them. Later, those that this process works on do not hide those of others.
        let limit = if all { i64::MAX } else { ORPHANS_MAX };
        let rows =
            self.db.query(sql, &[(&self.node.name, Type::TEXT), (&all, Type::BOOL), (&limit, Type::INT8)]).await?;
        let (mut logs, mut ids) = (self.logs(), Vec::new());
        for row in &rows {
            let session_id = SessionId::from_uuid(column(row, 0)?);
            // A lease of before the one that has ended is none.
            logs.saw(session_id, column(row, 1)?, unsigned(column(row, 2)?)?);
            if !logs.is_leased(session_id) {
                ids.push(session_id);
            }
        }
        Ok(ids)
    }
}
