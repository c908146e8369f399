//! Erasing what was forgotten: memory's log is written again without it, and what is there is copied into a new file,
//! because redb leaves old pages in a file. The copy numbers the texts again, so file and columns shrink, too.
//!
//! It works in short steps, and others change memory in between: new texts are copied last, and what is removed is
//! removed from the copy, too. The copy takes the file's place once it is complete. A kill leaves the old file, which
//! says that it has to be erased, and the next start begins again.

use std::{
    collections::HashSet,
    fs,
    ops::Bound,
    path::PathBuf,
    sync::{Arc, PoisonError, Weak, atomic::Ordering},
};

use redb::{Key, ReadTransaction, TableDefinition, Value};

use super::{
    columns::NONE,
    core::Core,
    embedding::numbers,
    file::{FILE_NAME, MemoryFile, Trouble, remove},
    forget::remove_rows,
    opened::Opened,
    postings::{Posting, Segment},
    segments::{put_segments, write_merged},
    tables::{self, Snapshot, meta, put_number, to_json},
    text, vocabulary,
};
use meerkat_words::{ids::SessionId, memory::Passage};

/// File that replaces the other one.
pub(super) const NEW_NAME: &str = "memory.redb.new";
/// Rows of one step.
const ROWS: usize = if cfg!(test) { 16 } else { 8 * 1_024 };
/// Bytes of text of one step, except for its last text.
const BYTES: usize = 4 * 1024 * 1024;
/// Removed texts from which on the file is copied if they are a fifth of all.
const REMOVED_MIN: u32 = if cfg!(test) { 8 } else { 4_096 };
const REMOVED_SHARE: u32 = 5;

/// Copy under way.
pub(super) struct Erasure {
    from: Weak<MemoryFile>,
    into: Arc<MemoryFile>,
    /// Its name until it takes the file's place; it is removed if that does not happen.
    path: Option<PathBuf>,
    /// Mark up to which it erases.
    mark: u64,
    /// Segments of the log that are done.
    log_segments: usize,
    /// Old number of each text by its new one, and the other way round.
    copied: Vec<u32>,
    numbers: Vec<u32>,
    /// Texts from this one on came later: their words are in no table that is copied.
    known_to: u32,
    /// Copied segments, old and new.
    segments: Vec<(Segment, Segment)>,
    /// Terms that a text holds.
    held: HashSet<u32>,
    forms: Cursor<u32>,
    runs: Cursor<(u32, u32)>,
    /// Sets of vectors, and the texts' hashes.
    sets: Vec<u32>,
    hashes: HashSet<u64>,
    vectors: Cursor<(u32, u64)>,
    /// Vectors of texts from this one on were made later.
    embedded_to: u32,
}

impl Drop for Erasure {
    fn drop(&mut self) {
        // A full disk gets back what an incomplete copy took; the next one begins by removing it, too.
        self.path.take().into_iter().for_each(|path| drop(fs::remove_file(path)));
    }
}

/// Last key that was copied of a table.
enum Cursor<K> {
    After(Option<K>),
    End,
}

impl<K> Cursor<K>
where
    K: Key + Copy + 'static,
    K: for<'a> Value<SelfType<'a> = K>,
{
    /// Copies some rows; returns false if there were none left.
    fn copy<V: Value + 'static>(
        &mut self,
        table: TableDefinition<'static, K, V>,
        from: &ReadTransaction,
        into: &MemoryFile,
        is_kept: impl Fn(K, &V::SelfType<'_>) -> Result<bool, Trouble>,
    ) -> Result<bool, Trouble> {
        let Self::After(after) = *self else { return Ok(false) };
        let from = from.open_table(table)?;
        let start = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut rows = from.range::<&K>((start, Bound::Unbounded))?.take(ROWS).peekable();
        if rows.peek().is_none() {
            *self = Self::End;
            return Ok(true);
        }
        into.write(|transaction| {
            let mut copies = transaction.open_table(table)?;
            for row in rows {
                let (key, value) = row?;
                *self = Self::After(Some(key.value()));
                if is_kept(key.value(), &value.value())? {
                    copies.insert(key.value(), value.value())?;
                }
            }
            Ok(true)
        })
    }
}

