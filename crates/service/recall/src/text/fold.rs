//! Folding of letters for comparison: lower case, no marks, plain width.

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

/// Folds a letter to one letter or a few.
pub(super) fn folded(letter: char) -> impl Iterator<Item = char> {
    let wide = u32::from(letter);
    let narrow =
        if (0xff01..=0xff5e).contains(&wide) { char::from_u32(wide - 0xfee0).unwrap_or(letter) } else { letter };
    narrow.to_lowercase().filter(|small| !is_ignored(*small)).flat_map(|small| {
        let (first, second) = plain(small);
        [Some(first), second].into_iter().flatten()
    })
}

/// Removes the marks of a lower-case letter; the ranges also hold upper-case ones, which never come.
fn plain(small: char) -> (char, Option<char>) {
    let one = match small {
        _ if small.is_ascii() => small,
        'ß' => return ('s', Some('s')),
        'æ' => return ('a', Some('e')),
        'œ' => return ('o', Some('e')),
        'þ' => return ('t', Some('h')),
        'ĳ' => return ('i', Some('j')),
        'à'..='å' | 'ā'..='ą' | 'ǎ' | 'ȁ'..='ȃ' | 'ạ'..='ặ' => 'a',
        'ç' | 'ć'..='č' => 'c',
        'ð' | 'ď'..='đ' => 'd',
        'è'..='ë' | 'ē'..='ě' | 'ẹ'..='ệ' => 'e',
        'ĝ'..='ģ' => 'g',
        'ĥ'..='ħ' => 'h',
        'ì'..='ï' | 'ĩ'..='ı' | 'ỉ'..='ị' => 'i',
        'ĵ' => 'j',
        'ķ' => 'k',
        'ĺ'..='ł' => 'l',
        'ñ' | 'ń'..='ň' => 'n',
        'ò'..='ö' | 'ø' | 'ō'..='ő' | 'ơ' | 'ọ'..='ợ' => 'o',
        'ŕ'..='ř' => 'r',
        'ś'..='š' | 'ș' => 's',
        'ţ'..='ŧ' | 'ț' => 't',
        'ù'..='ü' | 'ũ'..='ų' | 'ư' | 'ụ'..='ự' => 'u',
        'ŵ' => 'w',
        'ý' | 'ÿ' | 'ŷ' | 'ỳ'..='ỹ' => 'y',
        'ź'..='ž' => 'z',
        'ά' => 'α',
        'έ' => 'ε',
        'ή' => 'η',
        'ί' | 'ϊ' | 'ΐ' => 'ι',
        'ό' => 'ο',
        'ύ' | 'ϋ' | 'ΰ' => 'υ',
        'ώ' => 'ω',
        'ς' => 'σ',
        'ё' => 'е',
        'أ' | 'إ' | 'آ' | 'ٱ' => 'ا',
        'ى' => 'ي',
        'ة' => 'ه',
        _ => small,
    };
    (one, None)
}
