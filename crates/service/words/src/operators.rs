//! Requests and answers for operators: readers, journal compaction, the projection, the examination, retention, bundles.

use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    clock::Timestamp,
    ids::{Seq, SessionId},
    options::{JournalOptions, RetentionOptions},
};

/// Request of `create_reader` and `delete_reader`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedReader {
    /// Its name: 1 to 64 small letters, digits, `.`, `_` or `-`.
    pub reader: String,
}

/// Request of `fetch_reader`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FetchReader {
    /// The reader.
    pub reader: String,
    /// Most records to return.
    #[serde(default)]
    pub limit: Option<usize>,
    /// Milliseconds to wait for the first record. The answer may come earlier and be empty; ask again.
    #[serde(default)]
    pub wait_ms: u64,
}

/// Request of `acknowledge_reader`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AcknowledgeReader {
    /// The reader.
    pub reader: String,
    /// The session.
    pub session_id: SessionId,
    /// Last record that it has handled.
    pub seq: Seq,
}

/// Request of `wait_reader`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WaitReader {
    /// The reader.
    pub reader: String,
    /// The session.
    pub session_id: SessionId,
    /// Record that it must have handled.
    pub seq: Seq,
    /// Milliseconds to wait at most. The answer may come earlier, with the reader's checkpoint at that time; ask again.
    #[serde(default)]
    pub wait_ms: u64,
}

/// Records that a journal compaction keeps although nothing depends on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionPolicy {
    /// Milliseconds that every record is kept at least.
    pub min_record_age_ms: u64,
    /// Newest replies outside the live context that stay; without a number all history stays.
    pub keep_last_replies: Option<usize>,
    /// Milliseconds to keep a request that has its result.
    pub keep_answered_request_ttl_ms: u64,
}

/// Request of `compact_journal`. Of the policy, fields left out come from the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CompactJournal {
    /// The session.
    pub session_id: SessionId,
    /// Only reports what would be dropped.
    #[serde(default)]
    pub dry_run: bool,
    /// Also drops history outside the live context and the newest replies.
    #[serde(default)]
    pub drop_history: bool,
    /// Milliseconds that every record is kept at least.
    #[serde(default)]
    pub min_record_age_ms: Option<u64>,
    /// Newest replies outside the live context to keep. Without `drop_history` all stay, whatever this says.
    #[serde(default)]
    pub keep_last_replies: Option<usize>,
    /// Milliseconds to keep a request that has its result.
    #[serde(default)]
    pub keep_answered_request_ttl_ms: Option<u64>,
}

impl CompactJournal {
    /// Asks for a compaction by the configuration's policy, which drops no history.
    #[must_use]
    pub const fn new(session_id: SessionId) -> Self {
        Self {
            session_id,
            dry_run: false,
            drop_history: false,
            min_record_age_ms: None,
            keep_last_replies: None,
            keep_answered_request_ttl_ms: None,
        }
    }

    /// Asks for a compaction by a policy. It drops history if the policy has a number of replies to keep.
    #[must_use]
    pub const fn by(session_id: SessionId, policy: CompactionPolicy) -> Self {
        Self {
            drop_history: policy.keep_last_replies.is_some(),
            min_record_age_ms: Some(policy.min_record_age_ms),
            keep_last_replies: policy.keep_last_replies,
            keep_answered_request_ttl_ms: Some(policy.keep_answered_request_ttl_ms),
            ..Self::new(session_id)
        }
    }

    /// Returns its policy: the configuration's, but for what the request says.
    #[must_use]
    pub fn policy(&self, options: &JournalOptions) -> CompactionPolicy {
        let keep_last_replies = self.keep_last_replies.unwrap_or(options.keep_last_replies);
        let ttl_ms = self.keep_answered_request_ttl_ms;
        CompactionPolicy {
            min_record_age_ms: self.min_record_age_ms.unwrap_or(options.min_record_age_ms),
            keep_last_replies: self.drop_history.then_some(keep_last_replies),
            keep_answered_request_ttl_ms: ttl_ms.unwrap_or(options.keep_answered_request_ttl_ms),
        }
    }
}

