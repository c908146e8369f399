//! Recovery: examines a session's directory when it is opened, and finds what the first append must repair.
//!
//! Examining changes nothing on the disk, so that a read-only store can be read. Damage is never cut; only an
//! incomplete last batch is, by the first append (see `commit`).

use std::{io, path::Path, sync::Arc};

use super::{
    Near,
    disk::{Disk, DiskFile, failed, if_there, is_missing, is_unreadable, read_range, write_all, write_new},
    frame::Place,
    layout::{QUARANTINE, fan_out, generations_of, segment_name, session_dir, with_folders},
    segment::{HEADER_BYTES, Header, HeaderFound, Mark, Reader, Rest, Scan, frames_in, scan, sealed_at},
};
use meerkat_words::{
    ids::{Seq, SessionId},
    store::{StoreError, TailRepair},
};

/// Longest file that can be a segment: one is sealed at a few megabytes, after its last batch. A longer one is sparse, or
/// its inode is damaged.
const SEGMENT_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Bytes of a longer file in which records are looked for.
const SEARCHED_BYTES: u64 = 64 * 1024 * 1024;

/// Returns the number of bytes of a segment's file to read.
const fn readable(len: u64) -> u64 {
    if len > SEGMENT_BYTES_MAX { SEARCHED_BYTES } else { len }
}

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
    /// True if its header is damaged: its frames say where it begins, and its seqs may skip.
    pub(super) is_headless: bool,
}

impl Segment {
    /// Makes an empty segment with this header.
    pub(super) fn begun(header: &Header) -> Self {
        let start = Mark { offset: HEADER_BYTES, place: header.place() };
        let (number, generation) = (header.number, header.generation);
        let end = header.compacted.map_or(HEADER_BYTES, |compacted| compacted.end);
        let after = header.compacted.map(|compacted| compacted.after);
        Self { number, generation, start, end, index: vec![start], after, is_headless: false }
    }

    /// Makes a segment of the good frames in a file whose header is damaged, behind the segment `before`; `None` if
    /// there are none.
    fn headless(
        file: &dyn DiskFile,
        (number, generation): (u64, u64),
        before: Option<&Self>,
        end: u64,
    ) -> io::Result<Option<Self>> {
        let place = before.map_or(Place { seq: 0, batch: 0, chain: 0 }, |before| before.start.place);
        let mut reader = Reader::new(file, Mark { offset: HEADER_BYTES, place }, end).of(true);
        if !reader.pass_over()? {
            return Ok(None);
        }
        let start = reader.at;
        Ok(Some(Self { number, generation, start, end, index: vec![start], after: None, is_headless: true }))
    }

    pub(super) fn reader<'a>(&self, file: &'a dyn DiskFile, from: Mark) -> Reader<'a> {
        Reader::new(file, from, self.end).of(self.skips())
    }

    /// Returns true if its seqs may skip; then only the chain says if a record is missing.
    const fn skips(&self) -> bool {
        self.after.is_some() || self.is_headless
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
            return scan(Reader::new(file, from, len).of(self.skips()), knows);
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
    /// True if records may be lost behind `place`.
    pub(super) is_end_lost: bool,
    pub(super) cuts: Vec<Cut>,
}

impl Found {
    /// Returns the state of a session without records. Its chain begins with its id, so that every chain is different.
    pub(super) fn nothing(id: SessionId) -> Self {
        let (high, low) = id.as_uuid().as_u64_pair();
        let place = Place { seq: 0, batch: 0, chain: high.rotate_left(32) ^ low };
        let head = Head { number: 1, len: 0, is_made: false };
        Self { segments: Vec::new(), place, head, damage: None, is_end_lost: false, cuts: Vec::new() }
    }

    /// Returns the state of a session of which nothing can be read.
    fn lost(id: SessionId, damage: StoreError) -> Self {
        Self { damage: Some(damage), is_end_lost: true, ..Self::nothing(id) }
    }

    /// Summarises the cuts, for the event that reports them.
    pub(super) fn tail_repair(&self) -> Option<TailRepair> {
        let kept = self.cuts.iter().filter(|cut| cut.quarantine.is_some());
        let bytes = kept.clone().map(|cut| cut.bytes).sum();
        let names: Vec<String> = kept.filter_map(|cut| cut.quarantine.clone()).collect();
        (!names.is_empty()).then(|| TailRepair { bytes, quarantine: names.join(",") })
    }
}

