//! The lane of words: BM25 over the stored texts, with a share of their neighbours' scores.
//!
//! A score depends on the texts alone, not on segments or on what was forgotten. A word that no text holds is looked for
//! in the words that are spelt alike. The cost is bounded: a query's rarest words count, up to a number of words and of
//! postings; of a word that has more alone, the newest texts count.

use super::{
    columns::Columns,
    file::Trouble,
    opened::Opened,
    postings::{Found, Posting},
    tables::Doc,
    text::{self, Terms},
    tuning::{AFTER, ASKED_BEFORE, BEFORE, BEFORE_TWO, LENGTH, SATURATION, TEXTS_MIN},
    vocabulary,
};

/// Terms of a query: one bit each.
pub(super) const TERMS_MAX: usize = 64;
/// Terms of a query that are looked up, to find the rarest.
const LOOKED_UP_MAX: usize = 256;
/// Postings that are read, rarest terms first: a few milliseconds.
const POSTINGS_MAX: u64 = if cfg!(test) { 2_500 } else { 200_000 };
/// Words of a query that are looked for by their spelling.
const MISSPELT_MAX: usize = 8;
/// Words that stand in for one.
const ALIKE_MAX: usize = 4;

#[derive(Default)]
pub(super) struct Scores {
    /// By number; without the neighbours' shares.
    words: Vec<f32>,
    /// By number; what words that are spelt alike add. Empty if every word was found.
    alike: Vec<f32>,
    /// By number; the terms that a text holds, as bits.
    holds: Vec<u64>,
    /// Of each bit: the rarity that a text covers that holds it.
    rarity: Vec<f32>,
    /// Sum of the rarities of all words, including those that no text holds.
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

/// Scores the texts that count by a query's words.
#[expect(clippy::cast_precision_loss, reason = "scores need no more")]
pub(super) fn score(open: &Opened, query: &Terms, counts: impl Fn(&Doc) -> bool) -> Result<Scores, Trouble> {
    let postings = |term: &Term| {
        let mut postings = term.postings(open);
        postings.retain(|posting| open.columns.doc(posting.doc).is_some_and(&counts));
        postings
    };
    let mut looked_up = Vec::new();
    for term in distinct(&query.words) {
        looked_up.push(Term::look_up(open, term)?);
    }
    let (found, mut missing): (Vec<Term>, Vec<Term>) = looked_up.into_iter().partition(|term| term.count > 0);
    let mut scores = Scores::default();
    for term in rarest(found) {
        // Of a word in removed texts alone, or in those of others, no posting is left.
        if !scores.add(&open.columns, &term, &postings(&term), 1.0, false) {
            missing.push(term);
        }
    }
    scores.mass += rarity(&open.columns, 0) * missing.len() as f32;
    if missing.is_empty() {
        return Ok(scores);
    }
    let transaction = open.file.read()?;
    for term in missing.iter().take(MISSPELT_MAX) {
        let Some(spelt) = query.spelt.iter().find(|it| it.term == term.term) else { continue };
        let mut left = ALIKE_MAX;
        for (alike, likeness) in vocabulary::alike(&transaction, &spelt.word)? {
            let term = Term::look_up(open, alike)?;
            left -= usize::from(scores.add(&open.columns, &term, &postings(&term), likeness, true));
            if left == 0 {
                break;
            }
        }
    }
    Ok(scores)
}

/// Counts the texts that hold a word, about.
pub(super) fn holding(open: &Opened, word: &str) -> Result<u64, Trouble> {
    let term = text::analyse(word).words.first().copied();
    term.map_or(Ok(0), |term| Term::look_up(open, term).map(|term| term.count))
}

fn distinct(terms: &[u32]) -> Vec<u32> {
    let mut distinct: Vec<u32> = Vec::new();
    for term in terms {
        if distinct.len() < LOOKED_UP_MAX && !distinct.contains(term) {
            distinct.push(*term);
        }
    }
    distinct
}

impl Term {
    fn look_up(open: &Opened, term: u32) -> Result<Self, Trouble> {
        let mut found = Vec::new();
        for segment in &open.segments {
            found.extend(Found::look_up(&open.snapshot.postings, segment, term)?);
        }
        let tail = open.tail.terms.get(&term).map_or(0, Vec::len) as u64;
        let count = found.iter().map(|found| u64::from(found.count)).sum::<u64>() + tail;
        Ok(Self { term, found, count })
    }

