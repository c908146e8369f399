//! Stored data of readers, and the marks that change it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    clock::Timestamp,
    ids::{Seq, SessionId},
};

/// Registered reader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// Its name.
    pub reader: String,
    /// Time of registration.
    pub created_at: Timestamp,
}

/// Change of [`ReaderMarks`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReaderMark {
    /// Registers a reader.
    Reader(Registration),
    /// Deletes a reader.
    Unreader(String),
    /// Sets the acknowledgements that pruning relied on in a session; none if the session is deleted.
    Relied(SessionId, BTreeMap<String, Seq>),
    /// Sets if every registration is certainly known.
    Trusted(bool),
}

/// Stored data of readers.
#[derive(Debug, Default)]
pub struct ReaderMarks {
    /// Readers with their times of registration.
    pub readers: BTreeMap<String, Timestamp>,
    /// Acknowledgements that pruning relied on, by session and reader.
    pub relied: BTreeMap<SessionId, BTreeMap<String, Seq>>,
    /// True if a registration may be lost.
    pub is_doubted: bool,
}

impl ReaderMarks {
    /// Applies one mark.
    pub fn apply(&mut self, mark: ReaderMark) {
        match mark {
            ReaderMark::Reader(Registration { reader, created_at }) => {
                self.readers.entry(reader).or_insert(created_at);
            }
            ReaderMark::Unreader(reader) => {
                self.readers.remove(&reader);
                self.relied.retain(|_, acknowledged| {
                    acknowledged.remove(&reader);
                    !acknowledged.is_empty()
                });
            }
            ReaderMark::Relied(session_id, acknowledged) if acknowledged.is_empty() => {
                self.relied.remove(&session_id);
            }
            ReaderMark::Relied(session_id, acknowledged) => {
                let known = self.relied.entry(session_id).or_default();
                for (reader, seq) in acknowledged {
                    let relied = known.entry(reader).or_default();
                    *relied = seq.max(*relied);
                }
            }
            ReaderMark::Trusted(is_trusted) => self.is_doubted = !is_trusted,
        }
    }

    /// Lists the readers by name.
    #[must_use]
    pub fn readers(&self) -> Vec<Registration> {
        let registration = |(reader, created_at): (&String, &Timestamp)| Registration {
            reader: reader.clone(),
            created_at: *created_at,
        };
        self.readers.iter().map(registration).collect()
    }

    /// Returns the acknowledgements that pruning relied on in a session.
    #[must_use]
    pub fn relied(&self, session_id: SessionId) -> BTreeMap<String, Seq> {
        self.relied.get(&session_id).cloned().unwrap_or_default()
    }

    /// Returns the seq up to which every registered reader is done with a session, as far as pruning may rely on that.
    #[must_use]
    pub fn done_up_to(&self, session_id: SessionId) -> Seq {
        let relied = self.relied.get(&session_id);
        let done = |reader| relied.and_then(|relied| relied.get(reader)).copied().unwrap_or(0);
        self.readers.keys().map(done).min().unwrap_or(Seq::MAX)
    }

    /// Returns true if every registration is certainly known.
    #[must_use]
    pub const fn is_trusted(&self) -> bool {
        !self.is_doubted
    }
}
