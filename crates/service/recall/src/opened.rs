//! State in RAM while the file is open, and its loading from the file.
//!
//! It always equals the file after the last commit. It changes only through [`super::core`], after a commit.

use std::{collections::HashMap, path::Path, sync::Arc};

use redb::ReadTransaction;

use super::{
    columns::Columns,
    file::{MemoryFile, Trouble},
    log::Forgetting,
    postings::{Segment, Tail},
    tables::{self, SessionRow, Snapshot, meta},
    text,
    vectors::Sets,
};
use meerkat_words::{
    ids::{Seq, SessionId},
    memory::Passage,
};

pub(super) struct Opened {
    pub(super) file: Arc<MemoryFile>,
    pub(super) snapshot: Snapshot,
    pub(super) columns: Columns,
    pub(super) segments: Vec<Segment>,
    /// Number of the next segment, after unfinished ones too.
    pub(super) next_segment: u32,
    /// Terms of the texts after the last segment.
    pub(super) tail: Tail,
    pub(super) forgotten: HashMap<Option<SessionId>, Vec<(u32, Forgetting)>>,
    pub(super) next_forgotten: u32,
    pub(super) log_position: u64,
    pub(super) is_whole: bool,
    /// True if the file had pages with what was forgotten when it was opened.
    pub(super) is_to_erase: bool,
    /// Empty until they are loaded.
    pub(super) vectors: Sets,
}

impl Opened {
    /// Opens the file at `path`, or one in memory; returns true with it if it is new.
    pub(super) fn open(path: Option<&Path>) -> Result<(Self, bool), Trouble> {
        let (file, is_new) = MemoryFile::open(path)?;
        Ok((Self::of(file)?, is_new))
    }

    /// Loads what a file has.
    pub(super) fn of(file: MemoryFile) -> Result<Self, Trouble> {
        let file = Arc::new(file);
        let transaction = file.read()?;
        let snapshot = Snapshot::new(&transaction)?;
        let meta = Meta(&transaction);
        let segments = Segment::decode_all(&meta.get(meta::SEGMENTS)?.unwrap_or_default())?;
        let mut opened = Self {
            columns: columns(&transaction, meta.number(meta::NEXT_DOC)?)?,
            next_segment: next_segment(&transaction, &segments)?,
            tail: Tail::default(),
            forgotten: HashMap::new(),
            next_forgotten: 0,
            log_position: meta.long(meta::LOG)?,
            is_whole: meta.get(meta::WHOLE)?.is_some(),
            is_to_erase: meta.get(meta::RENEW)?.is_some(),
            vectors: Sets::default(),
            segments,
            snapshot,
            file,
        };
        opened.read_forgotten(&transaction)?;
        opened.read_tail()?;
        Ok(opened)
    }

    fn read_forgotten(&mut self, transaction: &ReadTransaction) -> Result<(), Trouble> {
        for (number, forgetting) in forgotten(transaction)? {
            self.remember_forgotten(number, forgetting);
        }
        Ok(())
    }

    /// Analyses the texts that are in no segment yet.
    fn read_tail(&mut self) -> Result<(), Trouble> {
        for doc in self.tail_start()..self.columns.next_doc() {
            if self.columns.doc(doc).is_some() {
                let text = self.snapshot.text(doc)?;
                self.tail.put(doc, &text::analyse(&text), text.len());
            }
        }
        Ok(())
    }

    pub(super) fn tail_start(&self) -> u32 {
        self.segments.last().map_or(0, |segment| segment.end_doc)
    }

    pub(super) fn remember_forgotten(&mut self, number: u32, forgetting: Forgetting) {
        self.next_forgotten = self.next_forgotten.max(number.saturating_add(1));
        self.forgotten.entry(forgetting.session_id).or_default().push((number, forgetting));
    }

    /// Returns true if a passage was forgotten, in its session or in one that the session inherits it from.
    pub(super) fn is_forgotten(&self, session: &SessionRow, passage: &Passage) -> bool {
        let covers = |of, id| {
            let forgotten: &[(u32, Forgetting)] = self.forgotten.get(&of).map_or(&[], Vec::as_slice);
            forgotten.iter().any(|(_, forgetting)| forgetting.covers(id, passage))
        };
        let is_inherited = |(id, up_to): (&SessionId, &Seq)| passage.seq <= *up_to && covers(Some(*id), *id);
        covers(Some(session.id), session.id) || covers(None, session.id) || session.inherited.iter().any(is_inherited)
    }

    /// Makes later searches see the last commit.
    pub(super) fn refresh(&mut self) -> Result<(), Trouble> {
        self.snapshot = Snapshot::new(&self.file.read()?)?;
        Ok(())
    }
}

pub(super) struct Meta<'a>(pub(super) &'a ReadTransaction);

impl Meta<'_> {
    pub(super) fn get(&self, name: &str) -> Result<Option<Vec<u8>>, Trouble> {
        let table = self.0.open_table(tables::META)?;
        Ok(table.get(name)?.map(|row| row.value().to_vec()))
    }

    pub(super) fn long(&self, name: &str) -> Result<u64, Trouble> {
        let Some(row) = self.get(name)? else { return Ok(0) };
        row.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)).ok_or_else(|| damaged("a number is cut off"))
    }

    fn number(&self, name: &str) -> Result<u32, Trouble> {
        u32::try_from(self.long(name)?).map_err(damaged)
    }
}

/// Reads the forgettings, each with its number.
pub(super) fn forgotten(transaction: &ReadTransaction) -> Result<Vec<(u32, Forgetting)>, Trouble> {
    let table = transaction.open_table(tables::FORGOTTEN)?;
    let rows = table.range::<u32>(..)?.map(|row| {
        let (number, row) = row?;
        Ok((number.value(), serde_json::from_slice(row.value()).map_err(damaged)?))
    });
    rows.collect()
}

fn columns(transaction: &ReadTransaction, next_doc: u32) -> Result<Columns, Trouble> {
    let mut columns = Columns::default();
    for row in transaction.open_table(tables::NAMES)?.range::<u32>(..)? {
        columns.add_name(row?.1.value().to_owned());
    }
    for row in transaction.open_table(tables::SESSIONS)?.range::<u32>(..)? {
        let (ordinal, row) = row?;
        columns.set_session(ordinal.value(), serde_json::from_slice(row.value()).map_err(damaged)?);
    }
    for row in transaction.open_table(tables::COLUMNS)?.range::<u32>(..)? {
        let (number, row) = row?;
        let (number, doc) = (number.value(), tables::decode_doc(row.value())?);
        if number >= next_doc || columns.session_at(doc.session).is_none() {
            return Err(damaged("a text belongs to no session"));
        }
        columns.push(number, doc);
    }
    columns.skip_to(next_doc);
    Ok(columns)
}

/// Returns the number after all segments, including unfinished ones.
fn next_segment(transaction: &ReadTransaction, segments: &[Segment]) -> Result<u32, Trouble> {
    let last = transaction.open_table(tables::POSTINGS)?.range::<tables::BlockKey>(..)?.next_back().transpose()?;
    let last = last.map_or(0, |(key, _)| key.value().0);
    Ok(segments.iter().map(|segment| segment.number).fold(last, u32::max).saturating_add(1))
}

pub(super) fn damaged(why: impl std::fmt::Display) -> Trouble {
    Trouble::Damaged(why.to_string())
}
