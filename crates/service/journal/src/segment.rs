//! A segment: a header, then frames, then perhaps a footer. It is read forwards, frame by frame, and searched after a
//! bad frame. `recovery` decides what damage means.

use std::io;

use bytes::Bytes;

use super::{
    disk::{DiskFile, is_unreadable, read_range},
    frame::{BATCH_END, FrameView, HEADER_BYTES as FRAME_HEADER_BYTES, MARKER, MUST_UNDERSTAND, Parsed, Place, SEALED},
    frame::{footer, number, parse},
};
use meerkat_words::ids::{Seq, SessionId};

/// First bytes of a segment.
const MAGIC: [u8; 8] = *b"\xFFmklog\r\n";
const VERSION: u64 = 1;
/// Flag beside the version: journal compaction rewrote the segment, so its seqs may skip.
const COMPACTED: u64 = 1 << 32;
/// Bytes of a segment's header.
pub const HEADER_BYTES: u64 = 128;
/// Bytes read at a time.
const READ_BYTES: u64 = 256 * 1024;
/// Bytes to read at a time where the disk is damaged.
const BLOCK_BYTES: u64 = 4096;
/// Bytes between two indexed places.
const STRIDE_BYTES: u64 = 64 * 1024;

/// A segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Session that it was written for, which in a fork may be the parent.
    pub session_id: SessionId,
    /// Number of the segment in its journal.
    pub number: u64,
    /// Number of its version: 1, then one more for each rewrite.
    pub generation: u64,
    /// Seq of its first record.
    pub base_seq: Seq,
    /// Id of its first batch.
    pub base_batch: u64,
    /// Chain value after the previous segment.
    pub chain: u64,
    /// End of the previous segment's records; bytes after that are ignored for ever.
    pub previous_end: u64,
    /// Present if journal compaction rewrote the segment.
    pub compacted: Option<Compacted>,
}

/// Further fields of a compacted segment's header. Such a segment is complete when it gets its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// Place after the last record that it held at first, which the next segment continues.
    pub after: Place,
    /// Number of its records.
    pub count: u64,
    /// End of its records.
    pub end: u64,
}

/// Header as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderFound {
    /// Header of this version.
    Good(Header),
    /// Header of a later version.
    Newer,
    /// No header, or one with a bad checksum.
    Bad,
}

impl Header {
    /// Makes the header of a new segment whose first record comes after `place`, in a new batch.
    pub const fn after(session_id: SessionId, number: u64, place: Place, previous_end: u64) -> Self {
        let (base_seq, base_batch, chain) = (place.seq + 1, place.batch + 1, place.chain);
        Self { session_id, number, generation: 1, base_seq, base_batch, chain, previous_end, compacted: None }
    }

    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        let flag = if self.compacted.is_some() { COMPACTED } else { 0 };
        out.extend_from_slice(&(VERSION | flag).to_le_bytes());
        out.extend_from_slice(self.session_id.as_uuid().as_bytes());
        for field in [self.number, self.generation, self.base_seq, self.base_batch, self.chain, self.previous_end] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        if let Some(Compacted { after, count, end }) = self.compacted {
            for field in [after.seq, after.batch, after.chain, count, end] {
                out.extend_from_slice(&field.to_le_bytes());
            }
        }
        out.resize(HEADER_BYTES as usize - 8, 0);
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&u64::from(crc).to_le_bytes());
        out
    }

    /// Reads the header of a file.
    pub fn read(file: &dyn DiskFile) -> io::Result<HeaderFound> {
        let bytes = read_range(file, 0, HEADER_BYTES)?;
        let end = HEADER_BYTES as usize - 8;
        if bytes.len() < end + 8
            || bytes[..8] != MAGIC
            || u64::from(crc32c::crc32c(&bytes[..end])) != number(&bytes, end, 8)
        {
            return Ok(HeaderFound::Bad);
        }
        let field = |n: usize| number(&bytes, 32 + n * 8, 8);
        // Flags share the version's field, so that a version that does not know a flag sees a later version.
        let compacted = match number(&bytes, 8, 8) {
            VERSION => None,
            version if version == VERSION | COMPACTED => {
                let after = Place { seq: field(6), batch: field(7), chain: field(8) };
                Some(Compacted { after, count: field(9), end: field(10) })
            }
            _ => return Ok(HeaderFound::Newer),
        };
        let id: [u8; 16] = bytes[16..32].try_into().unwrap_or_default();
        Ok(HeaderFound::Good(Self {
            session_id: SessionId::from_uuid(uuid::Uuid::from_bytes(id)),
            number: field(0),
            generation: field(1),
            base_seq: field(2),
            base_batch: field(3),
            chain: field(4),
            previous_end: field(5),
            compacted,
        }))
    }

    /// Returns the place before its first frame.
    pub const fn place(&self) -> Place {
        Place { seq: self.base_seq.saturating_sub(1), batch: self.base_batch.saturating_sub(1), chain: self.chain }
    }
}