/// Examines a session's directory; `None` if there is none. `known` returns the last seq that is known to have been
/// durable: what an end up to there lacks was not cut off, but damaged.
pub(super) fn examine(
    disk: &dyn Disk,
    id: SessionId,
    knows: fn(u16) -> bool,
    known: &dyn Fn() -> Seq,
) -> Result<Option<Found>, StoreError> {
    let dir = session_dir(id);
    let names = match disk.list(&dir) {
        Err(error) if is_missing(&error) => return Ok(None),
        Err(error) if is_unreadable(&error) => {
            return Ok(Some(Found::lost(id, unreadable(id, &error))));
        }
        names => names.map_err(failed)?,
    };
    look(disk, id, &dir, &generations_of(&names), knows, known).map(Some).map_err(failed)
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
    known: &dyn Fn() -> Seq,
) -> io::Result<Found> {
    let Headers { mut segments, last, headless, mut trouble, mut is_end_lost } = read_headers(disk, id, dir, names)?;
    let (Some(segment), Some((file, file_len))) = (segments.last_mut(), last) else {
        let why = trouble.unwrap_or_else(|| Trouble::Damage("it has no good segment".to_owned(), 0));
        return Ok(Found::lost(id, why.error(id)));
    };
    let len = readable(file_len);
    let Scan { end, mut rest, is_newer, index } = segment.scan(file.as_ref(), segment.start, len, knows)?;
    // Behind a segment whose header is bad the known records may be that one's.
    let known_bad = (rest == Rest::Torn && headless.is_none()).then(known).filter(|known| *known > end.place.seq);
    if known_bad.is_some() {
        rest = Rest::Corrupt;
    }
    if len < file_len && rest != Rest::Corrupt {
        let why = format!("{} has an impossible length, {file_len} bytes", segment.name());
        trouble.get_or_insert(Trouble::Damage(why, end.place.seq));
        // Nothing is cut, and nothing is appended to it.
        (rest, is_end_lost) = (Rest::Footer, true);
    }
    let (number, name) = (segment.number, segment.name());
    let (mut place, mut cuts) = (end.place, Vec::new());
    let last_number = names.last().map_or(number, |(last, _)| *last);
    let mut head = match rest {
        Rest::Nothing | Rest::Zeros if last_number == number => Head { number, len: end.offset, is_made: true },
        _ => Head { number: last_number + 1, len: 0, is_made: false },
    };
    if rest == Rest::Corrupt {
        let why = match known_bad {
            Some(known) => format!("a record is bad, and records up to seq {known} were durable"),
            None => "a record is bad, and good ones follow it".to_owned(),
        };
        trouble.get_or_insert(Trouble::Damage(why, end.place.seq));
        // Of a compacted segment the header says where it ends.
        place = match segment.after {
            Some(after) => after,
            None => {
                let reader = || Reader::new(file.as_ref(), segment.start, len).of(segment.skips());
                let mut good = reader().last_good(None)?;
                if let Some(known) = known_bad.filter(|known| *known > good.place.seq) {
                    // Of its last batch the end is bad.
                    good = reader().last_good(Some(known + 1))?;
                    is_end_lost |= good.place.seq < known;
                }
                segment.end = good.offset;
                // Its footer may still say where it ended.
                let sealed = sealed_at(file.as_ref(), good, len)?;
                is_end_lost |= sealed.is_none() && good.place.seq == end.place.seq;
                sealed.unwrap_or(good.place)
            }
        };
    } else {
        (segment.end, segment.index) = (end.offset, index);
    }
    match rest {
        Rest::Nothing | Rest::Footer | Rest::Corrupt => {}
        Rest::Zeros => cuts.push(Cut { name, from: end.offset, bytes: len - end.offset, quarantine: None }),
        Rest::Torn => {
            // The dropped batch's id is not used again.
            place.batch += 1;
            cuts.push(Cut::kept(id, name, end.offset, len));
        }
    }
    if let Some(Headless { file, name, number, generation, len }) = headless {
        let len = readable(len);
        let before = segments.last();
        let salvaged = Segment::headless(file.as_ref(), (number, generation), before, len)?;
        let (bytes, is_readable) = match read_range(file.as_ref(), 0, len) {
            Err(error) if is_unreadable(&error) => (Vec::new(), false),
            bytes => (bytes?, true),
        };
        let batches = || frames_in(&bytes).map(|(_, frame)| frame.batch);
        let (first_batch, last_batch) = (batches().min().unwrap_or(0), batches().max().unwrap_or(0));
        // A header is written with the first batch: if a second batch follows, the header was good once.
        let is_known = || known() > end.place.seq;
        let was_good = last_batch > first_batch || last_batch > end.place.batch + 2 || is_known();
        if was_good || !is_readable {
            let why = format!("the header of {name} is bad, and it held records");
            trouble.get_or_insert(Trouble::Damage(why, place.seq));
            head = Head { number: number + 1, len: 0, is_made: false };
            is_end_lost |= salvaged.is_none();
            if let Some(mut segment) = salvaged {
                let good = segment.reader(file.as_ref(), segment.start).last_good(None)?;
                (segment.end, place) = (good.offset, good.place);
                segments.push(segment);
            }
        } else {
            head = Head { number, len: 0, is_made: true };
            if bytes.iter().any(|&byte| byte != 0) {
                place.batch = last_batch.max(place.batch + 1);
                cuts.push(Cut::kept(id, name, 0, len));
            } else if len > 0 {
                cuts.push(Cut { name, from: 0, bytes: len, quarantine: None });
            }
        }
    }
    let trouble = if is_newer { trouble.or(Some(Trouble::Newer)) } else { trouble };
    let damage = trouble.map(|trouble| trouble.error(id));
    Ok(Found { segments, place, head, damage, is_end_lost, cuts })
}

