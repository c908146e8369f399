//! Recovery: examines a session's directory when it is opened, and finds what the first append must repair.
//!
//! Examining changes nothing on the disk, so that a read-only store can be read. Damage is never cut; only an
//! incomplete last batch is, by the first append (see `commit`).

use std::{io, path::Path, sync::Arc};

use super::{
    Near,
    disk::{Disk, DiskFile, failed, if_there, is_missing, is_unreadable, read_range, write_new},
    frame::Place,
    layout::{QUARANTINE, fan_out, generations_of, segment_name, session_dir, with_folders},
    segment::{HEADER_BYTES, Header, HeaderFound, Mark, Reader, Rest, Scan, frames_in, scan},
};
use meerkat_words::{
    ids::{Seq, SessionId},
    store::{StoreError, TailRepair},
};

/// Segment with a good header.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) generation: u64,
    /// Place of its first record.
    pub(super) start: Mark,
    /// End of its last durable record.
    pub(super) end: u64,
    /// Places to read from, in order; never empty.
    pub(super) index: Vec<Mark>,
    /// Of a compacted segment: place that the next segment continues.
    pub(super) after: Option<Place>,
}

impl Segment {
    /// Makes an empty segment with this header.
    pub(super) fn begun(header: &Header) -> Self {
        let start = Mark { offset: HEADER_BYTES, place: header.place() };
        let (number, generation) = (header.number, header.generation);
        let end = header.compacted.map_or(HEADER_BYTES, |compacted| compacted.end);
        let after = header.compacted.map(|compacted| compacted.after);
        Self { number, generation, start, end, index: vec![start], after }
    }

    pub(super) fn reader<'a>(&self, file: &'a dyn DiskFile, from: Mark) -> Reader<'a> {
        Reader::new(file, from, self.end).of(self.after.is_some())
    }

    /// Returns the place that a reader has reached; at the end it is the one that the next segment continues, even if
    /// the last records were dropped.
    pub(super) fn passed(&self, at: Mark) -> Mark {
        let after = self.after.filter(|_| at.offset == self.end);
        Mark { place: after.unwrap_or(at.place), ..at }
    }

    /// Scans it from one of its places to the end of a file of `len` bytes.
    pub(super) fn scan(&self, file: &dyn DiskFile, from: Mark, len: u64, knows: fn(u16) -> bool) -> io::Result<Scan> {
        if self.after.is_none() {
            return scan(Reader::new(file, from, len), knows);
        }
        let mut found = scan(self.reader(file, from), knows)?;
        // It was complete when it got its name, and is never written again.
        found.rest = if found.end.offset == self.end { Rest::Footer } else { Rest::Corrupt };
        found.end = self.passed(found.end);
        Ok(found)
    }

    pub(super) fn name(&self) -> String {
        segment_name(self.number, self.generation)
    }
}

/// Counts the replacements of a journal's segments.
pub(super) fn version(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| segment.generation - 1).sum()
}

/// Position of the next batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) number: u64,
    /// Length of the file; 0 if the header is not written yet.
    pub(super) len: u64,
    /// True if the file exists and its name is durable.
    pub(super) is_made: bool,
}

/// Bytes to cut before the next append.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    name: String,
    from: u64,
    bytes: u64,
    /// Path of their copy, unless they are zeros.
    quarantine: Option<String>,
}

#[derive(Debug)]
pub(super) struct Found {
    pub(super) segments: Vec<Segment>,
    /// Place after the last complete batch; its batch is the last id that may have been used.
    pub(super) place: Place,
    pub(super) head: Head,
    pub(super) damage: Option<StoreError>,
    pub(super) cuts: Vec<Cut>,
}

impl Found {
    /// Returns the state of a session without records. Its chain begins with its id, so that every chain is different.
    pub(super) fn nothing(id: SessionId) -> Self {
        let (high, low) = id.as_uuid().as_u64_pair();
        let place = Place { seq: 0, batch: 0, chain: high.rotate_left(32) ^ low };
        let head = Head { number: 1, len: 0, is_made: false };
        Self { segments: Vec::new(), place, head, damage: None, cuts: Vec::new() }
    }

    /// Summarises the cuts, for the event that reports them.
    pub(super) fn tail_repair(&self) -> Option<TailRepair> {
        let kept = self.cuts.iter().filter(|cut| cut.quarantine.is_some());
        let bytes = kept.clone().map(|cut| cut.bytes).sum();
        let names: Vec<String> = kept.filter_map(|cut| cut.quarantine.clone()).collect();
        (!names.is_empty()).then(|| TailRepair { bytes, quarantine: names.join(",") })
    }
}

/// Examines a session's directory; `None` if there is none.
pub(super) fn examine(disk: &dyn Disk, id: SessionId, knows: fn(u16) -> bool) -> Result<Option<Found>, StoreError> {
    let dir = session_dir(id);
    let names = match disk.list(&dir) {
        Err(error) if is_missing(&error) => return Ok(None),
        Err(error) if is_unreadable(&error) => {
            return Ok(Some(Found { damage: Some(unreadable(id, &error)), ..Found::nothing(id) }));
        }
        names => names.map_err(failed)?,
    };
    look(disk, id, &dir, &generations_of(&names), knows).map(Some).map_err(failed)
}

