//! From a command to an operation with its parameters: one function for each group of commands.
//!
//! Nothing is checked here that the service checks.

use std::collections::BTreeMap;

use meerkat_service::{Operation, Seq, TurnNumber, compaction::CompactionConfig, options::Budgets};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::args::{
    CompactArgs, CompactFlags, Delivery, EventsArgs, JournalCommand, MemoryCommand, ProjectCommand, ReaderCommand,
    SessionCommand, SessionFlags, Target, TurnFlags,
};

/// A page of events.
#[derive(Deserialize)]
pub(crate) struct EventPage<T> {
    pub(crate) items: Vec<T>,
    pub(crate) next_seq: Seq,
}

/// What of an event the window's chart looks at. A line without a `seq` tells of events before the next one that are gone.
#[derive(Deserialize)]
pub(crate) struct SeenEvent {
    pub(crate) seq: Option<Seq>,
    pub(crate) turn: Option<TurnNumber>,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) usage: Option<SeenUsage>,
}

/// What a model call cost.
#[derive(Deserialize)]
pub(crate) struct SeenUsage {
    pub(crate) input_tokens: u64,
}

/// An operation and its parameters; `session_id` is still as it was written.
pub(crate) type Request = (Operation, Value);

/// The compaction that flags ask for, if they do: what they leave out is as configured.
fn compaction(flags: &CompactFlags, configured: CompactionConfig) -> Option<CompactionConfig> {
    let CompactFlags { compact_threshold, compact_keep_turns, compact_summary_tokens, compact_guard_turns } = *flags;
    let keep_turns = compact_keep_turns.map(|turns| usize::try_from(turns).unwrap_or(usize::MAX));
    let asked = CompactionConfig {
        auto_compact_threshold: compact_threshold.unwrap_or(configured.auto_compact_threshold),
        recent_turn_budget: keep_turns.unwrap_or(configured.recent_turn_budget),
        max_summary_tokens: compact_summary_tokens.unwrap_or(configured.max_summary_tokens),
        min_turns_between_compactions: compact_guard_turns.unwrap_or(configured.min_turns_between_compactions),
        ..configured
    };
    let is_asked = keep_turns.is_some()
        || compact_threshold.is_some()
        || compact_summary_tokens.is_some()
        || compact_guard_turns.is_some();
    is_asked.then_some(asked)
}

const fn budgets(flags: &TurnFlags) -> Budgets {
    Budgets {
        tokens: flags.budget_tokens,
        steps: flags.budget_steps,
        tool_calls: flags.budget_tool_calls,
        wall_ms: flags.budget_wall_ms,
    }
}

