//! The seam for readers: which are registered, and what pruning relies on. It outlives the index, which is a copy.
//!
//! How far a reader has come stands in the index. Here stands only what may not be lost with it.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{ReaderMark, ReaderMarks, Registration, StoreError};
use crate::ids::{Seq, SessionId};
use async_trait::async_trait;

/// Registrations, and the acknowledgements that pruning relied on. What a call has answered is durable.
#[async_trait]
pub trait ReaderStore: Send + Sync {
    /// The readers in the order of their names.
    async fn readers(&self) -> Result<Vec<Registration>, StoreError>;

    /// Registers a reader; where it is registered already, nothing changes.
    async fn register(&self, registration: Registration) -> Result<(), StoreError>;

    /// Forgets a reader, and all that was relied on of it.
    async fn unregister(&self, reader: &str) -> Result<(), StoreError>;

    /// Remembers that these readers are done with a session up to these seqs, before anything is dropped because of
    /// that. A seq never goes back.
    async fn rely(&self, session_id: SessionId, acknowledged: BTreeMap<String, Seq>) -> Result<(), StoreError>;

    /// What was relied on in a session.
    async fn relied(&self, session_id: SessionId) -> Result<BTreeMap<String, Seq>, StoreError>;

    /// Forgets what was relied on in a session that is gone.
    async fn forget(&self, session_id: SessionId) -> Result<(), StoreError>;

    /// Whether every registration is certainly there. Where one may be lost, nothing may be pruned.
    fn is_trusted(&self) -> bool;

    /// Somebody has looked at the readers that remain: they are all there are.
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
