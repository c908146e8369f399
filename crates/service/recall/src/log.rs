//! Log of what memory must not lose with its index: its forgettings, and its intakes if there is no journal.
//!
//! It is a journal in the same frames as the others: numbered segments in one folder, of which the last is written.
//! Durable bytes are never overwritten: after a torn end, a failed sync or damage the log continues in a new segment,
//! whose header says where the good part of the previous one ends. Forgotten passages are removed by writing their
//! segments again as the next generation. The log never decides that something is lost: [`MemoryLog::is_whole`] says if
//! everything could be read. A note beside the log (`end`) shows if its end, or all of it, is missing.

mod segments;

mod end;

mod mend;

#[cfg(test)]
mod tests;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use self::end::End;
pub(crate) use self::mend::{Examined, examine, mend};
use self::segments::{Segment, Writer, begin, look, read, replace};
use meerkat_journal::{
    disk::{Disk, failed, is_full, write_all},
    frame::{Entry as Frame, PAYLOAD_BYTES_MAX, Place, encode_batch},
};
use meerkat_words::{
    clock::Timestamp,
    ids::{Seq, SessionId},
    memory::{Intake, Passage},
    store::StoreError,
};

/// Length at which the next segment begins.
const SEGMENT_BYTES: u64 = 8 * 1024 * 1024;
/// Kind of a frame that holds an [`Intake`].
const TOOK: u16 = 1;
/// Kind of a frame that holds a [`Forgetting`].
const FORGOT: u16 = 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Passages that were taken in.
    Took(Intake),
    /// Passages to forget.
    Forgot(Forgetting),
}

/// Passages to forget: those that match every field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Forgetting {
    /// Session; all if `None`.
    pub(crate) session_id: Option<SessionId>,
    pub(crate) from_seq: Seq,
    /// Last seq; none if `None`.
    pub(crate) to_seq: Option<Seq>,
    /// Source; all if `None`.
    pub(crate) source: Option<String>,
    /// Time after which passages stay.
    pub(crate) until: Timestamp,
}

impl Forgetting {
    /// Returns true if a passage is to be forgotten. Overlapping the range suffices.
    pub(crate) fn covers(&self, session_id: SessionId, passage: &Passage) -> bool {
        self.session_id.is_none_or(|id| id == session_id)
            && passage.to_seq >= self.from_seq
            && self.to_seq.is_none_or(|to_seq| passage.seq <= to_seq)
            && self.source.as_ref().is_none_or(|source| *source == passage.source)
            && passage.time <= self.until
    }
}

/// Open log. One thread at a time writes it, and may block.
pub(crate) struct MemoryLog {
    disk: Arc<dyn Disk>,
    /// Segments, in order; the last may be written.
    segments: Vec<Segment>,
    /// Position of the next entry; `None` if a new segment must begin first.
    writer: Option<Writer>,
    place: Place,
    segment_bytes: u64,
    is_whole: AtomicBool,
    /// Position in the note beside the log.
    noted: u64,
}

impl MemoryLog {
    /// Opens the log, or makes one. `known` is the last position that anyone relies on: if the log ends before it,
    /// something was lost, and positions continue after it.
    ///
    /// # Errors
    /// The disk's, or if a newer version wrote the log.
    pub(crate) fn open(disk: Arc<dyn Disk>, known: u64) -> Result<Self, StoreError> {
        Self::open_with(disk, known, SEGMENT_BYTES)
    }

    fn open_with(disk: Arc<dyn Disk>, known: u64, segment_bytes: u64) -> Result<Self, StoreError> {
        let End { seq: noted, is_damaged } = end::read(disk.as_ref())?;
        let found = look(disk.as_ref(), known.max(noted))?;
        let mut log = Self {
            disk,
            segments: found.segments,
            writer: found.writer,
            place: found.place,
            segment_bytes,
            is_whole: AtomicBool::new(found.is_whole),
            noted: if is_damaged { 0 } else { noted },
        };
        if found.is_cut {
            // If the index that relied on it is lost too, only a new segment still shows the gap.
            log.writer = begin(log.disk.as_ref(), &mut log.segments, &mut log.place).ok();
        }
        Ok(log)
    }

