//! Types of the stores: leases, frames and pages of them, blobs, readers' marks, errors.
//!
//! Only bytes and numbers: nothing here knows an event's meaning, and nothing touches a disk.

mod readers;

use async_trait::async_trait;
use bytes::Bytes;
use std::collections::BTreeSet;
use tokio::sync::oneshot;

pub use readers::Registration;

use crate::{
    clock::Timestamp,
    ids::{Seq, SessionId},
};

/// Reason that a store refused or failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The lease is no longer valid: the session was leased again since, or the lease could not be renewed in time.
    /// Another owner may append by now, so the session is left to it.
    #[error("the lease is no longer valid")]
    Fenced,
    /// The seqs of the batch do not follow the last record.
    #[error("the batch does not follow the last record")]
    OutOfOrder,
    /// Another node holds the session's lease.
    #[error("the node {} holds session {session_id}", .holder.node)]
    HeldBy {
        /// The session.
        session_id: SessionId,
        /// The node.
        holder: Holder,
    },
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
    /// The session would have too many uploads that no prompt has used.
    #[error("the session has {held} {what}, and with this one more than {limit}")]
    UploadsFull {
        /// `unused uploads` or `bytes of unused uploads`.
        what: &'static str,
        /// Those of the other uploads.
        held: u64,
        /// Their limit.
        limit: u64,
    },
    /// The store refuses writes since one could not be confirmed.
    #[error("the store is read-only: {0}")]
    ReadOnly(String),
    /// The store failed; the write may or may not have happened.
    #[error("the store failed: {0}")]
    Failed(String),
}

/// Right to append to one session, until another lease is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The session.
    pub session_id: SessionId,
    /// Number that grows with each lease; a store refuses a lower one.
    pub epoch: u64,
    /// The last seq; 0 if the session does not exist yet.
    pub tail: Seq,
}

/// Node that holds the lease of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its name.
    pub node: String,
    /// End of its lease by the store's clock, unless it renews it.
    pub until: Timestamp,
}

/// Incomplete batch at the end of a journal, which is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TailRepair {
    /// Its bytes.
    pub bytes: u64,
    /// Path of their copy in the data directory.
    pub quarantine: String,
}

/// Staged batch, which becomes durable or fails as a whole.
#[derive(Debug)]
pub struct Ticket(oneshot::Receiver<Result<Seq, StoreError>>);

impl Ticket {
    /// Makes a ticket, and the sender that completes it.
    #[must_use]
    pub fn new() -> (oneshot::Sender<Result<Seq, StoreError>>, Self) {
        let (sender, receiver) = oneshot::channel();
        (sender, Self(receiver))
    }

    /// Returns the batch's last seq if it is durable by now.
    pub fn reached(&mut self) -> Option<Seq> {
        self.0.try_recv().ok()?.ok()
    }

    /// Waits until the batch is durable; returns its last seq.
    ///
    /// # Errors
    /// Returns the store's failure.
    pub async fn durable(self) -> Result<Seq, StoreError> {
        self.0.await.unwrap_or_else(|_| Err(StoreError::Failed("the store ended".to_owned())))
    }
}

/// Encoded event: the bytes that every surface sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its seq.
    pub seq: Seq,
    /// Its line of JSON, without the line's end.
    pub line: Bytes,
}

/// Page of a session's frames.
#[derive(Clone, Debug, Default)]
pub struct FramePage {
    /// Frames, in order, all durable. If seqs are skipped, those between were pruned, or are in `lost`.
    pub frames: Vec<Frame>,
    /// Damaged ranges that were passed over, in order: the first and the last seq of each. Some of them may have been
    /// pruned before.
    pub lost: Vec<(Seq, Seq)>,
    /// Number that grows whenever records of the journal are dropped. A caller that reads several pages compares it, and
    /// begins again if it has changed: the pages do not fit together.
    pub version: u64,
}

/// Bytes of lines to read at once by default.
const READ_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Limit of a read. The first frame is read whatever its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLimit {
    /// Most frames.
    pub frames: usize,
    /// Most bytes of their lines.
    pub bytes: usize,
    /// True to go on behind damage with the next good frame. Otherwise a read ends before damage, and one that begins
    /// there fails.
    pub skips_damage: bool,
}

impl ReadLimit {
    /// Limits the number of frames, and the bytes to the default.
    #[must_use]
    pub const fn frames(frames: usize) -> Self {
        Self { frames, bytes: READ_BYTES_MAX, skips_damage: false }
    }

