//! Compares expectations with answers, and names the first difference.
//!
//! Nothing here knows an operation or a surface.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::scenario::Refusal;

/// The id of no session; it is well-formed.
pub const UNKNOWN_SESSION: &str = "01900000-0000-7000-8000-000000000001";

/// Each capability with the code and the text that the specification gives for its absence.
pub const ABSENCES: [(&str, &str, &str); 3] = [
    (
        "session-store",
        "SESSION_PERSISTENCE_DISABLED",
        "Session persistence is disabled (build without 'session-store').",
    ),
    ("memory-store", "MEMORY_STORE_DISABLED", "Semantic memory is disabled (build without 'memory-store')."),
    (
        "session-compaction",
        "SESSION_COMPACTION_DISABLED",
        "Session compaction is disabled (build without 'session-compaction').",
    ),
];

/// The refusal for a capability that is switched off.
pub fn switched_off(capability: &str) -> Result<Refusal, String> {
    let switch = if capability == "memory-store" { "memory.enabled = false" } else { "store.enabled = false" };
    because(capability, switch, "configured")
}

/// The refusal for a capability that a Rust program has not set.
pub fn unset(capability: &str) -> Result<Refusal, String> {
    let what = if capability == "memory-store" { "memory" } else { "store" };
    let why = format!("AgentBuildConfig has no {what}; set one with `.{what}(…)`");
    because(capability, &why, "not_set")
}

/// The refusal for a capability that is absent for another reason than the build.
fn because(capability: &str, why: &str, reason: &str) -> Result<Refusal, String> {
    let mut refusal = absence(capability)?;
    let built = format!("build without '{capability}'");
    refusal.message = refusal.message.map(|message| message.replace(&built, why));
    refusal.details = serde_json::json!({ "reason": reason });
    Ok(refusal)
}

/// The refusal for a capability that is absent.
pub fn absence(capability: &str) -> Result<Refusal, String> {
    let found = ABSENCES.iter().find(|(name, ..)| *name == capability);
    let (_, code, message) = found.ok_or_else(|| format!("there is no capability {capability:?}"))?;
    let message = Some((*message).to_owned());
    Ok(Refusal { code: (*code).to_owned(), message, retryable: false, details: Value::Object(Map::new()) })
}

/// The values that a scenario has named so far.
#[derive(Debug)]
pub struct Names {
    values: BTreeMap<String, Value>,
    /// Names of sessions.
    sessions: BTreeSet<String>,
    /// Names of sessions that ended with their process.
    gone: BTreeSet<String>,
}

impl Default for Names {
    fn default() -> Self {
        let unknown = ("unknown".to_owned(), UNKNOWN_SESSION.into());
        Self { values: BTreeMap::from([unknown]), sessions: BTreeSet::new(), gone: BTreeSet::new() }
    }
}

impl Names {
    /// Marks all sessions so far as ended with their process.
    pub fn end_sessions(&mut self) {
        self.gone.append(&mut self.sessions);
    }

    /// Whether `name`, with its `$`, names a session that ended with its process or was never created.
    pub fn is_gone(&self, name: &str) -> bool {
        let Some(name) = name.strip_prefix('$') else { return false };
        self.gone.contains(name) || !self.values.contains_key(name)
    }

    /// Parameters with their names replaced by values; a session that ended with its process by an unknown one.
    pub fn fill(&self, value: &Value) -> Result<Value, String> {
        self.filled(value, None)
    }

    /// Like [`Self::fill`], for a request that the build refuses: names without a value become empty.
    pub fn fill_refused(&self, value: &Value) -> Result<Value, String> {
        self.filled(value, Some(""))
    }

    fn filled(&self, value: &Value, missing: Option<&str>) -> Result<Value, String> {
        match value {
            Value::String(text) if text == "$null" => Ok(Value::Null),
            Value::String(text) => match text.strip_prefix('$') {
                Some(name) => {
                    let known = self.values.get(name).cloned().or_else(|| missing.map(Value::from));
                    known.ok_or_else(|| format!("nothing is named ${name} yet"))
                }
                None => Ok(value.clone()),
            },
            Value::Array(items) => items.iter().map(|item| self.filled(item, missing)).collect(),
            Value::Object(members) => members
                .iter()
                .map(|(name, member)| match member {
                    Value::String(text) if name == "session_id" && self.is_gone(text) => {
                        Ok((name.clone(), UNKNOWN_SESSION.into()))
                    }
                    member => Ok((name.clone(), self.filled(member, missing)?)),
                })
                .collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(value.clone()),
        }
    }

    /// Compares; names that have no value yet take the one that came.
    pub fn compare(&mut self, expected: &Value, came: &Value, is_partial: bool) -> Result<(), String> {
        self.at("answer", expected, came, is_partial)
    }

    fn at(&mut self, path: &str, expected: &Value, came: &Value, is_partial: bool) -> Result<(), String> {
        let differs = |expected: &Value| Err(format!("{path} should be {expected}, but is {came}"));
        match (expected, came) {
            (Value::String(text), _) if text.starts_with('$') => self.special(path, text, came),
            (Value::Object(expected), Value::Object(members)) => {
                for (name, expected) in expected {
                    let path = format!("{path}.{name}");
                    let member = members.get(name).ok_or_else(|| format!("{path} is missing"))?;
                    self.at(&path, expected, member, is_partial)?;
                }
                match members.keys().find(|name| !is_partial && !expected.contains_key(*name)) {
                    Some(name) => Err(format!("{path}.{name} is there, but is not expected")),
                    None => Ok(()),
                }
            }
            (Value::Array(expected), Value::Array(items)) => {
                if expected.len() != items.len() {
                    let count = expected.len();
                    return Err(format!("{path} should have {count} items, but has {}: {came}", items.len()));
                }
                for (index, (expected, item)) in expected.iter().zip(items).enumerate() {
                    self.at(&format!("{path}[{index}]"), expected, item, is_partial)?;
                }
                Ok(())
            }
            (expected, came) if expected == came => Ok(()),
            (expected, _) => differs(expected),
        }
    }