/// Request of `retain`. Fields left out come from the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Retain {
    /// Only lists the sessions that would be deleted.
    pub dry_run: bool,
    /// Days without a change after which a session is deleted; 0 for no limit.
    pub max_age_days: Option<u64>,
    /// Bytes that all sessions may take; the oldest are deleted first; 0 for no limit.
    pub max_bytes: Option<u64>,
    /// Sessions to keep; the oldest are deleted first; 0 for no limit.
    pub max_sessions: Option<u64>,
}

impl Retain {
    /// Returns its limits: the configuration's, but for those that the request sets.
    #[must_use]
    pub fn limits(&self, options: &RetentionOptions) -> RetentionOptions {
        RetentionOptions {
            max_age_days: self.max_age_days.unwrap_or(options.max_age_days),
            max_bytes: self.max_bytes.unwrap_or(options.max_bytes),
            max_sessions: self.max_sessions.unwrap_or(options.max_sessions),
        }
    }
}

/// Request of `export_session`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportSession {
    /// The session.
    pub session_id: SessionId,
    /// Replaces texts that look like a key or a secret. Such a bundle is for reading elsewhere.
    #[serde(default)]
    pub redact: bool,
    /// True to leave damaged events out. The bundle then says which are missing.
    #[serde(default)]
    pub skip_damage: bool,
    /// Cursor from the previous page.
    #[serde(default)]
    pub cursor: Option<String>,
}

impl ExportSession {
    /// Asks for the first page of a session's bundle.
    #[must_use]
    pub const fn new(session_id: SessionId) -> Self {
        Self { session_id, redact: false, skip_damage: false, cursor: None }
    }
}

/// Request of `import_bundle`: one piece of the bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportBundle {
    /// Upload that the piece belongs to, from the answer to the first piece.
    #[serde(default)]
    pub upload: Option<String>,
    /// Bytes sent before this piece.
    #[serde(default)]
    pub offset: u64,
    /// The piece, in base64.
    pub data: String,
    /// True for the last piece, which starts the import.
    #[serde(default)]
    pub is_last: bool,
    /// Gives each session a new id. Otherwise a session keeps its own, which must be free.
    #[serde(default)]
    pub new_ids: bool,
    /// Keeps the label of `memory.scope_label`: the sessions join those here that have the same value. Otherwise each
    /// session that has the label gets a value of its own.
    #[serde(default)]
    pub keep_scope: bool,
}

/// Reader in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReaderView {
    /// Its name.
    pub reader: String,
    /// Time of registration.
    pub created_at: Timestamp,
    /// True if it belongs to meerkat itself.
    pub built_in: bool,
    /// Sessions with records that it has not handled.
    pub sessions_behind: u64,
    /// Records that it has not handled, including pruned ones.
    pub records_behind: u64,
}

/// Record as a reader gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaderRecord {
    /// The session whose journal is read.
    pub session_id: SessionId,
    /// Its seq there.
    pub seq: Seq,
    /// Its line.
    pub line: Bytes,
}

impl ReaderRecord {
    /// Returns the key by which a reader recognises a record that it has handled before.
    #[must_use]
    pub fn idempotency_key(&self) -> String {
        format!("{}:{}", self.session_id, self.seq)
    }
}

/// Answer of `fetch_reader`: records with their idempotency keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordPage {
    /// The records, each session's in order.
    pub items: Vec<ReaderRecord>,
}

/// Position of a reader in a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Checkpoint {
    /// The reader.
    pub reader: String,
    /// The session.
    pub session_id: SessionId,
    /// Last record that it has handled.
    pub seq: Seq,
}

/// Reason that nothing was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CompactionSkipped {
    /// No reader is registered; or one may be lost, until `meerkat doctor --repair` has listed those that remain.
    NoReader,
    /// The store cannot prune.
    NoPruner,
}

/// Answer of `compact_journal`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JournalCompactionReport {
    /// Records examined.
    pub scanned: u64,
    /// Records that were dropped, or would be.
    pub dropped: u64,
    /// Records that remain.
    pub kept: u64,
    /// Last seq that every reader has handled.
    pub safe_up_to: Seq,
    /// Reason that nothing was dropped.
    pub skipped: Option<CompactionSkipped>,
}

/// Answer of `rebuild_projection`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProjectionRebuilt {
    /// Projected sessions.
    pub sessions: u64,
    /// Their events.
    pub events: u64,
}

