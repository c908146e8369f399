//! Lives of sessions, made by folding events.

use crate::{
    Session,
    compaction::rebuilt,
    ids::{Seq, TurnNumber},
    model::{StopReason, Usage},
    options::Budgets,
    session::{
        event::{
            AssistantMessage, CompactionStarted, CompactionUndone, ContextRebuilt, Event, Pinned, Record, ReminderSet,
            SessionCreated, ToolFinished, ToolOutcome, TurnCompleted, TurnInterrupted, TurnStarted, TurnTotals,
        },
        message::{Block, Body, Message, RawJson, ToolCall},
        reminder::SystemReminderType,
        tests::{created, fold, record, walk::Walk},
    },
};

/// A call in a script of a life: the tool, whether it fails, and its output.
pub(crate) type Called<'a> = (&'a str, bool, String);

/// A session that is made event by event.
#[derive(Clone)]
pub(crate) struct Life {
    pub(crate) session: Session,
    records: Vec<Record>,
    open: Option<TurnNumber>,
    step: u32,
}

impl Life {
    pub(crate) fn new(system_prompt: Option<&str>) -> Self {
        let Event::SessionCreated(created) = created() else { panic!("a session is created") };
        let created = SessionCreated { system_prompt: system_prompt.map(Body::from), ..created };
        let first = record(1, None, Event::SessionCreated(created));
        let session = Session::begin(&first).unwrap();
        Self { session, records: vec![first], open: None, step: 0 }
    }

    /// Applies the next event.
    pub(crate) fn add(&mut self, turn: Option<TurnNumber>, event: Event) -> Seq {
        let seq = self.session.last_seq() + 1;
        let record = Record { session_id: self.session.id(), ..record(seq, turn, event) };
        self.session.apply(&record).unwrap();
        self.records.push(record);
        seq
    }

    /// Kinds of its events.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = &str> {
        self.records.iter().map(|record| record.event.type_name())
    }

    /// The session of another process that reads the same events.
    pub(crate) fn replayed(&self) -> Session {
        fold(&self.records)
    }

    pub(crate) fn start(&mut self, prompt: impl Into<Body>) {
        let (turn, prompt) = (self.session.next_turn(), Some(prompt.into()));
        let (model, budgets) = ("scripted".to_owned(), Budgets::default());
        let (queued, continues, compaction, key) = (None, None, None, None);
        let started = TurnStarted { prompt, model, budgets, queued, continues, compaction, key };
        self.add(Some(turn), Event::TurnStarted(started));
        (self.open, self.step) = (Some(turn), 0);
    }

    /// The model says something and calls these tools, which all come back.
    pub(crate) fn step(&mut self, text: &str, calls: &[Called<'_>]) {
        let id = |nth: usize| format!("t{}s{}c{nth}", self.open.unwrap(), self.step);
        let blocks = calls.iter().enumerate().map(|(nth, (name, ..))| {
            let arguments = RawJson::parse(&format!("{{\"path\":\"/srv/{nth}\"}}")).unwrap();
            Block::ToolCall(ToolCall { call_id: id(nth), name: (*name).to_owned(), arguments, opaque: None })
        });
        let blocks = [Block::Text { text: text.into() }].into_iter().chain(blocks).collect();
        let finished: Vec<Event> = calls
            .iter()
            .enumerate()
            .map(|(nth, (name, fails, output))| {
                Event::ToolFinished(ToolFinished {
                    call_id: id(nth),
                    name: (*name).to_owned(),
                    outcome: if *fails { ToolOutcome::Failed } else { ToolOutcome::Succeeded },
                    output: output.as_str().into(),
                    error: None,
                    duration_ms: 1,
                })
            })
            .collect();
        let stop_reason = if calls.is_empty() { StopReason::EndTurn } else { StopReason::ToolUse };
        let (step, model, usage) = (self.step, "scripted".to_owned(), Usage::default());
        let answer = AssistantMessage { step, model, blocks, stop_reason, usage };
        self.add(self.open, Event::AssistantMessage(answer));
        for event in finished {
            self.add(self.open, event);
        }
        self.step += 1;
    }

    pub(crate) fn answer(&mut self, text: &str) {
        self.step(text, &[]);
        let (stop_reason, totals) = (StopReason::EndTurn, TurnTotals::default());
        self.add(self.open, Event::TurnCompleted(TurnCompleted { stop_reason, totals }));
        self.open = None;
    }

    pub(crate) fn interrupt(&mut self) {
        let (reason, totals) = ("requested".to_owned(), TurnTotals::default());
        self.add(self.open, Event::TurnInterrupted(TurnInterrupted { reason, totals }));
        self.open = None;
    }

    pub(crate) fn turn(&mut self, prompt: &str, answer: &str) {
        self.start(prompt);
        self.answer(answer);
    }

    pub(crate) fn pin(&mut self, text: &str) {
        self.add(None, Event::Pinned(Pinned { text: text.to_owned() }));
    }

    pub(crate) fn remind(&mut self, name: &str, text: &str) {
        let kind = SystemReminderType::Custom(name.to_owned());
        self.add(None, Event::ReminderSet(ReminderSet { kind, text: text.to_owned() }));
    }

    /// Puts a rebuilt context in place of the live one.
    pub(crate) fn put(&mut self, rebuilt: rebuilt::Rebuilt) {
        let started = CompactionStarted { input_tokens: 0, estimated_history_tokens: 0, message_count: 0 };
        let seq = self.add(self.open, Event::CompactionStarted(started));
        self.add(self.open, Event::ContextRebuilt(ContextRebuilt { compaction: seq + 2, ..rebuilt.event }));
        self.add(self.open, Event::CompactionCompleted(rebuilt.completed));
    }

    /// Undoes the latest compaction that can be.
    pub(crate) fn undo(&mut self) {
        let Some(compaction) = self.session.undoable().next_back() else { return };
        self.add(None, Event::CompactionUndone(CompactionUndone { compaction }));
    }

    /// Messages of the live context.
    pub(crate) fn said(&self) -> Vec<Message> {
        self.session.context().entries().iter().map(|entry| Message::clone(&entry.message)).collect()
    }

    /// A life as these choices make it, in which no call waits for its result.
    pub(crate) fn random(choices: &[u16]) -> Self {
        let mut walk = Walk::new(choices);
        walk.settle();
        if let Event::SessionCreated(created) = &mut walk.records[0].event {
            created.system_prompt =
                choices.first().filter(|choice| **choice % 3 > 0).map(|_| "You are careful.".into());
        }
        let (open, step) = walk.open.map_or((None, 0), |open| (Some(open.turn), open.step));
        Self { session: fold(&walk.records), records: walk.records, open, step }
    }
}
