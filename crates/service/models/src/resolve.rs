//! From a model's name to the client that answers for it.

use std::{collections::BTreeMap, sync::Arc};

use super::ModelClient;
use meerkat_words::SessionError;

/// A model that can be called.
#[derive(Clone)]
pub struct ResolvedModel {
    /// The name as it stands in events and answers.
    pub name: String,
    /// The name as its vendor knows it.
    pub vendor_model: String,
    /// The client that answers for it.
    pub client: Arc<dyn ModelClient>,
    /// How many tokens a request and its answer may have together.
    pub window_tokens: u64,
}

/// Finds the client for a model's name.
pub trait ModelResolver: Send + Sync {
    /// The model that answers where none is named.
    fn default_model(&self) -> &str;

    /// Whether the default answers only because nothing was ever configured. Sessions that name no model are refused then
    /// where a real model answered an earlier one.
    fn is_stand_in(&self) -> bool {
        false
    }

    /// The client for `name`.
    ///
    /// # Errors
    /// `MODEL_NOT_CONFIGURED` where the name is unknown or its key is missing; the message says which variable to set.
    fn resolve(&self, name: &str) -> Result<ResolvedModel, SessionError>;
}

/// Models that an embedder hands in by name.
pub struct StaticModels {
    default_model: String,
    models: BTreeMap<String, ResolvedModel>,
}

impl StaticModels {
    /// One model, which is the default.
    #[must_use]
    pub fn new(name: &str, client: Arc<dyn ModelClient>, window_tokens: u64) -> Self {
        let models = BTreeMap::new();
        Self { default_model: name.to_owned(), models }.with(name, client, window_tokens)
    }

    /// Another model.
    #[must_use]
    pub fn with(mut self, name: &str, client: Arc<dyn ModelClient>, window_tokens: u64) -> Self {
        let resolved = ResolvedModel { name: name.to_owned(), vendor_model: name.to_owned(), client, window_tokens };
        self.models.insert(name.to_owned(), resolved);
        self
    }
}

impl ModelResolver for StaticModels {
    fn default_model(&self) -> &str {
        &self.default_model
    }

    fn resolve(&self, name: &str) -> Result<ResolvedModel, SessionError> {
        self.models
            .get(name)
            .cloned()
            .ok_or_else(|| SessionError::ModelNotConfigured { model: name.to_owned(), variable: None })
    }
}