    /// Reads its postings, newest first, up to the most that are looked at.
    fn postings(&self, open: &Opened) -> Vec<Posting> {
        let tail = open.tail.terms.get(&self.term).map_or(&[][..], Vec::as_slice);
        let mut postings: Vec<Posting> =
            tail.iter().filter(|posting| open.columns.words_of(posting.doc) != 0).copied().collect();
        let mut older = self.found.iter().rev();
        while let Some(found) = older.next().filter(|_| (postings.len() as u64) < POSTINGS_MAX) {
            found.newest(&open.columns, POSTINGS_MAX, &mut postings);
        }
        postings
    }
}

/// Keeps the rarest terms, in the order of the query.
fn rarest(mut terms: Vec<Term>) -> Vec<Term> {
    let mut counts: Vec<u64> = terms.iter().map(|term| term.count).collect();
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
    terms.retain(|term| term.count <= most);
    terms.truncate(TERMS_MAX);
    terms
}

/// Returns how much a word says about a text that holds it.
#[expect(clippy::cast_precision_loss, reason = "scores need no more")]
fn rarity(columns: &Columns, holding: u64) -> f32 {
    let texts = f64::from(columns.live.max(TEXTS_MIN));
    let holding = (holding as f64).min(texts);
    (1.0 + (texts - holding + 0.5) / (holding + 0.5)).ln() as f32
}

#[expect(clippy::cast_precision_loss, reason = "scores need no more")]
impl Scores {
    /// Adds a term's postings; those of a word that is spelt alike count by their likeness. Returns false if there are
    /// none.
    fn add(&mut self, columns: &Columns, term: &Term, postings: &[Posting], likeness: f32, is_alike: bool) -> bool {
        let bit = self.rarity.len();
        if postings.is_empty() || bit >= u64::BITS as usize {
            return false;
        }
        let holding = if term.count > POSTINGS_MAX { term.count } else { postings.len() as u64 };
        let worth = rarity(columns, holding) * likeness;
        self.rarity.push(worth);
        if !is_alike {
            self.mass += worth;
        }
        let texts = columns.next_doc() as usize;
        self.words.resize(texts, 0.0);
        self.holds.resize(texts, 0);
        if is_alike {
            self.alike.resize(texts, 0.0);
        }
        let mean = (columns.words as f64 / f64::from(columns.live.max(1))).max(1.0) as f32;
        let flat = SATURATION * (1.0 - LENGTH);
        let by_length = SATURATION * LENGTH / mean;
        let own = if is_alike { &mut self.alike } else { &mut self.words };
        for posting in postings {
            let length = f32::from(columns.words_of(posting.doc));
            let count = posting.count as f32;
            let gain = worth * count * (SATURATION + 1.0) / (count + flat + by_length * length);
            if let (Some(own), Some(holds)) =
                (own.get_mut(posting.doc as usize), self.holds.get_mut(posting.doc as usize))
            {
                *own += gain;
                *holds |= 1 << bit;
            }
        }
        true
    }

    /// Returns a text's score by the query's words, and by words spelt alike, each with its neighbours' shares.
    pub(super) fn windowed(&self, window: &Window) -> [f32; 2] {
        [&self.words, &self.alike].map(|scores| {
            let own = |doc: u32| scores.get(doc as usize).copied().unwrap_or(0.0);
            let before = window.share_of_before * own(window.before) + BEFORE_TWO * own(window.further_before);
            own(window.doc) + (AFTER * own(window.after) + before)
        })
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
