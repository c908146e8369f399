//! The cost of a session is the sum over its model calls; one that is unknown makes it unknown.

use super::{created, record, session_id, walk::receipt};
use crate::{
    Session,
    clock::SeededIds,
    cost::Cost,
    model::{StopReason, Usage},
    session::{
        event::{
            AssistantMessage, CompactionCompleted, CompactionStarted, ContextRebuilt, Event, Record, SummaryUnused,
            TurnCompleted, TurnStarted,
        },
        pruned::ForkedHistory,
    },
    wire::decode_event,
};

const USAGE: Usage =
    Usage { input_tokens: 10, output_tokens: 2, cached_tokens: 0, cache_write_tokens: 0, reasoning_tokens: 0 };

fn micros(micros: u64) -> Option<Cost> {
    Some(Cost::from_micros(micros))
}

/// A session under way.
struct Life(Session, Vec<Record>);

impl Life {
    fn begin() -> Self {
        let first = record(1, None, created());
        Self(Session::begin(&first).unwrap(), vec![first])
    }

    fn add(&mut self, event: Event) {
        let turn = match &event {
            Event::TurnStarted(_) => Some(self.0.next_turn),
            _ => self.0.open_turn.as_ref().map(|open| open.turn),
        };
        let next = record(self.0.last_seq + 1, turn, event);
        self.0.apply(&next).unwrap();
        self.1.push(next);
    }

    fn start(&mut self) {
        let started = TurnStarted { prompt: Some("go".into()), model: "m".to_owned(), ..TurnStarted::default() };
        self.add(Event::TurnStarted(started));
    }

    fn answer(&mut self, cost: Option<Cost>) {
        let (model, stop_reason, tools, context) = ("m".to_owned(), StopReason::EndTurn, None, None);
        let step = self.0.open_turn.as_ref().unwrap().totals.steps;
        let answer =
            AssistantMessage { step, model, blocks: Vec::new(), stop_reason, usage: USAGE, cost, tools, context };
        self.add(Event::AssistantMessage(answer));
    }

    /// Ends the turn; returns its cost.
    fn end(&mut self) -> Option<Cost> {
        let totals = self.0.open_turn.as_ref().unwrap().totals.clone();
        self.add(Event::TurnCompleted(TurnCompleted { stop_reason: StopReason::EndTurn, totals }));
        self.0.last_end.as_ref().unwrap().totals.cost
    }

    /// Compacts the context, with a summary of this price.
    fn compact(&mut self, usage: Usage, cost: Option<Cost>) {
        self.add(Event::CompactionStarted(CompactionStarted {
            input_tokens: 1,
            estimated_history_tokens: 1,
            message_count: 1,
        }));
        let compaction = self.0.last_seq + 2;
        let receipt = crate::service::CompactionReceipt { usage, cost, ..receipt(compaction) };
        let (summary, retained, masked) = (Some("sum".into()), Vec::new(), Vec::new());
        self.add(Event::ContextRebuilt(ContextRebuilt { compaction, summary, retained, masked, receipt }));
        let completed = CompactionCompleted { summary_tokens: 1, messages_before: 2, messages_after: 1 };
        self.add(Event::CompactionCompleted(completed));
    }
}

#[test]
fn turns_and_session_have_the_sum_of_their_calls() {
    let mut life = Life::begin();
    assert_eq!(life.0.cost, micros(0), "nothing was spent yet");
    life.start();
    assert_eq!(life.end(), micros(0));
    life.start();
    life.answer(micros(5));
    life.answer(micros(7));
    life.add(Event::SummaryUnused(SummaryUnused { usage: USAGE, cost: micros(100) }));
    assert_eq!(life.end(), micros(112));
    life.compact(USAGE, micros(1_000));
    life.compact(Usage::default(), None);
    assert_eq!(life.0.cost, micros(1_112), "a compaction without a model costs nothing");
}

#[test]
fn one_unknown_call_makes_its_turn_and_session_unknown_and_no_other_turn() {
    for unknown in [
        |life: &mut Life| life.answer(None),
        |life: &mut Life| life.add(Event::SummaryUnused(SummaryUnused { usage: USAGE, cost: None })),
        |life: &mut Life| life.compact(USAGE, None),
    ] {
        let mut life = Life::begin();
        life.start();
        life.answer(micros(5));
        unknown(&mut life);
        life.answer(micros(7));
        assert_eq!(life.end(), None);
        life.start();
        life.answer(micros(3));
        assert_eq!(life.end(), micros(3));
        assert_eq!(life.0.cost, None);
    }
}

#[test]
fn a_journal_of_a_version_without_prices_has_no_cost() {
    let line = r#"{"v":1,"session_id":"01900000-0000-7000-8000-000000000001","seq":3,"turn":0,"time":"2026-01-01T00:00:00.000Z","type":"assistant_message","step":0,"model":"m","blocks":[],"stop_reason":"end_turn","usage":{"input_tokens":120,"output_tokens":18,"cached_tokens":0}}"#;
    let old = decode_event(line).unwrap();
    assert_eq!(old.session_id, session_id());
    let mut life = Life::begin();
    life.start();
    life.0.apply(&old).unwrap();
    assert_eq!(life.end(), None);
    assert_eq!(life.0.cost, None);
}

#[test]
fn a_fork_of_a_pruned_session_has_what_its_part_cost() {
    let mut life = Life::begin();
    for cost in [5, 7, 11] {
        life.start();
        life.answer(micros(cost));
        life.end();
    }
    let snapshot = life.0.history_snapshot(4, SeededIds::wall_time()).unwrap();
    assert_eq!(snapshot.cost, micros(23));
    life.add(Event::HistorySnapshot(snapshot));
    assert_eq!(life.0.cost, micros(23));
    // The first turn's records are dropped; the fork is after the second turn.
    let at = life.1[6].seq;
    let mut history = ForkedHistory::new(at);
    let kept = life.1.iter().filter(|record| !(2..=4).contains(&record.seq));
    let found = kept.map(|record| history.push(record).unwrap()).find_map(|found| found).unwrap();
    assert_eq!((found.cost, found.usage.input_tokens), (micros(12), 20));
}
