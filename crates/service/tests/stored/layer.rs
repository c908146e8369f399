//! An event store over another one, which can be watched and made to fail.

use std::sync::Arc;

use async_trait::async_trait;
use meerkat_service::{
    Seq, SessionId,
    session::event::Record,
    store::{EventStore, Frame, FramePage, Lease, ReadLimit, RecordSource, StoreError, Stores, TailRepair, Ticket},
};
use tokio::sync::watch;

/// What a layer does differently from the store below.
#[async_trait]
pub(crate) trait Layer: Send + Sync {
    fn below(&self) -> &dyn EventStore;

    async fn read(&self, session_id: SessionId, after: Seq, limit: ReadLimit) -> Result<Option<FramePage>, StoreError> {
        self.below().read(session_id, after, limit).await
    }

    async fn bytes(&self, session_id: SessionId) -> Result<u64, StoreError> {
        self.below().bytes(session_id).await
    }

    async fn room(&self) -> Result<(), StoreError> {
        self.below().room().await
    }

    async fn lease(&self, session_id: SessionId) -> Result<Lease, StoreError> {
        self.below().lease(session_id).await
    }
}

/// Lays a layer over the journals of some stores.
pub(crate) fn lay<L: Layer + 'static>(stores: &mut Stores, layer: impl FnOnce(Arc<dyn EventStore>) -> L) -> Arc<L> {
    let layer = Arc::new(layer(stores.events.clone()));
    stores.events = Arc::new(Over(layer.clone()));
    layer
}

/// The store of a layer.
struct Over<L>(Arc<L>);

#[async_trait]
impl<L: Layer> EventStore for Over<L> {
    async fn lease(&self, session_id: SessionId) -> Result<Lease, StoreError> {
        self.0.lease(session_id).await
    }

    async fn release(&self, lease: Lease) -> Result<(), StoreError> {
        self.0.below().release(lease).await
    }

    async fn give_up(&self, lease: Lease) {
        self.0.below().give_up(lease).await;
    }

    fn stage(&self, lease: &Lease, batch: &[Record]) -> Result<Ticket, StoreError> {
        self.0.below().stage(lease, batch)
    }

    async fn read(&self, session_id: SessionId, after: Seq, limit: ReadLimit) -> Result<Option<FramePage>, StoreError> {
        self.0.read(session_id, after, limit).await
    }

    fn at_hand(&self, session_id: SessionId, seq: Seq) -> Option<Frame> {
        self.0.below().at_hand(session_id, seq)
    }

    async fn watch(&self, session_id: SessionId) -> Result<Option<watch::Receiver<Seq>>, StoreError> {
        self.0.below().watch(session_id).await
    }

    async fn fork(&self, parent: SessionId, at: Seq, first: &[Record]) -> Result<(), StoreError> {
        self.0.below().fork(parent, at, first).await
    }

    async fn import(&self, session_id: SessionId, records: &mut dyn RecordSource) -> Result<(), StoreError> {
        self.0.below().import(session_id, records).await
    }

    async fn bytes(&self, session_id: SessionId) -> Result<u64, StoreError> {
        self.0.bytes(session_id).await
    }

    async fn delete(&self, session_id: SessionId) -> Result<(), StoreError> {
        self.0.below().delete(session_id).await
    }

    async fn unsettled(&self) -> Result<Vec<SessionId>, StoreError> {
        self.0.below().unsettled().await
    }

    fn tail_repair(&self, session_id: SessionId) -> Option<TailRepair> {
        self.0.below().tail_repair(session_id)
    }

    fn id(&self) -> Option<String> {
        self.0.below().id()
    }

    async fn room(&self) -> Result<(), StoreError> {
        self.0.room().await
    }

    async fn sessions(&self, after: Option<SessionId>, limit: usize) -> Result<Vec<SessionId>, StoreError> {
        self.0.below().sessions(after, limit).await
    }
}
