//! Output sink for tools: keeps the head and the tail, and puts output past a limit into a blob.
//!
//! Large output is never held in memory or in the context.

use std::sync::{Arc, PoisonError, atomic::AtomicU64};

use tokio::sync::{Mutex, mpsc, oneshot};

use super::{Answer, Asking, ChangeLog, Question, ToolError, image::Picture, prefix, suffix};
use crate::{
    ids::SessionId,
    redact::StreamRedactor,
    session::message::{BlobRef, Body, Image},
    store::{BlobStore, BlobWriter, StoreError},
};

/// Images of one call.
pub(crate) const IMAGES_MAX: usize = 8;

/// Limits of a tool's output.
#[derive(Clone, Copy, Debug)]
pub struct OutputLimits {
    /// Bytes of output that the event holds.
    pub inline_bytes: usize,
    /// Bytes of the beginning, and of the end, that the event holds beside a blob.
    pub excerpt_bytes: usize,
    /// Bytes of output after which the tool is ended.
    pub hard_cap_bytes: u64,
}

impl Default for OutputLimits {
    fn default() -> Self {
        Self { inline_bytes: 32 * 1024, excerpt_bytes: 4 * 1024, hard_cap_bytes: 64 * 1024 * 1024 }
    }
}

/// Sink for a tool's output and progress.
pub struct OutputSink {
    limits: OutputLimits,
    blobs: Arc<dyn BlobStore>,
    session_id: SessionId,
    changes: Arc<ChangeLog>,
    state: Mutex<SinkState>,
    progress: mpsc::Sender<String>,
    /// Replaces secrets in progress before any of it is dropped: otherwise the half of a secret could be shown.
    progress_redactor: std::sync::Mutex<StreamRedactor>,
    confinement: std::sync::Mutex<Option<String>>,
    images: Mutex<Vec<Image>>,
    questions: Option<mpsc::Sender<Asking>>,
}

struct SinkState {
    /// Replaces configured secrets before anything is stored.
    redactor: StreamRedactor,
    /// The whole text while it is short, later its head.
    head: String,
    /// The newest bytes once the text went to a blob.
    tail: String,
    bytes: u64,
    /// True once the hard cap was reached.
    is_full: bool,
    writer: Option<Box<dyn BlobWriter>>,
}

impl OutputSink {
    /// Makes a sink that puts long output into `blobs` and sends progress to `progress`.
    #[must_use]
    pub fn new(
        limits: OutputLimits,
        blobs: Arc<dyn BlobStore>,
        session_id: SessionId,
        redactor: StreamRedactor,
        progress: mpsc::Sender<String>,
    ) -> Self {
        let progress_redactor = std::sync::Mutex::new(redactor.restart());
        let changes = Arc::new(ChangeLog::new(blobs.clone(), session_id, true, Arc::<AtomicU64>::default()));
        let state =
            SinkState { redactor, head: String::new(), tail: String::new(), bytes: 0, is_full: false, writer: None };
        Self {
            limits,
            blobs,
            session_id,
            changes,
            state: Mutex::new(state),
            progress,
            progress_redactor,
            confinement: std::sync::Mutex::default(),
            images: Mutex::default(),
            questions: None,
        }
    }

    /// Sends questions to `questions`. Without it they are declined.
    #[must_use]
    pub fn with_questions(self, questions: mpsc::Sender<Asking>) -> Self {
        Self { questions: Some(questions), ..self }
    }

    /// Asks a person, and waits for the answer; the call's time stands still meanwhile. Dropped, it takes the question
    /// back.
    pub async fn ask(&self, question: Question) -> Answer {
        let Some(questions) = &self.questions else { return Answer::Declined };
        let (reply, answer) = oneshot::channel();
        match questions.send(Asking { question, reply }).await {
            Ok(()) => answer.await.unwrap_or(Answer::Cancelled),
            Err(_) => Answer::Cancelled,
        }
    }

    /// Notes changed files in `changes`.
    pub(crate) fn with_changes(self, changes: Arc<ChangeLog>) -> Self {
        Self { changes, ..self }
    }

    /// Returns the log of the files that the call changes. A tool that replaces files notes them there, so that they
    /// can be put back.
    #[must_use]
    pub fn changes(&self) -> Arc<ChangeLog> {
        self.changes.clone()
    }

    /// Appends to the output.
    ///
    /// # Errors
    /// [`ToolError::OutputTooLarge`] past the hard cap, [`ToolError::Failed`] if a blob cannot be written.
    pub async fn write(&self, text: &str) -> Result<(), ToolError> {
        let mut state = self.state.lock().await;
        let clean = state.redactor.push(text).into_owned();
        self.keep(&mut state, &clean).await
    }

    async fn keep(&self, state: &mut SinkState, text: &str) -> Result<(), ToolError> {
        if state.is_full || state.bytes + text.len() as u64 > self.limits.hard_cap_bytes {
            // The output before the limit is kept.
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

    /// Reports progress to followers. It may be dropped if none keeps up.
    pub fn progress(&self, text: impl Into<String>) {
        self.send_progress(|redactor| redactor.push(&text.into()).into_owned());
    }

    /// Ends the progress.
    pub(crate) fn end_progress(&self) {
        self.send_progress(StreamRedactor::finish);
    }

    fn send_progress(&self, take: impl FnOnce(&mut StreamRedactor) -> String) {
        let text = take(&mut self.progress_redactor.lock().unwrap_or_else(PoisonError::into_inner));
        if !text.is_empty() {
            // A full channel means that progress comes faster than it is shown, so some of it may be lost.
            drop(self.progress.try_send(text));
        }
    }

    /// Adds an image to the output, with a line that describes it, for models that see and for those that do not.
    ///
    /// # Errors
    /// [`ToolError::Refused`] if it is no image that models take, [`ToolError::Failed`] if it cannot be stored.
    pub async fn image(&self, bytes: &[u8]) -> Result<(), ToolError> {
        let Picture { media_type, width, height } = Picture::of(bytes).map_err(ToolError::Refused)?;
        let mut images = self.images.lock().await;
        if images.len() >= IMAGES_MAX {
            let message = format!("a call returns at most {IMAGES_MAX} images; ask for fewer");
            return Err(ToolError::Refused(message));
        }
        // First, because nothing names a blob whose line has no room.
        self.write(&format!("[Image: {media_type}, {width} x {height} pixels, {} bytes]", bytes.len())).await?;
        let failed = |error: StoreError| ToolError::Failed(format!("the image could not be stored: {error}"));
        let mut writer = self.blobs.writer(self.session_id);
        writer.write(bytes).await.map_err(failed)?;
        let (blob, bytes) = writer.finish().await.map_err(failed)?;
        images.push(Image { media_type: media_type.to_owned(), blob, bytes, width, height });
        Ok(())
    }

    /// Takes the images of the output.
    pub async fn take_images(&self) -> Vec<Image> {
        std::mem::take(&mut *self.images.lock().await)
    }

    /// Says what confined the call while it ran; `None` if it did not run.
    pub fn set_confinement(&self, confinement: Option<String>) {
        *self.confinement.lock().unwrap_or_else(PoisonError::into_inner) = confinement;
    }

    /// Returns what confined the call.
    #[must_use]
    pub fn confinement(&self) -> Option<String> {
        self.confinement.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns true if the tool passed the hard cap.
    pub(crate) async fn is_full(&self) -> bool {
        self.state.lock().await.is_full
    }

    /// Ends the output.
    ///
    /// # Errors
    /// [`ToolError::Failed`] if the blob cannot be finished.
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
