//! [`SessionError`]: every failure of an operation.
//!
//! Branch on [`SessionError::code`]; `Display` is for people and never prints a source.

use std::str::FromStr;

use meerkat_errors::{ErrorBody, ErrorCode};
use uuid::Uuid;

use crate::{
    approval::Decision,
    ids::{Seq, SessionId, TurnNumber},
    model::ModelError,
    store::{Holder, StoreError},
};

/// Why a service lacks a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// The build lacks it.
    NotBuilt,
    /// The configuration switches it off.
    SwitchedOff,
    /// A Rust program has set none.
    NotSet,
}

impl Absence {
    /// The reason in an error's details, unless it is the build.
    const fn reason(self) -> Option<&'static str> {
        match self {
            Self::NotBuilt => None,
            Self::SwitchedOff => Some("configured"),
            Self::NotSet => Some("not_set"),
        }
    }
}

/// Declares the errors. A row has an error's message, its fields, its code, and the details of its body; those behind
/// `maybe` are left out if there are none.
macro_rules! session_errors {
    ($(
        $( #[$meta:meta] )+
        $error:ident $( ( $name:ident: $inner:ty ) )? $( { $( $( #[$doc:meta] )+ $field:ident: $type:ty, )+ } )?
        = $code:ident [$( $key:literal = $value:expr ),*] $( maybe [$( $maybe:literal = $optional:expr ),*] )?;
    )+) => {
        /// Reason that an operation was refused or failed.
        #[derive(Clone, Debug, thiserror::Error)]
        #[non_exhaustive]
        pub enum SessionError {
            $( $( #[$meta] )+ $error $( ( $inner ) )? $( { $( $( #[$doc] )+ $field: $type, )+ } )?, )+
            /// The operation failed; the body has the reason.
            #[error("{}", .0.message)]
            Failed(Box<ErrorBody>),
            /// The model's vendor failed.
            #[error("{0}")]
            Model(ModelError),
            /// The process that owns the data directory answered with this body.
            #[error("{}", .0.message)]
            Remote(Box<ErrorBody>),
        }

        impl SessionError {
            /// Returns the stable code.
            #[must_use]
            pub const fn code(&self) -> ErrorCode {
                match self {
                    $( Self::$error { .. } => ErrorCode::$code, )+
                    Self::Failed(body) | Self::Remote(body) => body.code,
                    Self::Model(error) => error.code,
                }
            }

            /// Returns the body that every surface sends.
            #[must_use]
            #[expect(unused_variables, reason = "not every field is a detail")]
            pub fn body(&self) -> ErrorBody {
                let body = || ErrorBody::with_message(self.code(), self.to_string());
                match self {
                    $( Self::$error $( ( $name ) )? $( { $( $field, )+ } )? => {
                        let body = body()$( .detail($key, $value) )*;
                        $( $( let body = $optional.into_iter().fold(body, |body, it| body.detail($maybe, it)); )* )?
                        body
                    } )+
                    Self::Failed(body) | Self::Remote(body) => ErrorBody::clone(body),
                    Self::Model(error) => error.body(),
                }
            }
        }
    };
}

session_errors! {
    /// The operation needs `session-store`, which is not built in or is switched off.
    #[error("{}", match .absence {
        Absence::NotBuilt => ErrorCode::SessionPersistenceDisabled.message(),
        Absence::SwitchedOff => "Session persistence is disabled (store.enabled = false).",
        Absence::NotSet => "Session persistence is disabled (AgentBuildConfig has no store; set one with `.store(…)`).",
    })]
    PersistenceDisabled {
        /// Why the service has no store.
        absence: Absence,
    } = SessionPersistenceDisabled [] maybe ["reason" = absence.reason()];
    /// The operation needs `session-compaction`, which is not built in.
    #[error("{}", ErrorCode::SessionCompactionDisabled.message())]
    CompactionDisabled = SessionCompactionDisabled [];
    /// The operation needs `memory-store`.
    #[error("{}", match .absence {
        Absence::NotBuilt => ErrorCode::MemoryStoreDisabled.message(),
        Absence::SwitchedOff => "Semantic memory is disabled (memory.enabled = false).",
        Absence::NotSet => "Semantic memory is disabled (AgentBuildConfig has no memory; set one with `.memory(…)`).",
    })]
    MemoryDisabled {
        /// Why the service has no memory.
        absence: Absence,
    } = MemoryStoreDisabled [] maybe ["reason" = absence.reason()];
    /// The memory cannot be searched, or not now.
    #[error("The memory is not available: {}.", .why.trim_end_matches('.'))]
    MemoryUnavailable {
        /// Cause, and advice.
        why: String,
    } = MemoryIndexUnavailable [];
    /// No such session.
    #[error("No session {0} is known here.")]
    NotFound(id: SessionId) = SessionNotFound ["session_id" = id.to_string()];
    /// The session runs something that excludes the request.
    #[error("The session is running turn {turn}; wait for it, interrupt it, or use the policy queue or interrupt.")]
    Busy {
        /// The running turn.
        turn: TurnNumber,
    } = SessionBusy ["turn" = *turn];
    /// A sub-agent of the session works, which excludes the request.
    #[error("Its sub-agent {session_id} works; wait for it, or interrupt it.")]
    ChildWorks {
        /// The sub-agent's session.
        session_id: SessionId,
    } = SessionBusy ["session_id" = session_id.to_string()];
    /// The session's running turn waits for a person, which excludes the request.
    #[error(
        "Turn {turn} waits for a decision about {name} ({call_id}); approve or deny that call, or interrupt the turn."
    )]
    Undecided {
        /// The running turn.
        turn: TurnNumber,
        /// The tool, or the tool whose server asks.
        name: String,
        /// The call, or the server's question.
        call_id: String,
    } = SessionBusy ["turn" = *turn, "call_id" = call_id.clone()];
    /// The session's running turn waits for its caller, which excludes the request.
    #[error(
        "Turn {turn} waits for the answer to call {call_id} of tool {name}; answer that call, or interrupt the turn."
    )]
    Unanswered {
        /// The running turn.
        turn: TurnNumber,
        /// The tool.
        name: String,
        /// The call.
        call_id: String,
    } = SessionBusy ["turn" = *turn, "unanswered" = call_id.clone()];
    /// The session compacts its context, which excludes the request.
    #[error("The session is compacting its context; wait for it, interrupt it, or use the policy queue or interrupt.")]
    Compacting = SessionBusy [];
    /// Only the newest compaction can be undone.
    #[error("There is a newer compaction; undo {first} first.")]
    NotNewest {
        /// The newest compaction, by the seq of its completion.
        first: Seq,
    } = SessionBusy ["first" = *first];
    /// There is nothing to interrupt.
    #[error("The session is not running {}.", .turn.map_or_else(|| "a turn".to_owned(), |turn| format!("turn {turn}")))]
    NotRunning {
        /// The turn that the interrupt named.
        turn: Option<TurnNumber>,
    } = SessionNotRunning [] maybe ["turn" = *turn];
    /// The service has reached a limit.
    #[error("The service is at its limit of {limit} {what}; {}.", limit_advice(.what))]
    Limit {
        /// Limited resource: `sessions`, `bytes`, `keys`, `readers`, `uploads` or `runs of the context`.
        what: &'static str,
        /// The limit.
        limit: u64,
    } = SessionLimit ["what" = *what, "limit" = *limit];
    /// The session can be read up to its damage, but no longer written.
    #[error("Session {session_id} is damaged{}; it can be read, but not changed.", after(*.last_good_seq))]
    Corrupted {
        /// The session.
        session_id: SessionId,
        /// The last event before the damage, if that is known.
        last_good_seq: Option<Seq>,
    } = SessionCorrupted ["session_id" = session_id.to_string()] maybe ["last_good_seq" = *last_good_seq];
    /// Another owner took the session over during the request; nothing of the request was stored.
    #[error("Another server took over session {0} during this request. Nothing was changed; retry.")]
    TakenOver(id: SessionId) = SessionBusy ["session_id" = id.to_string()];
    /// Another node has the session.
    #[error(
        "Session {session_id} is in use by the node {:?}; ask that node, or ask again when it is done.", .holder.node
    )]
    HeldBy {
        /// The session.
        session_id: SessionId,
        /// The node, and the end of its lease.
        holder: Holder,
    } = SessionBusy ["session_id" = session_id.to_string(), "node" = holder.node.clone()];
    /// The session is archived.
    #[error("Session {0} is archived. Unarchive it first.")]
    Archived(id: SessionId) = SessionArchived ["session_id" = id.to_string()];
    /// Too many answers wait for slow clients.
    #[error("The server is busy sending answers to slow clients. Retry later.")]
    TooManyAnswers = TooManyConnections ["what" = "answers"];
    /// The session holds records that only a newer version understands.
    #[error(
        "Session {0} was written by a newer version of meerkat; it can be read, but only that version can change it."
    )]
    FormatNewer(id: SessionId) = SessionFormatNewer ["session_id" = id.to_string()];
    /// The turn was interrupted, or left the queue unstarted.
    #[error("Turn {turn} was interrupted.")]
    Interrupted {
        /// The turn.
        turn: TurnNumber,
    } = TurnInterrupted ["turn" = *turn];
    /// A queue is full.
    #[error("The session already has {limit} {what}, which is its limit.")]
    QueueFull {
        /// Full queue or set: `turns`, `steered texts`, `pins`, `reminders`, `interrupts` or `allowed rules`.
        what: &'static str,
        /// Its capacity.
        limit: usize,
    } = QueueFull ["what" = *what, "limit" = *limit];
    /// The session would have too many uploads that no prompt has used.
    #[error("The session has {held} {what}; with this upload it would have more than {limit}, which is its limit.")]
    UploadsFull {
        /// `unused uploads` or `bytes of unused uploads`.
        what: &'static str,
        /// Those of its other uploads.
        held: u64,
        /// Their limit.
        limit: u64,
    } = QueueFull ["what" = *what, "held" = *held, "limit" = *limit];
    /// A key was used again for a different request.
    #[error("The same {what} was used with another request; use a new one.")]
    IdempotencyConflict {
        /// `idempotency_key`.
        what: &'static str,
    } = IdempotencyConflict ["what" = *what];
    /// The call has already got the other decision.
    #[error("The call {call_id:?} was already {}; a decision stays as it is.", match .decision {
        Decision::Approve => "approved",
        Decision::Deny => "denied",
    })]
    AlreadyDecided {
        /// The call.
        call_id: String,
        /// Its decision.
        decision: Decision,
    } = IdempotencyConflict ["what" = "approval"];
    /// The call has already got another answer.
    #[error("The call {call_id:?} was already answered otherwise; an answer stays as it is.")]
    AlreadyAnswered {
        /// The call.
        call_id: String,
    } = IdempotencyConflict ["what" = "answer"];
    /// A resume without a prompt found no interrupted turn.
    #[error(
        "The session's last turn was not interrupted, so there is nothing to resume; give a prompt to start a new turn."
    )]
    NothingToResume = ItemNotFound ["what" = "turn"];
    /// The request is not valid.
    #[error("{field}: {message}")]
    InvalidRequest {
        /// The field at fault, or the part of the request.
        field: String,
        /// Mistake, and allowed values.
        message: String,
    } = InvalidRequest ["field" = field.clone()];
    /// No such reader.
    #[error("There is no reader {0:?}.")]
    ReaderNotFound(name: String) = ReaderNotFound ["reader" = name.clone()];
    /// No such operation.
    #[error("There is no operation {0:?}.")]
    UnknownOperation(name: String) = UnknownOperation ["operation" = name.clone()];
    /// The session has no such item.
    #[error("The session has no such {0}.")]
    ItemNotFound(what: &'static str) = ItemNotFound ["what" = *what];
    /// The configuration is not valid.
    #[error("{key}: {message}")]
    ConfigInvalid {
        /// The key or file at fault.
        key: String,
        /// Mistake, and allowed values.
        message: String,
    } = ConfigInvalid ["key" = key.clone()];
    /// A payload is over its size limit.
    #[error("The {what} has more than {limit} {}, which is the limit.", unit(.what))]
    PayloadTooLarge {
        /// Payload that is too large.
        what: &'static str,
        /// Its size in bytes.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
    } = PayloadTooLarge ["what" = *what, "bytes" = *bytes, "limit" = *limit];
    /// The cursor lies beyond the last event.
    #[error("The cursor lies beyond the last event, {last_seq}; use a seq from {oldest_seq} to {last_seq}.")]
    CursorOutOfRange {
        /// The oldest seq that can still be read.
        oldest_seq: Seq,
        /// The last seq.
        last_seq: Seq,
    } = CursorOutOfRange ["oldest_seq" = *oldest_seq, "last_seq" = *last_seq];
    /// The requested events are no longer kept.
    #[error("That part of the history was pruned.")]
    HistoryPruned = HistoryPruned [];
    /// A write failed; it may or may not have happened.
    #[error(
        "The store failed, and whether the change happened is unknown: see whether it did, or ask again with the same \
         idempotency key, if you gave one."
    )]
    StoreFailed = StoreFailed [];
    /// Another process owns the data directory.
    #[error("{}", store_locked(*.pid))]
    StoreLocked {
        /// Process id of the owner, if known.
        pid: Option<u32>,
    } = StoreLocked ["pid" = *pid];
    /// The disk is full.
    #[error("The disk is full. Free some space and retry. Reading still works.")]
    StoreFull = StoreFull [];
    /// The data directory cannot be written, or the database.
    #[error("{path} cannot be written: {}.{}", .why.trim_end_matches('.'), writable(.path))]
    StoreNotWritable {
        /// The directory, a path in it, or "The store".
        path: String,
        /// The system's message.
        why: String,
    } = StoreNotWritable ["path" = path.clone(), "why" = why.clone()];
    /// A bundle is damaged, or cannot be imported here.
    #[error("The bundle is not valid: {}.", .why.trim_end_matches('.'))]
    BundleInvalid {
        /// Reason: `damaged`, `exists`, `open_turn`, `future` or `limit`.
        reason: &'static str,
        /// Details, and advice.
        why: String,
    } = BundleInvalid ["reason" = *reason];
    /// The data directory is in another format.
    #[error(
        "The data directory is in the format {found:?}, which this version does not know; use the version that wrote it, or name another data directory."
    )]
    StoreFormatUnsupported {
        /// Content of its file `format`.
        found: String,
    } = StoreFormatUnsupported ["found" = found.clone()];
    /// The service is shutting down.
    #[error("The service is shutting down.")]
    ShuttingDown = ShuttingDown [];
    /// The model is unknown or lacks its key.
    #[error("{}", model_not_configured(.model, *.variable))]
    ModelNotConfigured {
        /// The model that was named.
        model: String,
        /// The environment variable that its key comes from.
        variable: Option<&'static str>,
    } = ModelNotConfigured ["model" = model.clone(), "variable" = *variable];
    /// There is no tool with this name.
    #[error("There is no tool {0:?}; `tools` names the tools that the session may use.")]
    ToolNotFound(name: String) = ToolNotFound ["tool" = name.clone()];
    /// An internal fault.
    #[error("An internal error occurred: {0}")]
    Internal(why: String) = Internal [];
}

