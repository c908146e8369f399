//! What `meerkat doctor` looks at and says: a data directory as it stands, nothing changed unless that is asked for.

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

/// What to look at.
#[derive(Clone, Debug)]
pub struct Examination {
    /// The data directory.
    pub data_dir: PathBuf,
    /// The folder of the projection, where there is to be one.
    pub projection: Option<PathBuf>,
    /// Whether to mend what can be mended. No other process may own the directory then.
    pub is_repair: bool,
}

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// The configuration.
    Configuration,
    /// Modes of files and folders.
    Permissions,
    /// Room on the disk.
    DiskSpace,
    /// The marks of the store.
    StoreJournal,
    /// A session's journal.
    Journal,
    /// A call without a result.
    ToolCall,
    /// Bodies too large for an event.
    Blob,
    /// What redb holds.
    Index,
    /// What memory was told to forget, and what it took in where no journal is kept.
    Memory,
    /// Readers of the journals.
    Readers,
    /// The files that are made from the journals.
    Projection,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Something durable is lost or cannot be used.
    Error,
    /// Something is not as it should be; nothing is lost.
    Warning,
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// What it is about.
    pub check: Check,
    /// How bad it is.
    pub severity: Severity,
    /// The session.
    pub session_id: Option<SessionId>,
    /// What was found.
    pub what: String,
    /// What to do.
    pub remedy: String,
    /// Whether it was mended just now.
    pub mended: bool,
}

/// What was looked at, and what was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnosis {
    /// The process that owns the directory; what it holds open was not looked at.
    pub owner_pid: Option<u32>,
    /// Sessions that were looked at.
    pub sessions: u64,
    /// Records that were read.
    pub records: u64,
    /// What was found, the worst first.
    pub findings: Vec<Finding>,
}

/// Tells how many of how many sessions were looked at.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Send + Sync);
