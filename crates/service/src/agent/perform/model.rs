//! One model call: bodies from blobs, the stream, its idle timeout, retries, redaction.
//!
//! A call is tried again only while nothing of it has become visible.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc, time::Duration};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::Bytes;
use futures::StreamExt as _;
use meerkat_errors::ErrorCode;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Outcome, allowed};
use crate::{
    agent::{Ports, images::sent, render::Rendered},
    ids::SessionId,
    model::{
        ARGUMENTS_BYTES_MAX, AnswerBlock, ModelAnswer, ModelError, ModelPart, ModelRequest, ModelStream, ResolvedModel,
        RetryPolicy,
    },
    prompt::{FILE_BYTES_MAX, begins_pdf},
    redact::StreamRedactor,
    session::{
        message::{Body, FILE_TEXT_BYTES_MAX, Message, RawJson},
        reminder::{without_forged_tags, without_tags},
    },
    store::StoreError,
    tool::{IMAGE_BYTES_MAX, Picture, prefix},
};

/// Bytes that one answer may have; more is refused.
const ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Bytes of an answer that are never shown: frames of arguments, hidden reasoning, pings. Frames have many times the
/// bytes of their content.
const HIDDEN_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Bytes of a request's images and PDFs together, in base64: those of the largest prompt. Vendors refuse requests of
/// 32 MiB.
const IMAGES_BYTES_MAX: usize = 28 * 1024 * 1024;
/// Bytes that are counted for each block besides.
const BLOCK_BYTES: usize = 64;
/// Bytes of a failure's message; more is cut.
const MESSAGE_BYTES_MAX: usize = 2 * 1024;

/// The inputs of a model call.
pub(crate) struct ModelEffect {
    pub(crate) ports: Arc<Ports>,
    pub(crate) session_id: SessionId,
    pub(crate) model: ResolvedModel,
    /// True if the answer is shown while it arrives; a hidden call may always be retried.
    pub(crate) is_shown: bool,
}

/// End of one attempt.
enum Attempt {
    Answered(ModelAnswer),
    Failed { error: ModelError, partial: String, is_visible: bool },
    Cancelled { partial: String },
}

/// Calls the model until it answers, fails for good, or is cancelled.
pub(crate) async fn call_model(
    effect: ModelEffect,
    rendered: Rendered,
    outcomes: mpsc::Sender<Outcome>,
    cancel: CancellationToken,
) {
    let last = tokio::select! {
        biased;
        () = cancel.cancelled() => Outcome::ModelFailed { error: None, partial: String::new() },
        request = load_bodies(&effect, rendered) => match request {
            Ok(request) => attempts(&effect, request, &outcomes, &cancel).await,
            Err(error) => Outcome::Broken(crate::agent::decide::internal(&format!("a body could not be read: {error}"))),
        },
    };
    // The actor reads until its effect ends, so the channel closes only with the whole session.
    drop(outcomes.send(last).await);
}

