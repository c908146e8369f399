//! Choice of the default model, list of models, and presets for popular servers.

use secrecy::ExposeSecret as _;
use serde::Deserialize;

use super::{CompatibleEndpoint, SCRIPTED, VENDORS, VendorAccess, VendorModels, VendorOptions};
use crate::ModelResolver as _;

/// Declares the presets: name in a configuration, base URL, and the variable of the key if one is needed.
macro_rules! presets {
    ($( $( #[$doc:meta] )+ $preset:ident $name:literal $base_url:literal $variable:expr; )*) => {
        /// Popular server.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
        pub enum Preset { $( $( #[$doc] )+ #[serde(rename = $name)] $preset, )* }

        impl Preset {
            /// Every preset.
            pub const ALL: [Self; [$( $name ),*].len()] = [$( Self::$preset ),*];

            /// Its name in a configuration.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $( Self::$preset => $name, )* }
            }

            /// Returns its default base URL.
            #[must_use]
            pub const fn base_url(self) -> &'static str {
                match self { $( Self::$preset => $base_url, )* }
            }

            /// Returns the environment variable of its key, if it needs one.
            #[must_use]
            pub const fn key_variable(self) -> Option<&'static str> {
                match self { $( Self::$preset => $variable, )* }
            }
        }
    };
}

presets! {
    /// Ollama.
    Ollama "ollama" "http://localhost:11434/v1" None;
    /// LM Studio.
    LmStudio "lmstudio" "http://localhost:1234/v1" None;
    /// vLLM.
    Vllm "vllm" "http://localhost:8000/v1" None;
    /// The server of llama.cpp.
    LlamaCpp "llama.cpp" "http://localhost:8080/v1" None;
    /// OpenRouter.
    OpenRouter "openrouter" "https://openrouter.ai/api/v1" Some("OPENROUTER_API_KEY");
}

impl Preset {
    /// Makes the server at its usual address, or at the one in the variable of its own tools.
    pub(super) fn endpoint(self, lookup: impl Fn(&str) -> Option<String>) -> CompatibleEndpoint {
        let variable = self.key_variable();
        let text = |name| lookup(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        CompatibleEndpoint {
            name: self.name().to_owned(),
            base_url: self.address(&lookup),
            key: variable.and_then(text).map(Into::into),
            key_variable: variable.map(str::to_owned),
            preset: Some(self),
            address_variable: self.address_variable(&lookup),
            ..CompatibleEndpoint::default()
        }
    }

    /// Returns its base URL: the usual one, unless the variable of its own tools names another.
    #[must_use]
    pub fn address(self, lookup: impl Fn(&str) -> Option<String>) -> String {
        match self.address_variable(&lookup).and_then(lookup) {
            Some(host) => ollama_host(host.trim()),
            None => self.base_url().to_owned(),
        }
    }

    /// Returns the variable of its own tools that names its address, if that is set.
    #[must_use]
    pub fn address_variable(self, lookup: impl Fn(&str) -> Option<String>) -> Option<&'static str> {
        let is_set = self == Self::Ollama && lookup("OLLAMA_HOST").is_some_and(|host| !host.trim().is_empty());
        is_set.then_some("OLLAMA_HOST")
    }
}

/// Completes `OLLAMA_HOST` as Ollama's own tools do: a scheme, a host, a port and a path, each of which may be missing.
fn ollama_host(text: &str) -> String {
    let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let port = match (text.contains("://"), scheme) {
        (true, "http") => "80",
        (true, "https") => "443",
        _ => "11434",
    };
    // A port follows the last colon, unless that is within the brackets of an address.
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port),
        _ => (authority, port),
    };
    // A server listens at these; it is reached on this machine.
    let host = match host {
        "" | "0.0.0.0" => "127.0.0.1",
        "[::]" => "[::1]",
        host => host,
    };
    let path = path.trim_end_matches('/');
    let slash = if path.is_empty() { "" } else { "/" };
    format!("{scheme}://{host}:{port}{slash}{path}/v1")
}

