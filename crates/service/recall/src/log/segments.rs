//! The log's segments on the disk: finding them, reading past damage, beginning and replacing them.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use uuid::Uuid;

use meerkat_journal::{
    disk::{Disk, DiskFile, ensure_dir, failed, if_there, read_range, write_new},
    frame::{BATCH_END, Entry, FrameView, HEADER_BYTES as FRAME_HEADER_BYTES, Parsed, Place, encode, parse},
    layout::{generations_of, segment_name},
    segment::{Compacted, HEADER_BYTES, Header, HeaderFound, Mark, Reader, Rest, Step, scan},
};
use meerkat_words::{
    ids::{Seq, SessionId},
    store::StoreError,
};

pub(super) const FOLDER: &str = "memory";
/// Segment under construction.
const NEW: &str = "memory/log.new";
const NO_SESSION: SessionId = SessionId::from_uuid(Uuid::nil());

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) generation: u64,
    /// Position of its first entry, if its header is good.
    pub(super) base_seq: Option<Seq>,
    /// Place before its first frame, if its header is good.
    pub(super) start: Option<Place>,
    /// End of its valid part.
    pub(super) end: u64,
    /// Of a replaced segment: position of the last entry that it held at first. Some may be missing.
    pub(super) last_seq: Option<Seq>,
}

impl Segment {
    pub(super) fn name(&self) -> String {
        segment_name(self.number, self.generation)
    }

    pub(super) fn path(&self) -> PathBuf {
        Path::new(FOLDER).join(self.name())
    }
}

pub(super) struct Writer {
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) offset: u64,
}

pub(super) struct Found {
    pub(super) segments: Vec<Segment>,
    /// File of the last segment, if it can be appended to.
    pub(super) writer: Option<Writer>,
    pub(super) place: Place,
    pub(super) is_whole: bool,
    /// True if it ends before a position that anyone relies on.
    pub(super) is_cut: bool,
    last: Option<Arc<dyn DiskFile>>,
    old: Vec<PathBuf>,
}

/// Finds the segments and syncs the last one: a killed process may have left it in the system's memory alone.
pub(super) fn look(disk: &dyn Disk, known: Seq) -> Result<Found, StoreError> {
    ensure_dir(disk, Path::new(FOLDER)).map_err(failed)?;
    let mut found = find(disk, known, true)?;
    if let Some(file) = found.last.take() {
        file.sync().and_then(|()| disk.sync_dir(Path::new(FOLDER))).map_err(failed)?;
    }
    // The next start removes what stays.
    found.old.drain(..).for_each(|path| drop(disk.remove(&path)));
    Ok(found)
}

/// Finds the segments without changing anything. `known` is the last position that anyone relies on.
pub(super) fn find(disk: &dyn Disk, known: Seq, is_written: bool) -> Result<Found, StoreError> {
    let (segments, place) = (Vec::new(), Place { seq: 0, batch: 0, chain: 0 });
    let mut found = Found { segments, writer: None, place, is_whole: true, is_cut: false, last: None, old: Vec::new() };
    let names = if_there(disk.list(Path::new(FOLDER))).map_err(failed)?.unwrap_or_default();
    for (number, generations) in generations_of(&names) {
        let mut named = generations.iter().map(|&generation| Segment { number, generation, ..Segment::default() });
        // The newest generation was whole when it got its name.
        if let Some(newest) = named.next() {
            found.add(disk, newest, is_written)?;
        }
        found.old.extend(named.map(|segment| segment.path()));
    }
    if let Some(file) = found.last.clone() {
        found.finish(file, known).map_err(failed)?;
    }
    if known > found.place.seq {
        (found.is_whole, found.is_cut, found.writer, found.place.seq) = (false, true, None, known);
    }
    Ok(found)
}

