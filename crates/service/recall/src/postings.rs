//! Postings as bytes: the texts that hold a term, and how often, in blocks ordered by term and text.
//!
//! A segment covers a range of texts and never changes: new texts make a new segment, and neighbouring segments are
//! merged. So a text costs what it adds, however many terms there are. Invalid bytes read as nothing and never cause a
//! panic.

use std::{
    collections::{HashMap, VecDeque},
    ops::Range,
};

use redb::AccessGuard;

use super::{
    columns::{Columns, NONE},
    file::Trouble,
    tables::{BlockKey, BlockTable},
    text,
};

/// Texts that fill a segment; few in unit tests, so that merges happen.
pub(super) const TAIL_DOCS: u32 = if cfg!(test) { 8 } else { 1_024 };
/// Bytes of text that fill a segment: a start must analyse those outside again.
const TAIL_BYTES: usize = 1024 * 1024;
/// Bytes of a block; with its key it fills a page of redb.
const BLOCK_BYTES: usize = 3_900;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Posting {
    pub(super) doc: u32,
    pub(super) count: u32,
}

/// Postings of the texts from `first_doc` up to, but not including, `end_doc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) number: u32,
    pub(super) first_doc: u32,
    pub(super) end_doc: u32,
    /// Texts that were not removed when it was written.
    pub(super) live_docs: u32,
}

impl Segment {
    const BYTES: usize = 16;

    pub(super) fn encode_all(segments: &[Self]) -> Vec<u8> {
        let fields = segments.iter().flat_map(|it| [it.number, it.first_doc, it.end_doc, it.live_docs]);
        fields.flat_map(u32::to_le_bytes).collect()
    }

    pub(super) fn decode_all(bytes: &[u8]) -> Result<Vec<Self>, Trouble> {
        let (rows, rest) = bytes.as_chunks::<{ Self::BYTES }>();
        if !rest.is_empty() {
            return Err(Trouble::Damaged("the list of segments is cut off".to_owned()));
        }
        let field = |row: &[u8; Self::BYTES], n: usize| {
            row.as_chunks::<4>().0.get(n).map_or(0, |bytes| u32::from_le_bytes(*bytes))
        };
        let segment = |row| Self {
            number: field(row, 0),
            first_doc: field(row, 1),
            end_doc: field(row, 2),
            live_docs: field(row, 3),
        };
        Ok(rows.iter().map(segment).collect())
    }
}

/// Terms of the newest texts.
#[derive(Default)]
pub(super) struct Tail {
    pub(super) terms: HashMap<u32, Vec<Posting>>,
    pub(super) docs: u32,
    bytes: usize,
}

impl Tail {
    pub(super) fn put(&mut self, doc: u32, terms: &text::Terms, bytes: usize) {
        let mut sorted: Vec<u32> = terms.words.clone();
        sorted.sort_unstable();
        for same in sorted.chunk_by(|a, b| a == b) {
            let Some(term) = same.first() else { continue };
            let count = u32::try_from(same.len()).unwrap_or(u32::MAX);
            self.terms.entry(*term).or_default().push(Posting { doc, count });
        }
        self.docs += 1;
        self.bytes += bytes;
    }

    /// Writes the postings of the texts that are there.
    pub(super) fn blocks(&self, first_doc: u32, is_there: impl Fn(u32) -> bool) -> BlockWriter {
        let mut terms: Vec<_> = self.terms.iter().collect();
        terms.sort_unstable_by_key(|(term, _)| **term);
        let mut writer = BlockWriter::new(first_doc);
        for (term, postings) in terms {
            let there = postings.iter().copied().filter(|posting| is_there(posting.doc));
            writer.term(*term, &there.collect::<Vec<_>>());
        }
        writer.close();
        writer
    }

    /// Gives the texts new numbers.
    pub(super) fn renumber(&mut self, numbers: &[u32]) {
        for postings in self.terms.values_mut() {
            postings.retain_mut(|posting| {
                posting.doc = numbers.get(posting.doc as usize).copied().unwrap_or(NONE);
                posting.doc != NONE
            });
        }
    }

