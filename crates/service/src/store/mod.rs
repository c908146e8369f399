//! Interfaces to storage: events, blobs, snapshots, the index, and the location of sessions.
//!
//! They assume neither one process, one machine nor a file, and no backend's type appears here.

#[cfg(not(any(feature = "session-store", feature = "memory-store")))]
pub(crate) mod absent;
#[cfg(any(feature = "session-store", feature = "memory-store"))]
pub(crate) mod directory;
mod inbox;
pub mod load;
mod memory;
mod readers;
pub(crate) mod restore;

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, io::ErrorKind, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

#[cfg(not(any(feature = "session-store", feature = "memory-store")))]
pub(crate) use absent as directory;

pub(crate) use directory::step_back;
pub use directory::{DirectoryOwner, glance, open_stores, own_directory};
#[cfg(any(feature = "session-store", feature = "memory-store"))]
pub use directory::{IndexFile, RedbEventStore, RedbIndex, RedbSessionStore};
pub use inbox::{Fate, Inbox, Letter, TAKEN_WITHIN};
pub(crate) use meerkat_words::list;
pub(crate) use meerkat_words::store::hex;
pub use meerkat_words::store::{
    BlobStore, BlobWriter, Frame, FramePage, Holder, Lease, RECORD_BYTES_MAX, ReadLimit, Registration, StoreError,
    TailRepair, Ticket,
};
pub use meerkat_words::store::{UPLOADS_BYTES_MAX, UPLOADS_MAX, check_uploads};
use meerkat_words::{
    answers::{Page, SessionState, SessionSummary},
    requests::{ForgetMemory, SessionQuery},
};
pub use memory::{MemoryBlobStore, MemoryEventStore, MemoryIndex, MemorySessionStore, MemoryUse};
pub(crate) use readers::BUILT_IN_READERS;
pub use readers::{MemoryReaders, ReaderStore};

pub use crate::session::{KEY_KEPT_MS, SessionMeta};

use crate::{
    ErrorBody, ErrorCode, SessionError,
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

/// Answer to the creation of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Creation {
    /// The session was created, and its first records are durable.
    Made(Lease),
    /// Another session was created with the key before; nothing was written.
    Exists(IndexedKey),
}

/// Append-only log of each session's records: the only source of truth.
///
/// A store may serve several nodes: processes that share its sessions, each through a handle of its own. Such a store
/// leases a session to one node at a time and renews its leases itself, by its own clock: a lease whose renewal cannot
/// be confirmed in time is lost, and fences what is staged with it. Epochs are durable there. A store that only one
/// process can open always grants its leases.
#[async_trait]
pub trait EventStore: Send + Sync {
    /// Takes the right to append. A session that does not exist yet has the tail 0, and is created by the first batch.
    /// A lease that this handle or an earlier process of this node has is replaced; that of another node only if it has
    /// expired, or if the session has nothing to do.
    ///
    /// # Errors
    /// `HeldBy` if another node has it; `Corrupted` and `FormatNewer` if it can only be read.
    async fn lease(&self, session_id: SessionId) -> Result<Lease, StoreError>;

    /// Returns the lease: nothing more will be appended for now, and everything staged is durable.
    async fn release(&self, lease: Lease) -> Result<(), StoreError>;

    /// Returns the lease of a session that is not settled, or could not be opened: the next start loads it, or another
    /// node once this one has ended.
    async fn give_up(&self, _lease: Lease) {}

    /// Encodes the records and queues them for writing. The first seq must follow the tail. It neither waits nor can be
    /// cancelled half-way.
    ///
    /// # Errors
    /// `Fenced` if the lease is not valid any more, `OutOfOrder` if the batch does not follow the tail. A ticket may also
    /// end with `Fenced`; then nothing of the batch was written.
    fn stage(&self, lease: &Lease, batch: &[Record]) -> Result<Ticket, StoreError>;

    /// Like [`Self::stage`], with the session's row in lists behind the batch. A store that keeps its lists in the same
    /// database writes both at once, so that [`SessionIndex::put`] of that row costs nothing more.
    ///
    /// # Errors
    /// Those of [`Self::stage`].
    fn stage_listed(&self, lease: &Lease, batch: &[Record], row: &SessionSummary) -> Result<Ticket, StoreError> {
        let _ = row;
        self.stage(lease, batch)
    }

