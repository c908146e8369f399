//! One sample of each kind, with every field filled by the caller.

use std::sync::Arc;

use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_words::{
    agents::{Delegated, Descent, Parent},
    calls::{CallOutcome, ClientTool},
};
use proptest::{collection::vec, prelude::*};

use super::{
    json::{compact, tokens},
    session_id,
    walk::receipt,
};
use crate::{
    clock::SeededIds,
    compaction::CompactionConfig,
    cost::Cost,
    model::{StopReason, Usage},
    options::{Amount, Budget, Budgets, Effort, ModelOptions, Policy},
    output::{OutputError, OutputSpec},
    session::{
        CompactionCounters,
        event::{
            Agent, ApprovalDecided, ApprovalRequested, AssistantMessage, BudgetWarning, CallAnswered, CallRequested,
            ChangedFile, ClientToolsChanged, CompactionCompleted, CompactionFailed, CompactionStarted,
            CompactionUndone, ContextRebuilt, ContextTokens, Decision, DelegateStarted, Event, EventKind, FileBefore,
            HistoryGiven, HistorySnapshot, Key, LiveEvent, LogTailRepaired, LostKey, MemoryScope, OutputRefused,
            PartialText, Pinned, Pruned, ReasoningDelta, RecordsLost, ReminderCleared, ReminderSet, Retrying, Scope,
            SessionArchived, SessionCreated, SessionDeleted, SessionForked, SessionImported, SessionMemory,
            SessionUnarchived, SessionUpdated, SteeringEntered, SummaryUnused, TextDelta, ToolAllowed, ToolFinished,
            ToolOutcome, ToolProgress, ToolStarted, TurnCompleted, TurnDequeued, TurnEdited, TurnFailed,
            TurnInterrupted, TurnQueued, TurnStarted, TurnSteered, TurnTotals, Unpinned,
        },
        message::{Attached, AttachedFile, BlobRef, Block, Body, Image, Message, RawJson, ToolCall},
        reminder::SystemReminderType,
    },
    tool::{Effect, Form, TurnAccess},
};

/// Content of a sample's fields.
#[derive(Clone, Debug)]
pub(crate) struct Filling {
    pub(crate) text: String,
    pub(crate) body: Body,
    pub(crate) json: RawJson,
    pub(crate) number: u64,
    /// True if optional fields are filled.
    pub(crate) is_full: bool,
}

/// Any text, control characters included; any body; any JSON; any number.
pub(crate) fn filling() -> impl Strategy<Value = Filling> {
    let text = || vec(any::<char>(), 0..24).prop_map(String::from_iter);
    let blob = (text(), any::<u64>(), text(), text())
        .prop_map(|(blob, bytes, head, tail)| Body::Blob(BlobRef { blob, bytes, head, tail }));
    let body = prop_oneof![text().prop_map(Body::Inline), blob];
    let json = tokens().prop_map(|tokens| RawJson::parse(&compact(&tokens)).unwrap());
    (text(), body, json, any::<u64>(), any::<bool>()).prop_map(|(text, body, json, number, is_full)| Filling {
        text,
        body,
        json,
        number,
        is_full,
    })
}

#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a few of a test")]
pub(crate) enum Sample {
    Durable(Event),
    Live(LiveEvent),
}

impl Sample {
    pub(crate) fn human_line(&self) -> String {
        match self {
            Self::Durable(event) => event.human_line(),
            Self::Live(event) => event.human_line(),
        }
    }
}

fn changed_file(text: &str, number: u64) -> ChangedFile {
    let before = FileBefore { sha256: text.to_owned(), bytes: number, copy: Some(text.to_owned()) };
    ChangedFile { path: text.to_owned(), before: Some(before), after_sha256: text.to_owned(), order: number }
}

