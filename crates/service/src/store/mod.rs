//! The seams to storage: events, blobs, snapshots, the index, and where a session lives.
//!
//! Nothing here assumes one process, one machine or a file, and no backend's type crosses this file.

#[cfg(not(any(feature = "session-store", feature = "memory-store")))]
mod absent;
#[cfg(any(feature = "session-store", feature = "memory-store"))]
pub(crate) mod enabled;
mod load;
mod memory;
mod readers;
pub(crate) mod restore;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

#[cfg(not(any(feature = "session-store", feature = "memory-store")))]
use absent as directory;
#[cfg(any(feature = "session-store", feature = "memory-store"))]
use enabled as directory;

pub(crate) use directory::{DirectoryOwner, own_directory, step_back};
pub use directory::{examine, glance, open_stores};
#[cfg(any(feature = "session-store", feature = "memory-store"))]
pub use enabled::{IndexFile, RedbEventStore, RedbIndex, RedbSessionStore};
pub(crate) use meerkat_words::list;
pub use meerkat_words::store::{
    BlobStore, BlobWriter, Frame, FramePage, Lease, Origin, RECORD_BYTES_MAX, ReadLimit, Registration, StoreError,
    TailRepair, Ticket,
};
pub(crate) use meerkat_words::store::{ReaderMark, ReaderMarks, hex};
pub use memory::{MemoryBlobStore, MemoryEventStore, MemoryIndex, MemorySessionStore, MemoryUse};
pub use readers::{MemoryReaders, ReaderStore};

use crate::{
    SessionError,
    clock::Timestamp,
    ids::{Seq, SessionId, TurnNumber},
    service::{Page, SessionQuery, SessionService, SessionSummary},
    session::{Session, event::Record},
};

/// Records that were written elsewhere, each with its line to the letter. They come in parts, so that no more than one
/// part is in memory.
#[async_trait]
pub trait RecordSource: Send {
    /// The next part; it is empty at the end.
    async fn next(&mut self) -> Result<Vec<(Record, Bytes)>, StoreError>;
}

/// The append-only log of each session's records: the one truth.
#[async_trait]
pub trait EventStore: Send + Sync {
    /// Takes the right to append. A session that does not exist yet has the tail 0, and begins with the first batch.
    ///
    /// # Errors
    /// `Corrupted` and `FormatNewer` where it can only be read.
    async fn lease(&self, session_id: SessionId) -> Result<Lease, StoreError>;

    /// Gives the right back: nothing more will be appended for now, and all that was staged is durable.
    async fn release(&self, lease: Lease) -> Result<(), StoreError>;

    /// Gives the right back where the session could not be opened: whether it rests is for the next start to see.
    async fn give_up(&self, _lease: Lease) {}

    /// Encodes the records and queues them for writing. The first one's seq must follow the tail.
    /// It neither waits nor can be cancelled half-way.
    ///
    /// # Errors
    /// `Fenced` where the lease is not the newest or the batch does not follow the tail.
    fn stage(&self, lease: &Lease, batch: &[Record]) -> Result<Ticket, StoreError>;

    /// Durable frames after `after`, as many as `limit` says; `None` where there is no such session.
    async fn read(&self, session_id: SessionId, after: Seq, limit: ReadLimit) -> Result<Option<FramePage>, StoreError>;

    /// The durable frame of this seq, where it is in memory. Those who follow take the newest ones by it, each of them
    /// without an allocation; where it is not here, `read` has it.
    fn at_hand(&self, _session_id: SessionId, _seq: Seq) -> Option<Frame> {
        None
    }

    /// Follows the last durable seq, which can be read by then; it ends when the session is deleted. `None` where there is no such session.
    async fn watch(&self, session_id: SessionId) -> Result<Option<watch::Receiver<Seq>>, StoreError>;

    /// Makes a session from the records of `parent` up to `at`, verbatim, its blobs, and `first`, which go on from
    /// there under the new session's id. All of it is there when it returns, or nothing.
    async fn fork(&self, parent: SessionId, at: Seq, first: &[Record]) -> Result<(), StoreError>;

    /// Makes a session from records that were written elsewhere: their lines stand in it to the letter, and so do the
    /// blobs that were written for it before. All of it is there when it returns, or nothing.
    ///
    /// # Errors
    /// `Fenced` where the seqs do not go from 1 without a gap; `Failed` where there is such a session already.
    async fn import(&self, session_id: SessionId, records: &mut dyn RecordSource) -> Result<(), StoreError>;

    /// Bytes that a session takes in this store, about; 0 where there is no such session.
    async fn bytes(&self, session_id: SessionId) -> Result<u64, StoreError>;

    /// The same without its blobs, at less cost: it shows whether records have come or gone.
    async fn journal_bytes(&self, session_id: SessionId) -> Result<u64, StoreError> {
        self.bytes(session_id).await
    }

