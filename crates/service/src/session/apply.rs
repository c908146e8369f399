//! [`Session::apply`](super::Session::apply): the only function that changes a session.
//!
//! Live turns, resume, replay, projection and fork all use it, so they cannot differ. It reads no clock, no disk and no
//! option: a record means the same wherever it is applied.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use meerkat_errors::ErrorCode;

use super::{
    SessionFields,
    event::{
        ApprovalDecided, ApprovalRequested, AssistantMessage, Event, HistoryGiven, Key, Record, Scope, SessionCreated,
        SteeringEntered, ToolFinished, ToolOutcome, TurnEdited, TurnQueued, TurnStarted, TurnSteered,
    },
    human::heading_of,
    message::{Body, Message, ToolResult},
    reminder::{Pin, Reminder, remove_system_reminders_by_type},
    state::{ApplyError, Decided, KEY_KEPT_MS, KEYS_KEPT, KeyUse, RULES_MAX},
    turn::{CallProgress, CallState, FormState, OpenTurn, QueuedTurn, SteeredText, TurnEnd},
};
use crate::{
    cost::Cost,
    ids::{Seq, TurnNumber},
    model::Usage,
    options::Policy,
    tool::{REFUSED, SEARCH_TOOLS, is_of_server, names_in},
};

/// Steps that the loop guard compares: three rounds of a cycle of four, with room for a stricter option.
const SIGNATURES_KEPT: usize = 64;

impl SessionFields {
    /// The session of a first record.
    pub(super) fn begin(record: &Record) -> Result<Self, ApplyError> {
        let refusal = |why| ApplyError { seq: record.seq, why };
        let Event::SessionCreated(created) = &record.event else {
            return Err(refusal("a session begins with session_created"));
        };
        if record.seq != 1 {
            return Err(refusal("a session begins at seq 1"));
        }
        let created = created.clone();
        let SessionCreated { title, model, system_prompt, labels, tools, .. } = created;
        let SessionCreated { workspace, budgets, options, compaction, memory, descent, key, .. } = created;
        Ok(Self {
            id: record.session_id,
            created_at: record.time,
            updated_at: record.time,
            given_title: title,
            labels,
            model,
            system_prompt,
            tools: tools.map(Arc::from),
            workspace,
            labelled_at: 1,
            memory,
            budgets,
            options,
            compaction,
            descent,
            created_key: key,
            cost: Some(Cost::default()),
            last_seq: 1,
            ..Self::default()
        })
    }

