//! A prompt as a request has it: a text, or a list of texts, images and files.

use std::{borrow::Cow, fmt};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, SeqAccess, Visitor},
};

use crate::object::object;

/// Prompt of a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// A text; a JSON string.
    Text(String),
    /// Texts, images and files; a JSON array.
    Blocks(Vec<PromptBlock>),
}

/// Part of a prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum PromptBlock {
    /// A text.
    Text {
        /// The text.
        text: String,
    },
    /// An image. It has either `data` or `blob`.
    Image {
        /// Its type: `image/png`, `image/jpeg`, `image/gif` or `image/webp`.
        media_type: String,
        /// Its bytes, in base64.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        data: Option<Data>,
        /// The hash of a blob of the session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        blob: Option<String>,
    },
    /// A text file or a PDF. It has either `data` or `blob`.
    File {
        /// Its name, without a path.
        name: String,
        /// Its type, such as `text/plain` or `application/pdf`.
        media_type: String,
        /// Its bytes, in base64.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        data: Option<Data>,
        /// The hash of a blob of the session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        blob: Option<String>,
    },
}

impl Prompt {
    /// Returns its text: the texts in order, with an empty line between two. A line in brackets is in the place of an
    /// image or a file between two texts; the others come before the text.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        let blocks = match self {
            Self::Text(text) => return Cow::Borrowed(text),
            Self::Blocks(blocks) => blocks,
        };
        let (mut lines, mut places, mut images, mut files) = (Vec::new(), Vec::new(), 0, 0);
        for block in blocks {
            match block {
                PromptBlock::Text { text } => {
                    lines.append(&mut places);
                    lines.push(text.clone());
                    continue;
                }
                PromptBlock::Image { .. } => {
                    images += 1;
                    places.push(format!("[Image {images}]"));
                }
                PromptBlock::File { .. } => {
                    files += 1;
                    places.push(format!("[File {files}]"));
                }
            }
            if lines.is_empty() {
                places.clear();
            }
        }
        Cow::Owned(lines.join("\n\n"))
    }

    /// Lists its blocks; none if it is a text alone.
    #[must_use]
    pub fn blocks(&self) -> &[PromptBlock] {
        match self {
            Self::Text(_) => &[],
            Self::Blocks(blocks) => blocks,
        }
    }

    /// Makes the prompt with each block's bytes replaced by their hash, which `hash` computes: equal prompts stay equal.
    #[must_use]
    pub fn hashed(mut self, hash: impl Fn(&[u8]) -> String) -> Self {
        if let Self::Blocks(blocks) = &mut self {
            for block in blocks {
                if let PromptBlock::Image { data, blob, .. } | PromptBlock::File { data, blob, .. } = block
                    && let Some(bytes) = data.take()
                {
                    *blob = Some(hash(&bytes.0));
                }
            }
        }
        self
    }
}

impl Default for Prompt {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&String> for Prompt {
    fn from(text: &String) -> Self {
        Self::Text(text.clone())
    }
}

impl From<Vec<PromptBlock>> for Prompt {
    fn from(blocks: Vec<PromptBlock>) -> Self {
        Self::Blocks(blocks)
    }
}

impl PromptBlock {
    /// Makes a text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }

    /// Makes an image of its bytes.
    #[must_use]
    pub fn image(media_type: &str, bytes: impl Into<Bytes>) -> Self {
        Self::Image { media_type: media_type.to_owned(), data: Some(Data(bytes.into())), blob: None }
    }

    /// Makes a file of its bytes.
    #[must_use]
    pub fn file(name: &str, media_type: &str, bytes: impl Into<Bytes>) -> Self {
        let (name, media_type) = (name.to_owned(), media_type.to_owned());
        Self::File { name, media_type, data: Some(Data(bytes.into())), blob: None }
    }
}

impl Serialize for Prompt {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::Blocks(blocks) => blocks.serialize(serializer),
        }
    }
}

/// Block that is read from an object only.
#[derive(Deserialize)]
struct BlockObject(#[serde(deserialize_with = "object")] PromptBlock);

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PromptVisitor;

        impl<'de> Visitor<'de> for PromptVisitor {
            type Value = Prompt;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a prompt, which is a text or a list of blocks")
            }

            fn visit_str<E>(self, text: &str) -> Result<Prompt, E> {
                Ok(Prompt::Text(text.to_owned()))
            }

            fn visit_string<E>(self, text: String) -> Result<Prompt, E> {
                Ok(Prompt::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Prompt, A::Error> {
                let mut blocks = Vec::new();
                loop {
                    let block = items.next_element::<BlockObject>();
                    let wrong = |error| A::Error::custom(format!("block {} of the prompt: {error}", blocks.len()));
                    match block.map_err(wrong)? {
                        Some(BlockObject(block)) => blocks.push(block),
                        None => return Ok(Prompt::Blocks(blocks)),
                    }
                }
            }
        }

        deserializer.deserialize_any(PromptVisitor)
    }
}

