//! `Session::apply`: the state of any legal life is that of a naive reading of its records.

use std::collections::BTreeSet;

use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_testkit::cases_and_regressions;
use proptest::{collection::vec, prelude::*, strategy::ValueTree as _};
use serde_json::json;

use super::{
    created, fold,
    naive::{Naive, size},
    pinned, record,
    walk::{KEYS, OpenWalk, Walk, receipt},
};
use crate::{
    Session, SessionId,
    clock::{SeededIds, Timestamp},
    ids::{Seq, TurnNumber},
    model::StopReason,
    options::{Amount, Budget, Budgets, ModelOptions, Policy},
    service::SessionState,
    session::{
        Answered, CallProgress, CallState, OpenTurn, TurnFold, View,
        event::{
            AssistantMessage, BudgetWarning, CallRequested, ClientToolsChanged, CompactionCompleted, CompactionFailed,
            CompactionStarted, CompactionUndone, ContextRebuilt, Decision, DelegateStarted, Event, HistoryGiven, Key,
            PartialText, Record, SessionForked, SessionUpdated, SteeringEntered, ToolFinished, ToolOutcome,
            ToolStarted, TurnCompleted, TurnFailed, TurnInterrupted, TurnQueued, TurnStarted, TurnSteered, TurnTotals,
        },
        human::heading_of,
        message::{Message, RawJson, ToolCall},
        reminder::{Pin, Reminder},
    },
    wire::{decode_event, encode_event},
};

/// Reminders and pins follow the summary as typed messages, in the order in which they were set; then the conversation.
fn assert_state_is_typed(session: &Session) {
    let reminder =
        |it: &Reminder| (it.seq, Message::SystemReminder { kind: it.kind.clone(), content: it.text.as_str().into() });
    let pin = |it: &Pin| (it.seq, Message::Pin { n: it.seq, content: it.text.as_str().into() });
    let (reminders, pins) = (session.reminders.iter().map(reminder), session.pins.iter().map(pin));
    let mut due: Vec<(Seq, Message)> = reminders.chain(pins).collect();
    due.sort_by_key(|(seq, _)| *seq);
    let from = usize::from(session.context.summary().is_some());
    let messages = session.messages();
    let (state, said) = messages[from..].split_at(due.len());
    assert!(state.iter().eq(due.iter().map(|(_, message)| message)));
    assert!(said.iter().eq(session.context.entries().iter().map(|entry| &*entry.message)));
}

/// Every call has its one result right behind it; of a turn that runs, the last answer may still wait.
fn assert_paired(messages: &[Message], is_open: bool) {
    for (at, message) in messages.iter().enumerate() {
        let calls: Vec<&String> = message.tool_calls().map(|call| &call.call_id).collect();
        match messages.get(at + 1) {
            Some(Message::ToolResults { results }) => {
                assert_eq!(results.iter().map(|result| &result.call_id).collect::<Vec<_>>(), calls);
            }
            Some(_) => assert!(calls.is_empty()),
            None => assert!(calls.is_empty() || is_open),
        }
        if let Message::ToolResults { results } = message {
            assert!(!results.is_empty() && messages[at - 1].tool_calls().count() == results.len());
        }
    }
}

/// The session's own records: those before the last fork happened to another session.
fn own(records: &[Record]) -> &[Record] {
    let fork = records.iter().rposition(|record| matches!(record.event, Event::SessionForked(_)));
    &records[fork.unwrap_or(0)..]
}

/// Uses of keys, read from the records.
fn assert_keys(session: &Session, records: &[Record]) {
    let records = own(records);
    for name in KEYS {
        let use_of = |record: &&Record| match &record.event {
            Event::TurnQueued(TurnQueued { key, .. })
            | Event::TurnStarted(TurnStarted { key, .. })
            | Event::TurnSteered(TurnSteered { key, .. }) => key.as_ref().is_some_and(|key| key.key == name),
            _ => false,
        };
        let used = records.iter().rfind(use_of);
        let known = session.key(name);
        assert_eq!(known.map(|known| (Some(known.turn), known.seq)), used.map(|used| (used.turn, used.seq)), "{name}");
        let (Some(known), Some(used)) = (known, used) else { continue };
        let of_turn = |record: &&Record| record.turn == used.turn;
        let is_end = |record: &&Record| {
            matches!(record.event, Event::TurnCompleted(_) | Event::TurnFailed(_) | Event::TurnInterrupted(_))
        };
        let end = records.iter().filter(of_turn).find(is_end).map(|record| record.seq);
        assert_eq!(known.end.as_ref().map(|end| end.seq), end);
        assert!(known.end.as_ref().is_none_or(|end| end.text.is_empty()), "the journal alone holds the text");
        let is_dequeued = records.iter().filter(of_turn).any(|record| matches!(record.event, Event::TurnDequeued(_)));
        assert_eq!(known.is_dequeued, is_dequeued);
    }
}