/// Place in a segment from which it can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Offset in the file.
    pub offset: u64,
    /// Place that the next frame must continue.
    pub place: Place,
}

/// Step of a reader.
pub enum Step {
    /// Frame with its payload.
    Frame(FrameView, Bytes),
    /// End of the range or of the file.
    End,
    /// Footer.
    Sealed,
    /// Anything but a valid next frame.
    Bad,
}

/// Reads a segment's frames in order. Each must have a good checksum and continue the previous one.
pub struct Reader<'a> {
    file: &'a dyn DiskFile,
    /// Offset at which to stop.
    end: u64,
    /// True if seqs and batches may skip.
    is_compacted: bool,
    window: Bytes,
    window_at: u64,
    /// Offset of the next frame, and the place that it must continue.
    pub at: Mark,
}

impl<'a> Reader<'a> {
    /// Makes a reader from a mark up to the offset `end`.
    pub const fn new(file: &'a dyn DiskFile, from: Mark, end: u64) -> Self {
        Self { file, end, is_compacted: false, window: Bytes::new(), window_at: from.offset, at: from }
    }

    /// Sets if the segment is compacted.
    pub fn of(self, is_compacted: bool) -> Self {
        Self { is_compacted, ..self }
    }

    /// Reads the next frame.
    #[expect(clippy::should_implement_trait, reason = "it may fail, and goes on saying that it is at its end")]
    pub fn next(&mut self) -> io::Result<Step> {
        let Mark { offset, place } = self.at;
        if offset >= self.end {
            return Ok(Step::End);
        }
        let mut skip = usize::try_from(offset - self.window_at).unwrap_or(usize::MAX);
        let mut parsed = parse(self.window.get(skip..).unwrap_or_default());
        while let Parsed::Short(needed) = parsed {
            let ahead = self.end.min(offset + READ_BYTES.max(needed as u64));
            let exact = self.end.min(offset + needed as u64);
            // The frame may be readable even if a later place is not.
            let read = read_range(self.file, offset, ahead).or_else(|error| match is_unreadable(&error) {
                true => read_range(self.file, offset, exact),
                false => Err(error),
            });
            self.window = match read {
                Err(error) if is_unreadable(&error) => return Ok(Step::Bad),
                read => read?.into(),
            };
            (self.window_at, skip) = (offset, 0);
            if self.window.len() < needed {
                // The file ends here, or within a frame.
                return Ok(if self.window.is_empty() { Step::End } else { Step::Bad });
            }
            parsed = parse(&self.window);
        }
        let Parsed::Frame(frame) = parsed else { return Ok(Step::Bad) };
        if frame.has(SEALED) {
            let is_footer = self.window[skip..skip + frame.total] == footer(place)[..];
            return Ok(if is_footer { Step::Sealed } else { Step::Bad });
        }
        let is_next = match self.is_compacted {
            true => frame.seq > place.seq && frame.batch >= place.batch,
            false => frame.seq == place.seq + 1 && (frame.batch == place.batch || frame.batch == place.batch + 1),
        };
        if !is_next || frame.chain != place.chain {
            return Ok(Step::Bad);
        }
        let start = skip + FRAME_HEADER_BYTES;
        let line = self.window.slice(start..start + frame.payload);
        self.at = Mark { offset: offset + frame.total as u64, place: frame.after() };
        Ok(Step::Frame(frame, line))
    }

    /// Goes to the next good frame behind a bad place: one with a later seq. Returns false if there is none.
    pub fn pass_over(&mut self) -> io::Result<bool> {
        let Mark { offset, place } = self.at;
        let bytes = read_around(self.file, offset, self.end)?;
        let is_later =
            |(_, frame): &(usize, FrameView)| !frame.has(SEALED) && frame.seq > place.seq && frame.batch >= place.batch;
        let Some((at, frame)) = frames_in(&bytes).find(is_later) else { return Ok(false) };
        // The rest of a batch whose beginning is lost has the batch's own number.
        let place = Place { seq: frame.seq - 1, batch: frame.batch, chain: frame.chain };
        self.at = Mark { offset: offset + at as u64, place };
        (self.window, self.window_at) = (Bytes::new(), self.at.offset);
        Ok(true)
    }

    /// Reads on to the end of the last good batch, or of the last good frame before the seq `before`, whatever damage
    /// is between.
    pub fn last_good(mut self, before: Option<Seq>) -> io::Result<Mark> {
        let mut end = self.at;
        loop {
            match self.next()? {
                // Frames of a failed write have the seqs of those in the next segment.
                Step::Frame(frame, _) if before.is_some_and(|before| frame.seq >= before) => return Ok(end),
                Step::Frame(frame, _) if before.is_some() || frame.has(BATCH_END) => end = self.at,
                Step::Frame(..) => {}
                Step::End | Step::Sealed => return Ok(end),
                Step::Bad => {
                    if !self.pass_over()? {
                        return Ok(end);
                    }
                }
            }
        }
    }
}

