//! Whole session directories: forking, naming, and deleting them.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    Context,
    disk::{Disk, create_anew, ensure_dir, failed, if_there, is_missing, read_range, write_all},
    frame::{BATCH_END, Entry, encode_batch},
    health::Health,
    layout::{BLOBS, TRASH, fan_out, new_dir, segment_name, session_dir, trash_dirs, with_folders},
    lock,
    log::Log,
    recovery::Segment,
    segment::{Compacted, HEADER_BYTES, Header, Step},
};
use meerkat_words::{
    ids::{Seq, SessionId},
    store::StoreError,
};

/// Bytes copied at a time.
const COPY_BYTES: u64 = 1024 * 1024;

/// Makes the directory of `child`: the parent's records up to `at`, then `first`, and the parent's blobs. It has a
/// temporary name until [`appear`].
pub fn fork_files(parent: &Log, at: Seq, child: SessionId, first: &[Entry]) -> Result<(), StoreError> {
    let context = &parent.context;
    let disk = context.disk.as_ref();
    context.health.room(disk)?;
    let segments = || {
        let state = lock(&parent.state);
        let is_next = !first.is_empty() && first.iter().zip(at + 1..).all(|(entry, seq)| entry.seq == seq);
        if at > state.place.seq || at == 0 || !is_next {
            return Err(StoreError::Failed("there is no such beginning to fork".to_owned()));
        }
        Ok(state.segments.clone())
    };
    loop {
        let before = segments()?;
        let Err(trouble) = make(disk, parent.id, &before, at, child, first) else { return Ok(()) };
        let is_same = segments()?.iter().map(Segment::name).eq(before.iter().map(Segment::name));
        match trouble {
            // Journal compaction has replaced one of the segments.
            Trouble::Failed(error) if is_missing(&error) && !is_same => {}
            trouble => return Err(trouble.error(&context.health, child)),
        }
    }
}

/// Reason that a session was not made.
pub enum Trouble {
    /// The records to copy are damaged after this one.
    Damaged(SessionId, Seq),
    /// It failed before anything had to be durable.
    Failed(io::Error),
    /// A sync failed. Its files are removed, and never synced again.
    Unsynced(io::Error),
    /// The directory got its name, but the name may not survive.
    Unnamed(io::Error),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl Trouble {
    /// Converts it to the store's error.
    pub fn error(self, health: &Health, id: SessionId) -> StoreError {
        match self {
            Self::Damaged(session_id, last_good_seq) => {
                let why = "the records to copy are damaged".to_owned();
                StoreError::Corrupted { session_id, last_good_seq, why }
            }
            Self::Failed(error) => failed(error),
            Self::Unsynced(error) => health.unsure(id, error),
            Self::Unnamed(error) => health.unnamed(id, error),
        }
    }
}

impl From<Trouble> for io::Error {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Damaged(..) => io::ErrorKind::InvalidData.into(),
            Trouble::Failed(error) | Trouble::Unsynced(error) | Trouble::Unnamed(error) => error,
        }
    }
}

/// Removes an unfinished session.
pub fn abandon(context: &Context, id: SessionId) {
    if let Err(error) = context.disk.remove(&new_dir(id))
        && !is_missing(&error)
    {
        tracing::debug!(session_id = %id, %error, "an unfinished session could not be removed yet");
    }
}

fn make(
    disk: &dyn Disk,
    parent: SessionId,
    segments: &[Segment],
    at: Seq,
    child: SessionId,
    first: &[Entry],
) -> Result<(), Trouble> {
    let (from, to) = (session_dir(parent), new_dir(child));
    if !with_folders(disk, || ensure_dir(disk, &to))? {
        disk.remove(&to)?;
        disk.create_dir(&to)?;
    }
    let holder = segments.iter().rposition(|segment| segment.start.place.seq < at).unwrap_or(0);
    let Some((segment, whole)) = segments.get(..=holder).and_then(<[Segment]>::split_last) else {
        return Err(io::Error::from(io::ErrorKind::NotFound).into());
    };
    for segment in whole {
        link_or_copy(disk, &from.join(segment.name()), &to.join(segment.name()))?;
    }
    let file = disk.open(&from.join(segment.name()), false)?;
    let mut reader = segment.reader(file.as_ref(), segment.start);
    let (mut is_whole_batch, mut count) = (true, 0);
    while reader.at.place.seq < at {
        match reader.next()? {
            Step::Frame(frame, _) if frame.seq <= at => (is_whole_batch, count) = (frame.has(BATCH_END), count + 1),
            // A fork cannot begin after a dropped record.
            Step::Frame(..) => return Err(io::Error::from(io::ErrorKind::InvalidData).into()),
            Step::End | Step::Sealed | Step::Bad => return Err(Trouble::Damaged(parent, reader.at.place.seq)),
        }
    }
    let cut = reader.at;
    let previous_end = whole.last().map_or(0, |before| before.end);
    let header = Header {
        generation: segment.generation,
        // Nothing is appended to a compacted segment, so the fork continues in one of its own.
        compacted: segment.after.map(|_| Compacted { after: cut.place, count, end: cut.offset }),
        ..Header::after(child, segment.number, segment.start.place, previous_end)
    };
    let mut out = header.encode();
    out.extend(read_range(file.as_ref(), HEADER_BYTES, cut.offset)?);
    let mut name = segment.name();
    if segment.after.is_some() {
        write(disk, &to.join(name), &out)?;
        let next = Header::after(child, segment.number + 1, cut.place, cut.offset);
        (out, name) = (next.encode(), segment_name(next.number, next.generation));
    }
    let mut place = cut.place;
    // If the cut splits a batch, the fork's own first records complete it.
    let batch = place.batch + u64::from(is_whole_batch || segment.after.is_some());
    encode_batch(&mut out, &mut place, batch, first);
    write(disk, &to.join(name), &out)?;
    link_blobs(disk, &from.join(BLOBS), &to.join(BLOBS))?;
    disk.sync_dir(&to).map_err(Trouble::Unsynced)
}

