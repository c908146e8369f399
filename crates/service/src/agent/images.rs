//! The images and PDFs of a request: the newest. Older ones leave it in steps, so that its beginning stays in a vendor's
//! prompt cache between them. The model has a line of each in any case.

use std::{collections::BTreeSet, ops::Range};

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

/// Images that a request may have; of more, half stay.
const COUNT_MAX: usize = 15;
/// Bytes that they may have together; of more, two thirds stay. Vendors refuse larger requests.
const BYTES_MAX: u64 = 12 * 1024 * 1024;
/// Images and their bytes of a request in which a prompt's own stay. Of more images vendors take only small ones.
const TOTAL_MAX: usize = 20;
const TOTAL_BYTES_MAX: u64 = 21 * 1024 * 1024;

/// Image or PDF of a message.
struct Named<'a> {
    shown: Shown<'a>,
    /// The prompt that has it, counted from the newest message; `None` for a result's.
    prompt: Option<usize>,
}

/// Lists the images and PDFs that a request with these messages has, in order. One that is named several times counts
/// where it is named last.
pub(super) fn sent<'a>(
    messages: impl DoubleEndedIterator<Item = &'a Message>,
    model: &ResolvedModel,
) -> Vec<Shown<'a>> {
    let (mut seen, mut named) = (BTreeSet::new(), Vec::new());
    for (at, message) in messages.rev().enumerate() {
        let prompt = matches!(message, Message::User { .. }).then_some(at);
        let taken = message.shown().rev().filter(|shown| model.client.takes(&model.vendor_model, shown.media_type));
        named.extend(taken.filter(|shown| seen.insert(shown.blob)).map(|shown| Named { shown, prompt }));
    }
    named.reverse();
    kept(&named).into_iter().map(|at| named[at].shown).collect()
}

/// Finds those that stay, the oldest first.
fn kept(named: &[Named<'_>]) -> Vec<usize> {
    // What a bundle says of one may be wrong.
    let bytes_of = |at: usize| {
        let shown = &named[at].shown;
        shown.bytes.min(if shown.is_pdf() { FILE_BYTES_MAX as u64 } else { IMAGE_BYTES_MAX as u64 })
    };
    let total = |all: &[usize]| all.iter().map(|at| bytes_of(*at)).sum::<u64>();
    // Those of the newest prompt stay together, and while results bring more.
    let (mut kept, mut own): (Vec<usize>, Range<usize>) = (Vec::new(), 0..0);
    for (at, of) in named.iter().enumerate() {
        kept.push(at);
        if of.prompt.is_some() {
            let goes_on = own.end == at && at > 0 && named[at - 1].prompt == of.prompt;
            own = if goes_on { own.start } else { at }..at + 1;
        }
        let mut own_bytes = own.clone().map(bytes_of).sum::<u64>();
        if of.prompt.is_none() && own_bytes + bytes_of(at) > TOTAL_BYTES_MAX {
            (own, own_bytes) = (0..0, 0);
        }
        // While a prompt's own come they count, too.
        let (count, bytes, most, bytes_max) = match of.prompt {
            Some(_) => (kept.len(), total(&kept), COUNT_MAX, BYTES_MAX),
            None => {
                let (others, room) = (kept.len() - own.len(), TOTAL_MAX.saturating_sub(own.len()));
                (others, total(&kept) - own_bytes, room.min(COUNT_MAX), BYTES_MAX.min(TOTAL_BYTES_MAX - own_bytes))
            }
        };
        if count <= most && bytes <= bytes_max {
            continue;
        }
        let (mut count, mut bytes) = (count, bytes);
        let (count_kept, bytes_kept) = (most.div_ceil(2), bytes_max / 3 * 2);
        kept.retain(|&one| {
            let stays = own.contains(&one) || one == at || (count <= count_kept && bytes <= bytes_kept);
            if !stays {
                count -= 1;
                bytes -= bytes_of(one);
            }
            stays
        });
    }
    kept
}

/// Counts the bytes that images and PDFs are estimated at which a request with the context from `start` on leaves out.
pub(super) fn unsent_bytes(session: &Session, model: &ResolvedModel, start: usize) -> u64 {
    let context = &session.context;
    if context.images_from(start) == 0 {
        return 0;
    }
    let messages = || context.entries().iter().skip(start).map(|entry| &*entry.message);
    let sent: u64 = sent(messages(), model).iter().map(shown_bytes).sum();
    messages().flat_map(Message::shown).map(|shown| shown_bytes(&shown)).sum::<u64>().saturating_sub(sent)
}

#[cfg(test)]
mod tests;
