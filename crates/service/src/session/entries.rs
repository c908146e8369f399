//! Messages in order, and the summary before them, with their sizes as running sums.

use std::sync::Arc;

use super::{
    message::{Body, FILE_TEXT_BYTES_MAX, Message},
    outcome,
    reminder::without_forged_tags,
};
use crate::{
    compaction::{json_bytes, message_bytes, summary_message},
    ids::{Seq, TurnNumber},
};

/// Messages of a context, behind the summary of those that left it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Entries {
    /// Summary of everything that left the context.
    summary: Option<Summary>,
    list: Vec<ContextEntry>,
    /// Index of the first entry of each turn that has entries, in order.
    turns: Vec<(TurnNumber, usize)>,
}

/// The summary of a compaction, as a message.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The `context_rebuilt` that holds it.
    pub seq: Seq,
    /// The message.
    pub message: Arc<Message>,
    bytes: u64,
}

/// A message of the live context.
#[derive(Clone, Debug)]
pub struct ContextEntry {
    /// The event that brought it.
    pub seq: Seq,
    /// Turn of the message; if it was interrupted and continued, the turn that continued it. Exchanges of a history that
    /// was given have numbers from the highest down, which no turn gets.
    pub turn: TurnNumber,
    /// Position in the full history; a jump means that messages left the context.
    pub history_index: u64,
    /// The message.
    pub message: Arc<Message>,
    /// True if its results are references.
    pub is_masked: bool,
    /// The messages that it remains of, if their turn did not fit.
    pub(super) left: Option<Arc<Left>>,
    /// Bytes of all entries up to this one, as JSON.
    bytes_up_to: u64,
    /// Bytes of all results of tools up to this one, as JSON.
    result_bytes_up_to: u64,
    /// Entries up to this one that name a blob.
    blobs_up_to: usize,
    /// Images and PDFs of all entries up to this one.
    images_up_to: usize,
}

/// The messages that an entry is left of.
#[derive(Debug)]
pub(super) struct Left {
    /// Event of each, and its position in the full history.
    pub(super) messages: Vec<(Seq, u64)>,
    /// Events of messages whose results were masked.
    pub(super) masked: Vec<Seq>,
}

/// Ignores `history_index`: messages that were dropped from the journal are not counted in a context that an undo
/// restores.
impl PartialEq for ContextEntry {
    fn eq(&self, other: &Self) -> bool {
        let key = |entry: &Self| (entry.seq, entry.turn, entry.is_masked, entry.bytes_up_to);
        key(self) == key(other) && self.message == other.message
    }
}

impl Entries {
    pub(super) const fn summary(&self) -> Option<&Summary> {
        self.summary.as_ref()
    }

    pub(super) fn summary_bytes(&self) -> u64 {
        self.summary.as_ref().map_or(0, |summary| summary.bytes)
    }

    pub(super) fn list(&self) -> &[ContextEntry] {
        &self.list
    }

    /// Bytes of the entries from `start` on, as JSON.
    pub(super) fn bytes_from(&self, start: usize) -> u64 {
        let before = start.checked_sub(1).and_then(|last| self.list.get(last)).map_or(0, |entry| entry.bytes_up_to);
        self.list.last().map_or(0, |entry| entry.bytes_up_to).saturating_sub(before)
    }

    /// Bytes of the results of tools from `start` on, as JSON.
    pub(super) fn result_bytes_from(&self, start: usize) -> u64 {
        let up_to = |entry: Option<&ContextEntry>| entry.map_or(0, |entry| entry.result_bytes_up_to);
        up_to(self.list.last()) - up_to(start.checked_sub(1).and_then(|last| self.list.get(last)))
    }

    /// Bytes of summary and entries, as JSON.
    pub(super) fn bytes(&self) -> u64 {
        self.summary_bytes() + self.bytes_from(0)
    }

    /// Entries that name a blob.
    pub(super) fn blobs(&self) -> usize {
        self.list.last().map_or(0, |entry| entry.blobs_up_to)
    }

    /// Images and PDFs of the entries from `start` on.
    pub(super) fn images_from(&self, start: usize) -> usize {
        let up_to = |entry: Option<&ContextEntry>| entry.map_or(0, |entry| entry.images_up_to);
        up_to(self.list.last()) - up_to(start.checked_sub(1).and_then(|last| self.list.get(last)))
    }

