//! The store journal's file: marks as bytes, appended, read again and written anew. One job at a time writes it.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    super::{
        disk::{Disk, DiskFile, create_anew, is_full, read_range, write_all},
        frame::{BATCH_END, Entry, Place, encode},
        layout::{NEW, QUARANTINE, STORE, log_unlisted, newest_generation, segment_name, sessions_on, with_folders},
        marks::{Kept, kept_in},
        segment::{HEADER_BYTES, Header, HeaderFound, Mark, Reader, Rest, Scan, Step, scan},
    },
    Marked, Resting, State,
};
use meerkat_words::{
    ids::SessionId,
    store::{ReaderMark, ReaderMarks},
};

/// The kind of a mark that a session may change.
const ACTIVE: u16 = 1;
/// The kind of a mark that a session rests.
const IDLE: u16 = 2;
/// The kind of a mark that a session is gone, and nothing shows it any more.
const GONE: u16 = 7;
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Named {
    session_id: SessionId,
}

/// Where the next marks go.
pub(super) struct Writer {
    /// `None` where the journal has to be written anew first.
    pub(super) file: Option<Arc<dyn DiskFile>>,
    generation: u64,
    pub(super) at: Mark,
    /// Whether all that was written is synced; what follows then is another batch.
    is_synced: bool,
}

/// Appends marks as one batch, and says when they are written; on a full disk it is cut back to what stood before.
pub(super) fn append(
    writer: &mut Writer,
    marks: impl Iterator<Item = Marked>,
    needs_sync: bool,
    tell: &mut impl FnMut(),
) -> io::Result<()> {
    let Some(file) = writer.file.clone() else { return Err(io::ErrorKind::NotFound.into()) };
    let mut place = writer.at.place;
    let batch = if writer.is_synced { place.batch + 1 } else { place.batch };
    let mut out = Vec::new();
    encode_marks(&mut out, &mut place, batch, marks)?;
    if let Err(error) = write_all(file.as_ref(), &out, writer.at.offset) {
        return Err(if is_full(&error) { file.set_len(writer.at.offset).err().unwrap_or(error) } else { error });
    }
    tell();
    if needs_sync {
        // A file whose sync failed is not written again, also where all that is wrong is that there is no room.
        file.sync().inspect_err(|_| writer.file = None)?;
    }
    writer.is_synced = needs_sync;
    writer.at = Mark { offset: writer.at.offset + out.len() as u64, place };
    Ok(())
}

fn encode_marks(
    out: &mut Vec<u8>,
    place: &mut Place,
    batch: u64,
    marks: impl Iterator<Item = Marked>,
) -> io::Result<()> {
    let mut marks = marks.peekable();
    while let Some(marked) = marks.next() {
        let (kind, line) = match marked {
            Marked::Active(session_id) => (ACTIVE, serde_json::to_vec(&Named { session_id })?),
            Marked::Gone(session_id) => (GONE, serde_json::to_vec(&Named { session_id })?),
            Marked::Resting(resting) => (IDLE, serde_json::to_vec(&resting)?),
            Marked::Kept(kept) => kept.encode()?,
        };
        let flags = if marks.peek().is_none() { BATCH_END } else { 0 };
        let entry = Entry { seq: place.seq + 1, kind, ms: 0, line: Bytes::from(line) };
        encode(out, place, batch, flags, &entry);
    }
    Ok(())
}

fn path_of(generation: u64) -> PathBuf {
    Path::new(STORE).join(segment_name(1, generation))
}

/// Writes what counts as the next generation, and drops the one before.
pub(super) fn rewrite(disk: &dyn Disk, marks: impl IntoIterator<Item = Marked>, writer: &mut Writer) -> io::Result<()> {
    let generation = writer.generation + 1;
    let before = writer.at.place;
    let header = Header {
        session_id: SessionId::from_uuid(uuid::Uuid::nil()),
        number: 1,
        generation,
        base_seq: before.seq + 1,
        base_batch: before.batch + 2,
        chain: before.chain,
        previous_end: 0,
        compacted: None,
    };
    let mut out = header.encode();
    let mut place = header.place();
    encode_marks(&mut out, &mut place, header.base_batch, marks.into_iter())?;
    let made = Path::new(NEW).join(STORE);
    let file = with_folders(disk, || create_anew(disk, &made))?;
    write_all(file.as_ref(), &out, 0)?;
    file.sync()?;
    // From here on the old generation may be passed over, so nothing is appended to it any more.
    writer.file = None;
    disk.rename(&made, &path_of(generation))?;
    disk.sync_dir(Path::new(STORE))?;
    // An old generation that stays is passed over, and removed the next time.
    drop(disk.remove(&path_of(writer.generation)));
    *writer = Writer { file: Some(file), generation, at: Mark { offset: out.len() as u64, place }, is_synced: true };
    Ok(())
}

