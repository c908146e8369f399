//! The services: one engine over one kind of store each, and how their events are followed.

mod operations;
mod sessions;

mod indexed;

pub mod ephemeral;
pub mod persistent;

pub mod follow;

pub mod ended;

mod creations;
mod host;
mod journals;
pub(crate) mod live;
pub(crate) mod read_blob;
pub(crate) mod recall;
pub(crate) mod restore;
pub(crate) mod validate;

pub use crate::wire::bounds::BLOB_PIECE_BYTES_MAX;
pub use sessions::Sessions;

#[cfg(test)]
mod tests;
