//! Keeper of rules: where an approval for always goes.

use crate::SessionError;

/// Keeps rules that are allowed for always, outside of sessions. It is asked only if `tools.remember` is true, and when
/// the decision is recorded.
pub trait RuleKeeper: Send + Sync {
    /// Keeps a rule, such as `shell: cargo test *`. Keeping one twice is keeping it once. May block.
    ///
    /// # Errors
    /// If the rule could not be kept; it then holds in its session alone.
    fn remember(&self, rule: &str) -> Result<(), SessionError>;
}
