//! JSON from outside, kept as text.

use std::{borrow::Cow, fmt};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::value::RawValue;

use crate::SessionError;

/// Depth to which JSON from outside may nest.
pub const JSON_DEPTH_MAX: usize = 64;
/// Keys that JSON from outside may have, all its objects together.
pub const JSON_KEYS_MAX: usize = 10_000;

/// Bytes that are shown of a call's long arguments: from the beginning, and from the end.
const JSON_SHOWN: [usize; 2] = [1024, 512];

/// JSON text, kept to the letter except for white space between tokens.
#[derive(Clone)]
pub struct RawJson(Box<RawValue>);

impl RawJson {
    /// Reads one JSON value of bounded depth and number of keys, and removes white space between tokens.
    ///
    /// # Errors
    /// `INVALID_REQUEST` if it is not one.
    pub fn parse(text: &str) -> Result<Self, SessionError> {
        let refusal = |error| SessionError::invalid("json", format!("not valid JSON: {error}"));
        RawValue::from_string(Self::bounded(text)?).map(Self).map_err(refusal)
    }

    /// Compacts and bounds text as [`Self::parse`] does, for callers that decode it at once.
    pub fn bounded(text: &str) -> Result<String, SessionError> {
        Self::bounded_to(text, JSON_KEYS_MAX)
    }

    /// Compacts and bounds text that may have so many keys.
    pub fn bounded_to(text: &str, keys_max: usize) -> Result<String, SessionError> {
        compact_json(text, keys_max).map_err(|why| SessionError::invalid("json", why))
    }

    /// Takes a stored line unchanged; it was bounded when it was written.
    pub fn stored(line: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(line).map(Self)
    }

    /// Reads a field that is there, `null` too: serde would take that for an absent one.
    pub fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Self>, D::Error> {
        Self::deserialize(deserializer).map(Some)
    }

    /// The empty object.
    #[must_use]
    pub fn empty_object() -> Self {
        Self(RawValue::from_string("{}".to_owned()).unwrap_or_default())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// Returns it as text for people; of a long one the beginning, the end and the size.
    #[must_use]
    pub fn shown(&self) -> String {
        let text = self.as_str();
        let [head, tail] = JSON_SHOWN;
        if text.len() <= head + tail {
            return text.to_owned();
        }
        let (head, tail) = (text.floor_char_boundary(head), text.ceil_char_boundary(text.len() - tail));
        let (left_out, size) = (tail - head, text.len());
        format!("{}\n[... {left_out} of {size} bytes left out ...]\n{}", &text[..head], &text[tail..])
    }

    /// Decodes it.
    ///
    /// # Errors
    /// Returns the decoder's error.
    pub fn decode<'a, T: Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.0.get())
    }
}

/// Removes white space between tokens. Refuses brackets that nest too deep and too many keys, with the reason.
fn compact_json(text: &str, keys_max: usize) -> Result<String, String> {
    let mut compact = String::with_capacity(text.len());
    // The text between `from` and `at` is not yet copied.
    let (mut from, mut at, mut depth, mut keys) = (0, 0, 0_usize, 0_usize);
    while let Some(&byte) = text.as_bytes().get(at) {
        match byte {
            b'"' => {
                at += string_bytes(&text[at..]);
                continue;
            }
            b' ' | b'\n' | b'\r' | b'\t' => {
                compact.push_str(&text[from..at]);
                at += 1;
                from = at;
                // White space may only vanish beside punctuation or more of it: `1 2` must not become `12`.
                let last = compact.chars().next_back();
                if last.is_some_and(|last| !"{}[],:\" ".contains(last)) {
                    compact.push(' ');
                }
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b':' => keys += 1,
            _ => {}
        }
        if depth > JSON_DEPTH_MAX {
            return Err(format!("JSON nests deeper than {JSON_DEPTH_MAX} levels"));
        }
        if keys > keys_max {
            return Err(format!("JSON has more than {keys_max} keys"));
        }
        if from == at && b"{}[],:".contains(&byte) && compact.ends_with(' ') {
            compact.pop();
        }
        at += 1;
    }
    compact.push_str(&text[from..]);
    if compact.ends_with(' ') {
        compact.pop();
    }
    Ok(compact)
}

/// Splits JSON into strings, words with numbers, and single characters of everything else.
pub fn tokens(json: &str) -> impl Iterator<Item = &str> {
    let mut rest = json;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
        let word_bytes = || rest.bytes().take_while(is_word).count().max(first.len_utf8());
        let (token, after) = rest.split_at(if first == '"' { string_bytes(rest) } else { word_bytes() });
        rest = after;
        Some(token)
    })
}

/// Length of the string that `json` begins with.
pub fn string_bytes(json: &str) -> usize {
    let mut end = 1;
    while let Some(text) = json.get(end..).and_then(|rest| rest.find('"')) {
        let is_escape = |byte: &&u8| **byte == b'\\';
        let escapes = json.as_bytes()[end..end + text].iter().rev().take_while(is_escape).count();
        end += text + 1;
        // An escape may itself be escaped.
        if escapes % 2 == 0 {
            return end;
        }
    }
    json.len()
}

impl fmt::Debug for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl PartialEq for RawJson {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Serialize for RawJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RawJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Self::parse(raw.get()).map_err(D::Error::custom)
    }
}

impl JsonSchema for RawJson {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "RawJson".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!(true)
    }
}
