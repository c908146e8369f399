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

/// Bytes that are looked at to find the beginning of a key: more than the longest one, with the fewest bytes behind it.
const AHEAD_BYTES: usize = 64;

/// Replaces texts that look like keys in a text that comes in chunks, exactly as [`redact_key_shapes`] does in the whole.
#[derive(Default)]
pub struct KeyStream {
    /// Bytes that are not decided, behind at most two that are.
    held: Vec<u8>,
    decided: usize,
    within: Within,
}

/// What the next byte is part of.
#[derive(Clone, Copy, Default)]
enum Within {
    #[default]
    Text,
    /// The blanks after a word that announces a token.
    Blanks,
    /// A key, of bytes like these.
    Key(fn(&u8) -> bool),
}

impl KeyStream {
    /// Takes a chunk, and appends the text that is decided by now; after the last chunk, all of it.
    pub fn push(&mut self, chunk: &[u8], is_last: bool, out: &mut Vec<u8>) {
        self.held.extend_from_slice(chunk);
        let text = &self.held[..];
        let (mut at, mut copied) = (self.decided, self.decided);
        while at < text.len() {
            match self.within {
                Within::Key(is_key_byte) => {
                    at += count(&text[at..], is_key_byte);
                    copied = at;
                    if at == text.len() {
                        break;
                    }
                    self.within = Within::Text;
                }
                Within::Blanks => {
                    at += count(&text[at..], is_blank);
                    if text.len() - at < KEY_BYTES_MIN && !is_last {
                        break;
                    }
                    self.within = Within::Text;
                    if count(&text[at..], is_token_byte) >= KEY_BYTES_MIN {
                        out.extend_from_slice(&text[copied..at]);
                        out.extend_from_slice(MARK.as_bytes());
                        (copied, self.within) = (at, Within::Key(is_token_byte));
                    }
                }
                Within::Text if text.len() - at < AHEAD_BYTES && !is_last => break,
                Within::Text => match key_at(text, at) {
                    Some(key) if key.start == at => {
                        out.extend_from_slice(&text[copied..at]);
                        out.extend_from_slice(MARK.as_bytes());
                        (copied, self.within) = (at, Within::Key(is_name_byte));
                    }
                    _ if is_word_start(text, at) && bearer_blanks(&text[at..]) > 0 => {
                        at += BEARER.len();
                        self.within = Within::Blanks;
                    }
                    _ => at += 1,
                },
            }
        }
        out.extend_from_slice(&text[copied..at]);
        let kept = at.min(2);
        self.held.drain(..at - kept);
        self.decided = kept;
    }
}

/// Range of the key that the word at `at` is or announces.
fn key_at(text: &[u8], at: usize) -> Option<Range<usize>> {
    if !is_word_start(text, at) {
        return None;
    }
    let word = &text[at..];
    let (start, body, is_key_byte): (usize, usize, fn(&u8) -> bool) = if is_bearer(word) {
        let blanks = bearer_blanks(word);
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

fn is_bearer(word: &[u8]) -> bool {
    word.get(..BEARER.len()).is_some_and(|word| word.eq_ignore_ascii_case(BEARER.as_bytes()))
}

/// Counts the blanks behind the word that announces a token; 0 behind another one.
fn bearer_blanks(word: &[u8]) -> usize {
    if is_bearer(word) { count(&word[BEARER.len()..], is_blank) } else { 0 }
}

const fn is_blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t')
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

    #[test]
    fn a_text_in_chunks_is_redacted_like_the_whole() {
        let long = "a/sk-".to_owned() + &"x".repeat(500) + " é ";
        let blanks = "Bearer".to_owned() + &" \t".repeat(100) + "abcdefgh.0 and bearer" + &" ".repeat(200) + "short ";
        let words =
            "sk-short sk-12345678, xox- AKIAIOSFODNN7EXAMPLE \\nsk-abcdefgh Bearer sk-abcdefgh_ bearerbearer 12345678";
        let text = [long.as_str(), &blanks, words, " ", &long, words, "github_pat_12345678"].concat();
        let whole = redact_key_shapes(&text);
        for bytes in 1..300 {
            let (mut stream, mut out) = (KeyStream::default(), Vec::new());
            for chunk in text.as_bytes().chunks(bytes) {
                stream.push(chunk, false, &mut out);
                assert!(stream.held.len() <= AHEAD_BYTES + bytes);
            }
            stream.push(b"", true, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), whole, "in chunks of {bytes}");
        }
    }
}
