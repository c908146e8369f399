//! The test matrix of the specification, line by line, and some cases besides.

use std::collections::BTreeSet;

use super::{
    super::{Due, Pass, Schedule, Trigger, run::up_to},
    HOUR_MS, Life, STRICT, fold, planned,
};
use crate::{
    clock::{IdSource as _, SeededIds, SystemClock, Timestamp},
    ids::Seq,
    options::{Budget, JournalOptions},
    output::OutputError,
    service::CompactionPolicy,
    session::{
        event::{Event, OutputRefused, PartialText, Record, TurnInterrupted, TurnTotals, UnknownEvent},
        message::RawJson,
        reminder::SystemReminderType,
    },
    tool::{Form, change_of},
    upkeep::journal_compaction::plan::{Bounds, Brief, Plan, plan},
    wire::encode_event,
};

const NOTHING: [Seq; 0] = [];

fn dropped(plan: &Plan) -> Vec<Seq> {
    plan.dropped.iter().copied().collect()
}

fn kept<'a>(records: &'a [Record], plan: &Plan) -> Vec<&'a Record> {
    records.iter().filter(|record| !plan.dropped.contains(&record.seq)).collect()
}

#[test]
fn the_defaults_are_those_of_the_specification() {
    let options = JournalOptions::default();
    let (minute, dropping) = (60_000, JournalOptions { drop_history: true, ..options.clone() });
    let rolling = Pass::rolling(&dropping).policy;
    assert_eq!((rolling.min_record_age_ms, rolling.keep_last_replies), (2 * minute, Some(10)));
    let end = Pass::end_of_run(&dropping).policy;
    assert_eq!((end.min_record_age_ms, end.keep_last_replies), (15 * minute, Some(3)));
    assert_eq!(end.keep_answered_request_ttl_ms, HOUR_MS);
    assert!(options.rolling_ms == 0 && !options.end_of_run, "nothing is compacted by itself");
    // History is dropped only where that is asked for.
    for pass in [Pass::rolling(&options), Pass::end_of_run(&options)] {
        assert_eq!(pass.policy.keep_last_replies, None, "{pass:?}");
    }
}

/// Safety: nothing beyond the watermark is removed.
#[test]
fn nothing_beyond_the_watermark_goes() {
    let mut life = Life::new();
    let kind = SystemReminderType::ClaudeMd;
    let set: Vec<Seq> = (0..4).map(|n| life.remind(kind.clone(), &n.to_string())).collect();
    life.remind(SystemReminderType::Environment, "last");
    for safe_up_to in 0..=set[3] + 1 {
        let plan = planned(&life.records, safe_up_to, HOUR_MS, STRICT, true);
        // The newest one below the watermark stays, and the one above it is not looked at.
        let due: Vec<Seq> = set.iter().copied().filter(|seq| *seq < safe_up_to.min(set[3])).collect();
        assert_eq!(dropped(&plan), due, "up to {safe_up_to}");
        assert!(plan.keep.iter().all(|seq| *seq <= safe_up_to));
        assert_eq!((plan.keep.len() + plan.dropped.len()) as u64, safe_up_to.min(6));
    }
}

