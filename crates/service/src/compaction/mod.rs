//! The contract of context compaction: when to compact, and how the context is rebuilt.
//!
//! The contract is always compiled, like the engine's own part: checks of any compactor's result, masking, and the
//! summary without a model. Only [`DefaultCompactor`] needs the capability `session-compaction`.
//!
//! ```
//! use meerkat_service::compaction::CompactionConfig;
//!
//! let config = CompactionConfig {
//!     auto_compact_threshold: 100_000,
//!     recent_turn_budget: 4,
//!     max_summary_tokens: 4096,
//!     min_turns_between_compactions: 3,
//!     ..CompactionConfig::default()
//! };
//! assert_eq!(config, CompactionConfig::default());
//! ```

#[cfg(not(feature = "session-compaction"))]
mod disabled;
#[cfg(feature = "session-compaction")]
mod enabled;
pub(crate) mod rebuilt;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

#[cfg(not(feature = "session-compaction"))]
pub use disabled::default_compactor;
#[cfg(feature = "session-compaction")]
pub use enabled::{DefaultCompactor, default_compactor};

pub use meerkat_words::compaction::{COMPACTION_PROMPT, CompactionConfig, SUMMARY_TOKENS_MAX};

use crate::session::message::{Body, FILE_TEXT_BYTES_MAX, Message, Shown};

/// First words of the user message that brings a summary into the context.
pub const SUMMARY_PREFIX: &str = "\
    [Context compacted] A previous context produced the following summary of work so far. \
    The current tool and session state is preserved. \
    Use this summary to continue without duplicating work:";

/// Bytes of the message with a summary, as JSON. A longer one would not fit its event whole.
pub(crate) const SUMMARY_BYTES_MAX: u64 = 96 * 1024;

/// Facts for a compactor's decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompactionContext {
    /// Input tokens of the last model call.
    pub last_input_tokens: u64,
    /// Messages of the live context.
    pub message_count: usize,
    /// Estimated tokens of the live context.
    pub estimated_history_tokens: u64,
    /// The turn of the last compaction that was tried, counted as `current_turn` is.
    pub last_compaction_turn: Option<u32>,
    /// The current turn, from 0, counted in turns that have started.
    pub current_turn: u32,
    /// Estimated tokens of the next request, tool schemas included.
    pub request_tokens: u64,
    /// Bytes of the next request.
    pub request_bytes: u64,
    /// The model's window.
    pub window_tokens: u64,
    /// Steps of this turn since the last compaction that was tried.
    pub steps_since_compaction: u32,
    /// True if a turn is open that has had a step.
    pub in_turn: bool,
}

/// A rebuilt context.
#[derive(Clone, Debug)]
pub struct CompactionResult {
    /// The new context.
    pub messages: Vec<Message>,
    /// Messages that left it, in their order.
    pub discarded: Vec<Message>,
}

/// What would stay of a context, said before there is a summary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompactionPlan {
    /// Indexes of the messages that stay. The system prompt, reminders and pins stay in any case.
    pub retained: Vec<usize>,
    /// Index of the user message that begins the turn which the cut moved back to, if it did.
    pub anchor: Option<usize>,
}

/// Decides when to compact, and rebuilds the context from a summary. The last two methods have defaults.
pub trait Compactor: Send + Sync {
    /// Returns true if it compacts now.
    fn should_compact(&self, context: &CompactionContext) -> bool;

    /// Prompt for the model that writes the summary.
    fn compaction_prompt(&self) -> &str;

    /// Tokens that the summary may have.
    fn max_summary_tokens(&self) -> u32;

    /// Rebuilds the context. A system message comes first in `messages` and stays unchanged. The summary follows it, as
    /// a user message that begins with [`SUMMARY_PREFIX`]. Retained messages must stay unchanged and in order; among
    /// them are the prompt and the newest message of a turn that runs, or could be resumed. Reminders and pins may be
    /// retained or discarded: the session keeps them in either case. It is called once for each summary; without a plan
    /// also for a preview, or before a summary that no model writes, with an empty one.
    fn rebuild_history(&self, messages: &[Message], summary: &str) -> CompactionResult;

