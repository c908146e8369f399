//! The real vendors behind [`ModelClient`]: the vendor, key and address for each model name.
//!
//! The wire formats are genai's. None of its types leaves this folder, and no key except in a request's header.

mod answer;
mod choice;
mod client;
pub mod failure;
mod family;
pub mod network;
mod options;
mod output;
mod prices;
mod relay;
mod request;
mod server;

use std::{
    cell::LazyCell,
    sync::{Arc, OnceLock},
};

use secrecy::{ExposeSecret, SecretString};

pub use self::{
    choice::{ListedModel, Source},
    options::{Api, CompatibleEndpoint, Preset, VendorAccess, VendorOptions},
    server::{Listed, ServerModel},
};
use self::{
    client::VendorClient,
    options::{SCRIPTED, VENDORS, Vendor},
    prices::Prices,
};
use super::{ModelClient, ModelResolver, ResolvedModel};
use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_words::SessionError;

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
    prices: Prices,
    /// Proxy for the known ones.
    proxy: (Option<SecretString>, Option<String>),
}

impl VendorModels {
    /// Checks the options and makes a client for each vendor that has a key. Nothing is sent.
    ///
    /// # Errors
    /// `CONFIG_INVALID` for a base URL that is not allowed, a name that is taken, a proxy that is not valid, or prices
    /// that contradict each other or can never hold.
    pub fn new(options: &VendorOptions, scripted: Arc<dyn ModelClient>) -> Result<Self, SessionError> {
        // Made only if needed: it reads the system's certificates.
        let relay = LazyCell::new(|| network::relay(options.proxy.as_ref(), options.no_proxy.as_deref()));
        let client = |setting: &str, api, vendor: &str, base_url: &str, key: &SecretString| {
            let base_url = network::base_url(setting, api, base_url, false)?;
            let relay = relay.as_ref().map_err(Clone::clone)?.clone();
            Ok::<_, SessionError>(VendorClient::new(relay, vendor, setting, api, base_url, Some(key)))
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
            let relay = relay.as_ref().map_err(Clone::clone)?.clone();
            let made = match VendorClient::of_server(relay, endpoint) {
                // The variable is of other tools, too: it must not stop what does not use this server.
                Err(error) if endpoint.address_variable.is_some() => Err(error),
                made => Ok(Arc::new(made?)),
            };
            compatible.push((endpoint.clone(), made));
        }
        let chosen = choice::default_model(options);
        let (is_stand_in, default_model) = (chosen.is_none(), chosen.unwrap_or_else(|| SCRIPTED.to_owned()));
        let prices = Prices::new(&options.prices)?;
        let scripted = ResolvedModel {
            name: SCRIPTED.to_owned(),
            vendor_model: SCRIPTED.to_owned(),
            client: scripted,
            window_tokens: options.scripted_window_tokens.unwrap_or(SCRIPTED_WINDOW_TOKENS),
            prices: prices.named(|name| name == SCRIPTED),
        };
        let known = options.known.iter().map(|endpoint| (endpoint.clone(), OnceLock::new())).collect();
        let proxy = (options.proxy.clone(), options.no_proxy.clone());
        Ok(Self { default_model, is_stand_in, scripted, vendors, compatible, known, prices, proxy })
    }

    /// Lists the default first, then one model of each vendor and server, and the scripted one.
    #[must_use]
    pub fn list(&self) -> Vec<ListedModel> {
        let vendors = self.vendors.iter().map(|(vendor, _)| vendor.default_model.to_owned());
        let servers = self.compatible.iter().map(|(server, _)| match &server.model {
            Some(model) => format!("{}/{model}", server.name),
            None => format!("{}/<model>", server.name),
        });
        let mut names = vec![self.default_model.clone()];
        for name in vendors.chain(servers).chain([SCRIPTED.to_owned()]) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let missing = |name: &str| self.resolve(name).err().map(|error| error.to_string());
        let listed = |name: String| ListedModel {
            is_default: name == self.default_model,
            missing: missing(&name),
            name: if name.is_empty() { "-".to_owned() } else { name },
        };
        names.into_iter().map(listed).collect()
    }

    /// Returns the client of a server, with how it is reached; `None` if no server has the name.
    fn server(&self, name: &str) -> Option<Result<(&CompatibleEndpoint, &Arc<VendorClient>), SessionError>> {
        if let Some((endpoint, client)) = self.compatible.iter().find(|(endpoint, _)| endpoint.name == name) {
            return Some(client.as_ref().map(|client| (endpoint, client)).map_err(Clone::clone));
        }
        let (endpoint, client) = self.known.iter().find(|(endpoint, _)| endpoint.name == name)?;
        let (proxy, no_proxy) = (self.proxy.0.as_ref(), self.proxy.1.as_deref());
        let made = client.get_or_init(|| {
            network::relay(proxy, no_proxy).and_then(|relay| VendorClient::of_server(relay, endpoint)).map(Arc::new)
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
            prices: self.prices.of(client.vendor(), model),
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
        Ok(resolved(model, client, client.window(model)))
    }
}
