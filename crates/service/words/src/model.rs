//! Outcome of a model's answer: stop reason, usage, failure.

use std::time::Duration;

use meerkat_errors::{ErrorBody, ErrorCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Reason that a model stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The answer is complete.
    EndTurn,
    /// The model calls tools.
    ToolUse,
    /// The limit of output tokens is reached.
    MaxTokens,
    /// The model declined to answer.
    Refusal,
    /// The vendor's filter ended the answer.
    ContentFilter,
    /// The answer has neither text nor calls.
    Empty,
}

/// Tokens of one call, a turn, or a session, counted in one way whatever the vendor's bill looks like. The parts that
/// are 0 in most bills are written only if they are not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// Tokens sent, including those read from the vendor's cache or written to it.
    pub input_tokens: u64,
    /// Tokens answered, reasoning included.
    pub output_tokens: u64,
    /// Tokens of the input that the vendor had cached.
    pub cached_tokens: u64,
    /// Tokens of the input that the vendor wrote to its cache. Absent if 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cache_write_tokens: u64,
    /// Tokens of the output that were reasoning. Absent if 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reasoning_tokens: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(tokens: &u64) -> bool {
    *tokens == 0
}

impl Usage {
    /// Adds another usage.
    pub fn add(&mut self, other: Self) {
        *self = self.each(other, u64::saturating_add);
    }

    /// Subtracts another usage.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        self.each(other, u64::saturating_sub)
    }

    fn each(self, other: Self, change: fn(u64, u64) -> u64) -> Self {
        Self {
            input_tokens: change(self.input_tokens, other.input_tokens),
            output_tokens: change(self.output_tokens, other.output_tokens),
            cached_tokens: change(self.cached_tokens, other.cached_tokens),
            cache_write_tokens: change(self.cache_write_tokens, other.cache_write_tokens),
            reasoning_tokens: change(self.reasoning_tokens, other.reasoning_tokens),
        }
    }

    /// Input and output together, as budgets count.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

/// Failure of a model call, classed by code.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct ModelError {
    /// One of the `MODEL_*` codes.
    pub code: ErrorCode,
    /// Message for people, without secrets.
    pub message: String,
    /// The vendor's HTTP status, if there was one.
    pub status: Option<u16>,
    /// Wait that the vendor asks for.
    pub retry_after: Option<Duration>,
    /// True if an immediate retry is useless, whatever the code: a used-up quota, a server that cannot be reached.
    pub is_lasting: bool,
    /// Vendor of the model; the engine fills it in.
    pub vendor: Option<String>,
}

impl ModelError {
    /// Makes a failure of this class.
    #[must_use]
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), status: None, retry_after: None, is_lasting: false, vendor: None }
    }

    /// Returns the body that surfaces send.
    #[must_use]
    pub fn body(&self) -> ErrorBody {
        let mut body = ErrorBody::with_message(self.code, self.message.clone());
        if let Some(vendor) = &self.vendor {
            body = body.detail("vendor", vendor.clone());
        }
        if let Some(status) = self.status {
            body = body.detail("status", status);
        }
        if let Some(wait) = self.retry_after {
            body = body.detail("retry_after_ms", u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        }
        body
    }
}
