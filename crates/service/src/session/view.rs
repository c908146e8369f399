//! What `read` and `list` answer of a session. It only reads, and encodes nothing.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use meerkat_words::{
    answers::{ContextView, PendingApproval, SessionSummary, SessionView, TurnStatus},
    calls::OpenCall,
    requests::SessionMemory,
};

use super::{
    Asked, CallProgress, FormState, QueuedTurn, Session, SessionFields,
    reminder::{Pin, Reminder},
};
use crate::{
    SessionError,
    clock::Timestamp,
    ids::{Seq, SessionId, TurnNumber},
    options::ModelOptions,
    tool::ClientTools,
};

/// Snapshot in a list.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionMeta {
    /// The session.
    pub id: SessionId,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
    /// Messages in its full history.
    pub message_count: u64,
    /// The seq that it covers.
    pub last_seq: Seq,
    /// The labels.
    pub labels: BTreeMap<String, String>,
}

/// Public state of a session at one of its records. It is cheap to make and to share.
#[derive(Clone, Debug)]
pub struct View {
    /// The session in a list.
    pub summary: Arc<SessionSummary>,
    /// Reminders.
    pub reminders: Arc<Vec<Reminder>>,
    /// Pins.
    pub pins: Arc<Vec<Pin>>,
    /// The turns that wait.
    pub queue: Arc<VecDeque<QueuedTurn>>,
    /// The calls that wait for a decision.
    pub pending_approvals: Vec<(Timestamp, PendingApproval)>,
    /// The calls that wait for their caller, each with the time of its request.
    pub calls: Vec<(Timestamp, Arc<OpenCall>)>,
    /// Tools that its caller runs.
    pub client_tools: Option<Arc<ClientTools>>,
    /// Folder that its tools work in.
    pub workspace: Option<String>,
    /// The session at the top of its tree, if it is a sub-agent.
    pub root: Option<SessionId>,
    /// True once it may have started sub-agents.
    pub has_children: bool,
    /// The tools that it may use; `None` for all.
    pub tools: Option<Arc<[String]>>,
    /// Its part in the project's memory.
    pub memory: SessionMemory,
    /// How its turns ask the model.
    pub options: ModelOptions,
    /// True if its context names a blob.
    pub has_blobs: bool,
    /// Servers' tools that it found or called, the newest last.
    pub found_tools: Arc<Vec<String>>,
    /// Rules by which calls run without a question.
    pub allowed_rules: Arc<Vec<String>>,
    /// Messages of its live context.
    pub context_messages: u64,
    /// Estimated tokens of its live context.
    pub context_tokens: u64,
    /// Last event that may be dropped with its messages.
    pub pruned_to: Seq,
}

impl View {
    /// The view of a session.
    #[must_use]
    pub fn of(session: &Session) -> Self {
        Self {
            summary: Arc::new(session.summary()),
            reminders: session.reminders.clone(),
            pins: session.pins.clone(),
            queue: session.queue.clone(),
            pending_approvals: session.pending(),
            calls: session.requested(),
            client_tools: session.client_tools.clone(),
            workspace: session.workspace.clone(),
            root: session.descent.as_ref().map(|descent| descent.root),
            has_children: session.may_have_children(),
            tools: session.tools.clone(),
            memory: session.memory,
            options: session.options.clone(),
            has_blobs: session.context.has_blobs(),
            found_tools: session.found_tools.clone(),
            allowed_rules: session.allowed_rules.clone(),
            context_messages: session.context.message_count() as u64,
            // A running sum: no view walks over the messages.
            context_tokens: session.context.bytes() / 4,
            pruned_to: session.pruned_to,
        }
    }

