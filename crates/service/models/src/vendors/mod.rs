//! The real vendors behind [`ModelClient`]: the vendor, key and address for each model name.
//!
//! The wire formats are genai's. None of its types leaves this folder, and no key except in a request's header.

mod answer;
mod choice;
mod client;
pub mod failure;
pub mod network;
mod request;
mod server;

use std::{
    cell::LazyCell,
    sync::{Arc, OnceLock},
};

use secrecy::{ExposeSecret, SecretString};

pub use self::{
    choice::{ListedModel, Preset, Source},
    server::{Listed, ServerModel},
};
use self::{client::VendorClient, server::Windows};
use super::{ModelClient, ModelResolver, ResolvedModel};
use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_words::SessionError;

/// Name of the built-in model.
const SCRIPTED: &str = "scripted";

/// Window of the scripted model, unless the options set it.
const SCRIPTED_WINDOW_TOKENS: u64 = 100_000;

/// Known windows by the beginning of a model's name; the first match counts.
const WINDOWS: &[(&str, u64)] = &[
    ("claude-opus-5", 1_000_000),
    ("claude-sonnet-5", 1_000_000),
    ("claude-", 200_000),
    ("gpt-6", 400_000),
    ("gpt-5", 400_000),
    ("gpt-4.1", 1_047_576),
    ("gpt-4o", 128_000),
    ("o1", 200_000),
    ("o3", 200_000),
    ("o4", 200_000),
    ("gemini-", 1_048_576),
];

/// Cautious window of a model that is not in the table.
const WINDOW_TOKENS: u64 = 128_000;

/// Window of a server's models, unless the options set it or the server tells it.
const SERVER_WINDOW_TOKENS: u64 = 32_768;

/// The wire format of a vendor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// Anthropic's messages.
    Anthropic,
    /// OpenAI's two formats.
    OpenAi,
    /// Google's Gemini.
    Gemini,
    /// Chat completions, as many servers offer them.
    Compatible,
}

/// Vendor with a name of its own.
struct Vendor {
    api: Api,
    name: &'static str,
    /// Environment variable of its key.
    variable: &'static str,
    base_url: &'static str,
    default_model: &'static str,
    /// Beginnings of its models' names.
    prefixes: &'static [&'static str],
}

/// Vendors, in the order in which a key makes one the default.
static VENDORS: [Vendor; 3] = [
    Vendor {
        api: Api::Anthropic,
        name: "anthropic",
        variable: "ANTHROPIC_API_KEY",
        base_url: "https://api.anthropic.com/v1/",
        default_model: "claude-sonnet-5-5",
        prefixes: &["claude-"],
    },
    Vendor {
        api: Api::OpenAi,
        name: "openai",
        variable: "OPENAI_API_KEY",
        base_url: "https://api.openai.com/v1/",
        default_model: "gpt-5.6-terra",
        prefixes: &["gpt-", "o1", "o3", "o4", "chatgpt-"],
    },
    Vendor {
        api: Api::Gemini,
        name: "gemini",
        variable: "GEMINI_API_KEY",
        base_url: "https://generativelanguage.googleapis.com/v1beta/",
        default_model: "gemini-3.8-flash",
        prefixes: &["gemini-"],
    },
];

impl Vendor {
    /// Returns the vendor's name of the model, if it is one of this vendor's: `claude-x`, or `anthropic/x` for any x.
    fn model<'a>(&self, name: &'a str) -> Option<&'a str> {
        match name.split_once('/') {
            Some((vendor, model)) => (vendor == self.name && !model.is_empty()).then_some(model),
            None => self.prefixes.iter().any(|prefix| name.starts_with(prefix)).then_some(name),
        }
    }
}

/// Access to one vendor.
#[derive(Clone, Debug, Default)]
pub struct VendorAccess {
    /// Its key. Without one its models are not configured.
    pub key: Option<SecretString>,
    /// Its base URL, if not the default one.
    pub base_url: Option<String>,
}

/// Server with OpenAI's chat completions. Its models are named `<name>/<model>`.
#[derive(Clone, Debug, Default)]
pub struct CompatibleEndpoint {
    /// Its name: not empty, without `/`, and not one of the built-in ones.
    pub name: String,
    /// Its base URL, with the version: `http://localhost:8080/v1`.
    pub base_url: String,
    /// Its key, if it needs one.
    pub key: Option<SecretString>,
    /// Environment variable that its key comes from, for messages.
    pub key_variable: Option<String>,
    /// Its kind. A popular server on this machine is asked for the windows of its models.
    pub preset: Option<Preset>,
    /// The window of its models; else what the server says, else 32,768 tokens.
    pub window_tokens: Option<u64>,
    /// True if its reasoning is sent back to it: some servers refuse tool calls without, others refuse the field.
    pub returns_reasoning: bool,
    /// True if its models take images.
    pub sees_images: bool,
    /// Default model, if no other server or vendor is configured.
    pub model: Option<String>,
    /// True if it may be reached in plain text outside this machine.
    pub allows_http: bool,
    /// Environment variable that its base URL comes from, if any. One that is not allowed refuses only this server.
    pub address_variable: Option<&'static str>,
}

