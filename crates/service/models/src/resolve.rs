//! Lookup of a model's client by name.

use std::{collections::BTreeMap, sync::Arc};

use super::{ModelClient, Usage};
use meerkat_words::{
    SessionError,
    clock::Timestamp,
    cost::{self, Cost, Price},
    options::CacheTime,
};

/// Model that can be called.
#[derive(Clone)]
pub struct ResolvedModel {
    /// Name in events and answers.
    pub name: String,
    /// Name that its vendor uses.
    pub vendor_model: String,
    /// Client for its calls.
    pub client: Arc<dyn ModelClient>,
    /// Most tokens of a request and its answer together.
    pub window_tokens: u64,
    /// Its prices; none if they are unknown.
    pub prices: Arc<[Price]>,
}

impl ResolvedModel {
    /// Computes the cost of a call that asked for this cache.
    #[must_use]
    pub fn cost(&self, usage: Usage, cache: Option<CacheTime>, at: Timestamp) -> Option<Cost> {
        cost::cost(&self.prices, usage, cache == Some(CacheTime::Long), at)
    }

    /// Computes what a call's input costs at least, by the prices of that day.
    #[must_use]
    pub fn least_cost(&self, input_tokens: u64, at: Timestamp) -> Option<Cost> {
        cost::least_cost(&self.prices, input_tokens, at)
    }

    /// Checks that the cost of its calls can be limited.
    ///
    /// # Errors
    /// `INVALID_REQUEST` if it has no price, or none of the cache that is asked for.
    pub fn check_priced(&self, cache: Option<CacheTime>, at: Timestamp) -> Result<(), SessionError> {
        let is_cached_long = cache == Some(CacheTime::Long);
        if cost::is_priced(&self.prices, is_cached_long, at) {
            return Ok(());
        }
        let message = format!(
            "the model {:?} has no price{}, so its cost cannot be limited; give it one in `model.prices`, or use \
             another model or no such budget",
            self.name,
            if cost::is_priced(&self.prices, false, at) { " of its long cache (`options.cache`)" } else { "" }
        );
        Err(SessionError::invalid("budgets.cost", message))
    }
}

/// Finds the client for a model's name.
pub trait ModelResolver: Send + Sync {
    /// Returns the default model's name.
    fn default_model(&self) -> &str;

    /// Returns true if the default is used only because nothing was ever configured. Sessions without a model are then
    /// refused if a real model has answered before.
    fn is_stand_in(&self) -> bool {
        false
    }

    /// Returns the client for `name`.
    ///
    /// # Errors
    /// `MODEL_NOT_CONFIGURED` if the name is unknown or its key is missing; the message says which variable to set.
    fn resolve(&self, name: &str) -> Result<ResolvedModel, SessionError>;
}

/// Models given by name.
pub struct StaticModels {
    default_model: String,
    models: BTreeMap<String, ResolvedModel>,
}

impl StaticModels {
    /// Starts with one model, the default.
    #[must_use]
    pub fn new(name: &str, client: Arc<dyn ModelClient>, window_tokens: u64) -> Self {
        let models = BTreeMap::new();
        Self { default_model: name.to_owned(), models }.with(name, client, window_tokens)
    }

    /// Adds a model.
    #[must_use]
    pub fn with(mut self, name: &str, client: Arc<dyn ModelClient>, window_tokens: u64) -> Self {
        let prices = Arc::default();
        let (name, vendor_model) = (name.to_owned(), name.to_owned());
        let resolved = ResolvedModel { name: name.clone(), vendor_model, client, window_tokens, prices };
        self.models.insert(name, resolved);
        self
    }

    /// Sets the prices of a model that was added.
    #[must_use]
    pub fn priced(mut self, name: &str, prices: impl Into<Arc<[Price]>>) -> Self {
        if let Some(model) = self.models.get_mut(name) {
            model.prices = prices.into();
        }
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
