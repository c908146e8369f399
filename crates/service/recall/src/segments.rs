//! Writing postings to the file: the newest texts' terms stay in RAM until they fill a segment, and similar segments
//! are merged into larger ones.
//!
//! A segment counts once a transaction lists it; a kill may leave blocks of an unlisted one, which the next start
//! removes. Nothing here changes what a search finds.

use std::{collections::HashSet, sync::PoisonError};

use redb::WriteTransaction;

use super::{
    core::Core,
    file::{MemoryFile, Trouble},
    opened::Opened,
    postings::{Block, BlockWriter, Posting, Segment, TAIL_DOCS, Tail, Terms},
    tables::{self, meta},
};

/// Divisor of both limits at the end of a process; fewer texts are analysed again by the next start.
const SHARE_AT_END: u32 = 16;
/// Segments of similar size that are merged into one.
const MERGED_AT_ONCE: usize = 4;
/// Texts of a segment that is merged no more: a deletion waits for one merge at most.
pub(super) const MERGED_DOCS_MAX: u32 = 64 * TAIL_DOCS;
/// Bytes of blocks of one transaction.
const WRITTEN_BYTES: usize = 4 * 1024 * 1024;

impl Core {
    /// Writes the newest texts as a segment if there are enough of them; at the end fewer suffice.
    pub(super) fn flush(&self, is_end: bool) -> Result<(), Trouble> {
        let share = if is_end { SHARE_AT_END } else { 1 };
        let wanted = |open: &Opened| open.tail.docs > 0 && open.tail.holds(share);
        if !self.read(|open| Ok(wanted(open)))? {
            return Ok(());
        }
        let (file, segments, blocks) = self.read(|open| {
            let segment = Segment {
                number: open.next_segment,
                first_doc: open.tail_start(),
                end_doc: open.columns.next_doc(),
                live_docs: live(open, open.tail_start(), open.columns.next_doc()),
            };
            let segments = open.segments.iter().copied().chain([segment]).collect::<Vec<_>>();
            let blocks = open.tail.blocks(segment.first_doc, |doc| open.columns.doc(doc).is_some());
            Ok((open.file.clone(), segments, blocks.done))
        })?;
        let number = segments.last().map_or(0, |segment| segment.number);
        file.write(|transaction| {
            put_blocks(transaction, number, &blocks)?;
            put_segments(transaction, &segments)
        })?;
        self.change(&file, |open| {
            open.tail = Tail::default();
            open.next_segment = number.saturating_add(1);
            open.segments = segments;
            open.refresh()
        })?;
        self.merge()
    }

    /// Merges segments until they are few.
    pub(super) fn merge(&self) -> Result<(), Trouble> {
        while self.merge_some()? {}
        Ok(())
    }

    /// Merges some segments if they are many; returns true if it did.
    pub(super) fn merge_some(&self) -> Result<bool, Trouble> {
        if self.erasing.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
            // The segments are being copied.
            return Ok(false);
        }
        let Some(range) = self.read(|open| Ok(due(open)))? else { return Ok(false) };
        self.merge_range(range).map(|()| true)
    }

    fn merge_range(&self, range: std::ops::Range<usize>) -> Result<(), Trouble> {
        let (file, number) = self.next_segment()?;
        let (segments, merged) = self.read(|open| {
            let merged = open.segments.get(range.clone()).unwrap_or_default().to_vec();
            let (Some(first), Some(last)) = (merged.first(), merged.last()) else { return Ok((Vec::new(), merged)) };
            let (first_doc, end_doc) = (first.first_doc, last.end_doc);
            let segment = Segment { number, first_doc, end_doc, live_docs: live(open, first_doc, end_doc) };
            write_merged(open, &open.file, &segment, &merged, |doc| doc)?;
            let mut segments = open.segments.clone();
            segments.splice(range, [segment]);
            Ok((segments, merged))
        })?;
        file.write(|transaction| {
            for old in &merged {
                drop_blocks(transaction, old.number)?;
            }
            put_segments(transaction, &segments)
        })?;
        self.change(&file, |open| {
            open.segments = segments;
            open.refresh()
        })
    }

    pub(super) fn next_segment(&self) -> Result<(std::sync::Arc<MemoryFile>, u32), Trouble> {
        let file = self.read(|open| Ok(open.file.clone()))?;
        let mut number = 0;
        self.change(&file, |open| {
            number = open.next_segment;
            open.next_segment = number.saturating_add(1);
            Ok(())
        })?;
        Ok((file, number))
    }

    /// Removes the blocks of unfinished segments.
    pub(super) fn drop_unfinished(&self) -> Result<(), Trouble> {
        let (file, unfinished) = self.read(|open| {
            let mut unfinished = Vec::new();
            let mut next = 0;
            while let Some(block) = open.snapshot.postings.range((next, 0, 0)..)?.next() {
                let number = block?.0.value().0;
                if !open.segments.iter().any(|segment| segment.number == number) {
                    unfinished.push(number);
                }
                let Some(after) = number.checked_add(1) else { break };
                next = after;
            }
            Ok((open.file.clone(), unfinished))
        })?;
        if unfinished.is_empty() {
            return Ok(());
        }
        file.write(|transaction| unfinished.iter().try_for_each(|number| drop_blocks(transaction, *number)))
    }
}

