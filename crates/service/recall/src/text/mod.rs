//! Analysis of texts into terms: stemmed words, and whole names, paths and numbers.
//!
//! Texts and queries are analysed alike, so a change needs a new layout of the file. It uses no dictionary, allocates
//! in proportion to the text, and never fails.

mod common;
mod fold;

use std::sync::LazyLock;

use fold::{Kind, kind};
use rust_stemmers::{Algorithm, Stemmer};

/// Bytes of a text that are analysed; the rest is stored, but not searched.
const TEXT_BYTES_MAX: usize = 64 * 1024;
/// Letters of a word that count: longer ones are encoded data.
const WORD_LETTERS_MAX: usize = 64;
/// Longest path, name or number that is a term as a whole.
const WHOLE_LETTERS_MAX: usize = 128;
/// Signs between two letters that join them, at most, as in `foo::bar` or `a://b`.
const JOINT_SIGNS_MAX: usize = 3;
/// Marks the joint of camel case in a name.
const CAMEL: char = '\u{0}';

/// Begins a terminal's control sequence.
const ESCAPE: char = '\u{1b}';

/// Word as it is spelt, folded, with the term that it has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Spelt {
    pub(super) word: String,
    pub(super) term: u32,
}

/// Terms of a text, each as often as it occurs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Terms {
    /// Words, and whole names, paths and numbers.
    pub(super) words: Vec<u32>,
    /// Words among them that may be misspelt: of letters alone.
    pub(super) spelt: Vec<Spelt>,
    /// It ends with a question.
    pub(super) asks: bool,
}

pub(super) fn analyse(text: &str) -> Terms {
    let mut terms = Analysis::default().all(text);
    terms.asks = asks(text);
    terms
}

/// Analyses a query; drops its stop words if it has other words.
pub(super) fn analyse_query(text: &str) -> Terms {
    let telling = Analysis { is_query: true, ..Analysis::default() }.all(text);
    if telling.words.is_empty() { Analysis::default().all(text) } else { telling }
}

/// Returns true if a text ends with a question.
fn asks(text: &str) -> bool {
    let closes =
        |letter: char| letter.is_whitespace() || matches!(letter, ')' | ']' | '"' | '\'' | '”' | '’' | '»' | '」');
    matches!(text.trim_end_matches(closes).chars().next_back(), Some('?' | '？' | '؟'))
}

/// Returns the beginning of a text, cut between two characters.
pub(super) fn head(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or_default()
}

#[derive(Default)]
struct Analysis {
    terms: Terms,
    /// Current name, folded: letters and joining signs since the last separator.
    name: Vec<char>,
    /// Signs that belong to the name if a letter follows.
    signs: Vec<char>,
    /// Cases of the name's last two letters, for camel case.
    last: [Option<Case>; 2],
    /// Letters of a script without spaces.
    unspaced: Vec<char>,
    has_joint: bool,
    is_query: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    Upper,
    Other,
    Digit,
}

impl Analysis {
    fn all(mut self, text: &str) -> Terms {
        let text = fold::normal(head(text, TEXT_BYTES_MAX));
        let mut letters = text.chars().peekable();
        while let Some(letter) = letters.next() {
            if letter == ESCAPE && letters.next_if_eq(&'[').is_some() {
                // A colour, say: its last letter belongs to no word.
                while letters.next().is_some_and(|letter| letter.is_ascii_digit() || letter == ';') {}
            } else {
                self.take(letter);
            }
        }
        self.end_name();
        self.end_unspaced();
        self.terms
    }

    fn take(&mut self, letter: char) {
        match kind(letter) {
            Kind::Ignored => {}
            Kind::Letter => {
                self.end_unspaced();
                self.letter(letter);
            }
            Kind::Joint if !self.name.is_empty() && self.signs.len() < JOINT_SIGNS_MAX => {
                self.signs.push(fold::plain_sign(letter));
            }
            Kind::Unspaced => {
                self.end_name();
                self.unspaced.extend(fold::folded(letter));
            }
            Kind::Symbol => {
                self.end_name();
                self.end_unspaced();
                self.terms.words.push(term([letter]));
            }
            Kind::Joint | Kind::Space => {
                self.end_name();
                self.end_unspaced();
            }
        }
    }

