//! Upkeep of a data directory: journal compaction, retention, bundles, examination and repair. Nothing here runs a
//! turn.

pub(crate) mod pruning;

pub(crate) mod retention;

pub(crate) mod bundle;

pub mod doctor;