async fn attempts(
    effect: &ModelEffect,
    mut request: ModelRequest,
    outcomes: &mpsc::Sender<Outcome>,
    cancel: &CancellationToken,
) -> Outcome {
    let turn = &effect.ports.options.turn;
    let policy = RetryPolicy {
        attempts: turn.model_attempts,
        base: Duration::from_millis(turn.retry_base_ms),
        max: Duration::from_millis(turn.retry_max_ms),
    };
    let most = Some(turn.retry_total_ms).filter(|most| *most != 0).map_or(Duration::MAX, Duration::from_millis);
    let mut waited = Duration::ZERO;
    loop {
        let (error, partial, is_visible) = match attempt(effect, request.clone(), outcomes, cancel).await {
            Attempt::Answered(answer) => return Outcome::Answered(answer),
            Attempt::Cancelled { partial } => return Outcome::ModelFailed { error: None, partial },
            Attempt::Failed { error, partial, is_visible } => (error, partial, is_visible),
        };
        request.attempt += 1;
        let mut wait = policy.wait(&error, request.attempt, effect.ports.world.ids.as_ref());
        if error.code == ErrorCode::ModelRejected && effect.model.client.asks_by_mode(&request) {
            // No table knows all models, servers and schemas that are without the mode.
            request.answers_by_tool = true;
            wait = Some(Duration::ZERO);
        } else if error.code == ErrorCode::ModelRejected && !request.images.is_empty() {
            // An image that a vendor refuses must not end every later turn.
            (request.images, request.images_refused) = (Arc::default(), true);
            // The mode was not at fault then: models that see need not have tools.
            request.answers_by_tool = false;
            wait = Some(Duration::ZERO);
        }
        let Some(wait) = wait.filter(|wait| !is_visible && waited.saturating_add(*wait) <= most) else {
            return Outcome::ModelFailed { error: Some(error), partial };
        };
        waited += wait;
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        drop(outcomes.send(Outcome::Retrying { attempt: request.attempt, wait_ms, error }).await);
        tokio::select! {
            biased;
            () = cancel.cancelled() => return Outcome::ModelFailed { error: None, partial },
            () = effect.ports.world.clock.sleep(wait) => {}
        }
    }
}

/// Makes one call. Its parts are read one by one; each wait is bounded by the idle timeout.
async fn attempt(
    effect: &ModelEffect,
    request: ModelRequest,
    outcomes: &mpsc::Sender<Outcome>,
    cancel: &CancellationToken,
) -> Attempt {
    let mut reader = Reader::new(effect, outcomes, request.output.is_some());
    let started = match bounded(effect, cancel, effect.model.client.stream_response(request)).await {
        Some(Ok(stream)) => stream,
        Some(Err(error)) => return reader.fail(error),
        None => return Attempt::Cancelled { partial: String::new() },
    };
    let mut stream: ModelStream = started;
    loop {
        let next = async { Ok(stream.next().await) };
        let part = match bounded(effect, cancel, next).await {
            None => return reader.cancel(),
            Some(Err(error)) | Some(Ok(Some(Err(error)))) => return reader.fail(error),
            Some(Ok(None)) => {
                return reader.fail(ModelError::new(
                    ErrorCode::ModelStreamIncomplete,
                    "The model's answer ended before its end.",
                ));
            }
            Some(Ok(Some(Ok(part)))) => part,
        };
        match part {
            ModelPart::Text(text) => reader.push(false, &text).await,
            ModelPart::Reasoning(text) => reader.push(true, &text).await,
            ModelPart::Hidden(bytes) => reader.hidden_bytes = reader.hidden_bytes.saturating_add(bytes),
            ModelPart::End(answer) => {
                reader.flush().await;
                return reader.end(answer);
            }
        }
        if reader.bytes > ANSWER_BYTES_MAX {
            return reader.fail(too_large(ANSWER_BYTES_MAX));
        }
        if reader.hidden_bytes > HIDDEN_BYTES_MAX {
            return reader.fail(too_large(HIDDEN_BYTES_MAX));
        }
    }
}

/// Waits for `work` up to the idle timeout; `None` if the call was cancelled.
async fn bounded<T>(
    effect: &ModelEffect,
    cancel: &CancellationToken,
    work: impl Future<Output = Result<T, ModelError>>,
) -> Option<Result<T, ModelError>> {
    let idle_ms = effect.ports.options.turn.model_idle_timeout_ms;
    tokio::select! {
        biased;
        () = cancel.cancelled() => None,
        done = work => Some(done),
        () = effect.ports.world.clock.sleep(allowed(idle_ms)) => {
            let message = format!("The model sent nothing for {idle_ms} ms (turn.model_idle_timeout_ms).");
            Some(Err(ModelError::new(ErrorCode::ModelTimeout, message)))
        }
    }
}

fn too_large(limit: usize) -> ModelError {
    ModelError::new(ErrorCode::ModelRejected, format!("The model's answer passed {limit} bytes and was refused."))
}

