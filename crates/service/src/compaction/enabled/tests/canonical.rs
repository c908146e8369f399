//! What the specification says word for word, typed from its text and not from the code.

use meerkat_testkit::cases_and_regressions;
use proptest::{collection::vec, prelude::*, strategy::ValueTree as _, test_runner::TestRunner};

use super::{keeping, life::Life};
use crate::{
    compaction::{
        COMPACTION_PROMPT, CompactionConfig, Compactor as _, SUMMARY_PREFIX, estimate_tokens, rebuilt::rebuild,
    },
    service::CompactionMode,
    session::message::{Body, Message},
};

#[test]
fn the_texts_are_those_of_the_specification() {
    let prompt = "You are performing a CONTEXT COMPACTION. Your job is to create a handoff summary so work can \
                  continue seamlessly.\n\
                  \n\
                  Include:\n\
                  - Current progress and key decisions made\n\
                  - Important context, constraints, or user preferences discovered\n\
                  - What remains to be done (clear next steps)\n\
                  - Any critical data, file paths, examples, or references needed to continue\n\
                  - Tool call patterns that worked or failed\n\
                  \n\
                  Be concise and structured. Prioritize information the next context needs to act, not narrate.";
    assert_eq!(COMPACTION_PROMPT, prompt);
    assert_eq!(keeping(4).compaction_prompt(), prompt);
    let prefix = "[Context compacted] A previous context produced the following summary of work so far. The current \
                  tool and session state is preserved. Use this summary to continue without duplicating work:";
    assert_eq!(SUMMARY_PREFIX, prefix);
}

#[test]
fn the_defaults_are_those_of_the_specification() {
    let config = CompactionConfig::default();
    assert_eq!(config.auto_compact_threshold, 100_000);
    assert_eq!(config.recent_turn_budget, 4);
    assert_eq!(config.max_summary_tokens, 4096);
    assert_eq!(config.min_turns_between_compactions, 3);
    assert_eq!(keeping(4).max_summary_tokens(), 4096);
}

/// The bytes that the specification's `estimate_tokens` divides by four, as it is written there.
fn bytes_to_the_letter(messages: &[Message]) -> u64 {
    messages.iter().map(|m| serde_json::to_string(m).map(|s| s.len()).unwrap_or(0)).sum::<usize>() as u64
}

/// Bytes of texts that are in blobs.
fn blob_bytes(messages: &[Message]) -> u64 {
    let bytes = |body: &Body| if let Body::Blob(blob) = body { blob.bytes } else { 0 };
    messages.iter().flat_map(Message::texts).map(bytes).sum()
}

// The trigger's number comes from running sums. It is the estimate of the context all the same, with the whole texts of
// blobs if there are any.
proptest! {
    #![proptest_config(cases_and_regressions(1000))]

    #[test]
    fn a_compactor_is_told_the_estimate_to_the_letter(
        choices in vec(any::<u16>(), 0..16),
        facts in vec("[ -~\n\u{1b}é\"]{1,40}", 0..3),
        turns in 1_usize..4,
    ) {
        let mut life = Life::random(&choices);
        for fact in &facts {
            life.pin(fact);
            life.remind("style", fact);
        }
        for _ in 0..2 {
            let (messages, told) = (life.session.messages(), life.session.compaction_context(0, 0));
            let bytes = bytes_to_the_letter(&messages);
            prop_assert_eq!(estimate_tokens(&messages), bytes / 4);
            prop_assert_eq!(told.estimated_history_tokens, (bytes + blob_bytes(&messages)) / 4);
            // So it is behind a compaction.
            let Ok(rebuilt) = rebuild(&life.session, &keeping(turns), "All \"well\".", CompactionMode::Summary) else {
                return Ok(());
            };
            life.put(rebuilt);
        }
    }
}

/// The property says something: most lives are longer than nothing, and have no blob.
#[test]
fn enough_random_lives_have_no_blob() {
    let mut runner = TestRunner::deterministic();
    let mut count = 0;
    for _ in 0..200 {
        let choices = vec(any::<u16>(), 0..16).new_tree(&mut runner).unwrap().current();
        let messages = Life::random(&choices).session.messages();
        count += usize::from(messages.len() > 2 && blob_bytes(&messages) == 0);
    }
    assert!(count >= 50, "{count} of 200");
}
