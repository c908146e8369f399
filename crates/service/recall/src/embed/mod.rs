//! What turns texts into vectors: the built-in one, which needs nothing, a server that speaks as OpenAI does, and a model
//! in a local directory.
//!
//! A vector is a guess at what a text is about. Nothing here decides what is found.

mod endpoint;
mod hashed;
mod local;
mod words;

pub use endpoint::{EndpointEmbedder, EndpointOptions};
pub use hashed::HashedEmbedder;
pub use local::LocalEmbedder;

/// Brings a vector to length 1; one that has no direction becomes all zeros.
fn normalise(vector: &mut [f32]) {
    let norm = vector.iter().map(|&component| f64::from(component).powi(2)).sum::<f64>().sqrt();
    let scale = if norm > 0.0 { norm.recip() } else { 0.0 };
    for component in vector {
        let scaled = (f64::from(*component) * scale) as f32;
        *component = scaled;
    }
}
