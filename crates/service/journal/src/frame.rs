//! The frame: the encoding of a record in a segment. `docs/storage.md` draws it.
//!
//! The checksum covers every byte, and every frame names the previous one, so a valid frame was written at this place
//! and after this predecessor. Payloads are opaque here.

use std::borrow::Borrow;

use bytes::Bytes;

use super::End;
use meerkat_words::{ids::Seq, store::StoreError};

/// First bytes of a frame. 0xFF and 0xFE never occur in UTF-8, so no payload contains them.
pub(super) const MARKER: [u8; 4] = [0xFF, b'm', b'k', 0xFE];
/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 48;
/// Most bytes of a payload; a greater length is invalid.
pub const PAYLOAD_BYTES_MAX: usize = meerkat_words::store::RECORD_BYTES_MAX;

/// Flag: last frame of its batch.
pub const BATCH_END: u16 = 1;
/// Flag: footer of a sealed segment, without a record.
pub(super) const SEALED: u16 = 1 << 2;
/// Flag: a version that does not know the record's kind may not write the session.
pub(super) const MUST_UNDERSTAND: u16 = 1 << 3;

/// Record to write.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its seq.
    pub seq: Seq,
    /// Number of its kind.
    pub kind: u16,
    /// Wall-clock milliseconds; they determine no order.
    pub ms: i64,
    /// Its line.
    pub line: Bytes,
}

impl Entry {
    /// Makes an entry; fails if the line is too long for a frame.
    pub fn new(seq: Seq, kind: u16, ms: i64, line: Bytes) -> Result<Self, StoreError> {
        if line.len() > PAYLOAD_BYTES_MAX {
            return Err(StoreError::Failed(format!("a record of {} bytes is too long", line.len())));
        }
        Ok(Self { seq, kind, ms, line })
    }
}

/// Place between two frames, which the next frame must continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Seq of the previous record.
    pub seq: Seq,
    /// Its batch.
    pub batch: u64,
    /// Chain value that the next frame must have.
    pub chain: u64,
}

impl Place {
    /// Returns the place as a journal's end.
    pub const fn end(&self) -> End {
        End { seq: self.seq, chain: self.chain }
    }
}

/// Parsed frame.
#[derive(Clone, Debug)]
pub struct FrameView {
    /// Kind of the record.
    pub kind: u16,
    /// Flags.
    pub flags: u16,
    /// Seq of the record.
    pub seq: Seq,
    /// Batch that it belongs to.
    pub batch: u64,
    /// Wall-clock milliseconds.
    pub ms: i64,
    /// Value of the chain before it.
    pub chain: u64,
    crc: u32,
    /// Bytes of the payload.
    pub payload: usize,
    /// Bytes of the whole frame, padding included.
    pub total: usize,
}

impl FrameView {
    /// Returns the place after this frame.
    pub const fn after(&self) -> Place {
        Place { seq: self.seq, batch: self.batch, chain: link(self.chain, self.crc) }
    }

    /// Reports if a flag is set.
    pub const fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// Result of parsing.
pub enum Parsed {
    /// Frame with a good checksum.
    Frame(FrameView),
    /// Possible beginning of a frame of this many bytes.
    Short(usize),
    /// No frame.
    Nothing,
}

/// Computes the chain value after a frame.
const fn link(chain: u64, crc: u32) -> u64 {
    (chain.rotate_left(23) ^ crc as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Returns the bytes of a frame with a payload of `payload` bytes.
pub(crate) const fn padded(payload: usize) -> usize {
    (HEADER_BYTES + payload).next_multiple_of(8)
}

/// Appends a frame to `out` and moves `place` after it.
pub fn encode(out: &mut Vec<u8>, place: &mut Place, batch: u64, flags: u16, entry: &Entry) {
    let start = out.len();
    out.extend_from_slice(&MARKER);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&u32::try_from(entry.line.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(&entry.kind.to_le_bytes());
    out.extend_from_slice(&flags.to_le_bytes());
    out.extend_from_slice(&entry.seq.to_le_bytes());
    out.extend_from_slice(&batch.to_le_bytes());
    out.extend_from_slice(&entry.ms.to_le_bytes());
    out.extend_from_slice(&place.chain.to_le_bytes());
    out.extend_from_slice(&entry.line);
    out.resize(start + padded(entry.line.len()), 0);
    let crc = crc32c::crc32c(&out[start + 8..]);
    out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    *place = Place { seq: entry.seq, batch, chain: link(place.chain, crc) };
}

/// Appends a batch to `out` and moves `place` after it.
pub fn encode_batch(
    out: &mut Vec<u8>,
    place: &mut Place,
    batch: u64,
    entries: impl IntoIterator<Item = impl Borrow<Entry>>,
) {
    let mut entries = entries.into_iter().peekable();
    while let Some(entry) = entries.next() {
        let flags = if entries.peek().is_none() { BATCH_END } else { 0 };
        encode(out, place, batch, flags, entry.borrow());
    }
}

/// Encodes the footer of a segment that ends at `place`, which alone determines it.
pub(super) fn footer(place: Place) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES);
    let entry = Entry { seq: place.seq, kind: 0, ms: 0, line: Bytes::new() };
    encode(&mut out, &mut place.clone(), place.batch, BATCH_END | SEALED, &entry);
    out
}

/// Parses the frame at the beginning of `bytes`.
pub fn parse(bytes: &[u8]) -> Parsed {
    let Some(header) = bytes.get(..HEADER_BYTES) else { return Parsed::Short(HEADER_BYTES) };
    let payload = number(header, 8, 4);
    let payload = usize::try_from(payload).unwrap_or(usize::MAX);
    if header[..4] != MARKER || payload > PAYLOAD_BYTES_MAX {
        return Parsed::Nothing;
    }
    let total = padded(payload);
    let Some(whole) = bytes.get(..total) else { return Parsed::Short(total) };
    let crc = crc32c::crc32c(&whole[8..]);
    if u64::from(crc) != number(header, 4, 4) {
        return Parsed::Nothing;
    }
    let small = |at| u16::from_le_bytes([header[at], header[at + 1]]);
    Parsed::Frame(FrameView {
        kind: small(12),
        flags: small(14),
        seq: number(header, 16, 8),
        batch: number(header, 24, 8),
        ms: number(header, 32, 8).cast_signed(),
        chain: number(header, 40, 8),
        crc,
        payload,
        total,
    })
}

/// Reads a little-endian number of `len` bytes, at most 8, at `at`.
pub(super) fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    let mut field = [0; 8];
    field[..len].copy_from_slice(&bytes[at..at + len]);
    u64::from_le_bytes(field)
}