enum Trouble {
    Newer,
    /// Damage, and the seq of the last record before it.
    Damage(String, Seq),
}

impl Trouble {
    fn error(self, session_id: SessionId) -> StoreError {
        match self {
            Self::Newer => StoreError::FormatNewer(session_id),
            Self::Damage(why, last_good_seq) => StoreError::Corrupted { session_id, last_good_seq, why },
        }
    }
}

struct Headers {
    /// Segments that can be read, at least in part.
    segments: Vec<Segment>,
    /// File of the last of them, and its length.
    last: Option<(Arc<dyn DiskFile>, u64)>,
    /// Last file if its header may never have been written.
    headless: Option<Headless>,
    /// First trouble.
    trouble: Option<Trouble>,
    /// True if nothing of the last file can be read.
    is_end_lost: bool,
}

struct Headless {
    file: Arc<dyn DiskFile>,
    name: String,
    number: u64,
    generation: u64,
    len: u64,
}

/// Segment file with its name and header.
type Opened = (Arc<dyn DiskFile>, (u64, u64), HeaderFound);

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
        let file = disk.open(&dir.join(segment_name(number, generation)), false)?;
        let header = Header::read(file.as_ref())?;
        if matches!(&header, HeaderFound::Good(header) if fits(header, number, generation, before)) {
            return Ok(Some((file, (number, generation), header)));
        }
        newest.get_or_insert((file, (number, generation), header));
    }
    Ok(newest)
}

fn read_headers(disk: &dyn Disk, id: SessionId, dir: &Path, names: &[(u64, Vec<u64>)]) -> io::Result<Headers> {
    let mut found = Headers { segments: Vec::new(), last: None, headless: None, trouble: None, is_end_lost: false };
    let mut expected = 1;
    for (at, (number, generations)) in names.iter().enumerate() {
        let (number, is_last) = (*number, at + 1 == names.len());
        let is_next = std::mem::replace(&mut expected, number + 1) == number;
        let before = found.segments.last();
        let opened = best(disk, dir, number, generations, before)
            .and_then(|opened| opened.map(|opened| Ok((opened.0.len()?, opened))).transpose());
        let (len, (file, (number, generation), header)) = match opened {
            Ok(Some(opened)) => opened,
            Ok(None) => break,
            Err(error) if is_unreadable(&error) => {
                found.is_end_lost = is_last;
                found.damage(disk, dir, format!("segment {number} cannot be read: {error}"))?;
                continue;
            }
            Err(error) => return Err(error),
        };
        let name = segment_name(number, generation);
        let is_its = |header: &Header| {
            let is_later = before.is_none_or(|before| header.base_seq > before.start.place.seq);
            (header.number, header.generation) == (number, generation) && is_later
        };
        let segment = match header {
            HeaderFound::Newer => {
                found.trouble = Some(Trouble::Newer);
                break;
            }
            HeaderFound::Bad if is_last && is_next && at > 0 => {
                found.headless = Some(Headless { file, name, number, generation, len });
                break;
            }
            HeaderFound::Good(header) if is_its(&header) => {
                // Only a fork has segments of another session, and its last one is its own.
                let is_anothers = is_last && header.session_id != id;
                if is_anothers || !is_next || !fits(&header, number, generation, before) {
                    found.damage(disk, dir, format!("{name} does not follow the segment before it"))?;
                }
                // After a compaction this header still says where the first generation ended.
                let has_end = |before: &&mut Segment| before.after.is_none() && before.generation == 1;
                if is_next
                    && let Some(before) = found.segments.last_mut().filter(has_end)
                    && header.previous_end >= before.start.offset
                {
                    before.end = header.previous_end;
                } else {
                    found.measure(disk, dir, header.base_seq)?;
                }
                Some(Segment::begun(&header))
            }
            HeaderFound::Good(_) | HeaderFound::Bad => {
                found.damage(disk, dir, format!("{name} has no good header"))?;
                let len = readable(len);
                let segment = Segment::headless(file.as_ref(), (number, generation), found.segments.last(), len)?;
                found.measure(disk, dir, segment.as_ref().map_or(Seq::MAX, |segment| segment.start.place.seq + 1))?;
                segment
            }
        };
        found.is_end_lost = is_last && segment.is_none();
        if let Some(segment) = segment {
            found.segments.push(segment);
            found.last = Some((file, len));
        }
    }
    Ok(found)
}

