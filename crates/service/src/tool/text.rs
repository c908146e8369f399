//! Cuts of texts, always between characters, and the characters that no text may show.

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
