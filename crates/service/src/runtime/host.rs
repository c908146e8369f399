//! The service as consumers of its journals see it.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::RwLock;

use super::sessions::Sessions;
use crate::{
    SessionError,
    consumers::{FindHost, Host, projector::ProjectorHandle},
    ids::SessionId,
    service::SessionSummary,
};

impl<Home: 'static> Sessions<Home> {
    /// Begins to project and to remember, as far as there is what does so. It ends with the service.
    pub(super) fn begin_consumers(&self) {
        if let Some(projector) = self.projector() {
            projector.begin(self.find_host());
        }
        if let Some(memory) = &self.engine().memory {
            memory.begin(self.find_host());
        }
    }

    /// The projector, if sessions are written as files.
    pub(super) fn projector(&self) -> Option<&ProjectorHandle> {
        self.engine().derived.as_ref()?.projector.as_ref()
    }

    fn find_host(&self) -> FindHost {
        let inner = Arc::downgrade(&self.inner);
        Box::new(move || inner.upgrade().map(|inner| Arc::new(Self::over(inner)) as Arc<dyn Host>))
    }
}

#[async_trait]
impl<Home: 'static> Host for Sessions<Home> {
    async fn all_sessions(&self) -> Result<Vec<SessionSummary>, SessionError> {
        self.all_sessions().await
    }

    async fn summary(&self, session_id: SessionId) -> Result<Arc<SessionSummary>, SessionError> {
        Ok(self.look(session_id).await?.summary)
    }

    fn journal(&self, session_id: SessionId) -> &RwLock<u64> {
        self.journal(session_id)
    }

    async fn drop_row_of_gone(&self, session_id: SessionId) -> Result<(), SessionError> {
        self.drop_row_of_gone(session_id).await
    }
}
