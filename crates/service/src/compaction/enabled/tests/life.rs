//! Lives of sessions, made by folding events: turns that wait, run, fail and are interrupted, steps with parallel calls,
//! reminders, pins, former compactions and what was undone of them.

use meerkat_errors::{ErrorBody, ErrorCode};

use crate::{
    Session,
    compaction::{CompactionConfig, DefaultCompactor, rebuilt},
    ids::{Seq, TurnNumber},
    model::{StopReason, Usage},
    options::{Budgets, ModelOptions, Policy},
    service::CompactionMode,
    session::{
        event::{
            AssistantMessage, CompactionStarted, CompactionUndone, ContextRebuilt, Event, Pinned, Record, ReminderSet,
            SessionCreated, SteeringEntered, ToolFinished, ToolOutcome, TurnCompleted, TurnFailed, TurnInterrupted,
            TurnQueued, TurnStarted, TurnSteered, TurnTotals,
        },
        message::{BlobRef, Block, Body, Message, RawJson, ToolCall},
        reminder::SystemReminderType,
        tests::{created, fold, record},
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
        let seq = self.session.last_seq + 1;
        let record = record(seq, turn, event);
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
        self.start_turn(Some(prompt.into()), None, None);
    }

    /// A turn goes on with the one that was interrupted last.
    pub(crate) fn go_on(&mut self) {
        self.start_turn(None, Some(self.session.last_end().unwrap().turn), None);
    }

    /// A turn waits until the next one starts.
    fn queue(&mut self, prompt: &str) {
        let (prompt, budgets, policy) = (prompt.into(), Budgets::default(), Policy::Queue);
        let queued = TurnQueued {
            prompt,
            blocks: Vec::new(),
            model: None,
            budgets,
            options: ModelOptions::default(),
            output: None,
            compaction: None,
            attended: false,
            search_path: None,
            client_tools: None,
            allow: Vec::new(),
            access: None,
            policy,
            key: None,
        };
        self.add(Some(self.session.next_turn), Event::TurnQueued(queued));
    }

    /// The running turn gets another text.
    fn steer(&mut self, text: &str) {
        let (prompt, started) = (text.into(), self.session.open_turn().unwrap().seq);
        let steered =
            self.add(self.open, Event::TurnSteered(TurnSteered { prompt, blocks: Vec::new(), started, key: None }));
        self.add(self.open, Event::SteeringEntered(SteeringEntered { steered }));
    }

    fn start_turn(&mut self, prompt: Option<Body>, continues: Option<TurnNumber>, waiting: Option<(TurnNumber, Seq)>) {
        let (turn, queued) = waiting.map_or((self.session.next_turn, None), |(turn, seq)| (turn, Some(seq)));
        let (model, budgets) = ("scripted".to_owned(), Budgets::default());
        let started = TurnStarted { prompt, model, budgets, queued, continues, ..TurnStarted::default() };
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
                let outcome = if *fails { ToolOutcome::Failed } else { ToolOutcome::Succeeded };
                Event::ToolFinished(ToolFinished::new(id(nth), (*name).to_owned(), outcome, output.as_str().into()))
            })
            .collect();
        let stop_reason = if calls.is_empty() { StopReason::EndTurn } else { StopReason::ToolUse };
        let (step, model, usage) = (self.step, "scripted".to_owned(), Usage::default());
        let answer =
            AssistantMessage { step, model, blocks, stop_reason, usage, cost: None, tools: None, context: None };
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

    fn fail(&mut self, code: ErrorCode) {
        let (error, totals) = (ErrorBody::new(code), TurnTotals::default());
        self.add(self.open, Event::TurnFailed(TurnFailed { error, totals }));
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
        self.add(None, Event::ReminderSet(ReminderSet { kind, text: text.to_owned(), automatic: false }));
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
        self.session.context.entries().iter().map(|entry| Message::clone(&entry.message)).collect()
    }

    /// A life as these choices make it.
    pub(crate) fn random(choices: &[u16]) -> Self {
        let mut life = Self::new(choices.first().is_some_and(|choice| choice % 3 > 0).then_some("You are careful."));
        for &choice in choices {
            life.choose(choice % 32, usize::from(choice / 32));
        }
        life
    }

    fn choose(&mut self, what: u16, detail: usize) {
        match (what, self.open.is_some()) {
            (0, _) => self.pin(&text(detail)),
            (1, _) => self.remind(&format!("r{}", detail % 3), &text(detail)),
            (2 | 3 | 24, _) => self.compact(detail),
            (4, true) => self.interrupt(),
            (16, true) => self.fail([ErrorCode::ContextOverflow, ErrorCode::ModelTimeout][detail % 2]),
            (17, _) => self.queue(&text(detail)),
            (18 | 19 | 25 | 26, false) => self.undo(),
            (5..=8 | 20..=23, true) => self.answer(&text(detail)),
            (9, true) => (0..detail % 12).for_each(|nth| self.call(detail + nth)),
            (27 | 28, true) => self.steer(&text(detail)),
            (_, true) => self.call(detail),
            (_, false) if !self.session.queue.is_empty() => {
                let waiting = self.session.queue.front().map(|queued| (queued.turn, queued.seq));
                self.start_turn(None, None, waiting);
            }
            (10, false) => self.start(Body::Blob(BlobRef {
                blob: "b10b".to_owned(),
                bytes: 3000,
                head: text(detail),
                tail: text(detail),
            })),
            (11..=14, false) if self.is_interrupted() => self.go_on(),
            (15, false) => self.start("go on"),
            (_, false) => self.start(text(detail)),
        }
    }

    fn is_interrupted(&self) -> bool {
        self.session.last_end().is_some_and(|end| end.status == crate::service::TurnStatus::Interrupted)
    }

    fn call(&mut self, detail: usize) {
        let names = ["read", "write", "bash"];
        let call = |nth: usize| (names[(detail + nth) % 3], (detail + nth).is_multiple_of(5), text(detail / 3 + nth));
        let calls: Vec<Called<'_>> = (0..1 + detail % 3).map(call).collect();
        self.step(&text(detail / 7), &calls);
    }

    /// Earlier compactions are as the default compactor made them, or masks.
    fn compact(&mut self, detail: usize) {
        let config = CompactionConfig { recent_turn_budget: 1 + detail % 3, ..CompactionConfig::default() };
        let compactor = DefaultCompactor::new(config, 0);
        let rebuilt = match detail % 4 {
            0 => rebuilt::mask(&self.session),
            _ => rebuilt::rebuild(&self.session, &compactor, &text(detail), CompactionMode::Summary).ok(),
        };
        if let Some(rebuilt) = rebuilt {
            self.put(rebuilt);
        }
    }
}

/// Texts of many lengths; some are large, and some need escapes.
fn text(detail: usize) -> String {
    let word = ["survey ", "é\"\n", "/srv/app/main.rs:42 ", "x"][detail % 4];
    word.repeat([1, 2, 5, 12, 30][detail / 4 % 5])
}
