//! Reading a journal: the newest frames from memory, older ones from their segments.
//!
//! Only durable records are read. Reading stops before a bad record, unless the caller skips damage, and writing stops
//! for good. A record behind damage is read like any other by a caller that has those before it.

use std::{io, sync::Arc};

use super::{
    disk::{DiskFile, failed, is_unreadable},
    frame::{MUST_UNDERSTAND, Place},
    lock,
    log::{Log, State},
    recovery::{Segment, version},
    segment::{Mark, Step, remember},
};
use meerkat_words::{
    ids::Seq,
    store::{Frame, FramePage, ReadLimit, StoreError},
};

/// Reads durable frames after `after`; `None` if the session does not exist. A page ends before damage, unless the
/// caller skips it; the next one fails there.
pub async fn page(log: &Arc<Log>, after: Seq, limit: ReadLimit) -> Result<Option<FramePage>, StoreError> {
    let page = {
        let state = lock(&log.state);
        if !state.exists {
            return Ok(None);
        }
        if limit.frames == 0 { Some(nothing(&state)) } else { cached(&state, after, limit)? }
    };
    let page = match page {
        Some(page) => page,
        None => {
            let log = log.clone();
            log.clone().context.read(move || from_disk(&log, after, limit)).await?
        }
    };
    Ok(Some(page))
}

impl Log {
    /// Returns the durable frame of this seq if it is in memory.
    pub fn at_hand(&self, seq: Seq) -> Option<Frame> {
        let state = lock(&self.state);
        let first = state.cache.frames.front().filter(|_| state.exists && seq <= state.place.seq)?.seq;
        state.cache.frames.get(usize::try_from(seq.checked_sub(first)?).ok()?).cloned()
    }
}

/// Returns the page if it is in memory.
fn cached(state: &State, after: Seq, mut limit: ReadLimit) -> Result<Option<FramePage>, StoreError> {
    if after >= state.place.seq {
        let lost = state.lost_end.as_ref().filter(|_| !limit.skips_damage);
        return lost.map_or_else(|| Ok(Some(nothing(state))), |lost| Err(lost.clone()));
    }
    let in_memory = || {
        let first = state.cache.frames.front().map(|frame| frame.seq)?;
        usize::try_from((after + 1).checked_sub(first)?).ok()
    };
    let Some(skip) = in_memory() else { return Ok(None) };
    let mut frames = Vec::with_capacity(limit.frames.min(state.cache.frames.len().saturating_sub(skip)));
    for frame in state.cache.frames.iter().skip(skip) {
        if !limit.takes(&frame.line, frames.is_empty()) {
            break;
        }
        frames.push(frame.clone());
    }
    // The cache is dropped when a segment is replaced, so its frames are of this version.
    Ok(Some(FramePage { frames, ..nothing(state) }))
}

/// Makes a page without frames.
fn nothing(state: &State) -> FramePage {
    FramePage { version: version(&state.segments), ..FramePage::default() }
}

/// Place at which records are lost, or do not follow each other.
#[derive(Clone, Copy)]
pub(super) struct Gap {
    /// Last good record before it.
    pub(super) last_good: Seq,
    /// First good record behind it.
    pub(super) next_good: Seq,
}

impl Gap {
    /// Returns true if the records after `after` would come from both sides of it, or from within.
    const fn is_met(self, after: Seq) -> bool {
        self.last_good >= after || self.next_good > after + 1
    }

    /// Returns the lost seqs after `after`, unless there are none.
    pub(super) fn lost(self, after: Seq) -> Option<(Seq, Seq)> {
        let from = self.last_good.max(after) + 1;
        (from < self.next_good).then(|| (from, self.next_good - 1))
    }
}

/// Part of a page, from one segment.
struct Part {
    frames: Vec<Frame>,
    lost: Vec<(Seq, Seq)>,
    /// Places passed while reading.
    marks: Vec<Mark>,
    end: Mark,
    is_full: bool,
    /// True if the whole segment was read.
    is_over: bool,
    /// Gap behind it.
    gap: Option<Gap>,
    /// First bad record, by the last good seq before it.
    bad: Option<Seq>,
    is_newer: bool,
}

