//! Taking in passages: each once, in bounded transactions, together with the session's progress.
//!
//! The transaction with the last passages up to a seq also records that seq. After a kill the rest is taken in again,
//! and stored passages change nothing.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use redb::WriteTransaction;
use sha2::{Digest as _, Sha256};

use super::{
    core::Core,
    file::{MemoryFile, Trouble},
    forget::forgotten_in,
    log::Entry,
    opened::Opened,
    tables::{self, Doc, SessionRow, meta, put_number, to_json},
    text::{self, Spelt, Terms},
    vocabulary,
};
use meerkat_words::{
    ids::SessionId,
    memory::{Intake, Passage},
};

/// Passages of one transaction.
const CHUNK_DOCS: usize = 1_024;
/// Bytes of text of one transaction, except for its last passage.
const CHUNK_BYTES: usize = 1024 * 1024;

struct Chunk {
    file: Arc<MemoryFile>,
    names: Vec<String>,
    sessions: BTreeMap<u32, SessionRow>,
    docs: Vec<NewDoc>,
    first_name: usize,
    next_doc: u32,
    log_position: Option<u64>,
}

struct NewDoc {
    number: u32,
    doc: Doc,
    terms: Terms,
    text: String,
}

impl Core {
    /// Takes in new passages, after recording them if no journal does.
    pub(super) fn add(&self, intakes: Vec<Intake>) -> Result<(), Trouble> {
        let fresh = self.read(|open| Ok(intakes.into_iter().filter_map(|intake| fresh(open, intake)).collect()))?;
        let fresh: Vec<Intake> = fresh;
        if fresh.is_empty() {
            return Ok(());
        }
        // A long fork is taken in by parts, and a later part may name another parent.
        let forgotten: Vec<u32> =
            self.read(|open| Ok(fresh.iter().flat_map(|intake| forgotten_in(open, intake)).collect()))?;
        if !forgotten.is_empty() {
            self.mark()?;
            self.take_out(forgotten)?;
        }
        let position = if self.records_intake {
            let entries: Vec<Entry> = fresh.iter().cloned().map(Entry::Took).collect();
            self.record(&entries)?
        } else {
            None
        };
        self.take_in(fresh, self.records_intake, position)?;
        self.flush(false)
    }

    /// Takes in passages; the log is applied up to `log_position` afterwards.
    pub(super) fn take_in(
        &self,
        intakes: Vec<Intake>,
        is_recorded: bool,
        log_position: Option<u64>,
    ) -> Result<(), Trouble> {
        let mut queue: VecDeque<(Intake, VecDeque<Passage>)> = intakes
            .into_iter()
            .map(|mut intake| {
                let passages = std::mem::take(&mut intake.passages).into();
                (intake, passages)
            })
            .collect();
        while !queue.is_empty() {
            let mut chunk = self.read(|open| Chunk::next(open, &mut queue, is_recorded))?;
            chunk.log_position = log_position.filter(|_| queue.is_empty());
            let file = chunk.file.clone();
            file.write(|transaction| chunk.write(transaction))?;
            self.change(&file, |open| chunk.apply(open))?;
            self.flush(false)?;
        }
        Ok(())
    }

    /// Notes that the log is applied up to here.
    pub(super) fn applied(&self, log_position: u64) -> Result<(), Trouble> {
        let file = self.read(|open| Ok(open.file.clone()))?;
        file.write(|transaction| put_number(transaction, meta::LOG, log_position))?;
        self.change(&file, |open| {
            open.log_position = log_position;
            Ok(())
        })
    }
}

/// Reduces an intake to its news; `None` if there are none.
fn fresh(open: &Opened, mut intake: Intake) -> Option<Intake> {
    let id = intake.session_id;
    let known = open.columns.session(id);
    let row = SessionRow::with(known.map(|known| &known.row), &intake, false);
    intake.passages.retain(|passage| {
        let is_known = known.is_some_and(|known| open.columns.at(known, (passage.seq, passage.part)).is_some());
        !is_known && !open.is_forgotten(&row, passage)
    });
    let changes = known.is_none_or(|known| known.row != row || known.row.up_to < intake.up_to);
    (changes || !intake.passages.is_empty()).then_some(intake)
}

