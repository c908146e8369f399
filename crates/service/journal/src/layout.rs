//! Layout of a data directory, and its preparation.
//!
//! Paths are made of typed ids and numbers, and of a reader's name, which is checked; never of another text of a
//! caller's.

use std::{
    collections::BTreeSet,
    fs::DirBuilder,
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use super::disk::{Disk, RealDisk, ensure_dir, if_there, is_missing, is_unreadable, write_new};
use meerkat_words::{
    SessionError,
    clock::{Clock as _, IdSource as _, RandomIds, SystemClock},
    ids::SessionId,
};

/// File with the store's format.
const FORMAT: &str = "format";
const FORMAT_LINE: &str = "meerkat store 2";
/// File with the store's id, which stays when the store is moved.
const ID: &str = "id";
/// File that reserves room for running turns when the disk is full.
pub(super) const RESERVE: &str = "reserve";
/// Folder of the sessions, in 256 subfolders.
pub(super) const JOURNAL: &str = "journal";
/// Folder of the marks of active sessions.
pub(super) const ACTIVE: &str = "active";
/// Folder of the registered readers.
pub(super) const READERS: &str = "readers";
/// Folder of unfinished files.
pub(super) const NEW: &str = "new";
/// Folder of deleted sessions that are not yet unlinked.
pub(super) const TRASH: &str = "trash";
/// Folder of bytes removed from damaged files.
pub const QUARANTINE: &str = "quarantine";
/// Folder of blobs in a session's directory.
pub(super) const BLOBS: &str = "blobs";
/// Folder of uploads in a session's directory: blobs that no prompt has used yet.
pub(super) const UPLOADS: &str = "uploads";

/// Folders of a store that are made again if they are missing. That of the active sessions appears with its marks.
const FOLDERS: [&str; 5] = [JOURNAL, READERS, NEW, TRASH, QUARANTINE];

/// Returns the folder of a session's directory, by the id's last byte, which is random in a UUIDv7.
pub fn fan_out(id: SessionId) -> PathBuf {
    let [.., last] = id.as_uuid().into_bytes();
    Path::new(JOURNAL).join(format!("{last:02x}"))
}

/// Returns a session's directory.
pub fn session_dir(id: SessionId) -> PathBuf {
    fan_out(id).join(id.to_string())
}

/// Returns true if a session exists.
pub fn exists(disk: &dyn Disk, id: SessionId) -> bool {
    disk.list(&session_dir(id)).is_ok()
}

/// Returns an unfinished session's directory.
pub(super) fn new_dir(id: SessionId) -> PathBuf {
    Path::new(NEW).join(id.to_string())
}

/// Returns the directories that a deleted session may have, best first: earlier sessions of its id may be in the trash.
pub(super) fn trash_dirs(id: SessionId) -> impl Iterator<Item = PathBuf> {
    (0_u32..).map(move |n| Path::new(TRASH).join(if n == 0 { id.to_string() } else { format!("{id}.{n}") }))
}

/// Returns the name of a segment.
pub fn segment_name(number: u64, generation: u64) -> String {
    format!("{number}.{generation}.mlog")
}

/// Finds the segments among some names: numbers in order, each with its generations, newest first.
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

/// Lists every stored session, ordered by id. Folders that cannot be listed are passed to `unlisted`.
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

/// Logs a folder of sessions that cannot be listed.
pub fn log_unlisted(folder: &Path, error: &io::Error) {
    tracing::error!(folder = %folder.display(), %error, "a folder of sessions cannot be listed; what is in it is passed over");
}

/// Returns the bytes of a session's files; files shared with a fork count for both.
pub fn bytes_of(disk: &dyn Disk, id: SessionId) -> io::Result<u64> {
    let folders = [BLOBS, UPLOADS].map(|folder| sum(disk, &session_dir(id).join(folder)));
    folders.into_iter().try_fold(journal_bytes_of(disk, id)?, |bytes, more| Ok(bytes + more?))
}

/// Returns the bytes of a session's segments.
pub fn journal_bytes_of(disk: &dyn Disk, id: SessionId) -> io::Result<u64> {
    sum(disk, &session_dir(id))
}

/// Sums the bytes of a folder's files, without opening them.
fn sum(disk: &dyn Disk, dir: &Path) -> io::Result<u64> {
    let names = if_there(disk.list(dir))?.unwrap_or_default();
    // A file may be removed meanwhile.
    let len = |name: &String| if_there(disk.len(&dir.join(name))).map(Option::unwrap_or_default);
    names.iter().filter(|name| ![BLOBS, UPLOADS].contains(&name.as_str())).map(len).sum()
}

/// Returns true if a directory is a store, and false if it is not one yet.
///
/// # Errors
/// `STORE_FORMAT_UNSUPPORTED` if it has another format. Nothing is changed.
pub fn is_store(disk: &dyn Disk) -> Result<bool, SessionError> {
    match read(disk, FORMAT) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            match text.strip_suffix('\n') {
                Some(FORMAT_LINE) => Ok(true),
                _ => {
                    let found = text.lines().next().unwrap_or_default().chars().take(64).collect();
                    Err(SessionError::StoreFormatUnsupported { found })
                }
            }
        }
        Err(error) if is_missing(&error) => Ok(false),
        Err(error) => Err(SessionError::StoreNotWritable { path: FORMAT.to_owned(), why: error.to_string() }),
    }
}

