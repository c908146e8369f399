//! The database that holds the sessions, if the options name one.

#[cfg(not(feature = "postgres"))]
mod disabled;
#[cfg(feature = "postgres")]
mod enabled;

use std::path::Path;

use meerkat_service::{AgentBuildConfig, SessionError, store::own_directory};
use serde::Deserialize;

#[cfg(not(feature = "postgres"))]
use self::disabled::open;
#[cfg(feature = "postgres")]
use self::enabled::open;

/// Keys of the section `store` that name a database.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Database {
    url: String,
    schema: String,
    node: String,
}

impl Database {
    /// Opens the stores for an agent, as the binary does.
    pub(crate) async fn open(
        &self,
        data_dir: &Path,
        build: AgentBuildConfig,
    ) -> Result<AgentBuildConfig, SessionError> {
        let owner = own_directory(data_dir)?;
        Ok(build.stores(open(self).await?).owner(owner))
    }
}
