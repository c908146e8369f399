//! Event of a session that came in a bundle.

use meerkat_words::agents::Descent;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The session came here in a bundle, which may be anybody's: it has no workspace, no tools that its caller runs, no
/// rules that allow calls, and no call that a person decided on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionImported {
    /// True if there were tools that its caller runs: they are gone, and no call that waited for the caller ran.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub had_client_tools: bool,
    /// The call that started it, if the session that called came in the same bundle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub descent: Option<Descent>,
}
