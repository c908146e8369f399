//! The graph of the vectors: loaded at the start, saved as it grows, rebuilt in small steps if it was lost or if many
//! of its vectors were removed.
//!
//! It is a cache of the table of vectors. During a rebuild, searches use the old graph, or the words alone.

use std::sync::PoisonError;

use super::{
    core::Core,
    embedding::put,
    file::Trouble,
    opened::Opened,
    tables::{self, decode_vector},
    vector::{Stamp, VectorLane},
};

/// Share of removed vectors above which the graph is rebuilt.
const REMOVED_SHARE: f64 = 0.2;
/// Vectors that a start adds to the saved graph; if more are missing, the graph is rebuilt in steps.
const PUT_AT_START: usize = 1_000;
const STEP_DOCS: u32 = 128;
/// Vectors that may be unsaved when a process ends; none in unit tests.
const UNSAVED_AT_END: usize = if cfg!(test) { 0 } else { 64 };
/// Growth beyond a quarter after which the graph is saved.
const GROWN_MIN: usize = 4_096;

#[derive(Default)]
pub(super) struct Building {
    lane: Option<VectorLane>,
    next: u32,
}

impl Core {
    /// Loads the saved graph, and applies what was added and removed since.
    pub(super) fn load_lane(&self) -> Result<(), Trouble> {
        let id = self.embedder.id();
        let file = self.read(|open| Ok(open.file.clone()))?;
        let (saved, lane, is_whole) = self.read(|open| {
            // A query cannot be compared with another embedder's vectors.
            let is_ours = open.embedder == id;
            let saved = self.dir.as_deref().filter(|_| is_ours).and_then(|dir| VectorLane::load(dir, stamp(open)));
            let vectors = saved.as_ref().map_or(0, VectorLane::len);
            let (lane, is_whole) = if is_ours { brought_up_to_date(open, saved)? } else { (None, true) };
            Ok((vectors, lane, is_whole))
        })?;
        self.change(&file, |open| {
            open.saved_vectors = saved;
            open.building = (!is_whole).then(Building::default);
            open.with_lane(|slot| *slot = lane);
            Ok(())
        })
    }

    /// Does one step of pending work on the graph; returns true if more is left.
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

    /// Saves the graph if the next start would have much to add.
    pub(super) fn save_at_end(&self) -> Result<(), Trouble> {
        self.save_if(|saved| saved + UNSAVED_AT_END)
    }

    /// Saves the graph if it has more vectors than `most` allows for the number saved.
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

/// Brings the saved graph up to date; returns false with it if too many vectors are missing.
fn brought_up_to_date(open: &Opened, saved: Option<VectorLane>) -> Result<(Option<VectorLane>, bool), Trouble> {
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
    // Loading applies what was added or removed since, so the count does not matter.
    Stamp { embedder, count: 0, generation: open.generation }
}
