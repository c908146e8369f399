//! Requests of the operations. Unknown fields are refused, so that a misspelt one is noticed.

use std::collections::BTreeMap;

use meerkat_errors::ErrorCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::{
    approval::{Decision, Scope},
    calls::{AnswerCall, CallContent, CallOutcome, ClientTool},
    prompt::{Data, Prompt, PromptBlock},
};
use crate::{
    clock::Timestamp,
    compaction::CompactionConfig,
    given::GivenMessage,
    ids::{Seq, SessionId, TurnNumber},
    message::RawJson,
    object::{labels, labels_or_null, object, object_or_null},
    options::{Budgets, ModelOptions, Policy},
    output::OutputSpec,
    reminder::SystemReminderType,
    tool::TurnAccess,
};

/// Request of `create_session`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CreateSession {
    /// Title; none if `null` or empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Model; the configured one if `null`.
    pub model: Option<String>,
    /// System prompt.
    pub system_prompt: Option<String>,
    /// Labels.
    #[serde(deserialize_with = "labels")]
    pub labels: BTreeMap<String, String>,
    /// Tools that it may use; all if `null`.
    pub tools: Option<Vec<String>>,
    /// Tools that the caller runs; none if `null`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_tools: Option<Vec<ClientTool>>,
    /// Name of a folder in `tools.folders`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// Compaction settings; the configured ones if `null`.
    #[serde(deserialize_with = "object_or_null")]
    pub compaction: Option<CompactionConfig>,
    /// Budgets for turns that set none.
    #[serde(deserialize_with = "object")]
    pub budgets: Budgets,
    /// How its model is asked in turns that do not say.
    #[serde(deserialize_with = "object", skip_serializing_if = "ModelOptions::is_default")]
    pub options: ModelOptions,
    /// Its part in the project's memory.
    #[serde(deserialize_with = "object", skip_serializing_if = "SessionMemory::is_default")]
    pub memory: SessionMemory,
    /// What was said before its first turn, elsewhere. Nothing in it runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10_000))]
    pub history: Vec<GivenMessage>,
    /// Key that makes a repeated request return the first one's session.
    pub idempotency_key: Option<String>,
}

/// What a session's model finds in memory, and whether memory takes the session in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SessionMemory {
    /// What its model finds.
    #[serde(skip_serializing_if = "MemoryScope::is_project")]
    pub scope: MemoryScope,
    /// If false, memory takes nothing of the session in.
    #[serde(skip_serializing_if = "is_true")]
    pub index: bool,
}

impl Default for SessionMemory {
    fn default() -> Self {
        Self { scope: MemoryScope::Project, index: true }
    }
}

impl SessionMemory {
    /// Returns true if nothing is set.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What a session's model finds in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemoryScope {
    /// What was said in the project's sessions; the label of `memory.scope_label` parts them.
    #[default]
    Project,
    /// What was said in this session.
    Session,
    /// Nothing: it has no tool to search with.
    None,
}

impl MemoryScope {
    const fn is_project(&self) -> bool {
        matches!(self, Self::Project)
    }
}

