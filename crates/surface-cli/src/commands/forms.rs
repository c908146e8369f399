//! Form of a server, filled in at the terminal: one line for each field. It reads and says nothing itself.

use meerkat_service::{
    SessionError,
    session::message::RawJson,
    tool::{Form, complete},
};
use serde_json::{Map, Value, json};

/// Form that is being filled in.
pub(crate) struct Filling {
    server: String,
    /// Name, schema and need of each field.
    fields: Vec<(String, Value, bool)>,
    at: usize,
    given: Map<String, Value>,
}

/// Effect of a line.
#[derive(Debug, PartialEq)]
pub(crate) enum Taken {
    /// A field is open, with the reason if the line does not answer it.
    Open(Option<String>),
    /// The form is filled in.
    Whole(Value),
    /// The person declines, with the reason.
    Declined(Option<String>),
}

impl Filling {
    pub(crate) fn new(form: &Form) -> Self {
        let schema: Value = form.schema.decode().unwrap_or_default();
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let fields = schema["properties"].as_object().into_iter().flatten();
        let fields = fields.map(|(name, field)| (name.clone(), field.clone(), required.contains(&name.as_str())));
        // What must be answered comes first.
        let mut fields: Vec<_> = fields.collect();
        fields.sort_by_key(|(_, _, is_required)| !is_required);
        Self { server: form.server.clone(), fields, at: 0, given: Map::new() }
    }

    /// Returns the question about the next field. It begins with the name of the server, so that it is not taken for
    /// one of ours.
    pub(crate) fn prompt(&self) -> String {
        let server = &self.server;
        let Some((name, field, is_required)) = self.fields.get(self.at) else {
            return format!("[{server}] Do you agree? y, n: ");
        };
        let label = field["title"].as_str().map_or_else(|| name.clone(), |title| format!("{title} ({name})"));
        let about = field["description"].as_str().map_or(String::new(), |about| format!(", {about}"));
        let numbered = choices(field).into_iter().enumerate().map(|(at, (_, shown))| format!("{} {shown}", at + 1));
        let choices = numbered.collect::<Vec<_>>().join(", ");
        let kind = match field["type"].as_str() {
            Some("array") => format!("several of {choices}"),
            _ if !choices.is_empty() => format!("one of {choices}"),
            Some("boolean") => "y or n".to_owned(),
            Some("integer") => "whole number".to_owned(),
            Some("number") => "number".to_owned(),
            _ => "text".to_owned(),
        };
        let default = match (&field["default"], is_required) {
            (Value::Null, true) => String::new(),
            (Value::Null, false) => " [nothing]".to_owned(),
            (default, _) => format!(" [{}]", default.as_str().map_or_else(|| default.to_string(), str::to_owned)),
        };
        format!("[{server}] {label}{about}: {kind}{default}: ")
    }

    /// Takes a line as the answer to the next field; an empty one stands for the default.
    pub(crate) fn take(&mut self, line: &str) -> Taken {
        let line = line.trim();
        if let Some(reason) = line.strip_prefix("/deny").filter(|rest| rest.is_empty() || rest.starts_with(' ')) {
            let reason = reason.trim();
            return Taken::Declined((!reason.is_empty()).then(|| reason.to_owned()));
        }
        let Some((name, field, is_required)) = self.fields.get(self.at) else {
            return match yes_or_no(line) {
                Some(true) => Taken::Whole(Value::Object(self.given.clone())),
                Some(false) => Taken::Declined(None),
                None => Taken::Open(Some("y agrees, n declines.".to_owned())),
            };
        };
        if line.is_empty() {
            if *is_required && field["default"].is_null() {
                return Taken::Open(Some(format!("{name} is required; /deny declines.")));
            }
        } else {
            let value = read(field, line);
            if let Err(SessionError::InvalidRequest { message, .. }) = fits(name, field, &value) {
                return Taken::Open(Some(format!("{name}: {message}; /deny declines.")));
            }
            self.given.insert(name.clone(), value);
        }
        self.at += 1;
        match self.at == self.fields.len() {
            true => Taken::Whole(Value::Object(self.given.clone())),
            false => Taken::Open(None),
        }
    }
}

/// Checks one field as the service will.
fn fits(name: &str, field: &Value, value: &Value) -> Result<(), SessionError> {
    let schema = RawJson::parse(&json!({ "type": "object", "properties": { name: field } }).to_string())?;
    complete(&schema, Some(&RawJson::parse(&json!({ name: value }).to_string())?)).map(drop)
}

