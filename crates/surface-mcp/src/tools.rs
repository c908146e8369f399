//! The one table of this surface: each operation is a tool, or has a reason why it is none; and the tools' schemas.
//!
//! The schemas are the service's; only what this protocol does differently is changed here.

use std::sync::{Arc, LazyLock};

use meerkat_service::{
    Operation,
    operation::OperationEffect,
    wire::{answer_schema, request_schema},
};
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::json;

/// How an operation is spelt here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// A tool.
    Tool {
        /// Its name.
        name: &'static str,
        /// What it does, for a model to read.
        description: &'static str,
    },
    /// No tool.
    NoTool {
        /// Why.
        reason: &'static str,
    },
}

const fn tool(name: &'static str, description: &'static str) -> Spelling {
    Spelling::Tool { name, description }
}

/// Operators have other surfaces; an agent should not be able to.
const OPERATORS_ONLY: Spelling = Spelling::NoTool { reason: "operators only" };

/// The spelling of an operation.
#[must_use]
pub const fn spelling(operation: Operation) -> Spelling {
    match operation {
        Operation::CreateSession => tool("session_create", "Makes a session, in which turns can be run."),
        Operation::StartTurn => tool(
            "turn_start",
            "Runs a turn on a session and answers with its result, however it ends. The session's events come as \
             progress meanwhile. With `wait` false it answers at once; `session_events` shows the rest.",
        ),
        Operation::Interrupt => tool("turn_interrupt", "Ends the running turn of a session."),
        Operation::DecideApproval => tool("turn_approve", "Approves or denies a tool call that waits for a decision."),
        Operation::Queue => tool("turn_queue", "Lists the turns of a session that wait."),
        Operation::CancelQueued => tool("turn_cancel", "Takes a turn that waits out of the queue."),
        Operation::Events => tool(
            "session_events",
            "Reads a session's events after the cursor `since_seq`, each as a line of JSON in a string. Where there \
             is none yet it waits for the first one, up to `wait_ms` or as long as the server waits. Go on with \
             `next_seq`.",
        ),
        Operation::Remind => tool("session_remind", "Sets a system reminder of a session; the newest of a kind wins."),
        Operation::Reminders => tool("session_reminders", "Lists the system reminders of a session."),
        Operation::ClearReminder => tool("session_clear_reminder", "Removes a system reminder of a session."),
        Operation::Pin => tool("session_pin", "Pins a fact that a session keeps word for word through compaction."),
        Operation::Pins => tool("session_pins", "Lists the pinned facts of a session."),
        Operation::Unpin => tool("session_unpin", "Removes a pinned fact of a session."),
        Operation::Resume => tool(
            "session_resume",
            "Goes on with a stored session: with a prompt it runs a turn, without one it takes over the turn that \
             was interrupted. Answers as `turn_start` does.",
        ),
        Operation::Read => tool("session_read", "Shows a session: its state, context, usage, reminders, pins, queue."),
        Operation::History => tool("session_history", "Pages through everything that was said in a session."),
        Operation::Blob => tool("session_blob", "Reads a piece of a large body of a session, in base64."),
        Operation::List => tool("session_list", "Lists sessions, the newest first, by time, labels and archive."),
        Operation::Update => tool("session_update", "Changes the title and the labels of a session."),
        Operation::Archive => tool("session_archive", "Archives a session."),
        Operation::Unarchive => tool("session_unarchive", "Brings an archived session back."),
        Operation::Delete => tool("session_delete", "Deletes a session for good."),
        Operation::Fork => tool("session_fork", "Makes a new session from the beginning of one."),
        Operation::Compact => tool("session_compact", "Compacts the context of a session now."),
        Operation::PreviewCompaction => tool("session_compact_preview", "Shows what a compaction would do."),
        Operation::UndoCompaction => tool("session_compact_undo", "Takes the latest compaction of a session back."),
        Operation::SearchMemory => {
            tool("search_project_history", "Searches what was said in one session, or in all of the project.")
        }
        Operation::ExportSession
        | Operation::ImportBundle
        | Operation::CreateReader
        | Operation::FetchReader
        | Operation::AcknowledgeReader
        | Operation::WaitReader
        | Operation::DeleteReader
        | Operation::ListReaders
        | Operation::CompactJournal
        | Operation::RebuildProjection
        | Operation::Retain
        | Operation::ForgetMemory
        | Operation::ReindexMemory => OPERATORS_ONLY,
        Operation::Capabilities => tool("capabilities", "Says which version and build this is, and what it can do."),
        Operation::Errors => tool("errors", "Lists every error code, and what it means."),
    }
}

/// The operation that a tool stands for.
#[must_use]
pub fn operation(tool: &str) -> Option<Operation> {
    Operation::ALL.iter().copied().find(|&operation| match spelling(operation) {
        Spelling::Tool { name, .. } => name == tool,
        Spelling::NoTool { .. } => false,
    })
}

/// Every tool, in the order of the operations. They are the same in every build.
#[must_use]
pub fn all() -> &'static [Tool] {
    static TOOLS: LazyLock<Vec<Tool>> =
        LazyLock::new(|| Operation::ALL.iter().copied().filter_map(described).collect());
    &TOOLS
}

fn described(operation: Operation) -> Option<Tool> {
    let Spelling::Tool { name, description } = spelling(operation) else { return None };
    let input = object(request_schema(operation));
    let mut output = object(answer_schema(operation));
    if operation == Operation::Events {
        // A line must arrive to the letter, which only a string does.
        output["properties"]["items"] = json!({ "type": "array", "items": { "type": "string" } });
    }
    let tool = Tool::new(name, description, Arc::new(input)).with_raw_output_schema(Arc::new(output));
    Some(tool.with_annotations(annotations(operation)))
}

/// The protocol wants every schema to say that it is an object.
fn object(schema: schemars::Schema) -> JsonObject {
    let mut members = JsonObject::new();
    members.insert("type".to_owned(), "object".into());
    members.extend(schema.as_object().cloned().unwrap_or_default());
    members
}

fn annotations(operation: Operation) -> ToolAnnotations {
    let (is_read_only, is_destructive, is_idempotent) = match operation.effect() {
        OperationEffect::Reads => (true, false, true),
        OperationEffect::Changes => (false, false, false),
        OperationEffect::Settles => (false, false, true),
        OperationEffect::Destroys => (false, true, true),
    };
    // Only what calls a model reaches beyond the service.
    let is_open = matches!(operation, Operation::StartTurn | Operation::Resume | Operation::Compact);
    let hints = ToolAnnotations::new().read_only(is_read_only).destructive(is_destructive);
    hints.idempotent(is_idempotent).open_world(is_open)
}
