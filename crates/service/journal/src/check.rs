//! Examination of a session's whole directory for `meerkat doctor`. Only [`cut`] changes anything.

use std::{io, path::Path};

use bytes::Bytes;

use super::{
    End,
    disk::{Disk, failed, if_there, is_unreadable, read_range, write_new},
    fork::{copy, link_blobs},
    frame::BATCH_END,
    layout::{BLOBS, NEW, QUARANTINE, generations_of, segment_name, session_dir, with_folders},
    recovery::{Found, Segment, examine},
    segment::{Compacted, HEADER_BYTES, Header, HeaderFound, Mark, Reader, Step},
};
use meerkat_words::{
    ids::{Seq, SessionId},
    store::StoreError,
};

/// Examined journal.
pub struct Checked {
    found: Found,
    /// Its damage, if any.
    pub damage: Option<Damage>,
}

/// Damage of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Description.
    pub why: String,
    /// Seq of the last good record.
    pub last_good_seq: Seq,
    /// Segment and end of its last good batch; `None` if nothing can be cut.
    place: Option<(u64, u64)>,
}

impl Damage {
    fn behind(why: String, segment: u64, good: Mark) -> Self {
        Self { why, last_good_seq: good.place.seq, place: Some((segment, good.offset)) }
    }

    /// Returns true if something good is left after cutting the rest.
    pub const fn can_be_cut(&self) -> bool {
        self.place.is_some() && self.last_good_seq > 0
    }
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

/// Reads a session's whole journal, and passes each record to `see`; `None` if there is no such session.
pub fn check(
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
        let file = match disk.open(&session_dir(id).join(segment.name()), false) {
            Err(error) if is_unreadable(&error) => {
                let why = format!("{} cannot be read: {error}", segment.name());
                return Ok(Some(Damage::behind(why, segment.number, segment.start)));
            }
            file => file?,
        };
        let mut reader = segment.reader(file.as_ref(), segment.start);
        // After the last whole batch: a partial one would look like a torn write.
        let mut good = segment.start;
        loop {
            match reader.next()? {
                Step::Frame(frame, line) => {
                    see(frame.seq, &line);
                    if frame.has(BATCH_END) {
                        good = reader.at;
                    }
                }
                Step::End if reader.at.offset == segment.end => break,
                Step::End | Step::Sealed | Step::Bad => {
                    let why = format!("{} holds a bad record after seq {}", segment.name(), reader.at.place.seq);
                    return Ok(Some(Damage::behind(why, segment.number, good)));
                }
            }
        }
        let passed = segment.passed(reader.at).place.end();
        if let Some(next) = found.segments.get(at + 1).filter(|next| next.start.place.end() != passed) {
            let why = format!("{} does not go on from the end of {}, seq {}", next.name(), segment.name(), passed.seq);
            return Ok(Some(Damage::behind(why, segment.number, good)));
        }
    }
    Ok(None)
}

/// Cuts a damaged journal after its last good batch. The rest is kept in the quarantine, as whole segments, with the
/// session's blobs. Returns the first path there, or `None` if nothing can be cut.
pub fn cut(disk: &dyn Disk, id: SessionId, damage: &Damage) -> io::Result<Option<String>> {
    let Some((number, offset)) = damage.place.filter(|_| damage.can_be_cut()) else { return Ok(None) };
    let dir = session_dir(id);
    let all = generations_of(&disk.list(&dir)?).into_iter().filter(|(at, _)| *at >= number);
    let of = |(at, generations): (u64, Vec<u64>)| generations.into_iter().map(move |generation| (at, generation));
    // The newest generation is the first of its number.
    let behind: Vec<(u64, u64)> = all.flat_map(of).collect();
    let mut kept = None;
    for &(at, generation) in &behind {
        let name = segment_name(at, generation);
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
    // The next compaction removes blobs that no remaining record names.
    link_blobs(disk, &dir.join(BLOBS), Path::new(&free_in_quarantine(disk, &format!("{id}.blobs"))?))?;
    disk.sync_dir(Path::new(QUARANTINE))?;
    // Last segment first: a kill in between leaves a journal with the same damage.
    for (at, &(number, generation)) in behind.iter().enumerate().rev() {
        let name = segment_name(number, generation);
        if at > 0 {
            disk.remove(&dir.join(name))?;
            disk.sync_dir(&dir)?;
        } else {
            shorten(disk, id, &name, offset)?;
        }
    }
    Ok(kept)
}

/// Replaces a segment by its beginning, in a new file with this session's header: a fork or the parent may share the
/// old file. The header of a compacted segment gets the new end.
fn shorten(disk: &dyn Disk, id: SessionId, name: &str, offset: u64) -> io::Result<()> {
    let (dir, made) = (session_dir(id), Path::new(NEW).join(format!("{id}.cut")));
    let file = disk.open(&dir.join(name), false)?;
    let HeaderFound::Good(mut header) = Header::read(file.as_ref())? else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    header.session_id = id;
    if header.compacted.is_some() {
        let mut reader = Reader::new(file.as_ref(), Segment::begun(&header).start, offset).of(true);
        let mut count = 0;
        while let Step::Frame(..) = reader.next()? {
            count += 1;
        }
        let Mark { offset: end, place: after } = reader.at;
        header.compacted = Some(Compacted { after, count, end });
    }
    let mut out = header.encode();
    out.extend(read_range(file.as_ref(), HEADER_BYTES, offset)?);
    with_folders(disk, || write_new(disk, &made, &out))?;
    disk.rename(&made, &dir.join(name))?;
    disk.sync_dir(&dir)
}

/// Returns a path in the quarantine with the first free number.
pub fn free_in_quarantine(disk: &dyn Disk, name: &str) -> io::Result<String> {
    let taken = with_folders(disk, || disk.list(Path::new(QUARANTINE)))?;
    let mut names = (1_u32..).map(|n| format!("{name}-{n}")).filter(|name| !taken.contains(name));
    Ok(format!("{QUARANTINE}/{}", names.next().unwrap_or_default()))
}
