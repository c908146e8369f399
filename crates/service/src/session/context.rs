//! The live context: the messages of the next request, with their size.
//!
//! Between compactions it only grows at its end, so that a vendor's prompt cache stays warm; sizes are running sums, so
//! that no turn walks over old messages. The contexts from before the newest compactions are kept beside it and share
//! their messages with it, so that these compactions can be undone.

use std::{collections::VecDeque, sync::Arc};

use serde::{Deserialize, Serialize};

pub use super::entries::{ContextEntry, Summary};
use super::{
    entries::Entries,
    event::ContextRebuilt,
    message::{Body, Message},
};
use crate::ids::{Seq, TurnNumber};

/// The live context of a session, without system prompt, reminders and pins.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Context {
    live: Entries,
    rebuilds: Rebuilds,
}

/// Number of rebuilds that can be undone.
const UNDOABLE: usize = 3;

/// The newest times that the context was rebuilt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Rebuilds {
    /// The newest one that cannot be undone any more: nothing that had left the context by then returns.
    floor: Option<Rebuild>,
    /// The undoable ones, in order: only the last one may be undone next.
    undoable: VecDeque<Rebuild>,
}

/// A rebuild of the context, by reference.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Rebuild {
    /// The `context_rebuilt`.
    seq: Seq,
    /// The compaction that it belongs to.
    compaction: Seq,
    /// The events between which it was kept.
    kept: Vec<(Seq, Seq)>,
    /// The context before. A snapshot lacks it; the journal has it.
    #[serde(skip)]
    before: Option<Before>,
}

/// A context from before a rebuild, with all later changes except new messages.
#[derive(Clone, Debug)]
struct Before {
    entries: Arc<Entries>,
    /// Bytes of the messages that left the context then.
    left_bytes: u64,
}

/// Sessions are equal whether or not they have the former context in memory.
impl PartialEq for Rebuild {
    fn eq(&self, other: &Self) -> bool {
        (self.seq, self.compaction, &self.kept) == (other.seq, other.compaction, &other.kept)
    }
}

impl Context {
    /// Returns the summary of everything that left the context.
    #[must_use]
    pub const fn summary(&self) -> Option<&Summary> {
        self.live.summary()
    }

    /// Bytes of the summary, as JSON.
    #[must_use]
    pub fn summary_bytes(&self) -> u64 {
        self.live.summary_bytes()
    }

    /// Lists the messages that have not left the context, in order.
    #[must_use]
    pub fn entries(&self) -> &[ContextEntry] {
        self.live.list()
    }

    /// Returns true if a request with it names a blob.
    #[must_use]
    pub fn has_blobs(&self) -> bool {
        self.live.blobs() > 0
    }

    /// Counts its messages.
    #[must_use]
    pub fn message_count(&self) -> usize {
        self.entries().len() + usize::from(self.summary().is_some())
    }

    /// Counts the messages of it and of the contexts that an undo would bring back.
    pub(super) fn held(&self) -> usize {
        let before = self.rebuilds.undoable.iter().filter_map(|rebuild| rebuild.before.as_ref());
        self.entries().len() + before.map(|before| before.entries.list().len()).sum::<usize>()
    }

    /// Bytes of the entries from `start` on, as JSON.
    #[must_use]
    pub fn bytes_from(&self, start: usize) -> u64 {
        self.live.bytes_from(start)
    }

    /// Bytes of the results of tools from `start` on, as JSON.
    #[must_use]
    pub fn result_bytes_from(&self, start: usize) -> u64 {
        self.live.result_bytes_from(start)
    }

    /// Counts the images and PDFs from `start` on.
    #[must_use]
    pub fn images_from(&self, start: usize) -> usize {
        self.live.images_from(start)
    }

