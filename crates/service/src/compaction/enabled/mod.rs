//! The compactor of the specification: a summary in place of everything but the newest turns.
//!
//! It knows nothing but the messages it is given, and keeps nothing between two calls.

mod cut;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use cut::Cut;

use super::{
    COMPACTION_PROMPT, CompactionConfig, CompactionContext, CompactionPlan, CompactionResult, Compactor,
    SharedCompactor, message_bytes, summary_message,
};
use crate::{SessionError, session::message::Message};

/// Compactor with a [`CompactionConfig`].
#[derive(Clone, Copy, Debug)]
pub struct DefaultCompactor {
    config: CompactionConfig,
    window_tokens: u64,
}

impl DefaultCompactor {
    /// A compactor for a model with this window; 0 is unknown.
    #[must_use]
    pub const fn new(config: CompactionConfig, window_tokens: u64) -> Self {
        Self { config, window_tokens }
    }

    /// Returns true if too little has happened since the last attempt.
    fn is_guarded(&self, context: &CompactionContext) -> bool {
        let guard = self.config.min_turns_between_compactions;
        let Some(last) = context.last_compaction_turn else { return false };
        let (is_known, is_over) = (context.window_tokens > 0, context.request_tokens > context.window_tokens);
        if is_known && is_over {
            // Without a compaction the turn cannot go on; one that was just tried helps no second time.
            return last == context.current_turn && context.steps_since_compaction == 0;
        }
        match context.in_turn {
            true => context.steps_since_compaction < guard,
            false => context.current_turn.saturating_sub(last) < guard,
        }
    }

    /// Cuts the context for a summary of so many bytes.
    fn cut<'a>(&self, messages: &'a [Message], summary_bytes: u64) -> Cut<'a> {
        let CompactionConfig { recent_turn_budget, prefer_anchors, .. } = self.config;
        let limit = within(self.window_tokens).saturating_mul(4);
        Cut::new(messages, summary_bytes, recent_turn_budget, limit, prefer_anchors)
    }
}

/// Tokens that a context may have in a window; no limit if the window is unknown.
const fn within(window_tokens: u64) -> u64 {
    match window_tokens {
        0 => u64::MAX,
        window => (window as u128 * 4 / 5) as u64,
    }
}

/// Makes the default compactor for a model with this window; 0 is unknown.
///
/// # Errors
/// None in this build.
pub fn default_compactor(config: CompactionConfig, window_tokens: u64) -> Result<SharedCompactor, SessionError> {
    Ok(Arc::new(DefaultCompactor::new(config, window_tokens)))
}

impl Compactor for DefaultCompactor {
    fn should_compact(&self, context: &CompactionContext) -> bool {
        let threshold = self.config.auto_compact_threshold.min(within(context.window_tokens));
        let tokens = context.last_input_tokens.max(context.estimated_history_tokens).max(context.request_tokens);
        let bytes_max = self.config.max_request_bytes;
        let is_large = tokens >= threshold || (bytes_max > 0 && context.request_bytes >= bytes_max);
        is_large && !self.is_guarded(context)
    }

    fn compaction_prompt(&self) -> &str {
        COMPACTION_PROMPT
    }

    fn max_summary_tokens(&self) -> u32 {
        self.config.max_summary_tokens
    }

    /// The six rules of the specification, by their numbers.
    fn rebuild_history(&self, messages: &[Message], summary: &str) -> CompactionResult {
        // Rule 2: one user message with the summary.
        let summary = summary_message(summary);
        // Rules 3 and 4: the newest turns that are within the budget.
        let cut = self.cut(messages, message_bytes(&summary));
        let (mut system, mut state, mut retained, mut discarded) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (at, message) in messages.iter().enumerate() {
            let part = match message {
                // Rule 1: the system prompt as it is.
                Message::System { .. } => &mut system,
                Message::SystemReminder { .. } | Message::Pin { .. } => &mut state,
                _ if cut.keeps(at) => &mut retained,
                // Rule 6: whatever is not retained is discarded, in its order.
                _ => &mut discarded,
            };
            part.push(message.clone());
        }
        // Rule 5: the turns in their order behind the summary.
        let messages = system.into_iter().chain([summary]).chain(state).chain(retained).collect();
        CompactionResult { messages, discarded }
    }

    fn plan(&self, messages: &[Message], summary_bytes: u64) -> Option<CompactionPlan> {
        let cut = self.cut(messages, summary_bytes);
        let retained = (0..messages.len()).filter(|at| cut.keeps(*at)).collect();
        Some(CompactionPlan { retained, anchor: cut.anchor() })
    }

    fn masks_tool_results(&self) -> bool {
        self.config.mask_tool_results
    }
}
