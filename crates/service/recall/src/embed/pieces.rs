//! `WordPiece`: cuts a text into pieces of a vocabulary, as the uncased models of the BERT family do.
//!
//! A text has no special token: `[SEP]` in it is three words. A word that the vocabulary cannot spell is left out.

use std::{borrow::Cow, collections::HashMap};

use icu_normalizer::DecomposingNormalizerBorrowed;
use icu_properties::{
    CodePointMapData,
    props::{GeneralCategory, GeneralCategoryGroup},
};

/// Longest word, in characters; a longer one is left out.
pub(super) const WORD_MAX: usize = 100;
/// Begins a piece that continues a word.
pub(super) const INNER: &str = "##";

/// Pieces with their numbers.
#[derive(Debug)]
pub(super) struct Pieces {
    ids: HashMap<Cow<'static, str>, u32>,
    /// Characters of the longest piece.
    longest: usize,
}

impl Pieces {
    pub(super) fn new(ids: HashMap<Cow<'static, str>, u32>) -> Self {
        let longest = ids.keys().map(|piece| piece.chars().count()).max().unwrap_or(0);
        Self { ids, longest }
    }

    /// Returns the first pieces of a text.
    pub(super) fn of(&self, text: &str, most: usize) -> Vec<u32> {
        let (mut found, mut word) = (Vec::new(), String::new());
        for letter in plain(text).chain([' ']) {
            let is_alone = stands_alone(letter);
            if !is_alone && !letter.is_whitespace() {
                word.push(letter);
                continue;
            }
            self.add(&word, &mut found);
            word.clear();
            if is_alone {
                self.add(letter.encode_utf8(&mut [0; 4]), &mut found);
            }
            if found.len() >= most {
                break;
            }
        }
        found.truncate(most);
        found
    }

    /// Adds the pieces of a word, each as long as possible.
    fn add(&self, word: &str, found: &mut Vec<u32>) {
        if word.chars().nth(WORD_MAX).is_some() {
            return;
        }
        let (begun, mut rest, mut key) = (found.len(), word, String::new());
        while !rest.is_empty() {
            let end = rest.char_indices().nth(self.longest).map_or(rest.len(), |(at, _)| at);
            let mut ends = rest[..end].char_indices().rev().map(|(at, letter)| at + letter.len_utf8());
            let piece = ends.find_map(|end| {
                key.clear();
                key.push_str(if found.len() > begun { INNER } else { "" });
                key.push_str(&rest[..end]);
                self.ids.get(&*key).map(|id| (*id, end))
            });
            let Some((id, end)) = piece else { return found.truncate(begun) };
            found.push(id);
            rest = &rest[end..];
        }
    }
}

/// Lower-case letters without marks and control characters.
fn plain(text: &str) -> impl Iterator<Item = char> {
    const PARTS: DecomposingNormalizerBorrowed<'static> = DecomposingNormalizerBorrowed::new_nfd();
    let is_left_out = |letter: char| {
        let of = category(letter);
        let is_control = GeneralCategoryGroup::Other.contains(of) && !matches!(letter, '\t' | '\n' | '\r');
        is_control || letter == char::REPLACEMENT_CHARACTER || of == GeneralCategory::NonspacingMark
    };
    let kept = PARTS.normalize_iter(text.chars()).filter(move |letter| !is_left_out(*letter));
    kept.flat_map(char::to_lowercase)
}

/// Returns true for signs and Chinese characters, each of which is a word.
fn stands_alone(letter: char) -> bool {
    letter.is_ascii_punctuation()
        || GeneralCategoryGroup::Punctuation.contains(category(letter))
        || matches!(letter, '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{f900}'..='\u{faff}'
            | '\u{20000}'..='\u{2a6df}' | '\u{2a700}'..='\u{2ceaf}' | '\u{2f800}'..='\u{2fa1f}')
}

fn category(letter: char) -> GeneralCategory {
    CodePointMapData::<GeneralCategory>::new().get(letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOCABULARY: &str = "[UNK]\nthe\nrun\n##ning\n##n\nun\n##able\n.\n-\ncafe\n数\n1\n##2";

    fn spelt(text: &str, most: usize) -> Vec<&'static str> {
        let lines: Vec<&str> = VOCABULARY.lines().collect();
        let pieces = Pieces::new(lines.iter().map(|piece| Cow::Borrowed(*piece)).zip(0..).collect());
        pieces.of(text, most).into_iter().map(|id| lines[id as usize]).collect()
    }

    #[test]
    fn a_word_is_cut_into_the_longest_pieces() {
        for (text, expected) in [
            ("The running", &["the", "run", "##ning"][..]),
            ("unrunable unable", &["un", "##able"]),
            ("Cafés, CAFE\u{301}-run.", &["cafe", "-", "run", "."]),
            ("数数12", &["数", "数", "1", "##2"]),
            ("ru\u{200b}n\0\trun\u{a0}the", &["run", "run", "the"]),
            ("[UNK] nowhere", &[]),
            ("", &[]),
        ] {
            assert_eq!(spelt(text, 100), expected, "{text:?}");
        }
        assert_eq!(spelt("the running", 2), ["the", "run"]);
        assert!(spelt(&format!("run{}", "n".repeat(WORD_MAX)), 100).is_empty(), "it is too long");
        assert_eq!(spelt(&format!("ru{}", "n".repeat(WORD_MAX - 2)), 200).len(), WORD_MAX - 2);
    }
}
