//! Report of an examination of a data directory, or of a database, by `meerkat doctor`. Nothing is changed without a request for repair.

#[cfg(not(any(feature = "session-store", feature = "memory-store")))]
mod absent;
#[cfg(any(feature = "session-store", feature = "memory-store"))]
mod examine;

use std::path::PathBuf;

pub use meerkat_words::operators::{Check, Diagnosis, Finding, Severity};

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

/// Callback with the number of examined sessions, and of all. It answers `false` if nobody waits for the rest.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) -> bool + Send + Sync);

/// Returns the report on sessions in a database: they were not examined.
#[must_use]
pub fn of_database() -> Diagnosis {
    let what = "The sessions are in a database, which was not examined.".to_owned();
    let remedy = "Run `meerkat doctor` with the same configuration: it checks the database.";
    let (check, severity, remedy) = (Check::Configuration, Severity::Warning, remedy.to_owned());
    let finding = Finding { check, severity, session_id: None, what, remedy, mended: false };
    Diagnosis { findings: vec![finding], ..Diagnosis::default() }
}
