//! Tools that the caller runs: their definitions, their calls, and the answers.

use bytes::Bytes;
use schemars::{JsonSchema, Schema, generate::SchemaSettings, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    SessionError,
    answers::{Changed, TurnResult},
    clock::Timestamp,
    ids::{Seq, SessionId, TurnNumber},
    message::RawJson,
    reply::{Reply, encode},
    tool::Effect,
};

/// Tools of a caller that a session may have.
pub const CLIENT_TOOLS_MAX: usize = 128;
/// Bytes of their definitions together; they are stored in an event.
pub const CLIENT_TOOLS_BYTES_MAX: usize = 512 * 1024;
/// Longest time that a call waits for its caller, in milliseconds: 30 days.
pub const CLIENT_TIMEOUT_MS_MAX: u64 = 30 * 24 * 3600 * 1000;
/// Parts of an answer to a call.
pub const CONTENT_PARTS_MAX: usize = 64;

/// Tool that the caller runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientTool {
    /// Its name.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// JSON Schema of its arguments, which are an object.
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    pub input_schema: RawJson,
    /// Effect of running a call again.
    #[serde(default = "once")]
    pub effect: Effect,
    /// Milliseconds that a call waits for its answer; those of `tools.client_timeout_ms` if `null`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = CLIENT_TIMEOUT_MS_MAX))]
    pub timeout_ms: Option<u64>,
}

const fn once() -> Effect {
    Effect::Once
}

/// How a call went at its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CallOutcome {
    /// It succeeded.
    Succeeded,
    /// It failed; the content says why.
    Failed,
}

/// Part of an answer to a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(into = "ContentShape", try_from = "ContentShape")]
#[schemars(with = "ContentShape")]
pub enum CallContent {
    /// Text.
    Text(String),
    /// Image.
    Image {
        /// Its type: `image/png`, `image/jpeg`, `image/gif` or `image/webp`.
        media_type: String,
        /// Its bytes in base64.
        data: String,
    },
    /// JSON, which the model reads as it was written.
    Json(RawJson),
}

/// Part of an answer as JSON: one flat shape, because raw JSON does not survive a tagged enum.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ContentShape {
    /// What it is.
    #[serde(rename = "type")]
    kind: ContentKind,
    /// Text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// Type of an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    media_type: Option<String>,
    /// Bytes of an image in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    /// JSON.
    #[serde(default, deserialize_with = "RawJson::given", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "serde_json::Value")]
    value: Option<RawJson>,
}

#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ContentKind {
    Text,
    Image,
    Json,
}

impl From<CallContent> for ContentShape {
    fn from(content: CallContent) -> Self {
        let empty = |kind| Self { kind, text: None, media_type: None, data: None, value: None };
        match content {
            CallContent::Text(text) => Self { text: Some(text), ..empty(ContentKind::Text) },
            CallContent::Image { media_type, data } => {
                Self { media_type: Some(media_type), data: Some(data), ..empty(ContentKind::Image) }
            }
            CallContent::Json(value) => Self { value: Some(value), ..empty(ContentKind::Json) },
        }
    }
}

impl TryFrom<ContentShape> for CallContent {
    type Error = &'static str;

    fn try_from(shape: ContentShape) -> Result<Self, &'static str> {
        match shape {
            ContentShape { kind: ContentKind::Text, text: Some(text), media_type: None, data: None, value: None } => {
                Ok(Self::Text(text))
            }
            ContentShape {
                kind: ContentKind::Image,
                text: None,
                media_type: Some(media_type),
                data: Some(data),
                value: None,
            } => Ok(Self::Image { media_type, data }),
            ContentShape { kind: ContentKind::Json, text: None, media_type: None, data: None, value: Some(value) } => {
                Ok(Self::Json(value))
            }
            ContentShape { kind: ContentKind::Text, .. } => Err("content of type text has text, and nothing else"),
            ContentShape { kind: ContentKind::Image, .. } => {
                Err("content of type image has media_type and data, and nothing else")
            }
            ContentShape { kind: ContentKind::Json, .. } => Err("content of type json has value, and nothing else"),
        }
    }
}

