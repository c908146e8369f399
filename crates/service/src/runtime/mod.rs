//! The services: one engine over one kind of store each, and how their events are followed.

pub mod ephemeral;
pub mod follow;

mod creations;
pub(crate) mod live;
mod validate;

#[cfg(test)]
mod tests;
