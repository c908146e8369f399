//! Expiry of idempotency keys: they leave the index a day after their use. The current time is that of the newest keys,
//! and a wrong clock may have made some of these; so the last ones stay whatever their time.

use super::rows::{SEAL_BYTES, Table, Trouble};
use crate::{session::KEY_KEPT_MS, store::IndexedKey};

/// Number of newest keys that stay, and of new keys after which old ones are searched for again.
const KEYS_KEPT: usize = 10_000;

/// Search for old keys. It reads no clock.
#[derive(Default)]
pub(super) struct Expiry {
    /// Time of the newest key of this commit.
    gathered_ms: Option<i64>,
    keys_left: usize,
}

impl Expiry {
    /// Notes a row that was put.
    pub(super) fn saw(&mut self, table: Table, value: Option<&[u8]>) {
        let key = value.filter(|_| table == Table::Keys).and_then(time_of);
        self.gathered_ms = self.gathered_ms.max(key);
        self.keys_left = self.keys_left.saturating_sub(usize::from(key.is_some()));
    }

    /// Deletes old keys, if the table is that of keys and it is time.
    pub(super) fn forget(
        &mut self,
        table: Table,
        rows: &mut redb::Table<'_, &'static [u8], &'static [u8]>,
    ) -> Result<(), Trouble> {
        use redb::{ReadableTable as _, ReadableTableMetadata as _};
        if table != Table::Keys {
            return Ok(());
        }
        let Some(newest_ms) = self.gathered_ms.take() else { return Ok(()) };
        // A process that ends after one command searches as seldom as one that runs for long.
        if self.keys_left > 0 || rows.len()? < 2 * KEYS_KEPT as u64 {
            return Ok(());
        }
        self.keys_left = KEYS_KEPT;
        let time = |row: &[u8]| time_of(row.get(SEAL_BYTES..).unwrap_or_default());
        let mut times = Vec::new();
        for row in rows.iter()? {
            times.extend(time(row?.1.value()));
        }
        let Some(at) = times.len().checked_sub(KEYS_KEPT) else { return Ok(()) };
        // If the newest key is later than those before it, the clock may be ahead; if it is earlier, it was.
        let now_ms = (*times.select_nth_unstable(at).1).min(newest_ms);
        rows.retain(|_, row| time(row).is_some_and(|time| now_ms.saturating_sub(time) < KEY_KEPT_MS))?;
        Ok(())
    }
}

fn time_of(value: &[u8]) -> Option<i64> {
    serde_json::from_slice::<IndexedKey>(value).ok().map(|key| key.time.as_millis())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bytes::Bytes;

    use super::{super::file::IndexFile, *};
    use crate::{clock::Timestamp, ids::SessionId, session::event::Key};

    const YEAR_MS: i64 = 365 * KEY_KEPT_MS;

    /// Commits keys with these names and times in a process of their own; returns those of `asked` that it finds then.
    async fn process(path: &Path, keys: impl IntoIterator<Item = (usize, i64)>, asked: &[usize]) -> Vec<usize> {
        let file = IndexFile::new(path.to_owned());
        file.change(keys.into_iter().map(|(name, ms)| {
            let key = IndexedKey {
                scope: None,
                key: Key { key: name.to_string(), request: "r".to_owned() },
                session_id: SessionId::from_uuid(uuid::Uuid::nil()),
                turn: None,
                time: Timestamp::from_millis(ms),
            };
            ((Table::Keys, name.to_string().into_bytes()), Some(Bytes::from(serde_json::to_vec(&key).unwrap())))
        }));
        file.committed(true).await.unwrap();
        let asked = asked.to_vec();
        let found = file.read(move |view| {
            let is_there = |name: &usize| view.get(Table::Keys, name.to_string().as_bytes()).unwrap().is_some();
            Ok(asked.into_iter().filter(is_there).collect())
        });
        found.await.unwrap()
    }

    #[tokio::test]
    async fn a_clock_that_is_ahead_or_was_makes_no_key_old() {
        for before in [1, 3 * KEYS_KEPT] {
            let dir = meerkat_testkit::folder();
            let path = dir.path().join("index.redb");
            process(&path, (0..before).map(|name| (name, YEAR_MS)), &[]).await;
            // The first commit of a process, and the next process too.
            for late in [before, before + 1] {
                assert_eq!(process(&path, [(late, 6 * YEAR_MS)], &[0, late]).await, [0, late], "{before}");
            }
            assert_eq!(process(&path, [(before + 2, YEAR_MS + 1000)], &[0]).await, [0], "{before}");
        }
    }

    /// Each process ends after one command, and still the index does not grow for ever.
    #[tokio::test]
    async fn short_lived_processes_forget_keys() {
        let dir = meerkat_testkit::folder();
        let path = dir.path().join("index.redb");
        process(&path, (0..2 * KEYS_KEPT).map(|name| (name, YEAR_MS + name as i64)), &[]).await;
        let new = 2 * KEYS_KEPT..3 * KEYS_KEPT;
        process(&path, new.map(|name| (name, YEAR_MS + KEY_KEPT_MS + 100_000)), &[]).await;
        let last = 3 * KEYS_KEPT;
        let asked = [0, last - KEYS_KEPT - 1, last - 1, last];
        let found = process(&path, [(last, YEAR_MS + KEY_KEPT_MS + 100_001)], &asked).await;
        assert_eq!(found, [last - 1, last]);
    }
}
