//! Lists of sessions in a data directory that this process does not own, from a copy of its index. Nothing is locked,
//! written or settled, so that its owner is not disturbed.

use std::{fs::File, io::Read as _, path::Path, sync::Arc};

use meerkat_journal::derived::{DerivedFile, caught};
use meerkat_words::{
    answers::{Page, SessionSummary},
    requests::SessionQuery,
};

use super::{
    file::{CACHE_BYTES, LAYOUT, REBUILT},
    index::page,
    rows::{Table, Trouble, View},
};
use crate::{SessionError, store::StoreError};

/// Most bytes of an index to copy.
const INDEX_BYTES_MAX: u64 = 1 << 30;

/// Reads a page of the sessions in `data_dir`; an owner's changes are at most a second late.
///
/// # Errors
/// `STORE_FAILED` if there is no list, or it cannot be read.
pub fn glance(data_dir: &Path, query: &SessionQuery) -> Result<Page<SessionSummary>, SessionError> {
    let read = || caught(|| read(data_dir, query));
    // The owner may have written during the copy.
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
    let file = DerivedFile::in_memory(&copy, CACHE_BYTES)?;
    drop(copy);
    let transaction = Some(file.begin_read()?);
    let view = View { file: Some(Arc::new(file)), dirty: Arc::default(), committing: Arc::default(), transaction };
    if view.get(Table::Meta, b"layout")?.as_deref() != Some(LAYOUT) {
        return Err(no_list("its index is of another version"));
    }
    if view.get(Table::Meta, REBUILT)?.is_none() {
        return Err(no_list("its index is not whole"));
    }
    page(&view, query, None)
}
