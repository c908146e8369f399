//! Turns a compactor's messages into the event that references the retained ones, after checks.
//!
//! It trusts no compactor, and changes nothing itself.

mod checks;
mod mechanical;

use std::collections::HashSet;

use checks::{Partition, must_stay};
use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_words::answers::{CompactionMode, CompactionReceipt};

use super::{Compactor, SUMMARY_TOKENS_MAX, is_state, json_bytes, message_bytes, summary_message};
use crate::{
    ids::{Seq, TurnNumber},
    model::Usage,
    session::{
        ContextEntry, Session,
        event::{CompactionCompleted, ContextRebuilt, is_given},
        message::{Body, Message},
    },
};

/// Messages of tool results that are never stale: the newest ones.
const FRESH_RESULTS: usize = 3;

/// A context that may be put in the place of the live one.
#[derive(Clone, Debug)]
pub(crate) struct Rebuilt {
    /// By reference; its `compaction`, and the usage of its receipt, are the engine's to fill in.
    pub(crate) event: ContextRebuilt,
    /// Event that follows in the same batch.
    pub(crate) completed: CompactionCompleted,
    /// Bytes of the live context after it, as JSON.
    pub(crate) context_bytes: u64,
}

/// Rebuilds the session's context with a compactor and a summary.
///
/// # Errors
/// `COMPACTION_PIN_LOST` if a reminder or a pin is missing, `COMPACTION_NO_PROGRESS` if the result is not smaller or
/// not a partition of the context.
pub(crate) fn rebuild(
    session: &Session,
    compactor: &dyn Compactor,
    summary: &str,
    mode: CompactionMode,
) -> Result<Rebuilt, ErrorBody> {
    // Step 7: the system prompt, if there is one, is the first of the messages.
    let source = session.messages();
    // Step 8: the one call of `rebuild_history` for this summary.
    let result = compactor.rebuild_history(&source, summary);
    let partition = Partition::of(session, &source, &result)?;
    if let Some(why) = partition.lack_of_progress() {
        return Err(ErrorBody::with_message(ErrorCode::CompactionNoProgress, why));
    }
    let plan = compactor.plan(&source, message_bytes(&summary_message(&partition.summary)));
    let anchor = anchor(session, plan.and_then(|plan| plan.anchor), &source, &partition.kept);
    let receipt = partition.receipt(session, mode, anchor);
    let context = &session.context;
    let completed = CompactionCompleted {
        summary_tokens: (partition.summary.len() as u64).div_ceil(4),
        messages_before: context.message_count() as u64,
        messages_after: partition.kept.len() as u64 + 1,
    };
    let retained = ranges(context.entries(), &partition.kept);
    let summary = Some(Body::Inline(partition.summary));
    let event = ContextRebuilt { compaction: 0, summary, retained, masked: Vec::new(), receipt };
    Ok(Rebuilt { event, completed, context_bytes: partition.bytes_after })
}

/// Masks the context's stale tool results; `None` if nothing would get smaller.
pub(crate) fn mask(session: &Session) -> Option<Rebuilt> {
    let (context, entries) = (&session.context, session.context.entries());
    let (mut masked, mut saved, mut fresh) = (Vec::new(), 0, FRESH_RESULTS);
    for entry in entries.iter().rev() {
        let Message::ToolResults { results } = &*entry.message else { continue };
        if fresh > 0 {
            fresh -= 1;
        } else if !entry.is_masked {
            let references = results.iter().map(|result| result.masked(entry.seq)).collect();
            let (before, after) =
                (json_bytes(&entry.message), json_bytes(&Message::ToolResults { results: references }));
            if after < before {
                masked.push(entry.seq);
                saved += before - after;
            }
        }
    }
    if masked.is_empty() {
        return None;
    }
    masked.reverse();
    let unmasked = Partition::unchanged(session, &session.messages());
    let (retained, context_bytes) = (ranges(entries, &unmasked.kept), unmasked.bytes_before - saved);
    let partition = Partition { bytes_after: context_bytes, ..unmasked };
    let receipt = partition.receipt(session, CompactionMode::Mask, None);
    let receipt = CompactionReceipt { masked: masked.len() as u64, ..receipt };
    let messages = context.message_count() as u64;
    let completed = CompactionCompleted { summary_tokens: 0, messages_before: messages, messages_after: messages };
    Some(Rebuilt {
        event: ContextRebuilt { compaction: 0, summary: None, retained, masked, receipt },
        completed,
        context_bytes,
    })
}

