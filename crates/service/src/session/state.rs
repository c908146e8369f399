//! [`Session`]: the fold of a session's records. Its fields can be read, and only [`Session::apply`] changes them.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Deref,
    path::Path,
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use meerkat_words::{agents::Descent, answers::SessionState};

use super::{
    context::Context,
    event::{CompactionCounters, Decision, Key, MemoryScope, Record, Scope, SessionMemory},
    message::{Body, Message, RawJson},
    reminder::{self, Pin, Reminder, SystemReminderType, count_system_reminders_by_type, tagged},
    turn::{OpenTurn, QueuedTurn, TurnEnd},
};
use crate::{
    clock::Timestamp,
    compaction::CompactionConfig,
    cost::Cost,
    ids::{Seq, SessionId, TurnNumber},
    model::Usage,
    options::{Budgets, ModelOptions},
    output::OutputSpec,
    tool::{ClientTools, DELEGATE, NAME_BYTES_MAX, RECALL_TOOL},
};

/// Time for which an idempotency key is kept at least, in milliseconds. A wrong clock makes no key old: later keys, and
/// more than a few, must have been used a day after it.
pub const KEY_KEPT_MS: i64 = 24 * 60 * 60 * 1000;

/// Keys of a session that stay whatever their time, the last ones used; and the later keys that must say that a day has
/// passed before one is forgotten.
pub(crate) const KEYS_KEPT: usize = 256;

/// Rules that a session may be allowed.
pub(crate) const RULES_MAX: usize = 256;

/// Tools of servers that a session remembers.
const FOUND_MAX: usize = 64;

/// Decision on a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decided {
    /// The decision.
    pub decision: Decision,
    /// The event that recorded it.
    pub seq: Seq,
    /// Its extent.
    #[serde(default)]
    pub scope: Scope,
    /// Rule to keep, if it is for always.
    #[serde(default)]
    pub rule: Option<String>,
    /// Answer to a server's question.
    #[serde(default, deserialize_with = "RawJson::given", skip_serializing_if = "Option::is_none")]
    pub answer: Option<RawJson>,
}

/// A compaction that has not ended yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OpenCompaction {
    /// Seq of its `compaction_started`.
    pub(super) seq: Seq,
    /// The turn it happens in; `None` between turns.
    pub(super) turn: Option<TurnNumber>,
    /// The `compaction_completed` that its `context_rebuilt` names.
    pub(super) completes_at: Option<Seq>,
}

/// Refusal of a record that cannot follow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record {seq} does not follow: {why}")]
pub struct ApplyError {
    /// The record.
    pub seq: Seq,
    /// Reason.
    pub why: &'static str,
}

/// A session as its records make it.
#[derive(Clone, Debug, PartialEq)]
pub struct Session(pub(super) SessionFields);

impl Deref for Session {
    type Target = SessionFields;

    fn deref(&self) -> &SessionFields {
        &self.0
    }
}

impl Session {
    /// Returns true if a message of [`messages`](SessionFields::messages) is a reminder. A text that looks like one is
    /// not.
    #[must_use]
    pub const fn is_system_reminder(message: &Message) -> bool {
        reminder::is_system_reminder(message)
    }

    /// Starts a session from its first record.
    ///
    /// # Errors
    /// If no session can begin with the record.
    pub fn begin(record: &Record) -> Result<Self, ApplyError> {
        SessionFields::begin(record).map(Self)
    }

    /// Starts a session from its first record that is left. What the lost ones said of it is unknown: it has no
    /// workspace, may use no tool, and has no part in memory.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn begin_anywhere(record: &Record) -> Result<Self, ApplyError> {
        SessionFields::begin_anywhere(record).map(Self)
    }

    /// Applies the next record. If its seq skips some, journal compaction dropped the records between, or they are lost
    /// (see `lost.rs`): the store's chain proves that no others are missing.
    ///
    /// # Errors
    /// If the record cannot follow; the session is then unchanged.
    pub fn apply(&mut self, record: &Record) -> Result<(), ApplyError> {
        self.0.apply(record)
    }
}

