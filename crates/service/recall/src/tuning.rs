//! Constants of the ranking, chosen on the tuning half of LoCoMo and on the tuning corpora of the retrieval benchmark.

/// BM25: how soon further occurrences of a word stop counting.
pub(super) const SATURATION: f32 = 1.0;
/// BM25: penalty for long texts, from 0 to 1.
pub(super) const LENGTH: f32 = 0.2;

/// Texts among which a word is rare or frequent, at least: among two, a word of both would say next to nothing.
pub(super) const TEXTS_MIN: u32 = 100;

/// Share of the previous text's score that a text gets.
pub(super) const BEFORE: f32 = 0.35;
/// Further share if the previous text asks.
pub(super) const ASKED_BEFORE: f32 = 0.4;
/// Share of the score of the text before that: a question, a word in between, the answer.
pub(super) const BEFORE_TWO: f32 = 0.2;
/// Share of the next text's score: an answer repeats words of its question.
pub(super) const AFTER: f32 = 0.4;

/// Weight of the vectors' best text, if that of the words' is 1. A table's vectors have none: they count only
/// where words find little.
pub(super) const VECTOR_WEIGHT: f32 = 0.5;
/// Share of the score of its session's best text that a text gets if it is next to it.
pub(super) const SESSION: f32 = 0.6;
/// What is left of that share at each text further away.
pub(super) const SESSION_DECAY: f32 = 0.97;

/// Factor if the question names the text's month.
pub(super) const DATED: f32 = 2.5;
/// Factor of a text that asks: it seldom answers.
pub(super) const ASKS: f32 = 0.8;

/// Least share of a query's rarity that some hit must cover.
pub(super) const COVERED_MIN: f32 = 0.2;
/// Least cosine of a hit that has too few of the query's words.
pub(super) const COSINE_MIN: f32 = 0.5;
/// Least share of the best score that every hit must have.
pub(super) const SHARE_OF_BEST_MIN: f32 = 0.05;
