//! Choice of the default model, and the sources of models.

use secrecy::ExposeSecret as _;

use super::options::{Api, CompatibleEndpoint, VENDORS, Vendor, VendorAccess, VendorOptions};

/// Where models come from: a vendor, or a server.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its name, which begins the names of its models.
    pub name: String,
    /// Environment variable of its key, if it takes one.
    pub variable: Option<String>,
    /// True if its key is set.
    pub has_key: bool,
    /// How it is reached, if it is a server.
    pub server: Option<CompatibleEndpoint>,
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
        let variable = |vendor: &Vendor| match self.gemini_variable {
            Some(variable) if vendor.api == Api::Gemini => variable,
            Some(_) | None => vendor.variable,
        };
        let vendors = VENDORS.iter().zip(accesses).map(|(vendor, access)| Source {
            name: vendor.name.to_owned(),
            variable: Some(variable(vendor).to_owned()),
            has_key: access.key.as_ref().is_some_and(|key| !key.expose_secret().is_empty()),
            server: None,
        });
        let is_new = |known: &&CompatibleEndpoint| !self.compatible.iter().any(|server| server.name == known.name);
        let servers = self.compatible.iter().chain(self.known.iter().filter(is_new)).map(|server| Source {
            name: server.name.clone(),
            variable: server.key_variable.clone(),
            has_key: server.key.is_some(),
            server: Some(server.clone()),
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
