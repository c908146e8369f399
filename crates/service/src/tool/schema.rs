//! Schema of a tool's arguments, compiled once. It is bounded, fetches nothing, and its patterns take linear time.

use std::sync::OnceLock;

use jsonschema::{PatternOptions, Validator};
use serde_json::Value;

use super::{prefix, work};
use crate::session::message::RawJson;

/// Bytes of a schema.
const SCHEMA_BYTES_MAX: usize = 64 * 1024;
/// Depth of a schema.
const SCHEMA_DEPTH_MAX: usize = 32;
/// Patterns of a schema: each takes milliseconds to compile.
const PATTERNS_MAX: usize = 64;
/// Bytes of a compiled pattern.
const PATTERN_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of the reason why arguments do not fit.
const REASON_BYTES_MAX: usize = 512;

/// Schema that arguments are checked with.
pub(super) struct ArgumentSchema {
    text: RawJson,
    compiled: OnceLock<Result<Compiled, String>>,
}

struct Compiled {
    validator: Validator,
    schema: Value,
}

/// Counts the patterns of a schema, each of which takes milliseconds to compile.
pub(crate) fn patterns_of(schema: &RawJson) -> usize {
    serde_json::from_str(schema.as_str()).map_or(0, |schema| patterns(&schema))
}

/// Checks that a schema can be used for arguments.
///
/// # Errors
/// Says why not.
pub fn check_schema(schema: &RawJson) -> Result<(), String> {
    Compiled::of(schema).map(drop)
}

impl ArgumentSchema {
    /// Compiles a schema.
    ///
    /// # Errors
    /// Says why it cannot be used.
    pub(super) fn compile(schema: &RawJson) -> Result<Self, String> {
        let compiled = OnceLock::from(Ok(Compiled::of(schema)?));
        Ok(Self { text: schema.clone(), compiled })
    }

    /// Takes a schema that was checked before; the first arguments compile it.
    pub(super) fn checked(schema: &RawJson) -> Self {
        Self { text: schema.clone(), compiled: OnceLock::new() }
    }

    /// Checks arguments.
    ///
    /// # Errors
    /// Says what does not fit, and where, without the values.
    pub(super) fn check(&self, arguments: &RawJson) -> Result<(), String> {
        self.compiled.get_or_init(|| Compiled::of(&self.text)).as_ref().map_err(Clone::clone)?.check(arguments)
    }
}

