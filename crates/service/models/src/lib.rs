//! Interface to language models: one trait, its request and the parts it streams.
//!
//! No vendor's type appears in this file. The engine does retries, timeouts and budgets, not a client.

pub mod scripted;
pub mod vendors;

mod resolve;
mod retry;
mod said;

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use futures::stream::BoxStream;
pub use meerkat_words::model::{ModelError, StopReason, Usage};

pub use resolve::{ModelResolver, ResolvedModel, StaticModels};
pub use retry::RetryPolicy;

use meerkat_words::{
    message::{Message, PDF, RawJson, ToolCall},
    options::ModelOptions,
    output::OutputSpec,
};

/// Most bytes of an answer's calls and opaque parts together; they are stored in an event, which has a limit.
pub const ARGUMENTS_BYTES_MAX: usize = 96 * 1024;

/// Language model that streams its answer.
#[async_trait]
pub trait ModelClient: Send + Sync {
    /// Vendor's name in events and reasoning blocks: `scripted`, `anthropic`, `openai`, `gemini`.
    fn vendor(&self) -> &str;

    /// Returns true if a model takes images; `model` is the vendor's name of it.
    fn sees_images(&self, model: &str) -> bool {
        let _ = model;
        false
    }

    /// Returns true if a model takes images or files of this type; `model` is the vendor's name of it. Without more of
    /// its own to say a client takes images as [`Self::sees_images`] says, and no PDFs.
    fn takes(&self, model: &str, media_type: &str) -> bool {
        media_type != PDF && self.sees_images(model)
    }

    /// Returns the name of the first option that is set and that the vendor does not have for this model; `model` is the
    /// vendor's name of it. A client has a limit of the answer alone unless it says so.
    fn lacks(&self, model: &str, options: &ModelOptions) -> Option<&'static str> {
        let _ = model;
        options.set().find(|name| *name != "max_output_tokens")
    }

    /// Returns true if it asks for the answer's schema in the vendor's own mode, which a vendor may refuse.
    fn asks_by_mode(&self, request: &ModelRequest) -> bool {
        let _ = request;
        false
    }

    /// Sends the request and returns the parts as they come.
    ///
    /// The stream ends after [`ModelPart::End`] or an error; a stream that ends without either was cut,
    /// and the engine treats it as [`ModelStreamIncomplete`](meerkat_errors::ErrorCode::ModelStreamIncomplete). Dropping the stream cancels the call.
    ///
    /// # Errors
    /// Returns a failure before the first part.
    async fn stream_response(&self, request: ModelRequest) -> Result<ModelStream, ModelError>;
}

/// Parts of an answer as they come.
pub type ModelStream = BoxStream<'static, Result<ModelPart, ModelError>>;

/// Request to a model: the live context, rendered in order.
#[derive(Clone, Debug, Default)]
pub struct ModelRequest {
    /// Name that the model's vendor uses.
    pub model: String,
    /// System prompt, whole.
    pub system: Option<Arc<str>>,
    /// Messages, none of them `System`; every call is followed by its results; user bodies are inline.
    pub messages: Vec<Arc<Message>>,
    /// Reminders and pins as one last user block, behind the cache breakpoint.
    pub tail: Option<Arc<str>>,
    /// Tools that the model may call.
    pub tools: Arc<[ToolSpec]>,
    /// True if the model must call none of them; they are still sent, to keep the prompt cache.
    pub forbids_tools: bool,
    /// How the model is asked; [`ModelClient::lacks`] names none of it.
    pub options: ModelOptions,
    /// Extra tokens for a model that thinks: vendors count its thoughts as output.
    pub thinking_tokens: u32,
    /// Schema that the answer must fit if it has no calls. A client sends it in the vendor's own mode, or as the tool
    /// [`ANSWER_TOOL`](meerkat_words::output::ANSWER_TOOL), whose arguments it returns as the answer's text.
    pub output: Option<Arc<OutputSpec>>,
    /// True if it goes as that tool in any case, because the vendor refused its mode.
    pub answers_by_tool: bool,
    /// Earlier attempts at this step.
    pub attempt: u32,
    /// Images and PDFs that the model is to see, in base64 by the names of their blobs. The others are left out. One that
    /// is named several times is counted, and sent, where it is named last.
    pub images: Arc<BTreeMap<String, Arc<str>>>,
    /// True if the vendor refused the request with its images and PDFs, which are left out now.
    pub images_refused: bool,
    /// Texts of the prompts' text files by the names of their blobs; of long ones the beginning and a note.
    pub files: BTreeMap<String, Arc<str>>,
}

/// Description of a tool for a model.
#[derive(Clone, Debug)]
pub struct ToolSpec {
    /// Its name: letters, digits, `_` and `-`, at most 64.
    pub name: String,
    /// Its purpose, for the model.
    pub description: String,
    /// JSON schema of its arguments.
    pub schema: RawJson,
}

impl ToolSpec {
    /// Counts the bytes that it adds to a request, roughly.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.name.len() + self.description.len() + self.schema.as_str().len()) as u64
    }
}

/// Part of an answer.
#[derive(Clone, Debug)]
pub enum ModelPart {
    /// Text to append.
    Text(String),
    /// Readable reasoning to append.
    Reasoning(String),
    /// Sign of life with no visible content: this many bytes of arguments, hidden reasoning, comments or pings.
    Hidden(usize),
    /// The whole answer, at the end.
    End(ModelAnswer),
}

/// Whole answer.
#[derive(Clone, Debug)]
pub struct ModelAnswer {
    /// Content, in order. The engine gives each call a new id; a vendor's own goes no further.
    pub blocks: Vec<AnswerBlock>,
    /// Reason that the model stopped.
    pub stop_reason: StopReason,
    /// Tokens used.
    pub usage: Usage,
}

/// Block of a whole answer.
#[derive(Clone, Debug)]
pub enum AnswerBlock {
    /// Text.
    Text(String),
    /// Reasoning, with the vendor's data for sending it back.
    Reasoning {
        /// The readable part.
        text: String,
        /// The opaque part.
        opaque: Option<RawJson>,
    },
    /// Tool call. Arguments that are not a JSON object come as a JSON string of the raw text.
    ToolCall(ToolCall),
}
