//! `contract.toml`: how each operation is spelt on each surface, and the numbers of each error.
//!
//! The drivers depend on it alone, and on no table of the product.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

/// The whole of it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contract {
    /// Each operation, by its name.
    pub operations: BTreeMap<String, Spelling>,
    /// Methods besides the operations.
    pub beside: Beside,
    /// Each error, by its code.
    pub errors: BTreeMap<String, Numbers>,
}

/// How an operation is spelt.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spelling {
    /// Method, path and query.
    pub rest: Route,
    /// The method of JSON-RPC, and the name for `meerkat call`.
    pub rpc: String,
    /// The tool.
    pub mcp: Option<String>,
    /// Why there is no tool.
    pub no_mcp: Option<String>,
}

/// Methods besides the operations.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Beside {
    /// Methods of JSON-RPC that are no operations.
    pub rpc: Vec<String>,
}

/// The numbers of an error.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Numbers {
    /// The status over HTTP.
    pub http: u16,
    /// The number over JSON-RPC.
    pub rpc: i32,
    /// The exit code of the command line.
    pub exit: u8,
}

/// A route of REST: `METHOD /path?name&name=value`.
#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub struct Route {
    /// Its method.
    pub method: String,
    /// Its path, with parameters in braces.
    pub path: String,
    /// The parameters in the query.
    pub query: Vec<String>,
    /// A fixed part of the query: `name=value`.
    pub switch: Option<String>,
}

impl TryFrom<String> for Route {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let (method, target) = text.split_once(' ').ok_or_else(|| format!("{text:?} is no route"))?;
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let words = query.split('&').filter(|word| !word.is_empty()).map(str::to_owned);
        let (switches, query) = words.partition::<Vec<_>, _>(|word| word.contains('='));
        Ok(Self { method: method.to_owned(), path: path.to_owned(), query, switch: switches.into_iter().next() })
    }
}

/// Reads it.
pub fn read() -> Result<Contract, String> {
    toml_edit::de::from_str(include_str!("../contract.toml")).map_err(|error| format!("contract.toml: {error}"))
}

/// The contract. If it cannot be read it is empty, so every trial fails; a test says why.
pub fn contract() -> &'static Contract {
    static CONTRACT: LazyLock<Contract> = LazyLock::new(|| read().unwrap_or_default());
    &CONTRACT
}
