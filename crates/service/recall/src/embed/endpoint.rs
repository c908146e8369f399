//! An embedder over any server with OpenAI's `/v1/embeddings`.
//!
//! Its answers are checked: as many vectors as texts, all of one length, each component finite. The rules for its URL
//! are those of a model's vendor, and its key goes nowhere but into a header.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use meerkat_errors::ErrorCode;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use super::normalise;
use crate::text::head;
use meerkat_models::{
    ModelError, RetryPolicy,
    vendors::{Api, failure, network},
};
use meerkat_words::{
    SessionError,
    clock::World,
    memory::{EmbedFor, Embedder},
};

/// Texts of one request.
const BATCH_TEXTS: usize = 64;
/// Bytes of the texts of one request.
const BATCH_BYTES: usize = 256 * 1024;
/// Bytes of a text that are sent; models read at most some 8,000 tokens.
const TEXT_BYTES_MAX: usize = 24 * 1024;
const ANSWER_BYTES_MAX: usize = 32 * 1024 * 1024;
const TIMEOUT: Duration = Duration::from_secs(60);
/// Sent for a blank text, which servers refuse; its vector is not used.
const BLANK: &str = "-";
/// Characters of a server's message that are repeated.
const SAID_CHARS_MAX: usize = 200;

/// Options of an [`EndpointEmbedder`].
#[derive(Clone, Debug, Default)]
pub struct EndpointOptions {
    /// Server, with the version: `http://localhost:8080/v1`.
    pub base_url: String,
    /// Model's name at the server.
    pub model: String,
    /// Key, if the server asks for one.
    pub key: Option<SecretString>,
    /// Components of a vector, if not the model's own number.
    pub dimensions: Option<u32>,
    /// Proxy for `https`, which may carry a password.
    pub proxy: Option<SecretString>,
    /// Hosts to reach without the proxy, separated by commas.
    pub no_proxy: Option<String>,
    /// Number and pace of retries.
    pub retry: RetryPolicy,
}

/// Embedder over a server.
pub struct EndpointEmbedder {
    http: reqwest::Client,
    base_url: String,
    options: EndpointOptions,
    world: World,
    /// Components of the first answer; all later ones must have as many.
    length: OnceLock<usize>,
    /// True once a warning about the current failure was logged.
    is_told: AtomicBool,
}

#[derive(Serialize)]
struct Request<'a> {
    model: &'a str,
    input: &'a [&'a str],
    encoding_format: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    dimensions: Option<u32>,
}

#[derive(Deserialize)]
struct Answer {
    data: Vec<Embedded>,
}

#[derive(Deserialize)]
struct Embedded {
    /// Index of its text; if missing, the order is that of the texts.
    index: Option<usize>,
    embedding: Vec<f32>,
}

impl EndpointEmbedder {
    /// Makes an embedder after checking its options. Nothing is sent.
    ///
    /// # Errors
    /// `CONFIG_INVALID` for a URL that is not allowed, an invalid proxy, or no model.
    pub fn new(options: EndpointOptions, world: World) -> Result<Self, SessionError> {
        let base_url = network::base_url("memory.endpoint.base_url", Api::Compatible, &options.base_url, false)?;
        if options.model.is_empty() {
            let message = "Name the model that makes the vectors.".to_owned();
            return Err(SessionError::ConfigInvalid { key: "memory.endpoint.model".to_owned(), message });
        }
        let http = network::http(options.proxy.as_ref(), options.no_proxy.as_deref())?;
        Ok(Self { http, base_url, options, world, length: OnceLock::new(), is_told: AtomicBool::new(false) })
    }

    /// Embeds one batch, with retries if they may help, but not for a query, which does not wait for a second answer.
    async fn batch(&self, texts: &[&str], purpose: EmbedFor) -> Result<Vec<Vec<f32>>, SessionError> {
        let mut failed = 0;
        loop {
            let error = match self.ask(texts).await {
                Ok(vectors) => {
                    self.is_told.store(false, Ordering::Relaxed);
                    return Ok(vectors);
                }
                Err(error) => error,
            };
            failed += 1;
            let wait = self.options.retry.wait(&error, failed, self.world.ids.as_ref());
            match wait.filter(|_| purpose == EmbedFor::Passage) {
                Some(wait) => {
                    // Warned now: the process may end before the retries do.
                    if !self.is_told.swap(true, Ordering::Relaxed) {
                        tracing::warn!(error = %self.unavailable(&error), "it is asked again");
                    }
                    self.world.clock.sleep(wait).await;
                }
                None => return Err(self.unavailable(&error)),
            }
        }
    }