    fn letter(&mut self, letter: char) {
        let case = match letter {
            _ if letter.is_uppercase() => Case::Upper,
            _ if letter.is_numeric() => Case::Digit,
            _ => Case::Other,
        };
        if !self.signs.is_empty() {
            self.name.append(&mut self.signs);
            self.has_joint = true;
            self.last = [None, None];
        }
        match (self.last, case) {
            // `camelCase`
            ([_, Some(Case::Other)], Case::Upper) => self.join_camel(0),
            // `HTTPServer`: the last capital belongs to what follows.
            ([Some(Case::Upper), Some(Case::Upper)], Case::Other) => self.join_camel(1),
            _ => {}
        }
        self.last = [self.last[1], Some(case)];
        self.name.extend(fold::folded(letter));
    }

    fn join_camel(&mut self, letters_back: usize) {
        let at = self.name.len().saturating_sub(letters_back);
        self.name.insert(at, CAMEL);
        self.has_joint = true;
    }

    /// Splits a name into its words, and into its parts that belong together.
    fn end_name(&mut self) {
        let name = std::mem::take(&mut self.name);
        self.signs.clear();
        self.last = [None, None];
        for word in name.split(|letter| is_joint(*letter)) {
            self.word(word);
        }
        if std::mem::take(&mut self.has_joint) {
            self.wholes(&name);
        }
        self.name = name;
        self.name.clear();
    }

    fn word(&mut self, word: &[char]) {
        // `don't` and `l'homme`: the short side of the apostrophe is no word.
        let word = match word.iter().position(|letter| *letter == '\'') {
            Some(at) if word.len() - at <= 3 => &word[..at],
            Some(at) if at <= 2 => &word[at + 1..],
            _ => word,
        };
        let word = &word[..word.len().min(WORD_LETTERS_MAX)];
        let spelt: String = word.iter().collect();
        if word.is_empty() || self.is_query && common::is_common(word) {
            return;
        }
        let term = term(stem(&spelt).chars());
        self.terms.words.push(term);
        if word.len() > 1 && word.iter().all(|letter| letter.is_alphabetic()) {
            self.terms.spelt.push(Spelt { word: spelt, term });
        }
    }

    /// Adds the whole parts of a name: of `src/foo_bar.rs` `foo_bar`, `foo_bar.rs` and all of it.
    fn wholes(&mut self, name: &[char]) {
        let is_path = |letter: &char| matches!(letter, '/' | '\\' | ':' | '#' | '@');
        let is_dotted = |letter: &char| is_path(letter) || *letter == '.';
        let pieces = name.split(is_dotted).filter(|piece| piece.iter().any(|letter| is_joint(*letter)));
        let files = name.split(is_path).filter(|piece| piece.contains(&'.'));
        let all = name.iter().any(is_path).then_some(name);
        for whole in pieces.chain(files).chain(all).filter(|whole| whole.len() <= WHOLE_LETTERS_MAX) {
            let whole: String = whole.iter().filter(|letter| **letter != CAMEL).collect();
            self.terms.words.push(term(stem(&whole).chars()));
        }
    }

    /// Ends a run without spaces: its pairs of letters serve as words.
    fn end_unspaced(&mut self) {
        let letters = std::mem::take(&mut self.unspaced);
        for word in letters.windows(letters.len().clamp(1, 2)) {
            let term = term(word.iter().copied());
            self.terms.words.push(term);
            self.terms.spelt.push(Spelt { word: word.iter().collect(), term });
        }
        self.unspaced = letters;
        self.unspaced.clear();
    }
}

/// Removes a word's endings by the rules of English; a word with other than plain Latin letters stays as it is.
fn stem(word: &str) -> std::borrow::Cow<'_, str> {
    static ENGLISH: LazyLock<Stemmer> = LazyLock::new(|| Stemmer::create(Algorithm::English));
    if word.bytes().all(|letter| letter.is_ascii_lowercase()) { ENGLISH.stem(word) } else { word.into() }
}

/// Returns true for a letter of a script without spaces between words.
pub(super) fn is_unspaced(letter: char) -> bool {
    kind(letter) == Kind::Unspaced
}

fn is_joint(letter: char) -> bool {
    letter == CAMEL || letter != '\'' && kind(letter) == Kind::Joint
}

/// Hashes the letters with FNV-1a, mixed; collisions are rarer than words with two meanings.
pub(super) fn term(letters: impl IntoIterator<Item = char>) -> u32 {
    let mixed = letters.into_iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, letter| {
        (hash ^ u64::from(u32::from(letter))).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    u32::try_from(mixed >> 32).unwrap_or_default()
}
