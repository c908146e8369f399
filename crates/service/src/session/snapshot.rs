//! A snapshot: a session's small fields, and the seqs of the events with its messages. Never a body.
//!
//! It is derived data. A store that loads one reads the events of [`Snapshot::ranges`] from the journal and passes them
//! to [`Snapshot::restore`], which refuses a snapshot that the journal contradicts.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{
    Session,
    apply::proposed,
    context::{Context, ContextEntry, Rebuilds},
    event::{CompactionCounters, Event, Key, Record, SessionMemory, TurnStarted},
    history::HistoryFold,
    message::Body,
    reminder::{Pin, Reminder},
    state::{Decided, Gaps, KeyUse, OpenCompaction},
    turn::{OpenTurn, QueuedTurn, TurnEnd},
    view::SessionMeta,
};
use crate::{
    clock::Timestamp,
    compaction::CompactionConfig,
    ids::{Seq, SessionId, TurnNumber},
    model::Usage,
    options::Budgets,
};

/// Unwanted events that are read along, so that fewer reads are needed.
const GAP_EVENTS_MAX: Seq = 16;

/// A session without its bodies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    id: SessionId,
    created_at: Timestamp,
    updated_at: Timestamp,
    title: Option<String>,
    first_line: Option<String>,
    labels: BTreeMap<String, String>,
    is_archived: bool,
    forked_from: Option<SessionId>,
    model: String,
    tools: Option<Vec<String>>,
    #[serde(default)]
    workspace: Option<String>,
    #[serde(default)]
    imported_at: Seq,
    #[serde(default)]
    labelled_at: Seq,
    #[serde(default)]
    memory: SessionMemory,
    budgets: Budgets,
    compaction: Option<CompactionConfig>,
    created_key: Option<Key>,
    #[serde(default)]
    counters: CompactionCounters,
    #[serde(default)]
    open_compaction: Option<OpenCompaction>,
    /// The `context_rebuilt` that holds the summary which the live context begins with.
    #[serde(default)]
    summary: Option<Seq>,
    /// The live context, in order.
    context: Vec<Span>,
    /// The messages in it whose results are masked.
    #[serde(default)]
    masked: Vec<Seq>,
    #[serde(default)]
    rebuilds: Rebuilds,
    reminders: Vec<Seq>,
    pins: Vec<Seq>,
    /// The `turn_queued` of each turn that waits.
    queue: Vec<Seq>,
    open_turn: Option<OpenTurn>,
    last_end: Option<TurnEnd>,
    keys: BTreeMap<String, KeyUse>,
    keys_by_age: VecDeque<(Timestamp, String)>,
    decisions: BTreeMap<String, Decided>,
    #[serde(default)]
    allowed_rules: Vec<String>,
    #[serde(default)]
    found_tools: Vec<String>,
    usage: Usage,
    message_count: u64,
    next_turn: TurnNumber,
    #[serde(default)]
    pruned_to: Seq,
    #[serde(default)]
    gaps: Gaps,
    last_seq: Seq,
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
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_dropped: bool,
}

/// Contradiction between a snapshot and the journal, at this seq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unfounded(pub(crate) Seq);

