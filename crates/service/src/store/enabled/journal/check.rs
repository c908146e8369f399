//! A session's directory, read from end to end for whoever wants to know whether it is sound. It changes nothing, but
//! for [`cut`], which is asked for by name.

use std::{io, path::Path, sync::Arc};

use bytes::Bytes;

use super::{
    Limits, Pool,
    disk::{Disk, create_anew, read_range, write_all},
    executor::Executor as _,
    health::Health,
    layout::{NEW, QUARANTINE, generations_of, segment_name, session_dir},
    recovery::{Found, Segment, examine, failed},
    segment::{Compacted, Header, HeaderFound, Mark, Reader, Step},
    store_journal::{Resting, StoreJournal},
};
use crate::{
    ids::{Seq, SessionId},
    store::StoreError,
};

/// Bytes that are copied at a time.
const COPY_BYTES: u64 = 1024 * 1024;

/// A journal as it was found.
pub(crate) struct Checked {
    found: Found,
    /// Why it cannot be trusted to its end, and where the last good record ends.
    pub(crate) damage: Option<Damage>,
}

/// Where a journal stops being good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    pub(crate) why: String,
    pub(crate) last_good_seq: Seq,
    /// The segment, and where its last good record ends; `None` where nothing can be cut away.
    place: Option<(u64, u64)>,
}

impl Checked {
    /// Its last good record.
    pub(crate) fn last_seq(&self) -> Seq {
        self.damage.as_ref().map_or(self.found.place.seq, |damage| damage.last_good_seq)
    }

    /// Bytes at its end that were never acknowledged.
    pub(crate) fn torn_bytes(&self) -> u64 {
        self.found.tail_repair().map_or(0, |repair| repair.bytes)
    }
}

/// Reads a session's journal whole, and hands each record to `see`; `None` where there is no such session.
pub(crate) fn check(
    disk: &dyn Disk,
    id: SessionId,
    knows: fn(u16) -> bool,
    see: &mut dyn FnMut(Seq, &Bytes),
) -> Result<Option<Checked>, StoreError> {
    let Some(found) = examine(disk, id, knows)? else { return Ok(None) };
    let damage = walk(disk, id, &found, see).map_err(failed)?;
    let damage = damage.or_else(|| match &found.damage {
        Some(StoreError::Corrupted { last_good_seq, why, .. }) => {
            let at = found.segments.last().map(|segment| (segment.number, segment.end));
            Some(Damage { why: why.clone(), last_good_seq: *last_good_seq, place: at })
        }
        Some(other) => Some(Damage { why: other.to_string(), last_good_seq: found.place.seq, place: None }),
        None => None,
    });
    Ok(Some(Checked { found, damage }))
}

fn walk(disk: &dyn Disk, id: SessionId, found: &Found, see: &mut dyn FnMut(Seq, &Bytes)) -> io::Result<Option<Damage>> {
    for (at, segment) in found.segments.iter().enumerate() {
        let file = disk.open(&session_dir(id).join(segment.name()), false)?;
        let mut reader = segment.reader(file.as_ref(), segment.start);
        loop {
            match reader.next()? {
                Step::Frame(frame, line) => see(frame.seq, &line),
                Step::End if reader.at.offset == segment.end => break,
                Step::End | Step::Sealed | Step::Bad => {
                    let why = format!("{} holds a bad record after seq {}", segment.name(), reader.at.place.seq);
                    let place = Some((segment.number, reader.at.offset));
                    return Ok(Some(Damage { why, last_good_seq: reader.at.place.seq, place }));
                }
            }
        }
        let passed = segment.passed(reader.at).place.seq;
        if found.segments.get(at + 1).is_some_and(|next| next.start.place.seq != passed) {
            let why = format!("{} ends before it should, after seq {}", segment.name(), reader.at.place.seq);
            let place = Some((segment.number, reader.at.offset));
            return Ok(Some(Damage { why, last_good_seq: reader.at.place.seq, place }));
        }
    }
    Ok(None)
}

