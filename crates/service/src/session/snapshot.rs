//! A snapshot: a session's small fields, and the seqs of the events with its messages. Never a body.
//!
//! It is derived data. A store that loads one reads the events of [`Snapshot::ranges`] from the journal and passes them
//! to [`Snapshot::restore`], which refuses a snapshot that the journal contradicts.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{
    Session, SessionFields,
    apply::proposed,
    context::{Context, ContextEntry, Rebuilds},
    event::{ClientToolsChanged, Event, Record, TurnStarted},
    history::HistoryFold,
    message::Body,
    reminder::{Pin, Reminder},
    state::KeyUse,
    turn::{OpenTurn, QueuedTurn},
    view::SessionMeta,
};
use crate::{
    ids::{Seq, SessionId, TurnNumber},
    tool::ClientTools,
};

/// Unwanted events that are read along, so that fewer reads are needed.
const GAP_EVENTS_MAX: Seq = 16;

/// A session without its bodies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// Everything but what these seqs stand for.
    fields: SessionFields,
    /// The `context_rebuilt` that holds the summary which the live context begins with.
    summary: Option<Seq>,
    /// The live context, in order.
    context: Vec<Span>,
    /// The messages in it whose results are masked.
    masked: Vec<Seq>,
    rebuilds: Rebuilds,
    reminders: Vec<Seq>,
    pins: Vec<Seq>,
    /// The `turn_queued` of each turn that waits.
    queue: Vec<Seq>,
    /// The `turn_edited` of each that has its prompt there.
    #[serde(default)]
    edited: Vec<Seq>,
    /// The `client_tools_changed` with the tools that its caller runs, and those with the tools that turns in the queue
    /// bring.
    #[serde(default)]
    client_tools: Option<Seq>,
    #[serde(default)]
    tools_of_queue: Vec<Seq>,
}

/// Entries of the context between which nothing left it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Span {
    /// The events of the first and the last entry.
    from: Seq,
    to: Seq,
    /// Position of the first message in the full history, and of the one after the last.
    first: u64,
    past: u64,
    /// The turn that the last entry belongs to: one that was interrupted may go on as another behind it.
    turn: TurnNumber,
    /// True if this turn did not fit, so that only a remainder of these entries and those before them is left.
    is_dropped: bool,
}

/// Contradiction between a snapshot and the journal, at this seq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unfounded(pub(crate) Seq);

impl Snapshot {
    /// Takes a session's small fields.
    pub(crate) fn of(session: &Session) -> Self {
        Self {
            fields: session.without_bodies(),
            summary: session.context.summary().map(|summary| summary.seq),
            context: spans(&session.context),
            masked: masked(&session.context),
            rebuilds: session.context.rebuilds(),
            reminders: session.reminders.iter().map(|reminder| reminder.seq).collect(),
            pins: session.pins.iter().map(|pin| pin.seq).collect(),
            queue: session.queue.iter().map(|queued| queued.seq).collect(),
            edited: {
                let edited = session.queue.iter().filter(|queued| queued.prompt_seq != queued.seq);
                edited.map(|queued| queued.prompt_seq).collect()
            },
            client_tools: session.client_tools.as_ref().map(|set| set.seq),
            tools_of_queue: session.tools_of_queue.iter().map(|set| set.seq).collect(),
        }
    }

    /// Returns the keys that it knows, if it is of this session.
    pub(crate) fn keys(self, id: SessionId) -> Option<BTreeMap<String, KeyUse>> {
        (self.fields.id == id).then_some(self.fields.keys)
    }

    /// Returns its last seq.
    pub(crate) const fn last_seq(&self) -> Seq {
        self.fields.last_seq
    }

    /// Returns its entry in a list.
    pub(crate) fn meta(&self) -> SessionMeta {
        let SessionFields { id, created_at, updated_at, message_count, last_seq, .. } = self.fields;
        SessionMeta { id, created_at, updated_at, message_count, last_seq, labels: self.fields.labels.clone() }
    }

