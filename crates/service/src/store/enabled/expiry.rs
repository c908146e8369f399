//! When idempotency keys leave the index: a day after their use, which is all that they are kept for.

use super::file::Table;
use crate::{session::KEY_KEPT_MS, store::IndexedKey};

/// Keys that come in before old ones are looked for again.
const KEYS_BETWEEN: usize = 10_000;

/// What is old, told by the newest key: nothing here reads a clock.
pub(super) struct Expiry {
    newest_ms: i64,
    /// The newest of the keys that are put together.
    gathered_ms: Option<i64>,
    keys_left: usize,
}

impl Default for Expiry {
    fn default() -> Self {
        Self { newest_ms: i64::MIN, gathered_ms: None, keys_left: 0 }
    }
}

impl Expiry {
    /// Takes note of a row that was put.
    pub(super) fn saw(&mut self, table: Table, value: Option<&[u8]>) {
        let key = value.filter(|_| table == Table::Keys).and_then(time_of);
        self.gathered_ms = self.gathered_ms.max(key);
        self.keys_left = self.keys_left.saturating_sub(usize::from(key.is_some()));
    }

    /// Whether it is time to look for old keys.
    pub(super) fn is_due(&mut self, table: Table) -> bool {
        // What came last counts and not what is largest: after a jump of the clock and back, all others are not old.
        if table == Table::Keys {
            self.newest_ms = self.gathered_ms.take().unwrap_or(self.newest_ms);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock::Timestamp, ids::SessionId, session::event::Key};

    fn key(ms: i64) -> Vec<u8> {
        let key = IndexedKey {
            scope: None,
            key: Key { key: "k".to_owned(), request: "r".to_owned() },
            session_id: SessionId::from_uuid(uuid::Uuid::nil()),
            turn: None,
            time: Timestamp::from_millis(ms),
        };
        serde_json::to_vec(&key).unwrap()
    }

    #[test]
    fn a_clock_that_jumped_ahead_and_back_makes_no_key_old() {
        let (mut expiry, year_ms) = (Expiry::default(), 365 * KEY_KEPT_MS);
        for now_ms in [year_ms, 6 * year_ms, year_ms + 1000] {
            expiry.saw(Table::Keys, Some(&key(now_ms)));
            expiry.is_due(Table::Keys);
        }
        assert!(expiry.keeps(&key(year_ms)), "it is a second old");
        assert!(!expiry.keeps(&key(year_ms - KEY_KEPT_MS)));
    }
}
