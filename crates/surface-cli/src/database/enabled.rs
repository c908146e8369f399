//! Build with `postgres`: opens the stores, under the name that the data directory keeps for this node.

use std::{fs, io, path::Path};

use meerkat_service::{SessionError, clock::World, doctor::Diagnosis, store::Stores};
use meerkat_store_postgres::PostgresOptions;
use serde_json::Value;

use super::settings::Database;

/// File of the data directory with the node's name.
const NODE_FILE: &str = "node";

pub(super) async fn open(database: &Database, node: String) -> Result<Stores, SessionError> {
    meerkat_store_postgres::open(options(database, node)).await
}

pub(super) async fn nodes(database: &Database) -> Result<Vec<Value>, SessionError> {
    let nodes = meerkat_store_postgres::nodes(&options(database, String::new())).await?;
    let nodes: Result<_, _> = nodes.iter().map(serde_json::to_value).collect();
    nodes.map_err(|error| SessionError::Internal(error.to_string()))
}

pub(super) async fn check_at_rest(database: &Database, copiers: &str) -> Result<(), SessionError> {
    meerkat_store_postgres::check_at_rest(&options(database, String::new()), copiers).await
}

pub(super) async fn examine(database: &Database, is_repair: bool) -> Result<Diagnosis, SessionError> {
    meerkat_store_postgres::examine(&options(database, String::new()), is_repair).await
}

fn options(database: &Database, node: String) -> PostgresOptions {
    PostgresOptions {
        schema: database.schema.clone(),
        connections: database.connections,
        statement_timeout_ms: database.statement_timeout_ms,
        lease_ms: database.lease_ms,
        ..PostgresOptions::new(database.url.clone(), node)
    }
}

/// Returns the name that the data directory keeps for this node. The caller owns the directory.
pub(super) fn node_name(data_dir: &Path) -> Result<String, SessionError> {
    node(data_dir).map_err(|error| SessionError::StoreNotWritable {
        path: data_dir.join(NODE_FILE).display().to_string(),
        why: error.to_string(),
    })
}

/// Reads the node's name, or makes one.
fn node(data_dir: &Path) -> io::Result<String> {
    let path = data_dir.join(NODE_FILE);
    match fs::read_to_string(&path) {
        Ok(name) if !name.trim().is_empty() => return Ok(name.trim().to_owned()),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let world = World::system();
    let name = format!("node-{}", world.ids.next_session_id(world.clock.now()));
    let next = data_dir.join("node.next");
    fs::write(&next, &name)?;
    fs::rename(&next, &path)?;
    Ok(name)
}