    /// Applies the next record.
    pub(super) fn apply(&mut self, record: &Record) -> Result<(), ApplyError> {
        let refusal = |why| Err(ApplyError { seq: record.seq, why });
        if record.seq <= self.last_seq {
            return refusal("its seq does not rise");
        }
        if let Some(why) = self.obstacle(record) {
            if !self.gaps.skipped && record.seq == self.last_seq + 1 {
                return refusal(why);
            }
            self.gaps.is_unexplained = true;
            if !self.bridge(record) {
                self.pass_over(record);
                return Ok(());
            }
        }
        self.gaps.skipped |= record.seq > self.last_seq + 1;
        let turn = record.turn.unwrap_or(0);
        match &record.event {
            Event::SessionCreated(_) => return refusal("the session exists already"),
            Event::SessionForked(forked) => self.forked(record, forked),
            Event::SessionImported(imported) => self.imported(record.seq, imported),
            Event::SessionUpdated(updated) => {
                self.given_title.clone_from(&updated.title);
                if self.labels != updated.labels {
                    self.labels.clone_from(&updated.labels);
                    self.labelled_at = record.seq;
                }
            }
            Event::ClientToolsChanged(changed) => self.client_tools_changed(record, changed),
            Event::SessionArchived(_) => self.is_archived = true,
            Event::SessionUnarchived(_) => self.is_archived = false,
            Event::HistoryGiven(given) => self.history_given(record.seq, given),
            Event::TurnQueued(queued) => self.turn_queued(record, turn, queued),
            Event::TurnEdited(edited) => self.turn_edited(record, turn, edited),
            Event::TurnDequeued(_) => self.turn_dequeued(turn),
            Event::TurnStarted(started) => self.turn_started(record, turn, started),
            Event::TurnSteered(steered) => self.turn_steered(record, turn, steered),
            Event::SteeringEntered(entered) => self.steering_entered(record, turn, entered),
            Event::AssistantMessage(answer) => self.assistant_message(record, turn, answer),
            Event::OutputRefused(refused) => {
                if let Some(open) = &mut self.open_turn {
                    open.is_answered = false;
                    open.refusals = open.refusals.saturating_add(1);
                    open.refused.clone_from(&refused.errors);
                }
            }
            Event::ToolStarted(_) | Event::CallRequested(_) | Event::DelegateStarted(_) => {
                self.progress(record);
                self.gaps.has_delegated |= matches!(record.event, Event::DelegateStarted(_));
                if let Some(open) = &mut self.open_turn {
                    open.totals.tool_calls += 1;
                }
            }
            Event::ToolFinished(finished) => self.tool_finished(record, turn, finished),
            Event::ApprovalRequested(_) => self.progress(record),
            Event::CallAnswered(answered) => self.call_answered(record, turn, answered),
            Event::ApprovalDecided(decided) => {
                let ApprovalDecided { call_id, decision, scope, answer, .. } = decided;
                let asked = self.open_turn.as_ref().and_then(|open| open.asked(call_id));
                let rule = asked.filter(|_| *scope == Scope::Always).and_then(|asked| asked.rule.clone());
                let decided =
                    Decided { decision: *decision, seq: record.seq, scope: *scope, rule, answer: answer.clone() };
                self.decisions.insert(call_id.clone(), decided);
                self.progress(record);
            }
            Event::ToolAllowed(allowed) => {
                let is_new = !self.allowed_rules.contains(&allowed.rule) && self.allowed_rules.len() < RULES_MAX;
                if is_new {
                    Arc::make_mut(&mut self.allowed_rules).push(allowed.rule.clone());
                }
            }
            Event::ReminderSet(set) => {
                self.add_system_reminder(Reminder {
                    kind: set.kind.clone(),
                    text: set.text.clone(),
                    automatic: set.automatic,
                    seq: record.seq,
                });
            }
            Event::ReminderCleared(cleared) => {
                remove_system_reminders_by_type(Arc::make_mut(&mut self.reminders), &cleared.kind);
            }
            Event::Pinned(pinned) => {
                Arc::make_mut(&mut self.pins).push(Pin { seq: record.seq, text: pinned.text.clone() });
            }
            Event::Unpinned(unpinned) => Arc::make_mut(&mut self.pins).retain(|pin| pin.seq != unpinned.pin),
            Event::BudgetWarning(warning) => {
                if let Some(open) = &mut self.open_turn {
                    open.warned.push(warning.budget);
                }
            }
            Event::CompactionStarted(_) => self.compaction_started(record),
            Event::SummaryUnused(unused) => self.spend(unused.usage, unused.cost),
            Event::CompactionFailed(_) => self.open_compaction = None,
            Event::CompactionUndone(_) => {
                self.context.undo();
                self.compaction_tried();
            }
            Event::PartialText(partial) => self.set_partial(Some((record.seq, partial.text.clone()))),
            Event::LogTailRepaired(_) | Event::Unknown(_) => {}
            Event::RecordsLost(lost) => self.records_lost(record, lost),
            Event::HistorySnapshot(snapshot) => self.mend(snapshot),
            Event::ContextRebuilt(rebuilt) => {
                self.set_partial(None);
                // Step 9: the context of a compaction.
                self.context.rebuild(record.seq, rebuilt);
                // Step 13: the summary of a compaction counts for the session and the turn's budget.
                let (usage, cost) = rebuilt.bill();
                self.spend(usage, cost);
                if let Some(open) = &mut self.open_compaction {
                    open.completes_at = Some(rebuilt.compaction);
                }
            }
            Event::CompactionCompleted(_) => {
                self.open_compaction = None;
                // Step 11: a compaction resets it.
                self.counters.last_input_tokens = 0;
                if let Some(open) = &mut self.open_turn {
                    open.totals.compactions += 1;
                }
            }
            Event::TurnCompleted(_) => self.turn_ended(record),
            Event::TurnInterrupted(_) => {
                self.cut_off(turn);
                self.turn_ended(record);
            }
            Event::TurnFailed(failed) => {
                self.cut_off(turn);
                if matches!(failed.error.code, ErrorCode::ContextOverflow | ErrorCode::ModelContextExceeded) {
                    // An oversized turn must not block the next one, which still has to know its calls; the history
                    // keeps the whole turn.
                    self.context.drop_turn(turn);
                    // The last call's tokens counted a context that is no longer there; the rest is estimated.
                    self.counters.last_input_tokens = 0;
                }
                self.turn_ended(record);
            }
        }
        self.last_seq = record.seq;
        self.updated_at = record.time;
        Ok(())
    }

