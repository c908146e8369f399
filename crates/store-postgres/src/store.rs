//! The part that all stores of one database share: its connections, this node and its logs.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use meerkat_service::{SessionId, store::StoreError};
use tokio::{
    sync::{Notify, Semaphore},
    task::AbortHandle,
    time::Instant,
};
use uuid::Uuid;

use crate::{db::Db, log::Logs, node::Node, trouble::Trouble};

/// Time for which a database without room takes no new work.
const FULL_PAUSE: Duration = Duration::from_secs(2);

/// Shared part of the stores of one database.
pub(crate) struct Store {
    pub(crate) db: Db,
    /// A connection for the renewals alone: whatever the others wait for, this node's lease does not end.
    renewals: Db,
    /// Imports at the same time. Each holds a connection for its whole length.
    pub(crate) imports: Semaphore,
    pub(crate) node: Node,
    /// Id of the database's schema.
    pub(crate) id: Uuid,
    logs: Mutex<Logs>,
    pub(crate) signals: Arc<Signals>,
    /// Last time that the database had no room.
    full: Mutex<Option<Instant>>,
    /// Start of the oldest transaction that was open when changes of lists were last looked for, as a place among them.
    open_since: Mutex<Option<u64>>,
    tasks: Mutex<Vec<AbortHandle>>,
}

/// Signals between the stores and their tasks.
#[derive(Default)]
pub(crate) struct Signals {
    /// Something is ready to be appended.
    pub(crate) staged: Notify,
    /// An append has ended.
    pub(crate) ended: Notify,
    /// A session is followed that was not before.
    pub(crate) followed: Notify,
}

impl Drop for Store {
    fn drop(&mut self) {
        self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner).iter().for_each(AbortHandle::abort);
    }
}

impl Store {
    /// Makes it, without its tasks.
    pub(crate) fn new([db, renewals]: [Db; 2], node: Node, id: Uuid, connections: usize) -> Arc<Self> {
        let (logs, signals, full, open_since, tasks) = Default::default();
        let imports = Semaphore::new((connections / 2).saturating_sub(1).max(1));
        Arc::new(Self { db, renewals, imports, node, id, logs, signals, full, open_since, tasks })
    }

    /// Keeps the tasks, which end with it.
    pub(crate) fn keep(&self, tasks: Vec<AbortHandle>) {
        *self.tasks.lock().unwrap_or_else(PoisonError::into_inner) = tasks;
    }

    /// Returns the logs; never held across an await.
    pub(crate) fn logs(&self) -> MutexGuard<'_, Logs> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the start of the oldest transaction that was open at the last look.
    pub(crate) fn open_since(&self) -> MutexGuard<'_, Option<u64>> {
        self.open_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes no new work for a moment, because the database has no room.
    pub(crate) fn is_full_now(&self) {
        *self.full.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Refuses new work while the database has no room or does not confirm this node.
    pub(crate) fn room(&self) -> Result<(), StoreError> {
        self.node.check()?;
        let full = *self.full.lock().unwrap_or_else(PoisonError::into_inner);
        match full.is_some_and(|full| full.elapsed() < FULL_PAUSE) {
            true => Err(StoreError::Full),
            false => Ok(()),
        }
    }

    /// Renews the node's row. If the last renewal held no longer by then, every lease ends, whatever became of this one:
    /// other nodes may have had the sessions meanwhile.
    pub(crate) async fn renew(&self) -> Result<(), Trouble> {
        let renewed = self.node.renew(&self.renewals).await;
        if !self.node.has_authority() {
            let ended = self.logs().unlease_all();
            self.signals.ended.notify_waiters();
            if ended > 0 {
                tracing::error!(
                    sessions = ended,
                    "this node gives its sessions up: its lease was not confirmed in time"
                );
            }
        }
        renewed.map(|sent| self.node.confirm(sent))
    }

    /// Waits until nothing of a lease is on its way.
    pub(crate) async fn quiet(&self, session_id: SessionId, epoch: i64) {
        loop {
            let ended = self.signals.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if self.logs().is_quiet(session_id, epoch) {
                return;
            }
            ended.await;
        }
    }
}