/// The fold of the last ended turn finds the same end as the session.
fn assert_end(session: &Session, records: &[Record]) {
    let Some(end) = session.last_end() else { return };
    // The parent may have had a turn of the same number.
    let started = |record: &Record| record.turn == Some(end.turn) && matches!(record.event, Event::TurnStarted(_));
    let first = records.iter().rposition(|record| record.seq < end.seq && started(record)).unwrap();
    let mut fold = TurnFold::new(end.turn);
    assert_eq!(records[first..].iter().find_map(|record| fold.push(record)).as_ref(), Some(end));
}

fn tool_finished(call_id: &str) -> Event {
    let (call_id, name) = (call_id.to_owned(), "tool".to_owned());
    Event::ToolFinished(ToolFinished::new(call_id, name, ToolOutcome::Succeeded, "again".into()))
}

/// Events that the running turn alone may have.
fn of_an_open_turn() -> Vec<Event> {
    let totals = TurnTotals::default();
    vec![
        Event::TurnCompleted(TurnCompleted { stop_reason: StopReason::EndTurn, totals: totals.clone() }),
        Event::TurnInterrupted(TurnInterrupted { reason: "requested".to_owned(), totals }),
        Event::PartialText(PartialText { step: 0, text: "x".into() }),
        Event::BudgetWarning(BudgetWarning {
            budget: Budget::Tokens,
            used: Amount::Number(1),
            limit: Amount::Number(1),
        }),
        tool_finished("t0s0c0"),
        Event::TurnSteered(TurnSteered { prompt: "x".into(), blocks: Vec::new(), started: 2, key: None }),
        entered(2),
    ]
}

fn entered(steered: Seq) -> Event {
    Event::SteeringEntered(SteeringEntered { steered })
}

fn started(turn: TurnNumber, queued: Option<Seq>, key: Option<Key>) -> (Option<TurnNumber>, Event) {
    let (prompt, model, budgets) = (queued.is_none().then(|| "go".into()), "scripted".to_owned(), Budgets::default());
    let started = TurnStarted { prompt, model, budgets, queued, key, ..TurnStarted::default() };
    (Some(turn), Event::TurnStarted(started))
}

