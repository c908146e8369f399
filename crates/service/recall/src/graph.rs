//! The graph over the vectors: read at the start, saved as it grows, built anew in small steps where it was lost or much
//! of it was forgotten.
//!
//! It is a cache of the table of vectors. While one is built, searches use the one there is, or the words alone.

use std::sync::PoisonError;

use super::{
    core::Core,
    embedding::put,
    file::Trouble,
    opened::Opened,
    tables::{self, decode_vector},
    vector::{Stamp, VectorLane},
};

/// The share of removed vectors past which the graph is built anew.
const REMOVED_SHARE: f64 = 0.2;
/// Vectors that a start puts into the graph that was saved; where more are missing, it is built in steps.
const PUT_AT_START: usize = 1_000;
/// Vectors of one step.
const STEP_DOCS: u32 = 128;
/// Vectors that the end of a process leaves to the next start. In unit tests none.
const UNSAVED_AT_END: usize = if cfg!(test) { 0 } else { 64 };
/// A graph is saved when it has grown by a quarter, and by this many.
const GROWN_MIN: usize = 4_096;

/// A graph that is being built.
#[derive(Default)]
pub(super) struct Building {
    lane: Option<VectorLane>,
    next: u32,
}

impl Core {
    /// Reads the graph that was saved, and makes good what was added and forgotten since.
    pub(super) fn load_lane(&self) -> Result<(), Trouble> {
        let id = self.embedder.id();
        let file = self.read(|open| Ok(open.file.clone()))?;
        let (saved, lane, is_whole) = self.read(|open| {
            // Another embedder's vectors are no use to a query.
            let is_ours = open.embedder == id;
            let saved = self.dir.as_deref().filter(|_| is_ours).and_then(|dir| VectorLane::load(dir, stamp(open)));
            let vectors = saved.as_ref().map_or(0, VectorLane::len);
            let (lane, is_whole) = if is_ours { made_good(open, saved)? } else { (None, true) };
            Ok((vectors, lane, is_whole))
        })?;
        self.change(&file, |open| {
            open.saved_vectors = saved;
            open.building = (!is_whole).then(Building::default);
            open.with_lane(|slot| *slot = lane);
            Ok(())
        })
    }

    /// Does a step of what is to be done for the graph; answers whether more is to be done.
    pub(super) fn step(&self) -> Result<bool, Trouble> {
        let file = self.read(|open| Ok(open.file.clone()))?;
        let building = self.change(&file, |open| {
            let share = open.lane.read().unwrap_or_else(PoisonError::into_inner);
            let is_sparse = share.as_ref().is_some_and(|lane| lane.share_removed() > REMOVED_SHARE);
            drop(share);
            Ok(open.building.take().or_else(|| is_sparse.then(Building::default)))
        })?;
        let Some(mut building) = building else { return self.save_grown().map(|()| false) };
        let is_done = self.read(|open| {
            let vectors = open.file.read()?.open_table(tables::VECTORS)?;
            let end = open.embedded_to.min(building.next.saturating_add(STEP_DOCS));
            for row in vectors.range(building.next..end)? {
                let (doc, vector) = row?;
                put(&mut building.lane, doc.value(), &decode_vector(vector.value()));
            }
            building.next = end;
            Ok(end == open.embedded_to)
        })?;
        self.change(&file, |open| {
            if is_done {
                let mut lane = building.lane;
                let gone = |doc: &u32| open.columns.doc(*doc).is_none();
                for doc in (0..open.embedded_to).filter(gone) {
                    lane.as_mut().map(|lane| lane.remove(doc));
                }
                open.with_lane(|slot| *slot = lane);
                open.saved_vectors = 0;
            } else {
                open.building = Some(building);
            }
            Ok(true)
        })
    }

    fn save_grown(&self) -> Result<(), Trouble> {
        self.save_if(|saved| saved + saved / 4 + GROWN_MIN)
    }

    /// Saves the graph for the next start, where that would have much to make good.
    pub(super) fn save_at_end(&self) -> Result<(), Trouble> {
        self.save_if(|saved| saved + UNSAVED_AT_END)
    }

    /// Saves the graph where it has more vectors than this for so many that are saved.
    fn save_if(&self, most: impl FnOnce(usize) -> usize) -> Result<(), Trouble> {
        let has_grown = self.read(|open| {
            let lane = open.lane.read().unwrap_or_else(PoisonError::into_inner);
            Ok(lane.as_ref().map_or(0, VectorLane::len) > most(open.saved_vectors))
        })?;
        if has_grown { self.save_lane() } else { Ok(()) }
    }

    fn save_lane(&self) -> Result<(), Trouble> {
        let Some(dir) = &self.dir else { return Ok(()) };
        let (file, vectors) = self.read(|open| {
            let lane = open.lane.read().unwrap_or_else(PoisonError::into_inner);
            let saved = lane.as_ref().map_or(Ok(()), |lane| lane.save(dir, stamp(open)));
            saved.map_err(|error| Trouble::Failed(format!("the graph was not saved: {error}")))?;
            Ok((open.file.clone(), lane.as_ref().map_or(0, VectorLane::len)))
        })?;
        self.change(&file, |open| {
            open.saved_vectors = vectors;
            Ok(())
        })
    }
}

/// What was saved, with what was added and without what was forgotten since; and whether that is all of it.
fn made_good(open: &Opened, saved: Option<VectorLane>) -> Result<(Option<VectorLane>, bool), Trouble> {
    let mut lane = saved;
    let vectors = open.file.read()?.open_table(tables::VECTORS)?;
    let mut missing = 0;
    for doc in 0..open.embedded_to {
        let is_in = lane.as_ref().is_some_and(|lane| lane.contains(doc));
        match (open.columns.doc(doc).is_some(), is_in) {
            (true, false) if missing >= PUT_AT_START => return Ok((lane, false)),
            (true, false) => {
                if let Some(row) = vectors.get(doc)? {
                    put(&mut lane, doc, &decode_vector(row.value()));
                    missing += 1;
                }
            }
            (false, true) => drop(lane.as_mut().map(|lane| lane.remove(doc))),
            _ => {}
        }
    }
    Ok((lane, true))
}

fn stamp(open: &Opened) -> Stamp {
    let embedder = open
        .embedder
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    // What was added or forgotten since is made good when it is loaded.
    Stamp { embedder, count: 0, generation: open.generation }
}