/// Vendors and how to reach them.
#[derive(Clone, Debug, Default)]
pub struct VendorOptions {
    /// Anthropic.
    pub anthropic: VendorAccess,
    /// OpenAI.
    pub openai: VendorAccess,
    /// Google's Gemini.
    pub gemini: VendorAccess,
    /// Environment variable that Gemini's key comes from, if not the usual one.
    pub gemini_variable: Option<&'static str>,
    /// Servers compatible with OpenAI.
    pub compatible: Vec<CompatibleEndpoint>,
    /// Popular servers that need no configuration. None becomes the default, and nothing is sent to one whose models
    /// nobody names. One in `compatible` with the same name comes first.
    pub known: Vec<CompatibleEndpoint>,
    /// Default model; else the first vendor with a key decides, else the only server. If nothing is configured it is
    /// `scripted`.
    pub default_model: Option<String>,
    /// Window of the scripted model; 100,000 tokens if `None`.
    pub scripted_window_tokens: Option<u64>,
    /// The proxy for `https`, which may carry a password.
    pub proxy: Option<SecretString>,
    /// Hosts to reach without the proxy, separated by commas.
    pub no_proxy: Option<String>,
}

impl VendorOptions {
    /// Reads the environment; empty variables count as absent.
    pub fn from_env(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let first = |names: &[&str]| {
            let values = names.iter().filter_map(|name| lookup(name));
            values.map(|value| value.trim().to_owned()).find(|value| !value.is_empty())
        };
        let access = |keys: &[&str], base_url: &str| VendorAccess {
            key: first(keys).map(SecretString::from),
            base_url: first(&[base_url]),
        };
        Self {
            anthropic: access(&["ANTHROPIC_API_KEY"], "ANTHROPIC_BASE_URL"),
            openai: access(&["OPENAI_API_KEY"], "OPENAI_BASE_URL"),
            gemini: access(&["GEMINI_API_KEY", "GOOGLE_API_KEY"], "GOOGLE_GEMINI_BASE_URL"),
            gemini_variable: (first(&["GEMINI_API_KEY"]).is_none() && first(&["GOOGLE_API_KEY"]).is_some())
                .then_some("GOOGLE_API_KEY"),
            known: Preset::ALL.into_iter().map(|preset| preset.endpoint(&lookup)).collect(),
            proxy: first(&["HTTPS_PROXY", "https_proxy"]).map(SecretString::from),
            no_proxy: first(&["NO_PROXY", "no_proxy"]),
            ..Self::default()
        }
    }
}

/// Client that is made when it is first used.
type LateClient = OnceLock<Result<Arc<VendorClient>, SessionError>>;

/// Models by name: the scripted one, the vendors', the compatible servers'.
pub struct VendorModels {
    default_model: String,
    is_stand_in: bool,
    scripted: ResolvedModel,
    vendors: Vec<(&'static Vendor, Option<Arc<VendorClient>>)>,
    compatible: Vec<(CompatibleEndpoint, Result<Arc<VendorClient>, SessionError>)>,
    /// Made when a model is named: most are never used.
    known: Vec<(CompatibleEndpoint, LateClient)>,
    /// Proxy for the known ones.
    proxy: (Option<SecretString>, Option<String>),
}

impl VendorModels {
    /// Checks the options and makes a client for each vendor that has a key. Nothing is sent.
    ///
    /// # Errors
    /// `CONFIG_INVALID` for a base URL that is not allowed, a name that is taken, or a proxy that is not valid.
    pub fn new(options: &VendorOptions, scripted: Arc<dyn ModelClient>) -> Result<Self, SessionError> {
        // Made only if needed: it reads the system's certificates.
        let http = LazyCell::new(|| network::client(options.proxy.as_ref(), options.no_proxy.as_deref()));
        let client = |setting: &str, api, vendor: &str, base_url: &str, key: &SecretString| {
            let base_url = network::base_url(setting, api, base_url, false)?;
            let http = http.as_ref().map_err(Clone::clone)?.clone();
            Ok::<_, SessionError>(VendorClient::new(http, vendor, setting, api, base_url, Some(key)))
        };
        let mut vendors = Vec::new();
        for (vendor, access) in VENDORS.iter().zip([&options.anthropic, &options.openai, &options.gemini]) {
            let base_url = access.base_url.as_deref().unwrap_or(vendor.base_url);
            let setting = format!("model.{}.base_url", vendor.name);
            let key = access.key.as_ref().filter(|key| !key.expose_secret().is_empty());
            let made = key.map(|key| client(&setting, vendor.api, vendor.name, base_url, key)).transpose()?;
            vendors.push((vendor, made.map(Arc::new)));
        }
        let mut compatible: Vec<(CompatibleEndpoint, Result<Arc<VendorClient>, SessionError>)> = Vec::new();
        for endpoint in &options.compatible {
            let CompatibleEndpoint { name, .. } = endpoint;
            let is_taken = name == SCRIPTED
                || VENDORS.iter().any(|vendor| vendor.name == name)
                || compatible.iter().any(|(other, _)| other.name == *name);
            if name.is_empty() || name.contains('/') || is_taken {
                let message = format!("{name:?} cannot name a server; use another name, without a slash.");
                return Err(SessionError::ConfigInvalid { key: "model.compatible".to_owned(), message });
            }
            let http = http.as_ref().map_err(Clone::clone)?.clone();
            let made = match VendorClient::of_server(http, endpoint) {
                // The variable is of other tools, too: it must not stop what does not use this server.
                Err(error) if endpoint.address_variable.is_some() => Err(error),
                made => Ok(Arc::new(made?)),
            };
            compatible.push((endpoint.clone(), made));
        }
        let chosen = choice::default_model(options);
        let (is_stand_in, default_model) = (chosen.is_none(), chosen.unwrap_or_else(|| SCRIPTED.to_owned()));
        let scripted = ResolvedModel {
            name: SCRIPTED.to_owned(),
            vendor_model: SCRIPTED.to_owned(),
            client: scripted,
            window_tokens: options.scripted_window_tokens.unwrap_or(SCRIPTED_WINDOW_TOKENS),
        };
        let known = options.known.iter().map(|endpoint| (endpoint.clone(), OnceLock::new())).collect();
        let proxy = (options.proxy.clone(), options.no_proxy.clone());
        Ok(Self { default_model, is_stand_in, scripted, vendors, compatible, known, proxy })
    }

