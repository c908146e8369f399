//! The one table of this surface: each operation is a tool, or has a reason why it is not; and the tools' schemas.
//!
//! The schemas are the service's, made shorter for models. Answers have none: a model sees the answer itself.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use meerkat_service::{Operation, operation::OperationEffect, wire::request_schema};
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

/// The spelling of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// A tool.
    Tool {
        /// Its name.
        name: &'static str,
        /// Instruction for the model that may call it.
        description: &'static str,
    },
    /// No tool.
    NoTool {
        /// The reason.
        reason: &'static str,
    },
}

const fn tool(name: &'static str, description: &'static str) -> Spelling {
    Spelling::Tool { name, description }
}

/// An agent must not do these; operators have other surfaces.
const OPERATORS_ONLY: Spelling = Spelling::NoTool { reason: "operators only" };

/// Spells an operation.
#[must_use]
pub const fn spelling(operation: Operation) -> Spelling {
    match operation {
        Operation::CreateSession => tool("session_create", "Create a session. Then run turns on it with `turn_start`."),
        Operation::StartTurn => tool(
            "turn_start",
            "Send a prompt to a session and return the result of its turn, even if the turn fails. Meanwhile its events \
             arrive as progress. With `wait` false, return at once; read the rest with `session_events`.",
        ),
        Operation::Interrupt => tool("turn_interrupt", "Interrupt the running turn of a session."),
        Operation::DecideApproval => tool("turn_approve", "Approve or deny a tool call that waits for approval."),
        Operation::Queue => tool("turn_queue", "List the queued turns of a session."),
        Operation::CancelQueued => tool("turn_cancel", "Remove a turn from the queue of a session."),
        Operation::AnswerCall => tool("turn_answer", "Answer a call of a tool that the caller runs."),
        Operation::Calls => tool("turn_calls", "List the calls that wait for their caller."),
        Operation::EditQueued => tool("turn_edit", "Change the prompt of a queued turn, or its place in the queue."),
        Operation::Events => tool(
            "session_events",
            "Read the events of a session after the cursor `since_seq`. Wait at most `wait_ms` for the first one. Continue \
             with `next_seq`.",
        ),
        Operation::Remind => {
            tool("session_remind", "Set a system reminder of a session. It replaces the former one of its kind.")
        }
        Operation::Reminders => tool("session_reminders", "List the system reminders of a session."),
        Operation::ClearReminder => tool("session_clear_reminder", "Remove a system reminder from a session."),
        Operation::Pin => tool("session_pin", "Pin a fact that a session keeps word for word."),
        Operation::Pins => tool("session_pins", "List the pinned facts of a session."),
        Operation::Unpin => tool("session_unpin", "Remove a pinned fact from a session."),
        Operation::Resume => tool(
            "session_resume",
            "Continue a stored session: with a prompt, run a turn; without one, take over the interrupted turn. Return \
             what `turn_start` returns.",
        ),
        Operation::Read => {
            tool("session_read", "Show the state, context, usage, reminders, pins and queue of a session.")
        }
        Operation::History => tool("session_history", "Read all messages of a session, in pages."),
        Operation::Steps => {
            tool("session_steps", "List the model calls and compactions of a session, the newest first.")
        }
        Operation::Turns => {
            tool("session_turns", "List the turns of a session with the tokens they used, the newest first.")
        }
        Operation::Blob => tool("session_blob", "Read a piece of a large text of a session, in base64."),
        Operation::PutBlob => tool("session_put_blob", "Store an image or a file for a prompt."),
        Operation::List => tool("session_list", "List sessions by time, labels and archive, the last changed first."),
        Operation::Changes => tool(
            "session_changes",
            "Read the changes of the list of sessions after `cursor`, at first the whole list. Wait at most `wait_ms` for the \
             first one. Continue with `next_cursor`.",
        ),
        Operation::Approvals => tool("turn_approvals", "List all calls that wait for a person or their caller."),
        Operation::Update => tool("session_update", "Change the title and the labels of a session."),
        Operation::Archive => tool("session_archive", "Archive a session."),
        Operation::Unarchive => tool("session_unarchive", "Restore an archived session."),
        Operation::Delete => tool("session_delete", "Delete a session permanently."),
        Operation::Fork => tool("session_fork", "Create a session from the beginning of another one."),
        Operation::Compact => tool("session_compact", "Compact the context of a session now."),
        Operation::PreviewCompaction => tool("session_compact_preview", "Show what a compaction would do."),
        Operation::UndoCompaction => tool("session_compact_undo", "Undo the latest compaction of a session."),
        Operation::SearchMemory => {
            tool("search_project_history", "Search what was said in one session, or in all sessions of the project.")
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
        | Operation::Diagnose
        | Operation::Retain
        | Operation::ForgetMemory
        | Operation::ReindexMemory
        | Operation::ToolServers => OPERATORS_ONLY,
        Operation::Tools => tool("tool_list", "List the tools that the model of a session is offered next."),
        Operation::Capabilities => tool("capabilities", "Show the version, the build and its capabilities."),
        Operation::Errors => tool("errors", "List the error codes, or show what to do about one."),
    }
}

/// The tools that a client is offered. Each one costs its model tokens in every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The tools besides `turn_approve`.
    pub set: Toolset,
    /// `turn_approve` too. With it a client's model can approve the calls of its own turns, instead of a person.
    pub approve: bool,
}

