//! Examination and repair of the log. Only [`mend`] changes anything, and it keeps what it removes.

use std::{io, path::Path};

use bytes::Bytes;

use super::{
    Entry, Forgetting, end, entry_of,
    segments::{FOLDER, Found, Segment, find, read, replace},
};
use meerkat_journal::{
    check::free_in_quarantine,
    disk::{Disk, ensure_dir, failed, if_there},
    frame::{FrameView, Place},
    layout::QUARANTINE,
};
use meerkat_words::{ids::Seq, store::StoreError};

/// Begin of the names of copies in the quarantine.
const KEPT: &str = "memory.";

/// Content and damage of the log.
#[derive(Default)]
pub(crate) struct Examined {
    /// Damaged places, by file and offset; none if the log is whole.
    pub(crate) damages: Vec<String>,
    pub(crate) forgettings: Vec<Forgetting>,
    /// Copies of the damaged files after a repair.
    pub(crate) kept: Vec<String>,
}

/// Segment, with what it should follow.
struct Part {
    segment: Segment,
    base: Place,
    previous_end: u64,
    frames: Vec<(FrameView, Bytes)>,
    /// Position of the last entry that it held.
    last_seq: Seq,
    damage: Option<String>,
}

/// Reads the whole log. `known` is the last position that anyone relies on.
///
/// # Errors
/// The disk's, or if a newer version wrote it.
pub(crate) fn examine(disk: &dyn Disk, known: Seq) -> Result<Examined, StoreError> {
    // The note first: another process may be writing, and writes it last.
    let noted = end::read(disk)?;
    let mut examined = walk(disk, known.max(noted.seq), |_, _| Ok(None))?;
    examined.damages.extend(noted.is_damaged.then(|| format!("{} is damaged", end::FILE)));
    Ok(examined)
}

/// Removes the copies that [`mend`] kept: what is forgotten may be in them.
pub(super) fn discard_kept(disk: &dyn Disk) -> io::Result<()> {
    let names = if_there(disk.list(Path::new(QUARANTINE)))?.unwrap_or_default();
    for name in names.iter().filter(|name| name.starts_with(KEPT)) {
        disk.remove(&Path::new(QUARANTINE).join(name))?;
    }
    Ok(())
}

/// Replaces each damaged segment by one with its readable entries, and keeps the damaged one in the quarantine. No new
/// entry gets a position up to `known`. A kill in between leaves a log that is still damaged.
///
/// # Errors
/// As [`examine`].
pub(crate) fn mend(disk: &dyn Disk, known: Seq) -> Result<Examined, StoreError> {
    if ensure_dir(disk, Path::new(QUARANTINE)).and_then(|_| ensure_dir(disk, Path::new(FOLDER))).map_err(failed)? {
        disk.sync_dir(Path::new("")).map_err(failed)?;
    }
    let noted = end::read(disk)?;
    let known = known.max(noted.seq);
    let mended = walk(disk, known, |part, kept| {
        let Part { segment, base, previous_end, frames, last_seq, .. } = part;
        if segment.generation > 0 {
            let path = free_in_quarantine(disk, &format!("{KEPT}{}.whole", segment.name()))?;
            disk.link(&segment.path(), Path::new(&path))?;
            disk.sync_dir(Path::new(QUARANTINE))?;
            kept.push(path);
        }
        replace(disk, segment, (*base, *previous_end), *last_seq, frames).map(|new| Some(new.end))
    })?;
    if noted.is_damaged {
        end::write(disk, find(disk, known, false)?.place.seq)?;
    }
    Ok(mended)
}

/// Passes the damaged and the missing segments to `each`, with the correct end of the previous one. `each` returns the
/// end of a segment that it has replaced.
fn walk(
    disk: &dyn Disk,
    known: Seq,
    mut each: impl FnMut(&Part, &mut Vec<String>) -> io::Result<Option<u64>>,
) -> Result<Examined, StoreError> {
    let found = find(disk, known, false)?;
    let mut examined = Examined::default();
    let (mut base, mut previous_end) = (Place { seq: 0, batch: 0, chain: 0 }, 0);
    let last = found.segments.last().map_or(u64::from(known > 0), |segment| segment.number);
    for number in 1..=last {
        let next_base = found.segments.iter().find(|it| it.number == number + 1).and_then(|it| it.base_seq);
        let ends_at = next_base.map_or(if number == last { known } else { 0 }, |next| next.saturating_sub(1));
        let part = part(disk, &found, number, (base, previous_end), ends_at).map_err(failed)?;
        let entries = part.frames.iter().filter_map(|(frame, line)| entry_of(frame.kind, line));
        examined.forgettings.extend(entries.filter_map(|entry| match entry {
            Entry::Forgot(forgetting) => Some(forgetting),
            Entry::Took(_) => None,
        }));
        let batch = part.frames.last().map_or(part.base.batch, |(frame, _)| frame.batch);
        (base, previous_end) = (Place { seq: part.last_seq, batch, chain: 0 }, part.segment.end);
        if let Some(damage) = &part.damage {
            examined.damages.push(damage.clone());
            previous_end = each(&part, &mut examined.kept).map_err(failed)?.unwrap_or(previous_end);
        }
    }
    Ok(examined)
}

/// Reads the segment of a number after `base`. `ends_at` is its end according to the next one.
fn part(
    disk: &dyn Disk,
    found: &Found,
    number: u64,
    (base, previous_end): (Place, u64),
    ends_at: Seq,
) -> io::Result<Part> {
    let Some(segment) = found.segments.iter().find(|segment| segment.number == number).copied() else {
        let segment = Segment { number, ..Segment::default() };
        let damage = Some(format!("{FOLDER}/{number}.1.mlog is missing"));
        return Ok(Part { segment, base, previous_end, frames: Vec::new(), last_seq: base.seq.max(ends_at), damage });
    };
    let (mut frames, mut unknown) = (Vec::new(), None);
    let damaged_at =
        read(disk, &segment, |frame, line| match entry_of(frame.kind, &line).filter(|_| frame.seq > base.seq) {
            Some(_) => frames.push((frame.clone(), line)),
            None => unknown = Some(frame.seq),
        })?;
    let begins = segment.start.unwrap_or_else(|| {
        let batch = frames.first().map_or(base.batch + 1, |(frame, _)| frame.batch);
        Place { batch: batch.saturating_sub(1), ..base }
    });
    let read_to = frames.last().map_or(base.seq, |(frame, _)| frame.seq).max(segment.last_seq.unwrap_or_default());
    let last_seq = read_to.max(ends_at);
    let path = segment.path();
    let damage = match (damaged_at, unknown) {
        (Some(at), _) => Some(format!("{} is damaged at byte {at}", path.display())),
        (None, Some(seq)) => Some(format!("entry {seq} in {} cannot be used", path.display())),
        (None, None) if begins.seq != base.seq => {
            Some(format!("the entries {} to {} are missing before {}", base.seq + 1, begins.seq, path.display()))
        }
        (None, None) if last_seq > read_to => {
            Some(format!("the entries {} to {last_seq} are missing after {}", read_to + 1, path.display()))
        }
        (None, None) => None,
    };
    Ok(Part { segment, base: Place { seq: base.seq, ..begins }, previous_end, frames, last_seq, damage })
}
