//! Constants of the ranking, chosen on the tuning corpus of the retrieval benchmark and on half of LoCoMo.

/// BM25.
pub(super) struct Lane {
    /// Saturation: how soon further occurrences of a term stop counting.
    pub(super) saturation: f32,
    /// Penalty for long texts, from 0 to 1.
    pub(super) length: f32,
    /// Exponent of a term's rarity.
    pub(super) rarity: i32,
}

pub(super) const WORDS: Lane = Lane { saturation: 1.2, length: 0.4, rarity: 1 };
pub(super) const RUNS: Lane = Lane { saturation: 0.9, length: 0.3, rarity: 2 };

/// Share of the previous text's score that a text gets.
pub(super) const BEFORE: f32 = 0.45;
/// Further share if the previous text asks.
pub(super) const ASKED_BEFORE: f32 = 0.4;
/// Share of the score of the text before that: a question, a word in between, the answer.
pub(super) const BEFORE_TWO: f32 = 0.15;
/// Share of the next text's score: an answer repeats words of its question.
pub(super) const AFTER: f32 = 0.5;

/// Weight of each lane's best text.
pub(super) const WORDS_WEIGHT: f32 = 0.55;
pub(super) const RUNS_WEIGHT: f32 = 0.6;
/// Weight of the built-in vectors, which see only what the two other lanes see.
pub(super) const BUILTIN_WEIGHT: f32 = 0.05;
/// Weight of other vectors, half of what the two other lanes give: chosen, not measured.
pub(super) const VECTOR_WEIGHT: f32 = 0.6;
/// Share of the score of its session's best text that a text gets.
pub(super) const SESSION: f32 = 0.5;

/// Bonus of the newest candidate over the oldest.
pub(super) const NEWEST: f32 = 0.02;
/// Bonus if the question names the text's speaker.
pub(super) const SPEAKER: f32 = 0.8;
/// Bonus if the question names the text's month.
pub(super) const DATED: f32 = 1.0;
/// Bonus if the question asks for a time and the text names one.
pub(super) const NAMES_TIME: f32 = 0.4;
/// Malus of a text that asks: it seldom answers.
pub(super) const ASKS: f32 = 0.2;
/// Malus of a tool's output.
pub(super) const TOOL_RESULTS: f32 = 0.05;

/// Least share of a query's rarity that some hit must cover in words.
pub(super) const WORDS_COVERED_MIN: f32 = 0.2;
/// Least share in runs alone: a misspelt word keeps more than a third, and unrelated words may share an ending.
pub(super) const RUNS_COVERED_MIN: f32 = 0.33;
/// Least cosine of a hit that has none of the query's words.
pub(super) const COSINE_MIN: f32 = 0.5;
/// Least share of the best score that every hit must have.
pub(super) const SHARE_OF_BEST_MIN: f32 = 0.05;
