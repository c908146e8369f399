//! Opening of a store: its folders are made, and what an earlier process left unfinished is removed.

use std::{io, path::Path};

use super::{
    Witness,
    disk::{Disk, if_there, is_missing},
    format_1,
    layout::{ACTIVE, Format, JOURNAL, NEW, TRASH, ensure_folders, fan_out, format_of},
    marks::{self, Found},
};
use meerkat_words::{SessionError, store::StoreError};

/// Store that may be opened.
#[derive(Clone, Copy, Debug)]
pub struct Prepared {
    /// True if there was none.
    pub is_new: bool,
    /// True if the marks of active sessions were missing.
    pub are_marks_lost: bool,
}

/// Makes missing folders, and removes unfinished and deleted files of an earlier process. A store of an older format
/// gets this one.
///
/// # Errors
/// `STORE_FORMAT_UNSUPPORTED` and `STORE_NOT_WRITABLE`.
pub fn prepare(disk: &dyn Disk, witness: &dyn Witness) -> Result<Prepared, SessionError> {
    let format = format_of(disk)?;
    let refuse = |error: io::Error| SessionError::StoreNotWritable { path: JOURNAL.to_owned(), why: error.to_string() };
    let marks = if_there(disk.list(Path::new(ACTIVE))).map_err(refuse)?;
    // Even in a store the folder may be missing: a backup may have left out empty folders.
    let names_none = || look(disk).is_ok_and(|found| found.active.is_empty() && (found.is_whole || marks.is_none()));
    let is_left_out = |error| is_missing(&error) && witness.lists_none() && names_none();
    let is_empty = format.is_none() || disk.list(Path::new(JOURNAL)).is_err_and(is_left_out);
    ensure_folders(disk, is_empty).map_err(refuse)?;
    match format {
        Some(Format::One) => format_1::upgrade(disk).map_err(refuse)?,
        Some(Format::Two) => format_1::remove(disk),
        None => {}
    }
    for folder in [TRASH, NEW] {
        let names = disk.list(Path::new(folder)).map_err(refuse)?;
        // A deletion must be durable before its files are removed: a killed process may not have synced it.
        if folder == TRASH && !names.is_empty() {
            let ids = names.iter().filter_map(|name| name.parse().ok());
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
    let are_marks_lost = format == Some(Format::Two) && marks.is_none() && !is_empty;
    Ok(Prepared { is_new: format.is_none(), are_marks_lost })
}

/// Reads the marks of a store without changing anything.
///
/// # Errors
/// The disk's, and `STORE_FORMAT_UNSUPPORTED`.
pub fn look(disk: &dyn Disk) -> Result<Found, SessionError> {
    let found = match format_of(disk)? {
        Some(Format::One) => format_1::look(disk),
        Some(Format::Two) | None => marks::look(disk),
    };
    found.map_err(|error| StoreError::Failed(error.to_string()).into())
}
