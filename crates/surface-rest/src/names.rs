//! What an operation is called in the description, and the group that it stands in there: as JSON-RPC calls it.

use meerkat_service::Operation;

/// The id of an operation. Generators make the names of their functions of it.
pub(crate) const fn id(operation: Operation) -> &'static str {
    match operation {
        Operation::CreateSession => "session_create",
        Operation::StartTurn => "turn_start",
        Operation::Interrupt => "turn_interrupt",
        Operation::DecideApproval => "turn_approve",
        Operation::Queue => "turn_queue",
        Operation::CancelQueued => "turn_cancel",
        Operation::Events => "session_events",
        Operation::Remind => "session_remind",
        Operation::Reminders => "session_reminders",
        Operation::ClearReminder => "session_clear_reminder",
        Operation::Pin => "session_pin",
        Operation::Pins => "session_pins",
        Operation::Unpin => "session_unpin",
        Operation::Resume => "session_resume",
        Operation::Read => "session_read",
        Operation::History => "session_history",
        Operation::Blob => "session_blob",
        Operation::List => "session_list",
        Operation::Update => "session_update",
        Operation::Archive => "session_archive",
        Operation::Unarchive => "session_unarchive",
        Operation::Delete => "session_delete",
        Operation::Fork => "session_fork",
        Operation::ExportSession => "session_export",
        Operation::ImportBundle => "session_import",
        Operation::CreateReader => "reader_create",
        Operation::FetchReader => "reader_fetch",
        Operation::AcknowledgeReader => "reader_acknowledge",
        Operation::WaitReader => "reader_wait",
        Operation::DeleteReader => "reader_delete",
        Operation::ListReaders => "reader_list",
        Operation::CompactJournal => "journal_compact",
        Operation::RebuildProjection => "projection_rebuild",
        Operation::Retain => "session_retain",
        Operation::Compact => "session_compact",
        Operation::PreviewCompaction => "session_compact_preview",
        Operation::UndoCompaction => "session_compact_undo",
        Operation::SearchMemory => "memory_search",
        Operation::ForgetMemory => "memory_forget",
        Operation::ReindexMemory => "memory_reindex",
        Operation::Capabilities => "capabilities_get",
        Operation::Errors => "errors_list",
    }
}

/// Its group.
pub(crate) fn tag(operation: Operation) -> &'static str {
    id(operation).split('_').next().unwrap_or_default()
}
