//! How a store fails.

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
