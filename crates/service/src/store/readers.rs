//! Interface for readers: registrations, and the acknowledgements that pruning relies on. It outlives the index.
//!
//! Checkpoints are in the index. This holds only data that must not be lost with it.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{ReaderMark, ReaderMarks, Registration, StoreError};
use crate::ids::{Seq, SessionId};
use async_trait::async_trait;

/// Registrations, and the acknowledgements that pruning relied on. Every answered call is durable.
#[async_trait]
pub trait ReaderStore: Send + Sync {
    /// Lists the readers by name.
    async fn readers(&self) -> Result<Vec<Registration>, StoreError>;

    /// Registers a reader; if it is already registered, nothing changes.
    async fn register(&self, registration: Registration) -> Result<(), StoreError>;

    /// Deletes a reader, and its acknowledgements that pruning relied on.
    async fn unregister(&self, reader: &str) -> Result<(), StoreError>;

    /// Stores that these readers have handled a session up to these seqs, before records are dropped because of that. A
    /// seq never goes back.
    async fn rely(&self, session_id: SessionId, acknowledged: BTreeMap<String, Seq>) -> Result<(), StoreError>;

    /// Returns the acknowledgements that pruning relied on in a session.
    async fn relied(&self, session_id: SessionId) -> Result<BTreeMap<String, Seq>, StoreError>;

    /// Deletes them for a deleted session.
    async fn forget(&self, session_id: SessionId) -> Result<(), StoreError>;

    /// Returns true if every registration is certainly known. If not, nothing may be pruned.
    fn is_trusted(&self) -> bool;

    /// Confirms, after a person's check, that the remaining readers are all there are.
    async fn trust(&self) -> Result<(), StoreError>;
}

/// Registrations in memory.
#[derive(Default)]
pub struct MemoryReaders(Mutex<ReaderMarks>);

impl MemoryReaders {
    fn marks(&self) -> MutexGuard<'_, ReaderMarks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl ReaderStore for MemoryReaders {
    async fn readers(&self) -> Result<Vec<Registration>, StoreError> {
        Ok(self.marks().readers())
    }

    async fn register(&self, registration: Registration) -> Result<(), StoreError> {
        self.marks().apply(ReaderMark::Reader(registration));
        Ok(())
    }

    async fn unregister(&self, reader: &str) -> Result<(), StoreError> {
        self.marks().apply(ReaderMark::Unreader(reader.to_owned()));
        Ok(())
    }

    async fn rely(&self, session_id: SessionId, acknowledged: BTreeMap<String, Seq>) -> Result<(), StoreError> {
        if !acknowledged.is_empty() {
            self.marks().apply(ReaderMark::Relied(session_id, acknowledged));
        }
        Ok(())
    }

    async fn relied(&self, session_id: SessionId) -> Result<BTreeMap<String, Seq>, StoreError> {
        Ok(self.marks().relied(session_id))
    }

    async fn forget(&self, session_id: SessionId) -> Result<(), StoreError> {
        self.marks().apply(ReaderMark::Relied(session_id, BTreeMap::new()));
        Ok(())
    }

    fn is_trusted(&self) -> bool {
        self.marks().is_trusted()
    }

    async fn trust(&self) -> Result<(), StoreError> {
        self.marks().apply(ReaderMark::Trusted(true));
        Ok(())
    }
}
