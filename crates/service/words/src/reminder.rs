//! System reminders and pins: texts that stay with a session.

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::{SessionError, ids::Seq};

/// Subject of a reminder.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SystemReminderType {
    /// The project's rules: `claude_md`.
    ClaudeMd,
    /// The environment: `environment`.
    Environment,
    /// The repository's state: `git_status`.
    GitStatus,
    /// The remaining tokens: `token_status`.
    TokenStatus,
    /// Any other subject: `custom:<name>`.
    Custom(String),
}

/// The longest name of a custom reminder, in bytes.
const CUSTOM_NAME_BYTES_MAX: usize = 64;

/// Returns true for what the name of a custom reminder consists of.
const fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

impl SystemReminderType {
    /// Checks the name of a custom one: what is refused here cannot be read again.
    ///
    /// # Errors
    /// `INVALID_REQUEST` with the names there may be.
    pub fn check(&self) -> Result<(), SessionError> {
        self.to_string().parse::<Self>().map(drop)
    }

    /// Returns its text with `_` in place of each character that no name has.
    #[must_use]
    pub fn tame(&self) -> String {
        match self {
            Self::Custom(name) => {
                Self::Custom(name.chars().map(|c| if is_of_name(c) { c } else { '_' }).collect()).to_string()
            }
            kind => kind.to_string(),
        }
    }
}

impl fmt::Display for SystemReminderType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClaudeMd => f.write_str("claude_md"),
            Self::Environment => f.write_str("environment"),
            Self::GitStatus => f.write_str("git_status"),
            Self::TokenStatus => f.write_str("token_status"),
            Self::Custom(name) => write!(f, "custom:{name}"),
        }
    }
}

impl FromStr for SystemReminderType {
    type Err = SessionError;

    fn from_str(text: &str) -> Result<Self, SessionError> {
        let is_name = |name: &str| (1..=CUSTOM_NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(is_of_name);
        Ok(match text {
            "claude_md" => Self::ClaudeMd,
            "environment" => Self::Environment,
            "git_status" => Self::GitStatus,
            "token_status" => Self::TokenStatus,
            other => match other.strip_prefix("custom:") {
                Some(name) if is_name(name) => Self::Custom(name.to_owned()),
                _ => {
                    return Err(SessionError::invalid(
                        "kind",
                        "a reminder's kind is claude_md, environment, git_status, token_status, or custom:<name> \
                         with up to 64 letters, digits, '_', '-' or '.'",
                    ));
                }
            },
        })
    }
}

impl Serialize for SystemReminderType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SystemReminderType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for SystemReminderType {
    fn schema_name() -> Cow<'static, str> {
        "SystemReminderType".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "pattern": "^(claude_md|environment|git_status|token_status|custom:[A-Za-z0-9_.-]{1,64})$"
        })
    }
}

/// Reminder in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reminder {
    /// Its subject.
    pub kind: SystemReminderType,
    /// Its text.
    pub text: String,
    /// True if it is renewed with each turn; left out if a person set it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub automatic: bool,
    /// The event that set it.
    pub seq: Seq,
}

/// Fact that is kept to the letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pin {
    /// The event that pinned it, which is its name.
    pub seq: Seq,
    /// The fact.
    pub text: String,
}
