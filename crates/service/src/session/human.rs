//! One line for people about each event, as a terminal shows it while a turn runs.
//!
//! Texts come from models, tools and users: a line is short and has no control characters, so that no text can move the
//! cursor or forge another line.

use std::borrow::Cow;

use meerkat_words::calls::CallOutcome;
use serde_json::Value;

use super::{
    event::{
        ApprovalRequested, Decision, DelegateStarted, Event, LiveEvent, Pruned, PrunedReason, Scope, SessionImported,
        ToolOutcome, TurnTotals,
    },
    message::{Attached, Block, Body, Message},
};
use crate::{
    model::StopReason,
    options::ModelOptions,
    redact::redact_key_shapes,
    tool::{is_obeyed, prefix, visible},
};

/// Characters that a line may have.
const LINE_CHARS_MAX: usize = 120;
/// Characters that a heading may have, and bytes of a line that are looked at for it.
const HEADING_CHARS_MAX: usize = 80;
const HEADING_BYTES_READ: usize = 4096;

impl Event {
    /// The event in one short line, without control characters.
    #[must_use]
    pub fn human_line(&self) -> String {
        line(match self {
            Self::SessionCreated(created) => format!("session created with {}", created.model),
            Self::SessionForked(forked) => format!("forked from {} after event {}", forked.parent, forked.at),
            Self::SessionImported(SessionImported { had_client_tools: false, .. }) => {
                "imported: no workspace and no allowed rules any more".to_owned()
            }
            Self::SessionImported(SessionImported { had_client_tools: true, .. }) => {
                "imported: no workspace, allowed rules or tools of its caller any more; calls that wait for it do not \
                 run"
                .to_owned()
            }
            Self::SessionUpdated(updated) => {
                let title = updated.title.as_deref().map_or("no title", first);
                format!("session updated: {title}, {}", count(updated.labels.len() as u64, "label"))
            }
            Self::SessionArchived(_) => "session archived".to_owned(),
            Self::SessionUnarchived(_) => "session unarchived".to_owned(),
            Self::HistoryGiven(given) => {
                let text = given.message.text();
                let calls = match given.message.tool_calls().count() as u64 {
                    0 => String::new(),
                    calls => format!(", {}", count(calls, "call")),
                };
                format!("given ({}): {}{calls}", given.role().unwrap_or_default(), first(&text))
            }
            Self::TurnQueued(queued) => format!("queued: {}", said(&queued.prompt, &queued.blocks)),
            Self::TurnEdited(edited) => match (&edited.prompt, edited.position) {
                (Some(prompt), Some(position)) => {
                    format!("queued at place {position}: {}", said(prompt, &edited.blocks))
                }
                (Some(prompt), None) => format!("the queued turn says instead: {}", said(prompt, &edited.blocks)),
                (None, Some(position)) => format!("moved to place {position} in the queue"),
                (None, None) => "not changed".to_owned(),
            },
            Self::TurnDequeued(dequeued) => format!("left the queue: {}", dequeued.reason),
            Self::TurnStarted(started) => {
                let model = format!("{}{}", started.model, asked(&started.options));
                match (&started.prompt, started.continues) {
                    (Some(prompt), _) => format!("turn started with {model}: {}", said(prompt, &started.blocks)),
                    (None, Some(turn)) => format!("turn started with {model}, going on with turn {turn}"),
                    (None, None) => format!("turn started with {model}, from the queue"),
                }
            }
            Self::TurnSteered(steered) => format!("steered: {}", said(&steered.prompt, &steered.blocks)),
            Self::SteeringEntered(_) => "the steered text is in the context".to_owned(),
            Self::AssistantMessage(answer) => {
                let calls = answer.blocks.iter().filter(|block| matches!(block, Block::ToolCall(_))).count();
                let calls = if calls == 0 { String::new() } else { format!(", {}", count(calls as u64, "call")) };
                let usage = answer.usage;
                format!(
                    "step {} answered: {}{calls}, {} tokens in, {} out",
                    answer.step,
                    stop_reason(answer.stop_reason),
                    usage.input_tokens,
                    usage.output_tokens
                )
            }
            Self::OutputRefused(refused) => format!("answer refused: {}", first(&refused.listed())),
            Self::ToolStarted(started) => format!("{} runs", started.name),
            Self::ToolFinished(finished) => {
                let outcome = match finished.outcome {
                    ToolOutcome::Succeeded => "succeeded",
                    ToolOutcome::Failed => "failed",
                    ToolOutcome::NotRun => "did not run",
                    ToolOutcome::Unknown => "has an unknown outcome",
                };
                let (name, output) = (&finished.name, first_line(&finished.output));
                let used = finished.delegated;
                let used = used.map_or_else(String::new, |it| format!(", {} steps, {} tokens", it.steps, it.tokens));
                format!("{name} {outcome} ({} ms{used}): {output}", finished.duration_ms)
            }
            Self::ApprovalRequested(ApprovalRequested { call_id, form: Some(form), .. }) => {
                format!("the server {} asks: {call_id} {}", form.server, first(&form.message))
            }
            Self::ApprovalRequested(request) => {
                format!("{} waits for approval: {} {}", request.name, request.call_id, request.arguments)
            }
            Self::ApprovalDecided(decided) => {
                let decision = match decided.decision {
                    Decision::Approve => "approved",
                    Decision::Deny => "denied",
                };
                let reason = decided.reason.as_ref().map_or(String::new(), |reason| format!(": {}", first(reason)));
                let scope = match decided.scope {
                    Scope::Once => "",
                    Scope::Session => " for this session",
                    Scope::Always => " for always",
                };
                format!("{} {decision}{scope}{reason}", decided.call_id)
            }
            Self::ClientToolsChanged(changed) => {
                let names = changed.tools.iter().flatten().map(|tool| tool.name.as_str());
                match (&changed.tools, changed.defined) {
                    (None, Some(seq)) => format!("the caller's tools are those of event {seq}"),
                    _ => format!("the caller's tools: {}", names.collect::<Vec<_>>().join(", ")),
                }
            }
            Self::CallRequested(request) => {
                format!("{} waits for its caller: {} {}", request.name, request.call_id, request.arguments.as_str())
            }
            Self::DelegateStarted(DelegateStarted { call_id, child, agent, .. }) => {
                let name = agent.as_ref().map_or_else(String::new, |agent| format!(" {}", agent.name));
                format!("{call_id} started the sub-agent{name} {child}")
            }
            Self::CallAnswered(answered) => {
                let outcome = match answered.outcome {
                    CallOutcome::Succeeded => "succeeded",
                    CallOutcome::Failed => "failed",
                };
                format!("{} was answered: it {outcome}", answered.call_id)
            }
            Self::ToolAllowed(allowed) => format!("allowed in this session: {}", first(&allowed.rule)),
            Self::ReminderSet(set) => format!("reminder {}: {}", set.kind, first(&set.text)),
            Self::ReminderCleared(cleared) => format!("reminder {} cleared", cleared.kind),
            Self::Pinned(pinned) => format!("pinned: {}", first(&pinned.text)),
            Self::Unpinned(unpinned) => format!("pin {} removed", unpinned.pin),
            Self::BudgetWarning(warning) => {
                format!("budget nearly used up: {} of {}", warning.used, warning.limit.named(warning.budget))
            }
            Self::PartialText(partial) => format!("answer cut off: {}", first_line(&partial.text)),
            Self::TurnCompleted(completed) => {
                format!("turn completed: {}, {}", stop_reason(completed.stop_reason), totals(&completed.totals))
            }
            Self::TurnFailed(failed) => format!("turn failed: {}: {}", failed.error.code, first(&failed.error.message)),
            Self::TurnInterrupted(interrupted) => format!("turn interrupted: {}", interrupted.reason),
            Self::HistorySnapshot(snapshot) => {
                let (to, messages) = (snapshot.pruned_to, count(snapshot.message_count, "message"));
                format!("messages up to event {to} may have been pruned ({messages} in all)")
            }
            Self::ContextRebuilt(rebuilt) => {
                let receipt = &rebuilt.receipt;
                let (tokens, kept) = (receipt.tokens_after, count(receipt.retained, "message"));
                format!("context rebuilt: {kept} kept, {} dropped, {tokens} tokens", receipt.discarded)
            }
            Self::CompactionCompleted(completed) => {
                let (before, after) = (completed.messages_before, count(completed.messages_after, "message"));
                format!("context compacted: {before} to {after}, a summary of {} tokens", completed.summary_tokens)
            }
            Self::LogTailRepaired(repaired) => {
                format!(
                    "journal repaired: {} cut off and kept in {}",
                    count(repaired.bytes, "byte"),
                    repaired.quarantine
                )
            }
            Self::RecordsLost(lost) => {
                let range = |(from, to): &(u64, u64)| match from == to {
                    true => from.to_string(),
                    false => format!("{from} to {to}"),
                };
                format!("events lost to damage: {}", lost.ranges.iter().map(range).collect::<Vec<_>>().join(", "))
            }
            Self::CompactionStarted(started) => format!(
                "compacting {}, some {} tokens",
                count(started.message_count, "message"),
                started.estimated_history_tokens
            ),
            Self::SummaryUnused(unused) => {
                format!("summary not used: {} tokens in, {} out", unused.usage.input_tokens, unused.usage.output_tokens)
            }
            Self::CompactionFailed(failed) => format!("not compacted: {}, {}", failed.code, first(&failed.message)),
            Self::CompactionUndone(undone) => format!("compaction {} undone", undone.compaction),
            Self::Unknown(unknown) => format!("event of an unknown kind: {}", unknown.type_name),
        })
    }
}

