//! Journal compaction on the disk: a sealed segment is replaced by its next generation, without the dropped records.
//!
//! After a power failure the old or the new segment exists, complete, and either links to the next. It does not decide
//! which records to drop, and seals a segment that is still appended to first.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    commit,
    disk::{failed, is_missing, write_new},
    executor::on,
    frame::{BATCH_END, Entry, encode},
    layout::{NEW, generations_of, segment_name, session_dir, with_folders},
    lock,
    log::Log,
    recovery::Segment,
    segment::{Compacted, Header, HeaderFound, Mark, Step, remember},
};
use meerkat_words::{ids::Seq, store::StoreError};

/// Records to drop: up to a seq, older than a time, and not among those to keep.
pub struct Drops {
    /// Last seq that may be dropped.
    pub up_to: Seq,
    /// Seqs to keep.
    pub keep: BTreeSet<Seq>,
    /// Wall-clock milliseconds.
    pub older_than: i64,
}

/// Next generation of a segment, which has no name yet.
pub struct Rewritten {
    old: Segment,
    new: Segment,
    made: PathBuf,
    /// Number of dropped records.
    pub dropped: u64,
}

/// Returns the seqs of each segment, the unit of rewriting. The last one is the current segment, which may be empty.
pub fn parts(log: &Log) -> Vec<(Seq, Seq)> {
    let state = lock(&log.state);
    let is_begun = state.segments.last().is_some_and(|last| last.number == state.head.number);
    let next = state.place.seq + 1;
    let mut starts: Vec<Seq> = state.segments.iter().map(|segment| segment.start.place.seq + 1).collect();
    starts.extend((!is_begun).then_some(next));
    let ends = starts.iter().skip(1).chain([&next]).map(|next| next - 1);
    starts.iter().copied().zip(ends).collect()
}

/// Returns the numbers of the segments that may hold records to drop. Removes replaced generations that earlier
/// attempts left.
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
        // Pending cuts are in or after the last one.
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
        // A killed process may not have synced the new names. If the sync fails, repeating it could succeed without
        // meaning anything: the old generations stay.
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

/// Rewrites a segment if it holds records to drop. The current segment is sealed first.
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
    on(executor.as_ref(), move || rewrite_segment(&rewriting, number, &drops)).await
}

fn segment(log: &Log, number: u64) -> Result<Segment, StoreError> {
    let found = lock(&log.state).segments.iter().find(|known| known.number == number).cloned();
    found.ok_or(StoreError::NotFound(log.id))
}

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

/// Returns true if a segment holds records to drop.
fn holds(log: &Log, number: u64, drops: &Drops) -> Result<bool, StoreError> {
    let mut is_found = false;
    frames(log, &segment(log, number)?, |_, _, entry| {
        is_found |= drops.take(&entry);
        !is_found
    })?;
    Ok(is_found)
}

fn rewrite_segment(log: &Log, number: u64, drops: &Drops) -> Result<Option<Rewritten>, StoreError> {
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
    // The header comes first, but is known last.
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
    let written = with_folders(disk, || write_new(disk, &made, &out));
    written.map_err(failed).inspect_err(|_| remove(log, &made))?;
    Ok(Some(Rewritten { old, new, made, dropped }))
}

/// Gives a rewritten segment its name, and removes the old one. The session must not be opened, deleted or made
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
        // The name may not survive, so it must not be used.
        remove(log, &dir.join(new.name()));
        log.context.health.unnamed(log.id, error)
    })?;
    {
        let mut state = lock(&log.state);
        // The cache must not have gaps.
        state.cache = Default::default();
        if let Some(known) = state.segments.iter_mut().find(|known| known.number == new.number) {
            *known = new;
        }
    }
    remove(log, &dir.join(old.name()));
    Ok(())
}

/// Removes a file that is not part of the journal. If this fails, it takes room until the next compaction or start.
fn remove(log: &Log, path: &Path) {
    if let Err(error) = log.context.disk.remove(path)
        && !is_missing(&error)
    {
        tracing::debug!(session_id = %log.id, path = %path.display(), %error, "a segment that was replaced could not be removed yet");
    }
}
