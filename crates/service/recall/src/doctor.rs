//! The memory's log for whoever examines a data directory, and how it is mended without bringing back what was forgotten.

use std::{fs, path::Path, sync::Arc};

use super::{
    core::FILE_NAME,
    file::{MemoryFile, Trouble},
    log::{self, Entry, Examined, Forgetting, MemoryLog},
    opened::{Meta, forgotten},
    tables::meta,
};
use meerkat_journal::{RealDisk, derived::caught};
use meerkat_words::store::StoreError;

/// The index while it is looked at.
const COPY_NAME: &str = "memory.redb.examined";
/// Forgettings that are told one by one.
const TOLD_MAX: usize = 20;

/// Up to where an index has applied the log, and what it knows is to be forgotten.
type Known = (u64, Vec<Forgetting>);

/// What is damaged in the log of a data directory, each place by its file and offset. Its owner is asked about the index,
/// too, which knows where the log ended; another process may be writing that.
///
/// # Errors
/// Where it cannot be read.
pub fn examine_log(data_dir: &Path, is_owned: bool) -> Result<Vec<String>, StoreError> {
    // Where there is no room for a copy, the log alone is looked at.
    let index = if is_owned { read_index(data_dir).ok().flatten() } else { None };
    let known = index.map_or(0, |(known, _)| known);
    Ok(log::examine(&RealDisk::new(data_dir.to_owned()), known)?.damages)
}

/// Keeps all that can be read of a damaged log, and what the index knows besides of what is to be forgotten; says so, and
/// where the damaged files are. No other process may own the directory.
///
/// # Errors
/// What the disk answers.
pub fn mend_log(data_dir: &Path) -> Result<String, StoreError> {
    let disk = Arc::new(RealDisk::new(data_dir.to_owned()));
    let index = read_index(data_dir)?;
    let (known, in_index) = index.clone().unwrap_or_default();
    let in_log = log::examine(disk.as_ref(), known)?.forgettings;
    // First, so that a kill in between leaves nothing that seems whole and lacks them.
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
    Ok(format!("all that can be read of it stands{kept}; it says to forget: {told} ({besides})"))
}

/// Up to where the index has applied the log, and all that it knows is forgotten; `None` where there is none that can be
/// read. A copy is looked at, because opening the file would change it.
fn read_index(data_dir: &Path) -> Result<Option<Known>, StoreError> {
    let (path, copy) = (data_dir.join(FILE_NAME), data_dir.join(COPY_NAME));
    if !path.exists() {
        return Ok(None);
    }
    let read = || -> Result<Known, Trouble> {
        let transaction = MemoryFile::open(Some(&copy))?.0.read()?;
        let rows = forgotten(&transaction)?.into_iter().map(|(_, forgetting)| forgetting);
        Ok((Meta(&transaction).long(meta::LOG)?, rows.collect()))
    };
    let copied = fs::copy(&path, &copy).map(|_| caught(read));
    drop(fs::remove_file(&copy));
    let read = copied.map_err(|error| StoreError::Failed(format!("{FILE_NAME} cannot be copied: {error}")))?;
    Ok(read.ok())
}

fn told(Forgetting { session_id, from_seq, to_seq, source, .. }: &Forgetting) -> String {
    let session = session_id.map_or_else(|| "all sessions".to_owned(), |id| format!("session {id}"));
    let to_seq = to_seq.map_or_else(|| "the end".to_owned(), |to_seq| to_seq.to_string());
    let source = source.as_ref().map(|source| format!(", source {source}")).unwrap_or_default();
    format!("{session}, events {from_seq} to {to_seq}{source}")
}
