//! The cost of a session is the sum over its model calls; one that is unknown makes it unknown.

use super::{created, record, session_id, walk::receipt};
use crate::{
    ErrorCode, Session,
    clock::SeededIds,
    cost::Cost,
    model::{StopReason, Usage},
    service::{CompactionMode, CompactionReceipt},
    session::{
        event::{
            AssistantMessage, CompactionCompleted, CompactionFailed, CompactionStarted, ContextRebuilt, Event, Record,
            RecordsLost, SummaryUnused, TurnCompleted, TurnStarted,
        },
        pruned::ForkedHistory,
    },
    wire::decode_event,
};

const USAGE: Usage =
    Usage { input_tokens: 10, output_tokens: 2, cached_tokens: 0, cache_write_tokens: 0, reasoning_tokens: 0 };

const COMPACTION_STARTED: Event =
    Event::CompactionStarted(CompactionStarted { input_tokens: 1, estimated_history_tokens: 1, message_count: 1 });

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

    /// A compaction fails, with a summary at this price.
    fn fail(&mut self, usage: Usage, cost: Option<Cost>) {
        self.add(COMPACTION_STARTED);
        self.add(Event::SummaryUnused(SummaryUnused { usage, cost }));
        let (code, message) = (ErrorCode::ModelRejected, "no".to_owned());
        self.add(Event::CompactionFailed(CompactionFailed { code, message }));
    }

    /// Compacts the context, at this price.
    fn compact(&mut self, mode: CompactionMode, usage: Usage, cost: Option<Cost>) {
        // The last message of an open turn stays.
        let retained = self.0.open_turn.iter().map(|_| (self.0.last_seq, self.0.last_seq)).collect();
        self.add(COMPACTION_STARTED);
        let compaction = self.0.last_seq + 2;
        let receipt = CompactionReceipt { mode, usage, cost, ..receipt(compaction) };
        let (summary, masked) = (Some("sum".into()), Vec::new());
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
    life.fail(USAGE, micros(100));
    assert_eq!(life.end(), micros(112));
    life.compact(CompactionMode::Summary, USAGE, micros(1_000));
    life.compact(CompactionMode::Mechanical, Usage::default(), micros(0));
    life.compact(CompactionMode::Mask, Usage::default(), None);
    assert_eq!(life.0.cost, micros(1_112), "masking needs no model");
}

#[test]
fn one_unknown_call_makes_its_turn_and_session_unknown_and_no_other_turn() {
    for unknown in [
        |life: &mut Life| life.answer(None),
        |life: &mut Life| life.fail(USAGE, None),
        |life: &mut Life| life.fail(Usage::default(), None),
        |life: &mut Life| life.compact(CompactionMode::Summary, USAGE, None),
        |life: &mut Life| life.compact(CompactionMode::Summary, Usage::default(), None),
        |life: &mut Life| life.compact(CompactionMode::Mechanical, Usage::default(), None),
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
fn lost_records_make_the_cost_of_their_session_and_turn_unknown() {
    let lost =
        |from, to| Event::RecordsLost(RecordsLost { ranges: vec![(from, to)], keys_unknown: false, keys: Vec::new() });
    // The turn began after what is lost.
    let mut life = Life::begin();
    life.start();
    life.answer(micros(5));
    life.add(lost(0, 0));
    assert_eq!(life.0.cost, None);
    life.answer(micros(7));
    assert_eq!((life.end(), life.0.cost), (micros(12), None));

    // The turn's end is lost, and perhaps an answer before it.
    let mut life = Life::begin();
    life.start();
    life.answer(micros(5));
    let at = life.0.last_seq;
    life.0.apply(&record(at + 4, None, lost(at + 1, at + 3))).unwrap();
    assert_eq!((life.0.last_end.as_ref().unwrap().totals.cost, life.0.cost), (None, None));
    assert_eq!(life.0.usage, USAGE);
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
