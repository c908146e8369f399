//! [`PostgresPruner`]: journal compaction. What readers are done with is read in the transaction that drops.

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;
use meerkat_service::{
    Seq, SessionId,
    clock::Timestamp,
    store::{JournalPruner, StoreError},
};
use tokio_postgres::types::Type;

use crate::{
    db::{column, signed, unsigned},
    follow::tail,
    store::Store,
    trouble::Trouble,
};

/// Records of a part: what is dropped at once on schedule.
const PART_RECORDS: Seq = 1024;

/// Pruner of one database.
pub(crate) struct PostgresPruner(pub(crate) Arc<Store>);

#[async_trait]
impl JournalPruner for PostgresPruner {
    async fn parts(&self, session_id: SessionId) -> Result<Vec<(Seq, Seq)>, StoreError> {
        let tail = tail(&self.0, session_id).await?;
        let tail = tail.ok_or(StoreError::NotFound(session_id))?;
        let parts = (0..=tail / PART_RECORDS).map(|part| part * PART_RECORDS);
        Ok(parts.map(|before| (before + 1, tail.min(before + PART_RECORDS))).collect())
    }

    async fn prune(
        &self,
        session_id: SessionId,
        up_to: Seq,
        keep: &BTreeSet<Seq>,
        older_than: Timestamp,
    ) -> Result<u64, StoreError> {
        let id = [(session_id.as_uuid() as _, Type::UUID)];
        let keep: Vec<i64> = keep.iter().map(|seq| signed(*seq)).collect();
        let mut connection = self.0.db.connection().await?;
        let done = async {
            let work = connection.begin().await?;
            let locked = work.query("SELECT FROM meerkat.sessions WHERE id = $1 AND tail > 0 FOR UPDATE", &id).await?;
            if locked.is_empty() {
                return Err(StoreError::NotFound(session_id).into());
            }
            let watermark = work
                .query_opt(
                    "SELECT min(coalesce(c.seq, 0)) FROM meerkat.readers r \
                     LEFT JOIN meerkat.checkpoints c ON c.reader = r.name AND c.session = $1 \
                     WHERE strpos(r.name, '@') = 0 OR EXISTS (SELECT FROM meerkat.nodes n \
                     WHERE n.id = substr(r.name, strpos(r.name, '@') + 1))",
                    &id,
                )
                .await?;
            let watermark: Option<i64> = watermark.map_or(Ok(None), |row| column(&row, 0))?;
            let up_to = watermark.map_or(signed(up_to), |watermark| watermark.min(signed(up_to)));
            let row = work
                .query_opt(
                    "WITH dropped AS (DELETE FROM meerkat.events WHERE session = $1 AND seq <= $2 AND time < $3 \
                     AND NOT seq = ANY($4) RETURNING octet_length(line) AS bytes) \
                     SELECT count(*), coalesce(sum(bytes), 0)::int8 FROM dropped",
                    &[
                        id[0].clone(),
                        (&up_to, Type::INT8),
                        (&older_than.as_millis(), Type::INT8),
                        (&keep, Type::INT8_ARRAY),
                    ],
                )
                .await?;
            let row = row.ok_or_else(|| Trouble::Unreadable("a count has no row".to_owned()))?;
            let (dropped, bytes): (i64, i64) = (column(&row, 0)?, column(&row, 1)?);
            if dropped > 0 {
                let sql = "UPDATE meerkat.sessions SET version = version + 1, bytes = bytes - $2 WHERE id = $1";
                work.execute(sql, &[id[0].clone(), (&bytes, Type::INT8)]).await?;
            }
            work.commit().await?;
            unsigned(dropped)
        };
        let done = done.await;
        Ok(connection.end(done)?)
    }
}
