//! Opening of a store: its folders are made, and what an earlier process left unfinished is removed.

use std::{io, path::Path};

use super::{
    Witness,
    disk::{Disk, is_missing},
    layout::{JOURNAL, NEW, TRASH, check_format, ensure_folders, fan_out},
    store_journal::look,
};
use meerkat_words::SessionError;

/// Makes missing folders, and removes unfinished and deleted files of an earlier process. Returns true if the store is
/// new.
///
/// # Errors
/// `STORE_FORMAT_UNSUPPORTED` and `STORE_NOT_WRITABLE`.
pub fn prepare(disk: &dyn Disk, witness: &dyn Witness) -> Result<bool, SessionError> {
    let is_store = check_format(disk)?;
    let refuse = |error: io::Error| SessionError::StoreNotWritable { path: JOURNAL.to_owned(), why: error.to_string() };
    // Even in a store the folder may be missing: a backup may have left out empty folders.
    let is_left_out = |error| is_missing(&error) && witness.lists_none() && look(disk).is_ok_and(|it| it.names_none());
    let is_empty = !is_store || disk.list(Path::new(JOURNAL)).is_err_and(is_left_out);
    ensure_folders(disk, is_empty).map_err(refuse)?;
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
    Ok(!is_store)
}
