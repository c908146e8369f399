//! The images and PDFs of a request: the newest. Older ones leave it in steps, so that its beginning stays in a vendor's
//! prompt cache between them. The model has a line of each in any case.

use crate::{
    compaction::shown_bytes,
    model::ResolvedModel,
    prompt::FILE_BYTES_MAX,
    session::{
        Session,
        message::{Message, Shown},
    },
    tool::IMAGE_BYTES_MAX,
};

/// Images that stay when there are too many, which are twice as many.
const KEPT: usize = 8;
const TOO_MANY: usize = 2 * KEPT;
/// Bytes that a request's images may have together, and that stay when they have more; vendors refuse larger requests.
const BYTES_MAX: u64 = 12 * 1024 * 1024;
const BYTES_KEPT: u64 = 8 * 1024 * 1024;

/// Image or PDF of a request.
pub(super) struct Sent<'a> {
    pub(super) shown: Shown<'a>,
    /// The first one that stays as long as this one is the newest: those of one prompt stay together.
    stays_from: usize,
}

/// Lists the images and PDFs of messages that a model takes.
pub(super) fn taken<'a>(messages: impl Iterator<Item = &'a Message>, model: &ResolvedModel) -> Vec<Sent<'a>> {
    let (sees, reads) = (model.client.sees_images(&model.vendor_model), model.client.reads_pdfs(&model.vendor_model));
    let mut all = Vec::new();
    for message in messages {
        let (first, is_prompt) = (all.len(), matches!(message, Message::User { .. }));
        for shown in message.shown().filter(|shown| if shown.is_pdf() { reads } else { sees }) {
            let stays_from = if is_prompt { first } else { all.len() };
            all.push(Sent { shown, stays_from });
        }
    }
    all
}

/// Finds the first of a request's images and PDFs that is sent; all after it are sent too.
pub(super) fn first_sent(all: &[Sent<'_>]) -> usize {
    // What a bundle says of one may be wrong.
    let bytes_of = |sent: &Sent<'_>| {
        sent.shown.bytes.min(if sent.shown.is_pdf() { FILE_BYTES_MAX as u64 } else { IMAGE_BYTES_MAX as u64 })
    };
    let (mut first, mut bytes) = (0, 0);
    for (at, sent) in all.iter().enumerate() {
        bytes += bytes_of(sent);
        if at + 1 - first < TOO_MANY && bytes <= BYTES_MAX {
            continue;
        }
        while first < sent.stays_from && (at + 1 - first > KEPT || bytes > BYTES_KEPT) {
            bytes -= bytes_of(&all[first]);
            first += 1;
        }
    }
    first
}

/// Counts the bytes that images and PDFs are estimated at which a request with the context from `start` on leaves out.
pub(super) fn unsent_bytes(session: &Session, model: &ResolvedModel, start: usize) -> u64 {
    let context = &session.context;
    if context.images_from(start) == 0 {
        return 0;
    }
    let messages = || context.entries().iter().skip(start).map(|entry| &*entry.message);
    let taken = taken(messages(), model);
    let sent: u64 = taken[first_sent(&taken)..].iter().map(|sent| shown_bytes(&sent.shown)).sum();
    messages().flat_map(Message::shown).map(|shown| shown_bytes(&shown)).sum::<u64>().saturating_sub(sent)
}

#[cfg(test)]
mod tests;
