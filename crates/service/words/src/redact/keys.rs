//! Redaction of texts that look like keys in logs, errors and panics, configured or not.
//!
//! It may replace too much, and is never used on session texts: those are redacted by value.

use std::{borrow::Cow, ops::Range};

use super::MARK;

/// Beginnings of keys.
const PREFIXES: &[&str] =
    &["sk-", "AIza", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "xox", "AKIA", "ASIA"];

/// Word before a token in a header, in any case.
const BEARER: &str = "bearer";

/// Least bytes after the beginning of a key.
const KEY_BYTES_MIN: usize = 8;

/// Replaces every text that looks like a key by `[redacted]`.
#[must_use]
pub fn redact_key_shapes(text: &str) -> Cow<'_, str> {
    let (mut redacted, mut copied, mut at) = (String::new(), 0, 0);
    while at < text.len() {
        if let Some(key) = key_at(text.as_bytes(), at) {
            redacted.push_str(&text[copied..key.start]);
            redacted.push_str(MARK);
            (copied, at) = (key.end, key.end);
        } else {
            at += 1;
        }
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    redacted.push_str(&text[copied..]);
    Cow::Owned(redacted)
}

/// Range of the key that the word at `at` is or announces.
fn key_at(text: &[u8], at: usize) -> Option<Range<usize>> {
    if !is_word_start(text, at) {
        return None;
    }
    let word = &text[at..];
    let (start, body, is_key_byte): (usize, usize, fn(&u8) -> bool) =
        if word.get(..BEARER.len()).is_some_and(|word| word.eq_ignore_ascii_case(BEARER.as_bytes())) {
            let blanks = count(&word[BEARER.len()..], |byte| matches!(byte, b' ' | b'\t'));
            let start = at + BEARER.len() + blanks;
            (start, if blanks > 0 { start } else { return None }, is_token_byte)
        } else {
            let prefix = PREFIXES.iter().find(|prefix| word.starts_with(prefix.as_bytes()))?;
            (at, at + prefix.len(), is_name_byte)
        };
    let length = count(&text[body..], is_key_byte);
    (length >= KEY_BYTES_MIN).then_some(start..body + length)
}

/// Checks if a word begins here; the letter of an escape such as `\n` belongs to no word.
fn is_word_start(text: &[u8], at: usize) -> bool {
    at == 0 || !text[at - 1].is_ascii_alphanumeric() || (at > 1 && text[at - 2] == b'\\')
}

fn count(bytes: &[u8], is_counted: impl Fn(&u8) -> bool) -> usize {
    bytes.iter().take_while(|byte| is_counted(byte)).count()
}

fn is_name_byte(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

fn is_token_byte(byte: &u8) -> bool {
    is_name_byte(byte) || matches!(byte, b'.' | b'~' | b'+' | b'/' | b'=')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let redacted = redact_key_shapes(text);
        assert_eq!(redacted, expected);
        assert_eq!(redact_key_shapes(&redacted), expected, "a redacted text stays as it is");
    }

    #[test]
    fn keys_are_replaced_wherever_they_stand() {
        check("sk-abcdefgh", "[redacted]");
        check("key sk-ant-api03-a_b-C9, then", "key [redacted], then");
        check(r#"{"key":"AIzaSyA-1234567890_x"}"#, r#"{"key":"[redacted]"}"#);
        check("https://host/?key=AIzaSyA1234567&x=1", "https://host/?key=[redacted]&x=1");
        check("ghp_0123456789 github_pat_0123456789", "[redacted] [redacted]");
        check("(xoxb-12345-abcde)", "([redacted])");
        check("AKIAIOSFODNN7EXAMPLE", "[redacted]");
        check("é sk-abcdefgh é", "é [redacted] é");
    }

    #[test]
    fn a_bearer_token_is_replaced_and_its_word_stays() {
        check("Authorization: Bearer abc.def~ghi+/=", "Authorization: Bearer [redacted]");
        check("authorization: bearer\t 0123456789", "authorization: bearer\t [redacted]");
        check("Bearer sk-abcdefgh", "Bearer [redacted]");
    }

    #[test]
    fn the_letter_of_an_escape_hides_no_key() {
        check(r#""first\nsk-abcdefgh""#, r#""first\n[redacted]""#);
        check(r"\tBearer 0123456789", r"\tBearer [redacted]");
    }

    #[test]
    fn other_text_is_not_copied() {
        for text in [
            "",
            "sk-",
            "sk-short",
            "a risk-assessment",
            "xylophone",
            "bearer",
            "Bearer",
            "Bearer of news",
            "forbearer 0123456789",
            "é",
        ] {
            assert!(matches!(redact_key_shapes(text), Cow::Borrowed(same) if same == text), "{text}");
        }
    }
}
