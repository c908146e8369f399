//! What holds of every life, whatever happened in it.

use std::collections::BTreeMap;

use meerkat_errors::ErrorCode;
use meerkat_testkit::cases_and_regressions;
use proptest::{collection::vec, prelude::*, strategy::ValueTree as _, test_runner::TestRunner};

use super::{bytes, life::Life, mechanical};
use crate::{
    Session,
    compaction::{
        CompactionConfig, Compactor, DefaultCompactor, is_state,
        rebuilt::{mask, preview, rebuild},
    },
    ids::Seq,
    service::CompactionMode,
    session::message::{Message, ToolResult},
};

fn states(messages: &[Message]) -> Vec<Message> {
    messages.iter().filter(|message| is_state(message)).cloned().collect()
}

fn call_ids(message: &Message) -> Vec<String> {
    message.tool_calls().map(|call| call.call_id.clone()).collect()
}

fn result_ids(message: &Message) -> Vec<String> {
    let Message::ToolResults { results } = message else { return Vec::new() };
    results.iter().map(|result: &ToolResult| result.call_id.clone()).collect()
}

/// Every call is followed by its results, and every result follows its call.
fn pairs_are_whole(messages: &[Message]) -> bool {
    let mut open: Vec<String> = Vec::new();
    for message in messages {
        if result_ids(message) != open {
            return false;
        }
        open = call_ids(message);
    }
    open.is_empty()
}

/// Messages that a running turn continues from: its prompt, or the newest text that was steered into it, and its newest
/// step.
fn must_stay(session: &Session) -> Vec<Message> {
    let Some(open) = session.open_turn() else { return Vec::new() };
    let of_turn: Vec<Message> = session
        .context
        .entries()
        .iter()
        .filter(|entry| entry.turn == open.turn)
        .map(|entry| Message::clone(&entry.message))
        .collect();
    let prompt = of_turn.iter().rposition(|message| matches!(message, Message::User { .. }));
    let newest = match of_turn.last() {
        Some(Message::ToolResults { .. }) => of_turn.len() - 2..of_turn.len(),
        _ => of_turn.len().saturating_sub(1)..of_turn.len(),
    };
    let mut stays: Vec<usize> = prompt.into_iter().chain(newest).collect();
    stays.dedup();
    stays.into_iter().map(|at| of_turn[at].clone()).collect()
}

/// Checks a compaction of this life, and says whether it came about.
fn check(life: &mut Life, compactor: &DefaultCompactor, summary: &str, mode: CompactionMode) -> bool {
    let before = life.session.messages();
    let said: Vec<(Seq, Message)> =
        life.session.context.entries().iter().map(|entry| (entry.seq, Message::clone(&entry.message))).collect();
    let must_stay = must_stay(&life.session);
    let result = compactor.rebuild_history(&before, summary);
    let summary_before = life.session.context.summary().map(|summary| Message::clone(&summary.message));
    assert_eq!(result.discarded.len() + result.messages.len(), before.len() + 1);
    let foretold = preview(&life.session, compactor).unwrap();
    let rebuilt = match rebuild(&life.session, compactor, summary, mode) {
        Ok(rebuilt) => rebuilt,
        Err(error) => {
            assert_eq!(error.code, ErrorCode::CompactionNoProgress);
            let leaves = result.discarded.len() - usize::from(summary_before.is_some());
            assert!(leaves == 0 || bytes(&result.messages) >= bytes(&before), "{}", error.message);
            return false;
        }
    };
    assert_eq!((foretold.retained + foretold.discarded) as usize, said.len());
    assert_eq!(foretold.tokens_before, bytes(&before) / 4);
    let (receipt, context_bytes) = (rebuilt.event.receipt.clone(), rebuilt.context_bytes);
    life.put(rebuilt);
    let after = life.session.messages();
    assert_eq!(after, result.messages);
    assert_eq!(context_bytes, bytes(&after));
    assert!(bytes(&after) < bytes(&before));
    assert_eq!(states(&after), states(&before));
    let system = |messages: &[Message]| messages.first().filter(|it| matches!(it, Message::System { .. })).cloned();
    assert_eq!(system(&after), system(&before));
    let stays = life.said();
    assert!(pairs_are_whole(&stays));
    assert!(must_stay.iter().all(|message| stays.contains(message)));
    assert!(said.is_empty() || !stays.is_empty());
    assert_eq!((receipt.retained + receipt.discarded) as usize, said.len());
    assert_eq!(receipt.retained as usize, stays.len());
    // Messages that leave are those not retained, in order, behind the former summary.
    let stays: Vec<Seq> = life.session.context.entries().iter().map(|entry| entry.seq).collect();
    let leaves = said.into_iter().filter(|(seq, _)| !stays.contains(seq)).map(|(_, message)| message);
    let leaves: Vec<Message> = summary_before.into_iter().chain(leaves).collect();
    assert_eq!(leaves, result.discarded);
    check_undo(life.clone(), before);
    true
}

