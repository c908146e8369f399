//! What the default compactor keeps, what the engine takes from any compactor, and what it does itself.

pub(crate) mod life;
mod props;

use life::Life;

use crate::{
    compaction::{CompactionConfig, DefaultCompactor, SUMMARY_PREFIX, message_bytes, rebuilt::rebuild},
    service::CompactionMode,
    session::message::Message,
};

fn keeping(turns: usize) -> DefaultCompactor {
    DefaultCompactor::new(CompactionConfig { recent_turn_budget: turns, ..CompactionConfig::default() }, 0)
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
    let entries = life.session.context().entries();
    assert_eq!(rebuilt.event.retained, [(entries[8].seq, entries[11].seq)]);
    assert_eq!(rebuilt.event.summary, Some("All went well.".into()));
    let receipt = rebuilt.event.receipt.clone();
    assert_eq!((receipt.retained, receipt.masked, receipt.discarded), (4, 0, 8));
    assert_eq!((rebuilt.completed.messages_before, rebuilt.completed.messages_after), (12, 5));
    let bytes = |messages: &[Message]| messages.iter().map(message_bytes).sum::<u64>();
    assert_eq!(receipt.tokens_before, bytes(&before) / 4);
    let context_bytes = rebuilt.context_bytes;
    life.put(rebuilt);
    let after = life.session.messages();
    assert_eq!(after[2..], before[9..]);
    assert_eq!(after[1], Message::User { content: format!("{SUMMARY_PREFIX}\n\nAll went well.").into() });
    assert_eq!((context_bytes, receipt.tokens_after), (bytes(&after), bytes(&after) / 4));
}
