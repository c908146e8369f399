//! Embedders turn texts into vectors: a server with OpenAI's interface, and, with the feature `local-embeddings`, a model
//! in a local directory.
//!
//! A vector is a guess at what a text is about. Nothing here decides what is found.

#[cfg(not(feature = "local-embeddings"))]
mod absent;
mod endpoint;
#[cfg(feature = "local-embeddings")]
mod local;

#[cfg(not(feature = "local-embeddings"))]
pub use absent::LocalEmbedder;

pub use endpoint::{EndpointEmbedder, EndpointOptions};
#[cfg(feature = "local-embeddings")]
pub use local::LocalEmbedder;

/// Scales a vector to length 1; one without a direction becomes all zeros.
fn normalise(vector: &mut [f32]) {
    let norm = vector.iter().map(|&component| f64::from(component).powi(2)).sum::<f64>().sqrt();
    let scale = if norm > 0.0 { norm.recip() } else { 0.0 };
    for component in vector {
        let scaled = (f64::from(*component) * scale) as f32;
        *component = scaled;
    }
}
