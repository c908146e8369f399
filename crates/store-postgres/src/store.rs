//! The part that all stores of one database share: its connections, this node, its logs, and the tasks that append, renew
//! and follow for them. The tasks end when the stores are dropped.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use meerkat_service::{SessionId, store::StoreError};
use tokio::{
    sync::{Notify, Semaphore},
    task::AbortHandle,
    time::{Instant, sleep},
};
use uuid::Uuid;

use crate::{append::append, db::Db, follow, listing::list_all, log::Logs, node::Node, trouble::Trouble};

/// Most appends at the same time.
const APPENDERS_MAX: usize = 4;
/// Time between two sweeps of old rows.
const SWEEP_PAUSE: Duration = Duration::from_secs(3600);
/// Parts of blobs that a statement of the sweep deletes at most.
const SWEPT_AT_ONCE: u64 = 1000;
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
    /// Begins the tasks of this process.
    pub(crate) fn begin([db, renewals]: [Db; 2], node: Node, id: Uuid, connections: usize) -> Arc<Self> {
        let (logs, signals, full, open_since, tasks) = Default::default();
        let imports = Semaphore::new((connections / 2).saturating_sub(1).max(1));
        let store = Arc::new(Self { db, renewals, imports, node, id, logs, signals, full, open_since, tasks });
        let appenders = (connections / 2).clamp(1, APPENDERS_MAX);
        let mut tasks: Vec<_> = (0..appenders).map(|_| spawn(&store, append_for)).collect();
        tasks.push(spawn(&store, renew_for));
        tasks.push(spawn(&store, sweep_for));
        tasks.push(spawn(&store, follow::follow_for));
        *store.tasks.lock().unwrap_or_else(PoisonError::into_inner) = tasks;
        store
    }

    /// Returns the logs; never held across an await.
    pub(crate) fn logs(&self) -> MutexGuard<'_, Logs> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the start of the oldest transaction that was open at the last look.
    pub(crate) fn open_since(&self) -> MutexGuard<'_, Option<u64>> {
        self.open_since.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Deletes the rows that nobody needs any more, by the database's clock: uploads that no prompt has used, parts of
    /// blobs whose writer ended before they had a name, letters without an asker, places of what was removed, old keys
    /// except the newest, nodes that ended long ago and have no session, and their readers. Then lists what is in no
    /// list. One that fails leaves the others to the rest.
    async fn sweep(&self) {
        let failed = |trouble| tracing::warn!(?trouble, "old rows stay in the database for now");
        for sql in [
            "DELETE FROM meerkat.blobs WHERE (session, name, uploaded) IN (SELECT session, name, uploaded \
             FROM meerkat.blobs WHERE uploaded > 0 \
             AND uploaded < (extract(epoch FROM now() - interval '1 day') * 1000)::int8 LIMIT 1000)",
            "DELETE FROM meerkat.blob_parts WHERE (body, part) IN (SELECT p.body, p.part FROM meerkat.blob_parts p \
             WHERE p.made < now() - interval '1 day' \
             AND NOT EXISTS (SELECT FROM meerkat.blobs b WHERE b.body = p.body) ORDER BY p.made LIMIT 1000)",
            "DELETE FROM meerkat.inbox WHERE made < now() - interval '1 day'",
            "UPDATE meerkat.sessions SET changed = NULL WHERE changed IS NOT NULL AND summary IS NULL \
             AND changed < (extract(epoch FROM now() - interval '1 hour') * 1000000)::int8",
            // The database's clock may be wrong for a moment: the newest keys stay, and say how late it is.
            "DELETE FROM meerkat.keys WHERE stored < (SELECT stored FROM meerkat.keys ORDER BY stored DESC \
             OFFSET 9999 LIMIT 1) - interval '2 days'",
            "DELETE FROM meerkat.nodes n WHERE alive_until < now() - interval '7 days' \
             AND NOT EXISTS (SELECT FROM meerkat.sessions s WHERE s.node = n.id)",
            "WITH gone AS (DELETE FROM meerkat.readers r WHERE strpos(r.name, '@') > 0 AND NOT EXISTS \
             (SELECT FROM meerkat.nodes n WHERE n.id = substr(r.name, strpos(r.name, '@') + 1)) RETURNING r.name) \
             DELETE FROM meerkat.checkpoints c USING gone WHERE c.reader = gone.name",
        ] {
            // Each statement deletes so little that it ends in time.
            while self.db.execute(sql, &[]).await.map_err(failed).is_ok_and(|deleted| deleted == SWEPT_AT_ONCE) {}
        }
        list_all(&self.db).await.unwrap_or_else(failed);
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

fn spawn<Task>(store: &Arc<Store>, task: fn(Weak<Store>, Arc<Signals>) -> Task) -> AbortHandle
where
    Task: Future<Output = ()> + Send + 'static,
{
    tokio::spawn(task(Arc::downgrade(store), store.signals.clone())).abort_handle()
}

/// Appends what is staged, group by group, until the store is dropped.
async fn append_for(store: Weak<Store>, signals: Arc<Signals>) {
    loop {
        let staged = signals.staged.notified();
        tokio::pin!(staged);
        staged.as_mut().enable();
        let Some(held) = store.upgrade() else { return };
        let group = held.logs().take();
        if group.is_empty() {
            drop(held);
            staged.await;
            continue;
        }
        // There may be more than one append takes.
        signals.staged.notify_one();
        let outcomes = append(&held.db, &held.node.name, &group, held.db.limit() * 2).await;
        if outcomes.iter().any(|outcome| matches!(outcome, Err(StoreError::Full))) {
            *held.full.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
        let mut logs = held.logs();
        group.into_iter().zip(outcomes).for_each(|(append, outcome)| logs.finish(append, outcome));
        drop(logs);
        signals.ended.notify_waiters();
    }
}

/// Deletes old rows now and then until the store is dropped.
async fn sweep_for(store: Weak<Store>, _: Arc<Signals>) {
    loop {
        let Some(held) = store.upgrade() else { return };
        held.sweep().await;
        drop(held);
        sleep(SWEEP_PAUSE).await;
    }
}

/// Renews the node's row until the store is dropped.
async fn renew_for(store: Weak<Store>, _: Arc<Signals>) {
    // The lease has just begun.
    let Some(mut pause) = store.upgrade().map(|held| held.node.pause()) else { return };
    loop {
        sleep(pause).await;
        let Some(held) = store.upgrade() else { return };
        pause = held.node.pause();
        if let Err(trouble) = held.renew().await {
            tracing::warn!(?trouble, "the lease of this node was not renewed; it is tried again");
            pause /= 5;
        }
    }
}
