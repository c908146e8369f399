//! Choice of the default model, list of models, and presets for popular servers.

use secrecy::ExposeSecret as _;
use serde::Deserialize;

use super::{SCRIPTED, VENDORS, VendorAccess, VendorModels, VendorOptions};
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
