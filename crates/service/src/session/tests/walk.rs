//! Walks through the life of a session and records it. It knows the order of events, and nothing of `Session`.

use std::collections::HashMap;

use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_words::{
    agents::Delegated,
    calls::{CallOutcome, ClientTool},
};

use super::{
    created,
    said::{blocks, body, output},
    session_id,
};
use crate::{
    SessionId,
    clock::{SeededIds, Timestamp},
    cost::Cost,
    ids::{Seq, TurnNumber},
    model::{StopReason, Usage},
    options::{Amount, Budget, Budgets, ModelOptions, Policy},
    output::OutputError,
    service::{CompactionMode, CompactionReceipt},
    session::{
        event::{
            ApprovalDecided, ApprovalRequested, AssistantMessage, BudgetWarning, CallAnswered, CallRequested,
            ClientToolsChanged, CompactionCompleted, CompactionFailed, CompactionStarted, CompactionUndone,
            ContextRebuilt, Decision, DelegateStarted, Event, HistoryGiven, Key, LogTailRepaired, OutputRefused,
            PartialText, Pinned, Record, ReminderCleared, ReminderSet, Scope, SessionArchived, SessionForked,
            SessionUnarchived, SessionUpdated, SteeringEntered, ToolAllowed, ToolFinished, ToolOutcome, ToolStarted,
            TurnCompleted, TurnDequeued, TurnEdited, TurnFailed, TurnInterrupted, TurnQueued, TurnStarted, TurnSteered,
            TurnTotals, Unpinned,
        },
        message::{Block, Message, RawJson, ToolCall, ToolResult},
        reminder::SystemReminderType,
    },
    tool::{Effect, Form, change_of},
};

/// Time for which a key is kept: 24 hours.
pub(super) const DAY_MS: i64 = 86_400_000;
pub(super) const KEYS: [&str; 3] = ["a", "b", "c"];

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Proposed,
    Waiting,
    Decided(Decision),
    Started,
    /// Its server asks a person.
    Asking,
    Answered,
    /// It waits for its caller.
    Requested,
    /// It waits for its sub-agent.
    Delegated,
    /// Its caller has answered.
    Replied,
    Finished,
}

pub(super) struct OpenWalk {
    pub(super) turn: TurnNumber,
    step: u32,
    calls: Vec<(String, Stage)>,
    /// Open questions of servers.
    forms: Vec<String>,
    /// Event of its `turn_started`.
    started: Seq,
    /// Steered texts that are not in the context yet.
    pub(super) steered: Vec<Seq>,
    is_answered: bool,
    /// The text of an answer that was cut off, while the turn does not go on.
    partial: Option<Seq>,
}

impl OpenWalk {
    /// Calls that wait for a decision, in call order, and then the questions of servers.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &String> {
        let calls = self.calls.iter().filter(|(_, stage)| *stage == Stage::Waiting).map(|(call_id, _)| call_id);
        calls.chain(&self.forms)
    }

    /// Calls that wait for their caller, in call order.
    pub(super) fn requested(&self) -> impl Iterator<Item = &String> {
        let requested = |(_, stage): &&(String, Stage)| matches!(stage, Stage::Requested | Stage::Replied);
        self.calls.iter().filter(requested).map(|(call_id, _)| call_id)
    }

    pub(super) fn has_open_calls(&self) -> bool {
        self.calls.iter().any(|(_, stage)| *stage != Stage::Finished)
    }
}

/// A part of the live context, and the turn it belongs to.
type Part = (TurnNumber, Vec<Seq>);

/// A compaction that can be undone.
pub(super) struct Undoable {
    /// Seq of its `compaction_completed`.
    pub(super) compaction: Seq,
    /// The live context before.
    said: Vec<Part>,
}

/// A life, and its current state.
pub(crate) struct Walk {
    pub(crate) records: Vec<Record>,
    pub(super) id: SessionId,
    pub(super) open: Option<OpenWalk>,
    /// Turns that wait with the seqs of their prompts, the next one first.
    pub(super) queue: Vec<(TurnNumber, Seq)>,
    /// Events with the tools of its caller, and with those that turns in the queue bring.
    pub(super) tools: Option<Seq>,
    brought: HashMap<TurnNumber, Seq>,
    pub(super) pins: Vec<Seq>,
    pub(super) reminders: Vec<SystemReminderType>,
    /// The parts of the live context that stay or go as a whole, each with the turn it belongs to now: a prompt, or an
    /// answer with its results.
    said: Vec<Part>,
    /// The compaction that is open: the turn it happens in.
    pub(super) compacting: Option<Option<TurnNumber>>,
    /// The compactions that can be undone, in order.
    pub(super) undoable: Vec<Undoable>,
    next_turn: TurnNumber,
    now: i64,
    key_used: HashMap<&'static str, i64>,
}

