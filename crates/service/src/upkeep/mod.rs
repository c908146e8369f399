//! Upkeep of a store: journal compaction, retention, bundles, copies, examination and repair. Nothing here runs a turn.

pub(crate) mod journal_compaction;

pub(crate) mod retention;

pub(crate) mod bundle;

pub mod copy;

pub mod doctor;
