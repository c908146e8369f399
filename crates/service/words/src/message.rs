//! Content of a session: messages, their blocks, and bodies that may be stored in a blob.
//!
//! JSON that came from a model or a tool is kept as text ([`RawJson`]) and never goes through a
//! value tree, which would change numbers and drop duplicate keys.

use std::{borrow::Cow, fmt};

use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeOwned, Error as _, MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::value::RawValue;

use crate::{ids::Seq, reminder::SystemReminderType};

mod attached;
mod json;

pub use attached::{Attached, AttachedFile, FILE_TEXT_BYTES_MAX, Image, PDF, Shown};
pub use json::{JSON_DEPTH_MAX, JSON_KEYS_MAX, RawJson, string_bytes, tokens};

/// Text, or a reference to it if it is too large for an event.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// The text itself; a JSON string.
    Inline(String),
    /// A reference; a JSON object.
    Blob(BlobRef),
}

/// Reference to a text in a blob, with the text's beginning and end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BlobRef {
    /// The blob's hash, by which it is read.
    pub blob: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// The beginning of the text.
    pub head: String,
    /// The end of the text.
    pub tail: String,
}

impl Body {
    /// Returns the text; for a blob its head, a note about the omitted part, and its tail.
    #[must_use]
    pub fn excerpt(&self) -> Cow<'_, str> {
        match self {
            Self::Inline(text) => Cow::Borrowed(text),
            Self::Blob(blob) => Cow::Owned(format!(
                "{}\n[... {} bytes left out; the whole is blob {} ...]\n{}",
                blob.head,
                blob.bytes.saturating_sub((blob.head.len() + blob.tail.len()) as u64),
                blob.blob,
                blob.tail
            )),
        }
    }

    /// The text's whole length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Inline(text) => text.len() as u64,
            Self::Blob(blob) => blob.bytes,
        }
    }

    /// Returns true if there is no text.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<&str> for Body {
    fn from(text: &str) -> Self {
        Self::Inline(text.to_owned())
    }
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Self::Inline(text)
    }
}

impl Serialize for Body {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Inline(text) => serializer.serialize_str(text),
            Self::Blob(blob) => blob.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Body {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BodyVisitor;

        impl<'de> Visitor<'de> for BodyVisitor {
            type Value = Body;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a blob reference")
            }

            fn visit_str<E>(self, text: &str) -> Result<Body, E> {
                Ok(Body::Inline(text.to_owned()))
            }

            fn visit_string<E>(self, text: String) -> Result<Body, E> {
                Ok(Body::Inline(text))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Body, A::Error> {
                BlobRef::deserialize(MapAccessDeserializer::new(map)).map(Body::Blob)
            }
        }

        deserializer.deserialize_any(BodyVisitor)
    }
}

impl JsonSchema for Body {
    fn schema_name() -> Cow<'static, str> {
        "Body".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let blob = generator.subschema_for::<BlobRef>();
        schemars::json_schema!({ "anyOf": [{ "type": "string" }, blob] })
    }
}

/// One message of a session's live context.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Message {
    /// The system prompt.
    System {
        /// Its text.
        content: Body,
    },
    /// A user's prompt.
    User {
        /// Its text.
        content: Body,
        /// Its images and files, in order. A model is sent them before the text.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        blocks: Vec<Attached>,
    },
    /// A plain text of the model.
    Assistant {
        /// Its text.
        content: Body,
    },
    /// An answer of the model in blocks: text, reasoning, tool calls.
    BlockAssistant {
        /// The model that gave it.
        model: String,
        /// Its blocks, in order.
        blocks: Vec<Block>,
    },
    /// A system reminder. Its type is a field, which no text can forge; it is never a turn.
    SystemReminder {
        /// Its subject.
        kind: SystemReminderType,
        /// Its text.
        content: Body,
    },
    /// A fact that is kept to the letter.
    Pin {
        /// The event that pinned it.
        n: Seq,
        /// The fact.
        content: Body,
    },
    /// The results of the tool calls of the message before, in call order.
    ToolResults {
        /// One for each call.
        results: Vec<ToolResult>,
    },
}

