//! Analysis of texts into terms: of their words, and of the short runs of letters in these.
//!
//! Texts and queries are analysed alike, so a change needs a new layout of the file. It uses no dictionary, allocates
//! in proportion to the text, and never fails.

mod common;
mod fold;
mod irregular;
mod manner;
mod stem;

use fold::{Kind, kind};

/// Bytes of a text that are analysed; the rest is stored, but not searched.
const TEXT_BYTES_MAX: usize = 64 * 1024;
/// Letters of a word that count: longer ones are encoded data.
const WORD_LETTERS_MAX: usize = 64;
/// Longest path, name or number that is a term as a whole.
const WHOLE_LETTERS_MAX: usize = 128;
/// Signs between two letters that join them, at most, as in `foo::bar` or `a://b`.
const JOINT_SIGNS_MAX: usize = 3;
/// Letters of a run; a word's two ends count as letters.
const RUN_LETTERS: usize = 4;

/// Marks the joint of camel case in a name.
const CAMEL: char = '\u{0}';
/// Marks a word's end in a run.
const END: char = '\u{1}';
/// Marks a word as a speaker's name.
const SPEAKER: char = '\u{2}';
/// Bytes of a text that may name its speaker.
const SPEAKER_BYTES_MAX: usize = 64;
/// Bit that distinguishes terms of runs from terms of words.
const RUN_BIT: u32 = 1 << 31;

/// Terms of a text, each as often as it occurs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Terms {
    /// Words, and whole names, paths and numbers.
    pub(super) words: Vec<u32>,
    pub(super) runs: Vec<u32>,
    /// Of a query: its words as names of speakers.
    pub(super) speakers: Vec<u32>,
    /// It ends with a question.
    pub(super) asks: bool,
    /// It names a time, such as `yesterday` or `June`.
    pub(super) names_time: bool,
    /// Of a query: true if it asks for a time.
    pub(super) asks_when: bool,
}

pub(super) fn analyse(text: &str) -> Terms {
    let mut terms = Analysis::default().all(text);
    terms.asks = manner::asks(text);
    if let Some(speaker) = speaker(text) {
        terms.words.push(speaker_term(&speaker));
    }
    terms
}

/// Analyses a query; drops its stop words if it has other words.
pub(super) fn analyse_query(text: &str) -> Terms {
    let telling = Analysis { is_query: true, ..Analysis::default() }.all(text);
    if !telling.words.is_empty() {
        return telling;
    }
    Terms { asks_when: telling.asks_when, ..Analysis::default().all(text) }
}

/// Returns the speaker if a text begins with a name and a colon.
fn speaker(text: &str) -> Option<Vec<char>> {
    let name: Vec<char> = head(text, SPEAKER_BYTES_MAX).split_once(": ")?.0.chars().collect();
    let is_name = name.first().is_some_and(|letter| letter.is_uppercase() || !letter.is_lowercase());
    (is_name && name.iter().all(|letter| letter.is_alphabetic()))
        .then(|| name.into_iter().flat_map(fold::folded).collect())
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
    /// Of a query: true if the last word was like `which`.
    after_which: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    Upper,
    Other,
    Digit,
}

impl Analysis {
    fn all(mut self, text: &str) -> Terms {
        for letter in head(text, TEXT_BYTES_MAX).chars() {
            self.take(letter);
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
                self.terms.words.push(word_term([letter]));
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
        self.time(&spelt);
        if word.is_empty() || self.is_query && common::is_common(word) {
            return;
        }
        if self.is_query {
            self.terms.speakers.push(speaker_term(word));
        }
        let plain = irregular::plain(&spelt).map(|plain| plain.chars().collect::<Vec<_>>());
        self.terms.words.push(word_term(stem::stem(plain.as_deref().unwrap_or(word))));
        if word.len() > 1 {
            let ended: Vec<char> = [END].into_iter().chain(word.iter().copied()).chain([END]).collect();
            self.terms.runs.extend(ended.windows(RUN_LETTERS).map(|run| run_term(run.iter().copied())));
        }
    }

    fn time(&mut self, word: &str) {
        let names_time = manner::names_time(word);
        self.terms.names_time |= names_time;
        if self.is_query {
            self.terms.asks_when |= self.after_which && names_time || manner::asks_when(word);
            self.after_which = manner::asks_which(word);
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
            let whole: Vec<char> = whole.iter().copied().filter(|letter| *letter != CAMEL).collect();
            self.terms.words.push(word_term(stem::stem(&whole)));
        }
    }

    /// Ends a run without spaces: its pairs of letters serve as words.
    fn end_unspaced(&mut self) {
        let letters = std::mem::take(&mut self.unspaced);
        if let [letter] = letters[..] {
            self.terms.words.push(word_term([letter]));
        }
        self.terms.words.extend(letters.windows(2).map(|pair| word_term(pair.iter().copied())));
        self.terms.runs.extend(letters.iter().map(|letter| run_term([*letter])));
        self.unspaced = letters;
        self.unspaced.clear();
    }
}

fn is_joint(letter: char) -> bool {
    letter == CAMEL || letter != '\'' && kind(letter) == Kind::Joint
}

fn word_term(letters: impl IntoIterator<Item = char>) -> u32 {
    term(letters) & !RUN_BIT
}

fn speaker_term(word: &[char]) -> u32 {
    word_term([SPEAKER].into_iter().chain(word.iter().copied()))
}

fn run_term(letters: impl IntoIterator<Item = char>) -> u32 {
    term(letters) | RUN_BIT
}

/// Hashes the letters with FNV-1a, mixed; collisions are rarer than words with two meanings.
fn term(letters: impl IntoIterator<Item = char>) -> u32 {
    let mixed = letters.into_iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, letter| {
        (hash ^ u64::from(u32::from(letter))).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    u32::try_from(mixed >> 32).unwrap_or_default()
}