fn labels(labels: &[(String, String)]) -> BTreeMap<&str, &str> {
    labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

/// `create_session`.
pub(crate) fn create(create: &SessionFlags, turn: &TurnFlags, configured: CompactionConfig) -> Request {
    let params = json!({
        "title": create.title,
        "model": turn.model,
        "system_prompt": create.system,
        "labels": labels(&create.label),
        "tools": create.tools.as_ref().map(|tools| tools.iter().filter(|name| !name.is_empty()).collect::<Vec<_>>()),
        "compaction": compaction(&turn.compact, configured),
        "budgets": budgets(turn),
        "idempotency_key": turn.idempotency_key,
    });
    (Operation::CreateSession, params)
}

/// `start_turn`, or with `is_resume` `resume`.
pub(crate) fn turn(
    is_resume: bool,
    session: &str,
    prompt: Option<&str>,
    flags: &TurnFlags,
    delivery: &Delivery,
    configured: CompactionConfig,
) -> Request {
    let params = json!({
        "session_id": session,
        "prompt": prompt,
        "model": flags.model,
        "policy": delivery.policy.as_deref().unwrap_or("reject"),
        "budgets": budgets(flags),
        "compaction": compaction(&flags.compact, configured),
        "wait": !delivery.detach,
        "idempotency_key": flags.idempotency_key,
    });
    (if is_resume { Operation::Resume } else { Operation::StartTurn }, params)
}

/// `events`.
pub(crate) fn events(args: &EventsArgs, session: &str) -> Request {
    let since = args.since.or(args.after).unwrap_or(0);
    let wait_ms = args.wait_ms.unwrap_or(0);
    let params = json!({ "session_id": session, "since_seq": since, "limit": args.limit, "wait_ms": wait_ms });
    (Operation::Events, params)
}

/// `compact`, its preview and its undoing.
pub(crate) fn compact(args: &CompactArgs, session: &str, configured: CompactionConfig) -> Request {
    match args.undo {
        Some(compaction) => (Operation::UndoCompaction, json!({ "session_id": session, "compaction": compaction })),
        None => {
            let operation = if args.preview { Operation::PreviewCompaction } else { Operation::Compact };
            (operation, json!({ "session_id": session, "compaction": compaction(&args.compact, configured) }))
        }
    }
}

/// The session that a command names, else `session`.
fn name(target: &Target, session: &str) -> String {
    target.session.clone().unwrap_or_else(|| session.to_owned())
}

/// The operations on one session. `session` is meant where the command names none.
pub(crate) fn session(command: &SessionCommand, session: &str) -> Request {
    use SessionCommand as Command;
    let named = |target: &Target| name(target, session);
    let alone = |target| json!({ "session_id": named(target) });
    let decide = |target, call_id: &str, decision: &str, reason: &Option<String>| json!({ "session_id": named(target), "call_id": call_id, "decision": decision, "reason": reason });
    match command {
        Command::List { label, archived, created_after, updated_after, cursor, limit, all_projects: _ } => (
            Operation::List,
            json!({
                "labels": labels(label), "archived": archived, "created_after": created_after,
                "updated_after": updated_after, "cursor": cursor, "limit": limit,
            }),
        ),
        Command::Show(target) => (Operation::Read, alone(target)),
        Command::History { target, cursor, limit, .. } => {
            (Operation::History, json!({ "session_id": named(target), "cursor": cursor, "limit": limit }))
        }
        Command::Blob { target, hash, offset, limit } => {
            (Operation::Blob, json!({ "session_id": named(target), "blob": hash, "offset": offset, "limit": limit }))
        }
        Command::Update { target, title, label } => {
            let labels = (!label.is_empty()).then(|| labels(label));
            (Operation::Update, json!({ "session_id": named(target), "title": title, "labels": labels }))
        }
        Command::Archive(target) => (Operation::Archive, alone(target)),
        Command::Unarchive(target) => (Operation::Unarchive, alone(target)),
        Command::Delete { target, force, .. } => {
            (Operation::Delete, json!({ "session_id": named(target), "force": force }))
        }
        Command::Fork { target, turn } => (Operation::Fork, json!({ "session_id": named(target), "turn": turn })),
        // What stands in the files is read and written beside.
        Command::Export(args) => (Operation::ExportSession, json!({ "session_id": session, "redact": args.redact })),
        Command::Import { new_ids, .. } => (Operation::ImportBundle, json!({ "data": "", "new_ids": new_ids })),
        Command::Retain { dry_run, max_age_days, max_bytes, max_sessions, .. } => (
            Operation::Retain,
            json!({
                "dry_run": dry_run, "max_age_days": max_age_days, "max_bytes": max_bytes, "max_sessions": max_sessions,
            }),
        ),
        Command::Interrupt { target, turn } => {
            (Operation::Interrupt, json!({ "session_id": named(target), "turn": turn }))
        }
        Command::Approve { target, call_id, reason } => {
            (Operation::DecideApproval, decide(target, call_id, "approve", reason))
        }
        Command::Deny { target, call_id, reason } => {
            (Operation::DecideApproval, decide(target, call_id, "deny", reason))
        }
        Command::Queue { target, cancel: None } => (Operation::Queue, alone(target)),
        Command::Queue { target, cancel } => {
            (Operation::CancelQueued, json!({ "session_id": named(target), "turn": cancel }))
        }
        Command::Remind { target, clear: Some(kind), .. } => {
            (Operation::ClearReminder, json!({ "session_id": named(target), "kind": kind }))
        }
        Command::Remind { target, kind, text, .. } => {
            (Operation::Remind, json!({ "session_id": named(target), "kind": kind, "text": text }))
        }
        Command::Reminders(target) => (Operation::Reminders, alone(target)),
        Command::Pin { target, text } => (Operation::Pin, json!({ "session_id": named(target), "text": text })),
        Command::Pins(target) => (Operation::Pins, alone(target)),
        Command::Unpin { target, pin } => (Operation::Unpin, json!({ "session_id": named(target), "pin": pin })),
    }
}

/// The operations on memory.
pub(crate) fn memory(command: &MemoryCommand) -> Request {
    match command {
        MemoryCommand::Search { query, session, role, label, since, until, limit } => (
            Operation::SearchMemory,
            json!({
                "query": query, "scope": if session.is_some() { "session" } else { "project" }, "session_id": session,
                "role": role, "labels": labels(label), "since": since, "until": until, "limit": limit,
            }),
        ),
        MemoryCommand::Forget { session, from_seq, to_seq, source, yes: _ } => (
            Operation::ForgetMemory,
            json!({ "session_id": session, "from_seq": from_seq, "to_seq": to_seq, "source": source }),
        ),
        MemoryCommand::Reindex => (Operation::ReindexMemory, json!({})),
    }
}

/// The operations on readers. `session` is meant where the command names none.
pub(crate) fn reader(command: &ReaderCommand, session: &str) -> Request {
    use ReaderCommand as Command;
    match command {
        Command::Create { reader } => (Operation::CreateReader, json!({ "reader": reader })),
        Command::List => (Operation::ListReaders, json!({})),
        Command::Fetch { reader, limit, wait_ms } => {
            (Operation::FetchReader, json!({ "reader": reader, "limit": limit, "wait_ms": wait_ms.unwrap_or(0) }))
        }
        Command::Acknowledge { reader, target, seq } => {
            (Operation::AcknowledgeReader, json!({ "reader": reader, "session_id": name(target, session), "seq": seq }))
        }
        Command::Wait { reader, target, seq, wait_ms } => (
            Operation::WaitReader,
            json!({
                "reader": reader, "session_id": name(target, session), "seq": seq, "wait_ms": wait_ms.unwrap_or(0),
            }),
        ),
        Command::Delete { reader } => (Operation::DeleteReader, json!({ "reader": reader })),
    }
}

/// The operations on a journal.
pub(crate) fn journal(command: &JournalCommand, session: &str) -> Request {
    let JournalCommand::Compact { target, dry_run, drop_history } = command;
    let params = json!({ "session_id": name(target, session), "dry_run": dry_run, "drop_history": drop_history });
    (Operation::CompactJournal, params)
}

/// The operations on the project's files.
pub(crate) fn project(command: &ProjectCommand) -> Request {
    let ProjectCommand::Rebuild = command;
    (Operation::RebuildProjection, json!({}))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use crate::args::{Cli, chat};

    /// That every operation is a command and a line of `chat` is held by the trials, which ask each of them.
    #[test]
    fn the_definitions_are_sound() {
        Cli::command().debug_assert();
        chat::definition().debug_assert();
    }
}
