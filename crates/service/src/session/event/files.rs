//! Files that a call is about to change, in its `tool_started`, and those that it changed, in its `tool_finished`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// File that a call made or replaced; if the outcome is unknown, the call may have been about to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChangedFile {
    /// Path from the workspace on.
    pub path: String,
    /// The file as it was; `null` if there was none.
    pub before: Option<FileBefore>,
    /// SHA-256 of the content after the change, in hexadecimal digits.
    pub after_sha256: String,
    /// Place among the changes of the calls that ran together.
    #[serde(default)]
    pub order: u64,
}

/// File before a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileBefore {
    /// SHA-256 of its content, in hexadecimal digits.
    pub sha256: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// The blob with a copy of it, unredacted; left out if the file was too large, or nothing is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<String>,
}

impl ChangedFile {
    /// Returns the blob with the copy of the file as it was.
    #[must_use]
    pub fn copy(&self) -> Option<&str> {
        self.before.as_ref()?.copy.as_deref()
    }
}
