//! Conversion of snapshots to bytes, and back with bodies from the journal, which must confirm them.

use std::collections::BTreeMap;

use super::{EventStore, ReadLimit, SessionFilter, SessionMeta, SessionStoreError, StoreError};
use crate::{
    ids::{Seq, SessionId},
    session::{
        Session,
        event::{Key, LostKey, Record},
        snapshot::{Snapshot, Unfounded},
    },
    wire::decode_event,
};

/// Events to read at once.
const READ_EVENTS: usize = 1024;

/// Encodes a session's snapshot.
pub fn encode(session: &Session) -> Result<Vec<u8>, SessionStoreError> {
    Ok(serde_json::to_vec(&Snapshot::of(session))?)
}

fn decode(bytes: &[u8]) -> Result<Snapshot, SessionStoreError> {
    Ok(serde_json::from_slice(bytes)?)
}

/// Decodes the snapshot of this session.
fn decode_of(id: SessionId, bytes: &[u8]) -> Result<Snapshot, SessionStoreError> {
    let snapshot = decode(bytes)?;
    if snapshot.meta().id == id { Ok(snapshot) } else { Err(SessionStoreError::Corrupted(id)) }
}

/// Decodes a stored session without its messages, which nothing is read for: enough for
/// [`append_only_save_guard`](super::append_only_save_guard), which compares counts.
///
/// # Errors
/// [`SessionStoreError::Corrupted`] if what is stored is another session's.
pub fn previous(id: SessionId, stored: Option<&[u8]>) -> Result<Option<Session>, SessionStoreError> {
    stored.map(|stored| decode_of(id, stored).map(Snapshot::counted)).transpose()
}

/// Lists these snapshots, newest first.
pub fn list<'a>(
    stored: impl IntoIterator<Item = &'a [u8]>,
    filter: &SessionFilter,
) -> Result<Vec<SessionMeta>, SessionStoreError> {
    let is_wanted = |meta: &SessionMeta| {
        filter.created_after.is_none_or(|time| meta.created_at > time)
            && filter.updated_after.is_none_or(|time| meta.updated_at > time)
    };
    let metas = stored.into_iter().map(|bytes| decode(bytes).map(|snapshot| snapshot.meta()));
    let wanted = metas.filter(|meta| meta.as_ref().map_or(true, is_wanted));
    wanted.skip(filter.offset.unwrap_or(0)).take(filter.limit.unwrap_or(usize::MAX)).collect()
}

/// Decodes a snapshot and reads its bodies from the journal; `None` if there is no journal.
pub async fn load(id: SessionId, stored: &[u8], events: &dyn EventStore) -> Result<Option<Session>, SessionStoreError> {
    let snapshot = decode_of(id, stored)?;
    let mut records = BTreeMap::new();
    for (from, to) in snapshot.ranges() {
        if !read(id, from, to, events, &mut records).await? {
            return Ok(None);
        }
    }
    for seq in Snapshot::missing(&records) {
        read(id, seq, seq, events, &mut records).await?;
    }
    snapshot.restore(&records).map(Some).map_err(|Unfounded(seq)| {
        tracing::warn!(session_id = %id, seq, "a snapshot does not match its journal, and is ignored");
        SessionStoreError::Corrupted(id)
    })
}

/// Returns the last seq of a session's snapshot, and the idempotency keys that it knows; `None` if it is not of that
/// session.
pub fn keys(id: SessionId, stored: &[u8]) -> Option<(Seq, Vec<LostKey>)> {
    let snapshot = decode(stored).ok()?;
    let last_seq = snapshot.last_seq();
    let keys = snapshot.keys(id)?.into_iter().map(|(key, used)| LostKey {
        key: Key { key, request: used.request },
        turn: used.turn,
        seq: used.seq,
        time: used.time,
    });
    Some((last_seq, keys.collect()))
}

/// Decodes a snapshot without its messages; `None` if something in it is open.
pub fn outline(id: SessionId, stored: &[u8]) -> Result<Option<Session>, SessionStoreError> {
    Ok(decode_of(id, stored)?.outline())
}

/// Reads the existing events from `from` to `to`. Returns true if there is such a session.
async fn read(
    id: SessionId,
    from: Seq,
    to: Seq,
    events: &dyn EventStore,
    records: &mut BTreeMap<Seq, Record>,
) -> Result<bool, SessionStoreError> {
    let mut after = from.saturating_sub(1);
    while after < to {
        let limit = usize::try_from(to - after).unwrap_or(usize::MAX).min(READ_EVENTS);
        let Some(page) = events.read(id, after, ReadLimit::frames(limit)).await.map_err(|error| failed(id, &error))?
        else {
            return Ok(false);
        };
        let Some(last) = page.frames.last() else { break };
        after = last.seq;
        for frame in page.frames.iter().take_while(|frame| frame.seq <= to) {
            let line = std::str::from_utf8(&frame.line).map_err(|_| SessionStoreError::Corrupted(id))?;
            let record = decode_event(line).map_err(|_| SessionStoreError::Corrupted(id))?;
            records.insert(frame.seq, record);
        }
    }
    Ok(true)
}

fn failed(id: SessionId, error: &StoreError) -> SessionStoreError {
    match error {
        StoreError::Corrupted { .. } => SessionStoreError::Corrupted(id),
        other => SessionStoreError::Internal(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::tests::{created, record, session_id};

    #[test]
    fn a_snapshot_guards_its_own_session_alone() {
        let session = Session::begin(&record(1, None, created())).unwrap();
        let stored = encode(&session).unwrap();
        let other = "01900000-0000-7000-8000-000000000009".parse::<SessionId>().unwrap();
        assert_ne!(other, session_id());
        assert_eq!(previous(session.id, Some(&stored)).unwrap().unwrap().id, session.id);
        assert!(matches!(previous(other, Some(&stored)), Err(SessionStoreError::Corrupted(id)) if id == other));
        assert!(previous(other, None).unwrap().is_none());
    }
}
