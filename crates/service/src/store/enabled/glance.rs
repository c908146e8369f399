//! The sessions of a data directory that this process does not own, from a copy of its index: nothing is locked and
//! nothing written, so that nobody's work is disturbed, and what was left open there stays so.

use std::{
    fs::File,
    io::Read as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Arc,
};

use redb::{Database, ReadableDatabase as _, StorageBackend as _, backends::InMemoryBackend};

use super::{
    file::{LAYOUT, REBUILT, Table, Trouble},
    index::page,
    rows::View,
};
use crate::{
    SessionError,
    service::{Page, SessionQuery, SessionSummary},
    store::StoreError,
};

/// Bytes of an index that are copied.
const INDEX_BYTES_MAX: u64 = 1 << 30;

/// A page of the sessions in `data_dir`, as its owner, if there is one, wrote them a second ago at most.
///
/// # Errors
/// `STORE_FAILED` where there is no list, or it cannot be read.
pub fn glance(data_dir: &Path, query: &SessionQuery) -> Result<Page<SessionSummary>, SessionError> {
    // A damaged file makes redb panic.
    let read = || catch_unwind(AssertUnwindSafe(|| read(data_dir, query)));
    let read = || read().unwrap_or_else(|_| Err(Trouble::Damaged("reading it panicked".to_owned())));
    // Its owner may have written while it was copied.
    let page = read().or_else(|_| read());
    page.map_err(|(Trouble::Damaged(why) | Trouble::Failed(why) | Trouble::Full(why))| StoreError::Failed(why).into())
}

fn read(data_dir: &Path, query: &SessionQuery) -> Result<Page<SessionSummary>, Trouble> {
    let no_list = |why: &str| Trouble::Failed(format!("there is no list of its sessions yet: {why}"));
    let file = File::open(data_dir.join("index.redb")).map_err(|error| no_list(&error.to_string()))?;
    let mut copy = Vec::new();
    file.take(INDEX_BYTES_MAX + 1).read_to_end(&mut copy).map_err(|error| no_list(&error.to_string()))?;
    if copy.len() as u64 > INDEX_BYTES_MAX {
        return Err(Trouble::Failed("its index is too large".to_owned()));
    }
    let backend = InMemoryBackend::new();
    let failed = |error: std::io::Error| Trouble::Failed(error.to_string());
    backend.set_len(copy.len() as u64).and_then(|()| backend.write(0, &copy)).map_err(failed)?;
    drop(copy);
    let database = Arc::new(Database::builder().create_with_backend(backend)?);
    let transaction = Some(database.begin_read()?);
    let view = View { database: Some(database), dirty: Arc::default(), committing: Arc::default(), transaction };
    if view.get(Table::Meta, b"layout")?.as_deref() != Some(LAYOUT) {
        return Err(no_list("its index is of another version"));
    }
    if view.get(Table::Meta, REBUILT)?.is_none() {
        return Err(no_list("its index is not whole"));
    }
    page(&view, query, None)
}
