//! The live context: what the next request is made of, with its size kept as it grows.
//!
//! Between compactions it only grows at its end, so that a vendor's prompt cache stays warm; sizes are running sums, so
//! that no turn ever walks over what was said before. What stood in it before its newest compactions is kept beside it,
//! message by message the same memory, so that they can be undone.

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

/// How often it can be undone that the context was rebuilt.
const UNDOABLE: usize = 3;

/// The newest times that the context was rebuilt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Rebuilds {
    /// The newest one that cannot be undone any more: nothing that had left the context by then returns.
    floor: Option<Rebuild>,
    /// Those that can be undone, in order: only the last one may be undone next.
    undoable: VecDeque<Rebuild>,
}

/// How the context was rebuilt, by reference.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Rebuild {
    /// The `context_rebuilt`.
    seq: Seq,
    /// The compaction that it belongs to.
    compaction: Seq,
    /// The events between which it was kept.
    kept: Vec<(Seq, Seq)>,
    /// What stood in it before. A snapshot does not hold it; the journal does.
    #[serde(skip)]
    before: Option<Before>,
}

/// What stood in the context before it was rebuilt, changed by all that came since but for what was said.
#[derive(Clone, Debug)]
struct Before {
    entries: Arc<Entries>,
    /// Bytes of what left the context then.
    left_bytes: u64,
}

/// Whether what stood before is in memory makes no other session.
impl PartialEq for Rebuild {
    fn eq(&self, other: &Self) -> bool {
        (self.seq, self.compaction, &self.kept) == (other.seq, other.compaction, &other.kept)
    }
}

impl Context {
    /// What stands for all that left it.
    #[must_use]
    pub const fn summary(&self) -> Option<&Summary> {
        self.live.summary()
    }

    /// Bytes of the summary, as JSON.
    #[must_use]
    pub fn summary_bytes(&self) -> u64 {
        self.live.summary_bytes()
    }

    /// What was said and has not left it, in order.
    #[must_use]
    pub fn entries(&self) -> &[ContextEntry] {
        self.live.list()
    }

    /// Whether a result in it names a blob.
    #[must_use]
    pub fn has_blobs(&self) -> bool {
        self.live.blobs() > 0
    }

    /// Its messages, counted.
    #[must_use]
    pub fn message_count(&self) -> usize {
        self.entries().len() + usize::from(self.summary().is_some())
    }

    /// Bytes of the entries from `start` on, as JSON.
    #[must_use]
    pub fn bytes_from(&self, start: usize) -> u64 {
        self.live.bytes_from(start)
    }

    /// Bytes of it, as JSON.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.live.bytes()
    }

    /// Where the newest whole turns begin whose entries have at most `bytes` bytes together.
    /// The newest turn is always among them.
    #[must_use]
    pub fn start_within(&self, bytes: u64) -> usize {
        self.live.start_within(bytes)
    }

    /// The last event of a turn that brought an entry.
    pub(super) fn last_seq_of(&self, turn: TurnNumber) -> Option<Seq> {
        self.live.last_seq_of(turn)
    }

    pub(super) fn push(&mut self, seq: Seq, turn: TurnNumber, nth: u64, message: Message) {
        self.live.push(seq, turn, nth, message);
    }

    /// Keeps what is retained, masks what is masked, and puts the summary, where there is one, in place of the rest and
    /// of the summary before it.
    pub(super) fn rebuild(&mut self, seq: Seq, rebuilt: &ContextRebuilt) {
        let mut live = self.live.within(&rebuilt.retained);
        live.mask(&rebuilt.masked);
        if let Some(summary) = &rebuilt.summary {
            live.summarise(seq, summary);
        }
        let before = std::mem::replace(&mut self.live, live);
        let left_bytes = before.bytes_beside(&self.live);
        let before = Some(Before { entries: Arc::new(before), left_bytes });
        let (compaction, kept) = (rebuilt.compaction, rebuilt.retained.clone());
        self.rebuilds.push(Rebuild { seq, compaction, kept, before });
    }

    /// What stood in it before it was last rebuilt stands in it again, before all that came since.
    pub(super) fn undo(&mut self) {
        let Some(Rebuild { seq, before: Some(before), .. }) = self.rebuilds.undoable.pop_back() else { return };
        let since = std::mem::replace(&mut self.live, Arc::unwrap_or_clone(before.entries));
        self.live.extend_from(&since, seq);
    }

    /// Bytes that it would have if that were undone; `None` where what stood before is not in memory.
    pub(super) fn bytes_if_undone(&self) -> Option<u64> {
        let last = self.rebuilds.undoable.back()?;
        let before = last.before.as_ref()?;
        Some(before.entries.bytes() + self.bytes_from(self.live.place_behind(last.seq)))
    }

    /// Bytes of what stood before and left it, and can be brought back without the journal.
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

    /// Whether an event may have brought what stands in the context again where its newest rebuilds are undone.
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

    /// It as it was once rebuilt.
    pub(super) fn rebuilt_by(self, rebuilds: Rebuilds) -> Self {
        Self { rebuilds, ..self }
    }

    /// Puts a summary before everything that was said.
    pub(super) fn summarise(&mut self, seq: Seq, summary: &Body) {
        self.live.summarise(seq, summary);
    }

    /// Puts references in place of the results in these messages.
    pub(super) fn mask(&mut self, masked: &[Seq]) {
        self.live.mask(masked);
    }

    /// The newest turn goes on as another: both are one span from now on, also in what stood before.
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
            // What was called since counts too: an undo brings nothing of this turn but what is left of it here.
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

    /// The first entry of each run of messages, and how many were said before it, by the numbers that `nth` gives.
    pub(super) fn runs(&self, nth: impl Fn(&ContextEntry) -> u64) -> Vec<(Seq, u64)> {
        let mut next = None;
        let mut runs = Vec::new();
        for entry in self.entries() {
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

    /// What stood before, wherever this turn was the newest, with the rebuild; the newest first.
    fn before_with(&mut self, turn: TurnNumber) -> impl Iterator<Item = (Seq, &mut Before)> {
        let before = self.undoable.iter_mut().rev().filter_map(|rebuild| {
            let seq = rebuild.seq;
            rebuild.before.as_mut().map(|before| (seq, before))
        });
        before.filter(move |(_, before)| before.entries.newest_turn() == Some(turn))
    }

    /// Measures anew what left the context each time; it is `live` now.
    fn measure(&mut self, live: &Entries) {
        let mut next: Option<Arc<Entries>> = None;
        for before in self.undoable.iter_mut().rev().filter_map(|rebuild| rebuild.before.as_mut()) {
            before.left_bytes = before.entries.bytes_beside(next.as_deref().unwrap_or(live));
            next = Some(before.entries.clone());
        }
    }
}
