//! Interface for readers: registrations, which outlive the index. How far each reader has come is in the index.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{Registration, StoreError};
use crate::clock::Timestamp;
use async_trait::async_trait;

/// Readers of meerkat's own, which nobody registers.
pub(crate) const BUILT_IN_READERS: [&str; 2] = ["memory", "projection"];

/// Registrations of readers. Every answered call is durable.
#[async_trait]
pub trait ReaderStore: Send + Sync {
    /// Lists the readers by name.
    async fn readers(&self) -> Result<Vec<Registration>, StoreError>;

    /// Registers a reader; if it is already registered, nothing changes.
    async fn register(&self, registration: Registration) -> Result<(), StoreError>;

    /// Deletes a reader.
    async fn unregister(&self, reader: &str) -> Result<(), StoreError>;
}

/// Registrations in memory.
#[derive(Default)]
pub struct MemoryReaders(Mutex<BTreeMap<String, Timestamp>>);

impl MemoryReaders {
    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Timestamp>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl ReaderStore for MemoryReaders {
    async fn readers(&self) -> Result<Vec<Registration>, StoreError> {
        let known = self.known();
        let registration = |(reader, created_at): (&String, &Timestamp)| Registration {
            reader: reader.clone(),
            created_at: *created_at,
        };
        Ok(known.iter().map(registration).collect())
    }

    async fn register(&self, Registration { reader, created_at }: Registration) -> Result<(), StoreError> {
        self.known().entry(reader).or_insert(created_at);
        Ok(())
    }

    async fn unregister(&self, reader: &str) -> Result<(), StoreError> {
        self.known().remove(reader);
        Ok(())
    }
}
