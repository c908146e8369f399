//! The services: one engine over one kind of store each, and how their events are followed.

mod admit;
mod operations;
mod sessions;

mod indexed;

mod persistent;

mod beside;
mod creations;
mod journals;
pub(crate) mod memory;
pub(crate) mod projector;
pub(crate) mod read_blob;
pub(crate) mod recall;
pub(crate) mod validate;

pub use crate::wire::bounds::BLOB_PIECE_BYTES_MAX;
pub use sessions::{EphemeralSessionService, PersistentSessionService, Sessions};
