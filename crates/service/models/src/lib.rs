//! The seam to language models: one trait, the request it takes and the parts it streams.
//!
//! No vendor's type crosses this file. Retries, timeouts and budgets are the engine's, not a client's.

pub mod scripted;
pub mod vendors;

mod resolve;
mod retry;

use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::BoxStream;
pub use meerkat_words::model::{ModelError, StopReason, Usage};

pub use resolve::{ModelResolver, ResolvedModel, StaticModels};
pub use retry::RetryPolicy;

use meerkat_words::message::{Message, RawJson, ToolCall};

/// Bytes that an answer's calls and opaque parts may have together; they stand in an event, which has a limit.
pub const ARGUMENTS_BYTES_MAX: usize = 96 * 1024;

/// A language model that answers with a stream.
#[async_trait]
pub trait ModelClient: Send + Sync {
    /// The vendor, as it stands in events and reasoning blocks: `scripted`, `anthropic`, `openai`, `gemini`.
    fn vendor(&self) -> &str;

    /// Sends the request and answers with its parts as they come.
    ///
    /// The stream ends after [`ModelPart::End`] or an error; a stream that ends without either was cut,
    /// and the engine treats it as [`ModelStreamIncomplete`](meerkat_errors::ErrorCode::ModelStreamIncomplete). Dropping the stream cancels the call.
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
