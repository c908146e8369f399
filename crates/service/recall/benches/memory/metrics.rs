//! Metrics: share and rank of the found evidence, abstention on questions without evidence, and differences between two
//! ways over the same questions with their standard errors.

use std::collections::BTreeMap;

use super::{corpus::Place, questions::Question};

/// Hits that count.
pub(crate) const DEEP: usize = 20;

/// Score of one way of searching.
#[derive(Clone, Default)]
pub(crate) struct Score {
    answerable: f64,
    recalls: [f64; 3],
    hits: f64,
    reciprocal_ranks: f64,
    empty: f64,
    unanswerable: f64,
    abstained: f64,
    /// Of each answerable question in order: recall@20, and the reciprocal rank.
    each: Vec<[f64; 2]>,
}

/// Mean of the differences between two ways over the same questions, and its standard error.
pub(crate) fn paired(one: &[f64], other: &[f64]) -> (f64, f64) {
    assert_eq!(one.len(), other.len(), "these are not the same questions");
    let differences: Vec<f64> = one.iter().zip(other).map(|(one, other)| one - other).collect();
    let count = differences.len() as f64;
    let mean = differences.iter().sum::<f64>() / count;
    let variance = differences.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, (variance / count).sqrt())
}

impl Score {
    /// Counts the places found for a question.
    pub(crate) fn count(&mut self, question: &Question, found: &[Place]) {
        if question.evidence.is_empty() {
            self.unanswerable += 1.0;
            self.abstained += f64::from(u8::from(found.is_empty()));
            return;
        }
        self.answerable += 1.0;
        self.empty += f64::from(u8::from(found.is_empty()));
        for (recall, depth) in self.recalls.iter_mut().zip([5, 10, DEEP]) {
            let within = &found[..found.len().min(depth)];
            let there = question.evidence.iter().filter(|place| within.contains(place)).count();
            *recall += there as f64 / question.evidence.len() as f64;
        }
        let within = &found[..found.len().min(DEEP)];
        let there = question.evidence.iter().filter(|place| within.contains(place)).count();
        self.each.push([there as f64 / question.evidence.len() as f64, 0.0]);
        if let Some(rank) = found.iter().take(DEEP).position(|place| question.evidence.contains(place)) {
            self.hits += 1.0;
            self.reciprocal_ranks += 1.0 / (rank + 1) as f64;
            self.each.last_mut().unwrap()[1] = 1.0 / (rank + 1) as f64;
        }
    }

    /// Returns the share of the evidence among the first twenty.
    pub(crate) fn recall(&self) -> f64 {
        self.recalls[2] / self.answerable
    }

    /// Returns the mean reciprocal rank of the first evidence.
    pub(crate) fn mrr(&self) -> f64 {
        self.reciprocal_ranks / self.answerable
    }

    /// Returns recall@20 and the reciprocal rank of each answerable question.
    pub(crate) fn each(&self) -> &[[f64; 2]] {
        &self.each
    }

    /// Returns the share of unanswerable questions for which nothing was found.
    pub(crate) fn abstention(&self) -> f64 {
        self.abstained / self.unanswerable
    }

    fn cells(&self) -> [f64; 7] {
        let of = |value: f64| value / self.answerable;
        let [five, ten, twenty] = self.recalls.map(of);
        [five, ten, twenty, of(self.hits), self.mrr(), self.abstention(), of(self.empty)]
    }
}

/// Scores of all ways of searching.
#[derive(Default)]
pub(crate) struct Scores {
    ways: Vec<&'static str>,
    by_way: BTreeMap<&'static str, Score>,
    by_category: BTreeMap<&'static str, BTreeMap<&'static str, Score>>,
    apart: &'static [&'static str],
}

impl Scores {
    /// Makes scores that count these categories only separately.
    pub(crate) fn with_apart(apart: &'static [&'static str]) -> Self {
        Self { apart, ..Self::default() }
    }

    /// Counts the places that one way found for a question.
    pub(crate) fn count(&mut self, way: &'static str, question: &Question, found: &[Place]) {
        if !self.ways.contains(&way) {
            self.ways.push(way);
        }
        if !self.apart.contains(&question.category) {
            self.by_way.entry(way).or_default().count(question, found);
        }
        self.by_category.entry(question.category).or_default().entry(way).or_default().count(question, found);
    }

    /// Returns the score of one way.
    pub(crate) fn of(&self, way: &str) -> Score {
        self.by_way.get(way).cloned().unwrap_or_default()
    }

    /// Returns the score of one way in a category.
    pub(crate) fn of_category(&self, category: &str, way: &str) -> Score {
        self.by_category.get(category).and_then(|scores| scores.get(way)).cloned().unwrap_or_default()
    }

    /// Formats two tables: each way, and recall@20 by category (abstention if it has no evidence).
    pub(crate) fn table(&self, title: &str) -> String {
        let heads = ["recall@5", "recall@10", "recall@20", "hit@20", "MRR", "abstention", "false abst."];
        let mut lines = vec![format!("{title}"), row("", &heads.map(str::to_owned))];
        for way in &self.ways {
            lines.push(row(way, &self.of(way).cells().map(cell)));
        }
        let ways: Vec<String> = self.ways.iter().map(|way| (*way).to_owned()).chain(["MRR".to_owned()]).collect();
        lines.push(row("recall@20 by category", &ways));
        for (category, scores) in &self.by_category {
            let answerable = scores.values().next().map_or(0.0, |score| score.answerable);
            let unanswerable = scores.values().next().map_or(0.0, |score| score.unanswerable);
            let value = |way| {
                scores.get(way).map_or(f64::NAN, |s: &Score| if answerable > 0.0 { s.recall() } else { s.abstention() })
            };
            let last = self.ways.last().and_then(|way| scores.get(way)).map_or(f64::NAN, Score::mrr);
            let cells: Vec<String> = self.ways.iter().map(|way| cell(value(*way))).chain([cell(last)]).collect();
            lines.push(row(&format!("{category} ({})", answerable + unanswerable), &cells));
        }
        lines.join("\n")
    }
}

fn cell(value: f64) -> String {
    if value.is_finite() { format!("{value:.3}") } else { "–".to_owned() }
}

fn row(name: &str, cells: &[String]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| format!("{cell:>11}")).collect();
    format!("{name:<24}{}", cells.concat())
}
