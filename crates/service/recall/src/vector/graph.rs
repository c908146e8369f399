//! The graph: a hierarchical navigable small world over vector codes, grown one node at a time.
//!
//! It knows nodes by number only. The same vectors in the same order make the same graph: a node's level follows from
//! its number. A vector equal to an earlier one becomes a twin of that node, so that many equal vectors never link only
//! to each other and become unreachable.

use std::{cmp::Reverse, collections::BinaryHeap, ops::Range};

use super::codes::dot;

/// Links of a node on an upper level.
pub(super) const LINKS: usize = 16;
/// Links of a node on the lowest level.
pub(super) const LINKS_LOWEST: usize = 2 * LINKS;
/// Candidates for a new node's links.
const BUILD_WIDTH: usize = 100;
/// Zero bits of a node's hash per level above the lowest: one node in 16.
const LEVEL_BITS: u32 = 4;
/// Levels above the lowest.
const LEVELS_MAX: u32 = 7;
/// Codes per cache line.
const LINE_CODES: usize = 32;
/// No node.
pub(super) const NONE: u32 = u32::MAX;

/// Score and node in one number, ordered by score, then node.
type Scored = u64;

fn scored(score: i32, node: u32) -> Scored {
    u64::from(score.cast_unsigned() ^ 0x8000_0000) << 32 | u64::from(node)
}

pub(super) const fn node_of(scored: Scored) -> u32 {
    scored as u32
}

pub(super) const fn score_of(scored: Scored) -> i32 {
    (((scored >> 32) as u32) ^ 0x8000_0000).cast_signed()
}

/// Best offers so far, up to a number.
pub(super) struct Nearest {
    heap: BinaryHeap<Reverse<Scored>>,
    most: usize,
}

impl Nearest {
    pub(super) fn new(most: usize) -> Self {
        Self { heap: BinaryHeap::with_capacity(most.min(1024) + 1), most }
    }

    /// Returns true if an offer with this score would be kept.
    pub(super) fn takes(&self, score: i32) -> bool {
        self.heap.len() < self.most || self.heap.peek().is_some_and(|worst| score > score_of(worst.0))
    }

    /// Keeps an offer if it is among the best.
    pub(super) fn offer(&mut self, score: i32, node: u32) {
        if self.takes(score) {
            self.heap.push(Reverse(scored(score, node)));
            if self.heap.len() > self.most {
                self.heap.pop();
            }
        }
    }

    /// Returns the kept ones, best first.
    pub(super) fn into_sorted(self) -> Vec<Scored> {
        self.heap.into_sorted_vec().into_iter().map(|Reverse(scored)| scored).collect()
    }
}

/// Codes, and the links between them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Graph {
    pub(super) dimension: usize,
    pub(super) codes: Vec<i16>,
    /// [`LINKS_LOWEST`] links of each node; [`NONE`] ends a shorter list.
    pub(super) lowest: Vec<u32>,
    /// [`LINKS`] links for each level of each node above the lowest.
    pub(super) upper: Vec<u32>,
    /// Offset of each node's links in `upper`, or [`NONE`].
    pub(super) upper_at: Vec<u32>,
    /// Next node with the same vector, or [`NONE`].
    pub(super) twin: Vec<u32>,
    /// Start of each search: a node of the highest level.
    pub(super) entry: u32,
}

impl Graph {
    pub(super) const fn new(dimension: usize) -> Self {
        Self {
            dimension,
            codes: Vec::new(),
            lowest: Vec::new(),
            upper: Vec::new(),
            upper_at: Vec::new(),
            twin: Vec::new(),
            entry: NONE,
        }
    }

    pub(super) fn nodes(&self) -> usize {
        self.twin.len()
    }

    pub(super) fn code(&self, node: u32) -> &[i16] {
        let start = node as usize * self.dimension;
        &self.codes[start..start + self.dimension]
    }

