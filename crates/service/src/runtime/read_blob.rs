//! The tool by which a model reads what was cut out of a long text: a page of a blob of its own session.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;

use super::validate;
use crate::{
    SessionError,
    model::ToolSpec,
    session::message::RawJson,
    store::BlobStore,
    tool::{Effect, Invocation, OutputSink, Tool, ToolError, prefix},
};

/// Its name. Requests offer it where the context names a blob.
pub(crate) const READ_BLOB: &str = "read_blob";

/// Bytes of a page where the model does not say how many, and at most.
const PAGE_BYTES: usize = 8 * 1024;
const PAGE_BYTES_MAX: usize = 24 * 1024;
/// Bytes of the longest character.
const CHARACTER_BYTES_MAX: usize = 4;

const DESCRIPTION: &str = "Reads a part of a text that was too long to be shown whole: where a text says \"the whole is \
                           blob <name>\", by that name.";

const SCHEMA: &str = r#"{"type":"object","properties":{
"blob":{"type":"string","description":"The blob's name: 64 hexadecimal digits."},
"offset":{"type":"integer","minimum":0,"description":"Bytes to pass over; 0 where it is left out."},
"limit":{"type":"integer","minimum":4,"maximum":24576,"description":"Bytes at most; 8192 where it is left out."}
},"required":["blob"],"additionalProperties":false}"#;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    blob: String,
    #[serde(default)]
    offset: u64,
    limit: Option<usize>,
}

/// `read_blob`.
pub(crate) struct ReadBlob {
    spec: ToolSpec,
    blobs: Arc<dyn BlobStore>,
}

impl ReadBlob {
    /// The tool over a store of blobs.
    ///
    /// # Errors
    /// Where its schema is none.
    pub(crate) fn new(blobs: Arc<dyn BlobStore>) -> Result<Self, SessionError> {
        let (name, description) = (READ_BLOB.to_owned(), DESCRIPTION.to_owned());
        Ok(Self { spec: ToolSpec { name, description, schema: RawJson::parse(SCHEMA)? }, blobs })
    }
}

#[async_trait]
impl Tool for ReadBlob {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn effect(&self) -> Effect {
        Effect::ReadOnly
    }

    async fn call(&self, invocation: Invocation, output: &OutputSink) -> Result<(), ToolError> {
        let Arguments { blob, offset, limit } = ToolError::decode(&invocation.arguments)?;
        validate::blob_hash(&blob).map_err(|error| ToolError::Arguments(error.to_string()))?;
        let limit = limit.unwrap_or(PAGE_BYTES);
        if !(CHARACTER_BYTES_MAX..=PAGE_BYTES_MAX).contains(&limit) {
            let why = format!("limit is {limit}; it must be {CHARACTER_BYTES_MAX} to {PAGE_BYTES_MAX}");
            return Err(ToolError::Arguments(why));
        }
        // Only blobs of the session itself are found.
        let read = self.blobs.read(invocation.session_id, &blob, offset, limit + CHARACTER_BYTES_MAX).await;
        let bytes = read.map_err(|error| ToolError::Failed(error.to_string()))?;
        let bytes = bytes.ok_or_else(|| ToolError::Failed("This session has no such blob.".to_owned()))?;
        if bytes.is_empty() {
            return output.write(&format!("[The blob has no more than {offset} bytes.]")).await;
        }
        // An offset within a character shows what is left of it as a mark.
        let text = String::from_utf8_lossy(&bytes);
        let is_last = bytes.len() <= limit;
        let page = if is_last { &*text } else { prefix(&text, limit) };
        output.write(page).await?;
        if is_last {
            return Ok(());
        }
        let next = offset + page.len() as u64;
        output.write(&format!("\n[More follows at offset {next}.]")).await
    }
}
