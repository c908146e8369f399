//! Reads a journal's lines once without opening it: at a start after a kill, and to rebuild the index.
//!
//! It succeeds only if the journal has no fault at all; [`Log::open`](super::Log) handles the others.

use std::{io, sync::Arc};

use bytes::Bytes;

use super::{
    Context, Near,
    disk::{failed, if_there},
    frame::{BATCH_END, MUST_UNDERSTAND, Place},
    layout::{generations_of, session_dir},
    log::make_sure,
    recovery::{Segment, headers, near_end},
    segment::{Mark, Step, remember},
};
use meerkat_words::{
    ids::{Seq, SessionId},
    store::StoreError,
};

/// Passes the lines after `after` to `see`. Returns true if these are all, and durable.
pub fn pass(
    context: &Arc<Context>,
    id: SessionId,
    after: Seq,
    see: &mut dyn FnMut(&Bytes),
) -> Result<bool, StoreError> {
    let known = context.witness.end_of(id);
    let near = known.and_then(|known| known.near).filter(|near| after > 0 && near.seq <= after);
    let segments = match near {
        Some(near) => last_segment(context, id, near),
        None => headers(context.disk.as_ref(), id),
    };
    let Some(mut segments) = segments.map_err(failed)? else { return Ok(false) };
    let Some(end) = walk(context, id, &mut segments, after, see).map_err(failed)? else { return Ok(false) };
    let end = end.end();
    let known = known.map(|known| known.end);
    if known.is_some_and(|known| known.is_lost_in(end)) {
        return Ok(false);
    }
    if known != Some(end) {
        make_sure(context, id, &segments)?;
    }
    context.witness.saw(id, end, near_end(&segments, end.seq));
    Ok(true)
}

/// Returns the last segment from a known place on, if it is still the last.
fn last_segment(context: &Context, id: SessionId, near: Near) -> io::Result<Option<Vec<Segment>>> {
    let Some(names) = if_there(context.disk.list(&session_dir(id)))? else { return Ok(None) };
    let names = generations_of(&names);
    let is_last =
        names.last().is_some_and(|(number, all)| (*number, all[..] == [near.generation]) == (near.number, true));
    let Near { number, generation, offset, seq, batch, chain } = near;
    let start = Mark { offset, place: Place { seq, batch, chain } };
    Ok(is_last.then(|| {
        vec![Segment { number, generation, start, end: offset, index: vec![start], after: None, is_headless: false }]
    }))
}

/// Reads the segments, and sets the last one's end; returns the journal's end, or `None` if it has a fault.
fn walk(
    context: &Context,
    id: SessionId,
    segments: &mut [Segment],
    after: Seq,
    see: &mut dyn FnMut(&Bytes),
) -> io::Result<Option<Place>> {
    let mut before: Option<Place> = None;
    let last = segments.len().saturating_sub(1);
    for (at, segment) in segments.iter_mut().enumerate() {
        if before.is_some_and(|end| (end.seq, end.chain) != (segment.start.place.seq, segment.start.place.chain)) {
            return Ok(None);
        }
        let file = context.disk.open(&session_dir(id).join(segment.name()), false)?;
        if at == last && segment.after.is_none() {
            segment.end = file.len()?;
        }
        let (mut reader, mut is_whole) = (segment.reader(file.as_ref(), segment.start), true);
        let step = loop {
            match reader.next()? {
                Step::Frame(frame, _) if frame.has(MUST_UNDERSTAND) && !(context.knows)(frame.kind) => return Ok(None),
                Step::Frame(frame, line) => {
                    is_whole = frame.has(BATCH_END);
                    if is_whole {
                        remember(&mut segment.index, reader.at);
                    }
                    if frame.seq > after {
                        see(&line);
                    }
                }
                step => break step,
            }
        };
        let is_over = match step {
            Step::End => reader.at.offset == segment.end,
            Step::Sealed => at == last,
            Step::Frame(..) | Step::Bad => false,
        };
        if !is_over || !is_whole {
            return Ok(None);
        }
        before = Some(segment.passed(reader.at).place);
    }
    Ok(before)
}
