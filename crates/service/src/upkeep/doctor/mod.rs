//! Report of an examination of a data directory by `meerkat doctor`. Nothing is changed without a request for repair.

#[cfg(not(any(feature = "session-store", feature = "memory-store")))]
mod absent;
#[cfg(any(feature = "session-store", feature = "memory-store"))]
mod examine;

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::SessionId;
#[cfg(not(any(feature = "session-store", feature = "memory-store")))]
pub use absent::examine;
#[cfg(any(feature = "session-store", feature = "memory-store"))]
pub use examine::examine;

/// Request for an examination.
#[derive(Clone, Debug)]
pub struct Examination {
    /// Data directory.
    pub data_dir: PathBuf,
    /// Folder of the projection, if one is configured.
    pub projection: Option<PathBuf>,
    /// True to repair what can be repaired. No other process may own the directory then.
    pub is_repair: bool,
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
    /// Marks of the store.
    StoreJournal,
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

/// Report of an examination.
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

/// Callback with the number of examined sessions, and of all.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Send + Sync);
