//! Time and ids, handed in so that a whole service runs deterministically under a seed.
//!
//! Nothing else in this crate may ask the system for the time or for randomness.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use jiff::fmt::temporal::DateTimePrinter;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use uuid::{ContextV7, Timestamp as UuidTimestamp, Uuid};

use crate::SessionId;

/// Wall-clock time in milliseconds, written as RFC 3339 in UTC. It orders nothing: the seq does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp(jiff::Timestamp);

impl Timestamp {
    /// Milliseconds since 1970; values out of range are clamped.
    #[must_use]
    pub fn from_millis(millis: i64) -> Self {
        let bounded = millis.clamp(jiff::Timestamp::MIN.as_millisecond(), jiff::Timestamp::MAX.as_millisecond());
        Self(jiff::Timestamp::from_millisecond(bounded).unwrap_or(jiff::Timestamp::UNIX_EPOCH))
    }

    /// Milliseconds since 1970.
    #[must_use]
    pub fn as_millis(self) -> i64 {
        self.0.as_millisecond()
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        DateTimePrinter::new()
            .precision(Some(3))
            .print_timestamp(&self.0, jiff::fmt::StdFmtWrite(f))
            .map_err(|_| fmt::Error)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        if !is_rfc_3339(text.as_bytes()) {
            return Err(D::Error::custom(
                "a time is a date, a time of day and an offset, as in 2026-01-01T00:00:00Z or 2026-01-01T02:00:00+02:00",
            ));
        }
        let time: jiff::Timestamp = text.parse().map_err(D::Error::custom)?;
        Ok(Self::from_millis(time.as_millisecond()))
    }
}

/// Checks that parsed text has the one form that the schema names; the parser accepts many more.
fn is_rfc_3339(text: &[u8]) -> bool {
    let has = |at: usize, wanted: &[u8]| text.get(at).is_some_and(|byte| wanted.contains(byte));
    let is_time = has(4, b"-") && has(7, b"-") && has(10, b"Tt") && has(13, b":") && has(16, b":") && !has(19, b",");
    is_time && (text.ends_with(b"Z") || text.ends_with(b"z") || has(text.len() - 6, b"+-") && has(text.len() - 3, b":"))
}

impl JsonSchema for Timestamp {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Timestamp".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "format": "date-time" })
    }
}

/// Source of time. Deadlines use [`Clock::elapsed`], which never goes back; records use [`Clock::now`].
pub trait Clock: Send + Sync {
    /// Wall-clock time.
    fn now(&self) -> Timestamp;

    /// Time since this clock was made; it never goes back.
    fn elapsed(&self) -> Duration;

    /// Sleeps for `duration`.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// Source of session ids and of the jitter of retries.
pub trait IdSource: Send + Sync {
    /// Mints an id that sorts after every earlier one, even if the clock was set back.
    fn next_session_id(&self, now: Timestamp) -> SessionId;

    /// Notes the newest stored id: later ids sort after it, whatever the clock says.
    fn follow(&self, newest: SessionId);