    /// Counts tokens and their cost for the session, and for the open turn.
    fn spend(&mut self, usage: Usage, cost: Option<Cost>) {
        self.usage.add(usage);
        self.cost = Cost::sum(self.cost, cost);
        if let Some(open) = &mut self.open_turn {
            open.spend(usage, cost);
        }
    }

    /// Puts what was said elsewhere into the context.
    fn history_given(&mut self, seq: Seq, given: &HistoryGiven) {
        if let prompt @ Message::User { .. } = &given.message {
            self.first_line = self.first_line.take().or_else(|| heading_of(prompt));
        }
        self.context.push(seq, given.span(), self.message_count, given.message.clone());
        self.message_count += 1;
    }

    fn turn_queued(&mut self, record: &Record, turn: TurnNumber, queued: &TurnQueued) {
        self.use_key(record, turn, queued.key.as_ref());
        let queued = QueuedTurn::of(record, queued);
        match queued.terms.policy {
            Policy::Interrupt => Arc::make_mut(&mut self.queue).push_front(queued),
            Policy::Reject | Policy::Queue | Policy::Steer => Arc::make_mut(&mut self.queue).push_back(queued),
        }
        self.next_turn = self.next_turn.max(turn + 1);
    }

    /// The `turn_queued` may be lost to damage: then no such turn waits.
    fn turn_edited(&mut self, record: &Record, turn: TurnNumber, edited: &TurnEdited) {
        let queue = Arc::make_mut(&mut self.queue);
        let Some(at) = queue.iter().position(|queued| queued.turn == turn) else { return };
        if let Some(mut queued) = queue.remove(at) {
            queued.edited(record.seq, edited);
            queue.insert(edited.position.unwrap_or(at).min(queue.len()), queued);
        }
    }

    fn turn_dequeued(&mut self, turn: TurnNumber) {
        Arc::make_mut(&mut self.queue).retain(|queued| queued.turn != turn);
        self.forget_tools_of_queue();
        if let Some(used) = self.keys.values_mut().find(|used| used.turn == turn) {
            used.is_dequeued = true;
        }
    }

    fn turn_started(&mut self, record: &Record, turn: TurnNumber, started: &TurnStarted) {
        let mut key = started.key.clone();
        self.use_key(record, turn, key.as_ref());
        let message = |content, blocks| Message::User { content, blocks };
        let mut prompt = started.prompt.clone().map(|content| message(content, started.blocks.clone()));
        if started.queued.is_some()
            && let Some(at) = self.queue.iter().position(|queued| queued.turn == turn)
            && let Some(queued) = Arc::make_mut(&mut self.queue).remove(at)
        {
            // The event with its last prompt may be lost.
            let TurnQueued { prompt: content, blocks, key: of_queued, .. } = queued.terms;
            prompt = (started.queued == Some(queued.prompt_seq)).then(|| message(content, blocks));
            key = of_queued;
            self.forget_tools_of_queue();
        }
        if let Some(prompt) = prompt {
            self.first_line = self.first_line.take().or_else(|| heading_of(&prompt));
            self.context.push(record.seq, turn, self.message_count, prompt);
            self.message_count += 1;
        }
        if let Some(interrupted) = started.continues {
            self.context.continue_turn(interrupted, turn);
        }
        self.next_turn = self.next_turn.max(turn + 1);
        self.counters.started_turns += 1;
        self.decisions.clear();
        if self.model.is_empty() {
            // The session's beginning is lost.
            self.model.clone_from(&started.model);
        }
        let mut open = OpenTurn::of(turn, record.seq, started, key);
        // By another schema something else would be wrong.
        let interrupted = self.last_end.iter().filter(|end| started.continues == Some(end.turn));
        for end in interrupted.filter(|end| started.output == end.output) {
            open.refused.clone_from(&end.refused);
        }
        self.open_turn = Some(open);
    }

    fn turn_steered(&mut self, record: &Record, turn: TurnNumber, steered: &TurnSteered) {
        self.use_key(record, turn, steered.key.as_ref());
        if let Some(open) = &mut self.open_turn {
            open.steered.push(SteeredText::of(record.seq, steered));
        }
    }

