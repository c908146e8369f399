//! What a prompt may hold: the checks of its images and files.
//!
//! A prompt is checked whole before anything of it is stored. Nothing is decoded but the headers of images.

use meerkat_words::message::{AttachedFile, Image, PDF};

use crate::{
    SessionError,
    model::ResolvedModel,
    options::Limits,
    runtime::validate,
    service::{Data, Prompt, PromptBlock},
    session::message::Attached,
    tool::Picture,
};

/// Blocks of a prompt, and how many of them may be images.
const BLOCKS_MAX: usize = 32;
const IMAGES_MAX: usize = 16;
/// Bytes of a file, and of all images and files together: in base64 a request with them stays within what vendors take.
pub(crate) const FILE_BYTES_MAX: usize = 20 * 1024 * 1024;
const BYTES_MAX: u64 = FILE_BYTES_MAX as u64;
/// Most bytes of all text files by `blob` of a prompt.
const BLOB_TEXT_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Bytes of a file's name: file systems have no longer ones.
const NAME_BYTES_MAX: usize = 255;
/// Types of text files besides `text/…`.
const TEXT_TYPES: [&str; 9] = [
    "application/json",
    "application/xml",
    "application/yaml",
    "application/toml",
    "application/sql",
    "application/javascript",
    "application/typescript",
    "application/x-sh",
    "application/x-ndjson",
];

/// Returns true if a PDF begins so.
pub(crate) fn begins_pdf(bytes: &[u8]) -> bool {
    bytes.starts_with(b"%PDF-")
}

/// Counts the pages of a PDF; `None` if it has them where only a reader of PDFs finds them.
fn pages_of(pdf: &[u8]) -> Option<u32> {
    let is_page = |rest: &[u8]| {
        let kind =
            rest.strip_prefix(b"/Type").map(<[u8]>::trim_ascii_start).and_then(|rest| rest.strip_prefix(b"/Page"));
        kind.is_some_and(|after| after.first().is_none_or(|byte| !byte.is_ascii_alphanumeric()))
    };
    let names = pdf.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    let pages = names.filter(|(at, _)| is_page(&pdf[*at..])).count();
    u32::try_from(pages).ok().filter(|pages| *pages > 0)
}

/// Checks a prompt's text, and its blocks as far as the request itself has them.
pub(crate) fn check(prompt: &Prompt, limits: &Limits) -> Result<(), SessionError> {
    let blocks = prompt.blocks();
    let is_text = |block: &PromptBlock| matches!(block, PromptBlock::Text { .. });
    let text = prompt.text();
    if blocks.iter().all(is_text) {
        validate::not_empty("prompt", &text, "say what the turn is about")?;
    }
    let too_many = |what, count, limit| {
        Err(SessionError::invalid("prompt", format!("it has {count} {what}; at most {limit} are allowed")))
    };
    if blocks.len() > BLOCKS_MAX {
        return too_many("blocks", blocks.len(), BLOCKS_MAX);
    }
    let images = blocks.iter().filter(|block| matches!(block, PromptBlock::Image { .. })).count();
    if images > IMAGES_MAX {
        return too_many("images", images, IMAGES_MAX);
    }
    validate::size("prompt", &text, limits.prompt_bytes)?;
    check_bytes(blocks.iter().filter_map(data).map(|data| data.0.len() as u64).sum())?;
    for (at, block) in blocks.iter().enumerate() {
        if let PromptBlock::File { name, media_type, .. } = block {
            check_name(at, name)?;
            check_type(at, media_type)?;
        }
        match block {
            PromptBlock::Text { .. } => {}
            PromptBlock::Image { data, blob, .. } | PromptBlock::File { data, blob, .. } => match (data, blob) {
                (Some(data), None) => check_content((at, "data"), block, &data.0)?,
                (None, Some(blob)) => validate::blob_hash(blob)?,
                (None, None) | (Some(_), Some(_)) => {
                    return Err(invalid(at, "data", "give either `data` or `blob`"));
                }
            },
        }
    }
    Ok(())
}

/// Checks the bytes of all images and files of a prompt, but for its text files by `blob`.
pub(crate) fn check_bytes(bytes: u64) -> Result<(), SessionError> {
    within(bytes, BYTES_MAX)
}

/// Checks the bytes of all text files by `blob` of a prompt: they are read while the session's other requests wait.
pub(crate) fn check_text_bytes(bytes: u64) -> Result<(), SessionError> {
    within(bytes, BLOB_TEXT_BYTES_MAX)
}

fn within(bytes: u64, limit: u64) -> Result<(), SessionError> {
    let what = "sum of the images and files of a prompt";
    if bytes > limit { Err(SessionError::PayloadTooLarge { what, bytes, limit }) } else { Ok(()) }
}

fn data(block: &PromptBlock) -> Option<&Data> {
    match block {
        PromptBlock::Text { .. } => None,
        PromptBlock::Image { data, .. } | PromptBlock::File { data, .. } => data.as_ref(),
    }
}

