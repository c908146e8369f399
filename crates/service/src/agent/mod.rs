//! The engine: a pure function that decides, one place that performs, and an actor that records.
//!
//! A session is an actor: one task owns its `Session`, so nothing here locks it. The engine never looks
//! at bytes, knows no surface, and reads time and ids only through what it is handed.

pub(crate) mod decide;
pub(crate) mod loop_guard;

pub(crate) mod actor;
pub(crate) mod command;
pub(crate) mod perform;
pub(crate) mod registry;
pub(crate) mod render;
pub(crate) mod shared;

mod accept;
mod act;
pub(crate) mod record;
pub(crate) mod supervise;

#[cfg(test)]
mod tests;

use std::sync::{Arc, atomic::AtomicBool};

use crate::{
    capability::Capabilities,
    clock::World,
    model::ModelResolver,
    options::EngineOptions,
    redact::Secrets,
    store::{BlobStore, EventStore, MemoryUse},
    tool::ToolRegistry,
};

/// Everything that the actors of a service share and none of them changes.
pub(crate) struct Engine {
    pub(crate) world: World,
    pub(crate) options: EngineOptions,
    pub(crate) models: Arc<dyn ModelResolver>,
    pub(crate) tools: ToolRegistry,
    pub(crate) secrets: Secrets,
    pub(crate) events: Arc<dyn EventStore>,
    pub(crate) blobs: Arc<dyn BlobStore>,
    pub(crate) capabilities: Capabilities,
    /// What the service holds in memory, and may.
    pub(crate) held: Arc<MemoryUse>,
    /// Whether the service takes no new work.
    pub(crate) is_shutting_down: AtomicBool,
    /// Whether the configuration asks for compaction.
    pub(crate) is_compaction_configured: bool,
}
