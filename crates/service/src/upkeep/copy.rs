//! Copy of every session from one store into another, such as from a data directory into a database.
//!
//! Records, blobs, checkpoints of readers and what memory was told to forget are copied as they are: both stores are the
//! caller's own, so that nothing is taken away as from a bundle. A session appears completely or not at all, so a copy
//! that was cut off is run again. It never says that all is copied while some other process made or changed a session.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use meerkat_errors::{ErrorBody, ErrorCode};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::{
    Absence, Session, SessionError,
    ids::{Seq, SessionId},
    memory::SharedMemory,
    service::{SessionState, SessionSummary},
    session::event::Record,
    store::{EventStore, IndexedKey, ReadLimit, RecordSource, StoreError, Stores, hex, restore::decode},
};

/// Frames to read at once.
const FRAMES_READ: usize = 512;
/// Bytes of a blob to copy at once.
const BLOB_BYTES: usize = 256 * 1024;
/// Ids to read at once.
const IDS_READ: usize = 1000;
/// Most sessions that an error names.
const NAMED_MAX: usize = 5;

/// Report of a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Copied {
    /// Number of sessions, all of which are in both stores now.
    pub sessions: u64,
    /// Number of sessions that were copied; the others were there already, with the same records.
    pub copied: u64,
    /// Number of copied records.
    pub records: u64,
    /// Number of copied blobs.
    pub blobs: u64,
    /// Number of blobs that are damaged and were left out.
    pub damaged_blobs: u64,
}

/// Copies the sessions that `to` does not have, and compares all others with those of `from`. `memories` are those of data
/// directories: of `from`, and of `to`; a database keeps itself what memory forgets.
///
/// # Errors
/// `INVALID_REQUEST` if `to` has a session with other records; nothing was changed then. `SESSION_BUSY` and others if
/// some sessions cannot be copied, or changed meanwhile, which the message names; all others were copied. The errors of
/// both stores.
pub async fn copy(
    from: &Stores,
    to: &Stores,
    memories: [Option<&SharedMemory>; 2],
    progress: &(dyn Fn(u64, u64) + Send + Sync),
) -> Result<Copied, SessionError> {
    let ids = sessions(from).await?;
    let (mut missing, mut found, mut different) = (Vec::new(), Vec::new(), Vec::new());
    for &id in &ids {
        if to.events.tail(id).await?.is_none() {
            missing.push(id);
            continue;
        }
        match same(from, to, id).await? {
            Some(session) => found.push(Row::of(&session)),
            None => different.push(id),
        }
        progress(found.len() as u64, ids.len() as u64);
    }
    if !different.is_empty() {
        let named = names(different.iter());
        let why = format!("it has other records of {named}; delete them there, or copy to another place");
        return Err(SessionError::invalid("TO", why));
    }
    // Before the sessions, so that no memory finds in them what it should not.
    forget(from, to, memories).await?;
    let mut copied = Copied { sessions: ids.len() as u64, ..Copied::default() };
    let mut left = Vec::new();
    for id in missing {
        match move_in(from, to, id, &mut copied).await {
            Ok(session) => found.push(Row::of(&session)),
            Err(Failure::Session(error)) => left.push((id, error)),
            Err(Failure::Store(error)) => return Err(error.into()),
        }
        progress(found.len() as u64, ids.len() as u64);
    }
    let mut known: BTreeMap<SessionId, Option<Seq>> =
        found.iter().map(|row| (row.summary.session_id, Some(row.summary.last_seq))).collect();
    known.extend(left.iter().map(|(id, _)| (*id, None)));
    finish(from, to, found).await?;
    let Some((_, error)) = left.first() else { return moved_on(from, known).await.map(|()| copied) };
    let (code, why) = (error.code(), error.to_string());
    let named = names(left.iter().map(|(id, _)| id));
    let message = format!(
        "{} of {} sessions were not copied: {named}. {why} Then copy again, which goes on with these.",
        left.len(),
        ids.len()
    );
    Err(SessionError::Failed(Box::new(ErrorBody::with_message(code, message))))
}