    /// The events to read, in order: first and last seq of each run.
    pub(crate) fn ranges(&self) -> Vec<(Seq, Seq)> {
        let single = |seq: &Seq| (*seq, *seq);
        let texts = self.fields.last_end.iter().filter_map(|end| end.text_seq);
        let open = self.fields.open_turn.iter().flat_map(|open| {
            let steered = open.waiting_texts().map(|text| text.seq);
            open.text_seq.into_iter().chain(open.partial_seq).chain(steered)
        });
        // The session's beginning holds its system prompt; its last event proves that the journal is as long.
        let mut wanted: Vec<(Seq, Seq)> = vec![(1, 1), (self.fields.last_seq, self.fields.last_seq)];
        wanted.extend(self.context.iter().map(|span| (span.from, span.to)));
        wanted.extend(
            self.reminders
                .iter()
                .chain(&self.pins)
                .chain(&self.queue)
                .chain(&self.edited)
                .chain(&self.summary)
                .chain(&self.client_tools)
                .chain(&self.tools_of_queue)
                .map(single),
        );
        wanted.extend(texts.chain(open).map(|seq| (seq, seq)));
        let answered = self.fields.open_turn.as_ref().filter(|open| open.is_answered).and(self.context.last());
        wanted.extend(answered.map(|span| (span.to, self.fields.last_seq)));
        wanted.sort_unstable();
        let mut runs: Vec<(Seq, Seq)> = Vec::new();
        for (from, to) in wanted {
            match runs.last_mut() {
                Some(run) if from <= run.1.saturating_add(GAP_EVENTS_MAX) => run.1 = run.1.max(to),
                _ => runs.push((from, to)),
            }
        }
        runs
    }

    /// Events that those in `records` refer to and that are not among them: prompts that had to wait.
    pub(crate) fn missing(records: &BTreeMap<Seq, Record>) -> Vec<Seq> {
        let queued = records.values().filter_map(|record| match &record.event {
            Event::TurnStarted(started) => started.queued,
            Event::SteeringEntered(entered) => Some(entered.steered),
            _ => None,
        });
        queued.filter(|seq| !records.contains_key(seq)).collect()
    }

    /// Restores the session with the bodies of these records.
    ///
    /// # Errors
    /// If a record contradicts the snapshot.
    pub(crate) fn restore(self, records: &BTreeMap<Seq, Record>) -> Result<Session, Unfounded> {
        let mut fields = self.fields;
        let find = |seq: Seq| records.get(&seq).ok_or(Unfounded(seq));
        let last = find(fields.last_seq)?;
        if (last.time, last.session_id) != (fields.updated_at, fields.id) {
            return Err(Unfounded(fields.last_seq));
        }
        let Event::SessionCreated(created) = &find(1)?.event else { return Err(Unfounded(1)) };
        fields.system_prompt.clone_from(&created.system_prompt);
        fields.context = context(&self.context, &self.masked, records)?.rebuilt_by(self.rebuilds);
        fields.context.mask(&self.masked);
        if let Some(seq) = self.summary {
            let Event::ContextRebuilt(rebuilt) = &find(seq)?.event else { return Err(Unfounded(seq)) };
            fields.context.summarise(seq, rebuilt.summary.as_ref().ok_or(Unfounded(seq))?);
        }
        fields.reminders = Arc::new(each(&self.reminders, records, reminder)?);
        fields.pins = Arc::new(each(&self.pins, records, pin)?);
        let mut queue: VecDeque<_> = each(&self.queue, records, queued)?.into();
        for seq in self.edited {
            let record = find(seq)?;
            let queued = queue.iter_mut().find(|queued| Some(queued.turn) == record.turn).ok_or(Unfounded(seq))?;
            let Event::TurnEdited(edited) = &record.event else { return Err(Unfounded(seq)) };
            queued.edited(seq, edited);
        }
        fields.client_tools = each(self.client_tools.as_slice(), records, client_tools)?.pop();
        fields.tools_of_queue = each(&self.tools_of_queue, records, client_tools)?;
        // What an import took away stays away.
        queue.iter_mut().filter(|queued| queued.seq < fields.imported_at).for_each(QueuedTurn::imported);
        fields.queue = Arc::new(queue);
        let open = fields.open_turn.take().map(|open| open_turn(open, &fields.context, records)).transpose()?;
        fields.open_turn = open;
        if let Some(end) = &mut fields.last_end {
            end.text = text(end.text_seq, records)?;
        }
        fields.count_keys();
        let last = fields.last_seq;
        let answered_at =
            fields.open_turn.as_ref().and_then(|_| fields.context.entries().last()).map(|entry| entry.seq);
        for (_, record) in answered_at.into_iter().flat_map(|answer| records.range(answer..=last.max(answer))) {
            fields.progress(record);
        }
        Ok(Session(fields))
    }