/// Message as it is read: one flat shape, because raw JSON does not survive a tagged enum.
#[derive(Deserialize)]
struct MessageShape {
    role: String,
    kind: Option<SystemReminderType>,
    n: Option<Seq>,
    content: Option<Body>,
    model: Option<String>,
    /// Those of an answer or of a prompt, which are not alike.
    blocks: Option<Box<RawValue>>,
    results: Option<Vec<ToolResult>>,
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let MessageShape { role, kind, n, content, model, blocks, results } = MessageShape::deserialize(deserializer)?;
        let content = part(content, "content");
        /// Decodes the blocks of one role.
        fn of<T: DeserializeOwned, E: serde::de::Error>(blocks: &RawValue) -> Result<T, E> {
            serde_json::from_str(blocks.get()).map_err(E::custom)
        }
        Ok(match role.as_str() {
            "system" => Self::System { content: content? },
            "user" => Self::User { content: content?, blocks: blocks.as_deref().map_or(Ok(Vec::new()), of)? },
            "assistant" => Self::Assistant { content: content? },
            "block_assistant" => {
                Self::BlockAssistant { model: part(model, "model")?, blocks: of(&part(blocks, "blocks")?)? }
            }
            "system_reminder" => Self::SystemReminder { kind: part(kind, "kind")?, content: content? },
            "pin" => Self::Pin { n: part(n, "n")?, content: content? },
            "tool_results" => Self::ToolResults { results: part(results, "results")? },
            other => return Err(D::Error::custom(format!("{other:?} is not a role"))),
        })
    }
}

fn part<T, E: serde::de::Error>(part: Option<T>, name: &'static str) -> Result<T, E> {
    part.ok_or_else(|| E::missing_field(name))
}

/// A part of an assistant message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(into = "BlockShape", try_from = "BlockShape")]
#[schemars(with = "BlockShape")]
pub enum Block {
    /// Text of the model.
    Text {
        /// The text.
        text: Body,
    },
    /// Reasoning of the model. It goes back only to the vendor it came from.
    Reasoning {
        /// The readable part, which may be empty.
        text: Body,
        /// The vendor's opaque part, needed to send it back.
        opaque: Option<RawJson>,
        /// The vendor it belongs to.
        vendor: String,
    },
    /// A call of a tool.
    ToolCall(ToolCall),
}

/// A tool call that the model asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// Id of the call within its session.
    pub call_id: String,
    /// The tool's name.
    pub name: String,
    /// Its arguments as the model gave them; a JSON string of the raw text if they were not valid JSON.
    pub arguments: RawJson,
    /// The vendor's opaque part that must go back with the call.
    pub opaque: Option<RawJson>,
}

impl ToolCall {
    /// Returns the arguments as text; of long ones the beginning, the end and the size.
    #[must_use]
    pub fn shown_arguments(&self) -> String {
        self.arguments.shown()
    }
}

/// The result of one call, as the model sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ToolResult {
    /// The call that it answers.
    pub call_id: String,
    /// The tool's name.
    pub name: String,
    /// True if the call failed, or its outcome is unknown.
    pub is_error: bool,
    /// The output.
    pub content: Body,
    /// Images of the output, for models that see.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<Image>,
}

/// End of an answer that was cut off.
pub const CUT_OFF: &str = "[cut off]";

/// Beginning of a result whose call may have succeeded.
pub const OUTCOME_UNKNOWN: &str = "Outcome unknown; verify before repeating.";
/// Largest size in bytes of such a result, if the engine wrote it.
pub const UNKNOWN_BYTES_MAX: u64 = 512;

impl ToolResult {
    /// Returns true if the outcome is unknown. A tool's own result that says so counts too.
    pub fn is_unknown(&self) -> bool {
        self.is_error && self.content.len() <= UNKNOWN_BYTES_MAX && self.content.excerpt().starts_with(OUTCOME_UNKNOWN)
    }

