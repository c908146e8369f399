//! Journal compaction on the disk: a sealed segment is written anew without the records that are to go, as its next
//! generation, and takes the other's place.
//!
//! Whatever is under way when the power fails, the old segment stands or the new one, whole, and either links to the
//! next. It never decides what may go, and never writes a segment that is still appended to: that one is sealed first.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    commit,
    disk::{create_anew, is_missing, write_all},
    executor::on,
    frame::{BATCH_END, Entry, encode},
    layout::{NEW, generations_of, segment_name, session_dir, with_folders},
    lock,
    log::Log,
    recovery::{Segment, failed},
    segment::{Compacted, Header, HeaderFound, Mark, Step, remember},
};
use meerkat_words::{ids::Seq, store::StoreError};

/// Which records go: those up to a seq that are older than a time and are not kept.
pub struct Drops {
    /// The last seq that may go.
    pub up_to: Seq,
    /// Seqs that stay.
    pub keep: BTreeSet<Seq>,
    /// Wall-clock milliseconds.
    pub older_than: i64,
}

/// A segment as its next generation, which has no name yet.
pub struct Rewritten {
    old: Segment,
    new: Segment,
    /// Where it stands.
    made: PathBuf,
    /// How many records are gone.
    pub dropped: u64,
}

/// The seqs that each segment was made for: what is rewritten is rewritten segment by segment. The last one is the one
/// that is written, and may be yet to begin.
pub fn parts(log: &Log) -> Vec<(Seq, Seq)> {
    let state = lock(&log.state);
    let is_begun = state.segments.last().is_some_and(|last| last.number == state.head.number);
    let next = state.place.seq + 1;
    let mut starts: Vec<Seq> = state.segments.iter().map(|segment| segment.start.place.seq + 1).collect();
    starts.extend((!is_begun).then_some(next));
    let ends = starts.iter().skip(1).chain([&next]).map(|next| next - 1);
    starts.iter().copied().zip(ends).collect()
}

/// The numbers of the segments that may hold records that go. Generations that earlier attempts have left are removed.
pub fn candidates(log: &Log, up_to: Seq) -> Result<Vec<u64>, StoreError> {
    let (health, disk) = (&log.context.health, log.context.disk.as_ref());
    health.room(disk)?;
    let segments = {
        let state = lock(&log.state);
        if let Some(damage) = &state.damage {
            return Err(damage.clone());
        }
        if !state.exists || state.is_over {
            return Err(StoreError::NotFound(log.id));
        }
        if state.must_stay {
            return Err(StoreError::Failed(
                "a write to the journal failed; it is compacted after the next start".into(),
            ));
        }
        // What is to be cut away stands at the end of the last one, or behind it.
        let settled = if state.cuts.is_empty() { state.segments.len() } else { state.segments.len().saturating_sub(1) };
        state.segments[..settled].to_vec()
    };
    let dir = session_dir(log.id);
    let names = generations_of(&disk.list(&dir).map_err(failed)?);
    let mut left = Vec::new();
    for (number, generations) in names {
        let Some(segment) = segments.iter().find(|segment| segment.number == number) else { continue };
        let old = generations.into_iter().filter(|generation| *generation < segment.generation);
        left.extend(old.map(|generation| dir.join(segment_name(number, generation))));
    }
    if !left.is_empty() {
        // A process that was killed may not have made sure that the new name stays. Where that fails, asking again could
        // answer well and mean nothing: what was left stays.
        let mut unsynced = lock(&log.context.unsynced);
        if unsynced.contains(&log.id) {
            left.clear();
        } else if let Err(error) = disk.sync_dir(&dir) {
            unsynced.insert(log.id);
            return Err(health.unsure(log.id, error));
        }
    }
    left.iter().for_each(|path| remove(log, path));
    let begun = segments.iter().filter(|segment| segment.start.place.seq < up_to);
    Ok(begun.map(|segment| segment.number).collect())
}

/// Writes a segment anew, where something goes that it holds. One that is still appended to is sealed first.
pub async fn rewrite(log: &Arc<Log>, number: u64, drops: &Arc<Drops>) -> Result<Option<Rewritten>, StoreError> {
    let executor = log.context.executor.clone();
    let is_written = || lock(&log.state).head.number == number;
    if is_written() {
        let (examined, drops) = (log.clone(), drops.clone());
        if !on(executor.as_ref(), move || holds(&examined, number, &drops)).await? {
            return Ok(None);
        }
        log.hold().await;
        let sealing = log.clone();
        on(executor.as_ref(), move || {
            commit::seal(&sealing, number);
            Ok(())
        })
        .await?;
        if is_written() {
            // The next segment could not be made.
            return Ok(None);
        }
    }
    let (rewriting, drops) = (log.clone(), drops.clone());
    on(executor.as_ref(), move || write_anew(&rewriting, number, &drops)).await
}

/// A segment of the journal.
fn segment(log: &Log, number: u64) -> Result<Segment, StoreError> {
    let found = lock(&log.state).segments.iter().find(|known| known.number == number).cloned();
    found.ok_or(StoreError::NotFound(log.id))
}

