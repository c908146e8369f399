//! [`FileReaders`]: registrations, and the acknowledgements that pruning relies on, as marks in the store journal.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;

use meerkat_journal::{Context, OwnerLock};

use crate::{
    ids::{Seq, SessionId},
    store::{ReaderMark, ReaderStore, Registration, StoreError},
};

/// Readers of one data directory.
pub(crate) struct FileReaders {
    context: Arc<Context>,
    /// Kept as long as anything may be written.
    _owner: Option<Arc<OwnerLock>>,
}

impl FileReaders {
    /// Makes the readers over the store journal.
    pub(crate) const fn new(context: Arc<Context>, owner: Option<Arc<OwnerLock>>) -> Self {
        Self { context, _owner: owner }
    }

    async fn mark(&self, mark: ReaderMark) -> Result<(), StoreError> {
        self.context.store_journal.mark_reader(mark).await
    }
}

#[async_trait]
impl ReaderStore for FileReaders {
    async fn readers(&self) -> Result<Vec<Registration>, StoreError> {
        Ok(self.context.store_journal.of_readers(|marks| marks.readers()))
    }

    async fn register(&self, registration: Registration) -> Result<(), StoreError> {
        self.mark(ReaderMark::Reader(registration)).await
    }

    async fn unregister(&self, reader: &str) -> Result<(), StoreError> {
        self.mark(ReaderMark::Unreader(reader.to_owned())).await
    }

    async fn rely(&self, session_id: SessionId, acknowledged: BTreeMap<String, Seq>) -> Result<(), StoreError> {
        let known = self.relied(session_id).await?;
        if acknowledged.iter().all(|(reader, seq)| known.get(reader) >= Some(seq)) {
            return Ok(());
        }
        self.mark(ReaderMark::Relied(session_id, acknowledged)).await
    }

    async fn relied(&self, session_id: SessionId) -> Result<BTreeMap<String, Seq>, StoreError> {
        Ok(self.context.store_journal.of_readers(|marks| marks.relied(session_id)))
    }

    async fn forget(&self, session_id: SessionId) -> Result<(), StoreError> {
        if self.relied(session_id).await?.is_empty() {
            return Ok(());
        }
        self.mark(ReaderMark::Relied(session_id, BTreeMap::new())).await
    }

    fn is_trusted(&self) -> bool {
        self.context.store_journal.of_readers(|marks| marks.is_trusted())
    }

    async fn trust(&self) -> Result<(), StoreError> {
        self.mark(ReaderMark::Trusted(true)).await
    }
}