    /// Replaces the output by a reference to `seq` of the history, which keeps it in full. An unknown outcome is short
    /// and must not be forgotten, so it stays.
    pub fn masked(&self, seq: Seq) -> Self {
        if self.is_unknown() {
            return self.clone();
        }
        let content = format!("[masked: {} bytes, in event {seq} of the history]", self.content.len());
        Self { content: Body::Inline(content), images: Vec::new(), ..self.clone() }
    }
}

/// Block as it is written: one flat shape with an explicit `type`, so that raw JSON survives.
#[derive(Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Block")]
struct BlockShape {
    #[serde(rename = "type")]
    kind: BlockKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<Body>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vendor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    call_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, deserialize_with = "RawJson::given", skip_serializing_if = "Option::is_none")]
    arguments: Option<RawJson>,
    #[serde(default, deserialize_with = "RawJson::given", skip_serializing_if = "Option::is_none")]
    opaque: Option<RawJson>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum BlockKind {
    Text,
    Reasoning,
    ToolCall,
}

impl From<Block> for BlockShape {
    fn from(block: Block) -> Self {
        let empty = Self {
            kind: BlockKind::Text,
            text: None,
            vendor: None,
            call_id: None,
            name: None,
            arguments: None,
            opaque: None,
        };
        match block {
            Block::Text { text } => Self { text: Some(text), ..empty },
            Block::Reasoning { text, opaque, vendor } => {
                Self { kind: BlockKind::Reasoning, text: Some(text), vendor: Some(vendor), opaque, ..empty }
            }
            Block::ToolCall(call) => Self {
                kind: BlockKind::ToolCall,
                call_id: Some(call.call_id),
                name: Some(call.name),
                arguments: Some(call.arguments),
                opaque: call.opaque,
                ..empty
            },
        }
    }
}

impl TryFrom<BlockShape> for Block {
    type Error = String;

    fn try_from(shape: BlockShape) -> Result<Self, String> {
        let missing = |field: &str| format!("a block lacks {field}");
        Ok(match shape.kind {
            BlockKind::Text => Self::Text { text: shape.text.ok_or_else(|| missing("text"))? },
            BlockKind::Reasoning => Self::Reasoning {
                text: shape.text.ok_or_else(|| missing("text"))?,
                opaque: shape.opaque,
                vendor: shape.vendor.ok_or_else(|| missing("vendor"))?,
            },
            BlockKind::ToolCall => Self::ToolCall(ToolCall {
                call_id: shape.call_id.ok_or_else(|| missing("call_id"))?,
                name: shape.name.ok_or_else(|| missing("name"))?,
                arguments: shape.arguments.ok_or_else(|| missing("arguments"))?,
                opaque: shape.opaque,
            }),
        })
    }
}

/// Puts the mark behind a text that was cut off.
fn cut_off(text: &str) -> String {
    match text.trim_end() {
        "" => CUT_OFF.to_owned(),
        text => format!("{text} {CUT_OFF}"),
    }
}

impl Message {
    /// Makes a user's message of a text.
    #[must_use]
    pub fn user(text: impl Into<Body>) -> Self {
        Self::User { content: text.into(), blocks: Vec::new() }
    }

    /// Makes the message of an answer of which no more than this text had come.
    #[must_use]
    pub fn cut_off(text: &Body) -> Self {
        let content = match text {
            Body::Inline(text) => Body::Inline(cut_off(text)),
            Body::Blob(blob) => Body::Blob(BlobRef { tail: cut_off(&blob.tail), ..blob.clone() }),
        };
        Self::Assistant { content }
    }

