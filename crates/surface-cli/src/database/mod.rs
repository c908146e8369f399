//! The database that holds the sessions, where the configuration names one. It holds no address longer than it must, and
//! prints none.

#[cfg(not(feature = "postgres"))]
mod disabled;
#[cfg(feature = "postgres")]
mod enabled;
mod settings;

use std::path::Path;

use meerkat_service::{
    AgentBuildConfig, SessionError,
    doctor::Diagnosis,
    store::{Stores, own_directory},
};
use serde_json::Value;
use tokio::runtime::Handle;

#[cfg(not(feature = "postgres"))]
use self::disabled::{check_at_rest, examine, node_name, nodes, open};
#[cfg(feature = "postgres")]
use self::enabled::{check_at_rest, examine, node_name, nodes, open};
pub(crate) use self::settings::Database;

impl Database {
    /// Opens the stores for an agent. Blocks, on a thread of the runtime that may.
    ///
    /// The data directory is owned before the database is asked: two processes of one directory would be the same node.
    pub(crate) fn open(&self, data_dir: &Path, build: AgentBuildConfig) -> Result<AgentBuildConfig, SessionError> {
        let owner = own_directory(data_dir)?;
        let node = self.node.clone().map_or_else(|| node_name(data_dir), Ok)?;
        let stores = Handle::current().block_on(self.stores(node))?;
        Ok(build.stores(stores).owner(owner).secret(self.url.clone()))
    }

    /// Opens the stores as a node of this name.
    pub(crate) async fn stores(&self, node: String) -> Result<Stores, SessionError> {
        open(self, node).await
    }

    /// Lists the nodes.
    pub(crate) async fn nodes(&self) -> Result<Vec<Value>, SessionError> {
        nodes(self).await
    }

    /// Refuses a database that a server works on. Nodes with this prefix of their names only copy.
    pub(crate) async fn check_at_rest(&self, copiers: &str) -> Result<(), SessionError> {
        check_at_rest(self, copiers).await
    }

    /// Examines the database, and repairs what can be repaired if that is asked for.
    pub(crate) async fn examine(&self, is_repair: bool) -> Result<Diagnosis, SessionError> {
        examine(self, is_repair).await
    }
}
