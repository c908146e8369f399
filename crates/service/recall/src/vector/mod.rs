//! The vector lane: finds the nearest vectors by cosine, through a graph if they are many, one by one if few pass the
//! filter.
//!
//! It is a cache of the vectors in redb: a file with any fault is ignored, and the graph rebuilt. It knows vectors by
//! number, and no texts.

mod codes;
mod file;
mod graph;

#[cfg(test)]
mod tests;

use std::collections::HashMap;

pub use self::{codes::VectorError, file::Stamp};
use self::{
    codes::{cosine, dot, encode},
    graph::{Graph, Nearest, node_of, score_of},
};

/// Up to this many vectors that pass, comparing each takes a millisecond at most, and is exact.
const SCAN_MAX: usize = 10_000;
/// Share of passing vectors below which a walk through the graph would waste its time on others.
const SCAN_SHARE: f64 = 0.1;
/// Vectors that a filter is tried on, to estimate the share that passes.
const SAMPLE: usize = 512;
/// Candidates of a walk, at least and per requested hit.
const WIDTH_MIN: usize = 100;
const WIDTH_PER_HIT: usize = 4;
/// Most hits of a walk; for more, each vector is compared.
const WALK_HITS_MAX: usize = 1_000;

/// Vectors of one length, by number.
#[derive(Debug, PartialEq, Eq)]
pub struct VectorLane {
    graph: Graph,
    ids: Vec<u32>,
    nodes: HashMap<u32, u32>,
    /// Removed nodes: a walk passes through them, but does not return them.
    is_removed: Vec<bool>,
}

impl VectorLane {
    /// Makes an empty lane for vectors of `dimension` components.
    #[must_use]
    pub fn new(dimension: usize) -> Self {
        Self { graph: Graph::new(dimension), ids: Vec::new(), nodes: HashMap::new(), is_removed: Vec::new() }
    }

    /// Returns the number of components of each vector.
    #[must_use]
    pub const fn dimension(&self) -> usize {
        self.graph.dimension
    }

    /// Returns the number of vectors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns true if there are no vectors.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns true if a number has a vector.
    #[must_use]
    pub fn contains(&self, id: u32) -> bool {
        self.nodes.contains_key(&id)
    }

    /// Returns the share of nodes that are removed. Above a fifth or so a rebuild pays.
    #[must_use]
    pub fn share_removed(&self) -> f64 {
        let all = self.ids.len();
        if all == 0 { 0.0 } else { (all - self.nodes.len()) as f64 / all as f64 }
    }

    /// Adds a vector, or replaces the one of `id`. It need not have length 1. A vector of zeros is never found.
    ///
    /// # Errors
    /// If its length is wrong or a component is not finite; then nothing has changed.
    pub fn insert(&mut self, id: u32, vector: &[f32]) -> Result<(), VectorError> {
        let code = encode(vector, self.dimension())?;
        self.remove(id);
        if let Some(code) = code {
            let node = self.graph.insert(&code);
            self.ids.push(id);
            self.is_removed.push(false);
            self.nodes.insert(id, node);
        }
        Ok(())
    }

    /// Removes a vector; returns true if there was one.
    pub fn remove(&mut self, id: u32) -> bool {
        let node = self.nodes.remove(&id);
        if let Some(is_removed) = node.and_then(|node| self.is_removed.get_mut(node as usize)) {
            *is_removed = true;
        }
        node.is_some()
    }

    /// Finds the `k` vectors nearest to a query among those that `accept` allows, with their cosines, nearest first. A
    /// query of zeros or of another length finds none.
    pub fn search(&self, query: &[f32], k: usize, accept: &dyn Fn(u32) -> bool) -> Vec<(u32, f32)> {
        let Ok(Some(code)) = encode(query, self.dimension()) else { return Vec::new() };
        if self.is_scanned(k, accept) { self.scan(&code, k, accept) } else { self.walk(&code, k, accept) }
    }

    /// Like [`Self::search`], but always compares each vector.
    pub fn search_exact(&self, query: &[f32], k: usize, accept: &dyn Fn(u32) -> bool) -> Vec<(u32, f32)> {
        encode(query, self.dimension()).ok().flatten().map_or_else(Vec::new, |code| self.scan(&code, k, accept))
    }

    /// Returns true if comparing each vector is better: if few pass, or many are requested.
    fn is_scanned(&self, k: usize, accept: &dyn Fn(u32) -> bool) -> bool {
        if self.nodes.len() <= SCAN_MAX || k > WALK_HITS_MAX {
            return true;
        }
        let stride = (self.ids.len() / SAMPLE).max(1);
        let tried = self.ids.len().div_ceil(stride);
        let passed = (0..self.ids.len()).step_by(stride).filter(|&node| self.passes(node, accept)).count();
        let share = passed as f64 / tried as f64;
        share < SCAN_SHARE || share * self.ids.len() as f64 <= SCAN_MAX as f64
    }

    fn passes(&self, node: usize, accept: &dyn Fn(u32) -> bool) -> bool {
        !self.is_removed[node] && accept(self.ids[node])
    }

    fn scan(&self, code: &[i16], k: usize, accept: &dyn Fn(u32) -> bool) -> Vec<(u32, f32)> {
        let mut nearest = Nearest::new(k);
        for (node, other) in self.graph.codes.chunks_exact(self.dimension().max(1)).enumerate() {
            if self.passes(node, accept) {
                nearest.offer(dot(code, other), u32::try_from(node).unwrap_or(u32::MAX));
            }
        }
        self.hits(nearest.into_sorted(), k)
    }

    fn walk(&self, code: &[i16], k: usize, accept: &dyn Fn(u32) -> bool) -> Vec<(u32, f32)> {
        let width = WIDTH_MIN.max(k.saturating_mul(WIDTH_PER_HIT));
        self.hits(self.walk_nodes(code, width, accept), k)
    }

    fn walk_nodes(&self, code: &[i16], width: usize, accept: &dyn Fn(u32) -> bool) -> Vec<u64> {
        self.graph.search(code, width, |nearest, score, node| {
            let passing = self.graph.twins(node).filter(|&twin| self.passes(twin as usize, accept));
            passing.take(width).for_each(|twin| nearest.offer(score, twin));
        })
    }

    fn hits(&self, found: Vec<u64>, k: usize) -> Vec<(u32, f32)> {
        let hit = |scored| (self.ids[node_of(scored) as usize], cosine(score_of(scored)));
        found.into_iter().take(k).map(hit).collect()
    }
}