/// Awaitables: a pending request survives; once it has its result, a later compaction drops it, past its grace.
#[test]
fn a_request_goes_once_it_has_its_result_and_its_grace_is_over() {
    let mut life = Life::new();
    life.start(None);
    life.answer("", &["a", "b", "c"]);
    let asked = life.asks("a");
    assert_eq!(dropped(&planned(&life.records, 99, HOUR_MS, STRICT, false)), NOTHING);
    let decided = life.is_approved("a");
    let (ran, done) = (life.tool_starts("a"), life.tool_ends("a"));
    let (other_ran, other_done) = (life.tool_starts("b"), life.tool_ends("b"));
    let ([called, answered], called_done) = (life.is_answered("c"), life.tool_ends("c"));
    life.answer("Done.", &[]);
    life.ends();
    life.remind(SystemReminderType::ClaudeMd, "last");
    let due = [asked, ran, other_ran, called];
    assert_eq!(dropped(&planned(&life.records, 99, HOUR_MS, STRICT, false)), due);
    // A result above the watermark answers nothing yet.
    assert_eq!(dropped(&planned(&life.records, done - 1, HOUR_MS, STRICT, false)), [asked]);
    assert_eq!(dropped(&planned(&life.records, decided - 1, HOUR_MS, STRICT, false)), NOTHING);
    let plan = planned(&life.records, 99, HOUR_MS, STRICT, false);
    assert!(
        [decided, done, other_done, answered, called_done].iter().all(|seq| plan.keep.contains(seq)),
        "results stay"
    );
    // The grace counts from the request.
    let graceful = CompactionPolicy { keep_answered_request_ttl_ms: 2 * HOUR_MS, ..STRICT };
    assert_eq!(dropped(&planned(&life.records, 99, HOUR_MS, graceful, false)), NOTHING);
    assert_eq!(dropped(&planned(&life.records, 99, 2 * HOUR_MS, graceful, false)), due);
    // One of exactly that age is within it.
    let since = |seq: Seq| {
        let time = |record: &Record| record.time.as_millis();
        (time(life.records.last().unwrap()) - time(&life.records[seq as usize - 1])).unsigned_abs()
    };
    let at_its_end = 2 * HOUR_MS - since(called);
    assert_eq!(dropped(&planned(&life.records, 99, at_its_end, graceful, false)), due[..3]);
    assert_eq!(dropped(&planned(&life.records, 99, at_its_end + 1, graceful, false)), due);
}

/// Coalescing: several of one key collapse to one, and the latest stays.
#[test]
fn of_one_key_the_latest_stays() {
    let mut life = Life::new();
    let (rules, state) = (SystemReminderType::ClaudeMd, SystemReminderType::GitStatus);
    let first = life.remind(rules.clone(), "1");
    let cleared_later = life.remind(state.clone(), "1");
    let cleared = life.clear(rules.clone());
    let again = life.remind(rules.clone(), "2");
    let end = life.clear(state.clone());
    life.start(None);
    let warned = life.warns(Budget::Steps);
    let other = life.warns(Budget::Tokens);
    let cut = Event::PartialText(PartialText { step: 0, text: "a".into() });
    let cut = [life.add(Some(0), cut.clone()), life.add(Some(0), cut)];
    life.answer("Done.", &[]);
    life.ends();
    life.start(None);
    let warned_again = life.warns(Budget::Steps);
    life.answer("Done.", &[]);
    life.ends();
    let plan = planned(&life.records, 99, HOUR_MS, STRICT, false);
    assert_eq!(dropped(&plan), [first, cleared_later, cleared, warned, cut[0]]);
    assert!([again, end, other, cut[1], warned_again].iter().all(|seq| plan.keep.contains(seq)));
    assert_eq!(fold(kept(&life.records, &plan)), fold(&life.records));
}

/// What had come of an answer that was cut off is a message, and stays.
#[test]
fn of_a_cut_off_answer_the_latest_text_stays() {
    let mut life = Life::new();
    life.start(None);
    let cut = |text: &str| Event::PartialText(PartialText { step: 0, text: text.into() });
    let [first, latest] = ["Ha", "Half"].map(|text| life.add(Some(0), cut(text)));
    let (reason, totals) = ("requested".to_owned(), TurnTotals::default());
    life.add(Some(0), Event::TurnInterrupted(TurnInterrupted { reason, totals }));
    life.remind(SystemReminderType::ClaudeMd, "last");
    let (plan, whole) = (planned(&life.records, 99, HOUR_MS, STRICT, false), fold(&life.records));
    assert_eq!((dropped(&plan), plan.keep.contains(&latest)), (vec![first], true));
    assert_eq!(fold(kept(&life.records, &plan)), whole);
    let said: Vec<String> = whole.context.entries().iter().map(|entry| entry.message.text()).collect();
    assert_eq!((said.as_slice(), whole.message_count), (&["Go.", "Half [cut off]"].map(str::to_owned)[..], 2));
}