/// The answer so far, with secrets replaced before anybody sees it.
struct Reader<'a> {
    effect: &'a ModelEffect,
    outcomes: &'a mpsc::Sender<Outcome>,
    redactor: StreamRedactor,
    /// True if its texts may be JSON, in which a secret can be escaped.
    is_json: bool,
    is_reasoning: bool,
    partial: String,
    bytes: usize,
    hidden_bytes: usize,
    is_visible: bool,
}

impl<'a> Reader<'a> {
    fn new(effect: &'a ModelEffect, outcomes: &'a mpsc::Sender<Outcome>, is_json: bool) -> Self {
        let redactor = effect.ports.secrets.stream();
        let (partial, is_reasoning, is_visible) = (String::new(), false, false);
        Self { effect, outcomes, redactor, is_json, is_reasoning, partial, bytes: 0, hidden_bytes: 0, is_visible }
    }

    async fn push(&mut self, is_reasoning: bool, text: &str) {
        self.bytes += text.len();
        if is_reasoning != self.is_reasoning {
            self.flush().await;
            self.is_reasoning = is_reasoning;
        }
        let shown = self.redactor.push(text).into_owned();
        self.show(shown).await;
    }

    async fn flush(&mut self) {
        let rest = self.redactor.finish();
        self.show(rest).await;
    }

    async fn show(&mut self, text: String) {
        if text.is_empty() || !self.effect.is_shown {
            return;
        }
        self.is_visible = true;
        if !self.is_reasoning {
            self.partial.push_str(&text);
        }
        drop(self.outcomes.send(Outcome::Delta { is_reasoning: self.is_reasoning, text }).await);
    }

    fn fail(self, error: ModelError) -> Attempt {
        // Replaced before it is cut: of a secret at the end a part would stay.
        let message = self.effect.ports.secrets.replace(&error.message);
        let message = prefix(&message, MESSAGE_BYTES_MAX).to_owned();
        let vendor = Some(self.effect.model.client.vendor().to_owned());
        let error = ModelError { message, vendor, ..error };
        Attempt::Failed { error, partial: self.partial, is_visible: self.is_visible }
    }

    fn cancel(self) -> Attempt {
        Attempt::Cancelled { partial: self.partial }
    }

    fn end(self, mut answer: ModelAnswer) -> Attempt {
        let secrets = &self.effect.ports.secrets;
        let mut bytes = 0;
        for block in &mut answer.blocks {
            let (name, arguments, opaque) = match block {
                AnswerBlock::Text(text) => {
                    if self.is_json
                        && let Ok(json) = RawJson::parse(text.trim())
                    {
                        let clean = secrets.replace_json(&json);
                        if clean != json {
                            clean.as_str().clone_into(text);
                        }
                    }
                    *text = secrets.replace(text).into_owned();
                    ("", None, None)
                }
                AnswerBlock::Reasoning { text, opaque } => {
                    // A signature is of the text as it was.
                    let is_changed = matches!(secrets.replace(text), Cow::Owned(_))
                        || opaque.as_ref().is_some_and(|opaque| secrets.replace_json(opaque) != *opaque);
                    if is_changed {
                        *text = secrets.replace(text).into_owned();
                        *opaque = None;
                    }
                    ("", None, opaque.as_mut())
                }
                AnswerBlock::ToolCall(call) => {
                    call.name = secrets.replace(&call.name).into_owned();
                    (call.name.as_str(), Some(&mut call.arguments), call.opaque.as_mut())
                }
            };
            bytes += BLOCK_BYTES + name.len();
            for json in arguments.into_iter().chain(opaque) {
                *json = secrets.replace_json(json);
                bytes += json.as_str().len();
            }
        }
        if bytes > ARGUMENTS_BYTES_MAX {
            return self.fail(too_large(ARGUMENTS_BYTES_MAX));
        }
        Attempt::Answered(answer)
    }
}

