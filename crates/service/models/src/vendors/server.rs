//! A server's own account of its models and their windows. Only a server on this machine is asked, and nothing that it
//! says is trusted: answers are bounded in time and bytes, and names that no request may have are left out.

use std::{collections::BTreeMap, sync::Mutex, time::Duration};

use reqwest::Url;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;

use super::{Api, CompatibleEndpoint, Preset, network};

/// Longest wait for a server that is asked about itself.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// Most bytes of its answer.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// Most models of one server.
const MODELS_MAX: usize = 100;

/// Most bytes of a model's name, with its server's.
const NAME_BYTES_MAX: usize = 256;

/// Windows that are believed, in tokens.
const WINDOWS_BELIEVED: std::ops::RangeInclusive<u64> = 1024..=16 * 1024 * 1024;

/// Most windows that are remembered.
const WINDOWS_MAX: usize = 64;

/// Models that a server lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Its models.
    pub models: Vec<ServerModel>,
    /// Number of further ones: too many, or with a name that no request may have.
    pub left_out: usize,
}

/// Model of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerModel {
    /// Its name at the server.
    pub name: String,
    /// Its window, if the server says how large it is at present.
    pub window_tokens: Option<u64>,
}

impl CompatibleEndpoint {
    /// Returns true if the server is on this machine, so that it may be asked about itself.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.url().is_some_and(|url| url.host_str().is_some_and(network::is_this_machine))
    }

    /// Asks the server which models it has.
    ///
    /// # Errors
    /// Returns the reason, for people, that there is no list.
    pub async fn list(&self) -> Result<Listed, String> {
        let url = self.url().filter(|_| self.is_local()).ok_or("it is not on this machine, so it is not asked")?;
        let list = document(&url, "models", self.key.as_ref());
        let state = async {
            match state_path(self.preset) {
                "models" => None,
                path => document(&url, path, self.key.as_ref()).await.ok(),
            }
        };
        let (list, state) = futures::future::join(list, state).await;
        let list = list?;
        let rows = list["data"].as_array().ok_or_else(|| format!("{} lists no models", origin(&url)))?;
        let (prefix, mut listed) = (self.name.len() + 1, Listed::default());
        for name in rows.iter().map(|row| row["id"].as_str().unwrap_or_default()) {
            if listed.models.len() == MODELS_MAX || !is_name(name, prefix) {
                listed.left_out += 1;
                continue;
            }
            let window_tokens = window(self.preset, state.as_ref().unwrap_or(&list), name);
            listed.models.push(ServerModel { name: name.to_owned(), window_tokens });
        }
        Ok(listed)
    }

    fn url(&self) -> Option<Url> {
        network::base_url(&self.name, Api::Compatible, &self.base_url, self.allows_http).ok()?.parse().ok()
    }
}

/// Windows that a server has told, by model; `None` if it could not say.
#[derive(Default)]
pub(super) struct Windows(Mutex<BTreeMap<String, Option<u64>>>);

impl Windows {
    /// Returns a model's window, if it is known.
    pub(super) fn get(&self, model: &str) -> Option<u64> {
        self.0.lock().ok()?.get(model).copied().flatten()
    }

    /// Asks the server for a model's window, once. Some servers know it only while the model is loaded.
    pub(super) async fn learn(&self, server: &CompatibleEndpoint, model: &str) {
        let is_new = self.0.lock().is_ok_and(|windows| windows.len() < WINDOWS_MAX && !windows.contains_key(model));
        if !is_new || !server.is_local() {
            return;
        }
        let Some(url) = server.url() else { return };
        let state = document(&url, state_path(server.preset), server.key.as_ref()).await;
        let window = state.ok().and_then(|state| window(server.preset, &state, model));
        if let Ok(mut windows) = self.0.lock() {
            windows.insert(model.to_owned(), window);
        }
    }
}

/// Returns true for a model's name that a request may have, behind a prefix of so many bytes.
fn is_name(name: &str, prefix: usize) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/@+~-".contains(&byte);
    !name.is_empty() && prefix + name.len() <= NAME_BYTES_MAX && name.bytes().all(is_allowed)
}

/// Returns the path, from the base URL, of the document that has the windows in force.
const fn state_path(preset: Option<Preset>) -> &'static str {
    match preset {
        Some(Preset::Ollama) => "../api/ps",
        Some(Preset::LmStudio) => "../api/v0/models",
        Some(Preset::LlamaCpp) => "../props",
        Some(Preset::Vllm | Preset::OpenRouter) | None => "models",
    }
}

/// Reads a model's window in force: what it could have at most would be too much.
fn window(preset: Option<Preset>, state: &Value, model: &str) -> Option<u64> {
    let of = |list: &str, key: &str, window: &str| {
        let is_model = |row: &&Value| {
            let name = row[key].as_str();
            // Ollama leaves this tag out.
            name.is_some_and(|name| name == model || name.strip_suffix(":latest") == Some(model))
        };
        state[list].as_array()?.iter().find(is_model)?[window].as_u64()
    };
    let window = match preset {
        Some(Preset::Ollama) => of("models", "name", "context_length"),
        Some(Preset::LmStudio) => of("data", "id", "loaded_context_length"),
        Some(Preset::LlamaCpp) => state["default_generation_settings"]["n_ctx"].as_u64(),
        Some(Preset::Vllm | Preset::OpenRouter) | None => of("data", "id", "max_model_len"),
    };
    window.filter(|window| WINDOWS_BELIEVED.contains(window))
}

/// Fetches a JSON document. The error is for people.
async fn document(base: &Url, path: &str, key: Option<&SecretString>) -> Result<Value, String> {
    let silent = || format!("nothing answers at {}", origin(base));
    let url = base.join(path).map_err(|error| error.to_string())?;
    let http = network::http(None, None).map_err(|error| error.to_string())?;
    let mut request = http.get(url).timeout(ASK_TIMEOUT);
    if let Some(key) = key {
        request = request.bearer_auth(key.expose_secret());
    }
    let mut response = request.send().await.map_err(|_| silent())?;
    let status = response.status();
    if !status.is_success() {
        return Err(format!("{} answers with status {}", origin(base), status.as_u16()));
    }
    let mut bytes = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(|_| silent())? {
        if bytes.len() + piece.len() > ANSWER_BYTES_MAX {
            return Err(format!("{} answers with more than a mebibyte", origin(base)));
        }
        bytes.extend_from_slice(&piece);
    }
    serde_json::from_slice(&bytes).map_err(|_| format!("{} answers with something else than JSON", origin(base)))
}

fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}
