//! Consumers of the journals: they read beside the turns, and keep something of what they read. No turn waits for one,
//! and none decides anything.
//!
//! `readers` knows how far each has come, `driver` runs the built-in ones, and they know the service whose journals
//! they read only as a [`Host`].

pub(crate) mod readers;

pub(crate) mod changes;

mod driver;

pub(crate) mod projection;
pub(crate) mod projector;

pub(crate) mod memory;

mod background;

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::RwLock;

use crate::{
    SessionError,
    ids::SessionId,
    service::SessionSummary,
    session::View,
    store::{EventStore, StoreError},
};

/// Service whose journals are read, as its consumers see it.
#[async_trait]
pub(crate) trait Host: Send + Sync {
    /// Lists every stored session, oldest first.
    async fn all_sessions(&self) -> Result<Vec<SessionSummary>, SessionError>;

    /// Returns one session up to its last durable record.
    async fn view(&self, session_id: SessionId) -> Result<View, SessionError>;

    /// Returns the lock of a session's journal: read-locked by callers that combine several reads of it. It counts how
    /// often records were dropped.
    fn journal(&self, session_id: SessionId) -> &RwLock<u64>;

    /// Drops the row of a deleted session, which stays until memory has forgotten the session.
    async fn drop_row_of_deleted(&self, session_id: SessionId) -> Result<(), SessionError>;
}

/// Refuses background work on a full disk: the rest of its room is for running turns.
async fn check_room(events: &dyn EventStore) -> Result<(), SessionError> {
    match events.room().await {
        Err(error @ StoreError::Full) => Err(error.into()),
        _ => Ok(()),
    }
}

/// Finds the service if it still exists: a consumer does not keep it alive.
pub(crate) type FindHost = Box<dyn Fn() -> Option<Arc<dyn Host>> + Send + Sync>;
