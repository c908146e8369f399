//! Bundles: sessions as one archive, to keep or to take elsewhere. `docs/bundles.md` says what stands in one.
//!
//! A section holds one session, and ends with its manifest; a bundle of many sessions is their sections one after
//! another. Nothing in a bundle is trusted: all of it is checked before anything is made of it, and no path is made of
//! a name in it.

mod archive;
mod export;
mod import;
mod verify;

#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

pub(crate) use export::{Exports, page};
pub(crate) use import::{Uploads, piece};

use crate::{
    SessionError,
    ids::{Seq, SessionId},
    store::{StoreError, hex},
};

/// What a manifest says first.
const FORMAT: &str = "meerkat bundle 1";
/// Lines gather up to this many bytes in one file; a longer line stands alone.
const EVENTS_BYTES: usize = 1024 * 1024;
/// Files of one session.
const ENTRIES_MAX: usize = 100_000;
/// Bytes of a manifest: more than that many files need.
const MANIFEST_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// The last file of a section.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    format: String,
    session_id: SessionId,
    /// The session's last event in the bundle.
    last_seq: Seq,
    /// Whether what looks like a key was replaced.
    redacted: bool,
    /// The files before it, in order.
    files: Vec<FileRow>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileRow {
    name: String,
    bytes: u64,
    sha256: String,
}

/// What a file in a section is called. There are no other names.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Name {
    /// Whole lines, from the first one's seq to the last one's.
    Events {
        from: Seq,
        to: Seq,
    },
    /// A body, named by its hash.
    Blob(String),
    Manifest,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Events { from, to } => write!(f, "events/{from}-{to}.jsonl"),
            Self::Blob(hash) => write!(f, "blobs/{hash}"),
            Self::Manifest => f.write_str("manifest.json"),
        }
    }
}

impl Name {
    /// Reads a name that is spelled as it is written.
    fn parse(text: &str) -> Option<Self> {
        let name = match text.split_once('/') {
            None => Self::Manifest,
            Some(("blobs", hash)) => Self::Blob(hash.to_owned()),
            Some((_, seqs)) => {
                let (from, to) = seqs.strip_suffix(".jsonl")?.split_once('-')?;
                Self::Events { from: from.parse().ok()?, to: to.parse().ok()? }
            }
        };
        let is_hash =
            |hash: &str| hash.len() == 64 && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let is_good = !matches!(&name, Self::Blob(hash) if !is_hash(hash));
        (is_good && name.to_string() == text).then_some(name)
    }
}

/// A bundle that is not what an export makes.
fn damaged(why: impl Into<String>) -> SessionError {
    SessionError::BundleInvalid { reason: "damaged", why: why.into() }
}

fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// A store that lacks what it said it had.
fn lost(what: &str) -> StoreError {
    StoreError::Failed(format!("{what} is gone"))
}
