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
    let context = session.context();
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
mod tests {
    use super::*;

    /// Lists the images that are sent of images with these sizes in MiB.
    fn sent(sizes: &[u64]) -> Vec<u64> {
        let image = |&size: &u64| {
            let [media_type, blob] = ["image/png", "b10b"].map(str::to_owned);
            Image { media_type, blob, bytes: size * 1024 * 1024, width: 1, height: 1 }
        };
        let images: Vec<Image> = sizes.iter().map(image).collect();
        sizes[first_sent(&images.iter().collect::<Vec<_>>())..].to_vec()
    }

    #[test]
    fn images_leave_a_request_in_steps() {
        let firsts: Vec<usize> = (1..=33).map(|count| count - sent(&vec![0; count]).len()).collect();
        let steps = [(15, 0), (8, 8), (8, 16), (2, 24)];
        let expected: Vec<usize> = steps.iter().flat_map(|&(times, first)| vec![first; times]).collect();
        assert_eq!(firsts, expected);
        assert_eq!(sent(&[3, 3, 3, 3]), [3, 3, 3, 3]);
        assert_eq!(sent(&[3, 3, 3, 3, 1]), [3, 3, 1]);
        assert_eq!(sent(&[3, 3, 3, 3, 1, 3, 2]), [3, 3, 1, 3, 2]);
        // No image is taken for larger than one can be.
        assert_eq!(sent(&[1 << 40, 1 << 40]).len(), 2);
    }
}