/// Replies: exactly the last K stay, and older ones go; without `drop_history` none goes.
#[test]
fn of_the_replies_outside_the_context_the_last_stay() {
    let mut life = Life::new();
    let mut replies = Vec::new();
    for turn in 0..3 {
        life.start(None);
        let call = format!("t{turn}");
        replies.push(life.answer("Let me look.", &[&call]));
        life.tool_starts(&call);
        life.tool_ends(&call);
        replies.push(life.answer("It is too much.", &[]));
        life.ends();
    }
    life.forgets();
    life.start(None);
    let live = life.answer("Short.", &[]);
    life.ends();
    let before = fold(&life.records);
    for keep_last_replies in 0..=7 {
        let policy = CompactionPolicy { keep_last_replies: Some(keep_last_replies), ..STRICT };
        let plan = planned(&life.records, 99, HOUR_MS, policy, true);
        let stays: Vec<Seq> = replies.iter().copied().filter(|seq| plan.keep.contains(seq)).collect();
        assert_eq!(stays, replies[replies.len().saturating_sub(keep_last_replies)..], "of {keep_last_replies}");
        assert!(plan.keep.contains(&live), "the live context is whole");
        let plan = planned(&life.records, 99, HOUR_MS, policy, false);
        assert!(replies.iter().all(|seq| plan.keep.contains(seq)), "history goes only where that was asked for");
    }
    // What is left is a session like any other, and the snapshot makes its counters whole.
    let plan = planned(&life.records, 99, HOUR_MS, CompactionPolicy { keep_last_replies: Some(1), ..STRICT }, true);
    let history = plan.history.unwrap();
    let snapshot = before.history_snapshot(history.pruned_to, history.keys_up_to).unwrap();
    life.add(None, Event::HistorySnapshot(snapshot));
    assert_eq!(fold(kept(&life.records, &plan)), fold(&life.records));
    assert_eq!(fold(kept(&life.records, &plan)).message_count, before.message_count);
}

/// Broken once: they stayed without their turn, and the session could not be read any more.
#[test]
fn what_a_call_alone_says_goes_with_its_answer_and_not_before() {
    let mut life = Life::new();
    life.start(None);
    life.answer("Let me ask.", &["a"]);
    let started = life.tool_starts("a");
    if let Event::ToolStarted(started) = &mut life.records.last_mut().unwrap().event {
        started.files.push(change_of("file", Some(b"old"), b"new"));
    }
    let asked = life.asks("a_form_1");
    if let Event::ApprovalRequested(asked) = &mut life.records.last_mut().unwrap().event {
        let (call_id, server, message) = ("a".to_owned(), "s".to_owned(), "?".to_owned());
        asked.form = Some(Form { call_id, server, message, schema: RawJson::empty_object() });
    }
    life.is_approved("a_form_1");
    life.tool_ends("a");
    life.answer("Done.", &[]);
    life.ends();
    life.forgets();
    life.start(None);
    life.answer("Short.", &[]);
    life.ends();
    let plan = planned(&life.records, 99, HOUR_MS, STRICT, false);
    assert!(plan.keep.contains(&started) && plan.keep.contains(&asked), "{plan:?}");
    for keep_last_replies in [0, 1] {
        let mut life = Life { records: life.records.clone(), turn: life.turn };
        let plan = planned(
            &life.records,
            99,
            HOUR_MS,
            CompactionPolicy { keep_last_replies: Some(keep_last_replies), ..STRICT },
            true,
        );
        assert!(plan.dropped.contains(&started) && plan.dropped.contains(&asked), "{plan:?}");
        let history = plan.history.unwrap();
        let snapshot = fold(&life.records).history_snapshot(history.pruned_to, history.keys_up_to).unwrap();
        life.add(None, Event::HistorySnapshot(snapshot));
        assert_eq!(fold(kept(&life.records, &plan)), fold(&life.records));
    }
}

