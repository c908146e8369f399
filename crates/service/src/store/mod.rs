//! Interfaces to storage: events, blobs, snapshots, the index, and the location of sessions.
//!
//! They assume neither one process, one machine nor a file, and no backend's type appears here.

#[cfg(not(any(feature = "session-store", feature = "memory-store")))]
pub(crate) mod absent;
#[cfg(any(feature = "session-store", feature = "memory-store"))]
pub(crate) mod directory;
mod load;
mod memory;
mod readers;
pub(crate) mod restore;

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

#[cfg(not(any(feature = "session-store", feature = "memory-store")))]
pub(crate) use absent as directory;

pub(crate) use directory::{DirectoryOwner, own_directory, step_back};
#[cfg(any(feature = "session-store", feature = "memory-store"))]
pub use directory::{IndexFile, RedbEventStore, RedbIndex, RedbSessionStore};
pub use directory::{glance, open_stores};
pub(crate) use meerkat_words::list;
pub use meerkat_words::store::{
    BlobStore, BlobWriter, Frame, FramePage, Lease, Origin, RECORD_BYTES_MAX, ReadLimit, Registration, StoreError,
    TailRepair, Ticket,
};
pub(crate) use meerkat_words::store::{ReaderMark, ReaderMarks, hex};
use meerkat_words::{
    answers::{Page, SessionSummary},
    requests::SessionQuery,
};
pub use memory::{MemoryBlobStore, MemoryEventStore, MemoryIndex, MemorySessionStore, MemoryUse};
pub use readers::{MemoryReaders, ReaderStore};

pub use crate::{service::Router, session::SessionMeta};

use crate::{
    clock::Timestamp,
    ids::{Seq, SessionId, TurnNumber},
    session::{Session, event::Record},
};

/// Source of records for an import, each with its exact line. They come in parts, so that only one part is in memory at
/// a time.
#[async_trait]
pub trait RecordSource: Send {
    /// Returns the next part; empty at the end.
    async fn next(&mut self) -> Result<Vec<(Record, Bytes)>, StoreError>;
}

/// Append-only log of each session's records: the only source of truth.
#[async_trait]
pub trait EventStore: Send + Sync {
    /// Takes the right to append. A session that does not exist yet has the tail 0, and is created by the first batch.
    ///
    /// # Errors
    /// `Corrupted` and `FormatNewer` if it can only be read.
    async fn lease(&self, session_id: SessionId) -> Result<Lease, StoreError>;

    /// Returns the lease: nothing more will be appended for now, and everything staged is durable.
    async fn release(&self, lease: Lease) -> Result<(), StoreError>;

    /// Returns the lease of a session that could not be opened: the next start checks if it is settled.
    async fn give_up(&self, _lease: Lease) {}

    /// Encodes the records and queues them for writing. The first seq must follow the tail. It neither waits nor can be
    /// cancelled half-way.
    ///
    /// # Errors
    /// `Fenced` if the lease is not the newest or the batch does not follow the tail.
    fn stage(&self, lease: &Lease, batch: &[Record]) -> Result<Ticket, StoreError>;

    /// Reads durable frames after `after`, up to `limit`; `None` if there is no such session.
    async fn read(&self, session_id: SessionId, after: Seq, limit: ReadLimit) -> Result<Option<FramePage>, StoreError>;

    /// Returns the durable frame with this seq, if it is in memory. Followers get the newest frames this way without an
    /// allocation each; otherwise they use `read`.
    fn at_hand(&self, _session_id: SessionId, _seq: Seq) -> Option<Frame> {
        None
    }

    /// Follows the last readable seq; ends when the session is deleted. `None` if there is no such session.
    async fn watch(&self, session_id: SessionId) -> Result<Option<watch::Receiver<Seq>>, StoreError>;

    /// Creates a session from the records of `parent` up to `at`, unchanged, its blobs, and `first`, which continue
    /// under the new session's id. Afterwards either all of it is stored, or nothing.
    async fn fork(&self, parent: SessionId, at: Seq, first: &[Record]) -> Result<(), StoreError>;

    /// Creates a session from imported records: their lines are stored unchanged, with the blobs that were written for
    /// it before. Afterwards either all of it is stored, or nothing.
    ///
    /// # Errors
    /// `Fenced` if the seqs do not run from 1 without a gap; `Failed` if the session already exists.
    async fn import(&self, session_id: SessionId, records: &mut dyn RecordSource) -> Result<(), StoreError>;

    /// Returns the approximate bytes of a session in this store; 0 if there is no such session.
    async fn bytes(&self, session_id: SessionId) -> Result<u64, StoreError>;

    /// Returns its bytes without blobs, at less cost: they show if records were added or dropped.
    async fn journal_bytes(&self, session_id: SessionId) -> Result<u64, StoreError> {
        self.bytes(session_id).await
    }

    /// Deletes a session with its blobs for good; a lease on it is fenced.
    async fn delete(&self, session_id: SessionId) -> Result<(), StoreError>;