fn model_not_configured(model: &str, variable: Option<&str>) -> String {
    match variable {
        Some(variable) => format!("The model {model:?} needs a key: set {variable}."),
        None if model.is_empty() => {
            "No model is named, and none is the default: name one in the request, or as model.name in \
             the configuration; `meerkat models` lists those there are."
                .to_owned()
        }
        None => match model.strip_suffix('/') {
            Some(server) => format!(
                "No model of the server {server:?} is named: name it as \"{server}/<model>\" in the request or as \
                 model.name, or as model.compatible.{server}.model."
            ),
            None => format!(
                "The model {model:?} is not known: a name begins with claude-, gpt- or gemini-, or with a source, such as \
                 ollama/; `meerkat models` lists the sources."
            ),
        },
    }
}

fn limit_advice(what: &str) -> &'static str {
    match what {
        "sessions" | "bytes" => "delete some, wait until idle ones are dropped, or raise the limit",
        "keys" => "wait until the oldest are a day old, or create without a key",
        "readers" => "delete one that is no longer used",
        "uploads" => {
            "finish one, or wait until one that is abandoned or too slow is dropped, after ten minutes at most"
        }
        "runs of the context" => "compact the session's context first",
        _ => "ask again later",
    }
}

/// Unit of a payload's size.
fn unit(what: &str) -> &'static str {
    if what == "list of a bundle's files" { "files" } else { "bytes" }
}

