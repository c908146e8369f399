//! The images of a request: the newest. Older ones leave it in steps, so that its beginning stays in a vendor's prompt
//! cache between them. The model has a line of each in any case.

use crate::{
    compaction::IMAGE_BYTES,
    model::ResolvedModel,
    session::{Session, message::Image},
    tool::IMAGE_BYTES_MAX,
};

/// Images that stay when there are too many, which are twice as many.
const KEPT: usize = 8;
const TOO_MANY: usize = 2 * KEPT;
/// Bytes that a request's images may have together, and that stay when they have more; vendors refuse larger requests.
const BYTES_MAX: u64 = 12 * 1024 * 1024;
const BYTES_KEPT: u64 = 8 * 1024 * 1024;

/// Finds the first of a request's images that is sent, if the model sees; all after it are sent too.
pub(super) fn first_sent(images: &[&Image]) -> usize {
    // What a bundle says of an image may be wrong.
    let bytes_of = |image: &Image| image.bytes.min(IMAGE_BYTES_MAX as u64);
    let (mut first, mut bytes) = (0, 0);
    for (at, image) in images.iter().enumerate() {
        bytes += bytes_of(image);
        if at + 1 - first < TOO_MANY && bytes <= BYTES_MAX {
            continue;
        }
        while first < at && (at + 1 - first > KEPT || bytes > BYTES_KEPT) {
            bytes -= bytes_of(images[first]);
            first += 1;
        }
    }
    first
}

/// Counts the bytes that images are estimated at which a request with the context from `start` on leaves out.
pub(super) fn unsent_bytes(session: &Session, model: &ResolvedModel, start: usize) -> u64 {
    let context = &session.context;
    let unsent = match context.images_from(start) {
        0 => 0,
        images if !model.client.sees_images(&model.vendor_model) => images,
        _ => {
            let entries = context.entries().iter().skip(start);
            first_sent(&entries.flat_map(|entry| entry.message.images()).collect::<Vec<_>>())
        }
    };
    unsent as u64 * IMAGE_BYTES
}

#[cfg(test)]
mod tests;
