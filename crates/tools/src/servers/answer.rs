//! Results of servers for the model: text parts in order, images with a line each, a line for each other part.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use meerkat_service::tool::{IMAGE_BYTES_MAX, OutputSink, ToolError};
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};

/// Characters of base64 for three bytes.
const BASE64_CHARS: usize = 4;

/// End of a call that has no result.
#[derive(Debug)]
pub(super) enum CallEnd {
    /// The connection was lost before the server saw the call.
    NotSent,
    /// The server refused or failed it.
    Failed(String),
    /// The server may have run it.
    Unknown(String),
    /// It was stopped on request. It holds true if the server may have seen the call.
    Stopped(bool),
    /// The output was refused.
    Output(ToolError),
}

/// Writes a result to a call's output.
///
/// # Errors
/// [`CallEnd::Failed`] if the server says that the tool failed; its text is in the output.
pub(super) async fn write(server: &str, result: CallToolResult, output: &OutputSink) -> Result<(), CallEnd> {
    let has_text = result.content.iter().any(|part| matches!(part, ContentBlock::Text(_)));
    let structured = result.structured_content.filter(|_| !has_text).map(|value| value.to_string());
    let parts = result.content.into_iter().map(Part::of).chain(structured.map(Part::Text));
    for (index, part) in parts.enumerate() {
        if index > 0 {
            output.write("\n").await.map_err(CallEnd::Output)?;
        }
        let written = match part {
            Part::Text(text) => output.write(&text).await,
            Part::Image { bytes, kind } => match output.image(&bytes).await {
                Err(ToolError::Refused(why)) => {
                    let text = format!("[image, {kind}, {} bytes, which are not kept: {why}]", bytes.len());
                    output.write(&text).await
                }
                done => done,
            },
        };
        written.map_err(CallEnd::Output)?;
    }
    if result.is_error.unwrap_or(false) {
        return Err(CallEnd::Failed(format!("The server {server} says that the tool failed.")));
    }
    Ok(())
}

/// Part of a result.
enum Part {
    Text(String),
    Image { bytes: Vec<u8>, kind: String },
}

impl Part {
    fn of(block: ContentBlock) -> Self {
        if let ContentBlock::Image(image) = &block
            && image.data.len() <= IMAGE_BYTES_MAX.div_ceil(3) * BASE64_CHARS
            && let Ok(bytes) = BASE64_STANDARD.decode(&image.data)
        {
            return Self::Image { bytes, kind: image.mime_type.clone() };
        }
        Self::Text(text_of(block))
    }
}

fn text_of(part: ContentBlock) -> String {
    match part {
        ContentBlock::Text(text) => text.text,
        ContentBlock::Image(image) => dropped("image", &image.mime_type, image.data.len()),
        ContentBlock::Audio(audio) => dropped("audio", &audio.mime_type, audio.data.len()),
        ContentBlock::Resource(resource) => match resource.resource {
            ResourceContents::TextResourceContents { uri, text, .. } => format!("[resource {uri}]\n{text}"),
            ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
                dropped(&format!("resource {uri}"), mime_type.as_deref().unwrap_or("of unknown type"), blob.len())
            }
            _ => "[resource of an unknown kind, which is not kept]".to_owned(),
        },
        ContentBlock::ResourceLink(link) => format!("[link to the resource {}]", link.uri),
        _ => "[part of an unknown kind, which is not kept]".to_owned(),
    }
}

fn dropped(what: &str, kind: &str, base64: usize) -> String {
    let bytes = base64 / BASE64_CHARS * 3;
    format!("[{what}, {kind}, about {bytes} bytes, which are not kept]")
}
