//! [`FilePruner`]: compaction of journals, which holds what a registered reader has yet to handle.

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;

use super::events::RedbEventStore;
use crate::{
    clock::Timestamp,
    ids::{Seq, SessionId},
    store::{JournalPruner, SessionIndex, StoreError},
};

/// Pruner of one data directory.
pub(super) struct FilePruner {
    pub(super) events: Arc<RedbEventStore>,
    pub(super) index: Arc<dyn SessionIndex>,
}

#[async_trait]
impl JournalPruner for FilePruner {
    async fn parts(&self, session_id: SessionId) -> Result<Vec<(Seq, Seq)>, StoreError> {
        self.events.parts(session_id).await
    }

    async fn prune(
        &self,
        session_id: SessionId,
        mut up_to: Seq,
        keep: &BTreeSet<Seq>,
        older_than: Timestamp,
    ) -> Result<u64, StoreError> {
        for registration in self.events.context().marks.readers() {
            up_to = up_to.min(self.index.checkpoint(&registration.reader, session_id).await?);
        }
        self.events.prune(session_id, up_to, keep, older_than).await
    }
}