    /// Returns a number below `bound` (or 0) that spreads retries.
    fn jitter(&self, bound: u64) -> u64;
}

/// The system's clock; its timers are tokio's, so tests can pause them.
pub struct SystemClock {
    started: tokio::time::Instant,
}

impl SystemClock {
    /// Makes a clock whose elapsed time starts now.
    #[must_use]
    pub fn new() -> Self {
        Self { started: tokio::time::Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
    fn now(&self) -> Timestamp {
        // Stored times have milliseconds, so live ones must not be finer.
        Timestamp::from_millis(jiff::Timestamp::now().as_millisecond())
    }

    fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// Clock whose wall time never changes, so that whole events can be compared.
pub struct FrozenClock {
    wall: Timestamp,
    timers: SystemClock,
}

impl FrozenClock {
    /// Makes a clock with this wall time; its timers run.
    #[must_use]
    pub fn at(wall: Timestamp) -> Self {
        Self { wall, timers: SystemClock::new() }
    }
}

impl Clock for FrozenClock {
    fn now(&self) -> Timestamp {
        self.wall
    }

    fn elapsed(&self) -> Duration {
        self.timers.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.timers.sleep(duration)
    }
}

/// Random ids in time order.
pub struct RandomIds {
    context: std::sync::Mutex<(ContextV7, i64)>,
}

impl RandomIds {
    /// Makes an independent source.
    #[must_use]
    pub fn new() -> Self {
        Self { context: std::sync::Mutex::new((ContextV7::new(), 0)) }
    }
}

impl Default for RandomIds {
    fn default() -> Self {
        Self::new()
    }
}

impl IdSource for RandomIds {
    fn next_session_id(&self, now: Timestamp) -> SessionId {
        let mut guard = self.context.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // A clock that was set back must not make an id that sorts before an older one.
        guard.1 = guard.1.max(now.as_millis()).max(0);
        let (seconds, nanos) = (guard.1 / 1000, (guard.1 % 1000) * 1_000_000);
        let time = UuidTimestamp::from_unix(&guard.0, seconds.unsigned_abs(), u32::try_from(nanos).unwrap_or(0));
        SessionId::from_uuid(Uuid::new_v7(time))
    }

    fn follow(&self, newest: SessionId) {
        let mut guard = self.context.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // The next millisecond: within one, only this source's own ids are ordered.
        guard.1 = guard.1.max(i64::try_from(millis_of(newest)).unwrap_or(0) + 1);
    }

    fn jitter(&self, bound: u64) -> u64 {
        let id = self.next_session_id(Timestamp::from_millis(0));
        id.as_uuid().as_u64_pair().1.checked_rem(bound).unwrap_or(0)
    }
}

/// Ids that follow from a seed: the n-th session gets the n-th id. Jitter is 0.
pub struct SeededIds {
    seed: u64,
    count: AtomicU64,
}

impl SeededIds {
    /// Starts after the first `count` ids, which the store has used.
    #[must_use]
    pub const fn new(seed: u64, count: u64) -> Self {
        Self { seed, count: AtomicU64::new(count) }
    }

    /// Wall time of a seeded service.
    #[must_use]
    pub fn wall_time() -> Timestamp {
        Timestamp::from_millis(1_767_225_600_000)
    }
}

impl IdSource for SeededIds {
    fn next_session_id(&self, _: Timestamp) -> SessionId {
        let n = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let millis = u64::try_from(Self::wall_time().as_millis()).unwrap_or(0) + n;
        let mut tail = [0; 10];
        tail[..2].copy_from_slice(&self.seed.to_be_bytes()[6..]);
        tail[2..].copy_from_slice(&n.to_be_bytes());
        SessionId::from_uuid(uuid::Builder::from_unix_timestamp_millis(millis, &tail).into_uuid())
    }

    fn follow(&self, newest: SessionId) {
        let count = millis_of(newest).saturating_sub(u64::try_from(Self::wall_time().as_millis()).unwrap_or(0));
        self.count.fetch_max(count, Ordering::Relaxed);
    }

    fn jitter(&self, _: u64) -> u64 {
        0
    }
}

/// Milliseconds that an id begins with.
const fn millis_of(id: SessionId) -> u64 {
    id.as_uuid().as_u64_pair().0 >> 16
}

/// Time and ids together, as a service takes them.
#[derive(Clone)]
pub struct World {
    /// Source of time.
    pub clock: Arc<dyn Clock>,
    /// Source of ids.
    pub ids: Arc<dyn IdSource>,
    /// True if wall time never changes; measured durations are then written as 0, so that whole events can be compared.
    pub is_frozen: bool,
}

impl World {
    /// Uses the system's time and random ids.
    #[must_use]
    pub fn system() -> Self {
        Self { clock: Arc::new(SystemClock::new()), ids: Arc::new(RandomIds::new()), is_frozen: false }
    }

    /// Uses frozen time and ids from a seed, for a store that has made `count` sessions so far.
    #[must_use]
    pub fn seeded(seed: u64, count: u64) -> Self {
        Self {
            clock: Arc::new(FrozenClock::at(SeededIds::wall_time())),
            ids: Arc::new(SeededIds::new(seed, count)),
            is_frozen: true,
        }
    }
}

#[cfg(test)]
mod tests;