/// Counts the texts of a range that are not removed.
fn live(open: &Opened, first_doc: u32, end_doc: u32) -> u32 {
    let is_live = |doc: &u32| open.columns.doc(*doc).is_some();
    u32::try_from((first_doc..end_doc).filter(is_live).count()).unwrap_or(u32::MAX)
}

fn due(open: &Opened) -> Option<std::ops::Range<usize>> {
    let segments = &open.segments;
    // Each level has segments four times as large as the level below.
    let level = |segment: &Segment| (segment.live_docs / TAIL_DOCS).max(1).ilog(4);
    let last = level(segments.last()?);
    let is_alike = |segment: &&Segment| level(segment) <= last && segment.live_docs < MERGED_DOCS_MAX;
    let alike = segments.iter().rev().take_while(is_alike).count();
    (alike >= MERGED_AT_ONCE).then(|| segments.len() - alike..segments.len())
}

/// Writes the blocks of a segment merged from others into a file, in bounded transactions; `number` gives each text its
/// number there. Returns the terms that they hold.
pub(super) fn write_merged(
    open: &Opened,
    into: &MemoryFile,
    segment: &Segment,
    merged: &[Segment],
    number: impl Fn(u32) -> u32,
) -> Result<HashSet<u32>, Trouble> {
    let mut held = HashSet::new();
    let of = |old| Terms::of(&open.snapshot.postings, old, &open.columns);
    let mut sources = merged.iter().map(of).collect::<Result<Vec<_>, _>>()?;
    let mut writer = BlockWriter::new(segment.first_doc);
    let mut postings = Vec::new();
    while let Some(term) = sources.iter().filter_map(Terms::next_term).min() {
        postings.clear();
        for source in &mut sources {
            source.take(term, &mut postings)?;
        }
        postings.iter_mut().for_each(|posting: &mut Posting| posting.doc = number(posting.doc));
        if !postings.is_empty() {
            held.insert(term);
        }
        writer.term(term, &postings);
        if writer.done_bytes >= WRITTEN_BYTES {
            write_blocks(into, segment.number, &mut writer)?;
        }
    }
    writer.close();
    write_blocks(into, segment.number, &mut writer)?;
    Ok(held)
}

pub(super) fn write_blocks(file: &MemoryFile, number: u32, writer: &mut BlockWriter) -> Result<(), Trouble> {
    let blocks = std::mem::take(&mut writer.done);
    writer.done_bytes = 0;
    file.write(|transaction| put_blocks(transaction, number, &blocks))
}

fn put_blocks(transaction: &WriteTransaction, number: u32, blocks: &[Block]) -> Result<(), Trouble> {
    let mut table = transaction.open_table(tables::POSTINGS)?;
    for ((first, part), block) in blocks {
        table.insert((number, *first, *part), &**block)?;
    }
    Ok(())
}

pub(super) fn put_segments(transaction: &WriteTransaction, segments: &[Segment]) -> Result<(), Trouble> {
    transaction.open_table(tables::META)?.insert(meta::SEGMENTS, &*Segment::encode_all(segments))?;
    Ok(())
}

pub(super) fn drop_blocks(transaction: &WriteTransaction, number: u32) -> Result<(), Trouble> {
    let mut table = transaction.open_table(tables::POSTINGS)?;
    table.retain_in((number, 0, 0)..=(number, u32::MAX, u32::MAX), |_, _| false)?;
    Ok(())
}
