//! Memory where the build lacks `memory-store`: every request for it is answered with its code, and the log
//! that another build wrote is not looked at.

use std::{path::Path, sync::Arc};

use super::{Embedder, EndpointAccess, MemoryOptions, SharedMemory};
use crate::{
    SessionError,
    capability::{Capabilities, Capability},
    clock::World,
    options::{EndpointConfig, LocalConfig},
    store::StoreError,
};

/// The project's memory in `data_dir`, or in this process alone.
///
/// # Errors
/// `MEMORY_STORE_DISABLED`.
pub fn open_memory(_data_dir: Option<&Path>, _options: MemoryOptions) -> Result<SharedMemory, SessionError> {
    Capabilities::compiled().require(Capability::MemoryStore)?;
    Err(SessionError::MemoryDisabled { configured: false })
}

/// The embedder behind a server.
///
/// # Errors
/// `MEMORY_STORE_DISABLED`.
pub(crate) fn endpoint_embedder(
    _config: &EndpointConfig,
    _access: EndpointAccess,
    _world: World,
) -> Result<Arc<dyn Embedder>, SessionError> {
    Err(SessionError::MemoryDisabled { configured: false })
}

/// The embedder that is a model in a local directory.
///
/// # Errors
/// `MEMORY_STORE_DISABLED`.
pub(crate) fn local_embedder(_config: &LocalConfig) -> Result<Arc<dyn Embedder>, SessionError> {
    Err(SessionError::MemoryDisabled { configured: false })
}

/// Finds nothing in the log of a data directory: this build cannot read it.
///
/// # Errors
/// None in this build.
pub(crate) const fn examine_log(_data_dir: &Path, _is_owned: bool) -> Result<Vec<String>, StoreError> {
    Ok(Vec::new())
}

/// Mends the log of a data directory.
///
/// # Errors
/// That this build cannot.
pub(crate) fn mend_log(_data_dir: &Path) -> Result<String, StoreError> {
    Err(StoreError::Failed("this build has no memory".to_owned()))
}