    /// Sets if the read goes on behind damage.
    #[must_use]
    pub const fn skipping_damage(self, skips_damage: bool) -> Self {
        Self { skips_damage, ..self }
    }

    /// Returns true if a frame fits, and counts it.
    pub fn takes(&mut self, line: &Bytes, is_first: bool) -> bool {
        if self.frames == 0 || (!is_first && line.len() > self.bytes) {
            return false;
        }
        (self.frames, self.bytes) = (self.frames - 1, self.bytes.saturating_sub(line.len()));
        true
    }
}

/// Most blobs of a session that were uploaded and that no prompt has used yet, and most bytes of them all.
pub const UPLOADS_MAX: usize = 64;
/// See [`UPLOADS_MAX`].
pub const UPLOADS_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Most bytes of a record's line.
pub const RECORD_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Store of bodies that are too large for an event.
#[async_trait]
pub trait BlobStore: Send + Sync {
    /// Begins a blob of a session.
    fn writer(&self, session_id: SessionId) -> Box<dyn BlobWriter>;

    /// Reads at most `limit` bytes from `offset`; `None` if there is no such blob.
    async fn read(
        &self,
        session_id: SessionId,
        blob: &str,
        offset: u64,
        limit: usize,
    ) -> Result<Option<Bytes>, StoreError>;

    /// Lists the names of a session's blobs.
    async fn list(&self, session_id: SessionId) -> Result<BTreeSet<String>, StoreError>;

    /// Deletes blobs of a session that no record names, not even one being written. Another session's blob of the same
    /// name remains.
    async fn remove(&self, session_id: SessionId, names: &BTreeSet<String>) -> Result<(), StoreError>;

    /// Deletes the blobs of a session whose deletion does not, or whose creation failed.
    async fn forget(&self, session_id: SessionId);

    /// Like [`Self::read`], but reads an upload that is no older than a time. [`Self::read`] and [`Self::list`] find no
    /// upload. One that is kept meanwhile is found by neither: read the blob once more.
    async fn read_upload(
        &self,
        _session_id: SessionId,
        _blob: &str,
        _since: Timestamp,
        _offset: u64,
        _limit: usize,
    ) -> Result<Option<Bytes>, StoreError> {
        Ok(None)
    }

    /// Makes an upload that is no older than a time a blob like any other, durably, before a record names it. Returns
    /// false if the session has neither such an upload nor a blob of this name.
    async fn keep(&self, session_id: SessionId, blob: &str, _since: Timestamp) -> Result<bool, StoreError> {
        Ok(self.read(session_id, blob, 0, 1).await?.is_some())
    }

    /// Returns the lengths of a session's uploads.
    async fn uploads(&self, _session_id: SessionId) -> Result<Vec<u64>, StoreError> {
        Ok(Vec::new())
    }

    /// Deletes a session's uploads from before a time.
    async fn expire(&self, _session_id: SessionId, _before: Timestamp) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Blob that is being written.
#[async_trait]
pub trait BlobWriter: Send {
    /// Leaves the room that is kept for running turns on a full disk alone. A store without such room has nothing to do.
    fn waits_for_room(&mut self) {}

    /// Appends.
    async fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError>;

    /// Ends the blob; returns its hash and its length.
    async fn finish(self: Box<Self>) -> Result<(String, u64), StoreError>;

    /// Ends the blob as an upload of this time: it belongs to the session alone, not to its forks, until it is kept. One
    /// of the same bytes is replaced. Returns its hash and its length.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] if the store knows no such session, [`StoreError::UploadsFull`] if it has too many others.
    async fn upload(self: Box<Self>, _time: Timestamp) -> Result<(String, u64), StoreError> {
        Err(StoreError::Failed("this store takes no uploads".to_owned()))
    }
}

/// Checks that an upload fits beside the others of its session: their number and their bytes.
///
/// # Errors
/// [`StoreError::UploadsFull`] if it does not.
pub fn check_uploads(others: usize, others_bytes: u64, bytes: u64) -> Result<(), StoreError> {
    if others >= UPLOADS_MAX {
        let (held, limit) = (others as u64, UPLOADS_MAX as u64);
        return Err(StoreError::UploadsFull { what: "unused uploads", held, limit });
    }
    if others_bytes.saturating_add(bytes) > UPLOADS_BYTES_MAX {
        let (held, limit) = (others_bytes, UPLOADS_BYTES_MAX);
        return Err(StoreError::UploadsFull { what: "bytes of unused uploads", held, limit });
    }
    Ok(())
}

/// Formats bytes as hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
