//! Whole directories of sessions: one made from another's beginning, and one taken away.

use std::{io, path::Path, sync::Arc};

use super::{
    Context,
    disk::{Disk, create_anew, ensure_dir, is_missing, read_range, write_all},
    frame::{BATCH_END, Entry, encode},
    layout::{BLOBS, TRASH, fan_out, new_dir, session_dir, trash_dir},
    lock,
    log::Log,
    recovery::{Segment, failed},
    segment::{HEADER_BYTES, Header, Reader, Step},
};
use crate::{
    ids::{Seq, SessionId},
    store::StoreError,
};

/// Makes the directory of `child`: the parent's records up to `at` and `first` behind them, and the parent's blobs.
/// It has another name until [`appear`].
pub(crate) fn fork_files(parent: &Log, at: Seq, child: SessionId, first: &Entry) -> Result<(), StoreError> {
    let context = &parent.context;
    let disk = context.disk.as_ref();
    context.health.room(disk)?;
    let segments = {
        let state = lock(&parent.state);
        if at > state.readable() || at == 0 || first.seq != at + 1 {
            return Err(StoreError::Failed("there is no such beginning to fork".to_owned()));
        }
        state.segments.clone()
    };
    make(disk, parent.id, &segments, at, child, first).map_err(|error| match error {
        Trouble::Failed(error) => failed(error),
        Trouble::Unsynced(error) => context.health.unsure(child, error),
    })
}

/// Why a fork was not made.
enum Trouble {
    /// Before anything had to be durable.
    Failed(io::Error),
    /// A sync failed. What it was to make durable is removed and never asked for again.
    Unsynced(io::Error),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// Removes what was made of a fork that is not to be.
pub(crate) fn abandon(context: &Context, child: SessionId) {
    if let Err(error) = context.disk.remove(&new_dir(child))
        && !is_missing(&error)
    {
        tracing::debug!(session_id = %child, %error, "an unfinished fork could not be removed yet");
    }
}

fn make(
    disk: &dyn Disk,
    parent: SessionId,
    segments: &[Segment],
    at: Seq,
    child: SessionId,
    first: &Entry,
) -> Result<(), Trouble> {
    let (from, to) = (session_dir(parent), new_dir(child));
    if !ensure_dir(disk, &to)? {
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
    let mut reader = Reader::new(file.as_ref(), segment.start, segment.end);
    let mut is_whole_batch = true;
    while reader.at.place.seq < at {
        match reader.next()? {
            Step::Frame(frame, _) => is_whole_batch = frame.has(BATCH_END),
            Step::End | Step::Sealed | Step::Bad => return Err(io::Error::from(io::ErrorKind::InvalidData).into()),
        }
    }
    let header = Header {
        session_id: child,
        number: segment.number,
        generation: segment.generation,
        base_seq: segment.start.place.seq + 1,
        base_batch: segment.start.place.batch + 1,
        chain: segment.start.place.chain,
        previous_end: whole.last().map_or(0, |before| before.end),
    };
    let mut out = header.encode();
    out.extend(read_range(file.as_ref(), HEADER_BYTES, reader.at.offset)?);
    let mut place = reader.at.place;
    // A batch that the cut parts in two ends with the fork's own first record.
    let batch = place.batch + u64::from(is_whole_batch);
    encode(&mut out, &mut place, batch, BATCH_END, first);
    let copy = create_anew(disk, &to.join(segment.name()))?;
    write_all(copy.as_ref(), &out, 0)?;
    copy.sync().map_err(Trouble::Unsynced)?;
    link_blobs(disk, &from.join(BLOBS), &to.join(BLOBS))?;
    disk.sync_dir(&to).map_err(Trouble::Unsynced)
}

fn link_blobs(disk: &dyn Disk, from: &Path, to: &Path) -> Result<(), Trouble> {
    let names = match disk.list(from) {
        Err(error) if is_missing(&error) => return Ok(()),
        names => names?,
    };
    disk.create_dir(to)?;
    for name in names {
        link_or_copy(disk, &from.join(&name), &to.join(&name))?;
    }
    disk.sync_dir(to).map_err(Trouble::Unsynced)
}

/// A file that is not written again may have two names; where the disk knows no such thing, it is copied.
fn link_or_copy(disk: &dyn Disk, from: &Path, to: &Path) -> Result<(), Trouble> {
    match disk.link(from, to) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied | io::ErrorKind::TooManyLinks
            ) => {}
        linked => return Ok(linked?),
    }
    let (source, copy) = (disk.open(from, false)?, disk.create(to)?);
    let (mut at, len) = (0, source.len()?);
    while at < len {
        let bytes = read_range(source.as_ref(), at, len.min(at + 1024 * 1024))?;
        if bytes.is_empty() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        write_all(copy.as_ref(), &bytes, at)?;
        at += bytes.len() as u64;
    }
    copy.sync().map_err(Trouble::Unsynced)
}

/// Gives a session that was made its name. Where that cannot be made sure of, the name is taken back: a failed sync
/// is never asked again, so a later attempt has to give the name anew.
pub(crate) fn appear(context: &Context, id: SessionId) -> io::Result<()> {
    let (made, named) = (new_dir(id), session_dir(id));
    context.disk.rename(&made, &named)?;
    context.disk.sync_dir(&fan_out(id)).inspect_err(|_| drop(context.disk.rename(&named, &made)))
}

/// Takes a session away: when this returns, it never comes back.
pub(crate) fn set_aside(context: &Arc<Context>, id: SessionId) -> Result<(), StoreError> {
    context.health.check_writable()?;
    let disk = context.disk.as_ref();
    match disk.rename(&session_dir(id), &trash_dir(id)) {
        Err(error) if is_missing(&error) => {
            // A session that never came to be may have left blobs.
            drop(disk.remove(&new_dir(id)));
            context.store_journal.forget(id);
            return Ok(());
        }
        renamed => renamed.map_err(failed)?,
    }
    let synced = disk.sync_dir(&fan_out(id)).and_then(|()| disk.sync_dir(Path::new(TRASH)));
    synced.map_err(|error| {
        // As in `appear`: whoever asks again gets a fresh rename, and not the word of a sync that failed before.
        drop(disk.rename(&trash_dir(id), &session_dir(id)));
        context.health.unsure(id, error)
    })?;
    context.store_journal.forget(id);
    Ok(())
}

/// Removes what was set aside. Where that fails, the next start does it.
pub(crate) fn discard(context: &Context, id: SessionId) {
    if let Err(error) = context.disk.remove(&trash_dir(id)) {
        tracing::debug!(session_id = %id, %error, "a deleted session could not be removed yet");
    }
}