fn write(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> Result<(), Trouble> {
    let file = create_anew(disk, path)?;
    write_all(file.as_ref(), bytes, 0)?;
    file.sync().map_err(Trouble::Unsynced)
}

/// Makes a folder with second names of another folder's blobs, if that exists.
pub(super) fn link_blobs(disk: &dyn Disk, from: &Path, to: &Path) -> Result<(), Trouble> {
    let Some(names) = if_there(disk.list(from))? else { return Ok(()) };
    disk.create_dir(to)?;
    for name in names {
        link_or_copy(disk, &from.join(&name), &to.join(&name))?;
    }
    disk.sync_dir(to).map_err(Trouble::Unsynced)
}

/// Links a file that is never written again, or copies it if the disk has no links.
fn link_or_copy(disk: &dyn Disk, from: &Path, to: &Path) -> Result<(), Trouble> {
    match disk.link(from, to) {
        Err(error) if has_no_links(&error) => copy(disk, from, to),
        linked => Ok(linked?),
    }
}

/// Returns true if a file gets no second name because the disk has none.
pub(super) fn has_no_links(error: &io::Error) -> bool {
    let kinds = [io::ErrorKind::Unsupported, io::ErrorKind::PermissionDenied, io::ErrorKind::TooManyLinks];
    kinds.contains(&error.kind())
}

/// Copies a file, durably.
pub(super) fn copy(disk: &dyn Disk, from: &Path, to: &Path) -> Result<(), Trouble> {
    let (source, copy) = (disk.open(from, false)?, disk.create(to)?);
    let (mut at, len) = (0, source.len()?);
    while at < len {
        let bytes = read_range(source.as_ref(), at, len.min(at + COPY_BYTES))?;
        if bytes.is_empty() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        write_all(copy.as_ref(), &bytes, at)?;
        at += bytes.len() as u64;
    }
    copy.sync().map_err(Trouble::Unsynced)
}

/// Gives a new session its name. If the sync fails, the name is taken back: a failed sync is never repeated, so a later
/// attempt must rename again.
pub fn appear(context: &Context, id: SessionId) -> Result<(), Trouble> {
    let (made, named) = (new_dir(id), session_dir(id));
    with_folders(context.disk.as_ref(), || context.disk.rename(&made, &named))?;
    let appeared = context.disk.sync_dir(&fan_out(id));
    let appeared = appeared.inspect_err(|_| drop(context.disk.rename(&named, &made)));
    context.forget_listing();
    appeared.map_err(Trouble::Unnamed)
}

/// Moves a session to the trash: once this succeeds, it never comes back. Returns its directory there, unless it was
/// never made.
pub fn set_aside(context: &Arc<Context>, id: SessionId) -> Result<Option<PathBuf>, StoreError> {
    context.health.check_writable()?;
    let (disk, named) = (context.disk.as_ref(), session_dir(id));
    // A failed attempt may have left it in the trash: only a new rename can be synced.
    let returned = lock(&context.returned).get(&id).cloned();
    if let Some(trash) = returned
        && let Err(error) = disk.rename(&trash, &named)
        && !is_missing(&error)
    {
        return Err(failed(error));
    }
    let trash = match with_folders(disk, || move_to_trash(disk, id)) {
        Err(error) if is_missing(&error) => {
            // A session that was never made may have left blobs.
            drop(disk.remove(&new_dir(id)));
            return Ok(None);
        }
        renamed => renamed.map_err(failed)?,
    };
    let synced = disk.sync_dir(&fan_out(id)).and_then(|()| disk.sync_dir(Path::new(TRASH)));
    // As in `appear`: a later attempt must rename again, and not repeat the failed sync.
    let synced = synced.inspect_err(|_| {
        drop(disk.rename(&trash, &named));
        // Its name may still be lost: the next opening syncs it.
        lock(&context.returned).insert(id, trash.clone());
    });
    // A later session of this id has files of its own.
    lock(&context.damaged).remove(&id);
    context.forget_listing();
    synced.map_err(|error| context.health.unnamed(id, error))?;
    lock(&context.returned).remove(&id);
    Ok(Some(trash))
}

/// Moves a session to a directory in the trash that nothing is in.
fn move_to_trash(disk: &dyn Disk, id: SessionId) -> io::Result<PathBuf> {
    for trash in trash_dirs(id) {
        match disk.rename(&session_dir(id), &trash) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            renamed => return renamed.map(|()| trash),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Returns true if a session has neither a directory nor a row that a list may show.
pub fn is_gone(context: &Context, id: SessionId) -> bool {
    context.disk.list(&session_dir(id)).is_err_and(|error| is_missing(&error)) && !context.witness.may_list(id)
}

/// Removes a session's directory in the trash. If this fails, the next start does it.
pub fn discard(context: &Context, trash: &Path) {
    if let Err(error) = context.disk.remove(trash) {
        tracing::debug!(trash = %trash.display(), %error, "a deleted session could not be removed yet");
    }
}
