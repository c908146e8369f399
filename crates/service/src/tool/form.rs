//! Questions of a tool to a person while its call runs: what may be asked, and what is an answer. Nothing here waits.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use tokio::sync::oneshot;

use super::{is_obeyed, prefix, schema::ArgumentSchema, visible};
use crate::{SessionError, session::message::RawJson};

/// Bytes of a question's text.
const MESSAGE_BYTES_MAX: usize = 4 * 1024;
/// Bytes of a form's schema.
const SCHEMA_BYTES_MAX: usize = 16 * 1024;
/// Bytes of an answer.
const ANSWER_BYTES_MAX: usize = 16 * 1024;
/// Fields of a form.
const FIELDS_MAX: usize = 32;
/// Bytes of a field's name.
const NAME_BYTES_MAX: usize = 64;
/// Keywords of a form.
const FORM_KEYS: [&str; 6] = ["$schema", "type", "title", "description", "properties", "required"];
/// Keywords of one field.
const FIELD_KEYS: [&str; 15] = [
    "type",
    "title",
    "description",
    "default",
    "format",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "enum",
    "enumNames",
    "oneOf",
    "items",
    "minItems",
    "maxItems",
];
/// Keywords of what a field with several choices lists.
const ITEM_KEYS: [&str; 3] = ["type", "enum", "anyOf"];

/// Question to a person.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    pub(crate) server: String,
    pub(crate) message: String,
    pub(crate) schema: RawJson,
}

/// End of a question.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// A person gave this object, which fits the schema.
    Accepted(RawJson),
    /// A person declined, or nobody is there to ask.
    Declined,
    /// The call is to end.
    Cancelled,
}

/// Question on its way to a person.
#[derive(Debug)]
pub struct Asking {
    /// The question.
    pub question: Question,
    /// Takes the answer. Dropped, it cancels the question.
    pub reply: oneshot::Sender<Answer>,
}

impl Question {
    /// Makes a question of `server`, whose answer is an object of texts, numbers, booleans and choices.
    ///
    /// # Errors
    /// Says why a person cannot be asked this.
    pub fn new(server: impl Into<String>, message: &str, schema: &RawJson) -> Result<Self, String> {
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(format!("its message has {} bytes; {MESSAGE_BYTES_MAX} are allowed", message.len()));
        }
        if schema.as_str().len() > SCHEMA_BYTES_MAX {
            return Err(format!("its schema has {} bytes; {SCHEMA_BYTES_MAX} are allowed", schema.as_str().len()));
        }
        let form: Map<String, Value> = schema.decode().map_err(|_| "its schema is not a JSON object".to_owned())?;
        check_form(&form)?;
        ArgumentSchema::compile(schema)?;
        Ok(Self { server: server.into(), message: visible(message), schema: schema.clone() })
    }

    /// Returns its text, fit to be shown.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the schema of its answer.
    #[must_use]
    pub fn schema(&self) -> &RawJson {
        &self.schema
    }
}

/// Completes an answer with the defaults of the fields that it leaves out.
///
/// # Errors
/// `INVALID_REQUEST`, which names the field that does not fit.
pub fn complete(schema: &RawJson, given: Option<&RawJson>) -> Result<RawJson, SessionError> {
    let refused = |why: String| SessionError::invalid("answer", why);
    let given = given.map_or("{}", RawJson::as_str);
    if given.len() > ANSWER_BYTES_MAX {
        return Err(refused(format!("it has {} bytes; {ANSWER_BYTES_MAX} are allowed", given.len())));
    }
    // In the order of their names, whatever order `serde_json` is built with.
    let mut fields: BTreeMap<String, Value> = serde_json::from_str(given)
        .map_err(|_| refused("it must be a JSON object with the form's fields".to_owned()))?;
    let form: Value = schema.decode().map_err(|error| SessionError::Internal(error.to_string()))?;
    let none = Map::new();
    let known = form["properties"].as_object().unwrap_or(&none);
    let invalid = |name: &str, why: &str| {
        SessionError::invalid(format!("answer.{}", prefix(name, NAME_BYTES_MAX)), format!("it {why}"))
    };
    if let Some(name) = fields.keys().find(|name| !known.contains_key(*name)) {
        let names: Vec<&str> = known.keys().map(String::as_str).collect();
        return Err(invalid(name, &format!("is not a field of the form; its fields are: {}", names.join(", "))));
    }
    for (name, field) in known {
        if let Some(default) = field.get("default").filter(|_| !fields.contains_key(name)) {
            fields.insert(name.clone(), default.clone());
        }
    }
    let mut required = form["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    if let Some(name) = required.find(|name| !fields.contains_key(*name)) {
        return Err(invalid(name, "is required, and has no default"));
    }
    for (name, value) in &fields {
        let fits = ArgumentSchema::compile(&RawJson::parse(&known[name].to_string())?);
        fits.and_then(|schema| schema.check(&RawJson::parse(&value.to_string()).map_err(|error| error.to_string())?))
            .map_err(|why| invalid(name, &format!("does not fit: {why}")))?;
    }
    let text = serde_json::to_string(&fields).map_err(|error| SessionError::Internal(error.to_string()))?;
    RawJson::parse(&text)
}