/// Reads the segments of a session; `None` if there is none or a header has a fault.
pub(super) fn headers(disk: &dyn Disk, id: SessionId) -> io::Result<Option<Vec<Segment>>> {
    let dir = session_dir(id);
    let Some(names) = if_there(disk.list(&dir))? else { return Ok(None) };
    let names = generations_of(&names);
    let Headers { segments, headless, trouble, .. } = read_headers(disk, id, &dir, &names)?;
    Ok((headless.is_none() && trouble.is_none() && segments.len() == names.len()).then_some(segments))
}

fn look(
    disk: &dyn Disk,
    id: SessionId,
    dir: &Path,
    names: &[(u64, Vec<u64>)],
    knows: fn(u16) -> bool,
) -> io::Result<Found> {
    let Headers { mut segments, last, headless, trouble } = read_headers(disk, id, dir, names)?;
    let (Some(segment), Some((file, len))) = (segments.last_mut(), last) else {
        let why = trouble.unwrap_or_else(|| Trouble::Damage("it has no segment".to_owned()));
        return Ok(Found { damage: Some(why.error(id, 0)), ..Found::nothing(id) });
    };
    let Scan { end, rest, is_newer, index } = segment.scan(file.as_ref(), segment.start, len, knows)?;
    (segment.end, segment.index) = (end.offset, index);
    let (number, name) = (segment.number, segment.name());
    let mut place = end.place;
    let mut cuts = Vec::new();
    let mut head = match rest {
        Rest::Nothing | Rest::Zeros => Head { number, len: end.offset, is_made: true },
        Rest::Footer | Rest::Torn | Rest::Corrupt => Head { number: number + 1, len: 0, is_made: false },
    };
    match rest {
        Rest::Nothing | Rest::Footer | Rest::Corrupt => {}
        Rest::Zeros => cuts.push(Cut { name, from: end.offset, bytes: len - end.offset, quarantine: None }),
        Rest::Torn => {
            // The dropped batch's id is not used again.
            place.batch += 1;
            cuts.push(Cut::kept(id, name, end.offset, len));
        }
    }
    let mut is_corrupt = rest == Rest::Corrupt;
    if let Some((file, name, len)) = headless {
        head = Head { number: number + 1, len: 0, is_made: true };
        let (bytes, is_readable) = match read_range(file.as_ref(), 0, len) {
            Err(error) if is_unreadable(&error) => (Vec::new(), false),
            bytes => (bytes?, true),
        };
        is_corrupt |= !is_readable;
        let frames = frames_in(&bytes);
        let last_batch = frames.iter().map(|frame| frame.batch).max().unwrap_or(0);
        let first_batch = frames.iter().map(|frame| frame.batch).min().unwrap_or(0);
        // A header is written with the first batch: if a second batch follows, the header was good once.
        is_corrupt |= last_batch > first_batch || last_batch > end.place.batch + 2;
        if !is_readable {
            // An unreadable file stays as it is.
        } else if bytes.iter().any(|&byte| byte != 0) {
            place.batch = last_batch.max(place.batch + 1);
            cuts.push(Cut::kept(id, name, 0, len));
        } else if len > 0 {
            cuts.push(Cut { name, from: 0, bytes: len, quarantine: None });
        }
    }
    let trouble = match trouble {
        None if is_newer => Some(Trouble::Newer),
        None if is_corrupt => Some(Trouble::Damage("a record is bad, and good ones follow it".to_owned())),
        trouble => trouble,
    };
    let damage = trouble.map(|trouble| trouble.error(id, place.seq));
    Ok(Found { segments, place, head, damage, cuts })
}

enum Trouble {
    Newer,
    Damage(String),
}

impl Trouble {
    fn error(self, session_id: SessionId, last_good_seq: Seq) -> StoreError {
        match self {
            Self::Newer => StoreError::FormatNewer(session_id),
            Self::Damage(why) => StoreError::Corrupted { session_id, last_good_seq, why },
        }
    }
}

struct Headers {
    /// Segments with good headers, up to the first bad one.
    segments: Vec<Segment>,
    /// File of the last of them, and its length.
    last: Option<(Arc<dyn DiskFile>, u64)>,
    /// Last file if its header may never have been written: file, name and length.
    headless: Option<(Arc<dyn DiskFile>, String, u64)>,
    trouble: Option<Trouble>,
}

/// Segment file with its name and header.
type Opened = (Arc<dyn DiskFile>, String, HeaderFound);

/// Opens the newest generation with a fitting header, or the newest of all if there is none.
fn best(
    disk: &dyn Disk,
    dir: &Path,
    number: u64,
    generations: &[u64],
    before: Option<&Segment>,
) -> io::Result<Option<Opened>> {
    let mut newest = None;
    for &generation in generations {
        let name = segment_name(number, generation);
        let file = disk.open(&dir.join(&name), false)?;
        let header = Header::read(file.as_ref())?;
        if matches!(&header, HeaderFound::Good(header) if fits(header, number, generation, before)) {
            return Ok(Some((file, name, header)));
        }
        newest.get_or_insert((file, name, header));
    }
    Ok(newest)
}

