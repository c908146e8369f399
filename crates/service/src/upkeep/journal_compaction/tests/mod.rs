//! Journal compaction keeps what it must: the specification's matrix line by line, and any life of any session.

mod lives;
mod matrix;

use super::plan::{Bounds, Brief, Plan, plan};
use crate::{
    clock::Timestamp,
    cost::Cost,
    ids::{Seq, TurnNumber},
    model::{StopReason, Usage},
    options::{Amount, Budget, Budgets},
    service::{CallOutcome, CompactionPolicy},
    session::{
        Session,
        event::{
            ApprovalDecided, ApprovalRequested, AssistantMessage, BudgetWarning, CallAnswered, CallRequested,
            CompactionCompleted, CompactionStarted, ContextRebuilt, Decision, Event, Key, Record, ReminderCleared,
            ReminderSet, Scope, ToolFinished, ToolOutcome, ToolStarted, TurnCompleted, TurnFailed, TurnStarted,
            TurnTotals,
        },
        message::{Block, RawJson, ToolCall},
        reminder::SystemReminderType,
        tests::{created, record, walk::receipt},
    },
    tool::Effect,
};

pub(super) const HOUR_MS: u64 = 3_600_000;

/// The policy that keeps the least.
pub(super) const STRICT: CompactionPolicy =
    CompactionPolicy { min_record_age_ms: 0, keep_last_replies: Some(0), keep_answered_request_ttl_ms: 0 };

/// What a journal folds to.
pub(super) fn fold<'a>(records: impl IntoIterator<Item = &'a Record>) -> Session {
    let mut records = records.into_iter();
    let mut session = Session::begin(records.next().unwrap()).unwrap();
    records.for_each(|record| session.apply(record).unwrap());
    session
}

/// Plans for the records up to `safe_up_to`, `age_ms` after the last one was made.
pub(super) fn planned(
    records: &[Record],
    safe_up_to: Seq,
    age_ms: u64,
    policy: CompactionPolicy,
    drops_history: bool,
) -> Plan {
    let session = fold(records);
    let briefs: Vec<Brief> = records.iter().filter(|it| it.seq <= safe_up_to).map(|it| Brief::of(it, 100)).collect();
    let now = Timestamp::from_millis(session.updated_at.as_millis() + i64::try_from(age_ms).unwrap());
    let keep_last_replies = policy.keep_last_replies.filter(|_| drops_history);
    let policy = CompactionPolicy { keep_last_replies, ..policy };
    plan(&briefs, &session, &Bounds { policy, now, parts: &[(1, Seq::MAX)], is_sparing: false })
}

/// A life that is written down event by event, a second each.
pub(super) struct Life {
    pub(super) records: Vec<Record>,
    turn: TurnNumber,
}

impl Life {
    pub(super) fn new() -> Self {
        Self { records: vec![record(1, None, created())], turn: 0 }
    }

    pub(super) fn add(&mut self, turn: Option<TurnNumber>, event: Event) -> Seq {
        let seq = self.records.len() as Seq + 1;
        let mut record = record(seq, turn, event);
        record.time = Timestamp::from_millis(record.time.as_millis() + i64::try_from(seq).unwrap() * 1000);
        self.records.push(record);
        seq
    }

    pub(super) fn remind(&mut self, kind: SystemReminderType, text: &str) -> Seq {
        self.add(None, Event::ReminderSet(ReminderSet { kind, text: text.to_owned(), automatic: false }))
    }

    pub(super) fn clear(&mut self, kind: SystemReminderType) -> Seq {
        self.add(None, Event::ReminderCleared(ReminderCleared { kind }))
    }

    pub(super) fn start(&mut self, key: Option<&str>) -> Seq {
        let key = key.map(|key| Key { key: key.to_owned(), request: "r".to_owned() });
        let (prompt, model, budgets) = (Some("Go.".into()), "scripted".to_owned(), Budgets::default());
        let started = TurnStarted { prompt, model, budgets, key, ..TurnStarted::default() };
        self.add(Some(self.turn), Event::TurnStarted(started))
    }