fn store_locked(pid: Option<u32>) -> String {
    let owner = pid.map_or_else(|| "Another process".to_owned(), |pid| format!("Process {pid}"));
    format!("{owner} owns the data directory; use that process, end it, or name another data directory.")
}

impl SessionError {
    /// Makes an `INVALID_REQUEST` for one field.
    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::InvalidRequest { field: field.into(), message: message.into() }
    }
}

impl From<ModelError> for SessionError {
    fn from(error: ModelError) -> Self {
        Self::Model(error)
    }
}

impl From<StoreError> for SessionError {
    /// Converts the failure for callers. An actor that loses its lease reports that itself, and is asked again.
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NotFound(id) => Self::NotFound(id),
            StoreError::Full => Self::StoreFull,
            StoreError::Corrupted { session_id, last_good_seq, .. } => {
                Self::Corrupted { session_id, last_good_seq: Some(last_good_seq) }
            }
            StoreError::FormatNewer(id) => Self::FormatNewer(id),
            StoreError::ReadOnly(why) => Self::StoreNotWritable { path: THE_STORE.to_owned(), why },
            StoreError::HeldBy { session_id, holder } => Self::HeldBy { session_id, holder },
            StoreError::UploadsFull { what, held, limit } => Self::UploadsFull { what, held, limit },
            StoreError::Fenced | StoreError::OutOfOrder | StoreError::Failed(_) => Self::StoreFailed,
        }
    }
}