    /// The model is to answer the text next. What had come of an answer that was cut off was said before it.
    fn steering_entered(&mut self, record: &Record, turn: TurnNumber, entered: &SteeringEntered) {
        self.cut_off(turn);
        self.set_partial(None);
        let Some(open) = &mut self.open_turn else { return };
        open.is_answered = false;
        // It is a new instruction: what the model repeated before it says nothing of what it does now.
        open.signatures.clear();
        open.malformed_steps = 0;
        let Some(text) = open.steered.iter_mut().find(|text| text.seq == entered.steered) else { return };
        text.has_entered = true;
        if let Some(message) = text.message.take() {
            self.context.push(record.seq, turn, self.message_count, message);
            self.message_count += 1;
        }
    }

    /// Notes what had come of an answer, or that the turn has gone on since.
    fn set_partial(&mut self, partial: Option<(Seq, Body)>) {
        if let Some(open) = &mut self.open_turn {
            (open.partial_seq, open.partial) = partial.unzip();
        }
    }

    /// The turn ends with what had come of its last answer.
    fn cut_off(&mut self, turn: TurnNumber) {
        let Some(OpenTurn { partial: Some(text), partial_seq: Some(seq), .. }) = &self.open_turn else { return };
        self.context.push(*seq, turn, self.message_count, Message::cut_off(text));
        self.message_count += 1;
    }

    fn assistant_message(&mut self, record: &Record, turn: TurnNumber, answer: &AssistantMessage) {
        self.set_partial(None);
        self.spend(answer.usage, answer.cost);
        self.counters.last_input_tokens = answer.usage.input_tokens;
        let message = answer.message();
        if let Some(open) = &mut self.open_turn {
            open.totals.steps += 1;
            open.is_answered = true;
            open.answered(record.seq, answer);
            open.calls = proposed(&message);
        }
        self.context.push(record.seq, turn, self.message_count, message);
        self.message_count += 1;
    }

    pub(super) fn tool_finished(&mut self, record: &Record, turn: TurnNumber, finished: &ToolFinished) {
        if let Some(open) = &mut self.open_turn {
            open.spend_delegated(finished);
        }
        self.progress(record);
        self.find_tools(finished);
        let Some(open) = &mut self.open_turn else { return };
        open.last_tool.clone_from(&finished.name);
        let is_malformed = finished.outcome == ToolOutcome::NotRun
            && finished.error.as_ref().is_some_and(|error| {
                let is_refused = error.details.get("reason").is_some_and(|reason| reason == REFUSED);
                error.code == ErrorCode::ToolFailed && !is_refused
            });
        open.malformed_calls += usize::from(is_malformed);
        let result = |call: &CallState| match &call.progress {
            CallProgress::Finished(result) => Some(result.clone()),
            _ => None,
        };
        let is_finished = |call: &CallState| matches!(call.progress, CallProgress::Finished(_));
        // Results are copied once all of them are there.
        let results: Option<Vec<ToolResult>> =
            open.calls.iter().all(is_finished).then(|| open.calls.iter().filter_map(result).collect());
        if let Some(results) = results {
            (open.partial_seq, open.partial) = (None, None);
            let mut hasher = DefaultHasher::new();
            for (call, result) in open.calls.iter().zip(&results) {
                (&call.call.name, call.call.arguments.as_str(), result.content.excerpt().as_ref()).hash(&mut hasher);
            }
            if open.signatures.len() == SIGNATURES_KEPT {
                open.signatures.remove(0);
            }
            open.signatures.push(hasher.finish());
            open.malformed_steps = if open.malformed_calls == open.calls.len() { open.malformed_steps + 1 } else { 0 };
            open.malformed_calls = 0;
            open.calls.clear();
            open.is_answered = false;
            self.context.push(record.seq, turn, self.message_count, Message::ToolResults { results });
            self.message_count += 1;
        }
    }

    /// Remembers the tools that a search found, and a tool of a server that was called. A called one keeps its place:
    /// definitions in another order would cost a vendor's prompt cache.
    fn find_tools(&mut self, finished: &ToolFinished) {
        if finished.name == SEARCH_TOOLS && finished.outcome == ToolOutcome::Succeeded {
            let result = finished.output.excerpt();
            // The best comes last, as the newest.
            let names: Vec<&str> = names_in(&result).collect();
            names.into_iter().rev().for_each(|name| self.find_tool(name));
        } else if is_of_server(&finished.name)
            && finished.outcome != ToolOutcome::NotRun
            && !self.found_tools.contains(&finished.name)
        {
            self.find_tool(&finished.name);
        }
    }

