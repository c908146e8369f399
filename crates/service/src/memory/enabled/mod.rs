//! Project memory over redb: texts, postings and vectors in one file, and a graph of the vectors beside it.
//!
//! redb here is derived, as it is everywhere: it may be deleted, and comes back from the journals and from what was
//! forgotten. No backend's type crosses this folder.

#[expect(dead_code, reason = "the store that writes it comes next")]
mod log;

mod embed;
mod vector;

use std::path::Path;

pub use embed::{EndpointEmbedder, EndpointOptions, HashedEmbedder};
pub use vector::{Stamp, VectorError, VectorLane};

use super::{MemoryOptions, SharedMemory};
use crate::SessionError;

/// Memory whose postings and vectors stand in redb, with a graph over the vectors.
pub struct HnswMemoryStore;

/// The project's memory in `data_dir`, or in this process alone. The directory is owned by this process.
///
/// # Errors
/// `MEMORY_INDEX_UNAVAILABLE` where its files can neither be read nor set aside.
pub fn open_memory(_data_dir: Option<&Path>, _options: MemoryOptions) -> Result<SharedMemory, SessionError> {
    Err(SessionError::MemoryDisabled)
}
