//! Note of where the log's last forgetting is, in a file beside the log: the log alone does not show that its last record
//! or all of it is missing, and memory.redb may be lost.
//!
//! It is written after the record, so it never promises what a kill kept from the log.

use std::path::Path;

use meerkat_journal::disk::{Disk, failed, if_there, read_range, write_new};
use meerkat_words::{ids::Seq, store::StoreError};

/// File with the position, and its CRC-32C: 8 bytes each, little-endian.
pub(super) const FILE: &str = "memory.end";
/// That file under construction.
const NEW: &str = "memory.end.new";

/// Note as read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct End {
    /// Position up to which the log was durable; 0 if nothing was ever forgotten.
    pub(super) seq: Seq,
    pub(super) is_damaged: bool,
}

fn encode(seq: Seq) -> [u8; 16] {
    let seq = seq.to_le_bytes();
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&seq);
    bytes[8..].copy_from_slice(&u64::from(crc32c::crc32c(&seq)).to_le_bytes());
    bytes
}

/// Reads the note. A damaged one still says that something was forgotten.
pub(super) fn read(disk: &dyn Disk) -> Result<End, StoreError> {
    let Some(file) = if_there(disk.open(Path::new(FILE), false)).map_err(failed)? else { return Ok(End::default()) };
    let bytes = read_range(file.as_ref(), 0, 17).map_err(failed)?;
    let seq = bytes.first_chunk().map_or(0, |seq| Seq::from_le_bytes(*seq));
    let is_damaged = bytes != encode(seq);
    Ok(if is_damaged { End { seq: 1, is_damaged } } else { End { seq, is_damaged } })
}

/// Writes the note.
pub(super) fn write(disk: &dyn Disk, seq: Seq) -> Result<(), StoreError> {
    write_new(disk, Path::new(NEW), &encode(seq)).map_err(failed)?;
    disk.rename(Path::new(NEW), Path::new(FILE)).and_then(|()| disk.sync_dir(Path::new(""))).map_err(failed)
}
