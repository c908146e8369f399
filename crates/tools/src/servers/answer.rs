//! Results of servers as text for the model: text parts in order, a line for each part that is none.

use meerkat_service::tool::OutputSink;
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};

use super::link::CallEnd;

/// Characters of base64 for three bytes.
const BASE64_CHARS: usize = 4;

/// Writes a result to a call's output.
///
/// # Errors
/// [`CallEnd::Failed`] if the server says that the tool failed; its text is in the output.
pub(super) async fn write(server: &str, result: CallToolResult, output: &OutputSink) -> Result<(), CallEnd> {
    let has_text = result.content.iter().any(|part| matches!(part, ContentBlock::Text(_)));
    let structured = result.structured_content.filter(|_| !has_text).map(|value| value.to_string());
    let parts = result.content.into_iter().map(text_of).chain(structured);
    for (index, mut part) in parts.enumerate() {
        if index > 0 {
            part.insert(0, '\n');
        }
        output.write(&part).await.map_err(CallEnd::Output)?;
    }
    if result.is_error.unwrap_or(false) {
        return Err(CallEnd::Failed(format!("The server {server} says that the tool failed.")));
    }
    Ok(())
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
