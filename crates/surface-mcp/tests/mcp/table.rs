//! The table of tools against the contract.

use std::collections::BTreeSet;

use meerkat_service::Operation;
use meerkat_surface_mcp::tools::{Spelling, all, operation, spelling};
use serde_json::json;

/// The contract's spellings; an operation that is not among them is for operators only.
const CONTRACT: &[(&str, &str)] = &[
    ("create_session", "session_create"),
    ("start_turn", "turn_start"),
    ("interrupt", "turn_interrupt"),
    ("decide_approval", "turn_approve"),
    ("queue", "turn_queue"),
    ("cancel_queued", "turn_cancel"),
    ("events", "session_events"),
    ("remind", "session_remind"),
    ("reminders", "session_reminders"),
    ("clear_reminder", "session_clear_reminder"),
    ("pin", "session_pin"),
    ("pins", "session_pins"),
    ("unpin", "session_unpin"),
    ("resume", "session_resume"),
    ("read", "session_read"),
    ("history", "session_history"),
    ("blob", "session_blob"),
    ("list", "session_list"),
    ("update", "session_update"),
    ("archive", "session_archive"),
    ("unarchive", "session_unarchive"),
    ("delete", "session_delete"),
    ("fork", "session_fork"),
    ("compact", "session_compact"),
    ("preview_compaction", "session_compact_preview"),
    ("undo_compaction", "session_compact_undo"),
    ("search_memory", "search_project_history"),
    ("capabilities", "capabilities"),
    ("errors", "errors"),
];

#[test]
fn every_operation_has_the_contracts_tool_or_a_reason() {
    for &row in Operation::ALL {
        let expected = CONTRACT.iter().find(|(name, _)| *name == row.name()).map(|(_, tool)| *tool);
        match spelling(row) {
            Spelling::Tool { name, .. } => {
                assert_eq!((Some(name), operation(name)), (expected, Some(row)));
            }
            Spelling::NoTool { reason } => assert_eq!((None, "operators only"), (expected, reason), "{row:?}"),
        }
    }
    assert_eq!(all().len(), CONTRACT.len());
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
