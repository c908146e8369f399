//! Build with `postgres`.

use meerkat_service::{SessionError, store::Stores};
use meerkat_store_postgres::{PostgresOptions, open as open_stores};

use super::Database;

pub(super) async fn open(database: &Database) -> Result<Stores, SessionError> {
    let Database { url, schema, node } = database;
    let options = PostgresOptions::new(url.clone().into(), node.clone());
    open_stores(PostgresOptions { schema: schema.clone(), ..options }).await
}
