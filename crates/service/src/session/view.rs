//! What `read` and `list` answer of a session. It only reads, and encodes nothing.

use super::{CallProgress, QueuedTurn, Session};
use crate::service::{ContextView, PendingApproval, SessionSummary, SessionView};

impl Session {
    /// The calls that wait for a decision.
    #[must_use]
    pub fn pending_approvals(&self) -> Vec<PendingApproval> {
        let calls = self.open_turn.iter().flat_map(|open| open.calls.iter().map(|call| (open.turn, call)));
        calls
            .filter_map(|(turn, state)| match state.progress {
                CallProgress::Waiting(seq) => {
                    let (call_id, name) = (state.call.call_id.clone(), state.call.name.clone());
                    Some(PendingApproval { call_id, name, turn, seq })
                }
                _ => None,
            })
            .collect()
    }

    /// The answer of `read`. Its model's window is `window_tokens`.
    #[must_use]
    pub fn view(&self, window_tokens: u64) -> SessionView {
        let SessionSummary {
            session_id,
            title,
            labels,
            model,
            state,
            archived,
            created_at,
            updated_at,
            turn_count,
            message_count,
            last_seq,
            usage,
            forked_from,
        } = self.summary();
        SessionView {
            session_id,
            title,
            labels,
            model,
            state,
            archived,
            created_at,
            updated_at,
            turn_count,
            message_count,
            last_seq,
            context: ContextView {
                messages: self.context.entries().len() as u64,
                // A running sum: no read walks over what was said.
                estimated_tokens: self.context.bytes_from(0) / 4,
                window_tokens,
            },
            usage,
            reminders: self.reminders.to_vec(),
            pins: self.pins.to_vec(),
            queue: self.queue.iter().map(QueuedTurn::item).collect(),
            pending_approvals: self.pending_approvals(),
            forked_from,
        }
    }

    /// The session in a list.
    #[must_use]
    pub fn summary(&self) -> SessionSummary {
        SessionSummary {
            session_id: self.id,
            title: self.title.clone(),
            labels: self.labels.clone(),
            model: self.model.clone(),
            state: self.state(),
            archived: self.is_archived,
            created_at: self.created_at,
            updated_at: self.updated_at,
            turn_count: u64::from(self.next_turn),
            message_count: self.message_count,
            last_seq: self.last_seq,
            usage: self.usage,
            forked_from: self.forked_from,
        }
    }
}
