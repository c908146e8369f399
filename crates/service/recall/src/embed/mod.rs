//! Embedders turn texts into vectors: a table of vectors of pieces of words, which is built in or in a directory, and a
//! server with OpenAI's interface.
//!
//! A vector is a guess at what a text is about. Nothing here decides what is found.

mod builtin;
mod directory;
mod endpoint;
mod pieces;
mod table;

pub(crate) use builtin::BUILTIN;
pub use builtin::BuiltinEmbedder;
pub use directory::LocalEmbedder;
pub use endpoint::{EndpointEmbedder, EndpointOptions};

/// Scales a vector to length 1; one without a direction becomes all zeros.
fn normalise(vector: &mut [f32]) {
    let norm = vector.iter().map(|&component| f64::from(component).powi(2)).sum::<f64>().sqrt();
    let scale = if norm > 0.0 { norm.recip() } else { 0.0 };
    for component in vector {
        let scaled = (f64::from(*component) * scale) as f32;
        *component = scaled;
    }
}
