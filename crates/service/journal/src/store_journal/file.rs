//! The store journal's file: appending, reading and rewriting marks. One job at a time writes it.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{
    super::{
        disk::{Disk, DiskFile, is_full, read_range, write_all, write_new},
        frame::{Entry, Place, encode_batch},
        layout::{NEW, QUARANTINE, STORE, log_unlisted, newest_generation, segment_name, sessions_on, with_folders},
        marks::{Kept, kept_in},
        segment::{HEADER_BYTES, Header, HeaderFound, Mark, Reader, Rest, Scan, Step, scan},
    },
    state::{Marked, Resting, State},
};
use meerkat_words::{
    ids::SessionId,
    store::{ReaderMark, ReaderMarks},
};

/// Kind of the mark: a session is active.
const ACTIVE: u16 = 1;
/// Kind of the mark: a session is idle.
const IDLE: u16 = 2;
/// Kind of the mark: a session is deleted, and nothing shows it any more.
const GONE: u16 = 7;
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Named {
    session_id: SessionId,
}

/// Position of the next marks.
pub(super) struct Writer {
    /// `None` if the journal must be rewritten first.
    pub(super) file: Option<Arc<dyn DiskFile>>,
    generation: u64,
    pub(super) at: Mark,
    /// True if all marks are synced; the next ones then begin another batch.
    is_synced: bool,
}

/// Appends marks as one batch, and calls `tell` when they are written; on a full disk the file is cut back.
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
        // A file whose sync failed is not written again, even if the disk was only full.
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
    let entry = |(seq, marked): (u64, Marked)| -> serde_json::Result<Entry> {
        let (kind, line) = match marked {
            Marked::Active(session_id) => (ACTIVE, serde_json::to_vec(&Named { session_id })?),
            Marked::Gone(session_id) => (GONE, serde_json::to_vec(&Named { session_id })?),
            Marked::Resting(resting) => (IDLE, serde_json::to_vec(&resting)?),
            Marked::Kept(kept) => kept.encode()?,
        };
        Ok(Entry { seq, kind, ms: 0, line: line.into() })
    };
    let entries: Vec<Entry> = (place.seq + 1..).zip(marks).map(entry).collect::<Result<_, _>>()?;
    encode_batch(out, place, batch, entries);
    Ok(())
}

fn path_of(generation: u64) -> PathBuf {
    Path::new(STORE).join(segment_name(1, generation))
}

/// Writes the next generation with these marks, and removes the previous one.
pub(super) fn rewrite(disk: &dyn Disk, marks: impl IntoIterator<Item = Marked>, writer: &mut Writer) -> io::Result<()> {
    let generation = writer.generation + 1;
    let before = writer.at.place;
    let header = Header {
        generation,
        base_batch: before.batch + 2,
        ..Header::after(SessionId::from_uuid(uuid::Uuid::nil()), 1, before, 0)
    };
    let mut out = header.encode();
    let mut place = header.place();
    encode_marks(&mut out, &mut place, header.base_batch, marks.into_iter())?;
    let made = Path::new(NEW).join(STORE);
    let file = with_folders(disk, || write_new(disk, &made, &out))?;
    // From here on the old generation may be ignored, so nothing is appended to it any more.
    writer.file = None;
    disk.rename(&made, &path_of(generation))?;
    disk.sync_dir(Path::new(STORE))?;
    // An old generation that stays is ignored, and removed the next time.
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
        // A reader's registration may be lost, and records that it has not handled must not be pruned.
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

/// Reads a generation; returns true if it is undamaged. An incomplete last batch is cut.
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

/// Content of a store's marks.
#[derive(Default)]
pub struct Marks {
    /// Active sessions.
    pub active: BTreeSet<SessionId>,
    /// Ends of idle sessions' journals.
    pub resting: HashMap<SessionId, Resting>,
    /// Readers, and the acknowledgements that pruning relies on.
    pub readers: ReaderMarks,
    /// True if all marks could be read.
    pub is_whole: bool,
}

impl Marks {
    /// Returns true if certainly no session is named.
    pub(crate) fn names_none(&self) -> bool {
        self.is_whole && self.active.is_empty() && self.resting.is_empty()
    }
}

/// Reads the newest generation without changing anything.
pub fn look(disk: &dyn Disk) -> io::Result<Marks> {
    let mut state = State::default();
    let Some(generation) = newest_generation(&disk.list(Path::new(STORE))?) else { return Ok(Marks::default()) };
    let (_, is_whole) = read_file(disk.open(&path_of(generation), false)?.as_ref(), &mut state)?;
    Ok(Marks { active: state.active, resting: state.resting, readers: state.readers, is_whole })
}

/// Applies a file's marks; returns its scan if its header is good, and true if it is undamaged. Marks of readers after
/// damage are applied too: a surplus reader only delays pruning, a missing one would permit it.
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

/// Applies the marks; returns true if each could be decoded.
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
