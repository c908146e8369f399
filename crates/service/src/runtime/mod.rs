//! The service: one engine over its stores, and the operations on its sessions.

pub(crate) mod services;

mod admit;
mod operations;
mod overview;
pub(crate) mod sessions;

mod indexed;

mod nodes;
mod persistent;

mod children;
mod creations;
mod given;
mod host;
mod journals;
pub(crate) mod pin_fact;
pub(crate) mod read_blob;
pub(crate) mod recall;
mod scrub;
mod tree;
pub(crate) mod validate;

pub use crate::wire::bounds::BLOB_PIECE_BYTES_MAX;
pub use services::*;
