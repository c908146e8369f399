//! Blocks of a client's prompt, as ours: texts and names of files become one text, images and contents blocks.

use agent_client_protocol_schema::v1::{ContentBlock, EmbeddedResourceResource};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use meerkat_service::{
    SessionError,
    service::{Data, Prompt, PromptBlock},
};
use percent_encoding::percent_decode_str;

/// Type of a content that has none, or one that only an editor knows.
const PLAIN: &str = "text/plain";

/// Makes a prompt of a client's blocks.
///
/// # Errors
/// `INVALID_REQUEST` for what no model of ours is sent.
pub(crate) fn prompt(blocks: Vec<ContentBlock>) -> Result<Prompt, SessionError> {
    let (mut taken, mut text) = (Vec::new(), String::new());
    let mut put = |block: Option<PromptBlock>, text: &mut String| {
        if !text.trim().is_empty() {
            taken.push(PromptBlock::text(std::mem::take(text)));
        }
        taken.extend(block);
    };
    for (at, block) in blocks.into_iter().enumerate() {
        match block {
            ContentBlock::Text(said) => text.push_str(&said.text),
            // The model reads the file with its own tools.
            ContentBlock::ResourceLink(link) => text.push_str(&named(&link.uri)),
            ContentBlock::Image(image) => {
                let data = Some(bytes(at, &image.data)?);
                put(Some(PromptBlock::Image { media_type: image.mime_type, data, blob: None }), &mut text);
            }
            ContentBlock::Resource(resource) => match resource.resource {
                EmbeddedResourceResource::TextResourceContents(file) => {
                    text.push_str(&named(&file.uri));
                    put(Some(PromptBlock::file(&name(&file.uri), PLAIN, file.text)), &mut text);
                }
                EmbeddedResourceResource::BlobResourceContents(file) => {
                    text.push_str(&named(&file.uri));
                    let (data, media_type) = (Some(bytes(at, &file.blob)?), file.mime_type.unwrap_or_default());
                    let block = if media_type.starts_with("image/") {
                        PromptBlock::Image { media_type, data, blob: None }
                    } else {
                        PromptBlock::File { name: name(&file.uri), media_type, data, blob: None }
                    };
                    put(Some(block), &mut text);
                }
                _ => return Err(refused(at)),
            },
            _ => return Err(refused(at)),
        }
    }
    if taken.is_empty() {
        return Ok(text.into());
    }
    if !text.trim().is_empty() {
        taken.push(PromptBlock::text(text));
    }
    Ok(taken.into())
}

fn refused(at: usize) -> SessionError {
    let message = "no model is sent this; send text, an image, a link, or the content of a text file or a PDF";
    SessionError::invalid(format!("prompt[{at}]"), message)
}

fn bytes(at: usize, data: &str) -> Result<Data, SessionError> {
    let wrong = |why| SessionError::invalid(format!("prompt[{at}]"), format!("it is not base64 with padding: {why}"));
    BASE64_STANDARD.decode(data).map(|bytes| Data(bytes.into())).map_err(wrong)
}

/// Names a file in the text, by its path if it has one.
fn named(uri: &str) -> String {
    let name = uri.strip_prefix("file://").map_or_else(|| uri.to_owned(), decoded);
    if name.contains('`') { format!("`` {name} ``") } else { format!("`{name}`") }
}

/// An address without its escapes, as the model's tools find the file.
fn decoded(path: &str) -> String {
    percent_decode_str(path).decode_utf8_lossy().into_owned()
}

/// Last part of an address, which has no path.
fn name(uri: &str) -> String {
    let path = decoded(uri.split(['?', '#']).next().unwrap_or_default());
    let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    if last.is_empty() { "content".to_owned() } else { last.to_owned() }
}
