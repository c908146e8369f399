//! Schema of a tool's arguments, compiled once. It is bounded, fetches nothing, and its patterns take linear time.

use jsonschema::{PatternOptions, Validator};
use serde_json::Value;

use super::prefix;
use crate::session::message::RawJson;

/// Bytes of a schema.
const SCHEMA_BYTES_MAX: usize = 64 * 1024;
/// Depth of a schema.
const SCHEMA_DEPTH_MAX: usize = 32;
/// Bytes of a compiled pattern.
const PATTERN_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of the reason why arguments do not fit.
const REASON_BYTES_MAX: usize = 512;

/// Schema that arguments are checked with.
pub(super) struct ArgumentSchema(Validator);

impl ArgumentSchema {
    /// Compiles a schema.
    ///
    /// # Errors
    /// Says why it cannot be used.
    pub(super) fn compile(schema: &RawJson) -> Result<Self, String> {
        let text = schema.as_str();
        if text.len() > SCHEMA_BYTES_MAX {
            return Err(format!("its schema has {} bytes; {SCHEMA_BYTES_MAX} are allowed", text.len()));
        }
        let value: Value = serde_json::from_str(text).map_err(|error| format!("its schema is no JSON: {error}"))?;
        if !value.is_object() {
            return Err("its schema is no JSON object".to_owned());
        }
        if depth(&value) > SCHEMA_DEPTH_MAX {
            return Err(format!("its schema is more than {SCHEMA_DEPTH_MAX} levels deep"));
        }
        let patterns = PatternOptions::regex().size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX);
        let options = jsonschema::options().offline().should_validate_formats(false).with_pattern_options(patterns);
        let refused = |error: &dyn std::fmt::Display| {
            format!("its schema cannot be used: {}", prefix(&error.to_string(), REASON_BYTES_MAX))
        };
        options.build(&value).map(Self).map_err(|error| refused(&error))
    }

    /// Checks arguments.
    ///
    /// # Errors
    /// Says what does not fit, and where, without the values.
    pub(super) fn check(&self, arguments: &RawJson) -> Result<(), String> {
        let value: Value = serde_json::from_str(arguments.as_str()).map_err(|error| error.to_string())?;
        self.0.validate(&value).map_err(|error| {
            let place = match error.instance_path().as_str() {
                "" => String::new(),
                path => format!("{path}: "),
            };
            let why = format!("{place}{} (schema {})", error.masked(), error.schema_path());
            prefix(&why, REASON_BYTES_MAX).to_owned()
        })
    }
}

/// Counts the levels of a value, which the parser has bounded.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compile(schema: &str) -> Result<ArgumentSchema, String> {
        ArgumentSchema::compile(&RawJson::parse(schema).unwrap())
    }

    #[test]
    fn arguments_that_do_not_fit_are_refused_with_their_place() {
        let schema = r#"{"type":"object","properties":{"n":{"type":"integer","maximum":9},"a":{"items":{"type":"string"}}},
            "required":["n"],"additionalProperties":false}"#;
        let schema = compile(schema).unwrap();
        for (arguments, expected) in [
            (r#"{"n":1,"a":["x"]}"#, None),
            ("{}", Some(r#""n" is a required property (schema /required)"#)),
            (r#"{"n":"secret"}"#, Some(r#"/n: value is not of type "integer" (schema /properties/n/type)"#)),
            (
                r#"{"n":1,"a":["x",2]}"#,
                Some(r#"/a/1: value is not of type "string" (schema /properties/a/items/type)"#),
            ),
        ] {
            let arguments = RawJson::parse(arguments).unwrap();
            assert_eq!(schema.check(&arguments).err().as_deref(), expected, "{}", arguments.as_str());
        }
    }

    #[test]
    fn a_schema_that_cannot_be_used_is_refused() {
        let deep = format!("{}{{}}{}", r#"{"not":"#.repeat(33), "}".repeat(33));
        let long = format!(r#"{{"description":"{}"}}"#, "x".repeat(SCHEMA_BYTES_MAX));
        for schema in [
            "[]",
            "5",
            &deep,
            &long,
            r#"{"type":"nothing"}"#,
            r#"{"$ref":"https://example.com/schema.json"}"#,
            r#"{"$ref":"file:///etc/passwd"}"#,
            r#"{"properties":{"a":{"$ref":"other.json#/b"}}}"#,
            r##"{"$ref":"#/nowhere"}"##,
            r#"{"properties":{"a":{"pattern":"(a+)\\1"}}}"#,
            r#"{"properties":{"a":{"pattern":"(((a{1000}){1000}){1000})"}}}"#,
        ] {
            assert!(compile(schema).is_err(), "{}", prefix(schema, 80));
        }
    }

    /// A schema may refer to itself; one that does nothing else must not end the process.
    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        for schema in [
            r##"{"properties":{"next":{"$ref":"#"}}}"##,
            r##"{"$ref":"#"}"##,
            r##"{"allOf":[{"$ref":"#"}]}"##,
            r##"{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}"##,
        ] {
            let checked =
                compile(schema).map(|schema| schema.check(&RawJson::parse(r#"{"next":{}}"#).unwrap()).is_ok());
            assert_ne!(checked, Ok(false), "{schema}");
        }
    }
}
