//! What stands where in a data directory, and how an empty one becomes a store.
//!
//! A path is made of a typed id or of a number, never of a caller's text.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
};

use super::{
    Witness,
    disk::{Disk, create_anew, ensure_dir, is_missing, is_unreadable, write_all},
    store_journal::look,
};
use meerkat_words::{
    SessionError,
    clock::{Clock as _, IdSource as _, RandomIds, SystemClock},
    ids::SessionId,
};

/// The file that says what the directory is, and in which format.
const FORMAT: &str = "format";
/// The format of this version.
const FORMAT_LINE: &str = "meerkat store 1";
/// The file that tells the store from every other, wherever it is moved.
const ID: &str = "id";
/// The room that is kept back for turns that run when the disk is full.
pub(super) const RESERVE: &str = "reserve";
/// The sessions, in 256 folders.
pub(super) const JOURNAL: &str = "journal";
/// The store journal.
pub(super) const STORE: &str = "store";
/// What is being made and is nothing yet.
pub(super) const NEW: &str = "new";
/// What is deleted and not yet unlinked.
pub(super) const TRASH: &str = "trash";
/// What was taken out of a damaged journal.
pub const QUARANTINE: &str = "quarantine";
/// A session's folder of blobs.
pub(super) const BLOBS: &str = "blobs";

/// The folder that a session's directory is in. The last byte of a UUIDv7 is random, so they fill evenly.
pub fn fan_out(id: SessionId) -> PathBuf {
    let [.., last] = id.as_uuid().into_bytes();
    Path::new(JOURNAL).join(format!("{last:02x}"))
}

/// A session's directory.
pub fn session_dir(id: SessionId) -> PathBuf {
    fan_out(id).join(id.to_string())
}

/// Whether a session is there.
pub fn exists(disk: &dyn Disk, id: SessionId) -> bool {
    disk.list(&session_dir(id)).is_ok()
}

/// Where a session is made.
pub(super) fn new_dir(id: SessionId) -> PathBuf {
    Path::new(NEW).join(id.to_string())
}

/// Where a deleted session waits for its end.
pub(super) fn trash_dir(id: SessionId) -> PathBuf {
    Path::new(TRASH).join(id.to_string())
}

/// The name of a segment.
pub fn segment_name(number: u64, generation: u64) -> String {
    format!("{number}.{generation}.mlog")
}

/// The newest generation of a store journal among some names.
pub(super) fn newest_generation(names: &[String]) -> Option<u64> {
    generations_of(names).first().and_then(|(_, generations)| generations.first().copied())
}

/// The segments among some names, by number, each with its generations, the newest first.
pub fn generations_of(names: &[String]) -> Vec<(u64, Vec<u64>)> {
    let mut found: Vec<(u64, u64)> = names
        .iter()
        .filter_map(|name| {
            let (number, generation) = name.strip_suffix(".mlog")?.split_once('.')?;
            let parsed = (number.parse().ok()?, generation.parse().ok()?);
            (segment_name(parsed.0, parsed.1) == *name).then_some(parsed)
        })
        .collect();
    found.sort_unstable_by_key(|&(number, generation)| (number, std::cmp::Reverse(generation)));
    let same = found.chunk_by(|one, other| one.0 == other.0);
    same.map(|segment| (segment[0].0, segment.iter().map(|&(_, generation)| generation).collect())).collect()
}

/// Every stored session, in the order of the ids. Of folders that cannot be listed `unlisted` is told.
pub fn sessions_on(disk: &dyn Disk, unlisted: &mut dyn FnMut(&Path, &io::Error)) -> io::Result<Vec<SessionId>> {
    let mut ids = Vec::new();
    for folder in 0..=255_u8 {
        let path = Path::new(JOURNAL).join(format!("{folder:02x}"));
        let names = match disk.list(&path) {
            Err(error) if is_missing(&error) => continue,
            Err(error) if is_unreadable(&error) => {
                unlisted(&path, &error);
                continue;
            }
            names => names?,
        };
        let parsed =
            names.iter().filter_map(|name| name.parse::<SessionId>().ok().filter(|id| id.to_string() == *name));
        ids.extend(parsed.filter(|id| id.as_uuid().as_bytes()[15] == folder));
    }
    ids.sort_unstable();
    Ok(ids)
}