impl Headers {
    /// Notes damage behind the last segment so far.
    fn damage(&mut self, disk: &dyn Disk, dir: &Path, why: String) -> io::Result<()> {
        if self.trouble.is_none() {
            let last_good_seq = self.measure(disk, dir, Seq::MAX)?;
            self.trouble = Some(Trouble::Damage(why, last_good_seq));
        }
        Ok(())
    }

    /// Finds the end of the last segment so far, which no other header says: what is before the seq `before`. Returns
    /// its last seq.
    fn measure(&mut self, disk: &dyn Disk, dir: &Path, before: Seq) -> io::Result<Seq> {
        let Some(segment) = self.segments.last_mut() else { return Ok(0) };
        let (file, len) = match &self.last {
            Some((file, len)) => (file.clone(), *len),
            None => {
                let file = disk.open(&dir.join(segment.name()), false)?;
                (file.clone(), file.len()?)
            }
        };
        if let Some(after) = segment.after {
            return Ok(after.seq);
        }
        let reader = Reader::new(file.as_ref(), segment.start, readable(len)).of(segment.skips());
        let good = reader.last_good(Some(before))?;
        segment.end = good.offset;
        Ok(good.place.seq)
    }
}

fn fits(header: &Header, number: u64, generation: u64, before: Option<&Segment>) -> bool {
    let follows = |before: &Segment| match before.after {
        Some(Place { seq, chain, .. }) => (header.base_seq, header.chain) == (seq + 1, chain),
        // The frames of a segment without a header say only where its good records begin.
        None if before.is_headless => header.base_seq > before.start.place.seq,
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

/// Makes durable what a killed process may have left in the system's memory alone. The last batch is written again: if
/// its sync failed before the kill, the system may have forgotten that it is unwritten, and another sync would mean
/// nothing.
pub(super) fn settle(disk: &dyn Disk, id: SessionId, segments: &[Segment]) -> io::Result<()> {
    let dir = session_dir(id);
    if let Some(segment) = segments.last() {
        let file = disk.open(&dir.join(segment.name()), true)?;
        // A compacted segment was durable before it got its name.
        if segment.after.is_none() {
            let from = segment.index.iter().rev().map(|mark| mark.offset).find(|offset| *offset < segment.end);
            // The header was written with the first batch.
            let from = from.filter(|from| *from > segment.start.offset).unwrap_or(0);
            write_all(file.as_ref(), &read_range(file.as_ref(), from, segment.end)?, from)?;
        }
        file.sync()?;
    }
    sync_names(disk, id)
}

/// Syncs the files of a damaged journal as they are.
pub(super) fn sync(disk: &dyn Disk, id: SessionId, segments: &[Segment]) -> io::Result<()> {
    if let Some(segment) = segments.last() {
        disk.open(&session_dir(id).join(segment.name()), false)?.sync()?;
    }
    sync_names(disk, id)
}

fn sync_names(disk: &dyn Disk, id: SessionId) -> io::Result<()> {
    disk.sync_dir(&session_dir(id))?;
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