    /// The answer of `read`. Its model's window is `window_tokens`.
    #[must_use]
    pub fn session_view(&self, window_tokens: u64) -> SessionView {
        let (messages, estimated_tokens) = (self.context_messages, self.context_tokens);
        SessionView {
            reminders: self.reminders.to_vec(),
            pins: self.pins.to_vec(),
            queue: self.queue.iter().map(QueuedTurn::item).collect(),
            pending_approvals: self.pending_approvals.iter().map(|(_, asked)| asked.clone()).collect(),
            allowed_rules: self.allowed_rules.to_vec(),
            workspace: self.workspace.clone(),
            memory: self.memory,
            options: self.options.clone(),
            ..SessionSummary::clone(&self.summary).view(ContextView { messages, estimated_tokens, window_tokens })
        }
    }
}

impl SessionFields {
    /// Returns true unless it has no sub-agents: the records that say so may be gone.
    #[must_use]
    pub const fn may_have_children(&self) -> bool {
        self.gaps.has_delegated || self.gaps.skipped
    }

    /// Refuses what this turn excludes; the message says what the turn waits for.
    pub(crate) fn busy_with(&self, turn: TurnNumber) -> SessionError {
        let undecided = self.pending_approvals().into_iter().find(|asked| asked.turn == turn);
        if let Some(PendingApproval { name, call_id, .. }) = undecided {
            return SessionError::Undecided { turn, name, call_id };
        }
        let open = self.open_turn.as_ref().filter(|open| open.turn == turn);
        match open.and_then(|open| open.requested().next()) {
            Some(requested) => {
                let (name, call_id) = (requested.call.name.clone(), requested.call.call_id.clone());
                SessionError::Unanswered { turn, name, call_id }
            }
            None => SessionError::Busy { turn },
        }
    }

    /// The calls and the questions of servers that wait for a decision.
    #[must_use]
    pub fn pending_approvals(&self) -> Vec<PendingApproval> {
        self.pending().into_iter().map(|(_, asked)| asked).collect()
    }

    /// The calls and the questions of servers that wait for a decision, each with the time at which it asked.
    fn pending(&self) -> Vec<(Timestamp, PendingApproval)> {
        let calls = self.open_turn.iter().flat_map(|open| open.calls.iter().map(|call| (open.turn, call)));
        let open = self.open_turn.iter();
        let forms = open.flat_map(|open| {
            open.open_forms().map(|asked| {
                let FormState { id, name, seq, time, form, .. } = asked.clone();
                let (call_id, arguments, turn, form) = (id, String::new(), open.turn, Some(form));
                (time, PendingApproval { call_id, name, arguments, turn, seq, preview: None, rule: None, form })
            })
        });
        calls
            .filter_map(|(turn, state)| match &state.progress {
                CallProgress::Waiting(Asked { seq, time, preview, rule }) => {
                    let (call, seq, time) = (&state.call, *seq, *time);
                    let (call_id, name, arguments) = (call.call_id.clone(), call.name.clone(), call.shown_arguments());
                    let (preview, rule) = (preview.clone(), rule.clone());
                    let form = None;
                    Some((time, PendingApproval { call_id, name, arguments, turn, seq, preview, rule, form }))
                }
                _ => None,
            })
            .chain(forms)
            .collect()
    }

    /// The calls that wait for their caller, each with the time of its request.
    fn requested(&self) -> Vec<(Timestamp, Arc<OpenCall>)> {
        let requested = self.open_turn.iter().flat_map(|open| open.requested());
        requested.map(|requested| (requested.time, requested.call.clone())).collect()
    }

    /// The session in a list.
    #[must_use]
    pub fn summary(&self) -> SessionSummary {
        let failed = self.last_end.as_ref().filter(|end| end.status == TurnStatus::Failed);
        SessionSummary {
            session_id: self.id,
            title: self.title().map(str::to_owned),
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
            cost: self.cost,
            forked_from: self.forked_from,
            last_error: failed.and_then(|end| Some(end.error.as_ref()?.code)),
            parent: self.descent.as_ref().map(|descent| descent.parent.clone()),
        }
    }
}
