//! Build without `postgres`: says so if a database is named.

use std::path::Path;

use meerkat_service::{SessionError, doctor::Diagnosis, store::Stores};
use serde_json::Value;

use super::settings::Database;

fn refused<T>() -> Result<T, SessionError> {
    let message = "this build cannot keep sessions in a database; use one with the feature `postgres`, or leave it out";
    Err(SessionError::ConfigInvalid { key: "store.url".to_owned(), message: message.to_owned() })
}

pub(super) fn node_name(_: &Path) -> Result<String, SessionError> {
    refused()
}

#[expect(clippy::unused_async, reason = "with `postgres` it waits for the database")]
pub(super) async fn open(_: &Database, _: String) -> Result<Stores, SessionError> {
    refused()
}

#[expect(clippy::unused_async, reason = "with `postgres` it waits for the database")]
pub(super) async fn nodes(_: &Database) -> Result<Vec<Value>, SessionError> {
    refused()
}

#[expect(clippy::unused_async, reason = "with `postgres` it waits for the database")]
pub(super) async fn check_at_rest(_: &Database, _: &str) -> Result<(), SessionError> {
    refused()
}

#[expect(clippy::unused_async, reason = "with `postgres` it waits for the database")]
pub(super) async fn examine(_: &Database, _: bool) -> Result<Diagnosis, SessionError> {
    refused()
}