/// Request of `answer_call`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AnswerCall {
    /// The session.
    pub session_id: SessionId,
    /// The call.
    pub call_id: String,
    /// How it went.
    pub outcome: CallOutcome,
    /// What it returned, for the model.
    #[serde(default)]
    pub content: Vec<CallContent>,
    /// If true, answer with the turn's result, or when the turn waits for a caller again; else at once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub wait: bool,
}

impl AnswerCall {
    /// Answers a call that succeeded with a text.
    #[must_use]
    pub fn text(session_id: SessionId, call_id: impl Into<String>, text: impl Into<String>) -> Self {
        let (call_id, content) = (call_id.into(), vec![CallContent::Text(text.into())]);
        Self { session_id, call_id, outcome: CallOutcome::Succeeded, content, wait: false }
    }
}

/// Call that waits for its caller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OpenCall {
    /// The call.
    pub call_id: String,
    /// The tool.
    pub name: String,
    /// Its arguments, which fit the tool's schema.
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    pub arguments: RawJson,
    /// Effect of running it again.
    pub effect: Effect,
    /// Time until which it is answered.
    pub deadline: Timestamp,
    /// The turn.
    pub turn: TurnNumber,
    /// The event that requested it.
    pub seq: Seq,
}

/// Answer of `answer_call`.
#[derive(Clone, Debug, PartialEq)]
pub enum AnsweredCall {
    /// The event that recorded the answer.
    Recorded(Changed),
    /// The turn's result, or the calls that it waits for next.
    Turn(Box<TurnResult>),
}

impl Reply for AnsweredCall {
    fn write(&self) -> Result<Vec<u8>, SessionError> {
        match self {
            Self::Recorded(changed) => encode(changed),
            Self::Turn(result) => encode(result),
        }
    }

    fn read(json: &Bytes) -> Result<Self, SessionError> {
        #[derive(Deserialize)]
        struct Either<'a> {
            #[serde(borrow)]
            status: Option<&'a RawValue>,
        }
        let is_turn = serde_json::from_slice::<Either<'_>>(json).is_ok_and(|either| either.status.is_some());
        Ok(if is_turn { Self::Turn(Box::new(Reply::read(json)?)) } else { Self::Recorded(Reply::read(json)?) })
    }

    fn schema() -> Schema {
        let mut generator = SchemaSettings::default().for_serialize().into_generator();
        let either = [generator.subschema_for::<Changed>(), generator.subschema_for::<TurnResult>()];
        json_schema!({ "anyOf": either, "$defs": generator.take_definitions(true) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_an_answer_has_what_its_type_says_and_nothing_else() {
        let read = |json: &str| serde_json::from_str::<CallContent>(json).map_err(|error| error.to_string());
        for json in [
            r#"{"type":"text","text":"Sunny."}"#,
            r#"{"type":"image","media_type":"image/png","data":"aGk="}"#,
            r#"{"type":"json","value":{"n":1e2,"big":12345678901234567890123}}"#,
            r#"{"type":"json","value":null}"#,
        ] {
            let content = read(json).unwrap();
            assert_eq!(serde_json::to_string(&content).unwrap(), json, "it is written as it was read");
        }
        for (json, word) in [
            (r#"{"type":"text"}"#, "has text"),
            (r#"{"type":"text","text":"a","value":1}"#, "nothing else"),
            (r#"{"type":"image","data":"aGk="}"#, "media_type"),
            (r#"{"type":"json"}"#, "has value"),
            (r#"{"type":"audio","text":"a"}"#, "audio"),
            (r#"{"type":"text","text":"a","more":1}"#, "more"),
        ] {
            let refused = read(json).unwrap_err();
            assert!(refused.contains(word), "{json}: {refused}");
        }
    }
}