/// A compaction as its compactor plans it, with the longest possible summary that is shorter than what leaves.
pub(crate) struct Planned {
    partition: Partition,
    anchor: Option<TurnNumber>,
    /// Bytes of that summary, as JSON.
    room: usize,
}

impl Planned {
    /// Returns its receipt. If it would make no progress, everything stays.
    pub(crate) fn receipt(&self, session: &Session) -> CompactionReceipt {
        match self.partition.lack_of_progress() {
            Some(_) => {
                let unchanged = Partition::unchanged(session, &session.messages());
                unchanged.receipt(session, CompactionMode::Summary, None)
            }
            None => self.partition.receipt(session, CompactionMode::Summary, self.anchor),
        }
    }
}

/// Returns a compaction as it is planned; `None` if the compactor plans none. The longer a summary is, the more may
/// have to leave.
///
/// # Errors
/// `COMPACTION_NO_PROGRESS` if nothing can leave, whatever a compactor wants, or if what would be left is not a
/// context: see [`rebuild`].
pub(crate) fn planned(session: &Session, compactor: &dyn Compactor) -> Result<Option<Planned>, ErrorBody> {
    let entries = session.context.entries();
    if must_stay(session).len() == entries.len() {
        return Err(ErrorBody::new(ErrorCode::CompactionNoProgress));
    }
    let (source, empty) = (session.messages(), message_bytes(&summary_message("")));
    let Some(least) = compactor.plan(&source, empty) else { return Ok(None) };
    let stays: HashSet<usize> = least.retained.iter().copied().collect();
    let leaves = source.iter().enumerate().filter(|(at, message)| is_said(message) && !stays.contains(at));
    let room = room(leaves.map(|(_, message)| message), compactor);
    let plan = compactor.plan(&source, empty + room as u64).unwrap_or(least);
    let partition = Partition::planned(session, &source, &plan.retained, empty + room as u64)?;
    let anchor = anchor(session, plan.anchor, &source, &partition.kept);
    Ok(Some(Planned { partition, anchor, room }))
}

/// Returns the compaction of a compactor that plans none, as it is known once that has rebuilt the context with an
/// empty summary.
///
/// # Errors
/// If the compactor's messages are not a context: see [`rebuild`].
fn tried(session: &Session, compactor: &dyn Compactor) -> Result<Planned, ErrorBody> {
    let source = session.messages();
    let partition = Partition::of(session, &source, &compactor.rebuild_history(&source, ""))?;
    let leaving = leaving_messages(session, &partition.kept);
    let room = room(leaving.iter(), compactor);
    let bytes_after = partition.bytes_after + room as u64;
    Ok(Planned { partition: Partition { bytes_after, ..partition }, anchor: None, room })
}

/// Bytes of the longest summary, as JSON, that is within the compactor's tokens and shorter than what leaves.
fn room<'a>(leaves: impl Iterator<Item = &'a Message>, compactor: &dyn Compactor) -> usize {
    let leaving: u64 = leaves.map(message_bytes).sum();
    let shorter = leaving.saturating_sub(message_bytes(&summary_message("")) + 1);
    usize::try_from(shorter).unwrap_or(usize::MAX).min(summary_bytes(compactor))
}

/// The former summary, and all messages but those that are kept.
fn leaving_messages(session: &Session, kept: &[usize]) -> Vec<Message> {
    let former = session.context.summary().map(|summary| &summary.message);
    let entries = session.context.entries().iter().enumerate();
    let leaves = entries.filter(|(at, _)| kept.binary_search(at).is_err()).map(|(_, entry)| &entry.message);
    former.into_iter().chain(leaves).map(|message| Message::clone(message)).collect()
}

/// Returns true for a message that may leave.
const fn is_said(message: &Message) -> bool {
    !is_state(message) && !matches!(message, Message::System { .. })
}

