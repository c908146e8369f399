//! Vendors, popular servers, and how to reach them: a table, and the options of a configuration and of the environment.

use meerkat_words::cost::Price;
use secrecy::SecretString;
use serde::Deserialize;

/// Name of the built-in model.
pub(super) const SCRIPTED: &str = "scripted";

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

impl Api {
    /// Returns true if an answer may be chat completions, whose calls have numbers.
    pub(super) const fn streams_chat(self) -> bool {
        matches!(self, Self::OpenAi | Self::Compatible)
    }
}

/// Vendor with a name of its own.
pub(super) struct Vendor {
    pub(super) api: Api,
    pub(super) name: &'static str,
    /// Environment variable of its key.
    pub(super) variable: &'static str,
    pub(super) base_url: &'static str,
    pub(super) default_model: &'static str,
    /// Beginnings of its models' names.
    prefixes: &'static [&'static str],
}

/// Vendors, in the order in which a key makes one the default.
pub(super) static VENDORS: [Vendor; 3] = [
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
    pub(super) fn model<'a>(&self, name: &'a str) -> Option<&'a str> {
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
    /// Prices. A model with one here has none of the built-in ones.
    pub prices: Vec<Price>,
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
    fn endpoint(self, lookup: impl Fn(&str) -> Option<String>) -> CompatibleEndpoint {
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