/// Reads the newest generation into `state`.
pub(super) fn load(disk: &dyn Disk, state: &mut State, is_new: bool) -> io::Result<Writer> {
    let generation = newest_generation(&disk.list(Path::new(STORE))?).unwrap_or(0);
    let start = Mark { offset: HEADER_BYTES, place: Place { seq: 0, batch: 0, chain: 0 } };
    let mut writer = Writer { file: None, generation, at: start, is_synced: false };
    if generation == 0 && is_new {
        return Ok(writer);
    }
    let path = path_of(generation);
    let is_good = generation > 0 && read_into(disk, &path, state, &mut writer)?;
    if !is_good {
        tracing::warn!("the store journal is damaged or missing: every session is looked at");
        state.active.extend(sessions_on(disk, &mut log_unlisted)?);
        // A reader may have been registered where it cannot be read, and nobody may prune what it has not got.
        state.readers.apply(ReaderMark::Trusted(false));
        writer.file = None;
        let aside = Path::new(QUARANTINE).join(format!("store.{}", segment_name(1, generation)));
        if generation > 0
            && let Err(error) = disk.link(&path, &aside)
        {
            tracing::warn!(%error, "the damaged store journal could not be set aside");
        }
    }
    Ok(writer)
}

/// Reads a generation; answers whether it can be trusted. A batch that was not written to its end is cut away.
fn read_into(disk: &dyn Disk, path: &Path, state: &mut State, writer: &mut Writer) -> io::Result<bool> {
    let file = disk.open(path, true)?;
    let (found, is_good) = read_file(file.as_ref(), state)?;
    let Some(found) = found else { return Ok(false) };
    (writer.at, writer.file) = (found.end, Some(file.clone()));
    if matches!(found.rest, Rest::Torn | Rest::Zeros)
        && file.set_len(found.end.offset).and_then(|()| file.sync()).is_err()
    {
        writer.file = None;
    }
    Ok(is_good)
}

/// What the marks of a store say.
#[derive(Default)]
pub struct Marks {
    /// The sessions that may have changed since they were last put to rest.
    pub active: BTreeSet<SessionId>,
    /// Where journals ended when they came to rest.
    pub resting: HashMap<SessionId, Resting>,
    /// Readers, and what is relied on of them.
    pub readers: ReaderMarks,
    /// Whether all of them could be read.
    pub is_whole: bool,
}

impl Marks {
    /// Whether it is sure that no session is named.
    pub(crate) fn names_none(&self) -> bool {
        self.is_whole && self.active.is_empty() && self.resting.is_empty()
    }
}

/// What the newest generation says. Nothing is changed.
pub fn look(disk: &dyn Disk) -> io::Result<Marks> {
    let mut state = State::default();
    let Some(generation) = newest_generation(&disk.list(Path::new(STORE))?) else { return Ok(Marks::default()) };
    let (_, is_whole) = read_file(disk.open(&path_of(generation), false)?.as_ref(), &mut state)?;
    Ok(Marks { active: state.active, resting: state.resting, readers: state.readers, is_whole })
}

/// Applies a file's marks; answers what it holds, where its header can be read, and whether all of it can be trusted.
/// Behind damage what can be read of readers is applied, too: one that is there too many keeps journals from being
/// pruned, one that is missing would let them be.
fn read_file(file: &dyn DiskFile, state: &mut State) -> io::Result<(Option<Scan>, bool)> {
    let len = file.len()?;
    let (found, is_good) = match Header::read(file)? {
        HeaderFound::Good(header) => {
            let from = Mark { offset: HEADER_BYTES, place: header.place() };
            let found = scan(Reader::new(file, from, len), |_| true)?;
            let is_read = read_marks(file, from, found.end.offset, state)?;
            let is_good = is_read && !matches!(found.rest, Rest::Corrupt | Rest::Footer);
            (Some(found), is_good)
        }
        HeaderFound::Newer | HeaderFound::Bad => (None, false),
    };
    if !is_good {
        let damaged = found.as_ref().map_or(HEADER_BYTES, |found| found.end.offset);
        for kept in kept_in(&read_range(file, damaged, len)?.into()) {
            state.apply(Marked::Kept(kept));
        }
    }
    Ok((found, is_good))
}

/// Applies the marks; answers whether each could be read.
fn read_marks(file: &dyn DiskFile, from: Mark, end: u64, state: &mut State) -> io::Result<bool> {
    let mut reader = Reader::new(file, from, end);
    let mut is_good = true;
    while let Step::Frame(frame, line) = reader.next()? {
        let marked = match frame.kind {
            ACTIVE => serde_json::from_slice(&line).map(|Named { session_id }| Marked::Active(session_id)),
            GONE => serde_json::from_slice(&line).map(|Named { session_id }| Marked::Gone(session_id)),
            IDLE => serde_json::from_slice(&line).map(Marked::Resting),
            kind => Kept::decode(kind, &line).map(Marked::Kept),
        };
        match marked {
            Ok(marked) => state.apply(marked),
            Err(_) => is_good = false,
        }
    }
    Ok(is_good)
}
