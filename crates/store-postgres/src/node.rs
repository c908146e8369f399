//! This process as a node: its row says, by the database's clock, until when its leases hold.
//!
//! The row of a node is renewed by its newest process alone; a stalled one extends nothing of its successor. The local
//! clock only measures how long ago the last renewal was sent, the time that the machine slept included.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use meerkat_service::store::StoreError;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;
use tokio_postgres::types::Type;

use crate::{
    db::{Db, column},
    trouble::Trouble,
};

/// Clock that goes on while the machine sleeps.
#[cfg(target_os = "linux")]
const UNSLEEPING: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const UNSLEEPING: ClockId = ClockId::Monotonic;

/// A moment by the runtime's clock, which may stand still while the machine sleeps, and by one that does not.
#[derive(Clone, Copy)]
pub(crate) struct Moment(pub(crate) Instant, pub(crate) Duration);

impl Moment {
    pub(crate) fn now() -> Self {
        let time = clock_gettime(UNSLEEPING);
        let since_boot = Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default());
        Self(Instant::now(), since_boot)
    }

    /// Returns true if less than `time` has gone by since, by both clocks.
    fn is_within(self, time: Duration) -> bool {
        let Self(now, since_boot) = Self::now();
        now.saturating_duration_since(self.0) < time && since_boot.saturating_sub(self.1) < time
    }
}

/// Node of this process.
pub(crate) struct Node {
    pub(crate) name: String,
    incarnation: i64,
    lease: Duration,
    /// When the last renewal that was confirmed was sent. It gives authority for the length of a lease.
    renewed: Mutex<Moment>,
    /// True once another process runs under the name, or this one has ended.
    is_replaced: AtomicBool,
}

impl Node {
    /// Begins a new life of the node.
    pub(crate) async fn begin(db: &Db, name: String, lease: Duration) -> Result<Self, Trouble> {
        let sent = Moment::now();
        let row = db
            .query_opt(
                "INSERT INTO meerkat.nodes AS n (id, incarnation, alive_until) \
                 VALUES ($1, 1, clock_timestamp() + make_interval(secs => $2)) ON CONFLICT (id) DO UPDATE \
                 SET incarnation = n.incarnation + 1, alive_until = excluded.alive_until RETURNING incarnation",
                &[(&name, Type::TEXT), (&lease.as_secs_f64(), Type::FLOAT8)],
            )
            .await?;
        let row = row.ok_or_else(|| Trouble::Unreadable("a node has no row".to_owned()))?;
        let (incarnation, renewed) = (column(&row, 0)?, Mutex::new(sent));
        Ok(Self { name, incarnation, lease, renewed, is_replaced: AtomicBool::new(false) })
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
    pub(crate) async fn renew(&self, db: &Db) -> Result<Moment, Trouble> {
        let sent = Moment::now();
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
    pub(crate) fn confirm(&self, sent: Moment) {
        let mut renewed = self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        if sent.0 > renewed.0 {
            *renewed = sent;
        }
    }

    /// Ends the node's leases at once, and this life of it: a renewal that is under way extends nothing.
    pub(crate) async fn end(&self, db: &Db) -> Result<(), Trouble> {
        if self.is_replaced.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let sql = "UPDATE meerkat.nodes SET alive_until = clock_timestamp(), incarnation = incarnation + 1 \
            WHERE id = $1 AND incarnation = $2";
        db.execute(sql, &[(&self.name, Type::TEXT), (&self.incarnation, Type::INT8)]).await.map(drop)
    }

    /// Returns true if the last confirmed renewal still holds.
    pub(crate) fn has_authority(&self) -> bool {
        let renewed = *self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        !self.is_replaced.load(Ordering::Acquire) && renewed.is_within(self.lease)
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