    fn links(&self, node: u32, level: u32) -> &[u32] {
        let links = if level == 0 {
            &self.lowest[node as usize * LINKS_LOWEST..][..LINKS_LOWEST]
        } else {
            self.upper.get(self.upper_range(node, level)).unwrap_or_default()
        };
        links.split(|&link| link == NONE).next().unwrap_or_default()
    }

    fn links_mut(&mut self, node: u32, level: u32) -> &mut [u32] {
        if level == 0 {
            &mut self.lowest[node as usize * LINKS_LOWEST..][..LINKS_LOWEST]
        } else {
            let range = self.upper_range(node, level);
            self.upper.get_mut(range).unwrap_or_default()
        }
    }

    /// Returns the range of a node's links on an upper level; past the end if the node does not reach it.
    fn upper_range(&self, node: u32, level: u32) -> Range<usize> {
        let start = self.upper_at[node as usize] as usize + (level as usize - 1) * LINKS;
        start..start + LINKS
    }

    pub(super) fn insert(&mut self, code: &[i16]) -> u32 {
        let node = u32::try_from(self.nodes()).unwrap_or(NONE);
        let entry = self.entry;
        let levels = level_of(node);
        let found = if entry == NONE { Vec::new() } else { self.candidates(code, levels) };
        self.codes.extend_from_slice(code);
        self.lowest.resize(self.lowest.len() + LINKS_LOWEST, NONE);
        self.twin.push(NONE);
        let nearest = found.first().and_then(|lowest| lowest.first()).map(|&best| node_of(best));
        if let Some(same) = nearest.filter(|&same| self.code(same) == code) {
            self.upper_at.push(NONE);
            self.twin[node as usize] = self.twin[same as usize];
            self.twin[same as usize] = node;
            return node;
        }
        let start = u32::try_from(self.upper.len()).unwrap_or(NONE);
        self.upper_at.push(if levels == 0 { NONE } else { start });
        self.upper.resize(self.upper.len() + levels as usize * LINKS, NONE);
        for (level, candidates) in (0..).zip(&found) {
            self.link(node, level, candidates);
        }
        if entry == NONE || levels > level_of(entry) {
            self.entry = node;
        }
        node
    }

    /// Finds the nodes near a code on each level from the lowest to `levels`, or to the top.
    fn candidates(&self, code: &[i16], levels: u32) -> Vec<Vec<Scored>> {
        let mut at = scored(dot(code, self.code(self.entry)), self.entry);
        let top = level_of(self.entry);
        for level in (levels + 1..=top).rev() {
            at = self.climb(code, at, level);
        }
        let mut found = Vec::new();
        let mut begin = vec![at];
        for level in (0..=levels.min(top)).rev() {
            let near = self.spread(code, &begin, BUILD_WIDTH, level, |near, score, node| near.offer(score, node));
            begin.clone_from(&near);
            found.push(near);
        }
        found.reverse();
        found
    }

    /// Finds at most `width` nodes for a query, best first. `offer` gets each node that the walk reaches.
    pub(super) fn search(&self, code: &[i16], width: usize, offer: impl FnMut(&mut Nearest, i32, u32)) -> Vec<Scored> {
        if self.entry == NONE {
            return Vec::new();
        }
        let mut at = scored(dot(code, self.code(self.entry)), self.entry);
        for level in (1..=level_of(self.entry)).rev() {
            at = self.climb(code, at, level);
        }
        self.spread(code, &[at], width, 0, offer)
    }

    /// Iterates over the nodes with the same vector as `node`, beginning with it.
    pub(super) fn twins(&self, node: u32) -> impl Iterator<Item = u32> {
        let next = |node: &u32| Some(self.twin[*node as usize]).filter(|&twin| twin != NONE);
        std::iter::successors(Some(node), next).take(self.nodes())
    }

    /// Moves to better nodes until there is none.
    fn climb(&self, code: &[i16], mut best: Scored, level: u32) -> Scored {
        loop {
            let next = self.links(node_of(best), level).iter().map(|&node| scored(dot(code, self.code(node)), node));
            match next.max().filter(|&next| score_of(next) > score_of(best)) {
                Some(next) => best = next,
                None => return best,
            }
        }
    }