/// Bytes that a summary within its tokens may have.
fn summary_bytes(compactor: &dyn Compactor) -> usize {
    compactor.max_summary_tokens().min(SUMMARY_TOKENS_MAX) as usize * 4
}

/// Previews a compaction with the longest possible summary. A compactor that plans none rebuilds the context once, with
/// an empty summary.
///
/// # Errors
/// If the compactor's messages are not a context: see [`rebuild`].
pub(crate) fn preview(session: &Session, compactor: &dyn Compactor) -> Result<CompactionReceipt, ErrorBody> {
    if must_stay(session).len() == session.context.entries().len() {
        let nothing = Partition::unchanged(session, &session.messages());
        return Ok(nothing.receipt(session, CompactionMode::Summary, None));
    }
    let planned = planned(session, compactor)?.map_or_else(|| tried(session, compactor), Ok)?;
    Ok(planned.receipt(session))
}

/// Lists the indexes of the messages that may leave the context, in order, for the longest possible summary: all of
/// them, if nothing is planned.
pub(crate) fn leaving(session: &Session, planned: Option<&Planned>) -> Vec<usize> {
    let kept = planned.map_or(&[][..], |planned| planned.partition.kept.as_slice());
    (0..session.context.entries().len()).filter(|at| kept.binary_search(at).is_err()).collect()
}

/// Summarises messages that the model did not read; the text is added to the model's summary.
pub(crate) fn summary_of_the_rest(unread: &[Message], written: &str, compactor: &dyn Compactor) -> String {
    let most = summary_bytes(compactor);
    // There is always some room, however long the model's summary is.
    let room = most.saturating_sub(written.len()).max(most / 4);
    let unread_bytes = usize::try_from(unread.iter().map(message_bytes).sum::<u64>()).unwrap_or(usize::MAX);
    mechanical::summary(unread, room.min(unread_bytes / 2))
}

/// Summarises without a model, within a summary's tokens and in less than what leaves. A compactor that plans nothing
/// rebuilds the context once more for that, with an empty summary.
///
/// # Errors
/// If what would be left is not a context: see [`rebuild`].
pub(crate) fn mechanical_summary(
    session: &Session,
    compactor: &dyn Compactor,
    planned: Option<Planned>,
) -> Result<String, ErrorBody> {
    let Planned { partition, room, .. } = planned.map_or_else(|| tried(session, compactor), Ok)?;
    Ok(mechanical::summary(&leaving_messages(session, &partition.kept), room))
}

/// Finds the turn that the cut moved back to; the compactor's claim counts only if the retained messages begin there.
fn anchor(session: &Session, claimed: Option<usize>, source: &[Message], kept: &[usize]) -> Option<TurnNumber> {
    let entries = session.context.entries();
    let at = claimed?.checked_sub(source.len() - entries.len())?;
    let begins = kept.binary_search(&at).is_ok() && at.checked_sub(1).is_none_or(|at| kept.binary_search(&at).is_err());
    entries.get(at).filter(|entry| begins && !is_given(entry.turn)).map(|entry| entry.turn)
}

/// These entries as ranges of the events that brought them; neighbours are one range.
fn ranges(entries: &[ContextEntry], kept: &[usize]) -> Vec<(Seq, Seq)> {
    let mut ranges: Vec<(Seq, Seq)> = Vec::new();
    let mut last = None;
    for &at in kept {
        let seq = entries[at].seq;
        match ranges.last_mut() {
            Some(range) if last == at.checked_sub(1) => range.1 = seq,
            _ => ranges.push((seq, seq)),
        }
        last = Some(at);
    }
    ranges
}

impl Partition {
    /// Makes its receipt.
    fn receipt(&self, session: &Session, mode: CompactionMode, anchor: Option<TurnNumber>) -> CompactionReceipt {
        CompactionReceipt {
            compaction: None,
            mode,
            retained: self.kept.len() as u64,
            masked: 0,
            discarded: self.discarded as u64,
            reminders: session.reminders.len() as u64,
            pins: session.pins.len() as u64,
            anchor,
            tokens_before: self.bytes_before / 4,
            tokens_after: self.bytes_after / 4,
            usage: Usage::default(),
            cost: None,
            rounds: 0,
            unread: 0,
        }
    }
}
