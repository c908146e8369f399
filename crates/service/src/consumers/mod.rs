//! Consumers of the journals: what reads them beside the turns and keeps something of them. A turn never waits for one,
//! and none decides anything.

pub(crate) mod readers;

pub(crate) mod beside;

pub(crate) mod projection;
