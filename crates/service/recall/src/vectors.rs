//! Vectors of the texts in RAM, and the search for the nearest.
//!
//! It scans all of them up to a number, and always under a narrow filter; beyond that it also builds a graph, in small
//! steps and never saved, and scans what the graph lacks. It is a copy of the table of vectors. Equal vectors are one:
//! in a graph many of them would only be linked to each other.

use std::{
    collections::{BinaryHeap, HashMap},
    sync::{Arc, PoisonError, RwLock},
};

use hnsw_rs::prelude::{Distance, FilterT, Hnsw};

use super::{
    codes::{cosine, dot, encode},
    columns::NONE,
};

pub use super::codes::VectorError;

/// A filter that passes less than one in this many vectors is scanned.
const NARROW: usize = 10;
/// Vectors that one step adds to the graph: a search waits for no more.
const STEP: usize = 8;
/// One removed vector in this many makes the lane sparse.
const SPARSE: usize = 5;

/// Links of a vector in the graph.
const LINKS: usize = 16;
/// Candidates for a new vector's links.
const BUILD_WIDTH: usize = 100;
/// Layers of the graph.
const LAYERS: usize = 16;
/// Candidates of a search, at least and for each wanted one.
const WIDTH_MIN: usize = 200;
const WIDTH_PER_HIT: usize = 2;

/// Distance of two codes: 0 for the same direction. Never negative, as the graph demands.
#[derive(Clone, Copy, Default)]
struct Cosine;

impl Distance<i16> for Cosine {
    fn eval(&self, one: &[i16], other: &[i16]) -> f32 {
        (1.0 - cosine(dot(one, other))).max(0.0)
    }
}

/// Vectors that a filter passes, by slot.
struct Wanted(Vec<bool>);

impl FilterT for Wanted {
    fn hnsw_filter(&self, slot: &usize) -> bool {
        self.0.get(*slot) == Some(&true)
    }
}

/// Vectors of one embedder.
pub struct VectorLane {
    dimension: usize,
    /// Vectors from which on a graph is built: below that a scan is as fast.
    graph_from: usize,
    /// By slot, one after the other.
    codes: Vec<i16>,
    /// By slot: number of texts that have it.
    holders: Vec<u32>,
    /// Slots by the hash of a text, and by that of a vector: different texts may have the same one. Some are of removed
    /// vectors, which have no holder.
    slots: HashMap<u64, u32>,
    by_code: HashMap<u32, u32>,
    live: usize,
    /// Slot of each text by its number, or [`NONE`].
    by_doc: Vec<u32>,
    graph: Option<Hnsw<'static, i16, Cosine>>,
    /// Slots that the graph has.
    in_graph: usize,
}

impl VectorLane {
    /// Makes an empty lane for vectors of this length, with a graph from `graph_from` vectors on.
    #[must_use]
    pub fn new(dimension: usize, graph_from: usize) -> Self {
        Self {
            dimension,
            graph_from,
            codes: Vec::new(),
            holders: Vec::new(),
            slots: HashMap::new(),
            by_code: HashMap::new(),
            live: 0,
            by_doc: Vec::new(),
            graph: None,
            in_graph: 0,
        }
    }

    /// Returns the length of its vectors.
    #[must_use]
    pub const fn dimension(&self) -> usize {
        self.dimension
    }

