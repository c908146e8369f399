//! Encoding of the marks that do not follow one session's use: readers, acknowledgements that pruning relies on, and
//! marks of newer versions.

use std::{borrow::Cow, collections::BTreeMap};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::frame::{HEADER_BYTES, Parsed, parse};
use meerkat_words::{
    ids::{Seq, SessionId},
    store::{ReaderMark, ReaderMarks, Registration},
};

/// Kind of the mark: a reader is registered.
const READER: u16 = 3;
/// Kind of the mark: a reader is deleted.
const UNREADER: u16 = 4;
/// Kind of the mark: pruning relies on acknowledgements.
const RELIED: u16 = 5;
/// Kind of the mark: whether all registrations are known.
const TRUSTED: u16 = 6;

#[derive(Serialize, Deserialize)]
struct Unreader<'a> {
    reader: Cow<'a, str>,
}

#[derive(Serialize, Deserialize)]
struct Relied<'a> {
    session_id: SessionId,
    readers: Cow<'a, BTreeMap<String, Seq>>,
}

#[derive(Serialize, Deserialize)]
struct Trusted {
    trusted: bool,
}

/// Mark that is kept when the store journal is rewritten.
#[derive(Clone, Debug)]
pub(super) enum Kept {
    Of(ReaderMark),
    /// Kind and payload of a newer version's mark.
    Newer(u16, Bytes),
}

impl Kept {
    pub(super) fn decode(kind: u16, line: &Bytes) -> serde_json::Result<Self> {
        Ok(match kind {
            READER => Self::Of(ReaderMark::Reader(serde_json::from_slice::<Registration>(line)?)),
            UNREADER => {
                let Unreader { reader } = serde_json::from_slice(line)?;
                Self::Of(ReaderMark::Unreader(reader.into_owned()))
            }
            RELIED => {
                let Relied { session_id, readers } = serde_json::from_slice(line)?;
                Self::Of(ReaderMark::Relied(session_id, readers.into_owned()))
            }
            TRUSTED => {
                let Trusted { trusted } = serde_json::from_slice(line)?;
                Self::Of(ReaderMark::Trusted(trusted))
            }
            newer => Self::Newer(newer, line.clone()),
        })
    }

    pub(super) fn encode(&self) -> serde_json::Result<(u16, Vec<u8>)> {
        Ok(match self {
            Self::Of(ReaderMark::Reader(registration)) => (READER, serde_json::to_vec(registration)?),
            Self::Of(ReaderMark::Unreader(reader)) => {
                (UNREADER, serde_json::to_vec(&Unreader { reader: reader.into() })?)
            }
            Self::Of(ReaderMark::Relied(session_id, readers)) => {
                let (session_id, readers) = (*session_id, Cow::Borrowed(readers));
                (RELIED, serde_json::to_vec(&Relied { session_id, readers })?)
            }
            Self::Of(ReaderMark::Trusted(trusted)) => (TRUSTED, serde_json::to_vec(&Trusted { trusted: *trusted })?),
            Self::Newer(kind, line) => (*kind, line.to_vec()),
        })
    }
}

/// Lists marks that reproduce the same readers.
pub(super) fn marks_of(of: &ReaderMarks) -> impl Iterator<Item = ReaderMark> {
    let relied = of.relied.iter().map(|(id, readers)| ReaderMark::Relied(*id, readers.clone()));
    let doubt = of.is_doubted.then_some(ReaderMark::Trusted(false));
    of.readers().into_iter().map(ReaderMark::Reader).chain(relied).chain(doubt)
}

/// Returns an upper bound of their number; each reader of a relied-on mark counts as one.
pub(super) fn weight_of(of: &ReaderMarks) -> usize {
    of.readers.len() + of.relied.len() * of.readers.len().max(1)
}

/// Finds marks with a good checksum anywhere in `bytes`, which begin at a multiple of 8.
pub(super) fn kept_in(bytes: &Bytes) -> Vec<Kept> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        at += match parse(&bytes[at..]) {
            Parsed::Frame(frame) => {
                let start = at + HEADER_BYTES;
                if frame.kind >= READER {
                    found.extend(Kept::decode(frame.kind, &bytes.slice(start..start + frame.payload)));
                }
                frame.total
            }
            Parsed::Short(_) | Parsed::Nothing => 8,
        };
    }
    found
}
