//! Consumers of the journals: what reads them beside the turns and keeps something of them. A turn never waits for one,
//! and none decides anything.
//!
//! `readers` knows how far each has come, `driver` runs those of meerkat's own, and what they ask of the service whose
//! journals they read is a [`Host`]: nothing here names a service.

pub(crate) mod readers;

mod driver;

pub(crate) mod projection;
pub(crate) mod projector;

pub(crate) mod memory;

mod beside;

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::RwLock;

use crate::{
    SessionError,
    ids::SessionId,
    service::SessionSummary,
    store::{EventStore, StoreError},
};

/// What consumers ask of the service whose journals they read.
#[async_trait]
pub(crate) trait Host: Send + Sync {
    /// Every stored session as lists show it, the oldest first.
    async fn all_sessions(&self) -> Result<Vec<SessionSummary>, SessionError>;

    /// One session as lists show it, up to its last durable record.
    async fn summary(&self, session_id: SessionId) -> Result<Arc<SessionSummary>, SessionError>;

    /// Lock of a session's journal: held together by those who make something of several reads of it. It counts how often
    /// records were dropped under it.
    fn journal(&self, session_id: SessionId) -> &RwLock<u64>;

    /// Drops the row of a deleted session, which stays until memory has forgotten the session.
    async fn drop_row_of_gone(&self, session_id: SessionId) -> Result<(), SessionError>;
}

/// Refuses what takes room beside the turns if the disk is full: what it has left is for turns that run.
async fn room_beside(events: &dyn EventStore) -> Result<(), SessionError> {
    match events.room().await {
        Err(error @ StoreError::Full) => Err(error.into()),
        _ => Ok(()),
    }
}

/// Finds the service, if it is still there: a consumer does not keep it.
pub(crate) type FindHost = Box<dyn Fn() -> Option<Arc<dyn Host>> + Send + Sync>;