/// Subject of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// Configuration.
    Configuration,
    /// Modes of files and folders.
    Permissions,
    /// Room on the disk.
    DiskSpace,
    /// Format and marks of the store.
    Store,
    /// Session's journal.
    Journal,
    /// Call without a result.
    ToolCall,
    /// Bodies too large for an event.
    Blob,
    /// Copies in redb.
    Index,
    /// Memory's log of forgotten messages, and of messages without a journal.
    Memory,
    /// Readers of the journals.
    Readers,
    /// Files made from the journals.
    Projection,
    /// Database in place of a data directory.
    Database,
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Durable data is lost or cannot be used.
    Error,
    /// Nothing is lost.
    Warning,
}

/// Fault in a data directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Its subject.
    pub check: Check,
    /// Its severity.
    pub severity: Severity,
    /// Its session, if it concerns one.
    pub session_id: Option<SessionId>,
    /// Description.
    pub what: String,
    /// Advice.
    pub remedy: String,
    /// True if it was repaired just now.
    pub mended: bool,
}

/// Answer of `diagnose`: the report of an examination.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnosis {
    /// Process that owns the directory; what it holds open was not examined.
    pub owner_pid: Option<u32>,
    /// Number of examined sessions.
    pub sessions: u64,
    /// Number of records read.
    pub records: u64,
    /// Faults, worst first.
    pub findings: Vec<Finding>,
}

/// Reason that a session is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RetentionReason {
    /// It has not changed for too long.
    Age,
    /// All sessions together take too much room.
    Bytes,
    /// There are too many.
    Count,
}

/// Session that retention deletes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RetentionItem {
    /// The session.
    pub session_id: SessionId,
    /// Its title; if none is set, the first line of its first prompt.
    pub title: Option<String>,
    /// Time of the last change.
    pub updated_at: Timestamp,
    /// Bytes that it takes.
    pub bytes: u64,
    /// Reason that it is deleted.
    pub reason: RetentionReason,
}

/// Answer of `retain`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Retained {
    /// Sessions that were deleted, or would be.
    pub items: Vec<RetentionItem>,
    /// Number of deleted sessions; 0 for a dry run.
    pub deleted: u64,
    /// Sessions that could not be deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<RetentionFailure>,
}

/// Session that retention could not delete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RetentionFailure {
    /// The session.
    pub session_id: SessionId,
    /// Error code.
    pub code: String,
    /// Error message.
    pub message: String,
}

/// Answer of `export_session`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BundlePage {
    /// Session of the page's section: the one that was asked for, or a sub-agent below it.
    pub session_id: SessionId,
    /// The next bytes of the bundle, in base64.
    pub data: String,
    /// Cursor of the next page; `null` at the end.
    pub next_cursor: Option<String>,
    /// Damaged ranges that the section leaves out: the first and the last event of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<(Seq, Seq)>,
}

/// Imported session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImportedSession {
    /// Its id here.
    pub session_id: SessionId,
    /// Its id in the bundle.
    pub imported_from: SessionId,
    /// Its last event.
    pub last_seq: Seq,
    /// Ranges that were damaged when it was exported, and are missing: the first and the last event of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<(Seq, Seq)>,
}

/// Answer of `import_bundle`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Imported {
    /// The upload, for the next piece; `null` once it is done.
    pub upload: Option<String>,
    /// Bytes received so far.
    pub next_offset: u64,
    /// The imported sessions, after the last piece.
    pub sessions: Vec<ImportedSession>,
    /// Sessions that were here already, with all that the bundle has of them; left out if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<ImportedSession>,
}

/// State of a server of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolServerState {
    /// Its tools are not known yet.
    Configured,
    /// Its tools are known; it does not run.
    Listed,
    /// It runs.
    Running,
    /// It answers nobody who is not logged in.
    LoginNeeded,
    /// Its last start failed.
    Failed,
}

/// Configured server of tools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ToolServerView {
    /// Its name.
    pub name: String,
    /// How it is reached: `command` or `url`.
    pub kind: String,
    /// Its state.
    pub state: ToolServerState,
    /// Tools that it has, without those that the configuration leaves out.
    pub tools: u64,
    /// Tokens that its offered tools cost in each request, roughly.
    pub tokens: u64,
    /// Failure of its last start, or mistake in its configuration.
    pub error: Option<String>,
}
