//! What each operation takes. Unknown fields are refused, so that a misspelt one is noticed.

use std::{collections::BTreeMap, fmt, marker::PhantomData};

use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};

use crate::{
    clock::Timestamp,
    compaction::CompactionConfig,
    ids::{Seq, SessionId, TurnNumber},
    options::{Budgets, Policy},
    session::{event::Decision, reminder::SystemReminderType},
};

/// `create_session`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CreateSession {
    /// The title; none where it is `null` or empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The model; the configured one where `null`.
    pub model: Option<String>,
    /// The system prompt.
    pub system_prompt: Option<String>,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The tools that the session may use; all where `null`.
    pub tools: Option<Vec<String>>,
    /// How the session compacts; as configured where `null`.
    #[serde(deserialize_with = "object_or_null")]
    pub compaction: Option<CompactionConfig>,
    /// The budgets of each turn that sets none.
    #[serde(deserialize_with = "object")]
    pub budgets: Budgets,
    /// Makes a repeated request the same session.
    pub idempotency_key: Option<String>,
}

/// `start_turn`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StartTurn {
    /// The session.
    pub session_id: SessionId,
    /// What the user says.
    pub prompt: String,
    /// Another model than the session's.
    #[serde(default)]
    pub model: Option<String>,
    /// What happens where a turn runs already.
    #[serde(default)]
    pub policy: Policy,
    /// The budgets of this turn.
    #[serde(default, deserialize_with = "object")]
    pub budgets: Budgets,
    /// How this turn compacts; as the session does where `null`.
    #[serde(default, deserialize_with = "object_or_null")]
    pub compaction: Option<CompactionConfig>,
    /// Whether to answer with the result, or at once.
    #[serde(default = "yes")]
    pub wait: bool,
    /// Makes a repeated request the same turn.
    #[serde(default)]
    pub idempotency_key: Option<String>,
}

impl StartTurn {
    /// A turn with everything at its default.
    #[must_use]
    pub fn new(session_id: SessionId, prompt: impl Into<String>) -> Self {
        Self {
            session_id,
            prompt: prompt.into(),
            model: None,
            policy: Policy::Reject,
            budgets: Budgets::default(),
            compaction: None,
            wait: true,
            idempotency_key: None,
        }
    }
}

const fn yes() -> bool {
    true
}

/// `resume`, next to its session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ResumeTurn {
    /// What the user says; goes on with the interrupted turn where `null`.
    pub prompt: Option<String>,
    /// Another model than the session's, or than that of the interrupted turn that goes on.
    pub model: Option<String>,
    /// What happens where a turn runs already.
    pub policy: Policy,
    /// The budgets of this turn; where it goes on with another, what they leave out is as it was there.
    pub budgets: Budgets,
    /// How this turn compacts; as the interrupted one did where `null` and it goes on.
    pub compaction: Option<CompactionConfig>,
    /// Whether to answer with the result, or at once.
    pub wait: bool,
    /// Makes a repeated request the same turn.
    pub idempotency_key: Option<String>,
}

impl Default for ResumeTurn {
    fn default() -> Self {
        Self {
            prompt: None,
            model: None,
            policy: Policy::Reject,
            budgets: Budgets::default(),
            compaction: None,
            wait: true,
            idempotency_key: None,
        }
    }
}

/// `interrupt`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InterruptTurn {
    /// The session.
    pub session_id: SessionId,
    /// The turn; whichever runs where `null`.
    #[serde(default)]
    pub turn: Option<TurnNumber>,
}

/// `decide_approval`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DecideApproval {
    /// The session.
    pub session_id: SessionId,
    /// The call.
    pub call_id: String,
    /// What is decided.
    pub decision: Decision,
    /// Why, for the model to read.
    #[serde(default)]
    pub reason: Option<String>,
}

/// `cancel_queued`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelQueued {
    /// The session.
    pub session_id: SessionId,
    /// The turn.
    pub turn: TurnNumber,
}

/// `events`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadEvents {
    /// The session.
    pub session_id: SessionId,
    /// The cursor: events after this seq are read.
    #[serde(default)]
    pub since_seq: Seq,
    /// How many events at most.
    #[serde(default)]
    pub limit: Option<usize>,
    /// How long to wait for the first one, in milliseconds. The answer may come earlier, with nothing in it; ask again
    /// with the same cursor.
    #[serde(default)]
    pub wait_ms: u64,
}

