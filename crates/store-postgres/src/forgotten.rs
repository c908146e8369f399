//! What memory is to forget at every node, as a list that only grows: no node forgets anything before it is in the list.

use meerkat_service::{service::ForgetMemory, store::StoreError};
use tokio_postgres::types::Type;

use crate::{
    db::{column, signed, unsigned},
    store::Store,
    trouble::Trouble,
};

/// Most requests of one statement.
const AT_ONCE: usize = 1000;

impl Store {
    /// Adds the requests that are not in the list.
    pub(crate) async fn record_forgotten(&self, decided: &[ForgetMemory]) -> Result<(), StoreError> {
        for some in decided.chunks(AT_ONCE) {
            let requests: Result<Vec<String>, _> = some.iter().map(serde_json::to_string).collect();
            let requests = requests.map_err(|error| StoreError::Failed(error.to_string()))?;
            match self.record_forgotten_once(&requests).await {
                // If it happened all the same, it changes nothing now.
                Err(trouble) if trouble.is_passing() => self.record_forgotten_once(&requests).await?,
                done => done?,
            }
        }
        Ok(())
    }

    async fn record_forgotten_once(&self, requests: &[String]) -> Result<(), Trouble> {
        let mut connection = self.db.connection().await?;
        let done = async {
            let work = connection.begin().await?;
            // Whoever waits here sees the places of those before, and they are seen before its own.
            work.query("SELECT FROM meerkat.store FOR UPDATE", &[]).await?;
            work.execute(
                "INSERT INTO meerkat.forgotten (place, request) \
                 SELECT greatest((SELECT max(place) FROM meerkat.forgotten), \
                 (extract(epoch FROM clock_timestamp()) * 1000000)::int8) + row_number() OVER (), request \
                 FROM (SELECT DISTINCT request FROM unnest($1) AS request) AS named \
                 WHERE NOT EXISTS (SELECT FROM meerkat.forgotten f WHERE f.request = named.request)",
                &[(&requests, Type::TEXT_ARRAY)],
            )
            .await?;
            work.commit().await
        };
        let done = done.await;
        connection.end(done)
    }

    /// Reads some of the list after a place.
    pub(crate) async fn forgotten(&self, after: u64) -> Result<Vec<(u64, ForgetMemory)>, StoreError> {
        let sql = "SELECT place, request FROM meerkat.forgotten WHERE place > $1 ORDER BY place LIMIT $2";
        let rows = self.db.query(sql, &[(&signed(after), Type::INT8), (&signed(AT_ONCE as u64), Type::INT8)]).await?;
        let read = rows.iter().map(|row| {
            let request = serde_json::from_str(column(row, 1)?);
            Ok((unsigned(column(row, 0)?)?, request.map_err(|error| Trouble::Unreadable(error.to_string()))?))
        });
        Ok(read.collect::<Result<_, Trouble>>()?)
    }
}