    /// Creates a session from its first records, unless another one was created with the key and still exists. How long
    /// a key is kept, at least [`KEY_KEPT_MS`], is the store's affair; no single reading of a clock makes it old. A store
    /// of several nodes decides that together with the write. In a store of one process, this default is enough: its
    /// engine creates one session per key at a time, and looks the key up in the index before.
    ///
    /// # Errors
    /// Those of [`Self::lease`] and [`Self::stage`]; then nothing was created, unless it is `Failed`.
    async fn create(
        &self,
        first: &[Record],
        row: &SessionSummary,
        key: Option<&IndexedKey>,
    ) -> Result<Creation, StoreError> {
        let _ = key;
        let lease = self.lease(row.session_id).await?;
        let made = match self.stage_listed(&lease, first, row) {
            Ok(ticket) => ticket.durable().await,
            Err(error) => Err(error),
        };
        match made {
            Ok(_) => Ok(Creation::Made(lease)),
            Err(error) => {
                self.give_up(lease).await;
                Err(error)
            }
        }
    }

    /// Reads durable frames after `after`, up to `limit`; `None` if there is no such session. A page ends before damage
    /// unless the limit skips it, and an empty page is the end.
    ///
    /// # Errors
    /// `Corrupted` if the next frame is damaged or missing, unless the limit skips damage.
    async fn read(&self, session_id: SessionId, after: Seq, limit: ReadLimit) -> Result<Option<FramePage>, StoreError>;

    /// Returns the durable frame with this seq, if it is in memory. Followers get the newest frames this way without an
    /// allocation each; otherwise they use `read`.
    fn at_hand(&self, _session_id: SessionId, _seq: Seq) -> Option<Frame> {
        None
    }

    /// Returns the damage behind the last readable record of a session, if some is known: others may have followed.
    fn lost_end(&self, _session_id: SessionId) -> Option<StoreError> {
        None
    }

    /// Returns the last readable seq, if there is such a session.
    async fn tail(&self, session_id: SessionId) -> Result<Option<Seq>, StoreError> {
        Ok(self.watch(session_id).await?.map(|tail| *tail.borrow()))
    }

    /// Follows the last readable seq, whichever node appends; ends when the session is deleted. `None` if there is no
    /// such session.
    async fn watch(&self, session_id: SessionId) -> Result<Option<watch::Receiver<Seq>>, StoreError>;

    /// Creates a session from the records of `parent` up to `at`, unchanged, its blobs, and `first`, which continue
    /// under the new session's id. Afterwards either all of it is stored, or nothing.
    async fn fork(&self, parent: SessionId, at: Seq, first: &[Record]) -> Result<(), StoreError>;

    /// Like [`Self::fork`], if no record of the parent was dropped since it had this [`FramePage::version`]. In a store
    /// of one process, this default is enough: its engine drops none meanwhile.
    ///
    /// # Errors
    /// Those of [`Self::fork`]; `Fenced` if records were dropped.
    async fn fork_unpruned(
        &self,
        parent: SessionId,
        version: u64,
        at: Seq,
        first: &[Record],
    ) -> Result<(), StoreError> {
        let _ = version;
        self.fork(parent, at, first).await
    }

    /// Creates a session from imported records: their lines are stored unchanged, with the blobs that were written for
    /// it before. Afterwards either all of it is stored, or nothing.
    ///
    /// # Errors
    /// `OutOfOrder` if the seqs do not rise: the first ones may be lost; `Failed` if the session already exists.
    async fn import(&self, session_id: SessionId, records: &mut dyn RecordSource) -> Result<(), StoreError>;

    /// Returns the approximate bytes of a session in this store; 0 if there is no such session.
    async fn bytes(&self, session_id: SessionId) -> Result<u64, StoreError>;

    /// Returns its bytes without blobs, at less cost: they show if records were added or dropped.
    async fn journal_bytes(&self, session_id: SessionId) -> Result<u64, StoreError> {
        self.bytes(session_id).await
    }

    /// Deletes a session with its blobs for good; a lease on it is fenced.
    async fn delete(&self, session_id: SessionId) -> Result<(), StoreError>;

    /// Returns the name of this handle's node; `None` in a store that only one process can open.
    fn node(&self) -> Option<&str> {
        None
    }

    /// Ends the leases of this handle: its process ends in order, and other nodes need not wait until they expire. From
    /// then on this handle only reads.
    async fn end_leases(&self) {}

    /// Returns the other node that has a session, if there is one: [`Self::lease`] would name it.
    async fn holder(&self, _session_id: SessionId) -> Result<Option<Holder>, StoreError> {
        Ok(None)
    }