/// Ends a damaged journal behind its last good record. All that stood behind it is kept in the quarantine, as whole
/// segments. Answers where, or `None` where nothing can be cut.
pub(crate) fn cut(disk: &dyn Disk, id: SessionId, damage: &Damage) -> io::Result<Option<String>> {
    let Some((number, offset)) = damage.place else { return Ok(None) };
    let dir = session_dir(id);
    let all = generations_of(&disk.list(&dir)?).into_iter().filter(|(at, _)| *at >= number);
    let of = |(at, generations): (u64, Vec<u64>)| generations.into_iter().map(move |generation| (at, generation));
    // The newest generation is the first one of its number.
    let behind: Vec<(u64, u64)> = all.flat_map(of).collect();
    let mut kept = None;
    for &(at, generation) in &behind {
        let name = segment_name(at, generation);
        let path = format!("{QUARANTINE}/{id}.{name}.whole");
        copy(disk, &dir.join(name), Path::new(&path))?;
        kept.get_or_insert(path);
    }
    disk.sync_dir(Path::new(QUARANTINE))?;
    // The last one first: a kill in between leaves a journal that is damaged at the same place.
    for (at, &(number, generation)) in behind.iter().enumerate().rev() {
        if at > 0 {
            disk.remove(&dir.join(segment_name(number, generation)))?;
            disk.sync_dir(&dir)?;
        } else {
            shorten(disk, &dir, &segment_name(number, generation), offset)?;
        }
    }
    Ok(kept)
}

/// Ends a segment behind its last good record. What a compacted one says of its end is put right with it.
fn shorten(disk: &dyn Disk, dir: &Path, name: &str, offset: u64) -> io::Result<()> {
    let file = disk.open(&dir.join(name), true)?;
    let header = Header::read(file.as_ref())?;
    let HeaderFound::Good(header @ Header { compacted: Some(_), .. }) = header else {
        file.set_len(offset)?;
        return file.sync();
    };
    let segment = Segment::begun(&header);
    let mut reader = Reader::new(file.as_ref(), segment.start, offset).of(true);
    let mut count = 0;
    while let Step::Frame(..) = reader.next()? {
        count += 1;
    }
    let Mark { offset: end, place: after } = reader.at;
    let header = Header { compacted: Some(Compacted { after, count, end }), ..header };
    let mut out = header.encode();
    out.extend(read_range(file.as_ref(), out.len() as u64, end)?);
    let made = Path::new(NEW).join(name);
    let shorter = create_anew(disk, &made)?;
    write_all(shorter.as_ref(), &out, 0)?;
    shorter.sync()?;
    disk.rename(&made, &dir.join(name))?;
    disk.sync_dir(dir)
}

fn copy(disk: &dyn Disk, from: &Path, to: &Path) -> io::Result<()> {
    let (source, copy) = (disk.open(from, false)?, create_anew(disk, to)?);
    let (mut at, len) = (0, source.len()?);
    while at < len {
        let bytes = read_range(source.as_ref(), at, len.min(at + COPY_BYTES))?;
        if bytes.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        write_all(copy.as_ref(), &bytes, at)?;
        at += bytes.len() as u64;
    }
    copy.sync()
}

/// Marks sessions as at rest where their journals end now, whatever was known of them before, and with `is_trusted` the
/// readers that are known as all there are. A store journal that is damaged is made anew from its good marks.
pub(crate) fn mend_marks(
    disk: Arc<dyn Disk>,
    ids: &[SessionId],
    is_trusted: bool,
    knows: fn(u16) -> bool,
) -> Result<(), StoreError> {
    let (limits, executor) = (Limits::default(), Arc::new(Pool::new().map_err(failed)?));
    let health = Arc::new(Health::new(limits.reserve_bytes));
    let marks = Arc::new(StoreJournal::open(disk.clone(), executor.clone(), health, &limits, false)?);
    let (told, results) = std::sync::mpsc::channel();
    let tell = || {
        let told = told.clone();
        Box::new(move |result| drop(told.send(result)))
    };
    for &id in ids {
        let Some(found) = examine(disk.as_ref(), id, knows)? else { continue };
        let resting = Resting { session_id: id, seq: found.place.seq, chain: found.place.chain };
        marks.mark_resting(resting, tell());
    }
    if is_trusted {
        marks.mark_trusted(tell());
    }
    drop(told);
    executor.drain();
    results.iter().collect()
}