/// Says that a folder of sessions cannot be listed.
pub fn log_unlisted(folder: &Path, error: &io::Error) {
    tracing::error!(folder = %folder.display(), %error, "a folder of sessions cannot be listed; what is in it is passed over");
}

/// Bytes of a session's files; what a fork shares with its parent counts for both.
pub fn bytes_of(disk: &dyn Disk, id: SessionId) -> io::Result<u64> {
    Ok(journal_bytes_of(disk, id)? + sum(disk, &session_dir(id).join(BLOBS))?)
}

/// Bytes of a session's segments.
pub fn journal_bytes_of(disk: &dyn Disk, id: SessionId) -> io::Result<u64> {
    sum(disk, &session_dir(id))
}

/// Bytes of a folder's files. None of them is opened.
fn sum(disk: &dyn Disk, dir: &Path) -> io::Result<u64> {
    let names = match disk.list(dir) {
        Err(error) if is_missing(&error) => return Ok(0),
        names => names?,
    };
    names.iter().filter(|name| *name != BLOBS).try_fold(0, |sum, name| match disk.len(&dir.join(name)) {
        // A file may go while they are counted.
        Err(error) if is_missing(&error) => Ok(sum),
        len => Ok(sum + len?),
    })
}

/// Whether the directory is a store of this format; `false` where it is none yet.
///
/// # Errors
/// `STORE_FORMAT_UNSUPPORTED` where it is of another format. Nothing is changed.
pub(super) fn check_format(disk: &dyn Disk) -> Result<bool, SessionError> {
    match read(disk, FORMAT) {
        Ok(bytes) if bytes.strip_suffix(b"\n") == Some(FORMAT_LINE.as_bytes()) => Ok(true),
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let found = text.lines().next().unwrap_or_default().chars().take(64).collect();
            Err(SessionError::StoreFormatUnsupported { found })
        }
        Err(error) if is_missing(&error) => Ok(false),
        Err(error) => Err(SessionError::StoreNotWritable { path: FORMAT.to_owned(), why: error.to_string() }),
    }
}

fn read(disk: &dyn Disk, name: &str) -> io::Result<Vec<u8>> {
    let file = disk.open(Path::new(name), false)?;
    super::disk::read_range(file.as_ref(), 0, 256)
}

/// What tells the store from every other; `None` where nobody has asked for it yet.
///
/// # Errors
/// What the disk answers.
pub fn known_store_id(disk: &dyn Disk) -> io::Result<Option<String>> {
    match read(disk, ID) {
        Err(error) if is_missing(&error) => Ok(None),
        id => Ok(Some(String::from_utf8_lossy(&id?).trim_end().to_owned())),
    }
}

/// As [`known_store_id`], which is made when it is asked for first.
///
/// # Errors
/// What the disk answers.
pub fn store_id(disk: &dyn Disk) -> io::Result<String> {
    if let Some(id) = known_store_id(disk)? {
        return Ok(id);
    }
    let id = RandomIds::default().next_session_id(SystemClock::new().now()).to_string();
    name(disk, ID, &id)?;
    Ok(id)
}

