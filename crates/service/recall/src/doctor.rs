//! Examination and repair of memory's log for `meerkat doctor`. A repair never brings back what was forgotten.

use std::{fs, path::Path, sync::Arc};

use super::{
    file::{FILE_NAME, MemoryFile, Trouble},
    log::{self, Entry, Examined, Forgetting, MemoryLog},
    opened::{Meta, forgotten},
    tables::meta,
};
use meerkat_journal::{RealDisk, derived::caught};
use meerkat_words::store::StoreError;

/// Copy of the index that is examined.
const COPY_NAME: &str = "memory.redb.examined";
/// Forgettings that are listed one by one.
const TOLD_MAX: usize = 20;

/// Log position that an index has applied, and the forgettings that it has.
type Known = (u64, Vec<Forgetting>);

/// Lists the damaged places in a data directory's log, by file and offset. Only with `is_owned` the index is read too,
/// which knows where the log ended: another process may be writing it.
///
/// # Errors
/// If the log cannot be read.
pub fn examine_log(data_dir: &Path, is_owned: bool) -> Result<Vec<String>, StoreError> {
    // Without room for a copy, only the log is examined.
    let index = if is_owned { read_index(data_dir).ok().flatten() } else { None };
    let known = index.map_or(0, |(known, _)| known);
    Ok(log::examine(&RealDisk::new(data_dir.to_owned()), known)?.damages)
}

/// Repairs a damaged log: keeps every readable entry and the forgettings that only the index has. Returns a report that
/// also names the copies of the damaged files. No other process may own the directory.
///
/// # Errors
/// The disk's.
pub fn mend_log(data_dir: &Path) -> Result<String, StoreError> {
    let disk = Arc::new(RealDisk::new(data_dir.to_owned()));
    let index = read_index(data_dir)?;
    let (known, in_index) = index.clone().unwrap_or_default();
    let in_log = log::examine(disk.as_ref(), known)?.forgettings;
    // They come first, so that a kill in between leaves no log that looks whole without them.
    let lost = in_index.into_iter().filter(|it| !in_log.contains(it));
    let lost: Vec<Entry> = lost.map(Entry::Forgot).collect();
    if !lost.is_empty() {
        MemoryLog::open(disk.clone(), known)?.append(&lost)?;
    }
    let Examined { forgettings, kept, .. } = log::mend(disk.as_ref(), known)?;
    let mut told: Vec<String> = forgettings.iter().take(TOLD_MAX).map(told).collect();
    let more = forgettings.len().saturating_sub(TOLD_MAX);
    told.extend((more > 0).then(|| format!("and {more} more")));
    let told = if told.is_empty() { "nothing".to_owned() } else { told.join("; ") };
    let besides = match index {
        Some(_) => format!("{} of that only {FILE_NAME} still knew", lost.len()),
        None => format!("{FILE_NAME}, which may have known of more, cannot be read: forget again what is missing here"),
    };
    let kept = if kept.is_empty() { String::new() } else { format!(", and it is kept in {}", kept.join(", ")) };
    Ok(format!("all that can be read of it is kept{kept}; it says to forget: {told} ({besides})"))
}

/// Reads the log position and the forgettings of the index; `None` if there is no readable one. It reads a copy,
/// because opening the file would change it.
fn read_index(data_dir: &Path) -> Result<Option<Known>, StoreError> {
    let (path, copy) = (data_dir.join(FILE_NAME), data_dir.join(COPY_NAME));
    if !path.exists() {
        return Ok(None);
    }
    let read = || -> Result<Option<Known>, Trouble> {
        // The file has to stay open while the transaction reads.
        let (file, is_new) = MemoryFile::open(Some(&copy))?;
        let transaction = file.read()?;
        let (meta, forgotten) = (Meta(&transaction), forgotten(&transaction)?);
        let (known, is_whole) = (meta.long(meta::LOG)?, meta.get(meta::WHOLE)?.is_some());
        // A start that could not read the log makes an index that knows nothing.
        let knows = !is_new && (is_whole || known > 0);
        Ok(knows.then(|| (known, forgotten.into_iter().map(|(_, forgetting)| forgetting).collect())))
    };
    let copied = fs::copy(&path, &copy).map(|_| caught(read));
    drop(fs::remove_file(&copy));
    let read = copied.map_err(|error| StoreError::Failed(format!("{FILE_NAME} cannot be copied: {error}")))?;
    Ok(read.ok().flatten())
}

fn told(Forgetting { session_id, from_seq, to_seq, source, .. }: &Forgetting) -> String {
    let session = session_id.map_or_else(|| "all sessions".to_owned(), |id| format!("session {id}"));
    let to_seq = to_seq.map_or_else(|| "the end".to_owned(), |to_seq| to_seq.to_string());
    let source = source.as_ref().map(|source| format!(", source {source}")).unwrap_or_default();
    format!("{session}, events {from_seq} to {to_seq}{source}")
}