/// Answers of `read` and `list`, read from the records.
fn assert_view(session: &Session, walk: &Walk) {
    let records = &walk.records;
    let updated = records.iter().rev().find_map(|record| match &record.event {
        Event::SessionUpdated(updated) => Some(updated.clone()),
        _ => None,
    });
    let updated = updated.unwrap_or(SessionUpdated { title: None, labels: Default::default() });
    let is_archived = own(records).iter().fold(false, |is_archived, record| match record.event {
        Event::SessionArchived(_) => true,
        Event::SessionUnarchived(_) => false,
        _ => is_archived,
    });
    let turn = walk.open.as_ref().map(|open| open.turn);
    let waiting = |id: &String| {
        let requested = |event: &Event| matches!(event, Event::ApprovalRequested(request) if request.call_id == *id);
        records.iter().find(|record| requested(&record.event)).map(|record| (id.clone(), record.seq))
    };
    let waiting: Vec<(String, Seq)> = walk.open.iter().flat_map(OpenWalk::waiting).filter_map(waiting).collect();
    let requested: Vec<&String> = walk.open.iter().flat_map(OpenWalk::requested).collect();
    let is_waiting = !waiting.is_empty() || !requested.is_empty();
    let state = match (turn, !is_waiting, walk.queue.is_empty()) {
        (Some(_), false, _) => SessionState::Waiting,
        (Some(_), true, _) => SessionState::Running,
        (None, ..) if walk.compacting.is_some() => SessionState::Running,
        (None, _, false) => SessionState::Queued,
        (None, _, true) => SessionState::Idle,
    };

    let queued = |seq: Seq| match &records.iter().find(|record| record.seq == seq).unwrap().event {
        Event::TurnQueued(queued) => (queued.prompt.clone(), queued.blocks.clone()),
        Event::TurnEdited(edited) => (edited.prompt.clone().unwrap(), edited.blocks.clone()),
        other => panic!("{other:?} queues no turn"),
    };
    let first_line = records.iter().find_map(|record| match &record.event {
        Event::TurnStarted(started) => {
            let own = started.prompt.clone().map(|prompt| (prompt, started.blocks.clone()));
            let (content, blocks) = own.or_else(|| started.queued.map(queued))?;
            heading_of(&Message::User { content, blocks })
        }
        Event::HistoryGiven(HistoryGiven { message: prompt @ Message::User { .. }, .. }) => heading_of(prompt),
        _ => None,
    });
    let (view, summary) = (View::of(session).session_view(7), session.summary());
    assert_eq!((view.session_id, view.state, view.archived), (walk.id, state, is_archived));
    assert_eq!((&view.title, &view.labels), (&updated.title.or(first_line), &updated.labels));
    assert_eq!((view.created_at, view.updated_at), (own(records)[0].time, records.last().unwrap().time));
    let parent = match &own(records)[0].event {
        Event::SessionForked(forked) => Some(forked.parent),
        _ => None,
    };
    assert_eq!((view.forked_from, view.last_seq), (parent, records.len() as Seq));
    let last_error = records.iter().rev().find_map(|record| match &record.event {
        Event::TurnFailed(failed) => Some(Some(failed.error.code)),
        Event::TurnCompleted(_) | Event::TurnInterrupted(_) => Some(None),
        _ => None,
    });
    assert_eq!(view.last_error, last_error.flatten());
    let approvals: Vec<_> = view.pending_approvals.iter().map(|asked| (asked.call_id.clone(), asked.seq)).collect();
    assert_eq!(approvals, waiting);
    assert!(view.pending_approvals.iter().all(|asked| Some(asked.turn) == turn));
    let open = View::of(session);
    assert!(open.calls.iter().map(|(_, call)| &call.call_id).eq(requested));
    assert!(open.calls.iter().all(|(_, call)| Some(call.turn) == turn));
    assert_eq!(session.client_tools.as_ref().map(|set| set.seq), walk.tools);
    assert!(session.tools_of_queue.len() <= walk.queue.len() + 1, "no tools are kept that nothing needs");
    let kept: BTreeSet<Seq> = session.tools_of_queue.iter().map(|set| set.seq).collect();
    assert_eq!(kept.len(), session.tools_of_queue.len(), "tools are kept twice");
    let naive = Naive::read(records);
    let messages = naive.entries.len() + usize::from(naive.summary.is_some());
    assert_eq!((view.context.messages, view.context.window_tokens), (messages as u64, 7));
    let bytes = naive.sizes.iter().sum::<u64>() + naive.summary.as_ref().map_or(0, size);
    assert_eq!(view.context.estimated_tokens, bytes / 4);

    let fields = |value: serde_json::Value| value.as_object().unwrap().clone();
    let view = fields(serde_json::to_value(view).unwrap());
    for (name, value) in fields(serde_json::to_value(summary).unwrap()) {
        assert_eq!(view[&name], value, "{name}");
    }
}

