//! The live context: what the next request is made of, with its size kept as it grows.
//!
//! It only grows at its end, so that a vendor's prompt cache stays warm; sizes are running sums, so
//! that no turn ever walks over what was said before.

use std::sync::Arc;

use super::message::{Body, Message};
use crate::{
    compaction::json_bytes,
    ids::{Seq, TurnNumber},
};

/// The live context of a session, without system prompt, reminders and pins.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Context {
    entries: Vec<ContextEntry>,
    /// Where each turn that has entries begins, in order.
    turns: Vec<(TurnNumber, usize)>,
}

/// A message of the live context.
#[derive(Clone, Debug, PartialEq)]
pub struct ContextEntry {
    /// The event that brought it.
    pub seq: Seq,
    /// The turn it belongs to; where that was interrupted and gone on with, the one that did so.
    pub turn: TurnNumber,
    /// Messages that were ever said before it: where the next entry does not count on, something left the context.
    pub nth: u64,
    /// The message.
    pub message: Arc<Message>,
    /// Bytes of all entries up to this one, as JSON.
    bytes_up_to: u64,
}

impl Context {
    /// The entries, in order.
    #[must_use]
    pub fn entries(&self) -> &[ContextEntry] {
        &self.entries
    }

    /// Bytes of the entries from `start` on, as JSON.
    #[must_use]
    pub fn bytes_from(&self, start: usize) -> u64 {
        let before = start.checked_sub(1).and_then(|last| self.entries.get(last)).map_or(0, |entry| entry.bytes_up_to);
        self.entries.last().map_or(0, |entry| entry.bytes_up_to).saturating_sub(before)
    }

    /// Where the newest whole turns begin whose entries have at most `bytes` bytes together.
    /// The newest turn is always among them.
    #[must_use]
    pub fn start_within(&self, bytes: u64) -> usize {
        let first = self.turns.partition_point(|&(_, start)| self.bytes_from(start) > bytes);
        self.turns.get(first).or(self.turns.last()).map_or(0, |&(_, start)| start)
    }

    /// The last event of a turn that brought an entry.
    pub(super) fn last_seq_of(&self, turn: TurnNumber) -> Option<Seq> {
        let at = self.turns.iter().rposition(|&(known, _)| known == turn)?;
        let end = self.turns.get(at + 1).map_or(self.entries.len(), |&(_, start)| start);
        self.entries[..end].last().map(|entry| entry.seq)
    }

    pub(super) fn push(&mut self, seq: Seq, turn: TurnNumber, nth: u64, message: Message) {
        let bytes_up_to = self.bytes_from(0) + json_bytes(&message) + blob_bytes(&message);
        if self.turns.last().is_none_or(|&(last, _)| last != turn) {
            self.turns.push((turn, self.entries.len()));
        }
        self.entries.push(ContextEntry { seq, turn, nth, message: Arc::new(message), bytes_up_to });
    }

    /// The newest turn goes on as another: both are one span from now on.
    pub(super) fn continue_turn(&mut self, interrupted: TurnNumber, turn: TurnNumber) {
        if let Some(last) = self.turns.last_mut().filter(|last| last.0 == interrupted) {
            last.0 = turn;
            self.entries[last.1..].iter_mut().for_each(|entry| entry.turn = turn);
        }
    }

    /// The first entry of each run of messages, and how many were said before it, by the numbers that `nth` gives.
    pub(super) fn runs(&self, nth: impl Fn(&ContextEntry) -> u64) -> Vec<(Seq, u64)> {
        let mut next = None;
        let mut runs = Vec::new();
        for entry in &self.entries {
            let nth = nth(entry);
            if next != Some(nth) {
                runs.push((entry.seq, nth));
            }
            next = Some(nth + 1);
        }
        runs
    }

    /// Numbers the entries as these runs say; those before the first one stay.
    pub(super) fn renumber(&mut self, runs: &[(Seq, u64)]) {
        let (mut runs, mut next) = (runs.iter().peekable(), None);
        for entry in &mut self.entries {
            while let Some((_, nth)) = runs.next_if(|(seq, _)| *seq <= entry.seq) {
                next = Some(*nth);
            }
            if let Some(nth) = next {
                entry.nth = nth;
                next = Some(nth + 1);
            }
        }
    }

    /// Takes the newest turn out, if it is this one.
    pub(super) fn drop_turn(&mut self, turn: TurnNumber) {
        if let Some(&(last, start)) = self.turns.last()
            && last == turn
        {
            self.turns.pop();
            self.entries.truncate(start);
        }
    }
}

/// Bytes that a request carries besides, because the text that stands in a blob goes whole.
fn blob_bytes(message: &Message) -> u64 {
    let of = |body: &Body| match body {
        Body::Inline(_) => 0,
        Body::Blob(blob) => blob.bytes,
    };
    message.texts().map(of).sum()
}
