//! The live context: what the next request is made of, with its size kept as it grows.
//!
//! Between compactions it only grows at its end, so that a vendor's prompt cache stays warm; sizes are running sums, so
//! that no turn ever walks over what was said before.

use std::{collections::VecDeque, sync::Arc};

use super::{
    event::ContextRebuilt,
    message::{Body, Message},
};
use crate::{
    compaction::{SUMMARY_PREFIX, json_bytes},
    ids::{Seq, TurnNumber},
};

/// The live context of a session, without system prompt, reminders and pins.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Context {
    /// What stands for all that left it, before everything that was said.
    summary: Option<Summary>,
    entries: Vec<ContextEntry>,
    /// Where each turn that has entries begins, in order.
    turns: Vec<(TurnNumber, usize)>,
    /// The newest times that it was rebuilt, in order.
    rebuilds: VecDeque<Rebuild>,
}

/// How often it can be undone that the context was rebuilt.
const UNDOABLE: usize = 3;

/// The `context_rebuilt` by which the context was rebuilt, and the events between which it was kept.
pub(super) type Rebuild = (Seq, Vec<(Seq, Seq)>);

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
    /// Whether references stand in it for its results.
    pub is_masked: bool,
    /// Bytes of all entries up to this one, as JSON.
    bytes_up_to: u64,
}

impl Context {
    /// What stands for all that left it.
    #[must_use]
    pub const fn summary(&self) -> Option<&Summary> {
        self.summary.as_ref()
    }

    /// Bytes of the summary, as JSON.
    #[must_use]
    pub fn summary_bytes(&self) -> u64 {
        self.summary.as_ref().map_or(0, |summary| summary.bytes)
    }

    /// What was said and has not left it, in order.
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
        self.begin_turn(turn);
        let (message, is_masked) = (Arc::new(message), false);
        self.entries.push(ContextEntry { seq, turn, nth, message, is_masked, bytes_up_to });
    }

    /// Keeps what is retained, masks what is masked, and puts the summary, where there is one, in place of the rest and
    /// of the summary before it.
    pub(super) fn rebuild(&mut self, seq: Seq, rebuilt: &ContextRebuilt) {
        let mut ranges = rebuilt.retained.iter().peekable();
        let before = std::mem::take(&mut self.entries);
        self.turns.clear();
        let mut bytes_before = 0;
        for entry in before {
            let bytes = entry.bytes_up_to - std::mem::replace(&mut bytes_before, entry.bytes_up_to);
            while ranges.next_if(|(_, to)| *to < entry.seq).is_some() {}
            if ranges.peek().is_some_and(|(from, _)| *from <= entry.seq) {
                let bytes_up_to = self.bytes_from(0) + bytes;
                self.begin_turn(entry.turn);
                self.entries.push(ContextEntry { bytes_up_to, ..entry });
            }
        }
        self.mask(&rebuilt.masked);
        self.rebuilds.push_back((seq, rebuilt.retained.clone()));
        // What stood in it before the oldest that can be undone is what the one before that left, and what came since.
        if self.rebuilds.len() > UNDOABLE + 1 {
            self.rebuilds.pop_front();
        }
        if let Some(summary) = &rebuilt.summary {
            self.summarise(seq, summary);
        }
    }

    /// Whether an event may have brought what stands in the context again where its newest rebuilds are undone.
    pub(crate) fn may_return(&self, seq: Seq) -> bool {
        match self.rebuilds.front() {
            Some((rebuilt, kept)) if self.rebuilds.len() > UNDOABLE => {
                seq > *rebuilt || kept.iter().any(|(from, to)| (from..=to).contains(&&seq))
            }
            oldest => oldest.is_some(),
        }
    }

    /// The newest times that it was rebuilt, in order.
    pub(super) const fn rebuilds(&self) -> &VecDeque<Rebuild> {
        &self.rebuilds
    }

    /// It as it was once rebuilt.
    pub(super) fn rebuilt_by(self, rebuilds: VecDeque<Rebuild>) -> Self {
        Self { rebuilds, ..self }
    }

    /// Puts a summary before everything that was said.
    pub(super) fn summarise(&mut self, seq: Seq, summary: &Body) {
        let content = Body::Inline(format!("{SUMMARY_PREFIX}\n\n{}", summary.excerpt()));
        let message = Message::User { content };
        self.summary = Some(Summary { seq, bytes: json_bytes(&message), message: Arc::new(message) });
    }

    /// Puts references in place of the results in these messages.
    pub(super) fn mask(&mut self, masked: &[Seq]) {
        let (mut before, mut after) = (0, 0);
        for entry in &mut self.entries {
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
        }
    }

    fn begin_turn(&mut self, turn: TurnNumber) {
        if self.turns.last().is_none_or(|&(last, _)| last != turn) {
            self.turns.push((turn, self.entries.len()));
        }
    }

    /// The newest turn goes on as another: both are one span from now on.
    pub(super) fn continue_turn(&mut self, interrupted: TurnNumber, turn: TurnNumber) {
        if let Some((_, start)) = self.turns.pop_if(|last| last.0 == interrupted) {
            // What was kept of it before a part that left the context may have the new number already.
            if self.turns.last().is_none_or(|&(last, _)| last != turn) {
                self.turns.push((turn, start));
            }
            self.entries[start..].iter_mut().for_each(|entry| entry.turn = turn);
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