    /// Finds the beginning of the newest whole turns that have at most `bytes` bytes together.
    pub(super) fn start_within(&self, bytes: u64) -> usize {
        let first = self.turns.partition_point(|&(_, start)| self.bytes_from(start) > bytes);
        self.turns.get(first).or(self.turns.last()).map_or(0, |&(_, start)| start)
    }

    /// The last event of a turn that brought an entry.
    pub(super) fn last_seq_of(&self, turn: TurnNumber) -> Option<Seq> {
        let at = self.turns.iter().rposition(|&(known, _)| known == turn)?;
        let end = self.turns.get(at + 1).map_or(self.list.len(), |&(_, start)| start);
        self.list[..end].last().map(|entry| entry.seq)
    }

    pub(super) fn push(&mut self, seq: Seq, turn: TurnNumber, history_index: u64, message: Message) {
        // Escaped here, so that the measured bytes are the sent bytes.
        let message = without_forged_tags(message);
        let bytes = message_bytes(&message);
        let (message, is_masked, left) = (Arc::new(message), false, None);
        let (bytes_up_to, result_bytes_up_to, blobs_up_to, images_up_to) = (0, 0, 0, 0);
        self.append(
            ContextEntry {
                seq,
                turn,
                history_index,
                message,
                is_masked,
                left,
                bytes_up_to,
                result_bytes_up_to,
                blobs_up_to,
                images_up_to,
            },
            bytes,
        );
    }

    /// Takes the last entry out.
    pub(super) fn take_back(&mut self) {
        self.list.pop();
        self.turns.pop_if(|(_, start)| *start == self.list.len());
    }

    fn append(&mut self, entry: ContextEntry, bytes: u64) {
        if self.turns.last().is_none_or(|&(last, _)| last != entry.turn) {
            self.turns.push((entry.turn, self.list.len()));
        }
        let bytes_up_to = self.bytes_from(0) + bytes;
        let result_bytes_up_to = self.result_bytes_from(0) + result_bytes(&entry.message, bytes);
        let blobs_up_to = self.blobs() + usize::from(has_blob(&entry.message));
        let images_up_to = self.images_from(0) + entry.message.shown().count();
        self.list.push(ContextEntry { bytes_up_to, result_bytes_up_to, blobs_up_to, images_up_to, ..entry });
    }

    /// Each entry with its own bytes.
    fn sized(&self) -> impl Iterator<Item = (&ContextEntry, u64)> {
        let before = std::iter::once(0).chain(self.list.iter().map(|entry| entry.bytes_up_to));
        self.list.iter().zip(before).map(|(entry, before)| (entry, entry.bytes_up_to - before))
    }

    /// Copies the entries of these ranges of events, behind the same summary.
    pub(super) fn within(&self, ranges: &[(Seq, Seq)]) -> Self {
        let mut ranges = ranges.iter().peekable();
        let mut kept = Self { summary: self.summary.clone(), ..Self::default() };
        for (entry, bytes) in self.sized() {
            while ranges.next_if(|(_, to)| *to < entry.seq).is_some() {}
            if ranges.peek().is_some_and(|(from, _)| *from <= entry.seq) {
                kept.append(entry.clone(), bytes);
            }
        }
        kept
    }

    /// Finds what the other one got behind `seq` and this one lacks: a turn that runs on behind `seq` and did not fit
    /// has left its remainder in both.
    pub(super) fn place_behind(&self, seq: Seq, other: &Self) -> usize {
        let place = other.list.partition_point(|entry| entry.seq <= seq);
        let is_here = |entry: &ContextEntry| entry.left.is_some() && self.newest_turn() == Some(entry.turn);
        place + usize::from(other.list.get(place).is_some_and(is_here))
    }

    /// Appends what the other one got behind `seq`.
    pub(super) fn extend_from(&mut self, other: &Self, seq: Seq) {
        for (entry, bytes) in other.sized().skip(self.place_behind(seq, other)) {
            self.append(entry.clone(), bytes);
        }
    }

    /// Bytes that the other one does not share.
    pub(super) fn bytes_unshared(&self, other: &Self) -> u64 {
        let mut others = other.list.iter().peekable();
        let is_shared = |(entry, _): &(&ContextEntry, u64)| {
            while others.next_if(|other| other.seq < entry.seq).is_some() {}
            others.peek().is_some_and(|other| Arc::ptr_eq(&other.message, &entry.message))
        };
        let shared = self.sized().filter(is_shared).map(|(_, bytes)| bytes).sum::<u64>();
        let has_summary = |it: &Self| it.summary.as_ref().map(|summary| summary.seq);
        let summary = if has_summary(self) == has_summary(other) { self.summary_bytes() } else { 0 };
        self.bytes() - shared - summary
    }