impl Core {
    /// Asks for an erasure of all that is removed by now.
    pub(super) fn ask_to_erase(&self) {
        self.marks.fetch_add(1, Ordering::AcqRel);
    }

    /// Asks for an erasure if much of the file is removed.
    pub(super) fn erase_if_sparse(&self) -> Result<(), Trouble> {
        let (all, live) = self.read(|open| Ok((open.columns.next_doc(), open.columns.live)))?;
        let removed = all - live;
        if removed >= REMOVED_MIN && removed >= all / REMOVED_SHARE {
            self.ask_to_erase();
        }
        Ok(())
    }

    /// Notes durably that the file has to be erased, before something is removed from it.
    pub(super) fn mark(&self) -> Result<(), Trouble> {
        let file = self.read(|open| Ok(open.file.clone()))?;
        file.write(|transaction| put_number(transaction, meta::RENEW, 1))?;
        self.ask_to_erase();
        Ok(())
    }

    /// Does a step of what there is to erase; returns true if there is more.
    pub(super) fn erase_some(&self) -> Result<bool, Trouble> {
        let mark = self.marks.load(Ordering::Acquire);
        if self.erased.load(Ordering::Acquire) >= mark {
            return Ok(false);
        }
        let begun = self.erasing.lock().unwrap_or_else(PoisonError::into_inner).take();
        // What is of another file is dropped before the next copy takes its name.
        let begun = self.read(|open| begun.map_or(Ok(None), |it| Ok(it.is_of(open)?.then_some(it))))?;
        let mut erasure = begun.map_or_else(|| self.begin_to_erase(mark), Ok)?;
        if self.erase_log(&mut erasure)? || self.read(|open| erasure.copy_some(open))? {
            *self.erasing.lock().unwrap_or_else(PoisonError::into_inner) = Some(erasure);
            return Ok(true);
        }
        self.take_place(&mut erasure, mark)?;
        self.erased.fetch_max(erasure.mark, Ordering::AcqRel);
        Ok(erasure.mark < mark)
    }

    fn begin_to_erase(&self, mark: u64) -> Result<Erasure, Trouble> {
        let path = self.dir.as_ref().map(|dir| dir.join(NEW_NAME));
        path.as_deref().map_or(Ok(()), remove)?;
        let (into, _) = MemoryFile::open(path.as_deref())?;
        let mut erasure = Erasure {
            from: Weak::new(),
            into: Arc::new(into),
            path,
            mark,
            log_segments: 0,
            copied: Vec::new(),
            numbers: Vec::new(),
            known_to: 0,
            segments: Vec::new(),
            held: HashSet::new(),
            forms: Cursor::After(None),
            runs: Cursor::After(None),
            sets: Vec::new(),
            hashes: HashSet::new(),
            vectors: Cursor::After(None),
            embedded_to: 0,
        };
        self.read(|open| {
            let transaction = open.file.read()?;
            erasure.from = Arc::downgrade(&open.file);
            erasure.known_to = open.columns.next_doc();
            erasure.sets = numbers(&transaction, |_| true)?;
            if !erasure.sets.is_empty() {
                erasure.hashes = open.columns.docs().map(|(_, doc)| doc.text).collect();
            }
            erasure.embedded_to = open.vectors.made().embedded_to;
            let mut names = Cursor::After(None);
            while names.copy(tables::EMBEDDERS, &transaction, &erasure.into, |_, _| Ok(true))? {}
            Ok(())
        })?;
        Ok(erasure)
    }

