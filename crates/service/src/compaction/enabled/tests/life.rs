//! Lives of sessions, made by folding events: turns, steps with parallel calls, reminders, pins, interruptions and
//! former compactions.

use crate::{
    Session,
    clock::SeededIds,
    compaction::{CompactionConfig, DefaultCompactor, rebuilt},
    ids::{Seq, TurnNumber},
    model::{StopReason, Usage},
    options::Budgets,
    service::CompactionMode,
    session::{
        event::{
            AssistantMessage, CompactionStarted, ContextRebuilt, Event, Pinned, Record, ReminderSet, SessionCreated,
            ToolFinished, ToolOutcome, TurnCompleted, TurnInterrupted, TurnStarted, TurnTotals,
        },
        message::{BlobRef, Block, Body, Message, RawJson, ToolCall},
        reminder::SystemReminderType,
        tests::session_id,
    },
};

/// A call in a script of a life: the tool, whether it fails, and its output.
pub(crate) type Called<'a> = (&'a str, bool, String);

/// A session that is made event by event.
#[derive(Clone)]
pub(crate) struct Life {
    pub(crate) session: Session,
    open: Option<TurnNumber>,
    step: u32,
}

impl Life {
    pub(crate) fn new(system_prompt: Option<&str>) -> Self {
        let created = SessionCreated {
            model: "scripted".to_owned(),
            system_prompt: system_prompt.map(Body::from),
            labels: Default::default(),
            tools: None,
            budgets: Budgets::default(),
            compaction: None,
            key: None,
        };
        let session = Session::begin(&record(1, None, Event::SessionCreated(created))).unwrap();
        Self { session, open: None, step: 0 }
    }

    /// Applies the next event.
    pub(crate) fn add(&mut self, turn: Option<TurnNumber>, event: Event) -> Seq {
        let seq = self.session.last_seq() + 1;
        self.session.apply(&record(seq, turn, event)).unwrap();
        seq
    }

    pub(crate) fn start(&mut self, prompt: impl Into<Body>) {
        self.start_turn(Some(prompt.into()), None);
    }

    /// A turn goes on with the one that was interrupted last.
    pub(crate) fn go_on(&mut self) {
        self.start_turn(None, Some(self.session.next_turn() - 1));
    }

    fn start_turn(&mut self, prompt: Option<Body>, continues: Option<TurnNumber>) {
        let turn = self.session.next_turn();
        let (model, budgets) = ("scripted".to_owned(), Budgets::default());
        let started = TurnStarted { prompt, model, budgets, queued: None, continues, compaction: None, key: None };
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

    /// What was said, in the live context.
    pub(crate) fn said(&self) -> Vec<Message> {
        self.session.context().entries().iter().map(|entry| Message::clone(&entry.message)).collect()
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
            (2 | 3, _) => self.compact(detail),
            (4, true) => self.interrupt(),
            (5..=8, true) => self.answer(&text(detail)),
            (9, true) => (0..detail % 12).for_each(|nth| self.call(detail + nth)),
            (_, true) => self.call(detail),
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

fn record(seq: Seq, turn: Option<TurnNumber>, event: Event) -> Record {
    Record { session_id: session_id(), seq, turn, time: SeededIds::wall_time(), event }
}

/// Texts of many lengths; some are large, and some need escapes.
fn text(detail: usize) -> String {
    let word = ["survey ", "é\"\n", "/srv/app/main.rs:42 ", "x"][detail % 4];
    word.repeat([1, 2, 5, 12, 30][detail / 4 % 5])
}
