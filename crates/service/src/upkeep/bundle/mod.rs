//! Bundles: sessions as one archive, to keep or to move. `docs/bundles.md` describes the format.
//!
//! A section holds one session, and ends with its manifest; a bundle of many sessions is their sections one after
//! another. Nothing in a bundle is trusted: all of it is checked before anything is created, and no name in it becomes
//! a path.

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

/// Format that a manifest names.
const FORMAT: &str = "meerkat bundle 1";
/// Most bytes of lines in one file; a longer line has a file of its own.
const EVENTS_BYTES: usize = 1024 * 1024;
/// Most files of one session.
const ENTRIES_MAX: usize = 100_000;
/// Most bytes of a manifest: more than that many files need.
const MANIFEST_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// Last file of a section.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    format: String,
    session_id: SessionId,
    /// Last event of the session in the bundle.
    last_seq: Seq,
    /// True if texts that look like keys were replaced.
    redacted: bool,
    /// Damaged ranges that were left out: the first and the last event of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    lost: Vec<(Seq, Seq)>,
    /// Files before it, in order.
    files: Vec<FileRow>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileRow {
    name: String,
    bytes: u64,
    sha256: String,
}

/// Name of a file in a section. There are no other names.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Name {
    /// Whole lines, from the first one's seq to the last one's.
    Events {
        from: Seq,
        to: Seq,
    },
    /// Body, named by its hash.
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
    /// Parses a name, in exactly the spelling that an export writes.
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

/// Makes the error for a bundle that no export made.
fn damaged(why: impl Into<String>) -> SessionError {
    SessionError::BundleInvalid { reason: "damaged", why: why.into() }
}

fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Makes the error for a store that lacks something that it had.
fn lost(what: &str) -> StoreError {
    StoreError::Failed(format!("{what} is gone"))
}