/// Kind of bytes after the last complete batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// None.
    Nothing,
    /// Footer, whole or cut short.
    Footer,
    /// Zeros: allocated, but never written.
    Zeros,
    /// Incomplete batch.
    Torn,
    /// Bad record, followed by a good one of a later batch.
    Corrupt,
}

/// Scanned segment.
#[derive(Debug)]
pub struct Scan {
    /// Place after the last complete batch.
    pub end: Mark,
    /// Bytes that follow there.
    pub rest: Rest,
    /// True if it holds a record that only a newer version understands.
    pub is_newer: bool,
    /// Places to read from.
    pub index: Vec<Mark>,
}

/// Reads a segment to its end, and finds the end of its last complete batch and what follows.
pub fn scan(mut reader: Reader<'_>, knows: fn(u16) -> bool) -> io::Result<Scan> {
    let from = reader.at;
    let mut found = Scan { end: from, rest: Rest::Nothing, is_newer: false, index: vec![from] };
    let step = loop {
        match reader.next()? {
            Step::Frame(frame, _) => {
                found.is_newer |= frame.has(MUST_UNDERSTAND) && !knows(frame.kind);
                if frame.has(BATCH_END) {
                    found.end = reader.at;
                    remember(&mut found.index, reader.at);
                }
            }
            step => break step,
        }
    };
    found.rest = match step {
        Step::Sealed if reader.at == found.end => Rest::Footer,
        Step::End if reader.at == found.end => Rest::Nothing,
        _ => rest(reader.file, found.end, reader.at.offset, reader.end)?,
    };
    Ok(found)
}

/// Adds a place, unless the previous one is near.
pub(super) fn remember(index: &mut Vec<Mark>, mark: Mark) {
    if index.last().is_none_or(|last| mark.offset >= last.offset + STRIDE_BYTES) {
        index.push(mark);
    }
}

/// Classifies the bytes after the last complete batch if the frame at `bad` is not valid.
fn rest(file: &dyn DiskFile, end: Mark, bad: u64, len: u64) -> io::Result<Rest> {
    let bytes = match read_range(file, end.offset, len) {
        // The content is unknown, so nothing of it may be cut.
        Err(error) if is_unreadable(&error) => return Ok(Rest::Corrupt),
        bytes => bytes?,
    };
    if bytes.iter().all(|&byte| byte == 0) {
        return Ok(Rest::Zeros);
    }
    let whole = footer(end.place);
    let is_footer_part = |(at, byte): (usize, &u8)| *byte == 0 || whole.get(at) == Some(byte);
    if bytes.iter().enumerate().all(is_footer_part) {
        return Ok(Rest::Footer);
    }
    let skip = usize::try_from(bad - end.offset).unwrap_or(usize::MAX);
    // A batch is written after the previous one is synced, and the footer after all of them.
    let is_later =
        |frame: &FrameView| frame.seq > end.place.seq && (frame.batch > end.place.batch + 1 || frame.has(SEALED));
    Ok(if frames_in(&bytes[skip.min(bytes.len())..]).any(|(_, frame)| is_later(&frame)) {
        Rest::Corrupt
    } else {
        Rest::Torn
    })
}

/// Returns the place that a footer behind the last good record names.
pub(super) fn sealed_at(file: &dyn DiskFile, good: Mark, end: u64) -> io::Result<Option<Place>> {
    let bytes = read_around(file, good.offset, end)?;
    let footer = frames_in(&bytes).map(|(_, frame)| frame).find(|frame| frame.has(SEALED));
    let place = footer.map(|frame| Place { seq: frame.seq, batch: frame.batch, chain: frame.chain });
    Ok(place.filter(|place| place.seq > good.place.seq))
}

/// Reads a range up to the file's end; what the disk cannot read becomes zeros.
fn read_around(file: &dyn DiskFile, from: u64, to: u64) -> io::Result<Vec<u8>> {
    match read_range(file, from, to) {
        Err(error) if is_unreadable(&error) => {}
        read => return read,
    }
    let (mut bytes, mut at, to) = (Vec::new(), from, to.min(file.len()?));
    while at < to {
        // A multiple of what disks lose at once.
        let end = to.min((at + 1).next_multiple_of(BLOCK_BYTES));
        match read_range(file, at, end) {
            Err(error) if is_unreadable(&error) => bytes.resize(bytes.len() + (end - at) as usize, 0),
            read => bytes.extend(read?),
        }
        at = end;
    }
    Ok(bytes)
}

/// Finds frames with a good checksum anywhere in `bytes`, which begin at a multiple of 8; each with its offset.
pub(super) fn frames_in(bytes: &[u8]) -> impl Iterator<Item = (usize, FrameView)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while at + FRAME_HEADER_BYTES <= bytes.len() {
            let begins_at = at;
            match (bytes[at..].starts_with(&MARKER)).then(|| parse(&bytes[at..])) {
                Some(Parsed::Frame(frame)) => {
                    at += frame.total;
                    return Some((begins_at, frame));
                }
                _ => at += 8,
            }
        }
        None
    })
}
