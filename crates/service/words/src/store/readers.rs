//! What a store keeps of its readers, and the marks that change it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    clock::Timestamp,
    ids::{Seq, SessionId},
};

/// A reader that is registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// Its name.
    pub reader: String,
    /// When it was registered.
    pub created_at: Timestamp,
}

/// What changes in [`ReaderMarks`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReaderMark {
    /// A reader is registered.
    Reader(Registration),
    /// A reader is forgotten.
    Unreader(String),
    /// What was relied on in a session; with nothing in it the session is gone.
    Relied(SessionId, BTreeMap<String, Seq>),
    /// Whether every registration is certainly there.
    Trusted(bool),
}

/// What a store keeps of its readers.
#[derive(Debug, Default)]
pub struct ReaderMarks {
    /// The readers, each with when it was registered.
    pub readers: BTreeMap<String, Timestamp>,
    /// What was relied on, by session and reader.
    pub relied: BTreeMap<SessionId, BTreeMap<String, Seq>>,
    /// Whether a registration may be lost.
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

    /// The readers in the order of their names.
    #[must_use]
    pub fn readers(&self) -> Vec<Registration> {
        let registration = |(reader, created_at): (&String, &Timestamp)| Registration {
            reader: reader.clone(),
            created_at: *created_at,
        };
        self.readers.iter().map(registration).collect()
    }

    /// Acknowledgements that were relied on in a session.
    #[must_use]
    pub fn relied(&self, session_id: SessionId) -> BTreeMap<String, Seq> {
        self.relied.get(&session_id).cloned().unwrap_or_default()
    }

    /// Reports if every registration is certainly there.
    #[must_use]
    pub const fn is_trusted(&self) -> bool {
        !self.is_doubted
    }
}