/// Input of a compactor, read from the records.
fn assert_compactor_is_told(session: &Session, walk: &Walk) {
    let (records, messages) = (&walk.records, session.messages());
    let told = session.compaction_context(4000, 7);
    let bytes: u64 = messages.iter().map(size).sum();
    let beside = usize::from(session.system_prompt.is_some()) + session.reminders.len() + session.pins.len();
    assert_eq!((told.message_count, told.estimated_history_tokens), (messages.len() - beside, bytes / 4));
    assert_eq!((told.request_bytes, told.request_tokens, told.window_tokens), (4000, 1000, 7));
    let is_start = |record: &&Record| matches!(record.event, Event::TurnStarted(_));
    let turn_at = |records: &[Record]| u32::try_from(records.iter().filter(is_start).count().max(1) - 1).unwrap();
    let is_attempt = |record: &Record| matches!(record.event, Event::CompactionStarted(_) | Event::CompactionUndone(_));
    let attempt = records.iter().rposition(is_attempt);
    assert_eq!(told.current_turn, turn_at(records));
    assert_eq!(told.last_compaction_turn, attempt.map(|at| turn_at(&records[..at])));
    let tokens = records.iter().rev().find_map(|record| match &record.event {
        Event::AssistantMessage(answer) => Some(answer.usage.input_tokens),
        Event::CompactionCompleted(_) => Some(0),
        Event::TurnFailed(failed) if failed.error.code == ErrorCode::ContextOverflow => Some(0),
        _ => None,
    });
    assert_eq!(told.last_input_tokens, tokens.unwrap_or(0));
    let begins = records.iter().rposition(|record| is_start(&record)).filter(|_| walk.open.is_some());
    let steps = |from: usize| {
        let answers = records[from..].iter().filter(|record| matches!(record.event, Event::AssistantMessage(_)));
        u32::try_from(answers.count()).unwrap()
    };
    assert_eq!(told.in_turn, begins.is_some_and(|begins| steps(begins) > 0));
    assert_eq!(told.steps_since_compaction, begins.map_or(0, |begins| steps(begins.max(attempt.unwrap_or(0)))));
}

/// Undoable compactions, and the context after an undo.
fn assert_undoable(session: &Session, walk: &Walk) {
    let (last, open) = (walk.records.last().unwrap(), walk.open.is_some() || walk.compacting.is_some());
    let undoable: Vec<Seq> = walk.undoable.iter().map(|undoable| undoable.compaction).collect();
    assert_eq!(session.undoable().collect::<Vec<_>>(), undoable);
    assert_eq!(session.open_compaction().is_some(), walk.compacting.is_some());
    assert_eq!(session.context_before_is_known(), !undoable.is_empty());
    let mut undone = session.clone();
    let Some(&compaction) = undoable.last().filter(|_| !open) else { return };
    let event = Event::CompactionUndone(CompactionUndone { compaction });
    undone.apply(&Record { seq: last.seq + 1, turn: None, event, ..last.clone() }).unwrap();
    let naive = Naive::without(&walk.records, Some(compaction));
    let entries = undone.context.entries().iter();
    let entries: Vec<_> = entries.map(|entry| (entry.seq, entry.turn, Message::clone(&entry.message))).collect();
    assert_eq!(entries, naive.entries);
    assert_eq!(undone.context.summary().map(|summary| Message::clone(&summary.message)), naive.summary);
    let bytes: u64 = undone.messages().iter().map(size).sum();
    assert_eq!(session.tokens_if_undone(), bytes / 4);
    assert_eq!(undone.undoable().collect::<Vec<_>>(), undoable[..undoable.len() - 1]);
    let next = undone.compaction_context(0, 0);
    assert_eq!((next.last_compaction_turn, next.steps_since_compaction), (Some(next.current_turn), 0));
}

/// Events of compactions that cannot follow, with one open or without.
fn illegal_of_a_compaction(session: &Session, walk: &Walk) -> Vec<(Option<TurnNumber>, Event)> {
    let (open, seq) = (walk.open.as_ref().map(|open| open.turn), session.last_seq + 1);
    let started = CompactionStarted { input_tokens: 0, estimated_history_tokens: 0, message_count: 0 };
    let completed = CompactionCompleted { summary_tokens: 0, messages_before: 2, messages_after: 1 };
    let failed = CompactionFailed { code: ErrorCode::ModelTimeout, message: String::new() };
    let (started, failed) = (Event::CompactionStarted(started), Event::CompactionFailed(failed));
    let undone = |compaction| (None, Event::CompactionUndone(CompactionUndone { compaction }));
    let mut illegal = vec![(open, Event::CompactionCompleted(completed)), undone(seq), undone(1)];
    let latest = walk.undoable.last().map(|undoable| undoable.compaction);
    illegal.extend(walk.undoable.iter().map(|it| it.compaction).filter(|it| Some(*it) != latest).map(undone));
    if open.is_some() || walk.compacting.is_some() {
        illegal.extend(latest.map(undone));
    }
    let other = Some(open.map_or(0, |turn| turn + 1));
    if walk.compacting.is_none() {
        illegal.extend([(open, failed.clone()), (open, context_rebuilt(vec![(1, seq)], Vec::new()))]);
    }
    if walk.compacting.is_some() || walk.open.iter().any(OpenWalk::has_open_calls) {
        illegal.push((open, started.clone()));
    }
    if walk.compacting.is_some() {
        illegal.extend([(other, failed), (other, context_rebuilt(vec![(1, seq)], Vec::new()))]);
        illegal.extend(open.is_none().then(|| self::started(session.next_turn, None, None)));
        illegal.extend(open.iter().flat_map(|_| of_an_open_turn().into_iter().take(2).map(|event| (open, event))));
    }
    illegal.extend(open.iter().flat_map(|_| [(None, started.clone()), (other, started.clone())]));
    illegal
}