/// Copies what memory was told to forget.
async fn forget(from: &Stores, to: &Stores, memories: [Option<&SharedMemory>; 2]) -> Result<(), SessionError> {
    let [ours, theirs] = memories;
    let mut all = match ours {
        Some(memory) => memory.forgotten().await?,
        None => Vec::new(),
    };
    let mut place = 0;
    loop {
        let (places, decided): (Vec<u64>, Vec<_>) = from.events.forgotten(place).await?.into_iter().unzip();
        all.extend(decided);
        let Some(last) = places.last() else { break };
        place = *last;
    }
    match theirs {
        // A directory has its memory beside its sessions, and a build without memory cannot write it.
        _ if all.is_empty() => {}
        Some(memory) => {
            memory.forget(all).await?;
        }
        None if to.events.node().is_none() => return Err(SessionError::MemoryDisabled { absence: Absence::NotBuilt }),
        None => to.events.record_forgotten(&all).await?,
    }
    Ok(())
}

/// Checks that a store has still the sessions that were copied, each with its last seq if that is known, and no others.
async fn moved_on(from: &Stores, mut known: BTreeMap<SessionId, Option<Seq>>) -> Result<(), SessionError> {
    let mut moved = Vec::new();
    for id in sessions(from).await? {
        let known = known.remove(&id);
        let tail = from.events.tail(id).await?;
        if known.is_none_or(|known| known.is_some() && known != tail) {
            moved.push(id);
        }
    }
    // Those that are left were deleted.
    moved.extend(known.into_keys());
    if moved.is_empty() {
        return Ok(());
    }
    let message = format!(
        "Another process made, changed or deleted {} while they were copied, so that the copy is not whole. End \
         every process that works on FROM, and copy again to another place.",
        names(moved.iter())
    );
    Err(SessionError::Failed(Box::new(ErrorBody::with_message(ErrorCode::SessionBusy, message))))
}

/// Names some sessions.
fn names<'a>(ids: impl ExactSizeIterator<Item = &'a SessionId>) -> String {
    let more = ids.len().saturating_sub(NAMED_MAX);
    let named: Vec<String> = ids.take(NAMED_MAX).map(|id| format!("session {id}")).collect();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", named.join(", "))
}

/// Failure to copy a session.
enum Failure {
    /// It concerns this session alone.
    Session(SessionError),
    Store(StoreError),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::HeldBy { .. } | StoreError::Corrupted { .. } | StoreError::FormatNewer(_) => {
                Self::Session(error.into())
            }
            error => Self::Store(error),
        }
    }
}

/// Lists every session of a store.
async fn sessions(store: &Stores) -> Result<Vec<SessionId>, StoreError> {
    let mut ids: Vec<SessionId> = Vec::new();
    loop {
        let more = store.events.sessions(ids.last().copied(), IDS_READ).await?;
        if more.is_empty() {
            return Ok(ids);
        }
        ids.extend(more);
    }
}

/// Reads a session in both stores; `None` if they differ.
async fn same(from: &Stores, to: &Stores, id: SessionId) -> Result<Option<Session>, StoreError> {
    let (mut ours, mut theirs) = (Reading::of(from, id), Reading::of(to, id));
    ours.read_all().await?;
    theirs.read_all().await?;
    Ok(ours.session.take().filter(|_| ours.chain() == theirs.chain()))
}

/// Copies a session that `to` does not have. No other node changes it meanwhile.
async fn move_in(from: &Stores, to: &Stores, id: SessionId, copied: &mut Copied) -> Result<Session, Failure> {
    let lease = from.events.lease(id).await?;
    let done = move_leased(from, to, id, copied).await;
    from.events.release(lease).await?;
    done
}

async fn move_leased(from: &Stores, to: &Stores, id: SessionId, copied: &mut Copied) -> Result<Session, Failure> {
    let mut read = Reading::of(from, id);
    read.read_all().await?;
    let session = read.session.take().ok_or(StoreError::NotFound(id))?;
    if session.state() != SessionState::Idle {
        let message = format!("Session {id} has not ended its turns: let them end, or interrupt it where it is.");
        let body = ErrorBody::with_message(ErrorCode::SessionBusy, message).detail("session_id", id.to_string());
        return Err(Failure::Session(SessionError::Failed(Box::new(body))));
    }
    let (mut records, mut blobs) = (Reading::of(from, id), 0);
    // What a failure leaves of the blobs is written over by the next copy.
    for name in from.blobs.list(id).await? {
        match copy_blob(from, to, id, &name).await? {
            true => blobs += 1,
            false => copied.damaged_blobs += 1,
        }
    }
    to.events.import(id, &mut records).await?;
    let mut there = Reading::of(to, id);
    there.read_all().await?;
    if there.chain() != read.chain() || to.blobs.list(id).await?.len() < blobs {
        let why = format!("session {id} does not read back as it was written");
        return Err(Failure::Store(StoreError::Failed(why)));
    }
    copied.copied += 1;
    copied.records += read.records;
    copied.blobs += blobs as u64;
    Ok(session)
}

