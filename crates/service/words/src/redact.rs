//! Redaction: configured secret values in session texts, key shapes in logs and errors.
//!
//! A secret never leaves this module: nothing here implements `Debug` or `Serialize`.

mod keys;

use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
};

use secrecy::{ExposeSecret, SecretString};

use crate::message::{RawJson, tokens};

pub use keys::{KeyStream, redact_key_shapes};

/// Replacement for a secret.
pub const MARK: &str = "[redacted]";

/// Least bytes of a secret: replacing shorter values would garble ordinary text.
const SECRET_BYTES_MIN: usize = 8;

/// The secret values. Clones share them, so that one that is learned later is replaced everywhere.
#[derive(Clone, Default)]
pub struct Secrets(Arc<RwLock<Known>>);

#[derive(Default)]
struct Known {
    /// Values by who learned them; the configured ones have no name.
    values: BTreeMap<String, Vec<SecretString>>,
    forms: Arc<Forms>,
}

#[derive(Default)]
struct Forms {
    /// Values and their forms within a JSON string, longest first, so that the longest match wins.
    forms: Vec<SecretString>,
    /// First bytes of the forms.
    first_bytes: Vec<u8>,
}

impl Forms {
    fn of<'a>(values: impl IntoIterator<Item = &'a SecretString>) -> Self {
        let values = values.into_iter().filter(|value| value.expose_secret().len() >= SECRET_BYTES_MIN);
        let mut forms: Vec<SecretString> = values.flat_map(|value| [in_json(value), value.clone()]).collect();
        forms.sort_by(|a, b| key(b).cmp(&key(a)));
        forms.dedup_by(|a, b| key(a) == key(b));
        let mut first_bytes: Vec<u8> = forms.iter().filter_map(|form| bytes(form).first().copied()).collect();
        first_bytes.sort_unstable();
        first_bytes.dedup();
        Self { forms, first_bytes }
    }
}

impl Secrets {
    /// Takes these values, except those shorter than eight bytes.
    #[must_use]
    pub fn new(values: impl IntoIterator<Item = SecretString>) -> Self {
        let secrets = Self::default();
        secrets.learn("", values.into_iter().collect());
        secrets
    }

    /// Takes further values, instead of those that `learner` gave before.
    pub fn learn(&self, learner: &str, values: Vec<SecretString>) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        known.values.insert(learner.to_owned(), values);
        known.forms = Arc::new(Forms::of(known.values.values().flatten()));
    }

    fn forms(&self) -> Arc<Forms> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).forms.clone()
    }

    /// Returns true if there is nothing to replace.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.forms().forms.is_empty()
    }

    /// Replaces every secret by `[redacted]`.
    #[must_use]
    pub fn replace<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.scan(text, true).0
    }

    /// Replaces every secret in a JSON text by `[redacted]`, however its strings are escaped; it stays JSON.
    #[must_use]
    pub fn replace_json(&self, json: &RawJson) -> RawJson {
        if self.is_empty() {
            return json.clone();
        }
        let out = replace_tokens(json.as_str(), |value, _| self.replace(value));
        // Each replacement is a JSON string, so this fails only if the text was not JSON.
        RawJson::parse(&out).unwrap_or_else(|_| RawJson::empty_object())
    }

    /// Replaces every secret and every text that looks like a key by `[redacted]`.
    #[must_use]
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.replace(text) {
            Cow::Borrowed(text) => redact_key_shapes(text),
            Cow::Owned(text) => Cow::Owned(redact_key_shapes(&text).into_owned()),
        }
    }

    /// Redacts every string of an event's line, however it is escaped; the line stays valid.
    #[must_use]
    pub fn redact_line(&self, line: &str) -> String {
        replace_tokens(line, |value, is_string| if is_string { self.redact(value) } else { Cow::Borrowed(value) })
    }

    /// Starts redacting a text that comes in chunks.
    #[must_use]
    pub fn stream(&self) -> StreamRedactor {
        StreamRedactor { secrets: self.clone(), held: String::new() }
    }

    /// Replaces as far as can be decided; returns that text and the length that was decided.
    ///
    /// If more text may follow, the rest is the longest end that could still begin a secret.
    fn scan<'a>(&self, text: &'a str, is_whole: bool) -> (Cow<'a, str>, usize) {
        let known = self.forms();
        if known.forms.is_empty() {
            return (Cow::Borrowed(text), text.len());
        }
        let (mut replaced, mut copied, mut at, mut decided) = (String::new(), 0, 0, text.len());
        while let Some(skipped) = text.as_bytes()[at..].iter().position(|byte| known.first_bytes.contains(byte)) {
            at += skipped;
            let rest = &text.as_bytes()[at..];
            if !is_whole
                && known.forms.iter().any(|form| rest.len() < bytes(form).len() && bytes(form).starts_with(rest))
            {
                decided = at;
                break;
            }
            if let Some(form) = known.forms.iter().find(|form| rest.starts_with(bytes(form))) {
                replaced.push_str(&text[copied..at]);
                replaced.push_str(MARK);
                at += bytes(form).len();
                copied = at;
            } else {
                at += 1;
            }
        }
        if copied == 0 {
            return (Cow::Borrowed(&text[..decided]), decided);
        }
        replaced.push_str(&text[copied..decided]);
        (Cow::Owned(replaced), decided)
    }
}