/// Records that cannot follow: each is refused and changes nothing.
fn assert_illegal_are_refused(session: &mut Session, walk: &Walk) {
    let (id, last) = (session.id, session.last_seq);
    let record = |seq, turn, event| Record { session_id: id, ..record(seq, turn, event) };
    let other = SessionId::from_uuid(uuid::Uuid::nil());
    let mut illegal: Vec<Record> =
        [last, last - 1, 0].map(|seq| Record { session_id: id, ..pinned(seq, "x") }).to_vec();
    illegal.push(Record { session_id: other, ..pinned(last + 1, "x") });
    let mut forks = vec![(id, id, last), (other, other, last), (other, id, last - 1), (other, id, last + 1)];
    forks.extend((walk.open.is_some() || walk.compacting.is_some()).then_some((other, id, last)));
    illegal.extend(forks.into_iter().map(|(session_id, parent, at)| {
        let event = Event::SessionForked(SessionForked { parent, at, key: None });
        Record { session_id, ..record(last + 1, None, event) }
    }));
    let mut add = |turn, event| illegal.push(record(last + 1, turn, event));
    add(None, created());
    let open = walk.open.as_ref().map(|open| open.turn);
    let finished = walk.records.iter().filter_map(|record| match &record.event {
        Event::ToolFinished(finished) => Some(finished.call_id.clone()),
        _ => None,
    });
    for call_id in finished.chain(["unheard of".to_owned()]) {
        add(open, tool_finished(&call_id));
        let (name, effect, files) = ("tool".to_owned(), crate::tool::Effect::Once, Vec::new());
        let (arguments, deadline) = (RawJson::empty_object(), SeededIds::wall_time());
        let requested = CallRequested { call_id: call_id.clone(), name: name.clone(), arguments, effect, deadline };
        add(open, Event::CallRequested(requested));
        let (id, reserved) = (call_id.clone(), Budgets::default());
        let child = SessionId::default();
        add(open, Event::DelegateStarted(DelegateStarted { call_id: id, child, reserved, agent: None }));
        add(open, Event::ToolStarted(ToolStarted { call_id, name, effect, files }));
    }
    for event in of_an_open_turn() {
        add(None, event.clone());
        add(Some(open.map_or(0, |turn| turn + 1)), event);
    }
    if open.is_some() {
        let (turn, event) = started(session.next_turn, None, None);
        add(turn, event);
    }
    // A text enters once, between steps, and in no compaction.
    let waits: &[Seq] = walk.open.as_ref().map_or(&[], |open| &open.steered);
    let is_between = walk.compacting.is_none() && !walk.open.iter().any(OpenWalk::has_open_calls);
    for seq in walk.records.iter().map(|record| record.seq).filter(|seq| !is_between || !waits.contains(seq)) {
        add(open, entered(seq));
    }
    let unheard = walk.records.iter().map(|record| record.seq).filter(|seq| walk.queue.iter().all(|(_, at)| at != seq));
    for (turn, seq) in unheard.map(|seq| (0, seq)).chain(walk.queue.iter().map(|&(turn, seq)| (turn + 1, seq))) {
        let (turn, event) = started(turn, Some(seq), None);
        add(turn, event);
    }
    let whole = (1, last);
    let mut ranges = vec![vec![(2, 1)], vec![(1, 1), (1, last)], vec![whole, (1, 1)]];
    // The last message of the open turn must stay.
    ranges.extend(walk.open.as_ref().and(session.context.entries().last()).map(|_| Vec::new()));
    for retained in ranges {
        add(open, context_rebuilt(retained, Vec::new()));
    }
    add(open, context_rebuilt(vec![whole], vec![2, 1]));
    illegal_of_a_compaction(session, walk).into_iter().for_each(|(turn, event)| add(turn, event));
    if walk.open.iter().any(OpenWalk::has_open_calls) {
        let (totals, stop_reason) = (TurnTotals::default(), StopReason::EndTurn);
        let (model, blocks) = ("scripted".to_owned(), Vec::new());
        add(
            open,
            Event::AssistantMessage(AssistantMessage {
                step: 1,
                model,
                blocks,
                stop_reason,
                usage: Default::default(),
                cost: None,
                tools: None,
                context: None,
            }),
        );
        add(open, Event::TurnCompleted(TurnCompleted { stop_reason, totals: totals.clone() }));
        add(
            open,
            Event::TurnFailed(TurnFailed { error: ErrorBody::new(ErrorCode::TurnFailed), totals: totals.clone() }),
        );
        add(open, Event::TurnInterrupted(TurnInterrupted { reason: "requested".to_owned(), totals }));
    }
    let before = session.clone();
    for record in illegal {
        let refused = session.apply(&record).expect_err("an illegal record is refused");
        assert_eq!(refused.seq, record.seq);
        assert!(*session == before, "{record:?} was refused and changed the session");
    }
}

