//! The lanes of words and of runs: BM25 over the stored texts, with a share of their neighbours' scores.
//!
//! A score depends on the texts alone, not on segments or on what was forgotten. Its cost is bounded: a query's rarest
//! terms count, up to a number of terms and of postings; of a term that has more alone, the newest texts count.

use super::{
    columns::Columns,
    file::Trouble,
    opened::Opened,
    postings::{Found, Posting},
    tuning::{AFTER, ASKED_BEFORE, BEFORE, BEFORE_TWO, Lane as Tuning},
};

/// Terms of a query in one lane: one bit each.
pub(super) const TERMS_MAX: usize = 64;
/// Terms of a query that are looked up, to find the rarest.
const LOOKED_UP_MAX: usize = 256;
/// Postings that a lane reads, rarest terms first: a few milliseconds.
const POSTINGS_MAX: u64 = if cfg!(test) { 2_500 } else { 200_000 };

pub(super) struct Scores {
    /// By number; without the neighbours' shares.
    own: Vec<f32>,
    /// By number; the terms that a text holds, as bits.
    holds: Vec<u64>,
    rarity: Vec<f32>,
    /// Sum of all rarities, including terms that no text holds.
    mass: f32,
}

/// Term of a query, with its postings in the segments.
struct Term {
    term: u32,
    found: Vec<Found>,
    /// Texts that hold it, about.
    count: u64,
}

/// Text with its neighbours in its session.
pub(super) struct Window {
    doc: u32,
    after: u32,
    before: u32,
    further_before: u32,
    share_of_before: f32,
}

impl Window {
    pub(super) fn of(columns: &Columns, doc: u32) -> Self {
        let [before, after] = columns.beside(doc);
        let [further_before, _] = columns.beside(before);
        let is_answer = columns.doc(before).is_some_and(|before| before.asks);
        let share_of_before = if is_answer { BEFORE + ASKED_BEFORE } else { BEFORE };
        Self { doc, after, before, further_before, share_of_before }
    }
}

/// Scores the texts by these terms; `lane` is 0 for words, 1 for runs.
pub(super) fn score(open: &Opened, terms: &[u32], lane: usize, tuning: &Tuning) -> Result<Scores, Trouble> {
    let columns = &open.columns;
    let terms = rarest(open, terms)?;
    // If no text holds any, the lists stay empty.
    let texts = if terms.iter().any(|term| term.count > 0) { columns.next_doc() as usize } else { 0 };
    let mut scores = Scores { own: vec![0.0; texts], holds: vec![0; texts], rarity: Vec::new(), mass: 0.0 };
    let mut postings = Vec::new();
    for (bit, term) in terms.iter().enumerate() {
        postings.clear();
        let tail = open.tail.terms.get(&term.term).map_or(&[][..], Vec::as_slice);
        postings.extend(tail.iter().filter(|posting| columns.lengths(posting.doc) != [0; 2]));
        // Newest first.
        let mut older = term.found.iter().rev();
        while let Some(found) = older.next().filter(|_| (postings.len() as u64) < POSTINGS_MAX) {
            found.newest(columns, POSTINGS_MAX, &mut postings);
        }
        let holding = if term.count > POSTINGS_MAX { term.count } else { postings.len() as u64 };
        scores.add(bit, &postings, holding, columns, tuning, lane);
    }
    Ok(scores)
}

/// Chooses the rarest terms, in the order of the query.
fn rarest(open: &Opened, terms: &[u32]) -> Result<Vec<Term>, Trouble> {
    let mut wanted: Vec<u32> = Vec::new();
    for term in terms {
        if wanted.len() < LOOKED_UP_MAX && !wanted.contains(term) {
            wanted.push(*term);
        }
    }
    let mut looked_up = Vec::with_capacity(wanted.len());
    for term in wanted {
        let mut found = Vec::new();
        for segment in &open.segments {
            found.extend(Found::look_up(&open.snapshot.postings, segment, term)?);
        }
        let tail = open.tail.terms.get(&term).map_or(0, Vec::len) as u64;
        let count = found.iter().map(|found| u64::from(found.count)).sum::<u64>() + tail;
        looked_up.push(Term { term, found, count });
    }
    let mut counts: Vec<u64> = looked_up.iter().map(|term| term.count).collect();
    counts.sort_unstable();
    let mut left = POSTINGS_MAX;
    let fits = |count: &&u64| {
        let is_in = **count <= left;
        left = left.saturating_sub(**count);
        is_in
    };
    // The rarest one counts however many texts hold it.
    let rarest = counts.first().copied().unwrap_or(0);
    let most = counts.iter().take(TERMS_MAX).take_while(fits).last().copied().unwrap_or(rarest);
    looked_up.retain(|term| term.count <= most);
    looked_up.truncate(TERMS_MAX);
    Ok(looked_up)
}

#[expect(clippy::cast_precision_loss, reason = "scores need no more")]
impl Scores {
    fn add(&mut self, bit: usize, postings: &[Posting], holding: u64, columns: &Columns, tuning: &Tuning, lane: usize) {
        let texts = f64::from(columns.live);
        let holding = (holding as f64).min(texts);
        let rarity = (1.0 + (texts - holding + 0.5) / (holding + 0.5)).ln() as f32;
        self.rarity.push(rarity);
        self.mass += rarity;
        let total = if lane == 0 { columns.words } else { columns.runs };
        let mean = (total as f64 / texts.max(1.0)).max(1.0) as f32;
        let flat = tuning.saturation * (1.0 - tuning.length);
        let by_length = tuning.saturation * tuning.length / mean;
        let worth = rarity.powi(tuning.rarity);
        for posting in postings {
            let length = f32::from(columns.lengths(posting.doc)[lane]);
            let count = posting.count as f32;
            let gain = worth * count * (tuning.saturation + 1.0) / (count + flat + by_length * length);
            if let (Some(own), Some(holds)) =
                (self.own.get_mut(posting.doc as usize), self.holds.get_mut(posting.doc as usize))
            {
                *own += gain;
                *holds |= 1 << bit;
            }
        }
    }

    /// Returns a text's score with its neighbours' shares.
    pub(super) fn windowed(&self, window: &Window) -> f32 {
        let own = |doc: u32| self.own.get(doc as usize).copied().unwrap_or(0.0);
        let before = window.share_of_before * own(window.before) + BEFORE_TWO * own(window.further_before);
        own(window.doc) + (AFTER * own(window.after) + before)
    }

    /// Returns true if a text itself holds any of the terms.
    pub(super) fn holds_any(&self, doc: u32) -> bool {
        self.holds.get(doc as usize).is_some_and(|holds| *holds != 0)
    }

    /// Returns the share of the query's rarity that a text and its neighbours hold.
    pub(super) fn covered(&self, columns: &Columns, doc: u32) -> f32 {
        if self.mass <= 0.0 {
            return 0.0;
        }
        let holds = |doc: u32| self.holds.get(doc as usize).copied().unwrap_or(0);
        let held = columns.beside(doc).into_iter().fold(holds(doc), |held, near| held | holds(near));
        let rarity = self.rarity.iter().enumerate().filter(|(bit, _)| held >> bit & 1 == 1).map(|(_, rarity)| rarity);
        rarity.sum::<f32>() / self.mass
    }
}