    async fn ask(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, ModelError> {
        let input = texts.iter().map(|text| if text.trim().is_empty() { BLANK } else { head(text, TEXT_BYTES_MAX) });
        let input: Vec<&str> = input.collect();
        let EndpointOptions { model, dimensions, key, .. } = &self.options;
        let body = Request { model, input: &input, encoding_format: "float", dimensions: *dimensions };
        let mut request = self.http.post(format!("{}embeddings", self.base_url)).timeout(TIMEOUT).json(&body);
        if let Some(key) = key.as_ref().map(ExposeSecret::expose_secret).filter(|key| !key.is_empty()) {
            request = request.bearer_auth(key);
        }
        let mut response = request.send().await.map_err(|error| broken(&error))?;
        let (status, headers) = (response.status(), response.headers().clone());
        let mut answer = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| broken(&error))? {
            if answer.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(wrong("it answered with more than is reasonable"));
            }
            answer.extend_from_slice(&chunk);
        }
        if status != reqwest::StatusCode::OK {
            let said = String::from_utf8_lossy(&answer);
            let said: String = said.split_whitespace().collect::<Vec<_>>().join(" ");
            let said: String = said.chars().take(SAID_CHARS_MAX).collect();
            let mut error =
                ModelError::new(failure::code_by_status(status.as_u16()), format!("it answered {status}: {said}"));
            error.retry_after = failure::retry_after(&headers);
            return Err(error);
        }
        let answer: Answer =
            serde_json::from_slice(&answer).map_err(|error| wrong(&format!("its answer cannot be read: {error}")))?;
        self.check(texts, answer)
    }

    /// Returns the answer's vectors in the order of the texts, each of length 1.
    fn check(&self, texts: &[&str], answer: Answer) -> Result<Vec<Vec<f32>>, ModelError> {
        if answer.data.len() != texts.len() {
            return Err(wrong(&format!("it answered with {} vectors for {} texts", answer.data.len(), texts.len())));
        }
        let mut vectors = vec![Vec::new(); texts.len()];
        for (at, Embedded { index, embedding }) in answer.data.into_iter().enumerate() {
            let expected = *self.length.get_or_init(|| embedding.len());
            if embedding.is_empty() || embedding.len() != expected {
                let (found, expected) = (embedding.len(), expected.max(1));
                return Err(wrong(&format!("it answered with {found} components instead of {expected}")));
            }
            if !embedding.iter().all(|component| component.is_finite()) {
                return Err(wrong("it answered with a component that is not finite"));
            }
            match vectors.get_mut(index.unwrap_or(at)).filter(|vector| vector.is_empty()) {
                Some(vector) => *vector = embedding,
                None => return Err(wrong("it answered twice for one text, and not for another")),
            }
        }
        for (vector, text) in vectors.iter_mut().zip(texts) {
            if text.trim().is_empty() {
                vector.fill(0.0);
            }
            normalise(vector);
        }
        Ok(vectors)
    }

    fn unavailable(&self, error: &ModelError) -> SessionError {
        let advice = match error.code {
            ErrorCode::ModelUnauthorized => "check its key, in the variable that memory.endpoint.key_variable names",
            ErrorCode::ModelRateLimited => "it is asked again later",
            ErrorCode::ModelOverloaded | ErrorCode::ModelTimeout => "see whether it works, and check memory.endpoint",
            _ => "check memory.endpoint, or set memory.embedder to builtin",
        };
        let mut why = format!("the embedder at {}: {}; {advice}", self.base_url, error.message);
        if let Some(key) = self.options.key.as_ref().map(ExposeSecret::expose_secret).filter(|key| !key.is_empty()) {
            why = why.replace(key, "[redacted]");
        }
        SessionError::MemoryUnavailable { why }
    }
}

#[async_trait]
impl Embedder for EndpointEmbedder {
    fn id(&self) -> String {
        let dimensions = self.options.dimensions.map_or_else(String::new, |dimensions| format!("#{dimensions}"));
        format!("{}{}{dimensions}", self.base_url, self.options.model)
    }

    async fn embed(&self, texts: &[String], purpose: EmbedFor) -> Result<Vec<Vec<f32>>, SessionError> {
        let mut vectors = Vec::with_capacity(texts.len());
        let mut batch: Vec<&str> = Vec::new();
        let mut bytes = 0;
        for text in texts {
            let size = text.len().min(TEXT_BYTES_MAX);
            if batch.len() == BATCH_TEXTS || (!batch.is_empty() && bytes + size > BATCH_BYTES) {
                vectors.extend(self.batch(&batch, purpose).await?);
                batch.clear();
                bytes = 0;
            }
            batch.push(text);
            bytes += size;
        }
        if !batch.is_empty() {
            vectors.extend(self.batch(&batch, purpose).await?);
        }
        Ok(vectors)
    }
}

/// Makes the error of a failed or broken connection.
fn broken(error: &reqwest::Error) -> ModelError {
    let (code, what) = if error.is_timeout() {
        (ErrorCode::ModelTimeout, "it did not answer in time")
    } else if error.is_builder() {
        (ErrorCode::ModelRejected, "the request cannot be made")
    } else {
        (ErrorCode::ModelOverloaded, "it cannot be reached")
    };
    ModelError::new(code, what)
}

/// Makes the error of an invalid answer, which a retry would not help.
fn wrong(what: &str) -> ModelError {
    ModelError::new(ErrorCode::ModelRejected, what)
}
