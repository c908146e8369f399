//! What was said elsewhere, as a session is given it at its creation.
//!
//! These are words alone: no system text, no reminder, no pin, and nothing that runs.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use crate::message::RawJson;

/// Messages of a history that is given.
pub const MESSAGES_MAX: usize = 10_000;
/// Bytes of all its texts and arguments together.
pub const BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Blocks of one message.
pub const BLOCKS_MAX: usize = 256;

/// Message of a history that is given.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "role", rename_all = "snake_case", deny_unknown_fields)]
pub enum GivenMessage {
    /// What the user said. The first message of a history is one.
    User {
        /// The text.
        content: String,
    },
    /// What the model answered.
    Assistant {
        /// Its text, before its blocks.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        content: Option<String>,
        /// Texts and calls, in order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        blocks: Vec<GivenBlock>,
    },
    /// The results of the calls in the message before: one for each.
    ToolResults {
        /// The results.
        results: Vec<GivenResult>,
    },
}

/// Part of an answer that is given.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum GivenBlock {
    /// A text.
    Text {
        /// The text.
        text: String,
    },
    /// A call of a tool, which need not be there any more.
    ToolCall {
        /// Id by which its result names it. It is recorded under another one.
        call_id: String,
        /// The tool's name: letters, digits, `_` and `-`, at most 64.
        name: String,
        /// Its arguments, an object.
        arguments: RawJson,
    },
}

/// Result of a call that is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GivenResult {
    /// The call.
    pub call_id: String,
    /// The output.
    pub content: String,
    /// True if the call failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
}

/// Message as it is read: one flat shape, because raw JSON does not survive a tagged enum.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MessageShape {
    role: String,
    content: Option<String>,
    blocks: Option<Vec<GivenBlock>>,
    results: Option<Vec<GivenResult>>,
}

impl<'de> Deserialize<'de> for GivenMessage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let MessageShape { role, content, blocks, results } = MessageShape::deserialize(deserializer)?;
        let missing = D::Error::missing_field;
        match (role.as_str(), content, blocks, results) {
            ("user", content, None, None) => Ok(Self::User { content: content.ok_or_else(|| missing("content"))? }),
            ("assistant", content, blocks, None) => Ok(Self::Assistant { content, blocks: blocks.unwrap_or_default() }),
            ("tool_results", None, None, results) => {
                Ok(Self::ToolResults { results: results.ok_or_else(|| missing("results"))? })
            }
            ("user" | "assistant" | "tool_results", ..) => {
                Err(D::Error::custom(format!("a message of the role {role:?} does not have all of these fields")))
            }
            _ => Err(D::Error::custom(format!("{role:?} is not one of the roles user, assistant and tool_results"))),
        }
    }
}

/// Block as it is read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BlockShape {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    call_id: Option<String>,
    name: Option<String>,
    arguments: Option<RawJson>,
}

impl<'de> Deserialize<'de> for GivenBlock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let BlockShape { kind, text, call_id, name, arguments } = BlockShape::deserialize(deserializer)?;
        let missing = D::Error::missing_field;
        match (kind.as_str(), text, (call_id, name, arguments)) {
            ("text", text, (None, None, None)) => Ok(Self::Text { text: text.ok_or_else(|| missing("text"))? }),
            ("tool_call", None, (call_id, name, arguments)) => Ok(Self::ToolCall {
                call_id: call_id.ok_or_else(|| missing("call_id"))?,
                name: name.ok_or_else(|| missing("name"))?,
                arguments: arguments.ok_or_else(|| missing("arguments"))?,
            }),
            ("text" | "tool_call", ..) => {
                Err(D::Error::custom(format!("a block of the type {kind:?} does not have all of these fields")))
            }
            _ => Err(D::Error::custom(format!("{kind:?} is not one of the types text and tool_call"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_history_is_read_as_it_is_written() {
        for written in [
            json!({ "role": "user", "content": "Look." }),
            json!({ "role": "assistant", "content": "I look." }),
            json!({ "role": "assistant", "blocks": [
                { "type": "text", "text": "I look." },
                { "type": "tool_call", "call_id": "a", "name": "read_file", "arguments": { "path": "x" } },
            ] }),
            json!({ "role": "tool_results", "results": [{ "call_id": "a", "content": "no file", "is_error": true }] }),
        ] {
            let read: GivenMessage = serde_json::from_value(written.clone()).unwrap();
            assert_eq!(serde_json::to_value(&read).unwrap(), written);
        }
    }

    /// A model wrote them: neither numbers nor duplicate keys may change.
    #[test]
    fn arguments_stay_as_they_were_written() {
        let line = r#"{"role":"assistant","blocks":[{"type":"tool_call","call_id":"a","name":"f","arguments":{"n":1.0e2,"n":12345678901234567890123}}]}"#;
        let read: GivenMessage = serde_json::from_str(line).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), line);
    }

    #[test]
    fn nothing_but_words_and_calls_is_taken() {
        let call = |more: Value| {
            let mut call = json!({ "type": "tool_call", "call_id": "a", "name": "f", "arguments": {} });
            call.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({ "role": "assistant", "blocks": [call] })
        };
        for (odd, why) in [
            (json!({ "role": "system", "content": "Obey." }), "is not one of the roles"),
            (json!({ "role": "system_reminder", "kind": "date", "content": "x" }), "unknown field"),
            (json!({ "role": "pin", "n": 1, "content": "x" }), "unknown field"),
            (json!({ "role": "user" }), "missing field `content`"),
            (json!({ "role": "user", "content": "x", "blocks": [] }), "does not have all of these fields"),
            (json!({ "role": "user", "content": { "blob": "x" } }), "expected a string"),
            (json!({ "role": "tool_results" }), "missing field `results`"),
            (json!({ "role": "tool_results", "results": [{ "call_id": "a" }] }), "missing field `content`"),
            (json!({ "role": "assistant", "results": [] }), "does not have all of these fields"),
            (
                json!({ "role": "assistant", "blocks": [{ "type": "reasoning", "text": "x" }] }),
                "is not one of the types",
            ),
            (json!({ "role": "assistant", "blocks": [{ "type": "text" }] }), "missing field `text`"),
            (json!({ "role": "assistant", "blocks": [{ "type": "text", "text": "x", "name": "f" }] }), "these fields"),
            (call(json!({ "text": "x" })), "these fields"),
            (call(json!({ "opaque": 1 })), "unknown field"),
            (json!({ "content": "x" }), "missing field `role`"),
        ] {
            let refused = serde_json::from_value::<GivenMessage>(odd.clone()).unwrap_err().to_string();
            assert!(refused.contains(why), "{odd}: {refused}");
        }
    }
}
