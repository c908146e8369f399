//! Repair of a damaged journal: every good record stays, and a `records_lost` behind them says which are missing.

use std::io;

use super::{Doctor, ranges};
use crate::{
    clock::{Clock as _, SystemClock},
    ids::{Seq, SessionId},
    session::{
        Session,
        event::{Event, LostKey, Record, RecordsLost},
    },
    store::{
        directory::{
            IndexFile, Table, entry,
            journal::{Checked, Entry, Mended, mend},
        },
        load::keys,
    },
};

impl Doctor {
    /// Repairs a journal; returns what was done.
    pub(super) fn rescue(&mut self, id: SessionId, checked: &Checked) -> io::Result<String> {
        let session = self.read(id).map_err(io::Error::other)?.and_then(|(_, reading)| reading.session);
        let kept = self.kept_keys(id);
        let mut record = |seq: Seq, lost: &[(Seq, Seq)]| record(id, seq, lost, session.as_ref(), kept.as_ref());
        let Mended { kept, lost, end } = mend(&self.disk, id, checked, &mut record)?;
        // Readers get the last record, which says what is lost.
        self.ended.insert(id, end - 1);
        let kept = kept.map(|kept| format!("; what was there before is kept in {kept}")).unwrap_or_default();
        Ok(match lost.as_slice() {
            [] => format!("no event was lost{kept}"),
            lost => format!("all other events are kept, and event {end} says that {} are lost{kept}", ranges(lost)),
        })
    }

    /// Returns what the session's snapshot knows: its last seq, and the idempotency keys.
    fn kept_keys(&self, id: SessionId) -> Option<(Seq, Vec<LostKey>)> {
        let path = self.what.data_dir.join("index.redb");
        if !path.exists() {
            return None;
        }
        let stored = IndexFile::new(path).read_here(|view| view.get(Table::Snapshots, id.as_uuid().as_bytes()));
        keys(id, &stored.ok()??)
    }
}

/// Makes the record that says what is lost.
fn record(
    id: SessionId,
    seq: Seq,
    lost: &[(Seq, Seq)],
    session: Option<&Session>,
    kept: Option<&(Seq, Vec<LostKey>)>,
) -> io::Result<Entry> {
    let time = SystemClock::new().now();
    let is_lost = |seq: Seq| lost.iter().any(|(from, to)| (*from..=*to).contains(&seq));
    let is_unknown = |used: &&LostKey| session.is_none_or(|session| session.key(&used.key.key).is_none());
    let known = kept.iter().flat_map(|(_, keys)| keys);
    let keys: Vec<LostKey> = known.filter(|used| is_lost(used.seq)).filter(is_unknown).cloned().collect();
    let seen = kept.map_or(0, |(last_seq, _)| *last_seq);
    let keys_unknown = lost.iter().any(|(_, to)| *to > seen);
    let event = Event::RecordsLost(RecordsLost { ranges: lost.to_vec(), keys_unknown, keys });
    entry(&Record { session_id: id, seq, turn: None, time, event }).map_err(io::Error::other)
}