/// A set of tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Toolset {
    /// The tools to work in sessions: create, run turns, resume, list, read and search.
    Core,
    /// All tools.
    #[default]
    All,
}

impl Offer {
    /// Every tool there is.
    pub const ALL: Self = Self { set: Toolset::All, approve: true };

    /// Whether an operation is offered.
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

    /// The tools, in the order of the operations.
    #[must_use]
    pub fn tools(self) -> Vec<Tool> {
        let mut tools: Vec<Tool> = all().iter().filter(|tool| self.operation(&tool.name).is_some()).cloned().collect();
        if !self.approve {
            // A model that may not approve a call may not allow it beforehand either.
            for tool in &mut tools {
                let input = Arc::make_mut(&mut tool.input_schema);
                input.get_mut("properties").and_then(Value::as_object_mut).map(|members| members.shift_remove("allow"));
            }
        }
        if self.set == Toolset::Core {
            // The settings of compactions and models and the messages of a history would be half of these tools' tokens,
            // and no tool here answers a call.
            for tool in &mut tools {
                let input = Arc::make_mut(&mut tool.input_schema);
                for (place, name) in [
                    ("properties", "compaction"),
                    ("$defs", "CompactionConfig"),
                    ("properties", "history"),
                    ("properties", "options"),
                    ("properties", "access"),
                    ("$defs", "TurnAccess"),
                    ("properties", "client_tools"),
                    ("$defs", "ClientTool"),
                    ("$defs", "Effect"),
                ] {
                    input.get_mut(place).and_then(Value::as_object_mut).map(|members| members.shift_remove(name));
                }
            }
        }
        tools
    }

    /// The operation of a tool, if it is offered.
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

/// The operation of a tool.
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
    if let Some(members) = input.as_object_mut() {
        // The tool has a description of its own.
        members.shift_remove("description");
        if let Some(block) = members.get_mut("$defs").and_then(|definitions| definitions.get_mut("PromptBlock")) {
            *block = any_block();
        }
        inline_definitions(members);
    }
    lighten(&mut input);
    for place in ["/properties/options/properties", "/properties/output/anyOf/0/properties"] {
        if let Some(Value::Object(options)) = input.pointer_mut(place) {
            options.values_mut().for_each(name_only);
        }
    }
    Some(Tool::new(name, description, Arc::new(object(input))).with_annotations(annotations(operation)))
}

/// Describes the blocks of a prompt at once: three descriptions would be a quarter of the core's tokens, and refusals
/// name what is wrong.
fn any_block() -> Value {
    let text = json!({ "type": "string" });
    let data = json!({ "type": "string", "contentEncoding": "base64" });
    let kind = json!({ "enum": ["text", "image", "file"] });
    let members = json!({ "type": kind, "text": text, "name": text, "media_type": text, "data": data, "blob": text });
    json!({ "type": "object", "properties": members, "required": ["type"] })
}

/// Makes a schema say that it is an object, as the protocol wants it.
fn object(schema: Value) -> JsonObject {
    let mut members = JsonObject::new();
    members.insert("type".to_owned(), "object".into());
    if let Value::Object(schema) = schema {
        members.extend(schema);
    }
    members
}

/// Most values of a string that a schema lists.
const VALUES_MAX: usize = 32;