/// Checks that a form is flat, and that nothing in it changes how it is shown.
fn check_form(form: &Map<String, Value>) -> Result<(), String> {
    only(form, &FORM_KEYS)?;
    let none = Map::new();
    let fields = match form.get("properties") {
        None => &none,
        Some(fields) => fields.as_object().ok_or("its properties are not an object")?,
    };
    if form.get("type").and_then(Value::as_str) != Some("object") {
        return Err("its schema is not of the type object".to_owned());
    }
    if fields.len() > FIELDS_MAX {
        return Err(format!("it has {} fields; {FIELDS_MAX} are allowed", fields.len()));
    }
    if !is_plain(form.values()) {
        return Err("its schema has control characters".to_owned());
    }
    for (name, field) in fields {
        let is_legal = |char: char| char.is_ascii_alphanumeric() || "_-.".contains(char);
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_legal) {
            return Err(format!("a field's name has other than 1 to {NAME_BYTES_MAX} letters, digits, _, - and ."));
        }
        check_field(field).map_err(|why| format!("its field {name}: {why}"))?;
    }
    let required = form.get("required").map_or(Some(&[][..]), |names| names.as_array().map(Vec::as_slice));
    let is_known = |name: &Value| name.as_str().is_some_and(|name| fields.contains_key(name));
    match required {
        Some(names) if names.iter().all(is_known) => Ok(()),
        _ => Err("it requires a field that it does not have".to_owned()),
    }
}

fn check_field(field: &Value) -> Result<(), String> {
    let field = field.as_object().ok_or("it is not an object")?;
    only(field, &FIELD_KEYS)?;
    let is_flat = match field.get("type").and_then(Value::as_str) {
        Some("string" | "number" | "integer" | "boolean") => !field.contains_key("items"),
        Some("array") => {
            let items = field.get("items").and_then(Value::as_object).ok_or("it lists no choices")?;
            only(items, &ITEM_KEYS)?;
            let is_text = items.get("type").is_none_or(|kind| kind == "string");
            is_text && (is_choice(items.get("enum"), false) || is_choice(items.get("anyOf"), true))
        }
        _ => false,
    };
    let is_choice = |key: &str, is_titled| field.get(key).is_none_or(|choices| is_choice(Some(choices), is_titled));
    match is_flat && is_choice("enum", false) && is_choice("enumNames", false) && is_choice("oneOf", true) {
        true => Ok(()),
        false => Err("it is not a text, number, boolean or choice".to_owned()),
    }
}

/// Returns true if these are choices: texts, or objects of a value and a title.
fn is_choice(choices: Option<&Value>, is_titled: bool) -> bool {
    let is_one = |choice: &Value| match is_titled {
        false => choice.is_string(),
        true => choice.as_object().is_some_and(|choice| {
            only(choice, &["const", "title"]).is_ok()
                && choice.contains_key("const")
                && choice.values().all(Value::is_string)
        }),
    };
    choices.and_then(Value::as_array).is_some_and(|choices| !choices.is_empty() && choices.iter().all(is_one))
}

fn only(object: &Map<String, Value>, keys: &[&str]) -> Result<(), String> {
    match object.keys().find(|key| !keys.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => Err(format!("it has {:?}, which forms do not have", prefix(key, NAME_BYTES_MAX))),
    }
}

