//! Folding of letters for comparison: lower case, no marks, plain width.
//!
//! Unicode's normal forms do most of it, so that composed and decomposed spellings meet; a few letters without a
//! decomposition are listed.

use std::borrow::Cow;

use icu_normalizer::{
    ComposingNormalizerBorrowed,
    properties::{CanonicalDecompositionBorrowed, Decomposed},
};

/// Brings a text to one spelling (NFKC): full-width letters, ligatures and decomposed syllables become plain ones.
pub(super) fn normal(text: &str) -> Cow<'_, str> {
    const NFKC: ComposingNormalizerBorrowed<'static> = ComposingNormalizerBorrowed::new_nfkc();
    NFKC.normalize(text)
}

/// Role of a letter between words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Part of a word.
    Letter,
    /// Letter of a script without spaces between words.
    Unspaced,
    /// Sign that joins two words directly: `foo_bar`, `2024-03-05`.
    Joint,
    /// Word by itself, such as an emoji.
    Symbol,
    /// Skipped: marks, controls.
    Ignored,
    /// Separator.
    Space,
}

pub(super) fn kind(letter: char) -> Kind {
    match letter {
        'a'..='z' | 'A'..='Z' | '0'..='9' => Kind::Letter,
        '.' | '_' | '-' | '/' | '\\' | ':' | '#' | '@' | '\'' | '’' | '‐' | '‑' => Kind::Joint,
        '\t' | '\n' | '\r' | '\u{b}' | '\u{c}' => Kind::Space,
        _ if letter.is_ascii() => {
            if letter.is_ascii_control() {
                Kind::Ignored
            } else {
                Kind::Space
            }
        }
        _ if is_ignored(letter) => Kind::Ignored,
        _ if is_unspaced(letter) => Kind::Unspaced,
        // Indic vowel signs and viramas are marks that words are made of; the danda ends a sentence.
        '\u{964}' | '\u{965}' => Kind::Space,
        '\u{900}'..='\u{dff}' => Kind::Letter,
        _ if letter.is_alphanumeric() => Kind::Letter,
        '\u{2600}'..='\u{27bf}' | '\u{2b00}'..='\u{2bff}' | '\u{1f000}'..='\u{1faff}' => Kind::Symbol,
        _ if letter.is_control() => Kind::Ignored,
        _ => Kind::Space,
    }
}

fn is_ignored(letter: char) -> bool {
    matches!(
        letter,
        '\u{ad}' | '\u{300}'..='\u{36f}' | '\u{591}'..='\u{5bd}' | '\u{5bf}' | '\u{5c1}'..='\u{5c7}'
            | '\u{610}'..='\u{61a}' | '\u{640}' | '\u{64b}'..='\u{65f}' | '\u{670}' | '\u{6d6}'..='\u{6ed}'
            | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{1f3fb}'..='\u{1f3ff}'
    )
}

fn is_unspaced(letter: char) -> bool {
    matches!(
        letter,
        '\u{e01}'..='\u{e4e}' | '\u{e81}'..='\u{ecf}' | '\u{1000}'..='\u{1049}' | '\u{1100}'..='\u{11ff}'
            | '\u{1780}'..='\u{17d3}' | '\u{3005}'..='\u{3007}' | '\u{3041}'..='\u{3096}'
            | '\u{309d}'..='\u{309f}' | '\u{30a1}'..='\u{30fa}' | '\u{30fc}'..='\u{30ff}'
            | '\u{3105}'..='\u{318e}' | '\u{31f0}'..='\u{31ff}' | '\u{3400}'..='\u{4dbf}'
            | '\u{4e00}'..='\u{9fff}' | '\u{ac00}'..='\u{d7a3}' | '\u{f900}'..='\u{faff}'
            | '\u{ff66}'..='\u{ff9d}' | '\u{20000}'..='\u{323af}'
    )
}

/// Returns the plain form of a joining sign.
pub(super) fn plain_sign(sign: char) -> char {
    match sign {
        '’' => '\'',
        '‐' | '‑' => '-',
        _ => sign,
    }
}

/// Folds a letter to one letter or two.
pub(super) fn folded(letter: char) -> impl Iterator<Item = char> {
    letter.to_lowercase().filter(|small| !is_ignored(*small)).flat_map(|small| {
        let (first, second) = plain(without_marks(small));
        [Some(first), second].into_iter().flatten()
    })
}

/// Removes a letter's marks. Syllables that decompose to letters stay whole.
fn without_marks(mut letter: char) -> char {
    const PARTS: CanonicalDecompositionBorrowed<'static> = CanonicalDecompositionBorrowed::new();
    while !letter.is_ascii()
        && let Decomposed::Expansion(base, mark) = PARTS.decompose(letter)
        && is_ignored(mark)
    {
        letter = base;
    }
    letter
}

/// Spells a lower-case letter that has no decomposition in plain letters.
const fn plain(small: char) -> (char, Option<char>) {
    let one = match small {
        'ß' => return ('s', Some('s')),
        'æ' => return ('a', Some('e')),
        'œ' => return ('o', Some('e')),
        'þ' => return ('t', Some('h')),
        'ð' | 'đ' => 'd',
        'ħ' => 'h',
        'ı' => 'i',
        'ł' => 'l',
        'ø' => 'o',
        'ŧ' => 't',
        'ς' => 'σ',
        'ٱ' => 'ا',
        'ى' => 'ي',
        'ة' => 'ه',
        _ => small,
    };
    (one, None)
}
