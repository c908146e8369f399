//! What only operators ask: readers, journal compaction, the projection, retention, bundles. Requests and answers.

use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    clock::Timestamp,
    ids::{Seq, SessionId},
};

/// `create_reader` and `delete_reader`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedReader {
    /// Its name: 1 to 64 small letters, digits, `.`, `_` or `-`.
    pub reader: String,
}

/// `fetch_reader`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FetchReader {
    /// The reader.
    pub reader: String,
    /// How many records at most.
    #[serde(default)]
    pub limit: Option<usize>,
    /// Milliseconds to wait for the first one. The answer may come earlier, with nothing in it; ask again.
    #[serde(default)]
    pub wait_ms: u64,
}

/// `acknowledge_reader`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AcknowledgeReader {
    /// The reader.
    pub reader: String,
    /// The session.
    pub session_id: SessionId,
    /// The last record that it is done with.
    pub seq: Seq,
}

/// `wait_reader`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WaitReader {
    /// The reader.
    pub reader: String,
    /// The session.
    pub session_id: SessionId,
    /// The record that it is to be done with.
    pub seq: Seq,
    /// Milliseconds to wait at most. The answer may come earlier, with how far the reader has come by then; ask again.
    #[serde(default)]
    pub wait_ms: u64,
}

/// `compact_journal`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CompactJournal {
    /// The session.
    pub session_id: SessionId,
    /// Only says what would be dropped.
    #[serde(default)]
    pub dry_run: bool,
    /// Also drops what was said, but for the live context and the newest replies.
    #[serde(default)]
    pub drop_history: bool,
}

/// `retain`. What is left out comes from the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Retain {
    /// Only lists what would go.
    pub dry_run: bool,
    /// Days without a change after which a session goes; 0 keeps it.
    pub max_age_days: Option<u64>,
    /// Bytes that all sessions may take; the oldest go first; 0 is without limit.
    pub max_bytes: Option<u64>,
    /// How many sessions stay; the oldest go first; 0 is without limit.
    pub max_sessions: Option<u64>,
}

/// `export_session`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportSession {
    /// The session.
    pub session_id: SessionId,
    /// Replaces what looks like a key or a secret. Such a bundle is for reading elsewhere.
    #[serde(default)]
    pub redact: bool,
    /// Where the page before ended.
    #[serde(default)]
    pub cursor: Option<String>,
}

/// `import_bundle`: one piece of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportBundle {
    /// The upload that the piece belongs to, as the first piece's answer names it.
    #[serde(default)]
    pub upload: Option<String>,
    /// Bytes that went before.
    #[serde(default)]
    pub offset: u64,
    /// The piece, in base64.
    pub data: String,
    /// Whether it is the last one: only then is anything made of it.
    #[serde(default)]
    pub is_last: bool,
    /// Gives each session a new id. Without it a session keeps its own, which must be free.
    #[serde(default)]
    pub new_ids: bool,
}

/// A reader in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReaderView {
    /// Its name.
    pub reader: String,
    /// When it was registered.
    pub created_at: Timestamp,
    /// Whether it belongs to meerkat itself.
    pub built_in: bool,
    /// Sessions with records that it is not done with.
    pub sessions_behind: u64,
    /// Records that it is not done with, pruned ones counted too.
    pub records_behind: u64,
}

/// A record as a reader gets it.
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
    /// What makes handling it twice the same as once.
    #[must_use]
    pub fn idempotency_key(&self) -> String {
        format!("{}:{}", self.session_id, self.seq)
    }
}

/// The answer of `fetch_reader`: each record with its idempotency key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordPage {
    /// The records, each session's in order.
    pub items: Vec<ReaderRecord>,
}

/// How far a reader has come in a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Checkpoint {
    /// The reader.
    pub reader: String,
    /// The session.
    pub session_id: SessionId,
    /// The last record that it is done with.
    pub seq: Seq,
}

/// Why nothing was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CompactionSkipped {
    /// No reader is registered; or one may be lost, until `meerkat doctor --repair` has listed those that remain.
    NoReader,
    /// The store cannot prune.
    NoPruner,
}

/// The answer of `compact_journal`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JournalCompactionReport {
    /// Records that were looked at.
    pub scanned: u64,
    /// Records that were dropped, or would be.
    pub dropped: u64,
    /// Records that stay.
    pub kept: u64,
    /// Every reader is done with records up to here.
    pub safe_up_to: Seq,
    /// Why nothing was dropped.
    pub skipped: Option<CompactionSkipped>,
}

/// The answer of `rebuild_projection`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProjectionRebuilt {
    /// Sessions that were projected.
    pub sessions: u64,
    /// Events that they have.
    pub events: u64,
}

/// Why a session goes.
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

/// A session that retention takes away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RetentionItem {
    /// The session.
    pub session_id: SessionId,
    /// Its title; while none is set, the first line of its first prompt.
    pub title: Option<String>,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// Bytes that it takes.
    pub bytes: u64,
    /// Why it goes.
    pub reason: RetentionReason,
}

/// The answer of `retain`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Retained {
    /// What went, or would go.
    pub items: Vec<RetentionItem>,
    /// Sessions that were deleted; 0 where it was a dry run.
    pub deleted: u64,
    /// What was to go and could not be deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<RetentionFailure>,
}

/// A session that retention could not delete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RetentionFailure {
    /// The session.
    pub session_id: SessionId,
    /// Why not.
    pub code: String,
    /// The same in words.
    pub message: String,
}

/// The answer of `export_session`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BundlePage {
    /// The next bytes of the bundle, in base64.
    pub data: String,
    /// Where the next page begins; `null` at the end.
    pub next_cursor: Option<String>,
}

/// A session that was imported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImportedSession {
    /// Its id here.
    pub session_id: SessionId,
    /// Its id in the bundle.
    pub imported_from: SessionId,
    /// Its last event.
    pub last_seq: Seq,
}

/// The answer of `import_bundle`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Imported {
    /// The upload, for the next piece; `null` once it is done.
    pub upload: Option<String>,
    /// Bytes that are there.
    pub next_offset: u64,
    /// The sessions that were made, once the last piece is there.
    pub sessions: Vec<ImportedSession>,
}