    /// An answer with calls by these names.
    pub(super) fn answer(&mut self, text: &str, calls: &[&str]) -> Seq {
        let call = |call_id: &&str| {
            let (call_id, name) = ((*call_id).to_owned(), "tool".to_owned());
            Block::ToolCall(ToolCall { call_id, name, arguments: RawJson::empty_object(), opaque: None })
        };
        let blocks = std::iter::once(Block::Text { text: text.into() }).chain(calls.iter().map(call)).collect();
        let usage = Usage { input_tokens: 7, output_tokens: 3, cached_tokens: 0, ..Usage::default() };
        let (step, model, stop_reason) = (0, "scripted".to_owned(), StopReason::EndTurn);
        let (cost, tools, context) = (Some(Cost::from_micros(50)), None, None);
        let answer = AssistantMessage { step, model, blocks, stop_reason, usage, cost, tools, context };
        self.add(Some(self.turn), Event::AssistantMessage(answer))
    }

    pub(super) fn tool_starts(&mut self, call_id: &str) -> Seq {
        let (call_id, name) = (call_id.to_owned(), "tool".to_owned());
        self.add(
            Some(self.turn),
            Event::ToolStarted(ToolStarted { call_id, name, effect: Effect::Once, files: Vec::new() }),
        )
    }

    pub(super) fn tool_ends(&mut self, call_id: &str) -> Seq {
        let (call_id, name, outcome) = (call_id.to_owned(), "tool".to_owned(), ToolOutcome::Succeeded);
        let finished = ToolFinished::new(call_id, name, outcome, "out".into());
        self.add(Some(self.turn), Event::ToolFinished(finished))
    }

    pub(super) fn asks(&mut self, call_id: &str) -> Seq {
        let (call_id, name) = (call_id.to_owned(), "tool".to_owned());
        self.add(
            Some(self.turn),
            Event::ApprovalRequested(ApprovalRequested {
                call_id,
                name,
                arguments: "{}".into(),
                preview: None,
                rule: None,
                form: None,
            }),
        )
    }

    /// The caller is asked to run a call, and answers it.
    pub(super) fn is_answered(&mut self, call_id: &str) -> [Seq; 2] {
        let (call_id, name, arguments) = (call_id.to_owned(), "tool".to_owned(), RawJson::empty_object());
        let (effect, deadline) = (Effect::Once, Timestamp::from_millis(0));
        let asked = CallRequested { call_id: call_id.clone(), name, arguments, effect, deadline };
        let (outcome, answer_hash) = (CallOutcome::Succeeded, "h".to_owned());
        let answered = CallAnswered { call_id, outcome, answer_hash, started: 2 };
        [Event::CallRequested(asked), Event::CallAnswered(answered)].map(|event| self.add(Some(self.turn), event))
    }

    pub(super) fn is_approved(&mut self, call_id: &str) -> Seq {
        let (call_id, decision) = (call_id.to_owned(), Decision::Approve);
        self.add(
            Some(self.turn),
            Event::ApprovalDecided(ApprovalDecided {
                call_id,
                decision,
                scope: Scope::Once,
                reason: None,
                answer: None,
            }),
        )
    }

    pub(super) fn warns(&mut self, budget: Budget) -> Seq {
        self.add(
            Some(self.turn),
            Event::BudgetWarning(BudgetWarning { budget, used: Amount::Number(8), limit: Amount::Number(10) }),
        )
    }

    pub(super) fn ends(&mut self) -> Seq {
        let completed = TurnCompleted { stop_reason: StopReason::EndTurn, totals: TurnTotals::default() };
        self.turn += 1;
        self.add(Some(self.turn - 1), Event::TurnCompleted(completed))
    }

    /// All that was said leaves the live context, for good: no more than three compactions can be undone.
    pub(super) fn forgets(&mut self) {
        for _ in 0..4 {
            let started = CompactionStarted { input_tokens: 0, estimated_history_tokens: 0, message_count: 0 };
            self.add(None, Event::CompactionStarted(started));
            let compaction = self.records.len() as Seq + 2;
            let (summary, retained, masked) = (Some("So far.".into()), Vec::new(), Vec::new());
            let receipt = receipt(compaction);
            self.add(None, Event::ContextRebuilt(ContextRebuilt { compaction, summary, retained, masked, receipt }));
            let completed = CompactionCompleted { summary_tokens: 3, messages_before: 2, messages_after: 1 };
            self.add(None, Event::CompactionCompleted(completed));
        }
    }

    /// The turn did not fit: what was said in it leaves the live context.
    pub(super) fn overflows(&mut self) -> Seq {
        let error = meerkat_errors::ErrorBody::new(meerkat_errors::ErrorCode::ContextOverflow);
        self.turn += 1;
        self.add(Some(self.turn - 1), Event::TurnFailed(TurnFailed { error, totals: TurnTotals::default() }))
    }
}
