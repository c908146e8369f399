//! [`PostgresReaders`]: registrations of readers.

use std::sync::Arc;

use async_trait::async_trait;
use meerkat_service::{
    clock::Timestamp,
    store::{ReaderStore, Registration, StoreError},
};
use tokio_postgres::{Row, types::Type};

use crate::{db::column, store::Store, trouble::Trouble};

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
        // Nodes of earlier versions go by what is in `relied`.
        let sql = "WITH removed AS (DELETE FROM meerkat.readers WHERE name = $1) \
            DELETE FROM meerkat.relied WHERE reader = $1";
        self.0.db.execute(sql, &[(&reader, Type::TEXT)]).await?;
        Ok(())
    }
}
