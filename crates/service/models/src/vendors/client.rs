//! Client of one vendor: combines endpoint, key and wire format, and hands the call to genai.
//!
//! It never retries and never puts a key anywhere but into a header.

use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt as _;
use genai::{
    Headers, ModelIden, ServiceTarget,
    adapter::AdapterKind,
    resolver::{AuthData, Endpoint},
};
use secrecy::{ExposeSecret, SecretString};

use super::{
    answer::{self, Frames},
    failure::Failures,
    family::Family,
    network,
    options::{Api, CompatibleEndpoint, Preset},
    output::{self, Asked},
    relay::Relay,
    request,
    server::Windows,
};
use crate::{ModelClient, ModelError, ModelPart, ModelRequest, ModelStream};
use meerkat_errors::ErrorCode;
use meerkat_words::{SessionError, message::PDF, options::ModelOptions};

/// Window of a server's models, unless the options set it or the server tells it.
const SERVER_WINDOW_TOKENS: u64 = 32_768;

/// Beginnings of the names of the vendors' models that take no images. `gpt-4` itself is one, too.
const BLIND: &[&str] = &[
    "claude-2",
    "claude-instant",
    "gpt-3.5",
    "gpt-4-0",
    "gpt-4-1106-preview",
    "gpt-4-32k",
    "o1-mini",
    "o1-preview",
    "o3-mini",
];

/// Vendor, or compatible server, with its key.
pub(super) struct VendorClient {
    relay: Arc<Relay>,
    api: Api,
    base_url: String,
    /// Also holds the vendor's name and the key: the name begins each message, the key is removed from it.
    failures: Failures,
    /// True if the server needs its reasoning back.
    returns_reasoning: bool,
    /// True if the models of a compatible server take images.
    sees_images: bool,
    /// Kind of a compatible server.
    preset: Option<Preset>,
    /// The window of a compatible server's models, if the configuration sets it.
    window_tokens: Option<u64>,
    /// Popular server whose windows the configuration leaves open, and those that it told.
    told: Option<Arc<(CompatibleEndpoint, Windows)>>,
}

impl VendorClient {
    pub(super) fn new(
        relay: Arc<Relay>,
        vendor: &str,
        setting: &str,
        api: Api,
        base_url: String,
        key: Option<&SecretString>,
    ) -> Self {
        let failures = Failures { vendor: vendor.into(), key: key.cloned(), setting: setting.into() };
        Self {
            relay,
            api,
            base_url,
            failures,
            returns_reasoning: false,
            sees_images: false,
            preset: None,
            window_tokens: None,
            told: None,
        }
    }

    /// Makes the client of a compatible server.
    ///
    /// # Errors
    /// `CONFIG_INVALID` for a base URL that is not allowed.
    pub(super) fn of_server(relay: Arc<Relay>, server: &CompatibleEndpoint) -> Result<Self, SessionError> {
        let setting = format!("model.compatible.{}.base_url", server.name);
        let base_url = network::base_url(&setting, Api::Compatible, &server.base_url, server.allows_http);
        let base_url = base_url.map_err(|error| match (error, server.address_variable) {
            (SessionError::ConfigInvalid { key, message }, Some(variable)) => {
                SessionError::ConfigInvalid { key, message: format!("{message} It comes from {variable}.") }
            }
            (error, _) => error,
        })?;
        let asks = server.preset.is_some() && server.window_tokens.is_none();
        Ok(Self {
            returns_reasoning: server.returns_reasoning,
            sees_images: server.sees_images,
            preset: server.preset,
            window_tokens: server.window_tokens,
            told: asks.then(|| Arc::new((server.clone(), Windows::default()))),
            ..Self::new(relay, &server.name, &setting, Api::Compatible, base_url, server.key.as_ref())
        })
    }

    /// Returns the window of a compatible server's model: as the configuration says, else the server, else a guess.
    pub(super) fn window(&self, model: &str) -> u64 {
        let told = || self.told.as_ref()?.1.get(model);
        self.window_tokens.or_else(told).unwrap_or(SERVER_WINDOW_TOKENS)
    }

