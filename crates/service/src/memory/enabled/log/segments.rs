//! The log's segments on the disk: found, read past damage, and begun.

use std::{io, path::Path, sync::Arc};

use bytes::Bytes;
use uuid::Uuid;

use crate::{
    ids::{Seq, SessionId},
    store::{
        StoreError,
        enabled::journal::{
            disk::{Disk, DiskFile, create_anew, ensure_dir, read_range, write_all},
            frame::{BATCH_END, FrameView, HEADER_BYTES as FRAME_HEADER_BYTES, Parsed, Place, parse},
            layout::{generations_of, segment_name},
            recovery::failed,
            segment::{HEADER_BYTES, Header, HeaderFound, Mark, Reader, Rest, Step, scan},
        },
    },
};

/// The folder.
const FOLDER: &str = "memory";
/// A segment that is being made.
const NEW: &str = "memory/log.new";

/// A segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    number: u64,
    generation: u64,
    /// The position of its first entry, where its header is good.
    pub(super) base_seq: Option<Seq>,
    /// What its first frame follows, where its header is good.
    start: Option<Place>,
    /// Where what counts of it ends.
    pub(super) end: u64,
}

/// The file that is written.
pub(super) struct Writer {
    pub(super) file: Arc<dyn DiskFile>,
    /// Where the next frame goes.
    pub(super) offset: u64,
}

/// What stands on the disk.
pub(super) struct Found {
    pub(super) segments: Vec<Segment>,
    /// The last segment's file, where it can be written.
    pub(super) writer: Option<Writer>,
    pub(super) place: Place,
    pub(super) is_whole: bool,
}

fn path_of(number: u64, generation: u64) -> std::path::PathBuf {
    Path::new(FOLDER).join(segment_name(number, generation))
}

/// Finds the segments, and makes sure of the last: what a process wrote that was killed may be in the system's memory
/// alone.
pub(super) fn look(disk: &dyn Disk, known: Seq) -> Result<Found, StoreError> {
    ensure_dir(disk, Path::new(FOLDER)).map_err(failed)?;
    let names = generations_of(&disk.list(Path::new(FOLDER)).map_err(failed)?);
    let mut found =
        Found { segments: Vec::new(), writer: None, place: Place { seq: 0, batch: 0, chain: 0 }, is_whole: true };
    let mut last = None;
    for (number, generations) in names {
        last = Some(found.add(disk, number, generations.first().copied().unwrap_or_default())?);
    }
    if let Some(file) = last {
        file.sync().and_then(|()| disk.sync_dir(Path::new(FOLDER))).map_err(failed)?;
        found.finish(file, known).map_err(failed)?;
    }
    if known > found.place.seq {
        (found.is_whole, found.writer, found.place.seq) = (false, None, known);
    }
    Ok(found)
}

impl Found {
    /// Adds a segment by its header, which also says where the one before it ends.
    fn add(&mut self, disk: &dyn Disk, number: u64, generation: u64) -> Result<Arc<dyn DiskFile>, StoreError> {
        let file = disk.open(&path_of(number, generation), true).map_err(failed)?;
        let header = match Header::read(file.as_ref()).map_err(failed)? {
            HeaderFound::Good(header) => Some(header),
            HeaderFound::Newer => return Err(StoreError::Failed("a newer version wrote the memory's log".to_owned())),
            HeaderFound::Bad => None,
        };
        if let (Some(before), Some(header)) = (self.segments.last_mut(), header) {
            before.end = header.previous_end;
        }
        self.is_whole &= header.is_some() && number == self.segments.len() as u64 + 1;
        let (base_seq, start) = (header.map(|header| header.base_seq), header.map(|header| header.place()));
        let end = file.len().map_err(failed)?;
        self.segments.push(Segment { number, generation, base_seq, start, end });
        Ok(file)
    }

    /// Finds the end of the last segment.
    fn finish(&mut self, file: Arc<dyn DiskFile>, known: Seq) -> io::Result<()> {
        let Some(segment) = self.segments.last_mut() else { return Ok(()) };
        let len = segment.end;
        if let Some(place) = segment.start {
            let found = scan(Reader::new(file.as_ref(), Mark { offset: HEADER_BYTES, place }, len), |_| true)?;
            self.place = found.end.place;
            match found.rest {
                Rest::Nothing => {
                    self.writer = Some(Writer { file, offset: found.end.offset });
                    return Ok(());
                }
                // What was not written to its end was never answered for, unless somebody knows better.
                Rest::Zeros | Rest::Torn if known <= found.end.place.seq => {
                    segment.end = found.end.offset;
                    self.place.batch += 1;
                    return Ok(());
                }
                Rest::Zeros | Rest::Torn | Rest::Corrupt | Rest::Footer => {}
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

/// Hands over a segment's frames; answers whether none of them is damaged.
pub(super) fn read(disk: &dyn Disk, segment: &Segment, mut each: impl FnMut(&FrameView, Bytes)) -> io::Result<bool> {
    let file = disk.open(&path_of(segment.number, segment.generation), false)?;
    let Some(place) = segment.start else {
        salvage(file.as_ref(), HEADER_BYTES, segment.end, 0, each)?;
        return Ok(false);
    };
    let mut reader = Reader::new(file.as_ref(), Mark { offset: HEADER_BYTES, place }, segment.end);
    loop {
        match reader.next()? {
            Step::Frame(frame, line) => each(&frame, line),
            Step::End if reader.at.offset == segment.end => return Ok(true),
            Step::End | Step::Sealed | Step::Bad => {
                let Mark { offset, place } = reader.at;
                salvage(file.as_ref(), offset, segment.end, place.seq, each)?;
                return Ok(false);
            }
        }
    }
}

/// Hands over the frames with a good checksum between two places, as far as their seqs rise above `seq`. A last batch
/// without its end is left out.
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

/// Begins the segment behind the last, which is not written any more.
pub(super) fn begin(disk: &dyn Disk, segments: &mut Vec<Segment>, place: &mut Place) -> io::Result<Writer> {
    let header = Header {
        session_id: SessionId::from_uuid(Uuid::nil()),
        number: segments.last().map_or(0, |segment| segment.number) + 1,
        generation: 1,
        base_seq: place.seq + 1,
        base_batch: place.batch + 2,
        chain: place.chain,
        previous_end: segments.last().map_or(0, |segment| segment.end),
        compacted: None,
    };
    if segments.is_empty() {
        ensure_dir(disk, Path::new(FOLDER))?;
        if let Err(error) = disk.sync_dir(Path::new("")) {
            // A name whose sync failed may never be durable, so the folder is to be made anew.
            drop(disk.remove(Path::new(FOLDER)));
            return Err(error);
        }
    }
    let file = create_anew(disk, Path::new(NEW))?;
    write_all(file.as_ref(), &header.encode(), 0)?;
    file.sync()?;
    disk.rename(Path::new(NEW), &path_of(header.number, header.generation))?;
    disk.sync_dir(Path::new(FOLDER))?;
    *place = header.place();
    segments.push(Segment {
        number: header.number,
        generation: header.generation,
        base_seq: Some(header.base_seq),
        start: Some(header.place()),
        end: HEADER_BYTES,
    });
    Ok(Writer { file, offset: HEADER_BYTES })
}
