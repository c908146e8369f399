//! This process as a node: its row says, by the database's clock, until when its leases hold.
//!
//! The row of a node is renewed by its newest process alone; a stalled one extends nothing of its successor. The local
//! clock only measures how long ago the last renewal was sent.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use meerkat_service::store::StoreError;
use tokio::time::Instant;
use tokio_postgres::types::Type;

use crate::{
    db::{Db, column},
    trouble::Trouble,
};

/// Node of this process.
pub(crate) struct Node {
    pub(crate) name: String,
    incarnation: i64,
    lease: Duration,
    /// End of the authority that the last confirmed renewal gives.
    until: Mutex<Instant>,
    /// True once another process runs under the name.
    is_replaced: AtomicBool,
}

impl Node {
    /// Begins a new life of the node.
    pub(crate) async fn begin(db: &Db, name: String, lease: Duration) -> Result<Self, Trouble> {
        let sent = Instant::now();
        let row = db
            .query_opt(
                "INSERT INTO meerkat.nodes AS n (id, incarnation, alive_until) \
                 VALUES ($1, 1, clock_timestamp() + make_interval(secs => $2)) ON CONFLICT (id) DO UPDATE \
                 SET incarnation = n.incarnation + 1, alive_until = excluded.alive_until RETURNING incarnation",
                &[(&name, Type::TEXT), (&lease.as_secs_f64(), Type::FLOAT8)],
            )
            .await?;
        let row = row.ok_or_else(|| Trouble::Unreadable("a node has no row".to_owned()))?;
        let (incarnation, until) = (column(&row, 0)?, Mutex::new(sent + lease));
        Ok(Self { name, incarnation, lease, until, is_replaced: AtomicBool::new(false) })
    }

    /// Returns the number of this life of the node.
    pub(crate) const fn incarnation(&self) -> i64 {
        self.incarnation
    }

    /// Returns the time from a renewal to the next one. One that fails is tried again much sooner.
    pub(crate) fn pause(&self) -> Duration {
        self.lease / 3
    }

    /// Renews the node's row; returns when the request was sent, for [`Self::confirm`].
    pub(crate) async fn renew(&self, db: &Db) -> Result<Instant, Trouble> {
        let sent = Instant::now();
        // One that hangs leaves time for another.
        let renewed = db
            .within(self.pause())
            .execute(
                "UPDATE meerkat.nodes SET alive_until = clock_timestamp() + make_interval(secs => $3) \
                 WHERE id = $1 AND incarnation = $2",
                &[(&self.name, Type::TEXT), (&self.incarnation, Type::INT8), (&self.lease.as_secs_f64(), Type::FLOAT8)],
            )
            .await?;
        if renewed == 0 && !self.is_replaced.swap(true, Ordering::AcqRel) {
            tracing::error!(node = self.name, "another process runs under this node's name; this one gives way");
        }
        Ok(sent)
    }

    /// Extends the authority by a renewal that was sent then.
    pub(crate) fn confirm(&self, sent: Instant) {
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        *until = until.max(sent + self.lease);
    }

    /// Returns true if the last confirmed renewal still holds.
    pub(crate) fn has_authority(&self) -> bool {
        let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
        !self.is_replaced.load(Ordering::Acquire) && Instant::now() < until
    }

    /// Refuses new work without authority.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        if self.is_replaced.load(Ordering::Acquire) {
            let why = format!("another process runs as node {}; give each its own name", self.name);
            return Err(StoreError::ReadOnly(why));
        }
        match self.has_authority() {
            true => Ok(()),
            false => {
                let limit = self.lease.as_millis();
                Err(StoreError::Failed(format!("the database has not confirmed this node for {limit} ms")))
            }
        }
    }
}