impl Chunk {
    /// Takes one transaction's passages from the queue.
    fn next(
        open: &Opened,
        queue: &mut VecDeque<(Intake, VecDeque<Passage>)>,
        is_recorded: bool,
    ) -> Result<Self, Trouble> {
        let columns = &open.columns;
        let mut chunk = Self {
            file: open.file.clone(),
            names: Vec::new(),
            sessions: BTreeMap::new(),
            docs: Vec::new(),
            first_name: columns.names().len(),
            next_doc: columns.next_doc(),
            log_position: None,
        };
        let mut numbers: HashMap<String, u32> = HashMap::new();
        let mut places = HashSet::new();
        let (mut new_ordinals, mut bytes) = (HashMap::<SessionId, u32>::new(), 0);
        while let Some((intake, passages)) = queue.front_mut() {
            let id = intake.session_id;
            let known = columns.session(id);
            let next = columns.next_ordinal() + u32::try_from(new_ordinals.len()).unwrap_or(u32::MAX);
            let ordinal = columns.ordinal(id).unwrap_or_else(|| *new_ordinals.entry(id).or_insert(next));
            let before = chunk.sessions.get(&ordinal).or(known.map(|known| &known.row));
            let mut row = SessionRow::with(before, intake, is_recorded);
            while chunk.docs.len() < CHUNK_DOCS && bytes < CHUNK_BYTES {
                let Some(passage) = passages.pop_front() else { break };
                let place = (passage.seq, passage.part);
                let is_known = known.is_some_and(|known| columns.at(known, place).is_some());
                if is_known || open.is_forgotten(&row, &passage) || !places.insert((ordinal, place)) {
                    continue;
                }
                bytes += passage.text.len();
                chunk.take(open, &mut numbers, ordinal, passage)?;
            }
            let is_done = passages.is_empty();
            if is_done {
                row.up_to = row.up_to.max(intake.up_to);
            }
            chunk.sessions.insert(ordinal, row);
            if !is_done {
                break;
            }
            queue.pop_front();
        }
        Ok(chunk)
    }

    fn take(
        &mut self,
        open: &Opened,
        numbers: &mut HashMap<String, u32>,
        session: u32,
        passage: Passage,
    ) -> Result<(), Trouble> {
        let mut number = |name: String| {
            open.columns.number_of(&name).or(numbers.get(&name).copied()).unwrap_or_else(|| {
                let next = u32::try_from(self.first_name + self.names.len()).unwrap_or(u32::MAX);
                numbers.insert(name.clone(), next);
                self.names.push(name);
                next
            })
        };
        let (role, source) = (number(passage.role), number(passage.source));
        let terms = text::analyse(&passage.text);
        let doc = Doc {
            session,
            part: passage.part,
            seq: passage.seq,
            to_seq: passage.to_seq,
            time_ms: passage.time.as_millis(),
            role,
            source,
            text: text_hash(&passage.text),
            words: u16::try_from(terms.words.len()).unwrap_or(u16::MAX),
            asks: terms.asks,
        };
        self.docs.push(NewDoc { number: self.next_doc, doc, terms, text: passage.text });
        self.next_doc = self.next_doc.checked_add(1).ok_or_else(|| Trouble::Failed("the memory is full".to_owned()))?;
        Ok(())
    }

    fn write(&self, transaction: &WriteTransaction) -> Result<(), Trouble> {
        let mut names = transaction.open_table(tables::NAMES)?;
        for (number, name) in (self.first_name..).zip(&self.names) {
            names.insert(u32::try_from(number).unwrap_or(u32::MAX), &**name)?;
        }
        let mut sessions = transaction.open_table(tables::SESSIONS)?;
        for (ordinal, row) in &self.sessions {
            sessions.insert(*ordinal, &*to_json(row)?)?;
        }
        let mut columns = transaction.open_table(tables::COLUMNS)?;
        let mut texts = transaction.open_table(tables::TEXTS)?;
        for new in &self.docs {
            columns.insert(new.number, &tables::encode_doc(&new.doc))?;
            texts.insert(new.number, &*tables::encode_text(new.number, &new.text))?;
        }
        let spelt: HashSet<&Spelt> = self.docs.iter().flat_map(|new| &new.terms.spelt).collect();
        vocabulary::put(transaction, spelt.into_iter())?;
        put_number(transaction, meta::NEXT_DOC, u64::from(self.next_doc))?;
        self.log_position.map_or(Ok(()), |position| put_number(transaction, meta::LOG, position))
    }

    /// Applies the committed chunk in RAM.
    fn apply(self, open: &mut Opened) -> Result<(), Trouble> {
        for name in self.names {
            open.columns.add_name(name);
        }
        for (ordinal, row) in self.sessions {
            open.columns.set_session(ordinal, row);
        }
        for new in self.docs {
            open.columns.push(new.number, new.doc);
            open.tail.put(new.number, &new.terms, new.text.len());
        }
        open.columns.skip_to(self.next_doc);
        open.log_position = self.log_position.unwrap_or(open.log_position);
        open.refresh()
    }
}

/// Hashes a text so that no other text can be made to have its hash.
fn text_hash(text: &str) -> u64 {
    let hash = Sha256::digest(text);
    hash.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
