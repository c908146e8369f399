//! Examination of a session's whole directory for `meerkat doctor`, and its repair. Only [`mend`] changes anything.
//!
//! A repair keeps every good record with its seq and its bytes. A damaged segment is replaced by its next generation,
//! which has the form of a compacted one, so that what is lost looks dropped; a new record at the end says what it was.

use std::{io, path::Path};

use bytes::Bytes;

use super::{
    End,
    disk::{Disk, failed, if_there, is_unreadable, write_new},
    fork::{copy, link_blobs},
    frame::{BATCH_END, Entry, Place, encode, encode_batch},
    layout::{BLOBS, NEW, QUARANTINE, generations_of, segment_name, session_dir, with_folders},
    recovery::{Found, Segment, examine},
    segment::{Compacted, HEADER_BYTES, Header, HeaderFound, Step},
};
use meerkat_words::{
    ids::{Seq, SessionId},
    store::StoreError,
};

/// Examined journal.
pub struct Checked {
    found: Found,
    /// Last seq that is known to have been durable.
    known: Seq,
    /// Its segments, in order.
    parts: Vec<Part>,
    /// Its damage, if any.
    pub damage: Option<Damage>,
}

/// Damage of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Description.
    pub why: String,
    /// Seq of the last good record before the first damage.
    pub last_good_seq: Seq,
    /// Lost seqs: the first and the last one of each range. They are not lost if only a header is damaged.
    pub lost: Vec<(Seq, Seq)>,
    /// True if good records remain.
    pub can_be_mended: bool,
}

/// Examined segment.
struct Part {
    segment: Segment,
    /// Place after its last good record.
    end: Place,
    /// True if it must be replaced.
    is_bad: bool,
}

impl Checked {
    /// Returns its end; durable records after that are lost.
    pub const fn end(&self) -> End {
        self.found.place.end()
    }

    /// Returns the bytes at its end that were never acknowledged.
    pub fn torn_bytes(&self) -> u64 {
        self.found.tail_repair().map_or(0, |repair| repair.bytes)
    }
}

/// Reads a session's whole journal, and passes each good record to `see`; `None` if there is no such session. `known` is
/// the last seq that is known to have been durable.
pub fn check(
    disk: &dyn Disk,
    id: SessionId,
    knows: fn(u16) -> bool,
    known: Seq,
    see: &mut dyn FnMut(Seq, &Bytes),
) -> Result<Option<Checked>, StoreError> {
    let Some(found) = examine(disk, id, knows, &|| known)? else { return Ok(None) };
    let mut walk = Walk::default();
    walk.all(disk, id, &found, see).map_err(failed)?;
    walk.end(&found, known);
    let Walk { parts, lost, first, has_good } = walk;
    let opened = match &found.damage {
        Some(StoreError::Corrupted { last_good_seq, why, .. }) => Some((*last_good_seq, why.clone())),
        Some(other) => Some((found.place.seq, other.to_string())),
        None => None,
    };
    let first = match (first, opened) {
        (Some(walked), Some(opened)) => Some(if opened.0 < walked.0 { opened } else { walked }),
        (walked, opened) => walked.or(opened),
    };
    let can_be_mended = has_good && !matches!(found.damage, Some(StoreError::FormatNewer(_)));
    let damage = first.map(|(last_good_seq, why)| Damage { why, last_good_seq, lost, can_be_mended });
    Ok(Some(Checked { found, known, parts, damage }))
}

#[derive(Default)]
struct Walk {
    parts: Vec<Part>,
    lost: Vec<(Seq, Seq)>,
    /// First damage: the last good seq before it, and its description.
    first: Option<(Seq, String)>,
    has_good: bool,
}

