//! Bounds of a request's values beyond their types: each once, for the check and for the schema.
//!
//! Limits from the configuration are in the checks.

use serde_json::{Map, Value, json};

use crate::operation::Operation;

/// A text with something in it. The class is the white space of Unicode, as this program knows it.
const NOT_BLANK: &str = r"[^\t-\r \u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]";
/// The name of a label, and its value: neither has control characters. A title is as such a value.
const LABEL_NAME: &str = r"^[^\u0000-\u001f\u007f-\u009f]+$";
const LABEL_VALUE: &str = r"^[^\u0000-\u001f\u007f-\u009f]*$";
/// A page of sessions goes on behind a place in the order of changes, one of calls after a session, one of changes after
/// a change or within the list, other pages after a number.
const SESSION_CURSOR: &str = "^[0-9a-fA-F]{16}-[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$";
const CALL_CURSOR: &str = "^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$";
const CHANGE_CURSOR: &str = r"^[0-9a-fA-F]{1,32}\.[0-9]{1,18}(\.[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12})?$";
const NUMBER_CURSOR: &str = "^[0-9]{1,18}$";
const BLOB: &str = "^[0-9a-f]{64}$";
/// Name of a model, which is safe in events, in URLs and for people.
const MODEL: &str = "^[A-Za-z0-9._:/@+~-]*$";

/// The name of a reader, and of one that is not meerkat's own.
const READER: &str = "^[a-z0-9._-]{1,64}$";
const OWN_READER: &str = "^(?!(?:memory|projection)$)[a-z0-9._-]{1,64}$";

/// Bytes of a blob that one answer may carry.
pub const BLOB_PIECE_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of a model's name.
pub(crate) const MODEL_BYTES_MAX: usize = 256;
/// Bytes of a search of memory.
pub(crate) const QUERY_BYTES_MAX: usize = 16 * 1024;
/// Hits that a search answers at most.
pub(crate) const HITS_MAX: usize = 100;
/// The roles by which it may be searched.
pub(crate) const ROLES: [&str; 3] = ["user", "assistant", "tool_results"];

/// Adds the bounds of an operation's parameters to their schema.
pub(super) fn add(operation: Operation, schema: &mut Value) {
    use Operation as Op;
    for (name, property) in schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        let bounds = match (name.as_str(), operation) {
            ("blob", _) => json!({ "pattern": BLOB }),
            ("cursor", Op::List) => json!({ "pattern": SESSION_CURSOR }),
            ("cursor", Op::Changes) => json!({ "pattern": CHANGE_CURSOR }),
            ("cursor", Op::Approvals) => json!({ "pattern": CALL_CURSOR }),
            ("cursor", Op::History | Op::Steps | Op::Turns) => json!({ "pattern": NUMBER_CURSOR }),
            ("title", _) => json!({ "pattern": LABEL_VALUE }),
            ("reader", Op::CreateReader | Op::AcknowledgeReader | Op::DeleteReader) => json!({ "pattern": OWN_READER }),
            ("reader", _) => json!({ "pattern": READER }),
            ("limit", Op::Blob) => json!({ "minimum": 1, "maximum": BLOB_PIECE_BYTES_MAX }),
            ("limit", Op::SearchMemory) => json!({ "minimum": 1, "maximum": HITS_MAX }),
            ("limit", _) => json!({ "minimum": 1 }),
            ("model", _) => json!({ "pattern": MODEL, "maxLength": MODEL_BYTES_MAX }),
            ("query", _) => json!({ "pattern": NOT_BLANK, "maxLength": QUERY_BYTES_MAX }),
            ("role", _) => json!({ "enum": ROLES.map(Some).into_iter().chain([None]).collect::<Vec<_>>() }),
            ("prompt" | "text" | "source" | "idempotency_key", _) => json!({ "pattern": NOT_BLANK }),
            ("labels", _) => json!({
                "propertyNames": { "pattern": LABEL_NAME },
                "additionalProperties": { "type": "string", "pattern": LABEL_VALUE },
            }),
            ("tools", _) => json!({ "uniqueItems": true }),
            // A request that compacts at once cannot switch that off.
            ("compaction", Op::Compact | Op::PreviewCompaction) => {
                json!({ "properties": { "enabled": { "const": true } } })
            }
            _ => continue,
        };
        merge(property, bounds);
    }
    if operation == Op::ForgetMemory {
        // Something has to be named, and seqs are those of a session.
        let names = |name: &str| json!({ "required": [name], "properties": { name: { "type": "string" } } });
        let mut source = names("source");
        source["properties"]["from_seq"] = json!({ "type": "null" });
        source["properties"]["to_seq"] = json!({ "type": "null" });
        merge(schema, json!({ "if": names("session_id"), "else": source }));
    }
}

fn merge(schema: &mut Value, members: Value) {
    let members: Map<String, Value> = serde_json::from_value(members).unwrap_or_default();
    schema.as_object_mut().into_iter().for_each(|schema| schema.extend(members.clone()));
}