    /// Puts a summary before all messages.
    pub(super) fn summarise(&mut self, seq: Seq, summary: &Body) {
        let message = without_forged_tags(summary_message(&summary.excerpt()));
        self.summary = Some(Summary { seq, bytes: json_bytes(&message), message: Arc::new(message) });
    }

    /// Puts references in place of the results in these messages.
    pub(super) fn mask(&mut self, masked: &[Seq]) {
        let (mut before, mut after, mut results_after, mut blobs, mut images) = (0, 0, 0, 0, 0);
        for entry in &mut self.list {
            let mut bytes = entry.bytes_up_to - std::mem::replace(&mut before, entry.bytes_up_to);
            if let Message::ToolResults { results } = &*entry.message
                && !entry.is_masked
                && masked.binary_search(&entry.seq).is_ok()
            {
                let message = Message::ToolResults { results: results.iter().map(|it| it.masked(entry.seq)).collect() };
                (bytes, entry.message, entry.is_masked) = (json_bytes(&message), Arc::new(message), true);
            }
            after += bytes;
            entry.bytes_up_to = after;
            results_after += result_bytes(&entry.message, bytes);
            entry.result_bytes_up_to = results_after;
            blobs += usize::from(has_blob(&entry.message));
            entry.blobs_up_to = blobs;
            images += entry.message.shown().count();
            entry.images_up_to = images;
        }
    }

    /// Returns the newest turn that has entries.
    pub(super) fn newest_turn(&self) -> Option<TurnNumber> {
        self.turns.last().map(|(turn, _)| *turn)
    }

    /// The newest turn goes on as another: both are one span from now on.
    pub(super) fn continue_turn(&mut self, interrupted: TurnNumber, turn: TurnNumber) {
        if let Some((_, start)) = self.turns.pop_if(|last| last.0 == interrupted) {
            // An older part of it may have the new number already.
            if self.turns.last().is_none_or(|&(last, _)| last != turn) {
                self.turns.push((turn, start));
            }
            self.list[start..].iter_mut().for_each(|entry| entry.turn = turn);
        }
    }

    /// Takes the newest turn out, if it is this one, but for the head of its prompt and a line for each call.
    pub(super) fn drop_turn(&mut self, turn: TurnNumber) {
        let Some((_, start)) = self.turns.pop_if(|last| last.0 == turn) else { return };
        let bytes = self.bytes_from(start);
        let dropped = self.list.split_off(start);
        let messages: Vec<&Message> = dropped.iter().map(|entry| &*entry.message).collect();
        let (Some(first), Some(text)) = (dropped.first(), outcome::of_turn(&messages, bytes)) else { return };
        let masked = dropped.iter().filter(|entry| entry.is_masked).map(|entry| entry.seq).collect();
        let messages = dropped.iter().map(|entry| (entry.seq, entry.history_index)).collect();
        self.push(first.seq, turn, first.history_index, Message::user(text));
        if let Some(entry) = self.list.last_mut() {
            entry.left = Some(Arc::new(Left { messages, masked }));
        }
    }

    /// Numbers the entries as these runs say; those before the first one stay.
    pub(super) fn renumber(&mut self, runs: &[(Seq, u64)]) {
        let (mut runs, mut next) = (runs.iter().peekable(), None);
        for entry in &mut self.list {
            while let Some((_, index)) = runs.next_if(|(seq, _)| *seq <= entry.seq) {
                next = Some(*index);
            }
            if let Some(index) = next {
                entry.history_index = index;
                next = Some(index + 1);
            }
        }
    }
}

/// Returns the bytes of a message if it is results of tools, else 0.
const fn result_bytes(message: &Message, bytes: u64) -> u64 {
    if matches!(message, Message::ToolResults { .. }) { bytes } else { 0 }
}

/// Returns true if a request names a blob of it: only tool results and long text files are not sent whole.
fn has_blob(message: &Message) -> bool {
    let Message::ToolResults { results } = message else {
        return message.text_files().any(|file| file.bytes > FILE_TEXT_BYTES_MAX);
    };
    results.iter().any(|result| matches!(result.content, Body::Blob(_)))
}