pub(crate) fn sample(kind: EventKind, with: &Filling) -> Sample {
    let Filling { text, body, json, number, is_full } = with.clone();
    let small = u32::try_from(number % 1000).unwrap();
    let when_full = |text: &String| is_full.then(|| text.clone());
    let cost = is_full.then(|| Cost::from_micros(number));
    let budgets = Budgets { tokens: is_full.then_some(number), steps: Some(number), cost, ..Budgets::default() };
    let options = ModelOptions {
        max_output_tokens: is_full.then_some(small.max(1)),
        temperature: is_full.then_some(0.1),
        stop: is_full.then(|| vec![text.clone()]),
        effort: is_full.then_some(Effort::High),
        ..ModelOptions::default()
    };
    let output = is_full.then(|| {
        let schema = RawJson::parse(&format!(r#"{{"const":{}}}"#, json.as_str())).unwrap();
        Arc::new(OutputSpec { name: Some("city".to_owned()), repairs: 0, ..OutputSpec::new(schema) })
    });
    let key = is_full.then(|| Key { key: text.clone(), request: text.clone() });
    let usage = Usage {
        input_tokens: number,
        output_tokens: 0,
        cached_tokens: number,
        cache_write_tokens: number,
        reasoning_tokens: 0,
    };
    let [name, media_type, blob] = [&text; 3].map(Clone::clone);
    let file = Attached::File(AttachedFile { name, media_type, blob, bytes: number, pages: Some(small) });
    let [media_type, blob] = [&text; 2].map(Clone::clone);
    let image = Attached::Image(Image { media_type, blob, bytes: number, width: small, height: small });
    let blocks = if is_full { vec![image, file] } else { Vec::new() };
    let delegated = is_full.then_some(Delegated { agents: number, steps: number, tool_calls: 1, tokens: number, cost });
    let totals = TurnTotals { steps: small, tool_calls: small, compactions: 0, usage, cost, delegated };
    let error = ErrorBody::with_message(ErrorCode::ToolFailed, text.clone()).detail("what", text.clone());
    let descent = || {
        let parent = Parent { session_id: session_id(), turn: small, call_id: with.text.clone() };
        Descent { parent, root: session_id(), depth: number }
    };
    Sample::Durable(match kind {
        EventKind::SessionCreated => Event::SessionCreated(SessionCreated {
            title: when_full(&text),
            model: text.clone(),
            system_prompt: is_full.then_some(body),
            labels: [(text.clone(), text.clone())].into(),
            tools: is_full.then(|| vec![text]),
            workspace: is_full.then(|| "/home/ada/project".to_owned()),
            budgets,
            options,
            compaction: is_full.then(CompactionConfig::default),
            memory: match is_full {
                true => SessionMemory { scope: MemoryScope::Session, index: false },
                false => SessionMemory::default(),
            },
            descent: is_full.then(descent),
            key,
        }),
        EventKind::SessionForked => Event::SessionForked(SessionForked { parent: session_id(), at: number, key }),
        EventKind::SessionImported => {
            Event::SessionImported(SessionImported { had_client_tools: is_full, descent: is_full.then(descent) })
        }
        EventKind::SessionUpdated => Event::SessionUpdated(SessionUpdated {
            title: when_full(&text),
            labels: is_full.then(|| (text.clone(), text)).into_iter().collect(),
        }),
        EventKind::SessionArchived => Event::SessionArchived(SessionArchived {}),
        EventKind::SessionUnarchived => Event::SessionUnarchived(SessionUnarchived {}),
        EventKind::HistorySnapshot => Event::HistorySnapshot(HistorySnapshot {
            pruned_to: number,
            keys_up_to: SeededIds::wall_time(),
            message_count: number,
            usage,
            cost,
            next_turn: small,
            context: is_full.then_some((number, number)).into_iter().collect(),
            counters: is_full.then(CompactionCounters::default),
            undoable_after: is_full.then_some(number),
            found_tools: when_full(&text).into_iter().collect(),
            first_line: when_full(&text),
        }),
        EventKind::ContextRebuilt => Event::ContextRebuilt(ContextRebuilt {
            compaction: number,
            summary: is_full.then_some(body),
            retained: vec![(number, number)],
            masked: is_full.then_some(number).into_iter().collect(),
            receipt: receipt(number),
        }),
        EventKind::CompactionStarted => Event::CompactionStarted(CompactionStarted {
            input_tokens: number,
            estimated_history_tokens: number,
            message_count: number,
        }),
        EventKind::CompactionFailed => {
            Event::CompactionFailed(CompactionFailed { code: ErrorCode::ModelOverloaded, message: text })
        }
        EventKind::SummaryUnused => Event::SummaryUnused(SummaryUnused { usage, cost }),
        EventKind::CompactionUndone => Event::CompactionUndone(CompactionUndone { compaction: number }),
        EventKind::CompactionCompleted => Event::CompactionCompleted(CompactionCompleted {
            summary_tokens: number,
            messages_before: number,
            messages_after: number,
        }),
        EventKind::LogTailRepaired => Event::LogTailRepaired(LogTailRepaired { bytes: number, quarantine: text }),
        EventKind::RecordsLost => Event::RecordsLost(RecordsLost {
            ranges: vec![(number, number)],
            keys_unknown: is_full,
            keys: key
                .iter()
                .map(|key| LostKey { key: key.clone(), turn: small, seq: number, time: SeededIds::wall_time() })
                .collect(),
        }),
        EventKind::HistoryGiven => Event::HistoryGiven(HistoryGiven {
            exchange: small,
            message: match is_full {
                true => Message::BlockAssistant {
                    model: String::new(),
                    blocks: vec![
                        Block::Text { text: body },
                        Block::ToolCall(ToolCall { call_id: text.clone(), name: text, arguments: json, opaque: None }),
                    ],
                },
                false => Message::User { content: body, blocks },
            },
        }),
        EventKind::TurnQueued => Event::TurnQueued(TurnQueued {
            prompt: body,
            blocks,
            model: when_full(&text),
            budgets,
            options,
            output,
            compaction: is_full.then(CompactionConfig::default),
            attended: is_full,
            allow: when_full(&text).into_iter().collect(),
            access: is_full.then_some(TurnAccess::Ask),
            search_path: when_full(&text),
            client_tools: when_full(&text),
            policy: Policy::Interrupt,
            key,
        }),
        EventKind::TurnEdited => Event::TurnEdited(TurnEdited {
            prompt: is_full.then_some(body),
            blocks,
            position: (!is_full).then_some(usize::try_from(small).unwrap()),
        }),
        EventKind::TurnDequeued => Event::TurnDequeued(TurnDequeued { reason: text }),
        EventKind::TurnStarted => Event::TurnStarted(TurnStarted {
            prompt: is_full.then_some(body),
            blocks,
            model: text,
            budgets,
            options,
            output,
            queued: is_full.then_some(number),
            continues: is_full.then_some(small),
            attended: is_full,
            allow: with.is_full.then(|| with.text.clone()).into_iter().collect(),
            access: is_full.then_some(TurnAccess::Read),
            search_path: with.is_full.then(|| with.text.clone()),
            client_tools: with.is_full.then(|| with.text.clone()),
            compaction: is_full.then(CompactionConfig::default),
            key,
        }),
        EventKind::TurnSteered => Event::TurnSteered(TurnSteered { prompt: body, blocks, started: number, key }),
        EventKind::SteeringEntered => Event::SteeringEntered(SteeringEntered { steered: number }),
        EventKind::AssistantMessage => Event::AssistantMessage(AssistantMessage {
            step: small,
            model: text.clone(),
            blocks: vec![
                Block::Text { text: body.clone() },
                Block::Reasoning { text: body, opaque: is_full.then(|| json.clone()), vendor: text.clone() },
                Block::ToolCall(ToolCall {
                    call_id: text.clone(),
                    name: text.clone(),
                    arguments: json.clone(),
                    opaque: is_full.then_some(json),
                }),
            ],
            stop_reason: StopReason::MaxTokens,
            usage,
            cost,
            tools: is_full.then_some(text),
            context: is_full.then_some(ContextTokens {
                system: number,
                tools: number,
                reminders: number,
                pins: number,
                history: number,
                tool_results: number,
                free: (number % 2 == 0).then_some(number),
            }),
        }),
        EventKind::OutputRefused => {
            let errors = is_full.then(|| OutputError { path: text.clone(), message: text });
            Event::OutputRefused(OutputRefused { errors: errors.into_iter().collect() })
        }
        EventKind::ToolStarted => {
            let files = is_full.then(|| changed_file(&text, number)).into_iter().collect();
            Event::ToolStarted(ToolStarted { call_id: text.clone(), name: text, effect: Effect::Once, files })
        }
        EventKind::ToolFinished => Event::ToolFinished(ToolFinished {
            call_id: text.clone(),
            outcome: ToolOutcome::Unknown,
            output: body,
            error: is_full.then_some(error),
            duration_ms: number,
            files: is_full.then(|| changed_file(&text, number)).into_iter().collect(),
            confinement: is_full.then(|| with.text.clone()),
            images: is_full
                .then(|| Image {
                    media_type: with.text.clone(),
                    blob: with.text.clone(),
                    bytes: number,
                    width: small,
                    height: small,
                })
                .into_iter()
                .collect(),
            name: text,
            delegated,
        }),
        EventKind::ApprovalRequested => {
            let (preview, rule) = (when_full(&text), when_full(&text));
            let form = |text: String| Form { call_id: text.clone(), server: text.clone(), message: text, schema: json };
            let form = is_full.then(|| form(text.clone()));
            let (call_id, name, arguments) = (text.clone(), text.clone(), text);
            Event::ApprovalRequested(ApprovalRequested { call_id, name, arguments, preview, rule, form })
        }
        EventKind::ApprovalDecided => Event::ApprovalDecided(ApprovalDecided {
            reason: when_full(&text),
            call_id: text,
            decision: Decision::Approve,
            scope: if is_full { Scope::Session } else { Scope::Once },
            answer: is_full.then_some(json),
        }),
        EventKind::ClientToolsChanged => {
            let (name, description) = (text.clone(), text.clone());
            let timeout_ms = (number % 2 == 0).then_some(number);
            let tool = ClientTool { name, description, input_schema: json, effect: Effect::Idempotent, timeout_ms };
            let (tools, defined) = (is_full.then(|| vec![tool]), (!is_full).then_some(number));
            Event::ClientToolsChanged(ClientToolsChanged { hash: text, tools, defined, queued: is_full })
        }
        EventKind::CallRequested => Event::CallRequested(CallRequested {
            call_id: text.clone(),
            name: text,
            arguments: json,
            effect: Effect::ReadOnly,
            deadline: SeededIds::wall_time(),
        }),
        EventKind::DelegateStarted => {
            let (tools, model) = (is_full.then(|| vec![text.clone()]), is_full.then(|| text.clone()));
            let agent = Agent { name: text.clone(), tools, model, prompt: text.clone() };
            let agent = is_full.then(|| agent.into());
            Event::DelegateStarted(DelegateStarted { call_id: text, child: session_id(), reserved: budgets, agent })
        }
        EventKind::CallAnswered => Event::CallAnswered(CallAnswered {
            call_id: text.clone(),
            outcome: if is_full { CallOutcome::Failed } else { CallOutcome::Succeeded },
            answer_hash: text,
            started: number,
        }),
        EventKind::ToolAllowed => Event::ToolAllowed(ToolAllowed { rule: text.clone(), call_id: text }),
        EventKind::ReminderSet => {
            Event::ReminderSet(ReminderSet { kind: SystemReminderType::GitStatus, text, automatic: is_full })
        }
        EventKind::ReminderCleared => {
            Event::ReminderCleared(ReminderCleared { kind: SystemReminderType::Custom(format!("n.{number}")) })
        }
        EventKind::Pinned => Event::Pinned(Pinned { text }),
        EventKind::Unpinned => Event::Unpinned(Unpinned { pin: number }),
        EventKind::BudgetWarning => {
            let money = Amount::Money(Cost::from_micros(number));
            let (budget, used) = if is_full { (Budget::Cost, money) } else { (Budget::WallMs, Amount::Number(number)) };
            Event::BudgetWarning(BudgetWarning { budget, used, limit: used })
        }
        EventKind::PartialText => Event::PartialText(PartialText { step: small, text: body }),
        EventKind::TurnCompleted => Event::TurnCompleted(TurnCompleted { stop_reason: StopReason::Refusal, totals }),
        EventKind::TurnFailed => Event::TurnFailed(TurnFailed { error, totals }),
        EventKind::TurnInterrupted => Event::TurnInterrupted(TurnInterrupted { reason: text, totals }),
        EventKind::TextDelta => {
            return Sample::Live(LiveEvent::TextDelta(TextDelta { step: small, block: 0, offset: number, text }));
        }
        EventKind::ReasoningDelta => {
            let delta = ReasoningDelta { step: small, block: 0, offset: number, text };
            return Sample::Live(LiveEvent::ReasoningDelta(delta));
        }
        EventKind::ToolProgress => {
            return Sample::Live(LiveEvent::ToolProgress(ToolProgress { call_id: text.clone(), text }));
        }
        EventKind::Retrying => {
            let retrying = Retrying { step: small, attempt: small, wait_ms: number, error };
            return Sample::Live(LiveEvent::Retrying(retrying));
        }
        EventKind::Pruned => return Sample::Live(LiveEvent::Pruned(Pruned { from: number, to: number, reason: None })),
        EventKind::SessionDeleted => return Sample::Live(LiveEvent::SessionDeleted(SessionDeleted {})),
    })
}
