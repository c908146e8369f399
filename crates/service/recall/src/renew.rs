//! Writing the file anew with only what is there: redb leaves old pages in a file, so this is how what was forgotten
//! leaves the disk, and how the file shrinks.
//!
//! The new file gets its name when it is complete, and a kill leaves the old one, which says that it has to be replaced.
//! Texts are numbered again.

use std::{collections::HashSet, fs, path::Path};

use redb::ReadTransaction;

use super::{
    columns::NONE,
    core::Core,
    file::{FILE_NAME, MemoryFile, Trouble, remove},
    opened::Opened,
    postings::{Posting, Segment},
    segments::{put_segments, write_merged},
    tables::{self, meta, put_number, to_json},
    vocabulary,
};

/// File that replaces the other one.
const NEW_NAME: &str = "memory.redb.new";
/// Rows of one transaction.
const ROWS: usize = 8 * 1_024;
/// Removed texts from which on the file is written anew if they are a fifth of all.
const REMOVED_MIN: u32 = if cfg!(test) { 8 } else { 4_096 };
const REMOVED_SHARE: u32 = 5;

impl Core {
    /// Writes the file anew if it says that it has to be.
    pub(super) fn renew_if_due(&self) -> Result<(), Trouble> {
        if self.read(|open| Ok(open.is_to_renew))? { self.renew() } else { Ok(()) }
    }

    /// Writes the file anew if much of it is removed.
    pub(super) fn renew_if_sparse(&self) -> Result<(), Trouble> {
        let (all, live) = self.read(|open| Ok((open.columns.next_doc(), open.columns.live)))?;
        let removed = all - live;
        if removed >= REMOVED_MIN && removed >= all / REMOVED_SHARE { self.renew() } else { Ok(()) }
    }

    pub(super) fn renew(&self) -> Result<(), Trouble> {
        let opened = match &self.dir {
            Some(dir) => {
                let (path, new) = (dir.join(FILE_NAME), dir.join(NEW_NAME));
                remove(&new)?;
                let copied = self.copied(Some(&new));
                // A full disk gets back what an incomplete copy took.
                let opened = copied.inspect_err(|_| drop(fs::remove_file(&new)))?;
                let renamed = fs::rename(&new, &path).and_then(|()| fs::File::open(dir)?.sync_all());
                renamed.map_err(redb::Error::Io)?;
                opened
            }
            None => self.copied(None)?,
        };
        self.replace(opened)?;
        self.load_vectors()
    }

    /// Copies what is there into a new file.
    fn copied(&self, path: Option<&Path>) -> Result<Opened, Trouble> {
        let (file, _) = MemoryFile::open(path)?;
        self.read(|open| copy(open, &file))?;
        Opened::of(file)
    }
}

/// Copies the vectors of the texts that are there, of every embedder.
fn copy_vectors(open: &Opened, from: &ReadTransaction, into: &MemoryFile) -> Result<(), Trouble> {
    let live: HashSet<u64> = open.columns.docs().map(|(_, doc)| doc.text).collect();
    for row in from.open_table(tables::EMBEDDERS)?.range::<u32>(..)? {
        let (number, id) = row?;
        let number = number.value();
        into.write(|transaction| {
            transaction.open_table(tables::EMBEDDERS)?.insert(number, id.value())?;
            Ok(())
        })?;
        let mut rows = from.open_table(tables::VECTORS)?.range((number, 0)..=(number, u64::MAX))?;
        let mut has_more = true;
        while has_more {
            has_more = into.write(|transaction| {
                let mut copies = transaction.open_table(tables::VECTORS)?;
                for _ in 0..ROWS {
                    let Some(row) = rows.next() else { return Ok(false) };
                    let (key, code) = row?;
                    if live.contains(&key.value().1) {
                        copies.insert(key.value(), code.value())?;
                    }
                }
                Ok(true)
            })?;
        }
    }
    Ok(())
}

fn copy(open: &Opened, into: &MemoryFile) -> Result<(), Trouble> {
    let live: Vec<u32> = open.columns.docs().map(|(doc, _)| doc).collect();
    let mut numbers = vec![NONE; open.columns.next_doc() as usize];
    for (new, old) in (0..).zip(&live) {
        numbers[*old as usize] = new;
    }
    for rows in live.chunks(ROWS) {
        into.write(|transaction| {
            let mut columns = transaction.open_table(tables::COLUMNS)?;
            let mut texts = transaction.open_table(tables::TEXTS)?;
            for old in rows {
                let Some(doc) = open.columns.doc(*old) else { continue };
                let new = numbers[*old as usize];
                columns.insert(new, &tables::encode_doc(doc))?;
                texts.insert(new, &*tables::encode_text(new, &open.snapshot.text(*old)?))?;
            }
            Ok(())
        })?;
    }
    let before = |end: u32| live.partition_point(|doc| *doc < end);
    let end_doc = u32::try_from(before(open.tail_start())).unwrap_or(NONE);
    let segment = Segment { number: 0, first_doc: 0, end_doc, live_docs: end_doc };
    let number = |doc: u32| numbers.get(doc as usize).copied().unwrap_or(NONE);
    let held = write_merged(open, into, &segment, &open.segments, number)?;
    let in_tail = |postings: &Vec<Posting>| postings.iter().any(|posting| open.columns.doc(posting.doc).is_some());
    let is_held = |term| held.contains(&term) || open.tail.terms.get(&term).is_some_and(in_tail);
    let before_copy = open.file.read()?;
    into.write(|transaction| vocabulary::copy(&before_copy, transaction, is_held))?;
    copy_vectors(open, &before_copy, into)?;
    into.write(|transaction| {
        let mut names = transaction.open_table(tables::NAMES)?;
        for (number, name) in (0..).zip(open.columns.names()) {
            names.insert(number, &**name)?;
        }
        let mut sessions = transaction.open_table(tables::SESSIONS)?;
        for (ordinal, session) in open.columns.sessions() {
            sessions.insert(ordinal, &*to_json(&session.row)?)?;
        }
        let mut forgotten = transaction.open_table(tables::FORGOTTEN)?;
        for (number, forgetting) in open.forgotten.values().flatten() {
            forgotten.insert(*number, &*to_json(forgetting)?)?;
        }
        put_segments(transaction, if end_doc == 0 { &[] } else { std::slice::from_ref(&segment) })?;
        put_number(transaction, meta::NEXT_DOC, live.len() as u64)?;
        put_number(transaction, meta::LOG, open.log_position)?;
        if open.is_whole { put_number(transaction, meta::WHOLE, 1) } else { Ok(()) }
    })
}