fn context_rebuilt(retained: Vec<(Seq, Seq)>, masked: Vec<Seq>) -> Event {
    let receipt = receipt(1);
    Event::ContextRebuilt(ContextRebuilt { compaction: 1, summary: None, retained, masked, receipt })
}

proptest! {
    #![proptest_config(cases_and_regressions(1000))]

    #[test]
    fn a_session_is_what_its_records_say(choices in vec(any::<u16>(), 0..60)) {
        let walk = Walk::new(&choices);
        let mut session = Session::begin(&walk.records[0]).unwrap();
        for record in &walk.records[1..] {
            let before = session.message_count;
            session.apply(record).unwrap();
            prop_assert!(session.message_count >= before);
            prop_assert_eq!(session.last_seq, record.seq);
            prop_assert_eq!(session.updated_at, record.time);
        }

        let naive = Naive::read(&walk.records);
        prop_assert_eq!(session.message_count, naive.count);
        let entries = session.context.entries().iter();
        let entries: Vec<_> = entries.map(|entry| (entry.seq, entry.turn, Message::clone(&entry.message))).collect();
        prop_assert_eq!(&entries, &naive.entries);
        let summary = session.context.summary().map(|summary| Message::clone(&summary.message));
        prop_assert_eq!(&summary, &naive.summary);
        prop_assert!(summary.is_none() || session.messages().first() == summary.as_ref());
        assert_state_is_typed(&session);
        for start in 0..=entries.len() {
            let bytes = naive.bytes_from(start);
            prop_assert_eq!(session.context.bytes_from(start), bytes);
            for limit in [bytes.saturating_sub(1), bytes, bytes + 1] {
                prop_assert_eq!(session.context.start_within(limit), naive.start_within(limit));
            }
        }
        assert_paired(&session.messages(), walk.open.is_some());

        prop_assert_eq!(session.open_turn().map(|open| open.turn), walk.open.as_ref().map(|open| open.turn));
        let queue: Vec<_> = session.queue.iter().map(|queued| (queued.turn, queued.prompt_seq)).collect();
        prop_assert_eq!(queue, walk.queue.clone());
        prop_assert_eq!(session.pins.iter().map(|pin| pin.seq).collect::<Vec<_>>(), walk.pins.clone());
        let reminders: Vec<_> = session.reminders.iter().map(|reminder| reminder.kind.clone()).collect();
        prop_assert_eq!(reminders, walk.reminders.clone());
        assert_keys(&session, &walk.records);

        assert_view(&session, &walk);
        assert_compactor_is_told(&session, &walk);
        assert_undoable(&session, &walk);
        assert_end(&session, &walk.records);

        let line = |record: &Record| String::from_utf8(encode_event(record).unwrap().to_vec()).unwrap();
        let replayed: Vec<Record> = walk.records.iter().map(|record| decode_event(&line(record)).unwrap()).collect();
        prop_assert!(fold(&replayed) == session, "a replay makes another session");
        assert_illegal_are_refused(&mut session, &walk);
    }
}