impl Part {
    fn at(end: Mark) -> Self {
        let (frames, lost, marks) = (Vec::new(), Vec::new(), Vec::new());
        Self { frames, lost, marks, end, is_full: false, is_over: false, gap: None, bad: None, is_newer: false }
    }
}

/// Segment that holds the records after a seq, with its file if that is open.
enum Holder {
    Segment(Box<Segment>, Option<Arc<dyn DiskFile>>),
    /// The records before this one are lost.
    Later(Seq),
    None,
}

fn holder(state: &State, at: Seq) -> Holder {
    match state.segments.iter().rposition(|segment| segment.start.place.seq <= at) {
        Some(holder) => {
            let segment = state.segments[holder].clone();
            let file = state.file.clone().filter(|_| segment.number == state.head.number);
            Holder::Segment(Box::new(segment), file)
        }
        None => state.segments.first().map_or(Holder::None, |first| Holder::Later(first.start.place.seq + 1)),
    }
}

/// Damage that a read has met, and may not pass.
fn stop(log: &Log, page: FramePage, gap: Gap) -> Result<FramePage, StoreError> {
    match page.frames.is_empty() {
        true => Err(damaged(log, gap.last_good)),
        false => Ok(page),
    }
}

fn damaged(log: &Log, last_good_seq: Seq) -> StoreError {
    let why = "the next record is bad, or missing".to_owned();
    StoreError::Corrupted { session_id: log.id, last_good_seq, why }
}

fn from_disk(log: &Log, after: Seq, mut limit: ReadLimit) -> Result<FramePage, StoreError> {
    let (mut page, mut at) = (nothing(&lock(&log.state)), after);
    loop {
        let (holder, last, is_broken) = {
            let state = lock(&log.state);
            if version(&state.segments) != page.version {
                if !page.frames.is_empty() {
                    // The next page has the other version.
                    return Ok(page);
                }
                (page, at) = (nothing(&state), after);
            }
            (holder(&state, at), state.place.seq, state.breaks.contains(&at))
        };
        if at >= last || limit.frames == 0 || !log.exists() {
            return Ok(page);
        }
        let gap = match holder {
            Holder::None => return Ok(page),
            Holder::Segment(..) if is_broken && !limit.skips_damage => Gap { last_good: at, next_good: at + 1 },
            Holder::Segment(segment, file) => {
                let mut wanted = Wanted { after: at, last, is_first: page.frames.is_empty(), limit };
                let part = read_part(log, *segment, file, &mut wanted)?;
                limit = wanted.limit;
                page.frames.extend(part.frames);
                page.lost.extend(part.lost);
                at = at.max(part.end.place.seq);
                match part.gap {
                    None if part.is_full => return Ok(page),
                    None => continue,
                    Some(gap) => gap,
                }
            }
            Holder::Later(next_good) => Gap { last_good: 0, next_good },
        };
        if !limit.skips_damage {
            return stop(log, page, gap);
        }
        page.lost.extend(gap.lost(at));
        at = at.max(gap.next_good - 1);
    }
}