/// Removes what costs a model tokens and helps it little: the schema's names, and bounds that refusals explain.
fn lighten(schema: &mut Value) {
    match schema {
        Value::Object(node) => {
            if ["type", "$schema", "anyOf"].iter().any(|name| node.contains_key(*name)) {
                for name in ["$schema", "title", "pattern", "propertyNames", "if", "else"] {
                    if node.get(name).is_some_and(|value| name != "title" || value.is_string()) {
                        node.remove(name);
                    }
                }
                // An absent flag is false, and an absent value null.
                if node.get("default").is_some_and(|default| default.is_null() || default == &Value::Bool(false)) {
                    node.remove("default");
                }
                // Such values come from an answer, as codes do from a list of them.
                if node.get("enum").and_then(Value::as_array).is_some_and(|values| values.len() > VALUES_MAX) {
                    node.remove("enum");
                }
                if node.get("maximum").and_then(Value::as_u64).is_some_and(|most| most >= u64::from(u32::MAX)) {
                    node.remove("maximum");
                }
            }
            describe_once(node);
            list_constants(node);
            node.values_mut().for_each(lighten);
        }
        Value::Array(items) => items.iter_mut().for_each(lighten),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Removes the descriptions of alternatives that have one together.
fn describe_once(node: &mut JsonObject) {
    if !node.get("description").is_some_and(Value::is_string) {
        return;
    }
    for one in node.get_mut("anyOf").and_then(Value::as_array_mut).into_iter().flatten() {
        one.as_object_mut().map(|one| one.shift_remove("description"));
    }
}

/// Leaves the values of an option whose name says all to a model: vendors have it, too.
fn name_only(option: &mut Value) {
    if let Some(value) = option.pointer_mut("/anyOf/0").map(Value::take) {
        *option = value;
    }
    if let Value::Object(members) = option {
        members.retain(|name, _| matches!(name.as_str(), "type" | "enum" | "items"));
    }
}

/// Puts each definition that has a single reference in its place; the description of that place counts.
fn inline_definitions(schema: &mut JsonObject) {
    let Some(Value::Object(mut definitions)) = schema.shift_remove("$defs") else { return };
    let mut uses = BTreeMap::new();
    count_references(&json!([schema, definitions]), &mut uses);
    schema.values_mut().for_each(|node| inline(node, &mut definitions, &uses));
    let names: Vec<String> = definitions.keys().cloned().collect();
    for name in names {
        // A definition may have been put into one before it.
        let Some(mut definition) = definitions.shift_remove(&name) else { continue };
        inline(&mut definition, &mut definitions, &uses);
        definitions.insert(name, definition);
    }
    if !definitions.is_empty() {
        schema.insert("$defs".to_owned(), definitions.into());
    }
}

fn count_references(node: &Value, uses: &mut BTreeMap<String, usize>) {
    if let Some(name) = reference(node) {
        *uses.entry(name.to_owned()).or_default() += 1;
    }
    match node {
        Value::Object(members) => members.values().for_each(|member| count_references(member, uses)),
        Value::Array(items) => items.iter().for_each(|item| count_references(item, uses)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn inline(node: &mut Value, definitions: &mut JsonObject, uses: &BTreeMap<String, usize>) {
    let single = reference(node).filter(|name| uses.get(*name) == Some(&1));
    if let Some(Value::Object(mut definition)) = single.and_then(|name| definitions.shift_remove(name)) {
        if let Value::Object(own) = std::mem::take(node) {
            definition.extend(own.into_iter().filter(|(name, _)| name != "$ref"));
        }
        *node = definition.into();
    }
    match node {
        Value::Object(members) => members.values_mut().for_each(|member| inline(member, definitions, uses)),
        Value::Array(items) => items.iter_mut().for_each(|item| inline(item, definitions, uses)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The name of the definition that a node refers to.
fn reference(node: &Value) -> Option<&str> {
    node.get("$ref")?.as_str()?.strip_prefix("#/$defs/")
}

/// Writes alternative constants, each with its description, as one list and one description.
fn list_constants(node: &mut JsonObject) {
    let Some(either) = node.get("oneOf").and_then(Value::as_array) else { return };
    let Some(names) = either.iter().map(|one| one["const"].as_str()).collect::<Option<Vec<_>>>() else { return };
    let said = either.iter().zip(&names).filter_map(|(one, name)| Some((name, one["description"].as_str()?)));
    let said: Vec<String> = said.map(|(name, what)| format!("{name}: {what}")).collect();
    let names = json!(names);
    node.shift_remove("oneOf");
    node.insert("type".to_owned(), "string".into());
    node.insert("enum".to_owned(), names);
    if !said.is_empty() {
        let about = node.get("description").and_then(Value::as_str).map(str::to_owned);
        node.insert("description".to_owned(), about.into_iter().chain(said).collect::<Vec<_>>().join(" ").into());
    }
}

fn annotations(operation: Operation) -> ToolAnnotations {
    let (is_read_only, is_idempotent) = match operation.effect() {
        OperationEffect::Reads => (true, true),
        OperationEffect::Changes => (false, false),
        OperationEffect::Settles | OperationEffect::Destroys => (false, true),
    };
    // By the protocol only additions are not destructive. A turn may be: its tools may do anything.
    let only_adds = matches!(
        operation,
        Operation::CreateSession | Operation::Pin | Operation::PutBlob | Operation::Fork | Operation::Unarchive
    );
    // Only calls of a model leave the service.
    let is_open = matches!(operation, Operation::StartTurn | Operation::Resume | Operation::Compact);
    let hints = ToolAnnotations::new().read_only(is_read_only).destructive(!is_read_only && !only_adds);
    hints.idempotent(is_idempotent).open_world(is_open)
}
