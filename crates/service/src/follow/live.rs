//! Live events of a running step: deltas, progress, retries.
//!
//! Followers are cursors into it, never queues. One that falls behind, or is new, reads the step's text from where it is
//! in pieces of its own; other live events that it missed are lost.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError, Weak},
};

use bytes::Bytes;
use tokio::sync::watch;

use crate::{
    SessionError,
    clock::Timestamp,
    ids::{Seq, SessionId, TurnNumber},
    session::event::{LiveEvent, ReasoningDelta, TextDelta},
    store::Frame,
    wire::encode_live,
};

/// Lines that are kept for followers; who falls further behind reads the accumulated text instead.
const LINES_KEPT: usize = 256;
/// Bytes of them that are kept.
const LINE_BYTES_KEPT: usize = 1024 * 1024;
/// Bytes of lines that are read ahead; a longer line is alone.
pub(crate) const READ_AHEAD_BYTES: usize = 16 * 1024;
/// Most bytes of text that a follower who is behind gets in one delta.
const PIECE_BYTES: usize = 8 * 1024;

/// A line of a followed session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowedLine {
    /// Seq, from which a caller can continue; `None` for a live event.
    pub seq: Option<Seq>,
    /// The line of JSON.
    pub line: Bytes,
}

/// What is left of the bytes that may be read ahead.
#[derive(Default)]
pub(crate) struct Room {
    bytes: usize,
}

impl Room {
    /// Returns true if a line may be added; the first one always may.
    pub(crate) fn takes(&mut self, line: &Bytes) -> bool {
        let is_first = self.bytes == 0;
        self.bytes += line.len();
        is_first || self.bytes <= READ_AHEAD_BYTES
    }

    /// Returns true if a line of so many bytes may be added.
    const fn has(&self, bytes: usize) -> bool {
        self.bytes == 0 || self.bytes + bytes <= READ_AHEAD_BYTES
    }
}

/// Hubs in use.
pub(crate) type Hubs = Mutex<HashMap<SessionId, Weak<LiveHub>>>;

/// The live events of one session.
pub(crate) struct LiveHub {
    session_id: SessionId,
    /// Map that has this hub until it is dropped.
    hubs: Weak<Hubs>,
    state: Mutex<LiveState>,
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct LiveState {
    /// The durable seq that the step's events follow.
    after: Seq,
    turn: Option<TurnNumber>,
    step: u32,
    /// Number of the step among all that this hub has shown.
    number: u64,
    time: Option<Timestamp>,
    blocks: Vec<Block>,
    lines: VecDeque<Line>,
    line_bytes: usize,
    /// Number of lines that came before the kept ones.
    dropped: u64,
    deletion: Deletion,
    /// The newest durable events of a session that is deleted: the store has them no longer.
    last_frames: Vec<Frame>,
    /// Number of times that the session's actor was lost while turns were under way.
    losses: u64,
    /// Last durable seq at the last loss, and the error for callers that waited for a turn.
    lost: Option<(Seq, SessionError)>,
}

/// Progress of the session's deletion.
#[derive(Clone, Copy, Default, PartialEq)]
enum Deletion {
    #[default]
    None,
    UnderWay,
    Durable,
}

struct Block {
    is_reasoning: bool,
    text: String,
}

/// Live event, encoded.
struct Line {
    /// The durable seq that it follows.
    after: Seq,
    line: Bytes,
    /// End of its text, if it is a delta.
    text: Option<TextPlace>,
}

/// Place in the text of a step.
#[derive(Clone, Copy, Debug, Default)]
struct TextPlace {
    /// Number of the step.
    number: u64,
    block: usize,
    /// Bytes of the block before it.
    offset: usize,
}

/// Position of a follower among the live events.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LiveCursor {
    next: u64,
    /// False while it reads the text from `text` on instead of lines.
    is_started: bool,
    /// End of the text that it has.
    text: TextPlace,
}

impl Drop for LiveHub {
    fn drop(&mut self) {
        let Some(hubs) = self.hubs.upgrade() else { return };
        let mut hubs = hubs.lock().unwrap_or_else(PoisonError::into_inner);
        // Another hub may have replaced it.
        if hubs.get(&self.session_id).is_some_and(|hub| hub.strong_count() == 0) {
            hubs.remove(&self.session_id);
        }
    }
}