proptest! {
    #![proptest_config(cases_and_regressions(2000))]

    /// An undo right after a compaction restores the context, byte for byte.
    #[test]
    fn an_undo_gives_what_was_there(choices in vec(any::<u16>(), 0..60)) {
        undo_right_away(&Walk::new(&choices));
    }
}

/// Undoes every compaction of a life right behind it; counts those between turns.
fn undo_right_away(walk: &Walk) -> usize {
    let context = |session: &Session| {
        let context = &session.context;
        let summary = context.summary().map(|summary| serde_json::to_string(&*summary.message).unwrap());
        let said = context.entries().iter().map(|entry| serde_json::to_string(&*entry.message).unwrap());
        (summary, said.collect::<Vec<_>>(), context.clone())
    };
    let mut session = Session::begin(&walk.records[0]).unwrap();
    let (mut before, mut undone) = (context(&session), 0);
    for record in &walk.records[1..] {
        if matches!(record.event, Event::ContextRebuilt(_)) {
            before = context(&session);
        }
        session.apply(record).unwrap();
        if matches!(record.event, Event::CompactionCompleted(_)) && session.open_turn().is_none() {
            let mut session = session.clone();
            let (seq, event) = (record.seq + 1, Event::CompactionUndone(CompactionUndone { compaction: record.seq }));
            session.apply(&Record { seq, turn: None, event, ..record.clone() }).unwrap();
            let after = context(&session);
            assert_eq!((&after.0, &after.1), (&before.0, &before.1));
            // But for the oldest one, that can no longer be undone.
            assert_eq!(after.2.entries(), before.2.entries());
            undone += 1;
        }
    }
    undone
}

/// The properties say something: lives compact, fail to, undo, and do so in and between turns.
#[test]
fn lives_compact_in_all_ways() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut kinds, mut right_away) = (std::collections::BTreeMap::<_, usize>::new(), 0);
    for _ in 0..1000 {
        let choices = vec(any::<u16>(), 0..60).new_tree(&mut runner).unwrap().current();
        let walk = Walk::new(&choices);
        right_away += undo_right_away(&walk);
        for record in walk.records.iter().filter(|record| record.event.type_name().starts_with("compaction_")) {
            *kinds.entry((record.event.type_name().to_owned(), record.turn.is_some())).or_default() += 1;
        }
    }
    let (started, completed, failed) = ("compaction_started", "compaction_completed", "compaction_failed");
    let mut due: Vec<_> = [started, completed, failed].into_iter().flat_map(|it| [(it, false), (it, true)]).collect();
    due.push(("compaction_undone", false));
    for (kind, is_in_turn) in due {
        assert!(kinds.get(&(kind.to_owned(), is_in_turn)).is_some_and(|count| *count > 5), "{kind} {is_in_turn}");
    }
    assert!(right_away > 20, "{right_away}");
}

#[test]
fn a_session_begins_with_its_creation() {
    assert!(Session::begin(&pinned(1, "x")).is_err());
    assert!(Session::begin(&record(2, None, created())).is_err());
    assert_eq!(Session::begin(&record(1, None, created())).unwrap().last_seq, 1);
}

/// Whether it has had its effect is unknown, whatever else was decided.
#[test]
fn a_turn_with_a_call_that_runs_does_not_outlive_its_process() {
    let call = |progress| {
        let (call_id, name) = ("call_3_0".to_owned(), "look".to_owned());
        CallState { call: ToolCall { call_id, name, arguments: RawJson::empty_object(), opaque: None }, progress }
    };
    let decided = || CallProgress::Decided(Answered { decision: Decision::Approve, reason: None, preview: None });
    let open = |calls| OpenTurn { calls, ..OpenTurn::default() };
    assert!(open(vec![call(decided()), call(CallProgress::Proposed)]).outlives_its_process());
    assert!(!open(vec![call(decided()), call(CallProgress::Started)]).outlives_its_process());
}