    /// Returns the number of vectors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.live
    }

    /// Returns true if it has no vectors.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Gives a text the vector of an equal one; returns false if there is none.
    pub(super) fn share(&mut self, doc: u32, text: u64) -> bool {
        let Some(slot) = self.slots.get(&text).copied().filter(|slot| self.holders[*slot as usize] > 0) else {
            return false;
        };
        self.bind(doc, slot);
        true
    }

    /// Adds a text with its vector; one without a direction is left out.
    ///
    /// # Errors
    /// If its length is not that of the others, or a component is not finite.
    pub fn insert(&mut self, doc: u32, text: u64, vector: &[f32]) -> Result<(), VectorError> {
        encode(vector, self.dimension)?.map_or(Ok(()), |code| self.insert_code(doc, text, &code))
    }

    /// Adds a text with its encoded vector.
    pub(super) fn insert_code(&mut self, doc: u32, text: u64, code: &[i16]) -> Result<(), VectorError> {
        if code.len() != self.dimension {
            return Err(VectorError::Length { found: code.len(), expected: self.dimension });
        }
        if !self.share(doc, text) {
            let hash = code.iter().fold(0, |sum, part| crc32c::crc32c_append(sum, &part.to_le_bytes()));
            let same = self
                .by_code
                .get(&hash)
                .copied()
                .filter(|slot| self.holders[*slot as usize] > 0 && self.code(*slot as usize) == Some(code));
            let slot = same.unwrap_or_else(|| {
                self.codes.extend_from_slice(code);
                self.holders.push(0);
                self.live += 1;
                u32::try_from(self.holders.len() - 1).unwrap_or(NONE)
            });
            self.by_code.insert(hash, slot);
            self.slots.insert(text, slot);
            self.bind(doc, slot);
        }
        Ok(())
    }

    fn bind(&mut self, doc: u32, slot: u32) {
        let doc = doc as usize;
        if self.by_doc.len() <= doc {
            self.by_doc.resize(doc + 1, NONE);
        }
        if std::mem::replace(&mut self.by_doc[doc], slot) != slot {
            self.holders[slot as usize] += 1;
        }
    }

    /// Removes a text, and its vector if no other text has it.
    pub fn remove(&mut self, doc: u32) {
        let Some(slot) = self.by_doc.get_mut(doc as usize).map(|slot| std::mem::replace(slot, NONE)) else { return };
        if let Some(holders) = self.holders.get_mut(slot as usize) {
            *holders -= 1;
            if *holders == 0 {
                self.live -= 1;
            }
        }
    }

    /// Gives the texts new numbers: `kept` has the old number of each.
    fn renumber(&mut self, kept: &[u32]) {
        let slot = |old: &u32| self.by_doc.get(*old as usize).copied().unwrap_or(NONE);
        self.by_doc = kept.iter().map(slot).collect();
    }

    /// Returns true if so many vectors were removed that it should be made again.
    pub(super) fn is_sparse(&self) -> bool {
        let removed = self.holders.len() - self.live;
        removed > self.graph_from / SPARSE && removed * SPARSE > self.holders.len()
    }

    /// Adds a few vectors to the graph; returns true if more are to be added.
    pub fn extend_graph(&mut self) -> bool {
        let slots = self.holders.len();
        if self.is_graph_whole() {
            return false;
        }
        let new = || Hnsw::new(LINKS, slots, LAYERS, BUILD_WIDTH, Cosine);
        let graph = self.graph.get_or_insert_with(new);
        let end = slots.min(self.in_graph + STEP);
        for slot in self.in_graph..end {
            if let Some(code) = self.codes.get(slot * self.dimension..(slot + 1) * self.dimension) {
                graph.insert((code, slot));
            }
        }
        self.in_graph = end;
        end < slots
    }

    /// Returns true if the graph has every vector, or none is needed.
    #[must_use]
    pub fn is_graph_whole(&self) -> bool {
        self.holders.len() < self.graph_from || self.in_graph == self.holders.len()
    }

    /// Finds about `most` vectors near a query; returns the cosine of each text that has one of them and passes, by its
    /// number, and 0 for all others. Empty if the query has another length, or no direction.
    pub fn search(&self, query: &[f32], most: usize, passes: &dyn Fn(u32) -> bool) -> Vec<f32> {
        let Ok(Some(code)) = encode(query, self.dimension) else { return Vec::new() };
        let mut wanted = Wanted(vec![false; self.holders.len()]);
        let mut count = 0;
        for (doc, slot) in (0..).zip(&self.by_doc) {
            if let Some(is_wanted) = wanted.0.get_mut(*slot as usize).filter(|is_wanted| !**is_wanted)
                && passes(doc)
            {
                *is_wanted = true;
                count += 1;
            }
        }
        let graph = self.graph.as_ref().filter(|_| self.in_graph >= self.graph_from && count * NARROW > self.live);
        let mut near: Vec<(usize, i32)> = Vec::new();
        if let Some(graph) = graph {
            let width = WIDTH_MIN.max(most * WIDTH_PER_HIT);
            let found = graph.search_filter(&code, most, width, Some(&wanted));
            near.extend(found.iter().map(|it| (it.d_id, self.score(&code, it.d_id))));
        }
        let unseen = if graph.is_some() { self.in_graph } else { 0 };
        near.extend(self.scan(&code, unseen, most, &wanted));
        near.sort_unstable_by_key(|(slot, score)| (std::cmp::Reverse(*score), *slot));
        near.truncate(most);
        let mut by_slot = vec![0.0; self.holders.len()];
        for (slot, score) in near {
            by_slot[slot] = cosine(score);
        }
        let of = |(doc, slot): (u32, &u32)| by_slot.get(*slot as usize).copied().filter(|_| passes(doc)).unwrap_or(0.0);
        (0..).zip(&self.by_doc).map(of).collect()
    }

    fn score(&self, code: &[i16], slot: usize) -> i32 {
        self.code(slot).map_or(i32::MIN, |other| dot(code, other))
    }

    fn code(&self, slot: usize) -> Option<&[i16]> {
        self.codes.get(slot * self.dimension..(slot + 1) * self.dimension)
    }

    /// Compares a query with every wanted vector from a slot on.
    fn scan(&self, code: &[i16], from: usize, most: usize, wanted: &Wanted) -> Vec<(usize, i32)> {
        let mut best: BinaryHeap<std::cmp::Reverse<(i32, usize)>> = BinaryHeap::new();
        for slot in (from..self.holders.len()).filter(|slot| wanted.hnsw_filter(slot)) {
            let score = self.score(code, slot);
            if best.len() < most || best.peek().is_some_and(|worst| score > worst.0.0) {
                best.push(std::cmp::Reverse((score, slot)));
                if best.len() > most {
                    best.pop();
                }
            }
        }
        best.into_iter().map(|std::cmp::Reverse((score, slot))| (slot, score)).collect()
    }
}

