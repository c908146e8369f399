//! Vocabulary that meerkat's crates share: ids and times, messages, the operations with their requests and answers,
//! errors, options, and the redaction of secrets.
//!
//! Nothing here touches a disk or a network. The engine re-exports it.

pub mod agents;
pub mod answers;
pub mod approval;
mod budget;
pub mod calls;
pub mod capability;
pub mod clock;
pub mod compaction;
pub mod cost;
mod error;
pub mod given;
pub mod ids;
pub mod list;
pub mod memory;
pub mod message;
pub mod model;
mod object;
pub mod operation;
pub mod operators;
pub mod options;
pub mod output;
pub mod overview;
pub mod prompt;
pub mod redact;
pub mod reminder;
pub mod reply;
pub mod requests;
pub mod store;
pub mod tool;

pub use capability::Capability;
pub use error::{Absence, SessionError};
pub use ids::{Seq, SessionId, TurnNumber};
pub use operation::Operation;
