//! What the servers of a pool share.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use meerkat_service::clock::Clock;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{cache::Cache, former::Former};

/// Parts that all servers of a pool share.
pub(super) struct Pool {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) cache: Cache,
    pub(super) logins_dir: Option<PathBuf>,
    pub(super) workspaces: Vec<PathBuf>,
    pub(super) tell: Arc<dyn Fn(&str) + Send + Sync>,
    pub(super) version: AtomicU64,
    pub(super) tasks: TaskTracker,
    pub(super) closed: CancellationToken,
    pub(super) former: Arc<Former>,
}

impl Pool {
    /// Waits until no server of a former owner of the data directory is left.
    pub(super) async fn former_ended(&self) {
        self.former.ended(&*self.clock, &*self.tell).await;
    }

    pub(super) fn changed(&self) {
        self.version.fetch_add(1, Ordering::SeqCst);
    }
}