/// Reads a part of a page, and notes what that finds.
fn read_part(
    log: &Log,
    segment: Segment,
    file: Option<Arc<dyn DiskFile>>,
    wanted: &mut Wanted,
) -> Result<Part, StoreError> {
    let opened = match file {
        Some(file) => Ok((segment.clone(), file)),
        None => log.open_segment(log.context.disk.as_ref(), segment.clone()),
    };
    let (segment, mut part) = match opened {
        Ok((segment, file)) => {
            let part = from_segment(file.as_ref(), &segment, wanted, log.context.knows).map_err(failed)?;
            (segment, part)
        }
        Err(error) if is_unreadable(&error) => {
            let bad = Some(segment.start.place.seq);
            let part = Part { bad, is_over: true, ..Part::at(segment.start) };
            (segment, part)
        }
        Err(error) => return Err(failed(error)),
    };
    learn(log, &segment, &mut part, wanted);
    Ok(part)
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
    let mut part = Part::at(from);
    part.marks.push(from);
    while wanted.limit.frames > 0 && reader.at.place.seq < wanted.last {
        match reader.next()? {
            Step::Frame(frame, line) => {
                part.is_newer |= frame.has(MUST_UNDERSTAND) && !knows(frame.kind);
                remember(&mut part.marks, reader.at);
                if frame.seq > wanted.after {
                    if !wanted.limit.takes(&line, std::mem::take(&mut wanted.is_first)) {
                        part.is_full = true;
                        break;
                    }
                    part.frames.push(Frame { seq: frame.seq, line });
                }
            }
            Step::End if reader.at.offset == segment.end => {
                part.is_over = true;
                break;
            }
            Step::End | Step::Sealed | Step::Bad => {
                let last_good = reader.at.place.seq;
                part.bad.get_or_insert(last_good);
                if !reader.pass_over()? {
                    // Whatever it held up to the next segment is lost.
                    part.is_over = true;
                    break;
                }
                let gap = Gap { last_good, next_good: reader.at.place.seq + 1 };
                if !wanted.limit.skips_damage && gap.is_met(wanted.after) {
                    part.gap = Some(gap);
                    part.end = Mark { place: Place { seq: last_good, ..reader.at.place }, ..reader.at };
                    return Ok(part);
                }
                part.lost.extend(gap.lost(wanted.after));
                remember(&mut part.marks, reader.at);
            }
        }
    }
    part.end = if part.is_over { segment.passed(reader.at) } else { reader.at };
    part.is_full |= wanted.limit.frames == 0;
    Ok(part)
}

/// Applies what reading a segment has found, and finds if the next one follows.
fn learn(log: &Log, segment: &Segment, part: &mut Part, wanted: &Wanted) {
    let mut state = lock(&log.state);
    let is_it = |known: &Segment| (known.number, known.generation) == (segment.number, segment.generation);
    let at = state.segments.iter().position(is_it);
    // If the segment has grown meanwhile, the end read says nothing about the next one.
    let is_whole = at.and_then(|at| state.segments.get(at)).is_some_and(|known| known.end == segment.end);
    if is_whole && part.is_over {
        let end = part.end.place;
        let next = at.and_then(|at| state.segments.get(at + 1)).map(|next| next.start.place);
        match next {
            Some(next) if (next.seq, next.chain) == (end.seq, end.chain) => {}
            Some(next) => {
                part.bad.get_or_insert(end.seq);
                part.gap = Some(Gap { last_good: end.seq, next_good: next.seq + 1 });
                if next.seq <= end.seq {
                    state.breaks.insert(end.seq);
                }
            }
            None if end.seq < wanted.last.min(state.place.seq) => {
                part.bad.get_or_insert(end.seq);
                part.gap = Some(Gap { last_good: end.seq, next_good: wanted.last + 1 });
            }
            None => {}
        }
    } else if part.end.place.seq <= wanted.after && part.gap.is_none() {
        // Nothing more can be read at this moment.
        part.is_full = true;
    }
    if let Some(known) = at.and_then(|at| state.segments.get_mut(at)) {
        for mark in &part.marks {
            remember(&mut known.index, *mark);
        }
    }
    if let Some(last_good_seq) = part.bad {
        tracing::error!(session_id = %log.id, last_good_seq, "a journal is damaged");
        let why = format!("segment {} holds a bad record, or ends before it should", segment.number);
        let damage = StoreError::Corrupted { session_id: log.id, last_good_seq, why };
        lock(&log.context.damaged).entry(log.id).or_insert_with(|| damage.clone());
        state.damage.get_or_insert(damage);
    }
    if part.is_newer {
        state.damage.get_or_insert(StoreError::FormatNewer(log.id));
    }
}
