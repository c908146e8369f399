//! Baselines: plain searches over single messages, as short as is fair.

use std::collections::{BTreeSet, HashMap, HashSet};

use meerkat_words::memory::Intake;

use super::corpus::Place;

/// Finds messages.
pub(crate) trait Search {
    /// Returns the best places, best first.
    fn search(&self, query: &str, limit: usize) -> Vec<Place>;
}

/// Stop words.
const STOP: &str = "a an and are at be been by did do does for from go has had have how i in is it its of on or s she he \
                    so t that the their them they this to was we were what when where which who whose why will with you";

fn words(text: &str) -> Vec<String> {
    text.split(|letter: char| !letter.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

fn telling_words(query: &str) -> impl Iterator<Item = String> {
    words(query).into_iter().filter(|word| !STOP.split(' ').any(|stop| stop == word))
}

fn messages(sessions: &[Intake]) -> impl Iterator<Item = (Place, Vec<String>)> {
    sessions.iter().flat_map(|session| {
        session.passages.iter().map(|passage| ((session.session_id, passage.seq), words(&passage.text)))
    })
}

/// Returns the best places with a score above 0; of equal scores, the newest.
fn best(mut scored: Vec<(f64, usize)>, places: &[Place], limit: usize) -> Vec<Place> {
    scored.retain(|(score, _)| *score > 0.0);
    scored.sort_by(|one, other| other.0.total_cmp(&one.0).then(other.1.cmp(&one.1)));
    scored.into_iter().take(limit).map(|(_, nth)| places[nth]).collect()
}

/// Exact match: counts the question's words in a message.
pub(crate) struct Exact {
    places: Vec<Place>,
    words: Vec<HashSet<String>>,
}

impl Exact {
    pub(crate) fn new(sessions: &[Intake]) -> Self {
        let (places, words) = messages(sessions).map(|(place, words)| (place, words.into_iter().collect())).unzip();
        Self { places, words }
    }
}

impl Search for Exact {
    fn search(&self, query: &str, limit: usize) -> Vec<Place> {
        let asked: BTreeSet<String> = telling_words(query).collect();
        let count = |said: &HashSet<String>| asked.iter().filter(|word| said.contains(*word)).count() as f64;
        best(self.words.iter().map(count).zip(0..).collect(), &self.places, limit)
    }
}

/// BM25 over the words of single messages, with the usual constants and without stop words.
pub(crate) struct PlainBm25 {
    places: Vec<Place>,
    lengths: Vec<f64>,
    average: f64,
    postings: HashMap<String, Vec<(usize, f64)>>,
}

const K1: f64 = 1.2;
const B: f64 = 0.75;

impl PlainBm25 {
    pub(crate) fn new(sessions: &[Intake]) -> Self {
        let (mut places, mut lengths) = (Vec::new(), Vec::new());
        let mut postings: HashMap<String, Vec<(usize, f64)>> = HashMap::new();
        for (nth, (place, words)) in messages(sessions).enumerate() {
            places.push(place);
            lengths.push(words.len() as f64);
            for word in words {
                let list = postings.entry(word).or_default();
                match list.last_mut() {
                    Some((last, count)) if *last == nth => *count += 1.0,
                    _ => list.push((nth, 1.0)),
                }
            }
        }
        let average = lengths.iter().sum::<f64>() / lengths.len().max(1) as f64;
        Self { places, lengths, average, postings }
    }
}

impl Search for PlainBm25 {
    fn search(&self, query: &str, limit: usize) -> Vec<Place> {
        let mut scores = vec![0.0; self.places.len()];
        for word in telling_words(query) {
            let Some(list) = self.postings.get(&word) else { continue };
            let (all, with) = (self.places.len() as f64, list.len() as f64);
            let rarity = (1.0 + (all - with + 0.5) / (with + 0.5)).ln();
            for (nth, count) in list {
                let norm = K1 * (1.0 - B + B * self.lengths[*nth] / self.average);
                scores[*nth] += rarity * count * (K1 + 1.0) / (count + norm);
            }
        }
        best(scores.into_iter().zip(0..).collect(), &self.places, limit)
    }
}
