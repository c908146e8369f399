//! The tasks that append, renew, sweep and follow for the stores of one database. They end when the stores are dropped.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use meerkat_service::store::StoreError;
use tokio::{task::AbortHandle, time::sleep};

use crate::{
    append::append,
    follow,
    listing::list_all,
    store::{Signals, Store},
};

/// Most appends at the same time.
const APPENDERS_MAX: usize = 4;
/// Time between two sweeps of old rows.
const SWEEP_PAUSE: Duration = Duration::from_secs(3600);
/// Parts of blobs that a statement of the sweep deletes at most.
const SWEPT_AT_ONCE: u64 = 1000;

/// Begins the tasks of this process.
pub(crate) fn begin(store: &Arc<Store>, connections: usize) {
    let appenders = (connections / 2).clamp(1, APPENDERS_MAX);
    let mut tasks: Vec<_> = (0..appenders).map(|_| spawn(store, append_for)).collect();
    tasks.push(spawn(store, renew_for));
    tasks.push(spawn(store, sweep_for));
    tasks.push(spawn(store, follow::follow_for));
    store.keep(tasks);
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
            held.is_full_now();
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
        sweep(&held).await;
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

/// Deletes the rows that nobody needs any more, by the database's clock: uploads that no prompt has used, parts of
/// blobs whose writer ended before they had a name, letters without an asker, places of what was removed, old keys
/// except the newest, nodes that ended long ago and have no session, and their readers. Then lists what is in no
/// list. One that fails leaves the others to the rest.
async fn sweep(store: &Store) {
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
        while store.db.execute(sql, &[]).await.map_err(failed).is_ok_and(|deleted| deleted == SWEPT_AT_ONCE) {}
    }
    list_all(&store.db).await.unwrap_or_else(failed);
}