impl Snapshot {
    /// Takes a session's small fields.
    pub(crate) fn of(session: &Session) -> Self {
        let open = |open: &OpenTurn| OpenTurn {
            calls: Vec::new(),
            forms: Vec::new(),
            text: Arc::default(),
            partial: None,
            ..open.clone()
        };
        let end = |end: &TurnEnd| TurnEnd { text: Arc::default(), ..end.clone() };
        Self {
            id: session.id,
            created_at: session.created_at,
            updated_at: session.updated_at,
            title: session.title.clone(),
            first_line: session.first_line.clone(),
            labels: session.labels.clone(),
            is_archived: session.is_archived,
            forked_from: session.forked_from,
            model: session.model.clone(),
            tools: session.tools.as_deref().map(<[String]>::to_vec),
            workspace: session.workspace.clone(),
            imported_at: session.imported_at,
            labelled_at: session.labelled_at,
            memory: session.memory,
            budgets: session.budgets,
            compaction: session.compaction,
            created_key: session.created_key.clone(),
            counters: session.counters,
            open_compaction: session.open_compaction,
            summary: session.context.summary().map(|summary| summary.seq),
            context: spans(&session.context),
            masked: masked(&session.context),
            rebuilds: session.context.rebuilds(),
            reminders: session.reminders.iter().map(|reminder| reminder.seq).collect(),
            pins: session.pins.iter().map(|pin| pin.seq).collect(),
            queue: session.queue.iter().map(|queued| queued.seq).collect(),
            open_turn: session.open_turn.as_ref().map(open),
            last_end: session.last_end.as_ref().map(end),
            keys: session.keys.iter().map(|(name, used)| (name.clone(), used.clone())).collect(),
            keys_by_age: session.keys_by_age.clone(),
            decisions: session.decisions.iter().map(|(call_id, decided)| (call_id.clone(), decided.clone())).collect(),
            allowed_rules: session.allowed_rules.to_vec(),
            found_tools: session.found_tools.to_vec(),
            usage: session.usage,
            message_count: session.message_count,
            next_turn: session.next_turn,
            pruned_to: session.pruned_to,
            gaps: session.gaps,
            last_seq: session.last_seq,
        }
    }

    /// Returns the keys that it knows, if it is of this session.
    pub(crate) fn keys(self, id: SessionId) -> Option<BTreeMap<String, KeyUse>> {
        (self.id == id).then_some(self.keys)
    }

    /// Returns its last seq.
    pub(crate) const fn last_seq(&self) -> Seq {
        self.last_seq
    }

    /// Returns its entry in a list.
    pub(crate) fn meta(&self) -> SessionMeta {
        SessionMeta {
            id: self.id,
            created_at: self.created_at,
            updated_at: self.updated_at,
            message_count: self.message_count,
            last_seq: self.last_seq,
            labels: self.labels.clone(),
        }
    }

