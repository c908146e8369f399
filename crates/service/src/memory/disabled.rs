//! Memory where the build lacks `memory-store`: every request for it is answered with its code.

use std::path::Path;

use super::SharedMemory;
use crate::{
    SessionError,
    capability::{Capabilities, Capability},
};

/// The project's memory in `data_dir`.
///
/// # Errors
/// `MEMORY_STORE_DISABLED`.
pub fn open_memory(_data_dir: &Path) -> Result<SharedMemory, SessionError> {
    Capabilities::compiled().require(Capability::MemoryStore)?;
    Err(SessionError::MemoryDisabled)
}