impl JsonSchema for Prompt {
    fn schema_name() -> Cow<'static, str> {
        "Prompt".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let block = generator.subschema_for::<PromptBlock>();
        schemars::json_schema!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": block }] })
    }
}

/// Bytes of a block; base64 in JSON.
#[derive(Clone, PartialEq, Eq)]
pub struct Data(pub Bytes);

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Serialize for Data {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64_STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DataVisitor;

        impl Visitor<'_> for DataVisitor {
            type Value = Data;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes in base64")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Data, E> {
                let wrong = |error| E::custom(format!("`data` is not base64 with padding: {error}"));
                BASE64_STANDARD.decode(text).map(|bytes| Data(bytes.into())).map_err(wrong)
            }
        }

        deserializer.deserialize_str(DataVisitor)
    }
}

impl JsonSchema for Data {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Data".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "contentEncoding": "base64" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(json: &str) -> String {
        serde_json::from_str::<Prompt>(json).unwrap_err().to_string()
    }

    #[test]
    fn a_prompt_is_a_text_or_blocks() {
        assert_eq!(serde_json::from_str::<Prompt>(r#""Go on.""#).unwrap(), "Go on.".into());
        let json = r#"[{"type":"text","text":"See."},{"type":"image","media_type":"image/png","data":"AQI="},{"type":"file","name":"a.txt","media_type":"text/plain","blob":"b10b"}]"#;
        let prompt: Prompt = serde_json::from_str(json).unwrap();
        let blob = PromptBlock::File {
            name: "a.txt".into(),
            media_type: "text/plain".into(),
            data: None,
            blob: Some("b10b".into()),
        };
        let blocks = vec![PromptBlock::text("See."), PromptBlock::image("image/png", vec![1, 2]), blob];
        assert_eq!(prompt, blocks.into());
        assert_eq!(serde_json::to_string(&prompt).unwrap(), json);
    }

    #[test]
    fn what_is_wrong_with_a_block_is_named() {
        let text = r#"[{"type":"text","text":"a"},"#;
        for (json, named) in [
            ("7".to_owned(), "expected a prompt, which is a text or a list of blocks"),
            (format!(r#"{text}{{"type":"video","data":""}}]"#), "block 1 of the prompt: unknown variant `video`"),
            (format!("{text}{{}}]"), "block 1 of the prompt: missing field `type`"),
            (r#"["a"]"#.to_owned(), "block 0 of the prompt: invalid type: string"),
            (r#"[["text","a"]]"#.to_owned(), "block 0 of the prompt: invalid type: sequence"),
            (r#"[{"type":"image","data":""}]"#.to_owned(), "missing field `media_type`"),
            (r#"[{"type":"file","media_type":"text/plain","data":""}]"#.to_owned(), "missing field `name`"),
            (r#"[{"type":"image","media_type":"image/png","url":"http://a"}]"#.to_owned(), "unknown field `url`"),
            (r#"[{"type":"image","media_type":"image/png","data":"AQI"}]"#.to_owned(), "`data` is not base64"),
            (r#"[{"type":"image","media_type":"image/png","data":7}]"#.to_owned(), "expected bytes in base64"),
        ] {
            assert!(refusal(&json).contains(named), "{json}: {}", refusal(&json));
        }
    }

    #[test]
    fn the_text_has_the_places_between_texts() {
        let (text, image) = (PromptBlock::text, || PromptBlock::image("image/png", Vec::new()));
        let file = || PromptBlock::file("a.txt", "text/plain", Vec::new());
        for (blocks, expected) in [
            (vec![], ""),
            (vec![image()], ""),
            (vec![image(), file(), text("Both.")], "Both."),
            (vec![text("See."), image(), image()], "See."),
            (vec![text("a"), text("b")], "a\n\nb"),
            (
                vec![image(), text("Before:"), image(), file(), text("After:"), image()],
                "Before:\n\n[Image 2]\n\n[File 1]\n\nAfter:",
            ),
        ] {
            assert_eq!(Prompt::Blocks(blocks).text(), expected);
        }
    }

    #[test]
    fn data_and_the_blob_of_the_same_bytes_are_the_same() {
        let blob = PromptBlock::Image { media_type: "image/png".into(), data: None, blob: Some("2 bytes".into()) };
        let hash = |bytes: &[u8]| format!("{} bytes", bytes.len());
        assert_eq!(Prompt::Blocks(vec![PromptBlock::image("image/png", vec![1, 2])]).hashed(hash), vec![blob].into());
    }
}