impl Found {
    /// Adds a segment by its header, which also says where the previous one ends.
    fn add(&mut self, disk: &dyn Disk, mut segment: Segment, is_written: bool) -> Result<(), StoreError> {
        let file = disk.open(&segment.path(), is_written).map_err(failed)?;
        let header = match Header::read(file.as_ref()).map_err(failed)? {
            HeaderFound::Good(header) => Some(header),
            HeaderFound::Newer => return Err(StoreError::Failed("a newer version wrote the memory's log".to_owned())),
            HeaderFound::Bad => None,
        };
        if let (Some(before), Some(header)) = (self.segments.last_mut(), header)
            && before.last_seq.is_none()
            && before.number + 1 == segment.number
        {
            before.end = header.previous_end;
        }
        self.is_whole &= header.is_some() && segment.number == self.segments.len() as u64 + 1;
        let compacted = header.and_then(|header| header.compacted);
        segment.base_seq = header.map(|header| header.base_seq);
        segment.start = header.map(|header| header.place());
        segment.last_seq = compacted.map(|it| it.after.seq);
        segment.end = compacted.map_or_else(|| file.len(), |it| Ok(it.end)).map_err(failed)?;
        self.segments.push(segment);
        self.last = Some(file);
        Ok(())
    }

    /// Finds the end of the last segment.
    fn finish(&mut self, file: Arc<dyn DiskFile>, known: Seq) -> io::Result<()> {
        let Some(segment) = self.segments.last_mut() else { return Ok(()) };
        let len = segment.end;
        if let Some(place) = segment.start {
            let reader = Reader::new(file.as_ref(), Mark { offset: HEADER_BYTES, place }, len);
            let found = scan(reader.of(segment.last_seq.is_some()), |_| true)?;
            self.place = found.end.place;
            self.place.seq = segment.last_seq.unwrap_or(self.place.seq);
            match found.rest {
                // A replaced segment is never appended to.
                Rest::Nothing if segment.last_seq.is_some() && found.end.offset == len => return Ok(()),
                Rest::Nothing if segment.last_seq.is_none() => {
                    self.writer = Some(Writer { file, offset: found.end.offset });
                    return Ok(());
                }
                // An incomplete batch was never acknowledged, unless `known` says otherwise.
                Rest::Zeros | Rest::Torn if segment.last_seq.is_none() && known <= found.end.place.seq => {
                    segment.end = found.end.offset;
                    self.place.batch += 1;
                    return Ok(());
                }
                Rest::Nothing | Rest::Zeros | Rest::Torn | Rest::Corrupt | Rest::Footer => {}
            }
        }
        self.is_whole = false;
        let place = &mut self.place;
        place.seq = place.seq.max(segment.base_seq.unwrap_or(1).saturating_sub(1));
        salvage(file.as_ref(), HEADER_BYTES, len, 0, |frame, _| {
            (place.seq, place.batch) = (place.seq.max(frame.seq), place.batch.max(frame.batch));
        })
    }
}

/// Reads a segment's frames; returns the offset of the first damaged byte, if any.
pub(super) fn read(
    disk: &dyn Disk,
    segment: &Segment,
    mut each: impl FnMut(&FrameView, Bytes),
) -> io::Result<Option<u64>> {
    let file = disk.open(&segment.path(), false)?;
    let Some(place) = segment.start else {
        salvage(file.as_ref(), HEADER_BYTES, segment.end, 0, each)?;
        return Ok(Some(0));
    };
    let reader = Reader::new(file.as_ref(), Mark { offset: HEADER_BYTES, place }, segment.end);
    let mut reader = reader.of(segment.last_seq.is_some());
    loop {
        match reader.next()? {
            Step::Frame(frame, line) => each(&frame, line),
            Step::End if reader.at.offset == segment.end => return Ok(None),
            Step::End | Step::Sealed | Step::Bad => {
                let Mark { offset, place } = reader.at;
                salvage(file.as_ref(), offset, segment.end, place.seq, each)?;
                return Ok(Some(offset));
            }
        }
    }
}

