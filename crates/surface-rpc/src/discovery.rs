//! The answer of `rpc.discover`: OpenRPC, generated from the table and the types.

use meerkat_service::{
    ErrorCode,
    service::Nothing,
    wire::{answer_schema, decode_params, request_schema},
};
use schemars::{Schema, json_schema, schema_for};
use serde_json::{Map, Value, json};

use crate::{
    error::Failure,
    table::{EVENT, Method, methods},
    wire::{ListSubscribe, Subscribe, Unsubscribe, by_name},
};

/// Answers `rpc.discover`.
pub(crate) fn answer(params: &str) -> Result<Value, Failure> {
    let Nothing {} = decode_params(by_name(params)?)?;
    Ok(document())
}

/// The document.
#[must_use]
pub fn document() -> Value {
    let mut shared = Map::new();
    let methods: Vec<Value> = methods().map(|(name, method)| describe(name, method, &mut shared)).collect();
    let errors: Map<String, Value> = ErrorCode::ALL
        .iter()
        .map(|code| (code.as_str().to_owned(), json!({ "code": code.rpc_code(), "message": code.message() })))
        .collect();
    json!({
        "openrpc": "1.3.2",
        "info": { "title": "meerkat", "version": env!("CARGO_PKG_VERSION") },
        "methods": methods,
        "components": { "schemas": shared, "errors": errors },
    })
}

fn describe(name: &str, method: Method, shared: &mut Map<String, Value>) -> Value {
    let (params, result, about) = match method {
        Method::Operation(operation) => {
            let about = format!("The operation {}.", operation.name());
            (request_schema(operation), answer_schema(operation), about)
        }
        Method::Subscribe => (
            schema_for!(Subscribe),
            schema_for!(u64),
            format!(
                "Answers with a subscription's number. Then each event after since_seq comes as a notification {EVENT} \
                 with params {{subscription, result}}, where result is the event's line; {{subscription, error}} is the \
                 last one. On a WebSocket and on stdio only; over HTTP there is session/events."
            ),
        ),
        Method::ListSubscribe => (
            schema_for!(ListSubscribe),
            schema_for!(u64),
            format!(
                "Answers with a subscription's number. Then the changes of the list of sessions after the cursor, at first \
                 the whole list, come as notifications {EVENT} with params {{subscription, result}}, where result is a page \
                 as session/changes answers it. On a WebSocket and on stdio only; over HTTP there is session/changes."
            ),
        ),
        Method::Unsubscribe => (
            schema_for!(Unsubscribe),
            schema_for!(bool),
            "Ends a subscription of this connection; returns whether it existed.".to_owned(),
        ),
        Method::Discover => (json_schema!({}), json_schema!({ "type": "object" }), "This document.".to_owned()),
    };
    let (params, result) = (share(params, shared), share(result, shared));
    let required = params["required"].as_array().cloned().unwrap_or_default();
    let params: Vec<Value> = params["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, schema)| {
            json!({ "name": name, "required": required.iter().any(|known| known == name), "schema": schema })
        })
        .collect();
    json!({
        "name": name,
        "description": about,
        "paramStructure": "by-name",
        "params": params,
        "result": { "name": "result", "schema": result },
    })
}

/// Moves a schema's definitions to the shared ones.
fn share(schema: Schema, shared: &mut Map<String, Value>) -> Value {
    let mut schema = schema.to_value();
    point_to_shared(&mut schema);
    if let Some(members) = schema.as_object_mut() {
        members.remove("$schema");
        if let Some(Value::Object(definitions)) = members.remove("$defs") {
            shared.extend(definitions);
        }
    }
    schema
}

fn point_to_shared(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                match member {
                    Value::String(target) if name == "$ref" => {
                        *target = target.replace("#/$defs/", "#/components/schemas/");
                    }
                    _ => point_to_shared(member),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(point_to_shared),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn the_document_is_the_committed_one() {
        let mut made = document();
        // Whether a tree keeps the order of insertion depends on the build.
        made.sort_all_objects();
        let made = serde_json::to_string_pretty(&made).unwrap() + "\n";
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openrpc.json");
        if std::env::var_os("MEERKAT_BLESS").is_some_and(|value| value == "1") {
            fs::write(&path, &made).unwrap();
        }
        let committed = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == made,
            "docs/openrpc.json is stale: run `MEERKAT_BLESS=1 cargo test -p meerkat-surface-rpc` and commit it"
        );
    }

    #[test]
    fn every_reference_leads_somewhere() {
        fn targets(value: &Value, found: &mut Vec<String>) {
            match value {
                Value::Object(members) => {
                    found.extend(members.get("$ref").and_then(Value::as_str).map(str::to_owned));
                    members.values().for_each(|member| targets(member, found));
                }
                Value::Array(items) => items.iter().for_each(|item| targets(item, found)),
                _ => {}
            }
        }
        let document = document();
        let mut found = Vec::new();
        targets(&document, &mut found);
        assert!(!found.is_empty());
        for target in found {
            assert!(document.pointer(target.trim_start_matches('#')).is_some(), "{target}");
        }
    }
}