/// Undoes the compaction that was the last to happen, and goes on.
fn check_undo(mut life: Life, mut before: Vec<Message>) {
    if life.session.open_turn().is_some() {
        life.answer("Done.");
        before.extend(life.said().pop());
    }
    life.undo();
    assert_eq!(life.session.messages(), before);
    life.turn("Go on.", "Yes.");
    let (went_on, [prompt, answer]) = (life.session.messages(), ["Go on.", "Yes."]);
    assert_eq!(went_on[..before.len()], before);
    assert!(went_on[before.len()..].iter().map(Message::text).eq([prompt, answer]));
    assert!(life.replayed() == life.session, "a replay makes another session");
}

fn config() -> impl Strategy<Value = (CompactionConfig, u64)> {
    let windows = prop_oneof![Just(0_u64), 10_u64..4000, Just(200_000)];
    (1_usize..6, any::<bool>(), 1_u32..2000, windows).prop_map(|(turns, prefer_anchors, summary, window)| {
        let config = CompactionConfig {
            recent_turn_budget: turns,
            prefer_anchors,
            max_summary_tokens: summary,
            ..CompactionConfig::default()
        };
        (config, window)
    })
}

// Each life is compacted four times: 10,000 in all.
proptest! {
    #![proptest_config(cases_and_regressions(2500))]

    #[test]
    fn a_compaction_is_whole_or_refused(
        choices in vec(any::<u16>(), 0..24),
        configs in [config(), config()],
        summary in "[ -~\n\u{1b}é]{0,60}",
    ) {
        let life = Life::random(&choices);
        for (config, window) in configs {
            let compactor = DefaultCompactor::new(config, window);
            let leaves = rebuild(&life.session, &compactor, "", CompactionMode::Summary).is_ok();
            let Some(mechanical) = mechanical(&life.session, &compactor) else {
                prop_assert!(!leaves);
                continue;
            };
            prop_assert!(mechanical.len() <= config.max_summary_tokens as usize * 4);
            let is_smaller = check(&mut life.clone(), &compactor, &mechanical, CompactionMode::Mechanical);
            prop_assert!(is_smaller || !leaves, "{}", mechanical);
            check(&mut life.clone(), &compactor, &summary, CompactionMode::Summary);
        }
    }
}

proptest! {
    #![proptest_config(cases_and_regressions(1000))]

    #[test]
    fn a_mask_makes_it_smaller_and_leaves_nothing_out(choices in vec(any::<u16>(), 0..24)) {
        let mut life = Life::random(&choices);
        let (before, said) = (life.session.messages(), life.said());
        let Some(masked) = mask(&life.session) else { return Ok(()) };
        let (receipt, context_bytes) = (masked.event.receipt.clone(), masked.context_bytes);
        prop_assert_eq!(masked.event.masked.len() as u64, receipt.masked);
        life.put(masked);
        let after = life.session.messages();
        prop_assert_eq!(bytes(&after), context_bytes);
        prop_assert!(context_bytes < bytes(&before));
        let changed = said.iter().zip(life.said()).filter(|(before, after)| *before != after).count();
        prop_assert_eq!(changed as u64, receipt.masked);
        prop_assert_eq!(after.len(), before.len());
        prop_assert!(mask(&life.session).is_none());
        check_undo(life, before);
    }
}

/// The properties are not vacuous: compactions of each mode succeed in turns and between them, in lives with waiting
/// and failing turns and undone compactions.
#[test]
fn lives_are_compacted_in_all_ways() {
    let mut runner = TestRunner::deterministic();
    let mut counts = BTreeMap::<_, usize>::new();
    for _ in 0..700 {
        let choices = vec(any::<u16>(), 0..24).new_tree(&mut runner).unwrap().current();
        let (config, window) = config().new_tree(&mut runner).unwrap().current();
        let (life, compactor) = (Life::random(&choices), DefaultCompactor::new(config, window));
        let (session, is_in_turn) = (&life.session, life.session.open_turn().is_some());
        let summary = mechanical(session, &compactor).unwrap_or_default();
        let rebuilt = |summary: &str, mode| rebuild(session, &compactor, summary, mode).ok();
        let came_about =
            [rebuilt("Well.", CompactionMode::Summary), rebuilt(&summary, CompactionMode::Mechanical), mask(session)];
        for rebuilt in came_about.into_iter().flatten() {
            *counts.entry((format!("{:?}", rebuilt.event.receipt.mode), is_in_turn)).or_default() += 1;
        }
        for kind in life.kinds() {
            *counts.entry((kind.to_owned(), false)).or_default() += 1;
        }
    }
    let modes = ["Summary", "Mechanical", "Mask"].into_iter().flat_map(|mode| [(mode, false), (mode, true)]);
    let kinds = ["turn_queued", "turn_failed", "turn_interrupted", "steering_entered", "compaction_undone"]
        .map(|kind| (kind, false));
    for (what, is_in_turn) in modes.chain(kinds) {
        let count = counts.get(&(what.to_owned(), is_in_turn)).copied().unwrap_or_default();
        assert!(count >= 20, "{what}, in a turn: {is_in_turn}: {count}; {counts:?}");
    }
}
