//! The table of tools against the operations.

use std::collections::BTreeSet;

use meerkat_surface_mcp::tools::{Offer, Toolset, all};
use serde_json::{Value, json};

#[test]
fn every_tool_says_what_it_takes_and_does() {
    let names: BTreeSet<_> = all().iter().map(|tool| tool.name.clone()).collect();
    assert_eq!(names.len(), all().len());
    for tool in all() {
        assert_eq!(tool.input_schema["type"], "object", "{}", tool.name);
        assert_eq!(tool.input_schema["additionalProperties"], false, "{}", tool.name);
        assert!(tool.input_schema.get("properties").is_none_or(Value::is_object), "{}", tool.name);
        assert!(tool.annotations.as_ref().unwrap().read_only_hint.is_some());
    }
    let hints = |name: &str| {
        let tool = all().iter().find(|tool| tool.name == name).unwrap();
        let hints = tool.annotations.as_ref().unwrap();
        (hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint)
    };
    assert_eq!(hints("session_read"), (Some(true), Some(false), Some(true)));
    assert_eq!(hints("turn_start"), (Some(false), Some(true), Some(false)));
    assert_eq!(hints("turn_interrupt"), (Some(false), Some(true), Some(true)));
    // By the protocol, everything but additions is destructive.
    let destructive: BTreeSet<&str> =
        all().iter().map(|tool| &*tool.name).filter(|name| hints(name).1 == Some(true)).collect();
    let expected = [
        "session_archive",
        "session_clear_reminder",
        "session_compact",
        "session_compact_undo",
        "session_delete",
        "session_remind",
        "session_resume",
        "session_unpin",
        "session_update",
        "turn_approve",
        "turn_cancel",
        "turn_answer",
        "turn_edit",
        "turn_interrupt",
        "turn_start",
    ];
    assert_eq!(destructive, BTreeSet::from(expected));
    assert_eq!(hints("session_delete"), (Some(false), Some(true), Some(true)));
}

/// The cost of the tools in every request of a client's model: four bytes are about a token.
#[test]
fn the_tools_of_the_core_are_few_tokens() {
    let bytes = |offer: Offer| serde_json::to_string(&offer.tools()).unwrap().len();
    let core = bytes(Offer { set: Toolset::Core, approve: false });
    let all = bytes(Offer::default());
    assert!(core < 11_000 && all < 41_000, "{core} {all}");
}

#[test]
fn no_schema_has_a_format_that_no_standard_knows() {
    let known = ["uuid", "date-time", "double"];
    fn formats(schema: &Value, found: &mut BTreeSet<String>) {
        match schema {
            Value::Object(node) => {
                found.extend(node.get("format").and_then(Value::as_str).map(str::to_owned));
                node.values().for_each(|value| formats(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| formats(value, found)),
            _ => {}
        }
    }
    let mut found = BTreeSet::new();
    for tool in all() {
        formats(&json!(tool.input_schema), &mut found);
    }
    assert!(found.iter().all(|format| known.contains(&format.as_str())), "{found:?}");
}