/// Without the answer that it refuses, it would refuse another one.
#[test]
fn a_refusal_goes_with_its_answer_and_not_before() {
    let mut life = Life::new();
    life.start(None);
    life.answer("No.", &[]);
    let errors = vec![OutputError { path: String::new(), message: "not valid JSON".to_owned() }];
    let refused = life.add(Some(0), Event::OutputRefused(OutputRefused { errors }));
    life.answer("{}", &[]);
    life.ends();
    life.forgets();
    life.start(None);
    life.answer("Short.", &[]);
    life.ends();
    for (keep_last_replies, goes) in [(0, true), (1, true), (2, false)] {
        let mut life = Life { records: life.records.clone(), turn: life.turn };
        let plan = planned(
            &life.records,
            99,
            HOUR_MS,
            CompactionPolicy { keep_last_replies: Some(keep_last_replies), ..STRICT },
            true,
        );
        assert_eq!(plan.dropped.contains(&refused), goes, "of {keep_last_replies}: {plan:?}");
        if let Some(history) = plan.history {
            let snapshot = fold(&life.records).history_snapshot(history.pruned_to, history.keys_up_to).unwrap();
            life.add(None, Event::HistorySnapshot(snapshot));
        }
        assert_eq!(fold(kept(&life.records, &plan)), fold(&life.records));
    }
}

/// Terminal: the latest stays, whatever else goes.
#[test]
fn the_latest_end_of_a_turn_stays() {
    let mut life = Life::new();
    let ends: Vec<Seq> = (0..4)
        .map(|_| {
            life.start(None);
            life.answer("No.", &[]);
            life.overflows()
        })
        .collect();
    life.remind(SystemReminderType::ClaudeMd, "last");
    let plan = planned(&life.records, 99, HOUR_MS, STRICT, true);
    assert!(plan.keep.contains(&ends[3]) && ends[..3].iter().all(|seq| plan.dropped.contains(seq)));
    let plan = planned(&life.records, 99, HOUR_MS, STRICT, false);
    assert!(ends.iter().all(|seq| plan.keep.contains(seq)));
}

/// Idempotency: what lies above the watermark is replayed to the byte.
#[test]
fn what_lies_above_the_watermark_is_replayed_to_the_byte() {
    let mut life = Life::new();
    for n in 0..20 {
        life.remind(SystemReminderType::TokenStatus, &n.to_string());
    }
    let lines = |records: Vec<&Record>| -> Vec<_> {
        records.into_iter().filter(|record| record.seq > 9).map(|record| encode_event(record).unwrap()).collect()
    };
    let plan = planned(&life.records, 9, HOUR_MS, STRICT, true);
    assert_eq!(plan.dropped.len(), 7);
    assert_eq!(lines(kept(&life.records, &plan)), lines(life.records.iter().collect()));
}

#[test]
fn nothing_young_goes() {
    let mut life = Life::new();
    let set: Vec<Seq> = (0..3).map(|n| life.remind(SystemReminderType::ClaudeMd, &n.to_string())).collect();
    let policy = CompactionPolicy { min_record_age_ms: 60_000, ..STRICT };
    // Two seconds lie between the first and the last one.
    assert_eq!(dropped(&planned(&life.records, 99, 58_000, policy, true)), NOTHING);
    assert_eq!(dropped(&planned(&life.records, 99, 58_001, policy, true)), set[..1]);
    assert_eq!(dropped(&planned(&life.records, 99, 59_000, policy, true)), set[..1]);
    assert_eq!(dropped(&planned(&life.records, 99, 59_001, policy, true)), set[..2]);
}

