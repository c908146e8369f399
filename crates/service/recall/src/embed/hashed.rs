//! The built-in embedder: hashes words and pieces of words into a short vector, weighted by their likely rarity.
//!
//! It is deterministic on every machine and needs neither a file nor a network. Texts with common rare words or stems
//! are near each other; meanings play no part.

use async_trait::async_trait;

use super::{normalise, words::weight};
use meerkat_words::{
    SessionError,
    memory::{EmbedFor, Embedder},
};

const DIMENSION: usize = 256;
/// Letters of a piece of a word.
const PIECE_CHARS: usize = 4;
/// Weight of all pieces of a word together, relative to the word.
const PIECES_WEIGHT: f32 = 0.7;
/// Weights of a letter and of a pair of letters in a script without spaces.
const LETTER_WEIGHT: f32 = 0.3;
const PAIR_WEIGHT: f32 = 0.8;
/// Letters of a word that count; more are hardly a word.
const WORD_CHARS_MAX: usize = 64;

/// Embedder that hashes words and pieces of words.
#[derive(Clone, Copy, Debug, Default)]
pub struct HashedEmbedder;

impl HashedEmbedder {
    /// Returns a text's vector, of length 1, or all zeros if the text has no word.
    #[must_use]
    pub fn vector(text: &str) -> Vec<f32> {
        let mut features = Vec::new();
        let lower = text.to_lowercase();
        for word in lower.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty()) {
            add_word(word, &mut features);
        }
        // Sorted by hash, so that sums do not depend on the words' order.
        features.sort_unstable_by(|one, other| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
        let mut vector = vec![0.0; DIMENSION];
        for same in features.chunk_by(|one, other| one.0 == other.0) {
            let count = same.len() as f32;
            add_feature(same[0].0, same[0].1 * count.sqrt(), &mut vector);
        }
        normalise(&mut vector);
        vector
    }
}

#[async_trait]
impl Embedder for HashedEmbedder {
    fn id(&self) -> String {
        format!("hashed-{DIMENSION}-1")
    }

    async fn embed(&self, texts: &[String], _: EmbedFor) -> Result<Vec<Vec<f32>>, SessionError> {
        Ok(texts.iter().map(|text| Self::vector(text)).collect())
    }
}

/// Adds a word and its pieces: runs of letters, with marks at its beginning and end.
fn add_word(word: &str, features: &mut Vec<(u64, f32)>) {
    if word.chars().any(is_unspaced) {
        return add_run(word, features);
    }
    let letters: Vec<char> = ['<'].into_iter().chain(word.chars().take(WORD_CHARS_MAX)).chain(['>']).collect();
    let weight = weight(word);
    features.push((hash(&letters), weight));
    let pieces = letters.windows(PIECE_CHARS);
    let each = weight * PIECES_WEIGHT / (pieces.len().max(1) as f32).sqrt();
    features.extend(pieces.map(|piece| (hash(piece), each)));
}

/// Adds a run without spaces: each letter, and each pair of neighbours.
fn add_run(run: &str, features: &mut Vec<(u64, f32)>) {
    let letters: Vec<char> = run.chars().collect();
    features.extend(letters.windows(1).map(|letter| (hash(letter), LETTER_WEIGHT)));
    features.extend(letters.windows(2).map(|pair| (hash(pair), PAIR_WEIGHT)));
}

/// Returns true for letters of scripts without spaces between words, such as Chinese, Japanese or Thai.
const fn is_unspaced(letter: char) -> bool {
    matches!(letter, '\u{0E00}'..='\u{0EFF}' | '\u{1000}'..='\u{109F}' | '\u{1780}'..='\u{17FF}' | '\u{2E80}'..='\u{9FFF}' | '\u{20000}'..='\u{3FFFF}')
}

/// Adds a feature at two places, so that two that collide at one still differ at the other.
fn add_feature(hash: u64, weight: f32, vector: &mut [f32]) {
    for half in [hash, hash.rotate_left(32)] {
        let sign = if half & (1 << 20) == 0 { weight } else { -weight };
        vector[(half % DIMENSION as u64) as usize] += sign;
    }
}

/// Hashes the letters with FNV-1a, mixed so that all bits count.
fn hash(letters: &[char]) -> u64 {
    let fold = |hash: u64, &letter: &char| (hash ^ u64::from(letter)).wrapping_mul(0x0000_0100_0000_01B3);
    let mut mixed = letters.iter().fold(0xCBF2_9CE4_8422_2325, fold);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
