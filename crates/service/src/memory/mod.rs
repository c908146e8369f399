//! The contract of project memory: what was said can be found again, in any session.
//!
//! The contract is always compiled; what keeps a memory stands behind the capability `memory-store`. Memory is a reader
//! of the journals: it takes in what is durable there, decides nothing about turns, and may be deleted at any time. Only
//! what it was told to forget, and what it took in where no journal is kept, it records itself.

#[cfg(not(feature = "memory-store"))]
pub(crate) mod absent;

pub(crate) mod intake;
pub mod passages;

#[cfg(not(feature = "memory-store"))]
pub(crate) use absent as recall;
#[cfg(feature = "memory-store")]
pub(crate) use meerkat_recall as recall;

#[cfg(feature = "memory-store")]
pub use meerkat_recall::{
    EndpointEmbedder, EndpointOptions, HashedEmbedder, HnswMemoryStore, LocalEmbedder, Stamp, VectorError, VectorLane,
};
pub use meerkat_words::memory::{
    EmbedFor, Embedder, EndpointAccess, Intake, MemoryOptions, MemoryStore, Passage, ProgressSink, SharedMemory,
};
pub use recall::open_memory;
