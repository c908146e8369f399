//! Project memory: finds what was said. Texts, postings and vectors are in one redb file.
//!
//! The redb file is derived: it may be deleted, and is rebuilt from the journals and from the log of what was
//! forgotten. No type of a backend leaves this crate.

mod store;

mod core;
mod opened;

mod embedding;
mod erase;
mod forget;
mod intake;
mod rebuild;
mod segments;

mod fuse;
mod lexical;
mod text;
mod tuning;
mod vocabulary;
mod when;

mod columns;
mod file;
mod postings;
mod tables;

mod log;

mod doctor;

mod codes;
mod embed;
mod vectors;

#[cfg(test)]
mod tests;

use std::{path::Path, sync::Arc};

pub use doctor::{examine_log, mend_log};
pub use embed::{BuiltinEmbedder, EndpointEmbedder, EndpointOptions, LocalEmbedder};
pub use store::HnswMemoryStore;
pub use vectors::{VectorError, VectorLane};

use meerkat_words::memory::{Embedder, EndpointAccess, MemoryOptions, SharedMemory};
use meerkat_words::{
    SessionError,
    clock::World,
    options::{EndpointConfig, LocalConfig},
};

/// Makes the project's memory in `data_dir`, which this process owns, or in memory alone. Its files are opened when
/// they are first needed.
///
/// # Errors
/// None in this build.
pub fn open_memory(data_dir: Option<&Path>, options: MemoryOptions) -> Result<SharedMemory, SessionError> {
    Ok(Arc::new(HnswMemoryStore::new(data_dir, options)))
}

/// Makes an embedder over a server. Nothing is sent yet.
///
/// # Errors
/// `CONFIG_INVALID` if an option is not valid.
pub fn endpoint_embedder(
    config: &EndpointConfig,
    access: EndpointAccess,
    world: World,
) -> Result<Arc<dyn Embedder>, SessionError> {
    let EndpointAccess { key, proxy, no_proxy } = access;
    let dimensions = (config.dimensions > 0).then_some(config.dimensions);
    let (base_url, model) = (config.base_url.clone(), config.model.clone());
    let options = EndpointOptions { base_url, model, key, dimensions, proxy, no_proxy, ..EndpointOptions::default() };
    Ok(Arc::new(EndpointEmbedder::new(options, world)?))
}

/// Makes the built-in embedder. Its table is not read yet.
#[must_use]
pub fn builtin_embedder() -> Option<Arc<dyn Embedder>> {
    Some(Arc::new(BuiltinEmbedder))
}

/// Makes an embedder over a table in a local directory. Its numbers are not read yet.
///
/// # Errors
/// `CONFIG_INVALID` if no directory is named, or the one named has no table that can be used.
pub fn local_embedder(config: &LocalConfig) -> Result<Arc<dyn Embedder>, SessionError> {
    let Some(dir) = &config.dir else {
        let message = "Name the directory of a table: config.json, model.safetensors and tokenizer.json.".to_owned();
        return Err(SessionError::ConfigInvalid { key: "memory.local.dir".to_owned(), message });
    };
    Ok(Arc::new(LocalEmbedder::open(dir)?))
}
