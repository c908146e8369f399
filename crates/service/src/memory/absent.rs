//! Memory in a build without `memory-store`: every request for it is refused with its code, and the log that another
//! build wrote is not examined.

use std::{path::Path, sync::Arc};

use super::{Embedder, EndpointAccess, MemoryOptions, SharedMemory};
use crate::{
    Absence, SessionError,
    capability::{Capabilities, Capability},
    clock::World,
    options::{EndpointConfig, LocalConfig},
    store::StoreError,
};

/// Opens a memory, which this build cannot.
///
/// # Errors
/// `MEMORY_STORE_DISABLED`.
pub fn open_memory(_data_dir: Option<&Path>, _options: MemoryOptions) -> Result<SharedMemory, SessionError> {
    Capabilities::compiled().require(Capability::MemoryStore)?;
    Err(SessionError::MemoryDisabled { absence: Absence::NotBuilt })
}

/// Makes the embedder of a server, which this build cannot.
///
/// # Errors
/// `MEMORY_STORE_DISABLED`.
pub(crate) fn endpoint_embedder(
    _config: &EndpointConfig,
    _access: EndpointAccess,
    _world: World,
) -> Result<Arc<dyn Embedder>, SessionError> {
    Err(SessionError::MemoryDisabled { absence: Absence::NotBuilt })
}

/// Makes the built-in embedder, which this build lacks.
pub(crate) const fn builtin_embedder() -> Option<Arc<dyn Embedder>> {
    None
}

/// Makes the embedder of a local table, which this build cannot.
///
/// # Errors
/// `MEMORY_STORE_DISABLED`.
pub(crate) fn local_embedder(_config: &LocalConfig) -> Result<Arc<dyn Embedder>, SessionError> {
    Err(SessionError::MemoryDisabled { absence: Absence::NotBuilt })
}

/// Examines the log of a data directory: this build cannot read it and finds nothing.
///
/// # Errors
/// None in this build.
pub(crate) const fn examine_log(_data_dir: &Path, _is_owned: bool) -> Result<Vec<String>, StoreError> {
    Ok(Vec::new())
}

/// Repairs the log of a data directory, which this build cannot.
///
/// # Errors
/// Always.
pub(crate) fn mend_log(_data_dir: &Path) -> Result<String, StoreError> {
    Err(StoreError::Failed("this build has no memory".to_owned()))
}