    /// Returns true if the lease that this handle has of a session is still its own: no other node has taken it since.
    /// Only an idle session moves away from a node that lives, so that a store need not look at one that works.
    async fn holds(&self, _session_id: SessionId) -> Result<bool, StoreError> {
        Ok(true)
    }

    /// Lists the sessions with something to do whose node has ended: its lease has expired. It is asked about once a
    /// second.
    async fn orphaned(&self) -> Result<Vec<SessionId>, StoreError> {
        Ok(Vec::new())
    }

    /// Lists the sessions that may have changed since their last release, because their owner crashed or gave them up:
    /// those of earlier processes of this node, and the orphaned ones. It is asked once, at the start.
    async fn unsettled(&self) -> Result<Vec<SessionId>, StoreError>;

    /// Returns true if it was not known at the start which sessions had changed, nor which had been deleted, so that all
    /// count as unsettled.
    fn are_marks_lost(&self) -> bool {
        false
    }

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

    /// Records what memory is to forget at every node, before any of them forgets it. What is recorded already changes
    /// nothing. A store of one process needs nothing here: its memory keeps a log.
    async fn record_forgotten(&self, _decided: &[ForgetMemory]) -> Result<(), StoreError> {
        Ok(())
    }

    /// Lists what was recorded for memory to forget after a place, in order, each with its place: some of it, and
    /// nothing at the end. Nothing is ever recorded before a place that was listed.
    async fn forgotten(&self, _after: u64) -> Result<Vec<(u64, ForgetMemory)>, StoreError> {
        Ok(Vec::new())
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
    /// number. No seq changes, and [`FramePage::version`] grows. Others may read and append meanwhile.
    ///
    /// Whatever `up_to` says, nothing is dropped after the least seq that a registered reader is known to be done with:
    /// the store reads the registrations and what they are done with in the transaction that drops, so that a reader
    /// that was registered through another handle holds the records.
    async fn prune(
        &self,
        session_id: SessionId,
        up_to: Seq,
        keep: &BTreeSet<Seq>,
        older_than: Timestamp,
    ) -> Result<u64, StoreError>;
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
    /// Its way between the nodes that share it, if several may.
    pub inbox: Option<Arc<dyn Inbox>>,
}

/// Snapshots: each the fold of a journal up to some seq, derived from it and never ahead of it. They are for speed: a
/// session with a snapshot is loaded without reading its whole journal.
#[async_trait]
pub trait SessionStore: Send + Sync {
    /// Saves a snapshot in place of the one before. Call [`append_only_save_guard`] first. In a directory and in a
    /// database, that and the write are two steps: of two callers at the same time, both may pass the guard.
    ///
    /// # Errors
    /// [`SessionStoreError::MonotonicityViolation`] if it counts fewer messages than the one before.
    async fn save(&self, session: &Session) -> Result<(), SessionStoreError>;

    /// Loads a snapshot; `None` if there is none, or no journal of its session.
    async fn load(&self, id: &SessionId) -> Result<Option<Session>, SessionStoreError>;

    /// Lists snapshots: each session's id, times, labels and counts as they were when it was saved. The engine does not
    /// call it, because not every session has a snapshot, and lists of sessions come from the [`SessionIndex`]. It is for
    /// programs that want to see what a store holds.
    async fn list(&self, filter: SessionFilter) -> Result<Vec<SessionMeta>, SessionStoreError>;

    /// Deletes a snapshot; if there is none, that is a success too. The session stays: its journal is deleted with [`EventStore::delete`]. The
    /// engine calls it after that; what is deleted does not guard against a later save.
    async fn delete(&self, id: &SessionId) -> Result<(), SessionStoreError>;

    /// Loads a snapshot's small fields without the messages and without reading the journal. `None` if they are not
    /// enough.
    async fn outline(&self, _id: &SessionId) -> Result<Option<Session>, SessionStoreError> {
        Ok(None)
    }