    /// Returns the position of the last entry; 0 if there is none.
    pub(crate) const fn position(&self) -> u64 {
        self.place.seq
    }

    /// Returns true if nothing was unreadable so far.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole.load(Ordering::Relaxed)
    }

    /// Appends all entries or none, and returns the position of the last once they are durable.
    ///
    /// # Errors
    /// `Full` if there is no room, and nothing was appended. After any other error the outcome is unknown.
    pub(crate) fn append(&mut self, entries: &[Entry]) -> Result<u64, StoreError> {
        let mut frames = Vec::new();
        entries.iter().try_for_each(|entry| frames_of(entry, &mut frames))?;
        if frames.is_empty() {
            return Ok(self.place.seq);
        }
        let mut writer = self.writer()?;
        let (mut place, mut out) = (self.place, Vec::new());
        let frames = (place.seq + 1..).zip(frames).map(|(seq, (kind, line))| Frame { seq, kind, ms: 0, line });
        encode_batch(&mut out, &mut place, self.place.batch + 1, frames);
        match write_all(writer.file.as_ref(), &out, writer.offset) {
            Ok(()) => {}
            Err(error) => {
                // Once cut back, it may be written again; otherwise its content is unknown, and it is left alone.
                if is_full(&error) && writer.file.set_len(writer.offset).is_ok() {
                    self.writer = Some(writer);
                }
                return Err(failed(error));
            }
        }
        // A full disk that shows only now is a failed sync like any other.
        writer.file.sync().map_err(|error| StoreError::Failed(error.to_string()))?;
        writer.offset += out.len() as u64;
        if let Some(segment) = self.segments.last_mut() {
            segment.end = writer.offset;
        }
        (self.writer, self.place) = (Some(writer), place);
        if entries.iter().any(|entry| matches!(entry, Entry::Forgot(_))) {
            self.note_end();
        }
        Ok(place.seq)
    }

    /// Notes beside the log where it ends. If that fails, the entries are durable all the same, and the next start notes
    /// it.
    pub(crate) fn note_end(&mut self) {
        if self.noted >= self.place.seq {
            return;
        }
        match end::write(self.disk.as_ref(), self.place.seq) {
            Ok(()) => self.noted = self.place.seq,
            Err(error) => tracing::warn!(%error, "it is not noted yet where the memory's log ends"),
        }
    }

    /// Takes the writer for the next entry. If it is not put back, the next append begins a new segment.
    fn writer(&mut self) -> Result<Writer, StoreError> {
        match self.writer.take().filter(|writer| writer.offset < self.segment_bytes) {
            Some(writer) => Ok(writer),
            None => begin(self.disk.as_ref(), &mut self.segments, &mut self.place).map_err(failed),
        }
    }

    /// Removes these passages from the segment `at`, which is written again without them and keeps its positions; returns
    /// false if there is no such segment. Of a log that holds texts, the copies that repairs kept are gone by then. A damaged segment stays as it is.
    ///
    /// # Errors
    /// The disk's; of a log that holds texts, also if the segment is damaged: what cannot be read may be one of them. The
    /// segment then holds some or all of these passages still, and everything else.
    pub(crate) fn leave_out(
        &mut self,
        at: usize,
        holds_texts: bool,
        is_gone: impl Fn(SessionId, &Passage) -> bool,
    ) -> Result<bool, StoreError> {
        let Some(segment) = self.segments.get(at).copied() else {
            let discarded = if holds_texts { mend::discard_kept(self.disk.as_ref()) } else { Ok(()) };
            return discarded.map_err(failed).map(|()| false);
        };
        let (mut frames, mut is_held) = (Vec::new(), false);
        let damaged_at = read(self.disk.as_ref(), &segment, |frame, line| {
            let left = without(frame.kind, &line, &is_gone);
            is_held |= left.is_some();
            frames.push((frame.clone(), left.unwrap_or(line)));
        });
        let is_damaged = damaged_at.map_err(failed)?.is_some() || segment.start.is_none();
        if is_damaged && holds_texts {
            return Err(StoreError::Failed("it is damaged; `meerkat doctor --repair` repairs it".to_owned()));
        }
        if let Some(base) = segment.start.filter(|_| is_held && !is_damaged) {
            if at + 1 == self.segments.len() {
                self.writer = None;
            }
            let previous_end = at.checked_sub(1).and_then(|at| self.segments.get(at)).map_or(0, |before| before.end);
            let last_seq = segment.last_seq.or(frames.last().map(|(frame, _)| frame.seq)).unwrap_or(base.seq);
            let new = replace(self.disk.as_ref(), &segment, (base, previous_end), last_seq, &frames);
            self.segments[at] = new.map_err(failed)?;
        }
        Ok(true)
    }

    /// Reads the entries after a position, in order, each with its position.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn replay(&self, after: u64, mut each: impl FnMut(u64, Entry)) -> Result<(), StoreError> {
        let begins = |segment: &Segment| segment.base_seq.is_some_and(|base_seq| base_seq <= after.saturating_add(1));
        let from = self.segments.iter().rposition(begins).unwrap_or(0);
        let mut last = self.segments.get(from).and_then(|segment| segment.base_seq).unwrap_or(1).saturating_sub(1);
        let mut is_whole = last <= after;
        for segment in &self.segments[from..] {
            is_whole &= segment.base_seq.is_none_or(|base_seq| base_seq == last + 1);
            let damaged_at = read(self.disk.as_ref(), segment, |frame, line| {
                is_whole &= frame.seq == last + 1 || segment.last_seq.is_some();
                last = frame.seq;
                if frame.seq > after {
                    match entry_of(frame.kind, &line) {
                        Some(entry) => each(frame.seq, entry),
                        None => is_whole = false,
                    }
                }
            });
            is_whole &= damaged_at.map_err(failed)?.is_none();
            last = last.max(segment.last_seq.unwrap_or_default());
        }
        if !is_whole || last < self.place.seq {
            self.is_whole.store(false, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Encodes a frame's line without the passages that are gone; `None` if it holds none of them.
fn without(kind: u16, line: &Bytes, is_gone: impl Fn(SessionId, &Passage) -> bool) -> Option<Bytes> {
    let Some(Entry::Took(mut intake)) = entry_of(kind, line) else { return None };
    let before = intake.passages.len();
    let Intake { session_id, passages, .. } = &mut intake;
    passages.retain(|passage| !is_gone(*session_id, passage));
    if passages.len() == before {
        return None;
    }
    serde_json::to_vec(&intake).ok().map(Into::into)
}

/// Encodes an entry; an intake too large for one frame is split.
fn frames_of(entry: &Entry, frames: &mut Vec<(u16, Bytes)>) -> Result<(), StoreError> {
    let json = |error: serde_json::Error| StoreError::Failed(error.to_string());
    match entry {
        Entry::Forgot(forgetting) => frames.push((FORGOT, serde_json::to_vec(forgetting).map_err(json)?.into())),
        Entry::Took(intake) => {
            let line = serde_json::to_vec(intake).map_err(json)?;
            if line.len() > PAYLOAD_BYTES_MAX && intake.passages.len() > 1 {
                for half in intake.passages.chunks(intake.passages.len().div_ceil(2)) {
                    let half = Intake {
                        passages: half.to_vec(),
                        labels: intake.labels.clone(),
                        inherited: intake.inherited.clone(),
                        ..*intake
                    };
                    frames_of(&Entry::Took(half), frames)?;
                }
            } else if line.len() > PAYLOAD_BYTES_MAX {
                return Err(StoreError::Failed(format!("a passage of {} bytes is too long", line.len())));
            } else {
                frames.push((TOOK, line.into()));
            }
        }
    }
    Ok(())
}

/// Decodes a frame; `None` if this version does not know it.
fn entry_of(kind: u16, line: &Bytes) -> Option<Entry> {
    match kind {
        TOOK => serde_json::from_slice(line).ok().map(Entry::Took),
        FORGOT => serde_json::from_slice(line).ok().map(Entry::Forgot),
        _ => None,
    }
}
