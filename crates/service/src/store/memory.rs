//! Stores in memory: bounded, lost with the process, durable at once.
//!
//! Each session is bounded by bytes; older events are pruned for good.

mod derived;

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

pub use derived::{MemoryIndex, MemorySessionStore};

use super::{
    BlobStore, BlobWriter, EventStore, Frame, FramePage, Lease, MemoryReaders, ReadLimit, RecordSource, StoreError,
    Stores, Ticket, check_uploads, hex,
};
use crate::{
    SessionError,
    clock::Timestamp,
    ids::{Seq, SessionId},
    session::event::Record,
    wire::encode_event,
};

/// Bytes that a service holds in memory over all its sessions, and their limit.
#[derive(Debug)]
pub struct MemoryUse {
    bytes: AtomicU64,
    max: u64,
}

impl MemoryUse {
    /// Sets the limit.
    #[must_use]
    pub const fn new(max: u64) -> Self {
        Self { bytes: AtomicU64::new(0), max }
    }

    /// Returns the bytes held.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Checks that there is room for more.
    ///
    /// # Errors
    /// `SESSION_LIMIT` if there is not.
    pub fn check_room(&self) -> Result<(), SessionError> {
        if self.bytes() >= self.max { Err(SessionError::Limit { what: "bytes", limit: self.max }) } else { Ok(()) }
    }

