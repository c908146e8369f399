//! What stores hand to each other: leases, frames, pages of them, blobs, readers' marks, and how a store fails.
//!
//! Bytes and numbers alone: nothing here knows what an event means, and nothing touches a disk.

mod readers;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::oneshot;

pub use readers::{ReaderMark, ReaderMarks, Registration};

use crate::ids::{Seq, SessionId};

/// Reason that a store refused or failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The session was leased again since, or the batch does not follow the tail.
    #[error("the lease is no longer valid")]
    Fenced,
    /// There is no such session.
    #[error("there is no session {0}")]
    NotFound(SessionId),
    /// No space is left; nothing of the batch was written.
    #[error("the store is full")]
    Full,
    /// The journal is damaged: it can be read up to a record, but no longer written.
    #[error("the journal of session {session_id} is damaged after seq {last_good_seq}: {why}")]
    Corrupted {
        /// The session.
        session_id: SessionId,
        /// The last record that can be trusted.
        last_good_seq: Seq,
        /// Damage found, for the log.
        why: String,
    },
    /// The journal holds records that only a newer version understands: it can be read, but not written.
    #[error("the journal of session {0} was written by a newer version")]
    FormatNewer(SessionId),
    /// The store refuses writes since one could not be confirmed.
    #[error("the store is read-only: {0}")]
    ReadOnly(String),
    /// The store failed; the write may or may not have happened.
    #[error("the store failed: {0}")]
    Failed(String),
}

/// The right to append to one session, until another takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The session.
    pub session_id: SessionId,
    /// Grows with each lease; a store refuses a lower one.
    pub epoch: u64,
    /// The last seq; 0 where the session does not exist yet.
    pub tail: Seq,
}

/// A batch at the end of a journal that was not written to its end, and is taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TailRepair {
    /// How many bytes.
    pub bytes: u64,
    /// Where their copy stands in the data directory.
    pub quarantine: String,
}

/// A staged batch, which becomes durable or fails as a whole.
#[derive(Debug)]
pub struct Ticket(oneshot::Receiver<Result<Seq, StoreError>>);

impl Ticket {
    /// A ticket and the way to fulfil it.
    #[must_use]
    pub fn new() -> (oneshot::Sender<Result<Seq, StoreError>>, Self) {
        let (sender, receiver) = oneshot::channel();
        (sender, Self(receiver))
    }

    /// Waits until the batch is durable; answers with its last seq.
    ///
    /// # Errors
    /// The store's failure.
    pub async fn durable(self) -> Result<Seq, StoreError> {
        self.0.await.unwrap_or_else(|_| Err(StoreError::Failed("the store ended".to_owned())))
    }
}

/// An encoded event: the very bytes that every surface sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its seq.
    pub seq: Seq,
    /// Its line of JSON, without the line's end.
    pub line: Bytes,
}

/// What a frame was read from: a part of a journal, as journal compaction has left it so many times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The part.
    pub part: u64,
    /// The generation of it.
    pub generation: u64,
}

/// Some frames of a session.
#[derive(Clone, Debug, Default)]
pub struct FramePage {
    /// The frames, in order, all of them durable. Where a seq skips, those between are gone.
    pub frames: Vec<Frame>,
    /// What was looked at for the first one, though it may have given none, and what the last one was read from. A store
    /// that never compacts says nothing of it.
    pub origins: (Origin, Origin),
}

impl FramePage {
    /// Whether it begins in another generation of the part in which the page before ended: the two together are
    /// neither what was there nor what is.
    #[must_use]
    pub const fn is_torn_from(&self, before: &Self) -> bool {
        let (ended, begins) = (before.origins.1, self.origins.0);
        ended.part == begins.part && ended.generation != begins.generation
    }
}

/// Bytes of lines that are read at once where nobody says how many.
const READ_BYTES_MAX: usize = 4 * 1024 * 1024;

/// How much is read at once. The first frame is read however long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLimit {
    /// Frames at most.
    pub frames: usize,
    /// Bytes of their lines at most.
    pub bytes: usize,
}

impl ReadLimit {
    /// So many frames, in no more bytes than are read at once.
    #[must_use]
    pub const fn frames(frames: usize) -> Self {
        Self { frames, bytes: READ_BYTES_MAX }
    }

    /// Whether a frame is read, too; what it takes is counted.
    pub fn takes(&mut self, line: &Bytes, is_first: bool) -> bool {
        if self.frames == 0 || (!is_first && line.len() > self.bytes) {
            return false;
        }
        (self.frames, self.bytes) = (self.frames - 1, self.bytes.saturating_sub(line.len()));
        true
    }
}

/// Bytes that the line of one record may have.
pub const RECORD_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Bodies that are too large for an event.
#[async_trait]
pub trait BlobStore: Send + Sync {
    /// Begins a blob of a session.
    fn writer(&self, session_id: SessionId) -> Box<dyn BlobWriter>;

    /// Reads at most `limit` bytes from `offset`; `None` where there is no such blob.
    async fn read(
        &self,
        session_id: SessionId,
        blob: &str,
        offset: u64,
        limit: usize,
    ) -> Result<Option<Bytes>, StoreError>;

    /// Drops a session's blobs, where its deletion does not, and those of one that never came to be.
    async fn forget(&self, session_id: SessionId);
}

/// A blob that is being written.
#[async_trait]
pub trait BlobWriter: Send {
    /// Appends.
    async fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError>;

    /// Ends it and names it: its hash and its length.
    async fn finish(self: Box<Self>) -> Result<(String, u64), StoreError>;
}

/// Hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
