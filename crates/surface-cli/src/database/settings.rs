//! Database as the configuration names it.

use secrecy::SecretString;

/// Database as the configuration names it.
pub(crate) struct Database {
    pub(crate) url: SecretString,
    pub(crate) schema: String,
    pub(crate) connections: usize,
    pub(crate) statement_timeout_ms: u64,
    pub(crate) lease_ms: u64,
    /// Name of this process among those that share the database; if `None`, the data directory keeps one.
    pub(crate) node: Option<String>,
}
