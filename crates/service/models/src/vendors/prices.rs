//! Prices by the name of a model: those of the configuration, then the built-in ones of `config/prices.toml`.

use std::sync::{Arc, LazyLock};

use meerkat_words::{SessionError, cost::Price};
use serde::Deserialize;

static BUILT_IN: LazyLock<Vec<(String, Arc<[Price]>)>> = LazyLock::new(|| {
    let text = include_str!("../../../../../config/prices.toml");
    toml_edit::de::from_str(text).map_or_else(|_| Vec::new(), |table: Table| by_model(&table.price))
});

/// Content of `config/prices.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    price: Vec<Price>,
}

/// Prices of all models.
pub(super) struct Prices(Vec<(String, Arc<[Price]>)>);

impl Prices {
    /// Takes the prices of a configuration; a model in it has none of the built-in ones.
    ///
    /// # Errors
    /// `CONFIG_INVALID` for a day that there is not.
    pub(super) fn new(configured: &[Price]) -> Result<Self, SessionError> {
        for price in configured {
            price.check().map_err(|message| SessionError::ConfigInvalid {
                key: "model.prices".to_owned(),
                message: format!("{}: {message}", price.model),
            })?;
        }
        Ok(Self(by_model(configured)))
    }

    /// Returns the prices of a model; none if they are unknown.
    pub(super) fn of(&self, vendor: &str, model: &str) -> Arc<[Price]> {
        self.named(|name| name.strip_prefix(vendor).and_then(|rest| rest.strip_prefix('/')) == Some(model))
    }

    /// Returns the prices of the model whose name fits.
    pub(super) fn named(&self, fits: impl Fn(&str) -> bool) -> Arc<[Price]> {
        let found = self.0.iter().chain(&*BUILT_IN).find(|(name, _)| fits(name));
        found.map(|(_, prices)| prices.clone()).unwrap_or_default()
    }
}

fn by_model(prices: &[Price]) -> Vec<(String, Arc<[Price]>)> {
    let mut names: Vec<&str> = prices.iter().map(|price| price.model.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let of = |name: &str| prices.iter().filter(|price| price.model == name).cloned().collect();
    names.into_iter().map(|name| (name.to_owned(), of(name))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::vendors::options::VENDORS;

    #[test]
    fn the_built_in_prices_are_read_and_every_vendors_default_has_one() {
        let prices = Prices::new(&[]).unwrap();
        assert!(BUILT_IN.iter().flat_map(|(_, prices)| prices.iter()).all(|price| price.check().is_ok()));
        for vendor in &VENDORS {
            assert!(!prices.of(vendor.name, vendor.default_model).is_empty(), "{}", vendor.default_model);
        }
        assert!(prices.of("anthropic", "claude-unheard-of").is_empty());
    }

    #[test]
    fn configured_prices_replace_all_of_a_models_built_in_ones() {
        let row = json!({ "model": "anthropic/claude-sonnet-5-5", "input": "1", "output": "1" });
        let row: Price = serde_json::from_value(row).unwrap();
        let prices = Prices::new(std::slice::from_ref(&row)).unwrap();
        assert_eq!(prices.of("anthropic", "claude-sonnet-5-5").first(), Some(&row));
        assert_eq!(prices.of("openai", "gpt-5.6-terra"), Prices::new(&[]).unwrap().of("openai", "gpt-5.6-terra"));

        let wrong = Price { since: "2026-13-01".to_owned(), ..row };
        let refused = Prices::new(&[wrong]).err().map(|error| error.to_string()).unwrap();
        assert!(refused.contains("anthropic/claude-sonnet-5-5: \"2026-13-01\" is not a day"), "{refused}");
    }
}