impl Walk {
    fn all(
        &mut self,
        disk: &dyn Disk,
        id: SessionId,
        found: &Found,
        see: &mut dyn FnMut(Seq, &Bytes),
    ) -> io::Result<()> {
        for segment in &found.segments {
            self.follow(segment);
            let mut part = Part { segment: segment.clone(), end: segment.start.place, is_bad: segment.is_headless };
            let frames = good_frames(disk, id, segment, &mut |gap, entry| match entry {
                Good::Behind(last_good) => {
                    part.is_bad = true;
                    self.lose(last_good, gap, || {
                        format!("{} holds a bad record after seq {last_good}", segment.name())
                    });
                }
                Good::Record(entry, _) => {
                    self.has_good = true;
                    see(entry.seq, &entry.line);
                }
            })?;
            part.is_bad |= !frames.is_whole;
            part.end = frames.end;
            self.parts.push(part);
        }
        Ok(())
    }

    /// Compares its end with what it should be. Of a journal without other damage the caller says what is missing.
    fn end(&mut self, found: &Found, known: Seq) {
        let is_damaged = found.damage.is_some() || self.first.is_some();
        let end = if is_damaged { found.place.seq.max(known) } else { found.place.seq };
        let last = self.parts.last().map_or(0, |part| part.end.seq);
        if end > last {
            self.end_is_bad();
            self.lose(last, end + 1, || format!("the records after seq {last} are bad, or missing"));
        }
    }

    /// Compares the end of the segment before with the place that the next one goes on from.
    fn follow(&mut self, next: &Segment) {
        let (place, name) = (next.start.place, next.name());
        let before = self.parts.last();
        let end = before.map_or(Place { seq: 0, batch: 0, chain: place.chain }, |before| before.end);
        if (end.seq, end.chain) == (place.seq, place.chain) {
            return;
        }
        let why = format!("{name} does not go on from the end of the segment before it, seq {}", end.seq);
        self.end_is_bad();
        self.lose(end.seq, place.seq + 1, || why);
    }

    fn end_is_bad(&mut self) {
        if let Some(part) = self.parts.last_mut() {
            part.is_bad = true;
        }
    }

    /// Notes that the records between two good ones are lost.
    fn lose(&mut self, last_good: Seq, next_good: Seq, why: impl FnOnce() -> String) {
        if last_good + 1 < next_good {
            self.lost.push((last_good + 1, next_good - 1));
        }
        self.first.get_or_insert_with(|| (last_good, why()));
    }
}

/// What [`good_frames`] finds.
enum Good<'a> {
    /// Damage after the last good seq; the next good one comes with it.
    Behind(Seq),
    /// A record, and its batch.
    Record(&'a Entry, u64),
}

/// Result of reading a segment's good frames.
struct Read {
    end: Place,
    /// True if it was read to the end that it should have.
    is_whole: bool,
}