    /// Lists the sessions that may have changed since their last release, because their owner crashed.
    async fn unsettled(&self) -> Result<Vec<SessionId>, StoreError>;

    /// Visits each line after `after` of a session that is not in use. Returns true if these are all of them and
    /// durable; otherwise discard them and use `read`.
    async fn scan(&self, _session_id: SessionId, _after: Seq, _see: LineSink) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Marks an unsettled session as settled up to `last_seq`, unless it has been used since.
    async fn rests(&self, _session_id: SessionId, _last_seq: Seq) {}

    /// Returns the incomplete batch of a crashed process that the next append will remove from the journal's end. It
    /// remains until that append, which should report it, is durable; `None` if there is none.
    fn tail_repair(&self, _session_id: SessionId) -> Option<TailRepair> {
        None
    }

    /// Returns an id that distinguishes this store, for files that several stores might write; may block.
    fn id(&self) -> Option<String> {
        None
    }

    /// Checks if new work may begin. Running turns continue in any case.
    ///
    /// # Errors
    /// `Full` if the disk has only the reserve for running turns left; `ReadOnly`.
    async fn room(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Lists stored sessions after `after` by id, at most `limit`.
    async fn sessions(&self, after: Option<SessionId>, limit: usize) -> Result<Vec<SessionId>, StoreError>;
}

/// Callback for lines, in order.
pub type LineSink = Box<dyn FnMut(&Bytes) + Send>;

/// Extension of an event store that can drop records of a journal.
#[async_trait]
pub trait JournalPruner: Send + Sync {
    /// Lists the ranges of a journal's seqs, in order. A crash leaves each range as before a prune or as after it. The
    /// last one is still being written, and may be empty.
    async fn parts(&self, session_id: SessionId) -> Result<Vec<(Seq, Seq)>, StoreError>;

    /// Drops the records up to `up_to` that are not in `keep` and were recorded before `older_than`; returns their
    /// number. No seq changes. Others may read and append meanwhile.
    async fn prune(
        &self,
        session_id: SessionId,
        up_to: Seq,
        keep: &BTreeSet<Seq>,
        older_than: Timestamp,
    ) -> Result<u64, StoreError>;

    /// Lists the names of a session's blobs.
    async fn blobs(&self, session_id: SessionId) -> Result<BTreeSet<String>, StoreError>;

    /// Deletes blobs of a session that no record names, not even one being written. Another session's blob of the same
    /// name remains.
    async fn drop_blobs(&self, session_id: SessionId, names: &BTreeSet<String>) -> Result<(), StoreError>;
}

/// Stores of one data directory.
#[derive(Clone)]
pub struct Stores {
    /// Its journals, the source of truth.
    pub events: Arc<dyn EventStore>,
    /// Its blobs.
    pub blobs: Arc<dyn BlobStore>,
    /// Its snapshots.
    pub snapshots: Arc<dyn SessionStore>,
    /// Its index.
    pub index: Arc<dyn SessionIndex>,
    /// Pruner of its journals, if they have one.
    pub pruner: Option<Arc<dyn JournalPruner>>,
    /// Its readers.
    pub readers: Arc<dyn ReaderStore>,
}

/// Snapshots: each the fold of a journal up to some seq, derived from it and never ahead of it.
#[async_trait]
pub trait SessionStore: Send + Sync {
    /// Saves a snapshot.
    ///
    /// # Errors
    /// [`SessionStoreError::MonotonicityViolation`] if it counts fewer messages than the one before.
    async fn save(&self, session: &Session) -> Result<(), SessionStoreError>;

    /// Loads a snapshot.
    async fn load(&self, id: &SessionId) -> Result<Option<Session>, SessionStoreError>;

    /// Lists snapshots.
    async fn list(&self, filter: SessionFilter) -> Result<Vec<SessionMeta>, SessionStoreError>;

    /// Deletes a snapshot.
    async fn delete(&self, id: &SessionId) -> Result<(), SessionStoreError>;

    /// Loads a snapshot's small fields without the messages and without reading the journal. `None` if they are not
    /// enough.
    async fn outline(&self, _id: &SessionId) -> Result<Option<Session>, SessionStoreError> {
        Ok(None)
    }

    /// Returns true if there is a snapshot.
    async fn exists(&self, id: &SessionId) -> Result<bool, SessionStoreError> {
        Ok(self.load(id).await?.is_some())
    }
}

/// Filter for snapshots.
#[derive(Clone, Debug, Default)]
pub struct SessionFilter {
    /// Created after this time.
    pub created_after: Option<Timestamp>,
    /// Changed after this time.
    pub updated_after: Option<Timestamp>,
    /// Most snapshots to list.
    pub limit: Option<usize>,
    /// Snapshots to skip first.
    pub offset: Option<usize>,
}

/// Failures of a snapshot. The texts are the specification's.
#[derive(Debug, thiserror::Error)]
pub enum SessionStoreError {
    /// The disk failed.
    #[error("IO error: {0}")]
    Io(#[from] std::io::Error),
    /// The bytes are not a snapshot.
    #[error("Serialization error: {0}")]
    Serialization(String),
    /// There is no such snapshot.
    #[error("Session not found: {0}")]
    NotFound(SessionId),
    /// The snapshot cannot be trusted.
    #[error("Session corrupted: {0}")]
    Corrupted(SessionId),
    /// The snapshot would shrink the history.
    #[error(
        "session {id} save rejected: new message count {new_len} is shorter than previously \
         persisted {prev_len} — shrink operations must go through Session::fork_at (F1 \
         closure, wave-c C-H1)"
    )]
    MonotonicityViolation {
        /// The session.
        id: SessionId,
        /// Messages before.
        prev_len: u64,
        /// Messages now.
        new_len: u64,
    },
    /// An internal fault of the store.
    #[error("Internal error: {0}")]
    Internal(String),
}