fn read(disk: &dyn Disk, name: &str) -> io::Result<Vec<u8>> {
    let file = disk.open(Path::new(name), false)?;
    super::disk::read_range(file.as_ref(), 0, 256)
}

/// Checks that not everybody may write to `dir`.
///
/// # Errors
/// `STORE_NOT_WRITABLE`.
pub fn check_private(dir: &Path) -> Result<(), SessionError> {
    let refuse = |why: String| SessionError::StoreNotWritable { path: dir.display().to_string(), why };
    let found = dir.metadata().map_err(|error| refuse(error.to_string()))?;
    match found.mode() & 0o002 {
        0 => Ok(()),
        _ => Err(refuse("everybody may write it; `chmod o-w` or `meerkat doctor --repair` ends that".to_owned())),
    }
}

/// Makes `dir` if it is missing, and checks that it belongs to this user and is a store of this format or none yet.
///
/// # Errors
/// `STORE_NOT_WRITABLE` and `STORE_FORMAT_UNSUPPORTED`; then nothing was changed.
pub fn check_directory(dir: &Path) -> Result<(), SessionError> {
    let refuse = |why: String| SessionError::StoreNotWritable { path: dir.display().to_string(), why };
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|error| refuse(error.to_string()))?;
    let found = dir.metadata().map_err(|error| refuse(error.to_string()))?;
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(refuse("it belongs to another user".to_owned()));
    }
    is_store(&RealDisk::new(dir.to_owned()))?;
    Ok(())
}

/// Reads the store's id; `None` if it has none yet.
///
/// # Errors
/// The disk's.
pub fn known_store_id(disk: &dyn Disk) -> io::Result<Option<String>> {
    Ok(if_there(read(disk, ID))?.map(|id| String::from_utf8_lossy(&id).trim_end().to_owned()))
}

/// Like [`known_store_id`], but makes the id if there is none.
///
/// # Errors
/// The disk's.
pub fn store_id(disk: &dyn Disk) -> io::Result<String> {
    if let Some(id) = known_store_id(disk)? {
        return Ok(id);
    }
    let id = RandomIds::default().next_session_id(SystemClock::new().now()).to_string();
    name(disk, ID, &id)?;
    Ok(id)
}

/// Makes missing folders, durably; returns true if one was missing. In an empty store all are synced, because a killed
/// process may have left them in the system's memory alone.
pub(super) fn ensure_folders(disk: &dyn Disk, is_empty: bool) -> io::Result<bool> {
    let names = disk.list(Path::new(""))?;
    if !is_empty && !names.iter().any(|name| name == JOURNAL) {
        // If it were made again, every session would count as deleted.
        let why = "the folder of all sessions is missing in a store that may have some; mount or restore it, or make it \
                   by hand (mode 700) if there are no sessions to keep";
        return Err(io::Error::other(why));
    }
    let mut is_one_made = false;
    for folder in FOLDERS.iter().filter(|folder| !names.iter().any(|it| it == *folder)) {
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

/// Does work that needs the store's folders. If something is missing, the folders are made, and the work is tried once
/// more.
pub(super) fn with_folders<T>(disk: &dyn Disk, work: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match work() {
        Err(error) if is_missing(&error) && ensure_folders(disk, false)? => {
            tracing::warn!("folders of the store were missing, and are made again");
            work()
        }
        done => done,
    }
}

/// Marks the directory as a complete store.
///
/// # Errors
/// The disk's.
pub fn seal(disk: &dyn Disk) -> io::Result<()> {
    name(disk, FORMAT, FORMAT_LINE)
}

/// Writes a file of one line, durably.
fn name(disk: &dyn Disk, name: &str, line: &str) -> io::Result<()> {
    let path = Path::new(NEW).join(name);
    with_folders(disk, || write_new(disk, &path, format!("{line}\n").as_bytes()))?;
    disk.rename(&path, Path::new(name))?;
    disk.sync_dir(Path::new(""))
}