/// Checks the bytes of the block at this place, which its field `data` or `blob` gives. Its name and its type are checked
/// before.
pub(crate) fn check_content((at, field): (usize, &str), block: &PromptBlock, bytes: &[u8]) -> Result<(), SessionError> {
    match block {
        PromptBlock::Text { .. } => Ok(()),
        PromptBlock::Image { media_type, .. } => check_image((at, field), media_type, bytes),
        PromptBlock::File { media_type, .. } if media_type == PDF => match begins_pdf(bytes) {
            true => Ok(()),
            false => Err(invalid(at, field, "it is not a PDF")),
        },
        PromptBlock::File { .. } => match std::str::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => Ok(()),
            _ => Err(not_text(at, field)),
        },
    }
}

/// The refusal of a file at this place that is not a text.
pub(crate) fn not_text(at: usize, field: &str) -> SessionError {
    invalid(at, field, "it is not a text in UTF-8")
}

fn check_image((at, field): (usize, &str), media_type: &str, bytes: &[u8]) -> Result<(), SessionError> {
    let picture = Picture::of(bytes).map_err(|why| invalid(at, field, why))?;
    if picture.media_type == media_type {
        return Ok(());
    }
    Err(invalid(at, "media_type", format!("it says {media_type:?}, and the bytes are {}", picture.media_type)))
}

fn check_name(at: usize, name: &str) -> Result<(), SessionError> {
    let is_wrong = |c: char| c.is_control() || matches!(c, '/' | '\\');
    if (1..=NAME_BYTES_MAX).contains(&name.len()) && !matches!(name, "." | "..") && !name.contains(is_wrong) {
        return Ok(());
    }
    let message = format!("a name has 1 to {NAME_BYTES_MAX} bytes, and no path or control character");
    Err(invalid(at, "name", message))
}

fn check_type(at: usize, media_type: &str) -> Result<(), SessionError> {
    if media_type.starts_with("image/") {
        return Err(invalid(at, "type", "send an image as a block of the type `image`"));
    }
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".+-_".contains(&byte);
    let is_text = |kind: &str| (1..=NAME_BYTES_MAX).contains(&kind.len()) && kind.bytes().all(is_allowed);
    if media_type == PDF || TEXT_TYPES.contains(&media_type) || media_type.strip_prefix("text/").is_some_and(is_text) {
        return Ok(());
    }
    let known = TEXT_TYPES.join(", ");
    let message = format!("a file is {PDF}, or a text: text/plain or another text/ type, {known}");
    Err(invalid(at, "media_type", message))
}

fn invalid(at: usize, field: &str, message: impl Into<String>) -> SessionError {
    SessionError::invalid(format!("prompt[{at}].{field}"), message)
}

/// Checks that a model takes a prompt's images and files.
pub(crate) fn check_model(prompt: &Prompt, model: &ResolvedModel) -> Result<(), SessionError> {
    prompt.blocks().iter().enumerate().try_for_each(|(at, block)| match block {
        PromptBlock::Image { media_type, .. } => taken(model, media_type).map_err(|why| invalid(at, "type", why)),
        PromptBlock::File { media_type, .. } if media_type == PDF => {
            taken(model, media_type).map_err(|why| invalid(at, "type", why))
        }
        PromptBlock::Text { .. } | PromptBlock::File { .. } => Ok(()),
    })
}

/// Checks that a model takes the images and files of a prompt that is recorded.
pub(crate) fn check_attached(blocks: &[Attached], model: &ResolvedModel) -> Result<(), SessionError> {
    let mut shown = blocks.iter().filter_map(Attached::shown);
    shown.try_for_each(|shown| taken(model, shown.media_type)).map_err(|why| {
        let message = format!("{why}. The turn that goes on, or waited, has one in its prompt");
        SessionError::invalid("model", message)
    })
}

fn taken(model: &ResolvedModel, media_type: &str) -> Result<(), String> {
    if model.client.takes(&model.vendor_model, media_type) {
        return Ok(());
    }
    let what = match media_type {
        PDF => "PDF files",
        _ if model.client.sees_images(&model.vendor_model) => media_type,
        _ => "images",
    };
    Err(format!("{} does not take {what}: use another model, or say it in words", model.name))
}

/// Describes a block whose bytes are checked and not yet stored; `None` for a text.
pub(crate) fn attached(block: &PromptBlock, content: &[u8]) -> Option<Attached> {
    let (bytes, blob) = (content.len() as u64, String::new());
    match block.clone() {
        PromptBlock::Text { .. } => None,
        PromptBlock::Image { media_type, .. } => {
            let Picture { width, height, .. } = Picture::of(content).ok()?;
            Some(Attached::Image(Image { media_type, blob, bytes, width, height }))
        }
        PromptBlock::File { name, media_type, .. } => {
            let pages = (media_type == PDF).then(|| pages_of(content)).flatten();
            Some(Attached::File(AttachedFile { name, media_type, blob, bytes, pages }))
        }
    }
}