#[test]
fn an_unknown_kind_stays() {
    let mut life = Life::new();
    let unknown = || {
        let line = RawJson::parse(r#"{"type":"novel"}"#).unwrap();
        Event::Unknown(UnknownEvent { type_name: "novel".to_owned(), line })
    };
    let seqs: BTreeSet<Seq> = (0..3).map(|_| life.add(None, unknown())).collect();
    life.start(None);
    let inside = life.add(Some(0), unknown());
    life.overflows();
    life.start(None);
    life.overflows();
    let plan = planned(&life.records, 99, HOUR_MS, STRICT, true);
    assert!(seqs.is_subset(&plan.keep) && plan.keep.contains(&inside));
    assert_eq!(plan.dropped.len(), 2, "the turn around it goes");
}

#[test]
fn the_open_turn_is_whole() {
    let mut life = Life::new();
    life.start(None);
    life.answer("", &["a"]);
    let (ran, first) = (life.tool_starts("a"), life.warns(Budget::Steps));
    life.tool_ends("a");
    life.answer("", &["b"]);
    let (asked, warned) = (life.asks("b"), life.warns(Budget::Steps));
    life.is_approved("b");
    let plan = planned(&life.records, 99, HOUR_MS, STRICT, true);
    assert_eq!(dropped(&plan), NOTHING);
    assert!([ran, first, asked, warned].iter().all(|seq| plan.keep.contains(seq)));
}

#[test]
fn a_turn_stays_as_long_as_its_key() {
    let mut life = Life::new();
    life.start(Some("k"));
    life.answer("No.", &[]);
    life.overflows();
    life.start(None);
    life.overflows();
    assert_eq!(dropped(&planned(&life.records, 99, 23 * HOUR_MS, STRICT, true)), NOTHING);
    let plan = planned(&life.records, 99, 24 * HOUR_MS, STRICT, true);
    assert_eq!(dropped(&plan), [2, 3, 4]);
    let history = plan.history.unwrap();
    assert_eq!(history.pruned_to, 4);
    assert!(history.keys_up_to >= life.records[1].time);
}

/// Where a turn was interrupted, what it had said was in the context until the turn that went on with it left it.
#[test]
fn no_fork_begins_within_turns_of_which_something_is_gone() {
    let mut life = Life::new();
    life.start(None);
    let gone = life.answer("One.", &[]);
    let (reason, totals) = ("requested".to_owned(), TurnTotals::default());
    let interrupted = life.add(Some(0), Event::TurnInterrupted(TurnInterrupted { reason, totals }));
    life.turn += 1;
    life.start(None);
    if let Event::TurnStarted(started) = &mut life.records[4].event {
        (started.prompt, started.continues) = (None, Some(0));
    }
    life.answer("Two.", &[]);
    let end = life.overflows();
    life.start(None);
    life.overflows();
    let plan = planned(&life.records, 99, HOUR_MS, CompactionPolicy { keep_last_replies: Some(1), ..STRICT }, true);
    assert!(plan.dropped.contains(&gone) && plan.keep.contains(&interrupted), "{plan:?}");
    assert!(plan.history.unwrap().pruned_to >= end);
}

/// A newer snapshot says all that an older one did, unless the clock went back between them.
#[test]
fn of_the_snapshots_of_history_the_latest_stays() {
    let mut life = Life::new();
    let session = fold(&life.records);
    let snapshot =
        |keys_up_to| Event::HistorySnapshot(session.history_snapshot(0, Timestamp::from_millis(keys_up_to)).unwrap());
    let first = life.add(None, snapshot(5));
    let second = life.add(None, snapshot(9));
    let third = life.add(None, snapshot(7));
    life.remind(SystemReminderType::ClaudeMd, "last");
    let plan = planned(&life.records, 99, HOUR_MS, STRICT, false);
    assert_eq!(dropped(&plan), [first]);
    assert!(plan.keep.contains(&second) && plan.keep.contains(&third));
}

/// What goes of a journal in two parts of ten records, each of so many bytes but for those of the first part that are
/// replaced later; those have `replaced` together, and are so many.
fn sparing(count: usize, replaced: usize, others: usize) -> Vec<Seq> {
    let mut life = Life::new();
    let first = 2..2 + count as Seq;
    for seq in 2..=20 {
        let is_replaced = first.contains(&seq) || (11..=19).contains(&seq);
        let once = SystemReminderType::Custom(seq.to_string());
        life.remind(if is_replaced { SystemReminderType::TokenStatus } else { once }, "text");
    }
    let bytes = |seq| if first.contains(&seq) { replaced / count } else { others };
    let briefs: Vec<Brief> = life.records.iter().map(|it| Brief::of(it, bytes(it.seq))).collect();
    let session = fold(&life.records);
    let policy = CompactionPolicy { keep_last_replies: None, ..STRICT };
    let now = Timestamp::from_millis(session.updated_at.as_millis() + 1);
    let bounds = Bounds { policy, now, parts: &[(1, 10), (11, 20), (21, 20)], is_sparing: true };
    dropped(&plan(&briefs, &session, &bounds))
}

/// A part of which little would go is left as it is, and with it what came later under the same key.
#[test]
fn a_run_by_itself_leaves_a_part_of_which_little_would_go() {
    let both = |count: Seq| (2..2 + count).chain(11..=18).collect::<Vec<_>>();
    assert_eq!(sparing(0, 0, 100), both(0));
    // A quarter of 1,200 bytes.
    assert_eq!(sparing(1, 300, 100), both(1));
    assert_eq!(sparing(1, 299, 100), NOTHING);
    assert_eq!(sparing(2, 300, 100), both(2));
    assert_eq!(sparing(2, 200, 100), NOTHING);
    // 64 KiB of whatever.
    assert_eq!(sparing(1, 65_536, 100_000), both(1));
    assert_eq!(sparing(1, 65_535, 100_000), NOTHING);
}

/// A session of nine turns that left the context, in two parts; each answer has `bytes`, and anything else 100.
fn sparing_history(bytes: usize, parts: &[(Seq, Seq)]) -> (Life, Vec<Seq>, Plan) {
    let mut life = Life::new();
    let mut replies = Vec::new();
    for _ in 0..9 {
        life.start(None);
        replies.push(life.answer("It is too much.", &[]));
        life.ends();
    }
    life.forgets();
    life.start(None);
    life.answer("Short.", &[]);
    life.ends();
    let size = |seq| if replies.contains(&seq) { bytes } else { 100 };
    let briefs: Vec<Brief> = life.records.iter().map(|it| Brief::of(it, size(it.seq))).collect();
    let session = fold(&life.records);
    let policy = CompactionPolicy { keep_last_replies: Some(3), ..STRICT };
    let now = Timestamp::from_millis(session.updated_at.as_millis() + 1);
    let plan = plan(&briefs, &session, &Bounds { policy, now, parts, is_sparing: true });
    (life, replies, plan)
}

/// History goes on schedule as anything does: not for little, and of the part that is written only for 64 KiB.
#[test]
fn a_run_by_itself_drops_no_history_for_little() {
    let whole: &[(Seq, Seq)] = &[(1, Seq::MAX)];
    let halves: &[(Seq, Seq)] = &[(1, 10), (11, Seq::MAX)];
    for (bytes, parts, gone) in
        [(11_000, whole, 6), (10_600, whole, 0), (100, halves, 3), (21_000, halves, 3), (22_000, halves, 6)]
    {
        let (mut life, replies, plan) = sparing_history(bytes, parts);
        let stays: Vec<Seq> = replies.iter().copied().filter(|seq| plan.keep.contains(seq)).collect();
        assert_eq!(stays, replies[gone..], "{bytes} bytes in {parts:?}");
        // The snapshot goes as far as the turns do.
        assert_eq!(plan.history.map(|history| history.pruned_to), gone.checked_sub(1).map(|last| replies[last] + 1));
        if let Some(history) = plan.history {
            let snapshot = fold(&life.records).history_snapshot(history.pruned_to, history.keys_up_to).unwrap();
            life.add(None, Event::HistorySnapshot(snapshot));
        }
        assert_eq!(fold(kept(&life.records, &plan)), fold(&life.records));
    }
}

/// Whether a part is worth rewriting is known of all of it: on schedule none is looked at that the watermark cuts,
/// except the one that is written, of which only bytes count.
#[test]
fn on_schedule_a_part_is_looked_at_as_a_whole() {
    let parts = &[(1, 10), (11, 20), (21, 30)];
    for (watermark, rolling, end) in [(0, 0, 0), (9, 0, 0), (10, 10, 10), (19, 10, 10), (20, 20, 20), (21, 20, 21)] {
        assert_eq!(up_to(parts, watermark, Trigger::Request), watermark);
        assert_eq!(up_to(parts, watermark, Trigger::Rolling), rolling, "{watermark}");
        assert_eq!(up_to(parts, watermark, Trigger::EndOfRun), end, "{watermark}");
    }
    assert_eq!(up_to(&[], 7, Trigger::EndOfRun), 0);
}

/// Many turns that end do not hold up the timer, and the timer none of these.
#[tokio::test(start_paused = true)]
async fn the_timer_and_the_ends_of_turns_take_turns() {
    let (schedule, clock, mut rolling) = (Schedule::default(), SystemClock::new(), None);
    let options = JournalOptions { end_of_run: true, rolling_ms: 10, ..JournalOptions::default() };
    let mut seen = Vec::new();
    for _ in 0..6 {
        let ended = SeededIds::new(7, seen.len() as u64).next_session_id(Timestamp::from_millis(0));
        schedule.turn_ended(ended, &options);
        let due = schedule.next(&clock, &options, &mut rolling).await;
        seen.push(matches!(due, Due::Active));
        // Each compaction takes longer than the timer.
        tokio::time::advance(std::time::Duration::from_millis(11)).await;
    }
    assert_eq!(seen, [false, true, false, true, false, true]);
}

/// What is only too young is looked at again, though nothing else has changed.
#[test]
fn it_is_known_whether_more_can_go_later() {
    let mut life = Life::new();
    life.start(None);
    life.answer("", &["a"]);
    life.tool_starts("a");
    life.tool_ends("a");
    life.answer("Done.", &[]);
    life.ends();
    for n in 0..3 {
        life.remind(SystemReminderType::ClaudeMd, &n.to_string());
    }
    let young = CompactionPolicy { min_record_age_ms: 2 * HOUR_MS, ..STRICT };
    let graceful = CompactionPolicy { keep_answered_request_ttl_ms: 2 * HOUR_MS, ..STRICT };
    for (policy, is_early) in [(young, true), (graceful, true), (STRICT, false)] {
        assert_eq!(planned(&life.records, 99, HOUR_MS, policy, false).is_early, is_early, "{policy:?}");
    }
    // So is history, and a turn whose key is not old enough.
    for (key, policy, age_ms, is_early) in [
        (None, young, HOUR_MS, true),
        (None, STRICT, HOUR_MS, false),
        (Some("k"), STRICT, HOUR_MS, true),
        (Some("k"), STRICT, 24 * HOUR_MS, false),
    ] {
        let mut life = Life::new();
        life.start(key);
        life.overflows();
        life.start(None);
        life.overflows();
        let plan = planned(&life.records, 99, age_ms, policy, true);
        assert_eq!((plan.is_early, plan.dropped.is_empty()), (is_early, is_early), "{key:?} {policy:?}");
    }
}
