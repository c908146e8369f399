//! A prompt's images and files as a model reads of them: a line for each, with the text of a text file.

use std::borrow::Cow;

use crate::ModelRequest;
use meerkat_words::message::{Attached, Message};

/// Returns the text that a vendor is sent of a user's message.
pub(crate) fn text<'a>(message: &'a Message, request: &ModelRequest) -> Cow<'a, str> {
    let content = message.texts().next().map_or(Cow::Borrowed(""), |content| content.excerpt());
    if message.attached().is_empty() {
        return content;
    }
    let mut lines = lines(message.attached(), request);
    lines.extend(Some(content.into_owned()).filter(|text| !text.trim().is_empty()));
    lines.join("\n\n").into()
}

/// Describes each image and file in a line; the text of a text file follows its line.
pub(crate) fn lines(blocks: &[Attached], request: &ModelRequest) -> Vec<String> {
    let with_text = |(line, block): (String, &Attached)| match request.files.get(block.blob()) {
        Some(text) if block.shown().is_none() => format!("{line}\n{text}"),
        Some(_) | None => line,
    };
    Attached::lines(blocks).into_iter().zip(blocks).map(with_text).collect()
}
