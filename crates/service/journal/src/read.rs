//! Reading a journal: the newest frames from memory, older ones from their segments.
//!
//! Only durable records are read. Reading stops before a bad record, and writing stops for good.

use std::{io, sync::Arc};

use super::{
    disk::{DiskFile, failed},
    executor::on,
    frame::MUST_UNDERSTAND,
    lock,
    log::{Log, State},
    recovery::{Segment, version},
    segment::{Mark, Step, remember},
};
use meerkat_words::{
    ids::Seq,
    store::{Frame, FramePage, ReadLimit, StoreError},
};

/// Reads durable frames after `after`; `None` if the session does not exist.
pub async fn page(log: &Arc<Log>, after: Seq, limit: ReadLimit) -> Result<Option<FramePage>, StoreError> {
    let page = {
        let state = lock(&log.state);
        if !state.exists {
            return Ok(None);
        }
        if limit.frames == 0 { Some(nothing(&state)) } else { cached(&state, after, limit) }
    };
    let page = match page {
        Some(page) => page,
        None => {
            let log = log.clone();
            on(log.clone().context.executor.as_ref(), move || from_disk(&log, after, limit)).await?
        }
    };
    Ok(Some(page))
}

impl Log {
    /// Returns the durable frame of this seq if it is in memory.
    pub fn at_hand(&self, seq: Seq) -> Option<Frame> {
        let state = lock(&self.state);
        let first = state.cache.frames.front().filter(|_| state.exists && seq <= state.readable())?.seq;
        state.cache.frames.get(usize::try_from(seq.checked_sub(first)?).ok()?).cloned()
    }
}

impl State {
    /// Returns the seq of the last good record.
    pub(super) fn readable(&self) -> Seq {
        match &self.damage {
            Some(StoreError::Corrupted { last_good_seq, .. }) => self.place.seq.min(*last_good_seq),
            _ => self.place.seq,
        }
    }
}

/// Returns the page if it is in memory.
fn cached(state: &State, after: Seq, mut limit: ReadLimit) -> Option<FramePage> {
    let readable = state.readable();
    if after >= readable {
        return Some(nothing(state));
    }
    let first = state.cache.frames.front().map(|frame| frame.seq)?;
    let skip = usize::try_from((after + 1).checked_sub(first)?).ok()?;
    let mut frames = Vec::with_capacity(limit.frames.min(state.cache.frames.len().saturating_sub(skip)));
    for frame in state.cache.frames.iter().skip(skip).take_while(|frame| frame.seq <= readable) {
        if !limit.takes(&frame.line, frames.is_empty()) {
            break;
        }
        frames.push(frame.clone());
    }
    // The cache is dropped when a segment is replaced, so its frames are of this version.
    Some(FramePage { frames, version: version(&state.segments) })
}

/// Makes a page without frames.
fn nothing(state: &State) -> FramePage {
    FramePage { frames: Vec::new(), version: version(&state.segments) }
}

/// Part of a page, from one segment.
struct Part {
    frames: Vec<Frame>,
    /// Places passed while reading.
    marks: Vec<Mark>,
    end: Mark,
    is_full: bool,
    is_bad: bool,
    is_newer: bool,
}

fn from_disk(log: &Log, after: Seq, mut limit: ReadLimit) -> Result<FramePage, StoreError> {
    let disk = log.context.disk.as_ref();
    let (mut page, mut at) = (nothing(&lock(&log.state)), after);
    loop {
        let (segment, file, readable) = {
            let state = lock(&log.state);
            if version(&state.segments) != page.version {
                if !page.frames.is_empty() {
                    // The next page has the other version.
                    return Ok(page);
                }
                page.version = version(&state.segments);
            }
            let holder = state.segments.iter().rposition(|segment| segment.start.place.seq <= at);
            let Some(segment) = holder.and_then(|holder| state.segments.get(holder)) else { return Ok(page) };
            let is_last = segment.number == state.head.number;
            (segment.clone(), state.file.clone().filter(|_| is_last), state.readable())
        };
        if at >= readable || limit.frames == 0 || !log.exists() {
            return Ok(page);
        }
        let (segment, file) = match file {
            Some(file) => (segment, file),
            None => log.open_segment(disk, segment).map_err(failed)?,
        };
        let mut wanted = Wanted { after: at, last: readable, is_first: page.frames.is_empty(), limit };
        let part = from_segment(file.as_ref(), &segment, &mut wanted, log.context.knows).map_err(failed)?;
        limit = wanted.limit;
        // A compacted segment may end, or even begin, after its last frame.
        let is_over = part.is_full || part.end.place.seq <= at;
        at = part.end.place.seq.max(at);
        let is_damaged = learn(log, &segment, &part);
        page.frames.extend(part.frames);
        if is_damaged || is_over {
            return Ok(page);
        }
    }
}

struct Wanted {
    after: Seq,
    last: Seq,
    is_first: bool,
    limit: ReadLimit,
}

fn from_segment(
    file: &dyn DiskFile,
    segment: &Segment,
    wanted: &mut Wanted,
    knows: fn(u16) -> bool,
) -> io::Result<Part> {
    let near = segment.index.iter().rev().find(|mark| mark.place.seq <= wanted.after);
    let from = near.copied().unwrap_or(segment.start);
    let mut reader = segment.reader(file, from);
    let (mut frames, mut marks) = (Vec::new(), vec![from]);
    let (mut is_full, mut is_bad, mut is_newer) = (false, false, false);
    while wanted.limit.frames > 0 && reader.at.place.seq < wanted.last {
        match reader.next()? {
            Step::Frame(frame, line) => {
                is_newer |= frame.has(MUST_UNDERSTAND) && !knows(frame.kind);
                remember(&mut marks, reader.at);
                if frame.seq > wanted.after {
                    if !wanted.limit.takes(&line, std::mem::take(&mut wanted.is_first)) {
                        is_full = true;
                        break;
                    }
                    frames.push(Frame { seq: frame.seq, line });
                }
            }
            Step::End if reader.at.offset == segment.end => break,
            Step::End | Step::Sealed | Step::Bad => {
                is_bad = true;
                break;
            }
        }
    }
    Ok(Part { frames, marks, end: segment.passed(reader.at), is_full, is_bad, is_newer })
}

/// Applies what reading a segment has found. Returns true if the journal is damaged there.
fn learn(log: &Log, segment: &Segment, part: &Part) -> bool {
    let mut state = lock(&log.state);
    let next = state.segments.iter().find(|next| next.number == segment.number + 1).map(|next| next.start.place);
    let is_it = |known: &Segment| (known.number, known.generation) == (segment.number, segment.generation);
    // If the segment has grown meanwhile, the end read says nothing about the next one.
    let is_whole = state.segments.iter().any(|known| is_it(known) && known.end == segment.end);
    let ends_here = is_whole && part.end.offset == segment.end;
    let is_apart =
        next.is_some_and(|next| ends_here && (next.seq, next.chain) != (part.end.place.seq, part.end.place.chain));
    if let Some(known) = state.segments.iter_mut().find(|known| is_it(known)) {
        for mark in &part.marks {
            remember(&mut known.index, *mark);
        }
    }
    let last_good_seq = part.end.place.seq;
    if part.is_bad || is_apart {
        tracing::error!(session_id = %log.id, last_good_seq, "a journal is damaged");
        let why = format!("segment {} holds a bad record, or ends before it should", segment.number);
        state.damage.get_or_insert(StoreError::Corrupted { session_id: log.id, last_good_seq, why });
        return true;
    }
    if part.is_newer {
        state.damage.get_or_insert(StoreError::FormatNewer(log.id));
    }
    false
}