/// Where models come from: a vendor, or a server.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its name, which begins the names of its models.
    pub name: String,
    /// Environment variable of its key, if it takes one.
    pub variable: Option<String>,
    /// True if its key is set.
    pub has_key: bool,
    /// Model that it answers with if none is named.
    pub model: Option<String>,
    /// How it is reached, if it is a server.
    pub server: Option<CompatibleEndpoint>,
    /// True if the options name it; false for one that needs no configuration.
    pub is_configured: bool,
}

impl Source {
    /// Returns true if it cannot be used without a key that is not set.
    #[must_use]
    pub fn lacks_key(&self) -> bool {
        !self.has_key && self.variable.is_some()
    }
}

impl VendorOptions {
    /// Lists the vendors, then the servers, configured ones first.
    #[must_use]
    pub fn sources(&self) -> Vec<Source> {
        let accesses = [&self.anthropic, &self.openai, &self.gemini];
        let variable = |vendor: &super::Vendor| match self.gemini_variable {
            Some(variable) if vendor.api == super::Api::Gemini => variable,
            Some(_) | None => vendor.variable,
        };
        let vendors = VENDORS.iter().zip(accesses).map(|(vendor, access)| Source {
            name: vendor.name.to_owned(),
            variable: Some(variable(vendor).to_owned()),
            has_key: access.key.as_ref().is_some_and(|key| !key.expose_secret().is_empty()),
            model: Some(vendor.default_model.to_owned()),
            server: None,
            is_configured: access.key.is_some(),
        });
        let is_new = |known: &&CompatibleEndpoint| !self.compatible.iter().any(|server| server.name == known.name);
        let servers = self.compatible.iter().map(|server| (server, true));
        let known = self.known.iter().filter(is_new).map(|server| (server, false));
        let servers = servers.chain(known).map(|(server, is_configured)| Source {
            name: server.name.clone(),
            variable: server.key_variable.clone(),
            has_key: server.key.is_some(),
            model: server.model.clone(),
            server: Some(server.clone()),
            is_configured,
        });
        vendors.chain(servers).collect()
    }
}

/// Model, and the reason if it cannot answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedModel {
    /// Its name; `<server>/<model>` if any model of a server may be named.
    pub name: String,
    /// True for the default model.
    pub is_default: bool,
    /// Reason that it cannot be used, if any.
    pub missing: Option<String>,
}

/// Finds the default model; `None` if nothing was ever configured. [`super::VendorModels`] refuses an incomplete name,
/// such as `local/`, and says what is missing.
pub(super) fn default_model(options: &VendorOptions) -> Option<String> {
    let vendors = || VENDORS.iter().zip([&options.anthropic, &options.openai, &options.gemini]);
    let has_key = |access: &VendorAccess| access.key.as_ref().is_some_and(|key| !key.expose_secret().is_empty());
    let of_vendor = |is_chosen: &dyn Fn(&VendorAccess) -> bool| {
        vendors().find(|(_, access)| is_chosen(access)).map(|(vendor, _)| vendor.default_model.to_owned())
    };
    let of_server = || match &options.compatible[..] {
        [] => None,
        [only] => Some(format!("{}/{}", only.name, only.model.as_deref().unwrap_or_default())),
        // With several servers, only the user can choose.
        _ => Some(String::new()),
    };
    let keyed = options.default_model.clone().or_else(|| of_vendor(&has_key)).or_else(of_server);
    keyed.or_else(|| of_vendor(&|access| access.base_url.is_some()))
}

impl VendorModels {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_ollama_is_read_as_its_own_tools_read_it() {
        for (host, expected) in [
            ("", "http://localhost:11434/v1"),
            ("127.0.0.1:1234", "http://127.0.0.1:1234/v1"),
            ("0.0.0.0", "http://127.0.0.1:11434/v1"),
            (":8000", "http://127.0.0.1:8000/v1"),
            ("[::]:8000", "http://[::1]:8000/v1"),
            ("[::1]", "http://[::1]:11434/v1"),
            ("http://box", "http://box:80/v1"),
            ("https://box/ollama/", "https://box:443/ollama/v1"),
        ] {
            assert_eq!(Preset::Ollama.address(|_| Some(host.to_owned())), expected, "{host}");
            assert_eq!(Preset::Vllm.address(|_| Some(host.to_owned())), "http://localhost:8000/v1");
        }
    }
}
