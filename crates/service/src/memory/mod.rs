//! Contract of the project's memory: messages of any session can be found again.
//!
//! The contract is always compiled; the store needs the capability `memory-store`. Memory is a reader of the journals:
//! it takes in durable records, decides nothing about turns, and may be deleted at any time. It records itself only
//! what it must forget, and messages without a journal.

#[cfg(not(feature = "memory-store"))]
pub(crate) mod absent;

pub(crate) mod intake;
pub mod passages;

#[cfg(not(feature = "memory-store"))]
pub(crate) use absent as recall;
#[cfg(feature = "memory-store")]
pub(crate) use meerkat_recall as recall;

#[cfg(feature = "memory-store")]
pub use meerkat_recall::{EndpointEmbedder, EndpointOptions, HnswMemoryStore, LocalEmbedder, VectorError, VectorLane};
pub use meerkat_words::memory::{
    EmbedFor, Embedder, EndpointAccess, Intake, MemoryOptions, MemoryStore, Passage, ProgressSink, SharedMemory,
};
pub use recall::open_memory;
