//! What meerkat's parts say to each other: ids and times, messages, the operations with their requests and answers, the
//! errors, the options, and what is kept out of texts as a secret.
//!
//! Nothing here does anything to the world. The engine hands these on under its own names.

pub mod answers;
pub mod capability;
pub mod clock;
pub mod compaction;
mod error;
pub mod ids;
pub mod list;
pub mod memory;
pub mod message;
pub mod model;
pub mod operation;
pub mod operators;
pub mod options;
pub mod redact;
pub mod reminder;
pub mod reply;
pub mod requests;
pub mod store;
pub mod tool;

pub use capability::Capability;
pub use error::SessionError;
pub use ids::{Seq, SessionId, TurnNumber};
pub use operation::Operation;