/// Nobody here runs them.
#[test]
fn an_import_takes_the_tools_of_a_caller_away() {
    let tool = json!({ "name": "look", "description": "Looks.", "input_schema": { "type": "object" } });
    for queued in [None, Some(false), Some(true)] {
        let changed = queued.map(|queued| {
            let tools = Some(vec![serde_json::from_value(tool.clone()).unwrap()]);
            record(
                2,
                None,
                Event::ClientToolsChanged(ClientToolsChanged { hash: "h".into(), tools, defined: None, queued }),
            )
        });
        let mut records: Vec<Record> = std::iter::once(record(1, None, created())).chain(changed).collect();
        let session = fold(&records);
        let imported = session.import_record((session.id, None), session.last_seq, Timestamp::from_millis(0));
        assert_eq!(imported.is_some(), queued.is_some(), "{queued:?}");
        records.extend(imported);
        let session = fold(&records);
        assert!(session.client_tools.is_none() && session.tools_of_queue.is_empty(), "{queued:?}");
    }
}

/// A bundle may hold anything; what it says was given has to be what a request can give.
#[test]
fn what_was_given_is_of_no_turn_and_has_nothing_of_a_vendor() {
    let given = |exchange, message: serde_json::Value| {
        Event::HistoryGiven(HistoryGiven { exchange, message: serde_json::from_value(message).unwrap() })
    };
    let user = json!({ "role": "user", "content": "Look." });
    let answer = |block: serde_json::Value| json!({ "role": "block_assistant", "model": "", "blocks": [block] });
    let call = json!({ "type": "tool_call", "call_id": "call_3_0", "name": "look", "arguments": {} });
    let opaque = json!({ "type": "tool_call", "call_id": "a", "name": "look", "arguments": {}, "opaque": { "x": 1 } });
    let reasoning = json!({ "type": "reasoning", "text": "Hm.", "opaque": null, "vendor": "v" });
    let image = json!({ "blob": "0".repeat(64), "media_type": "image/png", "width": 1, "height": 1, "bytes": 1 });
    let result = json!({ "call_id": "call_3_0", "name": "look", "is_error": false, "content": "seen" });
    let mut with_image = result.clone();
    with_image["images"] = json!([image]);
    let results = |result: &serde_json::Value| json!({ "role": "tool_results", "results": [result] });

    let mut session = Session::begin(&record(1, None, created())).unwrap();
    let mut apply = |seq, turn, event: Event| session.apply(&record(seq, turn, event)).map_err(|refused| refused.why);
    assert_eq!(apply(2, Some(5), given(1, user.clone())), Err("it belongs to no turn"));
    assert_eq!(apply(2, None, given(1, user.clone())), Ok(()));
    for odd in [answer(reasoning), answer(opaque)] {
        assert_eq!(apply(3, None, given(1, odd)), Err("no such message can be given"));
    }
    assert_eq!(apply(3, None, given(0, answer(call.clone()))), Err("its exchange is over"));
    assert_eq!(apply(3, None, given(1, answer(call))), Ok(()));
    assert_eq!(apply(4, None, given(1, results(&with_image))), Err("no such message can be given"));
    assert_eq!(apply(4, None, given(1, results(&result))), Ok(()));
}

/// A record some hours after the first one.
pub(super) fn at(hours: i64, record: Record) -> Record {
    Record { time: Timestamp::from_millis(SeededIds::wall_time().as_millis() + hours * 3_600_000), ..record }
}

pub(super) fn queued(hours: i64, seq: Seq, turn: TurnNumber, key: &str) -> Record {
    let key = Some(Key { key: key.to_owned(), request: "r".to_owned() });
    let (prompt, model, budgets, compaction) = ("go".into(), None, Budgets::default(), None);
    let (options, output, attended, allow, search_path) = (ModelOptions::default(), None, false, Vec::new(), None);
    let (policy, client_tools, blocks) = (Policy::Queue, None, Vec::new());
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
    at(hours, record(seq, Some(turn), Event::TurnQueued(queued)))
}

/// A turn waits for days, and its key is used again meanwhile: the key answers for the newest turn.
#[test]
fn a_key_that_is_used_again_answers_for_its_newest_turn() {
    let mut session = fold(&[at(0, record(1, None, created())), queued(0, 2, 0, "k"), queued(25, 3, 1, "k")]);
    let (turn, event) = started(0, Some(2), None);
    session.apply(&at(26, record(4, turn, event))).unwrap();
    session.apply(&at(27, record(5, turn, of_an_open_turn().remove(0)))).unwrap();
    let known = session.key("k").expect("the key is there");
    assert_eq!((known.turn, known.end.is_none()), (1, true));
}
