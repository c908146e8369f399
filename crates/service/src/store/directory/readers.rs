//! [`FileReaders`]: registrations of readers, as marks of the store.

use std::sync::Arc;

use async_trait::async_trait;

use meerkat_journal::{Context, OwnerLock};

use crate::store::{ReaderStore, Registration, StoreError};

/// Readers of one data directory.
pub(crate) struct FileReaders {
    context: Arc<Context>,
    /// Kept as long as anything may be written.
    _owner: Option<Arc<OwnerLock>>,
}

impl FileReaders {
    /// Makes the readers over the marks of the store.
    pub(crate) const fn new(context: Arc<Context>, owner: Option<Arc<OwnerLock>>) -> Self {
        Self { context, _owner: owner }
    }
}

#[async_trait]
impl ReaderStore for FileReaders {
    async fn readers(&self) -> Result<Vec<Registration>, StoreError> {
        Ok(self.context.marks.readers())
    }

    async fn register(&self, registration: Registration) -> Result<(), StoreError> {
        self.context.marks.register(registration).await
    }

    async fn unregister(&self, reader: &str) -> Result<(), StoreError> {
        self.context.marks.unregister(reader).await
    }
}