    /// Restores the session without anything that is in the journal, also if that leaves it incomplete: its counts are
    /// true.
    pub(crate) fn counted(self) -> Session {
        Session(self.fields)
    }

    /// Restores the session without its messages; `None` if a turn is open or queued, which only the journal has whole.
    pub(crate) fn outline(self) -> Option<Session> {
        let mut fields = self.fields;
        fields.count_keys();
        (fields.open_turn.is_none() && self.queue.is_empty()).then_some(Session(fields))
    }
}

impl SessionFields {
    /// A copy without what a snapshot reads from the journal.
    fn without_bodies(&self) -> Self {
        let mut fields = Self { keyed_bytes: 0, system_prompt: None, ..self.clone() };
        (fields.context, fields.queue) = (Context::default(), Arc::default());
        (fields.reminders, fields.pins) = (Arc::default(), Arc::default());
        (fields.client_tools, fields.tools_of_queue) = (None, Vec::new());
        if let Some(open) = &mut fields.open_turn {
            (open.calls, open.forms) = (Vec::new(), Vec::new());
            open.steered.iter_mut().for_each(|text| text.message = None);
            (open.text, open.partial) = (Arc::default(), None);
        }
        if let Some(end) = &mut fields.last_end {
            end.text = Arc::default();
        }
        fields
    }
}

fn spans(context: &Context) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for entry in context.entries() {
        let Some(left) = &entry.left else {
            add(&mut spans, entry.seq, entry.history_index, entry.turn);
            continue;
        };
        // The turn is read and dropped again, apart from the messages before it.
        let mut dropped = Vec::new();
        let first = left.messages.first().map_or(0, |(_, index)| *index);
        for (seq, index) in &left.messages {
            // Journal compaction may have changed the positions since.
            add(&mut dropped, *seq, (index + entry.history_index).saturating_sub(first), entry.turn);
        }
        if let Some(last) = dropped.last_mut() {
            last.is_dropped = true;
        }
        spans.append(&mut dropped);
    }
    spans
}

fn add(spans: &mut Vec<Span>, seq: Seq, index: u64, turn: TurnNumber) {
    match spans.last_mut() {
        Some(span) if span.past == index && !span.is_dropped => {
            (span.to, span.past, span.turn) = (seq, index + 1, turn)
        }
        _ => spans.push(Span { from: seq, to: seq, first: index, past: index + 1, turn, is_dropped: false }),
    }
}

/// The messages whose results are masked, or were when the rest of them left.
fn masked(context: &Context) -> Vec<Seq> {
    let of = |entry: &ContextEntry| match &entry.left {
        Some(left) => left.masked.clone(),
        None => entry.is_masked.then_some(entry.seq).into_iter().collect(),
    };
    context.entries().iter().flat_map(of).collect()
}

