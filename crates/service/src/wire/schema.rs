//! Schemas of the wire: each event's line, each operation's request and answer.
//!
//! They are generated from the types that are read and written; there is no second description.

use schemars::{JsonSchema, Schema, generate::SchemaSettings};
use serde_json::{Value, json};

use meerkat_words::reply::{Reply as _, turn_schema, written};

use super::bounds;
use crate::{CapabilitiesView, Operation, clock::Timestamp, ids::SessionId, service::*, session::event::EventKind};

/// The schema of one kind's line: the head, then the payload.
#[must_use]
pub fn event_schema(kind: EventKind) -> Schema {
    let mut generator = SchemaSettings::default().into_generator();
    let head = [
        ("v", json!({ "const": 1 })),
        ("session_id", SessionId::json_schema(&mut generator).to_value()),
        (if kind.is_durable() { "seq" } else { "after" }, json!({ "type": "integer", "minimum": 0 })),
        ("turn", json!({ "type": ["integer", "null"], "minimum": 0 })),
        ("time", Timestamp::json_schema(&mut generator).to_value()),
        ("type", json!({ "const": kind.name() })),
    ];
    let mut schema = kind.payload_schema();
    let members = schema.ensure_object();
    for (name, shape) in head {
        members.entry("properties").or_insert(Value::Null)[name] = shape;
        // A kind without fields has no required ones.
        if let Some(required) = members.entry("required").or_insert_with(|| json!([])).as_array_mut() {
            required.push(name.into());
        }
    }
    let mut schema = schema.to_value();
    whole_numbers(&mut schema, false);
    schema.try_into().unwrap_or_default()
}

/// The schema of an operation's parameters.
#[must_use]
pub fn request_schema(operation: Operation) -> Schema {
    let mut schema = typed_request(operation).to_value();
    whole_numbers(&mut schema, true);
    bounds::add(operation, &mut schema);
    schema.try_into().unwrap_or_default()
}

macro_rules! declare {
    ($(
        $docs:tt $operation:ident $name:ident($( $argument:ident: $type:ty ),*) -> $answer:ty, $request:ident;
    )*) => {
        fn typed_request(operation: Operation) -> Schema {
            match operation {
                Operation::CreateSession => request::<CreateSession>(),
                Operation::StartTurn => request::<StartTurn>(),
                Operation::Resume => request::<ResumeParams>(),
                Operation::Capabilities => request::<Nothing>(),
                Operation::Errors => request::<ListErrors>(),
                $( Operation::$operation => request::<$request>(), )*
            }
        }

        fn typed_answer(operation: Operation) -> Schema {
            match operation {
                Operation::CreateSession => SessionCreated::schema(),
                Operation::StartTurn | Operation::Resume => turn_schema(),
                Operation::Capabilities => written::<CapabilitiesView>(),
                Operation::Errors => written::<ErrorList>(),
                $( Operation::$operation => <$answer>::schema(), )*
            }
        }
    };
}

crate::operations!(plain declare);

/// The schema of an operation's answer.
#[must_use]
pub fn answer_schema(operation: Operation) -> Schema {
    let mut schema = typed_answer(operation).to_value();
    whole_numbers(&mut schema, false);
    schema.try_into().unwrap_or_default()
}

/// Takes away the formats of whole numbers without a sign, which no standard knows: validators warn of each. What is
/// read is bounded in their place.
fn whole_numbers(schema: &mut Value, is_read: bool) {
    match schema {
        Value::Object(node) => {
            let most = match node.get("format").and_then(Value::as_str) {
                Some("uint8" | "uint16") => Some(None),
                Some("uint32") => Some(Some(u64::from(u32::MAX))),
                Some("uint" | "uint64") => Some(Some(u64::MAX)),
                _ => None,
            };
            if let Some(most) = most {
                node.remove("format");
                if let Some(most) = most.filter(|_| is_read) {
                    node.entry("maximum").or_insert(most.into());
                }
            }
            node.values_mut().for_each(|value| whole_numbers(value, is_read));
        }
        Value::Array(items) => items.iter_mut().for_each(|value| whole_numbers(value, is_read)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn request<T: JsonSchema>() -> Schema {
    SchemaSettings::default().into_generator().into_root_schema_for::<T>()
}