    pub(super) fn holds(&self, share: u32) -> bool {
        self.docs >= TAIL_DOCS / share || self.bytes >= TAIL_BYTES / share as usize
    }
}

pub(super) type Block = ((u32, u32), Vec<u8>);

/// Writes the blocks of a segment from its terms in order.
pub(super) struct BlockWriter {
    base: u32,
    current: Vec<u8>,
    first: u32,
    last: u32,
    pub(super) done: Vec<Block>,
    pub(super) done_bytes: usize,
}

impl BlockWriter {
    pub(super) const fn new(base: u32) -> Self {
        Self { base, current: Vec::new(), first: 0, last: 0, done: Vec::new(), done_bytes: 0 }
    }

    /// Adds a term, greater than all before.
    pub(super) fn term(&mut self, term: u32, postings: &[Posting]) {
        if postings.is_empty() {
            return;
        }
        let (bytes, taken) = encode(self.base, postings);
        if taken == postings.len() && self.current.len() + bytes.len() + 15 > BLOCK_BYTES {
            self.close();
        }
        if taken == postings.len() {
            self.entry(term, postings.len(), &bytes);
            return;
        }
        // A term too long for a block gets blocks of its own.
        self.close();
        let mut rest = postings;
        for part in 0.. {
            let (bytes, taken) = encode(self.base, rest);
            self.entry(term, taken, &bytes);
            self.close_as(part);
            rest = rest.get(taken..).unwrap_or_default();
            if rest.is_empty() {
                return;
            }
        }
    }

    fn entry(&mut self, term: u32, count: usize, bytes: &[u8]) {
        if self.current.is_empty() {
            self.first = term;
            self.last = term;
        }
        put(&mut self.current, term - self.last);
        put(&mut self.current, u32::try_from(count).unwrap_or(u32::MAX));
        put(&mut self.current, u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.current.extend_from_slice(bytes);
        self.last = term;
    }

    pub(super) fn close(&mut self) {
        self.close_as(0);
    }

    fn close_as(&mut self, part: u32) {
        if !self.current.is_empty() {
            self.done_bytes += self.current.len();
            self.done.push(((self.first, part), std::mem::take(&mut self.current)));
        }
    }
}

/// Encodes as many postings as fit a block, and returns how many.
fn encode(base: u32, postings: &[Posting]) -> (Vec<u8>, usize) {
    let (mut bytes, mut last) = (Vec::new(), base);
    for (n, posting) in postings.iter().enumerate() {
        if bytes.len() + 25 > BLOCK_BYTES {
            return (bytes, n);
        }
        let is_often = u64::from(posting.count > 1);
        put_long(&mut bytes, (u64::from(posting.doc.saturating_sub(last)) << 1) | is_often);
        if is_often == 1 {
            put(&mut bytes, posting.count);
        }
        last = posting.doc;
    }
    (bytes, postings.len())
}

fn put(bytes: &mut Vec<u8>, value: u32) {
    put_long(bytes, u64::from(value));
}

fn put_long(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(u8::try_from(value & 0x7f).unwrap_or_default() | 0x80);
        value >>= 7;
    }
    bytes.push(u8::try_from(value).unwrap_or_default());
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..35).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn take_short(bytes: &mut &[u8]) -> Option<u32> {
    take(bytes).and_then(|value| u32::try_from(value).ok())
}

/// Term within a block, with the range of its postings.
struct Entry {
    term: u32,
    count: u32,
    place: Range<usize>,
}

/// Iterates over the entries of a block that begins with `first`.
fn entries(first: u32, block: &[u8]) -> impl Iterator<Item = Entry> {
    let (mut term, mut rest) = (first, block);
    std::iter::from_fn(move || {
        term = term.checked_add(take_short(&mut rest)?)?;
        let count = take_short(&mut rest)?;
        let length = take_short(&mut rest)? as usize;
        let start = block.len() - rest.len();
        rest = rest.get(length..)?;
        Some(Entry { term, count, place: start..start + length })
    })
}