    /// Writes a segment of the log again without what is forgotten; returns false if there is none left.
    fn erase_log(&self, erasure: &mut Erasure) -> Result<bool, Trouble> {
        // All of the log is applied, so a session that is not there was deleted.
        let is_gone = |open: &Opened, id: SessionId, passage: &Passage| {
            open.columns.session(id).is_none_or(|session| open.is_forgotten(&session.row, passage))
        };
        let has_more = self.leave_out(erasure.log_segments, is_gone)?;
        erasure.log_segments += usize::from(has_more);
        Ok(has_more)
    }

    /// Lets the complete copy take the file's place.
    fn take_place(&self, erasure: &mut Erasure, mark: u64) -> Result<(), Trouble> {
        self.read(|open| erasure.finish(open, erasure.mark == mark))?;
        let file = self.read(|open| Ok(open.file.clone()))?;
        let snapshot = Snapshot::new(&erasure.into.read()?)?;
        if let (Some(dir), Some(new)) = (&self.dir, erasure.path.take()) {
            fs::rename(new, dir.join(FILE_NAME)).map_err(redb::Error::Io)?;
        }
        self.change(&file, |open| {
            open.file = erasure.into.clone();
            open.snapshot = snapshot;
            open.segments = erasure.kept_segments();
            open.next_segment = u32::try_from(erasure.segments.len()).unwrap_or(NONE);
            open.tail.renumber(&erasure.numbers);
            open.vectors.renumber(&erasure.copied);
            open.columns.renumber(&erasure.copied, &erasure.numbers);
            Ok(())
        })?;
        let synced = self.dir.as_ref().map_or(Ok(()), |dir| fs::File::open(dir)?.sync_all());
        Ok(synced.map_err(redb::Error::Io)?)
    }
}

impl Erasure {
    /// Returns true if it is still a copy of the open file: its postings or its sets of vectors may have been made again.
    fn is_of(&self, open: &Opened) -> Result<bool, Trouble> {
        let is_same = open.segments.len() >= self.segments.len()
            && self.segments.iter().zip(&open.segments).all(|((old, _), segment)| old == segment);
        let is_file = std::ptr::eq(self.from.as_ptr(), Arc::as_ptr(&open.file));
        Ok(is_file && is_same && numbers(&open.file.read()?, |_| true)? == self.sets)
    }

    /// Copies some of what is there; returns false if nothing is left.
    fn copy_some(&mut self, open: &Opened) -> Result<bool, Trouble> {
        if self.copy_texts(open)? || self.copy_segment(open)? {
            return Ok(true);
        }
        let from = open.file.read()?;
        let Self { into, held, hashes, forms, runs, vectors, .. } = self;
        let in_tail = |postings: &Vec<Posting>| postings.iter().any(|posting| open.columns.doc(posting.doc).is_some());
        let is_held = |term: u32| held.contains(&term) || open.tail.terms.get(&term).is_some_and(in_tail);
        if forms.copy(tables::FORMS, &from, into, |_, row| Ok(is_held(row.0)))? {
            return Ok(true);
        }
        let kept = into.read()?.open_table(tables::FORMS)?;
        Ok(runs.copy(tables::RUNS, &from, into, |(_, form), ()| Ok(kept.get(form)?.is_some()))?
            || vectors.copy(tables::VECTORS, &from, into, |(_, text), _| Ok(hashes.contains(&text)))?
            || self.copy_new_vectors(open, &from)?)
    }