    /// The events to read, in order: first and last seq of each run.
    pub(crate) fn ranges(&self) -> Vec<(Seq, Seq)> {
        let single = |seq: &Seq| (*seq, *seq);
        let texts = self.last_end.iter().filter_map(|end| end.text_seq);
        let open = self.open_turn.iter().flat_map(|open| open.text_seq.into_iter().chain(open.partial_seq));
        // The session's beginning holds its system prompt; its last event proves that the journal is as long.
        let mut wanted: Vec<(Seq, Seq)> = vec![(1, 1), (self.last_seq, self.last_seq)];
        wanted.extend(self.context.iter().map(|span| (span.from, span.to)));
        wanted.extend(self.reminders.iter().chain(&self.pins).chain(&self.queue).chain(&self.summary).map(single));
        wanted.extend(texts.chain(open).map(|seq| (seq, seq)));
        let answered = self.open_turn.as_ref().filter(|open| open.is_answered).and(self.context.last());
        wanted.extend(answered.map(|span| (span.to, self.last_seq)));
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

    /// Events that those in `records` refer to and that are not among them: prompts of turns that had to wait.
    pub(crate) fn missing(records: &BTreeMap<Seq, Record>) -> Vec<Seq> {
        let queued = records.values().filter_map(|record| match &record.event {
            Event::TurnStarted(started) => started.queued,
            _ => None,
        });
        queued.filter(|seq| !records.contains_key(seq)).collect()
    }

    /// Restores the session with the bodies of these records.
    ///
    /// # Errors
    /// If a record contradicts the snapshot.
    pub(crate) fn restore(mut self, records: &BTreeMap<Seq, Record>) -> Result<Session, Unfounded> {
        let find = |seq: Seq| records.get(&seq).ok_or(Unfounded(seq));
        if (find(self.last_seq)?.time, find(self.last_seq)?.session_id) != (self.updated_at, self.id) {
            return Err(Unfounded(self.last_seq));
        }
        let Event::SessionCreated(created) = &find(1)?.event else { return Err(Unfounded(1)) };
        let mut context = context(&self.context, &self.masked, records)?.rebuilt_by(std::mem::take(&mut self.rebuilds));
        context.mask(&self.masked);
        if let Some(seq) = self.summary {
            let Event::ContextRebuilt(rebuilt) = &find(seq)?.event else { return Err(Unfounded(seq)) };
            context.summarise(seq, rebuilt.summary.as_ref().ok_or(Unfounded(seq))?);
        }
        let open_turn = self.open_turn.take().map(|open| open_turn(open, &context, records)).transpose()?;
        let answered_at = open_turn.as_ref().and_then(|_| context.entries().last()).map(|entry| entry.seq);
        let mut session = Session {
            system_prompt: created.system_prompt.clone(),
            context,
            reminders: Arc::new(each(&self.reminders, records, reminder)?),
            pins: Arc::new(each(&self.pins, records, pin)?),
            queue: Arc::new(each(&self.queue, records, queued)?.into()),
            open_turn,
            ..self.small_fields()
        };
        // What an import took away stays away.
        let imported_at = session.imported_at;
        if session.queue.iter().any(|queued| queued.seq < imported_at) {
            let brought = Arc::make_mut(&mut session.queue).iter_mut().filter(|queued| queued.seq < imported_at);
            brought.for_each(QueuedTurn::imported);
        }
        if let Some(end) = &mut session.last_end {
            end.text = text(end.text_seq, records)?;
        }
        let last = session.last_seq;
        for (_, record) in answered_at.into_iter().flat_map(|answer| records.range(answer..=last.max(answer))) {
            session.progress(record);
        }
        Ok(session)
    }

    /// Restores the session without its messages; `None` if a turn is open or queued, which only the journal has whole.
    pub(crate) fn outline(self) -> Option<Session> {
        (self.open_turn.is_none() && self.queue.is_empty()).then(|| self.small_fields())
    }

    fn small_fields(self) -> Session {
        let keys: HashMap<_, _> = self.keys.into_iter().collect();
        Session {
            id: self.id,
            created_at: self.created_at,
            updated_at: self.updated_at,
            title: self.title,
            first_line: self.first_line,
            labels: self.labels,
            is_archived: self.is_archived,
            forked_from: self.forked_from,
            model: self.model,
            system_prompt: None,
            tools: self.tools.map(Arc::from),
            workspace: self.workspace,
            imported_at: self.imported_at,
            labelled_at: self.labelled_at,
            memory: self.memory,
            budgets: self.budgets,
            compaction: self.compaction,
            created_key: self.created_key,
            counters: self.counters,
            open_compaction: self.open_compaction,
            context: Context::default(),
            reminders: Arc::default(),
            pins: Arc::default(),
            queue: Arc::default(),
            open_turn: None,
            last_end: self.last_end,
            keyed_bytes: keys.values().map(KeyUse::bytes).sum(),
            keys,
            keys_by_age: self.keys_by_age,
            decisions: self.decisions.into_iter().collect(),
            allowed_rules: Arc::new(self.allowed_rules),
            found_tools: Arc::new(self.found_tools),
            usage: self.usage,
            message_count: self.message_count,
            next_turn: self.next_turn,
            pruned_to: self.pruned_to,
            gaps: self.gaps,
            last_seq: self.last_seq,
        }
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
            let mut item = history.push(record);
            if let Some(queued) = history.queued_at() {
                item = history.queued_prompt(records.get(&queued).ok_or(Unfounded(queued))?);
            }
            if let Some(item) = item {
                context.push(item.seq, item.turn.ok_or(Unfounded(*seq))?, index, item.message);
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
fn open_turn(open: OpenTurn, context: &Context, records: &BTreeMap<Seq, Record>) -> Result<OpenTurn, Unfounded> {
    let answer = open.is_answered.then(|| context.entries().last()).flatten();
    let calls = answer.map(|entry| proposed(&entry.message)).unwrap_or_default();
    let partial = open.partial_seq.map(|seq| match records.get(&seq).map(|record| &record.event) {
        Some(Event::PartialText(partial)) => Ok(partial.text.clone()),
        _ => Err(Unfounded(seq)),
    });
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

fn queued(record: &Record) -> Option<QueuedTurn> {
    let Event::TurnQueued(queued) = &record.event else { return None };
    Some(QueuedTurn::of(record, queued))
}
