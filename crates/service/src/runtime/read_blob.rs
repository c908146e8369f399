//! Tool by which a model reads the rest of a long text: pages of a blob of its own session.

use std::{borrow::Cow, sync::Arc};

use async_trait::async_trait;
use serde::Deserialize;

use super::validate;
use crate::{
    SessionError,
    model::ToolSpec,
    session::message::RawJson,
    store::{BlobStore, StoreError},
    tool::{Invocation, OutputSink, Plan, READ_BLOB, Tool, ToolError, is_copy},
};

/// Default and most bytes of a page.
const PAGE_BYTES: usize = 8 * 1024;
const PAGE_BYTES_MAX: usize = 24 * 1024;
/// Most bytes of the note after a page.
const NOTE_BYTES: usize = 100;
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
    /// Most bytes of a page that is not stored as a blob itself.
    page_bytes: usize,
}

impl ReadBlob {
    /// Makes the tool over a store of blobs; results have at most `inline_bytes`.
    ///
    /// # Errors
    /// If its schema is not valid.
    pub(crate) fn new(blobs: Arc<dyn BlobStore>, inline_bytes: usize) -> Result<Self, SessionError> {
        let (name, description) = (READ_BLOB.to_owned(), DESCRIPTION.to_owned());
        let page_bytes = inline_bytes.saturating_sub(NOTE_BYTES).max(CHARACTER_BYTES_MAX);
        Ok(Self { spec: ToolSpec { name, description, schema: RawJson::parse(SCHEMA)? }, blobs, page_bytes })
    }
}

#[async_trait]
impl Tool for ReadBlob {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn has_checked_schema(&self) -> bool {
        // A test checks it.
        true
    }

    fn usual_plan(&self) -> Option<Plan> {
        Some(Plan::read_only())
    }

    async fn call(&self, invocation: Invocation, output: &OutputSink) -> Result<(), ToolError> {
        let Arguments { blob, offset, limit } = ToolError::decode(&invocation.arguments)?;
        validate::blob_hash(&blob).map_err(|error| ToolError::Arguments(error.to_string()))?;
        let limit = limit.unwrap_or(PAGE_BYTES);
        if !(CHARACTER_BYTES_MAX..=PAGE_BYTES_MAX).contains(&limit) {
            let why = format!("limit is {limit}; it must be {CHARACTER_BYTES_MAX} to {PAGE_BYTES_MAX}");
            return Err(ToolError::Arguments(why));
        }
        let limit = limit.min(self.page_bytes);
        // It may hold what the model must not see.
        let failed = |error: StoreError| ToolError::Failed(error.to_string());
        if is_copy(self.blobs.as_ref(), invocation.session_id, &blob).await.map_err(failed)? {
            return Err(ToolError::Refused("This blob is a copy of a file, which is not shown.".to_owned()));
        }
        // Only blobs of the session itself are found.
        let read = self.blobs.read(invocation.session_id, &blob, offset, limit + CHARACTER_BYTES_MAX).await;
        let bytes = read.map_err(failed)?;
        let bytes = bytes.ok_or_else(|| ToolError::Failed("This session has no such blob.".to_owned()))?;
        if bytes.is_empty() {
            return output.write(&format!("[The blob has no more than {offset} bytes.]")).await;
        }
        let (text, next) = page(&bytes, offset, limit);
        output.write(&text).await?;
        let Some(next) = next else { return Ok(()) };
        output.write(&format!("\n[More follows at offset {next}.]")).await
    }
}

/// Returns the whole characters within the first `limit` bytes, and the offset of the next page. The rest of a
/// character that begins before the offset is skipped.
fn page(bytes: &[u8], offset: u64, limit: usize) -> (Cow<'_, str>, Option<u64>) {
    let is_inside = |at: usize| bytes.get(at).is_some_and(|byte| byte & 0b1100_0000 == 0b1000_0000);
    let most = CHARACTER_BYTES_MAX - 1;
    let start = (0..most).take_while(|at| is_inside(*at)).count();
    let is_last = bytes.len() <= limit;
    let whole =
        (0..CHARACTER_BYTES_MAX).map(|back| limit.saturating_sub(back)).find(|at| !is_inside(*at)).unwrap_or(limit);
    let end = if is_last { bytes.len() } else { whole.max(start) };
    let text = String::from_utf8_lossy(bytes.get(start..end).unwrap_or_default());
    (text, (!is_last).then_some(offset + end as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_from_anywhere_show_every_character_that_begins_there_once() {
        let text = "aé€𝄞\u{10FFFF}".repeat(20);
        for begin in 0..20 {
            let first = (begin..).find(|at| text.is_char_boundary(*at)).unwrap();
            for limit in 4..12 {
                let (mut shown, mut offset) = (String::new(), begin);
                loop {
                    let bytes = &text.as_bytes()[offset..text.len().min(offset + limit + CHARACTER_BYTES_MAX)];
                    let (page, next) = page(bytes, offset as u64, limit);
                    assert!(page.len() <= limit);
                    shown.push_str(&page);
                    let Some(next) = next else { break };
                    assert!(next > offset as u64);
                    offset = usize::try_from(next).unwrap();
                }
                assert_eq!(shown, text[first..], "from {begin}, {limit} at a time");
            }
        }
    }
}