/// Lists the choices of a field, each with the words that show it.
fn choices(field: &Value) -> Vec<(String, String)> {
    let field = if field["type"] == "array" { &field["items"] } else { field };
    let listed = ["oneOf", "anyOf", "enum"].into_iter().find_map(|key| field[key].as_array());
    let choice = |(at, choice): (usize, &Value)| {
        let value = choice.get("const").unwrap_or(choice).as_str().unwrap_or_default().to_owned();
        let title = choice.get("title").unwrap_or(&field["enumNames"][at]).as_str();
        let shown = title.filter(|title| *title != value).map(|title| format!("{title} ({value})"));
        (value.clone(), shown.unwrap_or(value))
    };
    listed.into_iter().flatten().enumerate().map(choice).collect()
}

/// Reads a line as a value of the field's type; a choice by its number, too. What does not fit is refused afterwards.
fn read(field: &Value, line: &str) -> Value {
    let choices = choices(field);
    let choose = |word: &str| {
        let is_listed = choices.iter().any(|(value, _)| value == word);
        let by_number = word.parse::<usize>().ok().and_then(|number| choices.get(number.checked_sub(1)?));
        Value::from(by_number.filter(|_| !is_listed).map_or(word, |(value, _)| value))
    };
    match field["type"].as_str() {
        Some("array") => line.split(',').map(|word| choose(word.trim())).collect(),
        Some("boolean") => yes_or_no(line).map_or_else(|| line.into(), Value::from),
        Some("integer" | "number") => serde_json::from_str(line).unwrap_or_else(|_| line.into()),
        _ => choose(line),
    }
}

fn yes_or_no(line: &str) -> Option<bool> {
    match line.to_ascii_lowercase().as_str() {
        "y" | "yes" | "true" => Some(true),
        "n" | "no" | "false" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filling(properties: Value, required: Value) -> Filling {
        let schema = json!({ "type": "object", "properties": properties, "required": required }).to_string();
        let schema = RawJson::parse(&schema).unwrap();
        let [call_id, server, message] = ["c", "t", "?"].map(str::to_owned);
        Filling::new(&Form { call_id, server, message, schema })
    }

    #[test]
    fn each_field_takes_its_kind_of_line_and_enter_its_default() {
        let fields = json!({
            "age": { "type": "integer", "maximum": 9, "default": 3 },
            "days": { "type": "array", "items": { "type": "string", "enum": ["mo", "tu", "we"] } },
            "kind": { "type": "string", "oneOf": [{ "const": "a", "title": "First" }, { "const": "b", "title": "Second" }] },
            "name": { "type": "string", "title": "Your name" },
            "sure": { "type": "boolean" },
        });
        let mut form = filling(fields, json!(["name"]));
        let mut lines = String::new();
        for line in ["", " Ann ", "10", "x", "", "mo, 3", "Second", "b", "perhaps", "y"] {
            lines += &format!("{}{line}\n", form.prompt());
            if let Taken::Whole(given) = form.take(line) {
                assert_eq!(given, json!({ "name": "Ann", "days": ["mo", "we"], "kind": "b", "sure": true }));
                lines += "whole\n";
            }
        }
        assert_eq!(
            lines,
            "[t] Your name (name): text: \n[t] Your name (name): text:  Ann \n\
             [t] age: whole number [3]: 10\n[t] age: whole number [3]: x\n[t] age: whole number [3]: \n\
             [t] days: several of 1 mo, 2 tu, 3 we [nothing]: mo, 3\n\
             [t] kind: one of 1 First (a), 2 Second (b) [nothing]: Second\n\
             [t] kind: one of 1 First (a), 2 Second (b) [nothing]: b\n\
             [t] sure: y or n [nothing]: perhaps\n[t] sure: y or n [nothing]: y\nwhole\n"
        );
    }

    #[test]
    fn a_form_is_declined_at_any_field_and_one_without_fields_is_agreed_to() {
        let mut form = filling(json!({ "path": { "type": "string" } }), json!([]));
        assert_eq!(form.take("/deny not that"), Taken::Declined(Some("not that".to_owned())));
        assert_eq!(form.take("/deny"), Taken::Declined(None));
        assert_eq!(form.take("/denylist"), Taken::Whole(json!({ "path": "/denylist" })));
        let mut form = filling(json!({}), json!([]));
        assert_eq!(form.prompt(), "[t] Do you agree? y, n: ");
        assert!(matches!(form.take("what?"), Taken::Open(Some(_))));
        assert_eq!(form.take("n"), Taken::Declined(None));
        assert_eq!(form.take("y"), Taken::Whole(json!({})));
    }
}
