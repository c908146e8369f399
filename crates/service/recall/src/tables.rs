//! The tables of `memory.redb` and the bytes of their rows.
//!
//! | table | key | value |
//! |---|---|---|
//! | meta | a name | what stands in [`meta`] |
//! | sessions | ordinal | a [`SessionRow`] (JSON) |
//! | names | number | a role or a source |
//! | columns | text | the fixed row of [`encode_doc`] |
//! | texts | text | CRC-32C, then the text |
//! | postings | segment, first term, part | a block of [`super::postings`] |
//! | forms | hash of a word as it is spelt | its term, how many runs of letters it has, its first letter |
//! | runs | run of letters, form | nothing |
//! | embedders | number of a set of vectors | id of the embedder that made it |
//! | vectors | set, hash of the text | `i16`s, little-endian; none if it has no direction |
//! | forgotten | number | what was forgotten (JSON) |
//!
//! A text's number is not used again in the same file. Any change here, or to the analysis of texts, needs a new layout number.

use redb::{ReadOnlyTable, ReadTransaction, TableDefinition, WriteTransaction};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use super::file::Trouble;
use meerkat_words::{
    ids::{Seq, SessionId},
    memory::Intake,
};

/// Version of the tables and of the analysis of texts.
pub(super) const LAYOUT: u32 = 4;

/// Rows of the table `meta`.
pub(super) mod meta {
    pub(in super::super) const LAYOUT: &str = "layout";
    pub(in super::super) const NEXT_DOC: &str = "next_doc";
    /// Position up to which memory's log is applied.
    pub(in super::super) const LOG: &str = "log";
    /// Segments in the order of their texts.
    pub(in super::super) const SEGMENTS: &str = "segments";
    /// Present if the file has to be erased: it has pages with what was forgotten.
    pub(in super::super) const RENEW: &str = "renew";
    /// Present if every stored session was taken in since the file was made.
    pub(in super::super) const WHOLE: &str = "whole";
}

/// Segment, first term of the block, and part if one term has several blocks.
pub(super) type BlockKey = (u32, u32, u32);
pub(super) type BlockTable = ReadOnlyTable<BlockKey, &'static [u8]>;

pub(super) const META: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("meta");
pub(super) const SESSIONS: TableDefinition<'static, u32, &[u8]> = TableDefinition::new("sessions");
pub(super) const NAMES: TableDefinition<'static, u32, &str> = TableDefinition::new("names");
pub(super) const COLUMNS: TableDefinition<'static, u32, &[u8; DOC_BYTES]> = TableDefinition::new("columns");
pub(super) const TEXTS: TableDefinition<'static, u32, &[u8]> = TableDefinition::new("texts");
pub(super) const POSTINGS: TableDefinition<'static, BlockKey, &[u8]> = TableDefinition::new("postings");
pub(super) const FORMS: TableDefinition<'static, u32, (u32, u8, char)> = TableDefinition::new("forms");
pub(super) const RUNS: TableDefinition<'static, (u32, u32), ()> = TableDefinition::new("runs");
pub(super) const EMBEDDERS: TableDefinition<'static, u32, &str> = TableDefinition::new("embedders");
pub(super) const VECTORS: TableDefinition<'static, (u32, u64), &[u8]> = TableDefinition::new("vectors");
pub(super) const FORGOTTEN: TableDefinition<'static, u32, &[u8]> = TableDefinition::new("forgotten");

pub(super) fn make_all(transaction: &WriteTransaction) -> Result<(), Trouble> {
    transaction.open_table(META)?;
    transaction.open_table(SESSIONS)?;
    transaction.open_table(NAMES)?;
    transaction.open_table(COLUMNS)?;
    transaction.open_table(TEXTS)?;
    transaction.open_table(POSTINGS)?;
    transaction.open_table(FORMS)?;
    transaction.open_table(RUNS)?;
    transaction.open_table(EMBEDDERS)?;
    transaction.open_table(VECTORS)?;
    transaction.open_table(FORGOTTEN)?;
    Ok(())
}

pub(super) struct Snapshot {
    pub(super) postings: BlockTable,
    texts: ReadOnlyTable<u32, &'static [u8]>,
}

impl Snapshot {
    pub(super) fn new(transaction: &ReadTransaction) -> Result<Self, Trouble> {
        Ok(Self { postings: transaction.open_table(POSTINGS)?, texts: transaction.open_table(TEXTS)? })
    }