impl LiveEvent {
    /// The event in one short line, without control characters.
    #[must_use]
    pub fn human_line(&self) -> String {
        line(match self {
            Self::TextDelta(delta) => format!("says: {}", first(&delta.text)),
            Self::ReasoningDelta(delta) => format!("thinks: {}", first(&delta.text)),
            Self::ToolProgress(progress) => format!("{}: {}", progress.call_id, first(&progress.text)),
            Self::Retrying(retrying) => {
                let (attempt, wait_ms, error) = (retrying.attempt, retrying.wait_ms, &retrying.error);
                format!("call {attempt} failed, the next in {wait_ms} ms: {}: {}", error.code, first(&error.message))
            }
            Self::Pruned(Pruned { from, to, reason: None }) => format!("events {from} to {to} are gone"),
            Self::Pruned(Pruned { from, to, reason: Some(PrunedReason::Damage) }) => {
                format!("events {from} to {to} are damaged, and passed over")
            }
            Self::SessionDeleted(_) => "session deleted".to_owned(),
        })
    }
}

/// The options that are set, each with its value.
fn asked(options: &ModelOptions) -> String {
    let Ok(Value::Object(set)) = serde_json::to_value(options) else { return String::new() };
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    set.iter().map(|(name, value)| format!(", {name} {}", text(value))).collect()
}

