//! The compactor of the specification: a summary in place of everything but the newest turns.

use std::sync::Arc;

use super::{
    COMPACTION_PROMPT, CompactionConfig, CompactionContext, CompactionResult, Compactor, SUMMARY_PREFIX,
    SharedCompactor,
};
use crate::{
    SessionError,
    session::message::{Body, Message},
};

/// Compacts as a [`CompactionConfig`] says.
#[derive(Clone, Copy, Debug)]
pub struct DefaultCompactor {
    config: CompactionConfig,
    window_tokens: u64,
}

impl DefaultCompactor {
    /// A compactor for a model with this window.
    #[must_use]
    pub const fn new(config: CompactionConfig, window_tokens: u64) -> Self {
        Self { config, window_tokens }
    }
}

/// The default compactor for a model with this window.
///
/// # Errors
/// None in this build.
pub fn default_compactor(config: CompactionConfig, window_tokens: u64) -> Result<SharedCompactor, SessionError> {
    Ok(Arc::new(DefaultCompactor::new(config, window_tokens)))
}

impl Compactor for DefaultCompactor {
    fn should_compact(&self, context: &CompactionContext) -> bool {
        let threshold = self.config.auto_compact_threshold.min(context.window_tokens / 5 * 4);
        let tokens = context.last_input_tokens.max(context.estimated_history_tokens).max(context.request_tokens);
        let guard = self.config.min_turns_between_compactions;
        let is_guarded = match context.last_compaction_turn {
            None => false,
            Some(_) if context.in_turn => context.steps_since_compaction < guard,
            Some(last) => context.current_turn - last < guard,
        };
        tokens >= threshold && !is_guarded
    }

    fn compaction_prompt(&self) -> &str {
        COMPACTION_PROMPT
    }

    fn max_summary_tokens(&self) -> u32 {
        self.config.max_summary_tokens
    }

    fn rebuild_history(&self, messages: &[Message], summary: &str) -> CompactionResult {
        let is_state = |message: &Message| {
            matches!(message, Message::System { .. } | Message::SystemReminder { .. } | Message::Pin { .. })
        };
        let (state, said): (Vec<Message>, Vec<Message>) = messages.iter().cloned().partition(is_state);
        let begins: Vec<usize> = (0..said.len()).filter(|&at| matches!(said[at], Message::User { .. })).collect();
        let kept = begins.len().saturating_sub(self.config.recent_turn_budget);
        let cut = begins.get(kept).copied().unwrap_or(said.len());
        let (system, rest): (Vec<Message>, Vec<Message>) =
            state.into_iter().partition(|message| matches!(message, Message::System { .. }));
        let summary = Message::User { content: Body::Inline(format!("{SUMMARY_PREFIX}\n\n{summary}")) };
        let mut messages = system;
        messages.push(summary);
        messages.extend(rest);
        messages.extend_from_slice(&said[cut..]);
        let _ = self.window_tokens;
        CompactionResult { messages, discarded: said[..cut].to_vec() }
    }
}
