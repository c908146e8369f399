//! Schemas of tools' arguments, compiled once, and of turns' answers. They are bounded, fetch nothing, and their patterns
//! take linear time.

use std::sync::OnceLock;

use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::Value;

use super::{prefix, work};
use crate::{SessionError, output::OutputError, session::message::RawJson};

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
/// Bytes of an answer by a schema.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;
/// Work of an answer of which all errors are looked for; of one with more the first is named.
const LISTED_WORK_MAX: u64 = 10_000;
/// Errors of an answer that are named.
const ERRORS_MAX: usize = 16;
/// Bytes of a place in an answer, whose names the model chose.
const PATH_BYTES_MAX: usize = 256;

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

/// Checks that a turn's answer can have this schema.
///
/// # Errors
/// Says why not.
pub(crate) fn check_answer_schema(schema: &RawJson) -> Result<(), String> {
    // A vendor's own mode and its tools take only schemas of objects.
    match Compiled::of(schema)?.schema.get("type") {
        Some(Value::String(kind)) if kind == "object" => Ok(()),
        _ => Err("its schema is not of an object: write \"type\": \"object\", and put other values in its properties"
            .to_owned()),
    }
}

/// Checks a turn's answer: one JSON value that fits the schema, with nothing but white space around it.
///
/// # Errors
/// Lists what does not fit, and where, without the values.
pub(crate) fn check_answer(schema: &RawJson, answer: &str) -> Result<(), Vec<OutputError>> {
    let whole = |message: String| vec![OutputError { path: String::new(), message }];
    let answer = answer.trim();
    if answer.len() > ANSWER_BYTES_MAX {
        return Err(whole(format!("it has {} bytes; {ANSWER_BYTES_MAX} are allowed", answer.len())));
    }
    let answer = RawJson::parse(answer).map_err(|error| match error {
        SessionError::InvalidRequest { message, .. } => whole(message),
        error => whole(error.to_string()),
    })?;
    Compiled::of(schema).map_err(whole)?.check_all(&answer)
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

    /// Checks an answer; lists what does not fit.
    fn check_all(&self, answer: &RawJson) -> Result<(), Vec<OutputError>> {
        let error = |path: &str, message: &str| OutputError {
            path: prefix(path, PATH_BYTES_MAX).to_owned(),
            message: prefix(message, REASON_BYTES_MAX).to_owned(),
        };
        let value: Value = answer.decode().map_err(|why| vec![error("", &why.to_string())])?;
        let work = work::check_work(&self.schema, &value).map_err(|why| vec![error("", &why)])?;
        let named = |why: ValidationError<'_>| error(why.instance_path().as_str(), &why.masked().to_string());
        if work > LISTED_WORK_MAX {
            return self.validator.validate(&value).map_err(|why| vec![named(why)]);
        }
        let errors: Vec<OutputError> = self.validator.iter_errors(&value).take(ERRORS_MAX).map(named).collect();
        if errors.is_empty() { Ok(()) } else { Err(errors) }
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

    fn checked(schema: &str, answer: &str) -> Vec<String> {
        let errors = check_answer(&RawJson::parse(schema).unwrap(), answer).err().unwrap_or_default();
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_place_of_an_answer_that_does_not_fit_is_named() {
        let schema = r#"{"type":"object","properties":{"a/b":{"type":"array","items":{"type":"integer"}},"on":{"format":
            "date","maxLength":3}},"required":["c"]}"#;
        assert_eq!(checked(schema, " \n{\"a/b\":[1,2.0],\"c\":1e2}\t"), [""; 0]);
        let mut errors = checked(schema, r#"{"a/b":[1,"x",1.5],"on":"long"}"#);
        errors.sort_unstable();
        let due = [
            r#""c" is a required property"#,
            r#"/a~1b/1: value is not of type "integer""#,
            r#"/a~1b/2: value is not of type "integer""#,
            "/on: value is longer than 3 characters",
        ];
        assert_eq!(errors, due);
        for (answer, why) in [
            ("", "not valid JSON: EOF"),
            ("{", "not valid JSON: EOF"),
            ("{} {}", "not valid JSON: trailing characters"),
            ("```json\n{}\n```", "not valid JSON: expected value"),
            ("{\"c\":NaN}", "not valid JSON: expected value"),
            ("[]", r#"value is not of type "object""#),
        ] {
            let errors = checked(schema, answer);
            assert!(errors[0].starts_with(why), "{answer}: {errors:?}");
        }
    }

    /// A hostile model must not cost more than an honest one.
    #[test]
    fn an_answer_is_bounded() {
        let numbers = r#"{"type":"object","properties":{"a":{"items":{"type":"string"}}}}"#;
        let many = |count: usize| format!(r#"{{"a":[{}0]}}"#, "0,".repeat(count));
        assert_eq!(checked(numbers, &many(1_000)).len(), ERRORS_MAX);
        assert_eq!(checked(numbers, &many(15_000)).len(), 1, "one of an answer that makes much work");
        // Each name that is missing is an error, and each value of a list is compared.
        let names = |count: usize| serde_json::json!((0..count).map(|n| format!("n{n}")).collect::<Vec<_>>());
        let things = |count: usize| format!(r#"{{"a":[{}{{}}]}}"#, "{},".repeat(count));
        let of = |items: Value| serde_json::json!({ "properties": { "a": { "items": items } } }).to_string();
        let required = of(serde_json::json!({ "required": names(100) }));
        let errors = [9, 200, 9_000].map(|count| checked(&required, &things(count)));
        assert_eq!((errors[0].len(), errors[1].len()), (ERRORS_MAX, 1));
        assert!(errors[2][0].contains("too much work"), "{:?}", errors[2]);
        let dependent = of(serde_json::json!({ "dependentRequired": { "m": names(100) } }));
        assert!(checked(&dependent, &things(9_000))[0].contains("too much work"));
        let listed = of(serde_json::json!({ "enum": names(1_000) }));
        assert!(checked(&listed, &many(600))[0].contains("too much work"));
        let long = format!(r#"{{"{}":1}}"#, "x".repeat(ANSWER_BYTES_MAX));
        assert_eq!(checked("{}", &long), [format!("it has {} bytes; 1048576 are allowed", long.len())]);
        assert_eq!(checked("{}", &" ".repeat(8 * 1024 * 1024))[0], checked("{}", "")[0]);
        let deep = format!("{}1{}", "[".repeat(500_000), "]".repeat(500_000));
        assert_eq!(checked("{}", &deep), ["JSON nests deeper than 64 levels"]);
        let keys: Vec<String> = (0..10_001).map(|n| format!("\"k{n}\":1")).collect();
        assert_eq!(checked("{}", &format!("{{{}}}", keys.join(","))), ["JSON has more than 10000 keys"]);
        let name = "n".repeat(1_000);
        let named = check_answer(
            &RawJson::parse(r#"{"additionalProperties":false,"patternProperties":{"^n":false}}"#).unwrap(),
            &format!(r#"{{"{name}":1,"{}":2}}"#, "m".repeat(10_000)),
        );
        let is_bounded =
            |error: &OutputError| error.path.len() <= PATH_BYTES_MAX && error.message.len() <= REASON_BYTES_MAX;
        assert!(named.unwrap_err().iter().all(is_bounded));
        // Its patterns take linear time, and its references are counted.
        let slow = r#"{"properties":{"a":{"pattern":"^(a+)+$"}}}"#;
        assert_eq!(checked(slow, &format!(r#"{{"a":"{}!"}}"#, "a".repeat(100_000))).len(), 1);
        assert!(checked(&doubling("anyOf", 60), nested(60).as_str())[0].contains("too much work"));
    }

    #[test]
    fn the_schema_of_an_answer_is_of_an_object() {
        let checked = |schema: &str| check_answer_schema(&RawJson::parse(schema).unwrap());
        assert_eq!(checked(r#"{"type":"object"}"#), Ok(()));
        for schema in ["{}", r#"{"type":"array"}"#, r#"{"type":["object"]}"#, r#"{"anyOf":[{"type":"object"}]}"#] {
            assert!(checked(schema).unwrap_err().starts_with("its schema is not of an object"), "{schema}");
        }
        assert!(checked("[]").unwrap_err().contains("not a JSON object"));
        assert!(checked(r#"{"type":"object","required":1}"#).unwrap_err().contains("cannot be used"));
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