/// Declares the requests that begin a turn. They share these terms, so a new one is written once.
///
/// A term has its comment, how it is read in the first brackets, and in the second ones when it is left out.
macro_rules! turn_requests {
    ($( $( #[doc = $doc:literal] )+ $term:ident: $type:ty [ $( $read:tt )* ] $( [ $is_left_out:literal ] )?; )+) => {
        /// Request of `start_turn`.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct StartTurn {
            /// The session.
            pub session_id: SessionId,
            /// The user's prompt.
            pub prompt: Prompt,
            $(
                $( #[doc = $doc] )+
                #[serde(default, $( $read )*)]
                $( #[serde(skip_serializing_if = $is_left_out)] )?
                pub $term: $type,
            )+
            /// Folders in which its commands look for programs, as in `PATH`; those of the process if `None`. Only a
            /// command on the process's machine may send it, in its greeting: no request in JSON has it.
            #[serde(skip)]
            pub search_path: Option<String>,
            /// If true, answer with the result; else at once.
            #[serde(default = "yes")]
            pub wait: bool,
            /// Key that makes a repeated request return the first one's turn.
            #[serde(default)]
            pub idempotency_key: Option<String>,
        }

        /// Request of `resume`, without its session. A continued turn keeps the model, the budgets and the compaction
        /// settings that are left out.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        pub struct ResumeTurn {
            /// The user's prompt; `null` continues the interrupted turn.
            pub prompt: Option<Prompt>,
            $(
                $( #[doc = $doc] )+
                $( #[serde(skip_serializing_if = $is_left_out)] )?
                pub $term: $type,
            )+
            /// As in [`StartTurn`].
            #[serde(skip)]
            pub search_path: Option<String>,
            /// If true, answer with the result; else at once.
            pub wait: bool,
            /// Key that makes a repeated request return the first one's turn.
            pub idempotency_key: Option<String>,
        }

        impl Default for ResumeTurn {
            fn default() -> Self {
                let (prompt, search_path, idempotency_key) = (None, None, None);
                Self { prompt, $( $term: Default::default(), )+ search_path, wait: true, idempotency_key }
            }
        }

        impl ResumeTurn {
            /// Makes the turn's request; a continuation has an empty prompt.
            #[must_use]
            pub fn on(self, session_id: SessionId) -> StartTurn {
                let Self { prompt, $( $term, )+ search_path, wait, idempotency_key } = self;
                let prompt = prompt.unwrap_or_default();
                StartTurn { session_id, prompt, $( $term, )+ search_path, wait, idempotency_key }
            }

            /// Makes the parameters of this request on a session, with another `wait`.
            #[must_use]
            pub fn params(&self, session_id: SessionId, wait: bool) -> impl Serialize + use<> {
                #[derive(Serialize)]
                struct Params {
                    session_id: SessionId,
                    prompt: Option<Prompt>,
                    $(
                        $( #[serde(skip_serializing_if = $is_left_out)] )?
                        $term: $type,
                    )+
                    wait: bool,
                    idempotency_key: Option<String>,
                }
                let Self { prompt, $( $term, )+ idempotency_key, .. } = self.clone();
                Params { session_id, prompt, $( $term, )+ wait, idempotency_key }
            }
        }

        /// Parameters of `resume`, with the session among them.
        #[expect(missing_docs, reason = "the schema has the comments of `start_turn`, for the same terms")]
        #[derive(Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct ResumeParams {
            pub session_id: SessionId,
            #[serde(default)]
            pub prompt: Option<Prompt>,
            $(
                #[serde(default, $( $read )*)]
                pub $term: $type,
            )+
            #[serde(default)]
            pub wait: Option<bool>,
            #[serde(default)]
            pub idempotency_key: Option<String>,
        }

        impl ResumeParams {
            /// Returns the session and the request.
            #[must_use]
            pub fn request(self) -> (SessionId, ResumeTurn) {
                let Self { session_id, prompt, $( $term, )+ wait, idempotency_key } = self;
                let wait = wait.unwrap_or(true);
                (session_id, ResumeTurn { prompt, $( $term, )+ search_path: None, wait, idempotency_key })
            }
        }
    };
}

turn_requests! {
    /// Model to use instead of the session's.
    model: Option<String> [];
    /// Policy if a turn is already running.
    policy: Policy [];
    /// Its budgets.
    budgets: Budgets [deserialize_with = "object"];
    /// How the model is asked.
    options: ModelOptions [deserialize_with = "object"] ["ModelOptions::is_default"];
    /// JSON that it is to answer with.
    output: Option<OutputSpec> [deserialize_with = "object_or_null"] ["Option::is_none"];
    /// Compaction settings; the session's if `null`.
    compaction: Option<CompactionConfig> [deserialize_with = "object_or_null"];
    /// An approver is present.
    attended: bool [] ["is_false"];
    /// Rules that allow its calls.
    allow: Vec<String> [] ["Vec::is_empty"];
    /// What its calls may do, if that is less than the configuration allows.
    access: Option<TurnAccess> [] ["Option::is_none"];
    /// Tools that the caller runs, in place of the session's for this turn and later ones; the session's if `null`.
    client_tools: Option<Vec<ClientTool>> [] ["Option::is_none"];
}

impl StartTurn {
    /// Makes a request with default settings.
    #[must_use]
    pub fn new(session_id: SessionId, prompt: impl Into<Prompt>) -> Self {
        ResumeTurn { prompt: Some(prompt.into()), ..ResumeTurn::default() }.on(session_id)
    }
}

const fn yes() -> bool {
    true
}

const fn is_false(flag: &bool) -> bool {
    !*flag
}

const fn is_true(flag: &bool) -> bool {
    *flag
}

/// Request of `interrupt`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InterruptTurn {
    /// The session.
    pub session_id: SessionId,
    /// The turn; the running one if `null`.
    #[serde(default)]
    pub turn: Option<TurnNumber>,
}

/// Request of `decide_approval`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DecideApproval {
    /// The session.
    pub session_id: SessionId,
    /// The call.
    pub call_id: String,
    /// The decision.
    pub decision: Decision,
    /// Extent of an approval. A denial is of one call.
    #[serde(default, skip_serializing_if = "Scope::is_once")]
    pub scope: Scope,
    /// Reason, for the model to read.
    #[serde(default)]
    pub reason: Option<String>,
    /// Answer to a server's question, as its form's schema says. Fields that are left out get their defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<serde_json::Map<String, serde_json::Value>>")]
    pub answer: Option<RawJson>,
}

impl DecideApproval {
    /// Makes a decision about one call, without a reason.
    #[must_use]
    pub fn new(session_id: SessionId, call_id: impl Into<String>, decision: Decision) -> Self {
        Self { session_id, call_id: call_id.into(), decision, scope: Scope::Once, reason: None, answer: None }
    }
}

/// Request of `cancel_queued`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelQueued {
    /// The session.
    pub session_id: SessionId,
    /// The turn.
    pub turn: TurnNumber,
}

/// Request of `edit_queued`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EditQueued {
    /// The session.
    pub session_id: SessionId,
    /// The turn.
    pub turn: TurnNumber,
    /// Another prompt; the turn keeps its own if `null`.
    #[serde(default)]
    pub prompt: Option<Prompt>,
    /// Another place in the queue, from 0; a number past the end is the last place. It keeps its own if `null`.
    #[serde(default)]
    pub position: Option<usize>,
}

