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
use serde_json::{Value, json};

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
             progress meanwhile. With `wait` false it answers at once, and the session's events show the rest.",
        ),
        Operation::Interrupt => tool("turn_interrupt", "Ends the running turn of a session."),
        Operation::DecideApproval => tool("turn_approve", "Approves or denies a tool call that waits for a decision."),
        Operation::Queue => tool("turn_queue", "Lists the turns of a session that wait."),
        Operation::CancelQueued => tool("turn_cancel", "Takes a turn that waits out of the queue."),
        Operation::Events => tool(
            "session_events",
            "Reads a session's events after the cursor `since_seq`. Where there is none yet it waits for the first \
             one, up to `wait_ms` or as long as the server waits. Go on with `next_seq`.",
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
        Operation::List => tool("session_list", "Lists sessions, the last changed first, by time, labels and archive."),
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

/// Which tools a client is offered. Each one costs its model tokens in every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The tools, but for `turn_approve`.
    pub set: Toolset,
    /// `turn_approve` too: with it a client's model can answer what its own turn asks a person.
    pub approve: bool,
}

/// A set of tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Toolset {
    /// What an agent needs to work in sessions: make one, run turns, go on, list, read and search.
    Core,
    /// Everything.
    #[default]
    All,
}

impl Offer {
    /// Every tool there is.
    pub const ALL: Self = Self { set: Toolset::All, approve: true };

    /// Whether an operation is among them.
    #[must_use]
    pub const fn has(self, operation: Operation) -> bool {
        match (operation, self.set) {
            (Operation::DecideApproval, _) => self.approve,
            (
                Operation::CreateSession
                | Operation::StartTurn
                | Operation::Resume
                | Operation::List
                | Operation::History
                | Operation::SearchMemory,
                Toolset::Core,
            ) => true,
            (_, set) => matches!(set, Toolset::All),
        }
    }

    /// Its tools, in the order of the operations.
    #[must_use]
    pub fn tools(self) -> Vec<Tool> {
        let mut tools: Vec<Tool> = all().iter().filter(|tool| self.operation(&tool.name).is_some()).cloned().collect();
        if self.set == Toolset::Core {
            // How contexts are compacted is a third of what these tools would take.
            for tool in &mut tools {
                let input = Arc::make_mut(&mut tool.input_schema);
                for (place, name) in [("properties", "compaction"), ("$defs", "CompactionConfig")] {
                    input.get_mut(place).and_then(Value::as_object_mut).map(|members| members.shift_remove(name));
                }
            }
        }
        tools
    }

    /// The operation that a tool stands for, if it is offered.
    #[must_use]
    pub fn operation(self, tool: &str) -> Option<Operation> {
        operation(tool).filter(|&operation| self.has(operation))
    }
}

impl Default for Offer {
    fn default() -> Self {
        Self { set: Toolset::All, approve: false }
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
    let mut input = request_schema(operation).to_value();
    lighten(&mut input);
    if let Some(members) = input.as_object_mut() {
        // The tool has a description of its own.
        members.remove("description");
    }
    let output = outline(&answer_schema(operation).to_value());
    let tool = Tool::new(name, description, Arc::new(object(input))).with_raw_output_schema(Arc::new(object(output)));
    Some(tool.with_annotations(annotations(operation)))
}

/// The protocol wants every schema to say that it is an object.
fn object(schema: Value) -> JsonObject {
    let mut members = JsonObject::new();
    members.insert("type".to_owned(), "object".into());
    if let Value::Object(schema) = schema {
        members.extend(schema);
    }
    members
}

/// Takes away what costs a model tokens and tells it nothing: what names the schema, and bounds that the service
/// explains when it refuses.
fn lighten(schema: &mut Value) {
    match schema {
        Value::Object(node) => {
            if node.contains_key("type") || node.contains_key("$schema") {
                for name in ["$schema", "title", "pattern", "propertyNames", "if", "else"] {
                    if node.get(name).is_some_and(|value| name != "title" || value.is_string()) {
                        node.remove(name);
                    }
                }
                if node.get("default").is_some_and(Value::is_null) {
                    node.remove("default");
                }
                if node.get("maximum").and_then(Value::as_u64).is_some_and(|most| most >= u64::from(u32::MAX)) {
                    node.remove("maximum");
                }
            }
            node.values_mut().for_each(lighten);
        }
        Value::Array(items) => items.iter_mut().for_each(lighten),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// What an answer's members are called and which types they have, and no more: the answer itself shows the rest.
fn outline(schema: &Value) -> Value {
    let shapes: Vec<&Value> = match schema["anyOf"].as_array() {
        Some(either) => either.iter().map(|one| resolved(schema, one)).collect(),
        None => vec![schema],
    };
    let mut properties = JsonObject::new();
    for (name, property) in shapes.iter().flat_map(|shape| shape["properties"].as_object().into_iter().flatten()) {
        let of_type = resolved(schema, property).get("type");
        properties.insert(name.clone(), of_type.map_or_else(|| json!({}), |of_type| json!({ "type": of_type })));
    }
    let is_required = |name: &&Value| {
        shapes.iter().all(|shape| shape["required"].as_array().is_some_and(|required| required.contains(name)))
    };
    let required = shapes.first().and_then(|shape| shape["required"].as_array()).into_iter().flatten();
    let required: Vec<&Value> = required.filter(is_required).collect();
    json!({ "properties": properties, "required": required })
}

/// What a reference within a schema leads to.
fn resolved<'a>(schema: &'a Value, node: &'a Value) -> &'a Value {
    let name = node["$ref"].as_str().and_then(|reference| reference.strip_prefix("#/$defs/"));
    name.map_or(node, |name| &schema["$defs"][name])
}

fn annotations(operation: Operation) -> ToolAnnotations {
    let (is_read_only, is_idempotent) = match operation.effect() {
        OperationEffect::Reads => (true, true),
        OperationEffect::Changes => (false, false),
        OperationEffect::Settles | OperationEffect::Destroys => (false, true),
    };
    // What is not destructive only adds, says the protocol: what replaces, ends or takes away does not, nor does a
    // turn, whose tools may do anything.
    let only_adds =
        matches!(operation, Operation::CreateSession | Operation::Pin | Operation::Fork | Operation::Unarchive);
    // Only what calls a model reaches beyond the service.
    let is_open = matches!(operation, Operation::StartTurn | Operation::Resume | Operation::Compact);
    let hints = ToolAnnotations::new().read_only(is_read_only).destructive(!is_read_only && !only_adds);
    hints.idempotent(is_idempotent).open_world(is_open)
}
