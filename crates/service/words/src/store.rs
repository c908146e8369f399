//! How a store fails.

use crate::ids::{Seq, SessionId};

/// Why a store did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Another has leased the session since, or the batch does not follow the tail.
    #[error("the lease is no longer valid")]
    Fenced,
    /// The session is gone.
    #[error("there is no session {0}")]
    NotFound(SessionId),
    /// No space is left; nothing of the batch stands.
    #[error("the store is full")]
    Full,
    /// The journal is damaged: it can be read up to a record, and no longer written.
    #[error("the journal of session {session_id} is damaged after seq {last_good_seq}: {why}")]
    Corrupted {
        /// The session.
        session_id: SessionId,
        /// The last record that can be trusted.
        last_good_seq: Seq,
        /// What was found, for the log.
        why: String,
    },
    /// The journal holds what only a newer version understands: it can be read, and not written.
    #[error("the journal of session {0} was written by a newer version")]
    FormatNewer(SessionId),
    /// The store takes no more writes since one could not be made sure of.
    #[error("the store is read-only: {0}")]
    ReadOnly(String),
    /// The store failed; whether the write happened is unknown.
    #[error("the store failed: {0}")]
    Failed(String),
}