/// Request of `events`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadEvents {
    /// The session.
    pub session_id: SessionId,
    /// The cursor: events after this seq are read.
    #[serde(default)]
    pub since_seq: Seq,
    /// Most events to return.
    #[serde(default)]
    pub limit: Option<usize>,
    /// Milliseconds to wait for the first event. The answer may come earlier and be empty; ask again with the same
    /// cursor.
    #[serde(default)]
    pub wait_ms: u64,
    /// True to go on behind damage with the next good event.
    #[serde(default)]
    pub skip_damage: bool,
}

impl ReadEvents {
    /// Asks for the events of a session after a seq: a page that comes at once and ends at damage.
    #[must_use]
    pub const fn new(session_id: SessionId, since_seq: Seq) -> Self {
        Self { session_id, since_seq, limit: None, wait_ms: 0, skip_damage: false }
    }
}

/// Request of `remind`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Remind {
    /// The session.
    pub session_id: SessionId,
    /// Subject of the reminder.
    pub kind: SystemReminderType,
    /// Its text.
    pub text: String,
}

/// Request of `clear_reminder`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClearReminder {
    /// The session.
    pub session_id: SessionId,
    /// Subject of the reminder.
    pub kind: SystemReminderType,
}

/// Request of `pin`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PinFact {
    /// The session.
    pub session_id: SessionId,
    /// The fact.
    pub text: String,
}

/// Request of `unpin`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Unpin {
    /// The session.
    pub session_id: SessionId,
    /// Seq of the event that pinned it.
    pub pin: Seq,
}

/// Request of an operation that takes only a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OneSession {
    /// The session.
    pub session_id: SessionId,
}

/// Request of `history`, `steps` and `turns`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadHistory {
    /// The session.
    pub session_id: SessionId,
    /// Cursor from the previous page.
    #[serde(default)]
    pub cursor: Option<String>,
    /// Most items to return.
    #[serde(default)]
    pub limit: Option<usize>,
    /// True to go on behind damage with the next good event.
    #[serde(default)]
    pub skip_damage: bool,
}

impl ReadHistory {
    /// Asks for the first page of a session.
    #[must_use]
    pub const fn new(session_id: SessionId) -> Self {
        Self { session_id, cursor: None, limit: None, skip_damage: false }
    }
}

