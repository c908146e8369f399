//! Where a tool writes: a sink that keeps the head and the tail, and puts the whole into a blob past a limit.
//!
//! A gigabyte of output never stands in memory or in the context.

use std::sync::Arc;

use tokio::sync::{Mutex, mpsc};

use super::ToolError;
use crate::{
    ids::SessionId,
    redact::StreamRedactor,
    session::message::{BlobRef, Body},
    store::{BlobStore, BlobWriter, StoreError},
};

/// How much of a tool's output is kept where.
#[derive(Clone, Copy, Debug)]
pub struct OutputLimits {
    /// Output up to this many bytes stands in the event.
    pub inline_bytes: usize,
    /// Bytes of the beginning, and of the end, that stand in the event beside a blob.
    pub excerpt_bytes: usize,
    /// Output past this many bytes ends the tool.
    pub hard_cap_bytes: u64,
}

impl Default for OutputLimits {
    fn default() -> Self {
        Self { inline_bytes: 32 * 1024, excerpt_bytes: 4 * 1024, hard_cap_bytes: 64 * 1024 * 1024 }
    }
}

/// A tool's way to write its output and report progress.
pub struct OutputSink {
    limits: OutputLimits,
    blobs: Arc<dyn BlobStore>,
    session_id: SessionId,
    state: Mutex<SinkState>,
    progress: mpsc::Sender<String>,
    /// Replaces secrets in progress before any of it is dropped: of one whose other half was, a half would be shown.
    told: std::sync::Mutex<StreamRedactor>,
}

struct SinkState {
    /// Replaces configured secrets before anything is kept.
    redactor: StreamRedactor,
    /// The whole text while it is short, afterwards its head.
    head: String,
    /// The newest bytes once the text went to a blob.
    tail: String,
    bytes: u64,
    /// Whether the hard cap was reached.
    is_full: bool,
    writer: Option<Box<dyn BlobWriter>>,
}

impl OutputSink {
    /// A sink that puts long output into `blobs` and sends progress to `progress`.
    #[must_use]
    pub fn new(
        limits: OutputLimits,
        blobs: Arc<dyn BlobStore>,
        session_id: SessionId,
        redactor: StreamRedactor,
        progress: mpsc::Sender<String>,
    ) -> Self {
        let told = std::sync::Mutex::new(redactor.again());
        let state =
            SinkState { redactor, head: String::new(), tail: String::new(), bytes: 0, is_full: false, writer: None };
        Self { limits, blobs, session_id, state: Mutex::new(state), progress, told }
    }

    /// Appends to the output.
    ///
    /// # Errors
    /// [`ToolError::OutputTooLarge`] past the hard cap, [`ToolError::Failed`] where a blob cannot be written.
    pub async fn write(&self, text: &str) -> Result<(), ToolError> {
        let mut state = self.state.lock().await;
        let clean = state.redactor.push(text).into_owned();
        self.keep(&mut state, &clean).await
    }

    async fn keep(&self, state: &mut SinkState, text: &str) -> Result<(), ToolError> {
        if state.is_full || state.bytes + text.len() as u64 > self.limits.hard_cap_bytes {
            // What was written so far stays.
            state.is_full = true;
            return Err(ToolError::OutputTooLarge { limit: self.limits.hard_cap_bytes });
        }
        state.bytes += text.len() as u64;
        let failed = |error: StoreError| ToolError::Failed(format!("the output could not be stored: {error}"));
        if state.writer.is_none() {
            if state.head.len() + text.len() <= self.limits.inline_bytes {
                state.head.push_str(text);
                return Ok(());
            }
            let mut writer = self.blobs.writer(self.session_id);
            writer.write(state.head.as_bytes()).await.map_err(failed)?;
            state.tail = std::mem::take(&mut state.head);
            state.head = prefix(&state.tail, self.limits.excerpt_bytes).to_owned();
            let missing = self.limits.excerpt_bytes - state.head.len();
            if state.tail.len() < self.limits.excerpt_bytes {
                let more = prefix(text, missing).to_owned();
                state.head.push_str(&more);
            }
            state.writer = Some(writer);
        }
        if let Some(writer) = state.writer.as_mut() {
            writer.write(text.as_bytes()).await.map_err(failed)?;
        }
        state.tail.push_str(suffix(text, self.limits.excerpt_bytes));
        if state.tail.len() > 2 * self.limits.excerpt_bytes {
            state.tail = suffix(&state.tail, self.limits.excerpt_bytes).to_owned();
        }
        Ok(())
    }

    /// Tells followers how far the tool is. Told in passing: where nobody keeps up it is dropped.
    pub fn progress(&self, text: impl Into<String>) {
        self.tell(|told| told.push(&text.into()).into_owned());
    }

    /// No more progress comes.
    pub(crate) fn end_progress(&self) {
        self.tell(StreamRedactor::finish);
    }

    fn tell(&self, what: impl FnOnce(&mut StreamRedactor) -> String) {
        let text = what(&mut self.told.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        if !text.is_empty() {
            // A full channel means that progress comes faster than it is shown; one more or less does not matter.
            drop(self.progress.try_send(text));
        }
    }

    /// Whether the tool wrote more than it may.
    pub(crate) async fn is_full(&self) -> bool {
        self.state.lock().await.is_full
    }

    /// Ends the output.
    ///
    /// # Errors
    /// [`ToolError::Failed`] where the blob cannot be finished.
    pub async fn finish(&self) -> Result<Body, ToolError> {
        let mut state = self.state.lock().await;
        let rest = state.redactor.finish();
        let kept = self.keep(&mut state, &rest).await;
        if !matches!(kept, Ok(()) | Err(ToolError::OutputTooLarge { .. })) {
            kept?;
        }
        let head = std::mem::take(&mut state.head);
        let body = match state.writer.take() {
            None => Body::Inline(head),
            Some(writer) => {
                let (blob, bytes) = writer
                    .finish()
                    .await
                    .map_err(|error| ToolError::Failed(format!("the output could not be stored: {error}")))?;
                let tail = suffix(&state.tail, self.limits.excerpt_bytes).to_owned();
                Body::Blob(BlobRef { blob, bytes, head, tail })
            }
        };
        Ok(body)
    }
}

/// The longest beginning of at most `bytes` bytes that ends between characters.
pub(crate) fn prefix(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// The longest end of at most `bytes` bytes that starts between characters.
pub(crate) fn suffix(text: &str, bytes: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(bytes))..]
}