/// What a [`Session`] knows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionFields {
    /// Its id.
    pub id: SessionId,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time of its last change.
    pub updated_at: Timestamp,
    /// The title that was set; `None` if it is listed by its first line.
    pub given_title: Option<String>,
    /// First line of the first prompt that has one: the title while none is set.
    pub first_line: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// True if it is archived.
    pub is_archived: bool,
    /// The session that it was forked from.
    pub forked_from: Option<SessionId>,
    /// The call that started it, if it is a sub-agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub descent: Option<Descent>,
    /// Model of turns that name none.
    pub model: String,
    /// Its system prompt.
    #[serde(skip)]
    pub system_prompt: Option<Body>,
    /// The tools that it may use; `None` for all.
    pub tools: Option<Arc<[String]>>,
    /// Tools that its caller runs.
    #[serde(skip)]
    pub client_tools: Option<Arc<ClientTools>>,
    /// Those that turns in the queue bring.
    #[serde(skip)]
    pub(super) tools_of_queue: Vec<Arc<ClientTools>>,
    /// Folder that its tools work in.
    pub(super) workspace: Option<String>,
    /// The last `session_imported`; 0 if there is none.
    pub(super) imported_at: Seq,
    /// The event that set its labels.
    pub(super) labelled_at: Seq,
    /// Its part in the project's memory.
    pub memory: SessionMemory,
    /// Budgets of turns that set none.
    pub budgets: Budgets,
    /// How its model is asked in turns that do not say.
    #[serde(default, skip_serializing_if = "ModelOptions::is_default")]
    pub options: ModelOptions,
    /// Its own compaction config.
    pub(super) compaction: Option<CompactionConfig>,
    /// Key of its creation.
    pub created_key: Option<Key>,
    /// Counters for the next compaction.
    pub(super) counters: CompactionCounters,
    pub(super) open_compaction: Option<OpenCompaction>,
    /// The live context, without system prompt, reminders and pins.
    #[serde(skip)]
    pub context: Context,
    /// The reminders in the order in which they were set.
    #[serde(skip)]
    pub reminders: Arc<Vec<Reminder>>,
    /// The pins in the order in which they were set.
    #[serde(skip)]
    pub pins: Arc<Vec<Pin>>,
    /// In the order in which they will run.
    #[serde(skip)]
    pub queue: Arc<VecDeque<QueuedTurn>>,
    /// The turn that runs.
    pub open_turn: Option<OpenTurn>,
    /// End of the last turn.
    pub last_end: Option<TurnEnd>,
    pub(super) keys: BTreeMap<String, KeyUse>,
    /// The keys in the order in which they were used, to forget the oldest first.
    pub(super) keys_by_age: VecDeque<(Timestamp, String)>,
    /// Bytes of the keys.
    #[serde(skip)]
    pub(super) keyed_bytes: u64,
    /// Decisions on the calls of the running and the last turn.
    pub(super) decisions: BTreeMap<String, Decided>,
    /// Rules by which calls run without a question, each once, at most 256.
    pub allowed_rules: Arc<Vec<String>>,
    /// Tools of servers that its model found by a search or called, each once, the newest last, at most 64.
    pub found_tools: Arc<Vec<String>>,
    /// Its tokens so far.
    pub usage: Usage,
    /// Its cost so far; `None` if that of a part is unknown.
    pub cost: Option<Cost>,
    /// Messages in the full history; it never shrinks.
    pub message_count: u64,
    /// The number of the next turn, which is also how many were accepted.
    pub next_turn: TurnNumber,
    /// Events up to here may be dropped with their messages.
    pub pruned_to: Seq,
    pub(super) gaps: Gaps,
    /// Seq of its last event.
    pub last_seq: Seq,
}

/// Notes if seqs were skipped, and what may be among those. It makes no two sessions different: journal compaction skips
/// seqs, too.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Gaps {
    /// True once a seq was skipped: what a record goes on with may be lost.
    pub(super) skipped: bool,
    /// True if a record did not follow, and no later `records_lost` says why.
    #[serde(default)]
    pub(super) is_unexplained: bool,
    /// True once it has started a sub-agent.
    #[serde(default)]
    pub(super) has_delegated: bool,
}

impl PartialEq for Gaps {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// Use of an idempotency key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyUse {
    /// The hash of the request.
    pub request: String,
    /// The turn that it made.
    pub turn: TurnNumber,
    /// The event that accepted the turn.
    pub seq: Seq,
    /// Time of use.
    pub time: Timestamp,
    /// End of the turn, without its text, which is read from its event; `None` while it waits or runs.
    pub end: Option<TurnEnd>,
    /// True if the turn left the queue without starting.
    pub is_dequeued: bool,
}

impl KeyUse {
    /// Bytes that it keeps in memory, roughly.
    pub(super) fn bytes(&self) -> u64 {
        (size_of::<Self>() + self.request.len()) as u64
    }
}

impl SessionFields {
    /// Returns its title; while none is set, the first line of its first prompt.
    #[must_use]
    pub fn title(&self) -> Option<&str> {
        self.given_title.as_deref().or(self.first_line.as_deref())
    }

    /// Returns the folder that its tools work in.
    #[must_use]
    pub fn workspace(&self) -> Option<&Path> {
        self.workspace.as_deref().map(Path::new)
    }

    /// Returns true if it may use a tool. Those that its caller runs are always its own.
    #[must_use]
    pub fn may_use(&self, tool: &str) -> bool {
        let is_client = || self.client_tools.as_ref().is_some_and(|set| set.get(tool).is_some());
        (self.tools.as_ref().is_none_or(|tools| tools.iter().any(|allowed| allowed == tool)) || is_client())
            && !(tool == RECALL_TOOL && self.memory.scope == MemoryScope::None)
            && (tool != DELEGATE || self.may_delegate())
    }

    /// Returns true if the running turn may start sub-agents.
    pub(crate) fn may_delegate(&self) -> bool {
        self.open_turn.as_ref().is_some_and(|open| open.terms.budgets.agents.is_some_and(|agents| agents > 0))
    }