/// Calls `each` with the frames of a segment.
fn frames(log: &Log, segment: &Segment, mut each: impl FnMut(u16, u64, Entry) -> bool) -> Result<Mark, StoreError> {
    let (segment, file) = log.open_segment(log.context.disk.as_ref(), segment.clone()).map_err(failed)?;
    let mut reader = segment.reader(file.as_ref(), segment.start);
    loop {
        match reader.next().map_err(failed)? {
            Step::Frame(frame, line) => {
                if !each(frame.flags, frame.batch, Entry { seq: frame.seq, kind: frame.kind, ms: frame.ms, line }) {
                    return Ok(reader.at);
                }
            }
            Step::End if reader.at.offset == segment.end => return Ok(reader.at),
            Step::End | Step::Sealed | Step::Bad => {
                let why = format!("segment {} holds a bad record", segment.number);
                return Err(StoreError::Corrupted { session_id: log.id, last_good_seq: reader.at.place.seq, why });
            }
        }
    }
}

impl Drops {
    fn take(&self, entry: &Entry) -> bool {
        entry.seq <= self.up_to && entry.ms < self.older_than && !self.keep.contains(&entry.seq)
    }
}

/// Whether a segment holds something that goes.
fn holds(log: &Log, number: u64, drops: &Drops) -> Result<bool, StoreError> {
    let mut is_found = false;
    frames(log, &segment(log, number)?, |_, _, entry| {
        is_found |= drops.take(&entry);
        !is_found
    })?;
    Ok(is_found)
}

fn write_anew(log: &Log, number: u64, drops: &Drops) -> Result<Option<Rewritten>, StoreError> {
    let old = segment(log, number)?;
    let (mut kept, mut dropped) = (Vec::new(), 0);
    let end = frames(log, &old, |flags, batch, entry| {
        match drops.take(&entry) {
            true => dropped += 1,
            false => kept.push((flags, batch, entry)),
        }
        true
    })?;
    if dropped == 0 {
        return Ok(None);
    }
    let disk = log.context.disk.as_ref();
    let (_, file) = log.open_segment(disk, old.clone()).map_err(failed)?;
    let HeaderFound::Good(header) = Header::read(file.as_ref()).map_err(failed)? else {
        return Err(StoreError::Failed(format!("the header of segment {} cannot be read", old.number)));
    };
    let (mut place, mut index) = (old.start.place, vec![old.start]);
    // The header stands first and is known last.
    let mut out = header.encode();
    for (at, (flags, batch, entry)) in kept.iter().enumerate() {
        let ends = kept.get(at + 1).is_none_or(|(_, next, _)| next != batch);
        encode(&mut out, &mut place, *batch, flags & !BATCH_END | if ends { BATCH_END } else { 0 }, entry);
        remember(&mut index, Mark { offset: out.len() as u64, place });
    }
    let compacted = Compacted { after: old.passed(end).place, count: kept.len() as u64, end: out.len() as u64 };
    let header = Header { generation: old.generation + 1, compacted: Some(compacted), ..header };
    let bytes = header.encode();
    out[..bytes.len()].copy_from_slice(&bytes);
    let new = Segment { index, ..Segment::begun(&header) };
    let made = Path::new(NEW).join(format!("{}.{}", log.id, new.name()));
    let written = with_folders(disk, || create_anew(disk, &made))
        .and_then(|file| write_all(file.as_ref(), &out, 0).and_then(|()| file.sync()));
    written.map_err(failed).inspect_err(|_| remove(log, &made))?;
    Ok(Some(Rewritten { old, new, made, dropped }))
}

/// Gives a rewritten segment its name, and takes the other one's away. No other may open, delete or make the session
/// meanwhile.
pub fn replace(log: &Log, rewritten: Rewritten) -> Result<(), StoreError> {
    let Rewritten { old, new, made, .. } = rewritten;
    let (disk, dir) = (log.context.disk.as_ref(), session_dir(log.id));
    let is_there = {
        let state = lock(&log.state);
        let is_old = |known: &Segment| (known.number, known.generation) == (old.number, old.generation);
        state.exists && !state.is_over && state.segments.iter().any(is_old)
    };
    if !is_there {
        remove(log, &made);
        return Err(StoreError::NotFound(log.id));
    }
    disk.rename(&made, &dir.join(new.name())).map_err(failed).inspect_err(|_| remove(log, &made))?;
    disk.sync_dir(&dir).map_err(|error| {
        // Nobody knows whether the name stays, so nobody is to rely on it.
        remove(log, &dir.join(new.name()));
        log.context.health.unnamed(log.id, error)
    })?;
    {
        let mut state = lock(&log.state);
        // What it holds in memory has no gaps.
        state.cache = Default::default();
        if let Some(known) = state.segments.iter_mut().find(|known| known.number == new.number) {
            *known = new;
        }
    }
    remove(log, &dir.join(old.name()));
    Ok(())
}

/// Removes a file that is no part of the journal. One that stays takes room until the next compaction or start.
fn remove(log: &Log, path: &Path) {
    if let Err(error) = log.context.disk.remove(path)
        && !is_missing(&error)
    {
        tracing::debug!(session_id = %log.id, path = %path.display(), %error, "a segment that was replaced could not be removed yet");
    }
}
