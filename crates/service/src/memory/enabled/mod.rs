//! Project memory over redb: texts, postings and vectors in one file, and a graph of the vectors beside it.
//!
//! redb here is derived, as it is everywhere: it may be deleted, and comes back from the journals and from what was
//! forgotten. No backend's type crosses this folder.

mod store;

mod core;
mod opened;

mod anew;
mod embedding;
mod forget;
mod intake;
mod segments;

mod fuse;
mod lexical;
mod text;
mod when;

mod columns;
mod file;
mod postings;
mod tables;

mod log;

mod embed;
mod vector;

#[cfg(test)]
mod tests;

use std::{path::Path, sync::Arc};

pub use embed::{EndpointEmbedder, EndpointOptions, HashedEmbedder};
pub use store::HnswMemoryStore;
pub use vector::{Stamp, VectorError, VectorLane};

use super::{Embedder, MemoryOptions, SharedMemory};
use crate::SessionError;

/// The project's memory in `data_dir`, or in this process alone. The directory is owned by this process. Its files are
/// opened when they are first needed.
///
/// # Errors
/// None in this build.
pub fn open_memory(data_dir: Option<&Path>, options: MemoryOptions) -> Result<SharedMemory, SessionError> {
    let embedder: Arc<dyn Embedder> = options.embedder.unwrap_or_else(|| Arc::new(HashedEmbedder));
    Ok(Arc::new(HnswMemoryStore::new(data_dir, embedder, options.records_intake)))
}