    /// Returns the whole live context: system prompt, summary, reminders and pins, then the conversation.
    #[must_use]
    pub fn messages(&self) -> Vec<Message> {
        let said = self.context.entries().iter().map(|entry| Message::clone(&entry.message));
        let summary = self.context.summary().map(|summary| Message::clone(&summary.message));
        self.system().into_iter().chain(summary).chain(self.reminders_and_pins()).chain(said).collect()
    }

    /// Returns reminders and pins as one text, in the order in which they were set; `None` if there are none.
    #[must_use]
    pub fn tail(&self) -> Option<String> {
        self.tail_with_pins().0
    }

    /// Returns reminders and pins as one text, and the bytes in it that are pins.
    pub(crate) fn tail_with_pins(&self) -> (Option<String>, u64) {
        let (mut parts, mut pin_bytes) = (Vec::new(), 0);
        for message in self.reminders_and_pins() {
            let Some(part) = tagged(&message) else { continue };
            if matches!(message, Message::Pin { .. }) {
                pin_bytes += part.len() as u64;
            }
            parts.push(part);
        }
        ((!parts.is_empty()).then(|| parts.join("\n")), pin_bytes)
    }

    /// Counts the bytes of its keys again.
    pub(super) fn count_keys(&mut self) {
        self.keyed_bytes = self.keys.values().map(KeyUse::bytes).sum();
    }

    /// Bytes that it holds in memory, roughly: its context, undoable former contexts, its caller's tools, and keys. A
    /// shared message counts once.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let tools = self.client_tools.iter().chain(&self.tools_of_queue).map(|set| set.bytes()).sum::<u64>();
        self.context.bytes() + self.context.left_bytes() + tools + self.keyed_bytes
    }

    /// Returns true if it has a reminder of this kind.
    #[must_use]
    pub fn has_reminder(&self, kind: &SystemReminderType) -> bool {
        count_system_reminders_by_type(&self.reminders, kind) > 0
    }

    /// Sets a reminder behind the others, and removes the former one of its type. Only an event does that.
    pub(super) fn add_system_reminder(&mut self, reminder: Reminder) {
        reminder::add(Arc::make_mut(&mut self.reminders), reminder);
    }

    /// The turn that runs.
    #[must_use]
    pub const fn open_turn(&self) -> Option<&OpenTurn> {
        self.open_turn.as_ref()
    }

    /// Returns how the model is asked in the running turn, or in one that does not say.
    pub(crate) fn model_options(&self) -> &ModelOptions {
        self.open_turn.as_ref().map_or(&self.options, |open| &open.terms.options)
    }

    /// Returns the schema that the running turn's answer must fit.
    pub(crate) fn output(&self) -> Option<&Arc<OutputSpec>> {
        self.open_turn.as_ref().and_then(|open| open.terms.output.as_ref())
    }

    /// Returns the turn that runs, or else the first in the queue.
    pub(crate) fn pending_turn(&self) -> Option<TurnNumber> {
        let running = self.open_turn.as_ref().map(|open| open.turn);
        running.or_else(|| self.queue.front().map(|queued| queued.turn))
    }

    /// Returns true if the turn runs or is in the queue.
    pub(crate) fn is_pending(&self, turn: TurnNumber) -> bool {
        let mut pending =
            self.open_turn.iter().map(|open| open.turn).chain(self.queue.iter().map(|queued| queued.turn));
        pending.any(|pending| pending == turn)
    }

    /// Returns the end of the last turn.
    #[must_use]
    pub const fn last_end(&self) -> Option<&TurnEnd> {
        self.last_end.as_ref()
    }

    /// Returns the use of a key that is not forgotten. No clock decides: it may be wrong for a moment.
    #[must_use]
    pub fn key(&self, key: &str) -> Option<&KeyUse> {
        self.keys.get(key)
    }

    /// Returns the decision on a call of the running or the last turn.
    #[must_use]
    pub fn decision(&self, call_id: &str) -> Option<&Decided> {
        self.decisions.get(call_id)
    }

    /// Remembers a tool of a server as the newest.
    pub(super) fn find_tool(&mut self, name: &str) {
        // No tool has a longer name; an imported event may.
        if name.len() > NAME_BYTES_MAX {
            return;
        }
        let found = Arc::make_mut(&mut self.found_tools);
        found.retain(|known| known != name);
        if found.len() == FOUND_MAX {
            found.remove(0);
        }
        found.push(name.to_owned());
    }

    /// Returns true if some of its records do not follow, and none says that others are lost.
    pub(crate) const fn has_unexplained_gap(&self) -> bool {
        self.gaps.is_unexplained
    }

    /// Returns its state.
    #[must_use]
    pub fn state(&self) -> SessionState {
        match &self.open_turn {
            Some(open) if open.is_waiting() || open.open_forms().next().is_some() => SessionState::Waiting,
            Some(_) => SessionState::Running,
            None if self.open_compaction.is_some() => SessionState::Running,
            None if self.queue.is_empty() => SessionState::Idle,
            None => SessionState::Queued,
        }
    }
}