fn context(spans: &[Span], masked: &[Seq], records: &BTreeMap<Seq, Record>) -> Result<Context, Unfounded> {
    let mut context = Context::default();
    for span in spans {
        let (mut history, mut index) = (HistoryFold::default(), span.first);
        // Damaged bytes may name an end before the beginning, which would panic in a range.
        for (seq, record) in records.range(span.from..=span.to.max(span.from)) {
            let item = history.push(record);
            let prompt = match history.queued_at() {
                Some(queued) => history.queued_prompt(records.get(&queued).ok_or(Unfounded(queued))?),
                None => None,
            };
            let given = if let Event::HistoryGiven(given) = &record.event { Some(given.span()) } else { None };
            for item in item.into_iter().chain(prompt) {
                context.push(item.seq, given.or(item.turn).ok_or(Unfounded(*seq))?, index, item.message);
                index += 1;
            }
            if let (Event::TurnStarted(TurnStarted { continues: Some(interrupted), .. }), Some(turn)) =
                (&record.event, record.turn)
            {
                context.continue_turn(*interrupted, turn);
            }
        }
        if let Some(item) = history.cut_off() {
            context.push(item.seq, item.turn.ok_or(Unfounded(span.to))?, index, item.message);
            index += 1;
        }
        if index != span.past {
            return Err(Unfounded(span.to));
        }
        if let Some(last) = context.entries().last().map(|entry| entry.turn) {
            context.continue_turn(last, span.turn);
        }
        if span.is_dropped {
            context.mask(masked);
            context.drop_turn(span.turn);
        }
    }
    Ok(context)
}

/// Restores the open turn. The progress of its calls is read from the events since its last answer.
fn open_turn(mut open: OpenTurn, context: &Context, records: &BTreeMap<Seq, Record>) -> Result<OpenTurn, Unfounded> {
    let answer = open.is_answered.then(|| context.entries().last()).flatten();
    let calls = answer.map(|entry| proposed(&entry.message)).unwrap_or_default();
    let partial = open.partial_seq.map(|seq| match records.get(&seq).map(|record| &record.event) {
        Some(Event::PartialText(partial)) => Ok(partial.text.clone()),
        _ => Err(Unfounded(seq)),
    });
    for waits in open.steered.iter_mut().filter(|text| !text.has_entered) {
        match records.get(&waits.seq).map(|record| &record.event) {
            Some(Event::TurnSteered(steered)) => waits.message = Some(steered.message()),
            _ => return Err(Unfounded(waits.seq)),
        }
    }
    Ok(OpenTurn { calls, text: text(open.text_seq, records)?, partial: partial.transpose()?, ..open })
}

fn text(seq: Option<Seq>, records: &BTreeMap<Seq, Record>) -> Result<Arc<[Body]>, Unfounded> {
    let Some(seq) = seq else { return Ok(Arc::default()) };
    match records.get(&seq).map(|record| &record.event) {
        Some(Event::AssistantMessage(answer)) => Ok(answer.text()),
        _ => Err(Unfounded(seq)),
    }
}

/// Reads one item at each of these seqs.
fn each<T>(seqs: &[Seq], records: &BTreeMap<Seq, Record>, read: fn(&Record) -> Option<T>) -> Result<Vec<T>, Unfounded> {
    seqs.iter().map(|seq| records.get(seq).and_then(read).ok_or(Unfounded(*seq))).collect()
}

fn reminder(record: &Record) -> Option<Reminder> {
    let Event::ReminderSet(set) = &record.event else { return None };
    Some(Reminder { kind: set.kind.clone(), text: set.text.clone(), automatic: set.automatic, seq: record.seq })
}

fn pin(record: &Record) -> Option<Pin> {
    let Event::Pinned(pinned) = &record.event else { return None };
    Some(Pin { seq: record.seq, text: pinned.text.clone() })
}

fn client_tools(record: &Record) -> Option<Arc<ClientTools>> {
    let Event::ClientToolsChanged(ClientToolsChanged { hash, tools: Some(tools), .. }) = &record.event else {
        return None;
    };
    Some(Arc::new(ClientTools::new(record.seq, hash.clone(), tools.clone())))
}

fn queued(record: &Record) -> Option<QueuedTurn> {
    let Event::TurnQueued(queued) = &record.event else { return None };
    Some(QueuedTurn::of(record, queued))
}
