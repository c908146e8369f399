//! Rebuilds the postings of all texts, in steps between which other changes run. The old ones serve until the new ones
//! are complete, so a kill leaves one or the other.

use std::{
    ops::Range,
    sync::{Arc, Weak},
};

use super::{
    core::Core,
    file::{MemoryFile, Trouble},
    opened::Opened,
    postings::{BlockWriter, Segment, Tail},
    segments,
    tables::{meta, put_number},
    text,
};

/// Texts of one new segment, at most.
const GATHERED_DOCS: u32 = if cfg!(test) { 16 } else { 8 * 1_024 };
/// Bytes of text of one new segment, at most, except for its last text.
const GATHERED_BYTES: usize = 8 * 1024 * 1024;

/// Rebuild under way.
#[derive(Default)]
pub(super) struct Rebuild {
    /// File that it is of.
    file: Weak<MemoryFile>,
    made: Vec<Segment>,
}

impl Core {
    /// Rebuilds the postings of some texts; returns how many are done, and of how many, until all are.
    pub(super) fn rebuild_step(&self, rebuild: &mut Rebuild) -> Result<Option<(u64, u64)>, Trouble> {
        let (file, number) = self.next_segment()?;
        if !std::ptr::eq(rebuild.file.as_ptr(), Arc::as_ptr(&file)) {
            // Written anew meanwhile: its texts have other numbers.
            *rebuild = Rebuild { file: Arc::downgrade(&file), made: Vec::new() };
        }
        let first_doc = rebuild.made.last().map_or(0, |segment| segment.end_doc);
        // The terms of later texts are in RAM.
        let (end, all) = self.read(|open| Ok((open.tail_start(), open.columns.next_doc())))?;
        if first_doc < end {
            let (segment, mut writer) = self.read(|open| gather(open, number, first_doc..end))?;
            segments::write_blocks(&file, number, &mut writer)?;
            rebuild.made.push(segment);
            return Ok(Some((u64::from(segment.end_doc), u64::from(all))));
        }
        let made = std::mem::take(&mut rebuild.made);
        let old = self.read(|open| Ok(open.segments.clone()))?;
        file.write(|transaction| {
            old.iter().try_for_each(|segment| segments::drop_blocks(transaction, segment.number))?;
            segments::put_segments(transaction, &made)
        })?;
        self.change(&file, |open| {
            open.segments = made;
            open.refresh()
        })?;
        Ok(None)
    }

    /// Notes that every stored session was taken in, unless the file was lost again meanwhile.
    pub(super) fn became_whole(&self) -> Result<(), Trouble> {
        if self.is_lost_again() {
            return Ok(());
        }
        let file = self.read(|open| Ok(open.file.clone()))?;
        file.write(|transaction| put_number(transaction, meta::WHOLE, 1))?;
        self.change(&file, |open| {
            open.is_whole = true;
            Ok(())
        })
    }
}

fn gather(open: &Opened, number: u32, docs: Range<u32>) -> Result<(Segment, BlockWriter), Trouble> {
    let first_doc = docs.start;
    let (mut tail, mut end_doc, mut live_docs, mut bytes) = (Tail::default(), first_doc, 0, 0);
    while end_doc < docs.end && live_docs < GATHERED_DOCS && bytes < GATHERED_BYTES {
        if open.columns.doc(end_doc).is_some() {
            let text = open.snapshot.text(end_doc)?;
            bytes += text.len();
            live_docs += 1;
            tail.put(end_doc, &text::analyse(&text), text.len());
        }
        end_doc += 1;
    }
    let segment = Segment { number, first_doc, end_doc, live_docs };
    Ok((segment, tail.blocks(first_doc, |_| true)))
}