    pub(super) fn text(&self, doc: u32) -> Result<String, Trouble> {
        let damaged = || Trouble::Damaged(format!("text {doc} is not as it was written"));
        let row = self.texts.get(doc)?.ok_or_else(damaged)?;
        decode_text(doc, row.value()).ok_or_else(damaged)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SessionRow {
    pub(super) id: SessionId,
    pub(super) labels: BTreeMap<String, String>,
    /// Seq up to which it is taken in.
    pub(super) up_to: Seq,
    /// Sessions that it is a fork of, each with the last seq that it inherits.
    pub(super) inherited: BTreeMap<SessionId, Seq>,
    /// True if memory's log records its intakes, because no journal does.
    pub(super) is_recorded: bool,
}

impl SessionRow {
    /// Updates a session's row with an intake, except for `up_to`.
    pub(super) fn with(known: Option<&Self>, intake: &Intake, is_recorded: bool) -> Self {
        let new = || {
            let (id, labels, inherited) = (intake.session_id, BTreeMap::new(), BTreeMap::new());
            Self { id, labels, up_to: 0, inherited, is_recorded: false }
        };
        let mut row = known.cloned().unwrap_or_else(new);
        row.labels.clone_from(&intake.labels);
        row.is_recorded |= is_recorded;
        for (from, up_to) in &intake.inherited {
            let known = row.inherited.entry(*from).or_default();
            *known = (*known).max(*up_to);
        }
        row
    }
}

/// Encodes a text with a checksum: redb does not check its own when it reads.
pub(super) fn encode_text(doc: u32, text: &str) -> Vec<u8> {
    let sum = crc32c::crc32c_append(crc32c::crc32c(&doc.to_le_bytes()), text.as_bytes());
    [&sum.to_le_bytes(), text.as_bytes()].concat()
}

fn decode_text(doc: u32, row: &[u8]) -> Option<String> {
    let (sum, text) = row.split_first_chunk::<4>()?;
    let is_whole = crc32c::crc32c_append(crc32c::crc32c(&doc.to_le_bytes()), text) == u32::from_le_bytes(*sum);
    is_whole.then(|| String::from_utf8(text.to_vec()).ok()).flatten()
}

/// Text without its letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Doc {
    pub(super) session: u32,
    pub(super) part: u32,
    pub(super) seq: Seq,
    pub(super) to_seq: Seq,
    pub(super) time_ms: i64,
    /// Index into the names.
    pub(super) role: u32,
    /// Index into the names.
    pub(super) source: u32,
    /// Hash of its text: equal texts collapse in answers, and have one vector.
    pub(super) text: u64,
    /// Number of its terms, capped.
    pub(super) words: u16,
    /// True if it ends with a question.
    pub(super) asks: bool,
}

impl Doc {
    pub(super) const fn place(&self) -> (Seq, u32) {
        (self.seq, self.part)
    }
}

pub(super) const DOC_BYTES: usize = 55;
/// Bytes before the checksum.
const DOC_SUMMED: usize = DOC_BYTES - 4;

/// Encodes session, part, seq, last seq, time, role, source, text's hash, terms, `asks`.
pub(super) fn encode_doc(doc: &Doc) -> [u8; DOC_BYTES] {
    let mut row = [0; DOC_BYTES];
    row[0..4].copy_from_slice(&doc.session.to_le_bytes());
    row[4..8].copy_from_slice(&doc.part.to_le_bytes());
    row[8..16].copy_from_slice(&doc.seq.to_le_bytes());
    row[16..24].copy_from_slice(&doc.to_seq.to_le_bytes());
    row[24..32].copy_from_slice(&doc.time_ms.to_le_bytes());
    row[32..36].copy_from_slice(&doc.role.to_le_bytes());
    row[36..40].copy_from_slice(&doc.source.to_le_bytes());
    row[40..48].copy_from_slice(&doc.text.to_le_bytes());
    row[48..50].copy_from_slice(&doc.words.to_le_bytes());
    row[50] = u8::from(doc.asks);
    let sum = crc32c::crc32c(&row[..DOC_SUMMED]);
    row[DOC_SUMMED..].copy_from_slice(&sum.to_le_bytes());
    row
}

pub(super) fn decode_doc(row: &[u8; DOC_BYTES]) -> Result<Doc, Trouble> {
    fn at<const N: usize>(row: &[u8], from: usize) -> [u8; N] {
        row.get(from..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
    }
    if crc32c::crc32c(&row[..DOC_SUMMED]) != u32::from_le_bytes(at(row, DOC_SUMMED)) {
        return Err(Trouble::Damaged("a row is not as it was written".to_owned()));
    }
    Ok(Doc {
        session: u32::from_le_bytes(at(row, 0)),
        part: u32::from_le_bytes(at(row, 4)),
        seq: u64::from_le_bytes(at(row, 8)),
        to_seq: u64::from_le_bytes(at(row, 16)),
        time_ms: i64::from_le_bytes(at(row, 24)),
        role: u32::from_le_bytes(at(row, 32)),
        source: u32::from_le_bytes(at(row, 36)),
        text: u64::from_le_bytes(at(row, 40)),
        words: u16::from_le_bytes(at(row, 48)),
        asks: row[50] != 0,
    })
}

pub(super) fn encode_code(code: &[i16]) -> Vec<u8> {
    code.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub(super) fn decode_code(row: &[u8]) -> Vec<i16> {
    row.as_chunks::<2>().0.iter().map(|bytes| i16::from_le_bytes(*bytes)).collect()
}

pub(super) fn put_number(transaction: &WriteTransaction, name: &str, number: u64) -> Result<(), Trouble> {
    transaction.open_table(META)?.insert(name, &number.to_le_bytes()[..])?;
    Ok(())
}

pub(super) fn to_json<T: Serialize>(row: &T) -> Result<Vec<u8>, Trouble> {
    serde_json::to_vec(row).map_err(|error| Trouble::Failed(error.to_string()))
}