    fn special(&mut self, path: &str, text: &str, came: &Value) -> Result<(), String> {
        let name = text.trim_start_matches('$');
        let is_right = match (name, text.strip_prefix("$contains "), self.values.get(name)) {
            ("any", ..) => true,
            ("null", ..) => came.is_null(),
            (_, Some(part), _) => came.as_str().is_some_and(|came| came.contains(part)),
            (_, None, Some(known)) => known == came,
            (_, None, None) => {
                if path.ends_with(".session_id") {
                    self.sessions.insert(name.to_owned());
                }
                self.values.insert(name.to_owned(), came.clone());
                true
            }
        };
        if is_right { Ok(()) } else { Err(format!("{path} should be {text}, but is {came}")) }
    }

    /// Compares a refusal: all four members of the body.
    pub fn compare_refusal(&mut self, expected: &Refusal, came: &Value) -> Result<(), String> {
        let message = expected.message.clone().unwrap_or_else(|| "$contains ".to_owned());
        let expected = serde_json::json!({
            "code": expected.code,
            "message": message,
            "retryable": expected.retryable,
            "details": expected.details,
        });
        self.at("error", &expected, came, false)
    }

    /// Compares an event's line: byte for byte with a whole line, or in some members with a table.
    pub fn compare_line(&mut self, expected: &Value, line: &str) -> Result<(), String> {
        let decoded: Value = serde_json::from_str(line).map_err(|error| format!("{line} is no JSON: {error}"))?;
        let Value::String(template) = expected else { return self.at("event", expected, &decoded, true) };
        // Names are bound and compared as values first, so the rest is a comparison of bytes.
        let whole: Value = serde_json::from_str(template).map_err(|error| format!("{template} is no JSON: {error}"))?;
        self.at("event", &whole, &decoded, false)?;
        let mut rest = line;
        let parts = self.literals(template);
        for (index, part) in parts.iter().enumerate() {
            let place = match index {
                0 => rest.starts_with(part).then_some(0),
                _ if index + 1 == parts.len() => rest.strip_suffix(part.as_str()).map(str::len),
                _ => rest.find(part),
            };
            let place = place.ok_or_else(|| format!("the line should be\n  {template}\nbut is\n  {line}"))?;
            rest = &rest[place + part.len()..];
        }
        if rest.is_empty() { Ok(()) } else { Err(format!("the line should end as {template}, but is {line}")) }
    }

    /// The pieces of a line between its `"$any"`s, with every name replaced by its value.
    fn literals(&self, template: &str) -> Vec<String> {
        let fill = |piece: &str| {
            let mut piece = piece.to_owned();
            for (name, value) in &self.values {
                piece = piece.replace(&format!("\"${name}\""), &value.to_string());
            }
            piece
        };
        template.split("\"$any\"").map(fill).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn anything_in_a_line_may_be_an_object_and_the_rest_is_compared_by_bytes() {
        let compare = |expected: &str, line| Names::default().compare_line(&json!(expected), line);
        assert!(compare(r#"{"a":1,"b":"$any"}"#, r#"{"a":1,"b":{"c":{}}}"#).is_ok());
        assert!(compare(r#"{"a":1,"b":"$any","d":2}"#, r#"{"a":1,"b":{"c":{}},"d":2}"#).is_ok());
        assert!(compare(r#"{"a":1,"b":"$any"}"#, r#"{"a": 1,"b":{"c":{}}}"#).is_err());
        assert!(compare(r#"{"a":1,"b":"$any","d":2}"#, r#"{"a":1,"b":{"c":{}},"d": 2}"#).is_err());
    }

    #[test]
    fn an_object_has_exactly_its_members() {
        let mut names = Names::default();
        assert!(names.compare(&json!({"a": 1}), &json!({"a": 1}), false).is_ok());
        assert!(names.compare(&json!({"a": 1}), &json!({"a": 1, "b": 2}), false).is_err());
        assert!(names.compare(&json!({"a": 1, "b": 2}), &json!({"a": 1}), true).is_err());
        assert!(names.compare(&json!({"a": 1}), &json!({"a": 1, "b": 2}), true).is_ok());
        assert!(names.compare(&json!([1]), &json!([1, 2]), true).is_err());
    }

    #[test]
    fn a_name_takes_the_first_value_and_keeps_it() {
        let mut names = Names::default();
        assert!(names.fill(&json!("$a")).is_err());
        assert_eq!(names.fill_refused(&json!(["$a", "$null"])).unwrap(), json!(["", null]));
        names.compare(&json!({"x": "$a", "y": "$a"}), &json!({"x": 7, "y": 7}), false).unwrap();
        assert!(names.compare(&json!("$a"), &json!(8), false).is_err());
        assert_eq!(names.fill(&json!(["$a", "$null", "plain"])).unwrap(), json!([7, null, "plain"]));
    }

    #[test]
    fn a_session_that_is_gone_is_sent_as_one_that_never_was() {
        let mut names = Names::default();
        names.compare(&json!({"session_id": "$s"}), &json!({"session_id": "x"}), false).unwrap();
        assert!(!names.is_gone("$s") && names.is_gone("$never"));
        names.end_sessions();
        assert!(names.is_gone("$s"));
        assert_eq!(names.fill(&json!({"session_id": "$s"})).unwrap(), json!({"session_id": UNKNOWN_SESSION}));
    }
}
