//! Upkeep of a data directory: what is dropped of journals, which sessions go, sessions as archives, and what is examined
//! and mended. Nothing here runs a turn.

pub(crate) mod pruning;

pub(crate) mod retention;

pub(crate) mod bundle;

pub mod doctor;