    /// Walks from `begin` outwards, best first, until the rest is worse than all that `offer` kept.
    fn spread(
        &self,
        code: &[i16],
        begin: &[Scored],
        width: usize,
        level: u32,
        mut offer: impl FnMut(&mut Nearest, i32, u32),
    ) -> Vec<Scored> {
        let mut seen = vec![0_u64; self.nodes() / 64 + 1];
        let mut is_new = |node: u32| {
            let (word, bit) = (&mut seen[node as usize / 64], 1_u64 << (node % 64));
            let is_new = *word & bit == 0;
            *word |= bit;
            is_new
        };
        let mut near = Nearest::new(width);
        let mut open: BinaryHeap<Scored> = begin.iter().copied().collect();
        for &first in begin {
            is_new(node_of(first));
            offer(&mut near, score_of(first), node_of(first));
        }
        let mut fresh = Vec::with_capacity(LINKS_LOWEST);
        while let Some(best) = open.pop() {
            if !near.takes(score_of(best)) {
                break;
            }
            fresh.clear();
            fresh.extend(self.links(node_of(best), level).iter().copied().filter(|&node| is_new(node)));
            self.touch(&fresh);
            for &node in &fresh {
                let score = dot(code, self.code(node));
                if near.takes(score) {
                    open.push(scored(score, node));
                    offer(&mut near, score, node);
                }
            }
        }
        near.into_sorted()
    }

    /// Reads a little of each code, so that the processor fetches all of them at once.
    fn touch(&self, nodes: &[u32]) {
        let line = |sum: i16, part: &[i16]| sum ^ part[0];
        let touched = nodes.iter().fold(0, |sum, &node| self.code(node).chunks(LINE_CODES).fold(sum, line));
        std::hint::black_box(touched);
    }

    /// Links a new node to the best candidates, and these to it.
    fn link(&mut self, node: u32, level: u32, candidates: &[Scored]) {
        let chosen = self.choose(candidates, LINKS);
        for (slot, link) in self.links_mut(node, level).iter_mut().zip(&chosen) {
            *slot = node_of(*link);
        }
        for link in chosen {
            self.link_back(node_of(link), node, score_of(link), level);
        }
    }

    fn link_back(&mut self, from: u32, to: u32, score: i32, level: u32) {
        let links = self.links(from, level);
        let count = links.len();
        if let Some(slot) = self.links_mut(from, level).get_mut(count) {
            *slot = to;
            return;
        }
        let mut all: Vec<Scored> =
            self.links(from, level).iter().map(|&link| scored(dot(self.code(from), self.code(link)), link)).collect();
        all.push(scored(score, to));
        all.sort_unstable_by_key(|&link| Reverse(link));
        let chosen = self.choose(&all, count);
        let slots = self.links_mut(from, level);
        slots.fill(NONE);
        for (slot, link) in slots.iter_mut().zip(chosen) {
            *slot = node_of(link);
        }
    }

    /// Chooses at most `most` of the candidates, given best first: each nearer to the node than to any chosen earlier,
    /// so that links lead in all directions.
    fn choose(&self, candidates: &[Scored], most: usize) -> Vec<Scored> {
        let mut chosen: Vec<Scored> = Vec::with_capacity(most);
        for &candidate in candidates {
            if chosen.len() == most {
                break;
            }
            let code = self.code(node_of(candidate));
            let is_nearer = |&other: &Scored| dot(code, self.code(node_of(other))) <= score_of(candidate);
            if chosen.iter().all(is_nearer) {
                chosen.push(candidate);
            }
        }
        chosen
    }
}

/// Returns a node's highest level, from its hashed number.
pub(super) const fn level_of(node: u32) -> u32 {
    let mut mixed = (node as u64).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    let levels = (mixed ^ (mixed >> 31)).trailing_zeros() / LEVEL_BITS;
    if levels < LEVELS_MAX { levels } else { LEVELS_MAX }
}
