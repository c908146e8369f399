//! Sessions in PostgreSQL: [`open`] makes the stores of a service from the address of a database.
//!
//! Several nodes may share a database. One statement appends, compares and fences (`append.rs`); a lease is a number in
//! the session's row (`leases.rs`), and holds as long as its node's row is alive by the database's clock (`node.rs`).
//! Nothing here needs a session of the server beyond one transaction: no advisory lock, no LISTEN, no prepared statement
//! with a name. No address, password or record is ever logged.

mod address;
mod tls;
mod trouble;

mod db;
mod schema;

mod append;
mod log;
mod node;

mod store;
mod tasks;

mod copies;
mod events;
mod follow;
mod forgotten;
mod leases;
mod listing;

mod inspect;

mod blobs;
mod inbox;
mod index;
mod prune;
mod readers;
mod snapshots;

#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc, time::Duration};

use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_service::{SessionError, store::Stores};
use secrecy::SecretString;

pub use crate::inspect::{NodeView, check_at_rest, examine, nodes};

use crate::{
    address::Address,
    blobs::PostgresBlobs,
    db::Db,
    events::PostgresEvents,
    inbox::PostgresInbox,
    index::PostgresIndex,
    node::Node,
    prune::PostgresPruner,
    readers::PostgresReaders,
    schema::{Refusal, check_name, prepare},
    snapshots::PostgresSnapshots,
    store::Store,
    tls::Tls,
};

/// Shortest lease of a node, in milliseconds.
const LEASE_MS_MIN: u64 = 100;

/// Options of the stores.
#[derive(Clone)]
pub struct PostgresOptions {
    /// Address of the database, as `postgres://user:password@host:5432/database`. It may hold `sslmode` and
    /// `sslrootcert`, besides the options of the driver.
    pub url: SecretString,
    /// Schema of the tables. It is made if it is missing.
    pub schema: String,
    /// Most connections, at least 3. One of them only renews the lease.
    pub connections: usize,
    /// Longest time of a statement, in milliseconds.
    pub statement_timeout_ms: u64,
    /// Time after which a node that gives no sign is taken for ended, in milliseconds.
    pub lease_ms: u64,
    /// Name of this node: no two processes may have the same one at a time. A process that starts under the name of an
    /// ended one takes its sessions over at once.
    pub node: String,
}

impl PostgresOptions {
    /// Makes the options of a node, with everything else at its default.
    #[must_use]
    pub fn new(url: SecretString, node: String) -> Self {
        Self {
            url,
            schema: "meerkat".to_owned(),
            connections: 10,
            statement_timeout_ms: 10_000,
            lease_ms: 15_000,
            node,
        }
    }
}

impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions")
            .field("schema", &self.schema)
            .field("connections", &self.connections)
            .field("statement_timeout_ms", &self.statement_timeout_ms)
            .field("lease_ms", &self.lease_ms)
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

/// Opens the stores in a database; makes or updates its schema. Must be called in a tokio runtime, on which the leases
/// are renewed until the stores are dropped.
///
/// # Errors
/// `CONFIG_INVALID` if the address, the user or the certificate is refused; `STORE_NOT_WRITABLE` if the user lacks a
/// right, or the server takes no writes; `STORE_FORMAT_UNSUPPORTED` if the server is too old, or the schema newer than
/// this version; `STORE_FULL`; `STORE_FAILED` if the server cannot be reached. Each says what to do.
pub async fn open(options: PostgresOptions) -> Result<Stores, SessionError> {
    let store = parts(options).await?;
    let events = Arc::new(PostgresEvents(store.clone()));
    Ok(Stores {
        blobs: Arc::new(PostgresBlobs(store.clone())),
        snapshots: Arc::new(PostgresSnapshots::new(store.clone(), events.clone())),
        index: Arc::new(PostgresIndex(store.clone())),
        pruner: Some(Arc::new(PostgresPruner(store.clone()))),
        inbox: Some(Arc::new(PostgresInbox(store.clone()))),
        readers: Arc::new(PostgresReaders(store)),
        events,
    })
}

/// Checks the numbers, of which the database takes no others.
fn check_numbers(options: &PostgresOptions) -> Result<(), (&'static str, String)> {
    let most = i32::MAX as u64;
    // One renews the lease, an import may hold another, and the third is for everything else.
    if !(3..=1000).contains(&options.connections) {
        return Err(("store.connections", "it must be from 3 to 1000".to_owned()));
    }
    if !(1..=most).contains(&options.statement_timeout_ms) {
        return Err(("store.statement_timeout_ms", format!("it must be from 1 to {most}")));
    }
    // Renewed three times as often: shorter than the way to a database and back, no lease would ever hold.
    if !(LEASE_MS_MIN..=most).contains(&options.lease_ms) {
        return Err(("store.lease_ms", format!("it must be from {LEASE_MS_MIN} to {most}")));
    }
    Ok(())
}

/// Opens what the stores share.
async fn parts(options: PostgresOptions) -> Result<Arc<Store>, SessionError> {
    check_numbers(&options).map_err(|(key, why)| invalid(key, &why))?;
    let (db, renewals) = (pool(&options, options.connections - 1)?, pool(&options, 1)?);
    let name = db.name.clone();
    let id = prepare(&db).await.map_err(|refusal| refusal.error(&name))?;
    let lease = Duration::from_millis(options.lease_ms);
    let node = Node::begin(&db, options.node, lease).await;
    let node = node.map_err(|trouble| Refusal::from(trouble).error(&name))?;
    let store = Store::new([db, renewals], node, id, options.connections);
    tasks::begin(&store, options.connections);
    Ok(store)
}

/// Prepares connections by the options; none is made yet.
fn connect(options: &PostgresOptions) -> Result<Db, SessionError> {
    check_numbers(options).map_err(|(key, why)| invalid(key, &why))?;
    pool(options, options.connections)
}

/// Prepares so many connections.
fn pool(options: &PostgresOptions, connections: usize) -> Result<Db, SessionError> {
    check_name(&options.schema).map_err(|why| invalid("store.schema", &why))?;
    let address = Address::parse(&options.url).map_err(|why| invalid("store.url", &why))?;
    let tls = Tls::new(&address.encryption).map_err(|why| invalid("store.url", &why))?;
    let limit = Duration::from_millis(options.statement_timeout_ms);
    Ok(Db::new(address, tls, &options.schema, connections, limit))
}

fn invalid(key: &str, why: &str) -> SessionError {
    let message = format!("{key}: {}.", why.trim_end_matches('.'));
    SessionError::Failed(Box::new(ErrorBody::with_message(ErrorCode::ConfigInvalid, message)))
}
