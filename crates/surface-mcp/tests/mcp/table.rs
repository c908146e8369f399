//! The table of tools against the operations.

use std::collections::BTreeSet;

use meerkat_service::Operation;
use meerkat_surface_mcp::tools::{Spelling, all, operation, spelling};
use serde_json::json;

/// The names themselves stand in `docs/capabilities.md`, which a test holds to the table.
#[test]
fn every_operation_has_a_tool_or_a_reason() {
    for &row in Operation::ALL {
        match spelling(row) {
            Spelling::Tool { name, .. } => assert_eq!(operation(name), Some(row)),
            Spelling::NoTool { reason } => assert_eq!(reason, "operators only", "{row:?}"),
        }
    }
    assert_eq!(operation("forget_memory"), None);
}

#[test]
fn every_tool_says_what_it_takes_gives_and_does() {
    let names: BTreeSet<_> = all().iter().map(|tool| tool.name.clone()).collect();
    assert_eq!(names.len(), all().len());
    for tool in all() {
        let schema = tool.output_schema.as_ref().unwrap();
        assert_eq!(
            (&tool.input_schema["type"], &schema["type"]),
            (&json!("object"), &json!("object")),
            "{}",
            tool.name
        );
        assert_eq!(tool.input_schema["additionalProperties"], false, "{}", tool.name);
        assert!(tool.annotations.as_ref().unwrap().read_only_hint.is_some());
    }
    let hints = |name: &str| {
        let tool = all().iter().find(|tool| tool.name == name).unwrap();
        let hints = tool.annotations.as_ref().unwrap();
        (hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint)
    };
    assert_eq!(hints("session_read"), (Some(true), Some(false), Some(true)));
    assert_eq!(hints("turn_start"), (Some(false), Some(false), Some(false)));
    assert_eq!(hints("turn_interrupt"), (Some(false), Some(false), Some(true)));
    assert_eq!(hints("session_delete"), (Some(false), Some(true), Some(true)));
}
