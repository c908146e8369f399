//! Rebuilds the postings of all texts. The old ones serve until the new ones are complete, so a kill leaves one or the
//! other.

use super::{
    core::Core,
    file::Trouble,
    intake::put_number,
    opened::Opened,
    postings::{BlockWriter, Segment},
    segments::{self, Tail},
    tables::meta,
    text,
};

/// Texts of one new segment, at most.
const GATHERED_DOCS: u32 = 8 * 1_024;
/// Bytes of text of one new segment, at most, except for its last text.
const GATHERED_BYTES: usize = 8 * 1024 * 1024;

impl Core {
    /// Rebuilds the postings of all texts; returns how many texts there are.
    pub(super) fn rebuild_postings(&self, progress: &dyn Fn(u64, u64)) -> Result<u64, Trouble> {
        let mut made: Vec<Segment> = Vec::new();
        let end = self.read(|open| Ok(open.columns.next_doc()))?;
        let (mut first_doc, mut live) = (0, 0);
        while first_doc < end {
            let (file, number) = self.next_segment()?;
            let (segment, mut writer) = self.read(|open| gather(open, number, first_doc))?;
            segments::write_blocks(&file, number, &mut writer)?;
            first_doc = segment.end_doc;
            live += u64::from(segment.live_docs);
            made.push(segment);
            progress(u64::from(first_doc), u64::from(end));
        }
        let (file, old) = self.read(|open| Ok((open.file.clone(), open.segments.clone())))?;
        file.write(|transaction| {
            old.iter().try_for_each(|segment| segments::drop_blocks(transaction, segment.number))?;
            segments::put_segments(transaction, &made)
        })?;
        self.change(&file, |open| {
            open.segments = made;
            open.tail = Tail::default();
            open.refresh()
        })?;
        self.merge()?;
        Ok(live)
    }

    /// Notes that every stored session was taken in.
    pub(super) fn became_whole(&self) -> Result<(), Trouble> {
        let file = self.read(|open| Ok(open.file.clone()))?;
        file.write(|transaction| put_number(transaction, meta::WHOLE, 1))?;
        self.change(&file, |open| {
            open.is_whole = true;
            Ok(())
        })
    }
}

fn gather(open: &Opened, number: u32, first_doc: u32) -> Result<(Segment, BlockWriter), Trouble> {
    let (mut tail, mut end_doc, mut live_docs, mut bytes) = (Tail::default(), first_doc, 0, 0);
    while end_doc < open.columns.next_doc() && live_docs < GATHERED_DOCS && bytes < GATHERED_BYTES {
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