/// Reads bodies from blobs, so that a client gets whole texts. Tool results go as excerpts.
async fn load_bodies(effect: &ModelEffect, rendered: Rendered) -> Result<ModelRequest, StoreError> {
    let Rendered { mut request, system } = rendered;
    if let Some(system) = &system {
        request.system = Some(load(effect, system).await?.into());
    }
    for message in
        request.messages.iter_mut().filter(|message| message.texts().any(|body| matches!(body, Body::Blob(_))))
    {
        let mut whole = Message::clone(message);
        for body in whole.texts_mut() {
            *body = Body::Inline(load(effect, body).await?);
        }
        if let (true, Message::Assistant { content }) = (message.is_cut_off(), &whole) {
            whole = Message::cut_off(content);
        }
        // Bodies in the context itself were cleaned when they were added.
        *message = without_forged_tags(whole).into();
    }
    request.images = load_images(effect, &request).await?.into();
    request.files = load_files(effect, &request).await?;
    Ok(request)
}

/// Reads the images and PDFs of the request that are sent.
async fn load_images(effect: &ModelEffect, request: &ModelRequest) -> Result<BTreeMap<String, Arc<str>>, StoreError> {
    let (mut loaded, mut room_bytes) = (BTreeMap::new(), IMAGES_BYTES_MAX);
    let sent = sent(request.messages.iter().map(|message| &**message), &effect.model);
    for shown in sent.into_iter().rev() {
        let limit = if shown.is_pdf() { FILE_BYTES_MAX } else { IMAGE_BYTES_MAX } + 1;
        let bytes = effect.ports.blobs.read(effect.session_id, shown.blob, 0, limit).await?;
        // What a bundle says of a blob may be wrong.
        let is_kind = |bytes: &Bytes| match shown.is_pdf() {
            true => begins_pdf(bytes) && bytes.len() < limit,
            false => Picture::of(bytes).is_ok_and(|picture| picture.media_type == shown.media_type),
        };
        match bytes.filter(is_kind) {
            Some(bytes) => {
                let encoded = BASE64_STANDARD.encode(&bytes);
                let Some(left) = room_bytes.checked_sub(encoded.len()) else { break };
                room_bytes = left;
                loaded.insert(shown.blob.to_owned(), encoded.into());
            }
            None => tracing::warn!(shown.blob, "an image or a PDF is not there any more, and is not sent"),
        }
    }
    Ok(loaded)
}

/// Reads the beginnings of the request's text files.
async fn load_files(effect: &ModelEffect, request: &ModelRequest) -> Result<BTreeMap<String, Arc<str>>, StoreError> {
    let mut loaded = BTreeMap::new();
    let most = usize::try_from(FILE_TEXT_BYTES_MAX).unwrap_or(usize::MAX);
    for file in request.messages.iter().flat_map(|message| message.text_files()) {
        if loaded.contains_key(&file.blob) {
            continue;
        }
        let bytes = effect.ports.blobs.read(effect.session_id, &file.blob, 0, most).await?;
        let text = match &bytes {
            Some(bytes) => {
                // The last character may be cut.
                let text = bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid());
                let left_out = file.bytes.saturating_sub(text.len() as u64);
                let note = format!("\n[... {left_out} bytes left out; the whole is blob {} ...]", file.blob);
                format!("{}{}", without_tags(text), if left_out > 0 { &note } else { "" })
            }
            None => "[The text of this file is lost.]".to_owned(),
        };
        loaded.insert(file.blob.clone(), text.into());
    }
    Ok(loaded)
}

async fn load(effect: &ModelEffect, body: &Body) -> Result<String, StoreError> {
    match body {
        Body::Blob(blob) if effect.ports.blobs.read(effect.session_id, &blob.blob, 0, 1).await?.is_none() => {
            tracing::warn!(blob = blob.blob, "a text is lost, and its beginning and end are sent");
            Ok(format!("{}\n[The text between its beginning and its end is lost.]", body.excerpt()))
        }
        _ => effect.ports.load(effect.session_id, body).await,
    }
}