/// Returns true if no text in the values has a character that a terminal obeys.
fn is_plain<'a>(mut values: impl Iterator<Item = &'a Value>) -> bool {
    values.all(|value| match value {
        Value::String(text) => !text.chars().any(is_obeyed),
        Value::Array(items) => is_plain(items.iter()),
        Value::Object(fields) => fields.keys().all(|key| !key.chars().any(is_obeyed)) && is_plain(fields.values()),
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> RawJson {
        RawJson::parse(text).unwrap()
    }

    const FORM: &str = r#"{"type":"object","properties":{
        "name":{"type":"string","minLength":2},"age":{"type":"integer","default":30},
        "kind":{"type":"string","oneOf":[{"const":"a","title":"First"},{"const":"b","title":"Second"}]},
        "days":{"type":"array","items":{"type":"string","enum":["mo","tu"]}},
        "sure":{"type":"boolean","default":false}},"required":["name"]}"#;

    #[test]
    fn an_answer_gets_its_defaults_and_each_refusal_names_its_field() {
        let refusal = |given: &str| match complete(&json(FORM), Some(&json(given))).unwrap_err() {
            SessionError::InvalidRequest { field, .. } => field,
            other => panic!("{other}"),
        };
        let whole = complete(&json(FORM), Some(&json(r#"{"name":"Ann","kind":"b","days":["tu"]}"#))).unwrap();
        let expected = serde_json::json!({ "name": "Ann", "age": 30, "kind": "b", "days": ["tu"], "sure": false });
        assert_eq!(whole.decode::<Value>().unwrap(), expected);
        for (given, field) in [
            ("{}", "answer.name"),
            ("[]", "answer"),
            (r#"{"name":"A"}"#, "answer.name"),
            (r#"{"name":null}"#, "answer.name"),
            (r#"{"name":"Ann","age":"x"}"#, "answer.age"),
            (r#"{"name":"Ann","kind":"First"}"#, "answer.kind"),
            (r#"{"name":"Ann","days":["we"]}"#, "answer.days"),
            (r#"{"name":"Ann","other":1}"#, "answer.other"),
        ] {
            assert_eq!(refusal(given), field, "{given}");
        }
        let long = format!(r#"{{"name":"{}"}}"#, "x".repeat(ANSWER_BYTES_MAX));
        assert_eq!(refusal(&long), "answer");
    }

    #[test]
    fn only_flat_forms_of_plain_texts_are_asked() {
        let refused = |schema: &str| Question::new("s", "?", &json(schema)).unwrap_err();
        for (field, words) in [
            (r#"{"type":"object"}"#, "not a text, number"),
            (r#"{"type":"array"}"#, "no choices"),
            (r#"{"type":"array","items":{"type":"object"}}"#, "not a text, number"),
            (r#"{"type":"string","pattern":"a"}"#, "pattern"),
            (r#"{"$ref":"https://example.com"}"#, "$ref"),
            (r#"{"type":"string","enum":[1]}"#, "not a text, number"),
            (r#"{"type":"string","oneOf":[{"const":"a","properties":{}}]}"#, "not a text, number"),
            (r#"{"type":"string","title":"a\u001b[2Jb"}"#, "control characters"),
            (r#"{"type":"string","title":"a\u202eb"}"#, "control characters"),
        ] {
            let why = refused(&format!(r#"{{"type":"object","properties":{{"a":{field}}}}}"#));
            assert!(why.contains(words), "{field}: {why}");
        }
        assert!(refused(r#"{"type":"object","properties":{"a b":{"type":"string"}}}"#).contains("name"));
        assert!(refused(r#"{"type":"object","properties":{},"required":["a"]}"#).contains("requires"));
        assert!(refused(r#"{"type":"string"}"#).contains("object"));
        let many: Vec<String> = (0..=FIELDS_MAX).map(|n| format!(r#""f{n}":{{"type":"string"}}"#)).collect();
        let many = format!(r#"{{"type":"object","properties":{{{}}}}}"#, many.join(","));
        assert!(refused(&many).contains("33 fields"));
        let long = "x".repeat(MESSAGE_BYTES_MAX + 1);
        assert!(Question::new("s", &long, &json(FORM)).unwrap_err().contains("4097 bytes"));
        let long = format!(r#"{{"type":"object","title":"{}"}}"#, "x".repeat(SCHEMA_BYTES_MAX));
        assert!(refused(&long).contains("bytes"));
        let question = Question::new("s", "one\ntwo\u{1b}[2J\u{202e}", &json(FORM)).unwrap();
        assert_eq!(question.message, "one\ntwo\\u{1b}[2J\\u{202e}");
    }
}
