//! BERT's WordPiece: words without control characters, in lower case and without marks, split into the longest pieces
//! that the vocabulary has.
//!
//! A text cannot contain a special token: `[SEP]` in a text is three words.

use std::{collections::HashMap, fmt};

use icu_normalizer::DecomposingNormalizerBorrowed;
use icu_properties::{
    CodePointMapData,
    props::{GeneralCategory, GeneralCategoryGroup},
};

/// Longest known word.
const WORD_CHARS_MAX: usize = 100;

/// Preparation of a text before its words are looked up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// True if letters become lower case.
    pub(super) lowers: bool,
    /// True if marks are removed from letters.
    pub(super) strips_marks: bool,
    /// True if each Chinese character is a word.
    pub(super) parts_chinese: bool,
}

pub(super) struct Vocabulary {
    ids: HashMap<String, u32>,
    reading: Reading,
    unknown: u32,
    /// First and last token of every text.
    ends: (u32, u32),
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Vocabulary").field("pieces", &self.ids.len()).finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// Makes a vocabulary, or returns the token that it lacks.
    pub(super) fn new(ids: HashMap<String, u32>, reading: Reading) -> Result<Self, &'static str> {
        let id = |token: &'static str| ids.get(token).copied().ok_or(token);
        let (unknown, ends) = (id("[UNK]")?, (id("[CLS]")?, id("[SEP]")?));
        Ok(Self { ids, reading, unknown, ends })
    }

    /// Returns the rows that a table needs for these ids.
    pub(super) fn rows(&self) -> usize {
        self.ids.values().max().map_or(0, |id| *id as usize + 1)
    }

    /// Splits a text into at most `tokens_max` tokens.
    pub(super) fn tokens(&self, text: &str, tokens_max: usize) -> Vec<u32> {
        let mut tokens = vec![self.ends.0];
        let text = self.reading.plain(text);
        for word in words(&text) {
            if tokens.len() + 1 >= tokens_max {
                break;
            }
            self.add_word(word, &mut tokens);
        }
        tokens.truncate(tokens_max - 1);
        tokens.push(self.ends.1);
        tokens
    }

    /// Adds the pieces of a word, each the longest known one; a word with an unknown piece is unknown as a whole.
    fn add_word(&self, word: &str, tokens: &mut Vec<u32>) {
        let before = tokens.len();
        let mut rest = word;
        let is_short = word.chars().nth(WORD_CHARS_MAX).is_none();
        let mut piece = String::new();
        while is_short && !rest.is_empty() {
            let mark = if rest.len() < word.len() { "##" } else { "" };
            let ends = rest.char_indices().rev().map(|(at, letter)| at + letter.len_utf8());
            let found = ends.into_iter().find_map(|end| {
                piece.clear();
                piece.extend([mark, &rest[..end]]);
                self.ids.get(&piece).map(|id| (*id, end))
            });
            let Some((id, end)) = found else { break };
            tokens.push(id);
            rest = &rest[end..];
        }
        if !rest.is_empty() {
            tokens.truncate(before);
            tokens.push(self.unknown);
        }
    }
}

impl Reading {
    /// Prepares a text, with blanks around characters that are words.
    fn plain(self, text: &str) -> String {
        let mut plain = String::with_capacity(text.len());
        for letter in text.chars() {
            match letter {
                '\t' | '\n' | '\r' => plain.push(' '),
                '\0' | '\u{fffd}' => {}
                _ if is_control(letter) => {}
                _ if letter.is_whitespace() => plain.push(' '),
                _ if self.parts_chinese && is_chinese(letter) => plain.extend([' ', letter, ' ']),
                _ => plain.push(letter),
            }
        }
        if self.strips_marks {
            let decomposed = DecomposingNormalizerBorrowed::new_nfd().normalize(&plain).into_owned();
            plain = decomposed.chars().filter(|letter| category(*letter) != GeneralCategory::NonspacingMark).collect();
        }
        // Letter by letter: a sigma at a word's end is like any other.
        if self.lowers { plain.chars().flat_map(char::to_lowercase).collect() } else { plain }
    }
}

/// Iterates over the words of a text; each punctuation mark is one.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace().flat_map(|run| run.split_inclusive(is_punctuation).flat_map(parted))
}

/// Splits the punctuation mark off a run's end, if there is one.
fn parted(run: &str) -> impl Iterator<Item = &str> {
    let sign = run.char_indices().next_back().filter(|(_, last)| is_punctuation(*last));
    let (word, sign) = run.split_at(sign.map_or(run.len(), |(at, _)| at));
    [word, sign].into_iter().filter(|part| !part.is_empty())
}

fn category(letter: char) -> GeneralCategory {
    CodePointMapData::<GeneralCategory>::new().get(letter)
}

/// Returns true for control, format and private-use characters. Unassigned ones stay, and are unknown.
fn is_control(letter: char) -> bool {
    let group = GeneralCategoryGroup::Control.union(GeneralCategoryGroup::Format);
    group.union(GeneralCategoryGroup::PrivateUse).contains(category(letter))
}

fn is_punctuation(letter: char) -> bool {
    letter.is_ascii_punctuation()
        || (!letter.is_ascii() && GeneralCategoryGroup::Punctuation.contains(category(letter)))
}

/// Returns true for the blocks that BERT treats as Chinese; kana and Hangul are not among them.
const fn is_chinese(letter: char) -> bool {
    matches!(letter, '\u{4e00}'..='\u{9fff}' | '\u{3400}'..='\u{4dbf}' | '\u{20000}'..='\u{2a6df}'
        | '\u{2a700}'..='\u{2b73f}' | '\u{2b740}'..='\u{2b81f}' | '\u{2b820}'..='\u{2ceaf}'
        | '\u{f900}'..='\u{faff}' | '\u{2f800}'..='\u{2fa1f}')
}