    pub(super) fn turn_ended(&mut self, record: &Record) {
        let Some(open) = self.open_turn.take() else { return };
        let Some(end) = open.end(record) else { return };
        for key in open.keys() {
            // A turn can wait for longer than its key is kept; the key may then belong to another turn.
            if let Some(used) = self.keys.get_mut(key).filter(|used| used.turn == end.turn) {
                // A key is kept for a day, and its answer is seldom asked for: the journal holds the text.
                used.end = Some(TurnEnd { text: Arc::default(), output: None, refused: Vec::new(), ..end.clone() });
            }
        }
        self.last_end = Some(end);
    }

    /// A call comes further.
    pub(super) fn progress(&mut self, record: &Record) {
        self.form_progress(record);
        let Some((call_id, progress)) = CallProgress::after(record) else { return };
        let mut calls = self.open_turn.iter_mut().flat_map(|open| &mut open.calls);
        if let Some(call) = calls.find(|call| call.call.call_id == call_id) {
            call.follow(progress);
        }
    }

    /// A question of a server comes further. It changes nothing of its call, which runs.
    fn form_progress(&mut self, record: &Record) {
        let Some(open) = &mut self.open_turn else { return };
        match &record.event {
            Event::ApprovalRequested(ApprovalRequested { call_id, name, form: Some(form), .. }) => {
                let (id, name, form) = (call_id.clone(), name.clone(), form.clone());
                let (seq, time) = (record.seq, record.time);
                open.forms.push(FormState { id, name, seq, time, form, is_decided: false });
            }
            Event::ApprovalDecided(decided) => {
                let its = open.forms.iter_mut().filter(|form| form.id == decided.call_id);
                its.for_each(|form| form.is_decided = true);
            }
            Event::ToolFinished(finished) => open.forms.retain(|form| form.form.call_id != finished.call_id),
            _ => {}
        }
    }

    pub(super) fn use_key(&mut self, record: &Record, turn: TurnNumber, key: Option<&Key>) {
        let Some(Key { key, request }) = key.cloned() else { return };
        self.keys_by_age.push_back((record.time, key.clone()));
        let used = KeyUse { request, turn, seq: record.seq, time: record.time, end: None, is_dequeued: false };
        self.keyed_bytes += used.bytes();
        let replaced = self.keys.insert(key, used);
        self.keyed_bytes -= replaced.map_or(0, |replaced| replaced.bytes());
        // Seldom, because it looks at all of them.
        if self.keys_by_age.len() >= 2 * KEYS_KEPT && self.keys_by_age.len().is_multiple_of(KEYS_KEPT) {
            self.forget_old_keys();
        }
    }

    /// Forgets the keys that are old by the time that [`KEYS_KEPT`] uses have reached, except the last ones used.
    fn forget_old_keys(&mut self) {
        let mut times: Vec<i64> = self.keys_by_age.iter().map(|(used, _)| used.as_millis()).collect();
        let Some(at) = times.len().checked_sub(KEYS_KEPT) else { return };
        let reached_ms = *times.select_nth_unstable(at).1;
        let (mut may_go, mut are_old, keys) = (at, true, &mut self.keys);
        self.keys_by_age.retain(|(used, name)| {
            // Where the clock was ahead, the time says nothing of those before and after it. Where it was behind, the
            // key is as young as those before it.
            let is_ahead = used.as_millis() > reached_ms;
            are_old &= may_go > 0 && (is_ahead || reached_ms.saturating_sub(used.as_millis()) >= KEY_KEPT_MS);
            may_go = may_go.saturating_sub(1);
            let stays = is_ahead || !are_old;
            // A key that was used again belongs to its newest use.
            if !stays && keys.get(name).is_some_and(|kept| kept.time == *used) {
                let gone = keys.remove(name);
                self.keyed_bytes -= gone.map_or(0, |gone| gone.bytes());
            }
            stays
        });
    }
}

/// The calls of an answer.
pub(super) fn proposed(answer: &Message) -> Vec<CallState> {
    let calls = answer.tool_calls().cloned();
    calls.map(|call| CallState { call, progress: CallProgress::Proposed }).collect()
}
