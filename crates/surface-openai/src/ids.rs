//! Ids. That of a response is its session and the seq of the record that began it there, that of a conversation its
//! session; that of a call names its session too, so that an output finds its call.

use std::fmt;

use meerkat_service::{Seq, SessionError, SessionId};

pub(crate) fn conversation(session_id: SessionId) -> String {
    format!("conv_{session_id}")
}

/// Reads the id of a conversation; one that is not ours is unknown.
pub(crate) fn parse_conversation(text: &str) -> Result<SessionId, SessionError> {
    let session_id = text.strip_prefix("conv_").and_then(|id| id.parse().ok());
    session_id.ok_or(SessionError::ItemNotFound("conversation"))
}

/// The id of a call for clients.
pub(crate) fn call_id_of(session_id: SessionId, call_id: &str) -> String {
    format!("call_{session_id}_{}", call_id.strip_prefix("call_").unwrap_or(call_id))
}

/// The session and the call that an id names.
pub(crate) fn parse_call(call_id: &str) -> Option<(SessionId, String)> {
    let (session_id, rest) = call_id.strip_prefix("call_")?.split_once('_')?;
    Some((session_id.parse().ok()?, format!("call_{rest}")))
}

/// Id of a response: `resp_`, the session, `_`, the seq.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_a_call_names_its_session() {
        let session_id: SessionId = "01900000-0000-7000-8000-000000000001".parse().unwrap();
        let given = call_id_of(session_id, "call_12_0");
        assert_eq!(given, "call_01900000-0000-7000-8000-000000000001_12_0");
        assert_eq!(parse_call(&given), Some((session_id, "call_12_0".to_owned())));
        for foreign in ["call_abc", "call_12_0", "x", "call_01900000-0000-7000-8000-00000000000g_1_0"] {
            assert_eq!(parse_call(foreign), None, "{foreign}");
        }
    }
}