    /// Deletes a session with its blobs; a lease on it is fenced, and it never comes back.
    async fn delete(&self, session_id: SessionId) -> Result<(), StoreError>;

    /// Sessions that may have changed since they were last released: those whose owner ended without a word.
    async fn unsettled(&self) -> Result<Vec<SessionId>, StoreError>;

    /// Shows the lines after `after` of a session that nobody uses at the moment, each once. Answers whether these are
    /// all there are and are durable; where it does not, what was shown is to be forgotten and `read` has them.
    async fn scan(&self, _session_id: SessionId, _after: Seq, _see: LineSink) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// A session that is unsettled has nothing to be settled up to `last_seq`, and rests unless it has been used since.
    async fn rests(&self, _session_id: SessionId, _last_seq: Seq) {}

    /// What the next append takes from the end of a journal, because a process ended while it wrote it. It is there
    /// until that append is durable, which should report it; `None` where nothing is to be taken.
    fn tail_repair(&self, _session_id: SessionId) -> Option<TailRepair> {
        None
    }

    /// What tells this store from every other, for files beside it that several stores might write; it may block.
    fn id(&self) -> Option<String> {
        None
    }

    /// Whether new work may begin. Turns that run go on where it may not.
    ///
    /// # Errors
    /// `Full` while the disk has no more room than what is kept back for turns that run; `ReadOnly`.
    async fn room(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Stored sessions after `after`, in the order of their ids, at most `limit`.
    async fn sessions(&self, after: Option<SessionId>, limit: usize) -> Result<Vec<SessionId>, StoreError>;
}

/// Takes lines, in order.
pub type LineSink = Box<dyn FnMut(&Bytes) + Send>;

/// What an event store that can drop records of a journal offers besides.
#[async_trait]
pub trait JournalPruner: Send + Sync {
    /// The seqs of a journal in ranges, in order. After a crash each is as it was before a prune or as it is after it;
    /// among them some may be the one and some the other. The last one is still written to, and may be empty.
    async fn parts(&self, session_id: SessionId) -> Result<Vec<(Seq, Seq)>, StoreError>;

    /// Drops the records up to `up_to` that are not in `keep` and were recorded before `older_than`; answers how many.
    /// No seq is shifted. Whoever reads or appends meanwhile goes on.
    async fn prune(
        &self,
        session_id: SessionId,
        up_to: Seq,
        keep: &BTreeSet<Seq>,
        older_than: Timestamp,
    ) -> Result<u64, StoreError>;

    /// The names of a session's blobs.
    async fn blobs(&self, session_id: SessionId) -> Result<BTreeSet<String>, StoreError>;

    /// Takes blobs of a session away that none of its records names, and none that is being made will. One that another
    /// session has, too, stays there.
    async fn drop_blobs(&self, session_id: SessionId, names: &BTreeSet<String>) -> Result<(), StoreError>;
}

/// The stores of one data directory.
#[derive(Clone)]
pub struct Stores {
    /// Its journals: the truth.
    pub events: Arc<dyn EventStore>,
    /// Its blobs.
    pub blobs: Arc<dyn BlobStore>,
    /// Its snapshots.
    pub snapshots: Arc<dyn SessionStore>,
    /// Its index.
    pub index: Arc<dyn SessionIndex>,
    /// What drops records of its journals, where it can.
    pub pruner: Option<Arc<dyn JournalPruner>>,
    /// Its readers.
    pub readers: Arc<dyn ReaderStore>,
}

/// Snapshots: each the fold of a journal up to some seq, derived and never read past the journal.
#[async_trait]
pub trait SessionStore: Send + Sync {
    /// Saves a snapshot.
    ///
    /// # Errors
    /// [`SessionStoreError::MonotonicityViolation`] where it counts fewer messages than the one before.
    async fn save(&self, session: &Session) -> Result<(), SessionStoreError>;

    /// Loads a snapshot.
    async fn load(&self, id: &SessionId) -> Result<Option<Session>, SessionStoreError>;

    /// Lists snapshots.
    async fn list(&self, filter: SessionFilter) -> Result<Vec<SessionMeta>, SessionStoreError>;

    /// Deletes a snapshot.
    async fn delete(&self, id: &SessionId) -> Result<(), SessionStoreError>;

    /// Loads a snapshot without what was said, and without reading the journal: the session's small fields as they were.
    /// `None` where more is needed to say what it is.
    async fn outline(&self, _id: &SessionId) -> Result<Option<Session>, SessionStoreError> {
        Ok(None)
    }