    /// Returns true for an answer that was cut off.
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        let ends_so = |content: &Body| match content {
            Body::Inline(text) | Body::Blob(BlobRef { tail: text, .. }) => text.ends_with(CUT_OFF),
        };
        matches!(self, Self::Assistant { content } if ends_so(content))
    }

    /// Lists the tool calls of an assistant message.
    pub fn tool_calls(&self) -> impl Iterator<Item = &ToolCall> {
        let blocks = match self {
            Self::BlockAssistant { blocks, .. } => blocks.as_slice(),
            _ => &[],
        };
        blocks.iter().filter_map(|block| match block {
            Block::ToolCall(call) => Some(call),
            _ => None,
        })
    }

    /// Lists the texts that a model is sent whole, even from blobs. Tool results are sent as excerpts.
    pub fn texts(&self) -> impl Iterator<Item = &Body> {
        let (content, blocks) = match self {
            Self::System { content }
            | Self::User { content, .. }
            | Self::Assistant { content }
            | Self::SystemReminder { content, .. }
            | Self::Pin { content, .. } => (Some(content), &[][..]),
            Self::BlockAssistant { blocks, .. } => (None, blocks.as_slice()),
            Self::ToolResults { .. } => (None, &[][..]),
        };
        content.into_iter().chain(blocks.iter().filter_map(|block| match block {
            Block::Text { text } | Block::Reasoning { text, .. } => Some(text),
            Block::ToolCall(_) => None,
        }))
    }

    /// Lists the texts of [`Self::texts`] for replacing.
    pub fn texts_mut(&mut self) -> impl Iterator<Item = &mut Body> {
        let (content, blocks) = match self {
            Self::System { content }
            | Self::User { content, .. }
            | Self::Assistant { content }
            | Self::SystemReminder { content, .. }
            | Self::Pin { content, .. } => (Some(content), &mut [][..]),
            Self::BlockAssistant { blocks, .. } => (None, blocks.as_mut_slice()),
            Self::ToolResults { .. } => (None, &mut [][..]),
        };
        content.into_iter().chain(blocks.iter_mut().filter_map(|block| match block {
            Block::Text { text } | Block::Reasoning { text, .. } => Some(text),
            Block::ToolCall(_) => None,
        }))
    }

    /// Lists the images and files of a prompt.
    #[must_use]
    pub fn attached(&self) -> &[Attached] {
        if let Self::User { blocks, .. } = self { blocks } else { &[] }
    }

    /// Lists the images and PDFs of a prompt, and the images of tool results.
    pub fn shown(&self) -> impl DoubleEndedIterator<Item = Shown<'_>> {
        let results = if let Self::ToolResults { results } = self { results.as_slice() } else { &[] };
        let of_results = results.iter().flat_map(|result| &result.images).map(Shown::of);
        self.attached().iter().filter_map(Attached::shown).chain(of_results)
    }

    /// Lists the text files of a prompt.
    pub fn text_files(&self) -> impl Iterator<Item = &AttachedFile> {
        self.attached().iter().filter_map(|block| match block {
            Attached::File(file) if !file.is_pdf() => Some(file),
            Attached::File(_) | Attached::Image(_) => None,
        })
    }

    /// Returns the text for people, behind a line for each image and file of a prompt; reasoning and calls are left out.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::User { content, blocks } if !blocks.is_empty() => {
                let mut lines = Attached::lines(blocks);
                lines.extend(Some(content.excerpt().into_owned()).filter(|text| !text.is_empty()));
                lines.join("\n")
            }
            Self::System { content }
            | Self::User { content, .. }
            | Self::Assistant { content }
            | Self::SystemReminder { content, .. }
            | Self::Pin { content, .. } => content.excerpt().into_owned(),
            Self::BlockAssistant { blocks, .. } => blocks
                .iter()
                .filter_map(|block| match block {
                    Block::Text { text } => Some(text.excerpt()),
                    _ => None,
                })
                .collect(),
            Self::ToolResults { results } => {
                results.iter().map(|result| result.content.excerpt()).collect::<Vec<_>>().join("\n")
            }
        }
    }
}

#[cfg(test)]
mod tests;