    /// Says what would stay beside a summary whose message has so many bytes. Without a plan the model reads the whole
    /// context for its summary, even if nothing can leave.
    fn plan(&self, messages: &[Message], summary_bytes: u64) -> Option<CompactionPlan> {
        let _ = (messages, summary_bytes);
        None
    }

    /// Returns true if stale tool results are masked first.
    fn masks_tool_results(&self) -> bool {
        false
    }
}

/// A compactor that can be shared.
pub type SharedCompactor = Arc<dyn Compactor>;

/// Estimates tokens from the JSON's length: bytes / 4.
#[must_use]
pub fn estimate_tokens(messages: &[Message]) -> u64 {
    messages.iter().map(json_bytes).sum::<u64>() / 4
}

/// Returns true for characters that a summary may have; control characters are removed.
pub(crate) fn is_fit(character: &char) -> bool {
    !character.is_control() || matches!(character, '\n' | '\t')
}

/// The message that brings a summary into the context, without white space at the summary's beginning.
pub(crate) fn summary_message(summary: &str) -> Message {
    let summary: String = summary.chars().filter(is_fit).collect();
    Message::user(format!("{SUMMARY_PREFIX}\n\n{}", summary.trim_start()))
}

/// The summary that a message brings; white space between the prefix and the summary is no part of it.
pub(crate) fn summary_of(message: &Message) -> Option<&str> {
    match message {
        Message::User { content: Body::Inline(text), blocks } if blocks.is_empty() => {
            Some(text.strip_prefix(SUMMARY_PREFIX)?.trim_start())
        }
        _ => None,
    }
}

/// Returns true for a reminder or a pin.
pub(crate) const fn is_state(message: &Message) -> bool {
    matches!(message, Message::SystemReminder { .. } | Message::Pin { .. })
}

/// Bytes of a message in a request: its JSON, and the whole texts of its blobs.
pub(crate) fn message_bytes(message: &Message) -> u64 {
    let of = |body: &Body| match body {
        Body::Inline(_) => 0,
        Body::Blob(blob) => blob.bytes,
    };
    json_bytes(message) + message.texts().map(of).sum::<u64>()
}

/// Bytes that an image counts for: those of 1,600 tokens. Vendors make large ones smaller before they count them.
pub(crate) const IMAGE_BYTES: u64 = 1_600 * 4;
/// The most pages of a PDF that count: vendors read no more.
const PDF_PAGES_MAX: u64 = 1_000;
/// Bytes of a PDF that count as a page if it does not show its pages. They are so many that the largest prompt fits the
/// windows of today: a scan has few pages, and of the rest the vendor is the judge.
const PDF_PAGE_BYTES: u64 = 1024 * 1024;

/// Bytes that an image or a PDF counts for. A page is shown as an image.
pub(crate) fn shown_bytes(shown: &Shown<'_>) -> u64 {
    let pages = || shown.pages.map_or(shown.bytes.div_ceil(PDF_PAGE_BYTES), u64::from).clamp(1, PDF_PAGES_MAX);
    if shown.is_pdf() { pages() * IMAGE_BYTES } else { IMAGE_BYTES }
}

/// Messages that were measured in this process.
static MEASURED: AtomicU64 = AtomicU64::new(0);

/// Counts the messages measured in this process: checks before a model call measure none.
#[must_use]
pub fn messages_measured() -> u64 {
    MEASURED.load(Ordering::Relaxed)
}

/// The length of a message as JSON, counted without writing it anywhere, and what its images and files count for.
pub(crate) fn json_bytes(message: &Message) -> u64 {
    struct Count(u64);

    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len() as u64;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    MEASURED.fetch_add(1, Ordering::Relaxed);
    let mut count = Count(0);
    // By the specification, a message that cannot be written counts as 0.
    let json = serde_json::to_writer(&mut count, message).map_or(0, |()| count.0);
    let shown: u64 = message.shown().map(|shown| shown_bytes(&shown)).sum();
    json + shown + message.text_files().map(|file| file.bytes.min(FILE_TEXT_BYTES_MAX)).sum::<u64>()
}