/// Reads the good frames of a segment. `see` gets the seq of the next good record with each of them.
fn good_frames(
    disk: &dyn Disk,
    id: SessionId,
    segment: &Segment,
    see: &mut dyn FnMut(Seq, Good<'_>),
) -> io::Result<Read> {
    let file = match disk.open(&session_dir(id).join(segment.name()), false) {
        Err(error) if is_unreadable(&error) => return Ok(Read { end: segment.start.place, is_whole: false }),
        file => file?,
    };
    let mut reader = segment.reader(file.as_ref(), segment.start);
    loop {
        match reader.next()? {
            Step::Frame(frame, line) => {
                let entry = Entry { seq: frame.seq, kind: frame.kind, ms: frame.ms, line };
                see(frame.seq, Good::Record(&entry, frame.batch));
            }
            Step::End if reader.at.offset == segment.end => {
                return Ok(Read { end: segment.passed(reader.at).place, is_whole: true });
            }
            Step::End | Step::Sealed | Step::Bad => {
                let last_good = reader.at.place;
                if !reader.pass_over()? {
                    return Ok(Read { end: last_good, is_whole: false });
                }
                see(reader.at.place.seq + 1, Good::Behind(last_good.seq));
            }
        }
    }
}

/// Repaired journal.
#[derive(Debug, PartialEq, Eq)]
pub struct Mended {
    /// First of the copies of what was replaced, if anything was.
    pub kept: Option<String>,
    /// Lost seqs: the first and the last one of each range.
    pub lost: Vec<(Seq, Seq)>,
    /// The last seq.
    pub end: Seq,
}

/// Next generation of a segment, or one in place of a missing one.
struct Heir {
    number: u64,
    generation: u64,
    /// Generations that it replaces.
    replaced: Vec<u64>,
    bytes: Vec<u8>,
}

impl Heir {
    fn name(&self) -> String {
        segment_name(self.number, self.generation)
    }

    fn made(&self, id: SessionId) -> std::path::PathBuf {
        Path::new(NEW).join(format!("{id}.{}", self.name()))
    }
}

/// Makes the record of this seq that says which ranges are lost.
pub type LastRecord<'a> = dyn FnMut(Seq, &[(Seq, Seq)]) -> io::Result<Entry> + 'a;

/// Repairs a journal: keeps every good record, and appends the record that `last` makes of the next seq and the lost
/// ones. No seq is used again that is known to have been durable. What is replaced is kept in the quarantine, as whole
/// segments, with the session's blobs.
pub fn mend(disk: &dyn Disk, id: SessionId, checked: &Checked, last: &mut LastRecord<'_>) -> io::Result<Mended> {
    let dir = session_dir(id);
    let names = generations_of(&disk.list(&dir)?);
    let found = checked.found.place;
    let end = Place { seq: found.seq.max(checked.known), ..found };
    let mut lost = checked.damage.as_ref().map(|damage| damage.lost.clone()).unwrap_or_default();
    if checked.damage.is_none() && end.seq > found.seq {
        lost.push((found.seq + 1, end.seq));
    }
    let entry = last(end.seq + 1, &lost)?;
    let (heirs, mut place, previous_end) = heirs(disk, id, checked, &names, end)?;
    let kept = keep(disk, id, &heirs)?;
    for heir in &heirs {
        with_folders(disk, || write_new(disk, &heir.made(id), &heir.bytes))?;
    }
    // The record comes first: a kill in between leaves a journal that is still damaged, and says all the same what is
    // lost.
    let header = Header::after(id, names.last().map_or(0, |(number, _)| *number) + 1, place, previous_end);
    let mut bytes = header.encode();
    let batch = place.batch + 1;
    encode_batch(&mut bytes, &mut place, batch, [entry]);
    let (name, made) = (segment_name(header.number, header.generation), Path::new(NEW).join(format!("{id}.lost")));
    with_folders(disk, || write_new(disk, &made, &bytes))?;
    disk.rename(&made, &dir.join(name))?;
    disk.sync_dir(&dir)?;
    for heir in &heirs {
        disk.rename(&heir.made(id), &dir.join(heir.name()))?;
    }
    disk.sync_dir(&dir)?;
    for heir in &heirs {
        for generation in &heir.replaced {
            disk.remove(&dir.join(segment_name(heir.number, *generation)))?;
        }
    }
    disk.sync_dir(&dir)?;
    Ok(Mended { kept, lost, end: place.seq })
}

/// Makes the segments that replace the bad and missing ones, so that each follows the one before. Returns the place
/// that the next segment continues, and the offset at which the last one ends.
fn heirs(
    disk: &dyn Disk,
    id: SessionId,
    checked: &Checked,
    names: &[(u64, Vec<u64>)],
    end: Place,
) -> io::Result<(Vec<Heir>, Place, u64)> {
    let (mut heirs, mut place, mut previous_end) = (Vec::new(), Found::nothing(id).place, 0);
    let last = names.last().map_or(0, |(number, _)| *number);
    let part_of = |number: u64| checked.parts.iter().find(|part| part.segment.number == number);
    for number in 1..=last {
        let part = part_of(number);
        if let Some(part) = part.filter(|part| !part.is_bad && (number < last || part.end.seq == end.seq)) {
            (place, previous_end) = (part.end, part.segment.end);
            continue;
        }
        let begun = part.filter(|part| !part.segment.is_headless);
        let base = begun.map_or(place, |part| part.segment.start.place);
        let next = part_of(number + 1).filter(|next| !next.segment.is_headless).map(|next| next.segment.start.place);
        let frames = part.map_or_else(|| Ok(Vec::new()), |part| frames_of(disk, id, &part.segment))?;
        let session_id = begun.and_then(|part| owner(disk, id, &part.segment)).unwrap_or(id);
        let replaced: Vec<u64> =
            names.iter().find(|(known, _)| *known == number).map(|(_, all)| all.clone()).unwrap_or_default();
        let generation = replaced.iter().max().map_or(1, |newest| newest + 1);
        let mut header = Header { generation, ..Header::after(session_id, number, base, previous_end) };
        let (mut at, mut bytes) = (base, header.encode());
        for (entry, batch, is_end) in &frames {
            encode(&mut bytes, &mut at, *batch, if *is_end { BATCH_END } else { 0 }, entry);
        }
        let after = match next {
            _ if number == last => Place { seq: end.seq, batch: end.batch.max(at.batch), ..at },
            next => next.unwrap_or(at),
        };
        let (count, ends_at) = (frames.len() as u64, bytes.len() as u64);
        header.compacted = Some(Compacted { after, count, end: ends_at });
        bytes[..HEADER_BYTES as usize].copy_from_slice(&header.encode());
        // Until the heir has its place, the next header says where the old segment ends: a kill in between must lose nothing
        // of that. Of an heir it says nothing.
        (place, previous_end) = (after, part.map_or(ends_at, |part| part.segment.end));
        heirs.push(Heir { number, generation, replaced, bytes });
    }
    Ok((heirs, place, previous_end))
}

/// Returns the good records of a segment, each with its batch, and if that ends with it.
fn frames_of(disk: &dyn Disk, id: SessionId, segment: &Segment) -> io::Result<Vec<(Entry, u64, bool)>> {
    let mut frames: Vec<(Entry, u64, bool)> = Vec::new();
    good_frames(disk, id, segment, &mut |_, good| {
        if let Good::Record(entry, batch) = good {
            if let Some(before) = frames.last_mut() {
                before.2 = before.1 != batch;
            }
            frames.push((entry.clone(), batch, true));
        }
    })?;
    Ok(frames)
}

/// Returns the session that a segment's header names.
fn owner(disk: &dyn Disk, id: SessionId, segment: &Segment) -> Option<SessionId> {
    let file = disk.open(&session_dir(id).join(segment.name()), false).ok()?;
    match Header::read(file.as_ref()).ok()? {
        HeaderFound::Good(header) => Some(header.session_id),
        HeaderFound::Newer | HeaderFound::Bad => None,
    }
}

/// Copies what is replaced, and the session's blobs, to the quarantine. Returns the first path there.
fn keep(disk: &dyn Disk, id: SessionId, heirs: &[Heir]) -> io::Result<Option<String>> {
    let (dir, mut kept) = (session_dir(id), None);
    for heir in heirs {
        for generation in &heir.replaced {
            let name = segment_name(heir.number, *generation);
            let path = free_in_quarantine(disk, &format!("{id}.{name}.whole"))?;
            match copy(disk, &dir.join(&name), Path::new(&path)).map_err(io::Error::from) {
                // An unreadable file is linked instead: nothing writes to it any more.
                Err(error) if is_unreadable(&error) => {
                    if_there(disk.remove(Path::new(&path)))?;
                    disk.link(&dir.join(&name), Path::new(&path))?;
                }
                copied => copied?,
            }
            kept.get_or_insert(path);
        }
    }
    if kept.is_some() {
        // The next compaction removes blobs that no remaining record names.
        link_blobs(disk, &dir.join(BLOBS), Path::new(&free_in_quarantine(disk, &format!("{id}.blobs"))?))?;
        disk.sync_dir(Path::new(QUARANTINE))?;
    }
    Ok(kept)
}

/// Returns a path in the quarantine with the first free number.
pub fn free_in_quarantine(disk: &dyn Disk, name: &str) -> io::Result<String> {
    let taken = with_folders(disk, || disk.list(Path::new(QUARANTINE)))?;
    let mut names = (1_u32..).map(|n| format!("{name}-{n}")).filter(|name| !taken.contains(name));
    Ok(format!("{QUARANTINE}/{}", names.next().unwrap_or_default()))
}
