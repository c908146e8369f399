//! Build without `postgres`, whose options never name a database.

use meerkat_service::{SessionError, store::Stores};

use super::Database;

pub(super) async fn open(database: &Database) -> Result<Stores, SessionError> {
    let Database { url, schema, node } = database;
    Err(SessionError::Internal(format!("this build has no database {url} with {schema} for {node}")))
}