/// `remind`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Remind {
    /// The session.
    pub session_id: SessionId,
    /// What it is about.
    pub kind: SystemReminderType,
    /// Its text.
    pub text: String,
}

/// `clear_reminder`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClearReminder {
    /// The session.
    pub session_id: SessionId,
    /// What it is about.
    pub kind: SystemReminderType,
}

/// `pin`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PinFact {
    /// The session.
    pub session_id: SessionId,
    /// The fact.
    pub text: String,
}

/// `unpin`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Unpin {
    /// The session.
    pub session_id: SessionId,
    /// The seq of the event that pinned it.
    pub pin: Seq,
}

/// An operation that takes a session and nothing else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OneSession {
    /// The session.
    pub session_id: SessionId,
}

/// `history`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadHistory {
    /// The session.
    pub session_id: SessionId,
    /// Where the page before ended.
    #[serde(default)]
    pub cursor: Option<String>,
    /// How many items at most.
    #[serde(default)]
    pub limit: Option<usize>,
}

/// `blob`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadBlob {
    /// The session.
    pub session_id: SessionId,
    /// The blob's hash.
    pub blob: String,
    /// Where to begin, in bytes.
    #[serde(default)]
    pub offset: u64,
    /// How many bytes at most.
    #[serde(default)]
    pub limit: Option<usize>,
}

/// `list`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SessionQuery {
    /// Only sessions made after this time.
    pub created_after: Option<Timestamp>,
    /// Only sessions changed after this time.
    pub updated_after: Option<Timestamp>,
    /// Only sessions with all these labels.
    pub labels: BTreeMap<String, String>,
    /// Only archived ones, or only others; both where `null`.
    pub archived: Option<bool>,
    /// Where the page before ended.
    pub cursor: Option<String>,
    /// How many sessions at most.
    pub limit: Option<usize>,
}

/// `update`. What is `null` stays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateSession {
    /// The session.
    pub session_id: SessionId,
    /// The title; an empty one takes it away.
    #[serde(default)]
    pub title: Option<String>,
    /// All labels anew.
    #[serde(default)]
    pub labels: Option<BTreeMap<String, String>>,
}

/// `delete`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteSession {
    /// The session.
    pub session_id: SessionId,
    /// Also where it runs.
    #[serde(default)]
    pub force: bool,
}

/// `fork`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkSession {
    /// The session.
    pub session_id: SessionId,
    /// The last turn to take over; the last finished one where `null`.
    #[serde(default)]
    pub turn: Option<TurnNumber>,
}

/// `compact` and `preview_compaction`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CompactSession {
    /// The session.
    pub session_id: SessionId,
    /// How to compact; as the session does where `null`.
    #[serde(default, deserialize_with = "object_or_null")]
    pub compaction: Option<CompactionConfig>,
}

/// `undo_compaction`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UndoCompaction {
    /// The session.
    pub session_id: SessionId,
    /// The seq of the compaction's completion; the latest where `null`.
    #[serde(default)]
    pub compaction: Option<Seq>,
}

/// Where memory looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SearchScope {
    /// One session.
    Session,
    /// All sessions of the project.
    #[default]
    Project,
}

/// `search_memory`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchMemory {
    /// What to look for.
    pub query: String,
    /// Where to look.
    #[serde(default)]
    pub scope: SearchScope,
    /// The session, where `scope` is `session`.
    #[serde(default)]
    pub session_id: Option<SessionId>,
    /// Only what this role said.
    #[serde(default)]
    pub role: Option<String>,
    /// Only sessions with all these labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Only from this time on.
    #[serde(default)]
    pub since: Option<Timestamp>,
    /// Only up to this time.
    #[serde(default)]
    pub until: Option<Timestamp>,
    /// How many hits at most.
    #[serde(default)]
    pub limit: Option<usize>,
}

/// `forget_memory`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ForgetMemory {
    /// What this session said.
    pub session_id: Option<SessionId>,
    /// From this seq on.
    pub from_seq: Option<Seq>,
    /// Up to this seq.
    pub to_seq: Option<Seq>,
    /// What came from this source.
    pub source: Option<String>,
}

/// An operation that takes nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Nothing {}

/// What is read from an object alone; serde would also take an array of a struct's fields.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(fields))
            }
        }

        deserializer.deserialize_map(Fields(PhantomData)).map(Self)
    }
}

pub(crate) fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Object::deserialize(deserializer).map(|object| object.0)
}

pub(crate) fn object_or_null<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::<Object<T>>::deserialize(deserializer)?.map(|object| object.0))
}