fn decode(base: u32, mut bytes: &[u8], columns: &Columns, into: &mut Vec<Posting>) {
    let mut doc = base;
    while let Some(value) = take(&mut bytes) {
        let count = if value & 1 == 1 { take_short(&mut bytes).unwrap_or(1) } else { 1 };
        doc = doc.saturating_add(u32::try_from(value >> 1).unwrap_or(u32::MAX));
        if columns.words_of(doc) != 0 {
            into.push(Posting { doc, count });
        }
    }
}

/// Location of a term's postings in one segment.
pub(super) struct Found {
    base: u32,
    /// Blocks, each with the range of the term's bytes.
    blocks: Vec<(AccessGuard<'static, &'static [u8]>, Range<usize>)>,
    /// Number of postings, including removed texts.
    pub(super) count: u32,
}

impl Found {
    pub(super) fn look_up(table: &BlockTable, segment: &Segment, term: u32) -> Result<Option<Self>, Trouble> {
        let number = segment.number;
        let Some(block) = table.range((number, 0, 0)..=(number, term, 0))?.next_back() else { return Ok(None) };
        let (key, block) = block?;
        let (_, first, _) = key.value();
        let mut entries = entries(first, block.value()).skip_while(|entry| entry.term < term);
        let Some(entry) = entries.next().filter(|entry| entry.term == term) else { return Ok(None) };
        drop(entries);
        let mut found = Self { base: segment.first_doc, blocks: vec![(block, entry.place)], count: entry.count };
        if first == term {
            found.further_parts(table, number, term)?;
        }
        Ok(Some(found))
    }

    fn further_parts(&mut self, table: &BlockTable, number: u32, term: u32) -> Result<(), Trouble> {
        for part in table.range((number, term, 1)..=(number, term, u32::MAX))? {
            let (_, block) = part?;
            let Some(entry) = entries(term, block.value()).next() else { continue };
            self.count = self.count.saturating_add(entry.count);
            self.blocks.push((block, entry.place));
        }
        Ok(())
    }

    /// Decodes its postings of texts that are not removed, the newest blocks first, until there are `most` of them.
    pub(super) fn newest(&self, columns: &Columns, most: u64, into: &mut Vec<Posting>) {
        for (block, place) in self.blocks.iter().rev() {
            if into.len() as u64 >= most {
                return;
            }
            decode(self.base, block.value().get(place.clone()).unwrap_or_default(), columns, into);
        }
    }
}

/// Reads a segment's terms in order, each with its postings.
pub(super) struct Terms<'a> {
    base: u32,
    columns: &'a Columns,
    blocks: redb::Range<'static, BlockKey, &'static [u8]>,
    ready: VecDeque<(u32, Vec<Posting>)>,
}

impl<'a> Terms<'a> {
    pub(super) fn of(table: &BlockTable, segment: &Segment, columns: &'a Columns) -> Result<Self, Trouble> {
        let number = segment.number;
        let blocks = table.range((number, 0, 0)..=(number, u32::MAX, u32::MAX))?;
        let mut terms = Self { base: segment.first_doc, columns, blocks, ready: VecDeque::new() };
        terms.read_on()?;
        Ok(terms)
    }

    pub(super) fn next_term(&self) -> Option<u32> {
        self.ready.front().map(|(term, _)| *term)
    }

    /// Takes the postings of `term` if it is next.
    pub(super) fn take(&mut self, term: u32, into: &mut Vec<Posting>) -> Result<(), Trouble> {
        while self.next_term() == Some(term) {
            if let Some((_, postings)) = self.ready.pop_front() {
                into.extend(postings);
            }
            if self.ready.is_empty() {
                self.read_on()?;
            }
        }
        Ok(())
    }

    fn read_on(&mut self) -> Result<(), Trouble> {
        while self.ready.is_empty() {
            let Some(block) = self.blocks.next() else { return Ok(()) };
            let (key, block) = block?;
            let (_, first, _) = key.value();
            for entry in entries(first, block.value()) {
                let mut postings = Vec::new();
                let bytes = block.value().get(entry.place).unwrap_or_default();
                decode(self.base, bytes, self.columns, &mut postings);
                self.ready.push_back((entry.term, postings));
            }
        }
        Ok(())
    }
}