/// Makes what is missing, and empties what a process that ended left half-done. Answers whether the store is new.
///
/// # Errors
/// `STORE_FORMAT_UNSUPPORTED` and `STORE_NOT_WRITABLE`.
pub fn prepare(disk: &dyn Disk, witness: &dyn Witness) -> Result<bool, SessionError> {
    let is_store = check_format(disk)?;
    let refuse = |error: io::Error| SessionError::StoreNotWritable { path: JOURNAL.to_owned(), why: error.to_string() };
    // Also in a store: a backup may have left out what was empty.
    let is_left_out = |error| is_missing(&error) && witness.lists_none() && look(disk).is_ok_and(|it| it.names_none());
    let is_empty = !is_store || disk.list(Path::new(JOURNAL)).is_err_and(is_left_out);
    ensure_folders(disk, is_empty).map_err(refuse)?;
    for folder in [TRASH, NEW] {
        let names = disk.list(Path::new(folder)).map_err(refuse)?;
        // A session that a process took away, and then was killed, is gone for good before anything of it is.
        if folder == TRASH && !names.is_empty() {
            let ids = names.iter().filter_map(|name| name.parse().ok());
            ids.map(fan_out).try_for_each(|parent| disk.sync_dir(&parent)).map_err(refuse)?;
            disk.sync_dir(Path::new(TRASH)).map_err(refuse)?;
        }
        for name in names {
            // What cannot be removed takes room and does no harm; the next start tries again.
            if let Err(error) = disk.remove(&Path::new(folder).join(&name)) {
                tracing::warn!(folder, name, %error, "what an earlier process left could not be removed");
            }
        }
    }
    Ok(!is_store)
}

/// Makes the folders that are missing, durably; answers whether one was. Those of an empty store may be what a killed
/// process left in the system's memory, so all of them are synced.
fn ensure_folders(disk: &dyn Disk, is_empty: bool) -> io::Result<bool> {
    let names = disk.list(Path::new(""))?;
    if !is_empty && !names.iter().any(|name| name == JOURNAL) {
        // Made again, it would say that every session was deleted.
        let why = "the folder of all sessions is missing in a store that may have some; mount or restore it, or make it \
                   by hand (mode 700) if there are no sessions to keep";
        return Err(io::Error::other(why));
    }
    let mut is_one_made = false;
    for folder in [JOURNAL, STORE, NEW, TRASH, QUARANTINE].iter().filter(|folder| !names.iter().any(|it| it == *folder))
    {
        is_one_made |= ensure_dir(disk, Path::new(folder))?;
    }
    let names: BTreeSet<String> = disk.list(Path::new(JOURNAL))?.into_iter().collect();
    let missing = (0..=255_u8).map(|folder| format!("{folder:02x}")).filter(|folder| !names.contains(folder));
    let mut is_fan_out_made = false;
    for folder in missing {
        is_fan_out_made |= ensure_dir(disk, &Path::new(JOURNAL).join(folder))?;
    }
    if is_fan_out_made || is_empty {
        disk.sync_dir(Path::new(JOURNAL))?;
    }
    if is_one_made || is_empty {
        disk.sync_dir(Path::new(""))?;
    }
    Ok(is_one_made || is_fan_out_made)
}

/// Does something that needs the store's folders. Where something is missing, it may be one of these: they are made, and
/// it is done once more.
pub(super) fn with_folders<T>(disk: &dyn Disk, work: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match work() {
        Err(error) if is_missing(&error) && ensure_folders(disk, false)? => {
            tracing::warn!("folders of the store were missing, and are made again");
            work()
        }
        done => done,
    }
}

/// Says that the directory is a whole store now.
///
/// # Errors
/// What the disk answers.
pub fn seal(disk: &dyn Disk) -> io::Result<()> {
    name(disk, FORMAT, FORMAT_LINE)
}

/// Makes a file of one line, durably.
fn name(disk: &dyn Disk, name: &str, line: &str) -> io::Result<()> {
    let path = Path::new(NEW).join(name);
    let file = with_folders(disk, || create_anew(disk, &path))?;
    write_all(file.as_ref(), format!("{line}\n").as_bytes(), 0)?;
    file.sync()?;
    disk.rename(&path, Path::new(name))?;
    disk.sync_dir(Path::new(""))
}
