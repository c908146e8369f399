//! Opening of a store: its folders are made, and what an earlier process left unfinished is removed.

use std::{io, path::Path};

use super::{
    Witness,
    disk::{Disk, ensure_dir, if_there, is_full, is_missing},
    layout::{ACTIVE, JOURNAL, NEW, TRASH, ensure_folders, fan_out, is_store, log_unlisted, sessions_on},
    marks::{self, Found},
};
use meerkat_words::{SessionError, store::StoreError};

/// Store that may be opened.
#[derive(Clone, Copy, Debug)]
pub struct Prepared {
    /// True if there was none.
    pub is_new: bool,
    /// True if it was not known which sessions are active, nor which were deleted, so that all count as active.
    pub are_marks_lost: bool,
}

/// Makes missing folders, and removes unfinished and deleted files of an earlier process.
///
/// # Errors
/// `STORE_FORMAT_UNSUPPORTED` and `STORE_NOT_WRITABLE`.
pub fn prepare(disk: &dyn Disk, witness: &dyn Witness) -> Result<Prepared, SessionError> {
    let is_new = !is_store(disk)?;
    let refuse = |error: io::Error| match is_full(&error) {
        true => StoreError::Full.into(),
        false => SessionError::StoreNotWritable { path: JOURNAL.to_owned(), why: error.to_string() },
    };
    let is_active_there = if_there(disk.list(Path::new(ACTIVE))).map_err(refuse)?.is_some();
    // Even in a store the folder may be missing: a backup may have left out empty folders.
    let names_none = |found: Found| found.active.is_empty();
    let is_left_out = |error| is_missing(&error) && witness.lists_none() && look(disk).is_ok_and(names_none);
    let is_empty = is_new || disk.list(Path::new(JOURNAL)).is_err_and(is_left_out);
    ensure_folders(disk, is_empty).map_err(refuse)?;
    let are_marks_lost = match is_active_there {
        _ if is_new => ensure_dir(disk, Path::new(ACTIVE)).map(|_| false),
        true => Ok(false),
        false => {
            tracing::warn!("the folder of active sessions is missing: every session is looked at");
            let all = sessions_on(disk, &mut log_unlisted);
            all.and_then(|all| marks::make_active(disk, all.into_iter())).map(|()| true)
        }
    };
    let are_marks_lost = are_marks_lost.map_err(refuse)?;
    for folder in [TRASH, NEW] {
        let names = disk.list(Path::new(folder)).map_err(refuse)?;
        // A deletion must be durable before its files are removed: a killed process may not have synced it.
        if folder == TRASH && !names.is_empty() {
            let id_of = |name: &str| name.split_once('.').map_or(name, |(id, _)| id).parse().ok();
            let ids = names.iter().filter_map(|name| id_of(name));
            ids.map(fan_out).try_for_each(|parent| disk.sync_dir(&parent)).map_err(refuse)?;
            disk.sync_dir(Path::new(TRASH)).map_err(refuse)?;
        }
        for name in names {
            // What cannot be removed only takes room; the next start tries again.
            if let Err(error) = disk.remove(&Path::new(folder).join(&name)) {
                tracing::warn!(folder, name, %error, "what an earlier process left could not be removed");
            }
        }
    }
    Ok(Prepared { is_new, are_marks_lost })
}

/// Reads the marks of a store without changing anything.
///
/// # Errors
/// The disk's, and `STORE_FORMAT_UNSUPPORTED`.
pub fn look(disk: &dyn Disk) -> Result<Found, SessionError> {
    is_store(disk)?;
    marks::look(disk).map_err(|error| StoreError::Failed(error.to_string()).into())
}