    /// Copies texts; returns true if there are more. A few new ones keep the rest of the copy from nothing.
    fn copy_texts(&mut self, open: &Opened) -> Result<bool, Trouble> {
        let end = open.columns.next_doc() as usize;
        if self.numbers.len() >= end {
            return Ok(false);
        }
        let into = self.into.clone();
        into.write(|transaction| {
            let mut columns = transaction.open_table(tables::COLUMNS)?;
            let mut texts = transaction.open_table(tables::TEXTS)?;
            let (mut rows, mut bytes, mut spelt) = (0, 0, HashSet::new());
            while self.numbers.len() < end && rows < ROWS && bytes < BYTES {
                let old = u32::try_from(self.numbers.len()).unwrap_or(NONE);
                let Some(doc) = open.columns.doc(old) else {
                    self.numbers.push(NONE);
                    continue;
                };
                let (new, text) = (u32::try_from(self.copied.len()).unwrap_or(NONE), open.snapshot.text(old)?);
                columns.insert(new, &tables::encode_doc(doc))?;
                texts.insert(new, &*tables::encode_text(new, &text))?;
                if old >= self.known_to {
                    spelt.extend(text::analyse(&text).spelt);
                }
                self.copied.push(old);
                self.numbers.push(new);
                (rows, bytes) = (rows + 1, bytes + text.len());
            }
            vocabulary::put(transaction, spelt.iter())?;
            Ok(self.numbers.len() < end)
        })
    }

    fn copy_segment(&mut self, open: &Opened) -> Result<bool, Trouble> {
        let Some(old) = open.segments.get(self.segments.len()) else { return Ok(false) };
        let before = |end: u32| u32::try_from(self.copied.partition_point(|doc| *doc < end)).unwrap_or(NONE);
        let (first_doc, end_doc) = (before(old.first_doc), before(old.end_doc));
        let number = u32::try_from(self.segments.len()).unwrap_or(NONE);
        let new = Segment { number, first_doc, end_doc, live_docs: end_doc - first_doc };
        let number = |doc: u32| self.numbers.get(doc as usize).copied().unwrap_or(NONE);
        self.held.extend(write_merged(open, &self.into, &new, std::slice::from_ref(old), number)?);
        self.segments.push((*old, new));
        Ok(true)
    }

    /// Copies vectors that were made since the copy began.
    fn copy_new_vectors(&mut self, open: &Opened, from: &ReadTransaction) -> Result<bool, Trouble> {
        let set = open.vectors.made();
        let Some(number) = set.number.filter(|_| self.embedded_to < set.embedded_to) else { return Ok(false) };
        let end = set.embedded_to.min(self.embedded_to.saturating_add(u32::try_from(ROWS).unwrap_or(NONE)));
        let vectors = from.open_table(tables::VECTORS)?;
        self.into.write(|transaction| {
            let mut copies = transaction.open_table(tables::VECTORS)?;
            for doc in (self.embedded_to..end).filter_map(|doc| open.columns.doc(doc)) {
                if let Some(code) = vectors.get((number, doc.text))? {
                    copies.insert((number, doc.text), code.value())?;
                }
            }
            Ok(())
        })?;
        self.embedded_to = end;
        Ok(end < set.embedded_to)
    }

    /// Removes what was removed from the file.
    pub(super) fn remove(&self, docs: &[u32], orphans: &HashSet<u64>) -> Result<(), Trouble> {
        let new = docs.iter().filter_map(|doc| self.numbers.get(*doc as usize)).copied().filter(|doc| *doc != NONE);
        let new: Vec<u32> = new.collect();
        self.into.write(|transaction| remove_rows(transaction, &new, orphans))
    }

    fn kept_segments(&self) -> Vec<Segment> {
        self.segments.iter().map(|(_, new)| *new).filter(|new| new.first_doc < new.end_doc).collect()
    }

    /// Writes the small tables. The mark stays unless everything that is marked is erased.
    fn finish(&self, open: &Opened, is_all: bool) -> Result<(), Trouble> {
        self.into.write(|transaction| {
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
            put_segments(transaction, &self.kept_segments())?;
            put_number(transaction, meta::NEXT_DOC, self.copied.len() as u64)?;
            put_number(transaction, meta::LOG, open.log_position)?;
            if open.is_whole {
                put_number(transaction, meta::WHOLE, 1)?;
            }
            if is_all { Ok(()) } else { put_number(transaction, meta::RENEW, 1) }
        })
    }
}