    /// Returns the most tokens that a model's thoughts get beside its answer. Servers refuse more than their window.
    fn thinking_tokens_max(&self, model: &str) -> u32 {
        match self.api {
            Api::Compatible => u32::try_from(self.window(model) / 8).unwrap_or(u32::MAX),
            Api::Anthropic | Api::OpenAi | Api::Gemini => u32::MAX,
        }
    }

    fn family(&self, model: &str) -> Family {
        Family::of(self.api, self.preset, model)
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

    /// Returns the target of a call by the base URL of its way through the relay.
    fn target(&self, adapter: AdapterKind, model: &str, base_url: &str) -> ServiceTarget {
        let auth = match &self.failures.key {
            Some(key) => AuthData::from_single(key.expose_secret()),
            // genai requires a key in this format; without one the URL and the headers are given in full.
            None => {
                AuthData::RequestOverride { url: format!("{base_url}chat/completions"), headers: Headers::default() }
            }
        };
        let endpoint = Endpoint::from_owned(base_url);
        ServiceTarget { endpoint, auth, model: ModelIden::new(adapter, model) }
    }
}

#[async_trait]
impl ModelClient for VendorClient {
    fn vendor(&self) -> &str {
        &self.failures.vendor
    }

    fn sees_images(&self, model: &str) -> bool {
        match self.api {
            Api::Compatible => self.sees_images,
            Api::Anthropic | Api::OpenAi | Api::Gemini => {
                model != "gpt-4" && !BLIND.iter().any(|blind| model.starts_with(blind))
            }
        }
    }

    fn takes(&self, model: &str, media_type: &str) -> bool {
        let takes_type = match media_type {
            PDF => self.api != Api::Compatible && !model.starts_with("gpt-4-"),
            "image/gif" => self.api != Api::Gemini,
            _ => true,
        };
        takes_type && self.sees_images(model)
    }

    fn lacks(&self, model: &str, options: &ModelOptions) -> Option<&'static str> {
        self.family(model).lacks(options)
    }

    fn asks_by_mode(&self, request: &ModelRequest) -> bool {
        output::asks_by_mode(request, self.api, self.family(&request.model))
    }

    async fn stream_response(&self, mut request: ModelRequest) -> Result<ModelStream, ModelError> {
        if let Some(name) = self.lacks(&request.model, &request.options) {
            let what = format!("{} does not have the option {name}", request.model);
            return Err(self.failures.failure(ErrorCode::ModelRejected, &what));
        }
        let adapter = self.adapter(&request.model);
        let frames = Arc::new(Frames::default());
        let family = self.family(&request.model);
        let asked = output::ask(&mut request, self.api, family)?;
        let is_by_tool = matches!(asked, Some(Asked::ByTool));
        let chat = request::chat(&request, self.api, self.vendor(), self.returns_reasoning)?;
        let thinking_tokens_max = self.thinking_tokens_max(&request.model);
        let options = request::options(&request, adapter, family, thinking_tokens_max, asked);
        let options = options.with_raw_frame_sink_arc(frames.clone());
        let link = self.relay.link(self.api, &self.base_url, &self.failures).await?;
        let target = self.target(adapter, &request.model, &link.base_url);
        let sent = link.genai.exec_chat_stream(target, chat, Some(&options)).await;
        let response = sent.map_err(|error| self.failures.class(&error, ""))?;
        let mut parts = answer::stream(response.stream, frames, link, self.failures.clone());
        if is_by_tool {
            let said = |part| match part {
                Ok(ModelPart::End(answer)) => Ok(ModelPart::End(output::said(answer))),
                part => part,
            };
            parts = parts.map(said).boxed();
        }
        let Some(told) = self.told.clone() else { return Ok(parts) };
        let learned = parts.then(move |part| {
            let (told, model) = (told.clone(), request.model.clone());
            async move {
                // Only at the end: the request is sent when the stream is first read, and Ollama loads the model then.
                if matches!(part, Ok(ModelPart::End(_))) {
                    told.1.learn(&told.0, &model).await;
                }
                part
            }
        });
        Ok(learned.boxed())
    }
}