    /// Returns the client of a server, with how it is reached; `None` if no server has the name.
    fn server(&self, name: &str) -> Option<Result<(&CompatibleEndpoint, &Arc<VendorClient>), SessionError>> {
        if let Some((endpoint, client)) = self.compatible.iter().find(|(endpoint, _)| endpoint.name == name) {
            return Some(client.as_ref().map(|client| (endpoint, client)).map_err(Clone::clone));
        }
        let (endpoint, client) = self.known.iter().find(|(endpoint, _)| endpoint.name == name)?;
        let (proxy, no_proxy) = (self.proxy.0.as_ref(), self.proxy.1.as_deref());
        let made = client.get_or_init(|| {
            network::client(proxy, no_proxy).and_then(|http| VendorClient::of_server(http, endpoint)).map(Arc::new)
        });
        Some(made.as_ref().map(|client| (endpoint, client)).map_err(Clone::clone))
    }
}

impl ModelResolver for VendorModels {
    fn default_model(&self) -> &str {
        &self.default_model
    }

    fn is_stand_in(&self) -> bool {
        self.is_stand_in
    }

    fn resolve(&self, name: &str) -> Result<ResolvedModel, SessionError> {
        if name == SCRIPTED {
            return Ok(self.scripted.clone());
        }
        let resolved = |model: &str, client: &Arc<VendorClient>, window_tokens| ResolvedModel {
            name: name.to_owned(),
            vendor_model: model.to_owned(),
            client: client.clone(),
            window_tokens,
        };
        let unknown = |variable| SessionError::ModelNotConfigured { model: name.to_owned(), variable };
        for (vendor, client) in &self.vendors {
            if let Some(model) = vendor.model(name) {
                let client = client.as_ref().ok_or_else(|| unknown(Some(vendor.variable)))?;
                let window = WINDOWS.iter().find(|(prefix, _)| model.starts_with(prefix));
                return Ok(resolved(model, client, window.map_or(WINDOW_TOKENS, |(_, tokens)| *tokens)));
            }
        }
        let (server, model) =
            name.split_once('/').filter(|(_, model)| !model.is_empty()).ok_or_else(|| unknown(None))?;
        let found = self.server(server).ok_or_else(|| unknown(None))?;
        let (endpoint, client) = found.map_err(|error| {
            let message = format!("The model {name:?} cannot be used: {error}");
            let body = ErrorBody::with_message(ErrorCode::ModelNotConfigured, message);
            SessionError::Failed(Box::new(body.detail("model", name).detail("variable", None::<&str>)))
        })?;
        if let Some(variable) = endpoint.preset.and_then(Preset::key_variable)
            && endpoint.key.is_none()
            && endpoint.key_variable.as_deref() == Some(variable)
        {
            return Err(unknown(Some(variable)));
        }
        let window_tokens = endpoint.window_tokens.or_else(|| client.window(model));
        Ok(resolved(model, client, window_tokens.unwrap_or(SERVER_WINDOW_TOKENS)))
    }
}