/// Vectors that one embedder made.
#[derive(Default)]
pub(super) struct Set {
    /// First part of their keys; `None` before the first one is stored.
    pub(super) number: Option<u32>,
    /// Texts before this one have vectors, or cannot have one.
    pub(super) embedded_to: u32,
    /// Vectors are added one at a time, so that no search waits for many.
    pub(super) lane: Arc<RwLock<Option<VectorLane>>>,
}

/// Sets of the configured embedder.
#[derive(Default)]
pub(super) struct Sets {
    pub(super) searched: Set,
    /// Set of a rebuild, until it is complete.
    pub(super) next: Option<Set>,
}

impl Sets {
    /// Set that batches are made for.
    pub(super) fn made(&self) -> &Set {
        self.next.as_ref().unwrap_or(&self.searched)
    }

    pub(super) fn made_mut(&mut self) -> &mut Set {
        self.next.as_mut().unwrap_or(&mut self.searched)
    }

    /// Gives the texts new numbers: `kept` has the old number of each.
    pub(super) fn renumber(&mut self, kept: &[u32]) {
        for set in [Some(&mut self.searched), self.next.as_mut()].into_iter().flatten() {
            let embedded = kept.partition_point(|doc| *doc < set.embedded_to);
            set.embedded_to = u32::try_from(embedded).unwrap_or(NONE);
            if let Some(lane) = set.lane.write().unwrap_or_else(PoisonError::into_inner).as_mut() {
                lane.renumber(kept);
            }
        }
    }

    /// Removes texts from the lanes.
    pub(super) fn remove(&self, docs: &[u32]) {
        for set in [Some(&self.searched), self.next.as_ref()].into_iter().flatten() {
            if let Some(lane) = set.lane.write().unwrap_or_else(PoisonError::into_inner).as_mut() {
                docs.iter().for_each(|doc| lane.remove(*doc));
            }
        }
    }
}

#[cfg(test)]
mod tests;