/// Stands for the directory or the database that sessions are in.
const THE_STORE: &str = "The store";

/// Says where damage begins.
fn after(last_good_seq: Option<Seq>) -> String {
    last_good_seq.map_or_else(String::new, |seq| format!(" after event {seq}"))
}

/// Says what to do about a path that cannot be written. About the store, the reason itself says it.
fn writable(path: &str) -> &'static str {
    if path == THE_STORE { "" } else { " Make it writable for this user, or name another data directory." }
}

impl FromStr for SessionId {
    type Err = SessionError;

    /// Reads the hyphenated form only, so that each session has one spelling.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refusal = || {
            SessionError::invalid("session_id", "a session id is a UUID such as 01900000-0000-7000-8000-000000000001")
        };
        let uuid = Uuid::try_parse(text).map_err(|_| refusal())?;
        let id = Self::from_uuid(uuid);
        if text.len() == 36 && text.eq_ignore_ascii_case(&id.to_string()) { Ok(id) } else { Err(refusal()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_says_what_to_do_about_it() {
        for (what, advice) in [
            ("sessions", "delete some"),
            ("bytes", "delete some"),
            ("keys", "create without a key"),
            ("readers", "delete one"),
            ("uploads", "finish one"),
            ("runs of the context", "compact the session's context"),
        ] {
            let message = SessionError::Limit { what, limit: 7 }.to_string();
            assert!(message.contains(what) && message.contains('7') && message.contains(advice), "{message}");
        }
    }

    #[test]
    fn a_size_has_its_unit() {
        for (what, size) in [("list of a bundle's files", "7 files"), ("prompt", "7 bytes")] {
            let message = SessionError::PayloadTooLarge { what, bytes: 8, limit: 7 }.to_string();
            assert!(message.contains(what) && message.contains(size), "{message}");
        }
    }
}