/// Copies a blob; returns false if its bytes are not those that it is named after. Then nothing of it stays.
async fn copy_blob(from: &Stores, to: &Stores, id: SessionId, name: &str) -> Result<bool, StoreError> {
    let (mut writer, mut at, mut hash) = (to.blobs.writer(id), 0, Sha256::new());
    while let Some(piece) = from.blobs.read(id, name, at, BLOB_BYTES).await?.filter(|piece| !piece.is_empty()) {
        writer.write(&piece).await?;
        hash.update(&piece);
        at += piece.len() as u64;
    }
    if hex(&hash.finalize()) != name {
        tracing::warn!(session_id = %id, blob = name, "a blob is damaged and is not copied");
        return Ok(false);
    }
    writer.finish().await?;
    Ok(true)
}

/// A session's row in lists, and the key that it was created with.
struct Row {
    summary: SessionSummary,
    key: Option<IndexedKey>,
}

impl Row {
    fn of(session: &Session) -> Self {
        Self { summary: session.summary(), key: IndexedKey::of(session) }
    }
}

/// Puts the sessions into lists, the last one to change first, and takes the readers over.
async fn finish(from: &Stores, to: &Stores, mut rows: Vec<Row>) -> Result<(), StoreError> {
    let readers = from.readers.readers().await?;
    for reader in &readers {
        to.readers.register(reader.clone()).await?;
    }
    rows.sort_by_key(|row| (row.summary.updated_at, row.summary.session_id));
    for Row { summary, key } in rows {
        let id = summary.session_id;
        // A store may have listed it when it was made, in the order of the copy.
        to.index.put(summary).await?;
        if let Some(key) = key {
            to.index.put_key(&key).await?;
        }
        for reader in readers.iter().map(|reader| &reader.reader) {
            let checkpoint = from.index.checkpoint(reader, id).await?;
            to.index.put_checkpoint(reader, id, checkpoint).await?;
        }
    }
    to.index.flush().await
}

/// Reading of a session from its first record: its fold, and the hash of its lines and seqs.
struct Reading {
    events: Arc<dyn EventStore>,
    id: SessionId,
    session: Option<Session>,
    chain: Sha256,
    records: u64,
    version: Option<u64>,
}

impl Reading {
    fn of(stores: &Stores, id: SessionId) -> Self {
        let (events, chain) = (stores.events.clone(), Sha256::new());
        Self { events, id, session: None, chain, records: 0, version: None }
    }

    async fn read_all(&mut self) -> Result<(), StoreError> {
        while !self.next().await?.is_empty() {}
        Ok(())
    }

    /// Returns the hash so far.
    fn chain(&self) -> [u8; 32] {
        self.chain.clone().finalize().into()
    }

    fn last_seq(&self) -> Seq {
        self.session.as_ref().map_or(0, |session| session.last_seq)
    }
}

#[async_trait]
impl RecordSource for Reading {
    async fn next(&mut self) -> Result<Vec<(Record, Bytes)>, StoreError> {
        let page = self.events.read(self.id, self.last_seq(), ReadLimit::frames(FRAMES_READ)).await?;
        let page = page.ok_or(StoreError::NotFound(self.id))?;
        if *self.version.get_or_insert(page.version) != page.version {
            return Err(StoreError::Failed("a journal was compacted while it was read; try again".to_owned()));
        }
        let mut part = Vec::with_capacity(page.frames.len());
        for frame in page.frames {
            let last_good_seq = self.last_seq();
            let broken = |why: String| StoreError::Corrupted { session_id: self.id, last_good_seq, why };
            let record = decode(&frame).map_err(|error| broken(error.to_string()))?;
            let applied = match &mut self.session {
                Some(session) => session.apply(&record),
                None => Session::begin(&record).map(|begun| self.session = Some(begun)),
            };
            applied.map_err(|error| broken(error.to_string()))?;
            self.chain.update(frame.seq.to_le_bytes());
            self.chain.update((frame.line.len() as u64).to_le_bytes());
            self.chain.update(&frame.line);
            self.records += 1;
            part.push((record, frame.line));
        }
        Ok(part)
    }
}
