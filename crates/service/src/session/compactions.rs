//! A session's knowledge of its compactions: the input of a compactor, the open one, and the undoable ones.
//!
//! Every answer comes from running sums; none walks over the messages.

use super::{
    event::{CompactionAttempt, Record},
    message::{Body, Message},
    state::{OpenCompaction, SessionFields},
};
use crate::{
    compaction::{CompactionConfig, CompactionContext, message_bytes},
    ids::Seq,
};

impl SessionFields {
    /// Returns the compaction config of the open turn, or else of the session.
    #[must_use]
    pub fn compaction(&self) -> Option<CompactionConfig> {
        self.open_turn.as_ref().and_then(|open| open.terms.compaction).or(self.compaction)
    }

    /// The `compaction_started` of the compaction that is neither completed nor failed yet.
    #[must_use]
    pub fn open_compaction(&self) -> Option<Seq> {
        self.open_compaction.map(|open| open.seq)
    }

    /// Returns the input of a compactor before a request of `request_bytes` to a model with a window of
    /// `window_tokens`.
    #[must_use]
    pub fn compaction_context(&self, request_bytes: u64, window_tokens: u64) -> CompactionContext {
        let counters = self.counters;
        let (current_turn, last) = (counters.current_turn(), counters.last_attempt);
        let steps = self.open_turn.as_ref().map_or(0, |open| open.totals.steps);
        let tried = last.filter(|attempt| attempt.turn == current_turn).map_or(0, |attempt| attempt.step);
        CompactionContext {
            last_input_tokens: counters.last_input_tokens,
            message_count: self.context.message_count(),
            estimated_history_tokens: (self.context.bytes() + self.fixed_bytes()) / 4,
            last_compaction_turn: last.map(|attempt| attempt.turn),
            current_turn,
            request_tokens: request_bytes / 4,
            request_bytes,
            window_tokens,
            steps_since_compaction: steps.saturating_sub(tried),
            in_turn: steps > 0,
        }
    }

    /// The compactions that can be undone, oldest first, by the seqs of their `compaction_completed`. Only the last one
    /// may be undone next.
    pub fn undoable(&self) -> impl DoubleEndedIterator<Item = Seq> {
        self.context.undoable()
    }

    /// Returns true if the newest one can be undone without records from the journal. A snapshot does not have the
    /// context from before a compaction.
    #[must_use]
    pub fn context_before_is_known(&self) -> bool {
        self.context.bytes_if_undone().is_some()
    }

    /// Estimates the tokens of the live context after an undo of the newest one; of the current context if that is
    /// unknown.
    #[must_use]
    pub fn tokens_if_undone(&self) -> u64 {
        (self.context.bytes_if_undone().unwrap_or_else(|| self.context.bytes()) + self.fixed_bytes()) / 4
    }

    /// Reminders and pins as messages, in the order in which they were set.
    pub(super) fn reminders_and_pins(&self) -> impl Iterator<Item = Message> {
        let mut reminders = self.reminders.iter().peekable();
        let mut pins = self.pins.iter().peekable();
        std::iter::from_fn(move || {
            let next_pin = pins.peek().map_or(Seq::MAX, |pin| pin.seq);
            if let Some(reminder) = reminders.next_if(|reminder| reminder.seq < next_pin) {
                let content = Body::Inline(reminder.text.clone());
                return Some(Message::SystemReminder { kind: reminder.kind.clone(), content });
            }
            pins.next().map(|pin| Message::Pin { n: pin.seq, content: Body::Inline(pin.text.clone()) })
        })
    }

    /// The system prompt as a message.
    pub(super) fn system(&self) -> Option<Message> {
        self.system_prompt.as_ref().map(|content| Message::System { content: content.clone() })
    }

    /// Bytes of the context besides the conversation: system prompt, reminders and pins.
    fn fixed_bytes(&self) -> u64 {
        self.system().into_iter().chain(self.reminders_and_pins()).map(|message| message_bytes(&message)).sum()
    }

    pub(super) fn compaction_started(&mut self, record: &Record) {
        self.open_compaction = Some(OpenCompaction { seq: record.seq, turn: record.turn, completes_at: None });
        self.compaction_tried();
    }

    /// Step 12: the turn of the last compaction. Attempts count, whatever becomes of them.
    pub(super) fn compaction_tried(&mut self) {
        let step = self.open_turn.as_ref().map_or(0, |open| open.totals.steps);
        self.counters.last_attempt = Some(CompactionAttempt { turn: self.counters.current_turn(), step });
    }
}