/// Reads the frames with a good checksum between two offsets whose seqs rise above `seq`. An incomplete last batch is
/// left out.
fn salvage(
    file: &dyn DiskFile,
    from: u64,
    end: u64,
    mut seq: Seq,
    mut each: impl FnMut(&FrameView, Bytes),
) -> io::Result<()> {
    let bytes = Bytes::from(read_range(file, from, end)?);
    let mut batch: Vec<(FrameView, Bytes)> = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let Parsed::Frame(frame) = parse(&bytes[at..]) else {
            at += 8;
            continue;
        };
        let start = at + FRAME_HEADER_BYTES;
        let line = bytes.slice(start..start + frame.payload);
        at += frame.total;
        if frame.seq <= seq {
            continue;
        }
        seq = frame.seq;
        let is_end = frame.has(BATCH_END);
        if batch.last().is_some_and(|(before, _)| before.batch != frame.batch) {
            batch.drain(..).for_each(|(frame, line)| each(&frame, line));
        }
        batch.push((frame, line));
        if is_end {
            batch.drain(..).for_each(|(frame, line)| each(&frame, line));
        }
    }
    Ok(())
}

/// Begins the segment after the last one, which is never written again.
pub(super) fn begin(disk: &dyn Disk, segments: &mut Vec<Segment>, place: &mut Place) -> io::Result<Writer> {
    let (number, previous_end) = segments.last().map_or((1, 0), |segment| (segment.number + 1, segment.end));
    let header = Header { base_batch: place.batch + 2, ..Header::after(NO_SESSION, number, *place, previous_end) };
    if segments.is_empty() {
        ensure_dir(disk, Path::new(FOLDER))?;
        if let Err(error) = disk.sync_dir(Path::new("")) {
            // A name whose sync failed may never become durable, so the folder must be made again.
            drop(disk.remove(Path::new(FOLDER)));
            return Err(error);
        }
    }
    let file = put(disk, &path_of(&header), &header.encode())?;
    *place = header.place();
    segments.push(Segment {
        number: header.number,
        generation: header.generation,
        base_seq: Some(header.base_seq),
        start: Some(header.place()),
        end: HEADER_BYTES,
        last_seq: None,
    });
    Ok(Writer { file, offset: HEADER_BYTES })
}

/// Writes a segment's next generation with these frames, which follow `base` and are all that is left up to `last_seq`;
/// then removes the old one. If this fails, either may exist after a power failure, and neither may be appended to.
pub(super) fn replace(
    disk: &dyn Disk,
    old: &Segment,
    (base, previous_end): (Place, u64),
    last_seq: Seq,
    frames: &[(FrameView, Bytes)],
) -> io::Result<Segment> {
    let mut header =
        Header { generation: old.generation + 1, ..Header::after(NO_SESSION, old.number, base, previous_end) };
    // The header comes first, but is known last.
    let (mut place, mut out) = (base, header.encode());
    for (at, (frame, line)) in frames.iter().enumerate() {
        let is_end = frames.get(at + 1).is_none_or(|(next, _)| next.batch != frame.batch);
        let entry = Entry { seq: frame.seq, kind: frame.kind, ms: frame.ms, line: line.clone() };
        encode(&mut out, &mut place, frame.batch, if is_end { BATCH_END } else { 0 }, &entry);
    }
    let (count, end) = (frames.len() as u64, out.len() as u64);
    header.compacted = Some(Compacted { after: Place { seq: last_seq, ..place }, count, end });
    let bytes = header.encode();
    out[..bytes.len()].copy_from_slice(&bytes);
    put(disk, &path_of(&header), &out)?;
    // The next start removes what stays.
    drop(disk.remove(&old.path()));
    let (base_seq, start) = (Some(header.base_seq), Some(base));
    Ok(Segment { generation: header.generation, base_seq, start, end, last_seq: Some(last_seq), ..*old })
}

fn path_of(header: &Header) -> PathBuf {
    Path::new(FOLDER).join(segment_name(header.number, header.generation))
}

/// Writes a file that gets its name once it is complete.
fn put(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<Arc<dyn DiskFile>> {
    let file = write_new(disk, Path::new(NEW), bytes)?;
    disk.rename(Path::new(NEW), path)?;
    disk.sync_dir(Path::new(FOLDER))?;
    Ok(file)
}
