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

/// Describes each image and file in a line, which says if it is not sent; the text of a text file follows its line.
pub(crate) fn lines(blocks: &[Attached], request: &ModelRequest) -> Vec<String> {
    let more = |(line, block): (String, &Attached)| match (block.shown(), request.files.get(block.blob())) {
        (None, Some(text)) => format!("{line}\n{text}"),
        (None, None) => line,
        (Some(shown), _) if request.images.contains_key(shown.blob) => line,
        (Some(_), _) if request.images_refused => format!("{line} [not shown: the vendor refused it]"),
        (Some(_), _) => format!("{line} [not shown]"),
    };
    Attached::lines(blocks).into_iter().zip(blocks).map(more).collect()
}
