//! Following sessions that other nodes append to: the database is asked for their tails, seldom while nothing happens.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use meerkat_service::{Seq, SessionId};
use tokio::time::{sleep, timeout};
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::{
    db::{column, unsigned},
    store::{Signals, Store},
    trouble::Trouble,
};

/// Shortest and longest pause between two looks.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// Looks after the followed sessions until the store is dropped.
pub(crate) async fn follow_for(store: Weak<Store>, signals: Arc<Signals>) {
    let mut pause = PAUSES.0;
    loop {
        let followed = signals.followed.notified();
        tokio::pin!(followed);
        followed.as_mut().enable();
        let Some(held) = store.upgrade() else { return };
        let sessions = held.logs().followed();
        if sessions.is_empty() {
            drop(held);
            // A followed session may come to rest here, and then move away.
            drop(timeout(PAUSES.1, followed).await);
            pause = PAUSES.0;
            continue;
        }
        match look(&held, &sessions).await {
            Ok(true) => pause = PAUSES.0,
            Ok(false) => pause = (pause * 2).min(PAUSES.1),
            Err(trouble) => {
                tracing::warn!(?trouble, "followed sessions could not be looked at; it is tried again");
                pause = PAUSES.1;
            }
        }
        drop(held);
        tokio::select! {
            () = sleep(pause) => {}
            () = followed => pause = PAUSES.0,
        }
    }
}

/// Looks once; returns true if anything has changed.
async fn look(store: &Store, sessions: &[SessionId]) -> Result<bool, Trouble> {
    let mut tails = tails(store, sessions).await?;
    let (mut logs, mut has_changed) = (store.logs(), false);
    for session_id in sessions {
        match tails.remove(session_id) {
            Some((epoch, tail)) => has_changed |= logs.saw(*session_id, epoch, tail),
            None => logs.missed(*session_id),
        }
    }
    Ok(has_changed)
}

/// Reads the epochs and tails of the sessions that exist.
pub(crate) async fn tails(store: &Store, sessions: &[SessionId]) -> Result<HashMap<SessionId, (i64, Seq)>, Trouble> {
    let ids: Vec<Uuid> = sessions.iter().map(|id| *id.as_uuid()).collect();
    let sql = "SELECT id, epoch, tail FROM meerkat.sessions WHERE id = ANY($1) AND tail > 0";
    let rows = store.db.query(sql, &[(&ids, Type::UUID_ARRAY)]).await?;
    let tail = |row: &tokio_postgres::Row| {
        Ok((SessionId::from_uuid(column(row, 0)?), (column(row, 1)?, unsigned(column(row, 2)?)?)))
    };
    rows.iter().map(tail).collect()
}

/// Reads the epoch and tail of one session, and notes them; `None` if there is no such session.
pub(crate) async fn tail(store: &Store, session_id: SessionId) -> Result<Option<Seq>, Trouble> {
    let found = tails(store, &[session_id]).await?.remove(&session_id);
    let mut logs = store.logs();
    match found {
        Some((epoch, tail)) => _ = logs.saw(session_id, epoch, tail),
        None => logs.missed(session_id),
    }
    Ok(found.map(|(_, tail)| tail))
}