impl Compiled {
    fn of(schema: &RawJson) -> Result<Self, String> {
        let text = schema.as_str();
        if text.len() > SCHEMA_BYTES_MAX {
            return Err(format!("its schema has {} bytes; {SCHEMA_BYTES_MAX} are allowed", text.len()));
        }
        let value: Value = serde_json::from_str(text).map_err(|error| format!("its schema is not JSON: {error}"))?;
        if !value.is_object() {
            return Err("its schema is not a JSON object".to_owned());
        }
        if depth(&value) > SCHEMA_DEPTH_MAX {
            return Err(format!("its schema is more than {SCHEMA_DEPTH_MAX} levels deep"));
        }
        if patterns(&value) > PATTERNS_MAX {
            return Err(format!("its schema has more than {PATTERNS_MAX} patterns"));
        }
        work::check_schema(&value)?;
        let patterns = PatternOptions::regex().size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX);
        let options = jsonschema::options().offline().should_validate_formats(false).with_pattern_options(patterns);
        let refused = |error: &dyn std::fmt::Display| {
            format!("its schema cannot be used: {}", prefix(&error.to_string(), REASON_BYTES_MAX))
        };
        let validator = options.build(&value).map_err(|error| refused(&error))?;
        Ok(Self { validator, schema: value })
    }

    fn check(&self, arguments: &RawJson) -> Result<(), String> {
        let value: Value = serde_json::from_str(arguments.as_str()).map_err(|error| error.to_string())?;
        work::check_work(&self.schema, &value)?;
        self.validator.validate(&value).map_err(|error| {
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

/// Counts the patterns of texts and of names, which the parser has bounded.
fn patterns(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(patterns).sum(),
        Value::Object(fields) => {
            let own = |(key, value): (&String, &Value)| match (key.as_str(), value) {
                ("pattern", Value::String(_)) => 1,
                ("patternProperties", Value::Object(named)) => named.len(),
                _ => 0,
            };
            fields.iter().map(own).sum::<usize>() + fields.values().map(patterns).sum::<usize>()
        }
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
    fn a_schema_that_was_checked_before_checks_arguments_too() {
        let checked = |schema: &str, arguments: &str| {
            ArgumentSchema::checked(&RawJson::parse(schema).unwrap()).check(&RawJson::parse(arguments).unwrap())
        };
        let schema = r#"{"type":"object","required":["n"]}"#;
        assert_eq!(checked(schema, r#"{"n":1}"#), Ok(()));
        assert!(checked(schema, "{}").unwrap_err().contains("required property"));
        // By another program, or a file that somebody changed.
        assert!(checked(r#"{"type":"nothing"}"#, "{}").unwrap_err().contains("cannot be used"));
    }

    /// Five hundred tools with thousands each would have been compiled for an hour.
    #[test]
    fn the_patterns_of_a_schema_are_bounded() {
        let with = |texts: usize, names: usize| {
            let text = |n: usize| (format!("t{n}"), serde_json::json!({ "pattern": format!("^a{n}$") }));
            let name = |n: usize| (format!("^b{n}$"), serde_json::json!({}));
            let (texts, names): (serde_json::Map<_, _>, serde_json::Map<_, _>) =
                ((0..texts).map(text).collect(), (0..names).map(name).collect());
            compile(&serde_json::json!({ "properties": texts, "patternProperties": names }).to_string()).map(drop)
        };
        assert_eq!(with(32, 32), Ok(()));
        for (texts, names) in [(33, 32), (0, 65), (65, 0)] {
            assert!(with(texts, names).unwrap_err().contains("more than 64 patterns"), "{texts} {names}");
        }
        assert!(compile(r#"{"properties":{"pattern":{"type":"string"}}}"#).is_ok());
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

    /// Each part has two references to the next, so that a naive check takes 2^n steps.
    fn doubling(kind: &str, parts: usize) -> String {
        let two = |to: String| match kind {
            "allOf" => format!(r##"{{"allOf":[{{"$ref":"{to}"}},{{"$ref":"{to}"}}]}}"##),
            "both" => {
                format!(r##"{{"properties":{{"n":{{"$ref":"{to}"}}}},"patternProperties":{{"n":{{"$ref":"{to}"}}}}}}"##)
            }
            other => format!(
                r##"{{"{other}":[{{"properties":{{"n":{{"$ref":"{to}"}}}}}},{{"properties":{{"n":{{"$ref":"{to}"}}}}}}]}}"##
            ),
        };
        let part = |n: usize| format!(r##""p{n}":{}"##, two(format!("#/$defs/p{}", n + 1)));
        let parts: Vec<String> = (0..parts).map(part).chain([format!(r#""p{parts}":{{}}"#)]).collect();
        format!(r##"{{"$ref":"#/$defs/p0","$defs":{{{}}}}}"##, parts.join(","))
    }

    fn nested(levels: usize) -> RawJson {
        RawJson::parse(&format!("{}{{}}{}", r#"{"n":"#.repeat(levels), "}".repeat(levels))).unwrap()
    }

    /// A few references made a check that never ended.
    #[test]
    fn references_that_double_take_no_exponential_time() {
        assert!(compile(&doubling("allOf", 40)).err().unwrap().contains("too much work"));
        assert!(compile(&doubling("allOf", 12)).is_ok(), "thousands of steps are no harm");
        for kind in ["both", "anyOf", "oneOf"] {
            // The work depends on the arguments.
            let schema = compile(&doubling(kind, 60)).unwrap();
            assert!(schema.check(&nested(60)).unwrap_err().contains("too much work"), "{kind}");
            assert!(kind == "oneOf" || schema.check(&nested(8)).is_ok(), "{kind}");
        }
        let two = r##"{"anyOf":[{"properties":{"n":{"$ref":"#"}}},{"properties":{"n":{"$ref":"#"}}}]}"##;
        let recursive = [two, &two.replace("anyOf", "allOf")];
        for schema in recursive.map(|schema| compile(schema).unwrap()) {
            assert!(schema.check(&nested(60)).unwrap_err().contains("too much work"));
            assert_eq!(schema.check(&nested(8)), Ok(()));
        }
        // What honest tools have: a tree, as deep as JSON may be.
        let tree =
            compile(r##"{"type":"object","properties":{"n":{"$ref":"#"},"m":{"items":{"$ref":"#"}}}}"##).unwrap();
        assert_eq!(tree.check(&nested(60)), Ok(()));
    }

    #[test]
    fn references_are_counted_and_lead_to_a_part() {
        let many = vec![r##"{"$ref":"#/$defs/a"}"##; 1_001].join(",");
        let many = format!(r#"{{"anyOf":[{many}],"$defs":{{"a":{{}}}}}}"#);
        // Each part refers to the next: a check of as many parts within each other would end the process.
        let part = |n| format!(r##""p{n}":{{"$ref":"#/$defs/p{}"}}"##, n + 1);
        let chain: Vec<String> = (0..900).map(part).chain([r#""p900":{}"#.to_owned()]).collect();
        let chain = format!(r##"{{"$ref":"#/$defs/p0","$defs":{{{}}}}}"##, chain.join(","));
        for (schema, words) in [
            (&*many, "more than 1000 references"),
            (&chain, "too much work"),
            (r##"{"$ref":"#name","$defs":{"a":{"$anchor":"name"}}}"##, "is not a path"),
            (r##"{"$ref":"#/default","default":{"$ref":"https://a/b"}}"##, "is not a path"),
            (r##"{"$ref":"#/a/%65num/0","a":{"enum":[{"$ref":"https://a/b"}]}}"##, "is not a path"),
            (r##"{"$ref":"#/a/properties","a":{"properties":{"properties":{"enum":{}}}}}"##, "is not a path"),
            (r##"{"properties":{"default":{"$ref":"https://a/b"}}}"##, "is not a path"),
            (r##"{"dependentSchemas":{"enum":{"$ref":"https://a/b"}}}"##, "is not a path"),
            (r##"{"properties":{"a":{"$id":"https://a/b","$ref":"#/c"}}}"##, "of its own"),
            (r##"{"allOf":[{"$ref":"#/$defs/a"}],"$defs":{"a":{"allOf":[{"$ref":"#/$defs/a"}]}}}"##, "without end"),
        ] {
            let refusal = compile(schema).err().unwrap();
            assert!(refusal.contains(words), "{refusal}");
        }
        let data = r##"{"properties":{"a":{"default":{"$ref":"main"},"examples":[{"$ref":"main","$id":"x"}]},
            "default":{"enum":[{"$ref":"main"}]},"b":{"const":{"$ref":"#x"}},"c":{"$ref":"#/properties/default"}}}"##;
        let schema = compile(data).unwrap();
        for (arguments, fits) in [(r#"{"c":{"$ref":"main"}}"#, true), (r#"{"c":{"$ref":"other"}}"#, false)] {
            assert_eq!(schema.check(&RawJson::parse(arguments).unwrap()).is_ok(), fits, "{arguments}");
        }
        let odd = r##"{"properties":{"a":{"$ref":"#/$defs/List%3Ca~1b%3E"}},"$defs":{"List<a/b>":{"type":"string"}}}"##;
        assert!(compile(odd).unwrap().check(&RawJson::parse(r#"{"a":1}"#).unwrap()).is_err());
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
