//! Client of one vendor: combines endpoint, key and wire format, and hands the call to genai.
//!
//! It never retries, never waits on a clock and never puts a key anywhere but into a header.

use std::sync::Arc;

use async_trait::async_trait;
use genai::{
    Headers, ModelIden, ServiceTarget,
    adapter::AdapterKind,
    resolver::{AuthData, Endpoint},
};
use secrecy::{ExposeSecret, SecretString};

use super::{
    Api,
    answer::{self, Frames},
    failure::Failures,
    request,
};
use crate::{ModelClient, ModelError, ModelRequest, ModelStream};

/// Vendor, or compatible server, with its key.
pub(super) struct VendorClient {
    http: genai::Client,
    api: Api,
    base_url: String,
    /// Also holds the vendor's name and the key: the name begins each message, the key is removed from it.
    failures: Failures,
    /// True if the server needs its reasoning back.
    returns_reasoning: bool,
}

impl VendorClient {
    pub(super) fn new(
        http: genai::Client,
        vendor: &str,
        setting: &str,
        api: Api,
        base_url: String,
        key: Option<&SecretString>,
    ) -> Self {
        let failures = Failures { vendor: vendor.into(), key: key.cloned(), setting: setting.into() };
        Self { http, api, base_url, failures, returns_reasoning: false }
    }

    /// Makes the client send the server its reasoning back, unchanged.
    pub(super) fn returning_reasoning(self, returns_reasoning: bool) -> Self {
        Self { returns_reasoning, ..self }
    }

    /// Returns the wire format for a model. OpenAI's newer models think and call tools only in its responses format.
    fn adapter(&self, model: &str) -> AdapterKind {
        match self.api {
            Api::Anthropic => AdapterKind::Anthropic,
            Api::Gemini => AdapterKind::Gemini,
            Api::Compatible => AdapterKind::OpenAI,
            Api::OpenAi => match AdapterKind::from_model(model) {
                Ok(AdapterKind::OpenAIResp) => AdapterKind::OpenAIResp,
                _ => AdapterKind::OpenAI,
            },
        }
    }

    fn target(&self, adapter: AdapterKind, model: &str) -> ServiceTarget {
        let auth = match &self.failures.key {
            Some(key) => AuthData::from_single(key.expose_secret()),
            // genai requires a key in this format; without one the URL and the headers are given in full.
            None => AuthData::RequestOverride {
                url: format!("{}chat/completions", self.base_url),
                headers: Headers::default(),
            },
        };
        let endpoint = Endpoint::from_owned(self.base_url.as_str());
        ServiceTarget { endpoint, auth, model: ModelIden::new(adapter, model) }
    }
}

#[async_trait]
impl ModelClient for VendorClient {
    fn vendor(&self) -> &str {
        &self.failures.vendor
    }

    async fn stream_response(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let adapter = self.adapter(&request.model);
        let frames = Arc::new(Frames::default());
        let chat = request::chat(&request, self.api, self.vendor(), self.returns_reasoning)?;
        let options = request::options(&request, adapter).with_raw_frame_sink_arc(frames.clone());
        let target = self.target(adapter, &request.model);
        let sent = self.http.exec_chat_stream(target, chat, Some(&options)).await;
        let response = sent.map_err(|error| self.failures.class(&error, ""))?;
        Ok(answer::stream(response.stream, frames, self.failures.clone()))
    }
}
