//! Ids of responses: the session, and the seq of the record that began the response there. Ids of conversations: the
//! session.

use std::fmt;

use meerkat_service::{Seq, SessionError, SessionId};

/// The id of a conversation.
pub(crate) fn conversation(session_id: SessionId) -> String {
    format!("conv_{session_id}")
}

/// Reads the id of a conversation; one that is not ours is unknown.
pub(crate) fn parse_conversation(text: &str) -> Result<SessionId, SessionError> {
    let session_id = text.strip_prefix("conv_").and_then(|id| id.parse().ok());
    session_id.ok_or(SessionError::ItemNotFound("conversation"))
}

/// Id of a response: `resp_`, the session, `_`, the seq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResponseId {
    pub(crate) session_id: SessionId,
    /// At least 1.
    pub(crate) seq: Seq,
}

impl ResponseId {
    /// Reads an id; one that is not ours is unknown.
    pub(crate) fn parse(text: &str) -> Result<Self, SessionError> {
        let of = || {
            let (session_id, seq) = text.strip_prefix("resp_")?.split_once('_')?;
            let seq = seq.parse().ok().filter(|parsed: &Seq| *parsed > 0 && parsed.to_string() == seq)?;
            Some(Self { session_id: session_id.parse().ok()?, seq })
        };
        of().ok_or(SessionError::ItemNotFound("response"))
    }
}

impl fmt::Display for ResponseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "resp_{}_{}", self.session_id, self.seq)
    }
}
