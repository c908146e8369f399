//! Configuration of context compaction.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::SessionError;

/// Prompt that asks a model for a summary.
pub const COMPACTION_PROMPT: &str = include_str!("prompts/compaction.txt");

/// Most tokens of a summary, whatever a config says.
pub const SUMMARY_TOKENS_MAX: u32 = 16_384;

crate::options::options! {
    /// Settings of the default compactor.
    #[derive(Copy, Eq)]
    CompactionConfig {
        /// Compacts before the context grows too long; otherwise only on request.
        enabled: bool = true,
        /// Tokens at which it compacts; 80 % of the model's window if that is less.
        #[schemars(range(min = 1))]
        auto_compact_threshold: u64 = 100_000,
        /// Recent turns to keep whole; in a turn that runs, its steps count first. Fewer stay if they do not fit.
        #[schemars(range(min = 1))]
        recent_turn_budget: usize = 4,
        /// Most tokens of a summary.
        #[schemars(range(min = 1, max = SUMMARY_TOKENS_MAX))]
        max_summary_tokens: u32 = 4096,
        /// Least turns between two compactions; within a turn, steps.
        #[schemars(range(min = 1))]
        min_turns_between_compactions: u32 = 3,
        /// Bytes of a request that trigger it as well; 0 for no limit.
        max_request_bytes: u64 = 0,
        /// Masks stale tool results before anything is summarised.
        mask_tool_results: bool = false,
        /// Moves the cut back to the nearest turn that finished a piece of work or resolved an error.
        prefer_anchors: bool = false,
    }
}

impl CompactionConfig {
    /// Checks the settings against the model's window; 0 if unknown.
    ///
    /// # Errors
    /// `INVALID_REQUEST` for the field that is not valid.
    pub fn check(&self, window_tokens: u64) -> Result<(), SessionError> {
        let refuse = |field: &str, why: String| Err(SessionError::invalid(format!("compaction.{field}"), why));
        let zeros = [
            ("auto_compact_threshold", self.auto_compact_threshold == 0),
            ("recent_turn_budget", self.recent_turn_budget == 0),
            ("max_summary_tokens", self.max_summary_tokens == 0),
            ("min_turns_between_compactions", self.min_turns_between_compactions == 0),
        ];
        if let Some((field, _)) = zeros.into_iter().find(|(_, is_zero)| *is_zero) {
            return refuse(field, "it must be at least 1".to_owned());
        }
        if self.max_summary_tokens > SUMMARY_TOKENS_MAX {
            return refuse("max_summary_tokens", format!("it must be at most {SUMMARY_TOKENS_MAX}"));
        }
        if window_tokens > 0 && u64::from(self.max_summary_tokens) >= window_tokens {
            return refuse("max_summary_tokens", format!("it must be less than the model's window of {window_tokens}"));
        }
        Ok(())
    }
}
