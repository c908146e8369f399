//! Cuts of texts, always between characters, blocks of Markdown, and the characters that no text may show as they
//! are.

/// Returns the longest beginning of at most `bytes` bytes that ends between characters.
pub(crate) fn prefix(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// Returns the longest end of at most `bytes` bytes that starts between characters.
pub(crate) fn suffix(text: &str, bytes: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(bytes))..]
}

/// Returns true for what a terminal obeys: control characters, separators of lines, marks that turn the direction of text.
#[must_use]
pub fn is_obeyed(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns true for a character that a person does not see in a text: one that a terminal obeys, or one without a shape.
#[must_use]
pub fn is_unseen(character: char) -> bool {
    is_obeyed(character)
        || matches!(
            character,
            '\u{ad}'
                | '\u{34f}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200d}'
                | '\u{2060}'..='\u{206f}'
                | '\u{2800}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

/// Writes the characters of a text that a person does not see as escapes, except ends of lines and tabs.
#[must_use]
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\t' => shown.push(character),
            character if character.is_control() => shown.extend(character.escape_debug()),
            character if is_unseen(character) => shown.extend(character.escape_unicode()),
            character => shown.push(character),
        }
    }
    shown
}

/// Makes a block of Markdown that shows a text as it is, and that nothing in the text ends.
#[must_use]
pub fn fenced(language: &str, text: &str) -> String {
    let longest = text.split(|character| character != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}{language}\n{text}\n{fence}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_longer_than_any_in_its_text() {
        for (text, fence) in [("", "```"), ("a `` b", "```"), ("```", "````"), ("x ````` y\n```", "``````")] {
            assert_eq!(fenced("json", text), format!("{fence}json\n{text}\n{fence}"));
        }
    }

    #[test]
    fn what_a_person_does_not_see_is_shown_as_an_escape() {
        for (text, expected) in [
            ("a b\tc\n", "a b\tc\n"),
            ("é \u{1f600} \u{4e2d}\u{301}", "é \u{1f600} \u{4e2d}\u{301}"),
            ("ls\r\u{1b}[2J", "ls\\r\\u{1b}[2J"),
            ("run\u{200b}.sh", "run\\u{200b}.sh"),
            ("\u{202e}hs.nur\u{2066}", "\\u{202e}hs.nur\\u{2066}"),
            ("a\u{e0041}\u{e0001}", "a\\u{e0041}\\u{e0001}"),
            ("\u{feff}\u{ad}\u{3164}\u{fe0f}\u{2060}", "\\u{feff}\\u{ad}\\u{3164}\\u{fe0f}\\u{2060}"),
        ] {
            assert_eq!(visible(text), expected, "{text:?}");
            assert!(!visible(text).contains(|char| is_unseen(char) && !"\n\t".contains(char)), "{text:?}");
        }
    }
}