const fn stop_reason(reason: StopReason) -> &'static str {
    match reason {
        StopReason::EndTurn => "end_turn",
        StopReason::ToolUse => "tool_use",
        StopReason::MaxTokens => "max_tokens",
        StopReason::Refusal => "refusal",
        StopReason::ContentFilter => "content_filter",
        StopReason::Empty => "empty",
    }
}

fn totals(totals: &TurnTotals) -> String {
    let (steps, calls) = (count(u64::from(totals.steps), "step"), count(u64::from(totals.tool_calls), "tool call"));
    let usage = totals.usage;
    format!("{steps}, {calls}, {} tokens in, {} out", usage.input_tokens, usage.output_tokens)
}

/// A number with its noun.
pub(crate) fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

fn first_line(body: &Body) -> &str {
    first(beginning(body))
}

/// The first line of a prompt, or of its images and files if it has no text.
fn said<'a>(prompt: &'a Body, blocks: &[Attached]) -> Cow<'a, str> {
    match first_line(prompt) {
        "" => Attached::lines(blocks).into_iter().next().unwrap_or_default().into(),
        line => line.into(),
    }
}

fn beginning(body: &Body) -> &str {
    match body {
        Body::Inline(text) => text,
        Body::Blob(blob) => &blob.head,
    }
}

/// The first line of a prompt that can be a heading.
pub(super) fn heading_of(prompt: &Message) -> Option<String> {
    let of_text = prompt.texts().find_map(|text| beginning(text).lines().find_map(heading));
    of_text.or_else(|| heading(Attached::lines(prompt.attached()).first()?))
}

/// Makes a heading of a line: words with single blanks, without keys and terminal controls, cut to its length; `None`
/// if nothing is left.
pub(super) fn heading(text: &str) -> Option<String> {
    let is_between = |character: char| character.is_whitespace() || is_obeyed(character);
    let words = prefix(text, HEADING_BYTES_READ).split(is_between).filter(|word| !word.is_empty());
    let words = words.collect::<Vec<_>>().join(" ");
    let heading = cut(&redact_key_shapes(&words), HEADING_CHARS_MAX);
    (!heading.is_empty()).then_some(heading)
}

/// Returns the first line with text.
fn first(text: &str) -> &str {
    text.trim().lines().next().unwrap_or_default()
}

/// Cuts a line to its length, with blanks for terminal controls, and escapes for what else nobody would see.
fn line(text: String) -> String {
    let seen = |char: char| if is_obeyed(char) { " ".to_owned() } else { visible(char.encode_utf8(&mut [0; 4])) };
    cut(&text.chars().take(LINE_CHARS_MAX + 1).map(seen).collect::<String>(), LINE_CHARS_MAX)
}

fn cut(text: &str, chars_max: usize) -> String {
    let mut shown: String = text.chars().take(chars_max).collect();
    if text.chars().nth(chars_max).is_some() {
        shown.pop();
        shown.push('…');
    }
    shown
}