    /// Whether there is a snapshot.
    async fn exists(&self, id: &SessionId) -> Result<bool, SessionStoreError> {
        Ok(self.load(id).await?.is_some())
    }
}

/// Which snapshots to list.
#[derive(Clone, Debug, Default)]
pub struct SessionFilter {
    /// Made after this time.
    pub created_after: Option<Timestamp>,
    /// Changed after this time.
    pub updated_after: Option<Timestamp>,
    /// How many at most.
    pub limit: Option<usize>,
    /// How many to pass over first.
    pub offset: Option<usize>,
}

/// What a list says of a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionMeta {
    /// The session.
    pub id: SessionId,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// Messages that were ever said.
    pub message_count: u64,
    /// The seq that it covers.
    pub last_seq: Seq,
    /// The labels.
    pub labels: BTreeMap<String, String>,
}

/// Why a snapshot was not saved or loaded. The texts are the specification's.
#[derive(Debug, thiserror::Error)]
pub enum SessionStoreError {
    /// The disk failed.
    #[error("IO error: {0}")]
    Io(#[from] std::io::Error),
    /// The snapshot's bytes are not one.
    #[error("Serialization error: {0}")]
    Serialization(String),
    /// There is none.
    #[error("Session not found: {0}")]
    NotFound(SessionId),
    /// There is one, and it cannot be trusted.
    #[error("Session corrupted: {0}")]
    Corrupted(SessionId),
    /// It would shrink what was said.
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
    /// A fault of the store's own.
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

/// Lists, idempotency keys and checkpoints: copies of what the journals say, for speed alone.
#[async_trait]
pub trait SessionIndex: Send + Sync {
    /// Takes in what a list says of a session that has changed: it comes first.
    async fn put(&self, summary: SessionSummary) -> Result<(), StoreError>;

    /// Takes in what a list says of a session as it was found. Where it is listed already as it is, it keeps its place;
    /// where places were lost, it comes behind all that change from then on.
    async fn put_found(&self, summary: SessionSummary) -> Result<(), StoreError>;

    /// Drops a session.
    async fn remove(&self, session_id: SessionId) -> Result<(), StoreError>;

    /// A page of sessions, what changed last first.
    async fn page(&self, query: SessionQuery) -> Result<Page<SessionSummary>, StoreError>;

    /// Sessions before `before` in the order of their ids, the newest first: all of them, whatever changes meanwhile.
    async fn sessions(&self, before: Option<SessionId>, limit: usize) -> Result<Vec<SessionSummary>, StoreError>;

    /// Keeps the turn, or the session itself, that a key stands for, unless the key has a newer one.
    async fn put_key(&self, key: &IndexedKey) -> Result<(), StoreError>;

    /// The key, if it is kept.
    async fn key(&self, session_id: Option<SessionId>, key: &str) -> Result<Option<IndexedKey>, StoreError>;

    /// Keeps how far a reader has come in a session.
    async fn put_checkpoint(&self, reader: &str, session_id: SessionId, seq: Seq) -> Result<(), StoreError>;

    /// How far a reader has come in a session.
    async fn checkpoint(&self, reader: &str, session_id: SessionId) -> Result<Seq, StoreError>;

    /// The same of many sessions, in their order.
    async fn checkpoints(&self, reader: &str, session_ids: &[SessionId]) -> Result<Vec<Seq>, StoreError> {
        let mut seqs = Vec::with_capacity(session_ids.len());
        for session_id in session_ids {
            seqs.push(self.checkpoint(reader, *session_id).await?);
        }
        Ok(seqs)
    }

    /// Drops how far a reader has come in every session.
    async fn forget_reader(&self, reader: &str) -> Result<(), StoreError>;

    /// The loss since which every stored session must be put into it again; each has another number.
    async fn needs_rebuild(&self) -> Option<u64>;

    /// Every stored session was put since this loss.
    ///
    /// # Errors
    /// Where that could not be made durable, or it was lost once more.
    async fn rebuilt(&self, loss: u64) -> Result<(), StoreError>;

    /// Waits until what it was told before is durable, without asking for that.
    async fn committed(&self) -> Result<(), StoreError>;

    /// Makes durable what it was told.
    async fn flush(&self) -> Result<(), StoreError>;
}

/// An idempotency key in the index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexedKey {
    /// The session that it is scoped to; the whole store where `None`.
    pub scope: Option<SessionId>,
    /// The key and its request's hash.
    pub key: crate::session::event::Key,
    /// The session that answers.
    pub session_id: SessionId,
    /// The turn that answers; the session's creation where `None`.
    pub turn: Option<TurnNumber>,
    /// When it was used.
    pub time: Timestamp,
}

impl IndexedKey {
    /// Whether it takes the place of what is kept: whoever used the key last has it, in whatever order they are put.
    pub(crate) fn replaces(&self, kept: Option<&Self>) -> bool {
        kept.is_none_or(|kept| (kept.time, kept.session_id) <= (self.time, self.session_id))
    }
}

/// Says where a session lives.
#[async_trait]
pub trait Router: Send + Sync {
    /// The service that holds the session's lease: this one, or another to hand the request to.
    async fn route(&self, session_id: SessionId) -> Result<Arc<dyn SessionService>, SessionError>;
}
