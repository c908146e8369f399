//! The one body that every surface sends for an error.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::{Map, Value};

use crate::ErrorCode;

/// An error as it is sent: `{"code", "message", "retryable", "details"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    /// The stable name. Branch on it.
    pub code: ErrorCode,
    /// Message for people: what happened, and what to do. It may change.
    pub message: String,
    /// True if the same request can succeed later.
    pub retryable: bool,
    /// Facts about this failure; may be empty.
    pub details: Map<String, Value>,
}

impl ErrorBody {
    /// Makes a body with the code's own message and no details.
    #[must_use]
    pub fn new(code: ErrorCode) -> Self {
        Self::with_message(code, code.message())
    }

    /// Makes a body with another message.
    #[must_use]
    pub fn with_message(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retryable: code.retry().is_retryable(), details: Map::new() }
    }

    /// Adds one fact.
    #[must_use]
    pub fn detail(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.details.insert(name.to_owned(), value.into());
        self
    }
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for ErrorCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ErrorCode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = Cow::<'de, str>::deserialize(deserializer)?;
        Self::from_wire(&name).ok_or_else(|| D::Error::custom(format!("{name:?} is not an error code")))
    }
}

impl JsonSchema for ErrorCode {
    fn schema_name() -> Cow<'static, str> {
        "ErrorCode".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let names: Vec<&str> = Self::ALL.iter().map(|code| code.as_str()).collect();
        schemars::json_schema!({ "type": "string", "enum": names })
    }
}
