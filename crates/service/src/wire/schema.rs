//! The schemas of what goes over a wire: each event's line, each operation's request and answer.
//!
//! They come from the types that are read and written; nothing here is a second description of them.

use schemars::{JsonSchema, Schema, generate::SchemaSettings, json_schema};
use serde_json::{Value, json};

use super::{bounds, call::ResumeParams};
use crate::{
    CapabilitiesView, Operation,
    clock::Timestamp,
    ids::SessionId,
    service::{
        AcknowledgeReader, BlobPage, BundlePage, CancelQueued, Changed, Checkpoint, ClearReminder, CompactJournal,
        CompactSession, CompactionReceipt, CreateSession, DecideApproval, DeleteSession, ErrorList, ExportSession,
        FetchReader, ForgetMemory, Forgotten, ForkSession, HistoryItem, ImportBundle, Imported, InterruptTurn,
        JournalCompactionReport, NamedReader, Nothing, OneSession, Page, Pin, PinFact, ProjectionRebuilt, QueueItem,
        ReadBlob, ReadEvents, ReadHistory, ReaderView, Reindexed, Remind, Reminder, Retain, Retained, SearchHit,
        SearchMemory, SessionCreated, SessionQuery, SessionSummary, SessionView, StartTurn, TurnAccepted, TurnResult,
        UndoCompaction, Unpin, UpdateSession, WaitReader,
    },
    session::event::EventKind,
};

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
        // A kind without fields has none that are required.
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

fn typed_request(operation: Operation) -> Schema {
    match operation {
        Operation::CreateSession => read::<CreateSession>(),
        Operation::StartTurn => read::<StartTurn>(),
        Operation::Interrupt => read::<InterruptTurn>(),
        Operation::DecideApproval => read::<DecideApproval>(),
        Operation::CancelQueued => read::<CancelQueued>(),
        Operation::Events => read::<ReadEvents>(),
        Operation::Remind => read::<Remind>(),
        Operation::ClearReminder => read::<ClearReminder>(),
        Operation::Pin => read::<PinFact>(),
        Operation::Unpin => read::<Unpin>(),
        Operation::Resume => read::<ResumeParams>(),
        Operation::History => read::<ReadHistory>(),
        Operation::Blob => read::<ReadBlob>(),
        Operation::List => read::<SessionQuery>(),
        Operation::Update => read::<UpdateSession>(),
        Operation::Delete => read::<DeleteSession>(),
        Operation::Fork => read::<ForkSession>(),
        Operation::ExportSession => read::<ExportSession>(),
        Operation::ImportBundle => read::<ImportBundle>(),
        Operation::CreateReader | Operation::DeleteReader => read::<NamedReader>(),
        Operation::FetchReader => read::<FetchReader>(),
        Operation::AcknowledgeReader => read::<AcknowledgeReader>(),
        Operation::WaitReader => read::<WaitReader>(),
        Operation::CompactJournal => read::<CompactJournal>(),
        Operation::Retain => read::<Retain>(),
        Operation::Compact | Operation::PreviewCompaction => read::<CompactSession>(),
        Operation::UndoCompaction => read::<UndoCompaction>(),
        Operation::SearchMemory => read::<SearchMemory>(),
        Operation::ForgetMemory => read::<ForgetMemory>(),
        Operation::Queue
        | Operation::Reminders
        | Operation::Pins
        | Operation::Read
        | Operation::Archive
        | Operation::Unarchive => read::<OneSession>(),
        Operation::ListReaders
        | Operation::RebuildProjection
        | Operation::ReindexMemory
        | Operation::Capabilities
        | Operation::Errors => read::<Nothing>(),
    }
}

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

fn typed_answer(operation: Operation) -> Schema {
    match operation {
        Operation::CreateSession => written::<SessionCreated>(),
        // Which one it is follows from the request's `wait`.
        Operation::StartTurn | Operation::Resume => {
            let mut generator = SchemaSettings::default().for_serialize().into_generator();
            let either = [generator.subschema_for::<TurnResult>(), generator.subschema_for::<TurnAccepted>()];
            json_schema!({ "anyOf": either, "$defs": generator.take_definitions(true) })
        }
        Operation::Queue => written::<Page<QueueItem>>(),
        Operation::Events => json_schema!({
            "type": "object",
            "description": "A page of events, each as its line stands in the journal.",
            "properties": {
                "items": { "type": "array", "items": { "type": "object" } },
                "next_seq": { "type": "integer", "minimum": 0 },
            },
            "required": ["items", "next_seq"],
        }),
        Operation::Reminders => written::<Page<Reminder>>(),
        Operation::Pins => written::<Page<Pin>>(),
        Operation::Read => written::<SessionView>(),
        Operation::History => written::<Page<HistoryItem>>(),
        Operation::Blob => written::<BlobPage>(),
        Operation::List => written::<Page<SessionSummary>>(),
        Operation::ExportSession => written::<BundlePage>(),
        Operation::ImportBundle => written::<Imported>(),
        Operation::CreateReader | Operation::DeleteReader => written::<ReaderView>(),
        Operation::FetchReader => json_schema!({
            "type": "object",
            "description": "Records that the reader is not done with, each session's in order.",
            "properties": {
                "items": { "type": "array", "items": {
                    "type": "object",
                    "properties": {
                        "idempotency_key": { "type": "string", "description": "The session and the seq." },
                        "event": { "type": "object", "description": "The event, as its line stands in the journal." },
                    },
                    "required": ["idempotency_key", "event"],
                } },
            },
            "required": ["items"],
        }),
        Operation::AcknowledgeReader | Operation::WaitReader => written::<Checkpoint>(),
        Operation::ListReaders => written::<Page<ReaderView>>(),
        Operation::CompactJournal => written::<JournalCompactionReport>(),
        Operation::RebuildProjection => written::<ProjectionRebuilt>(),
        Operation::Retain => written::<Retained>(),
        Operation::Compact | Operation::PreviewCompaction => written::<CompactionReceipt>(),
        Operation::SearchMemory => written::<Page<SearchHit>>(),
        Operation::ForgetMemory => written::<Forgotten>(),
        Operation::ReindexMemory => written::<Reindexed>(),
        Operation::Capabilities => written::<CapabilitiesView>(),
        Operation::Errors => written::<ErrorList>(),
        Operation::Interrupt
        | Operation::DecideApproval
        | Operation::CancelQueued
        | Operation::Remind
        | Operation::ClearReminder
        | Operation::Pin
        | Operation::Unpin
        | Operation::Update
        | Operation::Archive
        | Operation::Unarchive
        | Operation::Delete
        | Operation::Fork
        | Operation::UndoCompaction => written::<Changed>(),
    }
}

fn read<T: JsonSchema>() -> Schema {
    SchemaSettings::default().into_generator().into_root_schema_for::<T>()
}

fn written<T: JsonSchema>() -> Schema {
    SchemaSettings::default().for_serialize().into_generator().into_root_schema_for::<T>()
}