    /// Bytes of it, as JSON.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.live.bytes()
    }

    /// Finds the beginning of the newest whole turns that have at most `bytes` bytes together. The newest turn is
    /// always one of them.
    #[must_use]
    pub fn start_within(&self, bytes: u64) -> usize {
        self.live.start_within(bytes)
    }

    /// The last event of a turn that brought an entry.
    pub(super) fn last_seq_of(&self, turn: TurnNumber) -> Option<Seq> {
        self.live.last_seq_of(turn)
    }

    pub(super) fn push(&mut self, seq: Seq, turn: TurnNumber, history_index: u64, message: Message) {
        self.live.push(seq, turn, history_index, message);
    }

    /// Takes the last entry out.
    pub(super) fn take_back(&mut self) {
        self.live.take_back();
    }

    /// Keeps the retained messages and masks the masked ones. A summary, if there is one, replaces the rest and the
    /// former summary.
    pub(super) fn rebuild(&mut self, seq: Seq, rebuilt: &ContextRebuilt) {
        let mut live = self.live.within(&rebuilt.retained);
        live.mask(&rebuilt.masked);
        if let Some(summary) = &rebuilt.summary {
            live.summarise(seq, summary);
        }
        let before = std::mem::replace(&mut self.live, live);
        let left_bytes = before.bytes_unshared(&self.live);
        let before = Some(Before { entries: Arc::new(before), left_bytes });
        let (compaction, kept) = (rebuilt.compaction, rebuilt.retained.clone());
        self.rebuilds.push(Rebuild { seq, compaction, kept, before });
    }

    /// Restores the context from before the last rebuild, followed by all later messages.
    pub(super) fn undo(&mut self) {
        let Some(Rebuild { seq, before: Some(before), .. }) = self.rebuilds.undoable.pop_back() else { return };
        let since = std::mem::replace(&mut self.live, Arc::unwrap_or_clone(before.entries));
        self.live.extend_from(&since, seq);
    }

    /// Bytes of the context after an undo; `None` if the former context is not in memory.
    pub(super) fn bytes_if_undone(&self) -> Option<u64> {
        let last = self.rebuilds.undoable.back()?;
        let before = last.before.as_ref()?;
        Some(before.entries.bytes() + self.bytes_from(before.entries.place_behind(last.seq, &self.live)))
    }

    /// Bytes of messages that left the context and can return without the journal.
    pub(super) fn left_bytes(&self) -> u64 {
        self.rebuilds
            .undoable
            .iter()
            .filter_map(|rebuild| rebuild.before.as_ref())
            .map(|before| before.left_bytes)
            .sum()
    }

    /// The compactions that can be undone, in order.
    pub(super) fn undoable(&self) -> impl DoubleEndedIterator<Item = Seq> {
        self.rebuilds.undoable.iter().map(|rebuild| rebuild.compaction)
    }

    /// Returns true if an undo of the newest rebuilds may restore a message of this event.
    pub(crate) fn may_return(&self, seq: Seq) -> bool {
        let Rebuilds { floor, undoable } = &self.rebuilds;
        let has_left =
            |floor: &Rebuild| seq <= floor.seq && !floor.kept.iter().any(|(from, to)| (from..=to).contains(&&seq));
        !undoable.is_empty() && !floor.as_ref().is_some_and(has_left)
    }

    /// The newest times that it was rebuilt, by reference.
    pub(super) fn rebuilds(&self) -> Rebuilds {
        let mut rebuilds = self.rebuilds.clone();
        rebuilds.undoable.iter_mut().for_each(|rebuild| rebuild.before = None);
        rebuilds
    }

    /// The newest rebuild that cannot be undone.
    pub(crate) fn floor(&self) -> Option<Seq> {
        self.rebuilds.floor.as_ref().map(|floor| floor.seq)
    }

    /// No rebuild up to this one can be undone any more.
    pub(super) fn settle(&mut self, floor: Seq) {
        while let Some(rebuild) = self.rebuilds.undoable.pop_front_if(|rebuild| rebuild.seq <= floor) {
            self.rebuilds.settle(rebuild);
        }
    }

    /// Sets its former rebuilds.
    pub(super) fn rebuilt_by(self, rebuilds: Rebuilds) -> Self {
        Self { rebuilds, ..self }
    }

    /// Puts a summary before all messages.
    pub(super) fn summarise(&mut self, seq: Seq, summary: &Body) {
        self.live.summarise(seq, summary);
    }

    /// Puts references in place of the results in these messages.
    pub(super) fn mask(&mut self, masked: &[Seq]) {
        self.live.mask(masked);
    }

    /// Continues the newest turn as another one: both are one span from now on, in former contexts too.
    pub(super) fn continue_turn(&mut self, interrupted: TurnNumber, turn: TurnNumber) {
        self.live.continue_turn(interrupted, turn);
        for (_, before) in self.rebuilds.before_with(interrupted) {
            Arc::make_mut(&mut before.entries).continue_turn(interrupted, turn);
        }
    }

    /// Takes the newest turn out, if it is this one, but for the head of its prompt and a line for each call. Nothing
    /// brings the rest back.
    pub(super) fn drop_turn(&mut self, turn: TurnNumber) {
        let mut is_in = false;
        let mut newer = self.live.clone();
        for (seq, before) in self.rebuilds.before_with(turn) {
            let entries = Arc::make_mut(&mut before.entries);
            // Later calls count too: an undo restores only the remainder of this turn.
            entries.extend_from(&newer, seq);
            newer = entries.clone();
            entries.drop_turn(turn);
            is_in = true;
        }
        self.live.drop_turn(turn);
        if is_in {
            self.rebuilds.measure(&self.live);
        }
    }

    /// Lists the first entry of each run of messages, and how many messages came before it by the indexes of
    /// `index_of`.
    pub(super) fn runs(&self, index_of: impl Fn(&ContextEntry) -> u64) -> Vec<(Seq, u64)> {
        let mut next = None;
        let mut runs = Vec::new();
        for entry in self.entries() {
            let index = index_of(entry);
            if next != Some(index) {
                runs.push((entry.seq, index));
            }
            next = Some(index + 1);
        }
        runs
    }

    /// Numbers the entries as these runs say; those before the first one stay.
    pub(super) fn renumber(&mut self, runs: &[(Seq, u64)]) {
        self.live.renumber(runs);
    }
}

impl Rebuilds {
    fn push(&mut self, rebuild: Rebuild) {
        self.undoable.push_back(rebuild);
        if self.undoable.len() > UNDOABLE
            && let Some(oldest) = self.undoable.pop_front()
        {
            self.settle(oldest);
        }
    }

    fn settle(&mut self, rebuild: Rebuild) {
        self.floor = Some(Rebuild { before: None, ..rebuild });
    }

    /// Former contexts in which this turn was the newest, the newest context first.
    fn before_with(&mut self, turn: TurnNumber) -> impl Iterator<Item = (Seq, &mut Before)> {
        let before = self.undoable.iter_mut().rev().filter_map(|rebuild| {
            let seq = rebuild.seq;
            rebuild.before.as_mut().map(|before| (seq, before))
        });
        before.filter(move |(_, before)| before.entries.newest_turn() == Some(turn))
    }

    /// Measures again the bytes that left with each rebuild; `live` is the context now.
    fn measure(&mut self, live: &Entries) {
        let mut next: Option<Arc<Entries>> = None;
        for before in self.undoable.iter_mut().rev().filter_map(|rebuild| rebuild.before.as_mut()) {
            before.left_bytes = before.entries.bytes_unshared(next.as_deref().unwrap_or(live));
            next = Some(before.entries.clone());
        }
    }
}