impl LiveHub {
    pub(crate) fn new(session_id: SessionId, hubs: Weak<Hubs>) -> Self {
        Self { session_id, hubs, state: Mutex::default(), changed: watch::Sender::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, LiveState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a step and forgets the one before.
    pub(crate) fn begin_step(&self, after: Seq, turn: TurnNumber, step: u32, time: Timestamp) {
        let mut state = self.state();
        state.after = after;
        state.turn = Some(turn);
        state.step = step;
        state.number += 1;
        state.time = Some(time);
        state.blocks.clear();
    }

    /// More text of the model. Text after reasoning, or the other way round, begins a new block.
    /// The turn may record other events meanwhile; the delta follows the newest one, `after`.
    pub(crate) fn delta(&self, after: Seq, is_reasoning: bool, text: String) {
        let mut state = self.state();
        state.after = after;
        if state.blocks.last().is_none_or(|block| block.is_reasoning != is_reasoning) {
            state.blocks.push(Block { is_reasoning, text: String::new() });
        }
        let block = state.blocks.len() - 1;
        let offset = state.blocks[block].text.len() as u64;
        state.blocks[block].text.push_str(&text);
        let place = TextPlace { number: state.number, block, offset: state.blocks[block].text.len() };
        let event = delta_event(is_reasoning, state.step, block, offset, text);
        self.push(state, &event, Some(place));
    }

    /// Ends a step before its answer is recorded, so that its text is not shown again.
    pub(crate) fn end_step(&self) {
        self.state().blocks.clear();
    }

    /// The turn has ended: nothing of it is kept.
    pub(crate) fn end_turn(&self) {
        let mut state = self.state();
        state.blocks = Vec::new();
        state.dropped += state.lines.len() as u64;
        state.lines = VecDeque::new();
        state.line_bytes = 0;
    }

    /// Another live event of the running turn.
    pub(crate) fn show(&self, after: Seq, turn: TurnNumber, time: Timestamp, event: &LiveEvent) {
        let mut state = self.state();
        state.after = after;
        state.turn = Some(turn);
        state.time = Some(time);
        self.push(state, event, None);
    }

    /// Returns true if the session has followers.
    pub(crate) fn is_followed(&self) -> bool {
        self.changed.receiver_count() > 0
    }

    /// Begins the session's deletion: followers wait for its end. `last_frames` are the newest events, which they get
    /// first.
    pub(crate) fn begin_deletion(&self, last_frames: Vec<Frame>) {
        let mut state = self.state();
        (state.deletion, state.last_frames) = (Deletion::UnderWay, last_frames);
    }

    /// Ends the deletion and notifies followers; if it failed, the session goes on.
    pub(crate) fn end_deletion(&self, is_durable: bool) {
        let mut state = self.state();
        if is_durable {
            state.deletion = Deletion::Durable;
        } else {
            (state.deletion, state.last_frames) = (Deletion::None, Vec::new());
        }
        drop(state);
        self.notify();
    }

    /// The newest events of a deleted session, as far as they follow `seq`.
    pub(crate) fn last_frames(&self, seq: Seq) -> Vec<Frame> {
        self.state().last_frames.iter().filter(|frame| frame.seq > seq).cloned().collect()
    }

    /// Reports that the session's actor was lost while turns were under way: callers that wait for a turn are notified
    /// behind `seq`, the last durable one.
    pub(crate) fn lose(&self, seq: Seq, error: &SessionError) {
        let mut state = self.state();
        state.losses += 1;
        state.lost = Some((seq, error.clone()));
        drop(state);
        self.notify();
    }

    /// Counts the losses so far.
    pub(crate) fn losses(&self) -> u64 {
        self.state().losses
    }

    /// Returns the loss for a follower at `seq` that has `seen` so many.
    pub(crate) fn lost(&self, seen: &mut u64, seq: Seq) -> Option<SessionError> {
        let state = self.state();
        let (_, error) = state.lost.as_ref().filter(|(at, _)| *seen != state.losses && seq >= *at)?;
        *seen = state.losses;
        Some(error.clone())
    }

    /// Returns true if the session may still survive its deletion.
    pub(crate) fn is_deleting(&self) -> bool {
        self.state().deletion == Deletion::UnderWay
    }

    /// Returns true if the session was deleted.
    pub(crate) fn is_deleted(&self) -> bool {
        self.state().deletion == Deletion::Durable
    }

    fn push(&self, mut state: MutexGuard<'_, LiveState>, event: &LiveEvent, text: Option<TextPlace>) {
        let Some(time) = state.time else { return };
        match encode_live(self.session_id, state.after, state.turn, time, event) {
            Ok(line) => {
                let after = state.after;
                state.line_bytes += line.len();
                state.lines.push_back(Line { after, line, text });
            }
            Err(error) => tracing::error!(%error, "a live event could not be encoded"),
        }
        while state.lines.len() > LINES_KEPT || (state.line_bytes > LINE_BYTES_KEPT && state.lines.len() > 1) {
            let Some(gone) = state.lines.pop_front() else { break };
            state.line_bytes -= gone.line.len();
            state.dropped += 1;
        }
        drop(state);
        self.notify();
    }

    /// Wakes all followers.
    fn notify(&self) {
        self.changed.send_modify(|version| *version = version.wrapping_add(1));
    }

    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Returns the position of a new follower. One that comes before the first event misses nothing, however late it
    /// polls.
    pub(crate) fn cursor(&self) -> LiveCursor {
        let state = self.state();
        let is_started = state.lines.is_empty() && state.blocks.is_empty();
        LiveCursor { next: state.dropped, is_started, text: TextPlace::default() }
    }

    /// Puts the next lines for a follower whose durable cursor is `seq` into its empty `ready`. Lines that follow an
    /// older seq are dropped; at the first line that follows a newer one it stops, for the durable events come first.
    /// There are no more than a follower may hold.
    pub(crate) fn poll(&self, cursor: &mut LiveCursor, seq: Seq, ready: &mut VecDeque<FollowedLine>) {
        let state = self.state();
        let end = state.dropped + state.lines.len() as u64;
        let mut room = Room::default();
        if !cursor.is_started || cursor.next < state.dropped {
            cursor.is_started = false;
            // If durable events of this step are still unread, it looks again after them.
            if state.after > seq {
                return;
            }
            if cursor.text.number != state.number {
                cursor.text = TextPlace { number: state.number, ..TextPlace::default() };
            }
            while room.has(PIECE_BYTES) {
                let Some(line) = state.piece(self.session_id, seq, &mut cursor.text) else {
                    (cursor.is_started, cursor.next) = (true, end);
                    return;
                };
                room.takes(&line);
                ready.push_back(FollowedLine { seq: None, line });
            }
            return;
        }
        while cursor.next < end {
            let index = usize::try_from(cursor.next - state.dropped).unwrap_or(usize::MAX);
            let Some(Line { after, line, text }) = state.lines.get(index) else { break };
            if *after > seq {
                break;
            }
            if *after == seq {
                if !room.takes(line) {
                    break;
                }
                ready.push_back(FollowedLine { seq: None, line: line.clone() });
                cursor.text = text.unwrap_or(cursor.text);
            }
            cursor.next += 1;
        }
    }
}

impl LiveState {
    /// Returns the next piece of the step's text as a delta that follows `seq`, the follower's cursor, and moves the
    /// place behind it; `None` at the end.
    fn piece(&self, session_id: SessionId, seq: Seq, place: &mut TextPlace) -> Option<Bytes> {
        loop {
            let Block { is_reasoning, text } = self.blocks.get(place.block)?;
            let rest = text.get(place.offset..).filter(|rest| !rest.is_empty());
            let Some(rest) = rest else {
                // The last block may still grow.
                if place.block + 1 >= self.blocks.len() {
                    return None;
                }
                (place.block, place.offset) = (place.block + 1, 0);
                continue;
            };
            let piece = &rest[..rest.floor_char_boundary(PIECE_BYTES)];
            let event = delta_event(*is_reasoning, self.step, place.block, place.offset as u64, piece.to_owned());
            place.offset += piece.len();
            return encode_live(session_id, seq, self.turn, self.time?, &event).ok();
        }
    }
}

fn delta_event(is_reasoning: bool, step: u32, block: usize, offset: u64, text: String) -> LiveEvent {
    let block = u32::try_from(block).unwrap_or(u32::MAX);
    if is_reasoning {
        LiveEvent::ReasoningDelta(ReasoningDelta { step, block, offset, text })
    } else {
        LiveEvent::TextDelta(TextDelta { step, block, offset, text })
    }
}