fn bytes(secret: &SecretString) -> &[u8] {
    secret.expose_secret().as_bytes()
}

/// Replaces JSON tokens. `replace` gets each token's value, and true if it is a string.
fn replace_tokens(json: &str, replace: impl for<'a> Fn(&'a str, bool) -> Cow<'a, str>) -> String {
    let mut out = String::with_capacity(json.len());
    for token in tokens(json) {
        let value: Cow<'_, str> = serde_json::from_str::<String>(token).map_or(Cow::Borrowed(token), Cow::Owned);
        match replace(&value, token.starts_with('"')) {
            Cow::Borrowed(_) => out.push_str(token),
            Cow::Owned(clean) => out.push_str(&serde_json::Value::from(clean).to_string()),
        }
    }
    out
}

/// Orders forms by length, equal ones side by side.
fn key(form: &SecretString) -> (usize, &[u8]) {
    (bytes(form).len(), bytes(form))
}

/// Escapes the value as it appears within a JSON string.
fn in_json(value: &SecretString) -> SecretString {
    let quoted = serde_json::Value::from(value.expose_secret()).to_string();
    SecretString::from(&quoted[1..quoted.len() - 1])
}

/// Redactor of a text that comes in chunks, wherever it is cut.
pub struct StreamRedactor {
    secrets: Secrets,
    /// End of the text so far that could still begin a secret.
    held: String,
}

impl StreamRedactor {
    /// Starts on another text.
    #[must_use]
    pub fn restart(&self) -> Self {
        self.secrets.stream()
    }

    /// Takes a chunk, and returns the text that is decided by now.
    pub fn push<'a>(&mut self, chunk: &'a str) -> Cow<'a, str> {
        if self.held.is_empty() {
            let (ready, decided) = self.secrets.scan(chunk, false);
            self.held.push_str(&chunk[decided..]);
            return ready;
        }
        self.held.push_str(chunk);
        let (ready, decided) = self.secrets.scan(&self.held, false);
        let ready = ready.into_owned();
        self.held.drain(..decided);
        Cow::Owned(ready)
    }

    /// Returns the rest at the end of the text.
    pub fn finish(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        self.secrets.replace(&held).into_owned()
    }
}

/// Redactor of the bytes of a body that comes in chunks: as [`Secrets::redact`] does in the whole, and what is no text
/// becomes replacement characters.
pub struct BodyRedactor {
    values: StreamRedactor,
    keys: KeyStream,
    /// Beginning of a character whose rest is in the next chunk.
    cut: Vec<u8>,
}

impl BodyRedactor {
    /// Starts on a body.
    #[must_use]
    pub fn new(secrets: &Secrets) -> Self {
        Self { values: secrets.stream(), keys: KeyStream::default(), cut: Vec::new() }
    }

    /// Takes a chunk, and returns what is decided by now; after the last chunk, all of it.
    pub fn push(&mut self, chunk: &[u8], is_last: bool) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.cut);
        bytes.extend_from_slice(chunk);
        let (mut text, mut at) = (String::with_capacity(bytes.len()), 0);
        for chunk in bytes.utf8_chunks() {
            text.push_str(chunk.valid());
            at += chunk.valid().len() + chunk.invalid().len();
            if at == bytes.len() && !is_last {
                self.cut = chunk.invalid().to_vec();
            } else if !chunk.invalid().is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        let mut out = Vec::new();
        self.keys.push(self.values.push(&text).as_bytes(), false, &mut out);
        if is_last {
            self.keys.push(self.values.finish().as_bytes(), true, &mut out);
        }
        out
    }
}

#[cfg(test)]
mod tests;
