//! The table: one row per method. A method is an operation of the service, or one that JSON-RPC itself needs.

use meerkat_service::Operation;

/// Meaning of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Performs an operation of the service.
    Operation(Operation),
    /// Follows a session's events, by notifications of `session/event`.
    Subscribe,
    /// Ends a subscription.
    Unsubscribe,
    /// Answers with the document that describes all methods.
    Discover,
}

/// Every method, by its name.
pub const METHODS: &[(&str, Method)] = &[
    ("session/create", Method::Operation(Operation::CreateSession)),
    ("turn/start", Method::Operation(Operation::StartTurn)),
    ("turn/interrupt", Method::Operation(Operation::Interrupt)),
    ("turn/approve", Method::Operation(Operation::DecideApproval)),
    ("turn/queue", Method::Operation(Operation::Queue)),
    ("turn/cancel", Method::Operation(Operation::CancelQueued)),
    ("session/events", Method::Operation(Operation::Events)),
    ("session/subscribe", Method::Subscribe),
    ("session/unsubscribe", Method::Unsubscribe),
    ("session/remind", Method::Operation(Operation::Remind)),
    ("session/reminders", Method::Operation(Operation::Reminders)),
    ("session/clear_reminder", Method::Operation(Operation::ClearReminder)),
    ("session/pin", Method::Operation(Operation::Pin)),
    ("session/pins", Method::Operation(Operation::Pins)),
    ("session/unpin", Method::Operation(Operation::Unpin)),
    ("session/resume", Method::Operation(Operation::Resume)),
    ("session/read", Method::Operation(Operation::Read)),
    ("session/history", Method::Operation(Operation::History)),
    ("session/blob", Method::Operation(Operation::Blob)),
    ("session/list", Method::Operation(Operation::List)),
    ("session/update", Method::Operation(Operation::Update)),
    ("session/archive", Method::Operation(Operation::Archive)),
    ("session/unarchive", Method::Operation(Operation::Unarchive)),
    ("session/delete", Method::Operation(Operation::Delete)),
    ("session/fork", Method::Operation(Operation::Fork)),
    ("session/export", Method::Operation(Operation::ExportSession)),
    ("session/import", Method::Operation(Operation::ImportBundle)),
    ("reader/create", Method::Operation(Operation::CreateReader)),
    ("reader/fetch", Method::Operation(Operation::FetchReader)),
    ("reader/acknowledge", Method::Operation(Operation::AcknowledgeReader)),
    ("reader/wait", Method::Operation(Operation::WaitReader)),
    ("reader/delete", Method::Operation(Operation::DeleteReader)),
    ("reader/list", Method::Operation(Operation::ListReaders)),
    ("journal/compact", Method::Operation(Operation::CompactJournal)),
    ("projection/rebuild", Method::Operation(Operation::RebuildProjection)),
    ("session/retain", Method::Operation(Operation::Retain)),
    ("session/compact", Method::Operation(Operation::Compact)),
    ("session/compact_preview", Method::Operation(Operation::PreviewCompaction)),
    ("session/compact_undo", Method::Operation(Operation::UndoCompaction)),
    ("memory/search", Method::Operation(Operation::SearchMemory)),
    ("memory/forget", Method::Operation(Operation::ForgetMemory)),
    ("memory/reindex", Method::Operation(Operation::ReindexMemory)),
    ("tool/list", Method::Operation(Operation::Tools)),
    ("tool/servers", Method::Operation(Operation::ToolServers)),
    ("capabilities/get", Method::Operation(Operation::Capabilities)),
    ("errors/list", Method::Operation(Operation::Errors)),
    ("rpc.discover", Method::Discover),
];

/// The method of the notifications that a subscription sends.
pub(crate) const EVENT: &str = "session/event";

/// The method of this name.
pub(crate) fn find(name: &str) -> Option<Method> {
    METHODS.iter().find(|(known, _)| *known == name).map(|(_, method)| *method)
}

/// The method of an operation.
#[must_use]
pub fn of_operation(operation: Operation) -> &'static str {
    METHODS.iter().find(|(_, method)| *method == Method::Operation(operation)).map_or("", |(name, _)| name)
}