/// Request of `blob`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadBlob {
    /// The session.
    pub session_id: SessionId,
    /// The blob's hash.
    pub blob: String,
    /// Byte to begin at.
    #[serde(default)]
    pub offset: u64,
    /// Most bytes to return.
    #[serde(default)]
    pub limit: Option<usize>,
}

/// Request of `put_blob`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PutBlob {
    /// The session.
    pub session_id: SessionId,
    /// The bytes in base64.
    pub data: Data,
}

/// Request of `list`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SessionQuery {
    /// Only sessions made after this time.
    pub created_after: Option<Timestamp>,
    /// Only sessions changed after this time.
    pub updated_after: Option<Timestamp>,
    /// Only sessions with all these labels.
    #[serde(deserialize_with = "labels")]
    pub labels: BTreeMap<String, String>,
    /// Only archived ones if `true`, only others if `false`; both if `null`.
    pub archived: Option<bool>,
    /// Sub-agents too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub children: bool,
    /// Cursor from the previous page.
    pub cursor: Option<String>,
    /// Most sessions to return.
    pub limit: Option<usize>,
}

/// Request of `update`. A `null` field stays unchanged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateSession {
    /// The session.
    pub session_id: SessionId,
    /// Title; an empty one removes it.
    #[serde(default)]
    pub title: Option<String>,
    /// Labels, replacing all earlier ones.
    #[serde(default, deserialize_with = "labels_or_null")]
    pub labels: Option<BTreeMap<String, String>>,
}

/// Request of `delete`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteSession {
    /// The session.
    pub session_id: SessionId,
    /// Deletes the session even if it is running.
    #[serde(default)]
    pub force: bool,
}

/// Request of `fork`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkSession {
    /// The session.
    pub session_id: SessionId,
    /// Last turn to copy; the last finished one if `null`.
    #[serde(default)]
    pub turn: Option<TurnNumber>,
}

/// Request of `compact` and `preview_compaction`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CompactSession {
    /// The session.
    pub session_id: SessionId,
    /// Compaction settings; the session's if `null`.
    #[serde(default, deserialize_with = "object_or_null")]
    pub compaction: Option<CompactionConfig>,
}

/// Request of `undo_compaction`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UndoCompaction {
    /// The session.
    pub session_id: SessionId,
    /// Seq of the event that completed the compaction; the latest one if `null`.
    #[serde(default)]
    pub compaction: Option<Seq>,
}

/// Scope of a memory search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SearchScope {
    /// One session.
    Session,
    /// All sessions of the project.
    #[default]
    Project,
}

/// Request of `search_memory`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchMemory {
    /// Text to search for.
    pub query: String,
    /// Scope of the search.
    #[serde(default)]
    pub scope: SearchScope,
    /// The session, if `scope` is `session`.
    #[serde(default)]
    pub session_id: Option<SessionId>,
    /// Only texts of this role.
    #[serde(default)]
    pub role: Option<String>,
    /// Only sessions with all these labels.
    #[serde(default, deserialize_with = "labels")]
    pub labels: BTreeMap<String, String>,
    /// Only from this time on.
    #[serde(default)]
    pub since: Option<Timestamp>,
    /// Only up to this time.
    #[serde(default)]
    pub until: Option<Timestamp>,
    /// Most hits to return.
    #[serde(default)]
    pub limit: Option<usize>,
    /// Only sessions whose label of this name has this value; with `None`, only those without it. It is set for a model's
    /// search: no request in JSON has it.
    #[serde(skip)]
    pub within: Option<(String, Option<String>)>,
}

/// Request of `forget_memory`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ForgetMemory {
    /// Only texts of this session.
    pub session_id: Option<SessionId>,
    /// From this seq on.
    pub from_seq: Option<Seq>,
    /// Up to this seq.
    pub to_seq: Option<Seq>,
    /// Only texts from this source.
    pub source: Option<String>,
    /// If true, the answer comes when the texts have left every file.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub wait: bool,
}

/// Request of `tools`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ListTools {
    /// The session; a new one if `null`.
    pub session_id: Option<SessionId>,
    /// The new session has a workspace.
    pub with_workspace: bool,
}

/// Request of `errors`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ListErrors {
    /// The one code to answer with, and with its page.
    pub code: Option<ErrorCode>,
}

/// Request of an operation that takes nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Nothing {}