    /// Returns true if there is a snapshot, whether or not it can be loaded. The engine asks where an outline is `None`,
    /// so override it if you can answer without reading the snapshot.
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
    /// There is no such snapshot. No store of meerkat says so, and no store may answer [`SessionStore::delete`] with it:
    /// what is not there is deleted. [`SessionStore::load`] answers with `None`.
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

impl From<SessionStoreError> for SessionError {
    /// Converts the failure for callers of a surface: a program that saves or loads sessions of its own.
    fn from(error: SessionStoreError) -> Self {
        match error {
            SessionStoreError::NotFound(_) => Self::ItemNotFound("snapshot"),
            SessionStoreError::Corrupted(id) => Self::Corrupted { session_id: id, last_good_seq: None },
            SessionStoreError::Io(error) if error.kind() == ErrorKind::StorageFull => Self::StoreFull,
            SessionStoreError::MonotonicityViolation { id, prev_len, new_len } => {
                let body = ErrorBody::with_message(ErrorCode::SessionMonotonicityViolation, error.to_string());
                let body = body.detail("session_id", id.to_string());
                Self::Failed(Box::new(body.detail("prev_len", prev_len).detail("new_len", new_len)))
            }
            // What is no snapshot now will be none later.
            SessionStoreError::Serialization(_) => {
                tracing::error!(%error, "a snapshot could not be decoded");
                Self::Internal(error.to_string())
            }
            SessionStoreError::Io(_) | SessionStoreError::Internal(_) => {
                tracing::error!(%error, "the store of snapshots failed");
                Self::StoreFailed
            }
        }
    }
}

/// Refuses a snapshot that counts fewer messages than the one before. Every store calls it first in
/// [`SessionStore::save`]. What counts is all that was ever said: a compaction makes the context shorter, and no session.
///
/// # Errors
/// [`SessionStoreError::MonotonicityViolation`].
pub fn append_only_save_guard(incoming: &Session, previous: Option<&Session>) -> Result<(), SessionStoreError> {
    let (id, new_len) = (incoming.id, incoming.message_count);
    match previous.map(|previous| previous.message_count) {
        Some(prev_len) if new_len < prev_len => Err(SessionStoreError::MonotonicityViolation { id, prev_len, new_len }),
        _ => Ok(()),
    }
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

    /// Lists what has changed in lists since a place that this returned before, whichever node changed it, the oldest
    /// change first: each with its place, and the session's row unless it was deleted. A change may come again. `None`
    /// asks for the last change alone. A store of one process lists nothing: its engine knows every change.
    async fn changes(&self, _since: Option<u64>) -> Result<Vec<ListedChange>, StoreError> {
        Ok(Vec::new())
    }

    /// Returns a page of sessions, most recently changed first.
    async fn page(&self, query: SessionQuery) -> Result<Page<SessionSummary>, StoreError>;

    /// Lists sessions before `before` by id, newest first: all of them, whatever changes meanwhile.
    async fn sessions(&self, before: Option<SessionId>, limit: usize) -> Result<Vec<SessionSummary>, StoreError>;

    /// Lists sessions that are not idle, before `before` by id, newest first. A store with many sessions reads no other
    /// rows for it.
    async fn busy(&self, mut before: Option<SessionId>, limit: usize) -> Result<Vec<SessionSummary>, StoreError> {
        let mut busy = Vec::new();
        while busy.len() < limit {
            let read = self.sessions(before, limit - busy.len()).await?;
            let Some(last) = read.last() else { break };
            before = Some(last.session_id);
            busy.extend(read.into_iter().filter(|session| session.state != SessionState::Idle));
        }
        Ok(busy)
    }

    /// Stores the turn, or the session, that a key leads to, unless the key has a newer one.
    async fn put_key(&self, key: &IndexedKey) -> Result<(), StoreError>;

    /// Finds a key.
    async fn key(&self, session_id: Option<SessionId>, key: &str) -> Result<Option<IndexedKey>, StoreError>;

    /// Moves a reader's checkpoint in a session to `seq`, unless it is there or further; returns where it is now.
    async fn put_checkpoint(&self, reader: &str, session_id: SessionId, seq: Seq) -> Result<Seq, StoreError>;

    /// Sets a reader's checkpoint in a session to 0: it begins there again.
    async fn reset_checkpoint(&self, reader: &str, session_id: SessionId) -> Result<(), StoreError>;

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

/// Change of a session in lists.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedChange {
    /// Place among all changes.
    pub place: u64,
    /// The session.
    pub session_id: SessionId,
    /// Its row; `None` if it was deleted.
    pub summary: Option<SessionSummary>,
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
    /// Makes the entry of the key that a session was created with.
    pub(crate) fn of(session: &Session) -> Option<Self> {
        let (key, time) = (session.created_key.as_ref()?.clone(), session.created_at);
        Some(Self { scope: None, key, session_id: session.id, turn: None, time })
    }

    /// Returns true if it replaces the stored one: the latest use wins, in whatever order they are put.
    pub(crate) fn replaces(&self, kept: Option<&Self>) -> bool {
        kept.is_none_or(|kept| (kept.time, kept.session_id) <= (self.time, self.session_id))
    }
}