impl From<serde_json::Error> for SessionStoreError {
    fn from(error: serde_json::Error) -> Self {
        Self::Serialization(error.to_string())
    }
}

/// Refuses a snapshot that counts fewer messages than the one before.
///
/// # Errors
/// [`SessionStoreError::MonotonicityViolation`].
pub fn append_only_save_guard(incoming: &Session, previous: Option<&Session>) -> Result<(), SessionStoreError> {
    guard_count(incoming, previous.map_or(0, Session::message_count))
}

fn guard_count(incoming: &Session, prev_len: u64) -> Result<(), SessionStoreError> {
    let (id, new_len) = (incoming.id(), incoming.message_count());
    if new_len < prev_len { Err(SessionStoreError::MonotonicityViolation { id, prev_len, new_len }) } else { Ok(()) }
}

/// Lists, idempotency keys and checkpoints: copies from the journals, for speed alone.
#[async_trait]
pub trait SessionIndex: Send + Sync {
    /// Puts a changed session first in lists.
    async fn put(&self, summary: SessionSummary) -> Result<(), StoreError>;

    /// Puts a session as it was found. An unchanged one keeps its place; one whose place was lost comes behind all
    /// later changes.
    async fn put_found(&self, summary: SessionSummary) -> Result<(), StoreError>;

    /// Removes a session.
    async fn remove(&self, session_id: SessionId) -> Result<(), StoreError>;

    /// Returns a page of sessions, most recently changed first.
    async fn page(&self, query: SessionQuery) -> Result<Page<SessionSummary>, StoreError>;

    /// Lists sessions before `before` by id, newest first: all of them, whatever changes meanwhile.
    async fn sessions(&self, before: Option<SessionId>, limit: usize) -> Result<Vec<SessionSummary>, StoreError>;

    /// Stores the turn, or the session, that a key leads to, unless the key has a newer one.
    async fn put_key(&self, key: &IndexedKey) -> Result<(), StoreError>;

    /// Finds a key.
    async fn key(&self, session_id: Option<SessionId>, key: &str) -> Result<Option<IndexedKey>, StoreError>;

    /// Stores a reader's checkpoint in a session.
    async fn put_checkpoint(&self, reader: &str, session_id: SessionId, seq: Seq) -> Result<(), StoreError>;

    /// Returns a reader's checkpoint in a session.
    async fn checkpoint(&self, reader: &str, session_id: SessionId) -> Result<Seq, StoreError>;

    /// Returns a reader's checkpoints in many sessions, in their order.
    async fn checkpoints(&self, reader: &str, session_ids: &[SessionId]) -> Result<Vec<Seq>, StoreError> {
        let mut seqs = Vec::with_capacity(session_ids.len());
        for session_id in session_ids {
            seqs.push(self.checkpoint(reader, *session_id).await?);
        }
        Ok(seqs)
    }

    /// Deletes a reader's checkpoints.
    async fn forget_reader(&self, reader: &str) -> Result<(), StoreError>;

    /// Returns the loss since which every stored session must be put again; each loss has another number.
    async fn needs_rebuild(&self) -> Option<u64>;

    /// Confirms that every stored session was put since this loss.
    ///
    /// # Errors
    /// If that could not be made durable, or there was another loss.
    async fn rebuilt(&self, loss: u64) -> Result<(), StoreError>;

    /// Waits until earlier changes are durable, without forcing that.
    async fn committed(&self) -> Result<(), StoreError>;

    /// Makes earlier changes durable.
    async fn flush(&self) -> Result<(), StoreError>;
}

/// Idempotency key in the index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexedKey {
    /// Session of its scope; the whole store if `None`.
    pub scope: Option<SessionId>,
    /// The key and its request's hash.
    pub key: crate::session::event::Key,
    /// Session that answers.
    pub session_id: SessionId,
    /// Turn that answers; the session's creation if `None`.
    pub turn: Option<TurnNumber>,
    /// Time of its use.
    pub time: Timestamp,
}

impl IndexedKey {
    /// Returns true if it replaces the stored one: the latest use wins, in whatever order they are put.
    pub(crate) fn replaces(&self, kept: Option<&Self>) -> bool {
        kept.is_none_or(|kept| (kept.time, kept.session_id) <= (self.time, self.session_id))
    }
}
