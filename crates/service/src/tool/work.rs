//! Work of a check: how often parts of a schema meet values.
//!
//! A few references, each to a part with two more of them, take a time that no bound on bytes limits. So the work is
//! counted before it is done.

use std::collections::HashMap;

use percent_encoding::percent_decode_str;
use serde_json::Value;

/// References of a schema.
const REFERENCES_MAX: usize = 1_000;
/// Meetings of a part of the schema and a value in one check.
const WORK_MAX: u64 = 500_000;
/// Parts of a schema that are within each other, with references followed.
const DEPTH_MAX: usize = 256;
/// Bytes of a text that count as much as one meeting.
const TEXT_BYTES: usize = 1_024;
/// Keywords that refer to another part.
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];
/// Keywords whose values are data, in which nothing refers to anything.
const DATA: [&str; 4] = ["default", "examples", "const", "enum"];
/// Keywords whose values are parts by their names, which may be any.
const NAMED: [&str; 6] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];
/// Value in place of a name, or of one that is not there.
static NOTHING: Value = Value::Null;

/// Checks the references of a schema, and the work that it makes whatever the arguments are.
///
/// # Errors
/// Says why it cannot be used.
pub(super) fn check_schema(schema: &Value) -> Result<(), String> {
    let is_old = schema["$schema"].as_str().is_some_and(|draft| draft.contains("draft-04"));
    check_references(schema, (schema, false), if is_old { "id" } else { "$id" }, &mut 0)?;
    check_work(schema, &Value::Object(serde_json::Map::new())).map(drop)
}

/// Counts the work of comparing arguments with a schema.
///
/// # Errors
/// Says that it is too much.
pub(super) fn check_work(schema: &Value, arguments: &Value) -> Result<u64, String> {
    let mut work = Work { root: schema, known: HashMap::new(), steps: 0 };
    match work.of(schema, arguments, 0) {
        Ok(work @ 0..=WORK_MAX) => Ok(work),
        Ok(_) => Err(TOO_MUCH.to_owned()),
        Err(why) => Err(why),
    }
}

const TOO_MUCH: &str = "checking it by its schema takes too much work: send fewer values, nested less deeply";