fn read_headers(disk: &dyn Disk, id: SessionId, dir: &Path, names: &[(u64, Vec<u64>)]) -> io::Result<Headers> {
    let mut found = Headers { segments: Vec::new(), last: None, headless: None, trouble: None };
    for (at, (number, generations)) in names.iter().enumerate() {
        let before = found.segments.last();
        let opened = best(disk, dir, *number, generations, before)
            .and_then(|opened| opened.map(|opened| Ok((opened.0.len()?, opened))).transpose());
        let (len, (file, name, header)) = match opened {
            Ok(Some(opened)) => opened,
            Ok(None) => break,
            Err(error) if is_unreadable(&error) => {
                found.trouble = Some(Trouble::Damage(format!("segment {number} cannot be read: {error}")));
                break;
            }
            Err(error) => return Err(error),
        };
        let is_last = at + 1 == names.len();
        let is_next = *number == at as u64 + 1;
        match header {
            HeaderFound::Good(header) if is_next && fits(&header, *number, header.generation, before) => {
                // Only a fork has segments of another session, and its last one is its own.
                if is_last && header.session_id != id {
                    found.trouble = Some(Trouble::Damage(format!("{name} is another session's")));
                }
                if let Some(before) = found.segments.last_mut().filter(|before| before.after.is_none()) {
                    before.end = header.previous_end;
                }
                found.segments.push(Segment::begun(&header));
                found.last = Some((file, len));
                continue;
            }
            HeaderFound::Newer => found.trouble = Some(Trouble::Newer),
            HeaderFound::Bad if is_last && is_next && at > 0 => found.headless = Some((file, name, len)),
            HeaderFound::Good(_) | HeaderFound::Bad => {
                found.trouble = Some(Trouble::Damage(format!("{name} has no good header, or does not follow")));
            }
        }
        break;
    }
    Ok(found)
}

fn fits(header: &Header, number: u64, generation: u64, before: Option<&Segment>) -> bool {
    let follows = |before: &Segment| match before.after {
        Some(Place { seq, chain, .. }) => (header.base_seq, header.chain) == (seq + 1, chain),
        None => header.base_seq > before.start.place.seq && header.previous_end >= before.start.offset,
    };
    (header.number, header.generation) == (number, generation) && before.is_none_or(follows)
}

impl Cut {
    /// Makes a cut of the bytes from `from` on, with a copy.
    fn kept(id: SessionId, name: String, from: u64, len: u64) -> Self {
        let quarantine = Some(format!("{QUARANTINE}/{id}.{name}.{from}"));
        Self { name, from, bytes: len - from, quarantine }
    }

    /// Copies the bytes to the quarantine, durably. It may be repeated.
    pub(super) fn keep(&self, disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        let Some(quarantine) = &self.quarantine else { return Ok(()) };
        let file = disk.open(&dir.join(&self.name), false)?;
        if file.len()? <= self.from {
            // An earlier attempt has cut them already.
            return Ok(());
        }
        let bytes = read_range(file.as_ref(), self.from, self.from + self.bytes)?;
        with_folders(disk, || write_new(disk, Path::new(quarantine), &bytes))?;
        disk.sync_dir(Path::new(QUARANTINE))
    }

    /// Cuts the bytes, durably. If this fails, the file's content is unknown, and it must not be repeated.
    pub(super) fn perform(&self, disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        let file = disk.open(&dir.join(&self.name), true)?;
        if file.len()? <= self.from {
            return Ok(());
        }
        file.set_len(self.from)?;
        file.sync()
    }
}

/// Syncs what a killed process may have left in the system's memory alone.
pub(super) fn settle(disk: &dyn Disk, id: SessionId, segments: &[Segment]) -> io::Result<()> {
    let dir = session_dir(id);
    if let Some(segment) = segments.last() {
        disk.open(&dir.join(segment.name()), false)?.sync()?;
    }
    disk.sync_dir(&dir)?;
    disk.sync_dir(&fan_out(id))
}

/// Makes the store's error for a session with unreadable files.
pub fn unreadable(session_id: SessionId, error: &io::Error) -> StoreError {
    StoreError::Corrupted { session_id, last_good_seq: 0, why: format!("its files cannot be read: {error}") }
}

/// Returns a place in the last segment shortly before the record `last`.
pub(super) fn near_end(segments: &[Segment], last: Seq) -> Option<Near> {
    let segment = segments.last().filter(|segment| segment.after.is_none())?;
    let Mark { offset, place } = segment.index.iter().rev().find(|mark| mark.place.seq < last)?;
    let (number, generation, Place { seq, batch, chain }) = (segment.number, segment.generation, *place);
    Some(Near { number, generation, offset: *offset, seq, batch, chain })
}