    /// Adds bytes to those held.
    pub fn grow(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts bytes from those held.
    pub fn shrink(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Default for MemoryUse {
    fn default() -> Self {
        Self::new(u64::MAX)
    }
}

impl Stores {
    /// Makes stores of this process alone, which count their bytes in `held`.
    pub(crate) fn in_memory(session_bytes_max: u64, held: &Arc<MemoryUse>) -> Self {
        let events = Arc::new(MemoryEventStore::new(session_bytes_max, held.clone()));
        Self {
            blobs: Arc::new(MemoryBlobStore::new(held.clone())),
            snapshots: Arc::new(MemorySessionStore::new(events.clone())),
            index: Arc::new(MemoryIndex::default()),
            pruner: None,
            readers: Arc::new(MemoryReaders::default()),
            inbox: None,
            events,
        }
    }
}

/// Journals in memory.
pub struct MemoryEventStore {
    journals: Mutex<HashMap<SessionId, Journal>>,
    /// Most bytes of one session.
    session_bytes_max: u64,
    held: Arc<MemoryUse>,
}

struct Journal {
    frames: VecDeque<Frame>,
    bytes: u64,
    epoch: u64,
    /// Number of frames that were dropped.
    version: u64,
    tail: watch::Sender<Seq>,
}

impl Journal {
    fn new(frames: VecDeque<Frame>, last: Seq) -> Self {
        let bytes = frames.iter().map(|frame| frame.line.len() as u64).sum();
        Self { frames, bytes, epoch: 0, version: 0, tail: watch::Sender::new(last) }
    }
}

impl MemoryEventStore {
    /// Makes a store that keeps at most `session_bytes_max` bytes of each session.
    #[must_use]
    pub fn new(session_bytes_max: u64, held: Arc<MemoryUse>) -> Self {
        Self { journals: Mutex::default(), session_bytes_max, held }
    }

    fn journals(&self) -> MutexGuard<'_, HashMap<SessionId, Journal>> {
        self.journals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl EventStore for MemoryEventStore {
    async fn lease(&self, session_id: SessionId) -> Result<Lease, StoreError> {
        let mut journals = self.journals();
        let journal = journals.entry(session_id).or_insert_with(|| Journal::new(VecDeque::new(), 0));
        journal.epoch += 1;
        Ok(Lease { session_id, epoch: journal.epoch, tail: *journal.tail.borrow() })
    }

    fn stage(&self, lease: &Lease, batch: &[Record]) -> Result<Ticket, StoreError> {
        // Encoded outside the lock, which all sessions share.
        let lines = batch.iter().map(encode_event).collect::<Result<Vec<_>, _>>();
        let lines = lines.map_err(|error| StoreError::Failed(error.to_string()))?;
        let mut journals = self.journals();
        let journal = journals.get_mut(&lease.session_id).ok_or(StoreError::Fenced)?;
        let tail = *journal.tail.borrow();
        if journal.epoch != lease.epoch {
            return Err(StoreError::Fenced);
        }
        if batch.iter().zip(tail + 1..).any(|(record, seq)| record.seq != seq) {
            return Err(StoreError::OutOfOrder);
        }
        for (record, line) in batch.iter().zip(lines) {
            journal.bytes += line.len() as u64;
            self.held.grow(line.len() as u64);
            journal.frames.push_back(Frame { seq: record.seq, line });
        }
        // The newest event stays even if it alone exceeds the limit.
        while journal.bytes > self.session_bytes_max && journal.frames.len() > 1 {
            let Some(oldest) = journal.frames.pop_front() else { break };
            journal.version += 1;
            journal.bytes -= oldest.line.len() as u64;
            self.held.shrink(oldest.line.len() as u64);
        }
        let durable = tail + batch.len() as u64;
        journal.tail.send_replace(durable);
        let (done, ticket) = Ticket::new();
        // The receiver is in `ticket`, so this cannot fail.
        drop(done.send(Ok(durable)));
        Ok(ticket)
    }

    async fn read(
        &self,
        session_id: SessionId,
        after: Seq,
        mut limit: ReadLimit,
    ) -> Result<Option<FramePage>, StoreError> {
        let journals = self.journals();
        let Some(journal) = journals.get(&session_id) else { return Ok(None) };
        let skip = journal.frames.partition_point(|frame| frame.seq <= after);
        let wanted = journal.frames.iter().skip(skip).enumerate();
        let frames = wanted.take_while(|(at, frame)| limit.takes(&frame.line, *at == 0));
        let frames = frames.map(|(_, frame)| frame.clone()).collect();
        Ok(Some(FramePage { frames, version: journal.version, ..FramePage::default() }))
    }

    fn at_hand(&self, session_id: SessionId, seq: Seq) -> Option<Frame> {
        let journals = self.journals();
        let frames = &journals.get(&session_id)?.frames;
        // Seqs may have gaps if the frames come from a bundle.
        frames.binary_search_by_key(&seq, |frame| frame.seq).ok().and_then(|at| frames.get(at)).cloned()
    }

    async fn release(&self, _: Lease) -> Result<(), StoreError> {
        Ok(())
    }

    async fn watch(&self, session_id: SessionId) -> Result<Option<watch::Receiver<Seq>>, StoreError> {
        Ok(self.journals().get(&session_id).map(|journal| journal.tail.subscribe()))
    }

    async fn fork(&self, parent: SessionId, at: Seq, first: &[Record]) -> Result<(), StoreError> {
        let own = |record: &Record| encode_event(record).map(|line| Frame { seq: record.seq, line });
        let own = first.iter().map(own).collect::<Result<Vec<_>, _>>();
        let own = own.map_err(|error| StoreError::Failed(error.to_string()))?;
        let mut journals = self.journals();
        let source = journals.get(&parent).ok_or(StoreError::NotFound(parent))?;
        let is_new = |child: &&Record| !journals.contains_key(&child.session_id);
        let follows = at <= *source.tail.borrow() && own.iter().zip(at + 1..).all(|(frame, seq)| frame.seq == seq);
        let (Some(child), Some(last), true) = (first.first().filter(is_new), own.last(), follows) else {
            return Err(StoreError::Failed("there is nothing to fork, or the fork exists already".to_owned()));
        };
        let (child, last) = (child.session_id, last.seq);
        let frames: VecDeque<Frame> =
            source.frames.iter().take_while(|frame| frame.seq <= at).cloned().chain(own).collect();
        self.held.grow(journals.entry(child).or_insert(Journal::new(frames, last)).bytes);
        Ok(())
    }

    async fn import(&self, session_id: SessionId, records: &mut dyn RecordSource) -> Result<(), StoreError> {
        let mut frames = VecDeque::new();
        loop {
            let part = records.next().await?;
            if part.is_empty() {
                break;
            }
            for (record, line) in part {
                let last = frames.back().map_or(0, |frame: &Frame| frame.seq);
                if record.seq <= last {
                    return Err(StoreError::OutOfOrder);
                }
                frames.push_back(Frame { seq: record.seq, line });
            }
        }
        let mut journals = self.journals();
        if frames.is_empty() || journals.contains_key(&session_id) {
            return Err(StoreError::Failed("there is nothing to import, or the session exists already".to_owned()));
        }
        let last = frames.back().map_or(0, |frame| frame.seq);
        self.held.grow(journals.entry(session_id).or_insert(Journal::new(frames, last)).bytes);
        Ok(())
    }

    async fn bytes(&self, session_id: SessionId) -> Result<u64, StoreError> {
        Ok(self.journals().get(&session_id).map_or(0, |journal| journal.bytes))
    }

    async fn delete(&self, session_id: SessionId) -> Result<(), StoreError> {
        if let Some(journal) = self.journals().remove(&session_id) {
            self.held.shrink(journal.bytes);
        }
        Ok(())
    }

    async fn unsettled(&self) -> Result<Vec<SessionId>, StoreError> {
        Ok(Vec::new())
    }

    async fn sessions(&self, after: Option<SessionId>, limit: usize) -> Result<Vec<SessionId>, StoreError> {
        let mut ids: Vec<SessionId> = self.journals().keys().copied().filter(|id| Some(*id) > after).collect();
        ids.sort_unstable();
        ids.truncate(limit);
        Ok(ids)
    }
}

/// Blobs of a session.
#[derive(Default)]
struct Blobs {
    blobs: HashMap<String, Bytes>,
    uploads: HashMap<String, (Timestamp, Bytes)>,
}

/// Blobs in memory.
#[derive(Default)]
pub struct MemoryBlobStore {
    blobs: Arc<Mutex<HashMap<SessionId, Blobs>>>,
    held: Arc<MemoryUse>,
}

impl MemoryBlobStore {
    /// Makes a store that counts its bytes in `held`.
    #[must_use]
    pub fn new(held: Arc<MemoryUse>) -> Self {
        Self { blobs: Arc::default(), held }
    }

    fn blobs(&self) -> MutexGuard<'_, HashMap<SessionId, Blobs>> {
        self.blobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Cuts a piece out of a body.
fn piece(bytes: &Bytes, offset: u64, limit: usize) -> Bytes {
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
    bytes.slice(start..bytes.len().min(start.saturating_add(limit)))
}

#[async_trait]
impl BlobStore for MemoryBlobStore {
    fn writer(&self, session_id: SessionId) -> Box<dyn BlobWriter> {
        let (blobs, held) = (self.blobs.clone(), self.held.clone());
        Box::new(MemoryBlobWriter { session_id, bytes: Vec::new(), hash: Sha256::new(), counted: 0, blobs, held })
    }

    async fn read(
        &self,
        session_id: SessionId,
        blob: &str,
        offset: u64,
        limit: usize,
    ) -> Result<Option<Bytes>, StoreError> {
        let blobs = self.blobs();
        let bytes = blobs.get(&session_id).and_then(|blobs| blobs.blobs.get(blob));
        Ok(bytes.map(|bytes| piece(bytes, offset, limit)))
    }

    async fn list(&self, session_id: SessionId) -> Result<BTreeSet<String>, StoreError> {
        Ok(self.blobs().get(&session_id).into_iter().flat_map(|blobs| blobs.blobs.keys()).cloned().collect())
    }

    async fn remove(&self, session_id: SessionId, names: &BTreeSet<String>) -> Result<(), StoreError> {
        if let Some(blobs) = self.blobs().get_mut(&session_id) {
            let removed = names.iter().filter_map(|name| blobs.blobs.remove(name));
            self.held.shrink(removed.map(|blob| blob.len() as u64).sum());
        }
        Ok(())
    }

    async fn forget(&self, session_id: SessionId) {
        let gone = self.blobs().remove(&session_id);
        let uploads = gone.iter().flat_map(|gone| gone.uploads.values().map(|(_, bytes)| bytes));
        let bodies = gone.iter().flat_map(|gone| gone.blobs.values()).chain(uploads);
        self.held.shrink(bodies.map(|body| body.len() as u64).sum());
    }

    async fn read_upload(
        &self,
        session_id: SessionId,
        blob: &str,
        since: Timestamp,
        offset: u64,
        limit: usize,
    ) -> Result<Option<Bytes>, StoreError> {
        let blobs = self.blobs();
        let upload = blobs.get(&session_id).and_then(|blobs| blobs.uploads.get(blob));
        Ok(upload.filter(|(time, _)| *time >= since).map(|(_, bytes)| piece(bytes, offset, limit)))
    }

    async fn keep(&self, session_id: SessionId, blob: &str, since: Timestamp) -> Result<bool, StoreError> {
        let mut blobs = self.blobs();
        let Some(blobs) = blobs.get_mut(&session_id) else { return Ok(false) };
        if blobs.uploads.get(blob).is_none_or(|(time, _)| *time < since) {
            return Ok(blobs.blobs.contains_key(blob));
        }
        let Some((_, bytes)) = blobs.uploads.remove(blob) else { return Ok(false) };
        let former = blobs.blobs.insert(blob.to_owned(), bytes);
        self.held.shrink(former.map_or(0, |former| former.len() as u64));
        Ok(true)
    }

    async fn uploads(&self, session_id: SessionId) -> Result<Vec<u64>, StoreError> {
        let blobs = self.blobs();
        let uploads = blobs.get(&session_id).into_iter().flat_map(|blobs| blobs.uploads.values());
        Ok(uploads.map(|(_, bytes)| bytes.len() as u64).collect())
    }

    async fn expire(&self, session_id: SessionId, before: Timestamp) -> Result<(), StoreError> {
        if let Some(blobs) = self.blobs().get_mut(&session_id) {
            blobs.uploads.retain(|_, (time, bytes)| {
                let stays = *time >= before;
                self.held.shrink(if stays { 0 } else { bytes.len() as u64 });
                stays
            });
        }
        Ok(())
    }
}

struct MemoryBlobWriter {
    session_id: SessionId,
    bytes: Vec<u8>,
    hash: Sha256,
    /// Bytes counted as held before the blob exists.
    counted: u64,
    blobs: Arc<Mutex<HashMap<SessionId, Blobs>>>,
    held: Arc<MemoryUse>,
}

impl Drop for MemoryBlobWriter {
    fn drop(&mut self) {
        self.held.shrink(self.counted);
    }
}

#[async_trait]
impl BlobWriter for MemoryBlobWriter {
    async fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.held.check_room().map_err(|error| StoreError::Failed(error.to_string()))?;
        self.counted += bytes.len() as u64;
        self.held.grow(bytes.len() as u64);
        self.hash.update(bytes);
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    async fn finish(mut self: Box<Self>) -> Result<(String, u64), StoreError> {
        let hash = hex(&std::mem::take(&mut self.hash).finalize());
        let bytes = Bytes::from(std::mem::take(&mut self.bytes));
        let length = bytes.len() as u64;
        let mut blobs = self.blobs.lock().unwrap_or_else(PoisonError::into_inner);
        if blobs.entry(self.session_id).or_default().blobs.insert(hash.clone(), bytes).is_none() {
            // From now on they are counted with the blob.
            self.counted = 0;
        }
        drop(blobs);
        Ok((hash, length))
    }

    async fn upload(mut self: Box<Self>, time: Timestamp) -> Result<(String, u64), StoreError> {
        let hash = hex(&std::mem::take(&mut self.hash).finalize());
        let bytes = Bytes::from(std::mem::take(&mut self.bytes));
        let length = bytes.len() as u64;
        let mut blobs = self.blobs.lock().unwrap_or_else(PoisonError::into_inner);
        let uploads = &mut blobs.entry(self.session_id).or_default().uploads;
        let others = uploads.iter().filter(|(name, _)| **name != hash).map(|(_, (_, bytes))| bytes.len() as u64);
        check_uploads(others.clone().count(), others.sum(), length)?;
        if uploads.insert(hash.clone(), (time, bytes)).is_none() {
            self.counted = 0;
        }
        drop(blobs);
        Ok((hash, length))
    }
}
