//! Memory where the build lacks `memory-store`: every request for it is answered with its code.

use std::path::Path;

use super::{MemoryOptions, SharedMemory};
use crate::{
    SessionError,
    capability::{Capabilities, Capability},
};

/// The project's memory in `data_dir`, or in this process alone.
///
/// # Errors
/// `MEMORY_STORE_DISABLED`.
pub fn open_memory(_data_dir: Option<&Path>, _options: MemoryOptions) -> Result<SharedMemory, SessionError> {
    Capabilities::compiled().require(Capability::MemoryStore)?;
    Err(SessionError::MemoryDisabled { configured: false })
}