fn check_references(
    root: &Value,
    (part, has_names): (&Value, bool),
    id: &str,
    count: &mut usize,
) -> Result<(), String> {
    match part {
        Value::Array(items) => items.iter().try_for_each(|item| check_references(root, (item, false), id, count)),
        Value::Object(fields) => fields.iter().try_for_each(|(key, value)| {
            let Some(has_names) = below(key, has_names) else { return Ok(()) };
            if let Some(to) = value.as_str().filter(|_| REFERENCES.contains(&key.as_str())) {
                *count += 1;
                if *count > REFERENCES_MAX {
                    return Err(format!("its schema has more than {REFERENCES_MAX} references"));
                }
                return target(root, to).map(drop);
            }
            if key == id && value.is_string() && !std::ptr::eq(root, part) {
                return Err(format!("its schema holds another one with an {id} of its own"));
            }
            check_references(root, (value, has_names), id, count)
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

/// Returns true if the keys of a key's value are names and no keywords; `None` if the value is data.
fn below(key: &str, is_name: bool) -> Option<bool> {
    (is_name || !DATA.contains(&key)).then(|| !is_name && NAMED.contains(&key))
}

/// Finds the part that a reference means. Data are no part, nor are parts by their names: their references would be
/// looked at otherwise than here.
fn target<'a>(root: &'a Value, to: &str) -> Result<&'a Value, String> {
    let pointer = to.strip_prefix('#').filter(|pointer| pointer.is_empty() || pointer.starts_with('/'));
    let pointer = pointer.and_then(|pointer| percent_decode_str(pointer).decode_utf8().ok());
    let is_part = |pointer: &str| pointer.split('/').skip(1).try_fold(false, |is_name, key| below(key, is_name));
    let pointer = pointer.filter(|pointer| is_part(pointer) == Some(false));
    pointer.and_then(|pointer| root.pointer(&pointer)).ok_or_else(|| {
        let end = to.floor_char_boundary(100);
        format!("its schema refers to {:?}, which is not a path (#/…) to a part of it", &to[..end])
    })
}

struct Work<'a> {
    root: &'a Value,
    /// Work of the part that a reference means with a value, both by their addresses; `None` while it is counted.
    known: HashMap<(*const Value, *const Value), Option<u64>>,
    steps: u64,
}

impl<'a> Work<'a> {
    fn of(&mut self, schema: &'a Value, value: &Value, depth: usize) -> Result<u64, String> {
        self.steps += 1;
        if self.steps > WORK_MAX || depth > DEPTH_MAX {
            return Err(TOO_MUCH.to_owned());
        }
        let Value::Object(fields) = schema else { return Ok(1 + length(schema)) };
        let text = value.as_str().map_or(0, |text| (text.len() / TEXT_BYTES) as u64);
        let mut work = 1_u64.saturating_add(text);
        for (key, part) in fields {
            let itself = std::iter::once(value);
            let members = value.as_object().into_iter().flat_map(serde_json::Map::values);
            let elements = value.as_array().into_iter().flatten();
            let more = match key.as_str() {
                key if REFERENCES.contains(&key) => match part.as_str() {
                    Some(to) => self.referred(target(self.root, to)?, value, depth)?,
                    None => 0,
                },
                "not" | "if" | "then" | "else" => self.each([part], itself, depth)?,
                "allOf" | "anyOf" | "oneOf" => self.each(part.as_array().into_iter().flatten(), itself, depth)?,
                "enum" | "required" => length(part),
                "dependentSchemas" | "dependencies" | "dependentRequired" => self.each(values(part), itself, depth)?,
                "properties" => {
                    let named = part.as_object().into_iter().flatten();
                    let mut named = named.filter_map(|(name, part)| Some((part, value.get(name)?)));
                    named.try_fold(0, |sum, (part, value)| {
                        Ok::<_, String>(self.of(part, value, depth + 1)?.saturating_add(sum))
                    })?
                }
                "patternProperties" => self.each(values(part), members, depth)?,
                "additionalProperties" | "unevaluatedProperties" => self.each([part], members, depth)?,
                "propertyNames" => self.each([part], members.map(|_| &NOTHING), depth)?,
                "items" | "prefixItems" if part.is_array() => {
                    self.each(part.as_array().into_iter().flatten(), elements, depth)?
                }
                "items" | "additionalItems" | "contains" | "unevaluatedItems" => self.each([part], elements, depth)?,
                _ => 0,
            };
            work = work.saturating_add(more);
        }
        // These look once more at what the other keywords looked at.
        let is_twice = fields.contains_key("unevaluatedProperties") || fields.contains_key("unevaluatedItems");
        Ok(if is_twice { work.saturating_mul(2) } else { work })
    }

    fn each<'v>(
        &mut self,
        parts: impl IntoIterator<Item = &'a Value>,
        values: impl Iterator<Item = &'v Value> + Clone,
        depth: usize,
    ) -> Result<u64, String> {
        let mut work = 0_u64;
        for part in parts {
            for value in values.clone() {
                work = work.saturating_add(self.of(part, value, depth + 1)?);
            }
        }
        Ok(work)
    }

    fn referred(&mut self, part: &'a Value, value: &Value, depth: usize) -> Result<u64, String> {
        let key = (std::ptr::from_ref(part), std::ptr::from_ref(value));
        match self.known.get(&key) {
            Some(Some(work)) => return Ok(*work),
            Some(None) => return Err("its schema refers to itself without end".to_owned()),
            None => {}
        }
        self.known.insert(key, None);
        let work = self.of(part, value, depth + 1)?;
        self.known.insert(key, Some(work));
        Ok(work)
    }
}

fn length(list: &Value) -> u64 {
    list.as_array().map_or(0, Vec::len) as u64
}

fn values(parts: &Value) -> impl Iterator<Item = &Value> {
    parts.as_object().into_iter().flat_map(serde_json::Map::values)
}
