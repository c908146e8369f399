//! The journal: each session's records in files of its own, and the store's own marks.
//!
//! It knows bytes, seqs and batches, and never what an event means. Only the durable stores come here.

#[cfg(feature = "session-store")]
mod enabled;

#[cfg(feature = "session-store")]
pub(crate) use enabled::*;
