//! Values that a server is given, and the texts of its own that must not tell them.
//!
//! The value of a variable is the user's secret everywhere. What a file says itself, or a server chooses, is a secret in
//! sessions only if no ordinary text holds it: otherwise a project or a server could blank a word in all of them.

use meerkat_service::redact::Secrets;
use secrecy::SecretString;
use serde_json::{Map, Value};

/// Least bytes of a value that no ordinary text holds, with a digit in it and without one.
const WITH_DIGIT_MIN: usize = 12;
const WITHOUT_DIGIT_MIN: usize = 20;
/// Keys of a schema whose text is for readers alone. Other texts decide how a tool is called.
const FOR_READERS: [&str; 5] = ["$comment", "default", "description", "examples", "title"];

/// Values that a server is given.
#[derive(Default)]
pub(super) struct Given {
    /// Secrets in every session.
    pub(super) everywhere: Vec<SecretString>,
    /// Further ones in what the server says of itself.
    pub(super) here: Vec<SecretString>,
}

impl Given {
    /// Adds a value of its environment or headers.
    pub(super) fn add(&mut self, value: &str) {
        // Who gets a header often says the token in it, without its scheme.
        let token = value.split_once(' ').map(|(_, token)| token);
        for value in [value].into_iter().chain(token) {
            let is_secret = !is_ordinary(value) && !is_place(value);
            let values = if is_secret { &mut self.everywhere } else { &mut self.here };
            values.push(value.into());
        }
    }
}

/// Returns true for a value that ordinary text may hold, such as a word.
pub(super) fn is_ordinary(value: &str) -> bool {
    let has_digit = value.bytes().any(|byte| byte.is_ascii_digit());
    value.len() < if has_digit { WITH_DIGIT_MIN } else { WITHOUT_DIGIT_MIN }
}

/// Returns true for a path, or for an address without a password or a key.
fn is_place(value: &str) -> bool {
    let is_path = ["/", "./", "../", "~/"].iter().any(|start| value.starts_with(start));
    is_path || value.contains("://") && !value.contains(['@', '?'])
}

/// Replaces secrets in a listed tool. Of its schema's texts that decide how it is called, only those that are secrets
/// everywhere are replaced.
pub(super) fn clean(tool: &Value, own: &Secrets, everywhere: &Secrets) -> Value {
    match tool {
        Value::String(text) => everywhere.replace(text).into(),
        Value::Array(items) => items.iter().map(|item| clean(item, own, everywhere)).collect(),
        Value::Object(fields) => {
            let field = |(key, value): (&String, &Value)| {
                let of_value = if FOR_READERS.contains(&key.as_str()) { own } else { everywhere };
                (everywhere.replace(key).into_owned(), clean(value, own, of_value))
            };
            fields.iter().map(field).collect::<Map<_, _>>().into()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => tool.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_ordinary_and_tokens_are_not() {
        for word in ["", "production", "Authorization", "application/json", "requirements.txt", "python3.11"] {
            assert!(is_ordinary(word), "{word}");
        }
        for token in ["access-token-1", "8f14e45fceea167a", "ya29.a0AfH6SMBx", "token-of-the-fake-issuer"] {
            assert!(!is_ordinary(token), "{token}");
        }
    }
}
