//! The default compactor, the checks of any compactor's result, and the engine's own masks and summaries.

mod canonical;
mod cut;
pub(crate) mod life;
mod misbehaving;
mod props;
mod trigger;

use life::Life;

use crate::{
    compaction::{
        CompactionConfig, Compactor, DefaultCompactor, SUMMARY_PREFIX, message_bytes,
        rebuilt::{mask, mechanical_summary, planned, preview, rebuild},
    },
    service::CompactionMode,
    session::{Session, message::Message},
};

/// `None` where nothing can leave.
fn mechanical(session: &Session, compactor: &dyn Compactor) -> Option<String> {
    let planned = planned(session, compactor).ok()?;
    Some(mechanical_summary(session, compactor, planned).unwrap())
}

fn keeping(turns: usize) -> DefaultCompactor {
    DefaultCompactor::new(CompactionConfig { recent_turn_budget: turns, ..CompactionConfig::default() }, 0)
}

fn bytes(messages: &[Message]) -> u64 {
    messages.iter().map(message_bytes).sum()
}

/// Turns whose prompts and answers are long enough that a summary is worth it.
fn turns(count: usize) -> Life {
    let mut life = Life::new(Some("You are careful."));
    for nth in 0..count {
        life.turn(&format!("Prompt {nth}: {}", "please ".repeat(40)), &format!("Answer {nth}."));
    }
    life
}

#[test]
fn the_newest_turns_stay_by_reference_and_the_rest_leaves() {
    let mut life = turns(6);
    let before = life.session.messages();
    let rebuilt = rebuild(&life.session, &keeping(2), "All went well.", CompactionMode::Summary).unwrap();
    let entries = life.session.context.entries();
    assert_eq!(rebuilt.event.retained, [(entries[8].seq, entries[11].seq)]);
    assert_eq!(rebuilt.event.summary, Some("All went well.".into()));
    let receipt = rebuilt.event.receipt.clone();
    assert_eq!((receipt.retained, receipt.masked, receipt.discarded), (4, 0, 8));
    assert_eq!((rebuilt.completed.messages_before, rebuilt.completed.messages_after), (12, 5));
    assert_eq!(receipt.tokens_before, bytes(&before) / 4);
    let context_bytes = rebuilt.context_bytes;
    life.put(rebuilt);
    let after = life.session.messages();
    assert_eq!(after[2..], before[9..]);
    assert_eq!(after[1], Message::user(format!("{SUMMARY_PREFIX}\n\nAll went well.")));
    assert_eq!((context_bytes, receipt.tokens_after), (bytes(&after), bytes(&after) / 4));
}

#[test]
fn a_summary_that_is_no_shorter_is_no_progress_and_its_preview_no_error() {
    let life = turns(2);
    let long = "word ".repeat(1000);
    let error = rebuild(&life.session, &keeping(1), &long, CompactionMode::Summary).unwrap_err();
    assert_eq!(error.code, meerkat_errors::ErrorCode::CompactionNoProgress);
    assert!(error.message.starts_with("The compacted context would have "), "{}", error.message);
    let error = rebuild(&life.session, &keeping(2), "", CompactionMode::Summary).unwrap_err();
    assert_eq!(error.message, "No message would leave the context.");
    let foretold = preview(&life.session, &keeping(2)).unwrap();
    assert_eq!((foretold.retained, foretold.discarded), (4, 0));
    assert_eq!(foretold.tokens_after, foretold.tokens_before);
    preview(&Life::new(None).session, &keeping(1)).unwrap();
}

#[test]
fn a_preview_counts_the_longest_summary_there_may_be() {
    let life = turns(40);
    let config = CompactionConfig { max_summary_tokens: 100, ..CompactionConfig::default() };
    let foretold = preview(&life.session, &DefaultCompactor::new(config, 0)).unwrap();
    let longest = rebuild(&life.session, &keeping(4), &"x".repeat(400), CompactionMode::Summary).unwrap();
    assert_eq!(foretold, longest.event.receipt);
}

#[test]
fn results_beyond_the_newest_three_are_masked_unless_the_reference_is_longer() {
    let mut life = Life::new(None);
    life.start("Read them all.");
    for (nth, bytes) in [500, 2, 500, 500, 500, 500].into_iter().enumerate() {
        life.step(&format!("Step {nth}"), &[("read", nth == 0, "x".repeat(bytes))]);
    }
    let seqs: Vec<_> = life.session.context.entries().iter().map(|entry| entry.seq).collect();
    let masked = mask(&life.session).unwrap();
    assert_eq!(masked.event.masked, [seqs[2], seqs[6]]);
    assert_eq!(masked.event.retained, [(seqs[0], seqs[12])]);
    assert_eq!((masked.event.summary, masked.completed.summary_tokens), (None, 0));
    assert_eq!((masked.completed.messages_before, masked.completed.messages_after), (13, 13));
    let receipt = masked.event.receipt;
    assert_eq!((receipt.mode, receipt.retained, receipt.masked, receipt.discarded), (CompactionMode::Mask, 13, 2, 0));
}

#[test]
fn a_mechanical_summary_tells_what_was_asked_called_and_answered() {
    let mut life = Life::new(None);
    life.start("Fix the parser in /srv/app/parser.rs, ticket 4711.");
    life.step("Let me look.", &[("read", true, "no such file".to_owned()), ("grep", false, "line 88".to_owned())]);
    life.answer("The parser is fixed.");
    life.turn("Now the writer.", &"It is done. ".repeat(50));
    let summary = mechanical(&life.session, &keeping(1)).unwrap();
    let lines: Vec<&str> = summary.lines().skip(1).collect();
    assert_eq!(
        lines,
        [
            "User: Fix the parser in /srv/app/parser.rs, ticket 4711.",
            "Answer: Let me look.",
            "- read {\"path\":\"/srv/0\"} failed: no such file",
            "- grep {\"path\":\"/srv/1\"} ok: line 88",
            "Answer: The parser is fixed.",
        ]
    );
}

#[test]
fn a_mechanical_summary_stands_whole_in_its_event_whatever_a_compactor_allows() {
    let mut life = turns(1500);
    let config = CompactionConfig { max_summary_tokens: u32::MAX, ..CompactionConfig::default() };
    let compactor = DefaultCompactor::new(config, 0);
    let summary = mechanical(&life.session, &compactor).unwrap();
    assert!((40_000..=65_536).contains(&summary.len()), "{}", summary.len());
    life.put(rebuild(&life.session, &compactor, &summary, CompactionMode::Mechanical).unwrap());
    assert!(life.session.messages()[1].text().ends_with(&summary));
}

#[test]
fn a_mechanical_summary_has_the_oldest_and_the_newest_and_what_was_summarised_before() {
    let mut life = turns(30);
    let rebuilt = rebuild(&life.session, &keeping(1), "The key is ORCHID-7.", CompactionMode::Summary).unwrap();
    life.put(rebuilt);
    for nth in 0..300 {
        life.turn(&format!("Question {nth}: {}", "please ".repeat(40)), &format!("Reply {nth}."));
    }
    let config = CompactionConfig { max_summary_tokens: 300, recent_turn_budget: 1, ..CompactionConfig::default() };
    let summary = mechanical(&life.session, &DefaultCompactor::new(config, 0)).unwrap();
    assert!(summary.len() <= 1200, "{}", summary.len());
    for kept in ["ORCHID-7", "Prompt 29", "Question 298", "Reply 298", "[...]"] {
        assert!(summary.contains(kept), "{kept} is not in {summary}");
    }
}
