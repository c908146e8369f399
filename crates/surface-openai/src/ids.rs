//! Ids of responses: the session, and the seq of the record that began the response there.

use std::fmt;

use meerkat_service::{Seq, SessionError, SessionId};

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
