//! The service as a host of its consumers.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::RwLock;

use super::sessions::Sessions;
use crate::{
    SessionError,
    consumers::{FindHost, Host},
    ids::SessionId,
    service::SessionSummary,
    session::View,
};

impl Sessions {
    /// Begins the projection and the memory, if there are any. They end with the service.
    pub(super) fn begin_consumers(&self) {
        if let Some(projector) = &self.engine().derived.projector {
            projector.begin(self.find_host());
        }
        if let Some(memory) = &self.engine().derived.memory {
            memory.begin(self.find_host());
        }
    }

    fn find_host(&self) -> FindHost {
        let inner = Arc::downgrade(&self.inner);
        Box::new(move || inner.upgrade().map(|inner| Arc::new(Self::of(inner)) as Arc<dyn Host>))
    }
}

#[async_trait]
impl Host for Sessions {
    async fn all_sessions(&self) -> Result<Vec<SessionSummary>, SessionError> {
        self.all_sessions().await
    }

    async fn view(&self, session_id: SessionId) -> Result<View, SessionError> {
        self.look(session_id).await
    }

    fn journal(&self, session_id: SessionId) -> &RwLock<u64> {
        self.journal(session_id)
    }

    async fn drop_row_of_deleted(&self, session_id: SessionId) -> Result<(), SessionError> {
        self.drop_row_of_deleted(session_id).await
    }
}
