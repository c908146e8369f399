//! The contract of project memory: what was said can be found again, in any session.
//!
//! The contract is always compiled; what keeps it stands behind the capability `memory-store`.

mod disabled;

use std::sync::Arc;

use async_trait::async_trait;

pub use disabled::open_memory;

use crate::{
    SessionError,
    service::{ForgetMemory, Forgotten, Page, Reindexed, SearchHit, SearchMemory},
    session::event::Record,
};

/// A store that finds what was said.
#[async_trait]
pub trait MemoryStore: Send + Sync {
    /// Takes in what these records say; a record that is there already changes nothing.
    async fn add(&self, records: &[Record]) -> Result<(), SessionError>;

    /// The best hits.
    async fn search(&self, request: SearchMemory) -> Result<Page<SearchHit>, SessionError>;

    /// Forgets, for good.
    async fn forget(&self, request: ForgetMemory) -> Result<Forgotten, SessionError>;

    /// Builds the index anew.
    async fn reindex(&self) -> Result<Reindexed, SessionError>;
}

/// A memory that can be shared.
pub type SharedMemory = Arc<dyn MemoryStore>;
