//! When idempotency keys leave the index: a day after their use, which is all that they are kept for.

use super::file::Table;
use crate::{session::KEY_KEPT_MS, store::IndexedKey};

/// Keys that come in before old ones are looked for again.
const KEYS_BETWEEN: usize = 10_000;

/// What is old, told by the newest key: nothing here reads a clock.
pub(super) struct Expiry {
    newest_ms: i64,
    keys_left: usize,
}

impl Default for Expiry {
    fn default() -> Self {
        Self { newest_ms: i64::MIN, keys_left: 0 }
    }
}

impl Expiry {
    /// Takes note of a row that was put.
    pub(super) fn saw(&mut self, table: Table, value: Option<&[u8]>) {
        let key = value.filter(|_| table == Table::Keys).and_then(time_of);
        self.newest_ms = key.map_or(self.newest_ms, |time| time.max(self.newest_ms));
        self.keys_left = self.keys_left.saturating_sub(usize::from(key.is_some()));
    }

    /// Whether it is time to look for old keys.
    pub(super) fn is_due(&mut self, table: Table) -> bool {
        let is_due = table == Table::Keys && self.keys_left == 0;
        if is_due {
            self.keys_left = KEYS_BETWEEN;
        }
        is_due
    }

    /// Whether a key's row stays.
    pub(super) fn keeps(&self, value: &[u8]) -> bool {
        time_of(value).is_some_and(|time| self.newest_ms.saturating_sub(time) < KEY_KEPT_MS)
    }
}

fn time_of(value: &[u8]) -> Option<i64> {
    serde_json::from_slice::<IndexedKey>(value).ok().map(|key| key.time.as_millis())
}
