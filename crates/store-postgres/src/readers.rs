//! [`PostgresReaders`]: registrations of readers, and what pruning relied on.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use meerkat_service::{
    Seq, SessionId,
    clock::Timestamp,
    store::{ReaderStore, Registration, StoreError},
};
use tokio_postgres::{Row, types::Type};

use crate::{
    db::{column, signed, unsigned},
    store::Store,
    trouble::Trouble,
};

/// Readers of one database.
pub(crate) struct PostgresReaders(pub(crate) Arc<Store>);

#[async_trait]
impl ReaderStore for PostgresReaders {
    async fn readers(&self) -> Result<Vec<Registration>, StoreError> {
        let sql = "SELECT name, created FROM meerkat.readers ORDER BY name COLLATE \"C\"";
        let rows = self.0.db.query(sql, &[]).await?;
        let registration = |row: &Row| {
            let created_at = Timestamp::from_millis(column(row, 1)?);
            Ok(Registration { reader: column(row, 0)?, created_at })
        };
        Ok(rows.iter().map(registration).collect::<Result<_, Trouble>>()?)
    }

    async fn register(&self, registration: Registration) -> Result<(), StoreError> {
        let Registration { reader, created_at } = registration;
        let sql = "INSERT INTO meerkat.readers (name, created) VALUES ($1, $2) ON CONFLICT DO NOTHING";
        self.0.db.record(sql, &[(&reader, Type::TEXT), (&created_at.as_millis(), Type::INT8)]).await?;
        Ok(())
    }

    async fn unregister(&self, reader: &str) -> Result<(), StoreError> {
        let sql = "WITH removed AS (DELETE FROM meerkat.readers WHERE name = $1) \
            DELETE FROM meerkat.relied WHERE reader = $1";
        self.0.db.execute(sql, &[(&reader, Type::TEXT)]).await?;
        Ok(())
    }

    async fn rely(&self, session_id: SessionId, acknowledged: BTreeMap<String, Seq>) -> Result<(), StoreError> {
        let (readers, seqs): (Vec<String>, Vec<i64>) =
            acknowledged.into_iter().map(|(reader, seq)| (reader, signed(seq))).unzip();
        let sql = "INSERT INTO meerkat.relied AS r (session, reader, seq) \
            SELECT $1, a.* FROM unnest($2::text[], $3::int8[]) AS a ON CONFLICT (session, reader) \
            DO UPDATE SET seq = greatest(r.seq, excluded.seq)";
        let params = [
            (session_id.as_uuid() as _, Type::UUID),
            (&readers as _, Type::TEXT_ARRAY),
            (&seqs as _, Type::INT8_ARRAY),
        ];
        self.0.db.execute(sql, &params).await?;
        Ok(())
    }

    async fn relied(&self, session_id: SessionId) -> Result<BTreeMap<String, Seq>, StoreError> {
        let sql = "SELECT reader, seq FROM meerkat.relied WHERE session = $1";
        let rows = self.0.db.query(sql, &[(session_id.as_uuid(), Type::UUID)]).await?;
        let relied = |row: &Row| Ok((column(row, 0)?, unsigned(column(row, 1)?)?));
        Ok(rows.iter().map(relied).collect::<Result<_, Trouble>>()?)
    }

    async fn forget(&self, session_id: SessionId) -> Result<(), StoreError> {
        let sql = "DELETE FROM meerkat.relied WHERE session = $1";
        self.0.db.execute(sql, &[(session_id.as_uuid(), Type::UUID)]).await?;
        Ok(())
    }

    /// Every registration is known: they are rows of the same database.
    fn is_trusted(&self) -> bool {
        true
    }

    async fn trust(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
