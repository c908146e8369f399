//! An embedder that is a model in a local directory: no server, no download, and no text leaves the process.
//!
//! It is a convenience of the feature `local-embeddings`, and no capability. A build without it says so where it is asked.

#[cfg(not(feature = "local-embeddings"))]
mod disabled;
#[cfg(feature = "local-embeddings")]
mod enabled;

#[cfg(not(feature = "local-embeddings"))]
pub use disabled::LocalEmbedder;
#[cfg(feature = "local-embeddings")]
pub use enabled::LocalEmbedder;

use meerkat_words::SessionError;

/// The embedder cannot be had as the configuration asks for it.
fn refused(key: &str, message: String) -> SessionError {
    SessionError::ConfigInvalid { key: format!("memory.{key}"), message }
}
