//! Requests made of commands, one function for each group of them, and answers read.
//!
//! Nothing is checked here that the service checks.

use std::collections::BTreeMap;

use meerkat_service::{
    Operation, Seq, SessionError, SessionId, TurnNumber,
    compaction::CompactionConfig,
    cost::Cost,
    given::GivenMessage,
    options::{Budgets, ModelOptions, Policy},
    service::{CallOutcome, CreateSession, Prompt, ResumeTurn, Scope, SessionMemory, StartTurn},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::args::{
    CompactFlags, CompactHow, Delivery, EventsArgs, MemoryCommand, ModelFlags, SessionCommand, SessionFlags, Target,
    TurnFlags,
};

/// Reads an answer.
pub(crate) fn read<T: DeserializeOwned>(answer: &[u8]) -> Result<T, SessionError> {
    serde_json::from_slice(answer)
        .map_err(|error| SessionError::Internal(format!("an answer could not be read: {error}")))
}

/// Fields of an event that say where it stands. A line without a `seq` says that earlier events are pruned.
#[derive(Deserialize)]
pub(crate) struct SeenEvent {
    pub(crate) seq: Option<Seq>,
    pub(crate) turn: Option<TurnNumber>,
    #[serde(rename = "type")]
    pub(crate) kind: String,
}

/// Operation and its parameters; `session_id` may still be a short name.
pub(crate) type Request = (Operation, Value);

/// Returns the compaction that flags ask for, if any: the other settings are as configured.
fn compaction(flags: &CompactFlags, configured: CompactionConfig) -> Option<CompactionConfig> {
    let CompactFlags { compact_threshold, compact_keep_turns, compact_summary_tokens, compact_guard_turns } = *flags;
    let keep_turns = compact_keep_turns.map(|turns| usize::try_from(turns).unwrap_or(usize::MAX));
    let asked = CompactionConfig {
        enabled: true,
        auto_compact_threshold: compact_threshold.unwrap_or(configured.auto_compact_threshold),
        recent_turn_budget: keep_turns.unwrap_or(configured.recent_turn_budget),
        max_summary_tokens: compact_summary_tokens.unwrap_or(configured.max_summary_tokens),
        min_turns_between_compactions: compact_guard_turns.unwrap_or(configured.min_turns_between_compactions),
        ..configured
    };
    (*flags != CompactFlags::default()).then_some(asked)
}

fn budgets(flags: &TurnFlags) -> Budgets {
    Budgets {
        tokens: flags.budget_tokens,
        steps: flags.budget_steps,
        tool_calls: flags.budget_tool_calls,
        wall_ms: flags.budget_wall_ms,
        cost: flags.budget_cost.map(Cost::from_dollars),
        agents: flags.budget_agents,
    }
}

fn options(flags: &ModelFlags) -> ModelOptions {
    ModelOptions {
        max_output_tokens: flags.max_output_tokens,
        temperature: flags.temperature,
        top_p: flags.top_p,
        stop: (!flags.stop.is_empty()).then(|| flags.stop.iter().filter(|text| !text.is_empty()).cloned().collect()),
        seed: flags.seed,
        effort: flags.effort,
        cache: flags.cache,
    }
}

fn labels(labels: &[(String, String)]) -> BTreeMap<String, String> {
    labels.iter().cloned().collect()
}

/// `create_session`.
pub(crate) fn create(
    create: &SessionFlags,
    turn: &TurnFlags,
    configured: CompactionConfig,
    (workspace, history): (Option<String>, Vec<GivenMessage>),
) -> CreateSession {
    CreateSession {
        workspace,
        history,
        title: create.title.clone(),
        model: turn.model.clone(),
        system_prompt: create.system.clone(),
        labels: labels(&create.label),
        tools: create.tools.as_ref().map(|tools| tools.iter().filter(|name| !name.is_empty()).cloned().collect()),
        // Programs have them; a command that ends cannot answer.
        client_tools: None,
        compaction: compaction(&turn.compact, configured),
        budgets: budgets(turn),
        options: options(&turn.options),
        memory: SessionMemory { scope: create.memory_scope.unwrap_or_default(), index: !create.no_memory_index },
        idempotency_key: turn.idempotency_key.clone(),
    }
}

/// `start_turn`.
pub(crate) fn turn(
    session_id: SessionId,
    prompt: Prompt,
    flags: &TurnFlags,
    delivery: &Delivery,
    configured: CompactionConfig,
) -> StartTurn {
    resume(Some(prompt), flags, delivery, configured).on(session_id)
}

/// `resume`.
pub(crate) fn resume(
    prompt: Option<Prompt>,
    flags: &TurnFlags,
    delivery: &Delivery,
    configured: CompactionConfig,
) -> ResumeTurn {
    ResumeTurn {
        prompt,
        model: flags.model.clone(),
        policy: delivery.policy.unwrap_or_default(),
        budgets: budgets(flags),
        options: options(&flags.options),
        compaction: compaction(&flags.compact, configured),
        attended: delivery.attended,
        allow: delivery.allow.clone(),
        access: delivery.access,
        wait: !delivery.detach,
        idempotency_key: flags.idempotency_key.clone(),
        ..ResumeTurn::default()
    }
}

/// `start_turn` of a text for the running turn.
pub(crate) fn steer(session: &str, text: &str, attended: bool) -> Request {
    let params = json!({
        "session_id": session, "prompt": text, "policy": Policy::Steer, "attended": attended, "wait": false,
    });
    (Operation::StartTurn, params)
}

/// `events`.
pub(crate) fn events(args: &EventsArgs, session: &str) -> Request {
    let EventsArgs { limit, skip_damage, .. } = args;
    let (since, wait_ms) = (args.cursor(), args.wait_ms.unwrap_or(0));
    let params = json!({
        "session_id": session, "since_seq": since, "limit": limit, "wait_ms": wait_ms, "skip_damage": skip_damage,
    });
    (Operation::Events, params)
}

/// `compact`, its preview and its undoing.
pub(crate) fn compact(args: &CompactHow, session: &str, configured: CompactionConfig) -> Request {
    match args.undo {
        Some(compaction) => (Operation::UndoCompaction, json!({ "session_id": session, "compaction": compaction })),
        None => {
            let operation = if args.preview { Operation::PreviewCompaction } else { Operation::Compact };
            (operation, json!({ "session_id": session, "compaction": compaction(&args.compact, configured) }))
        }
    }
}

/// A page of a session's history.
fn page(cursor: Option<&str>, limit: Option<u64>, skip_damage: bool) -> Value {
    json!({ "cursor": cursor, "limit": limit, "skip_damage": skip_damage })
}

/// Makes a request about the session that a command names, else about `session`.
fn about(operation: Operation, target: &Target, session: &str, mut params: Value) -> Request {
    params["session_id"] = target.session.as_deref().unwrap_or(session).into();
    (operation, params)
}

/// Operations on one session: on `session` if the command names none.
pub(crate) fn session(command: &SessionCommand, session: &str) -> Request {
    use SessionCommand as Command;
    let on = |target, operation, params| about(operation, target, session, params);
    let decide = |target, call_id: &str, decision, scope: Scope, reason: &Option<String>| {
        let params = json!({ "call_id": call_id, "decision": decision, "scope": scope.name(), "reason": reason });
        on(target, Operation::DecideApproval, params)
    };
    match command {
        Command::List { label, archived, children, created_after, updated_after, cursor, limit, all_projects: _ } => (
            Operation::List,
            json!({
                "labels": labels(label), "archived": archived, "children": children, "created_after": created_after,
                "updated_after": updated_after, "cursor": cursor, "limit": limit,
            }),
        ),
        // The command itself makes the session.
        Command::Create(_) => (Operation::CreateSession, json!({})),
        Command::Show(target) => on(target, Operation::Read, json!({})),
        // The command itself lists the sessions.
        Command::Tree(target) => on(target, Operation::List, json!({})),
        Command::History { target, cursor, limit, skip_damage, .. } => {
            on(target, Operation::History, page(cursor.as_deref(), *limit, *skip_damage))
        }
        // The command itself reads the events, and the copies of files.
        Command::Files { target, .. } | Command::RestoreFiles { target, .. } => on(target, Operation::Blob, json!({})),
        Command::Title { target, text } => on(target, Operation::Update, json!({ "title": text, "labels": null })),
        Command::Archive(target) => on(target, Operation::Archive, json!({})),
        Command::Unarchive(target) => on(target, Operation::Unarchive, json!({})),
        Command::Delete { target, force, .. } => on(target, Operation::Delete, json!({ "force": force })),
        Command::Fork { target, turn } => on(target, Operation::Fork, json!({ "turn": turn })),
        // The command itself reads and writes the files.
        Command::Export(args) => (
            Operation::ExportSession,
            json!({ "session_id": session, "redact": args.redact, "skip_damage": args.skip_damage }),
        ),
        Command::Import { new_ids, keep_scope, .. } => {
            (Operation::ImportBundle, json!({ "data": "", "new_ids": new_ids, "keep_scope": keep_scope }))
        }
        Command::Interrupt { target, turn } => on(target, Operation::Interrupt, json!({ "turn": turn })),
        Command::Approve { target, call_id, scope, answer, reason } => {
            let (operation, mut params) = decide(target, call_id, "approve", *scope, reason);
            if let Some(answer) = answer {
                // What is no JSON is no object either, which the service refuses.
                params["answer"] = serde_json::from_str(answer).unwrap_or_else(|_| json!(answer));
            }
            (operation, params)
        }
        Command::Deny { target, call_id, reason } => decide(target, call_id, "deny", Scope::Once, reason),
        Command::Calls(target) => on(target, Operation::Calls, json!({})),
        // The command itself adds the value, as it was written.
        Command::Answer { target, call_id, text, value: _, failed, wait } => {
            let content: Vec<Value> = text.iter().map(|text| json!({ "type": "text", "text": text })).collect();
            let outcome = if *failed { CallOutcome::Failed } else { CallOutcome::Succeeded };
            let params = json!({ "call_id": call_id, "outcome": outcome, "content": content, "wait": wait });
            on(target, Operation::AnswerCall, params)
        }
        Command::Queue { target, cancel: Some(turn), .. } => {
            on(target, Operation::CancelQueued, json!({ "turn": turn }))
        }
        Command::Queue { target, edit: Some(turn), prompt, position, .. } => {
            let params = json!({ "turn": turn, "prompt": prompt, "position": position });
            on(target, Operation::EditQueued, params)
        }
        Command::Queue { target, cancel: None, edit: None, .. } => on(target, Operation::Queue, json!({})),
        Command::Pin { target, text } => on(target, Operation::Pin, json!({ "text": text })),
    }
}

/// Operations on memory.
pub(crate) fn memory(command: &MemoryCommand) -> Request {
    match command {
        MemoryCommand::Search { query, session, role, label, since, until, limit } => (
            Operation::SearchMemory,
            json!({
                "query": query, "scope": if session.is_some() { "session" } else { "project" }, "session_id": session,
                "role": role, "labels": labels(label), "since": since, "until": until, "limit": limit,
            }),
        ),
        MemoryCommand::Forget { session, from_seq, to_seq, source, no_wait, yes: _ } => (
            Operation::ForgetMemory,
            json!({
                "session_id": session, "from_seq": from_seq, "to_seq": to_seq, "source": source, "wait": !no_wait,
            }),
        ),
        MemoryCommand::Reindex => (Operation::ReindexMemory, json!({})),
    }
}

/// `tools`: of a session, or of a new one.
pub(crate) fn tools(session: Option<&str>, with_workspace: bool) -> Request {
    (Operation::Tools, json!({ "session_id": session, "with_workspace": with_workspace }))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::{CompactFlags, CompactionConfig, compaction};
    use crate::args::{Cli, chat};

    /// The trials call every operation.
    #[test]
    fn the_definitions_are_sound() {
        Cli::command().debug_assert();
        chat::definition().debug_assert();
    }

    /// Who asks for a compaction gets one, whatever the configuration says of sessions that do not ask.
    #[test]
    fn flags_of_a_compaction_switch_it_on() {
        let configured = CompactionConfig { enabled: false, recent_turn_budget: 7, ..CompactionConfig::default() };
        assert_eq!(compaction(&CompactFlags::default(), configured), None);
        let flags = CompactFlags { compact_threshold: Some(9), ..CompactFlags::default() };
        let expected = CompactionConfig { enabled: true, auto_compact_threshold: 9, ..configured };
        assert_eq!(compaction(&flags, configured), Some(expected));
    }
}