impl Walk {
    pub(crate) fn new(choices: &[u16]) -> Self {
        let mut walk = Self {
            records: Vec::new(),
            id: session_id(),
            open: None,
            queue: Vec::new(),
            tools: None,
            brought: HashMap::new(),
            pins: Vec::new(),
            reminders: Vec::new(),
            said: Vec::new(),
            compacting: None,
            undoable: Vec::new(),
            next_turn: 0,
            now: SeededIds::wall_time().as_millis(),
            key_used: HashMap::new(),
        };
        walk.record(None, created());
        // Some lives begin with what was said elsewhere.
        walk.give(choices.first().map_or(0, |choice| usize::from(choice % 11) / 2 % 4));
        walk.go_on_with(choices);
        walk
    }

    /// Exchanges that were said elsewhere: with a call, with two, and without an answer.
    fn give(&mut self, exchanges: usize) {
        for exchange in 0..exchanges {
            let given =
                |message| Event::HistoryGiven(HistoryGiven { exchange: u32::try_from(exchange).unwrap(), message });
            let span = TurnNumber::MAX - u32::try_from(exchange).unwrap();
            let seq = self.record(None, given(Message::User { content: body(exchange), blocks: Vec::new() }));
            self.said.push((span, vec![seq]));
            let calls: Vec<ToolCall> = (0..=exchange)
                .map(|n| ToolCall {
                    call_id: format!("call_{seq}_{n}"),
                    name: "look".to_owned(),
                    arguments: RawJson::parse(r#"{"path":"x"}"#).unwrap(),
                    opaque: None,
                })
                .collect();
            let result = |call: &ToolCall| ToolResult {
                call_id: call.call_id.clone(),
                name: call.name.clone(),
                is_error: exchange == 1,
                content: body(exchange + 7),
                images: Vec::new(),
            };
            let results = calls.iter().map(result).collect();
            let model = String::new();
            if exchange < 2 {
                let blocks = calls.into_iter().map(Block::ToolCall).collect();
                let answer = self.record(None, given(Message::BlockAssistant { model: model.clone(), blocks }));
                let results = self.record(None, given(Message::ToolResults { results }));
                self.said.push((span, vec![answer, results]));
            }
            if exchange == 0 {
                let blocks = vec![Block::Text { text: body(3) }];
                let answer = self.record(None, given(Message::BlockAssistant { model, blocks }));
                self.said.push((span, vec![answer]));
            }
        }
    }

    /// Continues the life.
    pub(crate) fn go_on_with(&mut self, choices: &[u16]) {
        for &choice in choices {
            self.step(choice % 16, usize::from(choice / 16));
        }
    }

    /// Something that touches no turn happens.
    pub(crate) fn add(&mut self, event: Event) -> Seq {
        self.record(None, event)
    }

    fn record(&mut self, turn: Option<TurnNumber>, event: Event) -> Seq {
        let seq = self.records.len() as Seq + 1;
        let time = Timestamp::from_millis(self.now);
        self.records.push(Record { session_id: self.id, seq, turn, time, event });
        seq
    }

    /// Adds an event outside of turns, or a fork if neither a turn nor a compaction is open.
    fn of_the_session(&mut self, detail: usize) {
        let event = match detail % 6 {
            0 => {
                let labels = (0..detail % 3).map(|n| (format!("label{n}"), format!("{detail}"))).collect();
                Event::SessionUpdated(SessionUpdated {
                    title: (!detail.is_multiple_of(4)).then(|| format!("{detail}")),
                    labels,
                })
            }
            1 => Event::SessionArchived(SessionArchived {}),
            2 => Event::SessionUnarchived(SessionUnarchived {}),
            5 => {
                self.tools = Some(self.define(None, false));
                return;
            }
            3 => Event::LogTailRepaired(LogTailRepaired { bytes: 7, quarantine: "quarantine/x".to_owned() }),
            _ if self.open.is_none() && self.compacting.is_none() => {
                let (parent, at, key) = (self.id, self.records.len() as Seq, self.key(detail));
                self.id = SessionId::from_uuid(uuid::Uuid::from_u128(self.id.as_uuid().as_u128() + 1));
                self.queue.clear();
                self.brought.clear();
                self.key_used.clear();
                Event::SessionForked(SessionForked { parent, at, key })
            }
            _ => return,
        };
        self.record(None, event);
    }

    fn step(&mut self, what: u16, detail: usize) {
        self.now += if detail % 5 == 4 { 7 * 3_600_000 } else { 1000 };
        let kinds = [SystemReminderType::ClaudeMd, SystemReminderType::Custom("style".to_owned())];
        match what {
            0 => {
                let kind = kinds[detail % 2].clone();
                self.reminders.retain(|known| *known != kind);
                self.reminders.push(kind.clone());
                self.record(
                    None,
                    Event::ReminderSet(ReminderSet { kind, text: format!("<{detail}>"), automatic: false }),
                );
            }
            1 if !self.reminders.is_empty() => {
                let kind = self.reminders.remove(detail % self.reminders.len());
                self.record(None, Event::ReminderCleared(ReminderCleared { kind }));
            }
            2 => {
                let seq = self.record(None, Event::Pinned(Pinned { text: format!("fact {detail}") }));
                self.pins.push(seq);
            }
            3 if !self.pins.is_empty() => {
                let pin = self.pins.remove(detail % self.pins.len());
                self.record(None, Event::Unpinned(Unpinned { pin }));
            }
            4 if detail.is_multiple_of(3) => {
                let (rule, call_id) = (format!("tool: {}", detail % 4), "call".to_owned());
                self.record(None, Event::ToolAllowed(ToolAllowed { rule, call_id }));
            }
            4 | 5 => self.queue_turn(detail),
            6 if !self.queue.is_empty() && detail.is_multiple_of(2) => self.edit(detail / 2),
            6 if !self.queue.is_empty() => {
                let (turn, _) = self.queue.remove(detail % self.queue.len());
                self.brought.remove(&turn);
                self.record(Some(turn), Event::TurnDequeued(TurnDequeued { reason: "cancelled".to_owned() }));
            }
            7 => self.of_the_session(detail),
            8 if detail % 5 == 3 && self.compacting.is_none() && self.open.is_none() => self.forget(),
            8 if detail % 5 < 3 && self.compacting.is_none() && !self.open.iter().any(OpenWalk::has_open_calls) => {
                self.compact(detail);
            }
            9 if detail.is_multiple_of(3) && self.open.is_some() => self.steer(detail),
            _ => match self.compacting {
                Some(turn) if detail.is_multiple_of(5) => {
                    self.compacting = None;
                    let (code, message) = (ErrorCode::CompactionNoProgress, format!("{detail}"));
                    self.record(turn, Event::CompactionFailed(CompactionFailed { code, message }));
                }
                Some(turn) => self.rebuild(turn, detail / 3),
                None => self.go_on(detail),
            },
        }
    }

    fn queue_turn(&mut self, detail: usize) {
        let turn = self.take_number();
        let policy = [Policy::Queue, Policy::Interrupt, Policy::Reject][detail % 3];
        let key = self.key(detail);
        let (prompt, model, budgets, compaction) = (body(detail), None, Budgets::default(), None);
        let (options, attended, allow, search_path) = (ModelOptions::default(), false, Vec::new(), None);
        let (output, blocks) = (output(detail), blocks(detail));
        let brought = match detail % 4 {
            0 => Some(self.define(Some(turn), true)),
            // Tools that are there already: the session's, or those of another turn in the queue.
            1 => self.brought.values().copied().chain(self.tools).min(),
            _ => None,
        };
        let client_tools = brought.map(hash_of);
        self.brought.extend(brought.map(|seq| (turn, seq)));
        let queued = TurnQueued {
            prompt,
            blocks,
            model,
            budgets,
            options,
            output,
            compaction,
            attended,
            client_tools,
            allow,
            access: None,
            search_path,
            policy,
            key,
        };
        let seq = self.record(Some(turn), Event::TurnQueued(queued));
        let at = if policy == Policy::Interrupt { 0 } else { self.queue.len() };
        self.queue.insert(at, (turn, seq));
    }

    /// The session, or a turn in its queue, gets a tool that its caller runs.
    fn define(&mut self, turn: Option<TurnNumber>, queued: bool) -> Seq {
        let seq = self.records.len() as Seq + 1;
        let (name, description, input_schema) = (format!("tool_{seq}"), String::new(), RawJson::empty_object());
        let tool = ClientTool { name, description, input_schema, effect: Effect::Once, timeout_ms: None };
        let (hash, tools, defined) = (hash_of(seq), Some(vec![tool]), None);
        self.record(turn, Event::ClientToolsChanged(ClientToolsChanged { hash, tools, defined, queued }))
    }

    /// A turn that waits gets another prompt, another place, or both.
    fn edit(&mut self, detail: usize) {
        let at = detail % self.queue.len();
        let position = (!detail.is_multiple_of(3)).then_some(detail % 4);
        let prompt = (detail.is_multiple_of(3) || detail % 3 == 1).then(|| body(detail));
        let (turn, former) = self.queue.remove(at);
        let is_said = prompt.is_some();
        let blocks = if is_said { blocks(detail) } else { Vec::new() };
        let seq = self.record(Some(turn), Event::TurnEdited(TurnEdited { prompt, blocks, position }));
        let to = position.map_or(at, |to| to.min(self.queue.len()));
        self.queue.insert(to, (turn, if is_said { seq } else { former }));
    }

    /// The running turn gets another text.
    fn steer(&mut self, detail: usize) {
        let key = self.key(detail / 3);
        let Some((turn, started)) = self.open.as_ref().map(|open| (open.turn, open.started)) else { return };
        let seq = self.record(
            Some(turn),
            Event::TurnSteered(TurnSteered { prompt: body(detail), blocks: blocks(detail), started, key }),
        );
        self.open.iter_mut().for_each(|open| open.steered.push(seq));
    }

    /// The steered text that waits longest enters the context, behind what had come of an answer.
    fn enter(&mut self) {
        let Some(open) = &mut self.open else { return };
        let (turn, steered) = (open.turn, open.steered.remove(0));
        (open.is_answered, open.calls) = (false, Vec::new());
        if let Some(seq) = open.partial.take() {
            self.said.push((turn, vec![seq]));
            // No later answer of the step is cut off, because the turn ends with the first one.
            open.step += 1;
        }
        let seq = self.record(Some(turn), Event::SteeringEntered(SteeringEntered { steered }));
        self.said.push((turn, vec![seq]));
    }

    /// A compaction begins, or the latest one is undone.
    fn compact(&mut self, detail: usize) {
        let turn = self.open.as_ref().map(|open| open.turn);
        match self.undoable.pop_if(|_| turn.is_none() && !detail.is_multiple_of(3)) {
            Some(Undoable { compaction, said }) => {
                let since = std::mem::replace(&mut self.said, said).into_iter();
                self.said.extend(since.filter(|(_, seqs)| seqs[0] > compaction));
                self.record(None, Event::CompactionUndone(CompactionUndone { compaction }));
            }
            None => self.begin_compaction(turn),
        }
    }

    /// All that was said leaves the live context, for good: no more than three compactions can be undone.
    fn forget(&mut self) {
        const ALL: usize = 1 << 11;
        for _ in 0..4 {
            self.begin_compaction(None);
            self.rebuild(None, ALL);
        }
    }

    fn begin_compaction(&mut self, turn: Option<TurnNumber>) {
        self.compacting = Some(turn);
        let (input_tokens, estimated_history_tokens, message_count) = (1, 2, 3);
        let started = CompactionStarted { input_tokens, estimated_history_tokens, message_count };
        self.record(turn, Event::CompactionStarted(started));
    }

    /// The live context is rebuilt. What an open turn goes on from stays.
    fn rebuild(&mut self, turn: Option<TurnNumber>, detail: usize) {
        let before = self.said.len();
        let stays = |at: usize| detail >> (at % 11) & 1 == 1 || (turn.is_some() && at + 1 == before);
        let mut retained: Vec<(Seq, Seq)> = Vec::new();
        let mut was_kept = false;
        for (at, (_, seqs)) in self.said.iter().enumerate() {
            let (from, to) = (seqs[0], seqs[seqs.len() - 1]);
            match retained.last_mut().filter(|_| was_kept) {
                Some(range) if stays(at) => range.1 = to,
                _ if stays(at) => retained.push((from, to)),
                _ => {}
            }
            was_kept = stays(at);
        }
        let (mut at, said) = (0, self.said.clone());
        self.said.retain(|_| {
            at += 1;
            stays(at - 1)
        });
        let results = self.said.iter().filter_map(|(_, seqs)| seqs.get(1).copied());
        let masked: Vec<Seq> = results.filter(|seq| (seq + detail as Seq).is_multiple_of(2)).collect();
        let compaction = self.records.len() as Seq + 2;
        let receipt = receipt(compaction);
        let summary = (!detail.is_multiple_of(4)).then(|| body(detail));
        self.open.iter_mut().for_each(|open| open.partial = None);
        self.record(turn, Event::ContextRebuilt(ContextRebuilt { compaction, summary, retained, masked, receipt }));
        let completed = CompactionCompleted { summary_tokens: 3, messages_before: 2, messages_after: 1 };
        self.record(turn, Event::CompactionCompleted(completed));
        self.compacting = None;
        self.undoable.push(Undoable { compaction, said });
        if self.undoable.len() > 3 {
            self.undoable.remove(0);
        }
    }

    /// Adds the next event of the open turn, or opens a turn.
    fn go_on(&mut self, detail: usize) {
        let Some(open) = &mut self.open else { return self.start(detail) };
        let turn = open.turn;
        let unfinished: Vec<usize> = (0..open.calls.len()).filter(|&at| open.calls[at].1 != Stage::Finished).collect();
        if !unfinished.is_empty() {
            let (call_id, stage) = &mut open.calls[unfinished[detail % unfinished.len()]];
            let (next, event) = call_event(call_id, *stage, open.started, detail);
            *stage = next;
            let form = form_of(call_id);
            open.forms.retain(|open| *open != form);
            open.forms.extend((next == Stage::Asking).then_some(form));
            let is_answered = !open.has_open_calls();
            let seq = self.record(Some(turn), event);
            if is_answered && let Some((_, seqs)) = self.said.last_mut() {
                seqs.push(seq);
            }
            return;
        }
        let is_over = open.is_answered || matches!(detail % 12, 0..=2);
        if !open.steered.is_empty() && (is_over || detail.is_multiple_of(2)) {
            return self.enter();
        }
        let totals = TurnTotals { steps: open.step, ..TurnTotals::default() };
        let is_done = open.is_answered && open.calls.is_empty();
        let event = match detail % 12 {
            // Its answer leaves the context with it.
            1 if is_done => Event::TurnFailed(TurnFailed { error: ErrorBody::new(ErrorCode::ContextOverflow), totals }),
            2..=4 if is_done => {
                open.is_answered = false;
                let (path, message) = ("/n".to_owned(), format!("wrong {detail}"));
                Event::OutputRefused(OutputRefused { errors: vec![OutputError { path, message }] })
            }
            _ if is_done => Event::TurnCompleted(TurnCompleted { stop_reason: StopReason::EndTurn, totals }),
            0 => Event::TurnInterrupted(TurnInterrupted { reason: "requested".to_owned(), totals }),
            1 | 2 => {
                let code = [ErrorCode::ContextOverflow, ErrorCode::ModelTimeout][detail % 2];
                Event::TurnFailed(TurnFailed { error: ErrorBody::new(code), totals })
            }
            3 => Event::PartialText(PartialText { step: open.step, text: body(detail) }),
            4 => Event::BudgetWarning(BudgetWarning {
                budget: Budget::Steps,
                used: Amount::Number(8),
                limit: Amount::Number(10),
            }),
            _ => {
                let ids = (0..detail % 4).map(|n| format!("t{turn}s{}c{n}", open.step));
                open.calls = ids.map(|call_id| (call_id, Stage::Proposed)).collect();
                open.is_answered = true;
                let event = answer(open, detail);
                open.step += 1;
                event
            }
        };
        match event {
            Event::PartialText(_) => open.partial = Some(self.records.len() as Seq + 1),
            Event::AssistantMessage(_) => open.partial = None,
            Event::TurnFailed(_) | Event::TurnInterrupted(_) => {
                self.said.extend(open.partial.map(|seq| (turn, vec![seq])));
                self.open = None;
            }
            Event::TurnCompleted(_) => self.open = None,
            _ => {}
        }
        if matches!(&event, Event::TurnFailed(failed) if failed.error.code == ErrorCode::ContextOverflow) {
            // An answer with its results has two events. Calls since a compaction count if it is undone.
            let mut has_called = false;
            let undoable = self.undoable.iter_mut().rev().map(|undoable| &mut undoable.said);
            for said in std::iter::once(&mut self.said).chain(undoable) {
                let dropped: Vec<Part> = said.extract_if(.., |(of, _)| *of == turn).collect();
                has_called |= dropped.iter().any(|(_, seqs)| seqs.len() > 1);
                said.extend(dropped.first().filter(|_| has_called).map(|(_, seqs)| (turn, vec![seqs[0]])));
            }
        }
        let is_answer = matches!(event, Event::AssistantMessage(_));
        let seq = self.record(Some(turn), event);
        self.said.extend(is_answer.then(|| (turn, vec![seq])));
    }

    fn start(&mut self, detail: usize) {
        let (turn, started) = if self.queue.is_empty() {
            let turn = self.take_number();
            let last_end = self.records.iter().rev().find_map(|record| match record.event {
                Event::TurnCompleted(_) | Event::TurnFailed(_) => Some(None),
                Event::TurnInterrupted(_) => Some(record.turn),
                _ => None,
            });
            let continues = last_end.flatten().filter(|_| detail.is_multiple_of(2));
            let prompt = continues.is_none().then(|| body(detail));
            let key = self.key(detail);
            let model = "scripted".to_owned();
            let blocks = if prompt.is_some() { blocks(detail) } else { Vec::new() };
            let output = output(detail);
            (turn, TurnStarted { prompt, blocks, model, continues, key, output, ..TurnStarted::default() })
        } else {
            let (turn, seq) = self.queue[0];
            let brought = self.brought.remove(&turn);
            if let Some(defined) = brought.filter(|seq| self.tools != Some(*seq)) {
                let (hash, tools, defined, queued) = (hash_of(defined), None, Some(defined), false);
                let changed = ClientToolsChanged { hash, tools, defined, queued };
                self.record(Some(turn), Event::ClientToolsChanged(changed));
                self.tools = defined;
            }
            self.queue.remove(0);
            let (model, queued, client_tools) = ("other".to_owned(), Some(seq), brought.map(hash_of));
            (turn, TurnStarted { model, queued, client_tools, output: output(detail), ..TurnStarted::default() })
        };
        let (has_prompt, continues) = (started.continues.is_none(), started.continues);
        self.each_said(|said| said.iter_mut().filter(|(of, _)| Some(*of) == continues).for_each(|(of, _)| *of = turn));
        let seq = self.record(Some(turn), Event::TurnStarted(started));
        self.said.extend(has_prompt.then(|| (turn, vec![seq])));
        self.open = Some(OpenWalk {
            turn,
            step: 0,
            calls: Vec::new(),
            forms: Vec::new(),
            started: seq,
            steered: Vec::new(),
            is_answered: false,
            partial: None,
        });
    }

    /// The live context, and the contexts that an undo restores.
    fn each_said(&mut self, change: impl Fn(&mut Vec<Part>)) {
        change(&mut self.said);
        self.undoable.iter_mut().for_each(|undoable| change(&mut undoable.said));
    }

    fn take_number(&mut self) -> TurnNumber {
        self.next_turn += 1;
        self.next_turn - 1
    }

    /// A key that no turn has at this moment.
    fn key(&mut self, detail: usize) -> Option<Key> {
        let key = *KEYS.get(detail % 4)?;
        let is_free = self.key_used.get(key).is_none_or(|used| self.now - used >= DAY_MS);
        is_free.then(|| {
            self.key_used.insert(key, self.now);
            Key { key: key.to_owned(), request: format!("request {detail}") }
        })
    }
}

pub(crate) fn receipt(compaction: Seq) -> CompactionReceipt {
    CompactionReceipt {
        compaction: Some(compaction),
        mode: CompactionMode::Summary,
        retained: 1,
        masked: 0,
        discarded: 1,
        reminders: 0,
        pins: 0,
        anchor: None,
        tokens_before: 9,
        tokens_after: 4,
        usage: Usage { input_tokens: 9, output_tokens: 3, cached_tokens: 8, ..Usage::default() },
        cost: Some(Cost::from_micros(90)),
        rounds: 0,
        unread: 0,
    }
}

fn answer(open: &OpenWalk, detail: usize) -> Event {
    let arguments = RawJson::parse(["{}", r#"{"n":1e2}"#, r#""not an object""#][detail % 3]).unwrap();
    let call = |(call_id, _): &(String, Stage)| {
        let (call_id, name, arguments) = (call_id.clone(), tool_of(call_id), arguments.clone());
        Block::ToolCall(ToolCall { call_id, name, arguments, opaque: None })
    };
    let blocks = std::iter::once(Block::Text { text: body(detail) }).chain(open.calls.iter().map(call)).collect();
    let usage = Usage { input_tokens: 10, output_tokens: 2, cached_tokens: 1, ..Usage::default() };
    let stop_reason = if open.calls.is_empty() { StopReason::EndTurn } else { StopReason::ToolUse };
    Event::AssistantMessage(AssistantMessage {
        step: open.step,
        model: "scripted".to_owned(),
        blocks,
        stop_reason,
        usage,
        cost: Some(Cost::from_micros(100)),
        tools: None,
        context: None,
    })
}

/// The hash of the tools that an event defines.
fn hash_of(defined: Seq) -> String {
    format!("hash {defined}")
}

/// The tool of a call: each is another one, of a server.
fn tool_of(call_id: &str) -> String {
    format!("mcp__s__{call_id}")
}

/// The question that a server asks during a call.
fn form_of(call_id: &str) -> String {
    format!("{call_id}_form_1")
}

/// The next event of a call.
fn call_event(call_id: &str, stage: Stage, started: Seq, detail: usize) -> (Stage, Event) {
    let (call_id, name) = (call_id.to_owned(), tool_of(call_id));
    let decision = [Decision::Approve, Decision::Deny][detail % 2];
    let asks = |call_id, form| {
        let (name, arguments) = (name.clone(), "{}".into());
        Event::ApprovalRequested(ApprovalRequested { call_id, name, arguments, preview: None, rule: None, form })
    };
    let decides = |call_id| {
        Event::ApprovalDecided(ApprovalDecided { call_id, decision, scope: Scope::Once, reason: None, answer: None })
    };
    match (stage, detail % 3) {
        (Stage::Proposed, 0) => (Stage::Waiting, asks(call_id, None)),
        (Stage::Waiting, 0 | 1) => (Stage::Decided(decision), decides(call_id)),
        (Stage::Started, 1) => {
            let (id, server, message, schema) = (form_of(&call_id), "s".into(), "?".into(), RawJson::empty_object());
            (Stage::Asking, asks(id, Some(Form { call_id, server, message, schema })))
        }
        (Stage::Proposed, 2) if detail.is_multiple_of(2) => {
            let (effect, deadline) = (Effect::Once, SeededIds::wall_time());
            let arguments = RawJson::empty_object();
            let requested = CallRequested { call_id, name, arguments, effect, deadline };
            (Stage::Requested, Event::CallRequested(requested))
        }
        (Stage::Proposed, 2) if detail.is_multiple_of(5) => {
            let reserved = Budgets { steps: Some(3), agents: Some(1), ..Budgets::default() };
            let started = DelegateStarted { call_id, child: SessionId::default(), reserved, agent: None };
            (Stage::Delegated, Event::DelegateStarted(started))
        }
        (Stage::Requested, 0 | 1) => {
            let (outcome, answer_hash) = (CallOutcome::Succeeded, format!("{detail}"));
            (Stage::Replied, Event::CallAnswered(CallAnswered { call_id, outcome, answer_hash, started }))
        }
        (Stage::Asking, 0 | 1) => (Stage::Answered, decides(form_of(&call_id))),
        (Stage::Proposed, 1) | (Stage::Decided(Decision::Approve), _) => {
            let files = (!detail.is_multiple_of(4)).then(|| change_of("file", Some(b"old"), b"new"));
            let files = files.into_iter().collect();
            (Stage::Started, Event::ToolStarted(ToolStarted { call_id, name, effect: Effect::Once, files }))
        }
        _ => {
            let outcome = [ToolOutcome::Succeeded, ToolOutcome::Failed, ToolOutcome::Unknown][detail / 3 % 3];
            let is_delegated = stage == Stage::Delegated;
            let has_run = matches!(stage, Stage::Started | Stage::Asking | Stage::Answered | Stage::Replied);
            let outcome = if has_run || is_delegated { outcome } else { ToolOutcome::NotRun };
            let finished = ToolFinished::new(call_id, name, outcome, body(detail));
            // How a sub-agent ended may not be known.
            let delegated = (is_delegated && detail.is_multiple_of(2)).then_some(Delegated::NOTHING);
            (Stage::Finished, Event::ToolFinished(ToolFinished { delegated, ..finished }))
        }
    }
}
