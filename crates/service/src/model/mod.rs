//! The seam to language models: one trait, the request it takes and the parts it streams.
//!
//! No vendor's type crosses this file. Retries, timeouts and budgets are the engine's, not a client's.

pub mod scripted;
pub mod vendors;

mod resolve;
mod retry;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::stream::BoxStream;
use meerkat_errors::{ErrorBody, ErrorCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use resolve::{ModelResolver, ResolvedModel, StaticModels};
pub use retry::RetryPolicy;

use crate::session::message::{Message, RawJson, ToolCall};

/// Bytes that an answer's calls and opaque parts may have together; they stand in an event, which has a limit.
pub(crate) const ARGUMENTS_BYTES_MAX: usize = 96 * 1024;

/// A language model that answers with a stream.
#[async_trait]
pub trait ModelClient: Send + Sync {
    /// The vendor, as it stands in events and reasoning blocks: `scripted`, `anthropic`, `openai`, `gemini`.
    fn vendor(&self) -> &str;

    /// Sends the request and answers with its parts as they come.
    ///
    /// The stream ends after [`ModelPart::End`] or an error; a stream that ends without either was cut,
    /// and the engine treats it as [`ErrorCode::ModelStreamIncomplete`]. Dropping the stream cancels the call.
    ///
    /// # Errors
    /// A failure before the first part.
    async fn stream_response(&self, request: ModelRequest) -> Result<ModelStream, ModelError>;
}

/// The parts of an answer as they come.
pub type ModelStream = BoxStream<'static, Result<ModelPart, ModelError>>;

/// One request to a model: the live context, rendered in order.
#[derive(Clone, Debug)]
pub struct ModelRequest {
    /// The model's name, as its vendor knows it.
    pub model: String,
    /// The system prompt, whole.
    pub system: Option<Arc<str>>,
    /// The messages, none of them `System`; every call is followed by its results; user bodies are inline.
    pub messages: Vec<Arc<Message>>,
    /// Reminders and pins as one last user block, behind the cache breakpoint.
    pub tail: Option<Arc<str>>,
    /// The tools that the model may call.
    pub tools: Arc<[ToolSpec]>,
    /// Whether the model is to call none of them, although they stay what they are for the prompt cache's sake.
    pub forbids_tools: bool,
    /// The most tokens that the answer may have; the vendor's own limit where `None`.
    pub max_output_tokens: Option<u32>,
    /// Tokens that a model which thinks may have besides: vendors count its thoughts as output.
    pub thinking_tokens: u32,
    /// How often this very step was tried before.
    pub attempt: u32,
}

/// What a model is told about a tool.
#[derive(Clone, Debug)]
pub struct ToolSpec {
    /// Its name: letters, digits, `_` and `-`, at most 64.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// The JSON schema of its arguments.
    pub schema: RawJson,
}

/// A part of an answer.
#[derive(Clone, Debug)]
pub enum ModelPart {
    /// More text.
    Text(String),
    /// More readable reasoning.
    Reasoning(String),
    /// A sign of life that shows nothing: so many bytes of arguments, hidden reasoning, comments or pings.
    Hidden(usize),
    /// The end: everything that was said, whole.
    End(ModelAnswer),
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct ModelAnswer {
    /// What was said, in order. The engine names each call anew; a vendor's own id goes no further.
    pub blocks: Vec<AnswerBlock>,
    /// Why the model stopped.
    pub stop_reason: StopReason,
    /// What it cost.
    pub usage: Usage,
}

/// A block of a whole answer.
#[derive(Clone, Debug)]
pub enum AnswerBlock {
    /// Text.
    Text(String),
    /// Reasoning, with what the vendor needs to take it back.
    Reasoning {
        /// The readable part.
        text: String,
        /// The opaque part.
        opaque: Option<RawJson>,
    },
    /// A tool call. Arguments that are no JSON object come as a JSON string of the raw text.
    ToolCall(ToolCall),
}

/// Why a model stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// It said what it had to say.
    EndTurn,
    /// It wants tools to run.
    ToolUse,
    /// It reached its limit of output tokens.
    MaxTokens,
    /// It declined to answer.
    Refusal,
    /// Its vendor's filter ended the answer.
    ContentFilter,
    /// It ended without a word and without a call.
    Empty,
}

/// Tokens of one call, a turn, or a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// Tokens sent, cached ones included.
    pub input_tokens: u64,
    /// Tokens answered, reasoning included.
    pub output_tokens: u64,
    /// Tokens of the input that the vendor had cached.
    pub cached_tokens: u64,
}

impl Usage {
    /// Adds another usage.
    pub fn add(&mut self, other: Self) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.cached_tokens = self.cached_tokens.saturating_add(other.cached_tokens);
    }

    /// What is left of it without another usage.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_sub(other.input_tokens),
            output_tokens: self.output_tokens.saturating_sub(other.output_tokens),
            cached_tokens: self.cached_tokens.saturating_sub(other.cached_tokens),
        }
    }

    /// Input and output together, as budgets count.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

/// A failure of a model call, classed by code.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct ModelError {
    /// One of the `MODEL_*` codes.
    pub code: ErrorCode,
    /// What happened, without secrets.
    pub message: String,
    /// The vendor's HTTP status, where there was one.
    pub status: Option<u16>,
    /// How long the vendor asks to wait.
    pub retry_after: Option<Duration>,
    /// Whether trying again at once is of no use, whatever the code: a used-up quota, a server that is not there.
    pub is_lasting: bool,
    /// Whose model it was; the engine fills it in.
    pub vendor: Option<String>,
}

impl ModelError {
    /// A failure of this class.
    #[must_use]
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), status: None, retry_after: None, is_lasting: false, vendor: None }
    }

    /// The body that is sent for it.
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
